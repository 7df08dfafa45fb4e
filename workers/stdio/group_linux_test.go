package stdio

import (
	"encoding/json"
	"io"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/gatebus/gatebus/workers/fakes"
	"golang.org/x/sys/unix"
)

// gone waits for the end of a process that is not our child.
func gone(t *testing.T, fd int, limit time.Duration) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
		if err != unix.EINTR {
			return err == nil && n == 1
		}
	}
}

// Report 16, R80: no orphans, and no waiting for them.
func TestGrandchildrenEndWithTheServer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Process) error{
		"closed":         func(p *Process) error { return p.Close(t.Context()) },
		"left by itself": func(p *Process) error { p.endInput(); return nil },
	} {
		p := start(t, Spec{Command: fakes.Build(t, "misbehave"), Args: []string{"fork"}})
		var result struct{ Content []struct{ Text string } }
		if err := json.Unmarshal(ask(t, p, "tools/call", `{}`).Result, &result); err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(result.Content[0].Text)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if !gone(t, fd, 5*time.Second) {
			t.Errorf("%s: the grandchild runs on", name)
		}
		if _, err := p.Read(); err != io.EOF {
			t.Errorf("%s: the output ends with %v, want EOF", name, err)
		}
		_ = unix.Close(fd)
	}
}

func TestAGrandchildThatLeftTheGroupHoldsNobody(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid here")
	}
	p := start(t, Spec{
		Command: sh,
		Args:    []string{"-c", `setsid sh -c 'echo "{\"jsonrpc\":\"2.0\",\"id\":$$,\"result\":{}}"; exec sleep 60' & cat`},
		Env:     []string{"PATH=/usr/bin:/bin"},
	})
	frame, err := p.Read()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(frame.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGKILL)
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatalf("the grandchild does not hold the output: %v", err)
	}
	if _, err := p.Read(); err != io.EOF {
		t.Errorf("the output ends with %v, want EOF", err)
	}
}

// A server in our session could ask on our terminal.
func TestTheServerHasASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	p := start(t, Spec{Command: fakes.Build(t, "echo")})
	pid := p.cmd.Process.Pid
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("the session is %d, %v", sid, err)
	}
}
