// Package servers says which servers the cores declare and people installed, and how
// each of them is: the rows of mcp/list.
//
// An installed server has one connection, and a state that its lifecycle has recorded:
// one of the ten of R160.
//
// A declared one has a state of its own for each session that connected to it. The
// state of the server as a whole is the best of them, in the same words as far as they
// apply:
//
//	disabled          the declaration says so, or is not used (R10)
//	ready             one connection is open
//	degraded          one is open, and what it has could not be listed again
//	starting          one is on its way: requested, approved or opening
//	approval_pending  one waits for a person
//	auth_required     the last attempt failed for want of authentication
//	failed            the last attempt failed
//	denied            the gate or a person said no
//	not_started       nobody has asked, or what was open has ended
//
// What an earlier fingerprint of the declaration came to does not count.
//
// It also says which discoveries changed the catalog of a server (R175), for the
// notifications, which are read from any place of the log.
//
// Memory is bounded by the declarations of the live revisions, by what is installed and
// by the sessions that live, and grows by 8 bytes with each change of a catalog.
package servers

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

// The states of a server.
const (
	Disabled        = "disabled"
	NotStarted      = "not_started"
	Starting        = "starting"
	Ready           = "ready"
	Degraded        = "degraded"
	Failed          = "failed"
	AuthRequired    = "auth_required"
	ApprovalPending = "approval_pending"
	Denied          = "denied"
)

// Server is one declared or installed server.
type Server struct {
	Workspace, Core, Name, Path                 string
	Enabled                                     bool
	Transport, Risk, ApprovalPolicy, Capability string
	Fingerprint                                 string
	ConnectTimeout, CallTimeout                 time.Duration
	Parallel                                    bool
	// Ignored says why a valid declaration is not used.
	Ignored string
	// Install is nil where the server is declared; Core and Path are empty where it is
	// installed.
	Install *Install
	// State is that of the server as a whole.
	State string
	// Tools is the most that one of its open connections lists.
	Tools       int
	Connections []Connection
}

// Connection is one session's connection to a server.
type Connection struct {
	Workspace, Connection, Principal, Session, Server, Fingerprint string
	// State is requested, waiting, approved, opening, ready, degraded, denied, failed,
	// closed or lost.
	State string
	// Since is the time of the commit that led to the state.
	Since time.Time
	// Stage and Reason say why it was denied or failed, Reason also why it ended;
	// Message is redacted.
	Stage, Reason, Message string
	// RetryAfter is when a failed one is tried again at the earliest.
	RetryAfter time.Time
	Runtime    string
	Generation uint32
	Tools      int
	// Blocked counts the tools that lack an approval.
	Blocked int
	// Approval is the one that it waits for.
	Approval string
	// Flags are what is the matter with what an open one lists beside tools.
	Flags []connections.ItemFlag
}

// Core is one core.
type Core struct {
	Workspace, ID, Revision string
	Declarations            int
	// Failed is the revision that could not be loaded after the live one, Code why.
	Failed, Code string
}

// coreState is a core with the declarations of its live revision, in the order
// of their paths.
type coreState struct {
	Core
	Declared []Server
}

type state struct {
	Cores map[connections.Key]coreState
	// Installed holds what is installed, and what was and has not stopped yet.
	Installed map[connections.Key]installation
	// Catalogs are the versions that the servers listed last, Changes the sequences
	// at which one became another, in the order of the log.
	Catalogs map[connections.Key]string
	Changes  []uint64
}

// Projection is the servers. Its methods may be called from any goroutine.
type Projection struct {
	shared *connections.Projection
	state  state
}

// New makes an empty projection beside the connections to the servers.
func New(shared *connections.Projection) *Projection {
	return &Projection{shared: shared, state: state{
		Cores: make(map[connections.Key]coreState), Installed: make(map[connections.Key]installation),
		Catalogs: make(map[connections.Key]string),
	}}
}

// Name is "servers".
func (p *Projection) Name() string { return "servers" }

// State is all that is held, for its set.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit. The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	// The declarations of a revision come in the commit that makes it live, so
	// those of one that failed are never seen.
	var declared []Server
	for r := range c.Recorded() {
		key := connections.Of(c)
		if c.Aggregate.Kind == events.KindServer {
			p.state.evolve(key, r)
			continue
		}
		switch e := r.Event.(type) {
		case events.DeclarationLoaded:
			declared = append(declared, Server{
				Workspace: r.Workspace, Core: key.ID, Name: e.Server, Path: e.Path, Enabled: e.Enabled,
				Transport: e.Transport, Risk: e.Risk, ApprovalPolicy: e.ApprovalPolicy, Capability: e.Capability,
				Fingerprint: e.Fingerprint, Parallel: e.Parallel,
				ConnectTimeout: time.Duration(e.ConnectTimeoutMs) * time.Millisecond,
				CallTimeout:    time.Duration(e.CallTimeoutMs) * time.Millisecond,
			})
		case events.DeclarationIgnored:
			declared = ignored(declared, r, e)
		case events.CoreRevisionLoaded:
			p.state.Cores[key] = coreState{
				Core: Core{
					Workspace: r.Workspace, ID: key.ID, Revision: e.Revision, Declarations: int(e.Declarations),
				},
				Declared: declared,
			}
			declared = nil
		case events.ToolsDiscovered:
			if connection.IsPrivate(key.ID) { // one client's view is not what the server has
				continue
			}
			server := connections.Key{Workspace: r.Workspace, ID: r.Scope.Server}
			if p.state.Catalogs[server] != e.CatalogVersion {
				p.state.Catalogs[server] = e.CatalogVersion
				p.state.Changes = append(p.state.Changes, r.Seq)
			}
		case events.CoreLoadFailed:
			core := p.state.Cores[key]
			core.Workspace, core.ID, core.Failed, core.Code = r.Workspace, key.ID, e.Revision, e.Code
			p.state.Cores[key] = core
		}
	}
}

// ignored marks the declaration that is not used; it may be the only word on it.
func ignored(declared []Server, r events.Recorded, e events.DeclarationIgnored) []Server {
	if e.Server == "" {
		return declared // the file declares no server
	}
	i := slices.IndexFunc(declared, func(s Server) bool { return s.Path == e.Path && s.Name == e.Server })
	if i < 0 {
		i = len(declared)
		declared = append(declared, Server{Workspace: r.Workspace, Core: r.Aggregate.Key, Name: e.Server, Path: e.Path})
	}
	declared[i].Enabled, declared[i].Ignored = false, e.Reason
	return declared
}

// List are the declared servers of a workspace, of all when it is empty, by core
// in the order of their paths, and then the installed ones by name. A principal sees its
// own connections; an empty one stands for all.
func (p *Projection) List(workspace, principal string) []Server {
	p.shared.RLock()
	defer p.shared.RUnlock()
	all := p.connections(workspace, principal)
	out := []Server{}
	for _, key := range slices.SortedFunc(maps.Keys(p.state.Cores), connections.Compare) {
		if workspace != "" && workspace != key.Workspace {
			continue
		}
		for _, s := range p.state.Cores[key].Declared {
			s.Connections = []Connection{}
			for _, c := range all {
				if c.Workspace != s.Workspace || c.Server != s.Name || c.core != "" && c.core != s.Core {
					continue
				}
				s.Connections = append(s.Connections, c.Connection)
				s.Tools = max(s.Tools, c.Tools)
			}
			s.State = overall(s)
			out = append(out, s)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.state.Installed), connections.Compare) {
		if i := p.state.Installed[key]; i.State.Installed && (workspace == "" || workspace == key.Workspace) {
			out = append(out, p.installed(key.Workspace, i, all))
		}
	}
	return out
}

// Connections are the connections of a workspace, of all when it is empty, those
// to servers among them that are declared no more. What has ended with its
// session is not among them.
func (p *Projection) Connections(workspace string) []Connection {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := []Connection{}
	for _, c := range p.connections(workspace, "") {
		out = append(out, c.Connection)
	}
	return out
}

// CatalogChanged reports whether the commit of a sequence changed the catalog of a
// server: its first discovery did, and one that lists what the discovery before
// it did not, whatever session each was made for (R175).
func (p *Projection) CatalogChanged(seq uint64) bool {
	p.shared.RLock()
	defer p.shared.RUnlock()
	_, found := slices.BinarySearch(p.state.Changes, seq)
	return found
}

// Cores are the cores of a workspace, of all when it is empty.
func (p *Projection) Cores(workspace string) []Core {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := []Core{}
	for _, key := range slices.SortedFunc(maps.Keys(p.state.Cores), connections.Compare) {
		if workspace == "" || workspace == key.Workspace {
			out = append(out, p.state.Cores[key].Core)
		}
	}
	return out
}

type listed struct {
	Connection
	core string
}

func (p *Projection) connections(workspace, principal string) []listed {
	var out []listed
	for key, c := range p.shared.All {
		if c.Over() || workspace != "" && workspace != key.Workspace || principal != "" && principal != c.Principal {
			continue
		}
		row := Connection{
			Workspace: key.Workspace, Connection: key.ID, Principal: c.Principal, Session: c.Session, Server: c.Server,
			Fingerprint: c.State.Fingerprint, State: string(c.State.Phase), Since: c.Since, Stage: c.Stage, Reason: c.Reason,
			Message: c.Message, Runtime: c.State.Runtime, Generation: c.State.Generation, Tools: c.Tools(),
			Approval: c.Approval,
		}
		switch c.State.Phase {
		case connection.Open:
			row.State, row.Blocked, row.Flags = Ready, len(c.State.Blocked), c.ItemFlags
			if c.State.Degraded != "" {
				row.State = Degraded
			}
		case connection.Failed:
			row.RetryAfter = c.State.RetryAfter
		}
		out = append(out, listed{row, c.Core})
	}
	slices.SortFunc(out, func(a, b listed) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Server, b.Server),
			cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Connection.Connection, b.Connection.Connection))
	})
	return out
}

// overall is the state of the server as a whole.
func overall(s Server) string {
	if !s.Enabled {
		return Disabled
	}
	// From the best to the least.
	order := []string{Ready, Degraded, Starting, ApprovalPending, AuthRequired, Failed, Denied, NotStarted}
	best := len(order) - 1
	for _, c := range s.Connections {
		best = min(best, slices.Index(order, c.counts(s.Fingerprint)))
	}
	return order[best]
}

// counts is what a connection makes of its server with the given fingerprint.
func (c Connection) counts(fingerprint string) string {
	switch connection.Phase(c.State) {
	case Ready, Degraded:
		return c.State
	case connection.Requested, connection.Approved, connection.Opening:
		return Starting
	case connection.Waiting:
		return ApprovalPending
	}
	if c.Fingerprint != fingerprint {
		return NotStarted
	}
	switch connection.Phase(c.State) {
	case connection.Failed:
		if c.Reason == string(fault.AuthRequired) {
			return AuthRequired
		}
		return Failed
	case connection.Denied:
		return Denied
	}
	return NotStarted
}
