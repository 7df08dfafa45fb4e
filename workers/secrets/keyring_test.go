package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/zalando/go-keyring"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// fakeRing is a keyring that does as it is told.
type fakeRing struct {
	mu     sync.Mutex
	items  map[string]string
	err    error         // what every question fails with
	hang   chan struct{} // what every question waits for; nil does not wait
	limit  int           // the longest value; 0 is without a limit
	forget bool          // keeps another value
	asked  int
}

func newFakeRing() *fakeRing { return &fakeRing{items: map[string]string{}} }

// set changes how it behaves.
func (r *fakeRing) set(change func(*fakeRing)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *fakeRing) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.items)
}

// questions are how often it was asked.
func (r *fakeRing) questions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *fakeRing) do(f func() error) error {
	r.mu.Lock()
	r.asked++
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	return f()
}

func (r *fakeRing) Get(service, user string) (value string, err error) {
	err = r.do(func() error {
		var ok bool
		if value, ok = r.items[service+"/"+user]; !ok {
			return keyring.ErrNotFound
		}
		return nil
	})
	return value, err
}

func (r *fakeRing) Set(service, user, value string) error {
	return r.do(func() error {
		if r.limit > 0 && len(value) > r.limit {
			return keyring.ErrSetDataTooBig
		}
		if r.forget {
			value = "x"
		}
		r.items[service+"/"+user] = value
		return nil
	})
}

func (r *fakeRing) Delete(service, user string) error {
	return r.do(func() error { delete(r.items, service+"/"+user); return nil })
}

// ways are the keyrings that cannot keep a key, with what is said of them.
var ways = map[string]struct {
	change func(*fakeRing)
	say    string
}{
	"locked": {func(r *fakeRing) {
		r.err = errors.New("failed to unlock correct collection '/org/freedesktop/secrets/collection/login'")
	}, "locked"},
	"no tools": {func(r *fakeRing) { r.err = &exec.Error{Name: "dbus-launch", Err: exec.ErrNotFound} }, "no keyring"},
	"dead bus": {func(r *fakeRing) { r.err = &net.OpError{Op: "dial", Err: errors.New("refused")} }, "no keyring"},
	"no service": {func(r *fakeRing) {
		r.err = errors.New("The name org.freedesktop.secrets was not provided by any .service files")
	}, "no keyring"},
	"platform":  {func(r *fakeRing) { r.err = keyring.ErrUnsupportedPlatform }, "no keyring"},
	"too small": {func(r *fakeRing) { r.limit = keyLength - 1 }, "no value as long as a key"},
	"forgetful": {func(r *fakeRing) { r.forget = true }, "another value"},
	"other":     {func(r *fakeRing) { r.err = errors.New("hunter2-hunter2") }, "fails"},
}

// A keyring that cannot keep a key is passed over, with the reason, and has
// nothing of ours afterwards.
func TestKeyringThatFailsIsPassedOver(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring := newFakeRing()
			way.change(ring)
			home := t.TempDir()
			s := opens(t, Options{Home: home, Keyring: ring})
			selected := s.Selected(t.Context())
			if selected.Provider != ProviderHomeKey || !strings.Contains(selected.Reason.String(), way.say) || selected.Err != nil {
				t.Errorf("selected %+v", selected)
			}
			if strings.Contains(fmt.Sprint(selected), "hunter2") {
				t.Errorf("what the keyring says is shown: %v", selected)
			}
			if !slices.ContainsFunc(selected.Warnings, func(w Warning) bool { return strings.Contains(w.Text.String(), "keystore.key") }) {
				t.Errorf("nobody is warned of the weaker choice: %v", selected.Warnings)
			}
			puts(t, s, "a", "value")
			ring.set(func(r *fakeRing) { r.err, r.limit, r.forget = nil, 0, false }) // later is too late
			s = opens(t, Options{Home: home, Keyring: ring})
			wants(t, s, "a", "value")
			if selected := s.Selected(t.Context()); selected.Provider != ProviderHomeKey || len(ring.all()) > 0 {
				t.Errorf("selected %+v, the keyring has %v", selected, ring.all())
			}
		})
	}
}

// A keyring that was locked at the start and is open when the first secret comes
// gets the key.
func TestKeyringIsAskedOnceMoreForTheFirstSecret(t *testing.T) {
	t.Parallel()
	ring := newFakeRing()
	ring.err = errors.New("locked")
	s := opens(t, Options{Home: t.TempDir(), Keyring: ring})
	if p := s.Selected(t.Context()).Provider; p != ProviderHomeKey {
		t.Errorf("a locked keyring gives %s", p)
	}
	ring.set(func(r *fakeRing) { r.err = nil })
	puts(t, s, "a", "value")
	if p := s.Selected(t.Context()).Provider; p != ProviderKeyring {
		t.Errorf("the key went to %s", p)
	}
}

// Once there is a store, its key is where it was put: no other provider is taken,
// nothing is written, and all is well when the provider is back.
func TestProviderOfAStoreIsPinned(t *testing.T) {
	t.Parallel()
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	away := map[string]func(*fakeRing){
		"empty": func(r *fakeRing) { r.items = map[string]string{} },
		"another key": func(r *fakeRing) {
			for k := range r.items {
				r.items[k] = other.String()
			}
		},
		"no key": func(r *fakeRing) {
			for k := range r.items {
				r.items[k] = "hunter2-hunter2"
			}
		},
	}
	for name, way := range ways {
		if name != "too small" && name != "forgetful" { // a key that is there is read
			away[name] = way.change
		}
	}
	for name, change := range away {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, ring := t.TempDir(), newFakeRing()
			puts(t, opens(t, Options{Home: home, Keyring: ring}), "a", "value")
			before, items := files(t, home), ring.all()
			ring.set(change)
			changed := ring.all()
			s := opens(t, Options{Home: home, Keyring: ring})
			pinned(t, s)
			if diff := cmp.Diff(before, files(t, home)) + cmp.Diff(changed, ring.all()); diff != "" {
				t.Errorf("something was written (-before +after):\n%s", diff)
			}
			ring.set(func(r *fakeRing) { r.err, r.items = nil, items })
			wants(t, s, "a", "value")
			puts(t, s, "b", "value")
		})
	}
	t.Run("absent", func(t *testing.T) {
		t.Parallel()
		home, ring := t.TempDir(), newFakeRing()
		puts(t, opens(t, Options{Home: home, Keyring: ring}), "a", "value")
		pinned(t, opens(t, Options{Home: home}))
		pinned(t, opens(t, Options{Home: home, KeyFile: filepath.Join(t.TempDir(), "key")}))
		wants(t, opens(t, Options{Home: home, Keyring: ring}), "a", "value")
	})
}

// pinned wants a store whose key is in a keyring that is away.
func pinned(t *testing.T, s *Store) {
	t.Helper()
	if _, ok, err := s.Get(t.Context(), "a"); ok || fault.KindOf(err) != fault.KeystoreUnavailable || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("read: %v, %v", ok, err)
	}
	if err := s.Put(t.Context(), "b", redact.NewRaw("value")); fault.KindOf(err) != fault.KeystoreWriteFailed {
		t.Errorf("written: %v", err)
	}
	if selected := s.Selected(t.Context()); selected.Provider != ProviderKeyring || !selected.Made || selected.Err == nil {
		t.Errorf("selected %+v", selected)
	}
}

// A keyring that answers nothing costs the deadline and no more, keeps nobody
// else waiting longer, and when it answers at last it keeps nothing of ours.
func TestSlowKeyringCostsItsDeadline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ring := newFakeRing()
		hang := make(chan struct{})
		ring.hang = hang
		s := opens(t, Options{Home: dir, Keyring: ring, Patience: 2 * time.Second})
		from := time.Now()
		selected := s.Selected(t.Context())
		if took := time.Since(from); took != 2*time.Second || selected.Provider != ProviderHomeKey || !strings.Contains(selected.Reason.String(), "in time") {
			t.Errorf("after %v: %+v", took, selected)
		}
		for range 3 { // while the first question is open no other one is asked
			if err := s.ring.probe(t.Context()); !errors.Is(err, errSlow) {
				t.Errorf("another probe: %v", err)
			}
		}
		if n := ring.questions(); n != 1 {
			t.Errorf("%d questions are open", n)
		}
		ring.set(func(r *fakeRing) { r.hang = nil })
		close(hang)
		synctest.Wait()
		if got := ring.all(); len(got) > 0 {
			t.Errorf("the keyring has %v", got)
		}

		// A key that is kept too late is taken out again.
		hang = make(chan struct{})
		ring.set(func(r *fakeRing) { r.hang = hang })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.ring.set(ctx, "account", "key"); !errors.Is(err, errSlow) {
			t.Errorf("a slow set: %v", err)
		}
		ring.set(func(r *fakeRing) { r.hang = nil })
		close(hang)
		synctest.Wait()
		if got := ring.all(); len(got) > 0 {
			t.Errorf("the keyring has %v", got)
		}
	})
}

// What a person names goes before the keyring, which is not even asked.
func TestNamedKeysGoFirst(t *testing.T) {
	t.Parallel()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	text := "# created: 2026-11-30\n# public key: " + id.Recipient().String() + "\n" + id.String() + "\n"
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	for _, path := range []string{file, filepath.Join(dir, CredentialName)} {
		if err := os.WriteFile(path, []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		provider string
		o        Options
	}{
		{ProviderKeyFile, Options{KeyFile: file, Credentials: dir}},
		{ProviderKeyFile, Options{KeyFile: filepath.Join(t.TempDir(), "new")}},
		{ProviderCredential, Options{Credentials: dir}},
		{ProviderKeyring, Options{Credentials: t.TempDir()}},
	} {
		ring := newFakeRing()
		c.o.Home, c.o.Keyring = t.TempDir(), ring
		s := opens(t, c.o)
		puts(t, s, "a", "value")
		wants(t, opens(t, c.o), "a", "value")
		if selected := s.Selected(t.Context()); selected.Provider != c.provider || selected.Err != nil || len(selected.Warnings) > 0 {
			t.Errorf("want %s: %+v", c.provider, selected)
		}
		if c.provider != ProviderKeyring && ring.questions() > 0 {
			t.Errorf("%s: the keyring was asked", c.provider)
		}
		if found := files(t, c.o.Home); found["keys/keystore.key"] != "" {
			t.Errorf("%s: there is a key in the home", c.provider)
		}
		// The store is a file of age, for the key as age-keygen writes it.
		if c.o.Credentials == dir {
			r, err := age.Decrypt(strings.NewReader(files(t, c.o.Home)[dirName+"/"+storeName]), id)
			if err != nil || r == nil {
				t.Errorf("age cannot read it: %v", err)
			}
		}
	}
}

func TestSystemAsksNobodyWithoutASessionBus(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(fmt.Sprintf("/run/user/%d/bus", os.Getuid())); err == nil {
		t.Log("the login has a session bus of its own")
	} else if System(func(string) (string, bool) { return "", false }) != nil {
		t.Error("there is no session bus, and a keyring that would start one")
	}
	for address, want := range map[string]bool{"autolaunch:": false, "autolaunch:scope=user": false, "unix:path=/tmp/bus": true} {
		got := System(func(name string) (string, bool) {
			return map[string]string{"DBUS_SESSION_BUS_ADDRESS": address}[name], true
		})
		if (got != nil) != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}
