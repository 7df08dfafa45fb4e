package caller_test

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

// The log takes nothing while the server answers, and again a while later.
func TestOutcomeThatTheLogDoesNotTakeIsRecordedWhenItDoes_R195(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "progress"), auto)
	var thaw func()
	var freeze sync.Once
	r := s.call("call", "", func(q *caller.Request) {
		q.Params = redact.NewRaw([]byte(`{"name":"docs__call","arguments":{},"_meta":{"progressToken":1}}`))
		q.Notify = func(live.Notice) { freeze.Do(func() { thaw = bustest.Freeze(t, s.Bus, s.Home) }) }
	})
	s.wants(r, "indeterminate", fault.AuditUnavailable, true)
	if p := s.Model.Calls.Get(rig.Workspace, r.Call).Phase; p != call.Started {
		t.Errorf("the call is %q while its outcome is in no log", p)
	}
	thaw()
	if state := s.AwaitCall(r.Call, func(c call.State) bool { return c.Phase == call.Done }); state.Outcome != call.Succeeded {
		t.Errorf("the call ended as %q", state.Outcome)
	}
	want := []string{"call_requested approval_decided call_authorized call_started", "call_succeeded"}
	if diff := cmp.Diff(want, s.commits(r.Call)); diff != "" {
		t.Error(diff)
	}
	again := s.call("call", "{}", func(q *caller.Request) { q.Call = r.Call })
	s.wants(again, "succeeded", fault.Unavailable, true)
	if n := len(rig.Events[events.CallStarted](s.Rig)); n != 1 {
		t.Errorf("%d starts", n)
	}
}
