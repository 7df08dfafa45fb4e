package grant_test

import (
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

var decider = Decider[grant.State, grant.Command]{Decide: grant.Decide, Evolve: grant.Evolve}

func TestGrantRules(t *testing.T) {
	t.Parallel()
	until := Noon.Add(time.Hour + time.Nanosecond)
	const untilText = "2026-11-29T13:00:00.000000001Z"
	docs := events.CapabilityGranted{Capability: "mcp.call:docs"}
	timed := events.CapabilityGranted{Capability: "mcp.call:docs", Until: untilText}
	decider.Run(t, []Case[grant.Command]{
		{
			Rule: "a capability is granted, with its end and why (R50)",
			When: grant.Grant{Capability: "mcp.connect:docs", Until: until, Note: redact.Static("trial")},
			Then: []events.Event{events.CapabilityGranted{Capability: "mcp.connect:docs", Until: untilText, Note: redact.Static("trial")}},
		},
		{
			Rule: "a wildcard at a colon may be granted (R51)",
			When: grant.Grant{Capability: "mcp.connect:*"},
			Then: []events.Event{events.CapabilityGranted{Capability: "mcp.connect:*"}},
		},
		{Rule: "a wildcard elsewhere may not (R51)", When: grant.Grant{Capability: "mcp.*"}, Fault: fault.InvalidRequest},
		{Rule: "a bare star may not (R51)", When: grant.Grant{Capability: "*"}, Fault: fault.InvalidRequest},
		{Rule: "nothing may not", When: grant.Grant{}, Fault: fault.InvalidRequest},
		{Rule: "what is held is not granted again", Given: []events.Event{docs}, When: grant.Grant{Capability: "mcp.call:docs"}},
		{
			Rule: "the same end is not granted again", Given: []events.Event{timed},
			When: grant.Grant{Capability: "mcp.call:docs", Until: until.In(time.FixedZone("x", 3600))},
		},
		{
			Rule: "another end is a new grant", Given: []events.Event{timed},
			When: grant.Grant{Capability: "mcp.call:docs"}, Then: []events.Event{docs},
		},
		{
			Rule: "what is held can be revoked", Given: []events.Event{docs},
			When: grant.Revoke{Capability: "mcp.call:docs"},
			Then: []events.Event{events.CapabilityRevoked{Capability: "mcp.call:docs"}},
		},
		{
			Rule: "of a host that is revoked all is", Given: []events.Event{docs, events.CapabilityGranted{Capability: "mcp.connect:docs"}},
			When: grant.RevokeAll{}, Then: []events.Event{
				events.CapabilityRevoked{Capability: "mcp.call:docs"}, events.CapabilityRevoked{Capability: "mcp.connect:docs"},
			},
		},
		{Rule: "of a host that holds nothing nothing is", When: grant.RevokeAll{}},
		{Rule: "a revoke names a grant, not what it covers", Given: []events.Event{events.CapabilityGranted{Capability: "mcp.call:*"}}, When: grant.Revoke{Capability: "mcp.call:docs"}, Fault: fault.NotFound},
		{
			Rule:  "nothing is revoked twice",
			Given: []events.Event{docs, events.CapabilityRevoked{Capability: "mcp.call:docs"}},
			When:  grant.Revoke{Capability: "mcp.call:docs"}, Fault: fault.NotFound,
		},
	})
}

func TestSnapshotIsTheAuthorityAtItsSequence_R58(t *testing.T) {
	t.Parallel()
	s := decider.Fold(
		events.CapabilityGranted{Capability: "b:x", Until: Noon.Add(time.Hour).Format(time.RFC3339Nano)},
		events.CapabilityGranted{Capability: "a:x"},
		events.CapabilityGranted{Capability: "c:x"},
	)
	allows := func(s grant.State, capability string, at time.Time) bool {
		return s.Snapshot("ana").Allows(capability, at)
	}
	if !allows(s, "a:x", Noon) || !allows(s, "b:x", Noon) || allows(s, "b:x", Noon.Add(time.Hour)) {
		t.Errorf("the snapshot of %+v is wrong", s)
	}
	if got := s.Snapshot("ana"); got.Seq != 3 || got.Principal != "ana" {
		t.Errorf("the snapshot is of %q at %d", got.Principal, got.Seq)
	}
	later := decider.Then(s, 3, events.CapabilityRevoked{Capability: "a:x"}, events.CapabilityRevoked{Capability: "unheard:of"})
	if allows(later, "a:x", Noon) || !allows(later, "c:x", Noon) || later.Seq != 5 {
		t.Errorf("after the revoke: %+v", later)
	}
	// The state that a reader holds does not change under it.
	if !allows(s, "a:x", Noon) || s.Seq != 3 {
		t.Errorf("the revoke changed an older state: %+v", s)
	}
}
