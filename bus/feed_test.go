package bus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// follow reads up to a sequence and fails on anything out of order.
func follow(t testing.TB, b *testBus, after, until uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	next := after + 1
	for c, err := range b.Follow(ctx, after) {
		if err != nil {
			t.Errorf("behind %d: %v", next-1, err)
			return
		}
		if c.Seq != next {
			t.Errorf("%d follows %d", c.Seq, next-1)
			return
		}
		if next++; next > until {
			return
		}
	}
}

func TestFollowersSeeEveryCommitInOrder(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	const before, n = 300, 1500
	for i := range before {
		b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	var work sync.WaitGroup
	for _, after := range []uint64{0, 100, before, before + 200} {
		work.Go(func() { follow(t, b, after, n) })
	}
	for i := range n - before {
		work.Go(func() { b.do(t, fmt.Sprint("s", i), Meta{}, "touch") })
	}
	work.Wait()
}

func TestSlowFollowerReadsFromTheLogAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.do(t, "s", Meta{}, "touch")
	next, stop := iter.Pull2(b.Follow(context.Background(), 0))
	defer stop()
	if c, err, _ := next(); err != nil || c.Seq != 1 {
		t.Fatal(c, err)
	}
	const n = feedSize + 500
	for i := range n {
		b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	for seq := uint64(2); seq <= n+1; seq++ {
		if c, err, _ := next(); err != nil || c.Seq != seq {
			t.Fatalf("%v %v instead of %d", c, err, seq)
		}
	}
}

// What another process appended is fetched when it is missing.
func TestGapIsFilledFromTheLog(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		for i := range 3 {
			b.elsewhere(t, events.KindSession, fmt.Sprint("foreign", i), "01ELSEWHERE", touched())
		}
		b.do(t, "own", Meta{}, "touch")
		if b.Head() != 0 {
			t.Errorf("head %d before the gap is filled", b.Head())
		}
		began := time.Now()
		follow(t, b, 0, 4)
		if d := time.Since(began); d > 2*gapPatience {
			t.Errorf("filled after %v", d)
		}
		for i := range 3 {
			if got := b.sessions.Get("default", fmt.Sprint("foreign", i)).Touched; got != 1 {
				t.Errorf("foreign commit %d is not in the model", i)
			}
		}
	})
}

// A hole is damage: followers end and nothing is appended any more.
func TestHoleEndsTheFeed(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	d := b.do(t, "s", Meta{}, "touch")
	b.feed.offer(&events.Commit{Seq: d.Seq + 2})
	var err error
	for _, err = range b.Follow(context.Background(), d.Seq) {
	}
	wantKind(t, err, fault.AuditDamaged)
	_, err = b.sessions.Dispatch(context.Background(), "default", "s", Meta{}, "touch")
	wantKind(t, err, fault.AuditDamaged)
}

func TestFollowEndsWithTheContextAndWithTheBus(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Millisecond, cancel)
	var err error
	for _, err = range b.Follow(ctx, 0) {
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	go shut(t, b.Bus)
	for _, err = range b.Follow(context.Background(), 0) {
	}
	wantKind(t, err, fault.BusUnavailable)
}

func TestFollowerOfSomeSeesThoseAndNoOthers(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wants := func(c *events.Commit) bool { return c.Aggregate.Key == "mine" }
	b.do(t, "other", Meta{}, "touch")
	first := b.do(t, "mine", Meta{}, "touch")
	next, stop := iter.Pull2(b.FollowSome(ctx, 0, wants))
	defer stop()
	if c, err, _ := next(); err != nil || c.Seq != first.Seq {
		t.Fatal(c, err)
	}
	for i := range 100 {
		b.do(t, fmt.Sprint("other", i), Meta{}, "touch")
	}
	second := b.do(t, "mine", Meta{}, "touch")
	if c, err, _ := next(); err != nil || c.Seq != second.Seq {
		t.Fatal(c, err)
	}
	third := make(chan Decided[sessionState], 1)
	go func() {
		b.do(t, "other", Meta{}, "touch")
		third <- b.do(t, "mine", Meta{}, "touch")
	}()
	if c, err, _ := next(); err != nil || c.Seq != (<-third).Seq { // it may have been waiting
		t.Fatal(c, err)
	}
}

// Whom nothing concerns looks at what there is before it leaves the ring, and is left
// alone otherwise.
func TestFollowerIsWokenForWhatItWantsAndBeforeItIsLeftBehind(t *testing.T) {
	t.Parallel()
	var f feed
	f.start(0)
	woken := func(fo *follower) bool {
		select {
		case <-fo.wake:
			return true
		default:
			return false
		}
	}
	some := f.join(0, func(c *events.Commit) bool { return c.Seq == 3 })
	all := f.join(0, nil)
	for seq := uint64(1); seq <= 3+nudge; seq++ {
		f.offer(&events.Commit{Seq: seq})
		if !woken(all) {
			t.Fatalf("not woken for %d", seq)
		}
		if got, want := woken(some), seq == 3 || seq == 3+nudge; got != want {
			t.Fatalf("woken for %d: %v", seq, got)
		}
		if seq == 3 {
			batch, _, err := f.take(some, 0, make([]*events.Commit, 0, 8))
			if err != nil || len(batch) != 3 {
				t.Fatal(batch, err)
			}
			f.take(some, 3, batch[:0])
		}
	}
	f.leave(some)
	f.fail(errors.New("broken"))
	if woken(some) || !woken(all) {
		t.Error("the end wakes who has left, or not who follows")
	}
}

// What is appended here and not given out yet is no gap, unless it never will be.
func TestFeedKnowsWhatIsOurs(t *testing.T) {
	t.Parallel()
	var f feed
	f.start(10)
	f.appended(11)
	f.appended(12)
	if !f.known(13) || f.known(14) {
		t.Errorf("known(13) %v, known(14) %v", f.known(13), f.known(14))
	}
	f.offer(&events.Commit{Seq: 13}) // early, and folded
	if !f.known(14) {
		t.Error("what is early is not known")
	}
	f.disown(11)
	if f.known(13) {
		t.Error("what was disowned is known")
	}
	f.offer(&events.Commit{Seq: 11})
	f.offer(&events.Commit{Seq: 12})
	f.appended(12) // the answer was read late
	if f.last() != 13 || len(f.ours) != 0 {
		t.Errorf("head %d, ours %v", f.last(), f.ours)
	}
}

// A follower that is in no hurry gets what it does not want soon a little later, but
// all of it once something comes that it wants, or when it is asked.
func TestLateFollowerIsWokenForWhatItWantsAndWhenItIsAsked(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		const late = 50 * time.Millisecond
		asked := make(chan struct{}, 1)
		got := make(chan uint64, 16)
		soon := func(c *events.Commit) bool { return c.Aggregate.Key == "soon" }
		go func() {
			for c, err := range b.FollowLate(ctx, 0, late, soon, asked) {
				if err != nil {
					return
				}
				got <- c.Seq
			}
		}()
		next := func(want uint64, after time.Duration) {
			t.Helper()
			began := time.Now()
			if seq := <-got; seq != want || time.Since(began) != after {
				t.Errorf("%d after %v, want %d after %v", seq, time.Since(began), want, after)
			}
		}
		b.do(t, "s", Meta{}, "touch")
		next(1, late)
		b.do(t, "s", Meta{}, "touch")
		b.do(t, "soon", Meta{}, "touch")
		next(2, 0)
		next(3, 0)
		b.do(t, "s", Meta{}, "touch")
		asked <- struct{}{}
		next(4, 0)
		b.do(t, "s", Meta{}, "touch") // though an alarm runs still
		if seq := <-got; seq != 5 {
			t.Errorf("%d, want 5", seq)
		}
	})
}
