package runtime_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/runtime"
)

var decider = Decider[runtime.State, runtime.Command]{Decide: runtime.Decide, Evolve: runtime.Evolve}

func TestRuntimeRules(t *testing.T) {
	t.Parallel()
	first := events.RuntimeBooted{Runtime: "r-1", Epoch: 1, Version: "v1"}
	second := events.RuntimeBooted{Runtime: "r-2", Epoch: 2, Version: "v1"}
	closed := events.RuntimeClosed{Runtime: "r-1", Reason: "signal"}
	signed := events.CheckpointSigned{Size: 8, Root: "aa"}
	decider.Run(t, []Case[runtime.Command]{
		{Rule: "the first boot has epoch 1", When: runtime.Boot{Runtime: "r-1", Version: "v1"}, Then: []events.Event{first}},
		{
			Rule: "a boot after a crash has an epoch above all earlier ones (R172)", Given: []events.Event{first},
			When: runtime.Boot{Runtime: "r-2", Version: "v1"}, Then: []events.Event{second},
		},
		{
			Rule: "a boot after an orderly end has an epoch above all earlier ones (R172)", Given: []events.Event{first, closed},
			When: runtime.Boot{Runtime: "r-2", Version: "v1"}, Then: []events.Event{second},
		},
		{
			Rule: "the runtime that serves closes (R154)", Given: []events.Event{first},
			When: runtime.Close{Runtime: "r-1", Reason: "signal"}, Then: []events.Event{closed},
		},
		{Rule: "a runtime closes once", Given: []events.Event{first, closed}, When: runtime.Close{Runtime: "r-1"}, Fault: fault.RuntimeClosed},
		{
			Rule: "two processes of a home live side by side", Given: []events.Event{first, second},
			When: runtime.Close{Runtime: "r-1", Reason: "signal"}, Then: []events.Event{closed},
		},
		{
			Rule: "a checkpoint covers more than the one before", Given: []events.Event{first, signed},
			When: runtime.Sign{Checkpoint: events.CheckpointSigned{Size: 9}}, Then: []events.Event{events.CheckpointSigned{Size: 9}},
		},
		{Rule: "a checkpoint that covers no more says nothing", Given: []events.Event{first, signed}, When: runtime.Sign{Checkpoint: signed}},
		{Rule: "what never booted does not close", When: runtime.Close{}, Fault: fault.RuntimeClosed},
	})
}

func TestRuntimeStateHoldsWhoLives(t *testing.T) {
	t.Parallel()
	s := decider.Fold(events.RuntimeBooted{Runtime: "r-1", Epoch: 1, Embedded: true}, events.RuntimeBooted{Runtime: "r-2", Epoch: 2})
	want := runtime.State{Epoch: 2, Live: map[string]runtime.Process{"r-1": {Epoch: 1, Embedded: true}, "r-2": {Epoch: 2}}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	later := decider.Then(s, 3, events.RuntimeClosed{Runtime: "r-1"})
	if len(s.Live) != 2 || len(later.Live) != 1 {
		t.Errorf("after the close of one: before %v, after %v", s.Live, later.Live)
	}
}
