package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

func (m *Main) grantCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Capabilities of principals"}
	cmd.AddCommand(
		m.grantAddCommand(),
		m.grantListCommand(),
		&cobra.Command{
			Use: "revoke PRINCIPAL CAPABILITY", Short: "Take a capability back: no call starts after the answer",
			Args: exactly("PRINCIPAL", "CAPABILITY"),
			RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
				return m.changeGrant(ctx, bus, "grant/revoke", client.Grant{Principal: args[0], Capability: args[1]})
			}),
		},
	)
	return cmd
}

func (m *Main) grantAddCommand() *cobra.Command {
	var until, note string
	cmd := &cobra.Command{
		Use: "add PRINCIPAL CAPABILITY", Short: "Give a capability, for example mcp.connect:docs or mcp.call:*",
		Args: exactly("PRINCIPAL", "CAPABILITY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			end, err := when(until, time.Now(), later)
			if err != nil {
				return usage("--until: %v", err)
			}
			return m.onBus(func(ctx context.Context, bus asker, args []string) error {
				return m.changeGrant(ctx, bus, "grant/add", client.Grant{Principal: args[0], Capability: args[1], Until: end, Note: note})
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "when it ends: a time, or how long from now (never)")
	cmd.Flags().StringVar(&note, "note", "", "why")
	return cmd
}

func (m *Main) grantListCommand() *cobra.Command {
	var filter client.GrantList
	cmd := &cobra.Command{
		Use: "list", Short: "List the grants", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var grants []client.Grant
			if err := bus.ask(ctx, "grant/list", filter, &grants); err != nil {
				return err
			}
			return printList(m, grants, func(g client.Grant) string { return g.Principal + " " + g.Capability },
				column[client.Grant]{"PRINCIPAL", func(g client.Grant) string { return g.Principal }},
				column[client.Grant]{"CAPABILITY", func(g client.Grant) string { return g.Capability }},
				column[client.Grant]{"UNTIL", func(g client.Grant) string { return clock(g.Until) }},
				column[client.Grant]{"NOTE", func(g client.Grant) string { return g.Note }},
			)
		}),
	}
	cmd.Flags().StringVar(&filter.Principal, "principal", "", "only those of this principal")
	return cmd
}

func (m *Main) changeGrant(ctx context.Context, bus asker, method string, g client.Grant) error {
	if err := bus.ask(ctx, method, g, &g); err != nil {
		return err
	}
	return m.printObject(g, g.Principal+" "+g.Capability, func(t *table) {
		t.field("principal", g.Principal)
		t.field("capability", g.Capability)
		t.field("until", clock(g.Until))
		t.field("note", g.Note)
	})
}
