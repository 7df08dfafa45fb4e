package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
)

// A5, A9, C7: what is hostile or malformed is refused before the backend hears
// of it, with a JSON-RPC error.
func TestHostileRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		t.Error("the backend was called")
		return client.CallReply{}, nil
	}
	g, _ := start(t, options(f, nil))
	mine := attach(t, g)
	foreign := attach(t, g, header{"Authorization", "Bearer token-of-bob"})
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	call := callOf("1", "demo__echo")

	for _, c := range []struct {
		name, method, session, body string
		headers                     []header
		status, code                int
	}{
		{"foreign Host", "POST", mine, call, []header{{"Host", "evil.example"}}, 403, -32600},
		{"foreign Host that looks like ours", "POST", mine, call, []header{{"Host", "127.0.0.1.evil.example:7777"}}, 403, -32600},
		{"short form of an address", "POST", mine, call, []header{{"Host", "127.1:7777"}}, 403, -32600},
		{"unspecified address", "POST", mine, call, []header{{"Host", "0.0.0.0:7777"}}, 403, -32600},
		{"foreign Origin", "POST", mine, call, []header{{"Origin", "https://evil.example"}}, 403, -32600},
		{"Origin of another port", "POST", mine, call, []header{{"Origin", "http://127.0.0.1:8888"}}, 403, -32600},
		{"opaque Origin", "POST", mine, call, []header{{"Origin", "null"}}, 403, -32600},
		{"cross-site fetch", "POST", mine, call, []header{{"Sec-Fetch-Site", "cross-site"}}, 403, -32600},
		{"foreign Origin of a stream", "GET", mine, "", []header{{"Origin", "https://evil.example"}}, 403, -32600},
		{"foreign Origin of DELETE", "DELETE", mine, "", []header{{"Origin", "https://evil.example"}}, 403, -32600},
		{"no token", "POST", mine, call, []header{{"Authorization", ""}}, 401, -32012},
		{"wrong token", "POST", mine, call, []header{{"Authorization", "Bearer nonsense"}}, 401, -32012},
		{"other scheme", "POST", mine, call, []header{{"Authorization", "Basic token-of-ana"}}, 401, -32012},
		{"no content type", "POST", mine, call, []header{{"Content-Type", ""}}, 415, -32600},
		{"form", "POST", mine, call, []header{{"Content-Type", "text/plain"}}, 415, -32600},
		{"no session", "POST", "", call, nil, 400, -32600},
		{"unknown session", "POST", "nonsense", call, nil, 404, -32015},
		{"foreign session", "POST", foreign, call, nil, 404, -32015},
		{"foreign stream", "GET", foreign, "", nil, 404, -32015},
		{"foreign DELETE", "DELETE", foreign, "", nil, 404, -32015},
		{"other method", "PUT", mine, call, nil, 405, -32600},
		{"stream of a client that reads JSON", "GET", mine, "", []header{{"Accept", "application/json"}}, 406, -32600},
		{"too large", "POST", mine, strings.Repeat(" ", maxBody+1), nil, 413, -32602},
		{"old version", "POST", mine, ping, []header{{versionHeader, "1999-01-01"}}, 400, codeVersion},
		{"stateless by its header alone", "POST", mine, ping, []header{{versionHeader, "2026-07-28"}}, 400, -32602},
		{"stateless stream", "GET", mine, "", []header{{versionHeader, "2026-07-28"}}, 405, -32600},
		{"stateless DELETE", "DELETE", mine, "", []header{{versionHeader, "2026-07-28"}}, 405, -32600},
		{"discovery without a version", "POST", "", `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, nil, 400, codeHeader},
		{"empty", "POST", mine, "", nil, 400, codeParse},
		{"batch", "POST", mine, "[" + call + "]", nil, 400, -32600},
		{"no object", "POST", mine, `"tools/call"`, nil, 400, -32600},
		{"trailing garbage", "POST", mine, call + "x", nil, 400, codeParse},
		{"two messages", "POST", mine, call + call, nil, 400, codeParse},
		{"trailing comma", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"ping",}`, nil, 400, codeParse},
		{"invalid UTF-8", "POST", mine, strings.Replace(call, "{}", "{\"a\":\"\xff\"}", 1), nil, 400, codeParse},
		{"lone surrogate", "POST", mine, strings.Replace(call, "{}", `{"a":"\ud800"}`, 1), nil, 400, codeParse},
		{"no version member", "POST", mine, `{"id":1,"method":"ping"}`, nil, 400, -32600},
		{"other JSON-RPC", "POST", mine, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, nil, 400, -32600},
		{"null id", "POST", mine, `{"jsonrpc":"2.0","id":null,"method":"ping"}`, nil, 400, -32600},
		{"object id", "POST", mine, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, nil, 400, -32600},
		{"params by position", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["demo__echo"]}`, nil, 400, -32600},
		{"method and result", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, nil, 400, -32600},
		{"neither method nor result", "POST", mine, `{"jsonrpc":"2.0","id":1}`, nil, 400, -32600},
		{"duplicate id", "POST", mine, `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, nil, 400, -32600},
		{"duplicate method", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}`, nil, 400, -32600},
		{"duplicate params", "POST", mine, strings.Replace(call, `"params"`, `"params":{},"params"`, 1), nil, 400, -32600},
		{"duplicate jsonrpc", "POST", mine, strings.Replace(call, `"jsonrpc"`, `"jsonrpc":"2.0","jsonrpc"`, 1), nil, 400, -32600},
		{"duplicate name", "POST", mine, strings.Replace(call, `"name"`, `"name":"demo__other","name"`, 1), nil, 400, -32600},
		{"duplicate arguments", "POST", mine, strings.Replace(call, `"arguments"`, `"arguments":{"a":1},"arguments"`, 1), nil, 400, -32600},
		{"duplicate deep inside", "POST", mine, strings.Replace(call, "{}", `{"a":[{"b":1,"b":2}]}`, 1), nil, 400, -32600},
		{"duplicate by escape", "POST", mine, strings.Replace(call, `"name"`, `"n\u0061me":"demo__other","name"`, 1), nil, 400, -32600},
		{"escaped method", "POST", mine, strings.Replace(call, `"method"`, `"meth\u006fd"`, 1), nil, 400, -32600},
		{"escaped name", "POST", mine, strings.Replace(call, `"name"`, `"n\u0061me"`, 1), nil, 400, -32600},
		{"escaped arguments", "POST", mine, strings.Replace(call, `"arguments"`, `"\u0061rguments"`, 1), nil, 400, -32600},
		{"name in another case", "POST", mine, strings.Replace(call, `"name"`, `"Name":"demo__other","name"`, 1), nil, 400, -32600},
		{"name that folds", "POST", mine, strings.Replace(call, `"arguments"`, `"argumentſ":{},"arguments"`, 1), nil, 400, -32600},
		{"escaped progress token", "POST", mine, strings.Replace(call, `"progressToken"`, `"progress\u0054oken"`, 1), nil, 400, -32600},
		{"unknown method", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"resources/forget"}`, nil, 200, -32601},
		{"no tool name", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, nil, 200, -32602},
		{"tool name is a number", "POST", mine, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`, nil, 200, -32602},
		{"unknown tool", "POST", mine, callOf("1", "demo__nonsense"), nil, 200, -32602},
		{"initialize without a version", "POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, nil, 200, -32602},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := do(g, c.method, c.session, c.body, c.headers...)
			code, kind, gb := failureOf(t, w.Body.String())
			if w.Code != c.status || code != c.code {
				t.Errorf("status %d, code %d, want %d, %d: %s", w.Code, code, c.status, c.code, w.Body)
			}
			if kind == "" || !strings.HasPrefix(gb, "GB") {
				t.Errorf("kind %q, code %q", kind, gb)
			}
			if got := w.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("Content-Type %q", got)
			}
			for _, secret := range []string{"nonsense", "evil", "demo__other"} {
				if strings.Contains(w.Body.String(), secret) {
					t.Errorf("the answer repeats %q: %s", secret, w.Body)
				}
			}
			if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (c.status == 401) {
				t.Errorf("WWW-Authenticate %q", challenge)
			}
		})
	}
	if w := do(g, "POST", mine, ping); w.Code != 200 {
		t.Errorf("the attachment did not survive: %d %s", w.Code, w.Body)
	}
	if n := len(g.attachments); n != 2 {
		t.Errorf("%d attachments, want 2", n)
	}
}

func TestOtherPathsAreNotFound(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	for _, p := range []string{"/mcp/", "/mcp/s", "/mcp/s/", "/mcp/s/nobody", "/mcp/s/demo/", "/mcp/s/demo/x", "/mcp/s/../demo", "/rpc", "/"} {
		r := request(t.Context(), "POST", "", initialize)
		r.URL.Path = p
		w := newRecorder()
		g.Handler().ServeHTTP(w, r)
		if code, _, _ := failureOf(t, w.Body.String()); w.Code != 404 || code != -32015 {
			t.Errorf("%s: %d %s", p, w.Code, w.Body)
		}
	}
}

func TestAnonymousIsForLoopbackWithoutAToken(t *testing.T) {
	t.Parallel()
	f, o := newFake(), options(newFake(), nil)
	guest := Who{Workspace: "default", Principal: "demo", Actor: "demo"}
	o.Backend, o.Anonymous = f, func(string) (Who, bool) { return guest, true }
	var seen Who
	f.call = func(_ context.Context, who Who, _ Call) (client.CallReply, error) {
		seen = who
		return client.CallReply{Result: []byte("{}")}, nil
	}
	g, _ := start(t, o)
	id := attach(t, g, header{"Authorization", ""})
	if w := do(g, "POST", id, callOf("1", "demo__echo"), header{"Authorization", ""}); w.Code != 200 || seen != guest {
		t.Errorf("%d %s as %v", w.Code, w.Body, seen)
	}
	if w := do(g, "POST", "", initialize, header{"Authorization", "Bearer nonsense"}); w.Code != 401 {
		t.Errorf("a wrong token became anonymous: %d", w.Code)
	}
	r := request(t.Context(), "POST", "", initialize, header{"Authorization", ""})
	r.RemoteAddr = "192.0.2.1:50000"
	w := newRecorder()
	g.Handler().ServeHTTP(w, r)
	if w.Code != 401 {
		t.Errorf("a remote client became anonymous: %d", w.Code)
	}
}

// C3: the version is negotiated, an unknown one is answered with the newest.
func TestInitializeNegotiatesTheVersion(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26", "2024-11-05": "2024-11-05",
		"2026-07-28": "2025-11-25", "1999-01-01": "2025-11-25",
	} {
		w := do(g, "POST", "stale", strings.Replace(initialize, "2025-11-25", asked, 1))
		got := w.Body.String()
		if want := `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"` + want + `","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{}},"serverInfo":{"name":"gatebus","version":"1.2.3"}}}`; got != want {
			t.Errorf("%s:\n got %s\nwant %s", asked, got, want)
		}
		if id := w.Header().Get(sessionHeader); len(id) < 26 { // of 32 letters: 130 bits
			t.Errorf("Mcp-Session-Id %q", id)
		}
	}
}

// C3 28: what comes before notifications/initialized is served.
func TestRequestsBeforeInitializedAreServed(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	id := attach(t, g)
	if w := do(g, "POST", id, `{"jsonrpc":"2.0","id":"p","method":"ping"}`); w.Body.String() != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Errorf("ping: %s", w.Body)
	}
	if w := do(g, "POST", id, `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"info"}}`); w.Code != 200 {
		t.Errorf("setLevel: %d", w.Code)
	}
	for _, m := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","method":"notifications/unknown"}`, `{"jsonrpc":"2.0","id":9,"result":{}}`} {
		if w := do(g, "POST", id, m); w.Code != 202 || w.Body.Len() != 0 {
			t.Errorf("%s: %d %s", m, w.Code, w.Body)
		}
	}
	if w := do(g, "POST", id, list); w.Code != 200 {
		t.Errorf("list: %d", w.Code)
	}
}

func TestDeleteEndsTheAttachmentAndItsTurns(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, stop := start(t, options(f, nil))
	id, other := attach(t, g), attach(t, g)
	do(g, "POST", id, list)
	if w := do(g, "DELETE", id, ""); w.Code != 204 {
		t.Errorf("DELETE: %d", w.Code)
	}
	if w := do(g, "POST", id, list); w.Code != 404 {
		t.Errorf("afterwards: %d", w.Code)
	}
	if w := do(g, "POST", other, list); w.Code != 200 {
		t.Errorf("another one: %d", w.Code)
	}
	stop()
	if ended := f.endedTurns(); !slices.Contains(ended, "turn-1") {
		t.Errorf("ended turns: %v", ended)
	}
}

func TestIdleAttachmentsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		g, stop := start(t, options(f, make(fakeLog)))
		defer stop()
		idle, used := attach(t, g), attach(t, g)
		do(g, "POST", idle, list)
		for range 4 {
			time.Sleep(25 * time.Minute)
			if w := do(g, "POST", used, list); w.Code != 200 {
				t.Errorf("the attachment in use: %d", w.Code)
			}
		}
		synctest.Wait()
		if w := do(g, "POST", idle, list); w.Code != 404 {
			t.Errorf("the idle attachment: %d", w.Code)
		}
		if ended := f.endedTurns(); !slices.Equal(ended, []string{"turn-1"}) {
			t.Errorf("ended turns: %v", ended)
		}
	})
}

// A client that connects anew for every call costs its own oldest attachments,
// and nobody else's.
func TestTooManyAttachmentsReplaceTheOldestIdleOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, stop := start(t, options(newFake(), make(fakeLog)))
		defer stop()
		bob := attach(t, g, header{"Authorization", "Bearer token-of-bob"})
		var mine []string
		for range maxAttachments + 2 {
			mine = append(mine, attach(t, g))
			time.Sleep(time.Millisecond)
		}
		ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
		for i, id := range mine {
			want := 200
			if i < 2 {
				want = 404
			}
			if w := do(g, "POST", id, ping); w.Code != want {
				t.Errorf("attachment %d: %d, want %d", i, w.Code, want)
			}
		}
		if w := do(g, "POST", bob, ping, header{"Authorization", "Bearer token-of-bob"}); w.Code != 200 {
			t.Errorf("somebody else's: %d", w.Code)
		}
	})
}

func TestRevokedHostLosesItsAttachments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := make(fakeLog)
		g, stop := start(t, options(newFake(), l))
		defer stop()
		id := attach(t, g)
		bob := attach(t, g, header{"Authorization", "Bearer token-of-bob"})
		l <- &events.Commit{Aggregate: events.AggregateID{Kind: events.KindHost, Key: "ana"}, Events: []events.Event{events.HostRevoked{}}}
		synctest.Wait()
		if w := do(g, "POST", id, list); w.Code != 404 {
			t.Errorf("the revoked one: %d", w.Code)
		}
		if w := do(g, "POST", bob, list, header{"Authorization", "Bearer token-of-bob"}); w.Code != 200 {
			t.Errorf("the other one: %d", w.Code)
		}
	})
}

func TestShutdownEndsHeldCallsStreamsAndTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.call = func(ctx context.Context, _ Who, c Call) (client.CallReply, error) {
			c.OnPending("appr-1")
			<-ctx.Done()
			return client.CallReply{}, ctx.Err()
		}
		g, stop := start(t, options(f, make(fakeLog)))
		id := attach(t, g)
		held, stream := make(chan string), make(chan string)
		go func() { held <- do(g, "POST", id, callOf("7", "demo__echo")).Body.String() }()
		go func() { stream <- do(g, "GET", id, "").Body.String() }()
		synctest.Wait()
		go stop()
		got := messages(<-held)
		last := got[len(got)-1]
		if code, kind, _ := failureOf(t, last); code != -32014 || kind != "runtime_closed" {
			t.Errorf("the held call ended with %s", last)
		}
		<-stream
		stop()
		if ended := f.endedTurns(); !slices.Equal(ended, []string{"turn-1"}) {
			t.Errorf("ended turns: %v", ended)
		}
		for _, body := range []string{list, initialize} {
			if w := do(g, "POST", id, body); w.Code != 503 {
				t.Errorf("afterwards: %d %s", w.Code, w.Body)
			}
		}
	})
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{}); err == nil {
		t.Error("a gateway of nothing")
	}
}

// R118: the log of the program has no body, no token and no text of a backend
// that is no fault.
func TestErrorsAndLogHoldNothingOfTheRequest(t *testing.T) {
	t.Parallel()
	f := newFake()
	var log strings.Builder
	o := options(f, nil)
	o.Logger = newLogger(&log)
	f.call = func(context.Context, Who, Call) (client.CallReply, error) {
		return client.CallReply{}, fmt.Errorf("dial with canary-argument")
	}
	g, stop := start(t, o)
	id := attach(t, g)
	w := do(g, "POST", id, strings.Replace(callOf("1", "demo__echo"), "{}", `{"a":"canary-argument"}`, 1))
	if code, kind, _ := failureOf(t, w.Body.String()); code != -32018 || kind != "internal" {
		t.Errorf("%s", w.Body)
	}
	do(g, "POST", id, "{canary-body", header{"Authorization", "Bearer canary-token"})
	do(g, "POST", id, "{canary-body", header{"Host", "canary-host"})
	stop()
	if strings.Contains(log.String()+w.Body.String(), "canary") {
		t.Errorf("log %s\nanswer %s", log.String(), w.Body)
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 3 {
		t.Errorf("%d lines:\n%s", got, log.String())
	}
}
