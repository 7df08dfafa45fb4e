package httpclient_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/httpclient"
	"github.com/gatebus/gatebus/workers/live"
)

// message is what came in one POST.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// fake is a server behind HTTP. What is nil behaves well.
type fake struct {
	call, get, delete, initialize, discover, listen func(w http.ResponseWriter, r *http.Request, m message)

	// told, where it is not nil, hears of the calls that were given up.
	told chan message

	mu   sync.Mutex
	seen []seen
}

// seen is one request as it came.
type seen struct {
	verb   string
	header http.Header
	message
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := messageOf(r)
	f.mu.Lock()
	f.seen = append(f.seen, seen{r.Method, r.Header.Clone(), m})
	f.mu.Unlock()
	or := func(own, good func(http.ResponseWriter, *http.Request, message)) {
		if own != nil {
			good = own
		}
		good(w, r, m)
	}
	switch {
	case r.Method == http.MethodGet:
		or(f.get, func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusMethodNotAllowed) })
	case r.Method == http.MethodDelete:
		or(f.delete, func(http.ResponseWriter, *http.Request, message) {})
	case m.Method == "initialize":
		or(f.initialize, func(w http.ResponseWriter, _ *http.Request, m message) { initialized(w, m) })
	case m.Method == "server/discover" && f.discover != nil:
		f.discover(w, r, m)
	case m.Method == "subscriptions/listen" && f.listen != nil:
		f.listen(w, r, m)
	case m.Method == "tools/call":
		or(f.call, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m, "ok") })
	default:
		w.WriteHeader(http.StatusAccepted)
		if m.Method == "notifications/cancelled" && f.told != nil {
			f.told <- m
		}
	}
}

func messageOf(r *http.Request) (m message) {
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &m)
	return m
}

// of are the requests of a verb, or of a method of JSON-RPC.
func (f *fake) of(what string) (out []seen) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		if s.verb == what || s.Method == what {
			out = append(out, s)
		}
	}
	return out
}

func initialized(w http.ResponseWriter, m message) {
	w.Header().Set("Mcp-Session-Id", "s-1")
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}}`, m.ID)
}

func result(m message, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, text)
}

func answer(w http.ResponseWriter, m message, text string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, result(m, text))
}

// stream writes events and sends them at once.
func stream(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e+"\n\n")
	}
	w.(http.Flusher).Flush()
}

const secret = "s3cret-value"

// client makes a client of a URL.
func client(t *testing.T, at string, change ...func(*httpclient.Options)) *httpclient.Client {
	t.Helper()
	o := httpclient.Options{
		URL: at, Server: "docs", Header: http.Header{"Authorization": {"Bearer " + secret}, "Accept": {"text/html"}, "Mcp-Session-Id": {"declared"}},
		Gate:   httpclient.Gate{Policy: urlpolicy.Private()},
		Record: func(context.Context, events.UrlDecision) error { return nil },
	}
	for _, f := range change {
		f(&o)
	}
	return httpclient.New(o)
}

// serve starts a fake.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL + "/mcp?key=" + secret
}

// open opens a connection to a fake.
func open(t *testing.T, f *fake, change ...func(*httpclient.Options)) *live.Conn {
	t.Helper()
	c, err := live.Open(t.Context(), client(t, serve(t, f), change...), live.Options{Name: "gatebus", Version: "1", Parallel: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func call(t *testing.T, c *live.Conn, options ...live.CallOptions) (string, error) {
	t.Helper()
	reply, err := c.Call(t.Context(), "tools/call", redact.NewRaw([]byte(`{"name":"t","_meta":{"progressToken":"p"}}`)), append(options, live.CallOptions{})[0])
	return string(reply.Result) + string(reply.Error), err
}

func wantOK(t *testing.T, c *live.Conn) {
	t.Helper()
	if got, err := call(t, c); err != nil || got != `{"content":[{"type":"text","text":"ok"}]}` {
		t.Errorf("the call after it: %s, %v", got, err)
	}
}

func wantLost(t *testing.T, err error, written bool, kind fault.Kind, text string) {
	t.Helper()
	lost, ok := errors.AsType[*live.ErrLost](err)
	if !ok || lost.Written != written || fault.KindOf(lost.Cause) != kind || !strings.Contains(lost.Cause.Error(), text) {
		t.Fatalf("the error is %v (%+v), want ErrLost, Written %v, kind %s, with %q", err, lost, written, kind, text)
	}
	for _, text := range []string{err.Error(), lost.Cause.Error()} {
		if strings.Contains(text, secret) || strings.Contains(text, "127.0.0.1") {
			t.Errorf("the error says %q", text)
		}
	}
}

// once makes the first call misbehave and the later ones good.
func once(bad func(http.ResponseWriter, *http.Request, message)) func(http.ResponseWriter, *http.Request, message) {
	var first sync.Once
	return func(w http.ResponseWriter, r *http.Request, m message) {
		good := true
		first.Do(func() { good = false })
		if good {
			answer(w, m, "ok")
		} else {
			bad(w, r, m)
		}
	}
}

// Report 45: both types, always in the same order; session and revision go with
// everything after initialize, and no declared header takes their place.
func TestHeadersOfEveryRequest(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	f := &fake{get: func(w http.ResponseWriter, _ *http.Request, _ message) {
		w.WriteHeader(http.StatusMethodNotAllowed)
		close(asked) // once: it has no stream
	}}
	c := open(t, f)
	wantOK(t, c)
	<-asked
	_ = c.Close(t.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	var verbs []string
	for i, s := range f.seen {
		verbs = append(verbs, s.verb+" "+s.Method)
		h := s.header
		wantSession, wantVersion := "s-1", "2025-06-18"
		switch i {
		case 0: // the probe is of the other era
			wantSession, wantVersion = "", "2026-07-28"
		case 1:
			wantSession, wantVersion = "", ""
		}
		if h.Get("Accept") != "application/json, text/event-stream" || h.Get("Authorization") != "Bearer "+secret ||
			h.Get("Mcp-Session-Id") != wantSession || h.Get("Mcp-Protocol-Version") != wantVersion || len(h.Values("Accept")) != 1 {
			t.Errorf("%s %s has headers %v", s.verb, s.Method, h)
		}
	}
	slices.Sort(verbs)
	if want := []string{"DELETE ", "GET ", "POST initialize", "POST notifications/initialized", "POST server/discover", "POST tools/call"}; !slices.Equal(verbs, want) {
		t.Errorf("the requests are %v, want %v", verbs, want)
	}
}

// Pitfall 11: a response does not overtake what was said before it.
func TestProgressComesBeforeItsResult(t *testing.T) {
	t.Parallel()
	const body = `{"x":9007199254740993,"a":1.0,"structuredContent":{"b":null,"a":[ 1 ]},"content":[{"type":"video","u":"\u2028"}]}`
	f := &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		var p struct {
			Meta struct {
				Token json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		}
		_ = json.Unmarshal(m.Params, &p)
		events := []string{": hello", "event: other\ndata: {}"}
		for i := range 50 {
			events = append(events, fmt.Sprintf("event: message\nid: %d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\ndata:\"params\":{\"progressToken\":%s,\"progress\":%d}}", i, p.Meta.Token, i))
		}
		stream(w, append(events, fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\r\ndata: \"result\":%s}", m.ID, body))...)
	}}
	c := open(t, f)
	for range 20 {
		n := 0
		got, err := call(t, c, live.CallOptions{Notify: func(notice live.Notice) {
			if want := fmt.Sprintf(`{"progressToken":"p","progress":%d}`, n); string(notice.Params) != want {
				t.Errorf("progress %s, want %s", notice.Params, want)
			}
			n++
		}})
		if err != nil || got != body || n != 50 {
			t.Fatalf("%d times progress, %s, %v", n, got, err)
		}
	}
}

// Report 29: each way to say that a session is gone ends the connection, and the
// call was not begun.
func TestASessionThatExpiredEndsTheConnection(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(http.ResponseWriter, *http.Request, message){
		"404": func(w http.ResponseWriter, _ *http.Request, _ message) {
			http.Error(w, "session not found "+secret, 404)
		},
		"400": func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}`)
		},
		"200": func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"Session not found"}}`, m.ID)
		},
	} {
		c := open(t, &fake{call: say})
		_, err := call(t, c)
		wantLost(t, err, false, fault.RuntimeNotLive, "session has expired")
		<-c.Done()
		if !fault.Is(c.Err(), fault.RuntimeNotLive) || !strings.Contains(c.Exit(), "session has expired") {
			t.Errorf("%s: the connection ended with %v, %q", name, c.Err(), c.Exit())
		}
	}
	// An error that does not say so may come after the tool has run: it is the answer.
	c := open(t, &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Session not found"}}`, m.ID)
	}})
	if got, err := call(t, c); err != nil || !strings.Contains(got, "-32001") {
		t.Errorf("%s, %v", got, err)
	}
	<-c.Done()
}

// Calls that the server has begun are answered, though it knows the session no more
// when others come.
func TestCallsUnderWayOutliveTheirSession(t *testing.T) {
	t.Parallel()
	begun, expired := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.call = once(func(w http.ResponseWriter, r *http.Request, m message) {
		close(begun)
		select {
		case <-expired:
		case <-r.Context().Done():
		}
		answer(w, m, "ok")
	})
	good := f.call
	f.call = func(w http.ResponseWriter, r *http.Request, m message) {
		select {
		case <-begun:
			http.Error(w, "no such session", 404)
		default:
			good(w, r, m)
		}
	}
	c := open(t, f)
	got := make(chan string)
	go func() {
		text, err := call(t, c)
		got <- fmt.Sprint(text, err)
	}()
	<-begun
	_, err := call(t, c)
	wantLost(t, err, false, fault.RuntimeNotLive, "session has expired")
	<-c.Retired()
	if _, err = call(t, c); err == nil || len(f.of("tools/call")) != 2 {
		t.Errorf("a request was begun after that: %v", err)
	}
	select {
	case <-c.Done():
		t.Error("the connection ended before its calls")
	default:
	}
	close(expired)
	if text := <-got; !strings.Contains(text, `"ok"`) {
		t.Errorf("the call under way has %s", text)
	}
	<-c.Done()
}

// A server that was started again knows the session of the GET stream no more. If
// nobody calls, nothing else says so.
func TestAStreamThatIsRefusedLaterEndsTheConnection(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 400, 404} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := &fake{}
			f.get = func(w http.ResponseWriter, _ *http.Request, _ message) {
				if len(f.of(http.MethodGet)) > 1 {
					w.WriteHeader(status)
					return
				}
				stream(w, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			}
			c := open(t, f)
			<-c.Done()
			if !strings.Contains(c.Exit(), "session has expired") {
				t.Errorf("the connection ended with %q", c.Exit())
			}
		})
	}
}

func TestStatusesThatRefuse(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		kind          fault.Kind
		written, ends bool
	}{
		401: {fault.AuthRequired, false, true}, 403: {fault.AuthRequired, false, false},
		429: {fault.Unavailable, false, false}, 405: {fault.Unavailable, false, false},
		301: {fault.URLBlocked, false, false}, 307: {fault.URLBlocked, false, false},
		500: {fault.Unavailable, true, false}, 503: {fault.Unavailable, true, false},
	} {
		c := open(t, &fake{call: once(func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("WWW-Authenticate", secret)
			http.Error(w, secret, status)
		})})
		_, err := call(t, c)
		wantLost(t, err, want.written, want.kind, fmt.Sprint(status))
		if want.ends {
			<-c.Done()
		} else {
			wantOK(t, c)
		}
	}
}

func TestAFailedHandshakeSaysWhy(t *testing.T) {
	t.Parallel()
	other := &fake{}
	elsewhere := serve(t, other)
	for name, test := range map[string]struct {
		say  func(http.ResponseWriter, *http.Request, message)
		kind fault.Kind
		text string
	}{
		"a login": {func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(401) }, fault.AuthRequired, "login"},
		"nothing": {func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, secret, 404) }, fault.InitializeFailed, "404"},
		// Report 61.
		"a page": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			_, _ = io.WriteString(w, "<html>"+secret)
		}, fault.InitializeFailed, "no MCP message"},
		// Reports 48 and 49.
		"a redirect": {func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}, fault.URLBlocked, "redirect_body_cross_origin"},
		"brotli": {func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Encoding", "br")
			initialized(w, m)
		}, fault.InitializeFailed, "encoding"},
	} {
		_, err := live.Open(t.Context(), client(t, serve(t, &fake{initialize: test.say})), live.Options{Name: "gatebus"})
		if !fault.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %s with %q", name, err, test.kind, test.text)
		}
	}
	if n := len(other.of("POST")); n != 0 {
		t.Errorf("the other host got %d requests", n)
	}
}

// Nobody knows what became of a call whose connection was cut; it is made once.
func TestACutIsTheEndOfOneCallAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(http.ResponseWriter, *http.Request, message){
		"before the headers": func(http.ResponseWriter, *http.Request, message) { panic(http.ErrAbortHandler) },
		"in the stream": func(w http.ResponseWriter, _ *http.Request, m message) {
			stream(w, ": begun")
			_, _ = io.WriteString(w, "data: "+result(m, "half")[:20])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"after the stream": func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, ": nothing") },
		"in the body": func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, result(m, "x")[:30])
		},
		"without an answer": func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(202) },
	} {
		f := &fake{call: once(cut)}
		c := open(t, f)
		_, err := call(t, c)
		if lost, ok := errors.AsType[*live.ErrLost](err); !ok || !lost.Written {
			t.Errorf("%s: %v, want ErrLost, Written", name, err)
		}
		for range 3 {
			wantOK(t, c)
		}
		if n := len(f.of("tools/call")); n != 4 {
			t.Errorf("%s: the server got %d calls, want 4", name, n)
		}
	}
}

func TestACallThatDidNotGoOutCanBeMadeAgain(t *testing.T) {
	t.Parallel()
	f := &fake{}
	var refuse atomic.Bool
	c := open(t, f, func(o *httpclient.Options) {
		o.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			if refuse.Load() {
				return nil, errors.New("dial: " + secret)
			}
			conn, err := direct(ctx, at)
			return &oneShot{Conn: conn}, err
		}
	})
	refuse.Store(true)
	_, err := call(t, c)
	wantLost(t, err, false, fault.Unavailable, "cannot be reached")
	refuse.Store(false)
	wantOK(t, c)
}

// direct dials where it is said.
func direct(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", at.String())
}

// oneShot ends after one answer, and the client knows.
type oneShot struct{ net.Conn }

func (c *oneShot) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return copy(p, bytes.Replace(p[:n], []byte("HTTP/1.1"), []byte("HTTP/1.0"), 1)), err
}

// Report 59.
func TestAnswersThatNobodyWaitsForAreDropped(t *testing.T) {
	t.Parallel()
	c := open(t, &fake{call: once(func(w http.ResponseWriter, _ *http.Request, m message) {
		stream(w, `data: {"jsonrpc":"2.0","id":999,"result":{}}`, "data: not json", "data: "+result(m, "ok"), "data: "+result(m, "again"))
	})})
	for range 3 {
		wantOK(t, c)
	}
	if n := c.Counts(); n.Strays != 1 || n.Frames != 1 {
		t.Errorf("%+v", n)
	}
}

// Report 58: the server is told once, and the stream is closed.
func TestACallThatIsGivenUpIsCancelled(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(http.ResponseWriter){
		"no headers": func(http.ResponseWriter) {}, "a stream": func(w http.ResponseWriter) { stream(w, ": begun") },
	} {
		came, closed := make(chan struct{}), make(chan struct{})
		f := &fake{told: make(chan message, 2), call: once(func(w http.ResponseWriter, r *http.Request, _ message) {
			begin(w)
			close(came)
			<-r.Context().Done()
			close(closed)
		})}
		c := open(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-came
			cancel()
		}()
		if _, err := c.Call(ctx, "tools/call", redact.NewRaw([]byte(`{}`)), live.CallOptions{}); err != context.Canceled {
			t.Errorf("%s: %v", name, err)
		}
		<-closed
		wantOK(t, c)
		told, calls := <-f.told, f.of("tools/call")
		_ = c.Close(t.Context()) // it waits for what is under way
		if n := len(f.told); n != 0 || !strings.Contains(string(told.Params), `"requestId":`+string(calls[0].ID)) {
			t.Errorf("%s: the server was told %s, and %d times more", name, told.Params, n)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	bound := func(o *httpclient.Options) { o.MaxFrame = limit }
	zip := func(s string) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, s)
		_ = w.Close()
		return b.Bytes()
	}
	big := strings.Repeat("y", limit)
	for name, say := range map[string]func(w http.ResponseWriter, m message){
		"a body":    func(w http.ResponseWriter, m message) { answer(w, m, big) },
		"an event":  func(w http.ResponseWriter, m message) { stream(w, "data: "+result(m, big)) },
		"its lines": func(w http.ResponseWriter, _ message) { stream(w, strings.Repeat("data: "+big[:1000]+"\n", 100)) },
		"a field":   func(w http.ResponseWriter, _ message) { stream(w, "x: "+big+big) },
		"a bomb": func(w http.ResponseWriter, m message) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zip(result(m, strings.Repeat(big, 100))))
		},
	} {
		c := open(t, &fake{call: once(func(w http.ResponseWriter, _ *http.Request, m message) { say(w, m) })}, bound)
		_, err := call(t, c)
		if lost, ok := errors.AsType[*live.ErrLost](err); !ok || !lost.Written || !fault.Is(lost.Cause, fault.FrameTooLarge) {
			t.Errorf("%s: %v, want frame_too_large", name, err)
		}
		wantOK(t, c)
	}
	// What is just small enough passes, compressed too (report 47).
	fits := func(m message) string { return strings.Repeat("y", limit-len(result(m, ""))) }
	for name, say := range map[string]func(w http.ResponseWriter, m message){
		"a body":   func(w http.ResponseWriter, m message) { answer(w, m, fits(m)) },
		"an event": func(w http.ResponseWriter, m message) { stream(w, "data: "+result(m, fits(m))) },
		"gzip": func(w http.ResponseWriter, m message) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(zip("data: " + result(m, fits(m)) + "\n\n"))
		},
	} {
		c := open(t, &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) { say(w, m) }}, bound)
		if got, err := call(t, c); err != nil || len(got) < limit-100 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// A stream that the server ends after an event with an id is taken up again.
func TestAStreamIsTakenUpAgainAfterItsLastEvent(t *testing.T) {
	t.Parallel()
	var m atomic.Pointer[message]
	f := &fake{}
	f.call = func(w http.ResponseWriter, _ *http.Request, called message) {
		m.Store(&called)
		stream(w, "id: e-1\nretry: 10\ndata: ")
	}
	f.get = func(w http.ResponseWriter, r *http.Request, _ message) {
		switch r.Header.Get("Last-Event-ID") {
		case "e-1":
			stream(w, "id: e-2\ndata: ") // and ends again
		case "e-2":
			stream(w, "data: "+result(*m.Load(), "ok"))
		default:
			w.WriteHeader(405)
		}
	}
	c := open(t, f)
	wantOK(t, c)
	if n := len(f.of("tools/call")); n != 1 {
		t.Errorf("the server got %d calls", n)
	}
}

func TestWhatTheServerSaysByItselfIsHeard(t *testing.T) {
	t.Parallel()
	heard := make(chan struct{})
	f := &fake{get: func(w http.ResponseWriter, r *http.Request, _ message) {
		stream(w, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		<-r.Context().Done()
	}}
	c, err := live.Open(t.Context(), client(t, serve(t, f)), live.Options{Name: "gatebus", OnListChanged: func(*live.Conn) { close(heard) }})
	if err != nil {
		t.Fatal(err)
	}
	<-heard
	_ = c.Close(t.Context())
}

// Report 42 and 43: no stream is no stream; one that ends is not asked for all the
// time.
func TestTheGetStreamIsNotAskedForAllTheTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		get         func(http.ResponseWriter, *http.Request, message)
		least, most int
	}{
		"405":   {nil, 1, 1},
		"empty": {func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w) }, 1, 1},
		"one event and its end": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			stream(w, `data: {"jsonrpc":"2.0","method":"notifications/message"}`)
		}, 10, 25},
		"503": {func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(503) }, 10, 25},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{get: test.get}
				l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				s := &http.Server{Handler: f}
				go s.Serve(l)
				c, err := live.Open(t.Context(), client(t, "http://10.0.0.1/mcp", func(o *httpclient.Options) { o.Dial = l.dial }), live.Options{Name: "gatebus"})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if n := len(f.of("GET")); n < test.least || n > test.most {
					t.Errorf("%d times in an hour, want %d to %d", n, test.least, test.most)
				}
				_ = c.Close(t.Context())
				_ = s.Close()
				synctest.Wait()
			})
		})
	}
}

// What is said while the GET stream is away is heard by nobody: who listens is told
// when it is back, soon, as often as that is. Nobody is told of a stream that holds, or
// by a server that does not tell of changes.
func TestWhatWasMissedIsMadeGood(t *testing.T) {
	t.Parallel()
	ends := func(after time.Duration) func(http.ResponseWriter, *http.Request, message) {
		return func(w http.ResponseWriter, r *http.Request, _ message) {
			stream(w, ": ")
			select {
			case <-time.After(after):
			case <-r.Context().Done():
			}
		}
	}
	var tried atomic.Int32
	for name, test := range map[string]struct {
		get                            func(http.ResponseWriter, *http.Request, message)
		tells                          string
		told, mostTold, gets, mostGets int
	}{
		"ended after 30 s": {ends(30 * time.Second), `{"listChanged":true}`, 110, 117, 111, 118},
		"ended after 10 s": {ends(10 * time.Second), `{"listChanged":true}`, 10, 25, 11, 26},
		"it holds":         {ends(2 * time.Hour), `{"listChanged":true}`, 0, 0, 1, 1},
		"it begins late": {func(w http.ResponseWriter, r *http.Request, m message) {
			time.Sleep(time.Second)
			ends(2*time.Hour)(w, r, m)
		}, `{"listChanged":true}`, 1, 1, 1, 1},
		"it is not there at first": {func(w http.ResponseWriter, r *http.Request, m message) {
			if tried.Add(1) == 1 {
				w.WriteHeader(503)
				return
			}
			ends(2*time.Hour)(w, r, m)
		}, `{"listChanged":true}`, 1, 1, 2, 2},
		"it tells of nothing": {ends(30 * time.Second), `{}`, 0, 0, 111, 118},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var heard atomic.Int32
				f := &fake{get: test.get, initialize: func(w http.ResponseWriter, _ *http.Request, m message) {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":%s},"serverInfo":{"name":"fake","version":"1"}}}`, m.ID, test.tells)
				}}
				_, close := inBubble(t, f, live.Options{Name: "gatebus", OnListChanged: func(*live.Conn) { heard.Add(1) }})
				time.Sleep(time.Hour)
				close()
				if n, told := len(f.of("GET")), int(heard.Load()); n < test.gets || n > test.mostGets || told < test.told || told > test.mostTold {
					t.Errorf("asked for %d times in an hour, want %d to %d; %d changes, want %d to %d", n, test.gets, test.mostGets, told, test.told, test.mostTold)
				}
			})
		})
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }
func (p *pipes) dial(context.Context, netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	p.conns <- far
	return near, nil
}

func TestTheSessionIsEndedAtClose(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := open(t, f)
	_ = c.Close(t.Context())
	if d := f.of("DELETE"); len(d) != 1 || d[0].header.Get("Mcp-Session-Id") != "s-1" {
		t.Errorf("%v", d)
	}
	// A server that hangs does not hold us, nor does a call under way.
	release := make(chan struct{})
	defer close(release)
	hang := func(_ http.ResponseWriter, r *http.Request, _ message) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	c = open(t, &fake{delete: hang, call: hang})
	failed := make(chan error)
	go func() {
		_, err := call(t, c)
		failed <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _ = c.Close(ctx); ctx.Err() != nil {
		t.Error("Close takes ten seconds")
	}
	if err := <-failed; !errors.As(err, new(*live.ErrLost)) {
		t.Errorf("the call: %v", err)
	}
}

// R96: what cannot be recorded is not sent.
func TestNothingIsSentThatIsNotRecorded_R96(t *testing.T) {
	t.Parallel()
	f := &fake{}
	no := fault.New("test", fault.AuditUnavailable, redact.Static("no"))
	asked := 0
	c := client(t, serve(t, f), func(o *httpclient.Options) {
		o.Record = func(context.Context, events.UrlDecision) error {
			asked++
			return no
		}
	})
	if sent, err := c.Write(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`)); sent || err != error(no) {
		t.Errorf("%v, %v", sent, err)
	}
	_ = c.Close(t.Context())
	if n := len(f.of("POST")); n != 0 || asked != 1 {
		t.Errorf("%d requests came, %d were decided on", n, asked)
	}
}

// Under load and with cuts of every kind each call has an outcome, none is made
// twice, no answer is another's, and the connection goes on.
func TestCallsUnderLoadWithCuts(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	f := &fake{}
	f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		switch n.Add(1) % 8 {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			stream(w, ": begun")
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3, 4:
			stream(w, "data: "+result(m, string(m.ID)))
		default:
			answer(w, m, string(m.ID))
		}
	}
	c := open(t, f)
	var wg sync.WaitGroup
	var good, lost atomic.Int32
	answers := make(chan string, 16*50)
	for range 16 {
		wg.Go(func() {
			for range 50 {
				got, err := call(t, c)
				switch e, ok := errors.AsType[*live.ErrLost](err); {
				case err == nil:
					good.Add(1)
					answers <- got
				case ok && e.Written:
					lost.Add(1)
				default:
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
	close(answers)
	seen := map[string]bool{}
	for a := range answers {
		if seen[a] {
			t.Errorf("%s came twice", a)
		}
		seen[a] = true
	}
	ids := map[string]bool{}
	for _, s := range f.of("tools/call") {
		if ids[string(s.ID)] {
			t.Errorf("call %s was made twice", s.ID)
		}
		ids[string(s.ID)] = true
	}
	if good.Load() != 500 || lost.Load() != 300 || len(ids) != 800 || c.Counts().Strays != 0 {
		t.Errorf("%d good, %d lost, %d came, %+v", good.Load(), lost.Load(), len(ids), c.Counts())
	}
}

func BenchmarkCall(b *testing.B) {
	f := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m message
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &m)
		switch m.Method {
		case "initialize":
			initialized(w, m)
		case "tools/call":
			stream(w, "event: message\ndata: "+result(m, "ok"))
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	s := httptest.NewServer(f)
	defer s.Close()
	c, err := live.Open(b.Context(), httpclient.New(httpclient.Options{
		URL: s.URL, Gate: httpclient.Gate{Policy: urlpolicy.Private()},
		Record: func(context.Context, events.UrlDecision) error { return nil },
	}), live.Options{Name: "gatebus", Parallel: true})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), "tools/call", redact.NewRaw([]byte(`{"name":"t","arguments":{"a":1}}`)), live.CallOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
