// Package show is what the programs of the shows share: a gatebus that runs as a
// process of its own, a small MCP client that keeps every byte it is sent, and
// the figures.
package show

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/bus/client"
)

// Gatebus is an installation: the program, a home and the core that it serves.
type Gatebus struct {
	Bin, Home, Core, Root string
	// Listen is the address of the MCP endpoint, the same at each start.
	Listen string
	// Env is the environment of up and of the command line, all of it.
	Env []string
	// Verbose starts up with -v, Args are more arguments of up.
	Verbose bool
	Args    []string
}

// New makes the folders of an installation below dir.
func New(bin, dir string) (*Gatebus, error) {
	g := &Gatebus{
		Bin: bin, Home: filepath.Join(dir, "home"), Core: filepath.Join(dir, "core"), Root: filepath.Join(dir, "root"),
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir()},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g.Listen = l.Addr().String()
	return g, errors.Join(l.Close(), os.MkdirAll(filepath.Join(g.Core, "agent", "mcp"), 0o700), os.MkdirAll(g.Root, 0o700))
}

// Declare writes the declaration of a server.
func (g *Gatebus) Declare(name, yaml string) error {
	return os.WriteFile(filepath.Join(g.Core, "agent", "mcp", name+".yaml"), []byte(yaml), 0o600)
}

// URL is the address of the MCP endpoint.
func (g *Gatebus) URL() string { return "http://" + g.Listen + "/mcp" }

// Process is a running "gatebus up", or another verb that goes on.
type Process struct {
	cmd            *exec.Cmd
	Stdout, Stderr *Buffer
	ready          chan struct{}
	ended          chan struct{} // closed when it has ended and its output was read
	err            error
}

// Launch starts up without waiting for it.
func (g *Gatebus) Launch() (*Process, error) {
	args := []string{"up", "-o", "json", "--home", g.Home, "--core", g.Core, "--listen", g.Listen}
	if g.Verbose {
		args = append(args, "-v")
	}
	return g.Start(append(args, g.Args...)...)
}

// Start starts the program without waiting for it.
func (g *Gatebus) Start(args ...string) (*Process, error) {
	p := &Process{
		cmd: exec.Command(g.Bin, args...), Stdout: new(Buffer), Stderr: new(Buffer),
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stderr = g.Env, g.Root, p.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewReader(out)
		for first := true; ; first = false {
			line, err := lines.ReadBytes('\n')
			_, _ = p.Stdout.Write(line)
			if err != nil {
				break
			}
			if first {
				close(p.ready)
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Up starts up and waits until it serves.
func (g *Gatebus) Up(ctx context.Context) (*Process, error) {
	p, err := g.Launch()
	if err != nil {
		return nil, err
	}
	return p, p.Ready(ctx)
}

// Ready waits until the process has said so. One that does not is killed.
func (p *Process) Ready(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("%s ended: %v: %s", p.cmd.Args[1], p.err, p.Stderr.String())
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s does not serve: %s", p.cmd.Args[1], p.Stderr.String())
	}
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process, nothing else, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// Stop stops the process where it is, until it is killed or continued.
func (p *Process) Stop() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (p *Process) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Interrupt asks for an orderly stop.
func (p *Process) Interrupt() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// Wait is the exit code, once the process has ended; -1 after a signal. One that
// does not end within the limit says where it stands, and is ended.
func (p *Process) Wait(limit time.Duration) (code int, err error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(limit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the runtime prints its goroutines
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			p.Kill()
		}
		return -1, fmt.Errorf("%s does not end within %v:\n%s", p.cmd.Args[1], limit, p.Stderr.String())
	}
}

// Buffer is a text that is written and read at the same time.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// CLI runs the command line against the home and returns what it printed.
func (g *Gatebus) CLI(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	cmd := exec.CommandContext(ctx, g.Bin, append([]string{"--home", g.Home}, args...)...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = g.Env, g.Root, &out, &errs
	err := cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), e.ExitCode()
	}
	if err != nil {
		return out.String(), errs.String() + err.Error(), -1
	}
	return out.String(), errs.String(), 0
}

// Dial connects to the bus as the operator of the home.
func (g *Gatebus) Dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{Home: g.Home, Name: "show"})
}

// Enrol enrols a principal with capabilities and returns its token.
func Enrol(ctx context.Context, c *client.Client, name string, capabilities ...string) (token string, err error) {
	var t client.HostTokenResult
	if err := c.Do(ctx, "host/token", client.HostToken{Name: name}, &t); err != nil {
		return "", err
	}
	for _, capability := range capabilities {
		if err := c.Do(ctx, "grant/add", client.Grant{Principal: name, Capability: capability}, nil); err != nil {
			return "", err
		}
	}
	return t.Token, nil
}

// Approve is an operator who says yes to whatever is asked, from the begin of the log
// on, but for what held keeps back; nil keeps back nothing. It ends with the error of
// why it hears no more, that of ctx included.
func Approve(ctx context.Context, boss *client.Client, held func(client.ApprovalRequested) bool) error {
	for one, err := range boss.Watch(ctx, 0, "approvals/requested") {
		if err != nil {
			return err
		}
		var p client.ApprovalRequested
		if err := json.Unmarshal(one.Params, &p); err != nil {
			return fmt.Errorf("%s: %w", one.Params, err)
		}
		if held == nil || !held(p) {
			_, _ = boss.Approve(ctx, p.Approval) // it may be over
		}
	}
	return ctx.Err()
}

// ApproveWaiting says yes by the command line to all that waits now, and returns how
// much that was.
func (g *Gatebus) ApproveWaiting(ctx context.Context) (n int, err error) {
	waiting, _, _ := g.CLI(ctx, "approvals", "list", "-o", "name") // what is not seen now is seen next
	for _, id := range strings.Fields(waiting) {
		if _, text, code := g.CLI(ctx, "approve", id); code != 0 {
			return n, errors.New(text)
		}
		n++
	}
	return n, nil
}

// Audit reads all events after a sequence.
func Audit(ctx context.Context, c *client.Client, after uint64) (rows []client.AuditRow, err error) {
	for {
		var page client.AuditRows
		if err := c.Do(ctx, "audit/list", client.AuditList{After: after, Limit: 1000}, &page); err != nil {
			return nil, err
		}
		rows = append(rows, page.Rows...)
		if after = page.Next; !page.More {
			return rows, nil
		}
	}
}

// Rebuilt compares all projections with their rebuilding, by bus rebuild --check, and
// returns how many there are. The error names one that differs, or says why nothing is
// known.
func (g *Gatebus) Rebuilt(ctx context.Context) (projections int, err error) {
	out, said, code := g.CLI(ctx, "bus", "rebuild", "--check", "-o", "json", "--timeout", "10m")
	var r client.Rebuild
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Projections) == 0 {
		return 0, fmt.Errorf("bus rebuild --check: exit %d: %s", code, strings.TrimSpace(said))
	}
	for name, p := range r.Projections {
		if !p.Equal {
			return len(r.Projections), fmt.Errorf("projection %s differs from its rebuilding", name)
		}
	}
	return len(r.Projections), nil
}

// Running are the processes of a program, by number, each with its parent.
func Running(program string) map[int]int {
	found := map[int]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || exe != program {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state parent …
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		found[pid], _ = strconv.Atoi(fields[1])
	}
	return found
}

// Memory is a line of the status of a process, in MiB.
func Memory(pid int, name string) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			kib, err := strconv.Atoi(f[1])
			return kib >> 10, err
		}
	}
	return 0, fmt.Errorf("no %s", name)
}

// Verdict ends a show, which prints PASS as its last line, or what was wrong and
// FAIL.
func Verdict(err error) {
	if err != nil {
		fmt.Println(err)
		fmt.Println("FAIL")
		os.Exit(1)
	}
	fmt.Println("PASS")
}

// Until waits for a condition, and looks every few milliseconds.
func Until(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
