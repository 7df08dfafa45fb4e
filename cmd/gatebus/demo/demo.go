// Package demo is the MCP server that comes with Gatebus, and the agent core
// that declares it: what up --demo shows, without network and without anything
// to configure.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Token is the secret of the demo server. It opens nothing.
const Token = "gbdemo_6vJ2qN8xT4kR0wZ7mB3c"

// TokenVariable is the environment variable that holds it: the demo core refers
// to the one of this name, and the demo server reads it.
const TokenVariable = "DEMO_TOKEN"

// Serve serves the demo server until in ends or ctx does. token is the secret
// that its tool leak_token gives away.
func Serve(ctx context.Context, in io.Reader, out io.Writer, token string) error {
	server := mcp.NewServer(&mcp.Implementation{Name: "gatebus-demo", Version: "1"}, nil)
	no := false
	server.AddTool(&mcp.Tool{
		Name: "echo", Description: "Answers with the text that it is given.",
		InputSchema: object("text"),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Text string }
		if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
			return failed("echo wants {\"text\": \"…\"}"), nil
		}
		return said(args.Text, nil), nil
	})
	yes := true
	server.AddTool(&mcp.Tool{
		Name: "delete_everything", Description: "Deletes everything. It only pretends to.",
		InputSchema: object(),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no},
	}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return said("Everything is deleted (not really).", nil), nil
	})
	server.AddTool(&mcp.Tool{
		Name: "leak_token", Description: "Answers with the secret of this server, as a careless server would.",
		InputSchema: object(),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return said("The token is "+token+".", map[string]string{"token": token}), nil
	})
	return server.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: nopCloser{out}})
}

// object is the schema of an object with these members, all texts.
func object(members ...string) json.RawMessage {
	properties := map[string]any{}
	for _, m := range members {
		properties[m] = map[string]string{"type": "string"}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(members) > 0 {
		schema["required"] = members
	}
	b, _ := json.Marshal(schema) // texts and lists always have a JSON form
	return b
}

func said(text string, structured any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: structured}
}

func failed(text string) *mcp.CallToolResult {
	r := said(text, nil)
	r.IsError = true
	return r
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// WriteCore writes the demo core below dir: the demo server, started as
// "executable demo-server", and a server at a metadata address, which the URL
// policy denies.
func WriteCore(dir, executable string) error {
	command, err := json.Marshal(executable) // a JSON string is a YAML string
	if err != nil {
		return err
	}
	declarations := filepath.Join(dir, "agent", "mcp")
	if err := os.MkdirAll(declarations, 0o700); err != nil {
		return fmt.Errorf("write demo core: %w", err)
	}
	for name, text := range map[string]string{
		"demo.yaml": fmt.Sprintf(`# The demo server that comes with Gatebus.
transport: stdio
command: %s
args: [demo-server]
env:
  %s: ${%[2]s}
risk: medium
approval_policy: auto
`, command, TokenVariable),
		"metadata.yaml": `# What an attacker would like to be fetched: the credentials of the machine.
transport: streamable_http
url: http://169.254.169.254/latest/meta-data/
`,
	} {
		if err := os.WriteFile(filepath.Join(declarations, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write demo core: %w", err)
		}
	}
	return nil
}
