package gateway

import (
	"github.com/gatebus/gatebus/events"
)

// committed tells the attachments that a commit concerns. What a list itself
// brings about, catalog_published or connect_requested, is not among it: a
// client that lists on every notice would never stop.
func (g *Gateway) committed(c *events.Commit) {
	for r := range c.Recorded() {
		switch e := r.Event.(type) {
		case events.ToolsDiscovered, events.ConnectionClosed, events.ConnectionLost:
			g.changed(c, func(a *attachment) bool { return a.session == c.Scope.Session })
		case events.CapabilityGranted, events.CapabilityRevoked:
			g.changed(c, func(a *attachment) bool { return a.at.who.Principal == c.Aggregate.Key })
		case events.PolicySet, events.CoreRevisionLoaded:
			g.changed(c, func(*attachment) bool { return true })
		case events.ApprovalDecided:
			g.each(func(a *attachment) { a.answered(e.Approval) })
			if c.Aggregate.Kind == events.KindConnection { // of a tool, perhaps
				g.changed(c, func(a *attachment) bool { return a.session == c.Scope.Session })
			}
		case events.ApprovalExpired:
			g.each(func(a *attachment) { a.answered(e.Approval) })
		case events.HostRevoked:
			g.end(func(a *attachment) bool { return a.at.who.Principal == c.Aggregate.Key })
		}
	}
}

// changed signals the attachments of the commit's workspace that match and have
// listed; the others have nothing that could be out of date.
func (g *Gateway) changed(c *events.Commit, match func(*attachment) bool) {
	g.each(func(a *attachment) {
		if a.at.who.Workspace != c.Workspace {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.session != "" && match(a) {
			a.signalLocked()
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
