package installer_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/workers/installer"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// trouble is a keystore in which something happens at the n-th write or the n-th
// deletion, or when what is stored is listed.
type trouble struct {
	installer.Store
	mu                   sync.Mutex
	puts, deletes, lists int
	// at is called before and after each; an error before it is that of the keystore.
	at func(what string, n int, after bool) error
}

func (s *trouble) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
	return *n
}

func (s *trouble) around(what string, n int, do func() error) error {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	if err := at(what, n, false); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return at(what, n, true)
}

func (s *trouble) Put(ctx context.Context, item string, v redact.Raw[string]) error {
	return s.around("put", s.count(&s.puts), func() error { return s.Store.Put(ctx, item, v) })
}

func (s *trouble) Delete(ctx context.Context, item string) error {
	return s.around("delete", s.count(&s.deletes), func() error { return s.Store.Delete(ctx, item) })
}

func (s *trouble) Items(ctx context.Context) (items []string, err error) {
	err = s.around("list", s.count(&s.lists), func() error { items, err = s.Store.Items(ctx); return err })
	return items, err
}

// config is mcpServers JSON with one disabled server.
func config(name string, env map[string]string) map[string]any {
	return map[string]any{"config": map[string]any{"mcpServers": map[string]any{
		name: map[string]any{"command": "true", "env": env, "disabled": true},
	}}}
}

func install(t *testing.T, r *rig.Rig, name string, env map[string]string) client.InstalledItem {
	t.Helper()
	var out client.Installed
	if err := r.Do("mcp/install", config(name, env), &out); err != nil {
		t.Fatal(err)
	}
	if out.Status != "ok" || len(out.Items) != 1 {
		t.Fatalf("install: %+v", out)
	}
	return out.Items[0]
}

// values are what a server has, by variable; the error is of what is missing.
func values(r *rig.Rig, name string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range r.Model.Servers.Get(rig.Workspace, name).Installation.Env {
		v, ok, err := r.Keystore.Get(r.Context(), s.Ref+"@"+s.Version)
		if err == nil && !ok {
			err = errors.New("lost: " + s.Key)
		}
		if err != nil {
			return out, err
		}
		out[s.Key] = v.Reveal()
	}
	return out, nil
}

// want fails unless a server has these values.
func want(t *testing.T, r *rig.Rig, name string, env map[string]string) {
	t.Helper()
	got, err := values(r, name)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, env) {
		t.Fatalf("%s has %d values that are not those that it is to have: %v", name, len(got), slices.Sorted(maps.Keys(got)))
	}
}

// stale are the items that no installation of the rig refers to.
func stale(t *testing.T, r *rig.Rig) (out []string) {
	t.Helper()
	used := map[string]bool{}
	for _, s := range r.Model.Servers.All() {
		for ref, version := range s.Secrets() {
			used[ref+"@"+version] = true
		}
	}
	items, err := r.Keystore.Items(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(items, func(item string) bool { return used[item] })
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(40 * time.Second); !ok(); {
		if time.Now().After(until) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// clean waits until nothing is stale.
func clean(t *testing.T, r *rig.Rig) {
	t.Helper()
	await(t, "nothing is left that nothing refers to", func() bool { return len(stale(t, r)) == 0 })
}

// said are the events of a name, in the order of the log.
func said[E events.Event](t *testing.T, r *rig.Rig) (out []E) {
	t.Helper()
	for c, err := range r.Bus.Read(r.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Events {
			if e, ok := e.(E); ok {
				out = append(out, e)
			}
		}
	}
	return out
}

func TestAnUpdateKeepsWhatIsEqualAndDeletesWhatIsStale(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	first := install(t, r, "s", map[string]string{"A": "one", "B": "two"})
	before := r.Model.Servers.Get(rig.Workspace, "s").Secrets()
	second := install(t, r, "s", map[string]string{"A": "one", "C": "three"})
	if first.Status != "installed" || second.Status != "updated" {
		t.Errorf("%s, then %s", first.Status, second.Status)
	}
	want(t, r, "s", map[string]string{"A": "one", "C": "three"})
	after := r.Model.Servers.Get(rig.Workspace, "s").Secrets()
	for ref, version := range after {
		if strings.HasSuffix(ref, ":A") && before[ref] != version {
			t.Error("an equal value has another version")
		}
	}
	clean(t, r)
	await(t, "the deletion is recorded", func() bool { return len(said[events.SecretDeleted](t, r)) > 0 })
	var order []string
	for c, err := range r.Bus.Read(r.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Events {
			switch e := e.(type) {
			case events.ServerInstalled:
				order = append(order, "installed")
			case events.ServerUpdated:
				order = append(order, "updated")
			case events.SecretStored:
				if e.Provider != "home_key" {
					t.Errorf("the provider is %q", e.Provider)
				}
				order = append(order, "stored "+e.Ref[strings.LastIndexByte(e.Ref, ':')+1:])
			case events.SecretDeleted:
				order = append(order, "deleted "+e.Ref[strings.LastIndexByte(e.Ref, ':')+1:])
			}
		}
	}
	if got := strings.Join(order, ", "); got != "installed, stored A, stored B, updated, stored C, deleted B" {
		t.Errorf("the log says: %s", got)
	}
}

func TestPolicyOfAnInstallation(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	install(t, r, "s", map[string]string{"A": "one"})
	var state client.PolicyState
	if err := r.Do("mcp/policy/set", map[string]any{"name": "s", "enabled": true, "implicit": true}, &state); err != nil || !state.Enabled || !state.Implicit {
		t.Errorf("%+v, %v", state, err)
	}
	// An update keeps the policy, whatever it says (R35).
	install(t, r, "s", map[string]string{"A": "two"})
	if s := r.Model.Servers.Get(rig.Workspace, "s"); !s.Enabled || !s.Implicit {
		t.Error("an update changed the policy")
	}
	for _, c := range []struct {
		method string
		params map[string]any
		kind   fault.Kind
	}{
		{"mcp/policy/set", map[string]any{"name": "s"}, fault.InvalidRequest},
		{"mcp/policy/set", map[string]any{"name": " ", "enabled": true}, fault.InvalidRequest},
		{"mcp/policy/set", map[string]any{"name": "s", "enabled": true, "scope_kind": "planet"}, fault.InvalidRequest},
		{"mcp/policy/set", map[string]any{"name": "t", "enabled": true}, fault.NotFound},
		{"mcp/policy/set", map[string]any{"name": "s", "enabled": true, "scope_kind": "user"}, fault.NotFound},
		{"mcp/policy/set", map[string]any{"name": "s", "enabled": 1}, fault.InvalidInput},
		{"mcp/uninstall", map[string]any{"name": "t"}, fault.NotFound},
		{"mcp/server/restart", map[string]any{"name": "t"}, fault.NotFound},
		{"mcp/install", map[string]any{"config": "{}", "scope_kind": "planet"}, fault.InvalidScopeKind},
		{"secret/set", map[string]any{"name": "t/env/A", "value": "x"}, fault.NotFound},
		{"secret/set", map[string]any{"name": "s/env/B", "value": "x"}, fault.NotFound},
		{"secret/set", map[string]any{"name": "A", "value": "x"}, fault.InvalidInput},
		{"secret/delete", map[string]any{"name": "t/env/A"}, fault.NotFound},
	} {
		if err := r.Do(c.method, c.params, nil); !fault.Is(err, c.kind) {
			t.Errorf("%s %v: %v", c.method, c.params, err)
		}
	}
}

func TestOnlyAnOperatorInstalls(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	asked := 0
	for _, m := range r.Methods {
		if !strings.HasPrefix(m.Name, "secret/") && !slices.Contains([]string{"mcp/install", "mcp/policy/set", "mcp/uninstall", "mcp/server/restart"}, m.Name) {
			continue
		}
		asked++
		if _, err := m.Handle(r.Context(), &bus.Request{Workspace: rig.Workspace, Principal: "stranger", Method: m.Name}); !fault.Is(err, fault.RoleDenied) {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	if asked < 7 {
		t.Errorf("only %d methods", asked)
	}
}

func TestRotationOfASecret(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	print := install(t, r, "s", map[string]string{"A": "one", "B": "two"}).Fingerprint
	set := func(value string) (out client.SecretChanged) {
		t.Helper()
		if err := r.Do("secret/set", client.SecretSet{Name: "s/env/A", Value: value}, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := set("three"); !out.Changed || out.Ref != "gateway_settings:mcp:workspace:default:s:env:A" {
		t.Errorf("%+v", out)
	}
	if out := set("three"); out.Changed {
		t.Error("an equal value is a change")
	}
	want(t, r, "s", map[string]string{"A": "three", "B": "two"})
	if s := r.Model.Servers.Get(rig.Workspace, "s"); s.Installation.Fingerprint != print {
		t.Error("a rotation changed the fingerprint")
	}
	clean(t, r)
	var out client.SecretChanged
	if err := r.Do("secret/delete", client.SecretName{Name: "s/env/A"}, &out); err != nil || !out.Changed {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := values(r, "s"); err == nil {
		t.Error("the secret is still there")
	}
	if err := r.Do("secret/delete", client.SecretName{Name: "s/env/A"}, &out); err != nil || out.Changed {
		t.Errorf("%+v, %v", out, err)
	}
	set("four")
	want(t, r, "s", map[string]string{"A": "four", "B": "two"})
}

// The moments at which a process is killed while an update of two secrets is under
// way, as its keystore sees them. What is left is what a copy of the home has.
func TestAKillAtEachPointOfAnUpdateLosesNoSecretAndLeavesNone(t *testing.T) {
	t.Parallel()
	old, next := map[string]string{"A": "old a", "B": "old b", "C": "old c"}, map[string]string{"A": "new a", "B": "new b"}
	for _, c := range []struct {
		name, what string
		n          int
		after      bool
		committed  bool
	}{
		{"before the first put", "put", 1, false, false},
		{"after the first put", "put", 1, true, false},
		{"between put and commit", "put", 2, true, false},
		{"between commit and delete", "list", 1, false, true},
		{"before the first delete", "delete", 1, false, true},
		{"after a third of the deletes", "delete", 1, true, true},
		{"after two thirds of the deletes", "delete", 2, true, true},
		{"after the deletes", "delete", 3, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, store := watched(t)
			install(t, r, "s", old)
			store.quiet(t, r)
			image := make(chan string, 1)
			store.happens(func(what string, n int, after bool) error {
				if what == c.what && n == c.n && after == c.after {
					image <- r.Image()
				}
				return nil
			})
			install(t, r, "s", next)
			var home string
			select {
			case home = <-image:
			case <-time.After(20 * time.Second):
				t.Fatal("the moment did not come")
			}
			again := rig.New(t, rig.Options{Home: home, Still: true})
			now := old
			if c.committed {
				now = next
			}
			want(t, again, "s", now)
			clean(t, again)
			want(t, again, "s", now)
			// And it goes on from there.
			install(t, again, "s", map[string]string{"A": "third"})
			clean(t, again)
			want(t, again, "s", map[string]string{"A": "third"})
		})
	}
}

// watched is a rig with a keystore in which something can happen.
func watched(t *testing.T) (*rig.Rig, *trouble) {
	store := &trouble{}
	store.happens(func(string, int, bool) error { return nil })
	r := rig.New(t, rig.Options{Still: true, Secrets: func(s installer.Store) installer.Store {
		store.Store = s
		return store
	}})
	return r, store
}

// happens sets what happens from now on, counted anew.
func (s *trouble) happens(at func(what string, n int, after bool) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts, s.deletes, s.lists, s.at = 0, 0, 0, at
}

// quiet waits until the first job is done: it has listed, and who takes the lock alone
// after it comes behind it.
func (s *trouble) quiet(t *testing.T, r *rig.Rig) {
	t.Helper()
	await(t, "the job comes", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.lists > 0
	})
	if err := r.Do("secret/collect", client.SecretCollect{DryRun: true}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestAKeystoreThatFailsLeavesTheOldInstallation(t *testing.T) {
	t.Parallel()
	old, next := map[string]string{"A": "old a", "B": "old b"}, map[string]string{"A": "new a", "B": "new b", "C": "new c"}
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint("put ", n), func(t *testing.T) {
			t.Parallel()
			r, store := watched(t)
			install(t, r, "s", old)
			store.quiet(t, r)
			store.happens(func(what string, at int, after bool) error {
				if what == "put" && at == n && !after {
					return errors.New("no room for new b")
				}
				return nil
			})
			err := r.Do("mcp/install", config("s", next), nil)
			if !fault.Is(err, fault.KeystoreWriteFailed) || strings.Contains(err.Error(), "new") {
				t.Fatalf("%v", err)
			}
			if left := stale(t, r); len(left) > 0 {
				t.Errorf("at once: %d values are left", len(left))
			}
			want(t, r, "s", old)
			if n := len(said[events.ServerUpdated](t, r)); n != 0 {
				t.Errorf("%d updates", n)
			}
			install(t, r, "s", map[string]string{"A": "old a"}) // needs no put
			clean(t, r)
			want(t, r, "s", map[string]string{"A": "old a"})
		})
	}
}

func TestADeletionThatFailsIsSaidAndLeftToTheGarbageCollection(t *testing.T) {
	t.Parallel()
	r, store := watched(t)
	store.happens(func(what string, _ int, after bool) error {
		if what == "delete" && !after {
			return errors.New("read-only")
		}
		return nil
	})
	install(t, r, "s", map[string]string{"A": "one", "B": "two"})
	store.quiet(t, r)
	if err := r.Do("mcp/uninstall", map[string]string{"name": "s"}, nil); err != nil {
		t.Fatal(err)
	}
	await(t, "the failed deletions are recorded", func() bool { return len(said[events.SecretDeleteFailed](t, r)) >= 2 })
	var dry, failing, done client.SecretsCollected
	if err := r.Do("secret/collect", client.SecretCollect{DryRun: true}, &dry); err != nil || dry.StoredRefs != 2 || dry.OrphanRefs != 2 || dry.DeletedRefs != 0 {
		t.Errorf("%+v, %v", dry, err)
	}
	if err := r.Do("secret/collect", client.SecretCollect{}, &failing); err != nil || failing.DeletedRefs != 0 || len(failing.FailedDeletes) != 2 {
		t.Errorf("%+v, %v", failing, err)
	}
	store.happens(func(string, int, bool) error { return nil })
	// What is not of ours is never touched.
	if err := r.Keystore.Put(r.Context(), "of another program", redact.NewRaw("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Do("secret/collect", client.SecretCollect{}, &done); err != nil || done.DeletedRefs != 2 || len(done.FailedDeletes) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if left := stale(t, r); !slices.Equal(left, []string{"of another program"}) {
		t.Errorf("%v", left)
	}
	all := said[events.SecretsCollected](t, r)
	if all = all[1:]; len(all) != 3 || !all[0].DryRun || all[2].DeletedRefs != 2 || len(all[1].Failed) != 2 {
		t.Errorf("%+v", all)
	}
}

func TestNothingIsDeletedWhileAReferenceCannotBeRead(t *testing.T) {
	t.Parallel()
	r, store := watched(t)
	install(t, r, "s", map[string]string{"A": "one"})
	store.quiet(t, r)
	orphan := "gateway_settings:mcp:workspace:default:gone:env:A@01ARZ3NDEKTSV4RRFFQ69G5FAV"
	if err := r.Keystore.Put(r.Context(), orphan, redact.NewRaw("x")); err != nil {
		t.Fatal(err)
	}
	bad := events.Installation{
		ScopeKind: "workspace", ScopeKey: rig.Workspace, Name: "odd", Home: r.Model.Servers.Get(rig.Workspace, "s").Installation.Home,
		Env: []events.SecretRef{{Key: "A", Ref: "what is that", Version: "1"}},
	}
	if _, err := r.Model.Servers.Dispatch(r.Context(), rig.Workspace, "odd", bus.Meta{Actor: "test", Principal: "test"}, server.Install{Installation: bad}); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		if err := r.Do("secret/collect", client.SecretCollect{DryRun: dry}, nil); !fault.Is(err, fault.GCRefsUndecodable) {
			t.Errorf("%v", err)
		}
	}
	if left := stale(t, r); !slices.Contains(left, orphan) {
		t.Error("it was deleted")
	}
	if n := len(said[events.SecretsGcFailed](t, r)); n != 2 {
		t.Errorf("%d events", n)
	}
}

// Two processes of a home change one server at once, and others at the same time, and
// collect: each answer holds, nothing is lost and nothing is left.
func TestTwoInstallersAtOnce(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true, Listen: true})
	p := r.Peer()
	r.AwaitRuntimes(2)
	install(t, r, "one", map[string]string{"A": "0"})
	const changes = 12
	var wg sync.WaitGroup
	for i, at := range []*rig.Rig{r, p} {
		wg.Go(func() {
			for n := range changes {
				env := map[string]string{"A": fmt.Sprint(i, " ", n), fmt.Sprint("X", n%3): "x"}
				if err := at.Do("mcp/install", config("one", env), nil); err != nil {
					t.Errorf("install: %v", err)
				}
				if err := at.Do("secret/set", client.SecretSet{Name: "one/env/A", Value: fmt.Sprint("set ", i, n)}, nil); err != nil {
					t.Errorf("set: %v", err)
				}
			}
		})
		wg.Go(func() {
			for n := range changes {
				if err := at.Do("mcp/install", config(fmt.Sprint("own", i), map[string]string{"A": fmt.Sprint(n)}), nil); err != nil {
					t.Errorf("install: %v", err)
				}
				if err := at.Do("secret/collect", client.SecretCollect{DryRun: n%4 != 0}, nil); err != nil {
					t.Errorf("collect: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"one", "own0", "own1"} {
		if _, err := values(r, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	want(t, r, "own1", map[string]string{"A": fmt.Sprint(changes - 1)})
	clean(t, r)
	for _, name := range []string{"one", "own0", "own1"} {
		if _, err := values(r, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManyServersInOneConfig(t *testing.T) {
	t.Parallel()
	const many = 250
	r := rig.New(t, rig.Options{Still: true})
	all := map[string]any{}
	for n := range many {
		all[fmt.Sprintf("s%03d", n)] = map[string]any{"command": "true", "env": map[string]string{"TOKEN": fmt.Sprint("value ", n)}, "disabled": true}
	}
	all["bad"] = map[string]any{"env": map[string]string{"TOKEN": "x"}}
	var out client.Installed
	began := time.Now()
	if err := r.Do("mcp/install", map[string]any{"config": map[string]any{"mcpServers": all}}, &out); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d servers in %v", many, time.Since(began))
	if out.Status != "partial" || len(out.Items) != many+1 {
		t.Fatalf("%s, %d items", out.Status, len(out.Items))
	}
	for _, it := range out.Items {
		if status := map[bool]string{true: "validation_error", false: "installed"}[it.Name == "bad"]; it.Status != status {
			t.Fatalf("%+v", it)
		}
	}
	want(t, r, "s249", map[string]string{"TOKEN": "value 249"})
	items, err := r.Keystore.Items(r.Context())
	if err != nil || len(items) != many {
		t.Errorf("%d values, %v", len(items), err)
	}
}

func TestADeclaredNameIsNotInstalled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rig.Declare(t, dir, "taken", rig.Command("true"), "enabled: false")
	r := rig.New(t, rig.Options{Still: true, Dirs: []string{dir}})
	var out client.Installed
	if err := r.Do("mcp/install", config("taken", map[string]string{"A": "secret"}), &out); err != nil {
		t.Fatal(err)
	}
	if out.Status != "validation_error" || len(out.Items) != 1 || len(out.Items[0].Diagnostics) != 1 {
		t.Fatalf("%+v", out)
	}
	if d := out.Items[0].Diagnostics[0]; d.Code != "duplicate_server_id" || !strings.Contains(d.Message, "agent/mcp/taken.yaml") || d.Path != "$.mcpServers.taken" {
		t.Errorf("%+v", d)
	}
	if items, err := r.Keystore.Items(r.Context()); err != nil || len(items) > 0 {
		t.Errorf("%v, %v", items, err)
	}
}

// No secret is in any file of the home, whatever field it was in.
func TestNoSecretIsInTheHome(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	const canary = "Zk7wQmXc93bTfGh2"
	n := 0
	secret := func() string { n++; return fmt.Sprintf("%s%04d", canary, n) }
	token := func() string { return "ghp_" + secret() + "aB3dE5gH7jK9mN1pQ3" }
	configs := []map[string]any{
		{"good": map[string]any{"command": "true", "args": []string{"--token", secret(), "--api-key=" + secret(), token()}, "env": map[string]string{"A": secret()}, "disabled": true}},
		{"path": map[string]any{"url": "https://mcp.example/" + token() + "/mcp", "headers": map[string]string{"Authorization": "Bearer " + secret()}, "disabled": true}},
		{"query": map[string]any{"url": "https://u:" + secret() + "@mcp.example/?k=" + secret(), "headers": map[string]string{"A": secret() + "\n"}}},
		{"types": map[string]any{"command": []string{secret()}, "args": secret(), "env": map[string]any{"A": []string{secret()}}, "timeout": secret(), token(): secret()}},
	}
	var told bytes.Buffer
	for _, c := range configs {
		var out client.Installed
		err := r.Do("mcp/install", map[string]any{"config": map[string]any{"mcpServers": c}}, &out)
		text, _ := json.Marshal(out) // it came as JSON
		fmt.Fprintln(&told, string(text), err)
	}
	for _, params := range []any{
		client.SecretSet{Name: "good/env/A", Value: secret()}, client.SecretSet{Name: "nobody/env/A", Value: secret()},
		map[string]any{"name": "good/env/A", "value": []string{secret()}},
	} {
		fmt.Fprintln(&told, r.Do("secret/set", params, nil))
	}
	clean(t, r)
	items, err := r.Keystore.Items(r.Context())
	if err != nil || len(items) < 5 {
		t.Fatalf("only %v are in the keystore, %v", items, err)
	}
	forms := [][]byte{[]byte(canary)}
	for shift := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), canary...))
		forms = append(forms, []byte(text[(shift*8+5)/6:(shift+len(canary))*8/6]))
	}
	leaks := func(b []byte) bool {
		return slices.ContainsFunc(forms, func(f []byte) bool { return bytes.Contains(b, f) })
	}
	if leaks(told.Bytes()) {
		t.Errorf("an answer has one: %s", told.String())
	}
	files := 0
	err = filepath.WalkDir(r.Home, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		files++
		if leaks(b) || leaks([]byte(path)) {
			t.Errorf("%s has one", path)
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
}

// A home that was on another bus, or has lost its log, has secrets that this log knows
// nothing of. There is no other copy, so that they go only when a person says so.
func TestSecretsOfAnotherLogAreNotDeletedUnasked(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Still: true})
	other := "gateway_settings:mcp:workspace:" + rig.Workspace + ":elsewhere:env:TOKEN@" + ulid.Make().String()
	if err := r.Keystore.Put(r.Context(), other, redact.NewRaw("the only copy")); err != nil {
		t.Fatal(err)
	}
	install(t, r, "s", map[string]string{"A": "one"})
	install(t, r, "s", map[string]string{"A": "two"})
	await(t, "the replaced value is gone", func() bool { return len(said[events.SecretDeleted](t, r)) > 0 })
	if left := stale(t, r); !slices.Equal(left, []string{other}) {
		t.Fatalf("left are %v", left)
	}
	var done client.SecretsCollected
	if err := r.Do("secret/collect", client.SecretCollect{}, &done); err != nil || done.DeletedRefs != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	clean(t, r)
}
