package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/bus/client"
)

// stdioHome makes a home whose runtime has the demo server, of which one tool asks
// a person first.
func stdioHome(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gb") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	core, home := filepath.Join(dir, "core"), filepath.Join(dir, "home")
	for path, text := range map[string]string{
		filepath.Join(core, "agent", "mcp", "demo.yaml"): fmt.Sprintf("command: %q\nargs: [demo-server]\napproval_policy: auto\n", self),
		filepath.Join(home, "gatebus.yaml"): fmt.Sprintf(
			"listen: 127.0.0.1:0\nworkspaces: {default: {root: %q, cores: [%q]}}\napprovals: {rules: [{tool: delete_everything, approval: prompt}]}\n", dir, core),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// operator is the principal local of a running home.
func operator(t *testing.T, home string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.Options{Home: home, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// enrol makes a host that may use the demo server.
func enrol(t *testing.T, c *client.Client, name string) {
	t.Helper()
	if err := c.Do(t.Context(), "host/token", client.HostToken{Name: name}, nil); err != nil {
		t.Fatal(err)
	}
	for _, capability := range []string{"mcp.connect:*", "mcp.call:*"} {
		if err := c.Do(t.Context(), "grant/add", client.Grant{Principal: name, Capability: capability}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// approveNext says yes to the next thing that is asked.
func approveNext(t *testing.T, c *client.Client) {
	t.Helper()
	for {
		waiting, err := c.Approvals(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(waiting) > 0 {
			if _, err := c.Approve(t.Context(), waiting[0].ID); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

// stdioCommand is gatebus stdio as a process to be started.
func stdioCommand(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"stdio", "--home", home}, args...)...)
	cmd.Args[0] = "gatebus" // TestMain goes by it
	cmd.Env, cmd.Stderr = append(os.Environ(), "GATEBUS_HOME="), os.Stderr
	return cmd
}

// An independent client that starts a command lists, hears of a change, and calls,
// also what a person is asked about.
func TestStdioSDK(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	launch(t, "up", "-o", "json", "--home", home)
	c := operator(t, home)
	for i, version := range []string{"", "2025-11-25", "2025-06-18"} {
		name := fmt.Sprintf("ana%d", i)
		enrol(t, c, name)
		changed := make(chan struct{}, 16)
		peer := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		})
		cmd := stdioCommand(t, home, "--as", name)
		cs, err := peer.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		if got := cs.InitializeResult().ProtocolVersion; version != "" && got != version {
			t.Errorf("%q was negotiated for %q", got, version)
		}
		tools, err := cs.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 0 {
			t.Fatalf("%+v, %v", tools, err)
		}
		approveNext(t, c)
		<-changed
		for len(tools.Tools) != 3 {
			if tools, err = cs.ListTools(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		call := func(name string, arguments any) string {
			t.Helper()
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
			if err != nil || res.IsError {
				t.Fatalf("%+v, %v", res, err)
			}
			return res.Content[0].(*mcp.TextContent).Text
		}
		if got := call("demo__echo", map[string]any{"text": "hello"}); got != "hello" {
			t.Errorf("echo says %q", got)
		}
		var approving sync.WaitGroup
		approving.Go(func() { approveNext(t, c) })
		if got := call("demo__delete_everything", nil); !strings.Contains(got, "not really") {
			t.Errorf("a held call says %q", got)
		}
		approving.Wait()
		if err := cs.Close(); err != nil || cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("%v, %v", err, cmd.ProcessState)
		}
	}
	// The operator acted for the hosts.
	var rows client.AuditRows
	if err := c.Do(t.Context(), "audit/list", client.AuditList{Name: "call_requested", Principal: "ana0", Limit: 10}, &rows); err != nil || len(rows.Rows) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
}

// pipes are the two ends of a gatebus stdio.
type pipes struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

func startStdio(t *testing.T, home string, args ...string) (*exec.Cmd, *pipes) {
	t.Helper()
	cmd := stdioCommand(t, home, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &pipes{t, in, bufio.NewReader(out)}
}

func (p *pipes) say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// hear returns the next line that is no progress.
func (p *pipes) hear() string {
	p.t.Helper()
	for {
		line, err := p.out.ReadString('\n')
		if err != nil || !json.Valid([]byte(line)) {
			p.t.Fatalf("%q, %v", line, err)
		}
		if !strings.Contains(line, "notifications/progress") {
			return line
		}
	}
}

// answers is wants for the next line that is no notification.
func (p *pipes) answers(parts ...string) {
	p.t.Helper()
	line := p.hear()
	for strings.Contains(line, `"method"`) {
		line = p.hear()
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			p.t.Fatalf("%s, want %s in it", line, part)
		}
	}
}

// wants fails unless the next line has all of the parts.
func (p *pipes) wants(parts ...string) {
	p.t.Helper()
	line := p.hear()
	for _, part := range parts {
		if !strings.Contains(line, part) {
			p.t.Fatalf("%s, want %s in it", line, part)
		}
	}
}

const (
	stdioHello       = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`
	stdioInitialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	stdioList        = `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`
)

func stdioCall(id, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"demo__%s","arguments":{"text":"hi"},"_meta":{"progressToken":%s}}}`, id, tool, id)
}

// Who cancels hears no more of it; the death of the bus is told to who waits, and the
// host goes on with the next one without noticing.
func TestStdioLoss(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	up := launch(t, "up", "-o", "json", "--home", home)
	c := operator(t, home)
	enrol(t, c, "ana")
	cmd, p := startStdio(t, home, "--as", "ana")
	p.say(stdioHello)
	p.wants(`"id":"i"`, `"2025-11-25"`)
	p.say(stdioInitialized)
	p.say(stdioList)
	p.wants(`"id":"l"`, `"tools":[]`)
	approveNext(t, c)
	p.wants("notifications/tools/list_changed")

	held := func() {
		for n := 0; n == 0; {
			waiting, err := c.Approvals(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n = len(waiting)
		}
	}
	p.say(stdioCall("1", "delete_everything"))
	held()
	p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	p.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	p.answers(`"id":"p"`) // what was cancelled has no answer

	p.say(stdioCall("2", "delete_everything"))
	for line := ""; !strings.Contains(line, `"progressToken":2`); { // until it is held
		var err error
		if line, err = p.out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.answers(`"id":2`, `"kind":"indeterminate"`, `GB5018`)
	_ = up.Wait()
	launch(t, "up", "-o", "json", "--home", home)
	p.wants("notifications/tools/list_changed")
	p.say(stdioList)
	for {
		line := p.hear()
		if strings.Contains(line, "demo__echo") {
			break
		}
		if strings.Contains(line, `"id":"l"`) {
			p.say(stdioList)
		}
	}
	p.say(stdioCall(`"x"`, "echo"))
	for line := p.hear(); !strings.Contains(line, `"id":"x"`) || !strings.Contains(line, `"hi"`); line = p.hear() {
		if strings.Contains(line, `"error"`) {
			t.Fatal(line)
		}
	}
	p.in.Close()
	rest, _ := io.ReadAll(p.out)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, %q", err, rest)
	}
}

// Two that find no bus start one.
func TestStdioAutostart(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	stop := func() {
		var about struct{ PID int }
		data, err := os.ReadFile(filepath.Join(home, "run", "bus.json"))
		if err == nil && json.Unmarshal(data, &about) == nil {
			if up, err := os.FindProcess(about.PID); err == nil {
				_ = up.Signal(syscall.SIGTERM)
			}
		}
		for ; err == nil; _, err = os.Stat(filepath.Join(home, "run", "bus.json")) {
			time.Sleep(time.Millisecond) // another process's end cannot be waited for
		}
	}
	t.Cleanup(stop)
	// Nobody is enrolled in a new home, and its bus stays.
	got := execute(t.Context(), nil, stdioHello, "stdio", "--home", home, "--as", "ana", "--autostart")
	got.wants(t, 4, "", "error GB2010: --as: no host ana is enrolled here")
	c := operator(t, home)
	enrol(t, c, "ana")
	stop()

	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			got := execute(t.Context(), nil, stdioHello, "stdio", "--home", home, "--as", "ana", "--autostart")
			if got.code != 0 || !strings.HasPrefix(got.stdout, `{"jsonrpc":"2.0","id":"i","result":`) || strings.Count(got.stdout, "\n") != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
	both.Wait()
	var rows client.AuditRows
	if err := operator(t, home).Do(t.Context(), "audit/list", client.AuditList{Name: "runtime_booted", Limit: 10}, &rows); err != nil || len(rows.Rows) != 2 {
		t.Errorf("%+v, %v", rows, err)
	}
	if info, err := os.Stat(filepath.Join(home, "run", "up.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	log, err := os.ReadFile(filepath.Join(home, "run", "up.log"))
	if err != nil || strings.Count(string(log), "ready: ") != 2 || strings.Contains(string(log), "error GB") {
		t.Errorf("%s, %v", log, err)
	}
}

// What an up says that does not start is passed on.
func TestStdioAutostartFails(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	if err := os.WriteFile(filepath.Join(home, "gatebus.yaml"), []byte("no_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := execute(t.Context(), nil, stdioHello, "stdio", "--home", home, "--as", "ana", "--autostart")
	got.wants(t, 8, "", "error GB8001: gatebus up did not start:\n")
	if !strings.Contains(got.stderr, "no_such_key") {
		t.Error(got.stderr)
	}
}

// The log of an up without a terminal begins anew when it is long.
func TestUpLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "up.log")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 40 {
		fmt.Fprintf(upLog{f}, "%d%s\n", i, strings.Repeat("x", maxUpLog/16))
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxUpLog+maxUpLog/8 || !strings.Contains(string(data), "\n39x") {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestStdioRefuses(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	run := func(env map[string]string, args ...string) outcome {
		return execute(t.Context(), env, stdioHello, append([]string{"stdio", "--home", home}, args...)...)
	}
	run(nil, "--as", "ana").wants(t, 8, "", "error GB8001: no bus is running\nhint: start it with gatebus up, or add --autostart")
	run(nil, "--profile", "p").wants(t, 2, "", "error GB1001: --profile: this version has no profiles")
	run(nil, "--as", "a b").wants(t, 2, "", `error GB1001: --as: "a b" is no name`)
	run(nil, "--bus", "nats://127.0.0.1:1").wants(t, 2, "", "say --home in place of --bus")
	launch(t, "up", "-o", "json", "--home", home)
	run(nil).wants(t, 4, "", "error GB2010: whom this is for is not known: say --as HOST")
	for _, name := range []string{"ana", "local"} { // the operator is no host
		run(nil, "--as", name).wants(t, 4, "", "error GB2010: --as: no host "+name+" is enrolled here, or it is revoked\nhint: gatebus host token "+name+" enrols it")
	}
	run(map[string]string{tokenVariable: "gbt_nonsense"}).wants(t, 4, "", "error GB2010: GATEBUS_TOKEN holds no valid token")
	var r client.HostTokenResult
	if err := operator(t, home).Do(t.Context(), "host/token", client.HostToken{Name: "ana"}, &r); err != nil {
		t.Fatal(err)
	}
	if got := run(map[string]string{tokenVariable: r.Token}); got.code != 0 || !strings.Contains(got.stdout, `"id":"i","result"`) {
		t.Errorf("%+v", got)
	}
	if got := execute(t.Context(), nil, "", "--home", home, "host", "revoke", "ana"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	run(map[string]string{tokenVariable: r.Token}).wants(t, 4, "", "GATEBUS_TOKEN holds no valid token")
	run(nil, "--as", "ana").wants(t, 4, "", "or it is revoked")
}

// What is no message is answered, and nothing is lost behind it.
func TestStdioOddInput(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	launch(t, "up", "-o", "json", "--home", home, "--anonymous", "guest")
	long := func(n int) string {
		return `{"jsonrpc":"2.0","id":"big","method":"ping","params":{"x":"` + strings.Repeat("x", n) + `"}}`
	}
	ping := `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	for odd, want := range map[string]string{
		"no JSON":        `"id":null,"error":{"code":-32700`,
		"[" + ping + "]": `"id":null,"error":{"code":-32600`,
		"5":              `"id":null,"error":{"code":-32600`,
		"{}":             `"id":null,"error":{"code":-32600`,
		long(5 << 20):    `"id":"big","error":{"code":-32602`,
		long(3 << 20):    `"id":"big","result":{}`,
		long(17 << 20):   `"id":null,"error":{"code":-32602`,
		"\r\n \n":        `"id":"i"`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`:                 `"id":null,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`:             `"id":null,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":1.0,"method":"ping"}`:                  `"id":1.0,"result":{}`,
		`{"jsonrpc":"2.0","id":"\u2028\/","method":"no/such"}`:        `"id":"\u2028\/","error":{"code":-32601`,
		`{"jsonrpc":"2.0","method":"notifications/no/such"}`:          `"id":"i"`,
		`{"jsonrpc":"2.0","id":"nothing was asked","result":{"a":1}}`: `"id":"i"`,
	} {
		got := execute(t.Context(), nil, stdioHello+"\n"+stdioInitialized+"\n"+odd+"\n"+ping, "stdio", "--home", home)
		if got.code != 0 || !strings.Contains(got.stdout, want) || !strings.Contains(got.stdout, `"id":7,"result":{}`) || got.stderr != "" {
			t.Errorf("%.80s: %d\n%s\n%s", odd, got.code, got.stdout, got.stderr)
		}
		for line := range strings.Lines(got.stdout) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%.80s: not a message: %s", odd, line)
			}
		}
	}
}

// The socket takes who may open it at his word, and keeps what is checked at the
// address.
func TestMCPSocket(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	up := launch(t, "up", "-o", "json", "--home", home)
	enrol(t, operator(t, home), "ana")
	socket := filepath.Join(home, "run", "mcp.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	inside := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	for _, c := range []struct {
		client   *http.Client
		url      string
		name, as string
		want     int
	}{
		{inside, "http://localhost/mcp", "Gatebus-As", "ana", 200},
		{inside, "http://localhost/mcp", "Gatebus-As", "bob", 401},
		{inside, "http://localhost/mcp", "Gatebus-As", "local", 401},
		{inside, "http://localhost/mcp", "X", "", 401},
		{inside, "http://evil.example/mcp", "Gatebus-As", "ana", 403},
		{inside, "http://localhost/mcp", "Origin", "http://evil.example", 403},
		{inside, "http://localhost/rpc", "Gatebus-As", "ana", 401},
		{http.DefaultClient, up.ready["mcp"].(string), "Gatebus-As", "ana", 401},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, strings.NewReader(stdioHello))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(c.name, c.as)
		resp, err := c.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with %s %q: %s", c.url, c.name, c.as, resp.Status)
		}
	}
	inside.CloseIdleConnections()
	up.interrupt(t)
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}
