package gateway

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// offering is an initialize that offers roots.
var offering = strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"roots":{"listChanged":true}}`, 1)

// peerOf is the id that servers know an attachment by.
func peerOf(t *testing.T, g *Gateway, session string) string {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for at, a := range g.attachments {
		if at.id == session && a.peer.ID != "" && a.peer.ID != session {
			return a.peer.ID
		}
	}
	t.Fatal("no such attachment, or servers would know its session")
	return ""
}

// next reads the next message of an event stream.
func next(t *testing.T, in *bufio.Reader) string {
	t.Helper()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
}

// A request of a server goes to the call that it works on, else to the GET stream,
// and waits for one where there is none.
func TestAskFindsItsStream(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.publish("catalog-1", tool("demo__echo"), tool("other__echo"))
	begun, finish := make(chan string, 2), make(chan struct{})
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		begun <- c.Name
		<-finish
		return client.CallReply{Status: "succeeded", Result: []byte(`{}`)}, nil
	}
	g, _ := start(t, options(f, make(fakeLog)))
	s := serveLoopback(t, g)
	ctx := t.Context()
	session := send(t, ctx, s, "POST", "", offering).Header.Get(sessionHeader)
	id := peerOf(t, g, session)
	type reply struct {
		result, failure string
		err             error
	}
	ask := func(server string) chan reply {
		got := make(chan reply, 1)
		go func() {
			r, e, err := g.Ask(ctx, id, server, "roots/list", []byte(`{"n":1.0}`))
			got <- reply{string(r), string(e), err}
		}()
		return got
	}
	streams := map[string]*bufio.Reader{}
	answer := func(on, body string) {
		t.Helper()
		m := next(t, streams[on])
		if !strings.HasSuffix(m, `,"method":"roots/list","params":{"n":1.0}}`) {
			t.Fatalf("%s has %s", on, m)
		}
		head, _, _ := strings.Cut(m, `,"method"`)
		resp := send(t, ctx, s, "POST", session, head+body+"}")
		if resp.StatusCode != http.StatusAccepted {
			t.Fatal(resp.Status)
		}
	}

	early := ask("demo") // there is no stream
	open := func(name, method, body string) {
		t.Helper()
		streams[name] = bufio.NewReader(send(t, ctx, s, method, session, body).Body)
	}
	open("get", "GET", "")
	answer("get", `,"result":{"n":1.0, "roots":[]}`)
	if r := <-early; r.result != `{"n":1.0, "roots":[]}` || r.failure != "" || r.err != nil {
		t.Errorf("%+v", r)
	}
	var calls = map[string]chan *http.Response{}
	for _, name := range []string{"other", "demo"} {
		calls[name] = make(chan *http.Response, 1)
		go func() {
			r := request(ctx, "POST", session, callOf(`"`+name+`"`, name+"__echo"))
			out, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/mcp", r.Body)
			if err == nil {
				out.Header = r.Header
				var resp *http.Response
				if resp, err = s.Client().Do(out); err == nil {
					calls[name] <- resp
				}
			}
			if err != nil {
				t.Error(err)
			}
		}()
		<-begun
	}
	asked := ask("demo")
	streams["demo"] = bufio.NewReader((<-calls["demo"]).Body) // has no header before that
	answer("demo", `,"error":{"code":-1,"message":"no","data":{"n":1.0}}`)
	if r := <-asked; r.failure != `{"code":-1,"message":"no","data":{"n":1.0}}` || r.result != "" || r.err != nil {
		t.Errorf("%+v", r)
	}
	asked = ask("third") // none of its calls is there
	answer("get", `,"result":null,"error":{"code":1}`)
	if r := <-asked; r.failure != `{"code":1}` {
		t.Errorf("%+v", r)
	}
	close(finish)
	if got := next(t, streams["demo"]); got != `{"jsonrpc":"2.0","id":"demo","result":{}}` {
		t.Errorf("the call is answered with %s", got)
	}

	// Nobody waits any more: the client is told.
	short, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { _, _, err := g.Ask(short, id, "demo", "roots/list", nil); done <- err }()
	m := next(t, streams["get"])
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	head, _, _ := strings.Cut(strings.TrimPrefix(m, `{"jsonrpc":"2.0","id":`), `,"method"`)
	if got := next(t, streams["get"]); !strings.HasPrefix(got, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+head+`,`) {
		t.Errorf("the client is told %s", got)
	}
	g.Tell(id, "demo", "notifications/elicitation/complete", []byte(`{"elicitationId":"e","n":1.0}`))
	if got := next(t, streams["get"]); got != `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e","n":1.0}}` {
		t.Errorf("the client is told %s", got)
	}

	// The client leaves.
	asked = ask("demo")
	next(t, streams["get"])
	send(t, ctx, s, "POST", session, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	send(t, ctx, s, "DELETE", session, "")
	if r := <-asked; fault.KindOf(r.err) != fault.RuntimeClosed {
		t.Errorf("%+v", r)
	}
	if _, _, err := g.Ask(ctx, id, "demo", "roots/list", nil); fault.KindOf(err) != fault.RuntimeClosed {
		t.Error(err)
	}
	g.end(func(*attachment) bool { return false })
	g.close() // waits for those that are ended
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.left, []string{id}) || !slices.Equal(f.told, []string{id + " roots.listChanged notifications/roots/list_changed"}) {
		t.Errorf("left %q, told %q", f.left, f.told)
	}
}

// Who offers something costs connections, so that a principal has fewer of these,
// and what others have is none of it.
func TestPeersAreBounded(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, make(fakeLog)))
	plain := attach(t, g)
	first := do(g, "POST", "", offering).Header().Get(sessionHeader)
	for range maxPeers {
		if w := do(g, "POST", "", offering); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
	}
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if w := do(g, "POST", first, ping); w.Code != 404 {
		t.Errorf("the longest idle peer is still there: %d", w.Code)
	}
	if w := do(g, "POST", plain, ping); w.Code != 200 {
		t.Errorf("who offers nothing has gone: %d", w.Code)
	}
}
