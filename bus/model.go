package bus

import (
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/runtime"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/turn"
)

// Model is the log folded in memory: the state of every aggregate, by kind. It
// is what decisions are made on.
type Model struct {
	// Hosts and Grants are keyed by principal, Policies by workspace, Cores by
	// core, Servers by [server.Key] or [server.HomeKey], Runtimes by home; the others
	// by id.
	Hosts       *Table[host.State, host.Command]
	Grants      *Table[grant.State, grant.Command]
	Policies    *Table[policy.State, policy.Command]
	Cores       *Table[core.State, core.Command]
	Servers     *Table[server.State, server.Command]
	Sessions    *Table[session.State, session.Command]
	Connections *Table[connection.State, connection.Command]
	Turns       *Table[turn.State, turn.Command]
	Calls       *Table[call.State, call.Command]
	Runtimes    *Table[runtime.State, runtime.Command]
}

var hostRules = Decider[host.State, host.Command]{Kind: events.KindHost, Decide: host.Decide, Evolve: host.Evolve}

// NewModel registers every decider; the one of hosts is there with the bus, which
// derives its accounts from them. Call it before [Bus.Load].
func NewModel(b *Bus) *Model {
	return &Model{
		Hosts:       b.hosts,
		Grants:      Register(b, Decider[grant.State, grant.Command]{Kind: events.KindGrant, Decide: grant.Decide, Evolve: grant.Evolve}),
		Policies:    Register(b, Decider[policy.State, policy.Command]{Kind: events.KindPolicy, Decide: policy.Decide, Evolve: policy.Evolve}),
		Cores:       Register(b, Decider[core.State, core.Command]{Kind: events.KindCore, Decide: core.Decide, Evolve: core.Evolve}),
		Servers:     Register(b, Decider[server.State, server.Command]{Kind: events.KindServer, Decide: server.Decide, Evolve: server.Evolve}),
		Sessions:    Register(b, Decider[session.State, session.Command]{Kind: events.KindSession, Decide: session.Decide, Evolve: session.Evolve}),
		Connections: Register(b, Decider[connection.State, connection.Command]{Kind: events.KindConnection, Decide: connection.Decide, Evolve: connection.Evolve, Ended: connection.Over}),
		Turns:       Register(b, Decider[turn.State, turn.Command]{Kind: events.KindTurn, Decide: turn.Decide, Evolve: turn.Evolve, Ended: turn.Over}),
		Calls:       Register(b, Decider[call.State, call.Command]{Kind: events.KindCall, Decide: call.Decide, Evolve: call.Evolve, Ended: call.Over}),
		Runtimes:    Register(b, Decider[runtime.State, runtime.Command]{Kind: events.KindRuntime, Decide: runtime.Decide, Evolve: runtime.Evolve}),
	}
}

// Authority is what a principal may do as of now: what it was granted, and
// nothing once it was revoked as a host.
func (m *Model) Authority(workspace, principal string) authority.Snapshot {
	s := m.Grants.Get(workspace, principal).Snapshot(principal)
	if m.Hosts.Get(workspace, principal).Revoked {
		s.Capabilities = nil
	}
	return s
}

// AuthorityReads are the aggregates that a decision about what a principal may do
// rests on, for [With].
func AuthorityReads(workspace, principal string) []events.AggregateID {
	return []events.AggregateID{
		{Kind: events.KindHost, Key: principal},
		{Kind: events.KindGrant, Key: principal},
		{Kind: events.KindPolicy, Key: workspace},
	}
}
