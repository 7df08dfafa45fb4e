package host_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

var decider = Decider[host.State, host.Command]{Decide: host.Decide, Evolve: host.Evolve}

func TestHostRules(t *testing.T) {
	t.Parallel()
	end := Noon.Add(90 * time.Minute).In(time.FixedZone("x", 3600))
	enrolled := []events.Event{events.HostEnrolled{Role: "host"}, events.TokenIssued{Token: "t-1", TokenHash: "aa"}}
	revoked := append(enrolled[:2:2], events.HostRevoked{})
	decider.Run(t, []Case[host.Command]{
		{
			Rule: "the first token enrols the principal",
			When: host.IssueToken{Role: "host", Token: "t-1", Hash: "aa", Workspace: "w", Expires: end},
			Then: []events.Event{
				events.HostEnrolled{Role: "host"},
				events.TokenIssued{Token: "t-1", TokenHash: "aa", Workspace: "w", Expires: "2026-11-29T13:30:00Z"},
			},
		},
		{
			Rule: "a second token does not enrol again", Given: enrolled,
			When: host.IssueToken{Role: "host", Token: "t-2", Hash: "bb"},
			Then: []events.Event{events.TokenIssued{Token: "t-2", TokenHash: "bb"}},
		},
		{
			Rule: "a principal has exactly one role (decision 2)", Given: enrolled,
			When: host.IssueToken{Role: "operator", Token: "t-2", Hash: "bb"}, Fault: fault.Conflict,
		},
		{
			Rule: "a revoked principal is enrolled anew, in any role", Given: revoked,
			When: host.IssueToken{Role: "auditor", Token: "t-2", Hash: "bb"},
			Then: []events.Event{events.HostEnrolled{Role: "auditor"}, events.TokenIssued{Token: "t-2", TokenHash: "bb"}},
		},
		{Rule: "an unknown role is refused", When: host.IssueToken{Role: "root"}, Fault: fault.InvalidRequest},
		{Rule: "a worker is trusted code and gets no token", When: host.IssueToken{Role: host.RoleWorker}, Fault: fault.InvalidRequest},
		{
			Rule: "revoke ends every credential", Given: enrolled,
			When: host.Revoke{Note: redact.Static("left")},
			Then: []events.Event{events.HostRevoked{Note: redact.Static("left")}},
		},
		{Rule: "nobody is revoked twice", Given: revoked, When: host.Revoke{}, Fault: fault.NotFound},
		{Rule: "an unknown principal cannot be revoked", When: host.Revoke{}, Fault: fault.NotFound},
	})
}

func TestHostStateHoldsWhatIsInForce(t *testing.T) {
	t.Parallel()
	end := Noon.Add(time.Hour)
	s := decider.Fold(
		events.HostEnrolled{Role: "host"},
		events.TokenIssued{Token: "t-1", TokenHash: "aa", Workspace: "w", Expires: end.Format(time.RFC3339Nano)},
		events.TokenIssued{Token: "t-2", TokenHash: "bb"},
	)
	want := host.State{Role: "host", Tokens: map[string]host.Token{
		"t-1": {Hash: "aa", Workspace: "w", Expires: end}, "t-2": {Hash: "bb"},
	}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	// The state that a reader holds does not change under it.
	later := decider.Then(s, 3, events.TokenIssued{Token: "t-1", TokenHash: "cc"})
	if s.Tokens["t-1"].Hash != "aa" || later.Tokens["t-1"].Hash != "cc" {
		t.Errorf("a token issued again: before %q, after %q", s.Tokens["t-1"].Hash, later.Tokens["t-1"].Hash)
	}
	gone := decider.Then(s, 3, events.HostRevoked{})
	if !gone.Revoked || len(gone.Tokens) != 0 || len(s.Tokens) != 2 {
		t.Errorf("after the revoke: %+v", gone)
	}
}
