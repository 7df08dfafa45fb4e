package connector_test

import (
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
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// witness is a server that leaves a file behind when it is started, and never
// answers.
type witness struct{ file string }

func newWitness(t *testing.T) witness { return witness{filepath.Join(t.TempDir(), "started")} }

// lines declare the witness with a reference to the environment.
func (w witness) lines(more ...string) []string {
	return append([]string{rig.Command("/bin/sh", "-c", `: > "$0"`, w.file), "env: {API_TOKEN: '${API_TOKEN}'}"}, more...)
}

func (w witness) started() bool {
	_, err := os.Stat(w.file)
	return err == nil
}

// untouched fails unless nothing of the server was touched: no process, and no
// variable of the host's environment.
func untouched(t *testing.T, r *rig.Rig, w witness) {
	t.Helper()
	live := 0
	for range r.Pool.All() {
		live++
	}
	if w.started() || r.Looked() > 0 || live > 0 {
		t.Errorf("started %v, %d variables of the host read, %d live connections", w.started(), r.Looked(), live)
	}
}

func wantNames(t *testing.T, r *rig.Rig, server string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.Names(server)); diff != "" {
		t.Errorf("events of %s (-want +got):\n%s", server, diff)
	}
}

func wantDenied(t *testing.T, r *rig.Rig, stage string, reason fault.Kind) {
	t.Helper()
	denied := rig.Events[events.ServerDenied](r)
	if len(denied) == 0 || denied[len(denied)-1].Stage != stage || denied[len(denied)-1].Reason != string(reason) {
		t.Errorf("denials %+v, want one at %s for %s", denied, stage, reason)
	}
}

func wantFailed(t *testing.T, r *rig.Rig, stage string, kind fault.Kind) {
	t.Helper()
	failed := rig.Events[events.ServerFailed](r)
	if len(failed) == 0 || failed[len(failed)-1].Stage != stage || failed[len(failed)-1].Kind != string(kind) {
		t.Errorf("failures %+v, want one at %s of kind %s", failed, stage, kind)
	}
}

func wantDiagnostic(t *testing.T, turn client.Turn, server string, code fault.Kind) {
	t.Helper()
	for _, g := range turn.Diagnostics {
		if g.Server == server {
			if g.Code != string(code) {
				t.Errorf("diagnostic of %s: %+v, want %s", server, g, code)
			}
			return
		}
	}
	t.Errorf("no diagnostic of %s in %+v", server, turn.Diagnostics)
}

func TestMissingCapabilityTouchesNothingAndAsksNobody_R50_R56_R74(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{}), newWitness(t)
	r.Declare("docs", w.lines("cwd: ../outside")...)
	r.Load()
	r.Grant("ana", "mcp.call:docs", "mcp.connect:other")
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.CapabilityDenied)
	wantDenied(t, r, connection.StageCapability, fault.CapabilityDenied)
	r.Prepare("ana")
	wantNames(t, r, "docs", "server_denied") // the same no once
	untouched(t, r, w)

	// Without a principal nobody is asked either (R57).
	if _, err := r.Decider.Prepare(r.Context(), rig.As(""), decider.Preparation{Session: r.Session("ana"), Implicit: true}); !fault.Is(err, fault.ConnectAuthorityUnbound) {
		t.Errorf("without a principal: %v", err)
	}
}

func TestCwdOutsideTheWorkspaceIsDeniedBeforeAnybodyIsAsked_R71(t *testing.T) {
	t.Parallel()
	for name, cwd := range map[string]string{
		"parent": "..", "absolute": os.TempDir(), "link": "link", "below a link": "link/deep", "missing below a link": "link/none/deeper",
		"link to a link": "hop", "home": "'~'", "below home": "~/x", "through the root": "sub/../../other",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside := t.TempDir()
			r, w := rig.New(t, rig.Options{Env: map[string]string{"HOME": outside}}), newWitness(t)
			for _, err := range []error{
				os.Mkdir(filepath.Join(outside, "deep"), 0o755), os.Mkdir(filepath.Join(r.Root, "sub"), 0o755),
				os.Symlink(outside, filepath.Join(r.Root, "link")), os.Symlink("link", filepath.Join(r.Root, "hop")),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			r.Declare("docs", w.lines("cwd: "+cwd)...)
			r.Load()
			r.GrantAll("ana")
			wantDiagnostic(t, r.Prepare("ana"), "docs", fault.CWDOutsideWorkspace)
			wantNames(t, r, "docs", "connect_requested", "server_denied")
			wantDenied(t, r, connection.StageCwd, fault.CWDOutsideWorkspace)
			if w.started() || len(r.Pending()) > 0 {
				t.Error("started, or somebody was asked")
			}
		})
	}
}

func TestCwdInsideTheWorkspaceIsThatOfTheServer_R71(t *testing.T) {
	t.Parallel()
	for name, cwd := range map[string]string{"unset": "", "relative": "cwd: sub", "a link inside": "cwd: link"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.Options{})
			if err := os.Mkdir(filepath.Join(r.Root, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("sub", filepath.Join(r.Root, "link")); err != nil {
				t.Fatal(err)
			}
			// It writes where it is, and ends.
			r.Declare("docs", rig.Command("/bin/sh", "-c", ": > here"), cwd)
			r.Load()
			r.GrantAll("ana")
			r.Connected("ana")
			at := filepath.Join(r.Root, "here")
			if cwd != "" {
				at = filepath.Join(r.Root, "sub", "here")
			}
			if _, err := os.Stat(at); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCwdIsResolvedAgainBeforeTheStart_R71(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		swap func(dir string) error
		kind fault.Kind
	}{
		"now a link out of the workspace": {func(dir string) error { return os.Symlink(os.TempDir(), dir) }, fault.CWDOutsideWorkspace},
		"now missing":                     {func(string) error { return nil }, fault.SpawnFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w := rig.New(t, rig.Options{Env: map[string]string{"API_TOKEN": "x"}}), newWitness(t)
			dir := filepath.Join(r.Root, "sub")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			r.Declare("docs", w.lines("cwd: sub")...)
			r.Load()
			r.GrantAll("ana")
			r.Prepare("ana")
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			if err := test.swap(dir); err != nil {
				t.Fatal(err)
			}
			r.Decide(r.Pending()[0].ID, true)
			wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ServerFailed)
			wantFailed(t, r, "spawn", test.kind)
			if w.started() {
				t.Error("started")
			}
		})
	}
}

func TestUrlIsJudgedBeforeAnybodyIsAsked_R49_R94(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Env: map[string]string{"API_TOKEN": "x"}})
	r.Declare("docs", "transport: streamable_http", "url: http://169.254.169.254/latest?x=canary", "headers: {Authorization: 'Bearer ${API_TOKEN}'}")
	r.Load()
	r.GrantAll("ana")
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.URLBlocked)
	wantNames(t, r, "docs", "connect_requested", "url_decision", "server_denied")
	wantDenied(t, r, connection.StageURL, "metadata_address")
	d := rig.Events[events.UrlDecision](r)[0]
	if d.Allowed || d.Phase != "connect" || d.Origin != "http://169.254.169.254" {
		t.Errorf("decision %+v", d)
	}
	if r.Looked() > 0 || len(r.Pending()) > 0 || r.Stored("canary") {
		t.Error("the environment was read, somebody was asked, or the path is in the log")
	}
}

func TestDenyingPolicyAsksNobody_R54_R55(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy events.Policy
		line   string
	}{
		"declared":           {line: "approval_policy: deny"},
		"default":            {policy: events.Policy{DefaultApproval: "deny"}},
		"a rule by server":   {policy: events.Policy{Rules: []events.ApprovalRule{{Server: "do*", Approval: "deny"}}}},
		"a rule by risk":     {policy: events.Policy{Rules: []events.ApprovalRule{{Risk: "critical", Approval: "deny"}}}, line: "risk: critical"},
		"nobody to be asked": {policy: events.Policy{Approvers: "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w := rig.New(t, rig.Options{Policy: test.policy}), newWitness(t)
			r.Declare("docs", w.lines(test.line)...)
			r.Load()
			r.GrantAll("ana")
			wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ApprovalDenied)
			wantNames(t, r, "docs", "connect_requested", "approval_decided", "server_denied")
			if d := rig.Events[events.ApprovalDecided](r)[0]; d.Decision != "deny" || !d.Automatic {
				t.Errorf("decision %+v", d)
			}
			untouched(t, r, w)
		})
	}
}

func TestUntilTheYesNothingIsTouched_R52_R53_R56_R74(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{}), newWitness(t)
	r.Declare("docs", w.lines("approval_policy: auto")...) // auto prompts for a connection all the same
	r.Load()
	r.GrantAll("ana")
	turn := r.Prepare("ana")
	wantDiagnostic(t, turn, "docs", fault.ApprovalPending)
	pending := r.Pending()
	if len(pending) != 1 || pending[0].Action != "mcp.connect" || pending[0].Policy != "prompt" || turn.Diagnostics[0].Approval != pending[0].ID {
		t.Fatalf("pending %+v, diagnostics %+v", pending, turn.Diagnostics)
	}
	r.Prepare("ana")
	wantNames(t, r, "docs", "connect_requested", "approval_requested") // one question at a time (decision 8)
	untouched(t, r, w)

	r.Decide(pending[0].ID, false)
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ApprovalDenied)
	wantNames(t, r, "docs", "connect_requested", "approval_requested", "approval_decided", "server_denied")
	untouched(t, r, w)

	// The denial stands, until the question is asked afresh (R136).
	if n := len(r.Pending()); n != 0 {
		t.Errorf("%d approvals wait after the denial", n)
	}
	r.Prepare("ana", func(p *decider.Preparation) { p.Retry = true })
	if n := len(r.Pending()); n != 1 {
		t.Errorf("%d approvals wait after a retry", n)
	}
	untouched(t, r, w)
}

func TestRevokeBeforeTheYesIsADenialAndStartsNothing_R50_Decision16(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{Env: map[string]string{"API_TOKEN": "x"}}), newWitness(t)
	r.Declare("docs", w.lines()...)
	r.Load()
	r.Grant("ana", "mcp.connect:docs")
	r.Prepare("ana")
	asked := r.Pending()[0].ID
	r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.connect:docs"}, nil)
	if err := r.Local.Do(r.Context(), "approvals/decide", client.ApprovalsDecide{ID: asked, Decision: "allow"}, nil); !fault.Is(err, fault.ApprovalExpired) {
		t.Errorf("a yes after the revoke: %v", err)
	}
	s := r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Denied })
	if s.DeniedStage != connection.StageCapability {
		t.Errorf("denied at %s", s.DeniedStage)
	}
	untouched(t, r, w)
}

func TestPolicyThatChangedBeforeTheYesIsAskedAnew_R52(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{Env: map[string]string{"API_TOKEN": "x"}}), newWitness(t)
	r.Declare("docs", w.lines()...)
	r.Load()
	r.GrantAll("ana")
	r.Prepare("ana")
	old := r.Pending()[0].ID
	r.SetPolicy(events.Policy{DefaultApproval: "deny"})
	r.Decide(old, true)
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Denied })
	wantDenied(t, r, connection.StageApproval, fault.ApprovalDenied)
	untouched(t, r, w)
}

func TestMissingVariableFailsAfterTheYesAndIsRetriedAfterHalfAMinute_R73_R134(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{}), newWitness(t)
	r.Declare("docs", w.lines()...)
	r.Load()
	r.GrantAll("ana")
	r.Prepare("ana")
	r.Decide(r.Pending()[0].ID, true)
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ServerFailed)
	first := []string{"connect_requested", "approval_requested", "approval_decided", "connection_claimed", "server_failed"}
	wantNames(t, r, "docs", first...)
	wantFailed(t, r, "interpolation", fault.MissingEnvReference)
	if m := rig.Events[events.ServerFailed](r)[0].Message.String(); !strings.Contains(m, "API_TOKEN") {
		t.Errorf("the message %q does not name the variable", m)
	}

	// Within the half minute nothing is read and nobody is asked.
	looked := r.Looked()
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ServerFailed)
	r.Request("ana", "docs", time.Now().Add(29*time.Second))
	wantNames(t, r, "docs", first...)
	if r.Looked() != looked {
		t.Error("the environment was read while the failure is remembered")
	}

	// After it the approval that stands is used again.
	r.Setenv("API_TOKEN", "x")
	r.Request("ana", "docs", time.Now().Add(31*time.Second))
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Failed })
	wantNames(t, r, "docs", append(first, "connect_requested", "approval_decided", "connection_claimed", "server_failed")...)
	if !w.started() {
		t.Error("not started")
	}
}

func TestVariableThatIsSetAndEmptyIsThere_R73(t *testing.T) {
	t.Parallel()
	r, w := rig.New(t, rig.Options{Env: map[string]string{"API_TOKEN": ""}}), newWitness(t)
	r.Declare("docs", w.lines()...)
	r.Load()
	r.GrantAll("ana")
	r.Connected("ana")
	if !w.started() {
		t.Error("not started")
	}
}

func TestChangedDeclarationClosesTheOldConnectionAndAsksAnew_R62(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	command := rig.Command(fakes.Build(t, "echo"))
	r.Declare("docs", command)
	r.Load()
	r.GrantAll("ana")
	before := r.Connected("ana")
	rig.Tool(t, before, "docs", "echo")
	r.Declare("docs", command, "risk: high")
	r.Load()
	wantDiagnostic(t, r.Prepare("ana"), "docs", fault.ApprovalPending)
	names := r.Names("docs")
	at := slices.Index(names, "connection_closed")
	if diff := cmp.Diff([]string{"connection_closed", "connect_requested", "approval_requested"}, names[max(at, 0):]); diff != "" {
		t.Error(diff)
	}
	if reason := rig.Events[events.ConnectionClosed](r)[0].Reason; reason != "fingerprint_changed" {
		t.Errorf("closed for %s", reason)
	}
	// The old tools are of no use any more.
	if reply := r.Call("ana", before.Turn, "docs__echo", `{"text":"x"}`); reply.ExecutionStarted || reply.Error == nil {
		t.Errorf("%+v", reply)
	}
	rig.Tool(t, r.Connected("ana"), "docs", "echo")
}

// What a principal had goes with its right to it, and does not come back with it:
// not the server's process, and not the yes of a person.
func TestRevokeTakesTheConnectionAndItsYes_Decision16(t *testing.T) {
	t.Parallel()
	for name, revoke := range map[string]func(r *rig.Rig){
		"host": func(r *rig.Rig) {
			r.Ask("host/token", client.HostToken{Name: "ana"}, nil)
			r.Ask("host/revoke", client.HostRevoke{Name: "ana"}, nil)
			r.Ask("host/token", client.HostToken{Name: "ana"}, nil)
		},
		"grant": func(r *rig.Rig) {
			r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.connect:*"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.Options{})
			r.Declare("docs", rig.Command(fakes.Build(t, "echo")), "approval_policy: auto")
			r.Load()
			r.GrantAll("ana")
			old := r.Connected("ana")
			conns := open(r)
			revoke(r)
			if s := r.Connection("ana", "docs"); s.Phase != connection.Denied {
				t.Errorf("after the reply the connection is %s", s.Phase)
			}
			gone(t, r, conns...)
			r.GrantAll("ana")
			if reply := r.Call("ana", old.Turn, "docs__echo", `{"text":"x"}`); reply.ExecutionStarted {
				t.Errorf("in the turn of before: %+v", reply)
			}
			asked := len(rig.Events[events.ApprovalRequested](r))
			r.Request("ana", "docs", time.Now())
			r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Waiting })
			if n := len(rig.Events[events.ApprovalRequested](r)); n != asked+1 {
				t.Errorf("%d approvals were asked for, %d before", n, asked)
			}
			r.Rebuilt()
		})
	}
}

func TestStandingApprovalOutlivesTheRuntime_Decision11(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.Declare("docs", rig.Command(fakes.Build(t, "echo")))
	r.Load()
	r.GrantAll("ana")
	old := r.Connected("ana")
	asked := len(rig.Events[events.ApprovalRequested](r))

	again := rig.New(t, rig.Options{Home: r.Image(), Root: r.Root, Dirs: r.Dirs})
	if s := again.Connection("ana", "docs"); s.Phase != connection.Lost {
		t.Errorf("after the crash the connection is %s", s.Phase)
	}
	if reply := again.Call("ana", old.Turn, "docs__echo", `{"text":"x"}`); reply.Error == nil || reply.Error.Kind != string(fault.TurnNotActive) {
		t.Errorf("a turn of the dead runtime: %+v", reply)
	}
	turn := again.Prepare("ana")
	if reply := again.Call("ana", turn.Turn, "docs__echo", `{"text":"x"}`); reply.Status != "approval_pending" {
		t.Errorf("%+v", reply)
	}
	names := again.Names("docs")
	if n := len(rig.Events[events.ConnectionLost](again)); n != 1 || !slices.Contains(names, "tools_discovered") {
		t.Errorf("%d connections were lost; %q", n, names)
	}
	if n := len(rig.Events[events.ApprovalRequested](again)); n != asked+1 { // that of the call
		t.Errorf("%d approvals were asked for, %d before the crash", n, asked)
	}
	again.Rebuilt()
}
