// Package decider answers the commands and queries of the bus: it reads the facts
// that a decision needs, dispatches the command to its aggregate, and answers.
// Queries are answered from the projections. Its sweeper turns due times into
// commands (decision 10); nothing else here acts by itself.
package decider

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/workers/cores"
)

// sweepEvery is how often due times are looked at; what is late by it has been
// decided by the command's own time already (decision 10).
const sweepEvery = time.Second

// Config is what a Decider needs. All fields are required but Anonymous.
type Config struct {
	Bus         *bus.Bus
	Model       *bus.Model
	Projections *projections.Set
	Audit       *audit.Projection
	Cores       *cores.Cores
	Workspace   string
	// Anonymous is the principal of requests without a token, empty for none.
	Anonymous string
	// Home is the id of the home in the log, Runtime that of this process, and Info what
	// bus/info says of it.
	Home, Runtime string
	Info          func() client.BusInfo
	// Arguments is what an operator may see of the arguments of a call that waits
	// for an approval. Tidy drops what is kept of those that wait no longer, and ends
	// those whose outcome the log did not take.
	Arguments func(ctx context.Context, call, approval string) string
	Tidy      func(context.Context)
	// Settle returns when no process of the home decides any more on a state of the
	// aggregate that is older than the one here.
	Settle func(ctx context.Context, workspace string, id events.AggregateID) error
	Log    *slog.Logger
}

// Decider serves commands. It is safe for concurrent use.
type Decider struct {
	Config
	snapshots snapshots
	replay    chan struct{} // holds one while the log is replayed
}

// New makes a Decider.
func New(c Config) *Decider {
	return &Decider{Config: c, snapshots: snapshots{bus: c.Bus, blob: map[string]connection.Snapshot{}}, replay: make(chan struct{}, 1)}
}

// handler answers a method for an identity.
type handler func(ctx context.Context, id client.Identity, r *bus.Request) (any, error)

// ofTheRuntime are the methods that a worker leaves to the runtime of the home,
// which records the cores and has the store and the files beside it.
var ofTheRuntime = []string{
	"core/reload", "audit/list", "audit/show", "audit/trace", "audit/verify", "bus/rebuild", "bus/backup",
}

// Methods are those that it answers, each for the roles that may (decision 2).
func (d *Decider) Methods() []bus.Method {
	anybody := []string{host.RoleHost, host.RoleOperator}
	readers := []string{host.RoleOperator, host.RoleAuditor}
	operator := []string{host.RoleOperator}
	var all []bus.Method
	for _, m := range []struct {
		method string
		roles  []string
		fn     handler
	}{
		{"session/start", anybody, d.sessionStart},
		{"session/end", anybody, d.sessionEnd},
		{"turn/prepare", anybody, d.turnPrepare},
		{"turn/end", anybody, d.turnEnd},
		{"tool/list", operator, d.toolList},
		{"mcp/list", append(readers, host.RoleHost), d.serverList},
		{"mcp/server/details", append(readers, host.RoleHost), d.serverDetails},
		{"grant/add", operator, d.grantAdd},
		{"grant/revoke", operator, d.grantRevoke},
		{"grant/list", readers, d.grantList},
		{"host/token", operator, d.hostToken},
		{"host/revoke", operator, d.hostRevoke},
		{"host/list", readers, d.hostList},
		{"approvals/list", operator, d.approvalsList},
		{"approvals/get", operator, d.approvalsGet},
		{"approvals/decide", operator, d.approvalsDecide},
		{"policy/show", readers, d.policyShow},
		{"policy/explain", readers, d.policyExplain},
		{"core/reload", operator, d.coreReload},
		{"audit/list", readers, d.auditList},
		{"audit/show", readers, d.auditShow},
		{"audit/trace", readers, d.auditTrace},
		{"audit/asof", readers, d.auditAsOf},
		{"audit/verify", readers, d.auditVerify},
		{"bus/creds", operator, d.busCreds},
		{"bus/info", append(readers, host.RoleHost), d.busInfo},
		{"bus/rebuild", operator, d.busRebuild},
		{"bus/backup", operator, d.busBackup},
	} {
		if m.method == "bus/creds" && !d.Bus.HasKeys() {
			continue // another process of the home has them
		}
		if d.Cores.Follows() && slices.Contains(ofTheRuntime, m.method) {
			continue
		}
		all = append(all, bus.Method{Name: m.method, Handle: func(ctx context.Context, r *bus.Request) (any, error) {
			id, err := d.Identity(r, m.roles...)
			if err != nil {
				return nil, err
			}
			return m.fn(ctx, id, r)
		}})
	}
	return all
}

// Identity is who makes a request, checked against the roles that may. The
// principal comes from the subject, which the server enforces (decision 2).
func (d *Decider) Identity(r *bus.Request, roles ...string) (client.Identity, error) {
	role := d.Role(r.Workspace, r.Principal)
	for _, allowed := range roles {
		if role == allowed {
			return client.Identity{Workspace: r.Workspace, Principal: r.Principal, Actor: r.Principal}, nil
		}
	}
	return client.Identity{}, fault.New(r.Method, fault.RoleDenied, redact.Static("the role of the principal does not include this method"))
}

// Role is the role of a principal; empty when it has none. Who acts without a
// token is a host, unless the principal was enrolled as something else.
func (d *Decider) Role(workspace, principal string) string {
	switch s := d.Model.Hosts.Get(workspace, principal); {
	case s.Revoked:
		return ""
	case s.Role == "" && principal == d.Anonymous && workspace == d.Workspace:
		return host.RoleHost
	default:
		return s.Role
	}
}

// As is the identity for a request that names a principal: an operator may act
// for another one and is recorded as the actor (decision 2).
func (d *Decider) As(id client.Identity, principal string) (client.Identity, error) {
	if principal == "" || principal == id.Principal {
		return id, nil
	}
	if d.Role(id.Workspace, id.Actor) != host.RoleOperator {
		return id, fault.New("identity", fault.RoleDenied, redact.Static("only an operator acts for another principal"))
	}
	id.Principal = principal
	return id, nil
}

// Run sweeps due times until ctx ends, and speaks for the home unless it follows
// another runtime. The error is why it cannot.
func (d *Decider) Run(ctx context.Context) error {
	if !d.Cores.Follows() {
		stop, err := d.speakForHome()
		if err != nil {
			return err
		}
		defer stop()
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			d.sweep(ctx, now)
		}
	}
}

// sweep ends the approvals whose time is over, or whose principal lost what he
// needs by time. Every process of a home does: the second one finds nothing to do.
func (d *Decider) sweep(ctx context.Context, now time.Time) {
	for _, a := range d.Projections.Approvals.Due(now) {
		meta := bus.Meta{Correlation: a.Aggregate.Key, Actor: "runtime", Principal: a.Principal, Time: now, Scope: scope(a.Aggregate, a.Session, a.Server)}
		var err error
		switch a.Aggregate.Kind {
		case events.KindCall:
			_, err = d.Model.Calls.Dispatch(ctx, a.Workspace, a.Aggregate.Key, meta, call.Expire{At: now})
		case events.KindConnection:
			_, err = d.Model.Connections.Dispatch(ctx, a.Workspace, a.Aggregate.Key, meta, connection.Expire{At: now})
		}
		if err != nil && ctx.Err() == nil {
			d.Log.Error("an approval could not be expired", "approval", a.ID, "error", err)
		}
	}
	d.withdraw(ctx, "runtime", now, "")
	d.Tidy(ctx)
}

// withdraw ends what a principal has that he may not have any more: the questions
// whether he may call, and connections with the questions and the answers about
// them. Nobody is to be asked for nothing, and no yes is to wait for whoever has the
// name next. An empty name is everybody. What is not ended here for an error, the
// next sweep ends.
func (d *Decider) withdraw(ctx context.Context, actor string, now time.Time, principal string) {
	failed := func(key string, err error) {
		if err != nil && ctx.Err() == nil {
			d.Log.Error("what a principal may not have any more could not be withdrawn", "of", key, "error", err)
		}
	}
	granted := func(of string) authority.Snapshot { return d.Model.Authority(d.Workspace, of) }
	with := func(of string) bus.With { return bus.With{Reads: bus.AuthorityReads(d.Workspace, of)} }
	for _, a := range d.Projections.Approvals.Open() {
		if a.Workspace != d.Workspace || a.Aggregate.Kind != events.KindCall || principal != "" && a.Principal != principal {
			continue
		}
		key := a.Aggregate.Key
		if !d.Model.Calls.Get(d.Workspace, key).Withheld(granted(a.Principal), now) {
			continue
		}
		meta := bus.Meta{Correlation: key, Actor: actor, Principal: a.Principal, Time: now, Scope: scope(a.Aggregate, a.Session, a.Server)}
		_, err := d.Model.Calls.DispatchWith(ctx, d.Workspace, key, meta, with(a.Principal), func() (call.Command, error) {
			return call.Withdraw{Authority: granted(a.Principal), At: now}, nil
		})
		failed(key, err)
	}
	for at, s := range d.Model.Connections.All() {
		if at.Workspace != d.Workspace || s.Principal == "" || principal != "" && s.Principal != principal {
			continue
		}
		if !s.Withheld(d.Model.Holder(d.Workspace, s), now) {
			continue
		}
		meta := bus.Meta{Correlation: at.Key, Actor: actor, Principal: s.Principal, Time: now, Scope: scope(at.AggregateID, s.Session, s.Server)}
		_, err := d.Model.Connections.DispatchWith(ctx, d.Workspace, at.Key, meta, with(s.Principal), func() (connection.Command, error) {
			return connection.Withdraw{Authority: d.Model.Holder(d.Workspace, s), At: now}, nil
		})
		failed(at.Key, err)
	}
}

func scope(id events.AggregateID, session, server string) events.Scope {
	s := events.Scope{Session: session, Server: server}
	switch id.Kind {
	case events.KindCall:
		s.Call = id.Key
	case events.KindConnection:
		s.Connection = id.Key
	}
	return s
}

// caught waits until the projections know what the log has.
func (d *Decider) caught(ctx context.Context) error { return d.Projections.Wait(ctx, d.Bus.Known()) }
