package decider

import (
	"context"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/projections/servers"
)

// recentRows is how many rows of its audit come with a server.
const recentRows = 20

// kept stands for a text that the keystore has (R82).
const kept = "<redacted>"

// installation is the part of a row that only an installed server has; nil of a declared
// one.
func installation(i *servers.Install) *client.Installation {
	if i == nil {
		return nil
	}
	return &client.Installation{
		ScopeKind: i.ScopeKind, ScopeKey: i.ScopeKey, Home: i.Home, By: i.By, ApprovalID: i.Approval, Implicit: i.Implicit,
		Required: i.Required, Parallel: i.Parallel, StartupTimeoutSec: uint32(i.StartupTimeout.Seconds()),
		ToolTimeoutSec: uint32(i.ToolTimeout.Seconds()), Since: i.Since, Reason: i.Reason, Message: i.Message,
		RetryAttempt: i.RetryAttempt, NextRetryAt: i.NextRetryAt, Generation: i.Generation, CatalogVersion: i.Catalog,
	}
}

// detail adds to the row of an installed server what only operators and auditors see:
// how it is reached, with references in the place of secrets, and what happened to it
// last (R39, R89).
func (d *Decider) detail(ctx context.Context, id client.Identity, s servers.Server, row *client.Server) error {
	i, out := s.Install, row.Installed
	if i == nil || d.whose(id) != "" {
		return nil
	}
	out.Command, out.Cwd, out.URL = shown(i.Command), i.Cwd, shown(i.URL)
	for _, t := range i.Args {
		out.Args = append(out.Args, shown(t))
	}
	out.Env, out.Headers = refs(i.Env), refs(i.Headers)
	if err := d.written(ctx); err != nil {
		return err
	}
	rows, err := d.Audit.Installed(ctx, id.Workspace, server.Key(i.ScopeKind, i.ScopeKey, i.Name), recentRows)
	row.Audit = auditRows(rows)
	return noFile(err)
}

func shown(t server.TextRef) string {
	if t.Ref != "" {
		return kept
	}
	return t.Text
}

func refs(list []events.SecretRef) (out []client.SecretRef) {
	for _, e := range list {
		out = append(out, client.SecretRef{Key: e.Key, Ref: e.Ref})
	}
	return out
}
