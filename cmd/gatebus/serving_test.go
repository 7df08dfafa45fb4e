package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/workers/cores"
)

// plainSettings are those of a runtime without servers, in a home of its own.
func plainSettings(tb testing.TB) settings {
	return settings{
		home: tb.TempDir(), listen: "127.0.0.1:0", natsListen: "127.0.0.1:0", workspace: "default", root: tb.TempDir(),
		policy: events.Policy{Enabled: true, Implicit: true, OnChange: "block", Approvers: "interactive"},
		lookup: func(string) (string, bool) { return "", false }, log: slog.New(slog.DiscardHandler),
	}
}

// serving starts a runtime in this process, which ends with the test.
func serving(tb testing.TB, s settings) *instance {
	tb.Helper()
	r, err := start(tb.Context(), s)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.close(context.Background(), "test ended"); err != nil {
			tb.Error(err)
		}
		bustest.Sweep(r.home)
	})
	return r
}

// declared makes a core with the declaration of one server.
func declared(tb testing.TB, server, declaration string) []cores.Spec {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "agent", "mcp"), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent", "mcp", server+".yaml"), []byte(declaration), 0o600); err != nil {
		tb.Fatal(err)
	}
	specs, err := cores.Specs([]string{dir})
	if err != nil {
		tb.Fatal(err)
	}
	return specs
}
