package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/runtime"
)

// worker opens the bus of another as a worker process would.
func (b *testBus) worker(t testing.TB) *testBus {
	t.Helper()
	return open(t, Options{Home: b.opts.Home, Worker: true, External: &External{URL: b.URL(), Creds: b.workerCreds(t)}})
}

func (b *testBus) workerCreds(t testing.TB) []byte {
	t.Helper()
	return b.enrolled(t, "w-"+ulid.Make().String(), host.RoleWorker)
}

func (b *testBus) model() *Model { return &Model{Runtimes: b.runtimes} }

// joined is a process that has joined and runs.
type joined struct {
	*testBus
	*Member
	ended chan error // of Run
	stop  func()
}

// join joins and runs; the runtime leaves when the test ends.
func (b *testBus) join(t testing.TB, id string, reap Reap) *joined {
	t.Helper()
	m, err := b.Join(patient(t), b.model(), JoinOptions{Runtime: id, Home: "h", Version: "v"})
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if reap == nil {
		reap = func(context.Context, string) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &joined{b, m, make(chan error, 1), cancel}
	go func() { j.ended <- m.Run(ctx, reap) }()
	t.Cleanup(cancel)
	return j
}

// follows reports whether a process follows the log.
func (j *joined) follows() bool {
	j.tail.mu.Lock()
	defer j.tail.mu.Unlock()
	return j.tail.stop != nil
}

// leave ends a process in order.
func (j *joined) leave(t testing.TB) {
	t.Helper()
	j.stop()
	<-j.ended
	if err := j.Leave(patient(t), "test"); err != nil {
		t.Errorf("%v (%v)", err, cause(err))
	}
}

// patient is a context for what must not hang.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// unpulled is a connection on which no consumer is pulled from with heartbeats.
type unpulled struct{ net.Conn }

func (c unpulled) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("idle_heartbeat")) {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// What a process is given up by is in the log: it gets there also when no consumer
// does its work.
func TestLogIsFollowedWithoutConsumers(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0", wrap: func(c net.Conn) net.Conn { return unpulled{c} }})
	one := b.join(t, "r-1", nil)
	two := b.worker(t).join(t, "r-2", nil)
	two.do(t, "s1", Meta{}, "touch")
	if _, err := one.sessions.Wait(patient(t), "default", "s1", func(s sessionState) bool { return s.Touched == 1 }); err != nil {
		t.Error(err)
	}
	two.leave(t)
	one.leave(t)
}

func TestTwoProcessesSeeEachOthersCommits(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	one := b.join(t, "r-1", nil)
	if one.follows() || !one.alone() {
		t.Error("who is alone follows the log")
	}
	one.do(t, "s0", Meta{}, "touch")
	two := b.worker(t).join(t, "r-2", nil)
	if got := two.sessions.Get("default", "s0").Touched; got != 1 {
		t.Errorf("the second has %d touches of before it came", got)
	}
	if fmt.Sprint(one.Peers(), two.Peers(), one.Alive("r-2"), two.Alive("r-1"), one.Alive("r-3")) != "[r-2] [r-1] true true false" {
		t.Error("peers", one.Peers(), two.Peers())
	}
	if !one.follows() {
		t.Error("who has a peer does not follow the log")
	}
	// Each waits for the other's commit without asking for it.
	for i := range 20 {
		from, to := one, two
		if i%2 == 1 {
			from, to = two, one
		}
		key := fmt.Sprint("s", i+1)
		from.do(t, key, Meta{}, "touch")
		if _, err := to.sessions.Wait(patient(t), "default", key, func(s sessionState) bool { return s.Touched == 1 }); err != nil {
			t.Fatal(err)
		}
	}
	// And has it at once when it asks.
	for i := range 200 {
		from, to := one, two
		if i%2 == 1 {
			from, to = two, one
		}
		from.do(t, "s", Meta{}, "touch")
		if err := to.Sync(patient(t)); err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
		if got := to.sessions.Get("default", "s").Touched; got != i+1 {
			t.Fatalf("%d touches after the sync of %d", got, i+1)
		}
	}
	two.leave(t)
	if err := one.Reached(patient(t), two.Head()); err != nil || !one.alone() {
		t.Error(err, one.Peers())
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if !one.follows() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("who is alone again still follows the log")
		}
	}
}

// R205 between processes: all touches are there, each once.
func TestWritersOfTwoProcessesDecideAgain(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	both := []*joined{b.join(t, "r-1", nil), b.worker(t).join(t, "r-2", nil)}
	const n = 150
	var work sync.WaitGroup
	for _, j := range both {
		work.Go(func() {
			for range n {
				for {
					_, err := j.sessions.Dispatch(patient(t), "default", "s", Meta{}, "touch")
					if err == nil {
						break
					}
					if !fault.Is(err, fault.Conflict) {
						t.Errorf("%v (%v)", err, cause(err))
						return
					}
				}
			}
		})
	}
	work.Wait()
	for _, j := range both {
		if err := j.Sync(patient(t)); err != nil {
			t.Fatal(err)
		}
		if got := j.sessions.Get("default", "s").Touched; got != 2*n {
			t.Errorf("%d touches, want %d", got, 2*n)
		}
	}
}

// Decision 16, between processes: a decision under way is waited for, and none
// begins on the older state.
func TestSettleWaitsForDecisionsUnderWay(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	one := b.join(t, "r-1", nil)
	two := b.worker(t).join(t, "r-2", nil)
	ctx := patient(t)
	grant := events.AggregateID{Kind: events.KindGrant, Key: "ana"}
	if _, err := one.grants.Dispatch(ctx, "default", "ana", Meta{}, true); err != nil {
		t.Fatal(err)
	}
	if err := two.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	began, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	var under error
	var work sync.WaitGroup
	work.Go(func() {
		_, under = two.calls.DispatchWith(ctx, "default", "c1", Meta{}, With{Reads: []events.AggregateID{grant}}, func() (callDo, error) {
			may := two.grants.Get("default", "ana")
			close(began)
			<-held
			return callDo{may: may}, nil
		})
	})
	<-began
	if _, err := one.grants.Dispatch(ctx, "default", "ana", Meta{}, false); err != nil {
		t.Fatal(err)
	}
	settled := make(chan error, 1)
	go func() { settled <- one.Settle(ctx, "default", grant) }()
	select {
	case err := <-settled:
		t.Fatalf("settled, while a decision on the older state is under way: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	release()
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if under != nil {
		t.Errorf("the decision under way: %v", under)
	}
	if _, err := two.calls.DispatchWith(ctx, "default", "c2", Meta{}, With{Reads: []events.AggregateID{grant}},
		func() (callDo, error) { return callDo{may: two.grants.Get("default", "ana")}, nil }); !errors.Is(err, errMayNot) {
		t.Errorf("a call after the settlement: %v", err)
	}
}

// The same, without looking: no start after the revoke's reply, at any process.
func TestNothingStartsAnywhereAfterTheSettlement(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	one := b.join(t, "r-1", nil)
	two := b.worker(t).join(t, "r-2", nil)
	ctx := patient(t)
	grant := events.AggregateID{Kind: events.KindGrant, Key: "ana"}
	stop := make(chan struct{})
	var work sync.WaitGroup
	var mu sync.Mutex
	started := 0
	for _, j := range []*joined{one, two} {
		for i := range 2 {
			work.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					_, err := j.calls.DispatchWith(ctx, "default", fmt.Sprint(j.name(), i, n), Meta{}, With{Reads: []events.AggregateID{grant}},
						func() (callDo, error) { return callDo{may: j.grants.Get("default", "ana")}, nil })
					if err != nil && !errors.Is(err, errMayNot) {
						t.Errorf("%v (%v)", err, cause(err))
						return
					}
					if err == nil {
						mu.Lock()
						started++
						mu.Unlock()
					}
				}
			})
		}
	}
	var quiet []uint64 // from the settlement of a revoke up to the next grant
	for range 15 {
		d, err := one.grants.Dispatch(ctx, "default", "ana", Meta{}, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(quiet) > 0 {
			quiet = append(quiet, d.Seq)
		}
		time.Sleep(5 * time.Millisecond)
		if _, err := one.grants.Dispatch(ctx, "default", "ana", Meta{}, false); err != nil {
			t.Fatal(err)
		}
		if err := one.Settle(ctx, "default", grant); err != nil {
			t.Fatal(err)
		}
		seq, err := one.stored(ctx)
		if err != nil {
			t.Fatal(err)
		}
		quiet = append(quiet, seq)
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	work.Wait()
	if started == 0 {
		t.Error("nothing was started")
	}
	for i := 0; i+1 < len(quiet); i += 2 {
		for c, err := range one.Read(ctx, quiet[i]) {
			if err != nil {
				t.Fatal(err)
			}
			if c.Seq >= quiet[i+1] {
				break
			}
			if _, ok := c.Events[0].(events.CallStarted); ok {
				t.Errorf("commit %d starts %s after the settlement at %d", c.Seq, c.Aggregate, quiet[i])
			}
		}
	}
}

func (j *joined) name() string { return j.Member.opts.Runtime }

func TestSecondHomeInAWorkspaceIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	one := b.join(t, "r-1", nil)
	w := b.worker(t)
	_, err := w.Join(patient(t), w.model(), JoinOptions{Runtime: "r-2", Home: "another", Version: "v"})
	wantKind(t, err, fault.HomeLocked)
	if err := one.Sync(patient(t)); err != nil || len(one.runtimes.Get("default", "another").Live) > 0 {
		t.Error("it booted", err)
	}
	one.leave(t)
	if _, err = w.Join(patient(t), w.model(), JoinOptions{Runtime: "r-2", Home: "another", Version: "v"}); err != nil {
		t.Errorf("%v (%v)", err, cause(err))
	}
}

// An embedded process that died is gone by proof: who joins has its store.
func TestEmbeddedProcessOfBeforeIsGone(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	one := b.join(t, "r-1", nil)
	one.stop() // and does not leave
	<-one.ended
	shut(t, b.Bus)
	b = open(t, Options{Home: home})
	m, err := b.Join(patient(t), b.model(), JoinOptions{Runtime: "r-2", Home: "h", Version: "v"})
	if err != nil || fmt.Sprint(m.Gone()) != "[r-1]" {
		t.Fatal(m.Gone(), err)
	}
	var reaped []string
	if err := m.Recover(patient(t), func(_ context.Context, id string) error {
		if !m.Alive(id) {
			t.Error("closed before it was reaped")
		}
		reaped = append(reaped, id)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(reaped) != "[r-1]" || m.Alive("r-1") || !m.Alive("r-2") {
		t.Error(reaped, m.Peers())
	}
	last := commits(t, b.Bus)
	if e, ok := last[len(last)-1].Events[0].(events.RuntimeClosed); !ok || e.Reason != Lost {
		t.Errorf("the log ends with %+v", last[len(last)-1])
	}
}

// A lease that has run out stops nobody who is alone with his store, and whoever
// has peers until it is taken again.
func TestLapsedLeaseIsTakenAgain(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	m, err := b.Join(patient(t), b.model(), JoinOptions{Runtime: "r-1", Home: "h", Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Valid(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if held, err := b.held(patient(t), "r-1"); err != nil || time.Now().After(deadline) {
			t.Fatal("the lease does not run out", err)
		} else if !held {
			break
		}
	}
	if err := m.Valid(); err != nil {
		t.Error("it is alone:", err)
	}
	w := b.worker(t)
	peer, err := w.Join(patient(t), w.model(), JoinOptions{Runtime: "r-2", Home: "h", Version: "v"})
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	wantKind(t, m.Valid(), fault.RuntimeNotLive)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, nil) }()
	for deadline := time.Now().Add(10 * time.Second); m.Valid() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the lease is not taken again")
		}
	}
	if held, err := b.held(patient(t), "r-1"); err != nil || !held {
		t.Error(held, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := peer.Leave(patient(t), "test"); err != nil {
		t.Fatal(err)
	}
	if err := m.Leave(patient(t), "test"); err != nil {
		t.Fatal(err)
	}
	if held, err := b.held(patient(t), "r-1"); err != nil || held || m.Alive("r-1") {
		t.Error("something is left", held, err)
	}
}

// On a slow disk no lease is renewed in time. Who is dead all the same is buried.
func TestDeadPeerIsBuriedByWhoLostItsLease(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	m, err := b.Join(patient(t), b.model(), JoinOptions{Runtime: "r-1", Home: "h", Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	w := b.worker(t)
	if _, err := w.Join(patient(t), w.model(), JoinOptions{Runtime: "r-2", Home: "h", Version: "v"}); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	for m.lease.valid() { // nobody renews it
		time.Sleep(10 * time.Millisecond)
	}
	w.nc.Close()
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.watch(ctx, func(context.Context, string) error { return nil }) }()
	if _, err := b.runtimes.Wait(ctx, "default", "h", func(s runtime.State) bool { return len(s.Live) == 1 }); err != nil {
		t.Error(err)
	}
	cancel()
	<-ended
}

// A renewal makes a lease live on, and not for ever.
func TestRenewedLeaseRunsOut(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	l := &lease{bus: b.Bus, key: "r-1", ttl: time.Second}
	ctx := patient(t)
	if err := l.take(ctx); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := l.renew(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if held, err := b.held(ctx, "r-1"); err != nil || !held || !l.valid() {
		t.Error(held, err)
	}
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if held, err := b.held(ctx, "r-1"); err != nil || time.Now().After(deadline) {
			t.Fatal("it lives for ever", err)
		} else if !held {
			break
		}
	}
	if err := l.renew(ctx); !errors.Is(err, errLapsed) || l.valid() {
		t.Errorf("renewed after its end: %v", err)
	}
}

// An answer that was lost has moved the revision: the lease is ours all the same.
func TestLeaseWhoseRenewalWasNotAnsweredIsKept(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	l := &lease{bus: b.Bus, key: "r-1", ttl: 10 * time.Second}
	ctx := patient(t)
	if err := l.take(ctx); err != nil {
		t.Fatal(err)
	}
	lost := &lease{bus: b.Bus, key: "r-1", ttl: l.ttl, revision: l.revision}
	if err := lost.renew(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.renew(ctx); err == nil || errors.Is(err, errLapsed) {
		t.Errorf("renewed at an old revision: %v", err)
	}
	if err := l.renew(ctx); err != nil {
		t.Error(err)
	}
}

// Who was given up learns it from the log.
func TestProcessThatIsClosedInTheLogEnds(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	one := b.join(t, "r-1", nil)
	if _, err := b.runtimes.Dispatch(patient(t), "default", "h", Meta{}, runtime.Close{Runtime: "r-1", Reason: Lost}); err != nil {
		t.Fatal(err)
	}
	err := <-one.ended
	wantKind(t, err, fault.RuntimeClosed)
	if e, _ := fault.Lookup(fault.KindOf(err)); e.Exit != 8 {
		t.Errorf("exit code %d", e.Exit)
	}
}
