package lifecycle_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// installed is a rig with a server that is ready.
func installed(t *testing.T, name, fake string, args []string, change ...func(*events.Installation)) *rig.Rig {
	t.Helper()
	r := rig.New(t, rig.Options{})
	r.Install(name, fakes.Build(t, fake), args, change...)
	return r
}

func moves(t *testing.T, r *rig.Rig, name string, want ...string) {
	t.Helper()
	if got := r.Moves(name); !slices.Equal(got, want) {
		t.Errorf("it was %q, want %q", got, want)
	}
}

func policy(enabled bool) server.SetPolicy { return server.SetPolicy{Enabled: &enabled} }

func again(fingerprint string, change ...func(*events.Installation)) func(*events.Installation) {
	return func(i *events.Installation) {
		i.Fingerprint = fingerprint
		for _, f := range change {
			f(i)
		}
	}
}

func TestAnInstalledServerIsStartedAndSharedByWhoMay_R165_C1(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "peer", nil)
	r.AwaitStatus("docs", server.Ready)
	r.GrantAll("ana")
	r.GrantAll("bob")
	for _, who := range []string{"ana", "bob"} {
		turn := r.Prepare(who)
		if reply := r.Call(who, turn.Turn, rig.Tool(t, turn, "docs", "echo").Name, `{"text":"hi"}`, autoApproved(r, who)); reply.Status != "succeeded" {
			t.Errorf("%s: %+v", who, reply)
		}
	}
	if n := len(rig.Events[events.ConnectionOpened](r)); n != 1 {
		t.Errorf("%d connections were opened", n)
	}
	if e := rig.Events[events.ApprovalDecided](r)[0]; e.By != connection.ByInstall || !e.Automatic {
		t.Errorf("%+v", e)
	}

	// Who may not connect does not see it, and who lost it cannot call it (R50).
	turn := r.Prepare("eve")
	if len(turn.Tools) != 0 || len(turn.Diagnostics) != 1 || turn.Diagnostics[0].Code != string(fault.CapabilityDenied) {
		t.Errorf("eve has %+v", turn)
	}
	bobs := r.Prepare("bob")
	r.Ask("grant/revoke", client.Grant{Principal: "bob", Capability: "mcp.connect:*"}, nil)
	reply := r.Call("bob", bobs.Turn, rig.Tool(t, bobs, "docs", "echo").Name, `{"text":"hi"}`)
	if reply.Error == nil || reply.Error.Kind != string(fault.CapabilityDenied) {
		t.Errorf("bob: %+v", reply)
	}
	if s := r.Installed("docs"); s.Status != server.Ready {
		t.Errorf("a host that lost a grant has ended it: %+v", s)
	}
	moves(t, r, "docs", "not_started installed", "starting installed", "ready ")
	r.Rebuilt()
}

// autoApproved says yes to the calls of a principal while they wait.
func autoApproved(r *rig.Rig, _ string) func(*caller.Request) {
	return func(q *caller.Request) {
		rig.Wait(q)
		q.OnPending = func(approval string) { go r.Decide(approval, true) }
	}
}

func TestOnlyWhatIsImplicitIsInATurnThatDidNotSelectIt_R178(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "peer", nil, func(i *events.Installation) { i.Implicit = false })
	r.AwaitStatus("docs", server.Ready)
	r.GrantAll("ana")
	if turn := r.Prepare("ana"); len(turn.Tools) != 0 {
		t.Errorf("it has %+v", turn.Tools)
	}
	turn := r.Prepare("ana", func(p *decider.Preparation) { p.Implicit, p.Servers = false, []string{"docs"} })
	rig.Tool(t, turn, "docs", "echo")

	// Both levels must allow what is implicit (R177).
	implicit := true
	r.Tell("docs", server.SetPolicy{Implicit: &implicit})
	rig.Tool(t, r.Prepare("ana"), "docs", "echo")
}

func TestARequiredServerThatIsNotLiveFailsTheTurn_R33(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "misbehave", []string{"none"}, func(i *events.Installation) { i.Required = true })
	r.AwaitStatus("docs", server.Failed)
	r.GrantAll("ana")
	if _, err := r.TryPrepare("ana"); !fault.Is(err, fault.RequiredUnavailable) {
		t.Errorf("%v", err)
	}
	if e := rig.Events[events.TurnFailed](r); len(e) != 1 || e[0].Reason != string(fault.RequiredUnavailable) || e[0].Name != "docs" {
		t.Errorf("%+v", e)
	}
	if _, err := r.TryPrepare("eve"); err != nil { // it is none of hers
		t.Error(err)
	}
}

func TestWhatIsDisabledIsStopped_R162_R164(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "peer", nil)
	r.AwaitStatus("docs", server.Ready)
	r.Tell("docs", policy(false))
	r.AwaitStatus("docs", server.Disabled)
	r.GrantAll("ana")
	turn := r.Prepare("ana", func(p *decider.Preparation) { p.Servers = []string{"docs"} })
	if len(turn.Rejected) != 1 || turn.Rejected[0].Reason != string(fault.DisabledByPolicy) {
		t.Errorf("%+v", turn)
	}
	r.Tell("docs", policy(true))
	r.AwaitStatus("docs", server.Ready)
	r.Tell("docs", server.Uninstall{})
	r.AwaitStatus("docs", server.Stopped)
	moves(t, r, "docs", "not_started installed", "starting installed", "ready ", "stopping disabled_by_policy", "disabled disabled_by_policy",
		"not_started enabled", "starting enabled", "ready ", "stopping uninstalled", "stopped uninstalled")
	if s := r.Model.Connections.Get(rig.Workspace, connection.ID("", "docs")); s.Phase != connection.Closed {
		t.Errorf("%+v", s)
	}
}

func TestRestarts_R88_R163_R170(t *testing.T) {
	t.Parallel()
	const ref = "gateway_settings:mcp:workspace:default:docs:env:TOKEN"
	r := rig.New(t, rig.Options{})
	r.Keep(ref, "v1", "one")
	r.Keep(ref, "v2", "two")
	program := fakes.Build(t, "peer")
	token := func(version string) func(*events.Installation) {
		return func(i *events.Installation) {
			i.Env, i.Approval = []events.SecretRef{{Key: "TOKEN", Ref: ref, Version: version}}, "i-1"
		}
	}
	r.Install("docs", program, nil, token("v1"))
	first := r.AwaitStatus("docs", server.Ready).Generation
	another := func(than uint32) func(server.State) bool {
		return func(s server.State) bool { return s.Status == server.Ready && s.Generation > than }
	}

	r.Tell("docs", server.Observe{To: server.Restarting, Reason: server.ReasonManual})
	second := r.AwaitInstalled("docs", another(first)).Generation
	r.Install("docs", program, nil, token("v1"), again("f-2"))
	third := r.AwaitInstalled("docs", another(second)).Generation
	r.Tell("docs", server.StoreSecret{Secret: events.SecretStored{Ref: ref, Version: "v2"}})
	r.AwaitInstalled("docs", another(third))
	var want []string
	for _, reason := range []string{server.ReasonManual, server.ReasonFingerprint, server.ReasonSecret} {
		want = append(want, "restarting "+reason, "stopping "+reason, "stopped "+reason, "starting "+reason, "ready ")
	}
	moves(t, r, "docs", append([]string{"not_started installed", "starting installed", "ready "}, want...)...)
}

func TestASecretThatIsNotThereIsWaitedFor_R87(t *testing.T) {
	t.Parallel()
	const ref = "gateway_settings:mcp:workspace:default:docs:env:TOKEN"
	r := installed(t, "docs", "peer", nil, func(i *events.Installation) {
		i.Env = []events.SecretRef{{Key: "TOKEN", Ref: ref, Version: "v1"}}
	})
	s := r.AwaitStatus("docs", server.AuthRequired)
	if s.Reason != string(fault.MissingSecret) || !s.NextRetryAt.IsZero() {
		t.Errorf("%+v", s)
	}
	r.Keep(ref, "v2", "canary-9f2c61")
	r.Tell("docs", server.StoreSecret{Secret: events.SecretStored{Ref: ref, Version: "v2"}})
	r.AwaitStatus("docs", server.Ready)
	if n := len(rig.Events[events.ConnectionClaimed](r)); n != 2 {
		t.Errorf("it was tried %d times", n)
	}
	if r.Stored("canary-9f2c61") {
		t.Error("the secret is in the home")
	}
}

func TestWhatEndsByItselfIsStartedAgain_R167(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "misbehave", []string{"exit"})
	first := r.AwaitStatus("docs", server.Ready).Generation
	r.GrantAll("ana")
	turn := r.Prepare("ana")
	r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "call").Name, `{}`, autoApproved(r, "ana"))
	r.AwaitInstalled("docs", func(s server.State) bool { return s.Status == server.Ready && s.Generation > first })
	got := r.Moves("docs")
	// Whether the call was seen to fail before the end was is a matter of moments.
	got = slices.DeleteFunc(got, func(m string) bool { return m == "degraded "+server.ReasonCall })
	if want := []string{"not_started installed", "starting installed", "ready ", "failed peer_closed", "starting peer_closed", "ready "}; !slices.Equal(got, want) {
		t.Errorf("it was %q", got)
	}
	var times []time.Time
	for _, c := range r.Log() {
		for _, e := range c.Events {
			if s, ok := e.(events.ServerStatusChanged); ok && (s.To == "failed" || s.From == "failed") {
				times = append(times, c.Time)
			}
		}
	}
	if d := times[1].Sub(times[0]); d < 900*time.Millisecond {
		t.Errorf("it was started again after %v", d)
	}
}

func TestWhatDoesNotStartIsTriedAgainLaterEachTime_R167(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "misbehave", []string{"none"})
	s := r.AwaitInstalled("docs", func(s server.State) bool { return s.Status == server.Failed && s.RetryAttempt == 2 })
	if wait := s.NextRetryAt.Sub(s.Since); wait < 1500*time.Millisecond || wait > 2500*time.Millisecond {
		t.Errorf("it is tried again after %v", wait)
	}
	r.Tell("docs", policy(false)) // nothing is to be closed
	r.AwaitStatus("docs", server.Disabled)
}

func TestAListThatFailsDegrades_R166(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "shelf", []string{"a", "broken"})
	s := r.AwaitStatus("docs", server.Degraded)
	if s.Reason != server.ReasonList || !s.Status.Live() {
		t.Errorf("%+v", s)
	}
	r.GrantAll("ana")
	rig.Tool(t, r.Prepare("ana"), "docs", "hold")
}

func TestTheServerEndsWithTheAuthorityOfWhoInstalledIt_C1(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	enrol := func() {
		t.Helper()
		if _, err := r.Model.Hosts.Dispatch(r.Context(), rig.Workspace, "ops", bus.Meta{Actor: bus.Local, Principal: "ops"}, host.Enrol{
			Role: host.RoleOperator, Workspace: rig.Workspace,
		}); err != nil {
			t.Fatal(err)
		}
	}
	enrol()
	r.Install("docs", fakes.Build(t, "peer"), nil, func(i *events.Installation) { i.By = "ops" })
	r.AwaitStatus("docs", server.Ready)
	if _, err := r.Model.Hosts.Dispatch(r.Context(), rig.Workspace, "ops", bus.Meta{Actor: bus.Local, Principal: "ops"}, host.Revoke{}); err != nil {
		t.Fatal(err)
	}
	s := r.AwaitStatus("docs", server.Failed)
	if s.Reason != string(fault.CapabilityDenied) || !s.NextRetryAt.IsZero() {
		t.Errorf("%+v", s)
	}
	enrol()
	r.AwaitStatus("docs", server.Ready)
}

func TestWhoIsNoOperatorAnyMoreLeavesAServerThatCanBeDisabled_C1(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.Install("docs", fakes.Build(t, "peer"), nil, func(i *events.Installation) { i.By = "ops" })
	denied := func(s server.State) bool {
		return s.Status == server.Failed && s.Reason == string(fault.CapabilityDenied)
	}
	first := r.AwaitInstalled("docs", denied)

	// Another policy is another question, to which the answer is the same.
	r.SetPolicy(events.Policy{DefaultApproval: "deny"})
	r.AwaitInstalled("docs", func(s server.State) bool { return denied(s) && s.RetryAttempt > first.RetryAttempt })
	r.Tell("docs", policy(false))
	r.AwaitStatus("docs", server.Disabled)
	r.Tell("docs", server.Uninstall{})
	for _, c := range r.Log() {
		for _, e := range c.Events {
			if _, ok := e.(events.ConnectionClaimed); ok {
				t.Error("it was started")
			}
		}
	}
}

func TestBootTrustsNothingThatWasRecorded_R172(t *testing.T) {
	t.Parallel()
	r := installed(t, "docs", "peer", nil)
	first := r.AwaitStatus("docs", server.Ready).Generation
	image := r.Image()
	r.Stop()
	again := rig.New(t, rig.Options{Home: image, Root: r.Root, Dirs: r.Dirs})
	again.AwaitInstalled("docs", func(s server.State) bool { return s.Status == server.Ready && s.Generation > first })
	got := again.Moves("docs")
	if want := "not_started boot|starting boot|ready "; !strings.HasSuffix(strings.Join(got, "|"), want) {
		t.Errorf("it was %q", got)
	}
}
