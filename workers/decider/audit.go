package decider

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/audit"
)

// pageRows and pageBytes bound one answer, which has to fit into a message; a client
// goes on with Next.
const (
	pageRows  = 1000
	pageBytes = 2 << 20
)

func (d *Decider) auditList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.AuditList
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.Name != "" && !slices.Contains(events.Names(), p.Name) {
		return nil, badRequest(redact.Name("name: there is no event " + p.Name + "; each one has a file in schemas/json/events"))
	}
	if err := d.written(ctx); err != nil {
		return nil, err
	}
	filter := audit.Filter{
		Workspace: id.Workspace, Principal: p.Principal, Name: p.Name, Server: p.Server, Call: p.Call,
		Since: p.Since, Until: p.Until, After: p.After, Limit: pageRows, Bytes: pageBytes,
	}
	if p.Limit > 0 {
		filter.Limit = min(p.Limit, pageRows)
	}
	wait, cancel := context.WithTimeout(ctx, min(time.Duration(p.WaitMS)*time.Millisecond, maxPoll))
	defer cancel()
	for {
		page, err := d.Audit.List(ctx, filter)
		if err != nil {
			return nil, noFile(err)
		}
		if len(page.Rows) > 0 || p.WaitMS <= 0 {
			return client.AuditRows{Rows: auditRows(page.Rows), Next: page.Next, More: page.More}, nil
		}
		if d.Audit.Wait(wait, page.Next+1) != nil {
			return client.AuditRows{Rows: []client.AuditRow{}, Next: page.Next}, nil
		}
		filter.After = page.Next
	}
}

func (d *Decider) auditShow(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.AuditShow
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.written(ctx); err != nil {
		return nil, err
	}
	rows, err := d.Audit.Show(ctx, p.Seq)
	none := redact.Static("the log has no commit with this sequence")
	if 0 < p.Seq && p.Seq <= d.Bus.Known() && len(rows) == 0 {
		none = redact.Static("the rows of this commit are cut from the audit file; the log has it")
	}
	return d.found(id, rows, err, none)
}

func (d *Decider) auditTrace(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.AuditTrace
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.written(ctx); err != nil {
		return nil, err
	}
	rows, err := d.Audit.Trace(ctx, p.ID)
	return d.found(id, rows, err, redact.Static("nothing in the log has this id"))
}

// auditVerify is about the whole log, whatever workspace asks: it tells of no
// event.
func (d *Decider) auditVerify(ctx context.Context, _ client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	return d.Bus.Verify(ctx)
}

// found answers with the rows of the identity's workspace.
func (d *Decider) found(id client.Identity, rows []audit.Row, err error, none redact.EventText) (any, error) {
	if err != nil {
		return nil, noFile(err)
	}
	kept := rows[:0]
	for _, row := range rows {
		if row.Workspace == id.Workspace {
			kept = append(kept, row)
		}
	}
	if len(kept) == 0 {
		return nil, fault.New("audit", fault.NotFound, none)
	}
	return client.AuditRows{Rows: auditRows(kept), Next: kept[len(kept)-1].Seq}, nil
}

// written waits until the audit file has what the log had when the request came.
func (d *Decider) written(ctx context.Context) error {
	return noFile(d.Audit.Wait(ctx, d.Bus.Known()))
}

// noFile is the error of a file that has no answer; nil stays nil.
func noFile(err error) error {
	if err == nil || fault.KindOf(err) != fault.Internal || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.Wrap("audit", fault.ProjectionPersistFailed, redact.Static("the audit file cannot be used"), err)
}

func auditRows(rows []audit.Row) []client.AuditRow {
	out := make([]client.AuditRow, len(rows))
	for i, r := range rows {
		out[i] = client.AuditRow{
			Seq: r.Seq, I: r.I, Time: r.Time, Name: r.Name, Aggregate: r.Aggregate, Workspace: r.Workspace,
			Principal: r.Principal, Actor: r.Actor, Server: r.Server, Session: r.Session, Turn: r.Turn, Call: r.Call,
			Causation: r.Causation, Correlation: r.Correlation, Data: r.Data,
		}
	}
	return out
}
