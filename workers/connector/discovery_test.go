package connector_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/connector"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/live"
)

// declared starts a rig with one server, whose connection ana may use.
func declared(t *testing.T, server string, lines ...string) *rig.Rig {
	t.Helper()
	r := rig.New(t, rig.Options{})
	r.Declare(server, lines...)
	r.Load()
	r.GrantAll("ana")
	return r
}

func misbehave(t *testing.T, args ...string) string {
	return rig.Command(fakes.Build(t, "misbehave"), args...)
}

// names are the raw names of a turn's tools.
func names(turn client.Turn) (out []string) {
	for _, tool := range turn.Tools {
		out = append(out, tool.RawName)
	}
	return out
}

// gone fails unless the pool gets rid of the connection that was there.
func gone(t *testing.T, r *rig.Rig, conns ...*live.Conn) {
	t.Helper()
	for _, c := range conns {
		select {
		case <-c.Done():
		case <-r.Context().Done():
			t.Error("a connection has not ended")
		}
	}
	for key := range r.Pool.All() {
		t.Errorf("the pool still has %v", key)
	}
}

func open(r *rig.Rig) (conns []*live.Conn) {
	for _, c := range r.Pool.All() {
		conns = append(conns, c)
	}
	return conns
}

func TestOpenedConnectionSaysWhatRuns_R75_R76(t *testing.T) {
	t.Parallel()
	program := fakes.Build(t, "echo")
	r := rig.New(t, rig.Options{Env: map[string]string{
		"PATH": "/usr/bin:/bin", "HOME": "/nobody", "USER": "canary-user", "AWS_SECRET_ACCESS_KEY": "canary-aws", "FROM_HOST": "value", "LANG": "",
	}})
	r.Declare("docs server", rig.Command(program), "approval_policy: auto", "env: {OWN: '${FROM_HOST}'}")
	r.Load()
	r.GrantAll("ana")
	turn := r.Connected("ana")
	e := rig.Events[events.ConnectionOpened](r)[0]
	if diff := cmp.Diff([]string{"HOME", "OWN", "PATH", "TERM", "TMPDIR"}, e.EnvNames); diff != "" {
		t.Error(diff)
	}
	if e.Runtime != r.Runtime || e.Program != filepath.Base(program) || len(e.ProgramDigest) != 64 || e.Protocol == "" || e.ServerName.String() != "fake" {
		t.Errorf("%+v", e)
	}
	reply := r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs server", "secret").Name, `{"names":["HOME","TMPDIR"]}`)
	place := filepath.Join(r.Home, "mcp", "docs%20server")
	for _, dir := range []string{"home", "tmp"} {
		if info, err := os.Stat(filepath.Join(place, dir)); err != nil || info.Mode().Perm() != 0o700 || !strings.Contains(reply.Text, filepath.Join(place, dir)) {
			t.Errorf("%s: %v %v, the server says %s", dir, info, err, reply.Text)
		}
	}
}

func TestAllPagesAreRead_R133(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "pages"))
	if diff := cmp.Diff([]string{"b", "call"}, names(r.Connected("ana"))); diff != "" {
		t.Error(diff)
	}
	if d := rig.Events[events.ToolsDiscovered](r)[0]; len(d.Tools) != 2 || d.Dropped != 1 {
		t.Errorf("a name on both pages: %+v", d)
	}
}

func TestServerThatFailsSaysHow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line, stage string
		kind        fault.Kind
	}{
		"command not found":                      {"command: /none/such", "spawn", fault.SpawnFailed},
		"exits at once":                          {rig.Command("/bin/sh", "-c", "exit 1"), "initialize", fault.InitializeFailed},
		"another framing":                        {misbehave(t, "content-length"), "initialize", fault.InitializeFailed},
		"refuses":                                {misbehave(t, "refuse"), "initialize", fault.InitializeFailed},
		"a notice before the refusal":            {misbehave(t, "early-notice"), "initialize", fault.InitializeFailed},
		"an unknown revision":                    {misbehave(t, "version", "1999-01-01"), "initialize", fault.InitializeFailed},
		"an error for the list (R133)":           {misbehave(t, "broken"), "list", fault.ListToolsFailed},
		"one cursor for ever (R133)":             {misbehave(t, "loop-cursor"), "list", fault.ListToolsFailed},
		"more tools than there may be (R133)":    {misbehave(t, "crowd"), "list", fault.ListToolsFailed},
		"never answers initialize (R131)":        {misbehave(t, "hang-initialize") + "\nconnect_timeout_seconds: 0.4", "initialize", fault.ConnectTimeout},
		"stops reading after the hello (R131)":   {misbehave(t, "no-read") + "\nconnect_timeout_seconds: 0.4", "list", fault.ConnectTimeout},
		"never ends its list of tools (R131)":    {misbehave(t, "endless") + "\nconnect_timeout_seconds: 3", "list", fault.ListToolsFailed},
		"a secret in the text of its own (R123)": {misbehave(t, "refuse") + "\nenv: {API_TOKEN: s3cret}", "initialize", fault.InitializeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := declared(t, "docs", test.line)
			begun := time.Now()
			wantDiagnostic(t, r.Connected("ana"), "docs", fault.ServerFailed)
			wantFailed(t, r, test.stage, test.kind)
			if d := time.Since(begun); d > 15*time.Second {
				t.Errorf("it took %s", d)
			}
			gone(t, r)
			if r.Stored("s3cret") {
				t.Error("the text of the server is in the log")
			}
		})
	}
}

func TestServerThatIsOddIsConnected(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args  []string
		tools []string
	}{
		"banner (C2 7)":                   {[]string{"banner"}, []string{"call"}},
		"lines that are none (C2 9)":      {[]string{"garbage"}, []string{"call"}},
		"much standard error (C2 14)":     {[]string{"stderr-flood"}, []string{"call"}},
		"no tools capability (C3 26)":     {[]string{"no-tools"}, nil},
		"no such method (C3 26)":          {[]string{"not-found"}, nil},
		"dies of an unknown request":      {[]string{"probe-exit"}, []string{"call"}},
		"an older revision (C3 24)":       {[]string{"version", "2024-11-05"}, []string{"call"}},
		"definitions of all forms (R48)":  {[]string{"odd-shapes"}, []string{"blank", "empty", "good", "half", "list", "none", "null"}},
		"a notice with each list (C4 30)": {[]string{"list-changed"}, []string{"call"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := declared(t, "docs", misbehave(t, test.args...))
			turn := r.Connected("ana")
			if diff := cmp.Diff(test.tools, names(turn)); diff != "" || len(turn.Diagnostics) > 0 {
				t.Errorf("tools (-want +got):\n%s%+v", diff, turn.Diagnostics)
			}
			for _, tool := range turn.Tools {
				if !strings.Contains(string(tool.Definition), `"name":"docs__`+tool.RawName+`"`) {
					t.Errorf("definition of %s: %s", tool.RawName, tool.Definition)
				}
			}
		})
	}
}

func TestDefinitionsAreTheServersBytes_Decision22(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "odd-shapes"))
	want := `{"z":1,"name":"docs__good","inputSchema":{"type":"object","$defs":{"n":{"$ref":"#/$defs/n"}},"maximum":9007199254740993},"execution":{"taskSupport":"optional"},"a":1.0}`
	if diff := cmp.Diff(want, string(rig.Tool(t, r.Connected("ana"), "docs", "good").Definition)); diff != "" {
		t.Error(diff)
	}
	untouched := r.Prepare("ana", func(p *decider.Preparation) { p.Implicit, p.Servers, p.Untouched = false, []string{"docs"}, true })
	if diff := cmp.Diff([]string{"good", "none", "null", "list", "empty", "half", "blank"}, names(untouched)); diff != "" {
		t.Errorf("the order is not the server's (-want +got):\n%s", diff)
	}
	blank := `{ "description" : "<b>\u2028` + "\u2028" + ` \ud83d" , "name":"blank",	"inputSchema" : { } }`
	if diff := cmp.Diff(blank, string(rig.Tool(t, untouched, "docs", "blank").Definition)); diff != "" {
		t.Error(diff)
	}
	tool := rig.Tool(t, untouched, "docs", "good")
	if diff := cmp.Diff(strings.Replace(want, "docs__", "", 1), string(tool.Definition)); diff != "" || tool.Name != "docs__good" {
		t.Errorf("%s: %s", tool.Name, diff)
	}
}

func TestHangingServerDoesNotTouchTheOthers_R131_R132(t *testing.T) {
	t.Parallel()
	r := declared(t, "hangs", misbehave(t, "hang-initialize"), "connect_timeout_seconds: 0.5")
	r.Declare("works", misbehave(t, "banner"))
	r.Load()
	turn := r.Connected("ana")
	rig.Tool(t, turn, "works", "call")
	wantDiagnostic(t, turn, "hangs", fault.ServerFailed)
	wantFailed(t, r, "initialize", fault.ConnectTimeout)
	conns := open(r)
	if len(conns) != 1 {
		t.Errorf("%d connections are open", len(conns))
	}
}

func TestFourDiscoveriesAtOnce_R130(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	const servers = 7
	for i := range servers {
		r.Declare(fmt.Sprintf("hangs%d", i), misbehave(t, "hang-initialize"), "connect_timeout_seconds: 0.4")
	}
	r.Load()
	for i := range 2 { // in different sessions too
		r.GrantAll(fmt.Sprint("p", i))
		r.Prepare(fmt.Sprint("p", i))
	}
	for _, a := range r.Pending() {
		r.Decide(a.ID, true)
	}
	for i := range 2 {
		r.Prepare(fmt.Sprint("p", i))
	}
	now, most, failed := 0, 0, 0
	for _, c := range r.Log() {
		for _, e := range c.Events {
			switch e.(type) {
			case events.ConnectionClaimed:
				now++
				most = max(most, now)
			case events.ServerFailed:
				now--
				failed++
			}
		}
	}
	if most != connector.Slots || failed != 2*servers {
		t.Errorf("%d at once, want %d; %d failed", most, connector.Slots, failed)
	}
}

func TestServerThatDiesIsClosed_R56(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "exit"), "approval_policy: auto")
	turn := r.Connected("ana")
	conns := open(r)
	if reply := r.Call("ana", turn.Turn, "docs__call", `{}`); reply.Status != "indeterminate" {
		t.Errorf("the call that it died in: %+v", reply)
	}
	e := rig.Await(r, func(e events.ConnectionClosed) bool { return e.Reason == "server_ended" })
	if e.Exit != "exit status 3" {
		t.Errorf("exit %q", e.Exit)
	}
	gone(t, r, conns...)

	// The next turn opens it again under the approval that stands.
	turn = r.Prepare("ana")
	rig.Tool(t, turn, "docs", "call")
	if n := len(rig.Events[events.ApprovalRequested](r)); n != 1 {
		t.Errorf("%d approvals were asked for", n)
	}
}

func TestChangedToolIsBlockedAlone_Decision7(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "drift"), "approval_policy: auto")
	turn := r.Connected("ana")
	change := func() {
		t.Helper()
		if reply := r.Call("ana", turn.Turn, "docs__change", `{}`); reply.Status != "succeeded" {
			t.Fatalf("%+v", reply)
		}
	}
	change()
	pending := r.AwaitPending(1)[0]
	if pending.Action != connection.ActionTool || pending.Target != "docs/drifting" || !strings.Contains(pending.Preview, "version 1") {
		t.Errorf("pending %+v", pending)
	}
	refused := func(turn client.Turn, kind fault.Kind) {
		t.Helper()
		if reply := r.Call("ana", turn.Turn, "docs__drifting", `{}`); reply.ExecutionStarted || reply.Error == nil || reply.Error.Kind != string(kind) {
			t.Errorf("%+v, want %s", reply, kind)
		}
	}
	refused(turn, fault.ToolChanged)
	if reply := r.Call("ana", turn.Turn, "docs__steady", `{}`); reply.Status != "succeeded" {
		t.Errorf("the others stay: %+v", reply)
	}
	if diff := cmp.Diff([]string{"change", "steady"}, names(r.Prepare("ana"))); diff != "" {
		t.Error(diff)
	}

	// A second change makes the question about the first one void.
	change()
	for pending.Target = ""; pending.Target == ""; {
		if p := r.AwaitPending(1)[0]; strings.Contains(p.Preview, "version 2") {
			pending = p
		}
	}
	r.Decide(pending.ID, true)
	fresh := r.Prepare("ana")
	if diff := cmp.Diff([]string{"change", "drifting", "steady"}, names(fresh)); diff != "" {
		t.Error(diff)
	}
	if reply := r.Call("ana", fresh.Turn, "docs__drifting", `{}`); reply.Status != "succeeded" {
		t.Errorf("after the yes: %+v", reply)
	}
	refused(turn, fault.ToolDrift) // the old turn means the old definition
}

func TestPolicyMayFlagChangesInsteadOfBlocking_Decision7(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Policy: events.Policy{OnChange: "flag"}})
	r.Declare("docs", misbehave(t, "drift"), "approval_policy: auto")
	r.Load()
	r.GrantAll("ana")
	turn := r.Connected("ana")
	r.Call("ana", turn.Turn, "docs__change", `{}`)
	first := rig.Events[events.ToolsDiscovered](r)[0].CatalogVersion
	rig.Await(r, func(e events.ToolsDiscovered) bool { return e.CatalogVersion != first && len(e.Blocked) == 0 })
	if reply := r.Call("ana", turn.Turn, "docs__drifting", `{}`); reply.Error == nil || reply.Error.Kind != string(fault.ToolDrift) {
		t.Errorf("the old turn: %+v", reply)
	}
	if reply := r.Call("ana", r.Prepare("ana").Turn, "docs__drifting", `{}`); reply.Status != "succeeded" || len(r.Pending()) > 0 {
		t.Errorf("the new turn: %+v", reply)
	}
}

func TestToolThatChangesWhileItIsListedForTheFirstTimeIsSeen(t *testing.T) {
	t.Parallel()
	// Every list has another definition; the notice of a change comes with the
	// first list, that is, before the opening is in the log.
	r := declared(t, "docs", rig.Command("/bin/sh", "-c", `
list() { printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'; }
n=0
while read -r line; do
	id=${line#*\"id\":}; id=${id%%,*}; id=${id%%\}*}
	case $line in
	*'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}\n' "$id";;
	*'"tools/list"'*) n=$((n+1)); [ $n = 1 ] && list; printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"call","description":"version %s"}]}}\n' "$id" "$n";;
	esac
done`))
	r.Connected("ana")
	rig.Await(r, func(e events.ToolsDiscovered) bool { return slices.Contains(e.Blocked, "call") })
}

func TestConnectionThatIsClosedWhileItIsOpenedIsNotOpened(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.GrantAll("ana")
	hangs := func(i int) string { return fmt.Sprint("hangs", i) }
	for i := range connector.Slots {
		r.Declare(hangs(i), misbehave(t, "hang-initialize"))
	}
	r.Load()
	r.Prepare("ana")
	for _, a := range r.Pending() {
		r.Decide(a.ID, true)
		r.AwaitConnection("ana", a.Server, func(s connection.State) bool { return s.Phase == connection.Opening })
	}
	r.Ask("session/end", client.Session{Session: r.Session("ana")}, nil)
	// The slots are free again long before the thirty seconds of the handshake.
	if err := os.RemoveAll(filepath.Join(r.Dirs[0], "agent", "mcp")); err != nil {
		t.Fatal(err)
	}
	r.Declare("works", misbehave(t, "banner"))
	r.Load()
	begun := time.Now()
	rig.Tool(t, r.Connected("ana"), "works", "call")
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("it took %s", d)
	}
	for i := range connector.Slots {
		if s := r.Connection("ana", hangs(i)); s.Phase != connection.Closed {
			t.Errorf("%s is %s", hangs(i), s.Phase)
		}
	}
}

func TestSessionThatEndsTakesItsConnectionsAndQuestionsWithIt_R148(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "banner"))
	r.Connected("ana")
	conns := open(r)
	r.Declare("more", misbehave(t, "banner"))
	r.Load()
	r.Prepare("ana")
	question := r.AwaitPending(1)[0].ID
	r.Ask("session/end", client.Session{Session: r.Session("ana")}, nil)
	if n := len(r.Pending()); n != 0 {
		t.Errorf("%d approvals wait for a session that has ended", n)
	}
	if err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: question, Decision: "allow"}, nil); err == nil {
		t.Error("a yes was taken")
	}
	gone(t, r, conns...)
}

func TestStopLeavesNoConnectionAndNoOpening(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "hang-initialize"))
	r.Declare("works", misbehave(t, "banner"))
	r.Load()
	r.Prepare("ana")
	for _, a := range r.Pending() {
		r.Decide(a.ID, true)
	}
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Opening })
	r.AwaitConnection("ana", "works", func(s connection.State) bool { return s.Phase == connection.Open })
	conns := open(r)
	r.Stop()
	s := r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Closed })
	if s.RetryAfter.After(time.Now()) {
		t.Error("the end of the runtime counts as a failure of the server")
	}
	gone(t, r, conns...)
}
