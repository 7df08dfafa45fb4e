package bus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/internal/cluster"
	"github.com/gatebus/gatebus/events/fault"
)

// TestMain lets the test binary be another process of the same home.
func TestMain(m *testing.M) {
	if home := os.Getenv("GATEBUS_TEST_HOME"); home != "" {
		other(home)
	}
	if url := os.Getenv("GATEBUS_TEST_WORKER"); url != "" {
		work(url, os.Getenv("GATEBUS_TEST_CREDS"), os.Getenv("GATEBUS_TEST_WORKER_HOME"))
	}
	if home := os.Getenv("GATEBUS_TEST_HASTE"); home != "" {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := Open(ctx, Options{Home: home})
		_, again := Open(context.Background(), Options{Home: home})
		fmt.Println(fault.KindOf(err), fault.KindOf(again))
		os.Exit(0)
	}
	code := m.Run()
	cluster.Sweep()
	os.Exit(code)
}

// other appends from eight goroutines, and works on a job without an end, until
// it is killed. It prints what was acknowledged.
func other(home string) {
	ctx := context.Background()
	b, err := Open(ctx, Options{Home: home})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	tb := register(b)
	if err := errors.Join(b.Load(ctx), b.PublishJob(ctx, "default", "connect", "c1")); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	go b.ConsumeJobs(ctx, "connect", 1, func(context.Context, string, string) error {
		fmt.Println("job")
		select {}
	})
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("s%d-%d", i, n)
				d, err := tb.sessions.Dispatch(ctx, "default", key, Meta{}, "open")
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				fmt.Println("ack", d.Seq, key)
			}
		})
	}
	work.Wait()
}

// start runs the other process and gives its lines.
func start(t *testing.T, home string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GATEBUS_TEST_HOME="+home)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

// What was acknowledged is there after kill -9, the home is locked as long as the
// process lives, and the job it was on begins again.
func TestKilledProcessLosesNothingAndLeavesNoLock(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd, lines := start(t, home)
	acks := make(map[uint64]string)
	began := false
	for (len(acks) < 500 || !began) && lines.Scan() {
		var seq uint64
		var key string
		if lines.Text() == "job" {
			began = true
		} else if _, err := fmt.Sscanf(lines.Text(), "ack %d %s", &seq, &key); err != nil {
			t.Fatal(lines.Text())
		} else {
			acks[seq] = key
		}
		if len(acks) == 100 {
			_, err := Open(context.Background(), Options{Home: home})
			wantKind(t, err, fault.HomeLocked)
			if !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) {
				t.Errorf("the text does not name process %d: %v", cmd.Process.Pid, err)
			}
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		var seq uint64
		var key string
		if n, _ := fmt.Sscanf(lines.Text(), "ack %d %s", &seq, &key); n == 2 {
			acks[seq] = key
		}
	}
	cmd.Wait()

	b := open(t, Options{Home: home})
	for _, c := range commits(t, b.Bus) {
		if key, ok := acks[c.Seq]; ok && key != c.Aggregate.Key {
			t.Fatalf("commit %d is of %s, acknowledged was %s", c.Seq, c.Aggregate, key)
		}
		delete(acks, c.Seq)
	}
	if len(acks) > 0 {
		t.Errorf("%d acknowledged commits are lost", len(acks))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	redone := ""
	if err := b.ConsumeJobs(ctx, "connect", 1, func(_ context.Context, workspace, id string) error {
		redone = workspace + " " + id
		cancel()
		return nil
	}); err != nil || redone != "default c1" {
		t.Errorf("the job is %q, %v", redone, err)
	}
}

// A store that does not open leaves its home locked: its server still has it.
func TestOpenEndsWithTheContext(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GATEBUS_TEST_HASTE="+t.TempDir())
	out, err := cmd.Output()
	if err != nil || string(out) != "audit_damaged home_locked\n" {
		t.Errorf("%s %v", out, err)
	}
}

func TestHomeIsOpenedOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	if err := b.Announce(t.Context(), "r-1", nil); err != nil {
		t.Fatal(err)
	}
	runtime.GC() // closes files that nobody holds
	runtime.GC()
	_, err := Open(context.Background(), Options{Home: home})
	wantKind(t, err, fault.HomeLocked)
	if _, err := os.Stat(filepath.Join(home, "run", "bus.json")); err != nil {
		t.Errorf("the loser removed what the winner wrote: %v", err)
	}
	shut(t, b.Bus)
	open(t, Options{Home: home})
}

func TestHomeThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{"", file, filepath.Join(file, "below")} {
		_, err := Open(context.Background(), Options{Home: home})
		wantKind(t, err, fault.HomeNotWritable)
	}
}

func TestHomeIsTheOwnersAlone(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "made", "here")
	open(t, Options{Home: home})
	for _, dir := range []string{"", "keys", "run", "bus"} {
		info, err := os.Stat(filepath.Join(home, dir))
		if err != nil {
			t.Fatal(err)
		}
		if !ownerOnly(info) {
			t.Errorf("%s is %v", dir, info.Mode())
		}
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Open(context.Background(), Options{Home: t.TempDir(), Listen: l.Addr().String()})
	wantKind(t, err, fault.PortInUse)
	for _, bad := range []string{"127.0.0.1", "here:there"} {
		_, err = Open(context.Background(), Options{Home: t.TempDir(), Listen: bad})
		wantKind(t, err, fault.InvalidInput)
	}
}

func TestAnnouncementSaysWhereTheBusIsAndGoesAway(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home, Listen: "127.0.0.1:0", Version: "v1", Workspace: "team"})
	path := filepath.Join(home, "run", "bus.json")
	if err := b.Announce(t.Context(), "r-1", map[string]any{"mcp": "http://127.0.0.1:7/mcp", "pid": "mine"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var about map[string]any
	if err := json.Unmarshal(data, &about); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"pid": float64(os.Getpid()), "url": b.URL(), "version": "v1", "workspace": "team", "runtime": "r-1",
		"mcp": "http://127.0.0.1:7/mcp", "creds": filepath.Join(home, "run", "local.creds"), "server_id": b.nc.ConnectedServerId()} {
		if about[key] != want {
			t.Errorf("%s is %v, want %v", key, about[key], want)
		}
	}
	secret := []string{path, filepath.Join(home, "run", "local.creds")}
	keys, err := filepath.Glob(filepath.Join(home, "keys", "*"))
	if err != nil || len(keys) == 0 {
		t.Fatal(keys, err)
	}
	for _, path := range append(secret, keys...) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !ownerOnly(info) {
			t.Errorf("%s is %v", path, info.Mode())
		}
	}
	shut(t, b.Bus)
	for _, path := range secret {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

func TestHomeKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	one, err := b.HomeKey("argument-digest")
	if err != nil || len(one) != 32 {
		t.Fatal(len(one), err)
	}
	two, err := b.HomeKey("preview-hash")
	if err != nil || string(one) == string(two) {
		t.Fatal("two names, one key", err)
	}
	_, err = b.HomeKey("../run/x")
	wantKind(t, err, fault.Internal)
	shut(t, b.Bus)
	b = open(t, Options{Home: home})
	again, err := b.HomeKey("argument-digest")
	if err != nil || string(one) != string(again) {
		t.Error("the key has changed", err)
	}
}

func TestKeyThatOthersMayReadIsRefused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("permission bits say nothing here")
	}
	home := t.TempDir()
	shut(t, open(t, Options{Home: home}).Bus)
	if err := os.Chmod(filepath.Join(home, "keys", "runtime-signing.nk"), 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Home: home})
	wantKind(t, err, fault.PermissionTooOpen)
}

// What was cut is named as a key of the home, and not taken for a damaged log or
// a bus that does not start.
func TestKeyThatWasCutIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	shut(t, open(t, Options{Home: home}).Bus)
	for _, name := range []string{"runtime.account", "system.account", "checkpoint", "role-host.nk", "home"} {
		path := filepath.Join(home, "keys", name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 20} {
			if err := os.WriteFile(path, good[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(context.Background(), Options{Home: home})
			if !fault.Is(err, fault.HomeNotWritable) {
				t.Errorf("%s of %d bytes: %v (%v)", name, size, err, cause(err))
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
