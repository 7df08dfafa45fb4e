package runtime_test

import (
	"testing"

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
		{Rule: "an older runtime does not close a newer one", Given: []events.Event{first, second}, When: runtime.Close{Runtime: "r-1"}, Fault: fault.RuntimeClosed},
		{Rule: "what never booted does not close", When: runtime.Close{}, Fault: fault.RuntimeClosed},
	})
}
