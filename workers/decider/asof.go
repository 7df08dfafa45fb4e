package decider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/sessions"
)

// maxReplay bounds one replay of the log.
const maxReplay = 5 * time.Minute

// auditAsOf says what the lists said after a commit of the past: the log is
// folded up to there, beside the live projections, one request at a time.
func (d *Decider) auditAsOf(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.AuditAsOf
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.AtSeq > 0 && !p.AtTime.IsZero() {
		return nil, badRequest(redact.Static("at_time: not together with at_seq"))
	}
	ctx, cancel := context.WithTimeout(ctx, maxReplay)
	defer cancel()
	select {
	case d.replay <- struct{}{}:
		defer func() { <-d.replay }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	at := p.AtSeq
	switch {
	case !p.AtTime.IsZero():
		if err := d.written(ctx); err != nil {
			return nil, err
		}
		var err error
		if at, err = d.Audit.At(ctx, p.AtTime); errors.Is(err, audit.ErrCut) {
			return nil, fault.New("audit", fault.NotFound, redact.Static("at_time: the audit file does not go back so far; name a commit"))
		} else if err != nil {
			return nil, noFile(err)
		}
	case at == 0:
		at = d.Bus.Known()
	}
	set, when, err := projections.AsOf(ctx, d.Bus, at)
	switch {
	case errors.Is(err, projections.ErrAhead):
		return nil, badRequest(redact.Name(fmt.Sprintf("at_seq: the log ends at %d", d.Bus.Head())))
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && fault.KindOf(err) != fault.Internal:
		return nil, err
	case err != nil:
		return nil, fault.Wrap("audit", fault.AuditDamaged, redact.Static("the log cannot be folded"), err)
	}
	out := client.AuditState{
		Seq: at, Time: when, Grants: grantRows(set, id.Workspace, ""), Approvals: approvalRows(set, id.Workspace, p.All),
		Servers: serverRows(set, id.Workspace, ""), Sessions: sessionRows(set, id.Workspace, p.All), Hosts: hostRows(set, id.Workspace),
	}
	out.Tools, err = d.tools(ctx, set, catalog.Filter{Workspace: id.Workspace})
	return out, err
}

func sessionRows(set *projections.Set, workspace string, ended bool) []client.SessionInfo {
	out := []client.SessionInfo{}
	for _, s := range set.Sessions.List(sessions.Filter{Workspace: workspace, Ended: ended}) {
		row := client.SessionInfo{
			Session: s.ID, Principal: s.Principal, Label: s.Label, Active: s.Active, Started: s.Started, Ended: s.Ended,
			Catalog: s.Catalog, Connections: s.Connections, Turns: s.Turns, Calls: s.Calls, InFlight: s.InFlight,
		}
		if row.Connections == nil {
			row.Connections = []string{}
		}
		out = append(out, row)
	}
	return out
}
