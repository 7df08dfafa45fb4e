package door_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/door"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/notifier"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

func topicsOnly(_ context.Context, _ uint64, topics []string) error {
	return notifier.CheckTopics(topics)
}

// small is a door with methods of the test, for the principal ana.
func small(t *testing.T, methods map[string]func(ctx context.Context, r *bus.Request) (any, error)) *httptest.Server {
	t.Helper()
	o := door.Options{
		Methods: []bus.Method{},
		Authenticate: func(token string) (client.Identity, bool) {
			return client.Identity{Workspace: "team", Principal: "ana", Actor: "ana"}, token == "right"
		},
		Follow: func(context.Context, client.Identity, uint64, []string) iter.Seq2[client.Notifications, error] {
			return func(func(client.Notifications, error) bool) {}
		},
		Check: topicsOnly, Head: func() uint64 { return 0 }, Log: slog.New(slog.DiscardHandler),
	}
	for name, f := range methods {
		o.Methods = append(o.Methods, bus.Method{Name: name, Handle: f})
	}
	d, err := door.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(d.Handler())
	t.Cleanup(func() { d.Close(); s.Close() })
	return s
}

// ask posts a body and returns what was answered.
func ask(t *testing.T, s *httptest.Server, body string, headers ...string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/rpc", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer right")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(b)
}

func methods() map[string]func(context.Context, *bus.Request) (any, error) {
	return map[string]func(context.Context, *bus.Request) (any, error){
		"who":  func(_ context.Context, r *bus.Request) (any, error) { return r.Workspace + "/" + r.Principal, nil },
		"echo": func(_ context.Context, r *bus.Request) (any, error) { return jsontext.Value(r.Data), nil },
		"door": func(_ context.Context, r *bus.Request) (any, error) { return r.Channel, nil },
		"ids":  func(_ context.Context, r *bus.Request) (any, error) { return r.Command + " " + r.Correlation, nil },
		"add": func(_ context.Context, r *bus.Request) (any, error) {
			var p struct {
				A int `json:"a"`
			}
			return p.A, r.Decode(&p)
		},
		"no": func(context.Context, *bus.Request) (any, error) {
			return nil, fault.New("no", fault.CapabilityDenied, redact.Static("not you"))
		},
		"panic": func(context.Context, *bus.Request) (any, error) { panic("raw") },
		"plain": func(context.Context, *bus.Request) (any, error) { return nil, errors.New("raw") },
		"huge":  func(context.Context, *bus.Request) (any, error) { return strings.Repeat("x", 9<<20), nil },
	}
}

// errorOf is the error object of a kind.
func errorOf(kind fault.Kind, text redact.EventText) string {
	b, _ := json.Marshal(rpc.ErrorOf(fault.New("", kind, text)))
	return string(b)
}

func TestMessagesAreAnsweredAsSent(t *testing.T) {
	t.Parallel()
	s := small(t, methods())
	const command = "01J9Z8Q5V7W3X2Y1Z0ABCDEFGH"
	internal := errorOf(fault.Internal, redact.Static("gatebus has an error of its own"))
	bad := func(text redact.EventText) string {
		return `{"jsonrpc":"2.0","id":null,"error":` + errorOf(fault.InvalidRequest, text) + `}`
	}
	for _, c := range []struct {
		name, body string
		status     int
		want       string
		headers    []string
	}{
		{"call", `{"jsonrpc":"2.0","id":1,"method":"who"}`, 200, `{"jsonrpc":"2.0","id":1,"result":"team/ana"}`, nil},
		{"the door, whatever the client says", `{"jsonrpc":"2.0","id":1,"method":"door","params":{"channel":"console"}}`, 200, `{"jsonrpc":"2.0","id":1,"result":"http"}`, []string{"Channel", "cli"}},
		{"id as sent", ` { "method" : "who", "id" : "\u0061\/b" , "jsonrpc":"2.0"} `, 200, `{"jsonrpc":"2.0","id":"\u0061\/b","result":"team/ana"}`, nil},
		{"number as sent", `{"jsonrpc":"2.0","id":12345678901234567890.50,"method":"who"}`, 200, `{"jsonrpc":"2.0","id":12345678901234567890.50,"result":"team/ana"}`, nil},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"who"}`, 200, `{"jsonrpc":"2.0","id":null,"result":"team/ana"}`, nil},
		{"raw result", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"z":9007199254740993,"a":1e400,"t":"\u00e9<"}}`, 200,
			`{"jsonrpc":"2.0","id":1,"result":{"z":9007199254740993,"a":1e400,"t":"\u00e9<"}}`, nil},
		{"ids of the command", `{"jsonrpc":"2.0","id":1,"method":"ids"}`, 200, `{"jsonrpc":"2.0","id":1,"result":"` + command + ` flow"}`,
			[]string{"Gb-Command", command, "Gb-Correlation", "flow"}},
		{"a command that is none", `{"jsonrpc":"2.0","id":1,"method":"ids"}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.InvalidRequest, redact.Static("the command id is no ULID")) + `}`, []string{"Gb-Command", "x"}},
		{"notification", `{"jsonrpc":"2.0","method":"who"}`, 202, ``, nil},
		{"notification that fails", `{"jsonrpc":"2.0","method":"none"}`, 202, ``, nil},
		{"unknown method", `{"jsonrpc":"2.0","id":1,"method":"none"}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.UnknownMethod, redact.Static("there is no such method")) + `}`, nil},
		{"unknown member", `{"jsonrpc":"2.0","id":1,"method":"add","params":{"b":1}}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.UnknownArgument, redact.Static("unknown parameter /b")) + `}`, nil},
		{"wrong member", `{"jsonrpc":"2.0","id":1,"method":"add","params":{"a":"x"}}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.InvalidInput, redact.Static("wrong value of /a")) + `}`, nil},
		{"list of params", `{"jsonrpc":"2.0","id":1,"method":"add","params":[1]}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.InvalidInput, redact.Static("params: an object, its members by name")) + `}`, nil},
		{"refused", `{"jsonrpc":"2.0","id":1,"method":"no"}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.CapabilityDenied, redact.Static("not you")) + `}`, nil},
		{"panic", `{"jsonrpc":"2.0","id":1,"method":"panic"}`, 200, `{"jsonrpc":"2.0","id":1,"error":` + internal + `}`, nil},
		{"error that is no fault", `{"jsonrpc":"2.0","id":1,"method":"plain"}`, 200, `{"jsonrpc":"2.0","id":1,"error":` + internal + `}`, nil},
		{"result too large", `{"jsonrpc":"2.0","id":1,"method":"huge"}`, 200,
			`{"jsonrpc":"2.0","id":1,"error":` + errorOf(fault.Internal, redact.Static("the result cannot be sent")) + `}`, nil},
		{"batch", `[{"jsonrpc":"2.0","id":1,"method":"who"},{"jsonrpc":"2.0","method":"who"},{"jsonrpc":"2.0","id":2,"method":"no"},7]`, 200,
			`[{"jsonrpc":"2.0","id":1,"result":"team/ana"},{"jsonrpc":"2.0","id":2,"error":` + errorOf(fault.CapabilityDenied, redact.Static("not you")) + `},` +
				bad(redact.Static("a message is an object")) + `]`, nil},
		{"batch of notifications", `[{"jsonrpc":"2.0","method":"who"}]`, 202, ``, nil},
		{"empty batch", `[]`, 400, bad(redact.Static("a batch has at least one message")), nil},
		{"batch with a command", `[{"jsonrpc":"2.0","id":1,"method":"who"}]`, 400,
			bad(redact.Static("Gb-Command names one command: it cannot be that of a batch")), []string{"Gb-Command", command}},
		{"too many", `[` + strings.Repeat(`0,`, 100) + `0]`, 400, bad(redact.Static("a batch has 100 messages at most")), nil},
		{"no version", `{"id":null,"method":"who"}`, 400, bad(redact.Static("jsonrpc: must be 2.0")), nil},
		{"no method", `{"jsonrpc":"2.0"}`, 400, bad(redact.Static("method: is missing")), nil},
		{"method is no text", `{"jsonrpc":"2.0","method":1}`, 400, bad(redact.Static("method: a text")), nil},
		{"id is an object", `{"jsonrpc":"2.0","id":{},"method":"who"}`, 400, bad(redact.Static("id: a string or a number")), nil},
		{"an answer", `{"jsonrpc":"2.0","id":null,"result":1}`, 400, bad(redact.Static("a message has no member result")), nil},
		{"disguised", `{"jsonrpc":"2.0","id":null,"Method":"who"}`, 400, bad(redact.Static("a message has no member Method")), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			status, got := ask(t, s, c.body, c.headers...)
			if diff := cmp.Diff(c.want, got); status != c.status || diff != "" {
				t.Errorf("%d, want %d (-want +got):\n%s", status, c.status, diff)
			}
		})
	}
}

func TestBodiesThatAreNotOneValueAreParseErrors(t *testing.T) {
	t.Parallel()
	s := small(t, methods())
	for _, body := range []string{
		``, `{`, `{"jsonrpc":"2.0","id":1,"method":"who"} x`, `{"jsonrpc":"2.0","id":1,"id":2,"method":"who"}`, "\"\xff\"", `[{}`, `[1]2`,
		`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":1,"a":2}}`, strings.Repeat("[", 20_000),
	} {
		status, got := ask(t, s, body)
		var m struct {
			ID    any
			Error rpc.Error
		}
		if err := json.Unmarshal([]byte(got), &m); err != nil || status != 400 || m.ID != nil || m.Error.Code != -32700 {
			t.Errorf("%.40q: %d %s", body, status, got)
		}
	}
}

func TestWhoMayComeIn(t *testing.T) {
	t.Parallel()
	s := small(t, methods())
	const who = `{"jsonrpc":"2.0","id":1,"method":"who"}`
	for _, c := range []struct {
		body    string
		status  int
		headers []string
	}{
		{who, 200, nil},
		{who, 401, []string{"Authorization", "Bearer wrong"}},
		{who, 401, []string{"Authorization", "Basic right"}},
		{who, 403, []string{"Host", "evil.example"}},
		{who, 403, []string{"Origin", "https://evil.example"}},
		{who, 415, []string{"Content-Type", "text/plain"}},
		{strings.Repeat(" ", 4<<20+1), 413, nil},
	} {
		if status, got := ask(t, s, c.body, c.headers...); status != c.status || !json.Valid([]byte(got)) {
			t.Errorf("%v: %d %s", c.headers, status, got)
		}
	}
	for path, method := range map[string]string{"/rpc": "GET", "/rpc/events": "POST"} {
		r, _ := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		r.Header.Set("Authorization", "Bearer right")
		w, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != 405 || w.Header.Get("Allow") == "" {
			t.Errorf("%s %s: %d", method, path, w.StatusCode)
		}
	}
}

func TestClientThatGoesAwayCancelsItsRequest(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan error, 1)
	s := small(t, map[string]func(context.Context, *bus.Request) (any, error){"wait": func(ctx context.Context, _ *bus.Request) (any, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/rpc", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"wait"}`))
	r.Header.Set("Authorization", "Bearer right")
	r.Header.Set("Content-Type", "application/json")
	if w, err := s.Client().Do(r); err == nil {
		w.Body.Close()
		t.Error("it was answered")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// FuzzRPC: whatever is sent, the answer is valid JSON-RPC or nothing, and a
// method is not called by what is no message.
func FuzzRPC(f *testing.F) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`, `[{"jsonrpc":"2.0","id":"a","method":"m"}]`, `[]`, `{}`, `{"id":{}}`,
		`{"jsonrpc":"2.0","method":"m","params":[]}`, `{"jsonrpc":"2.0","id":1e999,"method":"m"}`, "\xff", `[1,[2],"x",null]`,
	} {
		f.Add([]byte(body))
	}
	d, err := door.New(door.Options{
		Methods:      []bus.Method{{Name: "m", Handle: func(context.Context, *bus.Request) (any, error) { return 1, nil }}},
		Authenticate: func(string) (id client.Identity, ok bool) { return id, true },
		Follow: func(context.Context, client.Identity, uint64, []string) iter.Seq2[client.Notifications, error] {
			return nil
		},
		Check: topicsOnly, Head: func() uint64 { return 0 },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/rpc", bytes.NewReader(body))
		r.Host = "localhost"
		r.Header.Set("Authorization", "Bearer x")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, r)
		if w.Code == http.StatusAccepted {
			if w.Body.Len() > 0 {
				t.Errorf("%q is answered %s", body, w.Body)
			}
			return
		}
		var one, all = jsontext.Value(w.Body.Bytes()), []jsontext.Value{}
		if one.Kind() != '[' {
			all = append(all, one)
		} else if err := json.Unmarshal(one, &all); err != nil || len(all) == 0 {
			t.Fatalf("%q is answered %s", body, w.Body)
		}
		for _, v := range all {
			var m map[string]json.RawMessage
			if err := json.Unmarshal(v, &m); err != nil || string(m["jsonrpc"]) != `"2.0"` || len(m) != 3 || m["id"] == nil || (m["error"] == nil) == (m["result"] == nil) {
				t.Fatalf("%q is answered %s", body, w.Body)
			}
			if m["result"] != nil && !bytes.Contains(body, m["id"]) {
				t.Fatalf("%q is answered with the id %s", body, m["id"])
			}
		}
	})
}

// house is a whole runtime behind a door on a real listener.
type house struct {
	*rig.Rig
	door   *door.Door
	server *httptest.Server
}

func open(t *testing.T) *house {
	t.Helper()
	r := rig.New(t, rig.Options{})
	d, err := door.New(door.Options{
		Methods: r.Methods, Authenticate: r.Decider.Authenticate, Follow: r.Notifier.Follow, Check: r.Notifier.Check, Head: r.Bus.Known,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(d.Handler())
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(4096) // a client that does not read is noticed soon
		return ctx
	}
	s.Start()
	t.Cleanup(func() { d.Close(); s.Close() })
	return &house{r, d, s}
}

// token enrols a principal.
func (h *house) token(t *testing.T, name, role string, expires time.Time) string {
	t.Helper()
	var token client.HostTokenResult
	h.Ask("host/token", client.HostToken{Name: name, Role: role, Expires: expires}, &token)
	return token.Token
}

// The rights of a role are the same over HTTP as for the method itself.
func TestRolesAreThoseOfTheMethods_Decision2(t *testing.T) {
	t.Parallel()
	h := open(t)
	served := map[string]bool{}
	for role, name := range map[string]string{"host": "ana", "operator": "opa", "auditor": "audy"} {
		token := h.token(t, name, role, time.Time{})
		for _, m := range client.Methods {
			const params = `{"no such member":1}`
			_, want := h.Answer(name, m.Name, []byte(params))
			_, body := ask(t, h.server, `{"jsonrpc":"2.0","id":1,"method":"`+m.Name+`","params":`+params+`}`, "Authorization", "Bearer "+token)
			var got struct{ Error rpc.Error }
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error != rpc.ErrorOf(want) {
				t.Errorf("%s of %s: %s, want %+v", m.Name, role, body, rpc.ErrorOf(want))
			}
			served[role+" "+strconv.FormatBool(got.Error.Data.Kind == fault.UnknownArgument)] = true
			if role == "host" && got.Error.Data.Kind != fault.RoleDenied && (strings.HasPrefix(m.Name, "approvals/") || strings.HasPrefix(m.Name, "grant/")) {
				t.Errorf("a host may %s", m.Name)
			}
		}
	}
	for _, key := range []string{"host true", "host false", "operator true", "auditor true", "auditor false"} {
		if !served[key] {
			t.Errorf("not seen: %s", key)
		}
	}
}

// stream is a reader of /rpc/events.
type stream struct {
	body  io.ReadCloser
	lines *bufio.Reader
}

func (h *house) listen(ctx context.Context, token, query, last string) (*stream, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, h.server.URL+"/rpc/events"+query, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	w, err := h.server.Client().Do(r)
	if err != nil {
		return nil, err
	}
	if w.StatusCode != 200 || w.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(w.Body)
		w.Body.Close()
		return nil, fmt.Errorf("%d %s", w.StatusCode, b)
	}
	return &stream{w.Body, bufio.NewReader(w.Body)}, nil
}

// event reads the next event: its id, if it has one, and its data.
func (s *stream) event() (id, data string, err error) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		switch key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); {
		case key == "id":
			id = value
		case key == "data":
			data = value
		case line == "\n" && data != "":
			return id, data, nil
		}
	}
}

// Readers that are cut off at random and come again get everything once.
func TestStreamGoesOnWhereItWasCut_Decision12(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.Declare("docs", rig.Command(fakes.Build(t, "misbehave"), "drift"), "approval_policy: auto")
	h.Load()
	h.GrantAll("ana")
	ana, operator := h.token(t, "ana", "host", time.Time{}), h.token(t, "opa", "operator", time.Time{})
	begin := h.Bus.Known()
	const changes = 60
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i, who := range []struct{ name, token string }{{"ana", ana}, {"opa", operator}, {"opa", operator}} {
		readers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			var got []string
			last, cuts := strconv.FormatUint(begin, 10), 0
			finished := false
			for !finished {
				s, err := h.listen(h.Context(), who.token, "", last)
				if err != nil {
					t.Error(err)
					return
				}
				var commit []string // of the commit at hand, until its id comes
				for n := rnd.IntN(7); n >= 0 || finished; n-- {
					id, data, err := s.event()
					if err != nil {
						t.Error(err)
						return
					}
					commit = append(commit, data)
					if id != "" {
						last, got, commit = id, append(got, commit...), nil
					}
					if strings.Contains(data, `"reason":"policy"`) {
						finished = true
						break
					}
				}
				s.body.Close() // whatever is on its way is lost
				cuts++
			}
			var want []string
			page, err := h.Answer(who.name, "notifications/list", fmt.Appendf(nil, `{"after":%d}`, begin))
			if err != nil {
				t.Error(err)
				return
			}
			for _, n := range page.(client.Notifications).Notifications {
				want = append(want, string(n.Message()))
				if strings.Contains(string(n.Params), `"reason":"policy"`) {
					break // what the server listed after it
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || cuts < 5 {
				t.Errorf("%s after %d cuts (-want +got):\n%s", who.name, cuts, diff)
			}
		})
	}
	go func() { readers.Wait(); close(done) }()
	turn := h.Connected("ana")
	for range changes {
		if reply := h.Call("ana", turn.Turn, "docs__change", `{}`); reply.Status != "succeeded" {
			t.Fatalf("%+v", reply)
		}
		h.Grant("ana", "mcp.read")
		h.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.read"}, nil)
	}
	p := h.Policy
	p.DefaultApproval = "prompt"
	h.SetPolicy(p)
	<-done
}

func TestStreamEndsWithTheRightToListen(t *testing.T) {
	t.Parallel()
	h := open(t)
	for _, c := range []struct {
		name    string
		expires time.Duration
		end     func(name string)
	}{
		{"revoked", 0, func(name string) { h.Ask("host/revoke", client.HostRevoke{Name: name}, nil) }},
		{"expired", 2 * time.Second, func(string) {}},
		{"closed", 0, func(string) { h.door.Close() }},
	} {
		var expires time.Time
		if c.expires > 0 {
			expires = time.Now().Add(c.expires)
		}
		s, err := h.listen(h.Context(), h.token(t, c.name, "host", expires), "", "")
		if err != nil {
			t.Fatal(err)
		}
		c.end(c.name)
		began := time.Now()
		if id, data, err := s.event(); err == nil {
			t.Errorf("%s: still hears %s %s", c.name, id, data)
		}
		if took := time.Since(began); took > c.expires+5*time.Second {
			t.Errorf("%s: the stream ended after %v", c.name, took)
		}
	}
}

func TestStreamsOfAPrincipalAreBounded(t *testing.T) {
	t.Parallel()
	h := open(t)
	ana, bob := h.token(t, "ana", "host", time.Time{}), h.token(t, "bob", "host", time.Time{})
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()
	for range 16 {
		if _, err := h.listen(ctx, ana, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.listen(ctx, ana, "", ""); err == nil || !strings.HasPrefix(err.Error(), "429 ") {
		t.Errorf("one more: %v", err)
	}
	if _, err := h.listen(ctx, bob, "", ""); err != nil {
		t.Errorf("somebody else: %v", err)
	}
	for _, query := range []string{"?after=x", "?topics=mcp,none", "?after=-1"} {
		if _, err := h.listen(ctx, bob, query, ""); err == nil || !strings.HasPrefix(err.Error(), "400 ") {
			t.Errorf("%s: %v", query, err)
		}
	}
	for query, says := range map[string]string{
		"?topic=mcp":        "unknown parameter topic; there are after and topics",
		"?topics=mcp,typo":  "mcp/server/catalog_changed, approvals/requested, approvals/decided or what they begin with, not typo",
		"?topics=mcp&afer=": "unknown parameter afer",
	} {
		if _, err := h.listen(ctx, bob, query, ""); err == nil || !strings.HasPrefix(err.Error(), "400 ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", query, err)
		}
	}
	// What was read of a longer log than this one, before a restore.
	if _, err := h.listen(ctx, bob, "", "99999"); err == nil || !strings.HasPrefix(err.Error(), "400 ") || !strings.Contains(err.Error(), "the log ends at") {
		t.Errorf("Last-Event-ID 99999: %v", err)
	}
	after := uint64(99999)
	if err := h.Local.Do(ctx, "notifications/list", client.NotificationsList{After: &after}, nil); !fault.Is(err, fault.InvalidInput) {
		t.Errorf("after 99999: %v", err)
	}
	if _, err := h.listen(ctx, bob, "", "x"); err == nil || !strings.HasPrefix(err.Error(), "400 ") {
		t.Errorf("Last-Event-ID x: %v", err)
	}
}

// A client that does not read holds up neither the log nor other readers, and
// gets everything when it reads again.
func TestSlowReaderHoldsUpNobody(t *testing.T) {
	t.Parallel()
	h := open(t)
	token := h.token(t, "opa", "operator", time.Time{})
	begin := h.Bus.Known()
	query := fmt.Sprintf("?after=%d&topics=mcp/changed", begin)
	// The slow one has small buffers and reads nothing.
	dialer := net.Dialer{}
	conn, err := dialer.DialContext(h.Context(), "tcp", h.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprintf(conn, "GET /rpc/events%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", query, token)
	quick, err := h.listen(h.Context(), token, query, "")
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 400
	go func() {
		for range rounds {
			for _, method := range []string{"grant/add", "grant/revoke"} {
				if _, err := h.Answer("local", method, []byte(`{"principal":"ana","capability":"mcp.read"}`)); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	read := func(s *stream) (ids []string) {
		for range 2 * rounds {
			id, _, err := s.event()
			if err != nil {
				t.Error(err)
				return ids
			}
			ids = append(ids, id)
		}
		return ids
	}
	want := read(quick)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read(&stream{response.Body, bufio.NewReader(response.Body)})); diff != "" || slices.Contains(want, "") {
		t.Error(diff)
	}
}
