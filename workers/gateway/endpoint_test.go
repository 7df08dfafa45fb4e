package gateway

import (
	"context"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/google/go-cmp/cmp"
)

var ofDemo = header{"Path", serverPath + "demo"}

// At the endpoint of a server its tools have the names and definitions that it
// gave them, in a session of that path.
func TestEndpointOfOneServer(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.publish("catalog-1", tool("demo__echo"), tool("other__echo"), tool("demo__last"))
	var called []string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		called = append(called, c.Turn+" "+c.Name)
		return client.CallReply{Result: c.Params.Reveal()}, nil
	}
	g, _ := start(t, options(f, nil))
	all, one := attach(t, g), attach(t, g, ofDemo)
	want := `{"jsonrpc":"2.0","id":1,"result":{"tools":[` + string(definition("echo")) + `,` + string(definition("last")) + `]}}`
	if got := do(g, "POST", one, list, ofDemo).Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, c := range []struct {
		session, name, want string
		headers             []header
	}{
		{one, "echo", `{"jsonrpc":"2.0","id":1,"result":{"name":"echo","arguments":{},"_meta":{"progressToken":"p-1"}}}`, []header{ofDemo}},
		{one, "demo__echo", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool","data":{"kind":"not_found","code":"GB5001"}}}`, []header{ofDemo}},
		{all, "demo__echo", `{"jsonrpc":"2.0","id":1,"result":{"name":"demo__echo","arguments":{},"_meta":{"progressToken":"p-1"}}}`, nil},
		{all, "echo", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool","data":{"kind":"not_found","code":"GB5001"}}}`, nil},
	} {
		if got := do(g, "POST", c.session, callOf("1", c.name), c.headers...).Body.String(); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
	if diff := cmp.Diff([]string{"turn-1 demo__echo", "turn-2 demo__echo"}, called); diff != "" {
		t.Error(diff)
	}
	sessions := map[string]bool{}
	for _, a := range g.attachments {
		sessions[a.session] = true
	}
	if diff := cmp.Diff(map[string]bool{"defaultana/mcp": true, "defaultana/mcp/s/demo": true}, sessions); diff != "" {
		t.Error(diff)
	}
}

// A server without tools has an empty list, and one that is not there none.
func TestEndpointOfAServerWithoutTools(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	empty := header{"Path", serverPath + "empty"}
	if got := do(g, "POST", attach(t, g, empty), list, empty).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}` {
		t.Errorf("%s", got)
	}
	w := do(g, "POST", "", initialize, header{"Path", serverPath + "nobody"})
	if code, kind, _ := failureOf(t, w.Body.String()); w.Code != 404 || code != -32015 || kind != "not_found" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = do(g, "POST", "", initialize, header{"Path", serverPath + "nobody"}, header{"Authorization", ""})
	if w.Code != 401 {
		t.Errorf("who has no token is told which servers there are: %d", w.Code)
	}
}

// An Mcp-Session-Id is of one path.
func TestSessionOfAnotherEndpointIsNotFound(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	all, one := attach(t, g), attach(t, g, ofDemo)
	empty := header{"Path", serverPath + "empty"}
	for _, c := range []struct {
		session string
		at      header
	}{{all, ofDemo}, {one, header{"Path", path}}, {one, empty}} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			w := do(g, method, c.session, list, c.at)
			if code, _, _ := failureOf(t, w.Body.String()); w.Code != 404 || code != -32015 {
				t.Errorf("%s %s: %d %s", method, c.at.value, w.Code, w.Body)
			}
		}
	}
	for session, at := range map[string]header{all: {"Path", path}, one: ofDemo} {
		if w := do(g, "POST", session, list, at); w.Code != 200 {
			t.Errorf("%s: %d", at.value, w.Code)
		}
	}
}
