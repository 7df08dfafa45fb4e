package session_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/session"
)

var decider = Decider[session.State, session.Command]{Decide: session.Decide, Evolve: session.Evolve}

func TestSessionRules(t *testing.T) {
	t.Parallel()
	started := events.SessionStarted{Label: "/mcp", CoreRevision: "r1", CapabilityDigest: "cd", Reason: "first_request"}
	published := events.CatalogPublished{Catalog: "cat-1"}
	ended := events.SessionEnded{Reason: "explicit"}
	start := session.Start{Label: "/mcp", CoreRevision: "r1", CapabilityDigest: "cd", Reason: "first_request"}
	decider.Run(t, []Case[session.Command]{
		{Rule: "a session starts", When: start, Then: []events.Event{started}},
		{Rule: "an active session is durable over reconnects (decision 3)", Given: []events.Event{started}, When: start},
		{Rule: "an ended session may start again", Given: []events.Event{started, ended}, When: start, Then: []events.Event{started}},
		{
			Rule: "a session publishes what it sees (R6)", Given: []events.Event{started},
			When: session.Publish{Catalog: published}, Then: []events.Event{published},
		},
		{Rule: "the same catalog is published once (R6)", Given: []events.Event{started, published}, When: session.Publish{Catalog: published}},
		{
			Rule: "an ended session publishes nothing (R150)", Given: []events.Event{started, ended},
			When: session.Publish{Catalog: published}, Fault: fault.SessionEvicted,
		},
		{
			Rule: "a session that starts again publishes afresh", Given: []events.Event{started, published, ended, started},
			When: session.Publish{Catalog: published}, Then: []events.Event{published},
		},
		{Rule: "a session that never started publishes nothing", When: session.Publish{Catalog: published}, Fault: fault.SessionEvicted},
		{Rule: "a session ends (R149)", Given: []events.Event{started}, When: session.End{Reason: "explicit"}, Then: []events.Event{ended}},
		{Rule: "a session ends once", Given: []events.Event{started, ended}, When: session.End{}, Fault: fault.NotFound},
	})
}

func TestSessionIDIsOfWorkspacePrincipalAndLabel(t *testing.T) {
	t.Parallel()
	base := session.ID("w", "p", "l")
	for _, other := range []string{session.ID("x", "p", "l"), session.ID("w", "x", "l"), session.ID("w", "p", "x"), session.ID("wp", "", "l"), session.ID("w", "pl", "")} {
		if other == base {
			t.Errorf("two sessions have the id %s", base)
		}
	}
	// It is in logs, so it stays what it is.
	if want := "s-cec6be01d0ed4d15"; base != want {
		t.Errorf("the id is %s, want %s", base, want)
	}
	s := decider.Fold(events.SessionStarted{Label: "l"}, events.CatalogPublished{Catalog: "c"}, events.SessionEnded{})
	if want := (session.State{Principal: Principal, Label: "l", Seq: 3, EndedAt: Noon}); s != want {
		t.Errorf("state %+v, want %+v", s, want)
	}
}
