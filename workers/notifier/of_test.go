package notifier

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
)

// told is a notification as the table has it: the members of params that are not
// on every one of its method, to keep a row readable.
type told struct {
	I                 int
	Method            string
	Principal, Server string
	Params            string
}

const approval = `"aggregate":"connection/c1"`

func TestNotificationsOfACommit_R175(t *testing.T) {
	t.Parallel()
	connection := events.AggregateID{Kind: events.KindConnection, Key: "c1"}
	ask := events.ApprovalRequested{
		Approval: "a1", Action: "mcp.connect", Target: "docs", Server: "docs", Risk: "low", Policy: "prompt", Expires: "2030-01-02T00:00:00Z",
	}
	askTool := ask
	askTool.Approval, askTool.Action, askTool.Target, askTool.Tool = "a2", "mcp.tool", "docs/read", "read"
	state := func(i int, rest string) told {
		return told{i, "mcp/server/status_changed", "ana", "docs",
			`{"workspace_id":"default","snapshot_version":7,"server_id":"docs","name":"docs",` + rest + `}`}
	}
	who := `,"principal":"ana","session":"s1","connection":"c1"`
	listed := events.ToolsDiscovered{CatalogVersion: "sha256:aa", Tools: []events.ToolDigest{{Tool: "read"}, {Tool: "write"}}}
	catalog := func(i int) told {
		return told{i, "mcp/server/catalog_changed", "", "docs", `{"workspace_id":"default","snapshot_version":7,"server_id":"docs","name":"docs",` +
			`"catalog_version":"sha256:aa","tools_count":2,"resources_count":0,"resource_templates_count":0,"prompts_count":0}`}
	}
	for _, c := range []struct {
		name      string
		aggregate events.AggregateID
		events    []events.Event
		unchanged bool
		want      []told
	}{
		{"a core is live", events.AggregateID{Kind: events.KindCore, Key: "main"},
			[]events.Event{events.DeclarationLoaded{Server: "docs"}, events.CoreRevisionLoaded{Revision: "r"}}, false,
			[]told{{0, "mcp/changed", "", "", `{"workspace_id":"default","snapshot_version":7,"reason":"core","core":"main"}`}}},
		{"a policy", events.AggregateID{Kind: events.KindPolicy, Key: "default"}, []events.Event{events.PolicySet{}, events.PolicySet{}}, false,
			[]told{{0, "mcp/changed", "", "", `{"workspace_id":"default","snapshot_version":7,"reason":"policy"}`}}},
		{"a grant", events.AggregateID{Kind: events.KindGrant, Key: "bob"}, []events.Event{events.CapabilityRevoked{Capability: "mcp.read"}}, false,
			[]told{{0, "mcp/changed", "bob", "", `{"workspace_id":"default","snapshot_version":7,"reason":"grants","principal":"bob"}`}}},
		{"a connection is asked for", connection, []events.Event{events.ConnectRequested{Server: "docs"}}, false, nil},
		{"a person is asked", connection, []events.Event{ask}, false, []told{
			{0, "approvals/requested", "ana", "docs", `{"workspace_id":"default","approval":"a1","action":"mcp.connect","target":"docs","principal":"ana",` +
				`"server":"docs","session":"s1",` + approval + `,"risk":"low","policy":"prompt","expires":"2030-01-02T00:00:00Z"}`},
			state(1, `"status":"approval_pending","live":false`+who),
		}},
		{"a person said yes", connection, []events.Event{events.ApprovalDecided{Approval: "a1", Decision: "allow", Kind: "session", By: "local"}}, false,
			[]told{{0, "approvals/decided", "ana", "docs", `{"workspace_id":"default","approval":"a1","state":"allowed","kind":"session",` +
				`"principal":"ana","server":"docs","session":"s1",` + approval + `}`}}},
		{"a person said no", connection, []events.Event{
			events.ApprovalDecided{Approval: "a1", Decision: "deny", Kind: "session"}, events.ServerDenied{Server: "docs", Reason: "approval_denied"},
		}, false, []told{
			{0, "approvals/decided", "ana", "docs", `{"workspace_id":"default","approval":"a1","state":"denied","kind":"session",` +
				`"principal":"ana","server":"docs","session":"s1",` + approval + `}`},
			state(1, `"status":"denied","live":false,"reason_code":"approval_denied"`+who),
		}},
		{"nobody said anything", connection, []events.Event{events.ApprovalExpired{Approval: "a1"}}, false,
			[]told{{0, "approvals/decided", "ana", "docs", `{"workspace_id":"default","approval":"a1","state":"expired",` +
				`"principal":"ana","server":"docs","session":"s1",` + approval + `}`}}},
		{"a rule answered", connection, []events.Event{
			events.ApprovalDecided{Decision: "allow", Automatic: true}, events.ApprovalDecided{Approval: "a1", Decision: "allow", Cached: true},
		}, false, nil},
		{"opening", connection, []events.Event{events.ConnectionClaimed{}}, false,
			[]told{state(0, `"status":"starting","live":false`+who+`,"runtime_generation":7`)}},
		{"open", connection, []events.Event{events.ConnectionOpened{Generation: 6}, listed}, false,
			[]told{state(0, `"status":"ready","live":true`+who+`,"runtime_generation":6`), catalog(1)}},
		{"open, with the tools it had", connection, []events.Event{events.ConnectionOpened{Generation: 6}, listed}, true,
			[]told{state(0, `"status":"ready","live":true`+who+`,"runtime_generation":6`)}},
		{"other tools, one of which waits", connection, []events.Event{listed, askTool}, false, []told{catalog(0),
			{1, "approvals/requested", "ana", "docs", `{"workspace_id":"default","approval":"a2","action":"mcp.tool","target":"docs/read","principal":"ana",` +
				`"server":"docs","tool":"read","session":"s1",` + approval + `,"risk":"low","policy":"prompt","expires":"2030-01-02T00:00:00Z"}`},
		}},
		{"failed", connection, []events.Event{events.ServerFailed{Kind: "spawn_failed", RetryAfter: "2030-01-01T00:00:30Z", Generation: 6}}, false,
			[]told{state(0, `"status":"failed","live":false,"reason_code":"spawn_failed","next_retry_at":"2030-01-01T00:00:30Z"`+who+`,"runtime_generation":6`)}},
		{"for want of authentication", connection, []events.Event{events.ServerFailed{Kind: "auth_required"}}, false,
			[]told{state(0, `"status":"auth_required","live":false,"reason_code":"auth_required"`+who)}},
		{"closed", connection, []events.Event{events.ConnectionClosed{Generation: 6, Reason: "session_ended"}}, false,
			[]told{state(0, `"status":"not_started","live":false,"reason_code":"session_ended"`+who+`,"runtime_generation":6`)}},
		{"lost and asked for again in vain", connection, []events.Event{
			events.ConnectionLost{Generation: 6}, events.ServerDenied{Server: "docs", Reason: "capability_denied"},
		}, false, []told{state(0, `"status":"denied","live":false,"reason_code":"capability_denied"`+who)}},
		{"a call", events.AggregateID{Kind: events.KindCall, Key: "k1"}, []events.Event{
			events.CallRequested{}, events.CallAuthorized{}, events.CallStarted{},
		}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			commit := &events.Commit{
				Seq: 7, Workspace: "default", Principal: "ana", Actor: "local", Aggregate: c.aggregate, Time: time.Unix(0, 0),
				Scope: events.Scope{Session: "s1", Server: "docs"}, Events: c.events,
			}
			var got []told
			for _, a := range Of(commit, func(seq uint64) bool { return seq == 7 && !c.unchanged }) {
				if a.Seq != 7 || a.Workspace != "default" || !json.Valid(a.Message()) {
					t.Errorf("%+v", a)
				}
				got = append(got, told{a.I, a.Method, a.Principal, a.Server, string(a.Params)})
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTopicsAreMethodsOrTheirBeginnings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topics []string
		method string
		want   bool
	}{
		{nil, "mcp/changed", true},
		{[]string{"mcp"}, "mcp/server/catalog_changed", true},
		{[]string{"mcp/server"}, "mcp/changed", false},
		{[]string{"approvals", "mcp/changed"}, "mcp/changed", true},
		{[]string{"mcp/server/catalog"}, "mcp/server/catalog_changed", false},
		{[]string{""}, "mcp/changed", false},
	} {
		if got := wanted(c.topics, c.method); got != c.want {
			t.Errorf("%v %s: %v", c.topics, c.method, got)
		}
	}
	if err := CheckTopics([]string{"mcp", "approvals/decided"}); err != nil {
		t.Error(err)
	}
	for _, none := range []string{"", "mcp/", "mcp/none", "grants"} {
		if CheckTopics([]string{none}) == nil {
			t.Errorf("%q is a topic", none)
		}
	}
}
