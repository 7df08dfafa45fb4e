package caller_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

// request asks a server of the turn for something that is no tool.
func (s *served) request(method, subject, params string, change ...func(*caller.Request)) client.CallReply {
	s.t.Helper()
	q := caller.Request{Turn: s.turn, Name: "docs", Method: method, Subject: subject, Params: redact.NewRaw([]byte(params))}
	for _, f := range change {
		f(&q)
	}
	r, err := s.Caller.Call(s.Context(), rig.As("ana"), q)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

const read = "resources/read"

// A request goes there and back as it is, is in the log like a call, and asks
// nobody: also where calls do.
func TestRequestIsRecordedLikeACall_R195(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), "approval_policy: prompt")
	got := s.request(read, "file:///a/one", `{"uri":"file:///a/one", "x":1.0}`)
	s.wants(got, "succeeded", "", true)
	if want := `{"contents":[{"uri":"file:///a/one","text":"content of file:///a/one","z":1.0},{"uri":"file:///a/one","mimeType":"image/png","blob":"AAECAw=="}]}`; string(got.Result) != want {
		t.Errorf("got %s\nwant %s", got.Result, want)
	}
	got = s.request("prompts/get", "greet", `{"name":"greet","arguments":{"who":"you"}}`)
	if want := `{"messages":[{"role":"user","content":{"type":"text","text":"greet of a: {\"who\":\"you\"}"}}], "n":1.0}`; string(got.Result) != want {
		t.Errorf("got %s\nwant %s", got.Result, want)
	}
	if got := s.request(read, "", `{"uri":"file:///a/none"}`); got.Error == nil || string(got.Error.JSONRPC) != `{"code":-32002,"message":"Resource not found","data":{"uri":"file:///a/none","n":1.0}}` {
		t.Errorf("%+v", got)
	}
	var said []string
	for _, e := range rig.Events[events.CallRequested](s.Rig) {
		said = append(said, strings.Join([]string{e.Method, e.Server, e.Callable, e.Tool, e.Capability, e.Policy}, " "))
	}
	want := []string{"resources/read docs file:///a/one  mcp.call:docs auto", "prompts/get docs greet  mcp.call:docs auto", "resources/read docs   mcp.call:docs auto"}
	if !slices.Equal(said, want) {
		t.Errorf("got %q\nwant %q", said, want)
	}
	done := rig.Events[events.CallSucceeded](s.Rig)
	if len(done) != 2 || strings.Contains(done[0].Result.String(), "AAECAw") || !strings.Contains(done[0].Result.String(), "[blob image/png]") ||
		!strings.Contains(done[1].Result.String(), "user: greet of a") {
		t.Errorf("%+v", done)
	}
	if s.Stored("file:///a/none") {
		t.Error("what was asked for, and is not listed, is in the log")
	}
}

func TestRequestNeedsWhatACallNeeds_R58(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), auto)
	s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
	s.wants(s.request(read, "file:///a/one", `{"uri":"file:///a/one"}`), "denied", fault.CapabilityDenied, false)
	s.Grant("ana", "mcp.call:docs")
	s.wants(s.request(read, "file:///a/one", `{"uri":"file:///a/one"}`), "succeeded", "", true)
	s.wants(s.request(read, "", `{"uri":"x","uri":"y"}`), "invalid", fault.InvalidArguments, false)
	s.wants(s.request(read, "", `["x"]`), "invalid", fault.InvalidArguments, false)
	s.wants(s.request(read, "", `{"uri":"x"}`, func(q *caller.Request) { q.Name = "other" }), "not_found", fault.NotFound, false)
	s.wants(s.request(read, "", `{"uri":"`+strings.Repeat("x", 1<<20)+`"}`), "invalid", fault.ArgumentsTooLarge, false)
}

func TestPolicyThatDeniesCallsDeniesRequests_R52(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), auto)
	s.SetPolicy(events.Policy{Rules: []events.ApprovalRule{{Server: "docs", Approval: "deny"}}})
	if r := s.request(read, "file:///a/one", `{"uri":"file:///a/one"}`); r.ExecutionStarted || r.Status == "succeeded" {
		t.Errorf("%+v", r)
	}
}

// Secrets of the server do not pass in a resource either, nor in a log message.
func TestRequestIsRedacted_R119(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{Env: map[string]string{"T": "s3cret-of-the-shelf"}}, program(t, "shelf"), "env: {TOKEN: '${T}'}", auto)
	got := s.request(read, "", `{"uri":"file:///a/secret"}`)
	if !strings.Contains(string(got.Result), "contents") || strings.Contains(string(got.Result), "s3cret") || s.Stored("s3cret-of-the-shelf") {
		t.Errorf("%s", got.Result)
	}
}

// Log messages come as they are and before the answer; a level that is set is
// the server's to keep.
func TestLogMessagesComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), auto)
	ask := func() (got []string) {
		s.wants(s.request(read, "file:///a/one", `{"uri":"file:///a/one"}`, func(q *caller.Request) {
			q.Notify = func(n live.Notice) { got = append(got, n.Method+string(n.Params)) }
		}), "succeeded", "", true)
		return got
	}
	debug := `notifications/message{"level":"debug","data":{"n":1.0,"of":"file:///a/one"}}`
	failed := strings.Replace(debug, "debug", "error", 1)
	for range 20 {
		if got := ask(); !slices.Equal(got, []string{debug, failed}) {
			t.Fatalf("%q", got)
		}
	}
	s.wants(s.request("logging/setLevel", "", `{"level":"error"}`), "succeeded", "", true)
	if got := ask(); !slices.Equal(got, []string{failed}) {
		t.Errorf("%q", got)
	}
}

// One call at a time is of tools (R20): what a call waits for can be read meanwhile.
func TestRequestDoesNotWaitForACall_R20(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), auto)
	held := s.later("hold", `{}`)
	rig.Await(s.Rig, func(events.CallStarted) bool { return true })
	for len(held) == 0 { // the call may be on its way to the server
		s.wants(s.request(read, "", `{"uri":"file:///a/release"}`), "succeeded", "", true)
	}
	s.wants(s.get(held), "succeeded", "", true)
}

// Asked for beside the owner of the connection, it is the same.
func TestRequestIsForwardedToTheOwner_Decision21(t *testing.T) {
	t.Parallel()
	s, _ := beside(t, rig.Options{}, program(t, "shelf"), auto)
	var heard []string
	got := s.request(read, "file:///a/one", `{"uri":"file:///a/one"}`, func(q *caller.Request) {
		q.Notify = func(n live.Notice) { heard = append(heard, n.Method) }
	})
	s.wants(got, "succeeded", "", true)
	if !strings.Contains(string(got.Result), `"z":1.0`) || !slices.Equal(heard, []string{"notifications/message", "notifications/message"}) {
		t.Errorf("%s, %q", got.Result, heard)
	}
	if e := rig.Events[events.CallRequested](s.Rig); len(e) != 1 || e[0].Method != read || e[0].Callable != "file:///a/one" {
		t.Errorf("%+v", e)
	}
}
