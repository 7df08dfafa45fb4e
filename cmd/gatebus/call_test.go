package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// calling is a runtime with one tool docs__read that answers a call.
func calling(turn client.Turn, call func(client.ToolCall) client.CallReply) answers {
	return answers{
		"session/start": always(client.Session{Session: "s-1"}),
		"turn/prepare":  always(turn),
		"tool/call": func(p json.RawMessage) (any, error) {
			var c client.ToolCall
			if err := json.Unmarshal(p, &c); err != nil {
				return nil, err
			}
			return call(c), nil
		},
	}
}

var docsTurn = client.Turn{Turn: "t-1", Tools: []client.Tool{{Name: "docs__read", Server: "docs"}}}

func TestToolCallBindsATurnOfTheSessionCLI(t *testing.T) {
	t.Parallel()
	r := script(t, calling(docsTurn, func(client.ToolCall) client.CallReply {
		return client.CallReply{Status: "succeeded", Call: "k-1", Text: "line 1\nline 2"}
	}))
	r.gatebus("tool", "call", "docs__read", "--as", "ana", "--args", `{"path": "a"}`).wants(t, 0, "line 1\nline 2\n", "")
	want := []string{
		`session/start {"label":"cli","principal":"ana"}`,
		`turn/prepare {"session":"s-1","principal":"ana","include_implicit":true`,
		`tool/call {"turn":"t-1","name":"docs__read","arguments":{"path":"a"},"principal":"ana"`,
	}
	got := r.requests()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestToolCallReadsArgumentsFromFileAndStdin(t *testing.T) {
	t.Parallel()
	r := script(t, calling(docsTurn, func(c client.ToolCall) client.CallReply {
		return client.CallReply{Status: "succeeded", Text: string(c.Arguments)}
	}))
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(`{"from":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"GATEBUS_HOME": r.home}
	call := []string{"tool", "call", "docs__read", "--as", "ana", "--args"}
	execute(t.Context(), env, "", append(call, "@"+file)...).wants(t, 0, `{"from":"file"}`+"\n", "")
	execute(t.Context(), env, `{"from":"stdin"}`, append(call, "-")...).wants(t, 0, `{"from":"stdin"}`+"\n", "")
	execute(t.Context(), env, "", append(call, "{")...).wants(t, 2, "", "error GB1001: --args is not JSON")
	execute(t.Context(), env, "", append(call, "@none")...).wants(t, 2, "", "error GB1001: --args: ")
}

func TestToolCallExitCodes(t *testing.T) {
	t.Parallel()
	failed := func(status string, kind fault.Kind) client.CallReply {
		return client.CallReply{Status: status, Error: &client.CallError{Kind: string(kind), Message: "said so"}}
	}
	for name, c := range map[string]struct {
		reply  client.CallReply
		code   int
		stderr string
	}{
		"isError":            {client.CallReply{Status: "succeeded", Text: "broken", Result: json.RawMessage(`{"isError":true}`)}, 9, ""},
		"failed by isError":  {client.CallReply{Status: "failed", Text: "broken", Result: json.RawMessage(`{"isError":true}`)}, 9, ""},
		"denied":             {failed("denied", fault.CapabilityDenied), 3, "error GB2002: said so"},
		"denied by a person": {failed("denied", fault.ApprovalDenied), 3, "error GB2003: said so"},
		"invalid":            {failed("invalid", fault.InvalidArguments), 2, "error GB5009: said so"},
		"drift":              {failed("invalid", fault.ToolDrift), 7, "error GB5004: said so"},
		"not found":          {failed("not_found", fault.NotFound), 6, "error GB5001: said so"},
		"unavailable":        {failed("failed", fault.RuntimeNotLive), 8, "error GB5007: said so"},
		"login":              {failed("failed", fault.AuthRequired), 4, "error GB3007: said so"},
		"timed out":          {client.CallReply{Status: "timed_out"}, 1, "error GB5012: the call of docs__read ended as timed_out"},
		"indeterminate":      {client.CallReply{Status: "indeterminate"}, 1, "error GB5018: "},
		"unknown kind":       {failed("failed", "new_kind"), 8, "error GB3013: said so"},
		"unknown status":     {client.CallReply{Status: "new"}, 1, "error GB8006: "},
	} {
		r := script(t, calling(docsTurn, func(client.ToolCall) client.CallReply { return c.reply }))
		text := c.reply.Text
		if text != "" {
			text += "\n"
		}
		t.Run(name, func(t *testing.T) {
			r.gatebus("tool", "call", "docs__read", "--as", "ana").wants(t, c.code, text, c.stderr)
			var got client.CallReply
			o := r.gatebus("tool", "call", "docs__read", "--as", "ana", "-o", "json")
			if err := json.Unmarshal([]byte(o.stdout), &got); err != nil || got.Status != c.reply.Status || o.code != c.code {
				t.Errorf("exit %d, %s, %v", o.code, o.stdout, err)
			}
		})
	}
}

func TestToolCallWithoutAsIsDeniedAndNamesAs(t *testing.T) {
	t.Parallel()
	denied := client.Diagnostic{Server: "docs", Code: "capability_denied", Message: "the principal lacks mcp.connect:docs"}
	for _, turn := range []client.Turn{{}, {Diagnostics: []client.Diagnostic{denied}}} {
		r := script(t, calling(turn, func(client.ToolCall) client.CallReply { panic("called") }))
		r.gatebus("tool", "call", "docs__read").wants(t, 3, "", "hint: say whom the call is for with --as PRINCIPAL")
	}
	r := script(t, calling(docsTurn, func(client.ToolCall) client.CallReply {
		return client.CallReply{Status: "denied", Error: &client.CallError{Kind: "capability_denied", Message: "no"}}
	}))
	r.gatebus("tool", "call", "docs__read").wants(t, 3, "", "error GB2002: no\nhint: say whom the call is for with --as PRINCIPAL")
}

func TestToolCallSaysWhyAToolIsMissing(t *testing.T) {
	t.Parallel()
	because := func(code, approval string) client.Turn {
		return client.Turn{Diagnostics: []client.Diagnostic{
			{Server: "other", Code: "url_blocked", Message: "not this"},
			{Server: "docs", Code: code, Message: "because", Approval: approval},
		}}
	}
	never := func(client.ToolCall) client.CallReply { panic("called") }
	for code, exit := range map[string]int{
		"capability_denied": 3, "approval_denied": 3, "url_blocked": 3, "server_failed": 8, "auth_required": 4, "new_code": 8,
	} {
		r := script(t, calling(because(code, ""), never))
		r.gatebus("tool", "call", "docs__read", "--as", "ana").wants(t, exit, "", "server docs: because\n")
	}
	r := script(t, calling(because("approval_pending", "a-7"), never))
	r.gatebus("tool", "call", "docs__read", "--as", "ana", "-q").wants(t, 5, "", "approval a-7\ngatebus approve a-7\nerror GB2004: server docs: because\n")
	r.gatebus("tool", "call", "mail__send", "--as", "ana").wants(t, 6, "", "error GB5001: there is no tool mail__send")
}

func TestToolCallWaitsForTheApprovalThatItNamed(t *testing.T) {
	t.Parallel()
	pending := client.CallReply{
		Status: "approval_pending", Call: "k-1", Approval: &client.ApprovalRef{ID: "a-1", Expires: someTime},
		Error: &client.CallError{Kind: "approval_pending", Message: "the call waits"},
	}
	r := script(t, calling(docsTurn, func(c client.ToolCall) client.CallReply {
		if c.WaitMS == 0 {
			return pending
		}
		return client.CallReply{Status: "succeeded", Call: "k-1", Text: "done"}
	}))
	waits := "the call waits for an approval: gatebus approve a-1\n"
	r.gatebus("tool", "call", "docs__read", "--as", "ana").wants(t, 0, "done\n", waits)
	r.gatebus("tool", "call", "docs__read", "--as", "ana", "--wait", "2m").wants(t, 0, "done\n", waits)
	r.gatebus("tool", "call", "docs__read", "--as", "ana", "--no-wait").
		wants(t, 5, "", "approval a-1\ngatebus approve a-1\nerror GB2004: the call waits\n")
	var waited []int64
	for _, q := range r.requests() {
		if params, ok := strings.CutPrefix(q, "tool/call "); ok {
			var c client.ToolCall
			if err := json.Unmarshal([]byte(params), &c); err != nil {
				t.Fatal(err)
			}
			waited = append(waited, c.WaitMS)
		}
	}
	if want := []int64{0, 45_000, 0, 120_000, 0}; !slices.Equal(waited, want) {
		t.Errorf("waits %v, want %v", waited, want)
	}
	r.gatebus("tool", "call", "docs__read", "--wait", "1s", "--no-wait").wants(t, 2, "", "error GB1001: ")
}

// inbox answers what approve and deny ask.
func inbox(a client.Approval, log ...client.AuditRow) answers {
	return answers{
		"approvals/list": always(client.Approvals{Approvals: []client.Approval{
			{ID: "a-old1", State: "allowed"}, a, {ID: "a-old2", State: "denied"},
		}}),
		"approvals/decide": func(p json.RawMessage) (any, error) {
			var d client.ApprovalsDecide
			if err := json.Unmarshal(p, &d); err != nil {
				return nil, err
			}
			out := a
			out.State = map[string]string{"allow": "allowed", "deny": "denied"}[d.Decision]
			return out, nil
		},
		"audit/list": func(p json.RawMessage) (any, error) {
			var q client.AuditList
			if err := json.Unmarshal(p, &q); err != nil {
				return nil, err
			}
			if len(log) == 0 { // a long poll that brings nothing
				<-time.After(time.Duration(q.WaitMS) * time.Millisecond)
			}
			return client.AuditRows{Rows: log, Next: 99}, nil
		},
	}
}

var (
	connectApproval = client.Approval{
		ID: "a-new", Seq: 10, State: "pending", Action: "mcp.connect", Target: "docs", Server: "docs", Principal: "ana", Aggregate: "connection/c-1",
	}
	callApproval = client.Approval{
		ID: "a-new", Seq: 10, State: "pending", Action: "mcp.call", Target: "docs/read", Server: "docs", Principal: "ana", Aggregate: "call/k-1",
	}
)

func row(aggregate, name, data string) client.AuditRow {
	return client.AuditRow{Seq: 11, Aggregate: aggregate, Name: name, Data: json.RawMessage(data)}
}

func TestApproveOfAConnectionSaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		log            []client.AuditRow
		code           int
		stdout, stderr string
	}{
		"ready": {
			[]client.AuditRow{row("connection/c-1", "approval_decided", `{}`), row("connection/c-1", "tools_discovered", `{"tools":[{"tool":"a"},{"tool":"b"}],"blocked":["b"]}`)},
			0, "approval:    a-new\nstate:       allowed\ntarget:      docs\nconnection:  ready\ntools:       1\n", "",
		},
		"failed": {
			[]client.AuditRow{row("connection/c-2", "tools_discovered", `{}`), row("connection/c-1", "server_failed", `{"kind":"spawn_failed","message":"no such program"}`)},
			8, "approval:    a-new\nstate:       allowed\ntarget:      docs\nconnection:  failed\nreason:      spawn_failed\nmessage:     no such program\n",
			"error GB3003: approved, but server docs is failed: no such program\n",
		},
		"denied": {
			[]client.AuditRow{row("connection/c-1", "server_denied", `{"reason":"capability_denied","stage":"capability"}`)},
			3, "approval:    a-new\nstate:       allowed\ntarget:      docs\nconnection:  denied\nreason:      capability_denied\nmessage:     denied at the stage capability\n",
			"error GB2002: approved, but server docs is denied",
		},
		"lost": {
			[]client.AuditRow{row("connection/c-1", "connection_lost", `{}`)},
			8, "approval:    a-new\nstate:       allowed\ntarget:      docs\nconnection:  closed\n", "error GB3013: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			script(t, inbox(connectApproval, c.log...)).gatebus("approve", "a-n").wants(t, c.code, c.stdout, c.stderr)
		})
	}
}

func TestApproveGivesUpWaitingAfterTimeout(t *testing.T) {
	t.Parallel()
	r := script(t, inbox(connectApproval))
	r.gatebus("approve", "a-new", "--timeout", "2s", "-o", "jsonl").wants(t, 0,
		strings.Replace(mustLine(t, answered{allowed(connectApproval), &connected{State: "connecting"}}), "\n", "", 1)+"\n",
		"hint: the server is still connecting; see gatebus server get docs\n")
}

func allowed(a client.Approval) client.Approval {
	a.State = "allowed"
	return a
}

// mustLine is a value as one line of JSON.
func mustLine(t *testing.T, v any) string {
	t.Helper()
	var out strings.Builder
	m := Main{Stdout: &out}
	if err := m.encode("jsonl", v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestApproveOfACallSaysHowToRetry(t *testing.T) {
	t.Parallel()
	r := script(t, inbox(callApproval))
	r.gatebus("approve", "a-new", "--session", "-o", "name").wants(t, 0, "a-new\n", "hint: a call that still waits goes on; else make the same call again, as ana\n")
	if got, want := r.requests()[1], `approvals/decide {"id":"a-new","decision":"allow","session":true`; !strings.HasPrefix(got, want) {
		t.Errorf("asked %s, want %s…", got, want)
	}
}

func TestDenyCarriesItsNote(t *testing.T) {
	t.Parallel()
	r := script(t, inbox(callApproval))
	r.gatebus("deny", "a-new", "--note", "not today").wants(t, 0, "approval:  a-new\nstate:     denied\ntarget:    docs/read\n", "")
	var d client.ApprovalsDecide
	if err := json.Unmarshal([]byte(strings.TrimPrefix(r.requests()[1], "approvals/decide ")), &d); err != nil {
		t.Fatal(err)
	}
	if want := (client.ApprovalsDecide{ID: "a-new", Decision: "deny", Note: "not today"}); d != want {
		t.Errorf("asked %+v, want %+v", d, want)
	}
}

func TestApprovalIsFoundByUniqueBeginning(t *testing.T) {
	t.Parallel()
	r := script(t, inbox(callApproval))
	r.gatebus("deny", "a-", "-o", "name").wants(t, 0, "a-new\n", "") // the only pending one
	r.gatebus("deny", "a-old1", "-o", "name").wants(t, 0, "a-new\n", "")
	r.gatebus("deny", "a-old").wants(t, 2, "", "error GB1001: a-old is the beginning of several approvals: a-old1, a-old2")
	r.gatebus("deny", "b").wants(t, 6, "", "error GB5001: there is no approval b\nhint: see gatebus approvals list\n")
	r.gatebus("deny", "").wants(t, 6, "", "error GB5001: ")
}

func TestAuditListFollowsPagesUpToTheLimit(t *testing.T) {
	t.Parallel()
	page := func(p json.RawMessage) (any, error) {
		var q client.AuditList
		if err := json.Unmarshal(p, &q); err != nil {
			return nil, err
		}
		out := client.AuditRows{More: q.After < 4}
		for seq := q.After + 1; seq <= q.After+2 && len(out.Rows) < q.Limit; seq++ {
			out.Rows = append(out.Rows, client.AuditRow{Seq: seq})
			out.Next = seq
		}
		return out, nil
	}
	r := script(t, answers{"audit/list": page})
	r.gatebus("audit", "list", "-o", "name").wants(t, 0, "1\n2\n3\n4\n5\n6\n", "")
	r.gatebus("audit", "list", "-o", "name", "--limit", "3").wants(t, 0, "1\n2\n3\n", "")
	r.gatebus("audit", "list", "-o", "name", "--after", "2").wants(t, 0, "3\n4\n5\n6\n", "")
	var rows []client.AuditRow
	if err := json.Unmarshal([]byte(r.gatebus("audit", "list", "-o", "json").stdout), &rows); err != nil || len(rows) != 6 {
		t.Errorf("%d rows, %v; want one list of 6", len(rows), err)
	}
	r.gatebus("audit", "list", "--limit", "-1").wants(t, 2, "", "error GB1001: --limit")
}

func TestAuditFiltersReachTheBus(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"audit/list": always(client.AuditRows{})})
	r.gatebus("audit", "list", "--name", "call_started", "--server", "docs", "--principal", "ana", "--call", "k-1",
		"--since", "2026-11-01", "--until", "2026-11-02T00:00:00Z", "--after", "3", "--limit", "5")
	want := `audit/list {"name":"call_started","server":"docs","principal":"ana","call":"k-1","since":"2026-11-01T00:00:00Z","until":"2026-11-02T00:00:00Z","after":3,"limit":5`
	if got := r.requests(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("asked %q, want %s", got, want)
	}
}

func TestAuditShowPrintsOneCommit(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"audit/show": always(client.AuditRows{Rows: []client.AuditRow{
		{Seq: 7, I: 0, Time: someTime, Aggregate: "call/k-1", Actor: "local", Principal: "ana", Name: "call_requested", Data: json.RawMessage(`{"tool":"read"}`)},
		{Seq: 7, I: 1, Time: someTime, Aggregate: "call/k-1", Name: "call_started", Data: json.RawMessage(`{}`)},
	}})})
	r.gatebus("audit", "show", "7").wants(t, 0, `commit:     7
time:       2026-11-29T18:00:00Z
aggregate:  call/k-1
principal:  ana
actor:      local
event 0:    call_requested
{
  "tool": "read"
}
event 1:  call_started
{}
`, "")
	r.gatebus("audit", "show", "x").wants(t, 2, "", `error GB1001: "x" is no place in the log`)
}

func TestWatchesPrintALineAnEventUntilInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Each question is answered by what is new; the third finds the watcher gone.
	audit := func(p json.RawMessage) (any, error) {
		var q client.AuditList
		if err := json.Unmarshal(p, &q); err != nil {
			return nil, err
		}
		switch q.After {
		case 5:
			return client.AuditRows{Rows: []client.AuditRow{{Seq: 6, Name: "a"}, {Seq: 6, I: 1, Name: "b"}}, Next: 6}, nil
		case 6:
			return client.AuditRows{Rows: []client.AuditRow{{Seq: 7, Time: someTime, Name: "c", Aggregate: "call/k", Data: json.RawMessage(`{}`)}}, Next: 7}, nil
		}
		cancel()
		return client.AuditRows{Next: q.After}, nil
	}
	r := script(t, answers{"audit/list": audit, "bus/info": always(client.BusInfo{Commits: 5})})
	env := map[string]string{"GATEBUS_HOME": r.home}
	execute(ctx, env, "", "audit", "watch").wants(t, interrupted,
		"6.0  -  a  -  -  -  null\n6.1  -  b  -  -  -  null\n7.0  2026-11-29T18:00:00Z  c  call/k  -  -  {}\n", "")
	execute(t.Context(), env, "", "audit", "watch", "--after", "5", "--limit", "3", "-o", "name").wants(t, 0, "6\n6\n7\n", "")
	execute(t.Context(), env, "", "audit", "watch", "--after", "6", "--limit", "1", "-o", "yaml").wants(t, 0, "---\n"+mustYAML(t, client.AuditRow{
		Seq: 7, Time: someTime, Name: "c", Aggregate: "call/k", Data: json.RawMessage(`{}`),
	}), "")
}

func mustYAML(t *testing.T, v any) string {
	t.Helper()
	var out strings.Builder
	m := Main{Stdout: &out}
	if err := m.encode("yaml", v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestApprovalsWatchPrintsEachChange(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := func(id, state string) client.Approval { return client.Approval{ID: id, State: state} }
	list := func(p json.RawMessage) (any, error) {
		var q client.ApprovalsList
		if err := json.Unmarshal(p, &q); err != nil {
			return nil, err
		}
		switch {
		case q.WaitMS == 0:
			return client.Approvals{After: 1, Approvals: []client.Approval{at("a", "pending"), at("old", "denied")}}, nil
		case q.After == 1:
			return client.Approvals{After: 2, Approvals: []client.Approval{at("a", "pending"), at("b", "pending"), at("old", "denied")}}, nil
		case q.After == 2:
			return client.Approvals{After: 3, Approvals: []client.Approval{at("a", "allowed"), at("b", "pending"), at("old", "denied")}}, nil
		}
		cancel()
		return client.Approvals{After: q.After}, nil
	}
	r := script(t, answers{"approvals/list": list})
	o := execute(ctx, map[string]string{"GATEBUS_HOME": r.home}, "", "approvals", "watch")
	o.wants(t, interrupted, "-  pending  a  -  -  -  -  -\n-  pending  b  -  -  -  -  -\n-  allowed  a  -  -  -  -  -\n", "")
}

func TestApprovalShowPrintsPreviewAndArguments(t *testing.T) {
	t.Parallel()
	a := callApproval
	a.Expires, a.Preview, a.Arguments = someTime.Add(time.Minute), json.RawMessage(`{"tool":"read"}`), `{"path":"a"}`
	r := script(t, answers{"approvals/list": always(client.Approvals{Approvals: []client.Approval{a}}), "approvals/get": always(a)})
	r.gatebus("approvals", "show", "a").wants(t, 0, `id:         a-new
state:      pending
action:     mcp.call
target:     docs/read
principal:  ana
server:     docs
waits:      call/k-1
expires:    2026-11-29T18:01:00Z
preview:
{
  "tool": "read"
}
arguments:
{"path":"a"}
`, "")
}

func TestAuditExportWritesLinesThatNameEachEventForEver(t *testing.T) {
	t.Parallel()
	rows := func(p json.RawMessage) (any, error) {
		var q client.AuditList
		if err := json.Unmarshal(p, &q); err != nil {
			return nil, err
		}
		row := client.AuditRow{
			Seq: q.After + 1, I: 2, Time: someTime, Name: "call_started", Aggregate: "call/k-1", Workspace: "default", Principal: "ana",
			Actor: "local", Call: "k-1", Causation: "cmd", Correlation: "flow", Data: json.RawMessage(`{"runtime":"r-1"}`),
		}
		return client.AuditRows{Rows: []client.AuditRow{row}, Next: row.Seq, More: row.Seq < 3}, nil
	}
	r := script(t, answers{"audit/list": rows, "bus/info": always(client.BusInfo{HomeID: "h-1"})})
	got := r.gatebus("audit", "export", "--format", "cloudevents", "--after", "1")
	got.wants(t, 0, `{"specversion":"1.0","id":"2.2","source":"urn:gatebus:h-1:default","type":"mcp.call_started","time":"2026-11-29T18:00:00Z",`+
		`"subject":"call/k-1","datacontenttype":"application/json","workspace":"default","principal":"ana","actor":"local","call":"k-1",`+
		`"causation":"cmd","correlation":"flow","data":{"runtime":"r-1"}}`+"\n"+
		`{"specversion":"1.0","id":"3.2","source":"urn:gatebus:h-1:default","type":"mcp.call_started","time":"2026-11-29T18:00:00Z",`+
		`"subject":"call/k-1","datacontenttype":"application/json","workspace":"default","principal":"ana","actor":"local","call":"k-1",`+
		`"causation":"cmd","correlation":"flow","data":{"runtime":"r-1"}}`+"\n", "up to commit 3 of the log")
	list := r.gatebus("audit", "list", "-o", "jsonl").stdout
	if export := r.gatebus("audit", "export", "--format", "jsonl").stdout; export != list || strings.Count(list, "\n") != 3 {
		t.Errorf("%s\nis not\n%s", export, list)
	}
	r.gatebus("audit", "export").wants(t, 2, "", "error GB1001: --format")
	r.gatebus("audit", "export", "--format", "csv").wants(t, 2, "", "error GB1001: --format")
}

func TestAuditPageThatCutsACommitIsMadeWhole(t *testing.T) {
	t.Parallel()
	many := func(n int) (out client.AuditRows) {
		for i := range n {
			out.Rows = append(out.Rows, client.AuditRow{Seq: 1, I: i, Name: []string{"call_started", "call_succeeded"}[i%2]})
		}
		return out
	}
	cut := many(1000)
	cut.More, cut.Next = true, 1
	pages := []client.AuditRows{cut, {Next: 9}}
	r := script(t, answers{"audit/show": always(many(1003)), "audit/list": func(p json.RawMessage) (any, error) {
		var q client.AuditList
		err := json.Unmarshal(p, &q)
		return pages[q.After], err
	}})
	if n := strings.Count(r.gatebus("audit", "export", "--format", "jsonl").stdout, "\n"); n != 1003 {
		t.Errorf("%d events of 1003", n)
	}
	if n := strings.Count(r.gatebus("audit", "export", "--format", "jsonl", "--name", "call_started").stdout, "\n"); n != 502 {
		t.Errorf("%d events of 502", n)
	}
}

func TestAuditReplayShowsAPlaceOfTheLog(t *testing.T) {
	t.Parallel()
	state := client.AuditState{
		Seq: 7, Time: someTime, Grants: []client.Grant{{Principal: "ana", Capability: "mcp.call:docs"}},
		Hosts:     []client.Host{{Name: "bob", Role: "auditor", Revoked: true}},
		Servers:   []client.Server{{Name: "docs", State: "ready", Tools: 2, Connections: []client.ServerConnection{{Connection: "c-1", State: "ready", Principal: "ana"}}}},
		Sessions:  []client.SessionInfo{{Session: "s-1", Principal: "ana", Label: "/mcp", Active: true, Turns: 1}},
		Tools:     []client.ToolInfo{{Name: "docs__read", Principal: "ana", Digest: "d1", Blocked: true}},
		Approvals: []client.Approval{{ID: "a-1", State: "pending", Action: "mcp.call", Target: "docs/read", Principal: "ana"}},
	}
	r := script(t, answers{"audit/asof": always(state)})
	r.gatebus("audit", "replay", "--at", "7").wants(t, 0, `WHAT        NAME               STATE    DETAIL
host        bob                revoked  auditor
grant       ana mcp.call:docs  held     -
server      docs               ready    2 tools
connection  c-1                ready    ana
session     s-1                active   ana /mcp, 1 turns, 0 calls under way
tool        docs__read         blocked  ana d1
approval    a-1                pending  mcp.call docs/read ana
`, "as of commit 7 of the log, 2026-11-29T18:00:00Z")
	r.gatebus("audit", "replay", "--at", "2026-11-29T18:00:00Z", "--all", "-o", "json")
	r.gatebus("audit", "replay", "-o", "name", "-q").wants(t, 0, "7\n", "")
	want := []string{`audit/asof {"at_seq":7}`, `audit/asof {"at_time":"2026-11-29T18:00:00Z","all":true}`, `audit/asof {}`}
	if diff := cmp.Diff(want, r.requests()); diff != "" {
		t.Error(diff)
	}
	for _, at := range []string{"0", "", "yesterday", "-1"} {
		r.gatebus("audit", "replay", "--at", at).wants(t, 2, "", "error GB1001: --at")
	}
}
