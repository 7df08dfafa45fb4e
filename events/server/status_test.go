package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// moves is section 3 of the requirements: what each state may become. It is written
// down here once more, by hand.
const moves = `
not_started: starting stopped disabled
disabled: not_started
starting: ready degraded auth_required failed restarting stopping
ready: degraded auth_required failed restarting stopping
degraded: ready auth_required failed restarting stopping
auth_required: restarting stopped disabled
failed: starting restarting stopped disabled
stopping: stopped disabled
stopped: starting disabled
restarting: stopping
`

func legal() map[server.Status][]server.Status {
	out := map[server.Status][]server.Status{}
	for line := range strings.Lines(strings.TrimSpace(moves)) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, s := range strings.Fields(to) {
			out[server.Status(from)] = append(out[server.Status(from)], server.Status(s))
		}
	}
	return out
}

// in is an installation in a state, that has failed twice in a row, and whose last
// opening is number 7.
func in(s server.Status) server.State {
	return decider.Fold(events.ServerInstalled{Installation: docs()}, events.ServerStatusChanged{
		From: "before", To: string(s), Live: s.Live(), RetryAttempt: 2, Generation: 7, CatalogVersion: "sha256:1",
	})
}

func TestOnlyTheMovesOfTheTableHappen_R160(t *testing.T) {
	t.Parallel()
	if len(server.Statuses) != 10 || len(legal()) != 10 {
		t.Fatalf("%d states, %d rows", len(server.Statuses), len(legal()))
	}
	retry := Noon.Add(4 * time.Second)
	for _, from := range server.Statuses {
		for _, to := range server.Statuses {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				t.Parallel()
				s := in(from)
				seen := server.Observe{
					To: to, Reason: "because", Message: redact.Static("in words"), Generation: 9, Catalog: "sha256:2", RetryAt: retry,
				}
				if from == to {
					seen.Generation = 7
				}
				got, err := server.Decide(s, seen)
				allowed := slices.Contains(legal()[from], to)
				if server.Legal(from, to) != allowed {
					t.Errorf("Legal says %v", !allowed)
				}
				if from != to && !allowed {
					if !fault.Is(err, fault.IllegalTransition) || len(got) > 0 {
						t.Fatalf("%v, %v", got, err)
					}
					return
				}
				want := events.ServerStatusChanged{
					From: string(from), To: string(to), Live: to == server.Ready || to == server.Degraded, ReasonCode: "because",
					Message: redact.Static("in words"), Generation: seen.Generation, CatalogVersion: "sha256:2",
				}
				switch to {
				case server.Failed:
					if want.RetryAttempt = 2; from != to {
						want.RetryAttempt = 3
					}
					want.NextRetryAt = retry.Format(time.RFC3339Nano)
				case server.Starting:
					want.RetryAttempt = 2
				}
				if diff := cmp.Diff([]events.Event{want}, got, Equal); diff != "" || err != nil {
					t.Fatalf("%v, events (-want +got):\n%s", err, diff)
				}
				after := decider.Then(s, 2, got...)
				if after.Status != to || after.Generation != want.Generation || after.RetryAttempt != want.RetryAttempt || after.Catalog != "sha256:2" || after.Reason != "because" || !after.Since.Equal(Noon) {
					t.Errorf("state %+v", after)
				}
				if after.NextRetryAt.Equal(retry) != (to == server.Failed) {
					t.Errorf("tried again at %v", after.NextRetryAt)
				}
				if again, err := server.Decide(after, seen); err != nil || len(again) > 0 {
					t.Errorf("the same seen again: %v, %v", again, err)
				}
			})
		}
	}
}

func TestObservations(t *testing.T) {
	t.Parallel()
	installed := events.ServerInstalled{Installation: docs()}
	ready := events.ServerStatusChanged{From: "starting", To: "ready", Live: true, Generation: 7, CatalogVersion: "sha256:1"}
	failed := events.ServerStatusChanged{From: "ready", To: "failed", RetryAttempt: 1, Generation: 7, CatalogVersion: "sha256:1"}
	decider.Run(t, []Case[server.Command]{
		{Rule: "what was never installed is in no state", When: server.Observe{To: server.Starting}, Fault: fault.NotFound},
		{
			Rule: "what was uninstalled does not start", Given: []events.Event{installed, failed, events.ServerUninstalled{}},
			When: server.Observe{To: server.Starting}, Fault: fault.NotFound,
		},
		{
			Rule: "what was uninstalled ends (R85)", Given: []events.Event{installed, ready, events.ServerUninstalled{}},
			When: server.Observe{To: server.Stopping, Reason: server.ReasonUninstalled},
			Then: []events.Event{events.ServerStatusChanged{From: "ready", To: "stopping", ReasonCode: "uninstalled", Generation: 7, CatalogVersion: "sha256:1"}},
		},
		{Rule: "a state that is none is illegal", Given: []events.Event{installed, ready}, When: server.Observe{To: "asleep"}, Fault: fault.IllegalTransition},
		{
			Rule: "news of an earlier opening are none of the present one (R172)", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.Failed, Generation: 6}, Fault: fault.RuntimeNotLive,
		},
		{
			Rule: "news of no opening in particular are about the present one", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.Stopping, Reason: server.ReasonUninstalled},
			Then: []events.Event{events.ServerStatusChanged{From: "ready", To: "stopping", ReasonCode: "uninstalled", Generation: 7, CatalogVersion: "sha256:1"}},
		},
		{
			Rule: "what is live is not opened again while it is", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.Ready, Generation: 8}, Fault: fault.IllegalTransition,
		},
		{Rule: "nothing new is no event", Given: []events.Event{installed, ready}, When: server.Observe{To: server.Ready, Generation: 7, Catalog: "sha256:1"}},
		{
			Rule: "another catalog of what is live is one", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.Ready, Generation: 7, Catalog: "sha256:2"},
			Then: []events.Event{events.ServerStatusChanged{From: "ready", To: "ready", Live: true, Generation: 7, CatalogVersion: "sha256:2"}},
		},
		{
			Rule: "a failure that is not tried again has no time for it (R167)", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.Failed, Reason: "url_blocked"},
			Then: []events.Event{events.ServerStatusChanged{From: "ready", To: "failed", ReasonCode: "url_blocked", RetryAttempt: 1, Generation: 7, CatalogVersion: "sha256:1"}},
		},
		{
			Rule: "attempts are counted until it is live (R167)", Given: []events.Event{installed, ready, failed},
			When: server.Observe{To: server.Starting, Generation: 8},
			Then: []events.Event{events.ServerStatusChanged{From: "failed", To: "starting", RetryAttempt: 1, Generation: 8, CatalogVersion: "sha256:1"}},
		},
		{
			Rule: "a server that wants a login is never tried again by itself (R167)", Given: []events.Event{installed, ready},
			When: server.Observe{To: server.AuthRequired, Reason: "auth_required", RetryAt: Noon},
			Then: []events.Event{events.ServerStatusChanged{From: "ready", To: "auth_required", ReasonCode: "auth_required", Generation: 7, CatalogVersion: "sha256:1"}},
		},
	})
}

func TestBootTrustsNoRecordedState_R172(t *testing.T) {
	t.Parallel()
	for _, from := range server.Statuses {
		for _, c := range []struct {
			name  string
			after []events.Event
			boot  server.Boot
			want  server.Status
		}{
			{"enabled", nil, server.Boot{}, server.NotStarted},
			{"disabled", []events.Event{events.ServerPolicyChanged{}}, server.Boot{}, server.Disabled},
			{"disabled by the gateway", nil, server.Boot{Disabled: true}, server.Disabled},
			{"uninstalled", []events.Event{events.ServerUninstalled{}}, server.Boot{}, server.Stopped},
		} {
			s := decider.Then(in(from), 2, c.after...)
			got, err := server.Decide(s, c.boot)
			if err != nil {
				t.Fatal(err)
			}
			var want []events.Event
			if from != c.want {
				want = []events.Event{events.ServerStatusChanged{
					From: string(from), To: string(c.want), ReasonCode: server.ReasonBoot, Generation: 7, CatalogVersion: "sha256:1",
				}}
			}
			if diff := cmp.Diff(want, got, Equal); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", from, c.name, diff)
			}
		}
	}
	if got, err := server.Decide(server.State{}, server.Boot{}); err != nil || got != nil {
		t.Errorf("what was never installed boots: %v, %v", got, err)
	}
}

// In whatever order commands come, what the log says of a server holds: it is live
// where it is ready or degraded, it moves as the table has it from where it was, its
// generation never falls, and a boot leaves nothing that runs.
func TestNoOrderOfCommandsBreaksTheMachine_R160_R172(t *testing.T) {
	t.Parallel()
	table := legal()
	rapid.Check(t, func(r *rapid.T) {
		var s server.State
		for seq := range rapid.Uint64Range(1, 60).Draw(r, "commands") {
			var cmd server.Command
			booted := false
			switch rapid.IntRange(0, 9).Draw(r, "command") {
			case 0:
				i := docs()
				i.Enabled = rapid.Bool().Draw(r, "enabled")
				i.Fingerprint = rapid.SampledFrom([]string{"fp-1", "fp-2"}).Draw(r, "fingerprint")
				cmd = server.Install{Installation: i}
			case 1:
				enabled := rapid.Bool().Draw(r, "enabled")
				cmd = server.SetPolicy{Enabled: &enabled}
			case 2:
				cmd = server.Uninstall{}
			case 3:
				cmd, booted = server.Boot{Disabled: rapid.Bool().Draw(r, "disabled")}, true
			default:
				cmd = server.Observe{
					To: rapid.SampledFrom(server.Statuses).Draw(r, "to"), Reason: rapid.SampledFrom([]string{"", "x"}).Draw(r, "reason"),
					Generation: rapid.Uint32Range(0, 12).Draw(r, "generation"), Catalog: rapid.SampledFrom([]string{"", "sha256:1", "sha256:2"}).Draw(r, "catalog"),
					RetryAt: rapid.SampledFrom([]time.Time{{}, Noon}).Draw(r, "retry"),
				}
			}
			list, err := server.Decide(s, cmd)
			if err != nil && len(list) > 0 {
				r.Fatalf("%+v: events and %v", cmd, err)
			}
			before := s
			s = decider.Then(s, seq, list...)
			for _, e := range list {
				e, ok := e.(events.ServerStatusChanged)
				if !ok {
					continue
				}
				from, to := server.Status(e.From), server.Status(e.To)
				if _, anew := cmd.(server.Install); from != before.Status && !(anew && from == "") {
					r.Fatalf("%+v: from %q, it was %q", cmd, from, before.Status)
				}
				if _, seen := cmd.(server.Observe); seen && from != to && !slices.Contains(table[from], to) {
					r.Fatalf("%+v: %q became %q", cmd, from, to)
				}
				if e.Live != (to == server.Ready || to == server.Degraded) {
					r.Fatalf("%q is live: %v", to, e.Live)
				}
				if e.NextRetryAt != "" && to != server.Failed || (e.RetryAttempt > 0) != (to == server.Failed) && to != server.Starting {
					r.Fatalf("%q has attempt %d and is tried again at %q", to, e.RetryAttempt, e.NextRetryAt)
				}
			}
			if s.Generation < before.Generation {
				r.Fatalf("the generation fell from %d to %d", before.Generation, s.Generation)
			}
			if s.Installed && s.Status == "" {
				r.Fatalf("installed and in no state")
			}
			if booted && s.Status != "" && s.Status != server.NotStarted && s.Status != server.Disabled && s.Status != server.Stopped {
				r.Fatalf("it is %q after a boot", s.Status)
			}
			if before.Installed && s.Installed && (s.Enabled != before.Enabled || s.Implicit != before.Implicit) {
				if _, ok := cmd.(server.SetPolicy); !ok {
					r.Fatalf("%+v changed the policy (R35)", cmd)
				}
			}
		}
	})
}
