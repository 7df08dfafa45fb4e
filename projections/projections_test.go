package projections

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/internal/memlog"
	"github.com/gatebus/gatebus/projections/sessions"
)

// granted is a commit that every log may hold.
func granted(principal string) *events.Commit {
	return &events.Commit{
		Command: "c", Principal: principal, Workspace: "default", Time: start,
		Aggregate: events.AggregateID{Kind: events.KindGrant, Key: principal},
		Events:    []events.Event{events.CapabilityGranted{Capability: "mcp.call:*"}},
	}
}

// running is a set that follows the log until the test ends.
func running(t *testing.T, log Source) (*Set, <-chan error) {
	t.Helper()
	s := New()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- s.Run(ctx, log)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return s, done
}

func TestSetFollowsTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := memlog.Of(granted("ana"))
		s, _ := running(t, log)
		if err := s.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		changed := make(chan uint64)
		go func() {
			seq, err := s.Changed(t.Context(), 1)
			if err != nil {
				t.Error(err)
			}
			changed <- seq
		}()
		synctest.Wait()
		select {
		case seq := <-changed:
			t.Fatalf("told of a change at %d, there was none", seq)
		default:
		}
		log.Add(granted("bob"))
		if seq := <-changed; seq != 2 || len(s.Grants.Capabilities("default", "bob")) != 1 {
			t.Errorf("told of a change at %d, bob holds %v", seq, s.Grants.Capabilities("default", "bob"))
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, _ := running(t, memlog.Of())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	if err := s.Wait(ctx, 0); err != nil {
		t.Errorf("Wait for what is applied: %v", err)
	}
}

func TestSetStopsAtAnEventThatItDoesNotKnowR211(t *testing.T) {
	t.Parallel()
	log := memlog.Of(granted("ana"))
	log.Fail(fmt.Errorf("events: commit 2: %w", events.ErrUnknown))
	s, done := running(t, log)
	if err := <-done; !errors.Is(err, events.ErrUnknown) {
		t.Fatalf("Run: %v", err)
	}
	if got := s.Status(); got.Applied != 1 || !errors.Is(got.Err, events.ErrUnknown) {
		t.Errorf("status %+v", got)
	}
	if err := s.Wait(t.Context(), 2); !errors.Is(err, events.ErrUnknown) {
		t.Errorf("whoever waits is told %v", err)
	}
	if err := s.Run(t.Context(), log); err == nil || errors.Is(err, events.ErrUnknown) {
		t.Errorf("a second run: %v", err)
	}
}

func TestSetStopsAtAHole(t *testing.T) {
	t.Parallel()
	late := granted("bob")
	late.Seq = 3
	log, end := memlog.Of(granted("ana"), late), errors.New("the end")
	log.Fail(end)
	s, done := running(t, log)
	if err := <-done; errors.Is(err, end) || s.Applied() != 1 {
		t.Errorf("Run: %v, applied %d", err, s.Applied())
	}
}

// broken is a projection that panics at a commit.
type broken struct{ at uint64 }

func (broken) Name() string { return "broken" }
func (broken) State() any   { return &broken{} }
func (b broken) Apply(c *events.Commit) {
	if c.Seq == b.at {
		panic("secret")
	}
}

// Bug report C8 70: a handler that threw every time looked healthy.
func TestProjectionThatPanicsStopsTheSetAndIsNamed(t *testing.T) {
	t.Parallel()
	s := New()
	s.all = append(s.all, broken{2})
	log := memlog.Of(granted("ana"), granted("bob"), granted("eve"))
	err := s.Run(t.Context(), log)
	var failure *Failure
	if !errors.As(err, &failure) || failure.Projection != "broken" || failure.Seq != 2 || len(failure.Stack) == 0 {
		t.Fatalf("Run: %v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%q has what was panicked with", err)
	}
	if got := s.Status(); got.Applied != 1 || !errors.As(got.Err, &failure) {
		t.Errorf("status %+v", got)
	}
	if _, err := s.Rebuild(t.Context(), log, 0); !errors.As(err, &failure) {
		t.Errorf("a set that failed was compared: %v", err)
	}
	s.Grants.Capabilities("", "") // no lock is held
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New().Run(ctx, memlog.Of()); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

func TestRebuildComparesAtOneSequenceWhileTheLiveSetGoesOn(t *testing.T) {
	t.Parallel()
	log := memlog.Of(granted("p0"))
	s, _ := running(t, log)
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 500 {
			log.Add(granted(fmt.Sprintf("p%d", i%50)))
		}
	})
	for range 20 {
		got, err := s.Rebuild(t.Context(), log, log.Head())
		if err != nil {
			t.Fatal(err)
		}
		if got.Commits != got.Seq || got.Events != got.Seq || len(got.Projections) != 6 {
			t.Errorf("rebuilt %+v", got)
		}
		for name, p := range got.Projections {
			if !p.Equal() {
				t.Errorf("%s differs at %d", name, got.Seq)
			}
		}
	}
	writer.Wait()
}

func TestRebuildStopsWhereTheLiveSetIs(t *testing.T) {
	t.Parallel()
	log := memlog.Of(granted("ana"), granted("bob"))
	s := folded(t, log.Commits)
	log.Add(granted("eve")) // the live set has not seen it yet
	got, err := s.Rebuild(t.Context(), log, 1)
	if err != nil || got.Seq != 2 || got.Commits != 2 || !got.Projections["grants"].Equal() {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRebuildFindsWhatDiffers(t *testing.T) {
	t.Parallel()
	log := memlog.Of(granted("ana"), granted("bob"))
	s := folded(t, log.Commits)
	other := memlog.Of(granted("ana"), granted("eve"))
	got, err := s.Rebuild(t.Context(), other, 2)
	if err != nil {
		t.Fatal(err)
	}
	equal := map[string]bool{}
	for name, p := range got.Projections {
		equal[name] = p.Equal()
	}
	want := map[string]bool{"approvals": true, "catalog": true, "connections": true, "grants": false, "servers": true, "sessions": true}
	if diff := gocmp.Diff(want, equal); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Rebuild(t.Context(), memlog.Of(granted("ana")), 2); err == nil {
		t.Error("a log that ends before the live set was taken for equal")
	}
}

func TestEmptyLogRebuilds(t *testing.T) {
	t.Parallel()
	got, err := New().Rebuild(t.Context(), memlog.Of(), 0)
	if err != nil || got.Commits != 0 || len(got.Projections) != 6 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestQueriesMayBeAskedWhileTheLogIsFolded(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	for range 300 {
		w.step()
	}
	s := New()
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.Approvals.List("", true)
					s.Servers.List("", "")
					s.Approvals.OpenCall(approvals.Binding{})
					s.Catalog.Tools(catalog.Filter{})
					s.Sessions.List(sessions.Filter{Ended: true})
					s.Grants.Hosts("")
				}
			}
		})
	}
	for _, c := range w.Commits {
		if err := s.apply(c); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	readers.Wait()
}
