package caller

import (
	"testing"

	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/fault"
)

func TestOutcomeOfAnotherSaysWhetherItWasExecuted(t *testing.T) {
	t.Parallel()
	s := call.State{Phase: call.Done, Outcome: call.StatusFailed, Reason: string(fault.RuntimeNotLive), Generation: 7}
	if r := outcome("k-1", s); !r.ExecutionStarted {
		t.Errorf("%+v", r)
	}
	s.Unexecuted = true
	if r := outcome("k-1", s); r.ExecutionStarted || r.Error.Kind != string(fault.RuntimeNotLive) {
		t.Errorf("%+v", r)
	}
}
