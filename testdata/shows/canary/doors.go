package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// declareWeb writes the declaration of the server behind HTTP, whose headers and URL
// hold canaries, and starts it; and what secrets servers have of their own.
func (s *scene) declareWeb() (err error) {
	var known, own, headers []string
	for i, c := range s.in(header) {
		known = append(known, c.value)
		name, value := fmt.Sprintf("X-Custom-%d", i), c.value
		switch i {
		case 0:
			name = "X-Api-Key"
		case 1:
			name, value = "Authorization", "Bearer "+c.value
		case 2:
			s.Env = append(s.Env, "HEADER="+c.value)
			value = "${HEADER}"
		}
		headers = append(headers, fmt.Sprintf("  %s: %s\n", name, quoted(value)))
	}
	q := url.Values{}
	for i, c := range s.in(query) {
		known = append(known, c.value)
		q.Add([]string{"access_token", "api_key", "password", "sig"}[i%4], c.value)
	}
	for i, c := range s.in(shaped) {
		own = append(own, c.inShape(i))
	}
	if s.web, err = newWeb(known, own); err != nil {
		return err
	}
	b, _ := json.Marshal(own) // texts
	return errors.Join(os.WriteFile(filepath.Join(s.Root, "shaped"), b, 0o600),
		s.Declare("web", fmt.Sprintf("transport: streamable_http\nurl: %s\nheaders:\n%sapproval_policy: auto\ntimeout_seconds: 20\n",
			quoted("http://"+s.web.address+"/mcp?"+q.Encode()), strings.Join(headers, ""))))
}

// declareSecond makes a core of its own, which loads.
func (s *scene) declareSecond() error {
	s.second = filepath.Join(filepath.Dir(s.Core), "second")
	s.Args = append(s.Args, "--core", s.second)
	return os.MkdirAll(filepath.Join(s.second, "agent", "mcp"), 0o700)
}

// breakSecond writes declarations into the second core that are refused, each with a
// canary.
func (s *scene) breakSecond() (err error) {
	for i, c := range s.in(broken) {
		text := fmt.Sprintf([]string{
			"transport: streamable_http\nurl: https://bob:%s@mcp.example/\n", "command: x\nenv: a: %s\n", "command: x\ntransport: %s\n",
			"command: x\nurl_policy: {allow_private: %s}\n", "command: x\nenv:\n  LD_PRELOAD: %s\n", "command: x\nargs: [--token, %s\n",
		}[i%6], c.value)
		err = errors.Join(err, os.WriteFile(filepath.Join(s.second, "agent", "mcp", fmt.Sprintf("broken%d.yaml", i)), []byte(text), 0o600))
	}
	return err
}

// reload has the runtime read the broken core, and starts another one with it, which
// refuses to.
func (s *scene) reload(ctx context.Context, c *client.Client) error {
	if err := s.breakSecond(); err != nil {
		return err
	}
	var said client.CoreReload
	if err := c.Do(ctx, "core/reload", nil, &said); err != nil {
		return err
	}
	b, _ := json.Marshal(said) // of texts
	s.look("rpc", "core/reload", b)
	if !slices.ContainsFunc(said.Cores, func(l client.CoreLoad) bool { return l.Failed }) {
		return errors.New("the broken core loads")
	}
	other := *s.Gatebus
	other.Home, other.Listen = s.Home+"-other", "127.0.0.1:0"
	p, err := other.Launch()
	if err != nil {
		return err
	}
	code, err := p.Wait(time.Minute)
	s.output(p)
	if err == nil && code != 2 {
		err = fmt.Errorf("with a broken core up ends with %d", code)
	}
	return errors.Join(err, s.folder("home", other.Home))
}

// processes searches the command lines of all processes of the program.
func (s *scene) processes() error {
	running := show.Running(s.Bin)
	for pid := range running {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return err
		}
		s.look("processes", "the command line of a process", bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
	}
	if len(running) == 0 {
		return errors.New("no process of the program was found")
	}
	return nil
}

// beside asks for what servers have beside tools.
func (s *scene) beside(ctx context.Context, others ...*show.MCP) error {
	for _, m := range append(others, s.alice) {
		for _, q := range [][2]string{
			{"logging/setLevel", `{"level":"debug"}`},
			{"resources/list", `{}`}, {"resources/templates/list", `{}`}, {"resources/read", `{"uri":"leak:///one"}`}, {"resources/read", `{"uri":"web:///one"}`},
			{"prompts/list", `{}`}, {"prompts/get", `{"name":"free__say","arguments":{"x":"1"}}`}, {"prompts/get", `{"name":"web__say"}`},
			{"completion/complete", `{"ref":{"type":"ref/prompt","name":"free__say"},"argument":{"name":"x","value":"1"}}`},
		} {
			_, err := m.Do(ctx, q[0], q[1])
			if _, ok := errors.AsType[show.Status](err); err != nil && !ok {
				return fmt.Errorf("%s: %w", q[0], err)
			}
		}
	}
	return nil
}

// asked is a client of alice that offers all that servers may ask for, and answers a
// server with canaries.
func (s *scene) asked(ctx context.Context, c *client.Client) error {
	for _, what := range []string{"sample", "elicit", "roots"} {
		if err := c.Do(ctx, "grant/add", client.Grant{Principal: "alice", Capability: "mcp." + what + ":free"}, nil); err != nil {
			return err
		}
	}
	session := ""
	post := func(body string) (*http.Response, error) {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(), strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		q.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer " + s.alice.Token},
		}
		if session != "" {
			q.Header.Set("Mcp-Session-Id", session)
			q.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
		r, err := http.DefaultClient.Do(q)
		if err == nil && r.StatusCode >= 300 {
			r.Body.Close()
			err = show.Status(r.StatusCode)
		}
		return r, err
	}
	// read posts and reads the answer, line by line.
	read := func(body string, line func([]byte) error) error {
		r, err := post(body)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if id := r.Header.Get("Mcp-Session-Id"); id != "" {
			session = id
		}
		for in := bufio.NewReader(r.Body); ; {
			b, err := in.ReadBytes('\n')
			s.own.take(b)
			if e := line(bytes.TrimPrefix(b, []byte("data: "))); e != nil || err != nil {
				if err == io.EOF {
					err = nil
				}
				return errors.Join(e, err)
			}
		}
	}
	nothing := func([]byte) error { return nil }
	if err := errors.Join(
		read(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{"form":{}},"roots":{}},"clientInfo":{"name":"show","version":"1"}}}`, nothing),
		read(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, nothing)); err != nil {
		return err
	}
	listed := false
	err := show.Until(ctx, func() (bool, error) {
		err := read(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, func(b []byte) error {
			listed = listed || bytes.Contains(b, []byte(`"free__ask"`))
			return nil
		})
		return listed, err
	})
	if err != nil {
		return err
	}
	all := s.in(told)
	answers := 0
	err = read(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"free__ask","arguments":{},"_meta":{"progressToken":1}}}`, func(b []byte) error {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(b, &m) != nil || m.Method == "" || m.ID == nil {
			return nil
		}
		values := make([]string, len(all))
		for i, c := range all {
			values[i] = c.value
		}
		words := quoted(strings.Join(values, " "))
		result := map[string]string{
			"sampling/createMessage": `{"role":"assistant","content":{"type":"text","text":` + words + `},"model":"m"}`,
			"elicitation/create":     `{"action":"accept","content":{"x":` + words + `}}`,
			"roots/list":             `{"roots":[{"uri":"file:///root","name":` + words + `}]}`,
		}[m.Method]
		answers++
		r, err := post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
		if err == nil {
			r.Body.Close()
		}
		return err
	})
	if err == nil && answers != 3 {
		err = fmt.Errorf("a server asked for %d things in place of 3", answers)
	}
	return err
}

// grow makes a server have one tool more, which a person looks at and approves.
func (s *scene) grow(ctx context.Context, c *client.Client, m *show.MCP) error {
	if _, err := m.Call(ctx, "free__grow", `{"salt":1}`); err != nil {
		return err
	}
	if err := s.answer(ctx, c, 1, "allow"); err != nil {
		return err
	}
	err := show.Until(ctx, func() (bool, error) {
		names, err := m.Tools(ctx)
		return slices.Contains(names, "free__grown"), err
	})
	if err != nil {
		return err
	}
	_, err = m.Call(ctx, "free__grown", `{"salt":1}`)
	return err
}

// get reads from the listener as the principal of a token, for ten seconds at most.
func (s *scene) get(ctx context.Context, path, token, body string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://"+s.Listen+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	q.Header.Set("Authorization", "Bearer "+token)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Last-Event-ID", "0")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		time.AfterFunc(2*time.Second, cancel) // it has no end
	}
	b, _ := io.ReadAll(r.Body) // up to there
	return r.StatusCode, b, nil
}

// doors asks at all other doors: /metrics, /rpc, its events, the stdio bridge, the
// audit file, and the bus as an auditor.
func (s *scene) doors(ctx context.Context, c *client.Client) error {
	tokens := map[string]string{"alice": s.alice.Token}
	for _, role := range []string{"operator", "auditor"} {
		var t client.HostTokenResult
		if err := c.Do(ctx, "host/token", client.HostToken{Name: "an-" + role, Role: role}, &t); err != nil {
			return err
		}
		tokens[role] = t.Token
		if status, body, err := s.get(ctx, "/metrics", t.Token, ""); err != nil || status != http.StatusOK {
			return fmt.Errorf("/metrics: %d, %w", status, err)
		} else {
			s.look("metrics", "/metrics", body)
		}
	}
	for _, ask := range []struct{ who, method, params string }{
		{"operator", "mcp/list", `{}`}, {"operator", "mcp/server/details", `{"name":"free"}`}, {"operator", "mcp/server/details", `{"name":"web"}`},
		{"operator", "mcp/server/logs", `{"name":"free"}`}, {"operator", "approvals/list", `{"all":true}`}, {"operator", "grant/list", `{}`},
		{"auditor", "audit/list", `{"limit":1000}`}, {"auditor", "audit/asof", `{}`}, {"auditor", "audit/verify", `{}`}, {"operator", "bus/info", `{}`},
		{"auditor", "mcp/server/details", `{"name":"nothing"}`}, {"operator", "tool/call", `{"turn":` + quoted(s.in(sensitive)[0].value) + `}`},
	} {
		_, body, err := s.get(ctx, "/rpc", tokens[ask.who], `{"jsonrpc":"2.0","id":1,"method":"`+ask.method+`","params":`+ask.params+`}`)
		if err != nil {
			return err
		}
		s.look("rpc", ask.method+" of an "+ask.who, body)
	}
	if err := s.turn(ctx); err != nil {
		return err
	}
	for who, token := range tokens {
		_, body, err := s.get(ctx, "/rpc/events", token, "")
		if err != nil {
			return err
		}
		s.look("rpc", "/rpc/events of "+who, body)
	}
	for _, table := range audit.Tables() {
		if _, errs, code := s.terminal(ctx, "audit", "query", "SELECT * FROM "+table, "--limit", "0", "-o", "json"); code != 0 {
			return fmt.Errorf("audit query of %s: %s", table, errs)
		}
	}
	return errors.Join(s.auditor(ctx), s.bridge(ctx))
}

// turn is a native host: a session, a turn and a call over /rpc.
func (s *scene) turn(ctx context.Context) error {
	var said struct {
		Result struct{ Session, Turn string }
	}
	ask := func(method, params string) error {
		_, body, err := s.get(ctx, "/rpc", s.alice.Token, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)
		s.own.take(body)
		if err == nil {
			err = json.Unmarshal(body, &said)
		}
		return err
	}
	if err := ask("session/start", `{"label":"show"}`); err != nil {
		return err
	}
	if err := ask("turn/prepare", `{"session":`+quoted(said.Result.Session)+`,"include_implicit":true}`); err != nil {
		return err
	}
	if said.Result.Turn == "" {
		return errors.New("turn/prepare gave no turn")
	}
	return errors.Join(ask("tool/call", `{"turn":`+quoted(said.Result.Turn)+`,"name":"free__give","arguments":`+s.arguments(9001)+`}`),
		ask("tool/call", `{"turn":`+quoted(said.Result.Turn)+`,"name":"web__refuse","arguments":`+s.arguments(9002)+`}`))
}

// auditor reads the log over the bus with credentials of its own.
func (s *scene) auditor(ctx context.Context) error {
	creds, errs, code := s.CLI(ctx, "bus", "creds", "an-auditor", "--role", "auditor")
	if code != 0 {
		return errors.New(errs)
	}
	file := filepath.Join(filepath.Dir(s.Home), "auditor.creds")
	if err := os.WriteFile(file, []byte(creds), 0o600); err != nil {
		return err
	}
	out, errs, code := s.CLI(ctx, "bus", "info", "-o", "json")
	var info client.BusInfo
	if code != 0 || json.Unmarshal([]byte(out), &info) != nil {
		return errors.New(errs)
	}
	for _, line := range []string{"audit list -o jsonl --limit 0", "audit verify", "audit replay --all -o json"} {
		out, errs, code := s.CLI(ctx, append([]string{"--bus", info.NATS, "--creds", file}, strings.Fields(line)...)...)
		if code != 0 {
			return fmt.Errorf("an auditor cannot %s: %s", line, errs)
		}
		s.look("auditor", line+" of an auditor", []byte(out+errs))
	}
	return nil
}

// bridge is a host that only starts commands.
func (s *scene) bridge(ctx context.Context) error {
	file := filepath.Join(filepath.Dir(s.Home), "bridge.err")
	pipe, err := show.OpenPipe(ctx, s.Root, s.Env, false, "sh", "-c", `exec "$0" --home "$1" -v stdio --as alice 2>"$2"`, s.Bin, s.Home, file)
	if err != nil {
		return err
	}
	defer pipe.Close()
	for _, q := range [][2]string{
		{"tools/list", `{}`}, {"tools/call", `{"name":"free__give","arguments":` + s.arguments(9003) + `}`}, {"tools/call", `{"name":"web__status","arguments":` + s.arguments(9004) + `}`},
	} {
		a, err := pipe.Do(ctx, q[0], q[1])
		if err != nil {
			return err
		}
		for _, b := range append(a.Before, a.Result, a.Error) {
			s.own.take(b)
		}
	}
	if err := s.processes(); err != nil {
		return err
	}
	errs, err := os.ReadFile(file)
	s.look("up", "stderr of gatebus stdio", errs)
	return err
}

// crash ends the process with a signal that makes it print what it does, in the
// middle of a call.
func (s *scene) crash(ctx context.Context, p *show.Process) error {
	progress := func() int {
		s.own.mu.Lock()
		defer s.own.mu.Unlock()
		return bytes.Count(s.own.b, []byte("notifications/progress"))
	}
	before := progress()
	done := make(chan error, 1)
	go func() { done <- s.call(ctx, s.alice, "free__late", s.arguments(9005)) }()
	if err := show.Until(ctx, func() (bool, error) { return progress() > before, nil }); err != nil {
		return fmt.Errorf("the last call does not begin: %w", err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGQUIT); err != nil {
		return err
	}
	if _, err := p.Wait(30 * time.Second); err != nil {
		return err
	}
	<-done // cut off, however that looks
	if !strings.Contains(p.Stderr.String(), "goroutine ") {
		return errors.New("a crash printed no stacks")
	}
	s.output(p)
	return os.RemoveAll(filepath.Join(s.second, "agent", "mcp")) // or the next one does not start
}

// after looks at the log once more, in another process than the one that crashed.
func (s *scene) after(ctx context.Context) {
	for _, line := range []string{"status", "audit verify", "audit list -o jsonl --limit 0", "server logs free", "bus rebuild --check", "approvals list --all -o json"} {
		s.terminal(ctx, strings.Fields(line)...)
	}
}
