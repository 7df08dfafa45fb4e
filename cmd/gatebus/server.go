package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/projections/servers"
)

func (m *Main) serverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "MCP servers that are declared or installed, and their connections"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the servers", Args: exactly(),
			RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				var servers []client.Server
				if err := bus.ask(ctx, "mcp/list", nil, &servers); err != nil {
					return err
				}
				return printList(m, servers, func(s client.Server) string { return s.Name },
					column[client.Server]{"NAME", func(s client.Server) string { return s.Name }},
					column[client.Server]{"STATE", func(s client.Server) string { return s.State }},
					column[client.Server]{"TRANSPORT", func(s client.Server) string { return s.Transport }},
					column[client.Server]{"RISK", func(s client.Server) string { return s.Risk }},
					column[client.Server]{"APPROVAL", func(s client.Server) string { return s.Approval }},
					column[client.Server]{"TOOLS", func(s client.Server) string { return count(s.Tools) }},
					column[client.Server]{"CONNECTIONS", func(s client.Server) string { return count(established(s.Connections)) }},
					column[client.Server]{"CORE", func(s client.Server) string { return s.Core }},
					column[client.Server]{"REASON", func(s client.Server) string { return installed(s).Reason }},
					column[client.Server]{"SINCE", func(s client.Server) string { return clock(installed(s).Since) }},
				)
			}),
		},
		&cobra.Command{
			Use: "get NAME", Short: "Show a server and its connections", Args: exactly("NAME"),
			RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
				var s client.Server
				if err := bus.ask(ctx, "mcp/server/details", client.ServerName{Name: args[0]}, &s); err != nil {
					return err
				}
				return m.printObject(s, s.Name, func(t *table) { showServer(t, s) })
			}),
		},
		m.serverLogsCommand(),
		m.serverAddCommand(),
		m.serverPolicyCommand("enable", "Let an installed server run", true),
		m.serverPolicyCommand("disable", "Stop an installed server, and do not start it again", false),
		m.serverOfCommand("restart", "Stop an installed server and start it again", "mcp/server/restart"),
		m.serverOfCommand("rm", "Remove an installed server and its secrets", "mcp/uninstall"),
	)
	return cmd
}

func (m *Main) serverLogsCommand() *cobra.Command {
	limit := 0
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Show what the processes of a server wrote to stderr, redacted", Args: exactly("NAME"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			var logs []client.ServerLog
			if err := bus.ask(ctx, "mcp/server/logs", client.ServerLogs{Name: args[0], Limit: limit}, &logs); err != nil {
				return err
			}
			if m.output != "table" {
				return printList(m, logs, func(l client.ServerLog) string { return l.Connection })
			}
			for _, l := range logs {
				end := cmp.Or(l.Exit, "ended")
				if l.Running {
					end = "running"
				}
				_, err := fmt.Fprintf(m.Stdout, "%s\n%s\n", printable(clock(l.Time)+" "+l.Connection+" "+end, ""),
					printable(strings.TrimSuffix(l.Text, "\n"), "\n\t"))
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 10, "how many processes, the newest ones, 100 at most")
	return cmd
}

func showServer(t *table, s client.Server) {
	t.field("name", s.Name)
	t.field("declared in", s.Path)
	t.field("core", s.Core)
	t.field("enabled", fmt.Sprint(s.Enabled))
	t.field("transport", s.Transport)
	t.field("risk", s.Risk)
	t.field("approval", s.Approval)
	t.field("capability", s.Capability)
	t.field("fingerprint", s.Fingerprint)
	t.field("state", s.State)
	t.field("tools", count(s.Tools))
	if s.Installed != nil {
		showInstallation(t, *s.Installed)
	}
	for _, c := range s.Connections {
		t.field("connection", c.Connection)
		t.field("  principal", c.Principal)
		t.field("  session", c.Session)
		t.field("  state", c.State)
		t.field("  reason", c.Reason)
		t.field("  message", c.Message)
		t.field("  since", clock(c.Since))
		t.field("  tools", count(c.Tools))
		t.field("  approval", c.Approval)
		for _, f := range c.Flags {
			t.field("  flag", strings.Join(append([]string{f.List, f.Name}, f.Reasons...), " "))
		}
	}
}

// installed is what a server has that was installed; empty for a declared one.
func installed(s client.Server) client.Installation {
	if s.Installed == nil {
		return client.Installation{}
	}
	return *s.Installed
}

func showInstallation(t *table, i client.Installation) {
	t.field("reason", i.Reason)
	t.field("since", clock(i.Since))
	t.field("last error", i.Message)
	t.field("next retry", clock(i.NextRetryAt))
	t.field("installed by", i.By)
	t.field("scope", i.ScopeKind+" "+i.ScopeKey)
	t.field("implicit", fmt.Sprint(i.Implicit))
	t.field("required", fmt.Sprint(i.Required))
	t.field("parallel", fmt.Sprint(i.Parallel))
	t.field("startup timeout", fmt.Sprintf("%d s", i.StartupTimeoutSec))
	t.field("tool timeout", fmt.Sprintf("%d s", i.ToolTimeoutSec))
	t.field("catalog", i.CatalogVersion)
	t.field("command", i.Command)
	for _, a := range i.Args {
		t.field("  argument", a)
	}
	t.field("directory", i.Cwd)
	t.field("url", i.URL)
	for _, e := range i.Env {
		t.field("  variable", e.Key+" from "+e.Ref)
	}
	for _, h := range i.Headers {
		t.field("  header", h.Key+" from "+h.Ref)
	}
}

// established is how many connections there are, or will be in a moment.
func established(all []client.ServerConnection) (n int) {
	for _, c := range all {
		if c.State == servers.Ready || c.State == servers.Degraded || c.State == servers.Starting {
			n++
		}
	}
	return n
}
