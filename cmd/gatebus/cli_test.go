package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/hidden"
	"github.com/gatebus/gatebus/events/redact"
)

// answers are the methods of a scripted runtime. Only the answers are scripted:
// the bus, its accounts and the way to it are the real ones.
type answers map[string]func(params json.RawMessage) (any, error)

// always answers with a value.
func always(v any) func(json.RawMessage) (any, error) {
	return func(json.RawMessage) (any, error) { return v, nil }
}

// refuses answers with an error.
func refuses(kind fault.Kind) func(json.RawMessage) (any, error) {
	return func(json.RawMessage) (any, error) {
		return nil, fault.New("test", kind, redact.Static("scripted refusal"))
	}
}

// scripted is a running bus with scripted answers, and what it was asked.
type scripted struct {
	t    *testing.T
	home string

	mu    sync.Mutex
	asked []string // method and params
}

func script(t *testing.T, a answers) *scripted {
	t.Helper()
	r := &scripted{t: t, home: t.TempDir()}
	b, err := bus.Open(t.Context(), bus.Options{Home: r.home, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
		bustest.Sweep(r.home)
	})
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for method, answer := range a {
		if err := b.Serve(method, func(_ context.Context, q *bus.Request) (any, error) {
			r.mu.Lock()
			r.asked = append(r.asked, method+" "+string(q.Data))
			r.mu.Unlock()
			return answer(q.Data)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Announce(t.Context(), "r-1", nil); err != nil {
		t.Fatal(err)
	}
	return r
}

// requests are what was asked so far.
func (r *scripted) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// outcome is what one run of the program said.
type outcome struct {
	code           int
	stdout, stderr string
}

// gatebus runs the program on the home of the runtime.
func (r *scripted) gatebus(args ...string) outcome {
	r.t.Helper()
	return execute(r.t.Context(), map[string]string{"GATEBUS_HOME": r.home}, "", args...)
}

// execute runs the program.
func execute(ctx context.Context, env map[string]string, stdin string, args ...string) outcome {
	var out, errs bytes.Buffer
	m := Main{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string { return env[name] },
	}
	code := m.Run(ctx)
	return outcome{code, out.String(), errs.String()}
}

// wants fails unless the outcome is as wanted; stderr needs to hold a text only.
func (o outcome) wants(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.stdout, o.stderr)
	}
	if diff := cmp.Diff(stdout, o.stdout); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	if !strings.Contains(o.stderr, stderr) || stderr == "" && o.stderr != "" {
		t.Errorf("stderr %q, want %q in it", o.stderr, stderr)
	}
}

var someTime = time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)

// lists are the list verbs, their methods, and an answer of one row with its
// name.
var lists = []struct {
	args   []string
	method string
	none   any
	one    any
	name   string
}{
	{[]string{"server", "list"}, "mcp/list", []client.Server{}, []client.Server{{Name: "docs"}}, "docs"},
	{[]string{"server", "logs", "docs"}, "mcp/server/logs", []client.ServerLog{}, []client.ServerLog{{Connection: "c-1"}}, "c-1"},
	{[]string{"host", "list"}, "host/list", []client.Host{}, []client.Host{{Name: "cursor"}}, "cursor"},
	{[]string{"tool", "list"}, "tool/list", []client.ToolInfo{}, []client.ToolInfo{{Name: "docs__read"}}, "docs__read"},
	{[]string{"grant", "list"}, "grant/list", []client.Grant{}, []client.Grant{{Principal: "ana", Capability: "mcp.read"}}, "ana mcp.read"},
	{[]string{"secret", "list"}, "secret/list", []client.Secret{}, []client.Secret{{Ref: "r", Scope: "workspace:default", Server: "docs", Place: "env", Key: "TOKEN"}}, "docs/env/TOKEN"},
	{[]string{"approvals", "list"}, "approvals/list", client.Approvals{}, client.Approvals{Approvals: []client.Approval{{ID: "a-1"}}}, "a-1"},
	{[]string{"audit", "list"}, "audit/list", client.AuditRows{}, client.AuditRows{Rows: []client.AuditRow{{Seq: 7}}}, "7"},
	{[]string{"audit", "trace", "k-1"}, "audit/trace", client.AuditRows{}, client.AuditRows{Rows: []client.AuditRow{{Seq: 7}}}, "7"},
}

func TestEmptyListIsAnEmptyList(t *testing.T) {
	t.Parallel()
	for _, l := range lists {
		r := script(t, answers{l.method: always(l.none)})
		r.gatebus(append(l.args, "-o", "json")...).wants(t, 0, "[]\n", "")
		r.gatebus(append(l.args, "-o", "yaml")...).wants(t, 0, "[]\n", "")
		r.gatebus(append(l.args, "-o", "jsonl")...).wants(t, 0, "", "")
		r.gatebus(append(l.args, "-o", "name")...).wants(t, 0, "", "")
	}
}

func TestOutputNamePrintsNamesOnly(t *testing.T) {
	t.Parallel()
	for _, l := range lists {
		r := script(t, answers{l.method: always(l.one)})
		r.gatebus(append(l.args, "-o", "name")...).wants(t, 0, l.name+"\n", "")
	}
}

func TestOutputFormatComesFromFlagThenEnvironment(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"host/list": always([]client.Host{{Name: "cursor", Role: "host", Credentials: []client.HostCredential{
		{ID: "key-1", Kind: "key", PublicKey: "U1", Workspace: "default", Expires: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}, {ID: "tok-1", Kind: "token", Workspace: "default"},
	}}, {Name: "gone", Role: "auditor", Revoked: true}})})
	env := map[string]string{"GATEBUS_HOME": r.home, "GATEBUS_OUTPUT": "jsonl"}
	line := `{"name":"cursor","role":"host","revoked":false,"credentials":[` +
		`{"id":"key-1","kind":"key","public_key":"U1","workspace":"default","expires":"2030-01-01T00:00:00Z"},` +
		`{"id":"tok-1","kind":"token","workspace":"default"}]}` + "\n" + `{"name":"gone","role":"auditor","revoked":true,"credentials":[]}` + "\n"
	execute(t.Context(), env, "", "host", "list").wants(t, 0, line, "")
	execute(t.Context(), env, "", "host", "list", "-o", "name").wants(t, 0, "cursor\ngone\n", "")
	r.gatebus("host", "list").wants(t, 0,
		"NAME    ROLE     REVOKED  CREDENTIAL  KIND   EXPIRES\n"+
			"cursor  host     false    key-1       key    2030-01-01T00:00:00Z\n"+
			"cursor  host     false    tok-1       token  -\n"+
			"gone    auditor  true     -           -      -\n", "")
	execute(t.Context(), map[string]string{"GATEBUS_OUTPUT": "xml"}, "", "version").wants(t, 2, "", `error GB1001: output "xml" is none of`)
}

func TestTerminalNeverObeysWhatComesFromOutside(t *testing.T) {
	t.Parallel()
	evil := "a\x1b[2J\u202eb\u009b1m\nfake row\tx\x00\u3164\ufe0f\U000e0041\u200b"
	a := client.Approval{ID: "a-1", State: "pending", Target: evil, Server: evil, Note: evil, Preview: json.RawMessage(`{"command":"\u001b[2J` + "\u202e" + `"}`)}
	reply := client.CallReply{Status: "succeeded", Call: "k-1", Text: evil, Result: json.RawMessage(`{"content":[{"text":"` + "\u202e\u009b" + `"}]}`)}
	r := script(t, answers{
		"mcp/list":           always([]client.Server{{Name: evil, State: evil, Core: evil}}),
		"mcp/server/logs":    always([]client.ServerLog{{Connection: evil, Exit: evil, Text: evil}}),
		"mcp/server/details": always(client.Server{Name: evil, Connections: []client.ServerConnection{{Message: evil, Flags: []client.ItemFlag{{Name: evil}}}}}),
		"approvals/list":     always(client.Approvals{Approvals: []client.Approval{a}}),
		"approvals/get":      always(a),
		"audit/show":         always(client.AuditRows{Rows: []client.AuditRow{{Name: evil, Data: json.RawMessage(`{"x":"` + "\u202e" + `"}`)}}}),
		"tool/list":          always([]client.ToolInfo{{Name: "t", RawName: evil, Description: evil, Definition: json.RawMessage(`{"description":"` + "\u202e\ufe0f\U000e0041" + `"}`)}}),
		"policy/explain":     always(client.PolicyExplanation{Server: evil, RawName: evil, Steps: []client.PolicyStep{{Step: evil, By: []client.PolicySource{{Text: evil}}}}}),
		"session/start":      always(client.Session{Session: "s"}),
		"turn/prepare":       always(client.Turn{Tools: []client.Tool{{Name: "t"}}}),
		"tool/call":          always(reply),
		"host/list":          refuses(fault.NotFound),
	})
	for _, args := range [][]string{
		{"server", "list"}, {"server", "get", "x"}, {"server", "logs", "x"}, {"server", "add", "x", "--", "y"}, {"server", "enable", "x"},
		{"server", "disable", "x"}, {"server", "restart", "x"}, {"server", "rm", "x"}, {"approvals", "list"}, {"approvals", "show", "a-1"}, {"audit", "show", "1"},
		{"tool", "call", "t", "--as", "ana"}, {"host", evil}, {"tool", "list"}, {"tool", "show", "t"},
		{"policy", "explain", "--as", "ana", "--tool", "t"},
	} {
		for _, format := range formats {
			o := r.gatebus(append(args, "-o", format)...)
			for _, c := range o.stdout + o.stderr {
				if hidden.Rune(c) && c != '\n' && !(c == '\t' && (args[0] == "tool" || args[1] == "logs")) {
					t.Errorf("%q -o %s prints the character %U:\n%q", args, format, c, o.stdout+o.stderr)
					break
				}
			}
		}
	}
	// What is escaped is the same JSON value.
	var got client.CallReply
	if err := json.Unmarshal([]byte(r.gatebus("tool", "call", "t", "--as", "ana", "-o", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Text != evil {
		t.Errorf("text %q, want %q", got.Text, evil)
	}
}

func TestTableCutsLongCells(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"host/list": always([]client.Host{{Name: strings.Repeat("ä", 200)}})})
	out := r.gatebus("host", "list").stdout
	if !strings.Contains(out, strings.Repeat("ä", cellWidth-1)+"… ") || strings.Contains(out, strings.Repeat("ä", cellWidth)) {
		t.Errorf("not cut after %d characters:\n%s", cellWidth-1, out)
	}
	if out := r.gatebus("host", "list", "-o", "json").stdout; !strings.Contains(out, strings.Repeat("ä", 200)) {
		t.Errorf("JSON is cut:\n%s", out)
	}
}

func TestOutputKeepsRawJSONAsItCame(t *testing.T) {
	t.Parallel()
	raw := `{"z":1.0,"a":123456789012345678901234567890,"s":"\u00e9<&>","n":null,"l":[],"o":{}}`
	r := script(t, answers{"audit/list": always(client.AuditRows{Rows: []client.AuditRow{{Data: json.RawMessage(raw)}}})})
	if out := r.gatebus("audit", "list", "-o", "jsonl").stdout; !strings.Contains(out, `"data":`+raw+"}") {
		t.Errorf("data is not %s in\n%s", raw, out)
	}
	want := "  data:\n    z: 1.0\n    a: 123456789012345678901234567890\n    s: é<&>\n    n: null\n    l: []\n    o: {}\n"
	if out := r.gatebus("audit", "list", "-o", "yaml").stdout; !strings.HasSuffix(out, want) {
		t.Errorf("YAML does not end in\n%s\nbut is\n%s", want, out)
	}
}

func TestFaultBecomesCodeHintAndExit(t *testing.T) {
	t.Parallel()
	for e := range fault.Table() {
		if e.Kind == fault.BusUnavailable {
			continue // answered by the client itself where nobody runs
		}
		r := script(t, answers{"bus/info": refuses(e.Kind)})
		o := r.gatebus("status")
		want := "error GB" + errorCode(e)[2:] + ": scripted refusal\nhint: " + e.Hint + "\n"
		if o.code != e.Exit || o.stderr != want || o.stdout != "" {
			t.Errorf("%s: exit %d, want %d; stdout %q; stderr %q, want %q", e.Kind, o.code, e.Exit, o.stdout, o.stderr, want)
		}
		if e.Number > 1003 {
			break // the rest is the same look-up; a bus for each would be slow
		}
	}
	r := script(t, answers{"bus/info": refuses(fault.AuditDamaged)})
	r.gatebus("status", "-q").wants(t, 10, "", "error GB8004: scripted refusal\n")
	r.gatebus("bus", "info", "-v").wants(t, 10, "", "kind: audit_damaged\noperation: ")
}

func errorCode(e fault.Entry) string {
	for _, r := range errorRows() {
		if r.Kind == string(e.Kind) {
			return r.Code
		}
	}
	return ""
}

func TestNoBusIsExit8(t *testing.T) {
	t.Parallel()
	empty := map[string]string{"GATEBUS_HOME": t.TempDir()}
	for _, args := range [][]string{
		{"server", "list"}, {"server", "get", "x"}, {"server", "logs", "x"}, {"server", "add", "x", "--", "y"}, {"server", "enable", "x"},
		{"server", "disable", "x"}, {"server", "restart", "x"}, {"server", "rm", "x"}, {"host", "list"}, {"host", "token", "x"}, {"host", "revoke", "x"},
		{"tool", "list"}, {"tool", "show", "x"}, {"tool", "call", "x"}, {"grant", "add", "p", "c"}, {"grant", "list"},
		{"grant", "revoke", "p", "c"}, {"approvals", "list"}, {"approvals", "show", "x"}, {"approvals", "watch"}, {"approve", "x"},
		{"deny", "x"}, {"policy", "show"}, {"audit", "list"}, {"audit", "show", "1"}, {"audit", "trace", "x"}, {"audit", "watch"},
		{"bus", "info"}, {"bus", "rebuild"}, {"status"},
	} {
		execute(t.Context(), empty, "", args...).wants(t, 8, "", "error GB8001: ")
	}
}

func TestBusIsFoundByFlagsAndEnvironment(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"host/list": always([]client.Host{{Name: "cursor"}})})
	data, err := os.ReadFile(filepath.Join(r.home, "run", "bus.json"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ URL, Creds string }
	if err := json.Unmarshal(data, &about); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	list := []string{"host", "list", "-o", "name"}
	with := func(more ...string) []string { return append(slices.Clone(list), more...) }
	none := map[string]string{"GATEBUS_HOME": elsewhere}
	execute(t.Context(), none, "", with("--home", r.home)...).wants(t, 0, "cursor\n", "")
	execute(t.Context(), none, "", with("--bus", about.URL, "--creds", about.Creds)...).wants(t, 0, "cursor\n", "")
	execute(t.Context(), map[string]string{"GATEBUS_HOME": elsewhere, "GATEBUS_BUS": about.URL, "GATEBUS_CREDS": about.Creds}, "", list...).
		wants(t, 0, "cursor\n", "")
	execute(t.Context(), none, "", with("--bus", about.URL)...).wants(t, 2, "", "error GB1001: a bus that is not the one of the home needs --creds FILE")
	config := filepath.Join(elsewhere, "gatebus.yaml") // found in the home by itself
	if err := os.WriteFile(config, []byte("bus: "+about.URL+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t.Context(), none, "", with("--creds", about.Creds)...).wants(t, 0, "cursor\n", "")
	execute(t.Context(), none, "", with("-c", filepath.Join(elsewhere, "none.yaml"))...).wants(t, 2, "", "error GB1002: ")
}

func TestSlowBusEndsWithTimeout(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	defer close(stop)
	r := script(t, answers{"host/list": func(json.RawMessage) (any, error) { <-stop; return nil, nil }})
	r.gatebus("host", "list", "--timeout", "1s").wants(t, 1, "", "error GB5012: no answer within 1s\nhint: wait longer with --timeout\n")
}

// The credentials are alone on stdout, so that they can go to a file.
func TestCredentialsAreAloneOnStdout(t *testing.T) {
	t.Parallel()
	text := "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n"
	result := client.BusCredsResult{Principal: "cursor", Role: "host", Workspace: "default", Credential: "key-1", Creds: text}
	r := script(t, answers{"bus/creds": always(result), "host/revoke": always(client.Host{Name: "cursor", Role: "host"})})
	r.gatebus("bus", "creds", "cursor").wants(t, 0, text, "key-1 of cursor, role host, workspace default")
	r.gatebus("bus", "creds", "cursor", "-q").wants(t, 0, text, "")
	r.gatebus("bus", "creds", "cursor", "-o", "name").wants(t, 0, "key-1\n", "")
	if out := r.gatebus("bus", "creds", "cursor", "-o", "json").stdout; !json.Valid([]byte(out)) || !strings.Contains(out, `"credential": "key-1"`) {
		t.Error(out)
	}
	r.gatebus("bus", "creds", "cursor", "--role", "worker", "--workspace", "w", "--expires", "2026-12-01", "--public-key", "U1")
	r.gatebus("host", "revoke", "cursor", "--credential", "key-1").wants(t, 0, "name:     cursor\nrole:     host\nrevoked:  false\n", "")
	want := []string{
		`bus/creds {"name":"cursor","role":"worker","public_key":"U1","workspace":"w","expires":"2026-12-01T00:00:00Z"}`,
		`host/revoke {"name":"cursor","credential":"key-1"}`,
	}
	if diff := cmp.Diff(want, r.requests()[4:]); diff != "" {
		t.Error(diff)
	}
}

func TestTokenIsAloneOnStdout(t *testing.T) {
	t.Parallel()
	result := client.HostTokenResult{Principal: "cursor", Role: "host", Workspace: "default", Token: "gb_x"}
	r := script(t, answers{"host/token": always(result)})
	r.gatebus("host", "token", "cursor").wants(t, 0, "gb_x\n", "not shown again")
	r.gatebus("host", "token", "cursor", "-o", "jsonl").
		wants(t, 0, `{"principal":"cursor","role":"host","workspace":"default","token":"gb_x"}`+"\n", "")
	r.gatebus("host", "token", "cursor", "--role", "auditor", "--workspace", "w", "--expires", "2026-12-01")
	if got, want := r.requests()[2], `host/token {"name":"cursor","role":"auditor","workspace":"w","expires":"2026-12-01T00:00:00Z"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

func TestGrantsCarryTheirEnd(t *testing.T) {
	t.Parallel()
	echo := func(p json.RawMessage) (any, error) { return p, nil }
	r := script(t, answers{"grant/add": echo, "grant/revoke": echo})
	r.gatebus("grant", "add", "ana", "mcp.call:docs", "--until", "2026-12-01T10:00:00Z", "--note", "trial").wants(t, 0,
		"principal:   ana\ncapability:  mcp.call:docs\nuntil:       2026-12-01T10:00:00Z\nnote:        trial\n", "")
	r.gatebus("grant", "revoke", "ana", "mcp.call:docs", "-o", "name").wants(t, 0, "ana mcp.call:docs\n", "")
	r.gatebus("grant", "add", "ana", "mcp.read", "--until", "soon").wants(t, 2, "", `error GB1001: --until: "soon" is neither a time`)
	if got := len(r.requests()); got != 2 {
		t.Errorf("%d requests, want 2", got)
	}
}

// What the bus says of a parameter names the flag or the argument that was typed, and
// what is not there is looked for where it would be.
func TestErrorsNameWhatWasTyped(t *testing.T) {
	t.Parallel()
	no := func(kind fault.Kind, text redact.EventText) func(json.RawMessage) (any, error) {
		return func(json.RawMessage) (any, error) { return nil, fault.New("request", kind, text) }
	}
	r := script(t, answers{
		"audit/asof": no(fault.InvalidInput, redact.Static("at_seq: the log ends at 5")),
		"grant/add":  no(fault.InvalidInput, redact.Static("principal: 1 to 64 letters")),
		"bus/creds":  no(fault.InvalidInput, redact.Static("public_key: begins with U")),
		"host/token": no(fault.InvalidInput, redact.Static("workspace: there is no such workspace")),
		"audit/show": no(fault.NotFound, redact.Static("no such commit")), "host/revoke": no(fault.NotFound, redact.Static("no such host")),
		"grant/revoke": no(fault.NotFound, redact.Static("not held")), "bus/info": no(fault.NotFound, redact.Static("nothing")),
	})
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"audit replay --at 9", 2, "error GB1001: --at: the log ends at 5\nhint: run the command with --help\n"},
		{"grant add a.b mcp.read", 2, "error GB1001: PRINCIPAL: 1 to 64 letters\n"},
		{"bus creds x --public-key U", 2, "error GB1001: --public-key: begins with U\n"},
		{"host token x --workspace w", 2, "error GB1001: --workspace: there is no such workspace\n"},
		{"host token x", 2, "error GB1007: workspace: there is no such workspace\n"}, // not of what was typed
		{"audit show 9", 6, "error GB5001: no such commit\nhint: see gatebus audit list\n"},
		{"host revoke x", 6, "hint: see gatebus host list\n"},
		{"grant revoke x mcp.read", 6, "hint: see gatebus grant list\n"},
		{"status", 6, "hint: list what there is, and compare the name\n"},
		{"audit list --name nosuch", 2, `error GB1001: --name: there is no event "nosuch"; there are approval_decided, approval_expired, `},
		{"audit watch --name nosuch", 2, ", turn_requested, url_decision\n"},
	} {
		r.gatebus(strings.Fields(c.line)...).wants(t, c.code, "", c.want)
	}
}

// Who is told that something is not as it must be is not told to try again as it is.
func TestAConflictIsLookedUpInItsList(t *testing.T) {
	t.Parallel()
	r := script(t, answers{"host/token": func(json.RawMessage) (any, error) {
		return nil, fault.New("host.token", fault.Conflict, redact.Static("the principal has another role; revoke it first"))
	}})
	r.gatebus("host", "token", "ana").wants(t, 7, "", "revoke it first\nhint: see gatebus host list\n")
}

func TestHintsOfListsNameVerbsThatExist(t *testing.T) {
	t.Parallel()
	for noun, hint := range listVerbs {
		words := strings.Fields(hint)
		if cmd, rest, err := new(Main).root().Find(words[2:]); err != nil || len(rest) > 0 || cmd.Name() != "list" {
			t.Errorf("%s: %s names no verb", noun, hint)
		}
	}
}

func TestWhenReadsTimesAndLengths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text      string
		direction time.Duration
		want      time.Time
	}{
		{"", later, time.Time{}},
		{"8h", later, someTime.Add(8 * time.Hour)},
		{"90m", earlier, someTime.Add(-90 * time.Minute)},
		{"2026-12-01", later, time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)},
		{"2026-12-01T10:00:00.5Z", earlier, time.Date(2026, 12, 1, 10, 0, 0, 5e8, time.UTC)},
	} {
		got, err := when(c.text, someTime, c.direction)
		if err != nil || !got.Equal(c.want) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"-1h", "tomorrow", "2026-13-01"} {
		if got, err := when(text, someTime, later); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestRebuildCheckExits10WhenAProjectionDiffers(t *testing.T) {
	t.Parallel()
	equal := client.Rebuild{Commits: 2, Events: 3, Projections: map[string]client.RebuiltProjection{"b": {Live: "1", Rebuilt: "1", Equal: true}, "a": {Live: "2", Rebuilt: "2", Equal: true}}}
	differs := client.Rebuild{Projections: map[string]client.RebuiltProjection{"a": {Live: "1", Rebuilt: "1", Equal: true}, "b": {Live: "1", Rebuilt: "2", Equal: false}}}
	r := script(t, answers{"bus/rebuild": always(equal)})
	line := `{"commits":2,"events":3,"projections":{"a":{"live":"2","rebuilt":"2","equal":true},"b":{"live":"1","rebuilt":"1","equal":true}}}` + "\n"
	r.gatebus("bus", "rebuild", "--check").wants(t, 0, line, "")
	r = script(t, answers{"bus/rebuild": always(differs)})
	line = `{"commits":0,"events":0,"projections":{"a":{"live":"1","rebuilt":"1","equal":true},"b":{"live":"1","rebuilt":"2","equal":false}}}` + "\n"
	r.gatebus("bus", "rebuild", "--check").wants(t, 10, line, "error GB8004: the projection b differs")
	r.gatebus("bus", "rebuild").wants(t, 0, line, "")
}

func TestToolShowWantsOneDefinition(t *testing.T) {
	t.Parallel()
	tool := func(principal, digest string) client.ToolInfo {
		return client.ToolInfo{Name: "docs__read", Server: "docs", RawName: "read", Principal: principal, Digest: digest, Definition: json.RawMessage(`{"name":"read"}`)}
	}
	r := script(t, answers{"tool/list": always([]client.ToolInfo{tool("ana", "1"), tool("bo", "1")})})
	r.gatebus("tool", "show", "docs__read").wants(t, 0,
		"name:       docs__read\nserver:     docs\ntool:       read\nprincipal:  ana\nblocked:    false\ndigest:     1\n{\n  \"name\": \"read\"\n}\n", "")
	r.gatebus("tool", "show", "docs__write").wants(t, 6, "", "error GB5001: no connected server has a tool docs__write")
	r = script(t, answers{"tool/list": always([]client.ToolInfo{tool("ana", "1"), tool("bo", "2")})})
	r.gatebus("tool", "show", "docs__read").wants(t, 2, "", "not the same for ana and bo: choose with --as")
}

func TestPolicyShowsItsRules(t *testing.T) {
	t.Parallel()
	p := client.PolicyShow{Workspace: "default", Sequence: 3, Approvers: "interactive", OnChange: "block", Levels: []client.PolicyLevel{
		{Level: "gateway", Default: "prompt", Rules: []client.ApprovalRule{{Server: "docs", Risk: "low", Approval: "auto"}}},
		{Level: "workspace", Server: "mail", Default: "deny"},
	}}
	r := script(t, answers{"policy/show": always(p)})
	r.gatebus("policy", "show").wants(t, 0, `workspace:  default
sequence:   3
approvers:  interactive
on change:  block

LEVEL      SERVER  TOOL  CAPABILITY  RISK  APPROVAL
gateway    docs    -     -           low   auto
gateway    -       -     -           -     prompt
workspace  mail    -     -           -     deny
`, "")
}

func TestStatusSaysWhatWaits(t *testing.T) {
	t.Parallel()
	info := client.BusInfo{
		Version: "1", Home: "/h", PID: 7, Started: someTime, Workspace: "default", Servers: 2, Live: 1, Pending: 3,
		Log: "ok", Commits: 4, Events: 5, Bytes: 6, Cores: []client.Core{{ID: "main", Revision: "worktree", Failed: true}},
	}
	r := script(t, answers{"bus/info": always(info)})
	r.gatebus("status").wants(t, 0, `gatebus:    1 runs in process 7 since 2026-11-29T18:00:00Z
home:       /h
workspace:  default
core:       main revision worktree, the newest does not load
servers:    2 declared, 1 live connections
approvals:  3 pending
log:        ok, 4 commits, 5 events, 6 bytes
`, "")
}

func TestInterruptIsExit130(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stop := make(chan struct{})
	defer close(stop)
	r := script(t, answers{"host/list": func(json.RawMessage) (any, error) {
		cancel()
		<-stop
		return nil, errors.New("too late")
	}})
	o := execute(ctx, map[string]string{"GATEBUS_HOME": r.home}, "", "host", "list")
	o.wants(t, interrupted, "", "")
}
