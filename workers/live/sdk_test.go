package live

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/httpclient"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sdkServer is a server of the SDK with a tool that says ok and one that ends when
// its request is cancelled, and says so.
func sdkServer(cancelled chan<- struct{}) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "7"}, nil)
	add := func(name string, handler mcp.ToolHandler) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, handler)
	}
	add("ok", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ok"}}}, nil
	})
	add("slow", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	})
	return s
}

// overHTTP opens a connection to a server behind HTTP.
func overHTTP(t *testing.T, h http.Handler, opts Options) *Conn {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	c, err := Open(t.Context(), httpclient.New(httpclient.Options{
		URL: server.URL, Gate: httpclient.Gate{Policy: urlpolicy.Private()},
		Record: func(context.Context, events.UrlDecision) error { return nil },
	}), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// A handler of the SDK is of one era; the SDK over stdio is of both.
func TestServersOfTheSDKAreSpokenToInTheNewestEraTheyHave(t *testing.T) {
	t.Parallel()
	servers := map[string]*Conn{"2026-07-28 stdio": open(t, Options{Name: "gatebus", OnListChanged: func(*Conn) {}}, "counter")}
	for name, stateless := range map[string]bool{"2026-07-28": true, "2025-11-25": false} {
		s := sdkServer(nil)
		servers[name] = overHTTP(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: stateless}),
			Options{Name: "gatebus", Version: "1", OnListChanged: func(*Conn) {}})
	}
	for name, c := range servers {
		if info := c.Info(); info.Protocol != name[:10] || info.Name == "" || info.Version == "" || len(info.Capabilities) == 0 {
			t.Errorf("%s: %+v", name, info)
		}
		tools, _, err := c.List(t.Context(), Tools)
		if err != nil || len(tools) == 0 {
			t.Errorf("%s: %v, %v", name, tools, err)
		}
		// Errors are the server's too.
		if reply, err := c.Call(t.Context(), "tools/call", raw(`{"name":"none","arguments":{}}`), CallOptions{}); err != nil || reply.Error == nil {
			t.Errorf("%s: %s, %v", name, reply.Result, err)
		}
	}
	for _, name := range []string{"2026-07-28", "2025-11-25"} {
		call(t, servers[name], `{"name":"ok","arguments":{}}`)
	}
}

func TestAServerOfTheSDKHearsOfCancelledCallsAndTellsOfTools(t *testing.T) {
	t.Parallel()
	cancelled, changed := make(chan struct{}), make(chan struct{}, 10)
	s := sdkServer(cancelled)
	c := overHTTP(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true,
	}), Options{Name: "gatebus", Version: "1", OnListChanged: func(*Conn) { changed <- struct{}{} }})
	ctx := &endable{t.Context(), make(chan struct{}), context.Canceled}
	if _, err := c.Call(ctx, "tools/call", raw(`{"name":"slow","arguments":{},"_meta":{"progressToken":0}}`), CallOptions{
		Notify: func(Notice) { close(ctx.done) },
	}); err != context.Canceled {
		t.Error(err)
	}
	<-cancelled
	s.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	<-changed
	if tools, _, err := c.List(t.Context(), Tools); err != nil || len(tools) != 3 {
		t.Errorf("%v, %v", tools, err)
	}
}

// A server that wants parameters in headers refuses a call without them.
func TestParametersAreRepeatedInHeadersWhereTheToolWantsIt(t *testing.T) {
	t.Parallel()
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "7"}, nil)
	s.AddTool(&mcp.Tool{Name: "query", InputSchema: json.RawMessage(`{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},"text":{"type":"string"},
		"limit":{"type":"object","properties":{"rows":{"type":"integer","x-mcp-header":"Limit-Rows"},"all":{"type":"boolean","x-mcp-header":"All"}}}}}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
		})
	headers := make(chan http.Header, 10)
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true})
	c := overHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") == "tools/call" {
			headers <- r.Header.Clone()
		}
		h.ServeHTTP(w, r)
	}), Options{Name: "gatebus", Version: "1"})
	if tools, _, err := c.List(t.Context(), Tools); err != nil || len(tools) != 1 {
		t.Fatalf("%v, %v", tools, err)
	}
	for arguments, want := range map[string][]string{
		`{"region":"us-west1","text":"no","limit":{"rows":42,"all":false}}`: {"us-west1", "42", "false"},
		`{"limit":{"rows":1e2}, "region":"Zürich "}`:                        {"=?base64?WsO8cmljaCA=?=", "100", ""},
		`{"region":null,"rows":7}`:                                          {"", "", ""},
		`{}`:                                                                {"", "", ""},
	} {
		call(t, c, `{"arguments":`+arguments+`,"name":"query"}`)
		h := <-headers
		got := []string{h.Get("Mcp-Param-Region"), h.Get("Mcp-Param-Limit-Rows"), h.Get("Mcp-Param-All")}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", arguments, diff)
		}
	}
}

func TestOnlyParametersThatMayBeAreRepeated(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]map[string][]string{
		`{"properties":{"a":{"type":"string"},"x-mcp-header":{"type":"string"}}}`:                            {},
		`{"properties":{"a":{"x-mcp-header":"A-b","type":"string"},"b":true}}`:                               {"a-b": {"a"}},
		`{"items":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`:                                {},
		`{"properties":{"p":{"properties":{"q":{"type":"integer","x-mcp-header":"A"}}}}}`:                    {"a": {"p", "q"}},
		`{"properties":{"a":{"x-mcp\u002dheader":"A","ty\u0070e":"string"}}}`:                                {"a": {"a"}},
		`{"proper\u0074ies":{"a":{"x\u002Dmcp-header":"A b","type":"string"}}}`:                              nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A","x-mcp\u002dheader":"B"}}}`:                  nil,
		`{"properties":{},"prop\u0065rties":{"a":{"type":"string","x-mcp-header":"A"}}}`:                     nil,
		`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`:                                          nil,
		`{"properties":{"a":{"x-mcp-header":"A"}}}`:                                                          nil,
		`{"properties":{"a":{"type":["string"],"x-mcp-header":"A"}}}`:                                        nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`:                                           nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":7}}}`:                                            nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`:                                        nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":"a\r\nHost"}}}`:                                  nil,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`: nil,
	} {
		got := map[string][]string{}
		if err := annotated([]byte(schema), nil, got); (err != nil) != (want == nil) {
			t.Errorf("%s: %v", schema, err)
		}
		if diff := cmp.Diff(want, got); want != nil && diff != "" {
			t.Errorf("%s: %s", schema, diff)
		}
	}
}
