package live

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/gatebus/gatebus/workers/stdio"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// start starts a fake.
func start(t *testing.T, spec stdio.Spec) *stdio.Process {
	t.Helper()
	spec.Command = fakes.Build(t, spec.Command)
	p, err := stdio.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
	})
	return p
}

// open opens a connection to a fake and closes it after the test.
func open(t *testing.T, opts Options, program string, args ...string) *Conn {
	t.Helper()
	c, err := Open(t.Context(), start(t, stdio.Spec{Command: program, Args: args}), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.transport.Kill()
		// Without a limit: everything that the connection started must end.
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func raw(s string) redact.Raw[[]byte] { return redact.NewRaw([]byte(s)) }

// call makes a call that must succeed and returns the result.
func call(t *testing.T, c *Conn, params string) string {
	t.Helper()
	reply, err := c.Call(t.Context(), "tools/call", raw(params), CallOptions{})
	if err != nil || reply.Error != nil {
		t.Fatalf("%v %s", err, reply.Error)
	}
	return string(reply.Result)
}

const callOK = `{"content":[{"type":"text","text":"ok"}]}`

func wantLost(t *testing.T, err error, written bool, kind fault.Kind) {
	t.Helper()
	lost, ok := err.(*ErrLost)
	if !ok || lost.Written != written || !fault.Is(err, kind) {
		t.Errorf("the error is %v (%v), want ErrLost with Written %v and kind %s", err, fault.KindOf(err), written, kind)
	}
}

func TestTheHandshakeTellsWhoTheServerIs(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus", Version: "1"}, "echo")
	want := Info{Name: "fake", Version: "1.2.3", Protocol: "2025-11-25", Capabilities: []byte(`{"tools":{"listChanged":true},"x-vendor":{"n":1.0}}`)}
	if diff := cmp.Diff(want, c.Info()); diff != "" {
		t.Error(diff)
	}
}

// Report 24: an older revision is taken, an unknown one is not.
func TestTheRevisionMustBeKnownAndNotNewerThanAskedFor(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18"} {
		if c := open(t, Options{Name: "gatebus"}, "misbehave", "version", version); c.Info().Protocol != version {
			t.Errorf("the revision is %q, want %s", c.Info().Protocol, version)
		}
	}
	for _, version := range []string{"1999-01-01", "2026-07-28", "", "zzz"} {
		p := start(t, stdio.Spec{Command: "misbehave", Args: []string{"version", version}})
		_, err := Open(t.Context(), p, Options{Name: "gatebus"})
		if !fault.Is(err, fault.InitializeFailed) || !strings.Contains(err.Error(), "revision") {
			t.Errorf("%q: %v, want initialize_failed", version, err)
		}
		<-p.Done() // Open closes what it could not open
	}
}

// Report 24: a server that refuses our revision and names those that it has is asked
// once more, for the newest one that both know.
func TestARevisionThatTheServerNamesIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2024-11-05", "2025-06-18"} {
		c := open(t, Options{Name: "gatebus"}, "misbehave", "supports", version)
		if got := c.Info().Protocol; got != version {
			t.Errorf("the revision is %q, want %s", got, version)
		}
		if got := call(t, c, `{"name":"call"}`); got != callOK {
			t.Errorf("%s: the result is %s", version, got)
		}
	}
	for _, args := range [][]string{{"2030-01-01"}, {"2025-11-25", "never"}, {"2025-06-18", "never"}} {
		p := start(t, stdio.Spec{Command: "misbehave", Args: append([]string{"supports"}, args...)})
		if _, err := Open(t.Context(), p, Options{Name: "gatebus"}); !fault.Is(err, fault.InitializeFailed) || !strings.Contains(err.Error(), "refused to initialize") {
			t.Errorf("%s: %v, want initialize_failed", args, err)
		}
		<-p.Done()
	}
}

// Reports 7, 9 and 10.
func TestAConnectionLivesWithLinesThatAreNoMessages(t *testing.T) {
	t.Parallel()
	for mode, frames := range map[string]uint64{"banner": 2 + 6, "garbage": 6 * 11} {
		c := open(t, Options{Name: "gatebus"}, "misbehave", mode)
		tools, _, err := c.List(t.Context(), Tools)
		if err != nil || len(tools) != 1 {
			t.Errorf("%s: %v, %v", mode, tools, err)
		}
		for range 2 {
			if got := call(t, c, `{"name":"call"}`); got != callOK {
				t.Errorf("%s: the result is %s", mode, got)
			}
		}
		if got := c.Counts().Frames; got != frames {
			t.Errorf("%s: %d lines were dropped, want %d", mode, got, frames)
		}
	}
}

// Report 23 and the errors of a handshake: one kind each, nothing of the server
// in the text, and the process is gone.
func TestAFailedHandshakeNamesItsReasonAndClosesTheProcess(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"content-length": "wrong framing",
		"refuse":         "refused to initialize",
		"unknown-mode":   "ended during the handshake",
	} {
		p := start(t, stdio.Spec{Command: "misbehave", Args: []string{mode}})
		_, err := Open(t.Context(), p, Options{Name: "gatebus"})
		if !fault.Is(err, fault.InitializeFailed) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error is %v, want initialize_failed with %q", mode, err, want)
		}
		<-p.Done()
	}
	p := start(t, stdio.Spec{Command: "echo", MaxFrame: 60})
	if _, err := Open(t.Context(), p, Options{Name: "gatebus"}); !fault.Is(err, fault.FrameTooLarge) {
		t.Errorf("the error is %v, want frame_too_large", err)
	}
	<-p.Done()
}

// R131: one deadline, whatever the server does.
func TestTheHandshakeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := start(t, stdio.Spec{Command: "misbehave", Args: []string{"hang-initialize"}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, p, Options{Name: "gatebus"}); err != context.DeadlineExceeded {
		t.Errorf("the error is %v, want that of the context", err)
	}
	<-p.Done()
}

// The context of Open bounds the handshake, not the connection.
func TestAConnectionOutlivesTheContextOfItsHandshake(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := Open(ctx, start(t, stdio.Spec{Command: "misbehave", Args: []string{"ask"}}), Options{Name: "gatebus"})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	call(t, c, `{}`)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// What was not offered is refused, a ping answered; ids come back as they were.
func TestRequestsOfTheServerAreAnsweredUnderTheirOwnIDs(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "ask")
	var result struct{ Answers []map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(call(t, c, `{}`)), &result); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, answer := range result.Answers {
		var e struct{ Code int }
		_ = json.Unmarshal(answer["error"], &e)
		got[string(answer["id"])] = fmt.Sprintf("%s %d", answer["result"], e.Code)
	}
	want := map[string]string{`7.5`: "{} 0", `12345678901234567890`: " -32601", `"\u0065"`: " -32601", `"e"`: " -32601"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Trap 1 and 2, decision 22: what a type of the SDK would change stays.
func TestResultsAreTheBytesOfTheServer(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "odd-shapes")
	const want = `{"zz":0, "structuredContent":null,"content":[{"type":"video","data":"%%","n":9007199254740993,"e":1e400,"f":1.0},{"text":"<b>\u00e9\ud83d</b>","type":"text"}],"isError":false,"resultType":"task","task":{"taskId":"1"}}`
	if got := call(t, c, `{"name":"good"}`); got != want {
		t.Errorf("the result is\n%s, want\n%s", got, want)
	}
}

// Trap 5.
func TestAnErrorOfTheServerKeepsItsData(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "echo")
	reply, err := c.Call(t.Context(), "tools/call", raw(`{"name":"fail"}`), CallOptions{})
	const want = `{"code":-32050,"message":"no such luck","data":{"n":9007199254740993,"why":"because"}}`
	if err != nil || string(reply.Error) != want || reply.Result != nil {
		t.Errorf("%v, error %s, result %s", err, reply.Error, reply.Result)
	}
}

// Report 13.
func TestALargeResultComesWhole(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "echo")
	if got, want := call(t, c, `{"name":"big","arguments":{"bytes":3000000}}`), 3000000; len(got) != want+len(`{"content":[{"type":"text","text":""}]}`) {
		t.Errorf("the result has %d bytes", len(got))
	}
}

// R80: the waiting call learns the kind, and the connection is over.
func TestAResultAboveTheFrameLimitEndsTheConnection(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "huge-line")
	_, err := c.Call(t.Context(), "tools/call", raw(`{}`), CallOptions{})
	wantLost(t, err, true, fault.FrameTooLarge)
	<-c.Done()
	<-c.transport.(*stdio.Process).Done()
	if !fault.Is(c.Err(), fault.FrameTooLarge) {
		t.Errorf("the connection ended with %v", c.Err())
	}
}

func TestParamsGoOutAsTheyAreButForLineEnds(t *testing.T) {
	t.Parallel()
	const params = "{\"b\":9007199254740993,\r\n \"a\":1.0,\t\"e\":1e400,\"s\":\"\\n\\u00e9<\\ud83d\",\"x\":{\"d\":1,\"d\":2}}"
	frame, err := request(firstID, `tools/"call`, []byte(params), nil, &pending{})
	const want = `{"jsonrpc":"2.0","id":1099511627776,"method":"tools/\"call","params":{"b":9007199254740993,   "a":1.0,` + "\t" + `"e":1e400,"s":"\n\u00e9<\ud83d","x":{"d":1,"d":2}}}`
	if err != nil || string(frame) != want {
		t.Errorf("%v\n%s, want\n%s", err, frame, want)
	}
	if frame, err := request(firstID, "ping", nil, nil, &pending{}); err != nil || string(frame) != `{"jsonrpc":"2.0","id":1099511627776,"method":"ping"}` {
		t.Errorf("%v %s", err, frame)
	}
}

func TestParamsThatTwoReadersCouldUnderstandDifferentlyAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "echo")
	for _, params := range []string{
		`[]`, `null`, `5`, `{`, `{}{}`, `{} x`, `{"a":1,}`, "{\"a\":\"\n\"}", "not json", `{"name":"a","name":"b"}`,
		`{"name":"a","\u006eame":"b"}`, `{"_meta":{},"_meta":{"progressToken":1}}`, `{"_meta":{"progressToken":1,"progressToken":2}}`,
	} {
		if _, err := c.Call(t.Context(), "tools/call", raw(params), CallOptions{}); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("%s: %v, want invalid_arguments", params, err)
		}
	}
	call(t, c, `{"name":"echo"}`) // and nothing of it was sent
}

// Trap 11: no notification is overtaken by its answer, and tokens are the
// caller's.
func TestProgressComesInOrderBeforeTheAnswerUnderTheCallersToken(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus", Parallel: true}, "misbehave", "progress")
	var group sync.WaitGroup
	// Several callers may use one token.
	for _, token := range []string{`"t"`, `"t"`, `7`, `1.50`, `"\u00e9"`, `{"odd":[1]}`, `null`} {
		for range 3 {
			group.Go(func() {
				var got []string
				returned := false
				_, err := c.Call(t.Context(), "tools/call", raw(`{"_meta":{"a":1,"progressToken": `+token+`},"name":"call"}`), CallOptions{Notify: func(n Notice) {
					if returned {
						t.Error("progress after the answer")
					}
					got = append(got, string(n.Params))
				}})
				returned = true
				if err != nil {
					t.Error(err)
				}
				var want []string
				for i := range 50 {
					want = append(want, fmt.Sprintf(`{"progress":%d.0, "x":1e400,"progressToken":%s}`, i, token))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %s", token, diff)
				}
			})
		}
	}
	group.Wait()
	// A token without a listener is still not shown to the server.
	call(t, c, `{"_meta":{"progressToken":"s"}}`)
	if got := c.Counts(); got.Strays != 0 || got.Overflow != 0 {
		t.Errorf("the counts are %+v", got)
	}
}

// Report 59: the receive loop outlives what nobody asked for.
func TestDuplicateAndOrphanAnswersAreDroppedAndCounted(t *testing.T) {
	t.Parallel()
	// The second answer is read before or after the call returns.
	for mode, strays := range map[string][2]uint64{"answer-twice": {0, 1}, "orphan": {4, 4}} {
		c := open(t, Options{Name: "gatebus"}, "misbehave", mode)
		for i := range uint64(5) {
			if got := call(t, c, `{"name":"call"}`); got != callOK {
				t.Errorf("%s: the result is %s", mode, got)
			}
			low, high := i*strays[1]+strays[0], (i+1)*strays[1]
			if got := c.Counts().Strays; got < low || got > high {
				t.Errorf("%s: %d strays after %d calls, want %d to %d", mode, got, i+1, low, high)
			}
		}
	}
}

// endable is a context that ends with any error at any moment.
type endable struct {
	context.Context
	done chan struct{}
	err  error
}

func (e *endable) Done() <-chan struct{} { return e.done }

func (e *endable) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// abandon makes a call of the fake late that ends with err once it has come to
// the server.
func abandon(t *testing.T, c *Conn, err error, onLate func(int64, Reply)) {
	t.Helper()
	ctx := &endable{t.Context(), make(chan struct{}), err}
	_, got := c.Call(ctx, "tools/call", raw(`{"name":"late","_meta":{"progressToken":0}}`), CallOptions{
		Notify: func(Notice) { close(ctx.done) },
		OnLate: onLate,
	})
	if got != err {
		t.Errorf("the call ended with %v, want %v", got, err)
	}
}

// Report 58, R199, R200: one notice, an answer that comes later, a connection
// that lives.
func TestACancelledCallIsToldOnceAndItsLateAnswerGoesToOnLate(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "late")
	for err, reason := range map[error]string{context.Canceled: "cancelled", context.DeadlineExceeded: "timed out"} {
		type answer struct {
			id    int64
			reply Reply
		}
		late := make(chan answer, 2)
		abandon(t, c, err, func(id int64, reply Reply) { late <- answer{id, reply} })
		got := <-late
		want := fmt.Sprintf(`{"late":{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":%q}}}`, got.id, reason)
		if string(got.reply.Result) != want || got.reply.Error != nil {
			t.Errorf("the late answer is %s, want %s", got.reply.Result, want)
		}
		// A second notice would bring a second answer before this one.
		if got := call(t, c, `{"name":"call"}`); got != callOK {
			t.Errorf("the next call returned %s", got)
		}
		if len(late) > 0 || c.Counts().Strays > 0 {
			t.Errorf("there was a second notice: %+v", c.Counts())
		}
	}
}

// Decision 20 wants late answers, but only of calls that somebody remembers.
func TestALateAnswerThatNobodyWantsIsAStray(t *testing.T) {
	t.Parallel()
	p := start(t, stdio.Spec{Command: "misbehave", Args: []string{"late"}})
	c, err := Open(t.Context(), p, Options{Name: "gatebus"})
	if err != nil {
		t.Fatal(err)
	}
	abandon(t, c, context.Canceled, nil)
	// The notice goes out by itself. The answer to it is read before the end.
	for c.Counts().Strays == 0 {
		call(t, c, `{"name":"call"}`)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := c.Counts().Strays; got != 1 {
		t.Errorf("%d strays, want 1", got)
	}
}

func TestAbandonedCallsAreRememberedToALimit(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "hang")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for id := int64(firstID + 1000); id < firstID+1000+maxAbandoned+10; id++ {
		p := &pending{reply: make(chan answer, 1), onLate: func(int64, Reply) {}}
		c.mu.Lock()
		c.calls[id] = p
		c.mu.Unlock()
		if _, err := c.leave(ctx, id, p, true); err != context.Canceled {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) != maxAbandoned || c.calls[firstID+1009] != nil || c.calls[firstID+1010] == nil {
		t.Errorf("%d calls are remembered, want the last %d", len(c.calls), maxAbandoned)
	}
}

// A call that ends before it is sent leaves no trace at the server.
func TestACallThatIsCancelledBeforeItIsSentIsNotSent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "calls")
	c, err := Open(t.Context(), start(t, stdio.Spec{Command: "counter", Env: []string{"COUNTER_FILE=" + file}}), Options{Name: "gatebus"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := c.Call(ctx, "tools/call", raw(`{"name":"count","arguments":{"id":"no"}}`), CallOptions{}); err != context.Canceled {
			t.Errorf("the error is %v", err)
		}
	}
	call(t, c, `{"name":"count","arguments":{"id":"yes"}}`)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "yes\n" {
		t.Errorf("the server ran %q, %v; want yes once", got, err)
	}
}

// Decision 21: after the request was sent the outcome is unknown, before it not.
func TestALostConnectionTellsWhetherTheRequestWasWritten(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "exit")
	_, err := c.Call(t.Context(), "tools/call", raw(`{}`), CallOptions{})
	wantLost(t, err, true, fault.RuntimeNotLive)
	<-c.Done()
	if err := c.Err(); !fault.Is(err, fault.RuntimeNotLive) {
		t.Errorf("the connection ended with %v", err)
	}
	<-c.transport.(*stdio.Process).Done()
	if got := c.transport.Exit(); got != "exit status 3" {
		t.Errorf("the exit is %q", got)
	}
	_, err = c.Call(t.Context(), "tools/call", raw(`{}`), CallOptions{})
	wantLost(t, err, false, fault.RuntimeNotLive)
	_, err = c.Acquire(t.Context())
	for range cap(c.slots) {
		if err != nil {
			break
		}
		_, err = c.Acquire(t.Context())
	}
	wantLost(t, err, false, fault.RuntimeNotLive)
}

// Report 15 and trap 14: a request that is stuck in the pipe ends with the
// context, and counts as sent.
func TestACallToAServerThatReadsNoMoreEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "no-read")
	large := raw(`{"x":"` + strings.Repeat("x", 1<<20) + `"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "tools/call", large, CallOptions{}); err != context.DeadlineExceeded {
		t.Errorf("the error is %v", err)
	}
	blocked := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), "tools/call", large, CallOptions{})
		blocked <- err
	}()
	c.transport.Kill()
	wantLost(t, <-blocked, false, fault.RuntimeNotLive)
}

// Report 20: the end of the connection is an outcome of the call.
func TestCloseEndsTheCallsUnderWay(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus", Parallel: true}, "echo")
	begun, lost := make(chan struct{}), make(chan error, 8)
	for range cap(lost) {
		go func() {
			_, err := c.Call(t.Context(), "tools/call", slowCall, CallOptions{Notify: func(Notice) { begun <- struct{}{} }})
			lost <- err
		}()
	}
	for range cap(lost) {
		<-begun
	}
	for range 3 {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for range cap(lost) {
		wantLost(t, <-lost, true, fault.RuntimeNotLive)
	}
}

// slowCall is a call of echo that says when it has come and does not end.
var slowCall = raw(`{"name":"slow","arguments":{"ms":600000},"_meta":{"progressToken":1}}`)

func TestTwentyCallsAtOnceGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus", Parallel: true}, "echo")
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			for n := range 25 {
				text := fmt.Sprintf("%d of %d", n, i)
				want := `{"content":[{"type":"text","text":"` + text + `"}]}`
				reply, err := c.Call(t.Context(), "tools/call", raw(`{"name":"echo","arguments":{"text":"`+text+`"}}`), CallOptions{})
				if err != nil || string(reply.Result) != want {
					t.Errorf("%s: %v %s", text, err, reply.Result)
				}
			}
		})
	}
	group.Wait()
	if got := (Counts{}); c.Counts() != got {
		t.Errorf("the counts are %+v", c.Counts())
	}
}

// Trap 14: a slow call stops nobody else.
func TestASlowCallHoldsNoOther(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus", Parallel: true}, "echo")
	ctx, cancel := context.WithCancel(t.Context())
	slow := make(chan error)
	begun := make(chan struct{})
	go func() {
		_, err := c.Call(ctx, "tools/call", slowCall, CallOptions{Notify: func(Notice) { close(begun) }})
		slow <- err
	}()
	<-begun
	call(t, c, `{"name":"echo"}`)
	cancel()
	if err := <-slow; err != context.Canceled {
		t.Errorf("the slow call ended with %v", err)
	}
	call(t, c, `{"name":"echo"}`)
}

// Report 30 and trap 12: notices are coalesced, and a slow callback stops nobody.
func TestChangedToolsAreToldOffTheReadLoop(t *testing.T) {
	t.Parallel()
	changed, goOn := make(chan struct{}), make(chan struct{})
	calls := 0
	c := open(t, Options{Name: "gatebus", OnListChanged: func(*Conn) { calls++; changed <- struct{}{}; <-goOn }}, "misbehave", "list-changed")
	list := func() {
		if _, _, err := c.List(t.Context(), Tools); err != nil {
			t.Fatal(err)
		}
	}
	list()
	<-changed // the callback is under way and blocks
	for range 20 {
		list()
	}
	goOn <- struct{}{}
	<-changed
	goOn <- struct{}{}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if calls != 2 {
		t.Errorf("21 notices were %d calls, want 2", calls)
	}
}

// Report 61: nothing of the connection, nor of the SDK in it, stays behind:
// Close waits for it, here without a limit.
func TestCloseLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"echo"}, {"misbehave", "banner"}, {"misbehave", "ask"}, {"counter"}} {
		c, err := Open(t.Context(), start(t, stdio.Spec{Command: args[0], Args: args[1:]}), Options{Name: "gatebus", OnListChanged: func(*Conn) {}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(context.Background()); err != nil || c.transport.Exit() != "exit status 0" {
			t.Errorf("%v: %v, %s", args, err, c.transport.Exit())
		}
	}
}

func names(tools []Item) (names []string) {
	for _, tool := range tools {
		names = append(names, tool.Name)
	}
	return names
}

// Decision 22, R48, report 35: only what is missing or no object is repaired.
func TestDefinitionsAreTheBytesOfTheServerButForARepairedSchema(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "odd-shapes")
	tools, dropped, err := c.List(t.Context(), Tools)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range tools {
		got = append(got, string(tool.Definition))
	}
	want := []string{
		`{"z":1,"name":"good","inputSchema":{"type":"object","$defs":{"n":{"$ref":"#/$defs/n"}},"maximum":9007199254740993},"execution":{"taskSupport":"optional"},"a":1.0}`,
		`{"name":"none","inputSchema":{"type":"object","properties":{}}}`,
		`{"inputSchema":{"type":"object","properties":{}},"name":"null"}`,
		`{"name":"list", "inputSchema":{"type":"object","properties":{}}, "x":2}`,
		`{"name":"empty","inputSchema":{}}`,
		`{"name":"half","inputSchema":{"properties":null,"required":null}}`,
		`{ "description" : "<b>\u2028` + "\u2028" + ` \ud83d" , "name":"blank",	"inputSchema" : { } }`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"good", "none", "null", "list", "empty", "half", "blank"}, names(tools)); diff != "" {
		t.Error(diff)
	}
	if dropped != 7 {
		t.Errorf("%d left out; want 6 that are unusable and a duplicate", dropped)
	}
}

func TestTheDigestOfADefinitionIsOfItsMeaning(t *testing.T) {
	t.Parallel()
	digest := func(definition string) string {
		tool, ok := (&listing{List: Tools}).read([]byte(definition))
		if !ok {
			t.Fatalf("%s is not usable", definition)
		}
		return tool.Digest
	}
	one := digest(`{"name":"a","inputSchema":{"type":"object","maximum":9007199254740992},"description":"\u00e9/"}`)
	if other := digest(`{ "description":"é\/", "inputSchema":{"maximum":9007199254740992, "type":"object"},"name":"\u0061" }`); one != other {
		t.Error("another spelling is another digest")
	}
	for _, definition := range []string{
		`{"name":"a","inputSchema":{"type":"object","maximum":9007199254740993},"description":"\u00e9/"}`,
		`{"name":"a","inputSchema":{"type":"object","maximum":9007199254740992},"description":"\u00e9/ "}`,
		`{"name":"a","inputSchema":{"type":"object","maximum":9007199254740992},"description":"\u00e9/","x":1}`,
	} {
		if digest(definition) == one {
			t.Errorf("%s has the same digest", definition)
		}
	}
	// What has no canonical form counts as written.
	if half := digest(`{"name":"a","description":"\ud83d"}`); half == digest(`{"name":"a","description":"\ud83e"}`) {
		t.Error("two halves of characters have the same digest")
	}
	if _, ok := (&listing{List: Tools}).read([]byte(`{"name":"a","description":"\ud83d","x":{"y":1,"y":2}}`)); ok {
		t.Error("a member that is there twice is not seen beside half a character")
	}
	// sha256 of {"inputSchema":{"properties":{},"type":"object"},"name":"a"}
	if got := digest(`{"name":"a"}`); got != "d537ab5cf723ec8182ab09e0f8be2ed05603c2b6983c9a81c1603489bcf32ba6" {
		t.Errorf("the digest is %s", got)
	}
}

func TestAChangedDefinitionChangesItsDigest(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "changing-tools")
	var digests []string
	for range 3 {
		tools, _, err := c.List(t.Context(), Tools)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, tools[0].Digest)
	}
	slices.Sort(digests)
	if len(slices.Compact(digests)) != 3 {
		t.Errorf("three definitions have the digests %v", digests)
	}
}

// R133, report 32.
func TestAllPagesAreReadAndOddOnesFail(t *testing.T) {
	t.Parallel()
	c := open(t, Options{Name: "gatebus"}, "misbehave", "pages")
	tools, dropped, err := c.List(t.Context(), Tools)
	if diff := cmp.Diff([]string{"call", "b"}, names(tools)); diff != "" || err != nil || dropped != 1 {
		t.Errorf("%v %s, %d left out", err, diff, dropped)
	}
	for _, mode := range []string{"loop-cursor", "endless", "crowd", "broken"} {
		c := open(t, Options{Name: "gatebus"}, "misbehave", mode)
		if tools, _, err := c.List(t.Context(), Tools); tools != nil || !fault.Is(err, fault.ListToolsFailed) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %d tools, %v; want list_tools_failed", mode, len(tools), err)
		}
		// That is a failure of the list, not of the connection.
		call(t, c, `{}`)
	}
}

func TestAResultThatIsNoListOfToolsFails(t *testing.T) {
	t.Parallel()
	for _, result := range []string{`[]`, `null`, `{}`, `{"tools":{}}`, `{"tools":"x"}`, `{"tools":[],"nextCursor":7}`, `{"tools":[],"nextCursor":{}}`} {
		l := listing{List: Tools, names: map[string]bool{}}
		if _, err := l.page([]byte(result)); !fault.Is(err, fault.ListToolsFailed) {
			t.Errorf("%s: %v, want list_tools_failed", result, err)
		}
	}
	for result, want := range map[string]string{
		`{"tools":null}`: "", `{"tools":[]}`: "", `{"tools":[],"nextCursor":null}`: "", `{"tools":[],"nextCursor":""}`: "",
		`{"nextCursor":"c\u0031","tools":[]}`: `"c\u0031"`,
	} {
		l := listing{List: Tools, names: map[string]bool{}}
		if next, err := l.page([]byte(result)); err != nil || string(next) != want {
			t.Errorf("%s: the next cursor is %s, %v; want %s", result, next, err, want)
		}
	}
}

// MCP 2026-07-28, pagination: an empty string is a valid cursor and not the end. The
// revisions before leave it open.
func TestAnEmptyCursorEndsAListBeforeItIsACursor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program string
		args    []string
		pages   int
	}{{"stateless", []string{"empty-cursor"}, 2}, {"misbehave", []string{"empty-cursor"}, 1}} {
		tools, _, err := open(t, Options{Name: "gatebus"}, c.program, c.args...).List(t.Context(), Tools)
		if err != nil || len(tools) != c.pages {
			t.Errorf("%s: %v of %d pages, %v", c.program, names(tools), c.pages, err)
		}
	}
	// Nor is it a way to a list without end.
	c := open(t, Options{Name: "gatebus"}, "stateless", "empty-cursors")
	if tools, _, err := c.List(t.Context(), Tools); tools != nil || !fault.Is(err, fault.ListToolsFailed) {
		t.Errorf("%v, %v", names(tools), err)
	}
}

// Events hold the names.
func TestANameIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list List
		size int
	}{{Tools, maxName}, {Prompts, maxName}, {Resources, maxURI}, {Templates, maxURI}} {
		l := listing{List: c.list, names: map[string]bool{}}
		for _, size := range []int{c.size, c.size + 1} {
			if err := l.add([]byte(`{"` + c.list.key + `":"` + strings.Repeat("n", size) + `"}`)); err != nil {
				t.Fatal(err)
			}
		}
		if len(l.items) != 1 || len(l.items[0].Name) != c.size || l.dropped != 1 {
			t.Errorf("%s: %d are there, %d left out", c.list.Name, len(l.items), l.dropped)
		}
	}
}

func TestAListIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	l := listing{List: Tools, names: map[string]bool{}, bytes: maxListBytes - 12}
	if _, err := l.page([]byte(`{"tools":[{"name":"t"}]}`)); err != nil {
		t.Errorf("a list at the limit: %v", err)
	}
	if _, err := l.page([]byte(`{"tools":[1]}`)); !fault.Is(err, fault.ListToolsFailed) {
		t.Errorf("a list above the limit: %v", err)
	}
}

// Report 26: only what is advertised is asked for; the fake dies otherwise.
func TestAServerWithoutToolsIsNotAskedForThem(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"no-tools", "not-found"} {
		c := open(t, Options{Name: "gatebus"}, "misbehave", mode)
		if tools, _, err := c.List(t.Context(), Tools); len(tools) != 0 || err != nil {
			t.Errorf("%s: %v, %v; want none", mode, tools, err)
		}
		call(t, c, `{}`)
	}
}

func TestAnIntegerIsOneInEverySpelling(t *testing.T) {
	t.Parallel()
	for spelling, want := range map[string]int64{"1099511627776": 1 << 40, "1099511627776.0": 1 << 40, "1.099511627776e12": 1 << 40, "-7": -7} {
		if got, ok := integer([]byte(spelling)); !ok || got != want {
			t.Errorf("%s is %d, %v", spelling, got, ok)
		}
	}
	for _, spelling := range []string{"", "7.5", `"7"`, "1e400", "1e300", "null", "9223372036854775808"} {
		if got, ok := integer([]byte(spelling)); ok {
			t.Errorf("%s is %d", spelling, got)
		}
	}
}

// A server that asks without reading the answers fills no memory.
func TestRequestsOfAServerAreKeptToALimit(t *testing.T) {
	t.Parallel()
	var overflow atomic.Uint64
	l := newLink(nil, &overflow)
	for range maxAsked + 10 {
		l.request(frame.Frame{ID: []byte("1"), Method: "ping"})
	}
	if len(l.inbox) != maxAsked || len(l.asked) != maxAsked || overflow.Load() != 10 {
		t.Errorf("%d are queued, %d remembered, %d over", len(l.inbox), len(l.asked), overflow.Load())
	}
}

// The budget of a call is 100 objects and 10 KiB.
func BenchmarkCall(b *testing.B) {
	p, err := stdio.Start(b.Context(), stdio.Spec{Command: fakes.Build(b, "echo")})
	if err != nil {
		b.Fatal(err)
	}
	c, err := Open(b.Context(), p, Options{Name: "gatebus"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	params := raw(`{"name":"echo","arguments":{"text":"` + strings.Repeat("x", 100) + `"}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), "tools/call", params, CallOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
