package authority_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/authority"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func TestPrincipalIsOneSafeToken(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"ana": true, "A-1_b@host": true, "0": true, strings.Repeat("a", 64): true,
		"": false, "-a": false, "@a": false, "_": false, strings.Repeat("a", 65): false,
		// What a subject gives a meaning to would be everybody.
		"a.b": false, "*": false, ">": false, "a*": false, "a b": false, "a\n": false, "a/b": false, "$SYS": false, "ä": false,
	} {
		if got := authority.CheckPrincipal(name) == nil; got != valid {
			t.Errorf("CheckPrincipal(%q) valid = %v, want %v", name, got, valid)
		}
	}
}

func TestCapabilitySyntax_R51(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text              string
		capability, grant bool
	}{
		{"mcp.read", true, true},
		{"mcp.connect:docs", true, true},
		{"mcp.connect:docs server", true, true},
		{"mcp.connect:a.b-c_d", true, true},
		{"x.y", true, true},
		{"a:b:c", true, true},
		{"mcp.connect:*", false, true},
		{"a:b:*", false, true},
		{"mcp:*", false, true},
		{"*", false, false},
		{"mcp.*", false, false},
		{"mcp.conn*", false, false},
		{"mcp.connect:d*", false, false},
		{"mcp.*:docs", false, false},
		{":*", false, false},
		{"a:*:*", false, false},
		{"", false, false},
		{"mcp.connect:", false, false},
		{":docs", false, false},
		{"a::b", false, false},
		{"mcp.connect:a>b", false, false},
		{"mcp.connect:docs\n", false, false},
		{" mcp.read", false, false},
		{strings.Repeat("a", 129), false, false},
	} {
		if got := authority.CheckCapability(c.text) == nil; got != c.capability {
			t.Errorf("CheckCapability(%q) valid = %v, want %v", c.text, got, c.capability)
		}
		if got := authority.CheckGrant(c.text) == nil; got != c.grant {
			t.Errorf("CheckGrant(%q) valid = %v, want %v", c.text, got, c.grant)
		}
	}
}

func TestGrantCoversExactlyOrAtAColon_R51(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grant, capability string
		want              bool
	}{
		{"mcp.connect:docs", "mcp.connect:docs", true},
		{"mcp.connect:*", "mcp.connect:docs", true},
		{"mcp.connect:*", "mcp.connect:docs server", true},
		{"a:*", "a:b:c", true},
		{"a:b:*", "a:b:c", true},
		{"mcp:*", "mcp:x", true},
		{"mcp:*", "mcp.connect:docs", false},
		{"mcp.*", "mcp.connect:docs", false},
		{"mcp.conn*", "mcp.connect:docs", false},
		{"*", "mcp.connect:docs", false},
		{":*", ":docs", false},
		{"mcp.connect:d*", "mcp.connect:docs", false},
		{"mcp.connect:*", "mcp.connect", false},
		{"mcp.connect:*", "mcp.connect:", false},
		{"mcp.connect:*", "mcp.connector:docs", false},
		{"mcp.connect:*", "mcp.call:docs", false},
		{"mcp.connect:docs", "mcp.connect:docs2", false},
		{"mcp.connect:docs", "mcp.connect:Docs", false},
		{"mcp.connect:docs", "mcp.call:docs", false}, // R58: one is not the other
		{"mcp.call:docs", "x.y", false},              // R59: the explicit one replaces it
		{"", "", false},
	} {
		s := authority.Snapshot{Principal: "ana", Capabilities: []authority.Granted{{Capability: c.grant}}}
		if got := s.Allows(c.capability, noon); got != c.want {
			t.Errorf("a grant of %q allows %q = %v, want %v", c.grant, c.capability, got, c.want)
		}
	}
}

func TestNoPrincipalNoAuthority_R57(t *testing.T) {
	t.Parallel()
	s := authority.Snapshot{Capabilities: []authority.Granted{{Capability: "mcp.read"}}}
	if s.Allows("mcp.read", noon) || (authority.Snapshot{}).Allows("mcp.read", noon) {
		t.Error("a snapshot without a principal allows something")
	}
}

func TestGrantEnds_R51(t *testing.T) {
	t.Parallel()
	s := authority.Snapshot{Principal: "ana", Capabilities: []authority.Granted{{Capability: "mcp.read", Until: noon}, {Capability: "mcp.manage"}}}
	if !s.Allows("mcp.read", noon.Add(-1)) || s.Allows("mcp.read", noon) || s.Allows("mcp.read", noon.Add(1)) {
		t.Error("a grant holds up to its end, and not at it")
	}
	if !s.Allows("mcp.manage", noon.AddDate(100, 0, 0)) {
		t.Error("a grant without an end ended")
	}
	if held := s.At(noon).Capabilities; len(held) != 1 || held[0].Capability != "mcp.manage" {
		t.Errorf("held at its end: %v", held)
	}
	if before, after := s.At(noon.Add(-1)).Digest(), s.At(noon).Digest(); before == after {
		t.Error("the digest of what holds is the same after a grant ended")
	}
}

func TestDigestIsOfAuthorityOnly_R140(t *testing.T) {
	t.Parallel()
	grants := []authority.Granted{{Capability: "a"}, {Capability: "b", Until: noon}, {Capability: "a"}}
	base := authority.Snapshot{Principal: "ana", Capabilities: grants, Seq: 1}.Digest()
	if len(base) != 64 {
		t.Errorf("digest %q is no SHA-256", base)
	}
	reversed := slices.Clone(grants)
	slices.Reverse(reversed)
	elsewhere := []authority.Granted{{Capability: "a"}, {Capability: "b", Until: noon.In(time.FixedZone("x", 3600))}}
	for name, s := range map[string]authority.Snapshot{
		"order":      {Principal: "ana", Capabilities: reversed, Seq: 1},
		"sequence":   {Principal: "ana", Capabilities: grants, Seq: 2},
		"repetition": {Principal: "ana", Capabilities: grants[:2]},
		"time zone":  {Principal: "ana", Capabilities: elsewhere},
	} {
		if s.Digest() != base {
			t.Errorf("%s changes the digest", name)
		}
	}
	for name, s := range map[string]authority.Snapshot{
		"principal": {Principal: "bob", Capabilities: grants},
		"fewer":     {Principal: "ana", Capabilities: grants[1:2]},
		"later end": {Principal: "ana", Capabilities: []authority.Granted{{Capability: "a"}, {Capability: "b", Until: noon.Add(1)}}},
		"more":      {Principal: "ana", Capabilities: append(slices.Clone(grants), authority.Granted{Capability: "c"})},
		"joined":    {Principal: "ana", Capabilities: []authority.Granted{{Capability: "a\x00\",\"b"}}},
	} {
		if s.Digest() == base {
			t.Errorf("%s does not change the digest", name)
		}
	}
}

// What is asked for is covered by a grant exactly when the grant, with its star
// taken away, leaves a whole number of words (R51).
func TestWildcardCoversWholeWords_R51(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`[a-c][a-c.]{0,2}`)
	rapid.Check(t, func(t *rapid.T) {
		have := rapid.SliceOfN(word, 1, 3).Draw(t, "have")
		want := rapid.SliceOfN(word, 1, 4).Draw(t, "want")
		s := authority.Snapshot{Principal: "p", Capabilities: []authority.Granted{{Capability: strings.Join(have, ":") + ":*"}}}
		expect := len(want) > len(have) && slices.Equal(want[:len(have)], have)
		if got := s.Allows(strings.Join(want, ":"), noon); got != expect {
			t.Fatalf("%q allows %q = %v, want %v", s.Capabilities[0].Capability, want, got, expect)
		}
	})
}

// Covering names each grant that allows a capability, and no other.
func TestCoveringIsWhatAllows_R51(t *testing.T) {
	for _, capability := range []string{"mcp.read", "mcp.call:docs", "a:b:c"} {
		all := authority.Covering(capability)
		if want := strings.Count(capability, ":") + 1; len(all) != want {
			t.Errorf("%s: %q", capability, all)
		}
		for _, grant := range all {
			s := authority.Snapshot{Principal: "ana", Capabilities: []authority.Granted{{Capability: grant}}}
			if !s.Allows(capability, time.Time{}) {
				t.Errorf("%s does not allow %s", grant, capability)
			}
		}
	}
}
