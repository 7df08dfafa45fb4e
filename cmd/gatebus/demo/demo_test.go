package demo_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/cmd/gatebus/demo"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
)

// connect starts the demo server and connects to it.
func connect(t *testing.T, token string) *mcp.ClientSession {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // until the clean-up is done
	go func() { served <- demo.Serve(ctx, toServer, fromServer, token) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		cancel()
	})
	return session
}

func TestDemoServerShowsEachRisk(t *testing.T) {
	t.Parallel()
	list, err := connect(t, demo.Token).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]authority.Class{}
	for _, tool := range list.Tools {
		hints, err := json.Marshal(tool.Annotations)
		if err != nil {
			t.Fatal(err)
		}
		_, got[tool.Name] = authority.RaiseByHints(authority.Low, hints)
	}
	want := map[string]authority.Class{"echo": authority.ReadOnly, "leak_token": authority.ReadOnly, "delete_everything": authority.WriteLike}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

func TestDemoToolsAnswer(t *testing.T) {
	t.Parallel()
	session := connect(t, "canary-of-this-test")
	for _, c := range []struct {
		tool       string
		args       map[string]any
		text       string
		structured any
		isError    bool
	}{
		{"echo", map[string]any{"text": "hello"}, "hello", nil, false},
		{"echo", map[string]any{"text": 1}, `echo wants {"text": "…"}`, nil, true},
		{"delete_everything", nil, "Everything is deleted (not really).", nil, false},
		{"leak_token", nil, "The token is canary-of-this-test.", map[string]any{"token": "canary-of-this-test"}, false},
	} {
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: c.args})
		if err != nil {
			t.Fatalf("%s: %v", c.tool, err)
		}
		text, ok := r.Content[0].(*mcp.TextContent)
		if !ok || text.Text != c.text || r.IsError != c.isError {
			t.Errorf("%s(%v): %+v, isError %v", c.tool, c.args, r.Content[0], r.IsError)
		}
		if diff := cmp.Diff(c.structured, r.StructuredContent); diff != "" {
			t.Errorf("%s: structured content (-want +got):\n%s", c.tool, diff)
		}
	}
}

// TestDemoCoreIsValid: a program in a directory with an odd name is declared as
// it is, and the token is not in the file.
func TestDemoCoreIsValid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const executable = `/opt/a "b" \c: #d/gatebus`
	if err := demo.WriteCore(dir, executable); err != nil {
		t.Fatal(err)
	}
	core, diagnostics := declaration.Load(os.DirFS(dir))
	for _, d := range diagnostics {
		t.Errorf("%+v", d)
	}
	byID := map[string]declaration.Declaration{}
	for _, d := range core.Declarations {
		byID[d.ServerID] = d
	}
	if len(byID) != 2 {
		t.Fatalf("%d servers, want 2", len(byID))
	}
	server := byID["demo"]
	if server.Command != executable || server.Env[demo.TokenVariable].Reveal() != "${DEMO_TOKEN}" || server.ApprovalPolicy != authority.Auto || server.Risk != authority.Medium {
		t.Errorf("%+v", server)
	}
	if diff := cmp.Diff([]string{"demo-server"}, server.Args.Reveal()); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	if meta := byID["metadata"]; meta.URL.Reveal() != "http://169.254.169.254/latest/meta-data/" || meta.Transport != declaration.StreamableHTTP {
		t.Errorf("%+v", meta)
	}
	if info, err := os.Stat(filepath.Join(dir, "agent", "mcp", "demo.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: a declaration is for its owner only", info, err)
	}
}
