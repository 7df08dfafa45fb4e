package decider_test

import (
	"slices"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// explained asks what decides a call, and fails unless the answer is what a call
// comes to.
func explained(t *testing.T, r *rig.Rig, tool, decision, reason string) client.PolicyExplanation {
	t.Helper()
	var e client.PolicyExplanation
	r.Ask("policy/explain", client.PolicyExplain{Principal: "ana", Tool: tool}, &e)
	if e.Decision != decision || e.Reason != reason {
		t.Errorf("%s: %s because of %s, want %s because of %s\n%+v", tool, e.Decision, e.Reason, decision, reason, e.Steps)
	}
	return e
}

func step(e client.PolicyExplanation, name string) client.PolicyStep {
	if i := slices.IndexFunc(e.Steps, func(s client.PolicyStep) bool { return s.Step == name }); i >= 0 {
		return e.Steps[i]
	}
	return client.PolicyStep{}
}

func source(s client.PolicyStep, kind string) client.PolicySource {
	if i := slices.IndexFunc(s.By, func(by client.PolicySource) bool { return by.Kind == kind }); i >= 0 {
		return s.By[i]
	}
	return client.PolicySource{}
}

func TestExplanationIsWhatACallComesTo(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Policy: events.Policy{DefaultApproval: "prompt", Rules: []events.ApprovalRule{
		{Tool: "echo", Approval: "auto"}, {Server: "docs", Tool: "big", Approval: "deny"},
	}}})
	declareEcho(t, r, "docs", "approval_policy: auto", "tools: {exclude: [secret]}")
	r.Load()

	e := explained(t, r, "docs__echo", "denied", string(fault.CapabilityDenied))
	if step(e, "connect_capability").Needs != "mcp.connect:docs" || step(e, "definition").Result != "unknown" {
		t.Errorf("without a grant: %+v", e.Steps)
	}
	r.GrantAll("ana")
	e = explained(t, r, "docs/echo", "needs_approval", "connect_approval")
	if g := source(step(e, "call_capability"), "grant"); g.Text == "" || g.Sequence == 0 || e.AuthoritySequence < g.Sequence {
		t.Errorf("the grant: %+v of %d", g, e.AuthoritySequence)
	}
	turn := r.Connected("ana")

	e = explained(t, r, "docs__echo", "allowed", "")
	if a := source(step(e, "connect_approval"), "approval"); a.Text == "" || a.Sequence == 0 {
		t.Errorf("the connect approval: %+v", a)
	}
	if c := source(step(e, "definition"), "catalog"); c.Sequence == 0 {
		t.Errorf("the catalog: %+v", c)
	}
	if rule := source(step(e, "call_policy"), "rule"); rule.Text != "auto (gateway: tool echo)" || rule.Sequence != uint64(e.PolicySequence) {
		t.Errorf("the rule: %+v", rule)
	}
	if reply := r.Call("ana", turn.Turn, "docs__echo", `{}`); reply.Status != "succeeded" {
		t.Errorf("what is allowed: %+v", reply)
	}

	e = explained(t, r, "docs__big", "denied", string(fault.ApprovalDenied))
	if rule := source(step(e, "call_policy"), "rule"); rule.Text != "deny (gateway: server docs, tool big)" {
		t.Errorf("the rule: %+v", rule)
	}
	if reply := r.Call("ana", turn.Turn, "docs__big", `{}`); reply.Status != "denied" {
		t.Errorf("what is denied: %+v", reply)
	}

	e = explained(t, r, "docs__slow", "needs_approval", "call_approval")
	if d := source(step(e, "call_policy"), "default"); d.Text != "prompt (gateway)" {
		t.Errorf("the default: %+v", d)
	}
	if reply := r.Call("ana", turn.Turn, "docs__slow", `{}`); reply.Status != "approval_pending" {
		t.Errorf("what needs an approval: %+v", reply)
	}
	asked := r.AwaitPending(1)[0].ID
	r.Decide(asked, true, true)
	e = explained(t, r, "docs__slow", "allowed", "")
	if a := source(step(e, "call_approval"), "approval"); a.Text != asked || a.Sequence == 0 || a.Until.IsZero() {
		t.Errorf("the approval for the session: %+v", a)
	}

	explained(t, r, "docs/secret", "denied", string(fault.ToolMissing))
	if err := r.Local.Do(r.Context(), "policy/explain", client.PolicyExplain{Principal: "ana", Tool: "mail__send"}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a tool of nobody: %v", err)
	}
}

func TestExplanationNamesAHeldDefinition_Decision22(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.Declare("docs", rig.Command(fakes.Build(t, "misbehave"), "poison"), "approval_policy: auto")
	r.Load()
	r.GrantAll("ana")
	r.Connected("ana")
	e := explained(t, r, "docs__tagged", "needs_approval", string(fault.ToolChanged))
	held := step(e, "definition")
	if source(held, "flag").Text != "tag" || source(held, "approval").Text == "" {
		t.Errorf("the definition: %+v", held)
	}
	for _, a := range r.AwaitPending(3) {
		r.Decide(a.ID, a.Tool != "add")
	}
	explained(t, r, "docs/tagged", "allowed", "")
	explained(t, r, "docs/add", "denied", string(fault.ToolChanged))
}
