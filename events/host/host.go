// Package host decides who may speak to the bus: the enrolment of principals,
// their role and their bearer tokens (decision 2). The state never holds a
// token, only its SHA-256.
package host

import (
	"maps"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The roles; a principal has exactly one.
const (
	RoleHost     = "host"
	RoleOperator = "operator"
	RoleAuditor  = "auditor"
	RoleWorker   = "worker"
)

// Token is one bearer token of a principal.
type Token struct {
	// Hash is the SHA-256 of the token, hex.
	Hash      string
	Workspace string
	// Expires is zero when the token does not expire.
	Expires time.Time
}

// State is what the decider reads of one principal.
type State struct {
	Role    string
	Tokens  map[string]Token
	Revoked bool
}

// Command is a request to change a host.
type Command interface{ command() }

// IssueToken enrols the principal where needed and records a new token.
type IssueToken struct {
	Role string
	// Token is the id of the token, Hash its SHA-256 in hex.
	Token, Hash string
	Workspace   string
	Expires     time.Time
}

// Revoke makes every credential of the principal void.
type Revoke struct{ Note redact.EventText }

func (IssueToken) command() {}
func (Revoke) command()     {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case IssueToken:
		switch c.Role {
		case RoleHost, RoleOperator, RoleAuditor:
		default:
			return nil, fault.New("host.token", fault.InvalidRequest, redact.Static("the role is host, operator or auditor"))
		}
		var out []events.Event
		switch {
		case s.Role == "" || s.Revoked:
			out = append(out, events.HostEnrolled{Role: c.Role})
		case s.Role != c.Role:
			return nil, fault.New("host.token", fault.Conflict, redact.Static("the principal has another role; revoke it first"))
		}
		issued := events.TokenIssued{Token: c.Token, TokenHash: c.Hash, Workspace: c.Workspace}
		if !c.Expires.IsZero() {
			issued.Expires = c.Expires.UTC().Format(time.RFC3339Nano)
		}
		return append(out, issued), nil
	case Revoke:
		if s.Role == "" || s.Revoked {
			return nil, fault.New("host.revoke", fault.NotFound, redact.Static("no such host, or it is revoked"))
		}
		return []events.Event{events.HostRevoked{Note: c.Note}}, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.HostEnrolled:
		s = State{Role: e.Role}
	case events.TokenIssued:
		t := Token{Hash: e.TokenHash, Workspace: e.Workspace}
		t.Expires, _ = time.Parse(time.RFC3339Nano, e.Expires)
		// States are shared with readers: never change a map in place.
		tokens := make(map[string]Token, len(s.Tokens)+1)
		maps.Copy(tokens, s.Tokens)
		tokens[e.Token] = t
		s.Tokens = tokens
	case events.HostRevoked:
		s.Tokens, s.Revoked = nil, true
	}
	return s
}
