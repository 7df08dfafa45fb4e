package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
)

// issued enrols a principal and gives it a credential.
func (b *testBus) issued(t testing.TB, principal, role string) Credential {
	t.Helper()
	c, err := b.Issue(t.Context(), Meta{}, Issue{Workspace: "default", Principal: principal, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// enrolled enrols a principal and returns the text of its creds file.
func (b *testBus) enrolled(t testing.TB, principal, role string) []byte {
	t.Helper()
	return b.issued(t, principal, role).Text
}

// accountOf is the id of the account of a principal.
func (b *testBus) accountOf(principal string) string {
	return b.hosts.Get("default", principal).Account
}

// as connects with credentials over the listener.
func (b *testBus) as(t testing.TB, creds []byte) *nats.Conn {
	t.Helper()
	nc, err := b.try(creds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (b *testBus) try(creds []byte) (*nats.Conn, error) {
	return nats.Connect(b.URL(), nats.UserCredentialBytes(creds), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

func (b *testBus) local(t testing.TB) *nats.Conn {
	t.Helper()
	if err := b.Announce(t.Context(), "r-1", nil); err != nil {
		t.Fatal(err)
	}
	creds, err := b.LocalCredentials()
	if err != nil {
		t.Fatal(err)
	}
	return b.as(t, creds)
}

// request asks for a method and returns the result, or the error object.
func request(t testing.TB, nc *nats.Conn, principal, method, params string) (string, *rpc.Error) {
	t.Helper()
	m, err := nc.Request(commandSubject("default", principal, method), []byte(params), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get("Nats-Service-Error-Code") == "" {
		return string(m.Data), nil
	}
	var e rpc.Error
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatal(err)
	}
	if m.Header.Get("Nats-Service-Error") != e.Message || m.Header.Get("Nats-Service-Error-Code") != fmt.Sprint(e.Code) {
		t.Errorf("headers %v, body %s", m.Header, m.Data)
	}
	return "", &e
}

func serve(t testing.TB, b *testBus, method string, fn func(context.Context, *Request) (any, error)) {
	t.Helper()
	if err := b.Serve(method, fn); err != nil {
		t.Fatal(err)
	}
}

func TestCommandIsServedOverTCPAsThePrincipalOfTheSubject(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	serve(t, b, "mcp/server/details", func(_ context.Context, r *Request) (any, error) {
		var p struct {
			Name string `json:"name"`
		}
		if err := r.Decode(&p); err != nil {
			return nil, err
		}
		return map[string]string{"who": r.Principal, "where": r.Workspace, "what": r.Method, "name": p.Name}, nil
	})
	got, e := request(t, b.local(t), Local, "mcp/server/details", `{"name":"docs"}`)
	if e != nil {
		t.Fatal(e)
	}
	var have map[string]string
	if err := json.Unmarshal([]byte(got), &have); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"who": "local", "where": "default", "what": "mcp/server/details", "name": "docs"}, have); diff != "" {
		t.Error(diff)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	nc := b.local(t)
	exact := jsontext.Value(`{"b":"\u00e9","a":12345678901234567890,"c":1.0}`)
	for method, c := range map[string]struct {
		params string
		fn     func(r *Request) (any, error)
		want   string
		kind   fault.Kind
		text   string
	}{
		"tool/exact":   {fn: func(*Request) (any, error) { return exact, nil }, want: string(exact)},
		"tool/empty":   {fn: func(*Request) (any, error) { return []string(nil), nil }, want: `[]`},
		"tool/none":    {fn: func(r *Request) (any, error) { return nil, r.Decode(&struct{}{}) }, want: `null`},
		"tool/fault":   {fn: func(*Request) (any, error) { return nil, errNoSession }, kind: fault.NotFound, text: "no such session"},
		"tool/error":   {fn: func(*Request) (any, error) { return nil, errors.New("a secret") }, kind: fault.Internal, text: "gatebus has"},
		"tool/panic":   {fn: func(*Request) (any, error) { panic("a secret") }, kind: fault.Internal, text: "gatebus has"},
		"tool/channel": {fn: func(*Request) (any, error) { return make(chan int), nil }, kind: fault.Internal, text: "cannot be sent"},
		"tool/large":   {fn: func(*Request) (any, error) { return strings.Repeat("x", maxPayload), nil }, kind: fault.Internal, text: "cannot be sent"},
		"tool/unknown": {params: `{"name":"x","nmae":"y"}`, kind: fault.UnknownArgument, text: "/nmae"},
		"tool/twice":   {params: `{"name":"x","name":"y"}`, kind: fault.InvalidInput, text: "/name"},
		"tool/type":    {params: `{"name":7}`, kind: fault.InvalidInput, text: "/name"},
		"tool/text":    {params: `{"name":`, kind: fault.InvalidInput, text: ""},
		"tool/more":    {params: `{"name":"x"} {}`, kind: fault.InvalidInput, text: ""},
	} {
		if c.fn == nil {
			c.fn = func(r *Request) (any, error) {
				var p struct {
					Name string `json:"name"`
				}
				return p, r.Decode(&p)
			}
		}
		serve(t, b, method, func(_ context.Context, r *Request) (any, error) { return c.fn(r) })
		got, e := request(t, nc, Local, method, c.params)
		if c.kind == "" {
			if e != nil || got != c.want {
				t.Errorf("%s: %s %v, want %s", method, got, e, c.want)
			}
			continue
		}
		entry, _ := fault.Lookup(c.kind)
		if e == nil || e.Data.Kind != c.kind || e.Data.Code != fmt.Sprintf("GB%04d", entry.Number) || e.Data.Hint != entry.Hint ||
			!strings.Contains(e.Message, c.text) || strings.Contains(e.Message, "secret") {
			t.Errorf("%s: %s %+v", method, got, e)
		}
	}
}

func TestCommandIdIsTheClients(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	serve(t, b, "tool/call", func(_ context.Context, r *Request) (any, error) { return r.Command + " " + r.Correlation, nil })
	nc := b.local(t)
	ask := func(command, correlation string) string {
		m, err := nc.RequestMsg(&nats.Msg{Subject: commandSubject("default", Local, "tool/call"),
			Header: nats.Header{"Gb-Command": {command}, "Gb-Correlation": {correlation}}}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return m.Header.Get("Nats-Service-Error") + string(m.Data)
	}
	const id = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
	if got := ask(id, "flow-1"); got != `"`+id+` flow-1"` {
		t.Error(got)
	}
	if got := ask(id, ""); got != `"`+id+` `+id+`"` {
		t.Error(got)
	}
	if got := ask("", ""); len(got) != 2*26+3 {
		t.Error(got)
	}
	for _, bad := range []string{ask("no ulid", ""), ask(id, "no\tid")} {
		if !strings.Contains(bad, string(fault.InvalidRequest)) {
			t.Error(bad)
		}
	}
}

// A method that waits for a person must not keep the person's answer out, and
// one that is full says so.
func TestRequestsOfOneMethodAreBounded(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	nc := b.local(t)
	hold := make(chan struct{})
	began := make(chan struct{}, maxRequests)
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) {
		began <- struct{}{}
		<-hold
		return nil, nil
	})
	serve(t, b, "approvals/decide", func(context.Context, *Request) (any, error) { return "yes", nil })
	for range maxRequests {
		if err := nc.PublishRequest(commandSubject("default", Local, "tool/call"), nats.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for range maxRequests {
		<-began
	}
	if _, e := request(t, nc, Local, "tool/call", ""); e == nil || e.Data.Kind != fault.ResourceExhausted {
		t.Errorf("one too many: %v", e)
	}
	if got, e := request(t, nc, Local, "approvals/decide", ""); got != `"yes"` {
		t.Error(got, e)
	}
	close(hold)
}

func TestCloseLetsRequestsEndAndTakesNoMore(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	nc := b.local(t)
	began := make(chan struct{})
	serve(t, b, "tool/call", func(ctx context.Context, _ *Request) (any, error) {
		close(began)
		// What was begun appends its end while the bus is closing.
		for {
			b.mu.Lock()
			closing := b.closing
			b.mu.Unlock()
			if closing {
				d, err := b.sessions.Dispatch(ctx, "default", "s1", Meta{}, "touch")
				return d.Seq, err
			}
			time.Sleep(time.Millisecond)
		}
	})
	answer := make(chan string)
	go func() {
		m, err := nc.Request(commandSubject("default", Local, "tool/call"), nil, 10*time.Second)
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- string(m.Data)
	}()
	<-began
	shut(t, b.Bus)
	if got := <-answer; got != "2" { // behind the enrolment of local
		t.Errorf("answer %s", got)
	}
	wantKind(t, b.Serve("tool/other", nil), fault.BusUnavailable)
}

func TestCloseWithoutTimeEndsTheRequests(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	nc := b.local(t)
	began := make(chan struct{})
	serve(t, b, "tool/call", func(ctx context.Context, _ *Request) (any, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err := nc.PublishRequest(commandSubject("default", Local, "tool/call"), nats.NewInbox(), nil); err != nil {
		t.Fatal(err)
	}
	<-began
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// The attacks of a host: whatever it sends, nothing reaches the runtime in the
// name of another, nothing reaches the log, nobody else gets its answers.
func TestHostCannotActAsAnother(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	alice := b.as(t, b.enrolled(t, "alice", host.RoleHost))
	bob := b.as(t, b.enrolled(t, "bob", host.RoleHost))
	var mu sync.Mutex
	var reached []string
	for _, method := range []string{"tool/call", "approvals/decide", "mcp/list"} {
		serve(t, b, method, func(_ context.Context, r *Request) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			reached = append(reached, r.Principal+" "+r.Method)
			return "answer", nil
		})
	}
	inbox, err := bob.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := bob.Flush(); err != nil {
		t.Fatal(err)
	}
	ask := func(subject, reply string) {
		t.Helper()
		m := &nats.Msg{Subject: subject, Reply: reply, Data: []byte("{}"),
			Header: nats.Header{"Nats-Request-Info": {`{"acc":"` + b.accountOf("bob") + `"}`}}}
		if err := alice.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	inboxOfBob := "_INBOX.bob.1"
	ask("gatebus.default.cmd.bob.tool.call", inboxOfBob)          // another's subject
	ask("gatebus.default.cmd.*.tool.call", inboxOfBob)            // everybody's
	ask("gatebus.other.cmd.alice.tool.call", inboxOfBob)          // another workspace
	ask("gatebus.default.cmd.alice.approvals.decide", inboxOfBob) // not the role's
	ask("gatebus.default.evt.session.00", inboxOfBob)             // the log
	ask("gatebus.default.job.connect", inboxOfBob)                // the jobs
	ask("gatebus.default.conn.c1.1", inboxOfBob)                  // a connection
	ask("$JS.API.STREAM.DELETE."+eventStream, inboxOfBob)         // the store
	ask("$JS.API.DIRECT.GET."+eventStream, inboxOfBob)            // its content
	ask("$O."+blobBucket+".C.x", inboxOfBob)                      // the blobs
	ask("gatebus.default.cmd.alice.tool.call", inboxOfBob)        // its own, answered to bob
	ask("gatebus.default.cmd.alice.tool.call", "gatebus.default.cmd.bob.tool.call")
	ask("gatebus.default.cmd.alice.tool.call", "gatebus.default.cmd.alice.approvals.decide")
	ask("gatebus.default.cmd.alice.tool.call", "gatebus.default.evt.session.00")
	ask("gatebus.default.cmd.alice.tool.call", "$JS.API.STREAM.DELETE."+eventStream)
	if got, e := request(t, alice, "alice", "tool/call", ""); got != `"answer"` {
		t.Fatal(got, e)
	}
	if got, e := request(t, bob, "bob", "mcp/list", ""); got != `"answer"` {
		t.Fatal(got, e)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(reached)
	if diff := cmp.Diff([]string{"alice tool/call", "bob mcp/list"}, slices.Compact(reached)); diff != "" {
		t.Error(diff)
	}
	for {
		m, err := inbox.NextMsg(50 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil || m.Subject == inboxOfBob {
			t.Fatalf("bob got %s %v", m.Data, err)
		}
	}
	if n := len(commits(t, b.Bus)); n != 2 { // the enrolments
		t.Errorf("%d forged commits", n-2)
	}
}

// The import is the first lock, the account in the server's header the second.
func TestCommandOfAnotherAccountIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.enrolled(t, "bob", host.RoleHost)
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) { return "reached", nil })
	// From inside of the runtime's account no import stands in the way.
	for _, header := range []nats.Header{
		nil,
		{"Nats-Request-Info": {"{"}},
		{"Nats-Request-Info": {`{"acc":"` + b.accounts.rt + `"}`}},
		{"Nats-Request-Info": {`{"acc":""}`}},
	} {
		for _, principal := range []string{"bob", "nobody"} {
			m, err := b.nc.RequestMsg(&nats.Msg{Subject: commandSubject("default", principal, "tool/call"), Header: header}, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(m.Data), string(fault.CapabilityDenied)) {
				t.Errorf("%s %v: %s", principal, header, m.Data)
			}
		}
	}
}

func TestKindsTravelAsErrorObjects(t *testing.T) {
	t.Parallel()
	for e := range fault.Table() {
		sent := rpc.ErrorOf(fault.New("op", e.Kind, redact.Static("why")))
		got := sent.Fault("asked")
		if got.Kind != e.Kind || got.Text.String() != "why" || got.Op != "asked" {
			t.Errorf("%s arrives as %+v", e.Kind, got)
		}
	}
	if got := (rpc.Error{Data: rpc.Data{Kind: "of a newer release"}}).Fault("asked"); got.Kind != fault.Internal {
		t.Errorf("an unknown kind is %s", got.Kind)
	}
}
