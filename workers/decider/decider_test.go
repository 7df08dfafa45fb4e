package decider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/turn"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// echo starts a rig with echo servers, which ana may use.
func echo(t *testing.T, servers ...string) *rig.Rig {
	t.Helper()
	r := rig.New(t, rig.Options{})
	for _, s := range servers {
		declareEcho(t, r, s, "approval_policy: auto")
	}
	r.Load()
	r.GrantAll("ana")
	return r
}

func declareEcho(t *testing.T, r *rig.Rig, server string, lines ...string) {
	t.Helper()
	r.Declare(server, append(lines, rig.Command(fakes.Build(t, "echo")))...)
}

// names are the visible names of a turn's tools.
func names(t client.Turn) (out []string) {
	for _, tool := range t.Tools {
		out = append(out, tool.Name)
	}
	return out
}

func bindings(t *testing.T, r *rig.Rig, turnID string) turn.Bindings {
	t.Helper()
	data, err := r.Bus.Blob(r.Context(), r.Model.Turns.Get(rig.Workspace, turnID).Blob)
	var b turn.Bindings
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestToolsAreNamedByServerAndSorted_R43_R46(t *testing.T) {
	t.Parallel()
	r := echo(t, "zoo", "docs server")
	got := r.Connected("ana")
	want := []string{
		"docs-server__big", "docs-server__echo", "docs-server__fail", "docs-server__secret", "docs-server__slow",
		"zoo__big", "zoo__echo", "zoo__fail", "zoo__secret", "zoo__slow",
	}
	if diff := cmp.Diff(want, names(got)); diff != "" {
		t.Error(diff)
	}
	if reply := r.Call("ana", got.Turn, "docs-server__echo", `{"text":"hello"}`); reply.Text != "hello" {
		t.Errorf("%+v", reply)
	}
	tool := rig.Tool(t, got, "docs server", "echo")
	if tool.Description != "Returns text." || !strings.Contains(string(tool.InputSchema), `"text"`) || !strings.HasPrefix(string(tool.Definition), `{"name":"docs-server__echo","description"`) {
		t.Errorf("%+v", tool)
	}
}

func TestServersOfOnePrefixKeepTheirNamesWhileOneIsAway_R44(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs server", "docs.server")
	r.Prepare("ana")
	first := r.Pending()[0]
	r.Decide(first.ID, true)
	alone := names(r.Prepare("ana"))
	both := names(r.Connected("ana"))
	if len(alone) != 5 || len(both) != 10 {
		t.Fatalf("%d and %d tools", len(alone), len(both))
	}
	for _, name := range alone {
		if !slices.Contains(both, name) {
			t.Errorf("%s is called otherwise once the other server is there: %q", name, both)
		}
	}
}

func TestFilterIsOnRawNames_R41(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	declareEcho(t, r, "docs", "tools: {include: ['e*', 's*', BIG], exclude: ['secre*']}")
	r.Load()
	r.GrantAll("ana")
	if diff := cmp.Diff([]string{"docs__echo", "docs__slow"}, names(r.Connected("ana"))); diff != "" {
		t.Error(diff)
	}
	published := rig.Events[events.CatalogPublished](r)
	if c := published[len(published)-1].Counts[0]; c.Listed != 5 || c.Filtered != 3 || c.Visible != 2 {
		t.Errorf("counts %+v", c)
	}
}

func TestOverrideTightensOneTool_R69(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	if err := os.WriteFile(r.Dirs[0]+"/agent/core.yaml", []byte(`tools: {metadata: {docs: {
		echo: {risk: critical, approval_policy: prompt}, big: {enabled: false}, slow: {risk: low}}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r.Load()
	got := r.Connected("ana")
	if slices.Contains(names(got), "docs__big") {
		t.Error("a disabled tool is visible")
	}
	risks, policies := map[string]string{}, map[string]string{}
	for _, b := range bindings(t, r, got.Turn).Tools {
		risks[b.Tool], policies[b.Tool] = b.Risk, b.Policy
	}
	if risks["echo"] != "critical" || policies["echo"] != "prompt" || risks["slow"] != "medium" || policies["slow"] != "auto" {
		t.Errorf("risks %v, policies %v, diagnostics %+v", risks, policies, got.Diagnostics)
	}
}

func TestCollisionWithAToolOfTheHostFailsTheTurn_R45(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.Connected("ana")
	_, err := r.TryPrepare("ana", func(p *decider.Preparation) {
		p.HostTools = []client.HostTool{{Name: "other", Provenance: "builtin"}, {Name: "DOCS__echo", Provenance: "authored:tools/echo.md"}}
	})
	if !fault.Is(err, fault.ToolNameCollision) {
		t.Fatalf("error %v", err)
	}
	failed := rig.Events[events.TurnFailed](r)
	if len(failed) != 1 || failed[0].Reason != "tool_name_collision" || failed[0].Name != "docs__echo" {
		t.Fatalf("%+v", failed)
	}
	want := []string{"authored:tools/echo.md", "mcp:agent/mcp/docs.yaml:docs/echo"}
	if diff := cmp.Diff(want, failed[0].Provenances); diff != "" {
		t.Error(diff)
	}
	for _, p := range want {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error does not name %s: %v", p, err)
		}
	}
	if len(rig.Events[events.TurnBound](r)) != 2 { // of Connected
		t.Error("a turn was bound in spite of the collision")
	}
}

func TestCatalogIsTheSameUntilSomethingChanges_R144(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs", "more")
	first := r.Connected("ana")
	bound := len(rig.Events[events.TurnBound](r))
	second := r.Prepare("ana", func(p *decider.Preparation) {
		p.Reuse = func(catalog string) (client.Turn, bool) { return first, catalog == first.CatalogID }
	})
	if second.Turn != first.Turn || len(rig.Events[events.TurnBound](r)) != bound {
		t.Errorf("turn %s was not used again: %s", first.Turn, second.Turn)
	}
	third := r.Prepare("ana")
	if third.CatalogID != first.CatalogID || third.ManifestHash != first.ManifestHash || third.Turn == first.Turn {
		t.Errorf("first %+v\nthird %+v", first, third)
	}
	published := len(rig.Events[events.CatalogPublished](r))
	r.Prepare("ana")
	if n := len(rig.Events[events.CatalogPublished](r)); n != published {
		t.Error("an unchanged catalog was published again")
	}
	for name, change := range map[string]func(){
		"authority": func() { r.Grant("ana", "mcp.call:special") },
		"policy":    func() { r.SetPolicy(events.Policy{Rules: []events.ApprovalRule{{Tool: "big", Approval: "prompt"}}}) },
	} {
		before := r.Connected("ana")
		change()
		if after := r.Connected("ana"); after.CatalogID == before.CatalogID {
			t.Errorf("a change of %s leaves the catalog the same", name)
		}
	}
}

func TestPrincipalsShareNoConnectionAndNoTurn_R146_R147(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.GrantAll("bob")
	ana := r.Connected("ana")
	if turn := r.Prepare("bob"); len(turn.Tools) != 0 || len(r.Pending()) != 1 {
		t.Fatalf("the yes to ana's connection is no yes to bob's: %+v", turn)
	}
	bob := r.Connected("bob")
	a, b := r.Connection("ana", "docs"), r.Connection("bob", "docs")
	if a.Generation == b.Generation || a.Phase != connection.Open || b.Phase != connection.Open || ana.CatalogID == bob.CatalogID {
		t.Errorf("ana %+v\nbob %+v", a, b)
	}
	for principal, foreign := range map[string]client.Turn{"ana": bob, "bob": ana} {
		reply := r.Call(principal, foreign.Turn, "docs__echo", `{"text":"x"}`)
		if reply.ExecutionStarted || reply.Error == nil || reply.Error.Kind != string(fault.TurnNotActive) {
			t.Errorf("%s with a turn of somebody else: %+v", principal, reply)
		}
		if err := r.Decider.EndTurn(r.Context(), rig.As(principal), foreign.Turn); !fault.Is(err, fault.TurnNotActive) {
			t.Errorf("%s ends the turn of somebody else: %v", principal, err)
		}
		if _, err := r.TryPrepare(principal, func(p *decider.Preparation) {
			p.Session = r.Session(map[string]string{"ana": "bob", "bob": "ana"}[principal])
		}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s prepares in the session of somebody else: %v", principal, err)
		}
	}
	// What the log says of a foreign turn is nothing of its owner's.
	for _, e := range rig.Events[events.CallRequested](r) {
		if e.Session != "" || e.Turn != "" || e.Connection != "" {
			t.Errorf("%+v", e)
		}
	}
}

func TestSelectionsThatCannotBeHonouredAreRejectedAndTheTurnGoesOn_R185(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs", "more")
	declareEcho(t, r, "off", "enabled: false")
	r.Load()
	r.Connected("ana")
	got := r.Prepare("ana", func(p *decider.Preparation) {
		p.Implicit = false
		p.Servers = []string{"docs", "docs", "none", "off"}
		p.Tools = []client.ToolSelection{{Server: "docs", Tool: "echo"}, {Server: "more", Tool: "big"}, {Server: "more", Tool: "none"}, {Server: "nowhere", Tool: "x"}}
	})
	want := []string{"docs__big", "docs__echo", "docs__fail", "docs__secret", "docs__slow", "more__big"}
	if diff := cmp.Diff(want, names(got)); diff != "" {
		t.Error(diff)
	}
	reasons := map[string]string{}
	for _, x := range got.Rejected {
		reasons[x.Kind+" "+x.Label] = x.Reason
	}
	if diff := cmp.Diff(map[string]string{
		"server docs": "duplicate", "server none": "not_found", "server off": "disabled_by_policy",
		"tool docs/echo": "duplicate", "tool more/none": "tool_missing", "tool nowhere/x": "not_found",
	}, reasons); diff != "" {
		t.Error(diff)
	}
	if n := len(rig.Events[events.CapabilityRejected](r)); n != len(reasons) {
		t.Errorf("%d rejections are in the log, want %d", n, len(reasons))
	}
	chosen := map[string]string{}
	for _, b := range bindings(t, r, got.Turn).Tools {
		chosen[b.Server] = b.Reason
	}
	if diff := cmp.Diff(map[string]string{"docs": "explicit_server", "more": "explicit_tool"}, chosen); diff != "" {
		t.Error(diff)
	}
}

func TestEndedTurnCallsNothing(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	got := r.Connected("ana")
	if err := r.Decider.EndTurn(r.Context(), rig.As("ana"), got.Turn); err != nil {
		t.Fatal(err)
	}
	if reply := r.Call("ana", got.Turn, "docs__echo", `{}`); reply.Error == nil || reply.Error.Kind != string(fault.TurnNotActive) {
		t.Errorf("%+v", reply)
	}
	if err := r.Decider.EndTurn(r.Context(), rig.As("ana"), got.Turn); !fault.Is(err, fault.TurnNotActive) {
		t.Errorf("ended twice: %v", err)
	}
}

// at makes a call wait that was asked for some time ago, equal to the one that
// waits already.
func at(t *testing.T, r *rig.Rig, key string, ago time.Duration) {
	t.Helper()
	asked := rig.Events[events.CallRequested](r)
	then := time.Now().Add(-ago)
	_, err := r.Model.Calls.Dispatch(r.Context(), rig.Workspace, key, bus.Meta{
		Actor: "ana", Principal: "ana", Time: then, Scope: events.Scope{Session: r.Session("ana"), Call: key, Server: "docs"},
	}, call.Request{
		Facts: call.Facts{
			Authority:      r.Model.Grants.Get(rig.Workspace, "ana").Snapshot("ana"),
			PolicySequence: r.Model.Policies.Get(rig.Workspace, rig.Workspace).Seq,
			Connection:     r.Connection("ana", "docs"), Runtime: r.Runtime, At: then,
		},
		Requested: asked[len(asked)-1], Approval: "a-" + key, Interactive: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSilenceIsADenial_Decision10(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	declareEcho(t, r, "docs")
	r.Load()
	r.GrantAll("ana")
	got := r.Connected("ana")
	r.Call("ana", got.Turn, "docs__echo", `{"text":"x"}`) // waits
	at(t, r, "k-old", call.ApprovalTTL)
	s := r.AwaitCall("k-old", func(s call.State) bool { return s.Phase == call.Done })
	if s.Outcome != call.Denied || s.Reason != string(fault.ApprovalExpired) {
		t.Errorf("%+v", s)
	}
	if n := len(r.Pending()); n != 1 {
		t.Errorf("%d approvals wait, want the fresh one", n)
	}
	r.Rebuilt()
}

func TestSilenceIsADenialWithoutTheSweeperToo_Decision10(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	declareEcho(t, r, "docs")
	r.Load()
	r.GrantAll("ana")
	got := r.Connected("ana")
	r.Call("ana", got.Turn, "docs__echo", `{"text":"x"}`)
	at(t, r, "k-old", call.ApprovalTTL)
	r.CatchUp()
	// A retry finds the older question.
	if reply := r.Call("ana", got.Turn, "docs__echo", `{"text":"x"}`); reply.Call != "k-old" || reply.Status != "denied" || reply.Error.Kind != string(fault.ApprovalExpired) {
		t.Errorf("%+v", reply)
	}
	// So does an answer.
	at(t, r, "k-older", call.ApprovalTTL+time.Minute)
	err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: "a-k-older", Decision: "allow"}, nil)
	if s := r.Model.Calls.Get(rig.Workspace, "k-older"); !fault.Is(err, fault.ApprovalExpired) || s.Outcome != call.Denied {
		t.Errorf("error %v, state %+v", err, s)
	}
}

// Whoever lost the right is asked about no more: neither a question nor a yes waits
// for whoever has the name next.
func TestNobodyIsAskedForWhoLostTheRight_R50(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		revoke func(*rig.Rig)
		// connects says that the question about the connection stays.
		connects bool
	}{
		"call": {func(r *rig.Rig) { r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil) }, true},
		"connect": {func(r *rig.Rig) {
			r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.connect:*"}, nil)
		}, false},
		"host": {func(r *rig.Rig) { r.Ask("host/revoke", client.HostRevoke{Name: "ana"}, nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.Options{Still: true}) // who has the answer need not wait for the sweeper
			declareEcho(t, r, "docs")
			r.Load()
			r.Ask("host/token", client.HostToken{Name: "ana"}, nil)
			r.GrantAll("ana")
			r.GrantAll("bob")
			got := r.Connected("ana")
			r.Prepare("bob")
			declareEcho(t, r, "more")
			r.Load()
			r.Prepare("ana")
			waiting := r.Call("ana", got.Turn, "docs__echo", `{"text":"1"}`)
			allowed := r.Call("ana", got.Turn, "docs__echo", `{"text":"2"}`)
			r.Decide(allowed.Approval.ID, true)
			if n := len(r.Pending()); n != 3 {
				t.Fatalf("%d approvals are pending", n)
			}
			c.revoke(r)
			var left []string
			for _, a := range r.Pending() {
				left = append(left, a.Principal+" "+a.Target)
			}
			want := []string{"bob docs"}
			if c.connects {
				want = append(want, "ana more")
			}
			if diff := cmp.Diff(want, left); diff != "" {
				t.Errorf("pending (-want +got):\n%s", diff)
			}
			for _, reply := range []client.CallReply{waiting, allowed} {
				if s := r.Model.Calls.Get(rig.Workspace, reply.Call); s.Outcome != call.Denied || s.Reason != "capability_denied" {
					t.Errorf("%+v", s)
				}
			}
			if err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: waiting.Approval.ID, Decision: "allow"}, nil); !fault.Is(err, fault.ApprovalExpired) {
				t.Errorf("a yes after the revoke: %v", err)
			}
		})
	}
}

// A capability can end by time: the sweeper finds it, and an answer before it does.
func TestNobodyIsAskedOnceACapabilityEnded_R50(t *testing.T) {
	t.Parallel()
	for name, still := range map[string]bool{"sweeper": false, "answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.Options{Still: still})
			declareEcho(t, r, "docs")
			r.Load()
			r.GrantAll("ana")
			reply := r.Call("ana", r.Connected("ana").Turn, "docs__echo", `{"text":"1"}`)
			end := time.Now().Add(300 * time.Millisecond)
			r.Ask("grant/add", client.Grant{Principal: "ana", Capability: "mcp.call:*", Until: end}, nil)
			if still {
				ctx, cancel := context.WithDeadline(r.Context(), end)
				defer cancel()
				<-ctx.Done()
				err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: reply.Approval.ID, Decision: "allow", Session: true}, nil)
				if !fault.Is(err, fault.CapabilityDenied) {
					t.Errorf("%v", err)
				}
			}
			if s := r.AwaitCall(reply.Call, func(s call.State) bool { return s.Phase == call.Done }); s.Reason != "capability_denied" {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestApprovalShowsWhatIsAskedAndWhoAnswered_R60(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	declareEcho(t, r, "docs", "risk: high")
	r.Load()
	r.GrantAll("ana")
	got := r.Connected("ana")
	reply := r.Call("ana", got.Turn, "docs__echo", `{"text":"visible to a person","token":"canary-7731"}`)
	if reply.Status != "approval_pending" || reply.Approval == nil {
		t.Fatalf("%+v", reply)
	}
	var a client.Approval
	r.Ask("approvals/get", client.ApprovalID{ID: reply.Approval.ID}, &a)
	if a.Action != "mcp.call" || a.Target != "docs/echo" || a.Risk != "high" || a.State != "pending" || a.Principal != "ana" {
		t.Errorf("%+v", a)
	}
	if !strings.Contains(a.Arguments, "visible to a person") || strings.Contains(a.Arguments, "canary-7731") || strings.Contains(string(a.Preview), "visible") {
		t.Errorf("arguments %s, preview %s", a.Arguments, a.Preview)
	}
	var list client.Approvals
	r.Ask("approvals/list", client.ApprovalsList{}, &list)
	if len(list.Approvals) != 1 || list.Approvals[0].Arguments != "" {
		t.Errorf("the list shows arguments: %+v", list)
	}
	id := a.ID
	a = client.Approval{}
	r.Ask("approvals/decide", client.ApprovalsDecide{ID: id, Decision: "deny", Note: "not today"}, &a)
	if a.State != "denied" || a.By != "local" || a.Note != "not today" || a.Arguments != "" {
		t.Errorf("%+v", a)
	}
	// Through which door the answer came is not the client's to say.
	decided := rig.Events[events.ApprovalDecided](r)
	if last := decided[len(decided)-1]; last.Channel != "nats" {
		t.Errorf("%+v", last)
	}
	claimed := map[string]any{"id": id, "decision": "deny", "channel": "console"}
	if err := r.Local.Do(r.Context(), "approvals/decide", claimed, nil); !fault.Is(err, fault.UnknownArgument) {
		t.Errorf("%v", err)
	}
	if text := r.Caller.Arguments(r.Context(), reply.Call, a.ID); text != "" {
		t.Errorf("the arguments of an answered approval are kept: %s", text)
	}
	for _, again := range []client.ApprovalsDecide{{ID: a.ID, Decision: "allow"}, {ID: "a-none", Decision: "allow"}, {ID: a.ID, Decision: "yes"}} {
		if err := r.Local.Do(r.Context(), "approvals/decide", again, nil); err == nil {
			t.Errorf("%+v was taken", again)
		}
	}
}

// What waits is named to programs as it is to MCP clients: where a person answers is
// said, also as long as that is nowhere.
func TestPendingCallSaysWhereAPersonAnswers(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	declareEcho(t, r, "docs")
	r.Load()
	r.GrantAll("ana")
	got := r.Connected("ana")
	var reply struct {
		Approval map[string]any `json:"approval"`
	}
	r.Ask("tool/call", client.ToolCall{Turn: got.Turn, Name: "docs__echo", Arguments: json.RawMessage(`{"text":"x"}`), Principal: "ana"}, &reply)
	pending := r.Pending()[0]
	want := map[string]any{"id": pending.ID, "url": "", "expires": pending.Expires.Format(time.RFC3339Nano)}
	if diff := cmp.Diff(want, reply.Approval); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConnectionIsApprovedForTheSessionOnly(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.Prepare("ana")
	id := r.Pending()[0].ID
	if err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: id, Decision: "allow", Session: true}, nil); !fault.Is(err, fault.InvalidInput) {
		t.Errorf("%v", err)
	}
}

func TestOperatorActsForAPrincipalAndIsTheActor_Decision2(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.Connected("ana")
	var s client.Session
	r.Ask("session/start", client.SessionStart{Label: "test", Principal: "ana"}, &s)
	if s.Session != r.Session("ana") {
		t.Errorf("session %s", s.Session)
	}
	var got client.Turn
	r.Ask("turn/prepare", client.TurnPrepare{Session: s.Session, Principal: "ana", IncludeImplicit: true}, &got)
	var reply client.CallReply
	r.Ask("tool/call", client.ToolCall{Turn: got.Turn, Name: "docs__echo", Arguments: json.RawMessage(`{"text":"hello"}`), Principal: "ana"}, &reply)
	if reply.Text != "hello" {
		t.Fatalf("%+v", reply)
	}
	var rows client.AuditRows
	r.Ask("audit/list", client.AuditList{Call: reply.Call}, &rows)
	if len(rows.Rows) == 0 {
		t.Fatal("no audit")
	}
	for _, row := range rows.Rows {
		if row.Principal != "ana" || row.Actor != "local" || row.Call != reply.Call {
			t.Errorf("%+v", row)
		}
	}
	// The operator alone has no authority.
	r.Ask("tool/call", client.ToolCall{Turn: got.Turn, Name: "docs__echo"}, &reply)
	if reply.Status == "succeeded" {
		t.Errorf("%+v", reply)
	}
}

func TestRoles_Decision2(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	for name, role := range map[string]string{"hosty": "host", "opy": "operator", "audy": "auditor"} {
		var token client.HostTokenResult
		r.Ask("host/token", client.HostToken{Name: name, Role: role}, &token)
		if id, ok := r.Decider.Authenticate(token.Token); !ok || id != (client.Identity{Workspace: rig.Workspace, Principal: name, Actor: name}) {
			t.Errorf("%s: %+v %v", name, id, ok)
		}
		if _, ok := r.Decider.Authenticate(token.Token + "x"); ok {
			t.Error("another token is taken")
		}
		if r.Decider.Role(rig.Workspace, name) != role {
			t.Errorf("role of %s: %s", name, r.Decider.Role(rig.Workspace, name))
		}
		_, err := r.Decider.As(client.Identity{Workspace: rig.Workspace, Principal: name, Actor: name}, "ana")
		if (err == nil) != (role == "operator") {
			t.Errorf("%s acts for ana: %v", name, err)
		}
		r.Ask("host/revoke", client.HostRevoke{Name: name}, nil)
		if _, ok := r.Decider.Authenticate(token.Token); ok || r.Decider.Role(rig.Workspace, name) != "" {
			t.Errorf("%s after the revoke", name)
		}
		if r.Stored(token.Token) {
			t.Error("a token is stored")
		}
	}
}

// Credentials for the bus: whoever is told that they work can use them, whoever is
// told that they are revoked can rely on it, and each one is seen in the list.
func TestCredentialsAreIssuedListedAndRevoked(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	login := func(creds string) error {
		c, err := client.Dial(r.Context(), client.Options{InProcess: r.Bus, CredsText: []byte(creds)})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Do(r.Context(), "bus/info", nil, nil)
	}
	var first, second client.BusCredsResult
	r.Ask("bus/creds", client.BusCreds{Name: "eve", Role: "auditor"}, &first)
	r.Ask("bus/creds", client.BusCreds{Name: "eve", Role: "auditor", Expires: time.Now().Add(time.Hour)}, &second)
	if first.Principal != "eve" || first.Role != "auditor" || first.Workspace != rig.Workspace || first.JWT != "" || first.Creds == second.Creds {
		t.Fatalf("%+v", first)
	}
	for _, creds := range []string{first.Creds, second.Creds} {
		if err := login(creds); err != nil {
			t.Error(err)
		}
		seed := creds[strings.Index(creds, "BEGIN USER NKEY SEED"):]
		seed = strings.Split(seed, "\n")[1]
		if !strings.HasPrefix(seed, "SU") || r.Stored(seed) {
			t.Errorf("the seed %.2s… is stored", seed)
		}
	}
	row := func() (found client.Host) {
		t.Helper()
		var hosts []client.Host
		r.Ask("host/list", nil, &hosts)
		for _, h := range hosts {
			if h.Name == "eve" {
				found = h
			}
		}
		return found
	}
	h := row()
	if len(h.Credentials) != 2 || h.Credentials[0].ID != first.Credential || h.Credentials[0].Kind != "key" || h.Credentials[0].PublicKey == "" || !h.Credentials[1].Expires.Equal(second.Expires) {
		t.Errorf("list %+v", h)
	}
	var left client.Host
	r.Ask("host/revoke", client.HostRevoke{Name: "eve", Credential: first.Credential}, &left)
	if diff := cmp.Diff(row(), left); diff != "" || len(left.Credentials) != 1 || left.Revoked {
		t.Errorf("after one was revoked %+v: %s", left, diff)
	}
	if login(first.Creds) == nil || login(second.Creds) != nil {
		t.Error("not the one that was revoked")
	}
	r.Grant("eve", "mcp.call:docs")
	r.Ask("host/revoke", client.HostRevoke{Name: "eve"}, &left)
	var granted []client.Grant
	if r.Ask("grant/list", client.GrantList{Principal: "eve"}, &granted); len(granted) > 0 {
		t.Errorf("whoever gets the name has %v", granted)
	}
	if login(second.Creds) == nil || !left.Revoked || len(left.Credentials) != 0 {
		t.Errorf("after the principal was revoked %+v", left)
	}
	for params, kind := range map[string]fault.Kind{
		`{"name":"*"}`: fault.InvalidInput, `{"name":"local"}`: fault.InvalidInput, `{"name":"ana","role":"root"}`: fault.InvalidInput,
		`{"name":"ana","workspace":"other"}`: fault.InvalidInput, `{"name":"ana","public_key":"x"}`: fault.InvalidInput,
		`{"name":"ana","expires":"2001-01-01T00:00:00Z"}`: fault.InvalidInput, `{"nane":"ana"}`: fault.UnknownArgument,
	} {
		if err := r.Local.Do(r.Context(), "bus/creds", json.RawMessage(params), nil); fault.KindOf(err) != kind {
			t.Errorf("%s: %v", params, err)
		}
	}
	for params, kind := range map[string]fault.Kind{
		`{"name":"local"}`: fault.InvalidInput, `{"name":"eve"}`: fault.NotFound, `{"name":"nobody"}`: fault.NotFound,
	} {
		if err := r.Local.Do(r.Context(), "host/revoke", json.RawMessage(params), nil); fault.KindOf(err) != kind {
			t.Errorf("%s: %v", params, err)
		}
	}
}

func TestQueriesAnswerFromTheLog(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	got := r.Connected("ana")
	r.Call("ana", got.Turn, "docs__echo", `{"text":"x"}`)
	var servers []client.Server
	r.Ask("mcp/list", nil, &servers)
	if len(servers) != 1 || servers[0].Name != "docs" || servers[0].Tools != 5 || len(servers[0].Connections) != 1 || servers[0].Connections[0].Principal != "ana" {
		t.Errorf("servers %+v", servers)
	}
	var tools []client.ToolInfo
	r.Ask("tool/list", client.ToolList{Server: "docs"}, &tools)
	if len(tools) != 5 || !slices.ContainsFunc(tools, func(i client.ToolInfo) bool { return i.RawName == "echo" && i.Description == "Returns text." }) {
		t.Errorf("tools %+v", tools)
	}
	var info client.BusInfo
	r.Ask("bus/info", nil, &info)
	if info.Commits == 0 || info.Events < info.Commits || info.Servers != 1 || len(info.Cores) != 1 {
		t.Errorf("info %+v", info)
	}
	var grants []client.Grant
	r.Ask("grant/list", client.GrantList{Principal: "ana"}, &grants)
	if len(grants) != 2 {
		t.Errorf("grants %+v", grants)
	}
	var page client.AuditRows
	r.Ask("audit/list", client.AuditList{Name: "call_started"}, &page)
	if len(page.Rows) != 1 {
		t.Fatalf("%d starts", len(page.Rows))
	}
	var commit client.AuditRows
	r.Ask("audit/show", client.AuditShow{Seq: page.Rows[0].Seq}, &commit)
	if len(commit.Rows) != 4 { // requested, decided, authorized, started
		t.Errorf("commit %+v", commit.Rows)
	}
	r.Rebuilt()

	// Every page once, and nothing else.
	var seen []uint64
	for after, more := uint64(0), true; more; {
		var page client.AuditRows
		r.Ask("audit/list", client.AuditList{After: after, Limit: 5}, &page)
		for _, row := range page.Rows {
			seen = append(seen, row.Seq<<8|uint64(row.I))
		}
		after, more = page.Next, page.More
	}
	var all []uint64
	for _, c := range r.Log() {
		for i := range c.Events {
			all = append(all, c.Seq<<8|uint64(i))
		}
	}
	if diff := cmp.Diff(all, seen); diff != "" {
		t.Error(diff)
	}
}

func TestReloadNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	r.Declare("bad", "comand: x")
	var out client.CoreReload
	r.Ask("core/reload", nil, &out)
	if len(out.Cores) != 1 || !out.Cores[0].Failed || !slices.ContainsFunc(out.Cores[0].Problems, func(s string) bool { return strings.Contains(s, "unknown_field comand") }) {
		t.Errorf("%+v", out)
	}
	if len(r.Cores.Servers()) != 1 {
		t.Error("the revision before is gone (R13)")
	}
}

func TestLongPollEndsWithTheNews(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	declareEcho(t, r, "docs")
	r.Load()
	r.GrantAll("ana")
	got := r.Connected("ana")
	head := r.Bus.Head()
	answer := make(chan client.AuditRows, 1)
	go func() {
		var out client.AuditRows
		if err := r.Local.Do(r.Context(), "audit/list", client.AuditList{After: head, Name: "approval_requested", WaitMS: 20_000}, &out); err != nil {
			t.Error(err)
		}
		answer <- out
	}()
	r.Call("ana", got.Turn, "docs__echo", `{}`)
	if out := <-answer; len(out.Rows) != 1 || out.Rows[0].Name != "approval_requested" {
		t.Errorf("%+v", out)
	}
}

func TestProviderWithoutToolsGetsNone_R187(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	p := client.TurnPrepare{
		Workspace: rig.Workspace, Session: r.Session("ana"), Principal: "ana", IncludeImplicit: true,
		ExplicitServers: []string{"docs", "nosuch"}, ExplicitTools: []client.ToolSelection{{Server: "docs", Tool: "echo"}},
		Provider: &client.Provider{},
	}
	var got client.Turn
	r.Ask("turn/prepare", p, &got)
	if got.Turn == "" || len(got.Tools)+len(got.Diagnostics) != 0 {
		t.Errorf("%+v", got)
	}
	want := map[string]string{"docs": "provider_unsupported", "nosuch": "provider_unsupported", "docs/echo": "provider_unsupported"}
	recorded := map[string]string{}
	for _, e := range rig.Events[events.CapabilityRejected](r) {
		recorded[e.Label] = e.Reason
	}
	answered := map[string]string{}
	for _, e := range got.Rejected {
		answered[e.Label] = e.Reason
	}
	if diff := cmp.Diff(want, answered); diff != "" || len(recorded) != len(want) || len(got.Rejected) != len(want) {
		t.Errorf("recorded %v, answered (-want +got):\n%s", recorded, diff)
	}
	if n := len(rig.Events[events.ConnectRequested](r)); n != 0 {
		t.Errorf("%d connections were asked for", n)
	}
	// With a provider that takes tools the same selections are honoured.
	p.Provider.SupportsTools, p.ExplicitTools = true, nil
	r.Ask("turn/prepare", p, &got)
	if len(got.Rejected) != 1 || got.Rejected[0].Reason != "not_found" || len(rig.Events[events.ConnectRequested](r)) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestTurnOfAnotherWorkspaceIsRefused_Decision1(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	err := r.Local.Do(r.Context(), "turn/prepare", client.TurnPrepare{Workspace: "other", Session: r.Session("ana"), Principal: "ana"}, nil)
	if !fault.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), "workspace: ") {
		t.Errorf("%v", err)
	}
	if n := len(rig.Events[events.TurnRequested](r)); n != 0 {
		t.Errorf("%d turns were recorded", n)
	}
}

func TestTurnBeyondItsLimitsFailsWhole_R189_R190(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs")
	whole := r.Connected("ana")
	sum := 0
	for _, tool := range whole.Tools {
		canonical := jsontext.Value(tool.InputSchema).Clone()
		if err := canonical.Canonicalize(); err != nil {
			t.Fatal(err)
		}
		sum += len(canonical)
	}
	prepare := func(limits string) (got client.Turn, err error) {
		params := map[string]any{"session": r.Session("ana"), "principal": "ana", "include_implicit": true, "limits": json.RawMessage(limits)}
		return got, r.Local.Do(r.Context(), "turn/prepare", params, &got)
	}
	bound := len(rig.Events[events.TurnBound](r))
	fits := fmt.Sprintf(`{"tools":%d,"schema_bytes":%d}`, len(whole.Tools), sum)
	if got, err := prepare(fits); err != nil || got.ManifestHash != whole.ManifestHash {
		t.Errorf("at the limits: %+v, %v", got, err)
	}
	if _, err := prepare(`{"tools":5000}`); !fault.Is(err, fault.LimitsInvalid) || !strings.Contains(err.Error(), "limits.tools") {
		t.Errorf("%v", err)
	}
	if _, err := prepare(`{"calls":3}`); !fault.Is(err, fault.UnknownArgument) || !strings.Contains(err.Error(), "/limits/calls") {
		t.Errorf("%v", err)
	}
	if _, err := prepare(`{"tools":4}`); !fault.Is(err, fault.TooManyTools) || !strings.Contains(err.Error(), "5, 4 at most") {
		t.Errorf("%v", err)
	}
	if _, err := prepare(fmt.Sprintf(`{"schema_bytes":%d}`, sum-1)); !fault.Is(err, fault.SchemaBytesExceeded) {
		t.Errorf("%v", err)
	}
	if n := len(rig.Events[events.TurnBound](r)) - bound; n != 1 {
		t.Errorf("%d turns were bound, one is within its limits", n)
	}
	want := []events.TurnFailed{
		{Reason: "limits_invalid", Name: "tools", Maximum: 4096},
		{Reason: "too_many_tools", Actual: 5, Maximum: 4},
		{Reason: "schema_bytes_exceeded", Actual: uint32(sum), Maximum: uint32(sum - 1)},
	}
	if diff := cmp.Diff(want, rig.Events[events.TurnFailed](r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]events.LimitsRejected{{Field: "tools", Maximum: 4096}}, rig.Events[events.LimitsRejected](r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The log says what bounded each turn (R192).
	for i, e := range rig.Events[events.TurnRequested](r)[bound:] {
		want := []events.TurnRequested{{MaxTools: 5, MaxSchemaBytes: uint32(sum)}, {}, {MaxTools: 4, MaxSchemaBytes: 3 << 20}, {MaxTools: 512, MaxSchemaBytes: uint32(sum - 1)}}[i]
		if e.MaxTools != want.MaxTools || e.MaxSchemaBytes != want.MaxSchemaBytes {
			t.Errorf("turn %d: %+v", i, e)
		}
	}
}
