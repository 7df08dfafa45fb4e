package live

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/stdio"
	"github.com/google/go-cmp/cmp"
)

// noted is a process of which the methods are noted that go out to it.
type noted struct {
	*stdio.Process
	after   func(method string) // nil: nothing
	mu      sync.Mutex
	methods []string
}

func (n *noted) Write(ctx context.Context, frame []byte) (bool, error) {
	var m struct{ Method string }
	_ = json.Unmarshal(frame, &m) // Call made it
	n.mu.Lock()
	n.methods = append(n.methods, m.Method)
	n.mu.Unlock()
	sent, err := n.Process.Write(ctx, frame)
	if n.after != nil {
		n.after(m.Method)
	}
	return sent, err
}

func (n *noted) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.methods, " ")
}

// opening opens a fake as the connector does, each time a new process, and tells
// what went out to each.
func opening(t *testing.T, opts Options, program string, args ...string) (c *Conn, sent []string, err error) {
	t.Helper()
	var all []*noted
	again := func(context.Context) (Transport, error) {
		n := &noted{Process: start(t, stdio.Spec{Command: program, Args: args})}
		all = append(all, n)
		return n, nil
	}
	first, _ := again(t.Context())
	opts.Name, opts.Version, opts.Restart = "gatebus", "1", again
	if c, err = Open(t.Context(), first, opts); err == nil {
		t.Cleanup(func() {
			c.transport.Kill()
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, n := range all {
		sent = append(sent, n.String())
	}
	return c, sent, err
}

const (
	probeSent     = "server/discover"
	handshakeSent = "initialize notifications/initialized"
)

const ownMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"gatebus","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// seen are the lines that came to a server of the stateless era.
func seen(t *testing.T, c *Conn) []string {
	t.Helper()
	var result struct{ StructuredContent struct{ Lines []string } }
	if err := json.Unmarshal([]byte(call(t, c, `{"name":"seen"}`)), &result); err != nil {
		t.Fatal(err)
	}
	return result.StructuredContent.Lines
}

func TestAServerWithoutAHandshakeIsToldInEachRequestWhoAsks(t *testing.T) {
	t.Parallel()
	c, sent, err := opening(t, Options{}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	want := Info{Name: "fake", Version: "1.2.3", Protocol: "2026-07-28", Capabilities: []byte(`{"tools":{"listChanged":true},"x-vendor":{"n":1.0}}`), Instructions: "none"}
	if diff := cmp.Diff(want, c.Info()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{probeSent}, sent); diff != "" {
		t.Error(diff)
	}
	if tools, _, err := c.List(t.Context(), Tools); err != nil || len(tools) != 5 {
		t.Errorf("%v, %v", tools, err)
	}
	// What the result says of itself stays, whoever understands it.
	if got := call(t, c, `{"name":"ask"}`); !strings.HasPrefix(got, `{"resultType":"input_required",`) {
		t.Errorf("the result is %s", got)
	}
	call(t, c, `{"name":"change", "_meta": {"traceparent":"x"} }`)
	var lines []string
	for i, params := range []string{
		`{"_meta":{` + ownMeta + `}}`,
		`{"_meta":{` + ownMeta + `}}`,
		`{"_meta":{` + ownMeta + `},"name":"ask"}`,
		`{"name":"change", "_meta": {` + ownMeta + `,"traceparent":"x"} }`,
	} {
		method := []string{"server/discover", "tools/list", "tools/call", "tools/call"}[i]
		lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, firstID+i, method, params))
	}
	if diff := cmp.Diff(lines, seen(t, c)); diff != "" {
		t.Error(diff)
	}
}

// There is no logging/setLevel in that era: each request says the level, unless it
// has one of its own.
func TestALevelOfLogMessagesIsSaidWithEachRequest(t *testing.T) {
	t.Parallel()
	c, _, err := opening(t, Options{}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "logging/setLevel", raw(`{}`), CallOptions{}); !fault.Is(err, fault.InvalidArguments) {
		t.Error(err)
	}
	reply, err := c.Call(t.Context(), "logging/setLevel", raw(`{"level":"warning"}`), CallOptions{})
	if err != nil || string(reply.Result) != `{}` {
		t.Error(string(reply.Result), err)
	}
	call(t, c, `{"name":"ask"}`)
	call(t, c, `{"name":"ask","_meta":{"io.modelcontextprotocol/logLevel":"debug"}}`)
	call(t, c, `{"name":"ask","_meta":{"io.modelcontextprotocol\u002flogLevel":"debug"}}`)
	call(t, c, `{"name":"ask","x":"io.modelcontextprotocol/logLevel"}`)
	lines := seen(t, c)
	want := []string{
		`{"_meta":{` + ownMeta + `,"io.modelcontextprotocol/logLevel":"warning"},"name":"ask"}`,
		`{"name":"ask","_meta":{` + ownMeta + `,"io.modelcontextprotocol/logLevel":"debug"}}`,
		`{"name":"ask","_meta":{` + ownMeta + `,"io.modelcontextprotocol\u002flogLevel":"debug"}}`,
		`{"_meta":{` + ownMeta + `,"io.modelcontextprotocol/logLevel":"warning"},"name":"ask","x":"io.modelcontextprotocol/logLevel"}`,
	}
	for i, params := range want {
		if line := lines[len(lines)-len(want)+i]; !strings.HasSuffix(line, `"method":"tools/call","params":`+params+`}`) {
			t.Errorf("got %s\nwant %s", line, params)
		}
	}
}

// What the client of a call can be asked for is said with that call alone, whatever
// its params say; a server of the handshake era has no place for it.
func TestWhatTheClientCanBeAskedForIsSaidWithItsCall(t *testing.T) {
	t.Parallel()
	c, _, err := opening(t, Options{}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "logging/setLevel", raw(`{"level":"error"}`), CallOptions{}); err != nil {
		t.Error(err)
	}
	const meta = `"io.modelcontextprotocol/clientCapabilities":{"roots":{}}`
	for _, input := range []string{`{"sampling":{"x":1.0}}`, ``} {
		opts := CallOptions{Input: []byte(input)}
		if input == "" {
			opts.Input = nil
		}
		if _, err := c.Call(t.Context(), "tools/call", raw(`{"name":"ask","_meta":{`+meta+`}}`), opts); err != nil {
			t.Error(err)
		}
	}
	lines := seen(t, c)
	for i, capabilities := range []string{`{"sampling":{"x":1.0}}`, `{}`} {
		want := `"params":{"name":"ask","_meta":{` + strings.TrimSuffix(ownMeta, `{}`) + capabilities + `,"io.modelcontextprotocol/logLevel":"error"}}}`
		if line := lines[len(lines)-2+i]; !strings.HasSuffix(line, want) {
			t.Errorf("got %s\nwant %s", line, want)
		}
	}
}

// What somebody else says of himself does not reach the server, and no other byte
// changes.
func TestRequestsAreStampedInPlace(t *testing.T) {
	t.Parallel()
	const own = `"own":1`
	for params, want := range map[string]string{
		``:                                 `{"_meta":{"own":1}}`,
		`{ }`:                              `{"_meta":{"own":1} }`,
		` {"a":1.0}`:                       ` {"_meta":{"own":1},"a":1.0}`,
		`{"_meta":{}}`:                     `{"_meta":{"own":1}}`,
		`{"_meta":{ "b" : 1e400 } ,"a":1}`: `{"_meta":{"own":1, "b" : 1e400 } ,"a":1}`,
		`{"a":1,"_meta":null}`:             `{"a":1,"_meta":{"own":1}}`,
		`{"_meta":{"x":[{"_meta":{}}], "progressToken": "t"}}`:                                                                                 `{"_meta":{"own":1,"x":[{"_meta":{}}], "progressToken": 1099511627776}}`,
		`{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"n"}}}`:                                                                        `{"_meta":{"own":1}}`,
		`{"_meta":{"io.modelcontextprotocol/clientInfo":{}, "b":1,"io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"c":2}}`:        `{"_meta":{"own":1, "b":1,"c":2}}`,
		`{"_meta":{ "b":1, "io.modelcontextprotocol\/protocolVersion":"2026-07-28" , "io.modelcontextprotocol/logLevel":"debug"}, "name":"t"}`: `{"_meta":{"own":1, "b":1 , "io.modelcontextprotocol/logLevel":"debug"}, "name":"t"}`,
	} {
		frame, err := request(firstID, "m", []byte(params), []byte(own), &pending{})
		if want := `{"jsonrpc":"2.0","id":1099511627776,"method":"m","params":` + want + `}`; err != nil || string(frame) != want {
			t.Errorf("%s: %v\n%s, want\n%s", params, err, frame, want)
		}
	}
	for _, params := range []string{`[]`, `{"_meta":{"b":1,"b":2}}`, `{"_meta":{"b":1}`, `5`} {
		if frame, err := request(firstID, "m", []byte(params), []byte(own), &pending{}); err == nil {
			t.Errorf("%s: %s", params, frame)
		}
	}
}

// Trap 18: whatever a server of the handshake era makes of the probe, it gets its
// handshake, at most one other process is needed for it, and the next opening
// knows.
func TestAServerOfTheHandshakeEraOutlivesTheProbe(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string][]string{
		"banner":             {probeSent + " " + handshakeSent},
		"probe-result":       {probeSent + " " + handshakeSent},
		"probe-silent":       {probeSent + " " + handshakeSent},
		"probe-exit":         {probeSent, handshakeSent},
		"probe-refused-exit": {"", handshakeSent},
	} {
		opts := Options{Eras: new(Eras), Server: mode}
		if mode == "probe-silent" {
			opts.Patience = 200 * time.Millisecond
		}
		for _, want := range [][]string{want, {handshakeSent}} {
			c, sent, err := opening(t, opts, "misbehave", mode)
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if want[0] == "" { // the end comes before, in or after the handshake
				sent[0] = ""
			}
			if diff := cmp.Diff(want, sent); diff != "" {
				t.Errorf("%s: %s", mode, diff)
			}
			if got := call(t, c, `{"name":"call"}`); got != callOK || c.Info().Protocol != protocol {
				t.Errorf("%s: %s, %+v", mode, got, c.Info())
			}
		}
	}
}

// A server is not started more than twice, whatever it dies of.
func TestAServerThatDiesOfEverythingIsStartedTwice(t *testing.T) {
	t.Parallel()
	opts := Options{Eras: new(Eras), Server: "s"}
	for _, starts := range []int{2, 1} {
		_, sent, err := opening(t, opts, "misbehave", "unknown-mode")
		if !fault.Is(err, fault.InitializeFailed) || !strings.Contains(err.Error(), "ended during the handshake") || len(sent) != starts {
			t.Errorf("%v, %q, want %d starts", err, sent, starts)
		}
	}
}

// The probe is not what the time of an opening is for; a server that it silences
// for good is spared it next time.
func TestAServerThatTheProbeSilencesIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	opts := Options{Name: "gatebus", Eras: new(Eras), Server: "s", Patience: 10 * time.Millisecond}
	ctx := &endable{t.Context(), make(chan struct{}), context.DeadlineExceeded}
	n := &noted{Process: start(t, stdio.Spec{Command: "misbehave", Args: []string{"probe-stuck"}}), after: func(method string) {
		if method == "initialize" {
			close(ctx.done)
		}
	}}
	if _, err := Open(ctx, n, opts); err != context.DeadlineExceeded || n.String() != "server/discover initialize" {
		t.Errorf("%v after %s", err, n)
	}
	if c, sent, err := opening(t, opts, "misbehave", "probe-stuck"); err != nil || len(sent) != 1 || sent[0] != handshakeSent || call(t, c, `{}`) != callOK {
		t.Errorf("%v after %q", err, sent)
	}
}

// A probe that was not answered in time stays open: the server may be slow to
// start, and without a handshake.
func TestASlowServerWithoutAHandshakeIsFoundAllTheSame(t *testing.T) {
	t.Parallel()
	opts := Options{Eras: new(Eras), Server: "s", Patience: 50 * time.Millisecond}
	for _, want := range []string{"server/discover initialize", "server/discover"} {
		mode := []string{"late"}
		if want == "server/discover" { // it is known now, and not asked for a handshake
			mode = nil
		}
		c, sent, err := opening(t, opts, "stateless", mode...)
		if err != nil {
			t.Fatal(err)
		}
		if len(sent) != 1 || sent[0] != want || c.Info().Protocol != stateless || len(seen(t, c)) == 0 {
			t.Errorf("%q, %+v", sent, c.Info())
		}
	}
}

// What is remembered may be wrong: the server behind a declaration changes.
func TestARememberedEraIsOnlyTriedFirst(t *testing.T) {
	t.Parallel()
	for program, known := range map[string]era{"stateless": eraHandshake, "echo": eraStateless} {
		eras := new(Eras)
		eras.remember("s", known)
		_, sent, err := opening(t, Options{Eras: eras, Server: "s"}, program)
		want := map[string]string{"stateless": "initialize server/discover", "echo": probeSent + " " + handshakeSent}[program]
		if err != nil || len(sent) != 1 || sent[0] != want {
			t.Errorf("%s: %v after %q, want %s", program, err, sent, want)
		}
		if got := eras.of("s"); got == known || got == eraUnknown {
			t.Errorf("%s: what is remembered is %d", program, got)
		}
	}
}

// Report 58 and R199 in the stateless era: over stdio the server is told once.
func TestACancelledCallIsToldOnceWithoutAHandshakeToo(t *testing.T) {
	t.Parallel()
	c, _, err := opening(t, Options{}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	late := make(chan int64, 2)
	ctx := &endable{t.Context(), make(chan struct{}), context.Canceled}
	if _, err := c.Call(ctx, "tools/call", raw(`{"name":"slow","_meta":{"progressToken":0}}`), CallOptions{
		Notify: func(Notice) { close(ctx.done) },
		OnLate: func(id int64, _ Reply) { late <- id },
	}); err != context.Canceled {
		t.Fatal(err)
	}
	id := <-late
	lines := seen(t, c)
	want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":"cancelled"}}`, id)
	if len(lines) != 3 || lines[2] != want || len(late) != 0 {
		t.Errorf("the server got %q", lines)
	}
}

// A server of the stateless era tells those who listen, from before the first
// list; one who was cut off listens again and takes it that he missed something.
func TestChangedToolsAreHeardOfWithoutAHandshake(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 10)
	c, sent, err := opening(t, Options{OnListChanged: func(*Conn) { changed <- struct{}{} }}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	if len(sent) != 1 || sent[0] != "server/discover subscriptions/listen" {
		t.Errorf("what went out is %q", sent)
	}
	call(t, c, `{"name":"change"}`)
	<-changed
	call(t, c, `{"name":"drop"}`)
	<-changed // within a second or so
	listens := 0
	for _, line := range seen(t, c) {
		want := fmt.Sprintf(`,"method":"subscriptions/listen","params":{"_meta":{%s},"notifications":{"toolsListChanged":true}}}`, ownMeta)
		if strings.Contains(line, "listen") && strings.HasSuffix(line, want) {
			listens++
		}
	}
	if listens != 2 || len(changed) != 0 {
		t.Errorf("%d subscriptions, %d more calls", listens, len(changed))
	}
}
