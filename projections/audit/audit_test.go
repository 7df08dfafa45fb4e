package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/internal/memlog"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// log is a log in memory with its file.
type log struct {
	*memlog.Log
	*audit.Projection
}

func newLog(t *testing.T) *log {
	l := &log{memlog.Of(), audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")})}
	run(t, l.Projection, l.Log)
	return l
}

// run runs a projection until the test ends or stop is called.
func run(t *testing.T, p *audit.Projection, log audit.Log) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, log) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// commit appends; only what the test is about has to be given.
func (l *log) commit(c events.Commit, happened ...events.Event) uint64 {
	c.Seq, c.Events = l.Head()+1, happened
	if c.Time.IsZero() {
		c.Time = noon.Add(time.Duration(c.Seq) * time.Minute)
	}
	l.Add(&c)
	return c.Seq
}

// written waits until the file has the log.
func (l *log) written(t *testing.T) {
	t.Helper()
	if err := l.Wait(t.Context(), l.Head()); err != nil {
		t.Fatal(err)
	}
}

func of(kind events.Kind, key string) events.Commit {
	return events.Commit{Workspace: "default", Principal: "ana", Aggregate: events.AggregateID{Kind: kind, Key: key}}
}

func (l *log) list(t *testing.T, f audit.Filter) audit.Page {
	t.Helper()
	l.written(t)
	page, err := l.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// places are the rows as "commit.index".
func places(rows []audit.Row) string {
	out := []string{}
	for _, r := range rows {
		out = append(out, fmt.Sprintf("%d.%d", r.Seq, r.I))
	}
	return fmt.Sprint(out)
}

func (l *log) trace(t *testing.T, id string) string {
	t.Helper()
	l.written(t)
	rows, err := l.Trace(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return places(rows)
}

func TestRowHasTheWholeEnvelopeR211(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	c := events.Commit{
		Command: "cmd", Correlation: "flow", Actor: "local", Principal: "ana", Workspace: "default", Time: noon,
		Aggregate: events.AggregateID{Kind: events.KindCall, Key: "c1"},
		Scope:     events.Scope{Session: "s1", Turn: "t1", Connection: "k1", Call: "c1", Server: "docs"},
	}
	l.commit(c, events.CallQueued{WaitsFor: "turn"}, events.CallFailed{Reason: "cancelled"})
	l.written(t)
	rows, err := l.Show(t.Context(), 1)
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	want := audit.Row{
		Seq: 1, I: 1, Time: noon, Name: "call_failed", Aggregate: "call/c1", Workspace: "default", Principal: "ana", Actor: "local",
		Server: "docs", Session: "s1", Turn: "t1", Call: "c1", Causation: "cmd", Correlation: "flow", Data: rows[1].Data,
	}
	if diff := cmp.Diff(want, rows[1]); diff != "" {
		t.Error(diff)
	}
	var data map[string]any
	if err := json.Unmarshal(rows[1].Data, &data); err != nil || data["reason"] != "cancelled" {
		t.Errorf("data %s: %v", rows[1].Data, err)
	}
	if rows, err := l.Show(t.Context(), 2); err != nil || len(rows) != 0 {
		t.Errorf("a commit that is not there has %v, %v", rows, err)
	}
}

func TestRowSaysWhatItIsAboutWithoutAScope(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind events.Kind
		e    events.Event
		want audit.Row
	}{
		{events.KindCall, events.CallRequested{Server: "docs", Session: "s", Turn: "t"}, audit.Row{Server: "docs", Session: "s", Turn: "t", Call: "key"}},
		{events.KindCall, events.CallStarted{}, audit.Row{Call: "key"}},
		{events.KindSession, events.SessionEnded{}, audit.Row{Session: "key"}},
		{events.KindTurn, events.TurnRequested{Session: "s"}, audit.Row{Session: "s", Turn: "key"}},
		{events.KindConnection, events.ConnectRequested{Server: "docs", Session: "s"}, audit.Row{Server: "docs", Session: "s"}},
		{events.KindConnection, events.ServerDenied{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindConnection, events.ServerFailed{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindConnection, events.UrlDecision{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindConnection, events.ApprovalRequested{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindCore, events.DeclarationLoaded{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindCore, events.DeclarationIgnored{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindPolicy, events.PolicySet{Server: "docs"}, audit.Row{Server: "docs"}},
		{events.KindServer, events.ServerUninstalled{}, audit.Row{Server: "key"}},
	} {
		l := newLog(t)
		l.commit(of(c.kind, "key"), c.e)
		r := l.list(t, audit.Filter{}).Rows[0]
		got := audit.Row{Server: r.Server, Session: r.Session, Turn: r.Turn, Call: r.Call}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.e.EventName(), diff)
		}
	}
}

// some is a log of four commits with six events.
func some(t *testing.T) *log {
	l := newLog(t)
	l.commit(of(events.KindCore, "main"), events.DeclarationLoaded{Server: "docs"}, events.DeclarationLoaded{Server: "files"})
	call := of(events.KindCall, "c1")
	call.Scope.Server = "docs"
	l.commit(call, events.CallRequested{}, events.CallStarted{})
	other := of(events.KindGrant, "bob")
	other.Principal, other.Workspace = "bob", "other"
	l.commit(other, events.CapabilityGranted{})
	l.commit(call, events.CallSucceeded{})
	return l
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	l := some(t)
	for _, c := range []struct {
		filter audit.Filter
		want   string
	}{
		{audit.Filter{}, "[1.0 1.1 2.0 2.1 3.0 4.0]"},
		{audit.Filter{Name: "call_started"}, "[2.1]"},
		{audit.Filter{Name: "call_start"}, "[]"},
		{audit.Filter{Server: "docs"}, "[1.0 2.0 2.1 4.0]"},
		{audit.Filter{Server: "files"}, "[1.1]"},
		{audit.Filter{Principal: "bob"}, "[3.0]"},
		{audit.Filter{Workspace: "default"}, "[1.0 1.1 2.0 2.1 4.0]"},
		{audit.Filter{Call: "c1"}, "[2.0 2.1 4.0]"},
		{audit.Filter{Call: "c"}, "[]"},
		{audit.Filter{Since: noon.Add(2 * time.Minute), Until: noon.Add(4 * time.Minute)}, "[2.0 2.1 3.0]"},
		{audit.Filter{After: 2}, "[3.0 4.0]"},
		{audit.Filter{After: 4}, "[]"},
		{audit.Filter{After: 99}, "[]"},
		{audit.Filter{Server: "docs", Name: "call_succeeded", Principal: "ana", Call: "c1", After: 1, Limit: 5}, "[4.0]"},
	} {
		page := l.list(t, c.filter)
		if got := places(page.Rows); got != c.want || page.More || page.Next != max(4, c.filter.After) {
			t.Errorf("%+v: %s, more %v, next %d; want %s", c.filter, got, page.More, page.Next, c.want)
		}
	}
}

func TestLimitDoesNotPartACommit(t *testing.T) {
	t.Parallel()
	l := some(t)
	for _, c := range []struct {
		after uint64
		limit int
		want  string
		next  uint64
		more  bool
	}{
		{0, 6, "[1.0 1.1 2.0 2.1 3.0 4.0]", 4, false},
		{0, 3, "[1.0 1.1]", 1, true},
		{0, 4, "[1.0 1.1 2.0 2.1]", 2, true},
		{0, 1, "[1.0]", 1, true}, // the first commit alone has more
		{2, 1, "[3.0]", 3, true},
		{3, 1, "[4.0]", 4, false},
		{0, -1, "[1.0 1.1 2.0 2.1 3.0 4.0]", 4, false},
	} {
		page := l.list(t, audit.Filter{After: c.after, Limit: c.limit})
		if got := places(page.Rows); got != c.want || page.Next != c.next || page.More != c.more {
			t.Errorf("after %d, limit %d: %s next %d more %v; want %s, %d, %v", c.after, c.limit, got, page.Next, page.More, c.want, c.next, c.more)
		}
	}
}

// Rows with much data are fewer to a page, which has to fit into a message.
func TestAPageIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	l := some(t)
	rows := l.list(t, audit.Filter{}).Rows
	two := len(rows[0].Data) + len(rows[1].Data)
	for _, c := range []struct {
		after uint64
		bytes int
		want  string
	}{
		{0, two, "[1.0 1.1]"}, {0, two + len(rows[2].Data), "[1.0 1.1]"}, {0, two + len(rows[2].Data) + len(rows[3].Data), "[1.0 1.1 2.0 2.1]"},
		{2, 1, "[3.0]"}, {0, 1, "[1.0 1.1]"}, // one commit at least
	} {
		page := l.list(t, audit.Filter{After: c.after, Bytes: c.bytes})
		if got := places(page.Rows); got != c.want || !page.More || page.Next != page.Rows[len(page.Rows)-1].Seq {
			t.Errorf("after %d, %d bytes: %s next %d more %v; want %s", c.after, c.bytes, got, page.Next, page.More, c.want)
		}
	}
	if page := l.list(t, audit.Filter{Bytes: 1 << 20}); page.More || len(page.Rows) != len(rows) {
		t.Errorf("%d rows, more %v, where all fit", len(page.Rows), page.More)
	}
}

func TestTraceOfACallHasWhatItRestsOn(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	link := func(happened ...events.Event) uint64 { return l.commit(of(events.KindConnection, "k1"), happened...) }
	l.commit(of(events.KindGrant, "ana"), events.CapabilityGranted{Capability: "mcp.call:docs"}, events.CapabilityGranted{Capability: "mcp.connect:*"}) // 1
	grant := l.commit(of(events.KindGrant, "ana"), events.CapabilityGranted{Capability: "mcp.call:other"})                                              // 2
	policy := l.commit(of(events.KindPolicy, "default"), events.PolicySet{})                                                                            // 3
	link(events.ConnectRequested{Session: "s1"}, events.ServerDenied{})                                                                                 // 4, an earlier attempt
	link(events.ConnectRequested{Session: "s1"})                                                                                                        // 5
	link(events.ApprovalRequested{Approval: "a1", Action: "mcp.connect"})                                                                               // 6
	link(events.ApprovalDecided{Approval: "a1", Decision: "allow"})                                                                                     // 7
	claim := link(events.ConnectionClaimed{})                                                                                                           // 8
	l.commit(of(events.KindConnection, "k2"), events.ConnectRequested{Session: "s1"})                                                                   // 9
	catalog := link(events.ConnectionOpened{}, events.ToolsDiscovered{})                                                                                // 10
	first := of(events.KindCall, "c0")
	l.commit(first, events.CallRequested{Session: "s1", Connection: "k1"}, events.ApprovalRequested{Approval: "a2"}) // 11
	l.commit(first, events.ApprovalDecided{Approval: "a2", Decision: "allow", Kind: "session"})                      // 12
	l.commit(first, events.CallAuthorized{Approval: "a2"}, events.CallStarted{Connection: "k1"})                     // 13
	link(events.ToolsDiscovered{})                                                                                   // 14, after the opening
	call := of(events.KindCall, "c1")
	call.Correlation = "flow"
	l.commit(call, events.CallRequested{Session: "s1", Turn: "t1", Connection: "k1"}, // 15
		events.ApprovalDecided{Approval: "a2", Decision: "allow", Cached: true},
		events.CallAuthorized{
			AuthoritySequence: uint32(grant), PolicySequence: uint32(policy), CatalogSequence: uint32(catalog), Approval: "a2",
			Capability: "mcp.call:docs",
		},
		events.CallStarted{Connection: "k1", Generation: uint32(claim)})
	l.commit(call, events.CallSucceeded{}) // 16
	for _, c := range []struct{ id, want string }{
		{"c1", "[1.0 1.1 3.0 5.0 6.0 7.0 8.0 10.0 10.1 11.0 11.1 12.0 15.0 15.1 15.2 15.3 16.0]"},
		{"t1", "[15.0 15.1 15.2 15.3]"},
		{"flow", "[15.0 15.1 15.2 15.3 16.0]"},
		{"a1", "[6.0 7.0]"},
		{"a2", "[11.0 11.1 12.0 13.0 13.1 15.0 15.1 15.2 15.3]"},
		{"k2", "[9.0]"},
		{"nothing", "[]"},
		{"", "[]"},
	} {
		if got := l.trace(t, c.id); got != c.want {
			t.Errorf("trace of %q: %s, want %s", c.id, got, c.want)
		}
	}
}

func TestTraceOfACallBearsSequencesThatAreNotThere(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.commit(of(events.KindCall, "c1"), events.CallAuthorized{AuthoritySequence: 70, CatalogSequence: 80},
		events.CallStarted{Connection: "k1", Generation: 90})
	l.commit(of(events.KindCall, "c2"), events.CallStarted{Connection: "k1", Generation: 1})
	for id, want := range map[string]string{"c1": "[1.0 1.1]", "c2": "[2.0]"} {
		if got := l.trace(t, id); got != want {
			t.Errorf("%s: %s", id, got)
		}
	}
}
