// Package sessions says which host conversations there are and what they did.
//
// Memory is bounded: sessions that live, and the newest 10,000 that have ended.
package sessions

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

const maxEnded = 10_000

// Session is one session. One that ended and began again begins at nothing.
type Session struct {
	Workspace, ID, Principal, Label string
	Active                          bool
	Started, Ended                  time.Time
	// StartReason and EndReason say why.
	StartReason, EndReason string
	CoreRevision           string
	// Catalog is the id of what it sees, Tools how many those are.
	Catalog string
	Tools   int
	// Connections are the ids of its open connections, sorted.
	Connections []string
	Turns       int
	// Calls counts the calls that ended, by outcome (R129); InFlight those that
	// were requested and have not.
	Calls    map[string]int
	InFlight int
}

// Filter selects sessions; empty fields match all. Ended includes those that
// have ended.
type Filter struct {
	Workspace, Principal string
	Ended                bool
}

// openCall is a call that has no outcome yet.
type openCall struct {
	State   call.State
	Session connections.Key
	// Began is that of the session which requested it.
	Began uint64
}

// ended is one end of a session, by the sequence of its commit.
type ended struct {
	Session connections.Key
	Seq     uint64
}

type row struct {
	Session
	// Began and EndSeq are the sequences of its start and its end; EndSeq is 0
	// while it is active. A session that begins again is another one.
	Began, EndSeq uint64
}

type state struct {
	Sessions map[connections.Key]row
	Calls    map[connections.Key]openCall
	Ended    []ended // oldest first
	// Outcomes counts all calls that ended, of sessions that are forgotten too.
	Outcomes map[outcome]int
}

// outcome is what became of a call of a workspace (R129).
type outcome struct{ Workspace, Status string }

// Projection is the sessions. Its methods may be called from any goroutine.
type Projection struct {
	shared *connections.Projection
	state  state
}

// New makes an empty projection beside the connections of the sessions.
func New(shared *connections.Projection) *Projection {
	return &Projection{shared: shared, state: state{
		Sessions: make(map[connections.Key]row), Calls: make(map[connections.Key]openCall), Outcomes: make(map[outcome]int),
	}}
}

// Name is "sessions".
func (p *Projection) Name() string { return "sessions" }

// State is all that is held, for its set.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit. The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	for r := range c.Recorded() {
		p.state.apply(r)
	}
}

func (s *state) apply(r events.Recorded) {
	key := connections.Of(r.Commit)
	switch e := r.Event.(type) {
	case events.SessionStarted:
		s.Sessions[key] = row{Began: r.Seq, Session: Session{
			Workspace: r.Workspace, ID: key.ID, Principal: r.Principal, Label: e.Label, Active: true, Started: r.Time,
			StartReason: e.Reason, CoreRevision: e.CoreRevision, Calls: map[string]int{},
		}}
	case events.SessionEnded:
		s.update(key, func(x *row) {
			x.Active, x.Ended, x.EndReason, x.Catalog, x.Tools, x.EndSeq = false, r.Time, e.Reason, "", 0, r.Seq
			s.end(ended{key, r.Seq})
		})
	case events.CatalogPublished:
		s.update(key, func(x *row) { x.Catalog, x.Tools = e.Catalog, len(e.Tools) })
	case events.TurnRequested:
		s.update(connections.Key{Workspace: r.Workspace, ID: e.Session}, func(x *row) { x.Turns++ })
	}
	if r.Aggregate.Kind == events.KindCall {
		s.call(key, r)
	}
}

func (s *state) update(key connections.Key, change func(*row)) {
	if x, ok := s.Sessions[key]; ok {
		change(&x)
		s.Sessions[key] = x
	}
}

// end forgets the oldest end when there are too many, unless that session has
// begun again since.
func (s *state) end(e ended) {
	s.Ended = append(s.Ended, e)
	if len(s.Ended) <= maxEnded {
		return
	}
	if old := s.Ended[0]; s.Sessions[old.Session].EndSeq == old.Seq {
		delete(s.Sessions, old.Session)
	}
	s.Ended = s.Ended[1:]
}

func (s *state) call(key connections.Key, r events.Recorded) {
	o, known := s.Calls[key]
	if e, ok := r.Event.(events.CallRequested); ok && !known {
		o.Session = connections.Key{Workspace: r.Workspace, ID: e.Session}
		s.update(o.Session, func(x *row) {
			o.Began = x.Began
			x.InFlight++
		})
	} else if !known {
		return // it ended before
	}
	o.State = call.Evolve(o.State, r)
	if o.State.Phase != call.Done {
		s.Calls[key] = o
		return
	}
	delete(s.Calls, key)
	s.Outcomes[outcome{r.Workspace, o.State.Outcome}]++
	s.update(o.Session, func(x *row) {
		if x.Began == o.Began {
			x.InFlight--
			x.Calls[o.State.Outcome]++
		}
	})
}

// List are the sessions that match, by workspace, principal and label.
func (p *Projection) List(f Filter) []Session {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := []Session{}
	for key, x := range p.state.Sessions {
		if (x.Active || f.Ended) && (f.Workspace == "" || f.Workspace == x.Workspace) &&
			(f.Principal == "" || f.Principal == x.Principal) {
			out = append(out, x.copy(p.open(key)))
		}
	}
	slices.SortFunc(out, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Principal, b.Principal),
			cmp.Compare(a.Label, b.Label), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Outcomes counts the calls of a workspace that ended, by outcome, since its log
// began.
func (p *Projection) Outcomes(workspace string) map[string]int {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := make(map[string]int)
	for of, n := range p.state.Outcomes {
		if of.Workspace == workspace {
			out[of.Status] = n
		}
	}
	return out
}

// Get is one session.
func (p *Projection) Get(workspace, id string) (Session, bool) {
	p.shared.RLock()
	defer p.shared.RUnlock()
	key := connections.Key{Workspace: workspace, ID: id}
	x, ok := p.state.Sessions[key]
	if !ok {
		return Session{}, false
	}
	return x.copy(p.open(key)), true
}

// open are the ids of the open connections of a session.
func (p *Projection) open(session connections.Key) []string {
	var out []string
	for _, key := range p.shared.BySession[session] {
		if p.shared.All[key].State.Phase == connection.Open {
			out = append(out, key.ID)
		}
	}
	slices.Sort(out)
	return out
}

func (x row) copy(open []string) Session {
	out := x.Session
	out.Calls = maps.Clone(x.Calls)
	out.Connections = open
	return out
}
