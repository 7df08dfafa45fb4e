package policy_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/policy"
)

var decider = Decider[policy.State, policy.Command]{Decide: policy.Decide, Evolve: policy.Evolve}

func set(level, server string, p events.Policy) events.PolicySet {
	return events.PolicySet{Level: level, Server: server, After: p}
}

func TestPolicyRules(t *testing.T) {
	t.Parallel()
	workspace := policy.Level{Level: policy.LevelWorkspace}
	prompt := events.Policy{Enabled: true, DefaultApproval: "prompt", Rules: []events.ApprovalRule{{Tool: "read_*", Approval: "auto"}}}
	given := []events.Event{set("workspace", "", prompt)}
	decider.Run(t, []Case[policy.Command]{
		{
			Rule: "a level is set with what it was and what it is (R177)", Given: given,
			When: policy.Set{Level: workspace, After: events.Policy{DefaultApproval: "deny"}, Digest: "dd"},
			Then: []events.Event{events.PolicySet{Level: "workspace", Before: prompt, After: events.Policy{DefaultApproval: "deny"}, Digest: "dd"}},
		},
		{Rule: "the same policy is not set again", Given: given, When: policy.Set{Level: workspace, After: prompt}},
		{
			Rule: "the log does not tell an empty list of rules from none", Given: []events.Event{set("workspace", "", events.Policy{Enabled: true})},
			When: policy.Set{Level: workspace, After: events.Policy{Enabled: true, Rules: []events.ApprovalRule{}}},
		},
		{
			Rule: "another rule is another policy", Given: given,
			When: policy.Set{Level: workspace, After: events.Policy{Enabled: true, DefaultApproval: "prompt"}},
			Then: []events.Event{events.PolicySet{Level: "workspace", Before: prompt, After: events.Policy{Enabled: true, DefaultApproval: "prompt"}}},
		},
		{
			Rule: "the first policy of a level is recorded even where it says nothing",
			When: policy.Set{Level: policy.Level{Level: policy.LevelGateway, Server: "docs"}},
			Then: []events.Event{set("gateway", "docs", events.Policy{})},
		},
		{Rule: "there are two levels (R177)", When: policy.Set{Level: policy.Level{Level: "core"}}, Fault: fault.InvalidRequest},
	})
}

func TestEveryLevelCountsAndTheStrictestWins_R52(t *testing.T) {
	t.Parallel()
	s := decider.Fold(
		set("gateway", "", events.Policy{DefaultApproval: "auto", Rules: []events.ApprovalRule{{Risk: "critical", Approval: "deny"}}}),
		set("workspace", "", events.Policy{DefaultApproval: "auto"}),
		set("workspace", "docs", events.Policy{DefaultApproval: "prompt", Rules: []events.ApprovalRule{{Tool: "drop*", Approval: "deny"}}}),
	)
	for _, c := range []struct {
		subject authority.Subject
		want    authority.Policy
	}{
		{authority.Subject{Server: "shell", Tool: "run", Risk: "low"}, authority.Auto},
		{authority.Subject{Server: "shell", Tool: "run", Risk: "critical"}, authority.Deny},
		{authority.Subject{Server: "shell", Tool: "drop_all", Risk: "low"}, authority.Auto}, // the rule is for docs
		{authority.Subject{Server: "docs", Tool: "read", Risk: "low"}, authority.Prompt},
		{authority.Subject{Server: "docs", Tool: "drop_all", Risk: "low"}, authority.Deny},
	} {
		if got := authority.CallPolicy(authority.Auto, c.subject, s.Rules(c.subject.Server)...); got != c.want {
			t.Errorf("%+v is %q, want %q", c.subject, got, c.want)
		}
		if got := authority.ConnectPolicy(authority.Auto, c.subject, s.Rules(c.subject.Server)...); got == authority.Auto {
			t.Errorf("a connect to %s is automatic", c.subject.Server)
		}
	}
	if s.Seq != 3 {
		t.Errorf("the sequence is %d", s.Seq)
	}
}

func TestOneLevelWithoutApproversIsEnough_R55(t *testing.T) {
	t.Parallel()
	some := decider.Fold(set("gateway", "", events.Policy{Approvers: "interactive"}), set("workspace", "", events.Policy{}))
	none := decider.Then(some, 2, set("workspace", "docs", events.Policy{Approvers: policy.ApproversNone}))
	if !(policy.State{}).Interactive() || !some.Interactive() || none.Interactive() {
		t.Errorf("interactive: nothing said %v, some %v, none %v", (policy.State{}).Interactive(), some.Interactive(), none.Interactive())
	}
}

func TestAChangedToolIsBlockedUnlessEveryLevelThatSpeaksSaysFlag(t *testing.T) {
	t.Parallel()
	flag, block, silent := events.Policy{OnChange: "flag"}, events.Policy{OnChange: "block"}, events.Policy{}
	for _, c := range []struct {
		gateway, workspace events.Policy
		want               string
	}{
		{silent, silent, "block"}, {flag, silent, "flag"}, {silent, flag, "flag"}, {flag, flag, "flag"},
		{flag, block, "block"}, {block, flag, "block"}, {block, silent, "block"},
	} {
		s := decider.Fold(set("gateway", "", c.gateway), set("workspace", "", c.workspace))
		if got := s.OnChange(); got != c.want {
			t.Errorf("gateway %q and workspace %q give %q, want %q", c.gateway.OnChange, c.workspace.OnChange, got, c.want)
		}
	}
	if got := (policy.State{}).OnChange(); got != "block" {
		t.Errorf("where nobody speaks it is %q", got)
	}
}
