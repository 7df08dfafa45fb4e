package main

import (
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/cmd/gatebus/demo"
)

func (m *Main) demoServerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "demo-server", Short: "Be a small MCP server on stdin and stdout, to try things with", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Serve(cmd.Context(), m.Stdin, m.Stdout, m.Getenv(demo.TokenVariable))
		},
	}
}
