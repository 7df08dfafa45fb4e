package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/google/go-cmp/cmp"
)

// self is what a client says of itself, as members of _meta.
const self = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

const info = `"io.modelcontextprotocol/serverInfo":{"name":"gatebus","version":"1.2.3"}`

// alone is a request that stands for itself; params has members before _meta.
func alone(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `"_meta":{` + self + `}}}`
}

// headersOf are the headers that a request must have.
func headersOf(method, name string, more ...header) []header {
	h := []header{{versionHeader, stateless}, {methodHeader, method}}
	if name != "" {
		h = append(h, header{nameHeader, name})
	}
	return append(h, more...)
}

// ask serves a request that stands for itself.
func ask(g *Gateway, id, method, params, name string, more ...header) (status int, answer string) {
	w := do(g, "POST", "", alone(id, method, params), headersOf(method, name, more...)...)
	if w.Header().Get(sessionHeader) != "" {
		panic("a session id was given")
	}
	return w.Code, w.Body.String()
}

func TestStatelessBytes(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	hints := func(ttl string) string {
		return `{"resultType":"complete","ttlMs":` + ttl + `,"cacheScope":"private","_meta":{` + info + `},`
	}
	for _, id := range []string{`1`, `-1.0E+2`, `12345678901234567890`, `"s-\u00e9\/"`} {
		for _, c := range []struct{ method, want string }{
			{"server/discover", hints("300000") + `"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{}}}`},
			{"tools/list", hints("0") + `"tools":[` + string(definition("demo__echo")) + `,` + string(definition("demo__other")) + `]}`},
		} {
			if status, got := ask(g, id, c.method, "", ""); status != 200 || got != `{"jsonrpc":"2.0","id":`+id+`,"result":`+c.want+`}` {
				t.Errorf("%s: %d\n got %s\nwant %s", c.method, status, got, c.want)
			}
		}
	}
	status, got := ask(g, "1", "tools/list", "", "", ofDemo)
	if want := `{"jsonrpc":"2.0","id":1,"result":` + hints("0") + `"tools":[` + string(definition("echo")) + `,` + string(definition("other")) + `]}}`; status != 200 || got != want {
		t.Errorf("%d\n got %s\nwant %s", status, got, want)
	}
}

// What a client says of itself goes no further; every other byte of the params
// does.
func TestStatelessParamsGoThroughUntouched(t *testing.T) {
	t.Parallel()
	f := newFake()
	var got string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		got = string(c.Params.Reveal())
		return client.CallReply{Result: []byte("{}")}, nil
	}
	g, _ := start(t, options(f, nil))
	for meta, want := range map[string]string{
		self:                            ``,
		`"progressToken" : 1e2,` + self: `"progressToken":1e2`,
		self + `,"x":[ 1.0 ]`:           `"x":[ 1.0 ]`,
		`"n":12345678901234567890, ` + self + ` ,"traceparent":"\u00e9"`: `"n":12345678901234567890,"traceparent":"\u00e9"`,
	} {
		for _, params := range []string{
			`{"name":"demo__echo","arguments":{"z":1.0,"a":1e400},"_meta":{META}}`,
			`{ "_meta" : {META} , "name":"demo\u005f_echo" , "vendor":null}`,
		} {
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Replace(params, "META", meta, 1) + `}`
			if w := do(g, "POST", "", body, headersOf("tools/call", "demo__echo")...); w.Code != 200 || w.Body.String() != `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete"}}` {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
			if want := strings.Replace(params, "META", want, 1); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
		}
	}
}

// What a client can be asked for goes beside the params, where the result may ask and
// the client would know what it is asked.
func TestStatelessInputIsOfferedWhereItMayBeAskedFor(t *testing.T) {
	t.Parallel()
	f, _ := newShelves()
	const result = `{"resultType":"input_required","requestState":"s","n":1e400}`
	var got []byte
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		got = c.Input
		return client.CallReply{Status: "succeeded", Result: []byte(result)}, nil
	}
	f.publish("catalog-1", tool("demo__echo"))
	g, _ := start(t, options(f, nil))
	id := attach(t, g)
	const able = `{"tasks":{},"sampling":{"x":1.0, "tools":{}},"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{} ,"roots":true}`
	meta := strings.TrimSuffix(self, `{}`) + able
	for _, c := range []struct{ method, name, params, want string }{
		{"tools/call", "demo__echo", `"name":"demo__echo","inputResponses":{"a":1.0},"requestState":"s",`, `{"sampling":{"x":1.0, "tools":{}},"elicitation":{}}`},
		{"prompts/get", "demo__greet", `"name":"demo__greet",`, `{"sampling":{"x":1.0, "tools":{}},"elicitation":{}}`},
		{"resources/read", "file:///one", `"uri":"file:///one",`, `{"sampling":{"x":1.0, "tools":{}},"elicitation":{}}`},
		{"completion/complete", "", `"ref":{"type":"ref/prompt","name":"demo__greet"},`, ``},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"` + c.method + `","params":{` + c.params + `"_meta":{` + meta + `}}}`
		w := do(g, "POST", "", body, headersOf(c.method, c.name)...)
		if string(got) != c.want || (got == nil) != (c.want == "") || w.Body.String() != `{"jsonrpc":"2.0","id":1,"result":`+result+`}` {
			t.Errorf("%s: offered %s, answered %s", c.method, got, w.Body)
		}
		if got = nil; c.want == "" {
			continue
		}
		// One with nothing to offer knows the question, one with a handshake does not.
		if ask(g, "1", c.method, c.params, c.name); string(got) != `{}` {
			t.Errorf("%s: offered %s of nothing", c.method, got)
		}
		got = nil
		if do(g, "POST", id, `{"jsonrpc":"2.0","id":1,"method":"`+c.method+`","params":{`+c.params+`"_meta":{"io.modelcontextprotocol/clientCapabilities":`+able+`}}}`); got != nil {
			t.Errorf("%s: offered %s in a session", c.method, got)
		}
	}
	// Who folds cases would read another member there than the one that was judged.
	for _, params := range []string{`"InputResponses":{},`, `"request\u0053tate":"s",`} {
		if status, answer := ask(g, "1", "tools/call", `"name":"demo__echo",`+params, "demo__echo"); status != 400 {
			t.Errorf("%s: %d %s", params, status, answer)
		}
	}
}

// A result says what it is: the server's word, or that it is complete.
func TestStatelessResults(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	for _, c := range []struct {
		reply  client.CallReply
		status int
		want   string
	}{
		{client.CallReply{Result: []byte(`{"content":[],"n":1e400 }`)}, 200, `"result":{"resultType":"complete","content":[],"n":1e400 }}`},
		{client.CallReply{Result: []byte(" {\n}")}, 200, `"result":{"resultType":"complete"}}`},
		{client.CallReply{Result: []byte(`{"a":1,"resultType":"input_required"}`)}, 200, `"result":{"a":1,"resultType":"input_required"}}`},
		{client.CallReply{Result: []byte(`{"result\u0054ype":"complete"}`)}, 200, `"result":{"result\u0054ype":"complete"}}`},
		{client.CallReply{Result: []byte(`{"structuredContent":{"resultType":"x"},"s":"\"resultType\""}`)}, 200, `"result":{"resultType":"complete","structuredContent":{"resultType":"x"},"s":"\"resultType\""}}`},
		{client.CallReply{Status: "denied", Call: "c1", Error: &client.CallError{Kind: "capability_denied", Message: "no"}}, 200, `"result":{"resultType":"complete","content":[{"type":"text","text":"capability_denied (GB2002): no"}],"structuredContent":{"code":"capability_denied","status":"denied","call":"c1","execution_started":false},"isError":true}}`},
		{client.CallReply{Status: "not_found"}, 400, `"error":{"code":-32602,"message":"Unknown tool","data":{"kind":"not_found","code":"GB5001"}}}`},
		{client.CallReply{Error: &client.CallError{JSONRPC: json.RawMessage(`{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}`)}}, 400, `"error":{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}}`},
		{client.CallReply{Error: &client.CallError{JSONRPC: json.RawMessage(`{"code":7,"message":"m"}`)}}, 200, `"error":{"code":7,"message":"m"}}`},
	} {
		f.call = func(context.Context, Who, Call) (client.CallReply, error) { return c.reply, nil }
		if status, got := ask(g, "1", "tools/call", `"name":"demo__echo",`, "demo__echo"); status != c.status || got != `{"jsonrpc":"2.0","id":1,`+c.want {
			t.Errorf("%d\n got %s\nwant %s", status, got, c.want)
		}
	}
}

// The headers say what the body says, or nothing is done.
func TestStatelessRequestsAreChecked(t *testing.T) {
	t.Parallel()
	f := newFake()
	calls := 0
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		calls++
		return client.CallReply{Result: []byte("{}")}, nil
	}
	f.publish("catalog-1", tool("demo__echo"), tool("demo__é"))
	g, _ := start(t, options(f, nil))
	encode := func(s string) string { return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?=" }
	call, unicode := alone("1", "tools/call", `"name":"demo__echo",`), alone("1", "tools/call", `"name":"demo__é",`)
	good := headersOf("tools/call", "demo__echo")
	with := func(name, value string) []header { return append(slices.Clone(good), header{name, value}) }
	without := func(member string) string { return strings.Replace(call, member, "", 1) }
	for _, c := range []struct {
		name, body   string
		headers      []header
		status, code int
	}{
		{"good", call, good, 200, 0},
		{"without clientInfo", without(`"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},`), good, 200, 0},
		{"encoded name", call, with(nameHeader, encode("demo__echo")), 200, 0},
		{"name beyond ASCII", unicode, with(nameHeader, encode("demo__é")), 200, 0},
		{"no version header", call, with(versionHeader, ""), 400, codeHeader},
		{"another version in the header", call, with(versionHeader, "2027-01-01"), 400, codeHeader},
		{"handshake version in the header", call, with(versionHeader, "2025-11-25"), 400, codeHeader},
		{"unknown version", strings.Replace(call, stateless, "v999", 1), with(versionHeader, "v999"), 400, codeVersion},
		{"no version in _meta", without(`"io.modelcontextprotocol/protocolVersion":"2026-07-28",`), good, 400, codeInvalidParams},
		{"version that is a number", strings.Replace(call, `"2026-07-28"`, "1", 1), good, 400, codeInvalidParams},
		{"no capabilities", without(`,"io.modelcontextprotocol/clientCapabilities":{}`), good, 400, codeInvalidParams},
		{"capabilities that are a list", strings.Replace(call, `Capabilities":{}`, `Capabilities":[]`, 1), good, 400, codeInvalidParams},
		{"clientInfo that is a string", strings.Replace(call, `{"name":"c","version":"1"}`, `"c"`, 1), good, 400, codeInvalidParams},
		{"no _meta", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}`, good, 400, codeInvalidParams},
		{"_meta that is a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","_meta":[]}}`, good, 400, codeInvalidParams},
		{"no params", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headersOf("tools/list", ""), 400, codeInvalidParams},
		{"version in _meta twice", strings.Replace(call, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/protocolversion":"x",`, 1), good, 400, -32600},
		{"no method header", call, with(methodHeader, ""), 400, codeHeader},
		{"another method", call, with(methodHeader, "tools/list"), 400, codeHeader},
		{"method in another case", call, with(methodHeader, "TOOLS/CALL"), 400, codeHeader},
		{"no name header", call, with(nameHeader, ""), 400, codeHeader},
		{"another name", call, with(nameHeader, "demo__other"), 400, codeHeader},
		{"another name, encoded", call, with(nameHeader, encode("demo__other")), 400, codeHeader},
		{"name that is not Base64", call, with(nameHeader, "=?base64?%?="), 400, codeHeader},
		{"name in Base64 without its padding", call, with(nameHeader, strings.Replace(encode("demo__echo"), "=?=", "?=", 1)), 400, codeHeader},
		{"name without the end of its form", call, with(nameHeader, strings.TrimSuffix(encode("demo__echo"), "?=")), 400, codeHeader},
		{"no name", alone("1", "tools/call", ""), good, 400, codeInvalidParams},
		{"unknown tool", alone("1", "tools/call", `"name":"x",`), headersOf("tools/call", "x"), 400, codeInvalidParams},
		{"initialize", alone("1", "initialize", ""), headersOf("initialize", ""), 404, codeUnknownMethod},
		{"ping", alone("1", "ping", ""), headersOf("ping", ""), 404, codeUnknownMethod},
		{"unknown method", alone("1", "resources/subscribe", ""), headersOf("resources/subscribe", ""), 404, codeUnknownMethod},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, headersOf("notifications/cancelled", ""), 202, 0},
		{"notification without its header", `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, headersOf("", ""), 400, codeHeader},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls = 0
			w := do(g, "POST", "", c.body, c.headers...)
			if w.Code != c.status || (calls == 1) != (c.status == 200) {
				t.Errorf("%d after %d calls: %s", w.Code, calls, w.Body)
			}
			if c.code == 0 {
				return
			}
			if code, _, _ := failureOf(t, w.Body.String()); code != c.code {
				t.Errorf("%s", w.Body)
			}
		})
	}
	twice := request(t.Context(), "POST", "", call, good...)
	twice.Header.Add(nameHeader, "demo__other")
	w := newRecorder()
	g.Handler().ServeHTTP(w, twice)
	if code, _, _ := failureOf(t, w.Body.String()); code != codeHeader {
		t.Errorf("a header twice: %s", w.Body)
	}
	w = do(g, "POST", "", strings.Replace(alone("1", "server/discover", ""), stateless, "v999", 1), header{versionHeader, "v999"})
	if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"unsupported protocol version","data":{"kind":"invalid_request","code":"GB1005","supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"v999"}}}`; w.Body.String() != want {
		t.Errorf("got\n%s\nwant\n%s", w.Body, want)
	}
}

// Decisions 3 and 4: the requests of a principal at an endpoint share their turns,
// and nobody else's.
func TestStatelessRequestsShareTheirTurns(t *testing.T) {
	t.Parallel()
	f := newFake()
	var turns []string
	f.call = func(_ context.Context, who Who, c Call) (client.CallReply, error) {
		turns = append(turns, who.Principal+" "+c.Turn)
		return client.CallReply{Result: []byte("{}")}, nil
	}
	g, _ := start(t, options(f, nil))
	bob := header{"Authorization", "Bearer token-of-bob"}
	for range 2 {
		ask(g, "1", "tools/list", "", "")
		ask(g, "1", "tools/call", `"name":"demo__echo",`, "demo__echo")
		ask(g, "1", "tools/call", `"name":"demo__echo",`, "demo__echo", bob)
		ask(g, "1", "tools/call", `"name":"echo",`, "echo", ofDemo)
	}
	want := []string{"ana turn-1", "bob turn-2", "ana turn-3", "ana turn-1", "bob turn-2", "ana turn-3"}
	if diff := cmp.Diff(want, turns); diff != "" {
		t.Error(diff)
	}
	// Nobody gets there with the Mcp-Session-Id of another era.
	if w := do(g, "POST", "x", list, header{sessionHeader, ""}); w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The attachment of requests that stand for themselves ends when it is idle, and
// the next request makes a new one.
func TestStatelessAttachmentIsMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		g, stop := start(t, options(f, make(fakeLog)))
		defer stop()
		ask(g, "1", "tools/list", "", "")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if ended := f.endedTurns(); !slices.Equal(ended, []string{"turn-1"}) {
			t.Errorf("ended turns: %v", ended)
		}
		if status, got := ask(g, "1", "tools/list", "", ""); status != 200 {
			t.Errorf("%d %s", status, got)
		}
		stop()
		if status, _ := ask(g, "1", "tools/list", "", ""); status != 503 {
			t.Errorf("after the end: %d", status)
		}
	})
}

// listening opens a subscription over the network and returns the messages of its
// stream as they come.
func listening(t *testing.T, ctx context.Context, g *Gateway, id, notifications string, more ...header) <-chan string {
	t.Helper()
	s := serveLoopback(t, g)
	resp := send(t, ctx, s, "POST", "", alone(id, "subscriptions/listen", `"notifications":`+notifications+`,`), headersOf("subscriptions/listen", "", more...)...)
	return messagesOf(resp.Body)
}

func subscriptionTag(id string) string {
	return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}`
}

func TestSubscriptionTellsOfChanges(t *testing.T) {
	t.Parallel()
	l := make(fakeLog)
	g, stop := start(t, options(newFake(), l))
	wanted := `{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["x:y"]}`
	// Two clients of a principal, none of which has listed; somebody else; another
	// endpoint.
	streams := map[string]<-chan string{
		`1`:    listening(t, t.Context(), g, `1`, wanted),
		`"s"`:  listening(t, t.Context(), g, `"s"`, wanted),
		`"b"`:  listening(t, t.Context(), g, `"b"`, wanted, header{"Authorization", "Bearer token-of-bob"}),
		`1e-2`: listening(t, t.Context(), g, `1e-2`, wanted, ofDemo),
	}
	for id, s := range streams {
		more := ""
		if id == `1e-2` { // at its own endpoint a server may have what it does not list
			more = `,"resourceSubscriptions":["x:y"]`
		}
		want := `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{` + subscriptionTag(id) + `,"notifications":{"toolsListChanged":true,"promptsListChanged":true` + more + `}}}`
		if got := <-s; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	tell := func(session string, changed []string, concerned ...string) {
		t.Helper()
		l <- &events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "x"}, Scope: events.Scope{Session: session}, Events: []events.Event{events.ToolsDiscovered{Changed: changed}}}
		for _, id := range concerned {
			for _, list := range []string{"tools", "prompts"} {
				if want := `{"jsonrpc":"2.0","method":"notifications/` + list + `/list_changed","params":{` + subscriptionTag(id) + `}}`; !slices.Contains(changed, list) {
				} else if got := <-streams[id]; got != want {
					t.Errorf("got %s\nwant %s", got, want)
				}
			}
		}
	}
	tell("defaultana/mcp", []string{"resources", "tools"}, `1`, `"s"`)
	tell("defaultana/mcp/s/demo", []string{"prompts"}, `1e-2`)
	tell("defaultbob/mcp", []string{"prompts", "resources", "tools"}, `"b"`)
	stop()
	// Each stream ends in good order, and nobody was told of what is not his.
	for id, s := range streams {
		if got := <-s; got != `{"jsonrpc":"2.0","id":`+id+`,"result":{"resultType":"complete",`+subscriptionTag(id)+`}}` {
			t.Errorf("%s", got)
		}
		if got, more := <-s; more {
			t.Errorf("then %s", got)
		}
	}
}

func TestSubscriptionToNothingEndsAtOnce(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	for _, wanted := range []string{`{}`, `{"toolsListChanged":false}`, `{"resourceSubscriptions":["file:///a"]}`} {
		s := listening(t, t.Context(), g, `1`, wanted)
		if got := <-s; got != `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+subscriptionTag("1")+`,"notifications":{}}}` {
			t.Errorf("%s", got)
		}
		if got := <-s; got != `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete",`+subscriptionTag("1")+`}}` {
			t.Errorf("%s", got)
		}
	}
	for params, status := range map[string]int{``: 400, `"notifications":true,`: 400, `"notifications":{"ToolsListChanged":true},`: 200} {
		got, body := ask(g, "1", "subscriptions/listen", params, "")
		if _, kind, _ := failureOf(t, body); got != status || kind == "internal" {
			t.Errorf("%s: %d %s", params, got, body)
		}
	}
	if status, body := ask(g, "1", "subscriptions/listen", `"notifications":{},`, "", header{"Accept", "application/json"}); status != 406 {
		t.Errorf("%d %s", status, body)
	}
}

func TestSubscriptionEndsWithItsClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, stop := start(t, options(newFake(), make(fakeLog)))
		defer stop()
		body := alone("1", "subscriptions/listen", `"notifications":{"toolsListChanged":true},`)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		for range maxListeners {
			go func() {
				g.Handler().ServeHTTP(newRecorder(), request(ctx, "POST", "", body, headersOf("subscriptions/listen", "")...))
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		if _, got := ask(g, "1", "subscriptions/listen", `"notifications":{"toolsListChanged":true},`, ""); !strings.Contains(got, "resource_exhausted") {
			t.Errorf("one too many: %s", got)
		}
		leave()
		for range maxListeners {
			<-done
		}
		for _, a := range g.attachments {
			if len(a.listeners) != 1 || a.busy != 0 {
				t.Errorf("%d listeners, %d requests", len(a.listeners), a.busy)
			}
		}
	})
}

// In this era closing the answer is how a client cancels, and nothing else is:
// ids of requests are not one client's.
func TestClosingTheAnswerCancelsTheCall(t *testing.T) {
	t.Parallel()
	f := newFake()
	entered, cancelled := make(chan context.Context), make(chan struct{})
	f.call = func(ctx context.Context, _ Who, _ Call) (client.CallReply, error) {
		entered <- ctx
		<-ctx.Done()
		close(cancelled)
		return client.CallReply{}, ctx.Err()
	}
	g, _ := start(t, options(f, nil))
	s := serveLoopback(t, g)
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", s.URL+path, strings.NewReader(alone("7", "tools/call", `"name":"demo__echo",`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = request(ctx, "POST", "", "", headersOf("tools/call", "demo__echo")...).Header
	go func() {
		if resp, err := s.Client().Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	called := <-entered
	if w := do(g, "POST", "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, headersOf("notifications/cancelled", "")...); w.Code != 202 {
		t.Errorf("%d", w.Code)
	}
	if called.Err() != nil {
		t.Error("another client's notification cancelled the call")
	}
	leave()
	<-cancelled
}
