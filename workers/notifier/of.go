package notifier

import (
	"encoding/json"
	"slices"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/projections/servers"
)

// Addressed is a notification with whom it concerns, operators and auditors
// aside: the host Principal; else the hosts that may connect to or read Server;
// else every host of the workspace.
type Addressed struct {
	client.Notification
	Workspace, Principal, Server string
}

// Of are the notifications of a commit, in the order of its events. catalogChanged
// says of a sequence whether its commit changed the catalog of a server; nothing
// else than the commit counts, so those of two stretches of the log are together
// those of the whole.
func Of(c *events.Commit, catalogChanged func(seq uint64) bool) []Addressed {
	o := of{commit: c}
	status := -1 // where the status is among out: a commit has one, its last
	for r := range c.Recorded() {
		switch e := r.Event.(type) {
		case events.CoreRevisionLoaded:
			o.changed(r, client.Changed{Reason: "core", Core: c.Aggregate.Key}, "")
		case events.PolicySet:
			o.changed(r, client.Changed{Reason: "policy"}, "")
		case events.ServerInstalled, events.ServerUpdated, events.ServerPolicyChanged, events.ServerUninstalled:
			o.changed(r, client.Changed{Reason: "servers", Server: c.Scope.Server}, "")
		case events.CapabilityGranted, events.CapabilityRevoked:
			o.changed(r, client.Changed{Reason: "grants", Principal: c.Aggregate.Key}, c.Aggregate.Key)
		case events.ToolsDiscovered:
			if catalogChanged(c.Seq) {
				o.add(r, "mcp/server/catalog_changed", "", c.Scope.Server, client.CatalogChanged{
					Workspace: c.Workspace, SnapshotVersion: c.Seq, ServerID: c.Scope.Server, Name: c.Scope.Server,
					CatalogVersion: e.CatalogVersion, ToolsCount: len(e.Tools),
				})
			}
		case events.ApprovalRequested:
			o.add(r, "approvals/requested", c.Principal, e.Server, client.ApprovalRequested{
				Workspace: c.Workspace, Approval: e.Approval, Action: e.Action, Target: e.Target, Principal: c.Principal,
				Server: e.Server, Tool: e.Tool, Session: c.Scope.Session, Aggregate: c.Aggregate.String(),
				Risk: e.Risk, Policy: e.Policy, Expires: e.Expires,
			})
		case events.ApprovalDecided:
			if !e.Automatic && !e.Cached { // nobody was asked
				state := "denied"
				if e.Decision == "allow" {
					state = "allowed"
				}
				o.decided(r, e.Approval, state, e.Kind)
			}
		case events.ApprovalExpired:
			o.decided(r, e.Approval, "expired", "")
		}
		if s, ok := statusOf(r); ok {
			if status >= 0 {
				o.out = append(o.out[:status], o.out[status+1:]...)
			}
			status = len(o.out)
			o.add(r, "mcp/server/status_changed", s.Principal, s.Name, s)
		}
	}
	for i := range o.out {
		o.out[i].I = i
	}
	return o.out
}

// tells reports whether a commit can bring notifications: of calls only approvals do.
func tells(c *events.Commit) bool {
	return c.Aggregate.Kind != events.KindCall || slices.ContainsFunc(c.Events, func(e events.Event) bool {
		switch e := e.(type) {
		case events.ApprovalRequested, events.ApprovalExpired:
			return true
		case events.ApprovalDecided:
			return !e.Automatic // nobody was asked
		}
		return false
	})
}

// of collects the notifications of one commit.
type of struct {
	commit *events.Commit
	out    []Addressed
	told   bool // mcp/changed
}

func (o *of) add(r events.Recorded, method, principal, server string, params any) {
	body, _ := json.Marshal(params) // strings, numbers and booleans
	o.out = append(o.out, Addressed{
		Notification: client.Notification{Seq: r.Seq, Method: method, Params: body},
		Workspace:    r.Workspace, Principal: principal, Server: server,
	})
}

// changed tells once in a commit that something changed.
func (o *of) changed(r events.Recorded, p client.Changed, principal string) {
	if o.told {
		return
	}
	o.told = true
	p.Workspace, p.SnapshotVersion = r.Workspace, r.Seq
	o.add(r, "mcp/changed", principal, "", p)
}

func (o *of) decided(r events.Recorded, approval, state, kind string) {
	o.add(r, "approvals/decided", r.Principal, r.Scope.Server, client.ApprovalDecided{
		Workspace: r.Workspace, Approval: approval, State: state, Kind: kind, Principal: r.Principal,
		Server: r.Scope.Server, Session: r.Scope.Session, Aggregate: r.Aggregate.String(),
	})
}

// statusOf is the state that an event brings a connection into.
func statusOf(r events.Recorded) (client.StatusChanged, bool) {
	s := client.StatusChanged{
		Workspace: r.Workspace, SnapshotVersion: r.Seq, ServerID: r.Scope.Server, Name: r.Scope.Server,
		Principal: r.Principal, Session: r.Scope.Session, Connection: r.Aggregate.Key,
	}
	// The state of an installed server is its own, and not that of its connection.
	if r.Aggregate.Kind == events.KindConnection && r.Scope.Session == "" {
		return s, false
	}
	switch e := r.Event.(type) {
	case events.ServerStatusChanged:
		s.Principal, s.Session, s.Connection = "", "", ""
		s.Status, s.Live, s.Reason, s.RetryAt, s.Generation = e.To, e.Live, e.ReasonCode, e.NextRetryAt, e.Generation
	case events.ApprovalRequested:
		if e.Action != connection.ActionConnect {
			return s, false
		}
		s.Status = servers.ApprovalPending
	case events.ConnectionClaimed:
		s.Status, s.Generation = servers.Starting, uint32(r.Seq)
	case events.ConnectionOpened:
		s.Status, s.Live, s.Generation = servers.Ready, true, e.Generation
	case events.DiscoveryFailed:
		s.Status, s.Live, s.Reason, s.Generation = servers.Degraded, true, e.Kind, e.Generation
	case events.ToolsDiscovered:
		s.Status, s.Live, s.Generation = servers.Ready, true, e.Generation
		return s, e.Recovered
	case events.ServerFailed:
		s.Status, s.Reason, s.RetryAt, s.Generation = servers.Failed, e.Kind, e.RetryAfter, e.Generation
		if e.Kind == string(fault.AuthRequired) {
			s.Status = servers.AuthRequired
		}
	case events.ServerDenied:
		s.Status, s.Reason = servers.Denied, e.Reason
	case events.ConnectionClosed:
		s.Status, s.Reason, s.Generation = servers.NotStarted, e.Reason, e.Generation
	case events.ConnectionLost:
		s.Status, s.Reason, s.Generation = servers.NotStarted, "runtime_lost", e.Generation
	default:
		return s, false
	}
	return s, true
}
