package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (m *Main) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say whether the bus runs, and what waits", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			info, err := busInfo(ctx, bus)
			if err != nil {
				return err
			}
			return m.printObject(info, info.Runtime, func(t *table) {
				t.field("gatebus", fmt.Sprintf("%s runs in process %d since %s", info.Version, info.PID, clock(info.Started)))
				t.field("home", info.Home)
				t.field("workspace", info.Workspace)
				showCores(t, info.Cores)
				t.field("servers", fmt.Sprintf("%d declared, %d live connections", info.Servers, info.Live))
				t.field("approvals", fmt.Sprintf("%d pending", info.Pending))
				t.field("log", fmt.Sprintf("%s, %d commits, %d events, %d bytes", info.Log, info.Commits, info.Events, info.Bytes))
			})
		}),
	}
}
