package caller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

// beside is a runtime that owns no connection, with a peer of its home that owns
// the one to docs.
func beside(t *testing.T, o rig.Options, lines ...string) (s *served, owner *rig.Rig) {
	t.Helper()
	o.Listen, o.Idle = true, true
	s = &served{rig.New(t, o), t, ""}
	s.Declare("docs", lines...)
	s.Load()
	s.GrantAll("ana")
	owner = s.Peer()
	s.turn = s.Connected("ana").Turn
	if c := s.Connection("ana", "docs"); c.Phase != connection.Open || c.Runtime != owner.Runtime {
		t.Fatalf("the peer does not own the connection: %+v", c)
	}
	return s, owner
}

func TestCallGoesToWhoOwnsTheConnection_Decision21(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, program(t, "echo"), auto)
	r := s.call("echo", `{"text":"héllo <b> & \u2028"}`)
	s.wants(r, "succeeded", "", true)
	here, there := r, owner.Call("ana", s.turn, "docs__echo", `{"text":"héllo <b> & \u2028"}`)
	if string(here.Result) != string(there.Result) || here.Text != there.Text {
		t.Errorf("over the bus %s, at its owner %s", here.Result, there.Result)
	}
	started := rig.Events[events.CallStarted](s.Rig)
	if len(started) != 2 || started[0].Runtime != owner.Runtime {
		t.Errorf("%+v", started)
	}
	if diff := cmp.Diff([]string{"call_requested approval_decided call_authorized call_started", "call_succeeded"}, s.commits(r.Call)); diff != "" {
		t.Error(diff)
	}

	// What is refused, and what the server refuses, is as it is there.
	s.wants(s.Call("ana", s.turn, "docs__nothing", `{}`), "not_found", fault.NotFound, false)
	s.wants(s.call("echo", `[]`), "invalid", fault.InvalidArguments, false)
	s.wants(owner.Call("bob", s.turn, "docs__echo", `{}`), "invalid", fault.TurnNotActive, false)
	s.Rebuilt()
}

func TestServersErrorIsPassedOnAsItIs_Decision21(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, answers(`"error":{"code":-32050, "message":"no such <luck>","data":{"n":9007199254740993,"x":1.0}}`, ""), auto)
	here, there := s.call("call", `{}`), owner.Call("ana", s.turn, "docs__call", `{}`)
	if here.Error == nil || len(here.Error.JSONRPC) == 0 || string(here.Error.JSONRPC) != string(there.Error.JSONRPC) || here.Status != there.Status {
		t.Errorf("over the bus %+v, at its owner %+v", here.Error, there.Error)
	}
}

func TestArgumentsAreStoredNowhereOnTheirWay_R210_Decision17(t *testing.T) {
	t.Parallel()
	const canary = "canary-over-the-bus-44c1"
	s, _ := beside(t, rig.Options{}, program(t, "echo"), auto)
	r := s.call("echo", `{"text":"`+canary+`"}`)
	if !strings.Contains(r.Text, canary) {
		t.Errorf("%+v", r)
	}
	if s.Stored(canary) {
		t.Error("the arguments are in the log or in a file of the home")
	}
}

func TestProgressComesOverTheBus_R22(t *testing.T) {
	t.Parallel()
	s, _ := beside(t, rig.Options{}, program(t, "echo"), auto)
	var seen []string
	r, err := s.Caller.Call(s.Context(), rig.As("ana"), caller.Request{
		Turn: s.turn, Name: "docs__slow", Notify: func(n live.Notice) { seen = append(seen, string(n.Params)) },
		Params: redact.NewRaw([]byte(`{"name":"docs__slow","arguments":{"ms":300},"_meta":{"progressToken":"tok-1"}}`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(r, "succeeded", "", true)
	if len(seen) == 0 || !strings.Contains(seen[0], `"tok-1"`) {
		t.Errorf("progress %q", seen)
	}
}

func TestApprovalAnsweredAnywhereResumesTheCallHeldElsewhere_Decision9(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t)...)
	pending := make(chan string, 1)
	held := s.later("count", id(1), rig.Wait, func(q *caller.Request) { q.OnPending = func(a string) { pending <- a } })
	a := s.AwaitPending(1)[0]
	if got := <-pending; got != a.ID {
		t.Errorf("told of %s, %s waits", got, a.ID)
	}
	// The arguments are at the owner, whoever is asked.
	for _, r := range []*rig.Rig{s.Rig, owner} {
		if text := r.Caller.Arguments(s.Context(), a.Aggregate.Key, a.ID); !strings.Contains(text, "n001") {
			t.Errorf("arguments %q", text)
		}
	}
	// An operator's answer lands on either process.
	s.Decide(a.ID, true)
	s.wants(s.get(held), "succeeded", "", true)
	n.wants(t, "n001")

	s.wants(s.call("count", id(2)), "approval_pending", fault.ApprovalPending, false)
	a = s.AwaitPending(1)[0]
	s.Decide(a.ID, true)
	s.wants(s.call("count", id(2)), "succeeded", "", true)
	s.wants(owner.Call("ana", s.turn, "docs__count", id(2)), "approval_pending", fault.ApprovalPending, false)
	n.wants(t, "n001", "n002")
	s.Rebuilt()
}

func TestCallerThatLeavesCancelsTheCallAtTheOwner_R200(t *testing.T) {
	t.Parallel()
	s, _ := beside(t, rig.Options{}, program(t, "misbehave", "late"), auto)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	r, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{
		Turn: s.turn, Name: "docs__late", Notify: func(live.Notice) { cancel() },
		Params: redact.NewRaw([]byte(`{"name":"docs__late","arguments":{},"_meta":{"progressToken":1}}`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(r, "cancelled", fault.Cancelled, true)
	rig.Await(s.Rig, func(events.CallLateResult) bool { return true })
	s.wants(s.call("call", `{}`), "succeeded", "", true)
}

// Who asks again, and somebody else, hears how the owner ended the call.
func TestProcessThatEndsLeavesTheCallToItsOwner(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, program(t, "echo"), auto)
	ctx, end := context.WithCancelCause(s.Context())
	defer end(nil)
	key := "k-" + ulid.Make().String()
	params := redact.NewRaw([]byte(`{"name":"docs__slow","arguments":{"ms":300}}`))
	go func() {
		s.AwaitCall(key, func(c call.State) bool { return c.Phase == call.Started })
		end(errStops)
	}()
	_, err := s.Caller.Call(ctx, rig.As("ana"), caller.Request{Turn: s.turn, Name: "docs__slow", Params: params, Call: key})
	if !fault.Is(err, fault.RuntimeClosed) {
		t.Fatalf("%v", err)
	}
	r, err := owner.Caller.Call(s.Context(), rig.As("ana"), caller.Request{Turn: s.turn, Name: "docs__slow", Params: params, Call: key})
	if err != nil || r.Status != "succeeded" || r.Call != key {
		t.Errorf("%+v, %v", r, err)
	}
	if n := len(rig.Events[events.CallStarted](s.Rig)); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestSameCommandAgainIsTheSameCall(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t, auto)...)
	key := "k-" + ulid.Make().String()
	again := func(q *caller.Request) { q.Call = key }
	first := s.call("count", id(1), again)
	s.wants(first, "succeeded", "", true)
	for _, r := range []*rig.Rig{s.Rig, owner} { // its first answer got lost
		if diff := cmp.Diff(first, r.Call("ana", s.turn, "docs__count", id(1), again)); diff != "" {
			t.Errorf("again (-first +again):\n%s", diff)
		}
	}
	n.wants(t, "n001")
	// Nobody learns by it what became of the call of another principal.
	s.GrantAll("bob")
	turn := s.Connected("bob").Turn
	if _, err := s.Caller.Call(s.Context(), rig.As("bob"), caller.Request{
		Turn: turn, Name: "docs__count", Params: rig.Params("docs__count", id(2)), Call: key,
	}); !fault.Is(err, fault.Conflict) {
		t.Errorf("%v", err)
	}
	n.wants(t, "n001")
}

func TestOwnerThatIsGoneLeavesItsCallsIndeterminate_R172_Decision21(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, program(t, "echo"), auto)
	running := s.later("slow", `{"ms":60000}`)
	started := rig.Await(s.Rig, func(events.CallStarted) bool { return true })
	owner.Crash()
	// Nobody is at the address any more: refused, and not started.
	r := s.call("echo", `{"text":"x"}`)
	s.wants(r, "invalid", fault.RuntimeNotLive, false)
	s.wants(s.get(running), "indeterminate", fault.Indeterminate, true)
	if c := s.Connection("ana", "docs"); c.Phase != connection.Lost || started.Runtime != owner.Runtime {
		t.Errorf("%+v", c)
	}
	s.AwaitRuntimes(1)
	var names []string
	for _, c := range s.Log() {
		for _, e := range c.Events {
			switch e.(type) {
			case events.ConnectionLost, events.CallIndeterminate, events.RuntimeClosed:
				names = append(names, e.EventName())
			}
		}
	}
	if diff := cmp.Diff([]string{"connection_lost", "call_indeterminate", "runtime_closed"}, names); diff != "" {
		t.Error(diff)
	}
	s.Rebuilt()
}

// A process that was given up finds its connections and calls closed in the log:
// that stands, and it starts nothing.
func TestOwnerThatWasGivenUpStartsNothing_Decision20(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, program(t, "misbehave", "late"), auto)
	running := s.later("late", `{}`, func(q *caller.Request) {
		q.Params = redact.NewRaw([]byte(`{"name":"docs__late","arguments":{},"_meta":{"progressToken":1}}`))
		q.Notify = func(live.Notice) { // it has come
			if err := s.Reap(owner.Runtime); err != nil {
				t.Error(err)
			}
		}
	})
	s.wants(s.get(running), "indeterminate", fault.Indeterminate, true)
	s.wants(owner.Call("ana", s.turn, "docs__call", `{}`), "invalid", fault.RuntimeNotLive, false)
	for at, c := range s.Model.Calls.All() {
		if c.Outcome == call.Succeeded {
			t.Errorf("%v succeeded", at)
		}
	}
	s.Rebuilt()
}

// Callers at both processes go on while the capability is revoked at one of them:
// after the reply nothing starts, at either (decision 16).
func TestNoStartAnywhereAfterTheRevokesReply_Decision16(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t, auto, "supports_parallel_tool_calls: true")...)
	for round := range 5 {
		s.Grant("ana", "mcp.call:docs")
		ctx, stop := context.WithCancel(s.Context())
		var callers sync.WaitGroup
		for i := range 6 {
			at := []*rig.Rig{s.Rig, owner}[i%2]
			callers.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					_, _ = at.Caller.Call(ctx, rig.As("ana"), caller.Request{
						Turn: s.turn, Name: "docs__count",
						Params: rig.Params("docs__count", fmt.Sprintf(`{"id":"r%dc%dk%d"}`, round, i, k)),
					})
				}
			})
		}
		begun := len(rig.Events[events.CallStarted](s.Rig))
		for len(rig.Events[events.CallStarted](s.Rig)) < begun+10 {
			if s.Context().Err() != nil {
				t.Fatal("nothing starts")
			}
		}
		for _, c := range []string{"mcp.call:*", "mcp.call:docs"} {
			err := s.Local.Do(s.Context(), "grant/revoke", client.Grant{Principal: "ana", Capability: c}, nil)
			if err != nil && !fault.Is(err, fault.NotFound) {
				t.Error(err)
			}
		}
		// What the log has now has the whole of what started before the reply.
		if err := s.Bus.Sync(s.Context()); err != nil {
			t.Fatal(err)
		}
		replied := s.Bus.Known()
		after, err := owner.Caller.Call(s.Context(), rig.As("ana"), caller.Request{
			Turn: s.turn, Name: "docs__count", Params: rig.Params("docs__count", id(9)),
		})
		if err != nil || after.Status != "denied" {
			t.Errorf("%+v, %v", after, err)
		}
		stop()
		callers.Wait()
		for _, c := range s.Log() {
			if c.Seq > replied && slices.Contains(c.Names(), "call_started") {
				t.Errorf("round %d: %v at %d, the revoke's reply was at %d", round, c.Names(), c.Seq, replied)
			}
		}
	}
	s.Rebuilt()
}

// A peer that gives no answer may have a decision under way: the reply waits until
// it is closed in the log.
func TestRevokeWaitsForAPeerThatIsSilent_Decision16(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t)...)
	owner.Crash()
	s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
	for _, c := range s.Log() {
		if slices.Contains(c.Names(), "runtime_closed") {
			return
		}
	}
	t.Error("the reply did not wait for the peer")
}

func TestRevokedHostStartsNothing_Decision16(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t)...)
	s.Ask("host/token", client.HostToken{Name: "ana"}, nil)
	held := s.later("count", id(1), rig.Wait)
	a := s.AwaitPending(1)[0]
	s.Ask("host/revoke", client.HostRevoke{Name: "ana"}, nil)
	// The question went with the right: no yes comes after it, and the call is told.
	if err := s.Local.Do(s.Context(), "approvals/decide", client.ApprovalsDecide{ID: a.ID, Decision: "allow"}, nil); !fault.Is(err, fault.ApprovalExpired) {
		t.Errorf("a yes after the revoke: %v", err)
	}
	s.wants(s.get(held), "denied", fault.CapabilityDenied, false)
	s.wants(owner.Call("ana", s.turn, "docs__count", id(2)), "denied", fault.CapabilityDenied, false)
	// Nor with what is granted to the name afterwards, as long as nobody has it.
	s.GrantAll("ana")
	s.wants(s.call("count", id(3)), "denied", fault.CapabilityDenied, false)
	n.wants(t)
}

// A session that lost its owner is connected again by who is left.
func TestSurvivorOpensTheConnectionAgain_Decision20(t *testing.T) {
	t.Parallel()
	n := newCounter(t)
	s, owner := beside(t, rig.Options{}, n.lines(t, auto)...)
	s.wants(s.call("count", id(1)), "succeeded", "", true)
	next := s.Peer()
	owner.Crash()
	began := time.Now()
	s.AwaitConnection("ana", "docs", func(c connection.State) bool { return c.Phase == connection.Lost })
	turn := s.Prepare("ana").Turn
	if c := s.Connection("ana", "docs"); c.Phase != connection.Open || c.Runtime != next.Runtime {
		t.Fatalf("%+v", c)
	}
	s.wants(s.Call("ana", turn, "docs__count", id(2)), "succeeded", "", true)
	t.Logf("calls flow again after %v", time.Since(began))
	n.wants(t, "n001", "n002")
}
