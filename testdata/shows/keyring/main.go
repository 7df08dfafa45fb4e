// Keyring runs a gatebus where the keyring of the system is absent, dead, locked,
// stopped and unlocked, by gnome-keyring on a session bus of its own, and says each
// time how long the start took, where the key of the keystore is, and why. With a
// store whose key is in the keyring it takes the keyring away and gives it back.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/testdata/shows/show"
	"github.com/gatebus/gatebus/workers/secrets"
)

// canary is a secret that is nowhere but encrypted.
const canary = "canary-of-the-keyring-7391"

// patience is how long a keyring may take, for a keystore, with its probe.
const patience = 5 * time.Second

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	s := &scene{bin: *bin, dir: *dir}
	show.Verdict(s.show(ctx))
}

type scene struct{ bin, dir string }

// show is the whole of it.
func (s *scene) show(ctx context.Context) error {
	// Whatever would be started for want of a bus leaves its name.
	tools, started := filepath.Join(s.dir, "tools"), filepath.Join(s.dir, "started")
	if err := os.MkdirAll(tools, 0o700); err != nil {
		return err
	}
	for _, tool := range []string{"dbus-launch", "dbus-daemon", "gnome-keyring-daemon"} {
		if err := os.WriteFile(filepath.Join(tools, tool), []byte("#!/bin/sh\necho $0 >>"+started+"\n"), 0o700); err != nil {
			return err
		}
	}
	without := []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "DISPLAY=:0"}
	if err := s.start(ctx, "absent", without, "home_key", "no keyring"); err != nil {
		return err
	}
	if err := s.start(ctx, "dead", append(without, "DBUS_SESSION_BUS_ADDRESS=unix:path="+s.dir+"/dead"), "home_key", "no keyring"); err != nil {
		return err
	}
	if data, err := os.ReadFile(started); err == nil {
		return fmt.Errorf("without a session bus this was started: %s", data)
	}

	locked, err := s.session(ctx, filepath.Join(s.dir, "locked-user"), false)
	if err != nil {
		return err
	}
	defer locked.end()
	if err := s.start(ctx, "locked", locked.env, "home_key", "keyring of the system"); err != nil {
		return err
	}

	open, err := s.session(ctx, filepath.Join(s.dir, "user"), true)
	if err != nil {
		return err
	}
	defer open.end()
	if err := open.stop(true); err != nil {
		return err
	}
	if err := s.start(ctx, "stopped", open.env, "home_key", "in time"); err != nil {
		return err
	}
	if err := open.stop(false); err != nil {
		return err
	}
	if err := s.start(ctx, "unlocked", open.env, "keyring", "answers"); err != nil {
		return err
	}
	return s.pinned(ctx, open)
}

// start runs a gatebus in a new home and wants a provider, for a reason. The start
// waits for no keyring.
func (s *scene) start(ctx context.Context, name string, env []string, provider, reason string) error {
	g, err := show.New(s.bin, filepath.Join(s.dir, name))
	if err != nil {
		return err
	}
	g.Env = append(g.Env, env...)
	from := time.Now()
	p, err := g.Up(ctx)
	if err != nil {
		return err
	}
	defer p.Kill()
	ready := time.Since(from)
	d, code, err := doctor(ctx, g)
	told := time.Since(from)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("%-9s ready %5d ms, doctor %5d ms: %s, %s\n", name, ready.Milliseconds(), told.Milliseconds(), d.Provider, d.Reason)
	if code != 0 || d.Provider != provider || !strings.Contains(d.Reason, reason) || !d.Available || d.Made {
		return fmt.Errorf("%s: doctor says %+v, exit code %d", name, d, code)
	}
	if told-ready > patience {
		return fmt.Errorf("%s: the doctor took %v", name, told-ready)
	}
	return show.Until(ctx, func() (bool, error) { // the choice is in the log
		out, stderr, code := g.CLI(ctx, "audit", "list", "--name", "keystore_selected", "-o", "jsonl")
		if code != 0 {
			return false, fmt.Errorf("%s: audit list: %s", name, stderr)
		}
		return strings.Contains(out, `"provider":"`+provider+`"`), nil
	})
}

// pinned keeps a secret with a key in the keyring, and takes that away.
func (s *scene) pinned(ctx context.Context, bus *session) error {
	g, err := show.New(s.bin, filepath.Join(s.dir, "pinned"))
	if err != nil {
		return err
	}
	g.Env = append(g.Env, bus.env...)
	if err := os.MkdirAll(g.Home, 0o700); err != nil {
		return err
	}
	for _, v := range bus.env { // this program asks the same keyring
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	store, err := secrets.Open(ctx, secrets.Options{Home: g.Home, Keyring: secrets.System(os.LookupEnv)})
	if err != nil {
		return err
	}
	if err := store.Put(ctx, "the item", redact.NewRaw(canary)); err != nil {
		return err
	}
	before, err := os.ReadFile(filepath.Join(g.Home, "secrets", "keystore.age"))
	if err != nil {
		return err
	}
	if err := bus.stop(true); err != nil {
		return err
	}
	p, err := g.Up(ctx)
	if err != nil {
		return err
	}
	defer p.Kill()
	d, code, err := doctor(ctx, g)
	if err != nil {
		return err
	}
	fmt.Printf("pinned    with the keyring stopped: exit code %d, %s\n", code, d.Problem)
	if code != 8 || d.Available || d.Provider != "keyring" || d.Kind != "keystore_unavailable" {
		return fmt.Errorf("the doctor says %+v, exit code %d", d, code)
	}
	if err := bus.stop(false); err != nil {
		return err
	}
	if err := show.Until(ctx, func() (bool, error) {
		d, code, err = doctor(ctx, g)
		return err != nil || code == 0, err
	}); err != nil {
		return fmt.Errorf("the keyring is back and the keystore is not: %w", err)
	}
	fmt.Printf("pinned    with the keyring back, the same process: %s, %d stored\n", d.Provider, d.Stored)
	after, err := os.ReadFile(filepath.Join(g.Home, "secrets", "keystore.age"))
	if err != nil || !bytes.Equal(before, after) || d.Stored != 1 {
		return fmt.Errorf("the store was changed, or %d are stored: %v", d.Stored, err)
	}
	return filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(canary)) || strings.HasPrefix(path, g.Home) && bytes.Contains(data, []byte("AGE-SECRET-KEY-1")) {
			return fmt.Errorf("%s shows a secret", path)
		}
		return err
	})
}

// doctor is what secret doctor says.
func doctor(ctx context.Context, g *show.Gatebus) (d client.SecretDoctor, code int, err error) {
	out, stderr, code := g.CLI(ctx, "secret", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return d, code, fmt.Errorf("secret doctor: %w: %s", err, stderr)
	}
	return d, code, nil
}

// session is a session bus of its own, which ends with its standard input, and its
// keyring.
type session struct {
	bus, keyring *exec.Cmd
	hold         io.Closer
	env          []string
}

// session starts a bus, and with unlock a keyring that is open; else the bus starts
// one that is not, when somebody asks for it.
func (s *scene) session(ctx context.Context, user string, unlock bool) (*session, error) {
	if err := os.MkdirAll(user, 0o700); err != nil {
		return nil, err
	}
	env := []string{"HOME=" + user, "XDG_RUNTIME_DIR=" + user, "XDG_DATA_HOME=" + user, "XDG_CONFIG_HOME=" + user, "XDG_CACHE_HOME=" + user}
	b := exec.CommandContext(ctx, "dbus-run-session", "--", "sh", "-c", "echo $DBUS_SESSION_BUS_ADDRESS; exec cat")
	b.Env = append(os.Environ(), env...)
	in, err := b.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := b.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.Start(); err != nil {
		return nil, err
	}
	made := &session{bus: b, hold: in}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		made.end()
		return nil, err
	}
	made.env = append(env, "DBUS_SESSION_BUS_ADDRESS="+strings.TrimSpace(address))
	if !unlock {
		return made, nil
	}
	k := exec.CommandContext(ctx, "gnome-keyring-daemon", "--unlock", "--foreground", "--components=secrets")
	k.Env, k.Stdin = append(os.Environ(), made.env...), strings.NewReader("\n")
	if err := k.Start(); err != nil {
		made.end()
		return nil, err
	}
	made.keyring = k
	// It is there when it has its name on the bus.
	return made, show.Until(ctx, func() (bool, error) {
		q := exec.CommandContext(ctx, "dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/",
			"org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets")
		q.Env = k.Env
		answer, err := q.Output()
		return strings.Contains(string(answer), "boolean true"), err
	})
}

// stop stops the keyring where it is, or lets it go on.
func (s *session) stop(stopped bool) error {
	if stopped {
		return s.keyring.Process.Signal(unix.SIGSTOP)
	}
	return s.keyring.Process.Signal(unix.SIGCONT)
}

// end ends the bus and its keyring.
func (s *session) end() {
	if s.keyring != nil {
		_ = s.keyring.Process.Kill()
		_ = s.keyring.Wait()
	}
	_ = s.hold.Close()
	_ = s.bus.Wait()
}
