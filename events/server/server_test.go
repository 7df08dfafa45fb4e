package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

var decider = Decider[server.State, server.Command]{Decide: server.Decide, Evolve: server.Evolve}

// docs is an installation that has a text or a reference in each of its places.
func docs(change ...func(*events.Installation)) events.Installation {
	ref := func(kind, key string) string {
		return "gateway_settings:mcp:workspace:default:docs:" + kind + ":" + key
	}
	i := events.Installation{
		ScopeKind: server.ScopeWorkspace, ScopeKey: "default", Name: "docs", Home: "h-1", Fingerprint: "fp-1", Transport: "stdio",
		Command: events.TextRef{Text: redact.Static("npx")},
		Args:    []events.TextRef{{Text: redact.Static("-y")}, {Ref: ref("arg", "1"), Version: "v-arg"}},
		Cwd:     redact.Static("sub"),
		Env:     []events.SecretRef{{Key: "API_KEY", Ref: ref("env", "API_KEY"), Version: "v-env"}},
		Url:     events.TextRef{Ref: ref("url", "0"), Version: "v-url"},
		Headers: []events.SecretRef{{Key: "X-Key", Ref: ref("header", "x-key"), Version: "v-header"}},

		StartupTimeoutS: 180, ToolTimeoutS: 120, Required: true, Parallel: true, Enabled: true, Approval: "a-1", By: "local",
	}
	for _, c := range change {
		c(&i)
	}
	return i
}

const envRef = "gateway_settings:mcp:workspace:default:docs:env:API_KEY"

func stored(version string) events.SecretStored {
	return events.SecretStored{Ref: envRef, Version: version, Provider: "keyring"}
}

func disabled(i *events.Installation) { i.Enabled = false }

func rotated(i *events.Installation) {
	i.Env = []events.SecretRef{{Key: "API_KEY", Ref: envRef, Version: "v-2"}}
}

// status is a move without anything to it.
func status(from, to server.Status, reason string) events.ServerStatusChanged {
	return events.ServerStatusChanged{From: string(from), To: string(to), Live: to.Live(), ReasonCode: reason}
}

func TestInstallations(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	first := events.ServerInstalled{Installation: docs()}
	begun := status("", server.NotStarted, server.ReasonInstalled)
	gone := events.ServerUninstalled{Fingerprint: "fp-1"}
	updated := func(change ...func(*events.Installation)) events.ServerUpdated {
		return events.ServerUpdated{Installation: docs(change...), Before: "fp-1", PolicyPreserved: true}
	}
	another := func(i *events.Installation) { i.Fingerprint, i.Approval = "fp-2", "a-2" }
	policy := func(enabled, implicit, enabledAfter, implicitAfter bool) events.ServerPolicyChanged {
		return events.ServerPolicyChanged{
			Before: events.ServerPolicy{Enabled: enabled, Implicit: implicit},
			After:  events.ServerPolicy{Enabled: enabledAfter, Implicit: implicitAfter},
		}
	}
	decider.Run(t, []Case[server.Command]{
		{
			Rule: "a new installation begins not started", When: server.Install{Installation: docs()},
			Then: []events.Event{first, begun},
		},
		{
			Rule: "one that is installed disabled begins disabled (R34)", When: server.Install{Installation: docs(disabled)},
			Then: []events.Event{events.ServerInstalled{Installation: docs(disabled)}, status("", server.Disabled, server.ReasonInstalled)},
		},
		{
			Rule: "what was put into the keystore comes after the installation that needs it (R83)",
			When: server.Install{Installation: docs(), Secrets: []events.SecretStored{stored("v-env")}},
			Then: []events.Event{first, stored("v-env"), begun},
		},
		{
			Rule: "a secret that the installation does not refer to was not put for it",
			When: server.Install{Installation: docs(), Secrets: []events.SecretStored{{Ref: "other", Version: "v-env"}}}, Fault: fault.InvalidInput,
		},
		{
			Rule: "a secret of another version than the installation has was not put for it",
			When: server.Install{Installation: docs(), Secrets: []events.SecretStored{stored("v-9")}}, Fault: fault.InvalidInput,
		},
		{
			Rule: "the same again is nothing new", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.Approval = "a-9" })},
		},
		{
			Rule: "the same again keeps the policy without a word (R35)", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.Enabled, i.Implicit = false, true })},
		},
		{
			Rule:  "an update keeps the policy of the installation, not that of the request (R35)",
			Given: []events.Event{first, begun, policy(true, false, false, true)},
			When:  server.Install{Installation: docs(another)},
			Then:  []events.Event{updated(another, func(i *events.Installation) { i.Enabled, i.Implicit = false, true })},
		},
		{
			Rule: "an update with another fingerprint is under another yes (C12)", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(another)}, Then: []events.Event{updated(another)},
		},
		{
			Rule: "an update that is the same server to others stays under the yes that it has (C12)", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.ToolTimeoutS, i.Approval = 5, "a-2" })},
			Then: []events.Event{updated(func(i *events.Installation) { i.ToolTimeoutS = 5 })},
		},
		{
			Rule: "an update by another person is under his yes", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.By, i.Approval = "ben", "a-2" })},
			Then: []events.Event{updated(func(i *events.Installation) { i.By, i.Approval = "ben", "a-2" })},
		},
		{
			Rule: "an update with a new value of a secret says so (R83)", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(rotated), Secrets: []events.SecretStored{stored("v-2")}},
			Then: []events.Event{updated(rotated), stored("v-2")},
		},
		{
			Rule: "what another home has installed is its own (decision 6)", Given: []events.Event{first, begun},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.Home = "h-2" })}, Fault: fault.DuplicateServerID,
		},
		{
			Rule: "what another home has uninstalled is anybody's", Given: []events.Event{first, begun, gone, status(server.NotStarted, server.Stopped, "")},
			When: server.Install{Installation: docs(func(i *events.Installation) { i.Home = "h-2" })},
			Then: []events.Event{
				events.ServerInstalled{Installation: docs(func(i *events.Installation) { i.Home = "h-2" })},
				begun,
			},
		},
		{
			Rule:  "what is installed again begins anew, but for its generation (R172)",
			Given: []events.Event{first, begun, events.ServerStatusChanged{To: "disabled", RetryAttempt: 2, Generation: 7, CatalogVersion: "sha256:1"}, gone},
			When:  server.Install{Installation: docs(disabled)},
			Then: []events.Event{
				events.ServerInstalled{Installation: docs(disabled)},
				events.ServerStatusChanged{To: "disabled", ReasonCode: server.ReasonInstalled, Generation: 7},
			},
		},
		{
			Rule:  "what is installed again while it is being stopped moves on from there",
			Given: []events.Event{first, begun, gone, status(server.Ready, server.Stopping, server.ReasonUninstalled)},
			When:  server.Install{Installation: docs()}, Then: []events.Event{first},
		},

		{
			Rule: "an installation is disabled (R38)", Given: []events.Event{first, begun},
			When: server.SetPolicy{Enabled: &no}, Then: []events.Event{policy(true, false, false, false)},
		},
		{
			Rule: "an installation is made implicit and enabled in one (R38)", Given: []events.Event{first, begun, policy(true, false, false, false)},
			When: server.SetPolicy{Enabled: &yes, Implicit: &yes}, Then: []events.Event{policy(false, false, true, true)},
		},
		{Rule: "a policy that it has already is nothing new", Given: []events.Event{first, begun}, When: server.SetPolicy{Enabled: &yes, Implicit: &no}},
		{Rule: "a policy with neither flag is none (R38)", Given: []events.Event{first, begun}, When: server.SetPolicy{}, Fault: fault.InvalidRequest},
		{Rule: "nothing has no policy (R38)", When: server.SetPolicy{Enabled: &yes}, Fault: fault.NotFound},
		{Rule: "what was uninstalled has no policy (R38)", Given: []events.Event{first, gone}, When: server.SetPolicy{Enabled: &yes}, Fault: fault.NotFound},

		{Rule: "an installation is removed (R85)", Given: []events.Event{first, begun}, When: server.Uninstall{}, Then: []events.Event{gone}},
		{Rule: "nothing cannot be removed (R85)", When: server.Uninstall{}, Fault: fault.NotFound},
		{Rule: "it is removed once (R85)", Given: []events.Event{first, gone}, When: server.Uninstall{}, Fault: fault.NotFound},
	})
}

func TestSecretsAndTheirKeystore(t *testing.T) {
	t.Parallel()
	first := events.ServerInstalled{Installation: docs()}
	selected := events.KeystoreSelected{Provider: "file", Reason: redact.Static("there is no keyring")}
	decider.Run(t, []Case[server.Command]{
		{
			Rule: "a secret in use has a new value (R88)", Given: []events.Event{first},
			When: server.StoreSecret{Secret: stored("v-2")}, Then: []events.Event{stored("v-2")},
		},
		{Rule: "the value that it has is no new one", Given: []events.Event{first, stored("v-2")}, When: server.StoreSecret{Secret: stored("v-2")}},
		{
			Rule: "a secret that nothing uses is not stored", Given: []events.Event{first},
			When: server.StoreSecret{Secret: events.SecretStored{Ref: "other", Version: "v-2"}}, Fault: fault.NotFound,
		},
		{
			Rule: "what was uninstalled uses no secret", Given: []events.Event{first, events.ServerUninstalled{}},
			When: server.StoreSecret{Secret: stored("v-2")}, Fault: fault.NotFound,
		},
		{
			Rule: "a value is gone (R84)", Given: []events.Event{first, stored("v-2")},
			When: server.DropSecret{Ref: envRef, Version: "v-env"}, Then: []events.Event{events.SecretDeleted{Ref: envRef, Version: "v-env"}},
		},
		{
			Rule: "a value is left behind (R84)", Given: []events.Event{first, stored("v-2")},
			When: server.DropSecret{Ref: envRef, Version: "v-env", Failed: "timed_out"},
			Then: []events.Event{events.SecretDeleteFailed{Ref: envRef, Version: "v-env", Reason: "timed_out"}},
		},
		{
			Rule: "a garbage collection is recorded (R91)", When: server.Collect{Collected: events.SecretsCollected{StoredRefs: 3, OrphanRefs: 1, DeletedRefs: 1}},
			Then: []events.Event{events.SecretsCollected{StoredRefs: 3, OrphanRefs: 1, DeletedRefs: 1}},
		},
		{
			Rule: "one that did not begin is recorded (R93)", When: server.FailCollect{Reason: string(fault.GCRefsUndecodable)},
			Then: []events.Event{events.SecretsGcFailed{Reason: string(fault.GCRefsUndecodable)}},
		},
		{
			Rule: "a keystore is selected", When: server.SelectKeystore{Provider: "file", Reason: redact.Static("there is no keyring")},
			Then: []events.Event{selected},
		},
		{
			Rule: "the same keystore again is nothing new", Given: []events.Event{selected},
			When: server.SelectKeystore{Provider: "file", Reason: redact.Static("there is no keyring")},
		},
		{
			Rule: "the same keystore for another reason is", Given: []events.Event{selected},
			When: server.SelectKeystore{Provider: "file", Reason: redact.Static("the keyring is locked")},
			Then: []events.Event{events.KeystoreSelected{Provider: "file", Reason: redact.Static("the keyring is locked")}},
		},
	})
}

func TestStateHasTheVersionsInUse(t *testing.T) {
	t.Parallel()
	ref := func(kind, key string) string {
		return "gateway_settings:mcp:workspace:default:docs:" + kind + ":" + key
	}
	want := map[string]string{envRef: "v-env", ref("arg", "1"): "v-arg", ref("url", "0"): "v-url", ref("header", "x-key"): "v-header"}
	s := decider.Fold(events.ServerInstalled{Installation: docs()})
	if diff := cmp.Diff(want, s.Secrets()); diff != "" {
		t.Errorf("in use (-want +got):\n%s", diff)
	}
	later := s
	for r := range want {
		later = decider.Then(later, 1, events.SecretStored{Ref: r, Version: "v-2"})
		want[r] = "v-2"
	}
	if diff := cmp.Diff(want, later.Secrets()); diff != "" {
		t.Errorf("in use after rotation (-want +got):\n%s", diff)
	}
	if s.Rotated != 0 || later.Rotated != 2 || !s.Last.Equal(Noon) {
		t.Errorf("rotated at %d, then at %d; the last commit was at %v", s.Rotated, later.Rotated, s.Last)
	}
	if s.Secrets()[envRef] != "v-env" {
		t.Error("a rotation changed the state before it")
	}
	if got := decider.Then(s, 1, events.SecretStored{}).Installation; !cmp.Equal(got, s.Installation) {
		t.Errorf("a secret of no name made %+v", got)
	}
	gone := decider.Then(later, 1, events.ServerUninstalled{})
	if gone.Installed || gone.Secrets() != nil || gone.Installation.Name != "docs" {
		t.Errorf("after the end: %+v", gone)
	}
}

func TestStateHasTheInstallation(t *testing.T) {
	t.Parallel()
	s := decider.Fold(events.ServerInstalled{Installation: docs()}, events.ServerPolicyChanged{After: events.ServerPolicy{Implicit: true}})
	d := docs()
	want := server.Installation{
		ScopeKind: "workspace", ScopeKey: "default", Name: "docs", Home: "h-1", Fingerprint: "fp-1", Transport: "stdio",
		Command: server.TextRef{Text: "npx"}, Args: []server.TextRef{{Text: "-y"}, {Ref: d.Args[1].Ref, Version: "v-arg"}}, Cwd: "sub",
		Env: d.Env, URL: server.TextRef{Ref: d.Url.Ref, Version: "v-url"}, Headers: d.Headers,
		StartupTimeout: 3 * time.Minute, ToolTimeout: 2 * time.Minute, Required: true, Parallel: true, Approval: "a-1", By: "local",
	}
	if diff := cmp.Diff(want, s.Installation); diff != "" {
		t.Errorf("installation (-want +got):\n%s", diff)
	}
	if !s.Installed || s.Enabled || !s.Implicit {
		t.Errorf("installed %v, enabled %v, implicit %v", s.Installed, s.Enabled, s.Implicit)
	}
}

func TestKeysDoNotClash(t *testing.T) {
	t.Parallel()
	keys := []string{
		server.Key(server.ScopeWorkspace, "default", "docs"), server.Key(server.ScopeUser, server.UserKey, "docs"), server.HomeKey("docs"),
		server.Key(server.ScopeWorkspace, "default", "home"), server.Key(server.ScopeWorkspace, "default", "user"),
	}
	slices.Sort(keys)
	if want := []string{"docs", "home", "home:docs", "user", "user:default:docs"}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	for key, want := range map[string]string{"docs": "docs", "home": "home", "user:default:docs": "docs"} {
		if name, ok := server.Name(key); name != want || !ok {
			t.Errorf("the name of %q is %q, %v", key, name, ok)
		}
	}
	if name, ok := server.Name(server.HomeKey("docs")); ok {
		t.Errorf("a keystore is the server %q", name)
	}
}
