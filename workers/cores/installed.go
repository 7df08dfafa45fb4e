package cores

import (
	"cmp"
	"slices"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/server"
)

// Connection is the id of the connection to the server that a session uses: its own to
// a declared one, and to an installed one that which all share (C1).
func (s Server) Connection(session string) string {
	if s.Installed {
		session = ""
	}
	return connection.ID(session, s.ServerID)
}

// Alone is the id of the connection to the server that an attachment of a session has;
// without one it is that of Connection.
func (s Server) Alone(session, attachment string) string {
	if attachment == "" {
		return s.Connection(session)
	}
	return connection.PrivateID(session, s.ServerID, attachment)
}

// Reads are what a request of a principal for the connection rests on, for [bus.With]; of
// an installed server it is who installed it whose authority counts.
func (s Server) Reads(workspace, principal string) []events.AggregateID {
	if !s.Installed {
		return bus.AuthorityReads(workspace, principal)
	}
	key := server.Key(s.Installation.ScopeKind, s.Installation.ScopeKey, s.ServerID)
	return append(bus.AuthorityReads(workspace, s.Installation.By), events.AggregateID{Kind: events.KindServer, Key: key})
}

// installed are the installations of the home for the workspace, by name, but for those
// whose name a core has taken: of two that came at the same time the log may have both.
func (c *Cores) installed(declared []Server) []Server {
	var out []Server
	for at, s := range c.model.Servers.All() {
		if at.Workspace != c.workspace || slices.ContainsFunc(declared, func(d Server) bool { return d.ServerID == s.Installation.Name }) {
			continue
		}
		if i, ok := c.ours(s); ok {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b Server) int { return cmp.Compare(a.ServerID, b.ServerID) })
	return out
}

// ours is what is installed, if it is, by this home and for the workspace.
func (c *Cores) ours(s server.State) (Server, bool) {
	if !s.Installed || s.Installation.Home != c.home || s.Installation.ScopeKind != server.ScopeWorkspace {
		return Server{}, false
	}
	enabled, implicit := c.model.Policies.Get(c.workspace, c.workspace).Allows(s.Installation.Name)
	d := s.Declaration()
	d.Enabled = d.Enabled && enabled
	return Server{Declaration: d, Installation: s.Installation, Implicit: implicit && s.Implicit}, true
}

// Declared says which core declares a server, and where.
func (c *Cores) Declared(id string) (where string, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, spec := range c.specs {
		for _, s := range c.loads[spec.ID] {
			if s.ServerID == id {
				return "core " + spec.ID + " in " + s.Path, true
			}
		}
	}
	return "", false
}
