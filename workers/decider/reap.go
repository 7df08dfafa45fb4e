package decider

import (
	"context"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
)

// Reaper closes what a runtime left open: its connections are lost, its started
// calls indeterminate, its queued ones cancelled (R172). Nothing is done again.
type Reaper struct {
	Bus   *bus.Bus
	Model *bus.Model
	// Workspace is that of the home.
	Workspace string
}

// Reap closes what a runtime that is gone left open; it is a [bus.Reap]. The
// connections come first, as no call starts on one that is lost (decision 20): what
// the log has after them is all that was started. Several processes may reap the
// same runtime at once, and again.
func (r Reaper) Reap(ctx context.Context, gone string) error {
	meta := func(principal string, s events.Scope) bus.Meta {
		return bus.Meta{Correlation: gone, Actor: "runtime", Principal: principal, Scope: s}
	}
	for at, s := range r.Model.Connections.All() {
		if at.Workspace != r.Workspace || s.Runtime != gone {
			continue
		}
		scope := events.Scope{Session: s.Session, Connection: at.Key, Server: s.Server}
		if _, err := r.Model.Connections.Dispatch(ctx, at.Workspace, at.Key, meta(s.Principal, scope), connection.Reap{Runtime: gone}); err != nil {
			return err
		}
	}
	if err := r.Bus.Sync(ctx); err != nil {
		return err
	}
	for at, s := range r.Model.Calls.All() {
		if at.Workspace != r.Workspace || s.Runtime != gone {
			continue
		}
		principal := r.Model.Sessions.Get(at.Workspace, s.Session).Principal
		scope := events.Scope{Session: s.Session, Connection: s.Connection, Call: at.Key, Server: s.Server}
		if _, err := r.Model.Calls.Dispatch(ctx, at.Workspace, at.Key, meta(principal, scope), call.Reap{Runtime: gone}); err != nil {
			return err
		}
	}
	return nil
}
