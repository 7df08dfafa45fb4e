// Counter is a fake MCP server with one tool, count, whose effect can be
// counted from outside: it appends its argument id as a line to the file named
// by COUNTER_FILE before it answers, COUNTER_DELAY later where that is set. Two
// lines for one call are a call that was made twice.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type args struct {
	ID string `json:"id" jsonschema:"the line to append"`
}

func count(_ context.Context, _ *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
	// O_APPEND makes short writes of several processes whole lines.
	file, err := os.OpenFile(os.Getenv("COUNTER_FILE"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if _, err = fmt.Fprintln(file, in.ID); err == nil {
		err = file.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	if delay, err := time.ParseDuration(os.Getenv("COUNTER_DELAY")); err == nil {
		time.Sleep(delay)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "counted " + in.ID}}}, nil, nil
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "counter", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count", Description: "Appends id to the counter file."}, count)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
