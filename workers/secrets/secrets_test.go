package secrets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// opens is the keystore of a home.
func opens(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// puts stores a secret.
func puts(t *testing.T, s *Store, item, value string) {
	t.Helper()
	if err := s.Put(t.Context(), item, redact.NewRaw(value)); err != nil {
		t.Fatalf("put %s: %v", item, err)
	}
}

// wants a secret to be stored.
func wants(t *testing.T, s *Store, item, value string) {
	t.Helper()
	got, ok, err := s.Get(t.Context(), item)
	if err != nil || !ok || got.Reveal() != value {
		t.Errorf("%s: got %d bytes, %v, %v; want %d bytes", item, len(got.Reveal()), ok, err, len(value))
	}
}

// files are those below a directory with their content.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		out[strings.TrimPrefix(filepath.ToSlash(path), filepath.ToSlash(dir)+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatIsPutIsGot(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home})
	values := map[string]string{
		"a@1": "hunter2-hunter2", "empty@1": "", "bytes@1": "\xff\x00\r\n", "long@1": strings.Repeat("x", MaxValue), "ü 🚌@1": "ü 🚌",
	}
	for item, value := range values {
		puts(t, s, item, value)
	}
	for _, s := range []*Store{s, opens(t, Options{Home: home})} {
		for item, value := range values {
			wants(t, s, item, value)
		}
		items, err := s.Items(t.Context())
		if diff := cmp.Diff(slices.Sorted(maps.Keys(values)), items); diff != "" || err != nil {
			t.Errorf("items (-want +got), %v:\n%s", err, diff)
		}
		if _, ok, err := s.Get(t.Context(), "a@2"); ok || err != nil {
			t.Errorf("an item that is not there: %v, %v", ok, err)
		}
	}
	puts(t, s, "a@1", "another")
	if err := errors.Join(s.Delete(t.Context(), "empty@1"), s.Delete(t.Context(), "no such item")); err != nil {
		t.Error(err)
	}
	s = opens(t, Options{Home: home})
	wants(t, s, "a@1", "another")
	if _, ok, err := s.Get(t.Context(), "empty@1"); ok || err != nil {
		t.Errorf("a deleted item: %v, %v", ok, err)
	}
	for name, content := range files(t, home) {
		for item, value := range values {
			if len(value) > 4 && (strings.Contains(content, value) || strings.Contains(content, item)) {
				t.Errorf("%s shows %s", name, item)
			}
		}
	}
}

func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home})
	for _, c := range []struct {
		item string
		size int
	}{{"", 1}, {strings.Repeat("x", maxItem+1), 1}, {"x", MaxValue + 1}} {
		if err := s.Put(t.Context(), c.item, redact.NewRaw(strings.Repeat("v", c.size))); fault.KindOf(err) != fault.InvalidInput {
			t.Errorf("an item of %d bytes with a value of %d: %v", len(c.item), c.size, err)
		}
	}
	if _, err := Open(t.Context(), Options{Home: filepath.Join(home, "none")}); fault.KindOf(err) != fault.HomeNotWritable {
		t.Errorf("a home that is not there: %v", err)
	}
}

// An equal value is no change: the file stays as it is.
func TestEqualValueWritesNothing(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home})
	puts(t, s, "a", "value")
	before := files(t, home)
	puts(t, s, "a", "value")
	if diff := cmp.Diff(before, files(t, home)); diff != "" {
		t.Error("the file was written again")
	}
}

func TestNothingIsMadeBeforeThereIsASecret(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	ring := newFakeRing()
	s := opens(t, Options{Home: home, Keyring: ring})
	_, ok, err := s.Get(t.Context(), "a")
	items, err2 := s.Items(t.Context())
	selected := s.Selected(t.Context())
	if ok || len(items) > 0 || selected.Made || errors.Join(err, err2, s.Delete(t.Context(), "a"), selected.Err) != nil {
		t.Errorf("an empty home: %v, %v, %v, %v, %v", ok, items, selected, err, err2)
	}
	select {
	case <-s.Made():
		t.Error("the store is said to be made")
	default:
	}
	if found := files(t, home); len(found) > 0 || len(ring.all()) > 0 {
		t.Errorf("made: %v, %v", slices.Collect(maps.Keys(found)), ring.all())
	}
	puts(t, s, "a", "value")
	<-s.Made()
	if selected := s.Selected(t.Context()); !selected.Made || selected.Provider != ProviderKeyring || selected.Err != nil {
		t.Errorf("after the first secret: %+v", selected)
	}
	if got := ring.all(); len(got) != 1 {
		t.Errorf("the keyring has %v, want one key", got)
	}
}

// A store that cannot be read is an error for who reads and who writes, and stays
// byte for byte what it was.
func TestDamagedStoreIsKept(t *testing.T) {
	t.Parallel()
	const store, head = dirName + "/" + storeName, dirName + "/" + headerName
	write := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			if err := os.WriteFile(filepath.Join(home, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			if err := os.Remove(filepath.Join(home, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(name string, at float64) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			data := []byte(files(t, home)[name])
			data[int(at*float64(len(data)-1))] ^= 1
			write(name, string(data))(t, home)
		}
	}
	cut := func(name string, at float64) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			data := files(t, home)[name]
			write(name, data[:int(at*float64(len(data)-1))])(t, home)
		}
	}
	// encrypts something else with the right key.
	holding := func(plain string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			id, err := age.ParseX25519Identity(strings.TrimSpace(files(t, home)["keys/keystore.key"]))
			if err != nil {
				t.Fatal(err)
			}
			write(store, encrypted(t, id, plain))(t, home)
		}
	}
	foreign, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(*testing.T, string){
		"first byte": flip(store, 0), "stanza": flip(store, .2), "middle": flip(store, .7), "last byte": flip(store, 1),
		"half": cut(store, .5), "one byte short": cut(store, .999), "empty": write(store, ""), "text": write(store, "hello\n"),
		"foreign": write(store, encrypted(t, foreign, `{"version":1,"items":{}}`)),
		"no JSON": holding("hunter2-hunter2"), "no version": holding("{}"), "newer": holding(`{"version":2,"secrets":[]}`),
		"without header": remove(head), "empty header": write(head, ""), "damaged header": flip(head, .1),
		"newer header": write(head, `{"version":2,"keys":["a","b"]}`), "other provider": write(head, `{"version":1,"provider":"vault","recipient":"age1"}`),
		"without key": remove("keys/keystore.key"), "another key": write("keys/keystore.key", foreign.String()),
		"two keys": write("keys/keystore.key", foreign.String()+"\n"+foreign.String()), "no key": write("keys/keystore.key", "AGE-SECRET-KEY-1HUNTER2HUNTER2"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			puts(t, opens(t, Options{Home: home}), "a", "value")
			damage(t, home)
			before := files(t, home)
			s := opens(t, Options{Home: home})
			_, ok, err := s.Get(t.Context(), "a")
			_, err2 := s.Items(t.Context())
			selected := s.Selected(t.Context()).Err
			for _, err := range []error{err, err2, selected} {
				if ok || fault.KindOf(err) != fault.KeystoreUnavailable || strings.Contains(strings.ToLower(err.Error()), "hunter2") {
					t.Errorf("read: %v, %v", ok, err)
				}
			}
			for _, err := range []error{s.Put(t.Context(), "b", redact.NewRaw("value")), s.Delete(t.Context(), "a")} {
				if fault.KindOf(err) != fault.KeystoreWriteFailed || strings.Contains(strings.ToLower(err.Error()), "hunter2") {
					t.Errorf("written: %v", err)
				}
			}
			delete(before, dirName+"/"+lockName)
			after := files(t, home)
			delete(after, dirName+"/"+lockName)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("files were changed (-before +after):\n%s", diff)
			}
		})
	}
}

// encrypted is a text as age encrypts it.
func encrypted(t *testing.T, id *age.X25519Identity, plain string) string {
	t.Helper()
	var out bytes.Buffer
	w, err := age.Encrypt(&out, id.Recipient())
	if err == nil {
		_, err = w.Write([]byte(plain))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A crash between the key, the header and the store leaves what the next secret
// goes on with.
func TestHalfMadeStoreIsGoneOnWith(t *testing.T) {
	t.Parallel()
	for _, left := range [][]string{{dirName + "/" + storeName}, {dirName + "/" + storeName, dirName + "/" + headerName}} {
		home := t.TempDir()
		puts(t, opens(t, Options{Home: home}), "a", "value")
		for _, name := range left {
			if err := os.Remove(filepath.Join(home, name)); err != nil {
				t.Fatal(err)
			}
		}
		key := files(t, home)["keys/keystore.key"]
		s := opens(t, Options{Home: home})
		if items, err := s.Items(t.Context()); len(items) > 0 || err != nil {
			t.Errorf("without %v: %v, %v", left, items, err)
		}
		puts(t, s, "b", "value")
		wants(t, opens(t, Options{Home: home}), "b", "value")
		if files(t, home)["keys/keystore.key"] != key {
			t.Error("the key was made anew")
		}
	}
}

func TestLeftFilesOfDeadWritersAreRemoved(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home})
	puts(t, s, "a", "value")
	left := filepath.Join(home, dirName, ".new-123")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	puts(t, s, "b", "value")
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// Debug printing of every type shows a placeholder (R89, R90).
func TestNothingPrintsASecret_R89(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	home := t.TempDir()
	ring := newFakeRing()
	s := opens(t, Options{Home: home, Keyring: ring})
	puts(t, s, "a", secret)
	value, _, err := s.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.opened(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var id string
	for _, v := range ring.all() {
		id = v
	}
	items, err := s.unseal(k)
	if err != nil || string(items["a"]) != secret || !strings.HasPrefix(id, "AGE-SECRET-KEY-1") {
		t.Fatalf("there is nothing to be shown: %v", err)
	}
	var shown strings.Builder
	log := slog.New(slog.NewJSONHandler(&shown, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, v := range []any{s, value, k, *k, items, sealed{1, items}, s.Selected(t.Context()), struct{ S *Store }{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
		log.Debug("x", "v", v)
	}
	for _, v := range []any{s, value, k, s.Selected(t.Context())} {
		data, _ := json.Marshal(v) // what cannot be encoded shows nothing
		shown.Write(data)
	}
	hidden := id[len("AGE-SECRET-KEY-1"):]
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprint([]byte(secret)), "aHVudGVyMi1odW50ZXIy", hidden} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("it is shown as %.20s…", form)
		}
	}
	if !strings.Contains(shown.String(), placeholder) {
		t.Error("the placeholder is not shown")
	}
}
