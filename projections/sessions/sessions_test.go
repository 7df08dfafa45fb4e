package sessions_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/internal/connections"
	"github.com/gatebus/gatebus/projections/sessions"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type log struct {
	*sessions.Projection
	shared *connections.Projection
	seq    uint64
}

func newLog() *log {
	shared := new(connections.Projection)
	return &log{Projection: sessions.New(shared), shared: shared}
}

func (l *log) Apply(c *events.Commit) {
	l.shared.Apply(c)
	l.Projection.Apply(c)
}

func (l *log) add(kind events.Kind, key string, happened ...events.Event) {
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "ana", Time: noon.Add(time.Duration(l.seq) * time.Second),
		Aggregate: events.AggregateID{Kind: kind, Key: key}, Events: happened,
	})
}

func at(seq int) time.Time { return noon.Add(time.Duration(seq) * time.Second) }

func TestSessionCountsWhatItDidR129(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindSession, "s1", events.SessionStarted{Label: "/mcp", CoreRevision: "1", Reason: "initialize"})
	l.add(events.KindSession, "s1", events.CatalogPublished{Catalog: "cat1", Tools: make([]events.CatalogTool, 3)})
	l.add(events.KindConnection, "k1", events.ConnectRequested{Session: "s1"}, events.ConnectionOpened{})
	l.add(events.KindTurn, "t1", events.TurnRequested{Session: "s1"}, events.TurnBound{})
	l.add(events.KindTurn, "t2", events.TurnRequested{Session: "s1"}, events.TurnFailed{})
	for i, end := range []events.Event{
		events.CallSucceeded{Status: "succeeded"}, events.CallSucceeded{Status: "failed", IsError: true},
		events.CallFailed{Status: "timed_out"}, events.CallIndeterminate{}, events.CallBlocked{Reason: "capability_denied"},
		events.CallBlocked{Reason: "not_found"}, events.CallBlocked{Reason: "tool_drift"},
	} {
		key := fmt.Sprintf("c%d", i)
		l.add(events.KindCall, key, events.CallRequested{Session: "s1"})
		l.add(events.KindCall, key, end)
		l.add(events.KindCall, key, events.CallLateResult{})
	}
	l.add(events.KindCall, "open", events.CallRequested{Session: "s1"}, events.CallStarted{})
	l.add(events.KindCall, "stray", events.CallRequested{Session: "s2"}, events.CallBlocked{})
	want := sessions.Session{
		Workspace: "default", ID: "s1", Principal: "ana", Label: "/mcp", Active: true, Started: at(1), StartReason: "initialize",
		CoreRevision: "1", Catalog: "cat1", Tools: 3, Connections: []string{"k1"}, Turns: 2, InFlight: 1,
		Calls: map[string]int{
			"succeeded": 1, "failed": 1, "timed_out": 1, "indeterminate": 1, "denied": 1, "not_found": 1, "invalid": 1,
		},
	}
	if diff := cmp.Diff([]sessions.Session{want}, l.List(sessions.Filter{})); diff != "" {
		t.Error(diff)
	}
	all := maps.Clone(want.Calls)
	all["invalid"]++ // of a session that is not known
	if diff := cmp.Diff(all, l.Outcomes("default")); diff != "" {
		t.Error(diff)
	}
	if other := l.Outcomes("other"); len(other) != 0 {
		t.Errorf("another workspace has %v", other)
	}
}

func TestSessionThatBeginsAgainBeginsAtNothing(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindSession, "s1", events.SessionStarted{Label: "/mcp"})
	l.add(events.KindCall, "c1", events.CallRequested{Session: "s1"})
	l.add(events.KindSession, "s1", events.SessionEnded{Reason: "idle"})
	if got := l.List(sessions.Filter{}); len(got) != 0 {
		t.Errorf("listed after its end: %v", got)
	}
	if got, ok := l.Get("default", "s1"); !ok || got.Active || got.EndReason != "idle" || got.Ended != at(3) {
		t.Errorf("after its end: %+v", got)
	}
	l.add(events.KindSession, "s1", events.SessionStarted{Label: "/mcp"})
	l.add(events.KindCall, "c1", events.CallFailed{Status: "cancelled"})
	if got, _ := l.Get("default", "s1"); !got.Active || got.InFlight != 0 || len(got.Calls) != 0 {
		t.Errorf("a call of the first life counts in the second: %+v", got)
	}
}

func TestSessionsAreFiltered(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.add(events.KindSession, "s1", events.SessionStarted{Label: "b"})
	l.add(events.KindSession, "s2", events.SessionStarted{Label: "a"})
	l.add(events.KindSession, "s3", events.SessionStarted{Label: "c"})
	l.add(events.KindSession, "s3", events.SessionEnded{})
	for _, c := range []struct {
		filter sessions.Filter
		want   string
	}{
		{sessions.Filter{}, "[a b]"}, {sessions.Filter{Ended: true}, "[a b c]"},
		{sessions.Filter{Workspace: "default", Principal: "ana"}, "[a b]"},
		{sessions.Filter{Workspace: "other"}, "[]"}, {sessions.Filter{Principal: "bob"}, "[]"},
	} {
		labels := []string{}
		for _, s := range l.List(c.filter) {
			labels = append(labels, s.Label)
		}
		if got := fmt.Sprint(labels); got != c.want {
			t.Errorf("%+v: %s, want %s", c.filter, got, c.want)
		}
	}
	if _, ok := l.Get("other", "s1"); ok {
		t.Error("found in another workspace")
	}
}

func TestMemoryOfEndedSessionsIsBounded(t *testing.T) {
	t.Parallel()
	const kept, more = 10_000, 3
	l := newLog()
	l.add(events.KindSession, "again", events.SessionStarted{})
	l.add(events.KindSession, "again", events.SessionEnded{})
	l.add(events.KindSession, "again", events.SessionStarted{})
	for i := range kept + more {
		key := fmt.Sprintf("s%d", i)
		l.add(events.KindSession, key, events.SessionStarted{})
		l.add(events.KindSession, key, events.SessionEnded{})
	}
	if n := len(l.List(sessions.Filter{Ended: true})); n != kept+1 {
		t.Errorf("%d sessions are kept", n)
	}
	if got, ok := l.Get("default", "again"); !ok || !got.Active {
		t.Errorf("a session that began again was forgotten: %+v", got)
	}
}
