package catalog_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/internal/canon"
	"github.com/gatebus/gatebus/projections/internal/connections"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type log struct {
	*catalog.Projection
	shared *connections.Projection
	seq    uint64
}

func newLog() *log {
	shared := new(connections.Projection)
	return &log{Projection: catalog.New(shared), shared: shared}
}

func (l *log) Apply(c *events.Commit) {
	l.shared.Apply(c)
	l.Projection.Apply(c)
}

func (l *log) add(kind events.Kind, key string, happened ...events.Event) {
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "ana", Time: noon,
		Aggregate: events.AggregateID{Kind: kind, Key: key}, Events: happened,
	})
}

// open opens k1 of session s1 to docs with two tools, one of them blocked.
func open() *log {
	l := newLog()
	l.add(events.KindSession, "s1", events.SessionStarted{Label: "/mcp"})
	l.add(events.KindConnection, "k1", events.ConnectRequested{Session: "s1", Server: "docs"})
	l.add(events.KindConnection, "k1", events.ConnectionClaimed{Runtime: "r1"})
	l.add(events.KindConnection, "k1", events.ConnectionOpened{Runtime: "r1", Generation: 3}, events.ToolsDiscovered{
		Generation: 3, CatalogVersion: "v1", Blob: "blob", Blocked: []string{"write"},
		Tools: []events.ToolDigest{{Tool: "write", Digest: "w1"}, {Tool: "read", Digest: "r1"}},
	}, events.ApprovalRequested{Approval: "a1", Action: "mcp.tool", Tool: "write", DefinitionDigest: "w1"})
	l.add(events.KindSession, "s1", events.CatalogPublished{
		Catalog: "cat1", Tools: []events.CatalogTool{{Name: "docs__read", Server: "docs", Tool: "read"}},
		Counts:      []events.CatalogCount{{Server: "docs", Listed: 2, Blocked: 1, Visible: 1}},
		Diagnostics: []events.CatalogDiagnostic{{Server: "files", Code: "approval_pending", Message: redact.Static("waits")}},
	})
	return l
}

func TestToolsAreThoseOfOpenConnectionsUnderTheNamesOfTheSessionR6(t *testing.T) {
	t.Parallel()
	l := open()
	read := catalog.Tool{
		Workspace: "default", Principal: "ana", Session: "s1", Connection: "k1", Server: "docs", Name: "docs__read",
		RawName: "read", Digest: "r1", CatalogVersion: "v1", Blob: "blob", Sequence: 4,
	}
	write := read
	write.Name, write.RawName, write.Digest, write.Blocked = "", "write", "w1", true
	if diff := cmp.Diff([]catalog.Tool{read, write}, l.Tools(catalog.Filter{})); diff != "" {
		t.Error(diff)
	}
	for _, f := range []catalog.Filter{{Workspace: "other"}, {Principal: "bob"}, {Session: "s2"}, {Server: "files"}} {
		if got := l.Tools(f); len(got) != 0 {
			t.Errorf("%+v matches %v", f, got)
		}
	}
	if got := l.Tools(catalog.Filter{Workspace: "default", Principal: "ana", Session: "s1", Server: "docs"}); len(got) != 2 {
		t.Errorf("everything named matches %v", got)
	}
	l.add(events.KindConnection, "k1", events.ApprovalDecided{Approval: "a1", Decision: "allow"})
	if got := l.Tools(catalog.Filter{}); got[1].Blocked {
		t.Error("an approved tool is blocked")
	}
}

func TestToolsGoWithTheirConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*log){
		"closed": func(l *log) { l.add(events.KindConnection, "k1", events.ConnectionClosed{}) },
		"lost":   func(l *log) { l.add(events.KindConnection, "k1", events.ConnectionLost{}) },
		"requested": func(l *log) {
			l.add(events.KindConnection, "k1", events.ConnectRequested{Session: "s1", Server: "docs"})
		},
		"denied": func(l *log) { l.add(events.KindConnection, "k1", events.ServerDenied{Server: "docs"}) },
		"rebooted": func(l *log) {
			l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r1", Embedded: true})
			l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r2", Embedded: true})
		},
	} {
		l := open()
		end(l)
		if got := l.Tools(catalog.Filter{}); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPublishedCatalogLastsAsLongAsItsSession(t *testing.T) {
	t.Parallel()
	l := open()
	want := catalog.Published{
		Workspace: "default", Session: "s1", Catalog: "cat1", Sequence: 5, Time: noon,
		Tools:       []catalog.PublishedTool{{Name: "docs__read", Server: "docs", RawName: "read"}},
		Counts:      []catalog.Count{{Server: "docs", Listed: 2, Blocked: 1, Visible: 1}},
		Diagnostics: []catalog.Diagnostic{{Server: "files", Code: "approval_pending", Message: "waits"}},
	}
	got, ok := l.Published("default", "s1")
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Error(diff)
	}
	before := canon.Sum(l.State())
	got.Tools[0].Name, got.Counts[0].Listed, got.Diagnostics[0].Code = "changed", 9, "changed"
	if canon.Sum(l.State()) != before {
		t.Error("what was handed out is not a copy")
	}
	l.add(events.KindSession, "s1", events.SessionEnded{})
	if got, ok := l.Published("default", "s1"); ok {
		t.Errorf("after the end: %+v", got)
	}
}
