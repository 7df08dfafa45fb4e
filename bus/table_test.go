package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// snapshot is all that a table says, for comparison.
func snapshot[S, C any](t *Table[S, C]) map[string]string {
	all := make(map[string]string)
	for a, s := range t.All() {
		all[a.Workspace+" "+a.String()] = fmt.Sprintf("%+v at %d", s, t.Seq(a.Workspace, a.Key))
	}
	return all
}

func TestWaitIsToldOfTheChange(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		got := make(chan sessionState)
		go func() {
			s, err := b.sessions.Wait(t.Context(), "default", "s1", func(s sessionState) bool { return s.Touched == 2 })
			if err != nil {
				t.Error(err)
			}
			got <- s
		}()
		synctest.Wait()
		began := time.Now()
		b.do(t, "s2", Meta{}, "touch")
		b.do(t, "s1", Meta{}, "touch")
		b.do(t, "s1", Meta{}, "touch")
		if s := <-got; s.Touched != 2 {
			t.Errorf("state %+v", s)
		}
		if d := time.Since(began); d > 0 {
			t.Errorf("told after %v", d)
		}
	})
}

func TestWaitEndsWithTheContextAndWithTheBus(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	never := func(sessionState) bool { return false }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.sessions.Wait(ctx, "default", "s1", never); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := len(b.sessions.awaits); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
	done := make(chan error)
	go func() {
		_, err := b.sessions.Wait(context.Background(), "default", "s1", never)
		done <- err
	}()
	shut(t, b.Bus)
	wantKind(t, <-done, fault.BusUnavailable)
}

// Decision 15: ended aggregates stay ten minutes, by the time of commits.
func TestEndedAggregatesLeaveTheModelAndAreNotBornAgain(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	began := time.Now()
	at := func(d time.Duration) Meta { return Meta{Time: began.Add(d)} }
	b.do(t, "old", at(0), "open")
	b.do(t, "old", at(time.Minute), "end")
	b.do(t, "young", at(2*time.Minute), "open")
	b.do(t, "young", at(3*time.Minute), "end")
	b.do(t, "living", at(4*time.Minute), "open")
	b.do(t, "last", at(11*time.Minute), "open")

	check := func(b *testBus) {
		t.Helper()
		var keys []string
		for _, key := range []string{"old", "young", "living", "last"} {
			if b.sessions.Seq("default", key) > 0 {
				keys = append(keys, key)
			}
		}
		if diff := cmp.Diff([]string{"young", "living", "last"}, keys); diff != "" {
			t.Error(diff)
		}
		if !b.sessions.Forgotten("default", "old") || b.sessions.Forgotten("default", "young") || b.sessions.Forgotten("default", "unborn") {
			t.Error("forgotten is what ended long ago, and nothing else")
		}
		_, err := b.sessions.Dispatch(context.Background(), "default", "old", Meta{}, "open")
		wantKind(t, err, fault.NotFound)
	}
	check(b)
	shut(t, b.Bus)
	check(open(t, Options{Home: home}))
}

func TestSetForgetsTheOldest(t *testing.T) {
	t.Parallel()
	var s set
	address := func(i int) Address {
		return Address{"default", events.AggregateID{Kind: events.KindCall, Key: fmt.Sprint(i)}}
	}
	for i := range maxForgotten + 10 {
		s.add(address(i))
		s.add(address(i))
	}
	if len(s.in) != maxForgotten || s.has(address(9)) || !s.has(address(10)) || !s.has(address(maxForgotten+9)) {
		t.Errorf("%d kept", len(s.in))
	}
}

func TestAllDoesNotSeeWhatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	for i := range 10 {
		b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	n := 0
	for a, s := range b.sessions.All() {
		n++
		b.do(t, fmt.Sprint("new", n), Meta{}, "touch")
		b.do(t, a.Key, Meta{}, "touch")
		if s.Touched != 1 {
			t.Errorf("%s touched %d times", a, s.Touched)
		}
	}
	if n != 10 {
		t.Errorf("%d aggregates", n)
	}
}

func TestRestartFoldsTheSameModel(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	for i := range 2000 {
		b.do(t, fmt.Sprint("s", i%300), Meta{}, "touch")
	}
	if _, err := b.grants.Dispatch(context.Background(), "other", "ana", Meta{}, true); err != nil {
		t.Fatal(err)
	}
	sessions, grants := snapshot(b.sessions), snapshot(b.grants)
	log := commits(t, b.Bus)
	shut(t, b.Bus)

	b = open(t, Options{Home: home})
	if diff := cmp.Diff(sessions, snapshot(b.sessions)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(grants, snapshot(b.grants)); diff != "" {
		t.Error(diff)
	}
	if !reflect.DeepEqual(log, commits(t, b.Bus)) {
		t.Error("the log has changed")
	}
	if b.Head() != 2001 {
		t.Errorf("head %d", b.Head())
	}
	if d := b.do(t, "s1", Meta{}, "touch"); d.Seq != 2002 {
		t.Errorf("sequence %d", d.Seq)
	}
}

func TestEachKindIsRegisteredOnceAndBeforeLoad(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	defer func() {
		if recover() == nil {
			t.Error("registered after Load")
		}
	}()
	Register(b.Bus, Decider[int, int]{Kind: events.KindTurn})
}
