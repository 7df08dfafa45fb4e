//go:build unix

package secrets

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// TestMain lets the test binary be another process of a home.
func TestMain(m *testing.M) {
	home := os.Getenv("GATEBUS_TEST_HOME")
	switch os.Getenv("GATEBUS_TEST_AS") {
	case "writer":
		writer(home, os.Getenv("GATEBUS_TEST_PREFIX"))
	case "full":
		full(home)
	case "keyring":
		withKeyring(home)
	default:
		os.Exit(m.Run())
	}
	os.Exit(0)
}

// child is the test binary as another process.
func child(t *testing.T, as, home string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe)
	c.Env = append(os.Environ(), append(env, "GATEBUS_TEST_AS="+as, "GATEBUS_TEST_HOME="+home)...)
	c.Stderr = os.Stderr
	return c
}

func must(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// valueOf is what a writer stores under a name.
func valueOf(item string) string { return "value of " + item + strings.Repeat(".", 3000) }

// writer stores one secret after the other, until there are as many as the
// environment says, and prints the name of each one that was stored.
func writer(home, prefix string) {
	count, _ := strconv.Atoi(os.Getenv("GATEBUS_TEST_COUNT"))
	s, err := Open(context.Background(), Options{Home: home})
	must(err)
	for n := range cmp.Or(count, 1<<30) {
		item := fmt.Sprintf("%s-%d", prefix, n)
		must(s.Put(context.Background(), item, redact.NewRaw(valueOf(item))))
		fmt.Println(item)
	}
}

// Whoever is killed in the middle loses nothing that was stored, and leaves
// nothing that stands in the way.
func TestKilledWriterLosesNothing(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	stored := map[string]bool{}
	for round := range 12 {
		c := child(t, "writer", home, fmt.Sprintf("GATEBUS_TEST_PREFIX=r%d", round))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			stored[lines.Text()] = true
			if n == round%5 { // it is at the next one now
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = c.Wait() // it was killed
		s := opens(t, Options{Home: home})
		items, err := s.Items(t.Context())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		there := map[string]bool{}
		for _, item := range items {
			there[item] = true
			wants(t, s, item, valueOf(item))
		}
		for item := range stored {
			if !there[item] {
				t.Errorf("round %d: %s is lost", round, item)
			}
		}
	}
	if len(stored) < 12 {
		t.Errorf("only %d were stored", len(stored))
	}
	puts(t, opens(t, Options{Home: home}), "last", "value")
	left, err := filepath.Glob(filepath.Join(home, dirName, disk.Pattern))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Two processes that write at once lose nothing of each other, from the first
// secret of a home on.
func TestProcessesWriteAtOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	const each = 25
	var writers []*exec.Cmd
	for _, prefix := range []string{"a", "b"} {
		c := child(t, "writer", home, "GATEBUS_TEST_PREFIX="+prefix, fmt.Sprintf("GATEBUS_TEST_COUNT=%d", each))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		writers = append(writers, c)
	}
	for _, c := range writers {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	s := opens(t, Options{Home: home})
	for n := range each {
		for _, prefix := range []string{"a", "b"} {
			item := fmt.Sprintf("%s-%d", prefix, n)
			wants(t, s, item, valueOf(item))
		}
	}
}

// full stores more than a file may be long, which is how a full disk ends a
// write in the middle.
func full(home string) {
	signal.Ignore(syscall.SIGXFSZ)
	must(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: 4096}))
	s, err := Open(context.Background(), Options{Home: home})
	must(err)
	err = s.Put(context.Background(), "large", redact.NewRaw(strings.Repeat("x", 8192)))
	fmt.Println(fault.KindOf(err))
}

func TestWriteThatFailsKeepsTheStore(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home})
	puts(t, s, "a", "value")
	before := files(t, home)
	out, err := child(t, "full", home).Output()
	if err != nil || strings.TrimSpace(string(out)) != string(fault.KeystoreWriteFailed) {
		t.Errorf("it says %q, %v", out, err)
	}
	if diff := gocmp.Diff(before, files(t, home)); diff != "" {
		t.Errorf("files were changed (-before +after):\n%s", diff)
	}
	wants(t, s, "a", "value")
}

// A process that stands still with the lock makes others late, not wait for ever.
func TestHeldLockIsNotWaitedForForever(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := opens(t, Options{Home: home, Patience: 1}) // five times that is the wait
	puts(t, opens(t, Options{Home: home}), "a", "value")
	f, err := os.Open(filepath.Join(home, dirName, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := disk.TryLock(f, disk.Alone); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "b", redact.NewRaw("value")); fault.KindOf(err) != fault.KeystoreWriteFailed {
		t.Errorf("written: %v", err)
	}
	wants(t, s, "a", "value")
	_ = disk.Unlock(f)
	puts(t, opens(t, Options{Home: home}), "b", "value")
}

// Every file is 0600 in directories that are 0700, whatever the umask.
func TestFilesAreTheOwnersAlone_R90(t *testing.T) {
	for _, mask := range []int{0, 0o077, 0o777} {
		home := t.TempDir()
		old := syscall.Umask(mask)
		err := os.Mkdir(filepath.Join(home, "keys"), 0o700) // as the bus has it
		if err == nil {
			err = os.Chmod(filepath.Join(home, "keys"), 0o700)
		}
		s := opens(t, Options{Home: home})
		puts(t, s, "a", "value")
		puts(t, s, "b", "value")
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		err = filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == home {
				return err
			}
			info, err := d.Info()
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if err == nil && info.Mode().Perm() != want {
				t.Errorf("umask %o: %s is %o", mask, path, info.Mode().Perm())
			}
			seen++
			return err
		})
		if err != nil || seen != 6 {
			t.Errorf("umask %o: %d files and directories, %v", mask, seen, err)
		}
		if w := s.Selected(t.Context()).Warnings; len(w) != 1 { // the one about the home's key
			t.Errorf("umask %o: %v", mask, w)
		}
	}
}

// What was open to others is closed, and said.
func TestModesThatAreTooOpenAreCorrected_R90(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	puts(t, opens(t, Options{Home: home}), "a", "value")
	for name, mode := range map[string]fs.FileMode{
		dirName: 0o755, dirName + "/" + storeName: 0o644, dirName + "/" + headerName: 0o660, dirName + "/" + lockName: 0o666, "keys/keystore.key": 0o604,
	} {
		if err := os.Chmod(filepath.Join(home, name), mode); err != nil {
			t.Fatal(err)
		}
		s := opens(t, Options{Home: home})
		wants(t, s, "a", "value")
		puts(t, s, "b"+name, "value")
		info, err := os.Stat(filepath.Join(home, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is still %o", name, info.Mode().Perm())
		}
		said := 0
		for _, w := range s.Selected(t.Context()).Warnings {
			if w.Kind == fault.PermissionTooOpen && strings.Contains(w.Text.String(), filepath.Base(name)) {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%s: said %d times", name, said)
		}
	}
}

// A key file that somebody names may be read by others, which is said, and not be
// written by them.
func TestNamedKeyFileMustNotBeWritableByOthers(t *testing.T) {
	t.Parallel()
	home, file := t.TempDir(), filepath.Join(t.TempDir(), "key")
	puts(t, opens(t, Options{Home: home, KeyFile: file}), "a", "value")
	for mode, want := range map[fs.FileMode]fault.Kind{0o644: "", 0o400: "", 0o620: fault.PermissionTooOpen, 0o602: fault.PermissionTooOpen} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		s := opens(t, Options{Home: home, KeyFile: file})
		if _, _, err := s.Get(t.Context(), "a"); fault.KindOf(err) != want {
			t.Errorf("%o: %v", mode, err)
		}
		if warned := len(s.Selected(t.Context()).Warnings) > 0; warned != (mode == 0o644) {
			t.Errorf("%o: warned %v", mode, warned)
		}
	}
	link := filepath.Join(t.TempDir(), "link") // as Kubernetes has them
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	wants(t, opens(t, Options{Home: home, KeyFile: link}), "a", "value")
}

// Nothing below the home is followed anywhere else, and nothing that belongs to
// somebody else is used (R126).
func TestUnsafePathsAreRefused_R126(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give files to somebody else; CI is root")
	}
	names := []string{dirName, dirName + "/" + storeName, dirName + "/" + headerName, dirName + "/" + lockName, "keys/keystore.key"}
	for kind, make := range map[string]func(path, kept string) error{
		"link":    func(path, kept string) error { return os.Symlink(kept, path) },
		"dangles": func(path, _ string) error { return os.Symlink("/nowhere/at/all", path) },
		"pipe":    func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
		"foreign": func(path, kept string) error {
			if err := os.Rename(kept, path); err != nil {
				return err
			}
			return os.Chown(path, 65534, 65534)
		},
	} {
		for _, name := range names {
			t.Run(kind+" "+filepath.Base(name), func(t *testing.T) {
				t.Parallel()
				home := t.TempDir()
				puts(t, opens(t, Options{Home: home}), "a", "value")
				path, kept := filepath.Join(home, name), filepath.Join(home, "kept")
				if err := os.Rename(path, kept); err != nil {
					t.Fatal(err)
				}
				if err := make(path, kept); err != nil {
					t.Fatal(err)
				}
				s := opens(t, Options{Home: home})
				if err := s.Put(t.Context(), "b", redact.NewRaw("value")); fault.KindOf(err) != fault.PrivatePathUnsafe {
					t.Errorf("written: %v", err)
				}
				if name == dirName+"/"+lockName {
					return // who only reads needs no lock
				}
				_, ok, err := s.Get(t.Context(), "a")
				if selected := s.Selected(t.Context()).Err; ok || fault.KindOf(err) != fault.PrivatePathUnsafe || fault.KindOf(selected) != fault.PrivatePathUnsafe {
					t.Errorf("read: %v, %v, %v", ok, err, selected)
				}
			})
		}
	}
	// The home itself may be a link.
	home, link := t.TempDir(), filepath.Join(t.TempDir(), "home")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	puts(t, opens(t, Options{Home: link}), "a", "value")
	wants(t, opens(t, Options{Home: home}), "a", "value")
}

// withKeyring works with the keyring of the system, as far as there is one.
func withKeyring(home string) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Home: home, Keyring: System(os.LookupEnv)})
	must(err)
	selected := s.Selected(ctx)
	fmt.Println(selected.Provider, selected.Made, fault.KindOf(selected.Err), selected.Reason)
	if selected.Err != nil {
		return
	}
	if _, ok, err := s.Get(ctx, "a"); ok || err != nil {
		fmt.Println("got", ok, err)
		return
	}
	fmt.Println("put", s.Put(ctx, "a", redact.NewRaw("hunter2-hunter2")))
}

// The keyring of a session, by gnome-keyring on a bus of its own: unlocked it has
// the key, for the next process too; locked it costs the store the key, and a new
// home takes the weaker choice.
func TestRealKeyring(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"dbus-run-session", "gnome-keyring-daemon"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the keyring is not tested: apt-get install dbus gnome-keyring")
		}
	}
	user, home, other := t.TempDir(), t.TempDir(), t.TempDir()
	session := func(home, before string) string {
		t.Helper()
		c := child(t, "keyring", home, "HOME="+user, "XDG_RUNTIME_DIR="+user, "XDG_DATA_HOME="+user, "XDG_CONFIG_HOME="+user, "XDG_CACHE_HOME="+user)
		exe := c.Path
		c.Path, c.Args = "", nil
		run := exec.CommandContext(t.Context(), "dbus-run-session", "--", "sh", "-c", before+` "$0"; "$0"`, exe)
		run.Env = c.Env
		out, err := run.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	const unlock = `printf '\n' | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1;`
	got := session(home, unlock)
	want := "keyring false  the keyring of the system answers\nput <nil>\nkeyring true  the keystore was made with it\ngot true <nil>\n"
	if got != want {
		t.Fatalf("unlocked: %q, want %q", got, want)
	}
	for name, content := range files(t, user) {
		if strings.Contains(content, "hunter2-hunter2") || strings.Contains(content, "AGE-SECRET-KEY") {
			t.Errorf("%s of the keyring shows a secret", name)
		}
	}
	if got := session(home, ""); !strings.HasPrefix(got, "keyring true keystore_unavailable ") || strings.Contains(got, "put") || strings.Contains(got, "got") {
		t.Errorf("locked: %q", got)
	}
	if got := session(other, ""); !strings.HasPrefix(got, "home_key false  the keyring of the system ") || !strings.Contains(got, "put <nil>\nhome_key true ") {
		t.Errorf("locked, in a new home: %q", got)
	}
	if got := session(home, unlock); !strings.Contains(got, "got true <nil>\n") {
		t.Errorf("unlocked again: %q", got)
	}
}

// Without a session bus nothing is started.
func TestNoBusIsStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	for _, tool := range []string{"dbus-launch", "gnome-keyring-daemon", "dbus-daemon"} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\necho $0 >>"+ran+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []string{"", "autolaunch:", "unix:path=" + filepath.Join(dir, "dead")} {
		out, err := child(t, "keyring", t.TempDir(), "PATH="+dir, "DBUS_SESSION_BUS_ADDRESS="+address, "DISPLAY=:0").Output()
		if err != nil || !strings.HasPrefix(string(out), "home_key false ") || !strings.HasSuffix(string(out), "put <nil>\n") {
			t.Errorf("%q: %v, %s", address, err, out)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Errorf("started: %s", files(t, dir)["ran"])
	}
}
