package servers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/internal/canon"
	"github.com/gatebus/gatebus/projections/internal/connections"
	"github.com/gatebus/gatebus/projections/servers"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type log struct {
	*servers.Projection
	shared *connections.Projection
	seq    uint64
}

func newLog() *log {
	shared := new(connections.Projection)
	return &log{Projection: servers.New(shared), shared: shared}
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

// declared has a core with docs (enabled) and files (disabled).
func declared() *log {
	l := newLog()
	l.add(events.KindCore, "main",
		events.DeclarationLoaded{
			Server: "docs", Path: "agent/mcp/docs.yaml", Fingerprint: "fp", Enabled: true, Transport: "stdio", Risk: "low",
			ApprovalPolicy: "auto", Capability: "mcp.call:docs", ConnectTimeoutMs: 1500, CallTimeoutMs: 60_000,
		},
		events.DeclarationLoaded{Server: "files", Path: "agent/mcp/files.yaml", Fingerprint: "fp2"},
		events.DeclarationIgnored{Server: "files", Path: "agent/mcp/files.yaml", Reason: "disabled"},
		events.DeclarationIgnored{Server: "old", Path: "agent/mcp/old.yaml", Reason: "disabled"},
		events.DeclarationIgnored{Path: "agent/mcp/notes.yaml", Reason: "other"},
		events.CoreRevisionLoaded{Revision: "1", Declarations: 2},
	)
	return l
}

func (l *log) link(key, session string, happened ...events.Event) {
	l.add(events.KindConnection, key, append([]events.Event{
		events.ConnectRequested{Session: session, Server: "docs", Fingerprint: "fp"},
	}, happened...)...)
}

func (l *log) row(t *testing.T, name string) servers.Server {
	t.Helper()
	for _, s := range l.List("default", "") {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no row of %s", name)
	return servers.Server{}
}

func TestRowsAreTheDeclarationsOfTheLiveRevision(t *testing.T) {
	t.Parallel()
	l := declared()
	want := []servers.Server{
		{
			Workspace: "default", Core: "main", Name: "docs", Path: "agent/mcp/docs.yaml", Enabled: true, Transport: "stdio",
			Risk: "low", ApprovalPolicy: "auto", Capability: "mcp.call:docs", Fingerprint: "fp", State: servers.NotStarted,
			ConnectTimeout: 1500 * time.Millisecond, CallTimeout: time.Minute, Connections: []servers.Connection{},
		},
		{
			Workspace: "default", Core: "main", Name: "files", Path: "agent/mcp/files.yaml", Fingerprint: "fp2",
			Ignored: "disabled", State: servers.Disabled, Connections: []servers.Connection{},
		},
		{
			Workspace: "default", Core: "main", Name: "old", Path: "agent/mcp/old.yaml", Ignored: "disabled",
			State: servers.Disabled, Connections: []servers.Connection{},
		},
	}
	if diff := cmp.Diff(want, l.List("", "")); diff != "" {
		t.Error(diff)
	}
	if got := l.List("other", ""); len(got) != 0 {
		t.Errorf("another workspace has %v", got)
	}

	// One that fails leaves the rows as they are (R13).
	l.add(events.KindCore, "main", events.DeclarationLoaded{Server: "new"}, events.DeclarationInvalid{},
		events.CoreLoadFailed{Revision: "2", Code: "core_load_failed"})
	if diff := cmp.Diff(want, l.List("default", "")); diff != "" {
		t.Error(diff)
	}
	core := servers.Core{Workspace: "default", ID: "main", Revision: "1", Declarations: 2, Failed: "2", Code: "core_load_failed"}
	if diff := cmp.Diff([]servers.Core{core}, l.Cores("default")); diff != "" {
		t.Error(diff)
	}

	// The next one replaces them all.
	l.add(events.KindCore, "main", events.DeclarationLoaded{Server: "new", Enabled: true}, events.CoreRevisionLoaded{Revision: "3", Declarations: 1})
	if got := l.List("default", ""); len(got) != 1 || got[0].Name != "new" {
		t.Errorf("rows %v", got)
	}
	if got := l.Cores(""); len(got) != 1 || got[0].Failed != "" || got[0].Revision != "3" {
		t.Errorf("cores %v", got)
	}
}

func TestConnectionSaysHowItIs(t *testing.T) {
	t.Parallel()
	opened := []events.Event{
		events.ConnectionClaimed{Runtime: "r1"}, events.ConnectionOpened{Generation: 2},
		events.ToolsDiscovered{Tools: []events.ToolDigest{{Tool: "a"}, {Tool: "b"}}, Blocked: []string{"b"}},
	}
	for name, c := range map[string]struct {
		happened []events.Event
		want     servers.Connection
		state    string
		tools    int
	}{
		"requested": {nil, servers.Connection{State: "requested"}, servers.Starting, 0},
		"waiting": {
			[]events.Event{events.ApprovalRequested{Approval: "a1", Action: "mcp.connect"}},
			servers.Connection{State: "waiting", Approval: "a1"}, servers.ApprovalPending, 0,
		},
		"approved": {
			[]events.Event{
				events.ApprovalRequested{Approval: "a1", Action: "mcp.connect"},
				events.ApprovalDecided{Approval: "a1", Decision: "allow"},
			},
			servers.Connection{State: "approved"}, servers.Starting, 0,
		},
		"opening": {opened[:1], servers.Connection{State: "opening", Runtime: "r1", Generation: 2}, servers.Starting, 0},
		"ready": {
			opened, servers.Connection{State: "ready", Runtime: "r1", Generation: 2, Tools: 2, Blocked: 1}, servers.Ready, 2,
		},
		"degraded": {
			append(opened[:3:3], events.DiscoveryFailed{Kind: "catalog_too_large", Message: redact.Static("too much")}),
			servers.Connection{State: "degraded", Stage: "list", Reason: "catalog_too_large", Message: "too much", Runtime: "r1", Generation: 2, Tools: 2, Blocked: 1},
			servers.Degraded, 2,
		},
		"recovered": {
			append(opened[:3:3], events.DiscoveryFailed{Kind: "catalog_too_large"}, events.ToolsDiscovered{Recovered: true}),
			servers.Connection{State: "ready", Runtime: "r1", Generation: 2}, servers.Ready, 0,
		},
		"denied": {
			[]events.Event{events.ServerDenied{Server: "docs", Fingerprint: "fp", Stage: "url", Reason: "url_blocked"}},
			servers.Connection{State: "denied", Stage: "url", Reason: "url_blocked"}, servers.Denied, 0,
		},
		"failed": {
			[]events.Event{events.ServerFailed{
				Stage: "spawn", Kind: "spawn_failed", Message: redact.Static("no such file"), RetryAfter: "2030-01-01T12:00:30Z",
			}},
			servers.Connection{
				State: "failed", Stage: "spawn", Reason: "spawn_failed", Message: "no such file", RetryAfter: noon.Add(30 * time.Second),
			},
			servers.Failed, 0,
		},
		"auth": {
			[]events.Event{events.ServerFailed{Stage: "initialize", Kind: "auth_required"}},
			servers.Connection{State: "failed", Stage: "initialize", Reason: "auth_required"}, servers.AuthRequired, 0,
		},
		"closed": {
			append(opened[:3:3], events.ConnectionClosed{Reason: "exited", Exit: "exit status 1"}),
			servers.Connection{State: "closed", Reason: "exited", Message: "exit status 1", Runtime: "r1", Generation: 2},
			servers.NotStarted, 0,
		},
		"lost": {
			append(opened[:3:3], events.ConnectionLost{}),
			servers.Connection{State: "lost", Reason: "runtime_lost", Runtime: "r1", Generation: 2}, servers.NotStarted, 0,
		},
	} {
		l := declared()
		l.link("k1", "s1", c.happened...)
		c.want.Workspace, c.want.Connection, c.want.Principal, c.want.Session = "default", "k1", "ana", "s1"
		c.want.Server, c.want.Fingerprint, c.want.Since = "docs", "fp", at(2)
		row := l.row(t, "docs")
		if diff := cmp.Diff([]servers.Connection{c.want}, row.Connections); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if row.State != c.state || row.Tools != c.tools {
			t.Errorf("%s: the server is %s with %d tools", name, row.State, row.Tools)
		}
	}
}

func TestDeniedAtTheFirstStepIsListedR50(t *testing.T) {
	t.Parallel()
	l := declared()
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "ana", Scope: events.Scope{Session: "s1", Core: "main"}, Time: noon,
		Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "k1"},
		Events:    []events.Event{events.ServerDenied{Server: "docs", Fingerprint: "fp", Stage: "capability", Reason: "capability_denied"}},
	})
	row := l.row(t, "docs")
	if row.State != servers.Denied || len(row.Connections) != 1 || row.Connections[0].Session != "s1" ||
		row.Connections[0].Principal != "ana" {
		t.Errorf("row %+v", row)
	}
}

func TestServerIsAsItsBestConnection(t *testing.T) {
	t.Parallel()
	l := declared()
	l.link("k1", "s1", events.ServerDenied{Server: "docs", Fingerprint: "fp"})
	l.link("k2", "s2", events.ServerFailed{Kind: "spawn_failed"})
	if got := l.row(t, "docs").State; got != servers.Failed {
		t.Errorf("denied and failed: %s", got)
	}
	l.link("k3", "s3", events.ApprovalRequested{Approval: "a", Action: "mcp.connect"})
	if got := l.row(t, "docs").State; got != servers.ApprovalPending {
		t.Errorf("and waiting: %s", got)
	}
	l.link("k4", "s4", events.ConnectionOpened{})
	if got := l.row(t, "docs").State; got != servers.Ready {
		t.Errorf("and open: %s", got)
	}
	if got := l.List("default", "bob"); len(got) != 3 || got[0].State != servers.NotStarted {
		t.Errorf("bob sees others' connections: %+v", got)
	}
}

func TestOutcomeOfAnEarlierFingerprintDoesNotCount(t *testing.T) {
	t.Parallel()
	l := declared()
	l.link("k1", "s1", events.ServerDenied{Server: "docs", Fingerprint: "fp"})
	l.add(events.KindCore, "main", events.DeclarationLoaded{Server: "docs", Fingerprint: "new", Enabled: true}, events.CoreRevisionLoaded{})
	if got := l.row(t, "docs"); got.State != servers.NotStarted || len(got.Connections) != 1 {
		t.Errorf("row %+v", got)
	}
}

func TestReadyBeforeACrashIsNotTrustedR172(t *testing.T) {
	t.Parallel()
	l := declared()
	l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r1", Epoch: 1, Embedded: true})
	l.add(events.KindRuntime, "elsewhere", events.RuntimeBooted{Runtime: "r9", Epoch: 1})
	l.link("k1", "s1", events.ConnectionClaimed{Runtime: "r1"}, events.ConnectionOpened{})
	l.link("k2", "s2", events.ConnectionClaimed{Runtime: "r9"}, events.ConnectionOpened{})
	l.link("k3", "s3", events.ApprovalRequested{Approval: "a1", Action: "mcp.connect"})
	l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r2", Epoch: 2, Embedded: true})
	states := ""
	for _, c := range l.Connections("default") {
		states += fmt.Sprint(c.Connection, "=", c.State, " ")
	}
	if want := "k1=lost k2=ready k3=waiting "; states != want {
		t.Errorf("after the boot: %s, want %s", states, want)
	}
	l.add(events.KindRuntime, "elsewhere", events.RuntimeClosed{Runtime: "r9"})
	if got := l.Connections("default")[1].State; got != "lost" {
		t.Errorf("after its runtime closed k2 is %s", got)
	}
}

func TestConnectionOfALiveRuntimeStaysReady(t *testing.T) {
	t.Parallel()
	l := declared()
	l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r1", Epoch: 1, Embedded: true})
	l.link("k1", "s1", events.ConnectionClaimed{Runtime: "r1"}, events.ConnectionOpened{})
	for _, e := range []events.Event{
		events.CheckpointSigned{Size: 3}, events.RuntimeBooted{Runtime: "r2", Epoch: 2},
		events.CheckpointSigned{Size: 5}, events.RuntimeClosed{Runtime: "r2"},
	} {
		l.add(events.KindRuntime, "home", e)
		if got := l.Connections("default")[0].State; got != "ready" {
			t.Fatalf("after %s the connection is %s", e.EventName(), got)
		}
	}
}

func TestConnectionsLeaveWithTheirSession(t *testing.T) {
	t.Parallel()
	l := declared()
	l.link("k1", "s1", events.ServerDenied{Server: "docs", Fingerprint: "fp"})
	l.link("k2", "s1", events.ConnectionClaimed{Runtime: "r1"}, events.ConnectionOpened{})
	l.link("k3", "s2", events.ServerDenied{Server: "docs", Fingerprint: "fp"})
	l.add(events.KindSession, "s1", events.SessionEnded{})
	count := func() int { return len(l.row(t, "docs").Connections) }
	if n := count(); n != 2 {
		t.Errorf("%d connections; open is k2, of another session k3", n)
	}
	l.add(events.KindConnection, "k2", events.ConnectionClosed{})
	if n := count(); n != 1 {
		t.Errorf("%d connections after k2 closed", n)
	}
	// A denial stands when the session of the same id begins again (decision 8).
	l.add(events.KindSession, "s1", events.SessionStarted{})
	if n := count(); n != 3 {
		t.Errorf("%d connections after the session began again", n)
	}
}

func TestMemoryOfConnectionsThatAreOverIsBounded(t *testing.T) {
	t.Parallel()
	l := declared()
	for i := range 10_005 {
		session := fmt.Sprintf("s%d", i)
		l.link(fmt.Sprintf("k%d", i), session, events.ServerFailed{})
		l.add(events.KindSession, session, events.SessionEnded{})
	}
	for i := range 10_005 {
		l.add(events.KindSession, fmt.Sprintf("s%d", i), events.SessionStarted{})
	}
	if n := len(l.Connections("")); n != 10_000 {
		t.Errorf("%d connections were remembered", n)
	}
}

func TestServerOfOneNameInTwoCoresHasItsOwnConnections(t *testing.T) {
	t.Parallel()
	l := declared()
	l.add(events.KindCore, "second", events.DeclarationLoaded{Server: "docs", Fingerprint: "fp", Enabled: true}, events.CoreRevisionLoaded{})
	l.seq++
	l.Apply(&events.Commit{
		Seq: l.seq, Workspace: "default", Principal: "ana", Scope: events.Scope{Core: "second"}, Time: noon,
		Aggregate: events.AggregateID{Kind: events.KindConnection, Key: "k1"},
		Events: []events.Event{
			events.ConnectRequested{Session: "s1", Server: "docs", Fingerprint: "fp"}, events.ConnectionOpened{},
		},
	})
	for _, s := range l.List("", "") {
		if s.Name == "docs" && (s.State == servers.Ready) != (s.Core == "second") {
			t.Errorf("docs of %s is %s", s.Core, s.State)
		}
	}
}

func TestWhatEndsTogetherEndsInOneOrder(t *testing.T) {
	t.Parallel()
	digests := map[[32]byte]bool{}
	for range 20 {
		l := declared()
		l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r1", Embedded: true})
		for i := range 4 {
			l.link(fmt.Sprintf("k%d", i), "s1", events.ConnectionClaimed{Runtime: "r1"})
		}
		l.add(events.KindSession, "s1", events.SessionEnded{})
		l.add(events.KindRuntime, "home", events.RuntimeBooted{Runtime: "r2", Embedded: true})
		digests[canon.Sum(l.shared.State())] = true
	}
	if len(digests) != 1 {
		t.Errorf("one log, %d digests", len(digests))
	}
}

func TestCatalogChangesWhenAServerListsSomethingElse_R175(t *testing.T) {
	t.Parallel()
	l := declared()
	list := func(workspace, server, version string) bool {
		l.seq++
		l.Apply(&events.Commit{
			Seq: l.seq, Workspace: workspace, Principal: "ana", Time: noon, Scope: events.Scope{Server: server},
			Aggregate: events.AggregateID{Kind: events.KindConnection, Key: fmt.Sprint("c", l.seq)},
			Events:    []events.Event{events.ToolsDiscovered{CatalogVersion: version}},
		})
		return l.CatalogChanged(l.seq)
	}
	for i, c := range []struct {
		workspace, server, version string
		want                       bool
	}{
		{"default", "docs", "v1", true}, {"default", "docs", "v1", false}, {"default", "files", "v1", true},
		{"other", "docs", "v1", true}, {"default", "docs", "v2", true}, {"default", "docs", "v2", false}, {"default", "docs", "v1", true},
	} {
		if got := list(c.workspace, c.server, c.version); got != c.want {
			t.Errorf("%d: %+v: %v", i, c, got)
		}
	}
	if l.CatalogChanged(1) || l.CatalogChanged(l.seq+1) {
		t.Error("a commit without a discovery changed a catalog")
	}
}
