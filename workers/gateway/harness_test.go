package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/workers/httpin"
)

// fake is a backend with one catalog, which a test can change, and a call that
// a test can set. It records what it was asked.
type fake struct {
	call func(ctx context.Context, who Who, c Call) (client.CallReply, error)

	mu       sync.Mutex
	session  string // "" makes one for each principal
	catalog  string
	tools    []client.Tool
	beside   client.Turn // what there is beside them
	away     bool        // no server is connected
	missing  []client.Diagnostic
	err      error // of Prepare
	prepared int   // turns made
	asked    int   // calls of Prepare
	ended    []string
	released []string    // subscriptions
	releases chan string // the same, or nil
	told     []string    // peer, offer, method
	left     []string    // peers
}

func (f *fake) Release(_ context.Context, subscription string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = append(f.released, subscription)
	if f.releases != nil {
		f.releases <- subscription
	}
}

func (f *fake) Session(_ context.Context, who Who, label string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != "" {
		return f.session, nil
	}
	return who.Workspace + who.Principal + label, nil
}

// Serves says that there are two servers.
func (f *fake) Serves(server string) bool { return server == "demo" || server == "empty" }

// Sees says that everybody sees what is installed.
func (f *fake) Sees(_ Who, endpoint, server string) bool { return endpoint == "" || endpoint == server }

func (f *fake) Prepare(_ context.Context, _ Who, _ Peer, _, server string, reuse func(string) (client.Turn, bool)) (client.Turn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.err != nil {
		return client.Turn{}, f.err
	}
	if t, ok := reuse(f.catalog); ok {
		t.Diagnostics = f.missing
		return t, nil
	}
	f.prepared++
	tools := f.tools
	if server != "" {
		tools = nil
		for _, t := range f.tools {
			if t.Server == server {
				t.Definition = definition(t.RawName)
				tools = append(tools, t)
			}
		}
	}
	out := f.beside
	if server != "" {
		others := func(i client.Item) bool { return i.Server != server }
		out.Resources = slices.DeleteFunc(slices.Clone(out.Resources), others)
		out.Templates = slices.DeleteFunc(slices.Clone(out.Templates), others)
		out.Prompts = slices.DeleteFunc(slices.Clone(out.Prompts), others)
		out.Servers = []string{server}
	}
	if f.away {
		out.Servers = nil
	}
	out.Diagnostics = f.missing
	out.Turn, out.CatalogID, out.Tools = fmt.Sprintf("turn-%d", f.prepared), f.catalog, tools
	return out, nil
}

func (f *fake) Call(ctx context.Context, who Who, c Call) (client.CallReply, error) {
	return f.call(ctx, who, c)
}

func (f *fake) Told(_ context.Context, _ Who, peer, offer, method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, peer+" "+offer+" "+method)
}

func (f *fake) Leave(_ context.Context, _ Who, peer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = append(f.left, peer)
}

func (f *fake) EndTurn(_ context.Context, _ Who, turn string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, turn)
}

// lacks makes servers missing, and says why.
func (f *fake) lacks(missing ...client.Diagnostic) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missing = missing
}

// publish makes a catalog the present one.
func (f *fake) publish(catalog string, tools ...client.Tool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.catalog, f.tools = catalog, tools
}

func (f *fake) endedTurns() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.ended...)
}

func (f *fake) counts() (asked, prepared int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked, f.prepared
}

// tool is a tool whose definition has what types would lose.
func tool(name string) client.Tool {
	server, raw, _ := strings.Cut(name, "__")
	return client.Tool{Name: name, Server: server, RawName: raw, Definition: definition(name), Digest: "digest of " + name}
}

func definition(name string) json.RawMessage {
	return json.RawMessage(`{"name":"` + name + `","inputSchema":{"type":"object","x-limit":1e400,"n":12345678901234567890},"execution":{"taskSupport":"optional"},"z":1.0}`)
}

// newFake serves the tools demo__echo and demo__other; a call returns its
// params as the result.
func newFake() *fake {
	f := &fake{}
	f.publish("catalog-1", tool("demo__echo"), tool("demo__other"))
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		return client.CallReply{Status: "succeeded", ExecutionStarted: true, Result: c.Params.Reveal()}, nil
	}
	return f
}

// fakeLog is a log that a test writes to.
type fakeLog chan *events.Commit

func (l fakeLog) follow(ctx context.Context, _ uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case c := <-l:
				if !yield(c, nil) {
					return
				}
			}
		}
	}
}

var ana = Who{Workspace: "default", Principal: "ana", Actor: "ana"}

// tokens of the tests.
var principals = map[string]Who{
	"token-of-ana": ana,
	"token-of-bob": {Workspace: "default", Principal: "bob", Actor: "bob"},
}

func options(f *fake, l fakeLog) Options {
	return Options{
		Backend:      f,
		Authenticate: func(token string) (Who, bool) { w, ok := principals[token]; return w, ok },
		Follow:       l.follow,
		Head:         func() uint64 { return 0 },
		Version:      "1.2.3",
	}
}

// start runs a gateway until the test ends and fails it when Run does not end
// well.
func start(t testing.TB, o Options) (*Gateway, context.CancelFunc) {
	t.Helper()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return g, stop
}

// header sets a header of a request, or its Path; an empty value removes it.
type header struct{ name, value string }

func request(ctx context.Context, method, session, body string, headers ...header) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:7777/mcp", strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:50000"
	r.Header.Set("Authorization", "Bearer token-of-ana")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set(sessionHeader, session)
	}
	for _, h := range headers {
		switch {
		case h.name == "Host":
			r.Host = h.value
		case h.name == "Path":
			r.URL.Path = h.value
		case h.value == "":
			r.Header.Del(h.name)
		default:
			r.Header.Set(h.name, h.value)
		}
	}
	return r
}

// do has one request served as the runtime does, but without a network.
func do(g *Gateway, method, session, body string, headers ...header) *httptest.ResponseRecorder {
	near, far := net.Pipe()
	l := &oneConn{make(chan net.Conn, 1)}
	l.conns <- local{far}
	s := &http.Server{Handler: g.Handler()}
	go func() { _ = httpin.NewServer(s).Serve(l) }()
	defer s.Close()
	defer near.Close()
	w := httptest.NewRecorder()
	r := request(context.Background(), method, session, body, headers...)
	go func() { _ = r.Write(near) }()
	if answer, err := http.ReadResponse(bufio.NewReader(near), r); err != nil {
		w.Code, w.Body = 0, bytes.NewBufferString(err.Error())
	} else {
		w.Code = answer.StatusCode
		maps.Copy(w.Header(), answer.Header)
		_, _ = w.Body.ReadFrom(answer.Body)
	}
	return w
}

// oneConn is a listener with one connection.
type oneConn struct{ conns chan net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { close(l.conns); return nil }
func (l *oneConn) Addr() net.Addr { return loopback }

var loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7777}

// local is a connection on this machine.
type local struct{ net.Conn }

func (local) LocalAddr() net.Addr  { return loopback }
func (local) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000} }

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// attach makes an attachment and returns its Mcp-Session-Id.
func attach(t testing.TB, g *Gateway, headers ...header) string {
	t.Helper()
	w := do(g, "POST", "", initialize, headers...)
	id := w.Header().Get(sessionHeader)
	if w.Code != 200 || id == "" {
		t.Fatalf("initialize: %d %s", w.Code, w.Body)
	}
	return id
}

// callOf is a tools/call with a progress token.
func callOf(id, name string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `","arguments":{},"_meta":{"progressToken":"p-` + strings.Trim(id, `"`) + `"}}}`
}

const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// messages returns the data of the events of a stream.
func messages(stream string) []string {
	var out []string
	for event := range strings.SplitSeq(stream, "\n\n") {
		var data []string
		for line := range strings.SplitSeq(event, "\n") {
			if d, ok := strings.CutPrefix(line, "data: "); ok {
				data = append(data, d)
			}
		}
		if len(data) > 0 {
			out = append(out, strings.Join(data, "\n"))
		}
	}
	return out
}

// failureOf returns code, kind and GB code of a JSON-RPC error.
func failureOf(t testing.TB, body string) (code int, kind, gb string) {
	t.Helper()
	var m struct {
		Error *struct {
			Code int
			Data struct{ Kind, Code string }
		}
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil || m.Error == nil {
		t.Fatalf("no JSON-RPC error: %q (%v)", body, err)
	}
	return m.Error.Code, m.Error.Data.Kind, m.Error.Data.Code
}

// serveLoopback serves the gateway on a port of its own.
func serveLoopback(t testing.TB, g *Gateway) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(g.Handler())
	s.Listener = httpin.NewServer(s.Config).Listen(s.Listener)
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// send sends a request over the network.
func send(t testing.TB, ctx context.Context, s *httptest.Server, method, session, body string, headers ...header) *http.Response {
	t.Helper()
	r := request(ctx, method, session, body, headers...)
	out, err := http.NewRequestWithContext(ctx, method, s.URL+r.URL.Path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	out.Header = r.Header
	resp, err := s.Client().Do(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

func newLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// messagesOf are the messages of an event stream, as they come.
func messagesOf(stream io.Reader) <-chan string {
	out := make(chan string, 16)
	go func() {
		defer close(out)
		lines := bufio.NewScanner(stream)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				out <- data
			}
		}
	}()
	return out
}
