// Faults shows what becomes of servers that do wrong: each row is a public report of
// a fault, or a known attack, done by a small server behind a gatebus that runs, with
// what is right and what was seen. A row is green, or says why it is not there.
//
// Rows are in tables, one file for each kind of server: a new one is a few lines in
// one of them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// patience bounds what a row waits for.
const patience = 45 * time.Second

// row is one fault. Exactly one of do and not is there.
type row struct {
	from  string // where it is from: a report (C2 7) or an attack (E8)
	fault string // what the server does
	right string // what is right
	// declare is the declaration of its server; do makes sure of what is right, and
	// says what was seen.
	declare func(s *stage) string
	do      func(ctx context.Context, s *stage) (seen string, err error)
	// not says why there is nothing to do.
	not string
}

// rows are all tables.
var rows = slices.Concat(starts, frames, processes, errorsOf, isolation, definitions)

func main() {
	var s scene
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	only := flag.String("only", "", "do the rows with this in their names only")
	flag.StringVar(&s.fakes, "fakes", "", "the directory with the programs of testdata/fakes")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	show.Verdict(s.show(ctx, *bin, *dir, *only))
}

// scene is the show.
type scene struct {
	*show.Gatebus
	fakes string
	up    *show.Process
	boss  *client.Client
	held  map[string]bool // servers that nobody says yes to
}

// stage is one row, done: its server and the host that calls it.
type stage struct {
	*scene
	row
	name string // of the server
	user *show.MCP
}

// canary is in the environment of gatebus and in nobody else's.
const canary = "CANARY_OF_THE_HOST"

func (s *scene) show(ctx context.Context, bin, dir, only string) (err error) {
	if s.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	s.Env = append(s.Env, "LANG=C.UTF-8", canary+"=1", "LD_LIBRARY_PATH=/nowhere")
	s.held = map[string]bool{}
	var stages []*stage
	for i, r := range rows {
		if strings.Contains(r.from+" "+r.fault, only) {
			st := &stage{scene: s, row: r, name: fmt.Sprintf("f%02d", i+1)}
			stages = append(stages, st)
			if r.do == nil {
				continue
			}
			if err := s.Declare(st.name, r.declare(st)); err != nil {
				return err
			}
		}
	}
	if s.up, err = s.Up(ctx); err != nil {
		return err
	}
	defer s.up.Kill()
	if s.boss, err = s.Dial(ctx); err != nil {
		return err
	}
	defer s.boss.Close()
	go func() { // without it the rows say that nothing is approved
		_ = show.Approve(ctx, s.boss, func(p client.ApprovalRequested) bool { return s.held[p.Server] })
	}()
	wrong, done := 0, 0
	for _, st := range stages {
		verdict, seen := "ok", st.not
		begun := time.Now()
		if st.do == nil {
			verdict = "not"
		} else if seen, err = st.run(ctx); err != nil {
			verdict, seen = "FAIL", err.Error()
			wrong++
		} else {
			done++
		}
		fmt.Printf("%-4s %4.1f s  %-14s %-62s | %s | %s\n", verdict, time.Since(begun).Seconds(), st.from, st.fault, st.right, seen)
	}
	if err := s.close(stages); err != nil {
		return err
	}
	fmt.Printf("%d rows, %d green, %d with a reason why not\n", len(stages), done, len(stages)-done-wrong)
	if wrong > 0 || done == 0 {
		return fmt.Errorf("%d of %d rows are wrong", wrong, len(stages))
	}
	return nil
}

// close stops it in good order: nothing of any server is left.
func (s *scene) close(stages []*stage) error {
	s.up.Interrupt()
	code, err := s.up.Wait(60 * time.Second)
	if err != nil || code != 0 {
		return fmt.Errorf("an orderly stop ended with %d, %v: %s", code, err, s.up.Stderr.String())
	}
	left := 0
	for _, st := range stages {
		left += len(st.processes())
	}
	if left > 0 {
		return fmt.Errorf("%d processes of servers are left after an orderly stop", left)
	}
	fmt.Println("after an orderly stop no process of a server is left")
	return nil
}

// run does a row.
func (s *stage) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if s.user, err = s.enrol(ctx, "user"); err != nil {
		return "", err
	}
	defer s.user.Close()
	return s.do(ctx, s)
}

// enrol makes a host that may use the server of the row.
func (s *stage) enrol(ctx context.Context, prefix string) (*show.MCP, error) {
	token, err := show.Enrol(ctx, s.boss, prefix+"-of-"+s.name, "mcp.connect:"+s.name, "mcp.call:"+s.name)
	if err != nil {
		return nil, err
	}
	m := &show.MCP{URL: s.URL() + "/s/" + s.name, Token: token}
	return m, m.Initialize(ctx)
}

// fake is the declaration of a server that is a fake.
func fake(program string, args ...string) func(*stage) string {
	return func(s *stage) string { return command(append([]string{filepath.Join(s.fakes, program)}, args...)...) }
}

// with adds lines to a declaration.
func with(declare func(*stage) string, lines string) func(*stage) string {
	return func(s *stage) string { return declare(s) + lines + "\n" }
}

// script is the declaration of a server that is a script; $0 is the directory of
// the fakes.
func script(text string) func(*stage) string {
	return func(s *stage) string { return command("/bin/sh", "-c", text, s.fakes) }
}

func command(argv ...string) string {
	args, _ := json.Marshal(argv[1:]) // YAML is a superset
	return fmt.Sprintf("command: %q\nargs: %s\napproval_policy: auto\nrisk: low\n", argv[0], args)
}

// ready waits until the host sees a tool.
func (s *stage) ready(ctx context.Context, user *show.MCP, tool string) error {
	return s.until(ctx, "the tool "+tool+" is listed", func() (bool, error) {
		names, err := user.Tools(ctx)
		return slices.Contains(names, tool), err
	})
}

// until waits for a condition; what is said when it does not come is where the
// server stands.
func (s *stage) until(ctx context.Context, what string, done func() (bool, error)) error {
	err := show.Until(ctx, done)
	if err == nil || ctx.Err() == nil {
		return err
	}
	d, why := s.details(context.WithoutCancel(ctx))
	return fmt.Errorf("not seen: %s: %w; the server is %+v, %v", what, err, d, why)
}

// waits lists until the server waits for a yes.
func (s *stage) waits(ctx context.Context) (c client.ServerConnection, err error) {
	err = s.until(ctx, "it waits for a yes", func() (bool, error) {
		if _, err := s.user.Tools(ctx); err != nil {
			return false, err
		}
		c, err = s.details(ctx)
		return c.Approval != "", err
	})
	return c, err
}

// details is what the operator sees of the connection of the row.
func (s *stage) details(ctx context.Context) (client.ServerConnection, error) {
	var d client.Server
	if err := s.boss.Do(ctx, "mcp/server/details", client.ServerName{Name: s.name}, &d); err != nil || len(d.Connections) == 0 {
		return client.ServerConnection{}, err
	}
	return d.Connections[0], nil
}

// failed lists until the server has failed for a reason.
func (s *stage) failed(ctx context.Context, reason string) (c client.ServerConnection, err error) {
	err = s.until(ctx, "it fails with "+reason, func() (bool, error) {
		if _, err := s.user.Tools(ctx); err != nil {
			return false, err
		}
		c, err = s.details(ctx)
		return strings.HasSuffix(c.Reason, ": "+reason), err
	})
	return c, err
}

// text calls a tool and returns the text of its result.
func (s *stage) text(ctx context.Context, tool, arguments string) (string, error) {
	a, err := s.user.Call(ctx, tool, arguments)
	if err != nil {
		return "", err
	}
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if a.Error != nil {
		return "", errors.New(string(a.Error))
	}
	if err := json.Unmarshal(a.Result, &result); err != nil || len(result.Content) == 0 || result.IsError {
		return "", fmt.Errorf("the result is %.500s", a.Result)
	}
	return result.Content[0].Text, nil
}

// works makes calls that are to be answered with ok.
func (s *stage) works(ctx context.Context, calls int) (string, error) {
	if err := s.ready(ctx, s.user, "call"); err != nil {
		return "", err
	}
	for range calls {
		if text, err := s.text(ctx, "call", `{}`); err != nil || text != "ok" {
			return "", fmt.Errorf("%q, %v", text, err)
		}
	}
	return fmt.Sprintf("%d calls answered", calls), nil
}

// leave takes the right to connect away, which closes the connection.
func (s *stage) leave(ctx context.Context) error {
	return s.boss.Do(ctx, "grant/revoke", client.Grant{Principal: "user-of-" + s.name, Capability: "mcp.connect:" + s.name}, nil)
}

// processes are those that have the HOME of the server.
func (s *stage) processes() (pids []string) {
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		data, err := os.ReadFile(path)
		if err == nil && slices.Contains(strings.Split(string(data), "\x00"), "HOME="+filepath.Join(s.Home, "mcp", s.name, "home")) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// gone waits until there is no process of the server.
func (s *stage) gone(ctx context.Context) error {
	return s.until(ctx, "its processes end", func() (bool, error) { return len(s.processes()) == 0, nil })
}

// recorded are the events of the server with a name, as the log has them.
func (s *stage) recorded(ctx context.Context, name string) (data []string, err error) {
	rows, err := show.Audit(ctx, s.boss, 0)
	for _, r := range rows {
		if r.Name == name && r.Server == s.name {
			data = append(data, string(r.Data))
		}
	}
	return data, err
}
