package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

func (m *Main) policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "What needs a person's yes, and which URLs may be contacted"}
	cmd.AddCommand(&cobra.Command{
		Use: "show", Short: "Show the policy in force", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var p client.PolicyShow
			if err := bus.ask(ctx, "policy/show", nil, &p); err != nil {
				return err
			}
			return m.printObject(p, p.Workspace, func(t *table) { showPolicy(t, p) })
		}),
	})
	cmd.AddCommand(m.policyCheckCommand(), m.policyExplainCommand(), m.policyURLCommand(), m.policyRedactCommand())
	return cmd
}

func showPolicy(t *table, p client.PolicyShow) {
	t.field("workspace", p.Workspace)
	t.field("sequence", count(p.Sequence))
	t.field("approvers", p.Approvers)
	t.field("on change", p.OnChange)
	t.row()
	t.row("LEVEL", "SERVER", "TOOL", "CAPABILITY", "RISK", "APPROVAL")
	for _, l := range p.Levels {
		for _, r := range l.Rules {
			server := r.Server
			if server == "" {
				server = l.Server
			}
			t.row(l.Level, server, r.Tool, r.Capability, r.Risk, r.Approval)
		}
		t.row(l.Level, l.Server, "", "", "", l.Default)
	}
}
