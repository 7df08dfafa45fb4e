// Package host decides who may speak to the bus: the enrolment of principals,
// their role and their credentials (decision 2). The state never holds a bearer
// token, only its SHA-256, and of a key for NATS only the public half. Accounts
// on the bus are derived from it.
package host

import (
	"maps"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The roles; a principal has exactly one. A worker is trusted code: its keys are
// users of the runtime's own account.
const (
	RoleHost     = "host"
	RoleOperator = "operator"
	RoleAuditor  = "auditor"
	RoleWorker   = "worker"
)

// Token is one credential of a principal: a bearer token or a key for NATS.
type Token struct {
	// Hash is the SHA-256 of a bearer token, hex; empty for a key.
	Hash string
	// PublicKey is that of a key; empty for a bearer token.
	PublicKey string
	Workspace string
	// Expires is zero when the credential does not expire.
	Expires time.Time
}

// State is what the decider reads of one principal.
type State struct {
	Role string
	// Account is the public key of the principal's account on the bus; empty for a
	// worker and while it has bearer tokens only.
	Account   string
	Workspace string
	// Tokens are the credentials in force, by id.
	Tokens map[string]Token
	// RevokedKeys are the public keys that are void while the account is not.
	RevokedKeys []string
	// RevokedWorkers are those of a worker: void for ever, as the runtime's account
	// stays whatever becomes of the name.
	RevokedWorkers []string
	Revoked        bool
}

// Command is a request to change a host.
type Command interface{ command() }

// Enrol gives the principal its account, in place of one that it had: the keys of
// that are void.
type Enrol struct{ Role, Account, Workspace string }

// IssueToken enrols the principal where needed and records a new credential,
// either a bearer token or a key.
type IssueToken struct {
	Role string
	// Token is the id of the credential, Hash the SHA-256 of a bearer token in hex,
	// PublicKey that of a key.
	Token, Hash, PublicKey string
	// Account becomes the principal's account when it has none yet.
	Account   string
	Workspace string
	Expires   time.Time
}

// Revoke makes every credential of the principal void, or the one that is named.
type Revoke struct {
	Token string
	Note  redact.EventText
}

func (Enrol) command()      {}
func (IssueToken) command() {}
func (Revoke) command()     {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Enrol:
		if err := s.takes("host.enrol", c.Role); err != nil {
			return nil, err
		}
		if s.enrolled() && s.Account == c.Account && s.Workspace == c.Workspace {
			return nil, nil
		}
		return []events.Event{events.HostEnrolled{Role: c.Role, PublicKey: c.Account, Workspace: c.Workspace}}, nil
	case IssueToken:
		if err := s.takes("host.token", c.Role); err != nil {
			return nil, err
		}
		if c.Role == RoleWorker && c.PublicKey == "" {
			return nil, fault.New("host.token", fault.InvalidInput, redact.Static("role: a worker has a key, which bus creds makes, not a token"))
		}
		if c.PublicKey != "" && s.knows(c.PublicKey) {
			return nil, fault.New("host.token", fault.Conflict, redact.Static("public_key: the principal has or had a credential with this key; make a new one"))
		}
		var out []events.Event
		switch {
		case !s.enrolled(), s.Account == "" && c.Account != "":
			out = append(out, events.HostEnrolled{Role: c.Role, PublicKey: c.Account, Workspace: c.Workspace})
		case s.Workspace != "" && s.Workspace != c.Workspace:
			return nil, fault.New("host.token", fault.Conflict, redact.Static("the principal is enrolled in another workspace"))
		}
		issued := events.TokenIssued{Token: c.Token, TokenHash: c.Hash, PublicKey: c.PublicKey, Workspace: c.Workspace}
		if !c.Expires.IsZero() {
			issued.Expires = c.Expires.UTC().Format(time.RFC3339Nano)
		}
		return append(out, issued), nil
	case Revoke:
		if !s.enrolled() {
			return nil, fault.New("host.revoke", fault.NotFound, redact.Static("no such host, or it is revoked"))
		}
		if _, ok := s.Tokens[c.Token]; c.Token != "" && !ok {
			return nil, fault.New("host.revoke", fault.NotFound, redact.Static("the host has no such credential"))
		}
		return []events.Event{events.HostRevoked{Token: c.Token, Note: c.Note}}, nil
	}
	return nil, nil
}

func (s State) enrolled() bool { return s.Role != "" && !s.Revoked }

// knows reports whether a key is or was one of the principal.
func (s State) knows(key string) bool {
	for _, t := range s.Tokens {
		if t.PublicKey == key {
			return true
		}
	}
	return slices.Contains(s.RevokedKeys, key) || slices.Contains(s.RevokedWorkers, key)
}

// takes reports whether the principal can have the role.
func (s State) takes(op, role string) error {
	switch role {
	case RoleHost, RoleOperator, RoleAuditor, RoleWorker:
	default:
		return fault.New(op, fault.InvalidInput, redact.Static("role: host, operator, auditor or worker"))
	}
	if s.enrolled() && s.Role != role {
		return fault.New(op, fault.Conflict, redact.Static("the principal has another role; revoke it first"))
	}
	return nil
}

// Evolve folds one event. States are shared with readers: nothing that an old one
// holds is changed.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.HostEnrolled:
		tokens := map[string]Token{}
		if s.enrolled() {
			// Bearer tokens stay; keys are those of an account.
			for id, t := range s.Tokens {
				if t.PublicKey == "" || e.PublicKey == s.Account {
					tokens[id] = t
				}
			}
		}
		void := s.RevokedKeys
		if e.PublicKey != s.Account {
			void = nil // they are of the account that is gone
		}
		s = State{
			Role: e.Role, Account: e.PublicKey, Workspace: e.Workspace, Tokens: tokens,
			RevokedKeys: void, RevokedWorkers: s.RevokedWorkers,
		}
	case events.TokenIssued:
		t := Token{Hash: e.TokenHash, PublicKey: e.PublicKey, Workspace: e.Workspace}
		t.Expires, _ = time.Parse(time.RFC3339Nano, e.Expires)
		tokens := make(map[string]Token, len(s.Tokens)+1)
		maps.Copy(tokens, s.Tokens)
		tokens[e.Token] = t
		s.Tokens = tokens
	case events.HostRevoked:
		void := &s.RevokedKeys
		if s.Role == RoleWorker {
			void = &s.RevokedWorkers
		}
		if e.Token == "" {
			for _, t := range s.Tokens {
				*void = withKey(*void, t.PublicKey)
			}
			s.Tokens, s.Revoked = nil, true
			break
		}
		*void = withKey(*void, s.Tokens[e.Token].PublicKey)
		s.Tokens = maps.Clone(s.Tokens)
		delete(s.Tokens, e.Token)
	}
	return s
}

// withKey adds a key; in order, whatever order they came in.
func withKey(keys []string, key string) []string {
	if key == "" {
		return keys
	}
	out := append(slices.Clone(keys), key)
	slices.Sort(out)
	return out
}
