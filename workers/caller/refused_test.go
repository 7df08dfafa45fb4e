package caller_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// What a server asks, and was never offered, is in the log like what it was offered
// and may not: who asked whom for what.
func TestRequestThatWasNotOfferedIsInTheLog(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "asker"), auto)
	for range 2 {
		s.wants(s.call("ask", `{"method":"sampling/createMessage","params":{"canary":"c"}}`), "succeeded", "", true)
	}
	var asked events.CallRequested
	rig.Await(s.Rig, func(e events.CallRequested) bool { asked = e; return e.Method == "sampling/createMessage" })
	if asked.Server != "docs" || asked.Connection != s.Connection("ana", "docs").ID() || asked.ArgumentBytes != 0 {
		t.Errorf("%+v", asked)
	}
	rig.Await(s.Rig, func(e events.CallBlocked) bool { return e.Reason == string(fault.CapabilityDenied) })
	s.Grant("ana", "mcp.roots:docs")
	s.wants(s.call("ask", `{"method":"roots/list","params":{}}`), "succeeded", "", true)
	rig.Await(s.Rig, func(e events.CallBlocked) bool { return e.Reason == string(fault.InvalidArguments) })
	if n := len(rig.Events[events.CallBlocked](s.Rig)); n != 2 {
		t.Errorf("%d requests of the server are in the log", n)
	}
}
