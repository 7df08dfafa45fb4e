// Bytes sends the same requests to servers directly and through Gatebus, at each
// of its doors, and compares the answers byte for byte. What a door changes on
// purpose has a name here and is worked out from the direct answer; anything else
// is a fault.
//
// With -plant it changes one byte of one answer at each door and must say so.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// token is the secret of the server odd; no answer but of its tool secret has it.
const token = "tok-5e1f0c9a7b3d2e4f6"

func main() {
	var c comparison
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.Func("server", "NAME=COMMAND, with arguments split at blanks; may be repeated", c.add)
	calls := flag.Int("calls", 40, "calls of tools")
	flag.BoolVar(&c.plant, "plant", false, "change one byte of an answer at each door")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	err := c.show(ctx, *bin, *dir, *calls)
	if err == nil && c.unexplained+c.failures > 0 {
		err = fmt.Errorf("%d differences are not explained, %d answers are missing", c.unexplained, c.failures)
	}
	show.Verdict(err)
}

// server is one that is compared.
type server struct {
	name    string
	command []string
	env     []string // of its own
}

// A door is a way through Gatebus.
type door struct {
	name      string // as printed
	mapped    bool   // all servers, with visible names
	stateless bool
	pipe      bool
}

var doors = []door{
	{name: "/mcp/s/{server}"},
	{name: "/mcp/s/{server}, 2026-07-28", stateless: true},
	{name: "/mcp", mapped: true},
	{name: "/mcp, 2026-07-28", mapped: true, stateless: true},
	{name: "gatebus stdio", mapped: true, pipe: true},
	{name: "gatebus stdio, 2026-07-28", mapped: true, stateless: true, pipe: true},
}

// peer answers requests.
type peer interface {
	Do(ctx context.Context, method, params string) (show.Answer, error)
}

type comparison struct {
	*show.Gatebus
	servers []server
	token   string // of the host
	plant   bool

	compared, same, unexplained, failures int
	kinds                                 map[string]int
	planted                               map[string]bool // doors where a byte was changed
}

// add takes a server of the command line.
func (c *comparison) add(flag string) error {
	name, command, ok := strings.Cut(flag, "=")
	if !ok {
		return errors.New("it is NAME=COMMAND")
	}
	s := server{name: name, command: strings.Fields(command)}
	if name == "odd" {
		s.env = []string{"ODD_TOKEN=" + token}
	}
	c.servers = append(c.servers, s)
	return nil
}

func (c *comparison) show(ctx context.Context, bin, dir string, calls int) (err error) {
	c.kinds, c.planted = map[string]int{}, map[string]bool{}
	if c.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	if err := c.fixed(); err != nil {
		return err
	}
	rows := choose(c.servers, calls, c.Root)
	fmt.Printf("%d requests to %d servers, each directly and at %d doors\n", len(rows), len(c.servers), len(doors))
	var direct [][]show.Answer // by row; a list has an answer for each page
	for _, s := range c.servers {
		if err := c.reset(); err != nil {
			return err
		}
		p, err := show.OpenPipe(ctx, c.Root, append(slices.Clone(c.Env), s.env...), true, s.command...)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.server != s.name {
				continue
			}
			a, err := ask(ctx, p, r.method, r.params)
			if err != nil {
				return fmt.Errorf("%s, directly: %s %s: %w", s.name, r.method, r.params, err)
			}
			direct = append(direct, a)
		}
		p.Close()
	}
	if err := c.declare(); err != nil {
		return err
	}
	up, err := c.Up(ctx)
	if err != nil {
		return err
	}
	defer up.Kill()
	if err := c.enrol(ctx); err != nil {
		return err
	}
	for _, d := range doors {
		if err := c.through(ctx, d, rows, direct); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	c.report()
	up.Interrupt()
	if code, err := up.Wait(30 * time.Second); err != nil || code != 0 {
		return fmt.Errorf("an orderly stop ended with %d, %v: %s", code, err, up.Stderr.String())
	}
	return nil
}

// declare declares the servers.
func (c *comparison) declare() error {
	c.Env = append(c.Env, "HOST_TOKEN="+token)
	for _, s := range c.servers {
		yaml := "transport: stdio\napproval_policy: auto\ncommand: " + s.command[0] + "\nargs: [" + strings.Join(s.command[1:], ", ") + "]\n"
		if s.env != nil {
			yaml += "env: {ODD_TOKEN: \"${HOST_TOKEN}\"}\n"
		}
		if err := c.Declare(s.name, yaml); err != nil {
			return err
		}
	}
	return nil
}

// enrol makes the host ana, who may do everything.
func (c *comparison) enrol(ctx context.Context) error {
	boss, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer boss.Close()
	var all []string
	for _, s := range c.servers {
		all = append(all, "mcp.connect:"+s.name, "mcp.call:"+s.name)
	}
	c.token, err = show.Enrol(ctx, boss, "ana", all...)
	return err
}

// open opens a door to a server.
func (c *comparison) open(ctx context.Context, d door, s server) (peer, func(), error) {
	if d.pipe {
		p, err := show.OpenPipe(ctx, c.Root, c.Env, d.stateless, c.Bin, "--home", c.Home, "stdio", "--as", "ana")
		if err != nil {
			return nil, nil, err
		}
		return p, p.Close, nil
	}
	m := &show.MCP{URL: c.URL(), Token: c.token, Stateless: d.stateless}
	if !d.mapped {
		m.URL += "/s/" + s.name
	}
	return m, m.Close, m.Initialize(ctx)
}

// connected lists until the server is there; a person says yes to what is asked, also
// to the tools whose text has what people do not see.
func (c *comparison) connected(ctx context.Context, p peer, d door, s server) error {
	for {
		pages, err := ask(ctx, p, "tools/list", "{}")
		if err != nil {
			return err
		}
		if pages[0].Error != nil {
			return fmt.Errorf("tools/list: %s", pages[0].Error)
		}
		defs, err := items(pages, "tools")
		if err != nil {
			return err
		}
		approved, err := c.ApproveWaiting(ctx)
		if err != nil {
			return err
		}
		if approved == 0 && slices.ContainsFunc(defs, func(b json.RawMessage) bool { return !d.mapped || strings.HasPrefix(named(b, "name"), s.name+"__") }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not connected", s.name)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// through sends all rows through a door and compares.
func (c *comparison) through(ctx context.Context, d door, rows []row, direct [][]show.Answer) error {
	var compared, same int
	at := 0
	for _, s := range c.servers {
		if err := c.reset(); err != nil {
			return err
		}
		p, leave, err := c.open(ctx, d, s)
		if err != nil {
			return err
		}
		if err := c.connected(ctx, p, d, s); err != nil {
			return err
		}
		if err := c.reset(); err != nil {
			return err
		}
		for _, r := range rows {
			if r.server != s.name {
				continue
			}
			got, err := ask(ctx, p, r.method, d.params(r))
			if err != nil {
				c.failures++
				fmt.Printf("  ! %s: %s %s: %v\n", d.name, r.method, r.params, err)
			} else {
				n, m := c.compare(d, s, r, direct[at], got)
				compared, same = compared+n, same+m
			}
			at++
		}
		leave()
	}
	c.compared, c.same = c.compared+compared, c.same+same
	fmt.Printf("%-28s %4d answers and notices compared, %4d the same, the rest as explained below\n", d.name, compared, same)
	return nil
}

func (c *comparison) report() {
	fmt.Printf("%d of %d the very same bytes; differences by kind:\n", c.same, c.compared)
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		fmt.Printf("  %5d %-12s %s\n", c.kinds[kind], kind, reasons[kind])
	}
	fmt.Printf("  %5d %-12s\n", c.unexplained, "unexplained")
}

// compare compares the answers to one row: how many parts, and how many of them
// have the very same bytes.
func (c *comparison) compare(d door, s server, r row, direct, got []show.Answer) (compared, same int) {
	parts, err := d.expected(s, r, direct)
	seen, err2 := d.parts(s, r, got, parts)
	if err := errors.Join(err, err2); err != nil {
		c.failures++
		fmt.Printf("  ! %s: %s %s: %v\n", d.name, r.method, r.params, err)
		return 0, 0
	}
	for name, p := range parts {
		compared++
		b := seen[name]
		if c.plant && !c.planted[d.name] && len(b) > 0 {
			c.planted[d.name] = true
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
		}
		switch {
		case !bytes.Equal(p.want, b):
			c.unexplained++
			fmt.Printf("  ! %s: %s %s: %s differs\n%s", d.name, r.method, r.params, name, difference(p.want, b))
			continue
		case bytes.Equal(p.direct, b):
			same++
		}
		for kind, n := range p.kinds {
			if n > 0 {
				c.kinds[kind] += n
			}
		}
	}
	for name, b := range seen {
		if _, ok := parts[name]; !ok {
			c.unexplained++
			fmt.Printf("  ! %s: %s %s: %s is not expected: %.200s\n", d.name, r.method, r.params, name, b)
		}
	}
	return compared, same
}

// difference shows where two texts part.
func difference(want, got []byte) string {
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	cut := func(b []byte) string { return fmt.Sprintf("%.160q", b[max(0, min(at-40, len(b))):]) }
	return fmt.Sprintf("      at byte %d of %d and %d\n      want … %s\n      got  … %s\n", at, len(want), len(got), cut(want), cut(got))
}

// The files of the servers: those of fixed stay as they are, those of work are
// made again before each round.
const (
	fixed = "fixed"
	work  = "desk"
)

var someday = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fixed makes the files that only are read. Their time of access is ahead, so that
// reading them does not change it.
func (c *comparison) fixed() error {
	return c.files(fixed, map[string]string{
		"a.txt": "one\ntwo\u2028\nthree é 😀\n", "empty.txt": "", "b/c.json": `{"n": 9007199254740993, "f": 1.0}`, "b/d.png": "\x89PNG\r\n\x1a\n",
	})
}

func (c *comparison) reset() error {
	// The directory itself stays: servers keep it open.
	old, err := filepath.Glob(filepath.Join(c.Root, work, "*"))
	for _, f := range old {
		err = errors.Join(err, os.RemoveAll(f))
	}
	if err != nil {
		return err
	}
	return c.files(work, map[string]string{"edit.txt": "a line\nanother line\n", "repo/README.md": "# A file\n", "repo/src/main.go": "package main\n"})
}

func (c *comparison) files(below string, files map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(c.Root, below, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(path, time.Now().Add(time.Hour), someday); err != nil {
			return err
		}
	}
	return nil
}
