package servers

import (
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

// Install is what there is to say of an installed server beside what a declared one has.
type Install struct {
	// Installation has the references to its secrets, and no value of them.
	server.Installation
	// Implicit says that a turn has its tools without asking for them, as far as the
	// policy of the gateway allows it (R177, R178).
	Implicit bool
	// Since is the time of the commit that led to the state, Reason and Message say why
	// it is in it; Message is redacted.
	Since           time.Time
	Reason, Message string
	// RetryAttempt is how often it has failed in a row, NextRetryAt when it is tried again.
	RetryAttempt uint32
	NextRetryAt  time.Time
	Generation   uint32
	// Catalog is the version of what it listed last.
	Catalog string
}

// installation is a server that is installed, or was. It is folded by the rules of its
// decider, so that no event is read otherwise than there.
type installation struct {
	State   server.State
	Message string
}

func (s *state) evolve(key connections.Key, r events.Recorded) {
	i, known := s.Installed[key]
	switch e := r.Event.(type) {
	case events.ServerInstalled:
		known = true
	case events.ServerStatusChanged:
		i.Message = e.Message.String()
	}
	if !known {
		return // a keystore, or what has stopped
	}
	i.State = server.Evolve(i.State, r)
	switch i.State.Status {
	case server.Stopped, server.Disabled, server.NotStarted:
		if !i.State.Installed {
			delete(s.Installed, key)
			return
		}
	}
	s.Installed[key] = i
}

// installed is the row of an installation. Its one connection is that of no session;
// beside it there are those that single clients have.
func (p *Projection) installed(workspace string, i installation, all []listed) Server {
	s := i.State
	row := Server{
		Workspace: workspace, Name: s.Installation.Name, Enabled: s.Enabled, Transport: s.Installation.Transport,
		Risk: string(authority.Medium), ApprovalPolicy: string(authority.Prompt), Fingerprint: s.Installation.Fingerprint,
		ConnectTimeout: s.Installation.StartupTimeout, CallTimeout: s.Installation.ToolTimeout, Parallel: s.Installation.Parallel,
		State: string(s.Status), Connections: []Connection{},
		Install: &Install{
			Installation: s.Installation, Implicit: s.Implicit, Since: s.Since, Reason: s.Reason, Message: i.Message,
			RetryAttempt: s.RetryAttempt, NextRetryAt: s.NextRetryAt, Generation: s.Generation, Catalog: s.Catalog,
		},
	}
	if s.Installation.ScopeKind != server.ScopeWorkspace {
		return row // nothing connects to it (R36)
	}
	row.Tools = p.shared.All[connections.Key{Workspace: workspace, ID: connection.ID("", row.Name)}].Tools()
	for _, c := range all {
		if c.Workspace == workspace && c.Server == row.Name && c.core == "" {
			row.Connections = append(row.Connections, c.Connection)
		}
	}
	return row
}
