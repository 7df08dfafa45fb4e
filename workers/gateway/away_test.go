package gateway

import (
	"context"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
)

// A client has the names of tools from a list of before.
func TestToolOfAServerThatIsAway_R134_R167(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.publish("catalog-1", tool("other__echo"))
	f.lacks(
		client.Diagnostic{Server: "demo", Code: "unavailable", Message: "the server is being connected again"},
		client.Diagnostic{Server: "my docs", Code: "approval_pending", Message: "connecting waits for a person's approval", Approval: "a-1"},
		client.Diagnostic{Server: "shut", Code: "approval_denied", Message: "connecting was denied"},
		client.Diagnostic{Server: "theirs", Code: "capability_denied", Message: "the principal lacks mcp.connect:theirs"},
	)
	f.away = true
	g, _ := start(t, options(f, nil))
	all, one := attach(t, g), attach(t, g, ofDemo)
	result := func(text, structured string) string {
		return `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + text + `; nothing was started"}],"structuredContent":` + structured + `,"isError":true}}`
	}
	away := result("unavailable (GB3012): server demo: the server is being connected again",
		`{"code":"unavailable","server":"demo","execution_started":false,"retry_after_ms":5000}`)
	unknown := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool","data":{"kind":"not_found","code":"GB5001"}}}`
	for _, c := range []struct {
		session, name, want string
		headers             []header
	}{
		{all, "demo__echo", away, nil},
		{one, "echo", away, []header{ofDemo}},
		{all, "my-docs__read", result("approval_pending (GB2004): server my docs: connecting waits for a person's approval (gatebus approve a-1)",
			`{"code":"approval_pending","server":"my docs","approval":"a-1","execution_started":false,"retry_after_ms":5000}`), nil},
		{all, "shut__read", result("approval_denied (GB2003): server shut: connecting was denied",
			`{"code":"approval_denied","server":"shut","execution_started":false}`), nil},
		{all, "theirs__read", unknown, nil},
		{all, "demo", unknown, nil},
		{all, "demonstration__echo", unknown, nil},
		{all, "other__nothing", unknown, nil},
	} {
		if got := do(g, "POST", c.session, callOf("1", c.name), c.headers...).Body.String(); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
	// Whose a resource is that was never listed is known at the endpoint of one server.
	const read = `{"uri":"file:///never-listed"}`
	for session, want := range map[string]string{
		one: `"error":{"code":-32013,"message":"server demo: the server is being connected again","data":{"kind":"unavailable","code":"GB3012"}}`,
		all: `"error":{"code":-32002,"message":"Resource not found; it may be of one that is away: server demo: the server is being connected again; ` +
			`server my docs: connecting waits for a person's approval (gatebus approve a-1); server shut: connecting was denied","data":{"kind":"not_found","code":"GB5001"}}`,
	} {
		var headers []header
		if session == one {
			headers = []header{ofDemo}
		}
		if got := do(g, "POST", session, rpc("resources/read", read), headers...).Body.String(); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	// Why it is away is not in the catalog, whose turn is used again.
	f.lacks(client.Diagnostic{Server: "demo", Code: "server_failed", Message: "the server failed"})
	if got := do(g, "POST", all, callOf("1", "demo__echo")).Body.String(); !strings.Contains(got, `"code":"server_failed"`) {
		t.Errorf("%s", got)
	}
	f.lacks()
	if got := do(g, "POST", all, callOf("1", "demo__echo")).Body.String(); got != unknown {
		t.Errorf("%s", got)
	}
}

// A server that goes away between the list and the call has not changed its tool.
func TestServerThatGoesAwayAfterTheList(t *testing.T) {
	t.Parallel()
	away := `"message":"server demo: the server is being connected again","data":{"kind":"unavailable","code":"GB3012"}`
	for method, c := range map[string]struct{ body, want string }{
		"tools/call":     {callOf("1", "demo__echo"), `"code":"unavailable","server":"demo"`},
		"resources/read": {rpc("resources/read", `{"uri":"file:///one"}`), away},
		"prompts/get":    {rpc("prompts/get", `{"name":"demo__greet"}`), away},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			f, _ := newShelves()
			f.call = func(context.Context, Who, Call) (client.CallReply, error) {
				f.publish("catalog-2")
				f.lacks(client.Diagnostic{Server: "demo", Code: "unavailable", Message: "the server is being connected again"})
				f.mu.Lock()
				defer f.mu.Unlock()
				f.beside = client.Turn{Servers: []string{"other"}}
				return client.CallReply{Status: "invalid", Error: &client.CallError{Kind: "runtime_not_live"}}, nil
			}
			g, _ := start(t, options(f, nil))
			session := attach(t, g)
			do(g, "POST", session, list)
			if got := do(g, "POST", session, c.body).Body.String(); !strings.Contains(got, c.want) {
				t.Errorf("%s", got)
			}
		})
	}
}
