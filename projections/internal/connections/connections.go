// Package connections folds the connections of the log, once for all projections
// that show them. It uses the Evolve of the decider, so that no projection reads
// an event otherwise than the rules do, and keeps beside it what only people ask
// for.
package connections

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
)

// Key names an aggregate of a known kind in its workspace.
type Key struct{ Workspace, ID string }

// Of is the key of the aggregate of a commit.
func Of(c *events.Commit) Key { return Key{c.Workspace, c.Aggregate.Key} }

// Compare orders keys.
func Compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.ID, b.ID))
}

// Connection is one connection.
type Connection struct {
	State connection.State
	// Session, Principal, Server and Core say whose it is.
	Session, Principal, Server, Core string
	// Since is the time of the commit that led to the phase.
	Since time.Time
	// Approval is the connect approval that it waits for.
	Approval string
	// Stage and Reason say why it was denied, failed or ended, or is degraded; Message is
	// the redacted text of a failure.
	Stage, Reason, Message string
	// Flags are what is the matter with the definitions of the last discovery, by the
	// raw names of tools.
	Flags map[string][]string
	// ItemFlags are those of what the server has beside tools.
	ItemFlags []ItemFlag
	// Orphan is the sequence at which its session ended; 0 while that lives.
	Orphan uint64
}

// ItemFlag says what is the matter with something that is no tool.
type ItemFlag struct {
	List, Name string
	Reasons    []string
}

// Tools is how many tools can be listed now.
func (c Connection) Tools() int {
	if c.State.Phase != connection.Open {
		return 0
	}
	return len(c.State.Current)
}

// Over reports whether it has ended and its session too: it is remembered only
// in case that the session begins again. A private one is never opened again once
// its attachment is gone.
func (c Connection) Over() bool {
	if c.Orphan == 0 && c.State.Attachment == "" {
		return false
	}
	switch c.State.Phase {
	case connection.Requested, connection.Waiting, connection.Approved, connection.Opening, connection.Open:
		return false
	}
	return true
}

// maxOver is how many connections that are over are remembered.
const maxOver = 10_000

// Projection is the connections as the projections of one set share them, with
// the lock that they share: the set holds it over each commit, whoever asks for
// reading, so that an answer made of several folds is of one commit. The zero
// value is ready to use.
type Projection struct {
	sync.RWMutex
	Connections
}

// Name is "connections".
func (p *Projection) Name() string { return "connections" }

// State is all that is held, for the set.
func (p *Projection) State() any { return &p.Connections }

// Apply folds one commit, before the projections that look at what it leads to.
// The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	for r := range c.Recorded() {
		p.fold(r)
	}
}

// Connections are the connections of all sessions. The zero value is ready to use.
//
// Memory is bounded by the sessions that live: of the connections that are over
// the newest 10,000 are kept. A session of an MCP client that begins again has
// the id it had, and what was decided about its connections still stands.
type Connections struct {
	All map[Key]Connection
	// BySession holds the connections of each session, in the order of their first
	// requests.
	BySession map[Key][]Key
	// Ended are the connections that are over, oldest first; some may have begun
	// again since.
	Ended []Ended
	// Runtimes maps each home to the newest runtime that had the store in itself.
	Runtimes map[Key]string
}

// Ended is one connection that was over at a sequence.
type Ended struct {
	Connection Key
	Orphan     uint64
}

func (cs *Connections) fold(r events.Recorded) {
	switch r.Aggregate.Kind {
	case events.KindConnection:
		cs.evolve(r)
	case events.KindSession:
		switch r.Event.(type) {
		case events.SessionStarted:
			cs.orphan(Of(r.Commit), 0)
		case events.SessionEnded:
			cs.orphan(Of(r.Commit), r.Seq)
		}
	case events.KindRuntime:
		cs.runtime(r)
	}
}

func (cs *Connections) evolve(r events.Recorded) {
	key := Of(r.Commit)
	c, known := cs.All[key]
	before := c.State.Phase
	switch e := r.Event.(type) {
	case events.ConnectRequested:
		c.Session, c.Principal, c.Server, c.Core = e.Session, r.Principal, e.Server, r.Scope.Core
		c.Approval, c.Stage, c.Reason, c.Message, c.Orphan = "", "", "", "", 0
	case events.ServerDenied:
		if !known {
			// The gate's first step denied: there is no request to take these from.
			c.Session, c.Principal, c.Core = r.Scope.Session, r.Principal, r.Scope.Core
		}
		c.Server, c.Approval, c.Stage, c.Reason, c.Message = e.Server, "", e.Stage, e.Reason, ""
	default:
		if !known {
			return // it has been forgotten
		}
	}
	switch e := r.Event.(type) {
	case events.ApprovalRequested:
		if e.Action == connection.ActionConnect {
			c.Approval = e.Approval
		}
	case events.ApprovalDecided:
		if c.Approval == e.Approval {
			c.Approval = ""
		}
	case events.ApprovalExpired:
		if c.Approval == e.Approval {
			c.Approval = ""
		}
	case events.ToolsDiscovered:
		c.Flags, c.ItemFlags, c.Stage, c.Reason, c.Message = nil, nil, "", "", ""
		for _, f := range e.ItemFlags {
			c.ItemFlags = append(c.ItemFlags, ItemFlag{f.List, f.Name.String(), f.Reasons})
		}
		for _, f := range e.Flags {
			if c.Flags == nil {
				c.Flags = make(map[string][]string)
			}
			c.Flags[f.Tool] = f.Reasons
		}
	case events.DiscoveryFailed:
		c.Stage, c.Reason, c.Message = connection.StageList, e.Kind, e.Message.String()
	case events.ServerFailed:
		c.Stage, c.Reason, c.Message = e.Stage, e.Kind, e.Message.String()
	case events.ConnectionClosed:
		c.Stage, c.Reason, c.Message = "", e.Reason, e.Exit
	case events.ConnectionLost:
		c.lost()
	}
	c.State = connection.Evolve(c.State, r)
	if c.State.Phase != before || !known {
		c.Since = r.Time
	}
	cs.put(key, c)
}

func (c *Connection) lost() { c.Stage, c.Reason, c.Message = "", "runtime_lost", "" }

func (cs *Connections) put(key Key, c Connection) {
	if cs.All == nil {
		cs.All, cs.BySession = make(map[Key]Connection), make(map[Key][]Key)
	}
	old, known := cs.All[key]
	if !known || old.Session != c.Session {
		cs.unlink(key, old.Session)
		session := Key{key.Workspace, c.Session}
		cs.BySession[session] = append(cs.BySession[session], key)
	}
	cs.All[key] = c
	if c.Over() && !old.Over() {
		cs.Ended = append(cs.Ended, Ended{key, c.Orphan})
	}
	if len(cs.Ended) > maxOver {
		oldest := cs.Ended[0]
		cs.Ended = cs.Ended[1:]
		if c := cs.All[oldest.Connection]; c.Over() && c.Orphan == oldest.Orphan {
			delete(cs.All, oldest.Connection)
			cs.unlink(oldest.Connection, c.Session)
		}
	}
}

// unlink takes a connection from those of a session.
func (cs *Connections) unlink(key Key, session string) {
	of := Key{key.Workspace, session}
	left := slices.DeleteFunc(cs.BySession[of], func(k Key) bool { return k == key })
	if len(left) == 0 {
		delete(cs.BySession, of)
	} else {
		cs.BySession[of] = left
	}
}

func (cs *Connections) orphan(session Key, at uint64) {
	for _, key := range slices.Clone(cs.BySession[session]) {
		c := cs.All[key]
		c.Orphan = at
		cs.put(key, c)
	}
}

// runtime takes what a runtime owned for lost as soon as the runtime is known to
// be gone, and not only when the reaper has said so of each connection: a
// connection recorded as open before a crash is not trusted (R172).
func (cs *Connections) runtime(r events.Recorded) {
	home, gone := Of(r.Commit), ""
	switch e := r.Event.(type) {
	case events.RuntimeBooted:
		// Others serve the home beside it, but no two have the store in them.
		if e.Embedded {
			if cs.Runtimes == nil {
				cs.Runtimes = make(map[Key]string)
			}
			gone, cs.Runtimes[home] = cs.Runtimes[home], e.Runtime
		}
	case events.RuntimeClosed:
		gone = e.Runtime
	}
	if gone == "" {
		return
	}
	var owned []Key
	for key, c := range cs.All {
		if p := c.State.Phase; (p == connection.Open || p == connection.Opening) && c.State.Runtime == gone {
			owned = append(owned, key)
		}
	}
	// What ends together is put down in an order that does not vary.
	slices.SortFunc(owned, Compare)
	for _, key := range owned {
		c := cs.All[key]
		c.State.Phase, c.Since = connection.Lost, r.Time
		c.lost()
		cs.put(key, c)
	}
}
