// Package approvals is the inbox: what waits for a person, over connections and
// calls, and what was answered. It also says which earlier answer a call may rest
// on: one that was given to this very call and is not spent, or one that stands
// for the session (decision 7).
//
// Memory is bounded. What waits, and what was allowed and has not started, is
// kept until it is settled; the sweeper settles it when its time is over. Of what
// is settled the newest 10,000 are kept, for people to read; the log has the
// rest. An answer for a session is kept until it ends, its session ends or its
// principal is revoked.
package approvals

import (
	"cmp"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

const (
	maxSettled  = 10_000
	maxStanding = 10_000
)

// State is what became of an approval.
type State string

// The states of an approval.
const (
	Pending State = "pending"
	Allowed State = "allowed"
	Denied  State = "denied"
	Expired State = "expired"
)

// Approval is one approval.
type Approval struct {
	ID string
	// Seq is the sequence of its request.
	Seq       uint64
	State     State
	Workspace string
	// Aggregate is what waits: a connection or a call.
	Aggregate events.AggregateID

	Action, Target                   string
	Principal, Session, Server, Tool string
	Risk, Policy                     string
	Preview, PreviewDigest           string // Preview is JSON, redacted
	Fingerprint                      string
	DefinitionDigest, ArgumentDigest string
	PolicySequence                   uint32
	Requested, Expires               time.Time
	// Decided is zero while it is pending; the fields after it say how.
	Decided time.Time
	// Kind is once or session; Until is the end of one for the session.
	Kind              string
	Until             time.Time
	By, Channel, Note string
	// Spent says that the call it was given to has started.
	Spent bool
}

// Binding is what a person's yes to one call is bound to (decision 7).
type Binding struct {
	Workspace, Principal, Session, Server, Tool string
	// DefinitionDigest and ArgumentDigest are those of the call.
	DefinitionDigest, ArgumentDigest string
}

// openCall is a call that was requested and has neither started nor ended.
type openCall struct {
	State                call.State
	Workspace, Principal string
	Seq                  uint64
	// Approvals are the ids of what was asked about it.
	Approvals []string
	// Session says that the answer stands for the session: it is not found as an
	// answer to this call alone.
	Session bool
}

func (o openCall) binding() Binding {
	return Binding{
		Workspace: o.Workspace, Principal: o.Principal, Session: o.State.Session, Server: o.State.Server,
		Tool: o.State.Tool, DefinitionDigest: o.State.DefinitionDigest, ArgumentDigest: o.State.ArgumentDigest,
	}
}

// found reports whether a retry of the call can be a command to it.
func (o openCall) found() bool {
	return o.State.Phase == call.Waiting || o.State.Phase == call.Allowed && !o.Session
}

// scope is what an answer for the session is bound to (decision 7).
type scope struct {
	Workspace, Principal, Session, Fingerprint, Tool, DefinitionDigest string
	PolicySequence                                                     uint32
}

type standing struct {
	Approval string
	Until    time.Time
	Seq      uint64
}

type state struct {
	// Open are pending approvals and those allowed for a call that has not started.
	Open map[string]Approval
	// Settled are the others, Order their ids, oldest first.
	Settled map[string]Approval
	Order   []string
	Calls   map[connections.Key]openCall
	// ByBinding holds the calls that a retry may find, oldest first.
	ByBinding map[Binding][]connections.Key
	Standing  map[scope]standing
}

// Projection is the inbox. Its methods may be called from any goroutine.
type Projection struct {
	shared *connections.Projection
	state  state
}

// New makes an empty inbox beside the connections that it joins.
func New(shared *connections.Projection) *Projection {
	return &Projection{shared: shared, state: state{
		Open: make(map[string]Approval), Settled: make(map[string]Approval), Calls: make(map[connections.Key]openCall),
		ByBinding: make(map[Binding][]connections.Key), Standing: make(map[scope]standing),
	}}
}

// Name is "approvals".
func (p *Projection) Name() string { return "approvals" }

// State is all that is held, for its set.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit. The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	waits := p.state.waits(c)
	for r := range c.Recorded() {
		p.state.apply(r, p.shared)
		if waits {
			p.state.call(r)
		}
	}
}

// waits reports whether a commit is of a call that is open, or may be so after it:
// most are requested and started in one.
func (s *state) waits(c *events.Commit) bool {
	if c.Aggregate.Kind != events.KindCall {
		return false
	}
	if _, open := s.Calls[connections.Of(c)]; open {
		return true
	}
	requested, started := false, false
	for _, e := range c.Events {
		switch e.(type) {
		case events.ApprovalRequested:
			return true
		case events.CallRequested:
			requested = true
		case events.CallStarted:
			started = true
		}
	}
	return requested && !started
}

func (s *state) apply(r events.Recorded, shared *connections.Projection) {
	switch e := r.Event.(type) {
	case events.ApprovalRequested:
		s.requested(r, e, shared)
	case events.ApprovalDecided:
		s.decided(r, e)
	case events.ApprovalExpired:
		s.expired(r, e)
	case events.SessionEnded:
		s.drop(func(k scope) bool { return k.Workspace == r.Workspace && k.Session == r.Aggregate.Key })
	case events.HostRevoked:
		// A name is one person in every workspace (R61).
		s.drop(func(k scope) bool { return k.Principal == r.Aggregate.Key })
	}
}

// call follows a call until it starts, is queued or ends.
func (s *state) call(r events.Recorded) {
	key := connections.Of(r.Commit)
	o, known := s.Calls[key]
	switch e := r.Event.(type) {
	case events.CallRequested:
		if !known {
			o = openCall{Workspace: r.Workspace, Principal: r.Principal, Seq: r.Seq}
		}
	case events.ApprovalRequested:
		if s.Open[e.Approval].Aggregate == r.Aggregate && !slices.Contains(o.Approvals, e.Approval) {
			o.Approvals = append(slices.Clone(o.Approvals), e.Approval)
		}
	case events.ApprovalDecided:
		o.Session = e.Kind == call.Session
	}
	if _, requested := r.Event.(events.CallRequested); !known && !requested {
		return // over long ago
	}
	s.unlist(key, s.Calls[key])
	o.State = call.Evolve(o.State, r)
	switch o.State.Phase {
	case call.Queued, call.Started, call.Done:
		for _, id := range o.Approvals {
			if a, ok := s.Open[id]; ok {
				a.Spent = a.State == Allowed && o.State.Phase == call.Started
				if a.State == Pending {
					a.State = Expired // nothing waits for the answer any more
				}
				s.settle(a)
			}
		}
		delete(s.Calls, key)
		return
	}
	s.Calls[key] = o
	if o.found() {
		s.ByBinding[o.binding()] = append(s.ByBinding[o.binding()], key)
	}
}

func (s *state) unlist(key connections.Key, o openCall) {
	b := o.binding()
	left := slices.DeleteFunc(s.ByBinding[b], func(k connections.Key) bool { return k == key })
	if len(left) == 0 {
		delete(s.ByBinding, b)
	} else {
		s.ByBinding[b] = left
	}
}

func (s *state) requested(r events.Recorded, e events.ApprovalRequested, shared *connections.Projection) {
	if _, ok := s.get(e.Approval); ok {
		return // an id is minted once
	}
	a := Approval{
		ID: e.Approval, Seq: r.Seq, State: Pending, Workspace: r.Workspace, Aggregate: r.Aggregate,
		Action: e.Action, Target: e.Target, Principal: r.Principal, Session: r.Scope.Session, Server: e.Server,
		Tool: e.Tool, Risk: e.Risk, Policy: e.Policy, Preview: e.Preview.String(), PreviewDigest: e.PreviewDigest,
		Fingerprint: e.Fingerprint, DefinitionDigest: e.DefinitionDigest, ArgumentDigest: e.ArgumentDigest,
		PolicySequence: e.PolicySequence, Requested: r.Time, Expires: parse(e.Expires),
	}
	// Whoever brings the question about may be a worker; it is about the principal
	// and session that asked for the connection or the call.
	key := connections.Of(r.Commit)
	if c, ok := shared.All[key]; ok && r.Aggregate.Kind == events.KindConnection {
		a.Principal, a.Session = c.Principal, c.Session
	}
	if c, ok := s.Calls[key]; ok && r.Aggregate.Kind == events.KindCall {
		a.Principal, a.Session = c.Principal, c.State.Session
	}
	s.Open[a.ID] = a
}

func (s *state) decided(r events.Recorded, e events.ApprovalDecided) {
	a, ok := s.Open[e.Approval]
	// A cached decision cites an approval, it does not decide it.
	if !ok || e.Cached || a.Workspace != r.Workspace || a.Aggregate != r.Aggregate || a.State != Pending {
		return
	}
	a.Decided, a.Kind, a.Until, a.By, a.Channel, a.Note = r.Time, e.Kind, parse(e.Until), e.By, e.Channel, e.Note.String()
	a.State = Denied // whatever is no clear yes (R61)
	if e.Decision == "allow" {
		a.State = Allowed
	}
	_, unspent := s.Calls[connections.Of(r.Commit)]
	if a.State == Denied || a.Aggregate.Kind != events.KindCall || !unspent {
		s.settle(a)
		return
	}
	s.Open[a.ID] = a
	if a.Kind == call.Session {
		s.stand(scope{
			Workspace: a.Workspace, Principal: a.Principal, Session: a.Session, Fingerprint: a.Fingerprint,
			Tool: a.Tool, DefinitionDigest: a.DefinitionDigest, PolicySequence: a.PolicySequence,
		}, standing{a.ID, a.Until, r.Seq}, r.Time)
	}
}

// expired ends what was not answered, or was allowed once and not used. An answer
// for the session stands although the call that brought it about never started.
func (s *state) expired(r events.Recorded, e events.ApprovalExpired) {
	a, ok := s.Open[e.Approval]
	if !ok || a.Workspace != r.Workspace || a.Aggregate != r.Aggregate {
		return
	}
	if a.State == Pending || a.Kind != call.Session {
		a.State = Expired
	}
	s.settle(a)
}

func (s *state) settle(a Approval) {
	delete(s.Open, a.ID)
	s.Settled[a.ID] = a
	s.Order = append(s.Order, a.ID)
	if len(s.Order) > maxSettled {
		delete(s.Settled, s.Order[0])
		s.Order = s.Order[1:]
	}
}

// stand keeps an answer for the session. When there are too many it forgets those
// that had ended by the time of this one, else the oldest. An answer that is
// forgotten too early, as times of commits may go back, is a question asked again.
func (s *state) stand(k scope, a standing, now time.Time) {
	if len(s.Standing) >= maxStanding {
		oldest := a.Seq
		for _, other := range s.Standing {
			oldest = min(oldest, other.Seq)
		}
		s.drop(func(k scope) bool { return !now.Before(s.Standing[k].Until) })
		if len(s.Standing) >= maxStanding {
			s.drop(func(k scope) bool { return s.Standing[k].Seq == oldest })
		}
	}
	s.Standing[k] = a
}

func (s *state) drop(match func(scope) bool) {
	for k := range s.Standing {
		if match(k) {
			delete(s.Standing, k)
		}
	}
}

func (s *state) get(id string) (Approval, bool) {
	if a, ok := s.Open[id]; ok {
		return a, true
	}
	a, ok := s.Settled[id]
	return a, ok
}

// parse reads a time of an event; what is none is the zero time, which is over.
func parse(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t
}

// Get is the approval of an id.
func (p *Projection) Get(id string) (Approval, bool) {
	p.shared.RLock()
	defer p.shared.RUnlock()
	return p.state.get(id)
}

// Pending are the approvals of a workspace that wait for a person, oldest first;
// of all workspaces when it is empty.
func (p *Projection) Pending(workspace string) []Approval {
	return p.list(workspace, func(a Approval) bool { return a.State == Pending }, false)
}

// List are the approvals of a workspace, oldest first: with all also those that
// were answered or have expired.
func (p *Projection) List(workspace string, all bool) []Approval {
	if !all {
		return p.Pending(workspace)
	}
	return p.list(workspace, func(Approval) bool { return true }, true)
}

// Open are the approvals that wait, and those that allowed a call which has not
// started, oldest first: what can still come to its end.
func (p *Projection) Open() []Approval {
	return p.list("", func(Approval) bool { return true }, false)
}

// Due are those of Open whose time has come, the earliest first. The decider of
// their aggregate expires them.
func (p *Projection) Due(at time.Time) []Approval {
	due := p.list("", func(a Approval) bool { return !at.Before(a.Expires) }, false)
	slices.SortStableFunc(due, func(a, b Approval) int { return a.Expires.Compare(b.Expires) })
	return due
}

func (p *Projection) list(workspace string, match func(Approval) bool, settled bool) []Approval {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := []Approval{}
	add := func(from map[string]Approval) {
		for _, a := range from {
			if (workspace == "" || a.Workspace == workspace) && match(a) {
				out = append(out, a)
			}
		}
	}
	add(p.state.Open)
	if settled {
		add(p.state.Settled)
	}
	slices.SortFunc(out, func(a, b Approval) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.ID, b.ID)) })
	return out
}

// OpenCall is the key of the newest call with the binding that waits for a
// person, or was allowed once and has not started: what a retry is a command to
// (decision 9). A call that was allowed for the session is not among them: its
// retry is a call of its own, under SessionApproval.
func (p *Projection) OpenCall(b Binding) (call string, ok bool) {
	p.shared.RLock()
	defer p.shared.RUnlock()
	var newest uint64
	for _, key := range p.state.ByBinding[b] {
		if seq := p.state.Calls[key].Seq; !ok || seq > newest {
			call, newest, ok = key.ID, seq, true
		}
	}
	return call, ok
}

// SessionApproval is the id of a person's yes for the session that is in force at
// a time for the tool as it is defined now, under the policy of that sequence.
func (p *Projection) SessionApproval(workspace, principal, session, fingerprint, tool, definitionDigest string, policySequence uint32, at time.Time) (id string, ok bool) {
	p.shared.RLock()
	defer p.shared.RUnlock()
	a, ok := p.state.Standing[scope{workspace, principal, session, fingerprint, tool, definitionDigest, policySequence}]
	if !ok || !at.Before(a.Until) {
		return "", false
	}
	return a.Approval, true
}
