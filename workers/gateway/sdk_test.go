package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// An independent client lists, calls, hears of changes and progress, cancels
// and leaves, in each revision. The default is the newest one.
func TestSDKClient(t *testing.T) {
	t.Parallel()
	for _, version := range append([]string{""}, served...) {
		t.Run("version "+version, func(t *testing.T) {
			t.Parallel()
			f, l := newFake(), make(fakeLog)
			// The peer's types cannot hold the numbers of the other tests.
			plain := func(name string) client.Tool {
				return client.Tool{Name: name, Definition: json.RawMessage(`{"name":"` + name + `","inputSchema":{"type":"object"}}`)}
			}
			f.publish("catalog-1", plain("demo__echo"), plain("demo__other"))
			cancelled := make(chan struct{})
			entered := make(chan struct{})
			f.call = func(ctx context.Context, _ Who, c Call) (client.CallReply, error) {
				if c.Name == "demo__other" {
					close(entered)
					<-ctx.Done()
					close(cancelled)
					return client.CallReply{}, ctx.Err()
				}
				c.Notify([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1,"message":"half"}}`))
				return client.CallReply{Result: json.RawMessage(`{"content":[{"type":"text","text":"hi"}]}`)}, nil
			}
			g, _ := start(t, options(f, l))
			s := serveLoopback(t, g)
			changed, progress := make(chan struct{}, 1), make(chan string, 1)
			c := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ClientOptions{
				ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					progress <- r.Params.Message
				},
			})
			ctx := t.Context()
			cs, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.URL + path, HTTPClient: &http.Client{Transport: bearer{"token-of-ana"}}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			want, left := version, 0
			if want == "" || want == stateless {
				want, left = stateless, 1
			}
			if got := cs.InitializeResult(); got.ProtocolVersion != want || got.ServerInfo.Name != "gatebus" || got.ServerInfo.Version != "1.2.3" {
				t.Errorf("initialize: %+v", got)
			}
			if err := cs.Ping(ctx, nil); err != nil && want != stateless {
				t.Error(err)
			}
			tools, err := cs.ListTools(ctx, nil)
			if err != nil || len(tools.Tools) != 2 || tools.Tools[0].Name != "demo__echo" {
				t.Fatalf("%+v, %v", tools, err)
			}
			params := &mcp.CallToolParams{Name: "demo__echo", Arguments: map[string]any{}}
			params.SetProgressToken("mine")
			res, err := cs.CallTool(ctx, params)
			if err != nil || len(res.Content) != 1 {
				t.Fatalf("%+v, %v", res, err)
			}
			if got := <-progress; got != "half" {
				t.Errorf("progress %q", got)
			}
			l <- &events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "x"}, Scope: events.Scope{Session: "defaultana/mcp"}, Events: []events.Event{events.ToolsDiscovered{}}}
			<-changed

			call, cancel := context.WithCancel(ctx)
			failed := make(chan error)
			go func() {
				_, err := cs.CallTool(call, &mcp.CallToolParams{Name: "demo__other"})
				failed <- err
			}()
			<-entered
			cancel()
			if err := <-failed; err == nil {
				t.Error("a cancelled call has a result")
			}
			<-cancelled
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.attachments) != left {
				t.Errorf("%d attachments are left", len(g.attachments))
			}
		})
	}
}

// C3 29: a client of a session that is over is told so that it begins anew.
func TestSDKClientSeesThatItsSessionIsOver(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	s := serveLoopback(t, g)
	c := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, nil)
	cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + path, DisableStandaloneSSE: true, HTTPClient: &http.Client{Transport: bearer{"token-of-ana"}}}, &mcp.ClientSessionOptions{ProtocolVersion: versions[0]})
	if err != nil {
		t.Fatal(err)
	}
	g.end(func(*attachment) bool { return true })
	if _, err := cs.ListTools(t.Context(), nil); !errors.Is(err, mcp.ErrSessionMissing) {
		t.Errorf("%v", err)
	}
}
