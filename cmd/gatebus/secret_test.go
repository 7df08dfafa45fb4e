package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

const tokenRef = "gateway_settings:mcp:workspace:default:docs:env:TOKEN"

// installs a server with a secret in the log.
func installs(t *testing.T, r *instance, version string) {
	t.Helper()
	_, err := r.model.Servers.Dispatch(t.Context(), r.workspace, server.Key(server.ScopeWorkspace, r.workspace, "docs"), bus.Meta{
		Actor: "local", Principal: "local", Scope: events.Scope{Server: "docs"},
	}, server.Install{Installation: events.Installation{
		ScopeKind: server.ScopeWorkspace, ScopeKey: r.workspace, Name: "docs", Home: r.homeID, Fingerprint: "f", Transport: "stdio",
		Command: events.TextRef{Text: redact.Static("docs")}, Env: []events.SecretRef{{Key: "TOKEN", Ref: tokenRef, Version: version}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// What is known of secrets is answered, and no value is in any answer (R89).
func TestSecretsAreListedWithoutTheirValues_R89(t *testing.T) {
	t.Parallel()
	r := serving(t, plainSettings(t))
	env := map[string]string{"GATEBUS_HOME": r.home}
	installs(t, r, "1")
	puts := func(item string) {
		t.Helper()
		if err := r.secrets.Put(t.Context(), item, redact.NewRaw("hunter2-hunter2")); err != nil {
			t.Fatal(err)
		}
	}
	rows := func() (out []string) {
		t.Helper()
		o := execute(t.Context(), env, "", "secret", "list", "-o", "json")
		var list []client.Secret
		if err := json.Unmarshal([]byte(o.stdout), &list); o.code != 0 || err != nil {
			t.Fatalf("%v: %+v", err, o)
		}
		if strings.Contains(o.stdout+o.stderr, "hunter2") {
			t.Errorf("a value is shown: %s", o.stdout)
		}
		for _, s := range list {
			out = append(out, strings.Join([]string{s.Scope, s.Server, s.Place, s.Key, s.Version, s.State}, " "))
		}
		return out
	}
	if diff := cmp.Diff([]string{"workspace:default docs env TOKEN 1 missing"}, rows()); diff != "" {
		t.Errorf("not stored (-want +got):\n%s", diff)
	}
	puts(tokenRef + "@1")
	puts(tokenRef + "@0")
	if diff := cmp.Diff([]string{"workspace:default docs env TOKEN 0 orphan", "workspace:default docs env TOKEN 1 stored"}, rows()); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	o := execute(t.Context(), env, "", "secret", "doctor", "-o", "json")
	var d client.SecretDoctor
	if err := json.Unmarshal([]byte(o.stdout), &d); o.code != 0 || err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	if d.Provider != "home_key" || !d.Made || !d.Available || d.Stored != 2 || d.Missing != 0 || d.Orphans != 1 || len(d.Warnings) != 1 {
		t.Errorf("doctor says %+v", d)
	}
	execute(t.Context(), env, "", "secret", "doctor").wants(t, 0, ""+
		"key:      home_key\nbecause:  the keystore was made with it\nsecrets:  2 stored, 0 missing, 1 that nothing refers to\n"+
		"warning:  the key is in the home, in keys/keystore.key: who can read the home, or a copy of it, can read the secrets\n", "")
}

// Where the key is is in the log, once for each choice.
func TestChoiceOfTheKeystoreIsRecorded_R90(t *testing.T) {
	t.Parallel()
	r := serving(t, plainSettings(t))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var said []string
	for c, err := range r.bus.Follow(ctx, 0) {
		if err != nil {
			t.Fatalf("after %q: %v", said, err)
		}
		for _, e := range c.Events {
			selected, ok := e.(events.KeystoreSelected)
			if !ok {
				continue
			}
			said = append(said, selected.Provider+", "+selected.Reason.String())
			if len(said) == 1 {
				if err := r.secrets.Put(ctx, "a", redact.NewRaw("value")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(said) == 2 {
			break
		}
	}
	want := []string{"home_key, the system has no keyring that could be asked", "home_key, the keystore was made with it"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

func TestSecretVerbsAskForTheirMethods(t *testing.T) {
	t.Parallel()
	r := script(t, answers{
		"secret/set":     always(client.SecretChanged{Ref: tokenRef, Changed: true}),
		"secret/delete":  always(client.SecretChanged{Ref: tokenRef}),
		"secret/collect": always(client.SecretsCollected{ActiveRefs: 1, StoredRefs: 3, OrphanRefs: 2, DeletedRefs: 1, FailedDeletes: []string{"r-1"}}),
		"secret/doctor":  always(client.SecretDoctor{Provider: "keyring", Problem: "the keyring of the system is locked"}),
	})
	env := map[string]string{"GATEBUS_HOME": r.home}
	execute(t.Context(), env, "hunter2\n", "secret", "set", "docs/env/TOKEN").wants(t, 0, "secret:   "+tokenRef+"\nchanged:  true\n", "")
	execute(t.Context(), env, "", "secret", "rm", "docs/env/TOKEN").wants(t, 0, "secret:   "+tokenRef+"\nchanged:  false\n", "")
	execute(t.Context(), env, "", "secret", "garbage-collection", "--dry-run").wants(t, 1,
		"stored:       3\nin use:       1\norphans:      2\ndeleted:      1\nnot deleted:  r-1\n", "")
	if o := execute(t.Context(), env, "", "secret", "doctor"); o.code != 8 || !strings.Contains(o.stdout, "problem:   the keyring of the system is locked\n") {
		t.Errorf("doctor of a locked keyring: %+v", o)
	}
	want := []string{
		`secret/set {"name":"docs/env/TOKEN","value":"hunter2"}`, `secret/delete {"name":"docs/env/TOKEN"}`, `secret/collect {"dry_run":true}`, "secret/doctor ",
	}
	if diff := cmp.Diff(want, r.requests()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	// A value is no argument, and a flag that is unknown is an error (R92).
	for _, args := range [][]string{
		{"secret", "set", "docs/env/TOKEN", "hunter2"}, {"secret", "garbage-collection", "--forced"}, {"secret", "list", "docs"}, {"secret", "set"},
	} {
		if o := execute(t.Context(), env, "value", args...); o.code != 2 || !strings.Contains(o.stderr, "GB1001") {
			t.Errorf("%q: %+v", args, o)
		}
	}
	if n := len(r.requests()); n != len(want) {
		t.Errorf("the bus was asked %d times more", n-len(want))
	}
}
