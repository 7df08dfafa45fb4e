package authority_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/authority"
)

func TestStrictestWinsAndUnknownIsStrictest_R52(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list []authority.Policy
		want authority.Policy
	}{
		{nil, authority.Auto},
		{[]authority.Policy{""}, authority.Auto},
		{[]authority.Policy{"auto", "prompt"}, authority.Prompt},
		{[]authority.Policy{"deny", "auto", ""}, authority.Deny},
		{[]authority.Policy{"prompt", "Auto"}, authority.Deny},
	} {
		if got := authority.Strictest(c.list...); got != c.want {
			t.Errorf("Strictest(%q) = %q, want %q", c.list, got, c.want)
		}
	}
	for _, c := range []struct {
		list []authority.Risk
		want authority.Risk
	}{
		{nil, authority.Low},
		{[]authority.Risk{"medium", "high", "low"}, authority.High},
		{[]authority.Risk{"", "medium"}, authority.Medium},
		{[]authority.Risk{"low", "severe"}, authority.Critical},
	} {
		if got := authority.Highest(c.list...); got != c.want {
			t.Errorf("Highest(%q) = %q, want %q", c.list, got, c.want)
		}
	}
	if authority.Policy("").Valid() || authority.Risk("LOW").Valid() || !authority.Prompt.Valid() || !authority.Critical.Valid() {
		t.Error("Valid accepts or refuses the wrong words")
	}
}

func TestConnectIsPromptedAtLeast_R52_R53(t *testing.T) {
	t.Parallel()
	connect := authority.Subject{Server: "docs", Capability: "mcp.connect:docs", Risk: authority.High}
	call := authority.Subject{Server: "docs", Tool: "search", Capability: "mcp.call:docs", Risk: authority.High}
	for _, c := range []struct {
		name          string
		declared      authority.Policy
		core, host    authority.ApprovalRules
		connect, call authority.Policy
	}{
		{name: "auto and nobody says more", declared: "auto", connect: "prompt", call: "auto"},
		{name: "prompt", declared: "prompt", connect: "prompt", call: "prompt"},
		{name: "deny", declared: "deny", connect: "deny", call: "deny"},
		{name: "host default", declared: "auto", host: authority.ApprovalRules{Default: "deny"}, connect: "deny", call: "deny"},
		{name: "host cannot loosen", declared: "prompt", host: authority.ApprovalRules{Default: "auto"}, connect: "prompt", call: "prompt"},
		{name: "core tightens", declared: "auto", core: authority.ApprovalRules{Default: "prompt"}, connect: "prompt", call: "prompt"},
		{name: "strictest of both", declared: "auto", core: authority.ApprovalRules{Default: "deny"}, host: authority.ApprovalRules{Default: "auto"}, connect: "deny", call: "deny"},
		{name: "by tool: calls only", declared: "auto", host: rules("", authority.Rule{Tool: "*", Policy: "deny"}), connect: "prompt", call: "deny"},
		{name: "by another tool", declared: "auto", host: rules("", authority.Rule{Tool: "Search", Policy: "deny"}), connect: "prompt", call: "auto"},
		{name: "by server", declared: "auto", host: rules("", authority.Rule{Server: "do*", Policy: "deny"}), connect: "deny", call: "deny"},
		{name: "by capability", declared: "auto", host: rules("", authority.Rule{Capability: "mcp.connect:*", Policy: "deny"}), connect: "deny", call: "auto"},
		{name: "by risk", declared: "auto", host: rules("", authority.Rule{Risk: "high", Policy: "deny"}), connect: "deny", call: "deny"},
		{name: "by another risk", declared: "auto", host: rules("", authority.Rule{Risk: "low", Policy: "deny"}), connect: "prompt", call: "auto"},
		{name: "all patterns must match", declared: "auto", host: rules("", authority.Rule{Server: "docs", Tool: "fetch", Policy: "deny"}), connect: "prompt", call: "auto"},
		{name: "a rule replaces the default", declared: "auto", host: rules("deny", authority.Rule{Server: "docs", Policy: "prompt"}), connect: "prompt", call: "prompt"},
		{name: "the strictest rule", declared: "auto", host: rules("", authority.Rule{Server: "docs", Policy: "prompt"}, authority.Rule{Tool: "search", Policy: "deny"}), connect: "prompt", call: "deny"},
		{name: "a rule without a policy", declared: "auto", host: rules("deny", authority.Rule{Server: "docs"}), connect: "deny", call: "deny"},
		{name: "a word nobody knows", declared: "automatic", connect: "deny", call: "deny"},
	} {
		if got := authority.ConnectPolicy(c.declared, connect, c.core, c.host); got != c.connect {
			t.Errorf("%s: connect %q, want %q", c.name, got, c.connect)
		}
		if got := authority.CallPolicy(c.declared, call, c.core, c.host); got != c.call {
			t.Errorf("%s: call %q, want %q", c.name, got, c.call)
		}
	}
}

func rules(byDefault authority.Policy, list ...authority.Rule) authority.ApprovalRules {
	return authority.ApprovalRules{Default: byDefault, Rules: list}
}

// Whatever core and host say, nobody is connected without a prompt, and nobody
// goes below what the declaration says (R52).
func TestConfigurationNeverLoosens_R52(t *testing.T) {
	t.Parallel()
	order := []authority.Policy{authority.Auto, authority.Prompt, authority.Deny}
	rank := func(p authority.Policy) int { return slices.Index(order, p) }
	policy := rapid.SampledFrom(append(slices.Clone(order), ""))
	pattern := rapid.SampledFrom([]string{"", "*", "docs", "x*"})
	config := rapid.Custom(func(t *rapid.T) authority.ApprovalRules {
		return authority.ApprovalRules{Default: policy.Draw(t, "default"), Rules: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) authority.Rule {
			return authority.Rule{Server: pattern.Draw(t, "server"), Tool: pattern.Draw(t, "tool"), Policy: policy.Draw(t, "policy")}
		}), 0, 4).Draw(t, "rules")}
	})
	rapid.Check(t, func(t *rapid.T) {
		declared := rapid.SampledFrom(order).Draw(t, "declared")
		core, host := config.Draw(t, "core"), config.Draw(t, "host")
		s := authority.Subject{Server: "docs", Tool: rapid.SampledFrom([]string{"", "x"}).Draw(t, "tool")}
		connect, call := authority.ConnectPolicy(declared, s, core, host), authority.CallPolicy(declared, s, core, host)
		if rank(connect) < rank(authority.Prompt) || rank(connect) < rank(declared) || rank(call) < rank(declared) {
			t.Fatalf("declared %q, connect %q, call %q", declared, connect, call)
		}
		if reversed := authority.ConnectPolicy(declared, s, host, core); reversed != connect {
			t.Fatalf("the order of configurations counts: %q, %q", connect, reversed)
		}
	})
}

func TestOverrideOnlyTightens_R69(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		override authority.Override
		risk     authority.Risk
		policy   authority.Policy
		weakened bool
	}{
		{authority.Override{}, "medium", "prompt", false},
		{authority.Override{Risk: "high", Policy: "deny"}, "high", "deny", false},
		{authority.Override{Risk: "medium", Policy: "prompt"}, "medium", "prompt", false},
		{authority.Override{Risk: "low"}, "medium", "prompt", true},
		{authority.Override{Policy: "auto"}, "medium", "prompt", true},
		{authority.Override{Risk: "critical", Policy: "auto"}, "critical", "prompt", true},
	} {
		risk, policy, weakened := c.override.Tighten("medium", "prompt")
		if risk != c.risk || policy != c.policy || weakened != c.weakened {
			t.Errorf("%+v gives %q, %q, weakened %v; want %q, %q, %v", c.override, risk, policy, weakened, c.risk, c.policy, c.weakened)
		}
	}
}

func TestHintsRaiseAndNeverLower_R70(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		annotations string
		class       authority.Class
		low         authority.Risk // what a declared "low" becomes
	}{
		{`{"destructiveHint":true}`, authority.WriteLike, "high"},
		{`{"destructiveHint":true,"readOnlyHint":true}`, authority.WriteLike, "high"},
		{`{"openWorldHint": true }`, authority.NetworkLike, "medium"},
		{`{"readOnlyHint":true,"openWorldHint":true}`, authority.NetworkLike, "medium"},
		{`{"readOnlyHint":true}`, authority.ReadOnly, "low"},
		{`{"readOnlyHint":true,"destructiveHint":false,"openWorldHint":false}`, authority.ReadOnly, "low"},
		{`{"readOnlyHint":"true"}`, authority.Unknown, "low"},
		{`{"ReadOnlyHint":true}`, authority.Unknown, "low"},
		{`{"title":"x"}`, authority.Unknown, "low"},
		{`{"readOnlyHint":true,"readOnlyHint":true}`, authority.Unknown, "low"},
		{`{"readOnlyHint":true`, authority.Unknown, "low"},
		{`[true]`, authority.Unknown, "low"},
		{`null`, authority.Unknown, "low"},
		{``, authority.Unknown, "low"},
	} {
		risk, class := authority.RaiseByHints(authority.Low, []byte(c.annotations))
		if risk != c.low || class != c.class {
			t.Errorf("%s gives %q, %q; want %q, %q", c.annotations, risk, class, c.low, c.class)
		}
		if risk, _ := authority.RaiseByHints(authority.Critical, []byte(c.annotations)); risk != authority.Critical {
			t.Errorf("%s lowers critical to %q", c.annotations, risk)
		}
	}
}
