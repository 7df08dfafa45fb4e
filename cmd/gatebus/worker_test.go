package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/client"
)

// process is the program as a process of its own that goes on.
type process struct {
	*exec.Cmd
	ready map[string]any
}

// launch starts the program and waits for its ready line.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self, args...)}
	p.Args[0] = "gatebus" // TestMain goes by it
	p.Env, p.Stderr = append(os.Environ(), "GATEBUS_HOME="), os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &p.ready) != nil || p.ready["ready"] != true {
		t.Fatalf("%v says %q, %v", args, line, err)
	}
	return p
}

// interrupt stops a process in order.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("%v ended with %v", p.Args, err)
	}
}

// Two processes of a home: connections are opened by either, calls land on
// either, and who is left goes on without the other.
func TestWorkerBesideUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	home, core := filepath.Join(dir, "home"), filepath.Join(dir, "core")
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(filepath.Join(core, "agent", "mcp"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(core, "agent", "mcp", "demo.yaml"),
			fmt.Appendf(nil, "command: %q\nargs: [demo-server]\napproval_policy: auto\n", self), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	up := launch(t, "up", "-o", "json", "--home", home, "--core", core, "--listen", "127.0.0.1:0")
	creds := filepath.Join(dir, "w1.creds")
	got := execute(ctx, nil, "", "--home", home, "bus", "creds", "w1", "--role", "worker")
	if got.code != 0 || os.WriteFile(creds, []byte(got.stdout), 0o600) != nil {
		t.Fatalf("%+v", got)
	}
	start := func() *process {
		return launch(t, "worker", "-o", "json", "--home", home, "--core", core, "--bus", up.ready["nats"].(string), "--creds", creds)
	}
	other := filepath.Join(dir, "ana.creds")
	got = execute(ctx, nil, "", "--home", home, "bus", "creds", "ana")
	if got.code != 0 || os.WriteFile(other, []byte(got.stdout), 0o600) != nil {
		t.Fatalf("%+v", got)
	}
	execute(ctx, nil, "", "worker", "--home", home, "--core", core, "--bus", up.ready["nats"].(string), "--creds", other).wants(t, 4, "",
		"error GB2010: --creds: the credentials are not those of a worker\nhint: have an operator make them with gatebus bus creds NAME --role worker\n")
	worker := start()

	c, err := client.Dial(ctx, client.Options{Home: home, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(method string, params, result any) {
		t.Helper()
		if err := c.Do(ctx, method, params, result); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	var info client.BusInfo
	if ask("bus/info", nil, &info); len(info.Runtimes) != 2 {
		t.Errorf("%+v", info.Runtimes)
	}
	// connect takes a principal through the connection to its tools.
	connect := func(who string) (turn string) {
		t.Helper()
		var s client.Session
		ask("session/start", client.SessionStart{Label: "test", Principal: who}, &s)
		for {
			var got client.Turn
			ask("turn/prepare", client.TurnPrepare{Session: s.Session, IncludeImplicit: true, Principal: who}, &got)
			if len(got.Tools) > 0 {
				return got.Turn
			}
			waiting, err := c.Approvals(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range waiting {
				if _, err := c.Approve(ctx, a.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	call := func(who, turn string) client.CallReply {
		t.Helper()
		var r client.CallReply
		ask("tool/call", client.ToolCall{Turn: turn, Name: "demo__echo", Arguments: json.RawMessage(`{"text":"hello"}`), Principal: who}, &r)
		return r
	}
	// owners are the runtimes that have opened connections.
	owners := func() map[string]string {
		t.Helper()
		var rows client.AuditRows
		ask("audit/list", client.AuditList{Name: "connection_claimed", Limit: 1000}, &rows)
		out := map[string]string{}
		for _, r := range rows.Rows {
			var e struct{ Runtime string }
			if json.Unmarshal(r.Data, &e) == nil {
				out[r.Principal] = e.Runtime
			}
		}
		return out
	}
	turns := map[string]string{}
	theirs := ""
	for i := 0; theirs == ""; i++ {
		who := fmt.Sprintf("p%d", i)
		for _, capability := range []string{"mcp.connect:*", "mcp.call:*"} {
			ask("grant/add", client.Grant{Principal: who, Capability: capability}, nil)
		}
		turns[who] = connect(who)
		if owners()[who] == worker.ready["runtime"] {
			theirs = who
		}
	}
	for who, turn := range turns {
		for range 4 { // lands on either process
			if r := call(who, turn); r.Status != "succeeded" || !strings.Contains(r.Text, "hello") {
				t.Errorf("%s: %+v", who, r)
			}
		}
	}

	// The death of the worker costs its connections and nothing else.
	_ = worker.Process.Kill()
	_ = worker.Wait()
	r := call(theirs, turns[theirs])
	if r.ExecutionStarted || r.Error == nil || r.Error.Kind != "runtime_not_live" && r.Error.Kind != "turn_not_active" {
		t.Errorf("%+v %+v", r, r.Error)
	}
	for r.Status != "succeeded" {
		r = call(theirs, connect(theirs))
	}
	if at := owners()[theirs]; at == worker.ready["runtime"] {
		t.Errorf("%s is still connected by the worker", theirs)
	}
	worker = start()
	worker.interrupt(t)
	if ask("bus/info", nil, &info); len(info.Runtimes) != 1 {
		t.Errorf("%+v", info.Runtimes)
	}
	began := time.Now()
	if got := execute(ctx, nil, "", "--home", home, "host", "revoke", "w1"); got.code != 0 {
		t.Errorf("host revoke after %v: %+v", time.Since(began), got)
	}
	up.interrupt(t)
}
