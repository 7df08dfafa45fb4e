package grants_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/grants"
	"github.com/gatebus/gatebus/projections/internal/canon"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type log struct {
	*grants.Projection
	seq uint64
}

func newLog() *log { return &log{Projection: grants.New(new(sync.RWMutex))} }

func (l *log) add(workspace string, kind events.Kind, key string, happened ...events.Event) {
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: workspace, Principal: "local", Time: noon,
		Aggregate: events.AggregateID{Kind: kind, Key: key}, Events: happened,
	})
}

func TestCapabilitiesAreOfAPrincipalInAWorkspaceR51(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindGrant, "bob", events.CapabilityGranted{Capability: "mcp.read"})
	l.add("default", events.KindGrant, "ana",
		events.CapabilityGranted{Capability: "mcp.connect:docs", Until: "2030-01-02T00:00:00Z", Note: redact.Static("for a day")},
		events.CapabilityGranted{Capability: "mcp.call:docs"}, events.CapabilityGranted{Capability: "mcp.call:files"})
	l.add("default", events.KindGrant, "ana", events.CapabilityRevoked{Capability: "mcp.call:docs"})
	l.add("other", events.KindGrant, "ana", events.CapabilityGranted{Capability: "mcp.read"})
	want := []grants.Capability{
		{Workspace: "default", Principal: "ana", Capability: "mcp.call:files", Sequence: 2},
		{
			Workspace: "default", Principal: "ana", Capability: "mcp.connect:docs", Sequence: 2, Note: "for a day",
			Until: time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC),
		},
		{Workspace: "default", Principal: "bob", Capability: "mcp.read", Sequence: 1},
	}
	if diff := cmp.Diff(want, l.Capabilities("default", "")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[2:], l.Capabilities("", "bob")); diff != "" {
		t.Error(diff)
	}
}

func TestTokenIsFoundByItsHashUntilItsPrincipalIsRevoked(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "host", PublicKey: "AKEY"},
		events.TokenIssued{Token: "t1", TokenHash: "h1", Workspace: "default", Expires: "2030-02-01T00:00:00Z"},
		events.TokenIssued{Token: "t2", TokenHash: "h2", Workspace: "default"})
	t1 := grants.Credential{
		ID: "t1", Principal: "ana", Role: "host", Workspace: "default", Issued: noon,
		Expires: time.Date(2030, 2, 1, 0, 0, 0, 0, time.UTC),
	}
	t2 := grants.Credential{ID: "t2", Principal: "ana", Role: "host", Workspace: "default", Issued: noon}
	got, ok := l.TokenByHash("h1")
	if diff := cmp.Diff(t1, got); !ok || diff != "" {
		t.Error(diff)
	}
	want := grants.Host{
		Workspace: "default", Name: "ana", Role: "host", PublicKey: "AKEY", Enrolled: noon, Credentials: []grants.Credential{t1, t2},
	}
	if diff := cmp.Diff([]grants.Host{want}, l.Hosts("default")); diff != "" {
		t.Error(diff)
	}
	if got := l.Hosts("other"); len(got) != 0 {
		t.Errorf("another workspace has %v", got)
	}

	l.add("default", events.KindHost, "ana", events.HostRevoked{})
	want.Revoked, want.Credentials = true, []grants.Credential{}
	if diff := cmp.Diff([]grants.Host{want}, l.Hosts("")); diff != "" {
		t.Error(diff)
	}
	for _, hash := range []string{"h1", "h2", "", "none"} {
		if got, ok := l.TokenByHash(hash); ok {
			t.Errorf("%q is %+v", hash, got)
		}
	}
	// A token of before does not live again with the principal.
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "operator"})
	if got, ok := l.TokenByHash("h1"); ok {
		t.Errorf("after the new enrolment: %+v", got)
	}
}

func TestKeysAreOfAnAccountAndTokensOfAPrincipal(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "host", PublicKey: "A1"},
		events.TokenIssued{Token: "k1", PublicKey: "U1"}, events.TokenIssued{Token: "k2", PublicKey: "U2"},
		events.TokenIssued{Token: "t1", TokenHash: "h1"}, events.TokenIssued{Token: "t2", TokenHash: "h2"})
	held := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, c := range l.Hosts("")[0].Credentials {
			got = append(got, c.ID+c.PublicKey)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	held("issued", "k1U1", "k2U2", "t1", "t2")
	l.add("default", events.KindHost, "ana", events.HostRevoked{Token: "k1"}, events.HostRevoked{Token: "t1"})
	held("two revoked", "k2U2", "t2")
	if _, ok := l.TokenByHash("h1"); ok || l.Hosts("")[0].Revoked {
		t.Errorf("after a credential was revoked: %+v", l.Hosts("")[0])
	}
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "host", PublicKey: "A2"})
	held("another account", "t2")
	if _, ok := l.TokenByHash("h2"); !ok {
		t.Error("the token went with the account")
	}
	if got, ok := l.TokenByHash(""); ok {
		t.Errorf("a token without a hash: %+v", got)
	}
}

func TestTokenNeedsAPrincipalThatIsEnrolled(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindHost, "nobody", events.TokenIssued{Token: "t1", TokenHash: "h1"})
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "host"}, events.HostRevoked{},
		events.TokenIssued{Token: "t2", TokenHash: "h2"})
	for _, hash := range []string{"h1", "h2"} {
		if got, ok := l.TokenByHash(hash); ok {
			t.Errorf("%s is %+v", hash, got)
		}
	}
}

func TestTokenOfAnotherCanNotBeTakenOver(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindHost, "ana", events.HostEnrolled{Role: "operator"}, events.TokenIssued{Token: "t1", TokenHash: "h1"})
	l.add("default", events.KindHost, "eve", events.HostEnrolled{Role: "host"}, events.TokenIssued{Token: "t1", TokenHash: "h1"})
	l.add("default", events.KindHost, "eve", events.HostRevoked{})
	if got, ok := l.TokenByHash("h1"); !ok || got.Principal != "ana" {
		t.Errorf("h1 is %+v", got)
	}
	// A token of the same id takes the place of the one before.
	l.add("default", events.KindHost, "ana", events.TokenIssued{Token: "t1", TokenHash: "h2"})
	if got, ok := l.TokenByHash("h1"); ok {
		t.Errorf("h1 is %+v", got)
	}
}

func TestEndThatIsNoTimeIsOver(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add("default", events.KindGrant, "ana", events.CapabilityGranted{Capability: "mcp.read", Until: "tomorrow"})
	if got := l.Capabilities("", ""); got[0].Until.IsZero() || got[0].Until.After(noon) {
		t.Errorf("it ends %v", got[0].Until)
	}
}

func TestPolicyIsThatOfAllLevelsR52(t *testing.T) {
	t.Parallel()
	l := newLog()
	want := grants.Policy{Workspace: "default", Approvers: "interactive", OnChange: "block", Levels: []grants.Level{}}
	if diff := cmp.Diff(want, l.Policy("default")); diff != "" {
		t.Error(diff)
	}
	l.add("default", events.KindPolicy, "default", events.PolicySet{
		Level: "workspace", Server: "docs", After: events.Policy{Enabled: true, DefaultApproval: "deny", OnChange: "flag"},
	})
	l.add("default", events.KindPolicy, "default", events.PolicySet{
		Level: "gateway", After: events.Policy{
			Implicit: true, Approvers: "none",
			Rules: []events.ApprovalRule{{Server: "docs", Tool: "rm", Capability: "c", Risk: "high", Approval: "deny"}},
		},
	})
	l.add("other", events.KindPolicy, "other", events.PolicySet{Level: "gateway"})
	want = grants.Policy{
		Workspace: "default", Sequence: 2, Approvers: "none", OnChange: "flag",
		Levels: []grants.Level{
			{
				Level: "gateway", Implicit: true, Approvers: "none",
				Rules: []grants.Rule{{Server: "docs", Tool: "rm", Capability: "c", Risk: "high", Approval: "deny"}},
			},
			{Level: "workspace", Server: "docs", Enabled: true, Default: "deny", OnChange: "flag", Rules: []grants.Rule{}},
		},
	}
	got := l.Policy("default")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	before := canon.Sum(l.State())
	got.Levels[0].Rules[0].Approval = "auto"
	if canon.Sum(l.State()) != before {
		t.Error("what was handed out is not a copy")
	}
}
