package httpclient_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpclient"
	"github.com/gatebus/gatebus/workers/live"
)

// discovered is the answer of a server without a handshake.
func discovered(w http.ResponseWriter, _ *http.Request, m message) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Mcp-Session-Id", "none of this era")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":1,"cacheScope":"public"}}`, m.ID)
}

// ask makes a request that must be answered.
func ask(t *testing.T, c *live.Conn, method, params string) {
	t.Helper()
	if _, err := c.Call(t.Context(), method, redact.NewRaw([]byte(params)), live.CallOptions{}); err != nil {
		t.Errorf("%s %s: %v", method, params, err)
	}
}

// Each request says in its headers what its body says, and there is no session, no
// GET stream and no farewell.
func TestHeadersRepeatTheBodyWithoutAHandshake(t *testing.T) {
	t.Parallel()
	f := &fake{discover: discovered}
	c := open(t, f, func(o *httpclient.Options) {
		o.Header = http.Header{"Mcp-Session-Id": {"declared"}, "Mcp-Method": {"declared"}, "Mcp-Name": {"declared", "twice"}, "Mcp-Protocol-Version": {"declared"}}
	})
	names := []struct{ method, params, name string }{
		{"tools/call", `{"arguments":{"name":"other","params":{"name":"x"}},"name":"plain name"}`, "plain name"},
		{"tools/call", `{"name":"\u0077eather","arguments":{}}`, "weather"},
		{"tools/call", `{"name":"Hello, 世界"}`, "=?base64?SGVsbG8sIOS4lueVjA==?="},
		{"tools/call", `{"name":" padded "}`, "=?base64?IHBhZGRlZCA=?="},
		{"tools/call", `{"name":"line1\nline2"}`, "=?base64?bGluZTEKbGluZTI=?="},
		{"tools/call", `{"name":"=?base64?literal?="}`, "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="},
		{"tools/call", `{"name":""}`, ""},
		{"tools/call", `{}`, ""},
	}
	f.call = func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m, "ok") }
	for _, n := range names {
		ask(t, c, n.method, n.params)
	}
	_ = c.Close(t.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) != len(names)+1 {
		t.Fatalf("the requests are %+v", f.seen)
	}
	for i, s := range f.seen {
		want := ""
		if i > 0 {
			want = names[i-1].name
		}
		h := s.header
		if s.verb != http.MethodPost || h.Get("Mcp-Protocol-Version") != "2026-07-28" || len(h.Values("Mcp-Protocol-Version")) != 1 ||
			h.Get("Mcp-Method") != s.Method || h.Get("Mcp-Name") != want || len(h.Values("Mcp-Name")) > 1 || len(h.Values("Mcp-Session-Id")) > 0 {
			t.Errorf("%s %s %s has headers %v, want the name %q", s.verb, s.Method, s.Params, h, want)
		}
	}
}

func TestResourcesAndPromptsAreNamedToo(t *testing.T) {
	t.Parallel()
	f := &fake{discover: discovered}
	c := open(t, f)
	for _, s := range []struct{ method, params, name string }{
		{"resources/read", `{"uri":"file:///a b","name":"no"}`, "file:///a b"}, {"prompts/get", `{"name":"p","uri":"no"}`, "p"}, {"tools/list", `{"name":"no"}`, ""},
	} {
		_, _ = c.Call(t.Context(), s.method, redact.NewRaw([]byte(s.params)), live.CallOptions{}) // the fake answers 202
		if all := f.of(s.method); len(all) != 1 || all[0].header.Get("Mcp-Name") != s.name {
			t.Errorf("%s: %+v", s.method, all)
		}
	}
}

// The end of the stream is how the server learns of it: there is no notification in
// this era.
func TestACallIsCancelledByClosingItsStream(t *testing.T) {
	t.Parallel()
	came, closed := make(chan struct{}), make(chan struct{})
	f := &fake{discover: discovered, call: once(func(w http.ResponseWriter, r *http.Request, _ message) {
		stream(w, ": begun")
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
		t.Error(err)
	}
	<-closed
	wantOK(t, c)
	_ = c.Close(t.Context()) // waits for all that goes out
	if n := len(f.of("notifications/cancelled")); n != 0 {
		t.Errorf("%d notices", n)
	}
}

// There is no resumption: a stream that was cut is the end of its request, which
// may have run.
func TestAStreamIsNotTakenUpAgainWithoutAHandshake(t *testing.T) {
	t.Parallel()
	f := &fake{discover: discovered, call: once(func(w http.ResponseWriter, _ *http.Request, _ message) {
		stream(w, "id: 7\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}")
	})}
	c := open(t, f)
	_, err := call(t, c)
	wantLost(t, err, true, fault.Unavailable, "cut")
	wantOK(t, c)
	if n := len(f.of(http.MethodGet)); n != 0 {
		t.Errorf("%d GET requests", n)
	}
}

// A server that refuses the probe in whatever way gets its handshake, and keeps the
// session that it gives then.
func TestAServerThatRefusesTheProbeGetsItsHandshake(t *testing.T) {
	t.Parallel()
	say := func(status int, media, body string) func(http.ResponseWriter, *http.Request, message) {
		return func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(m.ID)))
		}
	}
	for name, discover := range map[string]func(http.ResponseWriter, *http.Request, message){
		"no session":       say(400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID"}}`),
		"404":              say(404, "text/plain", "no such session"),
		"500":              say(500, "text/html", "<html>"),
		"a page":           say(200, "text/html", "<html>"),
		"nothing":          say(200, "text/event-stream", ""),
		"other revisions":  say(400, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25"]}}}`),
		"unknown":          say(404, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`),
		"an odd result":    say(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`),
		"a cut connection": func(http.ResponseWriter, *http.Request, message) { panic(http.ErrAbortHandler) },
	} {
		f := &fake{discover: discover}
		c := open(t, f)
		if c.Info().Protocol != "2025-06-18" {
			t.Errorf("%s: %+v", name, c.Info())
		}
		wantOK(t, c)
		for _, s := range f.of("tools/call") {
			if s.header.Get("Mcp-Session-Id") != "s-1" || s.header.Get("Mcp-Method") != "" || s.header.Get("Mcp-Name") != "" {
				t.Errorf("%s: headers %v", name, s.header)
			}
		}
	}
}

// An error that names our revision asks for another try.
func TestAServerThatWantsTheProbeAgainGetsIt(t *testing.T) {
	t.Parallel()
	for _, refusals := range []int{1, 2} {
		asked := 0
		f := &fake{discover: func(w http.ResponseWriter, r *http.Request, m message) {
			if asked++; asked > refusals {
				discovered(w, r, m)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25","2026-07-28"]}}}`, m.ID)
		}}
		c := open(t, f)
		if want := []string{"2026-07-28", "2025-06-18"}[refusals-1]; c.Info().Protocol != want || asked != 2 {
			t.Errorf("%d refusals: %+v, asked %d times", refusals, c.Info(), asked)
		}
	}
}

// What would meet a handshake too ends the opening: no credential is shown twice.
func TestAProbeThatIsTurnedAwayIsNotFollowedByAHandshake(t *testing.T) {
	t.Parallel()
	for status, kind := range map[int]fault.Kind{401: fault.AuthRequired, 403: fault.AuthRequired, 302: fault.URLBlocked} {
		f := &fake{discover: func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(status) }}
		_, err := live.Open(t.Context(), client(t, serve(t, f)), live.Options{Name: "gatebus"})
		if !fault.Is(err, kind) || len(f.of("initialize")) > 0 {
			t.Errorf("%d: %v, %d handshakes", status, err, len(f.of("initialize")))
		}
	}
}

// A server that is silent to the probe has its handshake two seconds later, and one
// that answers only the probe, late, is not lost by it.
func TestASilentServerDoesNotHoldUpTheOpening(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fake     *fake
		protocol string
	}{
		"silent": {&fake{discover: func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }}, "2025-06-18"},
		"slow": {&fake{
			discover: func(w http.ResponseWriter, r *http.Request, m message) {
				time.Sleep(3 * time.Second)
				discovered(w, r, m)
			},
			initialize: func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusBadRequest) },
		}, "2026-07-28"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, close := inBubble(t, test.fake, live.Options{Name: "gatebus"})
				defer close()
				if c.Info().Protocol != test.protocol {
					t.Errorf("%+v", c.Info())
				}
			})
		})
	}
}

// Of a short time to connect the probe takes only a part.
func TestTheProbeDoesNotTakeAllTheTimeThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{discover: func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }}
		c, close := inBubble(t, f, live.Options{Name: "gatebus", Patience: time.Hour})
		defer close()
		if c.Info().Protocol != "2025-06-18" {
			t.Errorf("%+v", c.Info())
		}
	})
}

// A subscription that ends is opened again, but not all the time, and one that is
// refused for good is not.
func TestASubscriptionIsNotAskedForAllTheTime(t *testing.T) {
	t.Parallel()
	ack := `data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true}}}`
	for name, test := range map[string]struct {
		listen                    func(http.ResponseWriter, *http.Request, message)
		least, most, heard, hears int
	}{
		"it holds": {func(w http.ResponseWriter, r *http.Request, _ message) {
			stream(w, ack, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			<-r.Context().Done()
		}, 1, 1, 1, 1},
		"it ends": {func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, ack) }, 10, 25, 9, 24},
		"503":     {func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(503) }, 10, 25, 0, 0},
		"it is unknown": {func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(404)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
		}, 1, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				heard := 0
				f := &fake{discover: discovered, listen: test.listen}
				_, close := inBubble(t, f, live.Options{Name: "gatebus", OnListChanged: func(*live.Conn) { heard++ }})
				time.Sleep(time.Hour)
				close()
				if n := len(f.of("subscriptions/listen")); n < test.least || n > test.most || heard < test.heard || heard > test.hears {
					t.Errorf("%d times in an hour, want %d to %d; %d changes, want %d to %d", n, test.least, test.most, heard, test.heard, test.hears)
				}
			})
		})
	}
}

// inBubble opens a connection to a fake over a network in memory.
func inBubble(t *testing.T, f *fake, opts live.Options) (*live.Conn, func()) {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	s := &http.Server{Handler: f}
	go s.Serve(l)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	begun := time.Now()
	c, err := live.Open(ctx, client(t, "http://10.0.0.1/mcp", func(o *httpclient.Options) { o.Dial = l.dial }), opts)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 6*time.Second {
		t.Errorf("it took %v", took)
	}
	return c, func() {
		_ = c.Close(t.Context())
		_ = s.Close()
		synctest.Wait()
	}
}
