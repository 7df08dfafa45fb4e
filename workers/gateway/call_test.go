package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpin"
	"github.com/google/go-cmp/cmp"
)

// Decision 22: what goes through is not re-encoded.
func TestBytesGoThroughUntouched(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	for _, id := range []string{
		`1`, `0`, `-0`, `7.5`, `1e400`, `-1.0E+2`, `12345678901234567890`, `"s"`, `""`, `"s-\u00e9\/"`, `"\ud83d\ude00"`, `"é<>&"`,
	} {
		for body, want := range map[string]string{
			`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`:                        `{}`,
			`{ "method" : "tools/list" , "id" :` + id + ` ,"jsonrpc":"2.0"}`:           `{"tools":[` + string(tool("demo__echo").Definition) + `,` + string(tool("demo__other").Definition) + `]}`,
			`{"id":` + id + `,"jsonrpc":"2.0","method":"t\u006fols/list","params":{}}`: `{"tools":[` + string(tool("demo__echo").Definition) + `,` + string(tool("demo__other").Definition) + `]}`,
		} {
			if got := do(g, "POST", session, body).Body.String(); got != `{"jsonrpc":"2.0","id":`+id+`,"result":`+want+`}` {
				t.Errorf("%s:\n got %s\nwant %s", body, got, want)
			}
		}
	}
	for _, params := range []string{
		`{"name":"demo__echo"}`,
		`{"name":"demo__echo","arguments":{}}`,
		`{ "arguments" : {"z":1.0,"a":1e400,"n":12345678901234567890,"é":"\u00e9<>&"} , "name":"demo__echo", "_meta":{"progressToken":1e2,"x":[ ]}, "task":{"ttl":1} }`,
		"{\n\t\"name\":\"demo\\u005f_echo\",\r\n\"vendor\":null}",
		`{"name":"demo__echo","arguments":null,"names":1,"\u00e9":2}`,
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params": ` + params + ` }`
		if got := do(g, "POST", session, body).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":`+params+`}` {
			t.Errorf("params %s came back as %s", params, got)
		}
	}
}

// What became of a call is told as decision 9 and the error table say.
func TestReplies(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	explained := func(text, structured string) string {
		return `"result":{"content":[{"type":"text","text":"` + text + `"}],"structuredContent":` + structured + `,"isError":true}}`
	}
	failed := func(status, kind, message string, started bool) client.CallReply {
		return client.CallReply{Status: status, Call: "c1", ExecutionStarted: started, Error: &client.CallError{Kind: kind, Message: message}}
	}
	for _, c := range []struct {
		name  string
		reply client.CallReply
		err   error
		want  string
	}{
		{"result", client.CallReply{Status: "succeeded", Result: json.RawMessage(`{"content":[{"type":"video","x":1.0}],"isError":false }`)}, nil, `"result":{"content":[{"type":"video","x":1.0}],"isError":false }}`},
		{"result that is an error", client.CallReply{Status: "failed", Result: json.RawMessage(`{"isError":true}`), Error: &client.CallError{Kind: "execution_failed"}}, nil, `"result":{"isError":true}}`},
		{"error of the server", client.CallReply{Status: "failed", Error: &client.CallError{Kind: "execution_failed", JSONRPC: json.RawMessage(`{"code":-32042,"message":"<m>","data":{"n":1e400}}`)}}, nil, `"error":{"code":-32042,"message":"<m>","data":{"n":1e400}}}`},
		{"denied", failed("denied", "capability_denied", "no", false), nil, explained("capability_denied (GB2002): no", `{"code":"capability_denied","status":"denied","call":"c1","execution_started":false}`)},
		{"invalid", failed("invalid", "invalid_arguments", "bad", false), nil, explained("invalid_arguments (GB5009): bad", `{"code":"invalid_arguments","status":"invalid","call":"c1","execution_started":false}`)},
		{"timed out", failed("timed_out", "timed_out", "slow", true), nil, explained("timed_out (GB5012): slow", `{"code":"timed_out","status":"timed_out","call":"c1","execution_started":true}`)},
		{"indeterminate, without an error", client.CallReply{Status: "indeterminate", Call: "c1", ExecutionStarted: true}, nil, explained("indeterminate (GB5018): nobody knows whether the call took effect", `{"code":"indeterminate","status":"indeterminate","call":"c1","execution_started":true}`)},
		{"unknown kind", failed("failed", "brand_new", "", false), nil, explained("internal (GB8006): gatebus has an error of its own", `{"code":"internal","status":"failed","call":"c1","execution_started":false}`)},
		{"started on a lost connection", failed("failed", "runtime_not_live", "lost", true), nil, explained("runtime_not_live (GB5007): lost", `{"code":"runtime_not_live","status":"failed","call":"c1","execution_started":true}`)},
		{"not found", failed("not_found", "not_found", "secret text", false), nil, `"error":{"code":-32602,"message":"Unknown tool","data":{"kind":"not_found","code":"GB5001"}}}`},
		{"pending", client.CallReply{Status: "approval_pending", Approval: &client.ApprovalRef{ID: "a1"}}, nil, explained("approval_pending (GB2004): a person must approve the call first (gatebus approve a1); then repeat the same call", `{"code":"approval_pending","id":"a1","url":"","retry_after_ms":5000}`)},
		{"pending with a URL", client.CallReply{Status: "approval_pending", Approval: &client.ApprovalRef{ID: "a1", URL: "https://x/"}}, nil, explained("approval_pending (GB2004): a person must approve the call first (gatebus approve a1); then repeat the same call", `{"code":"approval_pending","id":"a1","url":"https://x/","retry_after_ms":5000}`)},
		{"fault", client.CallReply{}, fault.New("call.bind", fault.AuditUnavailable, redact.Static("the log cannot be read")), `"error":{"code":-32015,"message":"the log cannot be read","data":{"kind":"audit_unavailable","code":"GB5017"}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.call = func(context.Context, Who, Call) (client.CallReply, error) { return c.reply, c.err }
			got := do(g, "POST", session, callOf("1", "demo__echo")).Body.String()
			if want := `{"jsonrpc":"2.0","id":1,` + c.want; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if !json.Valid([]byte(got)) {
				t.Error("not JSON")
			}
		})
	}
}

func TestListFailsWithTheKindOfTheFault(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.err = fault.New("turn.prepare", fault.TooManyTools, redact.Static("600 tools, at most 512"))
	g, _ := start(t, options(f, nil))
	got := do(g, "POST", attach(t, g), list).Body.String()
	if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32014,"message":"600 tools, at most 512","data":{"kind":"too_many_tools","code":"GB4006"}}}`; got != want {
		t.Errorf("got %s", got)
	}
}

func TestLongListsHavePages(t *testing.T) {
	t.Parallel()
	f := newFake()
	var all []client.Tool
	for i := range 2*pageSize + 1 {
		all = append(all, tool(fmt.Sprintf("demo__%04d", i)))
	}
	f.publish("catalog.of/many", all...)
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	var names []string
	cursor := "null"
	for range 3 {
		w := do(g, "POST", session, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":`+cursor+`}}`)
		var page struct {
			Result struct {
				Tools      []struct{ Name string }
				NextCursor *string
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		for _, tool := range page.Result.Tools {
			names = append(names, tool.Name)
		}
		if page.Result.NextCursor == nil {
			break
		}
		cursor = strconv.Quote(*page.Result.NextCursor)
	}
	if len(names) != len(all) || names[0] != "demo__0000" || names[2*pageSize] != "demo__2000" || !slices.IsSorted(names) {
		t.Errorf("%d names", len(names))
	}
	if asked, _ := f.counts(); asked != 1 {
		t.Errorf("the catalog was resolved %d times", asked)
	}
	for _, bad := range []string{`"nonsense"`, `"1000.other"`, `"-1.catalog.of/many"`, `"2001.catalog.of/many"`, `7`, `""`} {
		w := do(g, "POST", session, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":`+bad+`}}`)
		if code, _, _ := failureOf(t, w.Body.String()); code != -32602 {
			t.Errorf("cursor %s: %s", bad, w.Body)
		}
	}
}

// Decision 4: one turn for each catalog, and a call binds to the newest turn
// that listed its name.
func TestCallBindsToTheNewestTurnThatListedIt(t *testing.T) {
	t.Parallel()
	f := newFake()
	var turns []string
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		turns = append(turns, c.Turn+" "+c.Name)
		return client.CallReply{Result: []byte("{}")}, nil
	}
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	call := func(name string) { do(g, "POST", session, callOf("1", name)) }

	call("demo__echo") // never listed: turn-1
	do(g, "POST", session, list)
	f.publish("catalog-2", tool("demo__echo"))
	do(g, "POST", session, list) // turn-2
	call("demo__echo")
	call("demo__other")
	f.publish("catalog-1", tool("demo__echo"), tool("demo__other"))
	do(g, "POST", session, list) // turn-1 again
	call("demo__echo")
	f.publish("catalog-3", tool("demo__new"))
	call("demo__new") // not listed yet: turn-3
	call("demo__echo")

	want := []string{
		"turn-1 demo__echo", "turn-2 demo__echo", "turn-1 demo__other", "turn-1 demo__echo", "turn-3 demo__new", "turn-1 demo__echo",
	}
	if diff := cmp.Diff(want, turns); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownToolResolvesTheCatalogOnce(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	do(g, "POST", session, callOf("1", "demo__nonsense"))
	if asked, prepared := f.counts(); asked != 1 || prepared != 1 {
		t.Errorf("asked %d, prepared %d", asked, prepared)
	}
}

func TestSeventeenthCatalogEndsTheOldestTurn(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, stop := start(t, options(f, nil))
	session := attach(t, g)
	for i := range maxTurns + 1 {
		f.publish(fmt.Sprint("catalog-", i), tool("demo__echo"))
		do(g, "POST", session, list)
	}
	if diff := cmp.Diff([]string{"turn-1"}, f.endedTurns()); diff != "" {
		t.Error(diff)
	}
	stop()
	if n := len(f.endedTurns()); n != maxTurns+1 {
		t.Errorf("%d turns ended", n)
	}
}

func TestAnEndedSessionTakesItsTurnsWithIt(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	do(g, "POST", session, list)
	f.session = "another"
	do(g, "POST", session, list)
	if _, prepared := f.counts(); prepared != 2 || !slices.Equal(f.endedTurns(), []string{"turn-1"}) {
		t.Errorf("prepared %d, ended %v", prepared, f.endedTurns())
	}
}

// Decision 11: a turn that is gone is bound again without a word, once, while
// the definition is the same.
func TestGoneTurnIsBoundAgain(t *testing.T) {
	t.Parallel()
	changed := tool("demo__echo")
	changed.Digest = "another"
	refusal := func(kind string, started bool) client.CallReply {
		return client.CallReply{Status: "invalid", Call: "c1", ExecutionStarted: started, Error: &client.CallError{Kind: kind, Message: "m"}}
	}
	for _, c := range []struct {
		name  string
		first client.CallReply
		next  []client.Tool
		calls []string
		want  string // part of the answer
		ended []string
	}{
		{"turn not active", refusal("turn_not_active", false), []client.Tool{tool("demo__echo")}, []string{"turn-1", "turn-2"}, `"result":{"ok":1}`, []string{"turn-1"}},
		{"binding mismatch", refusal("binding_mismatch", false), []client.Tool{tool("demo__echo")}, []string{"turn-1", "turn-2"}, `"result":{"ok":1}`, []string{"turn-1"}},
		{"runtime not live", refusal("runtime_not_live", false), []client.Tool{tool("demo__echo")}, []string{"turn-1", "turn-2"}, `"result":{"ok":1}`, []string{"turn-1"}},
		{"started", refusal("runtime_not_live", true), []client.Tool{tool("demo__echo")}, []string{"turn-1"}, `"code":"runtime_not_live"`, []string{}},
		{"other refusal", refusal("capability_denied", false), []client.Tool{tool("demo__echo")}, []string{"turn-1"}, `"code":"capability_denied"`, []string{}},
		{"definition changed", refusal("turn_not_active", false), []client.Tool{changed}, []string{"turn-1"}, `"code":"tool_drift"`, []string{"turn-1"}},
		{"tool gone", refusal("turn_not_active", false), []client.Tool{tool("demo__other")}, []string{"turn-1"}, `"code":"tool_drift"`, []string{"turn-1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			var calls []string
			f.call = func(_ context.Context, _ Who, in Call) (client.CallReply, error) {
				calls = append(calls, in.Turn)
				if len(calls) == 1 {
					f.publish(f.catalog, c.next...) // the same id: only its turn is gone
					return c.first, nil
				}
				return client.CallReply{Result: []byte(`{"ok":1}`)}, nil
			}
			g, _ := start(t, options(f, nil))
			session := attach(t, g)
			do(g, "POST", session, list)
			got := do(g, "POST", session, callOf("1", "demo__echo")).Body.String()
			if !strings.Contains(got, c.want) {
				t.Errorf("answer %s", got)
			}
			if diff := cmp.Diff(c.calls, calls); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.ended, f.endedTurns()); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("again", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		n := 0
		f.call = func(context.Context, Who, Call) (client.CallReply, error) {
			n++
			return refusal("turn_not_active", false), nil
		}
		g, _ := start(t, options(f, nil))
		got := do(g, "POST", attach(t, g), callOf("1", "demo__echo")).Body.String()
		if n != 2 || !strings.Contains(got, `"code":"turn_not_active"`) {
			t.Errorf("%d calls, answer %s", n, got)
		}
	})
}

func TestDroppedTurnEndsWithItsLastCall(t *testing.T) {
	t.Parallel()
	f := newFake()
	entered, leave := make(chan struct{}), make(chan struct{})
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		entered <- struct{}{}
		<-leave
		return client.CallReply{Result: []byte("{}")}, nil
	}
	g, _ := start(t, options(f, nil))
	session := attach(t, g)
	done := make(chan struct{})
	go func() { defer close(done); do(g, "POST", session, callOf("1", "demo__echo")) }()
	<-entered
	for i := range maxTurns {
		f.publish(fmt.Sprint("other-", i), tool("demo__echo"))
		do(g, "POST", session, list)
	}
	if ended := f.endedTurns(); len(ended) != 0 {
		t.Errorf("ended under its call: %v", ended)
	}
	close(leave)
	<-done
	if ended := f.endedTurns(); !slices.Equal(ended, []string{"turn-1"}) {
		t.Errorf("ended: %v", ended)
	}
}

// A client holds structuredContent against the outputSchema even where isError is
// set, so what the gateway itself has to say stays out of it there (decision 9).
func TestOutcomeKeepsOutOfADeclaredOutput(t *testing.T) {
	t.Parallel()
	f := newFake()
	typed := tool("demo__typed")
	typed.Definition = json.RawMessage(`{"name":"demo__typed","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["x"]}}`)
	f.publish("catalog-1", typed)
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		return client.CallReply{Status: "approval_pending", Approval: &client.ApprovalRef{ID: "a1", URL: "https://x/"}}, nil
	}
	g, _ := start(t, options(f, nil))
	got := do(g, "POST", attach(t, g), callOf("1", "demo__typed")).Body.String()
	want := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"approval_pending (GB2004): a person must approve the call first (gatebus approve a1); then repeat the same call"}],` +
		`"_meta":{"gatebus/outcome":{"code":"approval_pending","id":"a1","url":"https://x/","retry_after_ms":5000}},"isError":true}}`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Decision 9: a held call tells its client every five seconds, at most for the
// hold; then the model is told how to go on.
func TestHeldCallTellsItsClient(t *testing.T) {
	t.Parallel()
	const hold = 45 * time.Second
	waitFor := func(ctx context.Context, _ Who, c Call) (client.CallReply, error) {
		c.OnPending("a1")
		if c.Wait != hold {
			return client.CallReply{}, fmt.Errorf("held for %v", c.Wait)
		}
		time.Sleep(c.Wait - time.Second) // not at the time of a word
		return client.CallReply{Status: "approval_pending", Approval: &client.ApprovalRef{ID: "a1"}}, nil
	}
	noToken := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo"}}`

	t.Run("until the hold ends", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.call = waitFor
			g, stop := start(t, options(f, make(fakeLog)))
			defer stop()
			w := do(g, "POST", attach(t, g), callOf(`"x"`, "demo__echo"))
			got := messages(w.Body.String())
			if w.Header().Get("Content-Type") != "text/event-stream" || len(got) != 10 {
				t.Fatalf("%d messages as %s", len(got), w.Header().Get("Content-Type"))
			}
			before := 0.0
			for i, m := range got[:9] {
				var p struct {
					Method string
					Params struct {
						ProgressToken, Message string
						Progress               float64
					}
				}
				if err := json.Unmarshal([]byte(m), &p); err != nil {
					t.Fatal(err)
				}
				if p.Method != "notifications/progress" || p.Params.ProgressToken != "p-x" || p.Params.Message != "waiting for approval a1" || p.Params.Progress <= before {
					t.Errorf("message %d: %s", i, m)
				}
				before = p.Params.Progress
			}
			if !strings.Contains(got[9], `"id":"x","result":`) || !strings.Contains(got[9], `"code":"approval_pending"`) {
				t.Errorf("last: %s", got[9])
			}
		})
	})
	t.Run("without a token", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.call = waitFor
			g, stop := start(t, options(f, make(fakeLog)))
			defer stop()
			body := do(g, "POST", attach(t, g), noToken).Body.String()
			if got := messages(body); len(got) != 1 || strings.Count(body, ":\n\n") != 9 {
				t.Errorf("%q", body)
			}
		})
	})
	t.Run("a client that reads JSON", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.call = waitFor
			g, stop := start(t, options(f, make(fakeLog)))
			defer stop()
			for _, accept := range []string{"application/json", "*/*", ""} {
				w := do(g, "POST", attach(t, g), callOf("1", "demo__echo"), header{"Accept", accept})
				if w.Header().Get("Content-Type") != "application/json" || !json.Valid(w.Body.Bytes()) {
					t.Errorf("Accept %q: %s", accept, w.Body)
				}
			}
		})
	})
	for name, answered := range map[string]events.Event{
		"until it is answered": events.ApprovalDecided{Approval: "a1", Decision: "allow"},
		"until it expires":     events.ApprovalExpired{Approval: "a1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, l := newFake(), make(fakeLog)
				f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
					c.OnPending("a1")
					time.Sleep(12 * time.Second)
					l <- &events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindCall, Key: "c1"}, Events: []events.Event{answered}}
					time.Sleep(30 * time.Second) // it runs
					c.Notify([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p-1","progress":0.5}}`))
					return client.CallReply{Result: []byte("{}")}, nil
				}
				g, stop := start(t, options(f, l))
				defer stop()
				got := messages(do(g, "POST", attach(t, g), callOf("1", "demo__echo")).Body.String())
				if len(got) != 5 || !strings.Contains(got[2], "waiting") || !strings.Contains(got[3], `"progress":0.5`) || got[4] != `{"jsonrpc":"2.0","id":1,"result":{}}` {
					t.Errorf("%d messages: %v", len(got), got)
				}
			})
		})
	}
}

// C7 56: clients that all use the id 1 get their own progress, in order, and
// then their own answer.
func TestProgressComesInOrderBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.call = func(_ context.Context, _ Who, c Call) (client.CallReply, error) {
		var in struct {
			Arguments struct{ Tag string }
			Meta      struct {
				ProgressToken json.RawMessage
			} `json:"_meta"`
		}
		if err := json.Unmarshal(c.Params.Reveal(), &in); err != nil {
			return client.CallReply{}, err
		}
		for i := range 20 {
			c.Notify(fmt.Appendf(nil, "{\"jsonrpc\":\"2.0\",\n \"method\":\"notifications/progress\",\r\n\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":%q}}", in.Meta.ProgressToken, i, in.Arguments.Tag))
		}
		return client.CallReply{Result: json.RawMessage("{\"tag\":\n\"" + in.Arguments.Tag + "\"}")}, nil
	}
	g, _ := start(t, options(f, nil))
	s := serveLoopback(t, g)
	var clients sync.WaitGroup
	shared := attach(t, g)
	for i := range 100 {
		session := shared
		if i%10 != 0 {
			session = attach(t, g)
		}
		clients.Go(func() {
			tag := fmt.Sprint("tag-", i)
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"tag":"` + tag + `"},"_meta":{"progressToken":1.50}}}`
			got := messages(readAll(t, send(t, t.Context(), s, "POST", session, body).Body))
			if len(got) != 21 {
				t.Errorf("%d messages", len(got))
				return
			}
			for i, m := range got[:20] {
				var p struct {
					Params struct {
						ProgressToken json.RawMessage
						Progress      int
						Message       string
					}
				}
				if err := json.Unmarshal([]byte(m), &p); err != nil || p.Params.Progress != i || p.Params.Message != tag || string(p.Params.ProgressToken) != "1.50" {
					t.Errorf("message %d of %s: %s", i, tag, m)
				}
			}
			if got[20] != "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"tag\":\n\""+tag+"\"}}" {
				t.Errorf("answer %q", got[20])
			}
		})
	}
	clients.Wait()
}

// R200: a call of a client that leaves or cancels is cancelled.
func TestCancelReachesTheBackendOnce(t *testing.T) {
	t.Parallel()
	blocking := func(entered, cancelled chan string) func(context.Context, Who, Call) (client.CallReply, error) {
		return func(ctx context.Context, _ Who, c Call) (client.CallReply, error) {
			entered <- c.Name
			<-ctx.Done()
			cancelled <- c.Name
			return client.CallReply{Status: "cancelled", Call: "c1", Error: &client.CallError{Kind: "cancelled", Message: "m"}}, nil
		}
	}
	t.Run("disconnect", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		entered, cancelled := make(chan string), make(chan string, 2)
		f.call = blocking(entered, cancelled)
		g, _ := start(t, options(f, nil))
		s := serveLoopback(t, g)
		session := attach(t, g)
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			r, _ := http.NewRequestWithContext(ctx, "POST", s.URL+path, strings.NewReader(callOf("1", "demo__echo")))
			r.Header = request(ctx, "POST", session, "").Header
			_, err := s.Client().Do(r)
			gone <- err
		}()
		<-entered
		leave()
		<-cancelled
		if err := <-gone; err == nil {
			t.Error("an answer came")
		}
	})
	for name, cancel := range map[string]string{
		"notification":             `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","reason":"r"}}`,
		"notification of a number": `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.50}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			entered, cancelled := make(chan string), make(chan string, 4)
			f.call = blocking(entered, cancelled)
			g, _ := start(t, options(f, nil))
			session, other := attach(t, g), attach(t, g)
			id := `"a"`
			if strings.Contains(name, "number") {
				id = "1.50"
			}
			mine, others := make(chan string, 1), make(chan string, 2)
			go func() { mine <- do(g, "POST", session, callOf(id, "demo__echo")).Body.String() }()
			go func() { others <- do(g, "POST", session, callOf(`"b"`, "demo__other")).Body.String() }()
			go func() { others <- do(g, "POST", other, callOf(id, "demo__other")).Body.String() }()
			for range 3 {
				<-entered
			}
			for range 2 {
				if w := do(g, "POST", session, cancel); w.Code != 202 {
					t.Errorf("%d", w.Code)
				}
			}
			if got := <-cancelled; got != "demo__echo" {
				t.Errorf("cancelled %s", got)
			}
			if got := <-mine; !strings.Contains(got, `"code":"cancelled"`) {
				t.Errorf("answer %s", got)
			}
			if len(cancelled) != 0 || len(others) != 0 {
				t.Error("another call was cancelled")
			}
		})
	}
}

func TestListChangedReachesWhomItConcerns(t *testing.T) {
	t.Parallel()
	commit := func(kind events.Kind, key, session string, e events.Event) *events.Commit {
		return &events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: kind, Key: key}, Scope: events.Scope{Session: session}, Events: []events.Event{e}}
	}
	const anas, bobs = "defaultana/mcp", "defaultbob/mcp"
	elsewhere := commit(events.KindPolicy, "other", "", events.PolicySet{})
	elsewhere.Workspace = "other"
	for _, c := range []struct {
		name     string
		commit   *events.Commit
		ana, bob bool
	}{
		{"discovery", commit(events.KindConnection, "x", anas, events.ToolsDiscovered{}), true, false},
		{"closed", commit(events.KindConnection, "x", bobs, events.ConnectionClosed{}), false, true},
		{"lost", commit(events.KindConnection, "x", anas, events.ConnectionLost{}), true, false},
		{"tool approved", commit(events.KindConnection, "x", anas, events.ApprovalDecided{Approval: "a"}), true, false},
		{"call approved", commit(events.KindCall, "x", anas, events.ApprovalDecided{Approval: "a"}), false, false},
		{"grant", commit(events.KindGrant, "ana", "", events.CapabilityGranted{}), true, false},
		{"revoke", commit(events.KindGrant, "bob", "", events.CapabilityRevoked{}), false, true},
		{"policy", commit(events.KindPolicy, "default", "", events.PolicySet{}), true, true},
		{"core", commit(events.KindCore, "c", "", events.CoreRevisionLoaded{}), true, true},
		{"policy of another workspace", elsewhere, false, false},
		{"what a list brings about", commit(events.KindSession, anas, anas, events.CatalogPublished{}), false, false},
		{"a connect that a list asks for", commit(events.KindConnection, "x", anas, events.ConnectRequested{}), false, false},
		{"a call", commit(events.KindCall, "x", anas, events.CallStarted{}), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			g, err := New(options(f, nil))
			if err != nil {
				t.Fatal(err)
			}
			bob := header{"Authorization", "Bearer token-of-bob"}
			mine, theirs, unlisted := attach(t, g), attach(t, g, bob), attach(t, g)
			do(g, "POST", mine, list)
			do(g, "POST", theirs, list, bob)
			g.committed(c.commit)
			g.committed(c.commit) // many are one
			told := func(id string) bool {
				for at, a := range g.attachments {
					if at.id == id {
						return len(a.changed.wake) == 1 && a.changed.due == kindTools
					}
				}
				panic("no such attachment")
			}
			if told(mine) != c.ana || told(theirs) != c.bob {
				t.Errorf("ana %v, bob %v", told(mine), told(theirs))
			}
			if told(unlisted) {
				t.Error("a client that has listed nothing was told")
			}
		})
	}
}

// stuck is a client that does not read.
type stuck struct {
	h    http.Header
	open chan struct{}
}

func (w stuck) Header() http.Header { return w.h }
func (w stuck) WriteHeader(int)     {}
func (w stuck) Write([]byte) (int, error) {
	<-w.open
	return 0, io.ErrClosedPipe
}

// A client that does not read its stream delays nobody else (trap 13), and what
// nobody was told is told on the next stream.
func TestStreamTellsWhatWasMissedAndIsReplaced(t *testing.T) {
	t.Parallel()
	l := make(fakeLog)
	g, _ := start(t, options(newFake(), l))
	s := serveLoopback(t, g)
	session, deaf := attach(t, g), attach(t, g)
	do(g, "POST", session, list)
	do(g, "POST", deaf, list)
	blocked := make(chan struct{})
	t.Cleanup(func() { close(blocked) })
	go g.Handler().ServeHTTP(stuck{http.Header{}, blocked}, request(t.Context(), "GET", deaf, ""))
	change := &events.Commit{Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindPolicy, Key: "default"}, Events: []events.Event{events.PolicySet{}}}
	next := func(r *bufio.Reader) string {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return err.Error()
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				return strings.TrimSuffix(data, "\n")
			}
		}
	}
	const told = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`

	l <- change
	l <- change // the first one was dealt with
	first := bufio.NewReader(send(t, t.Context(), s, "GET", session, "").Body)
	if got := next(first); got != told {
		t.Errorf("missed: %s", got)
	}
	for range 100 {
		l <- change
	}
	if got := next(first); got != told {
		t.Errorf("live: %s", got)
	}
	second := bufio.NewReader(send(t, t.Context(), s, "GET", session, "").Body)
	for next(first) == told {
	} // ends
	l <- change
	if got := next(second); got != told {
		t.Errorf("second stream: %s", got)
	}
	do(g, "DELETE", session, "")
	for next(second) == told {
	} // ends
}

// pipe is a listener for one connection.
type pipe struct {
	net.Listener
	conns chan net.Conn
}

func (p pipe) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }
func (p pipe) Close() error   { return nil }

// A client that does not read the progress of its call loses the connection, and
// with it the call.
func TestClientThatDoesNotReadLosesItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cancelled := make(chan struct{})
		f.call = func(ctx context.Context, _ Who, c Call) (client.CallReply, error) {
			c.Notify([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"message":"` + strings.Repeat("x", 1<<20) + `"}}`))
			<-ctx.Done()
			close(cancelled)
			return client.CallReply{}, ctx.Err()
		}
		g, stop := start(t, options(f, make(fakeLog)))
		defer stop()
		here, there := net.Pipe()
		l := pipe{conns: make(chan net.Conn, 1)}
		l.conns <- there
		s := &http.Server{Handler: g.Handler()}
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		begun := time.Now()
		r := request(t.Context(), "POST", attach(t, g), callOf("1", "demo__echo"))
		if err := r.Write(here); err != nil {
			t.Fatal(err)
		}
		<-cancelled
		if took := time.Since(begun); took < httpin.Patience || took > 2*httpin.Patience {
			t.Errorf("after %v", took)
		}
		here.Close()
		close(l.conns)
		<-served
	})
}

func TestStreamIsKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, stop := start(t, options(newFake(), make(fakeLog)))
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), 3*heartbeat+time.Second)
		defer cancel()
		w := newRecorder()
		g.Handler().ServeHTTP(w, request(ctx, "GET", attach(t, g), ""))
		if got := strings.Count(w.Body.String(), ":\n\n"); got != 4 {
			t.Errorf("%d comments", got)
		}
	})
}
