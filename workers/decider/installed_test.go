package decider_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// What is installed is listed at once from the log, and its details have the six facets
// of it (R4, R39, R89): how it is reached, its policy, its state, its catalog, where its
// secrets are, and what happened to it.
func TestInstalledServersAreListed_R39_R89(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.Ask("host/token", client.HostToken{Name: "ana"}, nil)
	ref := func(kind, key string) string {
		return "gateway_settings:mcp:workspace:default:mail:" + kind + ":" + key
	}
	do := func(cmd server.Command) {
		t.Helper()
		m := bus.Meta{Actor: "local", Principal: "local", Scope: events.Scope{Server: "mail"}}
		if _, err := r.Model.Servers.Dispatch(r.Context(), rig.Workspace, "mail", m, cmd); err != nil {
			t.Fatal(err)
		}
	}
	// Of another home, so that nothing here starts it.
	do(server.Install{Installation: events.Installation{
		ScopeKind: server.ScopeWorkspace, ScopeKey: rig.Workspace, Name: "mail", Home: "another", Fingerprint: "fp", Transport: "stdio",
		Command: events.TextRef{Text: redact.Static("npx")}, Args: []events.TextRef{{Text: redact.Static("-y")}, {Ref: ref("arg", "1"), Version: "v"}},
		Cwd: redact.Static("sub"), Env: []events.SecretRef{{Key: "KEY", Ref: ref("env", "KEY"), Version: "v"}},
		StartupTimeoutS: 180, ToolTimeoutS: 120, Required: true, Enabled: true, Approval: "a-1", By: "local",
	}})
	do(server.Observe{To: server.Starting, Generation: 7})
	retry := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	do(server.Observe{To: server.Failed, Reason: "spawn_failed", Message: redact.Static("no such file"), RetryAt: retry, Catalog: "sha256:1"})

	var rows []client.Server
	r.Ask("mcp/list", nil, &rows)
	if len(rows) != 2 || rows[0].Installed != nil {
		t.Fatalf("rows %+v", rows)
	}
	row := rows[1]
	want := client.Server{
		Name: "mail", Enabled: true, Transport: "stdio", Risk: "medium", Approval: "prompt", Capability: "mcp.call:mail", Fingerprint: "fp",
		State: "failed", Connections: []client.ServerConnection{},
		Installed: &client.Installation{
			ScopeKind: "workspace", ScopeKey: rig.Workspace, Home: "another", By: "local", ApprovalID: "a-1", Required: true,
			StartupTimeoutSec: 180, ToolTimeoutSec: 120, Since: row.Installed.Since, Reason: "spawn_failed", Message: "no such file",
			RetryAttempt: 1, NextRetryAt: retry, Generation: 7, CatalogVersion: "sha256:1",
		},
	}
	if diff := cmp.Diff(want, row); diff != "" || row.Installed.Since.IsZero() {
		t.Errorf("row (-want +got):\n%s", diff)
	}

	var details client.Server
	r.Ask("mcp/server/details", client.ServerName{Name: "mail"}, &details)
	var names []string
	for _, a := range details.Audit {
		names = append(names, a.Name)
		if a.Server != "mail" || a.Aggregate != "server/mail" {
			t.Errorf("audit of %s in %s", a.Server, a.Aggregate)
		}
	}
	if !slices.Equal(names, []string{"server_installed", "server_status_changed", "server_status_changed", "server_status_changed"}) {
		t.Errorf("audit %v", names)
	}
	i := want.Installed
	i.Command, i.Args, i.Cwd, i.Env = "npx", []string{"-y", "<redacted>"}, "sub", []client.SecretRef{{Key: "KEY", Ref: ref("env", "KEY")}}
	details.Audit = nil
	if diff := cmp.Diff(want, details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}

	// A host is told how it is, and not how it is reached.
	got, err := r.Answer("ana", "mcp/server/details", []byte(`{"name":"mail"}`))
	if err != nil {
		t.Fatal(err)
	}
	host := got.(client.Server)
	if i := host.Installed; i.Reason != "spawn_failed" || i.Command != "" || len(i.Args)+len(i.Env)+len(host.Audit) > 0 {
		t.Errorf("a host sees %+v, audit %v", i, host.Audit)
	}

	// The audit of a server that much happens to is its end.
	for n := range 30 {
		do(server.Observe{To: server.Failed, Reason: strings.Repeat("x", n+1)})
	}
	r.Ask("mcp/server/details", client.ServerName{Name: "mail"}, &details)
	if last := details.Audit[len(details.Audit)-1]; len(details.Audit) != 20 || !strings.Contains(string(last.Data), strings.Repeat("x", 30)) {
		t.Errorf("%d rows, the last is %s", len(details.Audit), last.Data)
	}
	r.Rebuilt()
}
