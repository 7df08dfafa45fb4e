package caller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// served is a rig with one server, docs, that ana is connected to.
type served struct {
	*rig.Rig
	t    *testing.T
	turn string
}

func serve(t *testing.T, o rig.Options, lines ...string) *served {
	t.Helper()
	s := &served{rig.New(t, o), t, ""}
	s.Declare("docs", lines...)
	s.Load()
	s.GrantAll("ana")
	s.turn = s.Connected("ana").Turn
	return s
}

// auto calls without asking.
const auto = "approval_policy: auto"

func program(t *testing.T, name string, args ...string) string {
	return rig.Command(fakes.Build(t, name), args...)
}

// call calls a tool of docs for ana.
func (s *served) call(tool, arguments string, change ...func(*caller.Request)) client.CallReply {
	s.t.Helper()
	return s.Call("ana", s.turn, "docs__"+tool, arguments, change...)
}

// later is a call in a goroutine.
func (s *served) later(tool, arguments string, change ...func(*caller.Request)) <-chan client.CallReply {
	out := make(chan client.CallReply, 1)
	go func() { out <- s.call(tool, arguments, change...) }()
	return out
}

// get is the reply of a call that was made later.
func (s *served) get(replies <-chan client.CallReply) client.CallReply {
	s.t.Helper()
	select {
	case r := <-replies:
		return r
	case <-s.Context().Done():
		s.t.Fatal("a call does not return")
		return client.CallReply{}
	}
}

func (s *served) wants(r client.CallReply, status string, kind fault.Kind, executed bool) {
	s.t.Helper()
	got := fault.Kind("")
	if r.Error != nil {
		got = fault.Kind(r.Error.Kind)
		if entry, ok := fault.Lookup(got); !ok || r.Error.Code != entry.Code() || r.Error.Message == "" {
			s.t.Errorf("error %+v", r.Error)
		}
	}
	if r.Status != status || got != kind || r.ExecutionStarted != executed {
		s.t.Errorf("status %q, kind %q, execution started %v; want %q, %q, %v", r.Status, got, r.ExecutionStarted, status, kind, executed)
	}
}

// conn is the one live connection.
func (s *served) conn() *live.Conn {
	s.t.Helper()
	for _, c := range s.Pool.All() {
		return c
	}
	s.t.Fatal("no live connection")
	return nil
}

// hold takes the slot of a connection that makes one call at a time.
func (s *served) hold() (release func()) {
	s.t.Helper()
	release, ok := s.conn().TryAcquire()
	if !ok {
		s.t.Fatal("the slot is taken")
	}
	return release
}

// queued waits for a call to be in the queue.
func (s *served) queued() {
	s.t.Helper()
	rig.Await(s.Rig, func(events.CallQueued) bool { return true })
}

// counter is the file that the counter fake writes its calls to.
type counter struct{ file string }

func newCounter(t *testing.T) counter { return counter{filepath.Join(t.TempDir(), "calls")} }

// lines declare the counter.
func (c counter) lines(t *testing.T, more ...string) []string {
	return append([]string{program(t, "counter"), fmt.Sprintf("env: {COUNTER_FILE: %q}", c.file)}, more...)
}

// executed are the ids of the calls that were executed, sorted.
func (c counter) executed(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(c.file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	ids := strings.Fields(string(data))
	slices.Sort(ids)
	return ids
}

func (c counter) wants(t *testing.T, ids ...string) {
	t.Helper()
	if got := c.executed(t); !slices.Equal(ids, got) {
		t.Errorf("executed calls %q, want %q", got, ids)
	}
}

func id(n int) string { return fmt.Sprintf(`{"id":"n%03d"}`, n) }

// commits are the names of the events of a call, by commit.
func (s *served) commits(key string) (out []string) {
	s.t.Helper()
	for _, c := range s.Log() {
		if c.Aggregate.Key == key {
			out = append(out, strings.Join(c.Names(), " "))
		}
	}
	return out
}

func TestCallIsTwoCommitsOnTheHotPath_R53_R195(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "echo"), auto)
	r := s.call("echo", `{"text":"hello"}`)
	s.wants(r, "succeeded", "", true)
	if r.Text != "hello" || string(r.Result) != `{"content":[{"type":"text","text":"hello"}]}` {
		t.Errorf("%+v", r)
	}
	want := []string{"call_requested approval_decided call_authorized call_started", "call_succeeded"}
	if diff := cmp.Diff(want, s.commits(r.Call)); diff != "" {
		t.Error(diff)
	}
	a, st := rig.Events[events.CallAuthorized](s.Rig)[0], rig.Events[events.CallStarted](s.Rig)[0]
	state := s.Connection("ana", "docs")
	if a.CatalogSequence != state.CatalogSequence || a.AuthoritySequence == 0 || a.PolicySequence == 0 || st.Generation != state.Generation || st.Runtime != s.Runtime {
		t.Errorf("%+v %+v", a, st)
	}
	s.Rebuilt()
}

func TestCallNeedsBothCapabilities_R47_R58_R59(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		revoke, line string
		kind         fault.Kind
	}{
		"to connect":          {revoke: "mcp.connect:*", kind: fault.CapabilityDenied},
		"to call":             {revoke: "mcp.call:*", kind: fault.CapabilityDenied},
		"the one that is set": {line: "capability: docs.use", kind: fault.CapabilityDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newCounter(t)
			s := serve(t, rig.Options{}, n.lines(t, auto, test.line)...)
			if test.revoke != "" {
				s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: test.revoke}, nil)
			}
			r := s.call("count", id(1))
			s.wants(r, "denied", test.kind, false)
			if diff := cmp.Diff([]string{"call_requested call_blocked"}, s.commits(r.Call)); diff != "" {
				t.Error(diff)
			}
			n.wants(t)
			if test.revoke == "" {
				s.Grant("ana", "docs.use")
				s.wants(s.call("count", id(1)), "succeeded", "", true)
			}
		})
	}
}

func TestHeldCallGoesOnWithTheAnswer_R60_Decision9(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	for _, allow := range []bool{true, false} {
		pending := make(chan string, 1)
		held := s.later("count", id(1), rig.Wait, func(q *caller.Request) { q.OnPending = func(id string) { pending <- id } })
		a := s.AwaitPending(1)[0]
		if got := <-pending; got != a.ID || a.Action != "mcp.call" || a.Target != "docs/count" {
			t.Errorf("%s was announced, %+v waits", got, a)
		}
		before := n.executed(t)
		s.Decide(a.ID, allow)
		r := s.get(held)
		if allow {
			s.wants(r, "succeeded", "", true)
			want := []string{"call_requested approval_requested", "approval_decided", "call_authorized call_started", "call_succeeded"}
			if diff := cmp.Diff(want, s.commits(r.Call)); diff != "" || len(before) != 0 {
				t.Errorf("%s; executed before the answer: %q", diff, before)
			}
		} else {
			s.wants(r, "denied", fault.ApprovalDenied, false)
		}
	}
	n.wants(t, "n001")
}

func TestWaitThatIsOverLeavesTheQuestion_Decision9(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	first := s.call("count", id(1), func(q *caller.Request) { q.Wait = 20 * time.Millisecond })
	s.wants(first, "approval_pending", fault.ApprovalPending, false)
	// An equal call asks for the same, with its members in another order too; another
	// call is another question.
	if again := s.call("count", id(1)); again.Call != first.Call || again.Approval.ID != first.Approval.ID {
		t.Errorf("%+v, then %+v", first, again)
	}
	if other := s.call("count", id(2)); other.Call == first.Call {
		t.Errorf("another call has the same question: %+v", other)
	}
	s.Decide(first.Approval.ID, true)
	n.wants(t) // a yes runs nothing by itself
	r := s.call("count", id(1))
	s.wants(r, "succeeded", "", true)
	if r.Call != first.Call {
		t.Errorf("the retry is call %s, the question was about %s", r.Call, first.Call)
	}
	s.wants(s.call("count", id(1)), "approval_pending", fault.ApprovalPending, false) // a second retry asks anew
	n.wants(t, "n001")
}

// deny says no to everything that waits, until ctx ends.
func (s *served) deny(ctx context.Context) {
	for {
		at := s.Projections.Applied()
		for _, a := range s.Projections.Approvals.Pending(rig.Workspace) {
			// It may be expired meanwhile.
			_ = s.Local.Do(ctx, "approvals/decide", client.ApprovalsDecide{ID: a.ID, Decision: "deny"}, nil)
		}
		if _, err := s.Projections.Changed(ctx, at); err != nil {
			return
		}
	}
}

func TestOneYesIsOneExecution_Decision9(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t, "supports_parallel_tool_calls: true")...)
	const callers, rounds = 8, 12
	var want []string
	for round := range rounds {
		arguments := id(round)
		want = append(want, fmt.Sprintf("n%03d", round))
		pending := make(chan string, 100)
		replies := make(chan client.CallReply, callers)
		begin := func(change ...func(*caller.Request)) {
			for range callers {
				go func() { replies <- s.call("count", arguments, change...) }()
			}
		}
		var approval string
		held := round%2 == 0
		if held { // all wait for the same answer
			begin(rig.Wait, func(q *caller.Request) { q.OnPending = func(id string) { pending <- id } })
			for range callers {
				approval = <-pending
			}
		} else {
			approval = s.call("count", arguments).Approval.ID
		}
		s.Decide(approval, true)
		if !held { // all come back after it
			begin()
		}
		ctx, cancel := context.WithCancel(s.Context())
		var denying sync.WaitGroup
		if held {
			denying.Go(func() { s.deny(ctx) })
		}
		outcomes := map[string]int{}
		for range callers {
			r := s.get(replies)
			outcomes[r.Status]++
			if r.Status != "succeeded" && r.ExecutionStarted {
				t.Errorf("%+v", r)
			}
		}
		cancel()
		denying.Wait()
		others := "approval_pending"
		if held {
			others = "denied"
		}
		if outcomes["succeeded"] != 1 || outcomes[others] != callers-1 {
			t.Errorf("round %d: %v", round, outcomes)
		}
	}
	n.wants(t, want...)
}

func TestYesForTheSessionIsUsedAgain_R61_Decision7(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	s.GrantAll("bob")
	bob := s.Connected("bob").Turn
	first := s.call("count", id(1))
	s.Decide(first.Approval.ID, true, true)
	for i := range 3 {
		r := s.call("count", id(i))
		s.wants(r, "succeeded", "", true)
		if diff := cmp.Diff("call_requested approval_decided call_authorized call_started", s.commits(r.Call)[0]); diff != "" {
			t.Error(diff)
		}
	}
	for _, a := range rig.Events[events.CallAuthorized](s.Rig) {
		if a.Approval != first.Approval.ID {
			t.Errorf("a use cites %q", a.Approval)
		}
	}
	if r := s.Call("bob", bob, "docs__count", id(1)); r.Status != "approval_pending" {
		t.Errorf("ana's yes is used for bob: %+v", r)
	}
	s.SetPolicy(events.Policy{Rules: []events.ApprovalRule{{Risk: "critical", Approval: "deny"}}})
	s.turn = s.Connected("ana").Turn
	s.wants(s.call("count", id(9)), "approval_pending", fault.ApprovalPending, false)
	n.wants(t, "n000", "n001", "n002")
}

func TestSessionYesEndsWithTheSession(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	s.Decide(s.call("count", id(1)).Approval.ID, true, true)
	s.wants(s.call("count", id(1)), "succeeded", "", true)
	s.Ask("session/end", client.Session{Session: s.Session("ana")}, nil)
	s.wants(s.call("count", id(2)), "invalid", fault.RuntimeNotLive, false)
	s.turn = s.Connected("ana").Turn
	s.wants(s.call("count", id(3)), "approval_pending", fault.ApprovalPending, false)
	n.wants(t, "n001")
}

func TestDenyingPolicyDeniesTheCall_R54_R55(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	for _, p := range []events.Policy{
		{Rules: []events.ApprovalRule{{Tool: "count", Approval: "deny"}}},
		{Approvers: "none", Rules: []events.ApprovalRule{{Tool: "other", Approval: "deny"}}},
	} {
		s.SetPolicy(p)
		r := s.call("count", id(1))
		s.wants(r, "denied", fault.ApprovalDenied, false)
		if diff := cmp.Diff([]string{"call_requested approval_decided call_blocked"}, s.commits(r.Call)); diff != "" {
			t.Error(diff)
		}
	}
	n.wants(t)
}

func TestWhatChangesBetweenTheYesAndTheStartCounts_Decision16(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(s *served)
		kind   fault.Kind
	}{
		// By a process that died before it ended what waits.
		"the capability is revoked": {func(s *served) {
			_, err := s.Model.Grants.Dispatch(s.Context(), rig.Workspace, "ana", bus.Meta{Actor: "local", Principal: "ana"}, grant.Revoke{Capability: "mcp.call:*"})
			if err != nil {
				s.t.Fatal(err)
			}
		}, fault.CapabilityDenied},
		"the policy changes": {func(s *served) { s.SetPolicy(events.Policy{DefaultApproval: "prompt"}) }, fault.ApprovalDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newCounter(t)
			s := serve(t, rig.Options{Still: true}, n.lines(t)...)
			first := s.call("count", id(1))
			s.Decide(first.Approval.ID, true)
			test.change(s)
			r := s.call("count", id(1))
			s.wants(r, "denied", test.kind, false)
			if r.Call != first.Call {
				t.Errorf("another call: %+v", r)
			}
			n.wants(t)
		})
	}
}

func TestNoStartAfterTheRevokesReply_Decision16(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t, auto, "supports_parallel_tool_calls: true")...)
	const calls = 200
	var wg sync.WaitGroup
	half := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	succeeded, denied := 0, 0
	for i := range calls {
		wg.Go(func() {
			r := s.call("count", id(i))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.Status == "succeeded":
				succeeded++
			case r.Status == "denied" && !r.ExecutionStarted:
				denied++
			default:
				t.Errorf("%+v %+v", r, r.Error)
			}
			if succeeded > calls/4 {
				once.Do(func() { close(half) })
			}
		})
	}
	<-half
	s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
	after := s.Bus.Head()
	s.wants(s.call("count", id(calls)), "denied", fault.CapabilityDenied, false)
	wg.Wait()
	started, revoked := 0, uint64(0)
	for _, c := range s.Log() {
		for _, e := range c.Events {
			switch e.(type) {
			case events.CapabilityRevoked:
				revoked = c.Seq
			case events.CallStarted:
				started++
				if revoked != 0 || c.Seq > after {
					t.Errorf("a call was started at %d, the revoke is %d and was answered by %d", c.Seq, revoked, after)
				}
			}
		}
	}
	executed := n.executed(t)
	if len(executed) != started || started != succeeded || succeeded+denied != calls || len(slices.Compact(executed)) != len(executed) {
		t.Errorf("%d executed, %d started, %d succeeded, %d denied", len(executed), started, succeeded, denied)
	}
}

func TestOneCallAtATime_R20(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line string
		most int
	}{"as declared by default": {"", 1}, "in parallel": {"supports_parallel_tool_calls: true", 6}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, rig.Options{}, program(t, "echo"), auto, test.line)
			const calls = 6
			var replies [calls]<-chan client.CallReply
			for i := range replies {
				replies[i] = s.later("slow", `{"ms":150}`)
			}
			for _, c := range replies {
				s.wants(s.get(c), "succeeded", "", true)
			}
			now, most, queued := 0, 0, 0
			for _, c := range s.Log() {
				for _, e := range c.Events {
					switch e.(type) {
					case events.CallQueued:
						queued++
					case events.CallStarted:
						now++
						most = max(most, now)
					case events.CallSucceeded:
						now--
					}
				}
			}
			if most > test.most || test.most > 1 && most == 1 || (queued > 0) != (test.most == 1) {
				t.Errorf("%d at once, %d queued", most, queued)
			}
		})
	}
}

// errStops is the cause of what the end of the process breaks off.
var errStops = fault.New("test", fault.RuntimeClosed, redact.Static("the runtime is being stopped"))

func TestQueuedCallThatIsNotStarted_R20(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout string
		happens func(s *served, leave context.CancelCauseFunc, release func())
		status  string
		kind    fault.Kind
	}{
		"its time is over":  {"0.2", func(*served, context.CancelCauseFunc, func()) {}, "timed_out", fault.TimedOut},
		"its caller leaves": {"20", func(_ *served, leave context.CancelCauseFunc, _ func()) { leave(nil) }, "cancelled", fault.Cancelled},
		"the process ends":  {"20", func(_ *served, leave context.CancelCauseFunc, _ func()) { leave(errStops) }, "cancelled", fault.RuntimeClosed},
		"its server ends":   {"20", func(s *served, _ context.CancelCauseFunc, _ func()) { _ = s.conn().Close(s.Context()) }, "invalid", fault.RuntimeNotLive},
		"its capability is revoked": {"20", func(s *served, _ context.CancelCauseFunc, release func()) {
			s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
			release()
		}, "denied", fault.CapabilityDenied},
		"the policy changes": {"20", func(s *served, _ context.CancelCauseFunc, release func()) {
			s.SetPolicy(events.Policy{DefaultApproval: "prompt"})
			release()
		}, "denied", fault.ApprovalDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newCounter(t)
			s := serve(t, rig.Options{}, n.lines(t, auto, "timeout_seconds: "+test.timeout)...)
			release := s.hold()
			ctx, leave := context.WithCancelCause(s.Context())
			defer leave(nil)
			out := make(chan client.CallReply, 1)
			go func() {
				r, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{Turn: s.turn, Name: "docs__count", Params: rig.Params("docs__count", id(1))})
				if err != nil {
					t.Error(err)
				}
				out <- r
			}()
			s.queued()
			test.happens(s, leave, release)
			r := s.get(out)
			s.wants(r, test.status, test.kind, false)
			if st := s.Model.Calls.Get(rig.Workspace, r.Call); st.Phase != call.Done || st.Outcome != test.status || st.Reason != string(test.kind) {
				t.Errorf("in the log: %+v", st)
			}
			n.wants(t)
		})
	}
}

func TestTimeoutFailsTheCallAndNotTheConnection_R199(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "echo"), auto, "timeout_seconds: 0.3")
	r := s.call("slow", `{"ms":20000}`)
	s.wants(r, "timed_out", fault.TimedOut, true)
	f := rig.Events[events.CallFailed](s.Rig)[0]
	if f.Status != "timed_out" || !f.ExecutionStarted || f.Reason != "timed_out" {
		t.Errorf("%+v", f)
	}
	s.wants(s.call("echo", `{"text":"x"}`), "succeeded", "", true)
}

func TestLateAnswerIsRecorded_Decision20(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "late"), auto, "timeout_seconds: 0.2")
	for range 5 { // it comes at once after the cancellation, while the outcome is recorded
		s.wants(s.call("late", `{}`), "timed_out", fault.TimedOut, true)
	}
	n := 0
	rig.Await(s.Rig, func(events.CallLateResult) bool { n++; return n == 5 })
	s.wants(s.call("call", `{}`), "succeeded", "", true)
	s.Rebuilt()
}

func TestCallerThatLeavesCancelsTheCall_R200(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "late"), auto)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	r, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{
		Turn: s.turn, Name: "docs__late", Notify: func(live.Notice) { cancel() }, // it says that the call has come
		Params: redact.NewRaw([]byte(`{"name":"docs__late","arguments":{},"_meta":{"progressToken":1}}`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(r, "cancelled", fault.Cancelled, true)
	rig.Await(s.Rig, func(events.CallLateResult) bool { return true }) // the server was told, as it answered then
	s.wants(s.call("call", `{}`), "succeeded", "", true)
	if s.Connection("ana", "docs").Phase != "open" {
		t.Error("the server is degraded")
	}
}

// The server is told as well, and may have done it: who asked did not cancel.
func TestProcessThatEndsDoesNotKnowWhatItsCallsDid(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "late"), auto)
	ctx, end := context.WithCancelCause(s.Context())
	defer end(nil)
	r, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{
		Turn: s.turn, Name: "docs__late", Notify: func(live.Notice) { end(errStops) },
		Params: redact.NewRaw([]byte(`{"name":"docs__late","arguments":{},"_meta":{"progressToken":1}}`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(r, "indeterminate", fault.Indeterminate, true)
	rig.Await(s.Rig, func(events.CallLateResult) bool { return true })
}

func TestCallerThatLeavesWhileAPersonIsAskedLeavesTheQuestion(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s := serve(t, rig.Options{}, n.lines(t)...)
	ctx, cancel := context.WithCancel(s.Context())
	_, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{
		Turn: s.turn, Name: "docs__count", Params: rig.Params("docs__count", id(1)), Wait: time.Minute, OnPending: func(string) { cancel() },
	})
	if err == nil {
		t.Error("an outcome")
	}
	s.Decide(s.AwaitPending(1)[0].ID, true)
	n.wants(t)
	s.wants(s.call("count", id(1)), "succeeded", "", true)
}

func TestServerThatEndsInACallLeavesItIndeterminate_R172(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "exit"), auto)
	r := s.call("call", `{}`)
	s.wants(r, "indeterminate", fault.Indeterminate, true)
	if diff := cmp.Diff("call_indeterminate", s.commits(r.Call)[1]); diff != "" {
		t.Error(diff)
	}
	rig.Await(s.Rig, func(events.ConnectionClosed) bool { return true })
	s.wants(s.call("call", `{}`), "invalid", fault.RuntimeNotLive, false)
}

func TestAnswerThatIsTooLargeFailsTheCall_R80(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "huge-line"), auto)
	s.wants(s.call("call", `{}`), "failed", fault.FrameTooLarge, true)
	rig.Await(s.Rig, func(events.ConnectionClosed) bool { return true })
}

func TestStrangeAnswersHarmNobody_C7(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"answer-twice", "orphan", "garbage", "banner", "stderr-flood"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := serve(t, rig.Options{}, program(t, "misbehave", mode), auto)
			for range 3 {
				if r := s.call("call", `{}`); r.Text != "ok" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

func TestCrashLeavesNothingTwice_R172_Decision11(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	r := rig.New(t, rig.Options{})
	r.Declare("docs", n.lines(t)...)
	r.Declare("slow", program(t, "echo"), auto)
	r.Load()
	r.GrantAll("ana")
	s := &served{r, t, r.Connected("ana").Turn}
	waiting, allowed := s.call("count", id(1)), s.call("count", id(2))
	s.Decide(allowed.Approval.ID, true)
	done := s.call("count", id(3))
	s.Decide(done.Approval.ID, true)
	s.wants(s.call("count", id(3)), "succeeded", "", true)

	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range 2 { // one runs, the other is queued
		running.Go(func() {
			_, _ = s.Caller.Call(ctx, rig.As("ana"), caller.Request{Turn: s.turn, Name: "slow__slow", Params: rig.Params("slow__slow", `{"ms":60000}`)})
		})
	}
	s.queued()
	s.CatchUp()

	again := &served{rig.New(t, rig.Options{Home: s.Image(), Root: s.Root, Dirs: s.Dirs}), t, ""}
	outcomes := map[string]int{}
	for at, c := range again.Model.Calls.All() {
		if c.Server == "slow" {
			outcomes[c.Outcome]++
			if c.Outcome == call.Indeterminate && c.Reason != "runtime_lost" {
				t.Errorf("%s: %+v", at, c)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{call.Indeterminate: 1, call.Cancelled: 1}, outcomes); diff != "" {
		t.Error(diff)
	}
	if pending := again.Pending(); len(pending) != 1 || pending[0].ID != waiting.Approval.ID {
		t.Errorf("%+v waits", pending)
	}
	n.wants(t, "n003")

	// What waited is answered, and both answers are used, once each.
	again.turn = again.Prepare("ana").Turn
	again.Decide(waiting.Approval.ID, true)
	for i, before := range map[int]client.CallReply{1: waiting, 2: allowed} {
		r := again.call("count", id(i))
		again.wants(r, "succeeded", "", true)
		if r.Call != before.Call {
			t.Errorf("the retry is call %s, the question was about %s", r.Call, before.Call)
		}
		again.wants(again.call("count", id(i)), "approval_pending", fault.ApprovalPending, false)
	}
	n.wants(t, "n001", "n002", "n003")
	again.Rebuilt()
}

func TestCallThatWaitsUsesTheConnectionThatIsOpenThen_Decision20(t *testing.T) {
	t.Parallel()
	const old, fresh = "canary-old-81aa73", "canary-new-5c20e9"
	s := serve(t, rig.Options{Env: map[string]string{"API_TOKEN": old}}, program(t, "echo"), "env: {API_TOKEN: '${API_TOKEN}'}")
	held := s.later("secret", `{"names":["API_TOKEN"]}`, rig.Wait)
	waits := s.AwaitPending(1)[0]
	generation := s.Connection("ana", "docs").Generation
	// Meanwhile the server ends, and is started again with another secret.
	_ = s.conn().Close(s.Context())
	rig.Await(s.Rig, func(events.ConnectionClosed) bool { return true })
	s.Setenv("API_TOKEN", fresh)
	s.Prepare("ana")
	release := s.hold() // the slot that counts is that of the new connection
	s.Decide(waits.ID, true)
	select {
	case r := <-held:
		t.Fatalf("the call did not wait for its turn: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	r := s.get(held)
	s.wants(r, "succeeded", "", true)
	if st := rig.Events[events.CallStarted](s.Rig)[0]; st.Generation == generation {
		t.Error("started on the connection that has ended")
	}
	if strings.Contains(string(r.Result)+r.Text, fresh) || s.Stored(fresh) || s.Stored(old) {
		t.Errorf("the new secret is shown: %s", r.Result)
	}
}

func TestSecretsOfTheServerAreHiddenFromAll_R119(t *testing.T) {
	t.Parallel()
	const secret = "canary/77+ab=\"q\\" // has other spellings in JSON
	s := serve(t, rig.Options{Env: map[string]string{"HOST_TOKEN": secret}}, program(t, "echo"), auto, "env: {API_TOKEN: '${HOST_TOKEN}', LITERAL_TOKEN: canary-literal-9}")
	progress := make(chan string, 8)
	r := s.call("secret", `{"names":["API_TOKEN","LITERAL_TOKEN"]}`, func(q *caller.Request) { q.Notify = func(n live.Notice) { progress <- string(n.Params) } })
	s.wants(r, "succeeded", "", true)
	inJSON, _ := json.Marshal(secret)
	for _, leak := range []string{secret, strings.Trim(string(inJSON), `"`), "canary-literal-9"} {
		if strings.Contains(string(r.Result), leak) || strings.Contains(r.Text, leak) || s.Stored(leak) {
			t.Errorf("%q is shown or stored: %s", leak, r.Result)
		}
	}
	if !json.Valid(r.Result) || !strings.Contains(string(r.Result), "<redacted>") {
		t.Errorf("model view %s", r.Result)
	}
	if e := rig.Events[events.CallSucceeded](s.Rig)[0].Result.String(); !strings.Contains(e, "API_TOKEN") {
		t.Errorf("event view %s", e)
	}
}

func TestArgumentsAreStoredNowhere_R118_R210(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "echo"))
	const text, number, token = "canary words of a letter", "918273645546372819", "canary-tok-11"
	arguments := `{"text":"` + text + `","n":` + number + `,"deep":[{"token":"` + token + `"}]}`
	held := s.later("echo", arguments, rig.Wait)
	s.Decide(s.AwaitPending(1)[0].ID, true)
	r := s.get(held)
	s.wants(r, "succeeded", "", true)
	if r.Text != text {
		t.Errorf("the model does not see its own words: %s", r.Text)
	}
	for _, leak := range []string{text, number, token} {
		if s.Stored(leak) {
			t.Errorf("%q is stored", leak)
		}
	}
	q := rig.Events[events.CallRequested](s.Rig)[0]
	if diff := cmp.Diff([]string{"deep", "n", "text"}, q.ArgumentKeys); diff != "" || q.ArgumentDigest == "" || int(q.ArgumentBytes) != len(arguments) {
		t.Errorf("%s%+v", diff, q)
	}
}

func TestNamesOfNothingAreNotTakenIntoTheLog(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "echo"), auto)
	s.wants(s.Call("ana", "canary of a turn", "docs__echo", `{}`), "invalid", fault.TurnNotActive, false)
	s.wants(s.Call("ana", s.turn, "docs__none", `{}`), "not_found", fault.NotFound, false)
	s.wants(s.Call("ana", s.turn, "DOCS__ECHO", `{}`), "not_found", fault.NotFound, false)
	long := strings.Repeat("n", 5000)
	s.wants(s.Call("ana", s.turn, long, `{}`), "not_found", fault.NotFound, false)
	if s.Stored("canary of a turn") || s.Stored(long) {
		t.Error("what a client made up is in the log")
	}
}

func TestArgumentsThatAreRefused_R198(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{MaxArguments: 200}, program(t, "echo"), auto)
	for name, test := range map[string]struct {
		params string
		kind   fault.Kind
	}{
		"a list":             {`{"name":"docs__echo","arguments":[]}`, fault.InvalidArguments},
		"a text":             {`{"name":"docs__echo","arguments":"{}"}`, fault.InvalidArguments},
		"a name twice":       {`{"name":"docs__echo","arguments":{"text":"a","text":"b"}}`, fault.InvalidArguments},
		"a name twice, deep": {`{"name":"docs__echo","arguments":{"x":[{"a":1,"a":2}]}}`, fault.InvalidArguments},
		"escaped, twice":     {`{"name":"docs__echo","arguments":{"text":"a","te\u0078t":"b"}}`, fault.InvalidArguments},
		"arguments twice":    {`{"name":"docs__echo","arguments":{},"arguments":{"text":"b"}}`, fault.InvalidArguments},
		"the tool twice":     {`{"name":"docs__echo","name":"docs__fail","arguments":{}}`, fault.InvalidArguments},
		"no UTF-8":           {"{\"name\":\"docs__echo\",\"arguments\":{\"text\":\"\xff\"}}", fault.InvalidArguments},
		"more after it":      {`{"name":"docs__echo","arguments":{}} {}`, fault.InvalidArguments},
		"no object":          {`[]`, fault.InvalidArguments},
		"no name":            {`{"arguments":{}}`, fault.InvalidArguments},
		"too large":          {`{"name":"docs__echo","arguments":{"text":"` + strings.Repeat("x", 200) + `"}}`, fault.ArgumentsTooLarge},
	} {
		r := s.call("echo", ``, func(q *caller.Request) { q.Params = redact.NewRaw([]byte(test.params)) })
		s.wants(r, "invalid", test.kind, false)
		if diff := cmp.Diff([]string{"call_requested call_blocked"}, s.commits(r.Call)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// Without arguments, or with null, it is the empty object (bug-reports 41).
	for _, params := range []string{`{"name":"docs__echo"}`, `{"name":"docs__echo","arguments":null}`} {
		r := s.call("echo", ``, func(q *caller.Request) { q.Params = redact.NewRaw([]byte(params)) })
		s.wants(r, "succeeded", "", true)
	}
}

// answers is a server whose calls have one answer; the request is appended to
// the file, where one is given.
func answers(member, file string) string {
	return rig.Command("/bin/sh", "-c", `
while IFS= read -r line; do
	id=${line#*\"id\":}; id=${id%%,*}; id=${id%%\}*}
	case $line in
	*'"initialize"'*) a='"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}';;
	*'"server/discover"'*) a='"error":{"code":-32601,"message":"no"}';;
	*'"tools/list"'*) a='"result":{"tools":[{"name":"call"}]}';;
	*'"tools/call"'*) a=$1; [ -n "$2" ] && printf '%s\n' "$line" >> "$2";;
	*) continue;;
	esac
	printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$a"
done`, "server", member, file)
}

func TestAnswersReachTheModelAsTheyWere_R116_R117_Decision22(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer       string // the member of the response
		status       string
		kind         fault.Kind
		text, stored string // of the reply and of the event
	}{
		"text": {
			`"result":{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`, "succeeded", "", "one\ntwo", "one\ntwo",
		},
		"an error of the tool": {
			`"result":{"isError":true,"content":[{"type":"text","text":"no"}]}`, "failed", "", "no", "no",
		},
		"structured": {
			`"result":{"content":[{"type":"text","text":"t"}],"structuredContent":{"b":1.0,"a":9007199254740993}}`, "succeeded", "",
			`{"b":1.0,"a":9007199254740993}`, `{"b":1.0,"a":9007199254740993}`,
		},
		"unknown members and numbers of any size": {
			`"result":{"zz":0, "_meta":{"v":1e400},"content":[{"type":"video","n":9007199254740993,"f":1.0}],"task":{"x":[ ]}}`, "succeeded", "",
			`{"type":"video","n":9007199254740993,"f":1.0}`, `{"type":"video","n":9007199254740993,"f":1.0}`,
		},
		"an image": {
			`"result":{"content":[{"type":"image","mimeType":"image/png","data":"AAAA"}]}`, "succeeded", "", "[image image/png]", "[image image/png]",
		},
		"complete and with hints": {
			`"result":{"resultType":"complete", "ttlMs":1.0,"cacheScope":"public","content":[{"type":"text","text":"t"}]}`, "succeeded", "", "t", "t",
		},
		"no result": {`"result":[1]`, "failed", fault.ResultInvalid, "", ""},
		"input is wanted": {
			`"result":{"resultType":"input_required","inputRequests":{"n":{"method":"elicitation/create"}},"requestState":"s"}`, "failed", fault.ResultInvalid, "", "",
		},
		"input is wanted in other letters": {
			`"result":{"result\u0054ype":"input_required","content":[],"inputRequests":{"n":{"method":"elicitation/create"}}}`, "failed", fault.ResultInvalid, "", "",
		},
		"input is wanted by the first of two types": {
			`"result":{"resultType":"input_required","content":[],"inputRequests":{"n":{"method":"elicitation/create"}},"resultType":"complete"}`, "failed", fault.ResultInvalid, "", "",
		},
		"a type of an extension": {`"result":{"resultType":"task","content":[],"taskId":"1"}`, "failed", fault.ResultInvalid, "", ""},
		"a type that is none":    {`"result":{"resultType":7,"content":[]}`, "failed", fault.ResultInvalid, "", ""},
		"an error with data": {
			`"error":{"code":-32050,"message":"no such luck","data":{"n":9007199254740993,"why":"because"}}`, "failed", fault.ExecutionFailed, "", "",
		},
		"an error whose code is spelled otherwise": {
			`"error":{"vendor":1.0,"message":"no such luck","code":-32050.0}`, "failed", fault.ExecutionFailed, "", "",
		},
		"an error with half a character": {
			`"error":{"code":-32050,"message":"no such luck","data":"\ud83d"}`, "failed", fault.ExecutionFailed, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, rig.Options{}, answers(test.answer, ""), auto)
			r := s.call("call", `{}`)
			s.wants(r, test.status, test.kind, true)
			member, value, _ := strings.Cut(test.answer, ":")
			got := r.Result
			if member == `"error"` && r.Error != nil {
				got = r.Error.JSONRPC
			}
			if test.kind == fault.ResultInvalid {
				value = ""
			}
			if diff := cmp.Diff(value, string(got)); diff != "" {
				t.Errorf("model view (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.text, r.Text); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			for _, e := range rig.Events[events.CallSucceeded](s.Rig) {
				if diff := cmp.Diff(test.stored, e.Result.String()); diff != "" || e.IsError != (test.status == "failed") {
					t.Errorf("event (-want +got):\n%s", diff)
				}
			}
			for _, e := range rig.Events[events.CallFailed](s.Rig) {
				if test.kind == fault.ExecutionFailed && (e.Code != -32050 || e.Message.String() != "no such luck") {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

func TestParamsReachTheServerAsTheyWere_Decision22(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "requests")
	s := serve(t, rig.Options{}, answers(`"result":{}`, file), auto)
	const params = `{"x": 1e400,"arguments":{"b":9007199254740993, "a":1.0,"é":"\u00e9"},"name":"docs__call","_meta":{"progressToken":"tok","v":[ ]}}`
	r := s.call("call", "", func(q *caller.Request) { q.Params = redact.NewRaw([]byte(params)) })
	s.wants(r, "succeeded", "", true)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Params json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	before, after, _ := strings.Cut(strings.Replace(params, "docs__call", "call", 1), `"tok"`)
	if line := string(got.Params); !strings.HasPrefix(line, before) || !strings.HasSuffix(line, after) {
		t.Errorf("params %s, want %s…%s", line, before, after)
	}
}

func TestProgressHasTheClientsToken_R22(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "progress"), auto)
	var got []string
	r := s.call("call", "", func(q *caller.Request) {
		q.Params = redact.NewRaw([]byte(`{"name":"docs__call","arguments":{},"_meta":{"progressToken":"mine \u00e9"}}`))
		q.Notify = func(n live.Notice) { got = append(got, string(n.Params)) }
	})
	s.wants(r, "succeeded", "", true)
	if len(got) != 50 || got[7] != `{"progress":7.0, "x":1e400,"progressToken":"mine \u00e9"}` {
		t.Errorf("%d notifications: %q", len(got), got)
	}
}

func TestLargeResultIsInABlob_Decision18(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "echo"), auto)
	const size = 300_000
	r := s.call("big", fmt.Sprintf(`{"bytes":%d}`, size))
	s.wants(r, "succeeded", "", true)
	e := rig.Events[events.CallSucceeded](s.Rig)[0]
	whole, err := s.Bus.Blob(s.Context(), e.Blob)
	if err != nil {
		t.Fatal(err)
	}
	if !e.Truncated || len(e.Result.String()) > 256<<10 || string(whole) != strings.Repeat("x", size) || len(r.Text) != size {
		t.Errorf("truncated %v, event %d bytes, blob %d bytes, model %d bytes", e.Truncated, len(e.Result.String()), len(whole), len(r.Text))
	}
}
