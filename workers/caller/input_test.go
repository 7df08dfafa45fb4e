package caller_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

// offers is a client that can be asked for some input, "" being one that would not
// understand a question.
func offers(input string) func(*caller.Request) {
	return func(q *caller.Request) {
		if q.Input = nil; input != "" {
			q.Input = []byte(input)
		}
	}
}

func with(params string) func(*caller.Request) {
	return func(q *caller.Request) { q.Params = redact.NewRaw([]byte(params)) }
}

// A server that wants input of the client gets it in a second round, which is a call
// of its own; the bytes go there and back as they are, and what a person typed is
// stored as little as the arguments are.
func TestInputIsAskedForAndGivenInRounds(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "stateless"), auto)
	const secret, typed = "canary words to ask about", "canary words that were typed"
	arguments := `{"x": "` + secret + `"}`
	state := base64.StdEncoding.EncodeToString([]byte(arguments))

	first := s.call("ask", arguments, offers(`{"elicitation":{}}`))
	s.wants(first, "succeeded", "", true)
	want := `{"resultType":"input_required", "inputRequests":{"name":{"method":"elicitation/create","params":{"n":1e400,"message":"about {\"x\": \"` + secret + `\"}?"}}},"requestState":"` + state + `"}`
	if string(first.Result) != want {
		t.Errorf("got %s\nwant %s", first.Result, want)
	}
	params := `{"requestState":"` + state + `", "name":"docs__ask","inputResponses":{"name":{"action":"accept","content":{"n":1.0,"who":"` + typed + `"}}},"arguments":` + arguments + `}`
	second := s.call("ask", "", with(params), offers(`{"elicitation":{}}`))
	s.wants(second, "succeeded", "", true)
	if want := state + ` {"name":{"action":"accept","content":{"n":1.0,"who":"` + typed + `"}}}`; second.Text != want || second.Call == first.Call {
		t.Errorf("got %s\nwant %s", second.Text, want)
	}
	for _, leak := range []string{secret, state, typed} {
		if s.Stored(leak) {
			t.Errorf("%q is stored", leak)
		}
	}
	if got := s.commits(second.Call); len(got) != 2 || got[0] != "call_requested approval_decided call_authorized call_started" {
		t.Errorf("the second round is %q", got)
	}
	if done := rig.Events[events.CallSucceeded](s.Rig)[0]; !strings.HasPrefix(done.Result.String(), `{"resultType":"input_required","inputRequests":{"name":{"method":"elicitation/create"`) ||
		done.IsError || done.Status != "succeeded" {
		t.Errorf("the first round is recorded as %+v", done)
	}
	s.Rebuilt()

	var seen struct{ StructuredContent struct{ Lines []string } }
	if err := json.Unmarshal(s.call("seen", `{}`).Result, &seen); err != nil {
		t.Fatal(err)
	}
	lines := seen.StructuredContent.Lines
	if line := lines[len(lines)-1]; !strings.HasSuffix(line, strings.Replace(params, "docs__", "", 1)[1:]+"}") {
		t.Errorf("the server got %s\nof %s", line, params)
	}
}

// refusals are why a question does not reach its client.
var refusals = []fault.Kind{fault.ResultInvalid, fault.SecurityBlocked, fault.URLBlocked}

// A client gets no question for which it did not offer an answer.
func TestInputIsAskedOnlyOfWhoOffersIt(t *testing.T) {
	t.Parallel()
	const (
		form  = `"a":{"method":"elicitation/create","params":{"message":"?"}}`
		link  = `"b":{"method":"elicitation/create","params":{"mode":"url","url":"https://example.com/"}}`
		text  = `"c":{"method":"sampling/createMessage","params":{}}`
		tools = `"d":{"method":"sampling/createMessage","params":{"tools":[]}}`
		roots = `"e":{"method":"roots/list"}`
		other = `"f":{"method":"tools/call"}`
	)
	many := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"r%d":{"method":"roots/list"}`, i)
		}
		return `"inputRequests":{` + strings.Join(list, ",") + `}`
	}
	for _, test := range []struct {
		asked  string // the members of the result
		input  string
		passes bool
	}{
		{many(live.MaxOpenAsks), `{"roots":{}}`, true},
		{many(live.MaxOpenAsks + 1), `{"roots":{}}`, false},
		{`"inputRequests":{` + form + `}`, `{"elicitation":{}}`, true},
		{`"inputRequests":{` + form + `}`, `{"elicitation":{"form":{},"url":{}}}`, true},
		{`"inputRequests":{` + form + `}`, `{"elicitation":{"url":{}}}`, false},
		{`"inputRequests":{` + form + `}`, `{"sampling":{}}`, false},
		{`"inputRequests":{` + form + `}`, ``, false},
		{`"inputRequests":{` + link + `}`, `{"elicitation":{}}`, false},
		{`"inputRequests":{` + link + `}`, `{"elicitation":{"url":{}}}`, true},
		{`"inputRequests":{` + text + `,` + roots + `}`, `{"sampling":{},"roots":{}}`, true},
		{`"inputRequests":{` + text + `,` + roots + `}`, `{"sampling":{}}`, false},
		{`"inputRequests":{` + tools + `}`, `{"sampling":{}}`, false},
		{`"inputRequests":{` + tools + `}`, `{"sampling":{"tools":{}}}`, true},
		{`"inputRequests":{` + other + `}`, `{"tools":{},"sampling":{},"elicitation":{},"roots":{}}`, false},
		{`"requestState":"s"`, `{}`, true},
		{`"requestState":"s"`, ``, false},
		// Nor one that no server may ask.
		{`"inputRequests":{"g":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"properties":{"apiKey":{}}}}}}`, `{"elicitation":{}}`, false},
		{`"inputRequests":{"g":{"method":"elicitation/create","params":{"mode":"url","url":"https://a:b@example.com/"}}}`, `{"elicitation":{"url":{}}}`, false},
		{`"inputRequests":{"g":{"method":"sampling/createMessage","params":{"includeContext":"allServers"}}}`, `{"sampling":{"context":{}}}`, false},
		// What cannot be read one way is malformed.
		{`"x":1`, `{}`, false},
		{`"requestState":7`, `{}`, false},
		{`"inputRequests":[]`, `{}`, false},
		{`"inputRequests":{` + form + `},"inputRequests":{}`, `{"elicitation":{}}`, false},
		{`"inputRequests":{"a":{"method":"sampling/createMessage"},` + form + `}`, `{"elicitation":{}}`, false},
	} {
		t.Run(test.asked+" "+test.input, func(t *testing.T) {
			t.Parallel()
			s := serve(t, rig.Options{}, answers(`"result":{"resultType":"input_required",`+test.asked+`}`, ""), auto)
			r := s.call("call", `{}`, offers(test.input))
			if test.passes {
				s.wants(r, "succeeded", "", true)
			} else if r.Status != "failed" || !r.ExecutionStarted || r.Result != nil || r.Text != "" || !slices.Contains(refusals, fault.Kind(r.Error.Kind)) {
				t.Errorf("the client gets %+v, %+v", r, r.Error)
			}
		})
	}
}

// What is noteworthy of a question is in the log with its call.
func TestQuestionIsFlagged(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, answers(`"result":{"resultType":"input_required","inputRequests":{`+
		`"a":{"method":"sampling/createMessage","params":{"systemPrompt":"s","messages":[{"role":"user","content":{"text":"\udb40\udc41"}}]}},`+
		`"b":{"method":"sampling/createMessage","params":{"systemPrompt":"t"}}}}`, ""), auto)
	s.wants(s.call("call", `{}`, offers(`{"sampling":{}}`)), "succeeded", "", true)
	if got := rig.Events[events.CallSucceeded](s.Rig)[0].Flags; !slices.Equal(got, []string{"system_prompt", "tag"}) {
		t.Errorf("the call is flagged %q", got)
	}
}

// A page that a person is to open is judged, and the log says how, whatever becomes of
// the question.
func TestPagesOfQuestionsAreInTheLog_R96(t *testing.T) {
	t.Parallel()
	for url, test := range map[string]struct {
		status, reason string
		allowed        bool
	}{
		"https://example.com/":       {"succeeded", "allowed", true},
		"https://a:b@example.com/":   {"failed", "userinfo_not_allowed", false},
		"http://169.254.169.254/any": {"failed", "metadata_address", false},
	} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			s := serve(t, rig.Options{}, answers(`"result":{"resultType":"input_required","inputRequests":{`+
				`"a":{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"`+url+`"}}}}`, ""), auto)
			if r := s.call("call", `{}`, offers(`{"elicitation":{"url":{}}}`)); r.Status != test.status {
				t.Errorf("%+v, %+v", r, r.Error)
			}
			got := rig.Events[events.UrlDecision](s.Rig)
			if len(got) != 1 || got[0].Phase != urlpolicy.PhaseElicitation || got[0].Reason != test.reason || got[0].Allowed != test.allowed || got[0].Server == "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A person approves a round with the input that is in it: no yes for the arguments
// alone, or for arguments that look the same, is one for it.
func TestYesIsForTheInputToo_Decision7(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	const responses = `{"a":{"action":"accept"}}`
	round := func(state string) string {
		return `{"name":"docs__count","arguments":` + id(1) + `,"inputResponses":` + responses + `,"requestState":"` + state + `"}`
	}
	asked := map[string]string{}
	for _, params := range []string{
		`{"name":"docs__count","arguments":` + id(1) + `}`,
		`{"name":"docs__count","arguments":{"arguments":` + id(1) + `,"inputResponses":` + responses + `,"requestState":"s"}}`,
		round("s"), round("t"),
		`{"name":"docs__count","arguments":` + id(1) + `,"inputResponses":` + responses + `}`,
	} {
		r := s.call("count", "", with(params))
		s.wants(r, "approval_pending", fault.ApprovalPending, false)
		if before, ok := asked[r.Approval.ID]; ok {
			t.Errorf("%s\nhas the approval of %s", params, before)
		}
		asked[r.Approval.ID] = params
		if params != round("s") {
			s.Decide(r.Approval.ID, true)
		}
	}
	r := s.call("count", "", with(round("s")))
	s.wants(r, "approval_pending", fault.ApprovalPending, false)
	n.wants(t)
	// The person sees what was answered.
	if text := s.Caller.Arguments(s.Context(), r.Call, r.Approval.ID); !strings.Contains(text, `"inputResponses":{"a":{"action":"accept"}}`) {
		t.Errorf("a person is shown %s", text)
	}
	s.Decide(r.Approval.ID, true)
	s.wants(s.call("count", "", with(round("s"))), "succeeded", "", true)
	n.wants(t, "n001")
}

// Who owns the connection knows what the client offers.
func TestInputIsAskedForByTheOwner_Decision21(t *testing.T) {
	t.Parallel()
	s, _ := beside(t, rig.Options{}, program(t, "stateless"), auto)
	r := s.call("ask", `{}`, offers(`{"elicitation":{}}`))
	s.wants(r, "succeeded", "", true)
	if !strings.Contains(string(r.Result), `"inputRequests"`) {
		t.Errorf("%s", r.Result)
	}
	s.wants(s.call("ask", `{}`, offers(`{}`)), "failed", fault.ResultInvalid, true)
}
