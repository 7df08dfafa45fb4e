package turn_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/turn"
)

var decider = Decider[turn.State, turn.Command]{Decide: turn.Decide, Evolve: turn.Evolve}

func TestTurnRules(t *testing.T) {
	t.Parallel()
	requested := events.TurnRequested{Session: "s-1", IncludeImplicit: true}
	rejected := []events.CapabilityRejected{{Id: "a", Reason: "not_found"}, {Id: "b", Reason: "duplicate"}}
	bound := events.TurnBound{Runtime: "r-1", Catalog: "cat-1", ManifestHash: "mh", Blob: "sha256:b", AuthoritySequence: 4}
	failed := events.TurnFailed{Reason: "too_many_tools", Actual: 513, Maximum: 512}
	invalid := events.TurnFailed{Reason: "limits_invalid", Name: "tools", Maximum: 4096}
	ended := events.TurnEnded{Reason: "explicit"}
	phases := map[string][]events.Event{
		"bound": {requested, bound}, "failed": {requested, failed}, "ended": {requested, bound, ended},
	}
	cases := []Case[turn.Command]{
		{
			Rule: "bad selections are recorded and do not fail the turn (R144, R185)",
			When: turn.Bind{Requested: requested, Rejected: rejected, Bound: bound},
			Then: []events.Event{requested, rejected[0], rejected[1], bound},
		},
		{
			Rule: "limits and collisions fail the turn (R45, R189)",
			When: turn.Fail{Requested: requested, Failed: failed}, Then: []events.Event{requested, failed},
		},
		{
			Rule: "limits that none can be are recorded with the turn that fails for them (R193)",
			When: turn.Fail{Requested: requested, Limits: &events.LimitsRejected{Field: "tools", Maximum: 4096}, Failed: invalid},
			Then: []events.Event{requested, events.LimitsRejected{Field: "tools", Maximum: 4096}, invalid},
		},
		{Rule: "a turn ends", Given: phases["bound"], When: turn.End{Reason: "explicit"}, Then: []events.Event{ended}},
		{Rule: "a turn that is not bound has no end", When: turn.End{}, Fault: fault.TurnNotActive},
		{Rule: "a failed turn has no end", Given: phases["failed"], When: turn.End{}, Fault: fault.TurnNotActive},
		{Rule: "a turn ends once", Given: phases["ended"], When: turn.End{}, Fault: fault.TurnNotActive},
	}
	for phase, given := range phases {
		cases = append(cases,
			Case[turn.Command]{Rule: "a turn is frozen: no second binding when " + phase + " (R144)", Given: given, When: turn.Bind{Requested: requested, Bound: bound}, Fault: fault.Conflict},
			Case[turn.Command]{Rule: "a turn is frozen: no failure when " + phase + " (R144)", Given: given, When: turn.Fail{Requested: requested, Failed: failed}, Fault: fault.Conflict})
	}
	decider.Run(t, cases)

	want := turn.State{
		Phase: turn.Bound, Principal: Principal, Session: "s-1", Runtime: "r-1", Catalog: "cat-1", Blob: "sha256:b", AuthoritySequence: 4,
	}
	if s := decider.Fold(phases["bound"]...); s != want {
		t.Errorf("state %+v, want %+v", s, want)
	}
}

func TestOnlyATurnThatIsOverIsForgotten(t *testing.T) {
	t.Parallel()
	for phase, c := range map[string]struct {
		given []events.Event
		over  bool
	}{
		"none":   {nil, false},
		"bound":  {[]events.Event{events.TurnRequested{}, events.TurnBound{}}, false},
		"failed": {[]events.Event{events.TurnRequested{}, events.TurnFailed{}}, true},
		"ended":  {[]events.Event{events.TurnRequested{}, events.TurnBound{}, events.TurnEnded{}}, true},
	} {
		at, over := turn.Over(decider.Fold(c.given...))
		if over != c.over || over && at != Noon {
			t.Errorf("%s: over %v at %v, want %v", phase, over, at, c.over)
		}
	}
}
