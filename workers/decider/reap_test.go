package decider_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

func TestReaperClosesWhatTheRuntimeLeftAndNothingElse_R172_Decision20(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	turn := r.Connected("ana").Turn

	ctx, cancel := context.WithCancel(r.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range 2 { // one runs, the other is queued
		running.Go(func() {
			_, _ = r.Caller.Call(ctx, rig.As("ana"), caller.Request{Turn: turn, Name: "docs__slow", Params: rig.Params("docs__slow", `{"ms":60000}`)})
		})
	}
	rig.Await(r, func(events.CallQueued) bool { return true })
	rig.Await(r, func(events.CallStarted) bool { return true })

	before := len(r.Log())
	if err := r.Reap("r-other"); err != nil {
		t.Error(err)
	}
	if after := r.Log(); len(after) != before {
		t.Errorf("the reaper of another runtime wrote %v", after[before].Names())
	}

	// Two peers see it at once, and a third one later.
	var peers sync.WaitGroup
	for range 2 {
		peers.Go(func() {
			if err := r.Reap(r.Runtime); err != nil {
				t.Error(err)
			}
		})
	}
	peers.Wait()
	if err := r.Reap(r.Runtime); err != nil {
		t.Error(err)
	}
	running.Wait()
	var names []string
	for _, c := range r.Log()[before:] {
		for _, e := range c.Events {
			if _, late := e.(events.CallLateResult); !late {
				names = append(names, e.EventName())
			}
		}
	}
	slices.Sort(names[1:]) // the two calls, in any order
	if diff := cmp.Diff([]string{"connection_lost", "call_failed", "call_indeterminate"}, names); diff != "" {
		t.Error(diff)
	}
	r.Rebuilt()
}
