package projections

import (
	"context"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/internal/memlog"
	"github.com/gatebus/gatebus/projections/sessions"
)

// every is the closed table.
var every = []events.Event{
	events.ApprovalRequested{}, events.ApprovalDecided{}, events.ApprovalExpired{}, events.CallRequested{},
	events.CallBlocked{}, events.CallQueued{}, events.CallAuthorized{}, events.CallStarted{}, events.CallSucceeded{},
	events.CallFailed{}, events.CallIndeterminate{}, events.CallLateResult{}, events.ConnectRequested{},
	events.ServerDenied{}, events.ConnectionClaimed{}, events.ConnectionOpened{}, events.ToolsDiscovered{},
	events.ServerFailed{}, events.DiscoveryFailed{}, events.ConnectionClosed{}, events.ConnectionLost{}, events.StderrCaptured{}, events.UrlDecision{},
	events.DeclarationLoaded{}, events.DeclarationIgnored{}, events.DeclarationInvalid{}, events.DeclarationWarning{},
	events.CoreRevisionLoaded{}, events.CoreLoadFailed{}, events.CapabilityGranted{}, events.CapabilityRevoked{},
	events.HostEnrolled{}, events.TokenIssued{}, events.HostRevoked{}, events.PolicySet{}, events.RuntimeBooted{},
	events.RuntimeClosed{}, events.CheckpointSigned{}, events.SessionStarted{}, events.SessionEnded{}, events.CatalogPublished{},
	events.TurnRequested{}, events.CapabilityRejected{}, events.TurnBound{}, events.LimitsRejected{}, events.TurnFailed{}, events.TurnEnded{},
	events.ServerInstalled{}, events.ServerUpdated{}, events.ServerPolicyChanged{}, events.ServerUninstalled{}, events.SecretStored{},
	events.SecretDeleted{}, events.SecretDeleteFailed{}, events.SecretsCollected{}, events.SecretsGcFailed{}, events.KeystoreSelected{},
	events.ServerStatusChanged{},
}

var kinds = []events.Kind{
	events.KindHost, events.KindGrant, events.KindPolicy, events.KindCore, events.KindSession, events.KindConnection,
	events.KindTurn, events.KindCall, events.KindRuntime, events.KindServer,
}

// kindsOf are the kinds of aggregate that may have the event.
func kindsOf(e events.Event) []events.Kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k events.Kind) bool {
		c := events.Commit{Aggregate: events.AggregateID{Kind: k, Key: "x"}, Events: []events.Event{e}}
		_, err := c.Encode()
		return err != nil
	})
}

var (
	textType = reflect.TypeFor[redact.EventText]()
	start    = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
)

// word draws a value for a text field: mostly one that other fields have too.
func word(t *rapid.T, field string) string {
	switch field {
	case "Expires", "Until", "RetryAfter":
		if rapid.Bool().Draw(t, field) {
			return start.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, field)) * time.Hour).Format(time.RFC3339Nano)
		}
	case "Action":
		return rapid.SampledFrom([]string{"mcp.connect", "mcp.tool", "mcp.call"}).Draw(t, field)
	case "Decision":
		return rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, field)
	case "Kind":
		return rapid.SampledFrom([]string{"once", "session"}).Draw(t, field)
	}
	return rapid.SampledFrom([]string{"", "a", "b", "c", "\xff\u202e\x00"}).Draw(t, field)
}

// fill gives every field of an event a value.
func fill(t *rapid.T, v reflect.Value, field string) {
	switch {
	case v.Type() == textType:
		v.Set(reflect.ValueOf(redact.Name(word(t, field))))
	case v.Kind() == reflect.String:
		v.SetString(strings.ToValidUTF8(word(t, field), ""))
	case v.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, field))
	case v.CanUint():
		v.SetUint(rapid.Uint64Range(0, 30).Draw(t, field))
	case v.CanInt():
		v.SetInt(rapid.Int64Range(-3, 3).Draw(t, field))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 3).Draw(t, field), 3))
		for i := range v.Len() {
			fill(t, v.Index(i), field)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), v.Type().Field(i).Name)
		}
	default:
		t.Fatalf("a field of type %s", v.Type())
	}
}

// anyCommit draws a commit of known events with no regard to what may happen.
func anyCommit(t *rapid.T, seq uint64) *events.Commit {
	id := rapid.SampledFrom([]string{"a", "b", "c"})
	c := &events.Commit{
		Seq: seq, Command: id.Draw(t, "command"), Correlation: id.Draw(t, "correlation"), Actor: id.Draw(t, "actor"),
		Principal: id.Draw(t, "principal"), Workspace: rapid.SampledFrom([]string{"default", "other"}).Draw(t, "workspace"),
		Time: start.Add(time.Duration(rapid.IntRange(-50, 100).Draw(t, "time")) * time.Hour),
	}
	for n := rapid.IntRange(1, 5).Draw(t, "events"); n > 0; n-- {
		e := rapid.SampledFrom(every).Draw(t, "event")
		if ks := kindsOf(e); c.Aggregate.Kind == "" {
			c.Aggregate = events.AggregateID{Kind: rapid.SampledFrom(ks).Draw(t, "kind"), Key: id.Draw(t, "key")}
		} else if !slices.Contains(ks, c.Aggregate.Kind) {
			continue
		}
		v := reflect.New(reflect.TypeOf(e)).Elem()
		fill(t, v, "")
		c.Events = append(c.Events, v.Interface().(events.Event))
	}
	if rapid.Bool().Draw(t, "scope") {
		fill(t, reflect.ValueOf(&c.Scope).Elem(), "")
	}
	return c
}

// ask puts every query to the set; none may change what it holds.
func ask(t testing.TB, s *Set, at time.Time) {
	t.Helper()
	s.Catalog.Tools(catalog.Filter{})
	s.Catalog.Published("default", "a")
	s.Approvals.Pending("")
	for _, a := range s.Approvals.List("", true) {
		if got, ok := s.Approvals.Get(a.ID); !ok || got != a {
			t.Errorf("approval %q: listed as %+v, alone it is %+v", a.ID, a, got)
		}
	}
	s.Approvals.Due(at)
	s.Approvals.OpenCall(approvals.Binding{Workspace: "default", Principal: "a"})
	s.Approvals.SessionApproval("default", "a", "a", "a", "a", "a", 1, at)
	for _, x := range s.Sessions.List(sessions.Filter{Ended: true}) {
		got, ok := s.Sessions.Get(x.Workspace, x.ID)
		if diff := cmp.Diff(x, got); !ok || diff != "" {
			t.Errorf("session %q: listed and alone differ: %s", x.ID, diff)
		}
		x.Calls["changed"]++ // a copy
	}
	s.Servers.List("", "")
	s.Servers.Connections("")
	s.Servers.Cores("")
	s.Grants.Capabilities("", "")
	s.Grants.Hosts("")
	s.Grants.TokenByHash("a")
	s.Grants.Policy("default")
}

func TestEveryEventOfTheTableIsFedToEveryProjection(t *testing.T) {
	t.Parallel()
	names := make([]string, 0, len(every))
	for _, e := range every {
		names = append(names, e.EventName())
	}
	slices.Sort(names)
	if diff := cmp.Diff(events.Names(), names); diff != "" {
		t.Fatalf("the events of this test are not the closed table: %s", diff)
	}
	for _, e := range every {
		for _, k := range kindsOf(e) {
			c := &events.Commit{Seq: 1, Aggregate: events.AggregateID{Kind: k, Key: "a"}, Events: []events.Event{e}}
			s := folded(t, []*events.Commit{c})
			ask(t, s, start)
			file, stop := written(t, memlog.Of(c))
			rows, err := file.Show(t.Context(), 1)
			stop()
			if err != nil || len(rows) != 1 || rows[0].Name != e.EventName() {
				t.Errorf("%s of a %s: %v, %v", e.EventName(), k, rows, err)
			}
		}
	}
}

// Whatever the log holds, in whatever order: the folds do not panic, questions in
// between change nothing, and a fold of what the log gives back is the same.
func TestAnySequenceOfKnownEventsFoldsAndRebuildsEqually(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		live, log := New(), memlog.Of()
		for seq := range rapid.Uint64Range(1, 40).Draw(rt, "commits") {
			c := anyCommit(rt, seq+1)
			log.Add(c)
			if err := live.apply(c); err != nil {
				rt.Fatal(err)
			}
			if rapid.IntRange(0, 9).Draw(rt, "ask") == 0 {
				ask(t, live, c.Time)
			}
		}
		ask(t, live, start)
		if rapid.IntRange(0, 5).Draw(rt, "file") == 0 { // it costs more than all the rest
			checkFile(t, rt, log)
		}
		got, err := live.Rebuild(t.Context(), fromStore{log, t}, log.Head())
		if err != nil {
			rt.Fatal(err)
		}
		for name, p := range got.Projections {
			if !p.Equal() {
				rt.Errorf("%s: rebuilt is not live", name)
			}
		}
	})
}

// fromStore gives every commit as it comes out of its encoding.
type fromStore struct {
	*memlog.Log
	t testing.TB
}

func (f fromStore) Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for c, err := range f.Log.Read(ctx, after) {
			if !yield(stored(f.t, c), err) {
				return
			}
		}
	}
}

// checkFile: the audit file has the rows of the log, and answers every question.
func checkFile(t *testing.T, rt *rapid.T, log *memlog.Log) {
	file, stop := written(t, log)
	defer stop()
	live, rebuilt, err := file.Compare(t.Context(), fromStore{log, t}, log.Head())
	if err != nil || live != rebuilt {
		rt.Errorf("the audit file: rebuilt is not live: %v", err)
	}
	for _, f := range []audit.Filter{{}, {Server: "a"}, {Name: "call_started", Limit: 1}} {
		if _, err := file.List(t.Context(), f); err != nil {
			rt.Error(err)
		}
	}
	if _, err := file.Trace(t.Context(), "a"); err != nil {
		rt.Error(err)
	}
}
