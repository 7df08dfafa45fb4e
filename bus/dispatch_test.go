package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// elsewhere appends as another process would: past the locks and the model.
func (b *testBus) elsewhere(t testing.TB, kind events.Kind, key, command string, happened ...events.Event) uint64 {
	t.Helper()
	c := &events.Commit{Command: command, Correlation: command, Workspace: "default",
		Aggregate: events.AggregateID{Kind: kind, Key: key}, Time: time.Now(), Events: happened}
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b.raw(t, subjectOf(c.Workspace, c.Aggregate), data)
}

func (b *testBus) raw(t testing.TB, subject string, data []byte) uint64 {
	t.Helper()
	ack, err := b.js.Publish(context.Background(), subject, data)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

func touched() events.Event { return events.SessionStarted{Label: "elsewhere", Reason: "touch"} }

func TestDispatchAppendsOneCommitWhichIsReadBackAsItWas(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	d := b.do(t, "s1", Meta{Actor: "local", Principal: "ana", Scope: events.Scope{Session: "s1"}}, "first")
	if d.Seq != 1 || len(d.Events) != 1 || d.State.Label != "first" || d.Repeated {
		t.Fatalf("decided %+v", d)
	}
	all := commits(t, b.Bus)
	if len(all) != 1 {
		t.Fatalf("%d commits", len(all))
	}
	c := all[0]
	if len(c.Command) != 26 || c.Correlation != c.Command || c.Actor != "local" || c.Principal != "ana" || c.Workspace != "default" || c.Scope.Session != "s1" {
		t.Errorf("envelope %+v", c)
	}
	if diff := cmp.Diff(d.Events, c.Events); diff != "" {
		t.Error(diff)
	}
	if got := b.sessions.Seq("default", "s1"); got != 1 || b.Head() != 1 {
		t.Errorf("sequence %d, head %d", got, b.Head())
	}
}

func TestNoEventAppendsNothing(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.do(t, "s1", Meta{}, "first")
	if d := b.do(t, "s1", Meta{}, "second"); d.Seq != 0 || d.Events != nil || d.State.Label != "first" {
		t.Errorf("decided %+v", d)
	}
	if n := len(commits(t, b.Bus)); n != 1 {
		t.Errorf("%d commits", n)
	}
}

func TestRefusalIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	_, err := b.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "end")
	if err != errNoSession {
		t.Errorf("error %v", err)
	}
	if n := len(commits(t, b.Bus)); n != 0 {
		t.Errorf("%d commits", n)
	}
}

func TestWhatIsNoAggregateIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	for _, c := range []struct{ workspace, key string }{{"", "s"}, {"*", "s"}, {"a.b", "s"}, {"default", ""}, {"default", "\xff"}} {
		_, err := b.sessions.Dispatch(context.Background(), c.workspace, c.key, Meta{}, "open")
		wantKind(t, err, fault.InvalidInput)
	}
	_, err := b.sessions.DispatchWith(context.Background(), "default", "s", Meta{}, With{Reads: []events.AggregateID{{Kind: "a.b", Key: "k"}}},
		func() (sessionDo, error) { return "open", nil })
	wantKind(t, err, fault.InvalidInput)
}

// R206: a repeated command does nothing, also after a restart.
func TestRepeatedCommandIsDecidedOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	first := ulid.Make().String()
	b.do(t, "s1", Meta{Command: first}, "touch")
	for range commandsKept - 1 {
		b.do(t, "s1", Meta{}, "touch")
	}
	check := func(b *testBus) {
		t.Helper()
		d := b.do(t, "s1", Meta{Command: first}, "touch")
		if !d.Repeated || d.Seq != 1 || d.Events != nil || d.State.Touched != commandsKept {
			t.Errorf("decided %+v", d)
		}
	}
	check(b)
	shut(t, b.Bus)
	check(open(t, Options{Home: home}))
}

// R205: the loser of a race decides again on what the winner did.
func TestConflictIsDecidedAgainOnTheNewerState(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.do(t, "s1", Meta{}, "touch")
	b.elsewhere(t, events.KindSession, "s1", "01ELSEWHERE", touched())
	if d := b.do(t, "s1", Meta{}, "touch"); d.Seq != 3 || d.State.Touched != 3 || d.State.Label != "elsewhere" {
		t.Errorf("decided %+v", d)
	}
	if n := len(commits(t, b.Bus)); n != 3 {
		t.Errorf("%d commits", n)
	}
}

func TestConflictWithTheSameCommandElsewhereIsARepetition(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	command := ulid.Make().String()
	b.elsewhere(t, events.KindSession, "s1", command, touched())
	if d := b.do(t, "s1", Meta{Command: command}, "touch"); !d.Repeated || d.Seq != 1 || d.State.Touched != 1 {
		t.Errorf("decided %+v", d)
	}
}

func TestConflictsAreBounded(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	builds := 0
	_, err := b.sessions.DispatchWith(context.Background(), "default", "s1", Meta{}, With{}, func() (sessionDo, error) {
		builds++
		b.elsewhere(t, events.KindSession, "s1", fmt.Sprint("01ELSEWHERE", builds), touched())
		return "touch", nil
	})
	wantKind(t, err, fault.Conflict)
	if builds != maxDecisions {
		t.Errorf("built %d times", builds)
	}
}

// stalled is the runtime's connection on a day when answers do not arrive.
type stalled struct {
	net.Conn
	gate *atomic.Pointer[chan struct{}]
}

func (c stalled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if gate := c.gate.Load(); gate != nil {
		<-*gate
	}
	return n, err
}

// An answer that is late is no reason to append twice, also when the expectation
// is a fence, which our own commit does not move.
func TestUnansweredAppendIsFoundAndNotRepeated(t *testing.T) {
	t.Parallel()
	for name, fence := range map[string]events.AggregateID{"own": {}, "fence": {Kind: events.KindConnection, Key: "c1"}} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				var gate atomic.Pointer[chan struct{}]
				b := open(t, Options{wrap: func(c net.Conn) net.Conn { return stalled{c, &gate} }})
				b.do(t, "other", Meta{}, "touch")
				shutGate := make(chan struct{})
				gate.Store(&shutGate)
				time.AfterFunc(b.timeout+time.Second, func() {
					gate.Store(nil)
					close(shutGate)
				})
				d, err := b.sessions.DispatchWith(context.Background(), "default", "s1", Meta{}, With{Fence: fence},
					func() (sessionDo, error) { return "touch", nil })
				if err != nil {
					t.Fatalf("%v (%v)", err, cause(err))
				}
				if d.Seq != 2 || d.Repeated || len(d.Events) != 1 || d.State.Touched != 1 {
					t.Errorf("decided %+v", d)
				}
				if n := len(commits(t, b.Bus)); n != 2 {
					t.Errorf("%d commits", n)
				}
				if b.Head() != 2 {
					t.Errorf("head %d", b.Head())
				}
			})
		})
	}
}

// A log that gives no answer keeps one caller waiting, not all of them, and is
// back as soon as it answers.
func TestLogThatGivesNoAnswerRefusesAtOnceUntilItDoes(t *testing.T) {
	t.Parallel()
	bubble.Run(t, func(t *testing.T) {
		var gate atomic.Pointer[chan struct{}]
		b := open(t, Options{wrap: func(c net.Conn) net.Conn { return stalled{c, &gate} }})
		shutGate := make(chan struct{})
		gate.Store(&shutGate)
		_, err := b.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "touch")
		wantKind(t, err, fault.AuditUnavailable)
		if b.LogErr() == nil {
			t.Fatal("a log that gave no answer is called well")
		}
		asked := time.Now()
		_, err = b.sessions.Dispatch(context.Background(), "default", "s2", Meta{}, "touch")
		wantKind(t, err, fault.AuditUnavailable)
		if waited := time.Since(asked); waited > 0 {
			t.Errorf("the second caller waited %v", waited)
		}
		gate.Store(nil)
		close(shutGate)
		for b.LogErr() != nil {
			time.Sleep(probeEvery) // of the bubble's time
		}
		if d := b.do(t, "s3", Meta{}, "touch"); d.Seq == 0 {
			t.Error("nothing was appended")
		}
	})
}

// R209: what the log does not take has not happened.
func TestLogThatTakesNothing(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	if err := b.js.DeleteStream(context.Background(), eventStream); err != nil {
		t.Fatal(err)
	}
	d, err := b.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "open")
	wantKind(t, err, fault.AuditUnavailable)
	if d.Seq != 0 || b.sessions.Get("default", "s1").Label != "" {
		t.Errorf("decided %+v", d)
	}
}

func TestSequencesBeyond32BitsAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.feed.mu.Lock()
	b.feed.head, b.feed.first = math.MaxUint32, math.MaxUint32+1
	b.feed.mu.Unlock()
	_, err := b.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "open")
	wantKind(t, err, fault.AuditUnavailable)
	if n := len(commits(t, b.Bus)); n != 0 {
		t.Errorf("%d commits", n)
	}
}

// Decision 16: no start after the revoke's reply.
func TestNothingStartsAfterTheRevokesReply(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	ctx := context.Background()
	grant := events.AggregateID{Kind: events.KindGrant, Key: "ana"}
	stop := make(chan struct{})
	var work sync.WaitGroup
	var started, refused atomic.Int64
	for i := range 8 {
		work.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_, err := b.calls.DispatchWith(ctx, "default", fmt.Sprintf("c%d-%d", i, n), Meta{}, With{Reads: []events.AggregateID{grant}},
					func() (callDo, error) { return callDo{may: b.grants.Get("default", "ana")}, nil })
				switch {
				case err == nil:
					started.Add(1)
				case errors.Is(err, errMayNot):
					refused.Add(1)
				default:
					t.Errorf("%v (%v)", err, cause(err))
					return
				}
			}
		})
	}
	for i := range 40 {
		if _, err := b.grants.Dispatch(ctx, "default", "ana", Meta{}, grantDo(i%2 == 0)); err != nil {
			t.Fatal(err)
		}
		for before := started.Load() + refused.Load(); started.Load()+refused.Load() < before+4; {
			time.Sleep(time.Millisecond)
		}
	}
	close(stop)
	work.Wait()

	may := false
	for _, c := range commits(t, b.Bus) {
		switch c.Events[0].(type) {
		case events.CapabilityGranted:
			may = true
		case events.CapabilityRevoked:
			may = false
		case events.CallStarted:
			if !may {
				t.Fatalf("commit %d starts %s without the grant", c.Seq, c.Aggregate)
			}
		}
	}
	if started.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d started, %d refused", started.Load(), refused.Load())
	}
}

// Decision 20: a start holds only for the opening of the connection that it saw.
func TestFenceThatMovedIsReadAgain(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	ctx := context.Background()
	if _, err := b.connections.Dispatch(ctx, "default", "c1", Meta{}, "r1"); err != nil {
		t.Fatal(err)
	}
	var seen []uint32
	d, err := b.calls.DispatchWith(ctx, "default", "call", Meta{}, With{Fence: events.AggregateID{Kind: events.KindConnection, Key: "c1"}}, func() (callDo, error) {
		if len(seen) == 0 {
			defer b.elsewhere(t, events.KindConnection, "c1", "01OTHER", events.ConnectionClaimed{Runtime: "r2"})
		}
		seen = append(seen, b.connections.Get("default", "c1"))
		return callDo{may: true, generation: seen[len(seen)-1]}, nil
	})
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if diff := cmp.Diff([]uint32{1, 2}, seen); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]events.Event{events.CallStarted{Generation: 2}}, d.Events); diff != "" {
		t.Error(diff)
	}
}

// What others append while a command is decided is a conflict also when the feed
// has folded it before the append.
func TestFoldWhileDecidingIsAConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fence events.AggregateID
		kind  events.Kind
		event events.Event
		key   string
	}{
		"own":   {events.AggregateID{}, events.KindSession, touched(), "s1"},
		"fence": {events.AggregateID{Kind: events.KindConnection, Key: "c1"}, events.KindConnection, events.ConnectionClaimed{Runtime: "r2"}, "c1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, Options{})
			builds := 0
			d, err := b.sessions.DispatchWith(context.Background(), "default", "s1", Meta{}, With{Fence: c.fence}, func() (sessionDo, error) {
				if builds++; builds == 1 {
					seq := b.elsewhere(t, c.kind, c.key, "01OTHER", c.event)
					if err := b.Reached(context.Background(), seq); err != nil {
						t.Error(err)
					}
				}
				return "touch", nil
			})
			if err != nil || builds != 2 || d.Seq != 2 {
				t.Errorf("built %d times, decided %+v, %v", builds, d, err)
			}
		})
	}
}

// A fence says nothing about the own boundary: what another process appended to
// it must reach the model all the same, in order.
func TestFencedAppendSeesWhatCameBeforeOnItsOwnBoundary(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	fence := events.AggregateID{Kind: events.KindConnection, Key: "c1"}
	b.elsewhere(t, events.KindSession, "s1", "01ELSEWHERE", touched())
	d, err := b.sessions.DispatchWith(context.Background(), "default", "s1", Meta{}, With{Fence: fence},
		func() (sessionDo, error) { return "touch", nil })
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if d.Seq != 2 || d.State.Touched != 2 || b.sessions.Seq("default", "s1") != 2 {
		t.Errorf("decided %+v", d)
	}
}

// What the fence is not for is decided again where another process was first on
// the own boundary.
func TestWhatIsNotFencedIsExpectedOnItsOwnBoundary(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{true, false} {
		b := open(t, Options{})
		b.elsewhere(t, events.KindSession, "s1", "01ELSEWHERE", touched())
		var seen []int
		d, err := b.sessions.DispatchWith(context.Background(), "default", "s1", Meta{}, With{
			Fence:  events.AggregateID{Kind: events.KindConnection, Key: "c1"},
			Fenced: func(happened []events.Event) bool { return fenced && len(happened) == 1 },
		}, func() (sessionDo, error) {
			seen = append(seen, b.sessions.Get("default", "s1").Touched)
			return "touch", nil
		})
		if err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
		want := map[bool]string{true: "[0]", false: "[0 1]"}[fenced]
		if fmt.Sprint(seen) != want || d.State.Touched != 2 {
			t.Errorf("fenced %v: decided on %v, want %s; %+v", fenced, seen, want, d)
		}
	}
}

func TestManyDispatchesAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	const n = 2000
	var work sync.WaitGroup
	seqs := make([]uint64, n)
	for i := range n {
		work.Go(func() {
			d, err := b.sessions.Dispatch(context.Background(), "default", fmt.Sprint("s", i%500), Meta{}, "touch")
			if err != nil {
				t.Errorf("%v (%v)", err, cause(err))
			}
			seqs[i] = d.Seq
		})
	}
	work.Wait()
	seen := make(map[uint64]bool)
	for _, seq := range seqs {
		seen[seq] = true
	}
	if len(seen) != n || b.Head() != n || len(commits(t, b.Bus)) != n {
		t.Errorf("%d sequences, head %d", len(seen), b.Head())
	}
	for i := range 500 {
		if got := b.sessions.Get("default", fmt.Sprint("s", i)).Touched; got != n/500 {
			t.Fatalf("session %d touched %d times", i, got)
		}
	}
}

func TestWaitingForABoundaryEndsWithTheContext(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	locks, err := lock(context.Background(), b.at("default", events.AggregateID{Kind: events.KindSession, Key: "s1"}))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := b.sessions.Dispatch(ctx, "default", "s1", Meta{}, "open"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestDispatchNeedsALoadedAndOpenBus(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b, err := Open(context.Background(), Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bubble.Sweep(home) })
	tb := register(b)
	_, err = tb.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "open")
	wantKind(t, err, fault.AuditUnavailable)
	if err := b.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantKind(t, b.Load(context.Background()), fault.Internal)
	shut(t, b)
	_, err = tb.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "open")
	wantKind(t, err, fault.BusUnavailable)
}
