package approvals_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func in(hours float64) string {
	return noon.Add(time.Duration(hours * float64(time.Hour))).Format(time.RFC3339Nano)
}

// log folds events of aggregates, one commit each time.
type log struct {
	*approvals.Projection
	shared *connections.Projection
	seq    uint64
}

func newLog() *log {
	shared := new(connections.Projection)
	return &log{Projection: approvals.New(shared), shared: shared}
}

func (l *log) Apply(c *events.Commit) {
	l.shared.Apply(c)
	l.Projection.Apply(c)
}

func (l *log) add(kind events.Kind, key string, happened ...events.Event) {
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "ana", Actor: "local", Time: noon,
		Aggregate: events.AggregateID{Kind: kind, Key: key}, Events: happened,
	})
}

// ask is a call that waits for a person.
func (l *log) ask(key, approval string) {
	l.add(events.KindCall, key,
		events.CallRequested{
			Session: "s1", Server: "docs", Tool: "read", Fingerprint: "fp", DefinitionDigest: "def", ArgumentDigest: "args",
			Policy: "prompt",
		},
		events.ApprovalRequested{
			Approval: approval, Action: "mcp.call", Target: "docs/read", Server: "docs", Tool: "read", Fingerprint: "fp",
			DefinitionDigest: "def", ArgumentDigest: "args", PolicySequence: 7, Expires: in(0.25),
			Preview: redact.Static(`{"keys":["path"]}`),
		})
}

func (l *log) answer(key, approval, decision, kind string) {
	l.add(events.KindCall, key, events.ApprovalDecided{
		Approval: approval, Decision: decision, Kind: kind, By: "eve", Channel: "cli", Note: redact.Static("fine"), Until: in(8),
	})
}

func (l *log) state(t *testing.T, id string) approvals.State {
	t.Helper()
	a, ok := l.Get(id)
	if !ok {
		t.Fatalf("no approval %s", id)
	}
	return a.State
}

func (l *log) session(at time.Time) (string, bool) {
	return l.SessionApproval("default", "ana", "s1", "fp", "read", "def", 7, at)
}

var binding = approvals.Binding{
	Workspace: "default", Principal: "ana", Session: "s1", Server: "docs", Tool: "read", DefinitionDigest: "def",
	ArgumentDigest: "args",
}

func TestInboxHoldsWhatAPersonNeedsR60(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	want := approvals.Approval{
		ID: "a1", Seq: 1, State: approvals.Pending, Workspace: "default",
		Aggregate: events.AggregateID{Kind: events.KindCall, Key: "c1"}, Action: "mcp.call", Target: "docs/read",
		Principal: "ana", Session: "s1", Server: "docs", Tool: "read", Preview: `{"keys":["path"]}`, Fingerprint: "fp",
		DefinitionDigest: "def", ArgumentDigest: "args", PolicySequence: 7, Requested: noon, Expires: noon.Add(15 * time.Minute),
	}
	if diff := cmp.Diff([]approvals.Approval{want}, l.Pending("default")); diff != "" {
		t.Error(diff)
	}
	if got := l.Pending("other"); len(got) != 0 {
		t.Errorf("another workspace sees %v", got)
	}
	l.answer("c1", "a1", "deny", "once")
	want.State, want.Decided, want.Kind, want.By, want.Channel, want.Note = approvals.Denied, noon, "once", "eve", "cli", "fine"
	want.Until = noon.Add(8 * time.Hour)
	if diff := cmp.Diff([]approvals.Approval{want}, l.List("default", true)); diff != "" {
		t.Error(diff)
	}
	if got := l.List("default", false); len(got) != 0 {
		t.Errorf("answered and still pending: %v", got)
	}
}

func TestDecisionOutsideTheThreeIsADenialR61(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	l.answer("c1", "a1", "perhaps", "session")
	if got := l.state(t, "a1"); got != approvals.Denied {
		t.Errorf("it is %s", got)
	}
	if id, ok := l.session(noon); ok {
		t.Errorf("%s stands for the session", id)
	}
}

func TestOnceIsSpentByTheStart(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	l.ask("c2", "a2")
	if call, _ := l.OpenCall(binding); call != "c2" {
		t.Errorf("a retry finds %q, the newest is c2", call)
	}
	l.answer("c1", "a1", "allow", "once")
	l.add(events.KindCall, "c2", events.CallFailed{Status: "cancelled"})
	if call, _ := l.OpenCall(binding); call != "c1" {
		t.Errorf("a retry finds %q, allowed is c1", call)
	}
	other := binding
	other.ArgumentDigest = "others"
	if call, ok := l.OpenCall(other); ok {
		t.Errorf("a yes to other arguments was found: %s", call)
	}
	if a, _ := l.Get("a1"); a.Spent {
		t.Error("spent before the start")
	}
	l.add(events.KindCall, "c1", events.CallAuthorized{Approval: "a1"}, events.CallStarted{})
	if call, ok := l.OpenCall(binding); ok {
		t.Errorf("a retry finds %s, which has started", call)
	}
	if a, _ := l.Get("a1"); !a.Spent || a.State != approvals.Allowed {
		t.Errorf("after the start: %+v", a)
	}
	if got := l.state(t, "a2"); got != approvals.Expired {
		t.Errorf("nothing waits for a2 any more, it is %s", got)
	}
	if id, ok := l.session(noon); ok {
		t.Errorf("%s stands for the session", id)
	}
}

func TestYesForTheSessionStandsEightHoursEvenWhenItsCallNeverStarts(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	l.answer("c1", "a1", "allow", "session")
	if call, ok := l.OpenCall(binding); ok {
		t.Errorf("a retry is a command to %s in place of a call of its own", call)
	}
	if due := l.Due(noon.Add(15 * time.Minute)); len(due) != 1 || due[0].ID != "a1" {
		t.Errorf("due is %v", due)
	}
	l.add(events.KindCall, "c1", events.ApprovalExpired{Approval: "a1"}, events.CallBlocked{Reason: "approval_expired"})
	if got := l.state(t, "a1"); got != approvals.Allowed {
		t.Errorf("it is %s", got)
	}
	if id, ok := l.session(noon.Add(8*time.Hour - 1)); !ok || id != "a1" {
		t.Errorf("in force is %q", id)
	}
	if _, ok := l.session(noon.Add(8 * time.Hour)); ok {
		t.Error("in force at its end")
	}
	for _, at := range []struct {
		workspace, principal, session, fingerprint, tool, definition string
		policy                                                       uint32
	}{
		{"other", "ana", "s1", "fp", "read", "def", 7}, {"default", "bob", "s1", "fp", "read", "def", 7},
		{"default", "ana", "s2", "fp", "read", "def", 7}, {"default", "ana", "s1", "fp2", "read", "def", 7},
		{"default", "ana", "s1", "fp", "write", "def", 7}, {"default", "ana", "s1", "fp", "read", "def2", 7},
		{"default", "ana", "s1", "fp", "read", "def", 8},
	} {
		if _, ok := l.SessionApproval(at.workspace, at.principal, at.session, at.fingerprint, at.tool, at.definition, at.policy, noon); ok {
			t.Errorf("in force for %+v", at)
		}
	}
}

func TestYesForTheSessionEndsWithSessionAndPrincipalR61(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*log){
		"session":   func(l *log) { l.add(events.KindSession, "s1", events.SessionEnded{}) },
		"principal": func(l *log) { l.add(events.KindHost, "ana", events.HostRevoked{}) },
	} {
		l := newLog()
		l.ask("c1", "a1")
		l.answer("c1", "a1", "allow", "session")
		l.add(events.KindSession, "s2", events.SessionEnded{})
		l.add(events.KindHost, "bob", events.HostRevoked{})
		if _, ok := l.session(noon); !ok {
			t.Errorf("%s: another's end ended it", name)
		}
		end(l)
		if _, ok := l.session(noon); ok {
			t.Errorf("in force after the end of its %s", name)
		}
	}
}

func TestCitedApprovalIsNotDecidedAnew(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	l.answer("c1", "a1", "allow", "session")
	l.add(events.KindCall, "c2", events.CallRequested{Session: "s1"},
		events.ApprovalDecided{Approval: "a1", Decision: "deny", Kind: "session", Cached: true, By: "approval"})
	l.add(events.KindCall, "c3", events.ApprovalDecided{Approval: "a1", Decision: "deny", By: "somebody"})
	if a, _ := l.Get("a1"); a.State != approvals.Allowed || a.By != "eve" {
		t.Errorf("it is %+v", a)
	}
}

func TestOnlyWhatWaitsIsAnswered(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.ask("c1", "a1")
	l.answer("c2", "a1", "allow", "session")
	l.add(events.KindCall, "c2", events.ApprovalExpired{Approval: "a1"})
	l.add(events.KindConnection, "c1", events.ApprovalDecided{Approval: "a1", Decision: "allow"})
	if got := l.state(t, "a1"); got != approvals.Pending {
		t.Errorf("another's answer made it %s", got)
	}
}

func TestConnectionsWaitForPeopleToo(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindConnection, "k1", events.ConnectRequested{Session: "s1", Server: "docs", Fingerprint: "fp"})
	l.seq++
	// The gate is walked by a worker, for ana.
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "local", Time: noon,
		Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "k1"},
		Events:    []events.Event{events.ApprovalRequested{Approval: "a1", Action: "mcp.connect", Server: "docs", Expires: in(24)}},
	})
	if a, _ := l.Get("a1"); a.Principal != "ana" || a.Session != "s1" {
		t.Errorf("asked for %s in %s", a.Principal, a.Session)
	}
	if due := l.Due(noon.Add(24*time.Hour - 1)); len(due) != 0 {
		t.Errorf("due too early: %v", due)
	}
	if due := l.Due(noon.Add(24 * time.Hour)); len(due) != 1 {
		t.Errorf("due is %v", due)
	}
	l.add(events.KindConnection, "k1", events.ApprovalDecided{Approval: "a1", Decision: "allow", Kind: "session", By: "eve"})
	if due := l.Due(noon.Add(1000 * time.Hour)); len(due) != 0 || l.state(t, "a1") != approvals.Allowed {
		t.Errorf("a yes to a connection expires: %v", due)
	}
	if _, ok := l.SessionApproval("default", "ana", "s1", "fp", "", "", 0, noon); ok {
		t.Error("a yes to a connection is one to its calls")
	}
}

func TestMemoryOfTheInboxIsBounded(t *testing.T) {
	t.Parallel()
	const kept, more = 10_000, 25
	l := newLog()
	for i := range kept + more {
		key, id := fmt.Sprintf("c%d", i), fmt.Sprintf("a%d", i)
		l.ask(key, id)
		l.answer(key, id, "deny", "once")
		l.add(events.KindCall, key, events.CallBlocked{Reason: "approval_denied"})
	}
	l.ask("open", "waits")
	if n := len(l.List("", true)); n != kept+1 {
		t.Errorf("%d approvals are kept", n)
	}
	if _, ok := l.Get(fmt.Sprintf("a%d", more-1)); ok {
		t.Error("the oldest is kept")
	}
	if got := l.state(t, fmt.Sprintf("a%d", more)) + l.state(t, "waits"); got != approvals.Denied+approvals.Pending {
		t.Errorf("the newest are %s", got)
	}
}

func TestStandingAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const kept = 10_000
	l := newLog()
	one := func(i int, hours float64, at time.Time) {
		tool, key, id := fmt.Sprintf("t%d", i), fmt.Sprintf("c%d", i), fmt.Sprintf("a%d", i)
		l.add(events.KindCall, key, events.CallRequested{Session: "s1", Server: "docs", Tool: tool},
			events.ApprovalRequested{Approval: id, Action: "mcp.call", Tool: tool, Expires: in(1)})
		l.seq++
		l.Apply(&events.Commit{
			Seq: l.seq, Workspace: "default", Principal: "ana", Time: at,
			Aggregate: events.AggregateID{Kind: events.KindCall, Key: key},
			Events:    []events.Event{events.ApprovalDecided{Approval: id, Decision: "allow", Kind: "session", Until: in(hours)}},
		})
	}
	stands := func(i int) bool {
		_, ok := l.SessionApproval("default", "ana", "s1", "", fmt.Sprintf("t%d", i), "", 0, noon)
		return ok
	}
	for i := range kept + 1 {
		one(i, 8, noon)
	}
	if stands(0) || !stands(1) || !stands(kept) {
		t.Error("not the oldest has left")
	}
	one(-1, 20, noon.Add(9*time.Hour))
	if stands(1) || stands(kept) || !stands(-1) {
		t.Error("what has ended is kept")
	}
}
