package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An era is how a client and a server begin: with a handshake, or with none.
type era string

const (
	handshake era = "2025-11-25"
	stateless era = "2026-07-28"
)

var eras = []era{handshake, stateless}

// word is the era in names and paths.
func (e era) word() string { return string(e[:4]) }

// roles are what this program is when it is started by itself. Each serves until
// its stdin ends, and says its address in a line.
var roles = map[string]func(args []string) error{
	"echo":  echoMain,
	"proxy": proxyMain,
	"sdk":   sdkMain,
}

// echoServer is an MCP server of one era with the tool echo and as many others.
func echoServer(e era, others int) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1"}, &mcp.ServerOptions{SupportedProtocolVersions: []string{string(e)}})
	answer := func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in struct{ Text string }
		if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil
	}
	schema := json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","description":"What to say."}},"required":["text"]}`)
	s.AddTool(&mcp.Tool{Name: "echo", Description: "Answers with the text that it is given.", InputSchema: schema}, answer)
	for i := range others {
		s.AddTool(&mcp.Tool{
			Name: fmt.Sprintf("tool%03d", i), Description: "Answers with the text that it is given, as all of the tools of this server do.", InputSchema: schema,
		}, answer)
	}
	return s
}

// echoMain is the echo server: at stdio, or behind HTTP at a path for each era.
func echoMain(args []string) error {
	flags := flag.NewFlagSet("echo", flag.ContinueOnError)
	pipe := flags.String("stdio", "", "the era, at stdio")
	tools := flags.Int("tools", 0, "so many more tools")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *pipe != "" {
		return echoServer(era(*pipe), *tools).Run(context.Background(), &mcp.StdioTransport{})
	}
	mux := http.NewServeMux()
	for _, e := range eras {
		mux.Handle("/"+e.word(), handler(e, echoServer(e, *tools)))
	}
	return serve(mux)
}

// handler serves a server of one era over streamable HTTP, with event streams, as
// the SDK does by itself.
func handler(e era, s *mcp.Server) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: e == stateless})
}

// serve says its address and serves until stdin ends.
func serve(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	go func() { _ = http.Serve(l, h) }() // until the process ends
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// proxyMain is a bare reverse proxy: it looks at nothing and keeps nothing. It
// reads a request whole before it sends it on, as httputil.ReverseProxy loses calls
// above 10 KB by not doing so.
func proxyMain(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("proxy URL")
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}
	return serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		out, err := http.NewRequestWithContext(r.Context(), r.Method, args[0]+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out.Header = r.Header
		answer, err := transport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		flush := http.NewResponseController(w)
		for buf := make([]byte, 32<<10); err == nil; {
			var n int
			n, err = answer.Body.Read(buf)
			if _, e := w.Write(buf[:n]); e != nil || flush.Flush() != nil {
				return
			}
		}
	}))
}

// sdkMain is a gateway as one writes it with the SDK: a server whose tools call a
// client. It serves a path for each server behind it.
func sdkMain(args []string) error {
	ctx := context.Background()
	mux := http.NewServeMux()
	for _, arg := range args {
		name, target, _ := strings.Cut(arg, "=")
		e := eras[0]
		if strings.HasSuffix(name, eras[1].word()) {
			e = eras[1]
		}
		var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: target, DisableStandaloneSSE: true}
		if !strings.HasPrefix(target, "http:") {
			transport = &mcp.CommandTransport{Command: exec.Command(target, "echo", "-stdio", string(e))}
		}
		behind, err := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, nil).Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: string(e)})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ServerOptions{SupportedProtocolVersions: []string{string(e)}})
		for tool, err := range behind.Tools(ctx, nil) {
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			s.AddTool(tool, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return behind.CallTool(ctx, &mcp.CallToolParams{Name: r.Params.Name, Arguments: r.Params.Arguments})
			})
		}
		mux.Handle("/"+name, handler(e, s))
	}
	return serve(mux)
}
