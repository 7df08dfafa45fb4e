package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// newShelves is a fake with prompts and resources of two servers, that says where
// requests go.
func newShelves() (*fake, *[]string) {
	f := newFake()
	item := func(server, name, key string) client.Item {
		return client.Item{Name: name, Server: server, RawName: name, Definition: json.RawMessage(`{"` + key + `":"` + name + `","n":1.0}`)}
	}
	f.beside = client.Turn{
		Resources: []client.Item{item("demo", "file:///one", "uri"), item("other", "file:///two", "uri")},
		Templates: []client.Item{item("demo", "demo://{+path}", "uriTemplate"), item("other", "other://{a}/{b}", "uriTemplate")},
		Prompts: []client.Item{
			{Name: "demo__greet", Server: "demo", RawName: "greet", Definition: json.RawMessage(`{"name":"demo__greet"}`)},
			{Name: "other__greet", Server: "other", RawName: "greet", Definition: json.RawMessage(`{"name":"other__greet"}`)},
		},
		Servers: []string{"demo", "other"},
	}
	var gone []string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		gone = append(gone, strings.Join([]string{c.Method, c.Name, c.Subject, string(c.Params.Reveal())}, " | "))
		return client.CallReply{Status: "succeeded", ExecutionStarted: true, Result: json.RawMessage(` {"contents":[], "z":1.0}`)}, nil
	}
	return f, &gone
}

func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
}

func TestListsAreTheBytesOfTheServers(t *testing.T) {
	t.Parallel()
	f, _ := newShelves()
	g, _ := start(t, options(f, nil))
	mine := attach(t, g)
	for method, want := range map[string]string{
		"resources/list":           `{"resources":[{"uri":"file:///one","n":1.0},{"uri":"file:///two","n":1.0}]}`,
		"resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"demo://{+path}","n":1.0},{"uriTemplate":"other://{a}/{b}","n":1.0}]}`,
		"prompts/list":             `{"prompts":[{"name":"demo__greet"},{"name":"other__greet"}]}`,
	} {
		if got := do(g, "POST", mine, rpc(method, `{}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":`+want+`}` {
			t.Errorf("%s: got %s\nwant %s", method, got, want)
		}
		want = `{"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{` + info + `},` + want[1:]
		if _, got := ask(g, "1", method, "", ""); got != `{"jsonrpc":"2.0","id":1,"result":`+want+`}` {
			t.Errorf("%s: got %s\nwant %s", method, got, want)
		}
	}
}

func TestRequestGoesToTheServerThatListsIt(t *testing.T) {
	t.Parallel()
	f, gone := newShelves()
	g, _ := start(t, options(f, nil))
	all, one := attach(t, g), attach(t, g, ofDemo)
	for _, c := range []struct{ method, params, want string }{
		{"resources/read", `{"uri":"file:///two", "x":1e400}`, `other | file:///two | {"uri":"file:///two", "x":1e400}`},
		{"resources/read", `{"uri":"other://x/y"}`, `other | other://{a}/{b} | {"uri":"other://x/y"}`},
		{"resources/read", `{"uri":"demo:\/\/x/y/z"}`, `demo | demo://{+path} | {"uri":"demo:\/\/x/y/z"}`},
		{"prompts/get", `{"_meta":{"name":"other__greet"},"name":"other__greet","arguments":{"name":"demo__greet"}}`,
			`other | greet | {"_meta":{"name":"other__greet"},"name":"greet","arguments":{"name":"demo__greet"}}`},
		{"prompts/get", `{"name" : "demo\u005f_greet"}`, `demo | greet | {"name" : "greet"}`},
		{"completion/complete", `{"argument":{"name":"who","value":"x"}, "ref":{"type":"ref/prompt", "name":"other__greet"}}`,
			`other | greet | {"argument":{"name":"who","value":"x"}, "ref":{"type":"ref/prompt", "name":"greet"}}`},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"other://{a}/{b}"},"argument":{"name":"a","value":""}}`,
			`other | other://{a}/{b} | {"ref":{"type":"ref/resource","uri":"other://{a}/{b}"},"argument":{"name":"a","value":""}}`},
	} {
		*gone = nil
		w := do(g, "POST", all, rpc(c.method, c.params))
		if got := w.Body.String(); got != `{"jsonrpc":"2.0","id":1,"result": {"contents":[], "z":1.0}}` || !slices.Equal(*gone, []string{c.method + " | " + c.want}) {
			t.Errorf("%s %s: %q\nwant %s\n%s", c.method, c.params, *gone, c.want, got)
		}
	}
	// At its own endpoint a server has what it lists, and may have more.
	for _, c := range []struct{ method, params, want string }{
		{"resources/read", `{"uri":"file:///one"}`, `demo | file:///one | {"uri":"file:///one"}`},
		{"resources/read", `{"uri":"file:///two"}`, `demo |  | {"uri":"file:///two"}`},
		{"prompts/get", `{"name":"greet"}`, `demo | greet | {"name":"greet"}`},
		{"prompts/get", `{"name":"hidden"}`, `demo |  | {"name":"hidden"}`},
	} {
		*gone = nil
		do(g, "POST", one, rpc(c.method, c.params), ofDemo)
		if !slices.Equal(*gone, []string{c.method + " | " + c.want}) {
			t.Errorf("%s %s: %q\nwant %s", c.method, c.params, *gone, c.want)
		}
	}
	*gone = nil
	for _, c := range []struct {
		method, params  string
		code, stateless int
	}{
		{"resources/read", `{"uri":"file:///three"}`, -32002, -32602},
		{"resources/read", `{"uri":7}`, -32602, -32602},
		{"prompts/get", `{"name":"greet"}`, -32602, -32602},
		{"prompts/get", `{}`, -32602, -32602},
		{"completion/complete", `{"ref":{"type":"ref/prompt"}}`, -32602, -32602},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"demo__greet","Name":"other__greet"}}`, -32600, -32600},
		{"completion/complete", `{"ref":"demo__greet"}`, -32602, -32602},
		{"resources/read", `{"uri":"file:///one","URI":"file:///two"}`, -32600, -32600},
	} {
		code, _, _ := failureOf(t, do(g, "POST", all, rpc(c.method, c.params)).Body.String())
		if code != c.code {
			t.Errorf("%s %s: %d, want %d", c.method, c.params, code, c.code)
		}
		if c.params == `{}` || strings.Contains(c.params, "7") {
			continue
		}
		var named struct{ Name, URI string }
		_ = json.Unmarshal([]byte(c.params), &named)
		name := named.Name
		if c.method == "resources/read" {
			name = "file:///three"
		} else if c.method == "completion/complete" {
			name = ""
		}
		_, body := ask(g, "1", c.method, c.params[1:len(c.params)-1]+",", name)
		if code, _, _ := failureOf(t, body); code != c.stateless {
			t.Errorf("stateless %s %s: %s, want %d", c.method, c.params, body, c.stateless)
		}
	}
	if len(*gone) > 0 {
		t.Errorf("%q", *gone)
	}
}

// A stateless result of a read says how long it may be kept, unless the server does.
func TestStatelessReadIsNotKept(t *testing.T) {
	t.Parallel()
	f, _ := newShelves()
	g, _ := start(t, options(f, nil))
	_, got := ask(g, "1", "resources/read", `"uri":"file:///one",`, "file:///one")
	if want := `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[], "z":1.0}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		return client.CallReply{Status: "succeeded", Result: json.RawMessage(`{"ttlMs":7,"cacheScope":"public"}`)}, nil
	}
	_, got = ask(g, "1", "resources/read", `"uri":"file:///one",`, "file:///one")
	if want := `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":7,"cacheScope":"public"}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if status, body := ask(g, "1", "resources/read", `"uri":"file:///one",`, "file:///two"); status != 400 || !strings.Contains(body, "params.uri") {
		t.Errorf("%d %s", status, body)
	}
}

// What could not be made of a request is an error: there is no result for a model.
func TestRequestThatWasRefusedIsAnError(t *testing.T) {
	t.Parallel()
	f, _ := newShelves()
	g, _ := start(t, options(f, nil))
	mine := attach(t, g)
	asked := 0
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		asked++
		return client.CallReply{Status: "denied", Error: &client.CallError{Kind: string(fault.CapabilityDenied), Message: "no"}}, nil
	}
	if _, kind, _ := failureOf(t, do(g, "POST", mine, rpc("resources/read", `{"uri":"file:///one"}`)).Body.String()); kind != "capability_denied" || asked != 1 {
		t.Errorf("%s after %d", kind, asked)
	}
	raw := `{"code":-32002,"message":"none","data":{"n":1.0}}`
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		return client.CallReply{Status: "failed", ExecutionStarted: true, Error: &client.CallError{Kind: string(fault.ExecutionFailed), JSONRPC: json.RawMessage(raw)}}, nil
	}
	if got := do(g, "POST", mine, rpc("prompts/get", `{"name":"demo__greet"}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"error":`+raw+`}` {
		t.Error(got)
	}
	// A binding that is gone is made anew once.
	var turns []string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		if turns = append(turns, c.Turn); len(turns) == 1 {
			return client.CallReply{Status: "invalid", Error: &client.CallError{Kind: string(fault.RuntimeNotLive)}}, nil
		}
		return client.CallReply{Status: "succeeded", Result: json.RawMessage(`{}`)}, nil
	}
	if got := do(g, "POST", mine, rpc("resources/read", `{"uri":"file:///one"}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` || len(turns) != 2 || turns[0] == turns[1] {
		t.Errorf("%s in %q", got, turns)
	}
}

// A turn from before a server was connected is not the last word.
func TestRequestWaitsForNoTurnOfBefore(t *testing.T) {
	t.Parallel()
	f, gone := newShelves()
	shelves := f.beside
	f.beside = client.Turn{}
	g, _ := start(t, options(f, nil))
	one := attach(t, g, ofDemo)
	f.away = true
	if _, kind, _ := failureOf(t, do(g, "POST", one, rpc("resources/read", `{"uri":"file:///one"}`), ofDemo).Body.String()); kind != "unavailable" || len(*gone) > 0 {
		t.Errorf("%s, %q", kind, *gone)
	}
	f.away, f.beside = false, shelves
	f.publish("catalog-2")
	do(g, "POST", one, rpc("resources/read", `{"uri":"file:///one"}`), ofDemo)
	if want := []string{`resources/read | demo | file:///one | {"uri":"file:///one"}`}; !slices.Equal(*gone, want) {
		t.Errorf("%q", *gone)
	}
}

// A level goes to every server; one that is none goes to nobody. A stateless
// client says with each request whether it wants log messages.
func TestLogMessages(t *testing.T) {
	t.Parallel()
	f, gone := newShelves()
	g, _ := start(t, options(f, nil))
	mine := attach(t, g)
	if got := do(g, "POST", mine, rpc("logging/setLevel", `{"level":"warning"}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
		t.Error(got)
	}
	if want := []string{`logging/setLevel | demo |  | {"level":"warning"}`, `logging/setLevel | other |  | {"level":"warning"}`}; !slices.Equal(*gone, want) {
		t.Errorf("%q", *gone)
	}
	*gone = nil
	if code, _, _ := failureOf(t, do(g, "POST", mine, rpc("logging/setLevel", `{"level":"loud"}`)).Body.String()); code != codeInvalidParams || len(*gone) > 0 {
		t.Errorf("%d, %q", code, *gone)
	}
	var logs []string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		logs = append(logs, fmt.Sprint(c.Logs, c.Notify != nil))
		return client.CallReply{Status: "succeeded", Result: json.RawMessage(`{}`)}, nil
	}
	do(g, "POST", mine, rpc("resources/read", `{"uri":"file:///one"}`))
	ask(g, "1", "resources/read", `"uri":"file:///one",`, "file:///one")
	body := strings.Replace(alone("1", "resources/read", `"uri":"file:///one",`), `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1)
	do(g, "POST", "", body, headersOf("resources/read", "file:///one")...)
	if want := []string{"true true", "false false", "true true"}; !slices.Equal(logs, want) {
		t.Errorf("%q, want %q", logs, want)
	}
}

// Of lists that a client has not asked for, it hears nothing.
func TestChangesAreToldOfWhatWasListed(t *testing.T) {
	t.Parallel()
	f, _ := newShelves()
	g, err := New(options(f, nil))
	if err != nil {
		t.Fatal(err)
	}
	mine := attach(t, g)
	do(g, "POST", mine, rpc("prompts/list", `{}`))
	due := func(changed ...string) (k kinds) {
		g.committed(&events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "x"}, Scope: events.Scope{Session: "defaultana/mcp"},
			Events: []events.Event{events.ToolsDiscovered{Changed: changed}}})
		for _, a := range g.attachments {
			k = a.due(a.changed)
		}
		return k
	}
	for _, c := range []struct {
		changed []string
		want    kinds
	}{{[]string{"tools"}, 0}, {[]string{"tools", "resources"}, 0}, {[]string{"prompts", "tools"}, kindPrompts}, {nil, 0}} {
		if got := due(c.changed...); got != c.want {
			t.Errorf("%q: %b, want %b", c.changed, got, c.want)
		}
	}
	do(g, "POST", mine, rpc("resources/templates/list", `{}`))
	if got := due("tools", "resources", "prompts"); got != kindPrompts|kindResources {
		t.Errorf("%b", got)
	}
}

// A server need not list what its results link to, and what two have named belongs to
// nobody.
func TestWhatAResultLinksToIsReadWhereItComesFrom(t *testing.T) {
	t.Parallel()
	f, gone := newShelves()
	noted := f.call
	said := ""
	f.call = func(ctx context.Context, who Who, c Call) (client.CallReply, error) {
		reply, err := noted(ctx, who, c)
		if c.Method == "" || c.Method == "prompts/get" {
			reply.Result = json.RawMessage(said)
		}
		return reply, err
	}
	g, _ := start(t, options(f, nil))
	all, one := attach(t, g), attach(t, g, ofDemo)
	read := func(uri string) (code int, at string) {
		*gone = nil
		body := do(g, "POST", all, rpc("resources/read", `{"uri":"`+uri+`"}`)).Body.String()
		if len(*gone) == 1 {
			return 0, strings.SplitN((*gone)[0], " | ", 3)[1]
		}
		code, _, _ = failureOf(t, body)
		return code, ""
	}
	if code, _ := read("x:1"); code != -32002 {
		t.Errorf("before it is named: %d", code)
	}
	said = `{"content":[{"type":"text","text":"resource_link"},{"uri":"x:\u0031","type":"resource_link"},{"type":"image","uri":"x:3"},7],"y":1e400}`
	do(g, "POST", all, rpc("tools/call", `{"name":"demo__echo","arguments":{}}`))
	said = `{"messages":[{"role":"user","content":{"type":"resource_link","uri":"x:2"}}]}`
	do(g, "POST", all, rpc("prompts/get", `{"name":"other__greet"}`))
	for uri, want := range map[string]string{"x:1": "demo", "x:2": "other", "x:3": "", "file:///two": "other"} {
		if code, at := read(uri); at != want || (code == 0) != (want != "") {
			t.Errorf("%s is read at %q, %d; want %q", uri, at, code, want)
		}
	}
	// Attachments know nothing of each other.
	if body := do(g, "POST", attach(t, g), rpc("resources/read", `{"uri":"x:1"}`)).Body.String(); !strings.Contains(body, "-32002") {
		t.Errorf("another client: %s", body)
	}
	do(g, "POST", one, rpc("prompts/get", `{"name":"greet"}`), ofDemo)
	said = `{"messages":[{"role":"user","content":{"type":"resource_link","uri":"x:1"}},{"content":{"type":"resource_link","uri":"file:///two"}}]}`
	do(g, "POST", all, rpc("prompts/get", `{"name":"other__greet"}`))
	if code, at := read("x:1"); code != -32002 || at != "" {
		t.Errorf("named by two, it is read at %q, %d", at, code)
	}
	do(g, "POST", all, rpc("prompts/get", `{"name":"demo__greet"}`))
	if _, at := read("file:///two"); at != "other" {
		t.Errorf("what a server lists is read at %q", at)
	}
}

func TestLinksAreBounded(t *testing.T) {
	t.Parallel()
	a := newAttachment(nil, address{})
	for i := range maxLinks + 10 {
		a.link("demo", fmt.Appendf(nil, `{"content":[{"type":"resource_link","uri":"x:%d"}]}`, i))
	}
	if n := len(a.links.servers); n != maxLinks || len(a.links.order) != maxLinks || a.links.servers["x:9"] != "" || a.links.servers["x:10"] != "demo" {
		t.Errorf("%d are remembered, %d in order", n, len(a.links.order))
	}
}
