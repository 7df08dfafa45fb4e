package lifecycle

import (
	"testing"
	"time"

	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/server"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at are the facts of a server that is wanted, in a state, and of its connection.
func at(status server.Status, phase connection.Phase, change ...func(*facts)) facts {
	f := facts{
		server: server.State{
			Installed: true, Enabled: true, Status: status, Generation: 7, Catalog: "cat-1",
			Installation: server.Installation{Name: "docs", Fingerprint: "f1", Approval: "i-1", By: "local"},
		},
		connection: connection.State{
			Phase: phase, Server: "docs", Fingerprint: "f1", Install: "i-1", Generation: 7, Catalog: "cat-1", PolicySequence: 3, AuthoritySequence: 4,
		},
		wanted: true, policy: 3, authority: 4, now: noon,
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestSteps(t *testing.T) {
	t.Parallel()
	disabled := func(f *facts) { f.wanted, f.server.Enabled = false, false }
	removed := func(f *facts) { f.wanted, f.server.Installed = false, false }
	updated := func(f *facts) { f.server.Installation.Fingerprint = "f2" }
	reinstalled := func(f *facts) { f.server.Installation.Approval = "i-2" }
	rotated := func(f *facts) { f.server.Rotated = 8 }
	before := func(f *facts) { f.server.Rotated = 6 }
	policy := func(f *facts) { f.policy = 9 }
	authority := func(f *facts) { f.authority = 9 }
	soon := func(f *facts) { f.connection.RetryAfter, f.server.NextRetryAt = noon.Add(1), noon.Add(1) }
	login := func(f *facts) { f.connection.Reason = "missing_secret" }
	ended := func(f *facts) { f.connection.Reason = connection.ReasonServerEnded }
	listed := func(f *facts) { f.connection.Catalog = "cat-2" }
	unlisted := func(f *facts) { f.connection.Unlisted = []string{"prompts"} }
	undiscovered := func(f *facts) { f.connection.Degraded = "list_tools_failed" }
	loggedOut := func(f *facts) { f.connection.Degraded = "auth_required" }
	because := func(reason string) func(*facts) { return func(f *facts) { f.server.Reason = reason } }
	otherOpening := func(f *facts) { f.connection.Generation = 9 }

	for _, c := range []struct {
		rule string
		f    facts
		want string
	}{
		{"what is enabled is started", at(server.NotStarted, connection.None), "starting"},
		{"also when it was stopped", at(server.Stopped, connection.Closed), "starting"},
		{"what was disabled begins at the beginning", at(server.Disabled, connection.Closed), "not_started enabled"},
		{"what is disabled stays", at(server.Disabled, connection.Closed, disabled), ""},
		{"what was not started is disabled at once", at(server.NotStarted, connection.None, disabled), "disabled disabled_by_policy"},
		{"or stopped, where it was removed", at(server.NotStarted, connection.None, removed), "stopped uninstalled"},
		{"what was removed stays stopped", at(server.Stopped, connection.Closed, removed), ""},
		{"nothing is left of what rests", at(server.NotStarted, connection.Open), "close"},
		{"not even a failure", at(server.Stopped, connection.Failed), "close"},

		{"what is started is asked for", at(server.Starting, connection.None), "ask"},
		{"also after its end", at(server.Starting, connection.Lost), "ask"},
		{"once", at(server.Starting, connection.Opening), ""},
		{"it is ready when it is open", at(server.Starting, connection.Open), "ready"},
		{"and degraded where a list beside tools failed (R166)", at(server.Starting, connection.Open, unlisted), "degraded list_failed"},
		{"it fails with its connection", at(server.Starting, connection.Failed, soon), "failed"},
		{"and waits for a person, for ever, where it lacks a secret (R87)", at(server.Starting, connection.Failed, login), "auth_required missing_secret"},
		{"a failure of before is over", at(server.Starting, connection.Failed), "ask"},
		{"a no stands", at(server.Starting, connection.Denied), "failed"},
		{"until the policy changes", at(server.Starting, connection.Denied, policy), "ask"},
		{"or the authority", at(server.Starting, connection.Denied, authority), "ask"},
		{"what ended before it was seen to be open has failed", at(server.Starting, connection.Closed, soon, ended), "failed peer_closed"},
		{"a person is waited for", at(server.Starting, connection.Waiting), "starting approval_pending"},
		{"and that is said once", at(server.Starting, connection.Waiting, because(ReasonWaiting)), ""},
		{"what is being started can be stopped", at(server.Starting, connection.Opening, disabled), "stopping disabled_by_policy"},
		{"and restarted (R163)", at(server.Starting, connection.Opening, updated), "restarting fingerprint_changed"},

		{"what is live is left alone", at(server.Ready, connection.Open), ""},
		{"whatever it listed before", at(server.Ready, connection.Open, before), ""},
		{"what lists anew has another catalog (R168)", at(server.Ready, connection.Open, listed), "ready"},
		{"so does a discovery that fails (R168)", at(server.Ready, connection.Open, undiscovered), "degraded refresh_failed"},
		{"which is said once", at(server.Degraded, connection.Open, undiscovered, because(server.ReasonRefresh)), ""},
		{"one that works is the end of that", at(server.Degraded, connection.Open, because(server.ReasonRefresh)), "ready"},
		{"a discovery can find that it wants a login", at(server.Ready, connection.Open, loggedOut), "auth_required auth_required"},
		{"a list that fails degrades (R166)", at(server.Ready, connection.Open, unlisted), "degraded list_failed"},
		{"what can be listed again is ready (R168)", at(server.Degraded, connection.Open, because(server.ReasonList)), "ready"},
		{"another trouble is for who saw it", at(server.Degraded, connection.Open, because(server.ReasonCall)), ""},
		{"a discovery is a success (R168)", at(server.Degraded, connection.Open, because(server.ReasonRefresh), listed), "ready"},
		{"its end is a failure (R167)", at(server.Ready, connection.Closed, ended, soon), "failed peer_closed"},
		{"so is that of its runtime", at(server.Degraded, connection.Lost), "failed"},
		{"so is another opening that nobody has seen begin", at(server.Ready, connection.Open, otherOpening), "failed"},
		{"what lost its authority has failed (C1)", at(server.Ready, connection.Denied), "failed"},
		{"what is disabled is stopped (R162)", at(server.Ready, connection.Open, disabled), "stopping disabled_by_policy"},
		{"what is removed is stopped (R164)", at(server.Degraded, connection.Open, removed), "stopping uninstalled"},
		{"what was installed anew is restarted (R163)", at(server.Ready, connection.Open, updated), "restarting fingerprint_changed"},
		{"also by somebody else (C12)", at(server.Ready, connection.Open, reinstalled), "restarting fingerprint_changed"},
		{"what has another secret is restarted (R88)", at(server.Ready, connection.Open, rotated), "restarting secret_material_changed"},
		{"another policy is another gate (C1)", at(server.Ready, connection.Open, policy), "restarting policy_changed"},

		{"a failure is waited out (R167)", at(server.Failed, connection.Failed, soon), "later"},
		{"and then it is started", at(server.Failed, connection.Failed), "starting"},
		{"what was denied waits for a change", at(server.Failed, connection.Denied), ""},
		{"which may come", at(server.Failed, connection.Denied, authority), "starting"},
		{"what failed is disabled at once", at(server.Failed, connection.Closed, disabled), "disabled disabled_by_policy"},
		{"or stopped", at(server.Failed, connection.Closed, removed), "stopped uninstalled"},
		{"once nothing of it is left", at(server.Failed, connection.Failed, soon, disabled), "close"},
		{"another declaration does not wait (R163)", at(server.Failed, connection.Failed, soon, updated), "restarting fingerprint_changed"},
		{"nor another secret (R88)", at(server.Failed, connection.Failed, soon, rotated), "restarting secret_material_changed"},
		{"but one that it has had", at(server.Failed, connection.Failed, soon, before), "later"},

		{"what wants a login is left alone (R167)", at(server.AuthRequired, connection.Failed), ""},
		{"also under another policy", at(server.AuthRequired, connection.Failed, policy), ""},
		{"its connection is closed", at(server.AuthRequired, connection.Open), "close"},
		{"a secret starts it (R88)", at(server.AuthRequired, connection.Failed, rotated), "restarting secret_material_changed"},
		{"so does another installation", at(server.AuthRequired, connection.Failed, updated), "restarting fingerprint_changed"},
		{"it can be disabled", at(server.AuthRequired, connection.Failed, disabled), "disabled disabled_by_policy"},
		{"and removed", at(server.AuthRequired, connection.Failed, removed), "stopped uninstalled"},

		{"a restart stops first", at(server.Restarting, connection.Open, because("manual")), "stopping manual"},
		{"what stops is closed", at(server.Stopping, connection.Open), "close"},
		{"whatever is left of it", at(server.Stopping, connection.Closed, soon), "close"},
		{"and has stopped then", at(server.Stopping, connection.Closed, because("manual")), "stopped manual"},
		{"or is disabled", at(server.Stopping, connection.Closed, disabled), "disabled disabled_by_policy"},
		{"or is gone", at(server.Stopping, connection.Closed, removed), "stopped uninstalled"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			st := next(c.f)
			got := ""
			switch {
			case st.observe != nil:
				if got = string(st.observe.To); st.observe.Reason != "" {
					got += " " + st.observe.Reason
				}
				if _, err := server.Decide(c.f.server, *st.observe); err != nil {
					t.Errorf("the move is refused: %v", err)
				}
			case st.ask:
				got = "ask"
			case st.close != "":
				got = "close"
			case !st.at.IsZero():
				got = "later"
			}
			if got != c.want {
				t.Errorf("the step is %q (%+v), want %q", got, st, c.want)
			}
		})
	}
}
