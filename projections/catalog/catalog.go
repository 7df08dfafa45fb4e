// Package catalog says which tools there are: those that each connection has
// discovered, and the names under which each session sees them (R6, R46).
//
// The definitions themselves lie in the blob that a discovery names. Memory is
// bounded by the sessions that live.
package catalog

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

// Tool is one tool of an open connection.
type Tool struct {
	Workspace, Principal, Session, Connection, Server string
	// Name is what the session sees it as; empty where it does not.
	Name string
	// RawName is what the server calls it.
	RawName string
	// Digest is the SHA-256 of its canonical definition, hex.
	Digest string
	// Blocked says that it lacks an approval (decision 7).
	Blocked bool
	// Flags are what is the matter with its definition.
	Flags []string
	// CatalogVersion is the version of the discovery, Blob holds its definitions.
	CatalogVersion, Blob string
	// Sequence is that of the discovery.
	Sequence uint32
}

// Published is what a session sees.
type Published struct {
	Workspace, Session string
	// Catalog is its id.
	Catalog     string
	Sequence    uint64
	Time        time.Time
	Tools       []PublishedTool // by visible name
	Counts      []Count
	Diagnostics []Diagnostic
}

// PublishedTool is one visible tool; RawName is what the server calls it.
type PublishedTool struct{ Name, Server, RawName string }

// Count says what became of the tools of one server (R41).
type Count struct {
	Server                             string
	Listed, Filtered, Blocked, Visible uint32
}

// Diagnostic says why a server or tool is missing; Message is redacted.
type Diagnostic struct{ Server, Code, Message string }

// Filter selects tools; empty fields match all.
type Filter struct{ Workspace, Principal, Session, Server string }

func (f Filter) matches(workspace string, c connections.Connection) bool {
	return (f.Workspace == "" || f.Workspace == workspace) && (f.Principal == "" || f.Principal == c.Principal) &&
		(f.Session == "" || f.Session == c.Session) && (f.Server == "" || f.Server == c.Server)
}

type state struct {
	Published map[connections.Key]Published
}

// Projection is the catalog. Its methods may be called from any goroutine.
type Projection struct {
	shared *connections.Projection
	state  state
}

// New makes an empty catalog beside the connections that it lists the tools of.
func New(shared *connections.Projection) *Projection {
	return &Projection{shared: shared, state: state{Published: make(map[connections.Key]Published)}}
}

// Name is "catalog".
func (p *Projection) Name() string { return "catalog" }

// State is all that is held, for its set.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit. The set holds the lock.
func (p *Projection) Apply(c *events.Commit) {
	for r := range c.Recorded() {
		key := connections.Of(c)
		switch e := r.Event.(type) {
		case events.CatalogPublished:
			p.state.Published[key] = published(r, e)
		case events.SessionStarted, events.SessionEnded:
			delete(p.state.Published, key)
		}
	}
}

func published(r events.Recorded, e events.CatalogPublished) Published {
	out := Published{
		Workspace: r.Workspace, Session: r.Aggregate.Key, Catalog: e.Catalog, Sequence: r.Seq, Time: r.Time,
		Tools: make([]PublishedTool, len(e.Tools)), Counts: make([]Count, len(e.Counts)),
		Diagnostics: make([]Diagnostic, len(e.Diagnostics)),
	}
	for i, t := range e.Tools {
		out.Tools[i] = PublishedTool{Name: t.Name, Server: t.Server, RawName: t.Tool}
	}
	for i, c := range e.Counts {
		out.Counts[i] = Count(c)
	}
	for i, d := range e.Diagnostics {
		out.Diagnostics[i] = Diagnostic{Server: d.Server, Code: d.Code, Message: d.Message.String()}
	}
	return out
}

// Tools are the tools of the open connections that match, by principal, session,
// server and raw name.
func (p *Projection) Tools(f Filter) []Tool {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out := []Tool{}
	for key, c := range p.shared.All {
		if c.State.Phase != connection.Open || !f.matches(key.Workspace, c) {
			continue
		}
		names := make(map[string]string)
		for _, t := range p.state.Published[connections.Key{Workspace: key.Workspace, ID: c.Session}].Tools {
			if t.Server == c.Server {
				names[t.RawName] = t.Name
			}
		}
		for _, raw := range slices.Sorted(maps.Keys(c.State.Current)) {
			out = append(out, Tool{
				Workspace: key.Workspace, Principal: c.Principal, Session: c.Session, Connection: key.ID, Server: c.Server,
				Name: names[raw], RawName: raw, Digest: c.State.Current[raw], Blocked: c.State.Blocked[raw], Flags: slices.Clone(c.Flags[raw]),
				CatalogVersion: c.State.Catalog, Blob: c.State.Blob, Sequence: c.State.CatalogSequence,
			})
		}
	}
	slices.SortFunc(out, func(a, b Tool) int {
		return cmp.Or(
			cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Session, b.Session),
			cmp.Compare(a.Server, b.Server), cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.RawName, b.RawName))
	})
	return out
}

// Published is what an active session sees.
func (p *Projection) Published(workspace, session string) (Published, bool) {
	p.shared.RLock()
	defer p.shared.RUnlock()
	out, ok := p.state.Published[connections.Key{Workspace: workspace, ID: session}]
	out.Tools, out.Counts, out.Diagnostics = slices.Clone(out.Tools), slices.Clone(out.Counts), slices.Clone(out.Diagnostics)
	return out, ok
}
