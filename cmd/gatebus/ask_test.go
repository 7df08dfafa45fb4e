package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/fakes"
)

//lint:file-ignore SA1019 what the stateless era has no more, the era of handshakes has

// askedFrom is a runtime with the fake server that asks its clients.
type askedFrom struct {
	t   *testing.T
	r   *instance
	op  *client.Client
	url string
}

func newAsker(t *testing.T, args ...string) *askedFrom {
	t.Helper()
	quoted, _ := json.Marshal(append([]string{}, args...))
	return newAskerAs(t, fmt.Sprintf("command: %q\nargs: %s\nenv: {TOKEN: \"${TOKEN}\"}\n", fakes.Build(t, "asker"), quoted))
}

// newAskerAs is the same with another server.
func newAskerAs(t *testing.T, declaration string) *askedFrom {
	t.Helper()
	dir, err := os.MkdirTemp("", "gb") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	declaration += "approval_policy: auto\nsupports_parallel_tool_calls: true\n"
	set := plainSettings(t)
	set.home, set.cores = filepath.Join(dir, "home"), declared(t, "asker", declaration)
	set.lookup = func(name string) (string, bool) { return "canary-of-the-server", name == "TOKEN" }
	set.trusted = []urlpolicy.Trusted{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}
	r := serving(t, set)
	return &askedFrom{t: t, r: r, op: operator(t, r.home), url: r.mcpURL()}
}

// do asks as the operator.
func (a *askedFrom) do(method string, params, result any) {
	a.t.Helper()
	if err := a.op.Do(a.t.Context(), method, params, result); err != nil {
		a.t.Fatal(err)
	}
}

// rows are the events of a name in the log.
func (a *askedFrom) rows(name string) []client.AuditRow {
	a.t.Helper()
	var out client.AuditRows
	a.do("audit/list", client.AuditList{Name: name, Limit: 500}, &out)
	return out.Rows
}

// await waits for an event whose data contain a text.
func (a *askedFrom) await(name, data string) client.AuditRow {
	a.t.Helper()
	for {
		for _, r := range a.rows(name) {
			if strings.Contains(string(r.Data), data) {
				return r
			}
		}
		if err := a.t.Context().Err(); err != nil {
			a.t.Fatal(err)
		}
	}
}

// token enrols a host that may connect and call, and more.
func (a *askedFrom) token(name string, capabilities ...string) string {
	a.t.Helper()
	var out client.HostTokenResult
	a.do("host/token", client.HostToken{Name: name}, &out)
	for _, c := range append([]string{"mcp.connect:*", "mcp.call:*"}, capabilities...) {
		a.do("grant/add", client.Grant{Principal: name, Capability: c}, nil)
	}
	return out.Token
}

// rawHost is an MCP client of the handshake era that sends what a test writes.
type rawHost struct {
	*askedFrom
	token, session string
	posts          int
}

func (a *askedFrom) attach(token, capabilities string) *rawHost {
	a.t.Helper()
	h := &rawHost{askedFrom: a, token: token}
	resp := h.send("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"t","version":"1"}}}`)
	if h.session = resp.Header.Get("Mcp-Session-Id"); h.session == "" {
		a.t.Fatal(resp.Status)
	}
	h.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return h
}

// attached is a client whose server is connected.
func (a *askedFrom) attached(token, capabilities string) *rawHost {
	a.t.Helper()
	h := a.attach(token, capabilities)
	h.list()
	approveNext(a.t, a.op)
	for !strings.Contains(h.list(), `"ask"`) {
	}
	return h
}

func (h *rawHost) send(method, body string) *http.Response {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), method, h.url+"/s/asker", strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if h.session != "" {
		r.Header.Set("Mcp-Session-Id", h.session)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// post sends what has no answer.
func (h *rawHost) post(body string) {
	h.t.Helper()
	if resp := h.send("POST", body); resp.StatusCode != http.StatusAccepted {
		h.t.Fatalf("%s: %s", body, resp.Status)
	}
}

// messages reads the messages of an answer, one by one; "" is its end.
func (h *rawHost) messages(resp *http.Response) (next func() string) {
	in := bufio.NewReader(resp.Body)
	stream := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	return func() string {
		h.t.Helper()
		if !stream {
			b, _ := io.ReadAll(in)
			return string(b)
		}
		for {
			line, err := in.ReadString('\n')
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				return strings.TrimSuffix(data, "\n")
			}
			if err != nil {
				return ""
			}
		}
	}
}

func (h *rawHost) list() string {
	h.t.Helper()
	return h.messages(h.send("POST", `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`))()
}

// call begins a call.
func (h *rawHost) call(tool, arguments string) (next func() string) {
	h.t.Helper()
	h.posts++
	return h.messages(h.send("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, h.posts, tool, arguments)))
}

// text is that of the result of a call.
func (h *rawHost) text(message string) string {
	h.t.Helper()
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(message), &m); err != nil || len(m.Result.Content) != 1 {
		h.t.Fatalf("no result of a tool: %q", message)
	}
	return m.Result.Content[0].Text
}

// idOf is the id of a message, as sent.
func (h *rawHost) idOf(message string) string {
	h.t.Helper()
	var m struct{ ID json.RawMessage }
	if err := json.Unmarshal([]byte(message), &m); err != nil || m.ID == nil {
		h.t.Fatalf("no request: %q", message)
	}
	return string(m.ID)
}

const offersAll = `{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}`

var mayAll = []string{"mcp.sample:asker", "mcp.elicit:asker", "mcp.roots:asker"}

// A server asks the client whose call it works on, and gets its answer. Both are what
// they were, byte for byte, and nothing of them is kept.
func TestServerAsksItsHost(t *testing.T) {
	t.Parallel()
	a := newAsker(t)
	h := a.attached(a.token("ana", mayAll...), offersAll)
	if got := h.text(h.call("caps", `{}`)()); got != offersAll {
		t.Errorf("the server is offered %s", got)
	}
	for _, c := range []struct{ method, params, answer string }{
		{"sampling/createMessage", `{"messages":[{"role":"user","content":{"type":"text","text":"canary-asked"}}],"maxTokens":1e2, "x":12345678901234567890}`,
			`"result":{"role":"assistant","content":{"type":"text","text":"canary-told"},"model":"m", "n":1.0,"big":12345678901234567890}`},
		{"elicitation/create", `{"message":"canary-asked","requestedSchema":{"type":"object","properties":{"b":{"type":"string","default":"x"},"a":{"enum":["\u00e9"]}}}}`,
			`"result":{"action":"accept","content":{"b":"canary-told","n":1.0}}`},
		{"elicitation/create", `{"mode":"url","message":"m","url":"https://example.com/canary-asked","elicitationId":"e"}`, `"result":{"action":"decline"}`},
		{"roots/list", `{"_meta":{"x":1.0}}`, `"result":{"roots":[{"uri":"file:///canary-told","name":"r"}]}`},
		{"sampling/createMessage", `{"messages":[],"maxTokens":1}`, `"error":{"code":-1,"message":"canary-told","data":{"n":1.0}}`},
	} {
		next := h.call("ask", `{"method":"`+c.method+`","params":`+c.params+`}`)
		asked := next()
		id := h.idOf(asked)
		if want := `{"jsonrpc":"2.0","id":` + id + `,"method":"` + c.method + `","params":` + c.params + `}`; asked != want {
			t.Fatalf("the client is asked\n%s, want\n%s", asked, want)
		}
		h.post(`{"jsonrpc":"2.0","id":` + id + `,` + c.answer + `}`)
		if got := h.text(next()); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":9007199254740993.`) || !strings.HasSuffix(got, `,`+c.answer+`}`) {
			t.Errorf("the server is told\n%s, want\n%s", got, c.answer)
		}
	}
	next := h.call("secret", `{}`)
	asked := next()
	if strings.Contains(asked, "canary-of-the-server") {
		t.Errorf("the client sees a secret of the server: %s", asked)
	}
	h.post(`{"jsonrpc":"2.0","id":` + h.idOf(asked) + `,"result":{"action":"cancel"}}`)
	next()
	// What belongs to no request comes where there is a stream.
	listening := h.messages(h.send("GET", ""))
	next = h.call("done", `{}`)
	const complete = `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e","n":1.0}}`
	if got := next(); got != complete {
		for got = listening(); strings.Contains(got, "list_changed"); got = listening() {
		}
		if got != complete {
			t.Errorf("the client hears %s", got)
		}
	}
	h.post(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	if got := h.text(h.call("seen", `{}`)()); got != "notifications/roots/list_changed" {
		t.Errorf("the server has heard %q", got)
	}

	var methods, stored []string
	asks := map[string]bool{} // the calls that are requests of the server
	for _, r := range a.rows("") {
		if r.Name == "call_requested" && !strings.Contains(string(r.Data), `"method":""`) {
			var d struct{ Method, Capability string }
			if err := json.Unmarshal(r.Data, &d); err != nil {
				t.Fatal(err)
			}
			methods = append(methods, d.Method+" "+d.Capability)
			asks[r.Call] = true
		}
		// The result of the tool has the answer in it, and its view is kept.
		if bytes.Contains(r.Data, []byte("canary-")) && (asks[r.Call] || r.Name != "call_succeeded") {
			stored = append(stored, r.Name)
		}
	}
	if len(methods) != 6 || methods[0] != "sampling/createMessage mcp.sample:asker" || methods[3] != "roots/list mcp.roots:asker" || stored != nil {
		t.Errorf("the log has the requests %q, and of what they say: %q", methods, stored)
	}
	// One person has said yes once, and to nothing that the shared connection has not:
	// what a server shows only to who offers something waits for a yes of its own.
	waiting, err := a.op.Approvals(t.Context())
	if err != nil || len(waiting) != 1 || waiting[0].Action != "mcp.tool" || waiting[0].Tool != "extra" || strings.Contains(h.list(), `"extra"`) {
		t.Errorf("%+v, %v", waiting, err)
	}
	// That yes is for the others of the session too.
	if _, err := a.op.Approve(t.Context(), waiting[0].ID); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(h.list(), `"extra"`) {
	}
	h.send("DELETE", "")
	a.await("connection_closed", `"attachment_ended"`)
	if next := a.attach(h.token, offersAll); !strings.Contains(next.list(), `"extra"`) {
		t.Errorf("the next attachment sees %s", next.list())
	}
	if waiting, err := a.op.Approvals(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("%+v, %v", waiting, err)
	}
}

// Two attachments that wait for the same yes have it at once.
func TestYesToAToolIsForAllAttachments(t *testing.T) {
	t.Parallel()
	a := newAsker(t)
	first := a.attached(a.token("ana", mayAll...), offersAll)
	second := a.attach(first.token, offersAll)
	second.list()
	waiting, err := a.op.Approvals(t.Context())
	if err != nil || len(waiting) != 2 || waiting[0].Tool != "extra" || waiting[1].Tool != "extra" {
		t.Fatalf("%+v, %v", waiting, err)
	}
	if _, err := a.op.Approve(t.Context(), waiting[0].ID); err != nil {
		t.Fatal(err)
	}
	if left, err := a.op.Approvals(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%+v still wait, %v", left, err)
	}
	for _, h := range []*rawHost{first, second} {
		for !strings.Contains(h.list(), `"extra"`) {
		}
	}
}

// What no server may ask does not reach the client, and what is noteworthy of the rest
// is in the log.
func TestServerAsksWhatItMayNot_C1_C2(t *testing.T) {
	t.Parallel()
	a := newAsker(t)
	h := a.attached(a.token("ana", mayAll...), `{"sampling":{},"elicitation":{"form":{},"url":{}}}`)
	for _, c := range []struct{ method, params, kind, says string }{
		{"elicitation/create", `{"message":"?","requestedSchema":{"type":"object","properties":{"password":{"type":"string"}}}}`, "security_blocked", "must not ask for passwords"},
		{"elicitation/create", `{"mode":"url","message":"m","url":"https://bank.example@evil.example/canary-asked","elicitationId":"e"}`, "url_blocked", "userinfo_not_allowed"},
		{"elicitation/create", `{"mode":"url","message":"m","url":"http://169.254.169.254/canary-asked","elicitationId":"e"}`, "url_blocked", "metadata_address"},
		{"sampling/createMessage", `{"messages":[],"maxTokens":1,"includeContext":"allServers"}`, "security_blocked", "context of others"},
		{"sampling/createMessage", `{"messages":[],"maxTokens":1,"tools":[]}`, "invalid_arguments", "did not offer"},
		{"elicitation/create", `{"message":"canary-asked \u001b[2J","requestedSchema":{"type":"object","properties":{}}}`, "security_blocked", "hidden text"},
	} {
		if got := h.text(h.call("ask", `{"method":"`+c.method+`","params":`+c.params+`}`)()); !strings.Contains(got, `"error"`) || !strings.Contains(got, c.says) {
			t.Errorf("%s of %s is answered with %s, want %q", c.method, c.params, got, c.says)
		}
		blocked := a.rows("call_blocked")
		if last := blocked[len(blocked)-1]; !strings.Contains(string(last.Data), `"`+c.kind+`"`) {
			t.Errorf("%s of %s: the log has %s", c.method, c.params, last.Data)
		}
	}
	var decided []string
	for _, r := range a.rows("url_decision") {
		var d struct{ Server, Phase, Reason, Origin string }
		if err := json.Unmarshal(r.Data, &d); err != nil {
			t.Fatal(err)
		}
		decided = append(decided, strings.Join([]string{d.Server, d.Phase, d.Reason, d.Origin}, " "))
	}
	if got := strings.Join(decided, "\n"); got != "asker elicitation userinfo_not_allowed https://evil.example\nasker elicitation metadata_address http://169.254.169.254" {
		t.Errorf("decided on URLs:\n%s", got)
	}
	next := h.call("ask", `{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"\udb40\udc41"}}],"maxTokens":1,"systemPrompt":"s"}}`)
	h.post(`{"jsonrpc":"2.0","id":` + h.idOf(next()) + `,"result":{}}`)
	next()
	a.await("call_requested", `"flags":["tag","system_prompt"]`)
	if asked := a.await("call_requested", `"flags":["ansi"]`); bytes.Contains(asked.Data, []byte("canary")) {
		t.Errorf("the log has %s", asked.Data)
	}
}

// What the principal may not, the server is not offered; what it may not any more, is
// refused.
func TestServerAsksOnlyWithAuthority(t *testing.T) {
	t.Parallel()
	a := newAsker(t)
	h := a.attached(a.token("bob", "mcp.roots:asker"), offersAll)
	if got := h.text(h.call("caps", `{}`)()); got != `{"roots":{"listChanged":true}}` {
		t.Errorf("the server is offered %s", got)
	}
	if got := h.text(h.call("ask", `{"method":"sampling/createMessage","params":{}}`)()); !strings.Contains(got, `"code":-32601`) {
		t.Errorf("a server that was offered no sampling is told %s", got)
	}
	a.do("grant/revoke", client.Grant{Principal: "bob", Capability: "mcp.roots:asker"}, nil)
	if got := h.text(h.call("ask", `{"method":"roots/list","params":{}}`)()); !strings.Contains(got, `"error"`) || !strings.Contains(got, "capability") {
		t.Errorf("after the revoke the server is told %s", got)
	}
	a.await("call_blocked", `"capability_denied"`)
	// The next list goes back to the shared connection, which offers nothing.
	h.list()
	a.await("connection_closed", `"offers_changed"`)
	if got := h.text(h.call("caps", `{}`)()); got != `{}` {
		t.Errorf("without authority the server is offered %s", got)
	}
}

// A server takes its request back, a client leaves without an answer, and a server
// that floods hurts itself.
func TestServerAsksInVain(t *testing.T) {
	t.Parallel()
	a := newAsker(t)
	token := a.token("ana", mayAll...)
	h := a.attached(token, offersAll)
	next := h.call("mind", `{}`)
	id := h.idOf(next())
	if got := h.text(h.call("note", `{}`)()); got != "noted" {
		t.Fatal(got)
	}
	var rest []string
	for m := next(); m != ""; m = next() {
		rest = append(rest, m)
	}
	if all := strings.Join(rest, "\n"); !strings.Contains(all, `taken back`) {
		t.Errorf("the call ends with %s", all)
	}
	a.await("call_failed", `"status":"cancelled"`)
	h.post(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`) // too late for anybody

	next = h.call("flood", `{"n":60}`)
	answers := 0
	for m := next(); m != ""; m = next() {
		if strings.Contains(m, `"method":"roots/list"`) {
			answers++
			h.post(`{"jsonrpc":"2.0","id":` + h.idOf(m) + `,"result":{"roots":[]}}`)
			continue
		}
		if got := h.text(m); got != fmt.Sprint(answers) || answers < 16 || answers == 60 {
			t.Errorf("%s of 60 requests at once were answered, the client saw %d", got, answers)
		}
	}

	h = a.attach(token, offersAll)
	h.list()
	next = h.call("ask", `{"method":"roots/list","params":{}}`)
	h.idOf(next())
	h.send("DELETE", "")
	next()
	a.await("call_failed", `"reason":"runtime_closed"`)
}

// A client that somebody else wrote is asked: on the stream of its call, and on its
// GET stream where the server asks for itself.
func TestServerAsksSDK(t *testing.T) {
	t.Parallel()
	a := newAsker(t, "early")
	token := a.token("ana", mayAll...)
	warm := a.attached(token, `{}`)
	if got := warm.text(warm.call("caps", `{}`)()); got != `{}` {
		t.Errorf("who offers nothing has a connection that offers %s", got)
	}
	peer := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": r.Params.Message}}, nil
		},
	})
	peer.AddRoots(&mcp.Root{URI: "file:///a"})
	for prefix, transport := range map[string]mcp.Transport{
		"":        &mcp.StreamableClientTransport{Endpoint: a.url + "/s/asker", HTTPClient: &http.Client{Transport: bearer(token)}},
		"asker__": &mcp.CommandTransport{Command: stdioCommand(t, a.r.home, "--as", "ana")},
	} {
		a.askSDK(peer, transport, prefix)
	}
}

// askSDK has the server ask a client of the SDK over a transport.
func (a *askedFrom) askSDK(peer *mcp.Client, transport mcp.Transport, prefix string) {
	t := a.t
	t.Helper()
	cs, err := peer.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	for asked := false; ; asked = true {
		tools, err := cs.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(tools.Tools) > 0 {
			break
		}
		if !asked { // at another endpoint is another session
			waiting, err := a.op.Approvals(t.Context())
			for _, w := range waiting {
				if w.Action == "mcp.connect" && err == nil {
					_, err = a.op.Approve(t.Context(), w.ID)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	call := func(name string, arguments any) string {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: prefix + name, Arguments: arguments})
		if err != nil || res.IsError {
			t.Fatalf("%+v, %v", res, err)
		}
		return res.Content[0].(*mcp.TextContent).Text
	}
	ask := func(method string, params any) string {
		return call("ask", map[string]any{"method": method, "params": params})
	}
	for i := range 3 {
		if got := ask("sampling/createMessage", map[string]any{"messages": []any{}, "maxTokens": i + 1}); !strings.Contains(got, `"sampled"`) {
			t.Errorf("sampling says %s", got)
		}
		if got := ask("elicitation/create", map[string]any{"message": "who?", "requestedSchema": map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}}); !strings.Contains(got, `{"action":"accept","content":{"name":"who?"}}`) {
			t.Errorf("elicitation says %s", got)
		}
	}
	for begun := time.Now(); !strings.Contains(call("seen", nil), `"uri":"file:///a"`); {
		if time.Since(begun) > time.Minute {
			t.Fatal("the server asked for roots by itself, and got none")
		}
	}
}

// A server behind HTTP asks on the stream of its call.
func TestServerBehindHTTPAsks(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "behind", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "who?", RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}},
		}})
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(res.Action, res.Content)}}}, nil
	})
	s := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	a := newAskerAs(t, fmt.Sprintf("transport: streamable_http\nurl: %q\n", s.URL))
	h := a.attached(a.token("ana", mayAll...), offersAll)
	next := h.call("ask", `{}`)
	asked := next()
	if !strings.Contains(asked, `"method":"elicitation/create"`) {
		t.Fatal(asked)
	}
	h.post(`{"jsonrpc":"2.0","id":` + h.idOf(asked) + `,"result":{"action":"accept","content":{"name":"ana"}}}`)
	if got := h.text(next()); got != "acceptmap[name:ana]" {
		t.Errorf("the server is told %q", got)
	}
}

// bearer sends a token with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
