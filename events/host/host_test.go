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
	keyed := append(enrolled[:2:2], events.HostEnrolled{Role: "host", PublicKey: "A1"}, events.TokenIssued{Token: "t-2", PublicKey: "U1"})
	decider.Run(t, []Case[host.Command]{
		{
			Rule: "the first token enrols the principal",
			When: host.IssueToken{Role: "host", Token: "t-1", Hash: "aa", Workspace: "w", Expires: end},
			Then: []events.Event{
				events.HostEnrolled{Role: "host", Workspace: "w"},
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
		{Rule: "an unknown role is refused", When: host.IssueToken{Role: "root"}, Fault: fault.InvalidInput},
		{Rule: "a worker is trusted code and gets no token", When: host.IssueToken{Role: host.RoleWorker, Hash: "aa"}, Fault: fault.InvalidInput},
		{
			Rule: "a worker gets a key, and no account of its own", When: host.IssueToken{Role: host.RoleWorker, Token: "t-1", PublicKey: "U1"},
			Then: []events.Event{events.HostEnrolled{Role: "worker"}, events.TokenIssued{Token: "t-1", PublicKey: "U1"}},
		},
		{
			Rule: "the first key gives the account", When: host.IssueToken{Role: "host", Token: "t-1", PublicKey: "U1", Account: "A1"},
			Then: []events.Event{events.HostEnrolled{Role: "host", PublicKey: "A1"}, events.TokenIssued{Token: "t-1", PublicKey: "U1"}},
		},
		{
			Rule: "the first key of a principal with tokens gives the account", Given: enrolled,
			When: host.IssueToken{Role: "host", Token: "t-2", PublicKey: "U1", Account: "A1"},
			Then: []events.Event{events.HostEnrolled{Role: "host", PublicKey: "A1"}, events.TokenIssued{Token: "t-2", PublicKey: "U1"}},
		},
		{
			Rule: "a second key is of the account that is there", Given: keyed,
			When: host.IssueToken{Role: "host", Token: "t-3", PublicKey: "U2", Account: "A2"},
			Then: []events.Event{events.TokenIssued{Token: "t-3", PublicKey: "U2"}},
		},
		{
			Rule: "a key is issued once", Given: keyed,
			When: host.IssueToken{Role: "host", Token: "t-3", PublicKey: "U1"}, Fault: fault.Conflict,
		},
		{
			Rule: "a revoked key is not issued again", Given: append(keyed[:4:4], events.HostRevoked{Token: "t-2"}),
			When: host.IssueToken{Role: "host", Token: "t-3", PublicKey: "U1"}, Fault: fault.Conflict,
		},
		{
			Rule: "a worker's revoked key is not issued again", Given: []events.Event{
				events.HostEnrolled{Role: "worker"}, events.TokenIssued{Token: "t-1", PublicKey: "U1"}, events.HostRevoked{},
			},
			When: host.IssueToken{Role: "worker", Token: "t-3", PublicKey: "U1"}, Fault: fault.Conflict,
		},
		{
			Rule: "a new account takes the place of the old one", Given: keyed,
			When: host.Enrol{Role: "host", Account: "A2"}, Then: []events.Event{events.HostEnrolled{Role: "host", PublicKey: "A2"}},
		},
		{Rule: "the account that is there is no news", Given: keyed, When: host.Enrol{Role: "host", Account: "A1"}},
		{Rule: "a new account is not a new role", Given: keyed, When: host.Enrol{Role: "operator", Account: "A2"}, Fault: fault.Conflict},
		{
			Rule: "one credential is revoked alone", Given: keyed,
			When: host.Revoke{Token: "t-2"}, Then: []events.Event{events.HostRevoked{Token: "t-2"}},
		},
		{Rule: "what was never issued is not revoked", Given: keyed, When: host.Revoke{Token: "t-9"}, Fault: fault.NotFound},
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

func TestHostStateHoldsAccountsAndKeys(t *testing.T) {
	t.Parallel()
	s := decider.Fold(
		events.HostEnrolled{Role: "host"}, events.TokenIssued{Token: "t-1", TokenHash: "aa"},
		events.HostEnrolled{Role: "host", PublicKey: "A1", Workspace: "w"},
		events.TokenIssued{Token: "t-3", PublicKey: "U3"}, events.TokenIssued{Token: "t-2", PublicKey: "U2"},
	)
	one := decider.Then(s, 9, events.HostRevoked{Token: "t-3"})
	want := host.State{
		Role: "host", Account: "A1", Workspace: "w", RevokedKeys: []string{"U3"},
		Tokens: map[string]host.Token{"t-1": {Hash: "aa"}, "t-2": {PublicKey: "U2"}},
	}
	if diff := cmp.Diff(want, one); diff != "" {
		t.Errorf("one revoked (-want +got):\n%s", diff)
	}
	all := decider.Then(one, 10, events.HostRevoked{})
	if diff := cmp.Diff(host.State{Role: "host", Account: "A1", Workspace: "w", RevokedKeys: []string{"U2", "U3"}, Revoked: true}, all); diff != "" {
		t.Errorf("all revoked (-want +got):\n%s", diff)
	}
	again := decider.Then(one, 10, events.HostEnrolled{Role: "host", PublicKey: "A2", Workspace: "w"})
	if diff := cmp.Diff(host.State{Role: "host", Account: "A2", Workspace: "w", Tokens: map[string]host.Token{"t-1": {Hash: "aa"}}}, again); diff != "" {
		t.Errorf("another account (-want +got):\n%s", diff)
	}
	worker := decider.Fold(
		events.HostEnrolled{Role: "worker"}, events.TokenIssued{Token: "t-1", PublicKey: "U1"}, events.HostRevoked{},
		events.HostEnrolled{Role: "worker"}, events.TokenIssued{Token: "t-2", PublicKey: "U2"},
	)
	want = host.State{Role: "worker", RevokedWorkers: []string{"U1"}, Tokens: map[string]host.Token{"t-2": {PublicKey: "U2"}}}
	if diff := cmp.Diff(want, worker); diff != "" {
		t.Errorf("a worker enrolled again (-want +got):\n%s", diff)
	}
	// Whoever takes the name next: what was a worker's key is void for ever.
	for _, account := range []string{"A1", "A2"} {
		worker = decider.Then(worker, 20, events.HostRevoked{})
		worker = decider.Then(worker, 21, events.HostEnrolled{Role: "host", PublicKey: account})
	}
	want = host.State{Role: "host", Account: "A2", RevokedWorkers: []string{"U1", "U2"}, Tokens: map[string]host.Token{}}
	if diff := cmp.Diff(want, worker); diff != "" {
		t.Errorf("the name of a worker taken by a host (-want +got):\n%s", diff)
	}
}
