package servers_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/projections/servers"
)

const secret = "gateway_settings:mcp:workspace:default:mail:env:KEY"

// mail is an installation.
func mail(scope string) events.Installation {
	return events.Installation{
		ScopeKind: scope, ScopeKey: "default", Name: "mail", Home: "h-1", Fingerprint: "fp3", Transport: "stdio",
		Command: events.TextRef{Text: redact.Static("npx")}, Args: []events.TextRef{{Text: redact.Static("mail")}},
		Env: []events.SecretRef{{Key: "KEY", Ref: secret, Version: "v1"}}, StartupTimeoutS: 180, ToolTimeoutS: 120,
		Required: true, Parallel: true, Enabled: true, Approval: "a1", By: "local",
	}
}

func moved(from, to server.Status) events.ServerStatusChanged {
	return events.ServerStatusChanged{From: string(from), To: string(to), Live: to.Live()}
}

func TestInstalledServersAreBehindTheDeclaredOnes(t *testing.T) {
	t.Parallel()
	l := declared() // 1
	l.add(events.KindServer, server.HomeKey("h-1"), events.KeystoreSelected{Provider: "file"})
	l.add(events.KindServer, "mail", events.ServerInstalled{Installation: mail("workspace")}, events.SecretStored{Ref: secret, Version: "v1"}, moved("", server.NotStarted))
	l.add(events.KindServer, "mail", events.ServerPolicyChanged{After: events.ServerPolicy{Enabled: true, Implicit: true}}, events.SecretStored{Ref: secret, Version: "v2"})
	failed := moved(server.Starting, server.Failed)
	failed.ReasonCode, failed.Message, failed.RetryAttempt, failed.Generation = "spawn_failed", redact.Static("no such file"), 3, 7
	failed.NextRetryAt, failed.CatalogVersion = at(99).Format(time.RFC3339Nano), "sha256:1"
	l.add(events.KindServer, "mail", failed) // 5
	want := servers.Server{
		Workspace: "default", Name: "mail", Enabled: true, Transport: "stdio", Risk: "medium", ApprovalPolicy: "prompt", Fingerprint: "fp3",
		ConnectTimeout: 3 * time.Minute, CallTimeout: 2 * time.Minute, Parallel: true, State: "failed", Connections: []servers.Connection{},
		Install: &servers.Install{
			Installation: server.Installation{
				ScopeKind: "workspace", ScopeKey: "default", Name: "mail", Home: "h-1", Fingerprint: "fp3", Transport: "stdio",
				Command: server.TextRef{Text: "npx"}, Args: []server.TextRef{{Text: "mail"}},
				Env: []events.SecretRef{{Key: "KEY", Ref: secret, Version: "v2"}}, StartupTimeout: 3 * time.Minute, ToolTimeout: 2 * time.Minute,
				Required: true, Parallel: true, Approval: "a1", By: "local",
			},
			Implicit: true, Since: at(5), Reason: "spawn_failed", Message: "no such file", RetryAttempt: 3, NextRetryAt: at(99),
			Generation: 7, Catalog: "sha256:1",
		},
	}
	rows := l.List("default", "")
	if len(rows) != 4 || rows[0].Name != "docs" || rows[0].Install != nil {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	if diff := cmp.Diff(want, rows[3]); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if got := l.List("other", ""); len(got) != 0 {
		t.Errorf("another workspace has %v", got)
	}

	// The next move has a message of its own.
	l.add(events.KindServer, "mail", moved(server.Failed, server.Starting))
	if i := l.row(t, "mail").Install; i.Message != "" || i.Reason != "" || !i.Since.Equal(at(6)) {
		t.Errorf("after the next move: %+v", i)
	}
}

func TestAnInstalledServerHasTheConnectionOfNoSession(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindServer, "mail", events.ServerInstalled{Installation: mail("workspace")}, moved("", server.NotStarted))
	l.add(events.KindServer, server.Key("user", server.UserKey, "mail"), events.ServerInstalled{Installation: mail("user")}, moved("", server.NotStarted))
	l.add(events.KindConnection, connection.ID("", "mail"),
		events.ConnectRequested{Server: "mail", Fingerprint: "fp3"}, events.ConnectionClaimed{}, events.ConnectionOpened{},
		events.ToolsDiscovered{Tools: []events.ToolDigest{{Tool: "send", Digest: "d"}, {Tool: "read", Digest: "d"}}})
	l.add(events.KindServer, "mail", moved(server.NotStarted, server.Starting))
	l.add(events.KindServer, "mail", moved(server.Starting, server.Ready))
	rows := l.List("", "")
	if len(rows) != 2 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	if r := rows[0]; r.State != servers.Ready || r.Tools != 2 || len(r.Connections) != 1 || r.Connections[0].State != servers.Ready {
		t.Errorf("of the workspace: %+v", r)
	}
	if r := rows[1]; r.State != servers.NotStarted || r.Tools != 0 || len(r.Connections) != 0 || r.Install.ScopeKind != "user" {
		t.Errorf("of the user: %+v", r)
	}
	// Who has not installed it is told how many tools it has, and not whose connection it is.
	if r := l.List("", "bob")[0]; r.Tools != 2 || len(r.Connections) != 0 {
		t.Errorf("to another principal: %+v", r)
	}
}

func TestWhatIsUninstalledIsNoRow(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindServer, "mail", events.ServerInstalled{Installation: mail("workspace")}, moved("", server.NotStarted))
	l.add(events.KindServer, "mail", moved(server.NotStarted, server.Starting))
	l.add(events.KindServer, "mail", events.ServerUninstalled{})
	if rows := l.List("", ""); len(rows) != 0 {
		t.Fatalf("%+v", rows)
	}
	// It runs still, so that where it is is known when it is installed again.
	l.add(events.KindServer, "mail", events.ServerInstalled{Installation: mail("workspace")})
	if r := l.row(t, "mail"); r.State != servers.Starting {
		t.Errorf("installed again: %+v", r)
	}
	l.add(events.KindServer, "mail", events.ServerUninstalled{})
	l.add(events.KindServer, "mail", moved(server.Starting, server.Stopping))
	l.add(events.KindServer, "mail", moved(server.Stopping, server.Stopped))
	l.add(events.KindServer, "mail", events.SecretDeleted{Ref: secret, Version: "v1"})
	l.add(events.KindServer, "mail", events.ServerInstalled{Installation: mail("workspace")}, moved(server.Stopped, server.NotStarted))
	if r := l.row(t, "mail"); r.State != servers.NotStarted || r.Install.Reason != "" {
		t.Errorf("installed anew: %+v", r)
	}
}
