package stdio

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// adopting says that the test runs in a process of its own, which adopts.
const adopting = "GATEBUS_TEST_ADOPTING"

// Attack E8: a grandchild that leaves the group, loses its parent and closes all
// that it has of the server is ended with it all the same.
func TestOrphansEndWithTheirServer(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"sh", "setsid", "env", "sleep"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("a program of the test is not here: ", program)
		}
	}
	if os.Getenv(adopting) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), adopting+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	end, err := Adopt()
	if err != nil {
		t.Skip("no subreaper here: ", err)
	}
	defer end()
	// One of somebody else in this process is left alone.
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		if err := other.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("a child of somebody else: %v", err)
		}
	}()
	first, daemon := daemonize(t, "home-1", "")
	second, _ := daemonize(t, "home-1", "")
	third, hidden := daemonize(t, "home-2", "env -i ")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gone(t, daemon, 0) {
		t.Error("it is ended while another process of its server runs")
	}
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !gone(t, daemon, 5*time.Second) {
		t.Error("it outlives its server")
	}
	if err := third.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	if !gone(t, hidden, 5*time.Second) {
		t.Error("one without its HOME outlives the program")
	}
	family.Lock()
	defer family.Unlock()
	if left := adopted(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// daemonize starts a server that leaves a daemon behind, and waits for that.
func daemonize(t *testing.T, server, with string) (p *Process, daemon int) {
	t.Helper()
	dir := t.TempDir()
	home, script := filepath.Join(filepath.Dir(dir), server), filepath.Join(dir, "daemon")
	// It says its number once it has left the group.
	const text = `echo "{\"jsonrpc\":\"2.0\",\"id\":$$,\"result\":{}}"; exec sleep 60 <&- >&- 2>&-`
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, Spec{
		Command: "sh", Args: []string{"-c", with + `sh -c "setsid sh $0 &"; exec cat`, script},
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, Home: home,
	})
	frame, err := p.Read()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(frame.ID))
	if err != nil {
		t.Fatal(err)
	}
	if daemon, err = unix.PidfdOpen(pid, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(daemon) })
	return p, daemon
}
