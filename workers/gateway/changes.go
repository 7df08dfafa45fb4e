package gateway

import (
	"slices"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
)

// Concerns reports whether a commit can concern a client, for Options.Follow: of
// calls only the answer of a person does.
func Concerns(c *events.Commit) bool {
	return c.Aggregate.Kind != events.KindCall || slices.ContainsFunc(c.Events, func(e events.Event) bool {
		switch e := e.(type) {
		case events.ApprovalDecided:
			return !e.Automatic // nobody waited for it
		case events.ApprovalExpired:
			return true
		}
		return false
	})
}

// committed tells the attachments that a commit concerns. What a list itself
// brings about, catalog_published or connect_requested, is not among it: a
// client that lists on every notice would never stop.
func (g *Gateway) committed(c *events.Commit) {
	for r := range c.Recorded() {
		g.moved(c, r.Event)
		switch e := r.Event.(type) {
		case events.ToolsDiscovered:
			g.changed(c, kindsOf(e.Changed), func(a *attachment) bool { return a.sees(c) })
		case events.ConnectionClosed, events.ConnectionLost:
			g.changed(c, allKinds, func(a *attachment) bool { return a.sees(c) })
		case events.CapabilityGranted, events.CapabilityRevoked:
			g.changed(c, allKinds, func(a *attachment) bool { return a.at.who.Principal == c.Aggregate.Key })
		case events.PolicySet, events.CoreRevisionLoaded, events.ServerPolicyChanged, events.ServerUninstalled:
			g.changed(c, allKinds, func(*attachment) bool { return true })
		case events.ApprovalDecided:
			g.each(func(a *attachment) { a.answered(e.Approval) })
			if c.Aggregate.Kind == events.KindConnection { // of a tool, perhaps
				g.changed(c, kindTools, func(a *attachment) bool {
					return a.session == c.Scope.Session || c.Scope.Session == "" && a.sees(c)
				})
			}
		case events.ApprovalExpired:
			g.each(func(a *attachment) { a.answered(e.Approval) })
		case events.HostRevoked:
			g.end(func(a *attachment) bool { return a.at.who.Principal == c.Aggregate.Key })
		}
	}
}

// kindsOf are the kinds that a discovery says have changed. One of an older program
// says nothing: it knew tools only.
func kindsOf(changed []string) (k kinds) {
	if len(changed) == 0 {
		return kindTools
	}
	for _, list := range changed {
		switch list {
		case connection.ListTools:
			k |= kindTools
		case connection.ListResources:
			k |= kindResources
		case connection.ListPrompts:
			k |= kindPrompts
		}
	}
	return k
}

// changed signals the attachments of the commit's workspace that match and have
// listed; the others have nothing that could be out of date.
func (g *Gateway) changed(c *events.Commit, k kinds, match func(*attachment) bool) {
	g.each(func(a *attachment) {
		if a.at.who.Workspace != c.Workspace {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.session != "" && match(a) {
			a.signalLocked(k & a.seen)
		}
	})
}

// each calls f for every attachment.
func (g *Gateway) each(f func(*attachment)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.attachments {
		f(a)
	}
}
