// Canary puts random values everywhere a secret or an argument can be, makes servers
// give them away in every way they can, and looks for them everywhere they must not
// be: the home, a backup of it, the terminal, the command lines of processes, the
// responses to others.
//
// With -plant it puts one of them into the log itself and must find it. With -keep
// it writes all that was printed and answered into files.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	leak := flag.String("leak", "", "the program of the fake that gives all away")
	dir := flag.String("dir", "", "an empty directory to work in")
	n := flag.Int("n", 80, "canaries")
	rounds := flag.Int("rounds", 1, "how often everything is called")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the values")
	plant := flag.Bool("plant", false, "put a canary into the log")
	keep := flag.String("keep", "", "a folder for all that was printed and answered")
	flag.Parse()
	s := &scene{
		flock: hatch(rand.New(rand.NewPCG(*seed, 2)), *n), program: *leak, plant: *plant, keep: *keep,
		searched: map[string]int{}, found: map[string]int{}, marked: map[string]int{},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	fmt.Printf("seed %d, %d canaries, %d rounds\n", *seed, *n, *rounds)
	err := s.show(ctx, *bin, *dir, *rounds)
	if err == nil {
		err = s.report()
	}
	show.Verdict(err)
}

// scene is the show.
type scene struct {
	*show.Gatebus
	*flock
	program string
	plant   bool
	keep    string
	alice   *show.MCP // the caller
	web     *web
	second  string // a core of declarations that are refused

	mu       sync.Mutex
	searched map[string]int // bytes, by what was searched
	found    map[string]int // hits, by what was searched
	marked   map[string]int // markers of redaction, by what was searched
	hits     []hit
	kept     []string // what was written to keep
	shown    int      // values of ordinary arguments that an operator saw of a held call
	printed  int      // values of ordinary arguments that servers printed
	own      sink
	others   sink
	calls    map[string]int // outcomes, as the caller saw them
}

// sink keeps all bytes of responses.
type sink struct {
	mu sync.Mutex
	b  []byte
}

func (s *sink) take(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(append(s.b, b...), '\n')
}

// look searches a text and keeps what it finds.
func (s *scene) look(what, where string, text []byte, places ...string) {
	hits := s.search(where, text)
	if len(places) > 0 {
		hits = slices.DeleteFunc(hits, func(h hit) bool { return !slices.Contains(places, h.place) })
	}
	stderr := 0
	if ofStderr(where) {
		all := len(hits)
		hits = slices.DeleteFunc(hits, func(h hit) bool { return h.place == ordinary || h.place == meta })
		stderr = all - len(hits)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.printed += stderr
	s.searched[what] += len(text)
	s.found[what] += len(hits)
	s.marked[what] += bytes.Count(text, []byte("<redacted")) + bytes.Count(text, []byte(`"redacted":true`))
	s.hits = append(s.hits, hits...)
	if s.keep != "" && what != "home" && what != "backup" {
		name := filepath.Join(s.keep, fmt.Sprintf("%04d", len(s.kept)))
		s.kept = append(s.kept, where)
		if err := os.WriteFile(name, append([]byte(where+"\n"), text...), 0o600); err != nil {
			s.hits = append(s.hits, hit{where: "-keep", around: err.Error()})
		}
	}
}

// ofStderr reports whether a text is the stderr of servers. What is taken out of it is
// what is declared of them, and what its shape tells (R124): an argument of a call that
// a server prints there is no secret of either kind, unless its name says so.
func ofStderr(where string) bool {
	return strings.HasPrefix(where, "gatebus server logs ") || strings.HasPrefix(where, "mcp/server/logs ") || strings.HasSuffix(where, "mcp-stderr.log")
}

func (s *scene) report() error {
	fmt.Println("calls:", outcomes(s.calls))
	for _, what := range slices.Sorted(maps.Keys(s.searched)) {
		fmt.Printf("%-22s %9d bytes %6d markers %4d hits\n", what, s.searched[what], s.marked[what], s.found[what])
	}
	fmt.Printf("values of ordinary arguments that the operator saw of held calls, on purpose: %d\n", s.shown)
	fmt.Printf("values of ordinary arguments in what servers printed to stderr, as R124 has it: %d\n", s.printed)
	for i, h := range s.hits {
		if i == 40 {
			fmt.Printf("… and %d more\n", len(s.hits)-i)
			break
		}
		fmt.Printf("hit: %s in %s: %s\n", h.name, h.where, h.around)
	}
	if s.plant {
		if s.found["home"] == 0 || s.found["command line"] == 0 {
			return fmt.Errorf("the planted canary was not found in home and command line")
		}
		fmt.Println("self-test: the planted canary was found")
		return nil
	}
	if len(s.hits) > 0 {
		return fmt.Errorf("%d hits", len(s.hits))
	}
	// Where nothing was redacted the canaries did not come, and not finding them says
	// nothing.
	for _, what := range []string{"audit, bus", "command line", "home", "backup", "responses, caller", "responses, others", "rpc", "stderr log"} {
		if s.marked[what] == 0 {
			return fmt.Errorf("there was nothing to redact: %s", what)
		}
	}
	return nil
}

func outcomes(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

// The servers: one that is called at once, one that asks, one that policy denies,
// and one with a short time-out.
var servers = []struct{ name, policy, timeout string }{
	{"free", "auto", "20"}, {"asked", "prompt", "20"}, {"never", "auto", "20"}, {"hasty", "auto", "1"},
}

// declare writes the declarations: half of the environment is literal, half is
// taken from the environment of gatebus. The server free has no long values, so that
// a part of its stderr is kept.
func (s *scene) declare() error {
	var env, short, args []string
	for i, c := range s.in(environment) {
		name := fmt.Sprintf("SETTING_%d", i)
		if i == 0 {
			name = "NAMED"
		}
		if i%2 == 0 {
			env = append(env, fmt.Sprintf("  %s: ${HOST_%d}\n", name, i))
			s.Env = append(s.Env, fmt.Sprintf("HOST_%d=%s", i, c.value))
		} else {
			env = append(env, fmt.Sprintf("  %s: %s\n", name, quoted(c.value)))
		}
		if c.kind != "long" {
			short = append(short, env[len(env)-1])
		}
	}
	for i, c := range s.in(undeclared) {
		s.Env = append(s.Env, fmt.Sprintf("PRIVATE_%d=%s", i, c.value))
	}
	for i, c := range s.in(option) {
		name := []string{"--api-key", "--token", "--password"}[i%3]
		if i%2 == 0 {
			args = append(args, quoted(name), quoted(c.value))
		} else {
			args = append(args, quoted(name+"="+c.value))
		}
	}
	if err := s.declareWeb(); err != nil {
		return err
	}
	for _, d := range servers {
		env := env
		if d.name == "free" {
			env = short
		}
		err := s.Declare(d.name, fmt.Sprintf("transport: stdio\ncommand: %s\nargs: [%s]\nenv:\n%sapproval_policy: %s\ntimeout_seconds: %s\n",
			quoted(s.program), strings.Join(args, ", "), strings.Join(env, ""), d.policy, d.timeout))
		if err != nil {
			return err
		}
	}
	// The rule is of calls; one may connect.
	rule := "private_networks: [127.0.0.1]\napprovals: {rules: [{server: never, tool: \"*\", approval: deny}]}\n"
	return errors.Join(s.declareSecond(), os.MkdirAll(s.Home, 0o700), os.WriteFile(filepath.Join(s.Home, "gatebus.yaml"), []byte(rule), 0o600))
}

// quoted is a JSON string as JavaScript writes it, which is a YAML string too.
func quoted(v string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // any text
	return strings.TrimSuffix(b.String(), "\n")
}

// arguments are those of every call: all canaries of arguments, below sensitive
// and ordinary names, nested, in arrays, in texts of their own; salt makes the
// call another one.
func (s *scene) arguments(salt int) string {
	var names = []string{"password", "api_key", "accessToken", "Authorization", "client-secret"}
	var args []string
	for i, c := range s.in(sensitive) {
		name, v := names[i%len(names)], quoted(c.value)
		args = append(args, fmt.Sprintf([]string{
			`"%[2]s_%[1]d":{"%[2]s":%[3]s}`, `"list%[1]d":[{"deep":{"%[2]s":%[3]s}},1]`, `"many%[1]d":{"%[2]s":[%[3]s,"x"]}`,
		}[i%3], i, name, v))
	}
	for i, c := range s.in(ordinary) {
		v := quoted(c.value)
		args = append(args, fmt.Sprintf([]string{
			`"title%d":%s`, `"rows%d":[[%s],{"n":1.50}]`, `"body%d":{"a":{"b":{"c":{"d":{"e":%s}}}}}`, `"text%d":` + quoted(`inner {"x":`+v+`} json`),
		}[i%4], i, v))
		if i%4 == 3 {
			args[len(args)-1] = fmt.Sprintf(`"text%d":%s`, i, quoted(`inner {"x":`+v+`} json`))
		}
	}
	return fmt.Sprintf(`{"salt":%d,%s}`, salt, strings.Join(args, ","))
}

func (s *scene) show(ctx context.Context, bin, dir string, rounds int) (err error) {
	if s.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	s.Verbose, s.calls = true, map[string]int{}
	if err := s.declare(); err != nil {
		return err
	}
	p, err := s.Up(ctx)
	if err != nil {
		return err
	}
	defer s.web.Close()
	err = s.play(ctx, rounds)
	if err == nil {
		err = s.crash(ctx, p)
	}
	if err != nil {
		p.Kill()
		return err
	}
	if p, err = s.Up(ctx); err != nil {
		return err
	}
	s.after(ctx)
	p.Interrupt()
	if code, e := p.Wait(30 * time.Second); e != nil || code != 0 {
		p.Kill()
		return fmt.Errorf("an orderly stop ended with %d, %v", code, e)
	}
	s.output(p)
	// The caller may see his own ordinary arguments, and nobody the rest.
	s.look("responses, caller", "a response to the caller", s.own.b, append([]string{sensitive}, nobody...)...)
	s.look("responses, others", "a response to another principal", s.others.b)
	file := filepath.Join(s.Home, "logs", "mcp-stderr.log")
	log, err := os.ReadFile(file)
	s.look("stderr log", file, log)
	return errors.Join(err, s.folder("home", s.Home), s.folder("backup", s.Home+"-backup"))
}

// output searches what a process printed.
func (s *scene) output(p *show.Process) {
	s.look("up", "stdout of up", []byte(p.Stdout.String()))
	s.look("up", "stderr of up", []byte(p.Stderr.String()))
}

// folder searches every file of a folder.
func (s *scene) folder(what, folder string) error {
	return filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s.look(what, "the name of "+path, []byte(path))
		if !e.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err == nil {
			s.look(what, path, b)
		}
		return err
	})
}

// connect is an MCP client of a new principal, whose servers are approved.
func (s *scene) connect(ctx context.Context, c *client.Client, name string, keep *sink, capabilities ...string) (*show.MCP, error) {
	token, err := show.Enrol(ctx, c, name, capabilities...)
	if err != nil {
		return nil, err
	}
	m := &show.MCP{URL: s.URL(), Token: token, Seen: keep.take}
	if err := m.Initialize(ctx); err != nil {
		return nil, err
	}
	_, err = m.Tools(ctx)
	return m, err
}

// listed waits until a client sees the tools of all servers.
func (s *scene) listed(ctx context.Context, m *show.MCP, want int) error {
	for {
		names, err := m.Tools(ctx)
		if err != nil {
			return err
		}
		if len(names) >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d tools are listed", len(names), want)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *scene) play(ctx context.Context, rounds int) error {
	c, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	all := []string{"mcp.connect:*", "mcp.call:*"}
	if s.alice, err = s.connect(ctx, c, "alice", &s.own, all...); err != nil {
		return err
	}
	bob, err := s.connect(ctx, c, "bob", &s.others, all...)
	if err != nil {
		return err
	}
	eve, err := s.connect(ctx, c, "eve", &s.others)
	if err != nil {
		return err
	}
	s.terminal(ctx, "approvals", "list")
	if err := s.answer(ctx, c, 2*(len(servers)+1), "allow"); err != nil {
		return err
	}
	tools := []string{"give", "mirror", "bulk", "iserror", "refuse", "malformed", "late", "die"}
	for _, m := range []*show.MCP{s.alice, bob} {
		if err := s.listed(ctx, m, len(servers)*(len(tools)+2)+len(webTools)); err != nil {
			return err
		}
	}
	if err := s.processes(); err != nil {
		return err
	}
	salt := 0
	for range rounds {
		for _, tool := range tools {
			for _, d := range servers {
				name := d.name + "__" + tool
				switch {
				case tool == "late" && d.name != "hasty": // it would take all of the time-out
					continue
				case tool == "die" && d.name != "free":
					continue
				}
				salt++
				if d.name == "asked" {
					err = s.held(ctx, c, name, salt)
				} else {
					err = s.call(ctx, s.alice, name, s.arguments(salt))
				}
				if err != nil {
					return err
				}
				// Others call the same server without any canary.
				if tool != "late" && tool != "die" {
					for _, m := range []*show.MCP{bob, eve} {
						if d.name == "free" {
							if _, err := m.Call(ctx, name, `{"salt":1}`); err != nil {
								return err
							}
						}
					}
				}
			}
		}
		for _, tool := range webTools {
			salt++
			if err := errors.Join(s.call(ctx, s.alice, "web__"+tool, s.arguments(salt)), s.call(ctx, bob, "web__"+tool, `{"salt":1}`)); err != nil {
				return err
			}
		}
		if err := s.beside(ctx, bob, eve); err != nil {
			return err
		}
		if err := s.invalid(ctx); err != nil {
			return err
		}
		// The server that died is opened again, and lists its tools again.
		for _, m := range []*show.MCP{s.alice, bob, eve} {
			if _, err := m.Tools(ctx); err != nil {
				return err
			}
		}
	}
	if err := s.asked(ctx, c); err != nil {
		return err
	}
	if err := s.grow(ctx, c, bob); err != nil {
		return err
	}
	if s.plant {
		i := slices.IndexFunc(s.all, func(c canary) bool { return c.kind == "plain" })
		if _, errs, code := s.CLI(ctx, "grant", "add", "bob", "mcp.call:planted", "--note", s.all[i].value); code != 0 {
			return fmt.Errorf("the canary could not be planted: %s", errs)
		}
	}
	return errors.Join(s.reload(ctx, c), s.commands(ctx, c), s.doors(ctx, c))
}

// call makes a call of the caller with _meta, and counts its outcome.
func (s *scene) call(ctx context.Context, m *show.MCP, tool, arguments string) error {
	var hidden []string
	for i, c := range s.in(meta) {
		hidden = append(hidden, fmt.Sprintf(`"example.com/k%d":%s`, i, quoted(c.value)))
	}
	a, err := m.Do(ctx, "tools/call", fmt.Sprintf(`{"name":%s,"arguments":%s,"_meta":{"progressToken":"p","x":{%s}}}`,
		quoted(tool), arguments, strings.Join(hidden, ",")))
	if _, ok := err.(show.Status); err != nil && !ok {
		return err
	}
	var result struct {
		IsError           bool
		StructuredContent struct{ Code string }
	}
	outcome := "succeeded"
	if err != nil || a.Error != nil {
		outcome = "error"
	} else if json.Unmarshal(a.Result, &result) == nil && result.IsError {
		outcome = "isError"
		if result.StructuredContent.Code != "" {
			outcome = result.StructuredContent.Code
		}
	}
	s.calls[outcome]++
	return nil
}

// invalid makes calls that are refused for what they are.
func (s *scene) invalid(ctx context.Context) error {
	args := s.arguments(0)
	for _, bad := range []string{
		"[" + args + "]",
		args[:len(args)-1] + `,"salt":1}`,
		args[:len(args)-1] + `,"pad":"` + strings.Repeat("x", 1<<20) + `"}`,
		args[:len(args)-1] + `,"broken":`,
		quoted(args),
	} {
		if err := s.call(ctx, s.alice, "free__give", bad); err != nil {
			return err
		}
	}
	return s.call(ctx, s.alice, "free__nothing", args)
}

// held makes a call that waits, looks at it as an operator, and answers it: each
// third time with a no.
func (s *scene) held(ctx context.Context, c *client.Client, tool string, salt int) error {
	done := make(chan error, 1)
	go func() { done <- s.call(ctx, s.alice, tool, s.arguments(salt)) }()
	decision := "allow"
	if salt%3 == 0 {
		decision = "deny"
	}
	if err := s.answer(ctx, c, 1, decision); err != nil {
		return err
	}
	return <-done
}

// answer answers the next n approvals, after it looked at them.
func (s *scene) answer(ctx context.Context, c *client.Client, n int, decision string) error {
	q := client.ApprovalsList{}
	for n > 0 {
		var page client.Approvals
		if err := c.Do(ctx, "approvals/list", q, &page); err != nil {
			return err
		}
		for _, a := range page.Approvals {
			s.terminal(ctx, "approvals", "list", "-o", "yaml")
			s.terminal(ctx, "approvals", "show", a.ID)
			s.terminal(ctx, "approvals", "show", a.ID, "-o", "json")
			verb := map[string]string{"allow": "approve", "deny": "deny"}[decision]
			if _, errs, code := s.terminal(ctx, verb, a.ID); code != 0 {
				return fmt.Errorf("%s: %s", verb, errs)
			}
			n--
		}
		q.After, q.WaitMS = page.After, 1000
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// terminal runs a command and searches what it prints. Of a call that waits, the
// operator is shown the arguments with the secrets taken out; they are looked at
// apart.
func (s *scene) terminal(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	stdout, stderr, code = s.CLI(ctx, args...)
	command := strings.Join(args, " ")
	rest := stdout
	if len(args) > 1 && args[1] == "show" && args[0] == "approvals" {
		var live string
		var a map[string]json.RawMessage
		if json.Unmarshal([]byte(stdout), &a) == nil {
			_ = json.Unmarshal(a["arguments"], &live) // "" where there are none
			delete(a, "arguments")
			b, _ := json.Marshal(a)
			rest = string(b)
		} else {
			rest, live, _ = strings.Cut(stdout, "\narguments")
		}
		s.look("operator, live", command, []byte(live), append([]string{sensitive}, nobody...)...)
		for _, h := range s.search(command, []byte(live)) {
			if h.place == ordinary || h.place == meta {
				s.shown++
			}
		}
	}
	s.look("command line", "gatebus "+command, []byte(rest))
	s.look("command line", "stderr of gatebus "+command, []byte(stderr))
	return stdout, stderr, code
}

// commands runs the command line over everything there is.
func (s *scene) commands(ctx context.Context, c *client.Client) error {
	for _, line := range []string{
		"audit list", "audit list -o jsonl", "audit list -o yaml --principal alice", "approvals list --all", "approvals list --all -o json",
		"tool list", "tool list -o json", "tool list --as bob -o jsonl", "tool show free__give --as alice", "tool show free__give --as alice -o json",
		"server list", "server list -o json", "server get free", "server get asked -o json", "server get never -o yaml", "server get hasty",
		"bus info", "bus info -o json", "bus rebuild --check", "status", "status -o json", "host list", "grant list", "policy show", "policy show -o json",
		"errors", "version", "tool show nothing", "server get nothing", "audit trace nothing", "approvals show nothing", "-v tool call free__give --as eve",
		"tool call free__give --as bob", "tool call free__iserror --as bob -o json", "tool call free__refuse --as bob -v", "tool call never__give --as bob -o json",
		"server get web", "server get web -o json", "server logs free", "server logs free -o json", "server logs asked", "server logs hasty -o yaml",
		"policy explain --as alice --tool free__give", "policy explain --as bob --tool web__give -o json", "policy check " + s.Core, "policy check " + s.second,
		"tool show web__give --as alice -o json", "audit replay", "audit replay --all -o json", "audit replay --at 40 -o yaml", "audit verify", "audit verify -o json",
		"audit export --format jsonl", "audit export --format cloudevents", "audit query --schema", "bus backup " + s.Home + "-backup",
	} {
		if stdout, stderr, _ := s.terminal(ctx, strings.Fields(line)...); stdout+stderr == "" {
			return fmt.Errorf("gatebus %s printed nothing", line)
		}
	}
	// A wrong --args is not repeated in the error.
	s.terminal(ctx, "tool", "call", "free__give", "--args", "{"+quoted(s.in(sensitive)[0].value))
	rows, err := show.Audit(ctx, c, 0)
	if err != nil {
		return err
	}
	// Every event once more through the bus, and some through the command line.
	traced := map[string]bool{}
	for i, row := range rows {
		s.look("audit, bus", fmt.Sprintf("event %d.%d %s", row.Seq, row.I, row.Name), []byte(fmt.Sprintf("%s %+v", row.Data, row)))
		if i%25 == 0 {
			s.terminal(ctx, "audit", "show", fmt.Sprint(row.Seq))
		}
		if row.Call != "" && !traced[row.Call] && len(traced) < 12 {
			traced[row.Call] = true
			s.terminal(ctx, "audit", "trace", row.Call)
		}
	}
	return nil
}
