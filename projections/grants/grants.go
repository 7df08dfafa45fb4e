// Package grants says who may do what: the principals with their roles and
// tokens, their capabilities, and the policy of each workspace.
//
// Times are listed as they were given: whether a capability or a token has ended
// is for whoever asks, as a fold has no clock. Memory is bounded by what people
// granted and issued and have not revoked.
package grants

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/policy"
)

// Capability is one capability of a principal in a workspace.
type Capability struct {
	Workspace, Principal, Capability string
	// Until is when it ends; zero is never.
	Until time.Time
	Note  string
	// Sequence is that of the grant.
	Sequence uint64
}

// Host is a principal that was enrolled. Revoked ones stay, without credentials.
// PublicKey is that of its account on the bus.
type Host struct {
	Workspace, Name, Role, PublicKey string
	Enrolled                         time.Time
	Revoked                          bool
	Credentials                      []Credential // by id
}

// Credential is a bearer token, or a key for NATS. What a token is compared with
// stays inside.
type Credential struct {
	ID, Principal, Role string
	// PublicKey is that of a key; empty for a token.
	PublicKey string
	// Workspace is the one that it opens.
	Workspace string
	Issued    time.Time
	// Expires is zero when it does not.
	Expires time.Time
}

// Policy is the policy of one workspace.
type Policy struct {
	Workspace string
	// Sequence is that of the last change; 0 when there was none.
	Sequence uint32
	// Approvers is interactive or none, OnChange block or flag: what all levels
	// together come to.
	Approvers, OnChange string
	Levels              []Level
}

// Level is what one level says, for one server or (empty) for all.
type Level struct {
	Level, Server     string
	Enabled, Implicit bool
	Default           string
	Rules             []Rule
	OnChange          string
	Approvers         string
}

// Rule applies where all of its patterns match; empty matches all.
type Rule struct{ Server, Tool, Capability, Risk, Approval string }

// holder is a principal in a workspace.
type holder struct{ Workspace, Principal string }

type credential struct {
	Hash, PublicKey, Workspace string
	Issued, Expires            time.Time
}

type host struct {
	Role, PublicKey string
	Enrolled        time.Time
	Revoked         bool
	Credentials     map[string]credential
}

// owner names a bearer token.
type owner struct {
	Holder     holder
	Credential string
}

type state struct {
	Capabilities map[holder]map[string]Capability
	Hosts        map[holder]host
	ByHash       map[string]owner
	Policies     map[string]policy.State
}

// Projection is the grants. Its methods may be called from any goroutine.
type Projection struct {
	mu    *sync.RWMutex
	state state
}

// New makes an empty projection. The lock is that of its set.
func New(lock *sync.RWMutex) *Projection {
	return &Projection{mu: lock, state: state{
		Capabilities: make(map[holder]map[string]Capability), Hosts: make(map[holder]host),
		ByHash: make(map[string]owner), Policies: make(map[string]policy.State),
	}}
}

// Name is "grants".
func (p *Projection) Name() string { return "grants" }

// State is all that is held, for its set.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit. The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	for r := range c.Recorded() {
		p.state.apply(r)
	}
}

func (s *state) apply(r events.Recorded) {
	key := holder{r.Workspace, r.Aggregate.Key}
	switch e := r.Event.(type) {
	case events.CapabilityGranted:
		held := s.Capabilities[key]
		if held == nil {
			held = make(map[string]Capability)
			s.Capabilities[key] = held
		}
		held[e.Capability] = Capability{
			Workspace: key.Workspace, Principal: key.Principal, Capability: e.Capability, Until: parse(e.Until),
			Note: e.Note.String(), Sequence: r.Seq,
		}
	case events.CapabilityRevoked:
		delete(s.Capabilities[key], e.Capability)
		if len(s.Capabilities[key]) == 0 {
			delete(s.Capabilities, key)
		}
	case events.HostEnrolled:
		h := s.Hosts[key]
		held := h.Credentials // tokens stay, keys are those of an account
		maps.DeleteFunc(held, func(_ string, c credential) bool { return c.PublicKey != "" && e.PublicKey != h.PublicKey })
		if held == nil {
			held = make(map[string]credential)
		}
		s.Hosts[key] = host{Role: e.Role, PublicKey: e.PublicKey, Enrolled: r.Time, Credentials: held}
	case events.TokenIssued:
		s.issue(key, r, e)
	case events.HostRevoked:
		h := s.Hosts[key]
		for id, c := range h.Credentials {
			if e.Token == "" || e.Token == id {
				delete(s.ByHash, c.Hash)
				delete(h.Credentials, id)
			}
		}
		if e.Token == "" && h.Role != "" {
			h.Revoked = true
			s.Hosts[key] = h
		}
	case events.PolicySet:
		s.Policies[r.Workspace] = policy.Evolve(s.Policies[r.Workspace], r)
	}
}

// issue records a credential of a principal that is enrolled; no other has any.
func (s *state) issue(key holder, r events.Recorded, e events.TokenIssued) {
	h, ok := s.Hosts[key]
	if _, taken := s.ByHash[e.TokenHash]; !ok || h.Revoked || taken {
		return
	}
	if old, ok := h.Credentials[e.Token]; ok {
		delete(s.ByHash, old.Hash)
	}
	h.Credentials[e.Token] = credential{
		Hash: e.TokenHash, PublicKey: e.PublicKey, Workspace: e.Workspace, Issued: r.Time, Expires: parse(e.Expires),
	}
	if e.TokenHash != "" {
		s.ByHash[e.TokenHash] = owner{key, e.Token}
	}
}

// parse reads the end of a right: the empty text is the zero time, never. What is
// no time ended long ago.
func parse(text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Unix(0, 0).UTC()
	}
	return t
}

// Capabilities are those held in a workspace by a principal, sorted; empty ones
// stand for all.
func (p *Projection) Capabilities(workspace, principal string) []Capability {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := []Capability{}
	for key, held := range p.state.Capabilities {
		if (workspace == "" || workspace == key.Workspace) && (principal == "" || principal == key.Principal) {
			for _, c := range held {
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b Capability) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Principal, b.Principal),
			cmp.Compare(a.Capability, b.Capability))
	})
	return out
}

// Hosts are the principals that were enrolled in a workspace, of all when it is
// empty, by name.
func (p *Projection) Hosts(workspace string) []Host {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := []Host{}
	for key, h := range p.state.Hosts {
		if workspace != "" && workspace != key.Workspace {
			continue
		}
		row := Host{
			Workspace: key.Workspace, Name: key.Principal, Role: h.Role, PublicKey: h.PublicKey, Enrolled: h.Enrolled,
			Revoked: h.Revoked, Credentials: []Credential{},
		}
		for id, c := range h.Credentials {
			row.Credentials = append(row.Credentials, h.credential(key.Principal, id, c))
		}
		slices.SortFunc(row.Credentials, func(a, b Credential) int { return cmp.Compare(a.ID, b.ID) })
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Host) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func (h host) credential(principal, id string, c credential) Credential {
	return Credential{
		ID: id, Principal: principal, Role: h.Role, PublicKey: c.PublicKey, Workspace: c.Workspace, Issued: c.Issued, Expires: c.Expires,
	}
}

// TokenByHash is the token with the SHA-256 in hex, unless its principal was
// revoked. Whether it has expired is for the caller, who has a clock.
func (p *Projection) TokenByHash(hash string) (Credential, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o, ok := p.state.ByHash[hash]
	if !ok {
		return Credential{}, false
	}
	h := p.state.Hosts[o.Holder]
	return h.credential(o.Holder.Principal, o.Credential, h.Credentials[o.Credential]), true
}

// Policy is the policy of a workspace, its levels sorted.
func (p *Projection) Policy(workspace string) Policy {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := p.state.Policies[workspace]
	out := Policy{
		Workspace: workspace, Sequence: s.Seq, Approvers: "interactive", OnChange: s.OnChange(), Levels: []Level{},
	}
	if !s.Interactive() {
		out.Approvers = policy.ApproversNone
	}
	for at, l := range s.Levels {
		level := Level{
			Level: at.Level, Server: at.Server, Enabled: l.Enabled, Implicit: l.Implicit, Default: l.DefaultApproval,
			Rules: make([]Rule, len(l.Rules)), OnChange: l.OnChange, Approvers: l.Approvers,
		}
		for i, r := range l.Rules {
			level.Rules[i] = Rule(r)
		}
		out.Levels = append(out.Levels, level)
	}
	slices.SortFunc(out.Levels, func(a, b Level) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Server, b.Server))
	})
	return out
}
