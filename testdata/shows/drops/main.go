// Drops shows what becomes of calls when servers die, hang, restart, forget their
// sessions and cut their answers off, over stdio and over HTTP, in both eras, with
// clients of both eras at both doors. Each row does one such thing and prints what
// became of each call, how often one was executed twice, and how long it took from
// the moment when the server could serve again until a next call of every client
// had succeeded.
//
// What a client was told is compared with what the server noted, and in the end
// with the log. The log has no arguments: a call is found by their keyed digest,
// which this program makes with the key of the home.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// patience bounds what a row waits for.
const patience = 45 * time.Second

func main() {
	if len(os.Args) == 5 && os.Args[1] == "serve" {
		if err := serve(os.Args[2], os.Args[3], os.Args[4] == "true"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var r run
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.StringVar(&r.misbehave, "misbehave", "", "the program of the fake with one fault")
	flag.IntVar(&r.rounds, "rounds", 1, "how often each row is done")
	flag.DurationVar(&r.within, "within", time.Second, "how long the next call may take")
	flag.StringVar(&r.only, "only", "", "do the rows with this in their names only")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	err := r.show(ctx, *bin, *dir)
	if err == nil && len(r.problems) > 0 {
		err = fmt.Errorf("%d problems", len(r.problems))
	}
	show.Verdict(err)
}

// run is the show.
type run struct {
	*show.Gatebus
	dir, misbehave, only string
	rounds               int
	within               time.Duration
	up                   *show.Process
	boss                 *client.Client
	key                  []byte // of argument digests
	calls                []made
	slowest              time.Duration // of the next calls

	mu       sync.Mutex
	problems []string
}

// problem notes what must not be.
func (r *run) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if r.problems = append(r.problems, text); len(r.problems) <= 40 {
		fmt.Println("      !", text)
	}
}

// upstream is a server whose faults are this program's.
type upstream interface {
	declaration() string
	notes() ([]string, error) // what was executed and cancelled, by call
	grow(n int) error         // gives it tools, and tells nobody
}

// Groups of stations beside the common one: the calls of short ones may take a
// second, and the tools of shifting ones change.
const (
	short    = "short"
	shifting = "shifting"
)

// station is a server with the clients that call it.
type station struct {
	name    string
	server  upstream
	clients []*caller
	ids     atomic.Int64
	tools   int // that it has beside do
	group   string
}

// row is one thing that is done to a server.
type row struct {
	*run
	*station
	name  string
	key   string       // of its calls
	count atomic.Int64 // of its calls

	mu    sync.Mutex
	calls []made
	took  time.Duration // until the next call; 0: none was waited for
	fails int           // of a client before that, at most
	said  []string      // more for its line
}

const common = "approval_policy: auto\nrisk: low\nsupports_parallel_tool_calls: true\ntimeout_seconds: %d\nconnect_timeout_seconds: 5\n"

func (r *run) show(ctx context.Context, bin, dir string) (err error) {
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	r.dir = dir
	config := filepath.Join(dir, "gatebus.yaml")
	r.Args = []string{"-c", config}
	if err := os.WriteFile(config, []byte("private_networks: [127.0.0.1]\napprovals: {on_change: flag}\n"), 0o600); err != nil {
		return err
	}
	var stations []*station
	for _, group := range []string{"", short, shifting} {
		for _, stateless := range []bool{false, true} {
			name := map[bool]string{false: "old", true: "new"}[stateless] + group
			p, err := newPipe(dir, name+"pipe", stateless)
			if err != nil {
				return err
			}
			p.up = func() int { return r.up.PID() }
			w, err := newWeb(stateless)
			if err != nil {
				return err
			}
			stations = append(stations, &station{name: name + "pipe", server: p, group: group}, &station{name: name + "web", server: w, group: group})
		}
	}
	for _, s := range stations {
		seconds := 20
		if s.group == short {
			seconds = 1
		}
		if err := r.Declare(s.name, s.server.declaration()+fmt.Sprintf(common, seconds)); err != nil {
			return err
		}
	}
	if err := r.declareFakes(); err != nil {
		return err
	}
	if r.up, err = r.Up(ctx); err != nil {
		return err
	}
	defer r.up.Kill()
	if r.key, err = os.ReadFile(filepath.Join(r.Home, "keys", "arguments")); err != nil {
		return err
	}
	if r.boss, err = r.Dial(ctx); err != nil {
		return err
	}
	defer r.boss.Close()
	background, quit := context.WithCancel(ctx)
	defer quit()
	approving, rest := context.WithCancel(background)
	defer rest()
	go r.approve(approving)
	for _, s := range stations {
		if err := r.open(ctx, background, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fmt.Printf("%d servers, at each %d clients, %d rounds; the next call has to succeed within %v\n", len(stations), len(stations[0].clients), r.rounds, r.within)
	if r.rounds > 1 {
		acts = append(acts, long...)
	}
	for range r.rounds {
		for _, a := range acts {
			for _, s := range stations {
				if !strings.Contains(s.name+" "+a.name, r.only) || !a.fits(s) {
					continue
				}
				if err := r.do(ctx, s, a); err != nil {
					return err
				}
			}
		}
	}
	if err := r.fakes(ctx); err != nil {
		return err
	}
	if err := r.compare(ctx); err != nil {
		return err
	}
	rest() // nobody but the clients listens while it stops
	return r.close()
}

// approve is the operator, who says yes to all.
func (r *run) approve(ctx context.Context) {
	if err := show.Approve(ctx, r.boss, nil); ctx.Err() == nil {
		r.problem("the operator hears no more: %v", err)
	}
}

// open makes the clients of a station and waits until they see its tool. They
// listen as long as background lasts.
func (r *run) open(ctx, background context.Context, s *station) error {
	token, err := show.Enrol(ctx, r.boss, "user-of-"+s.name, "mcp.connect:"+s.name, "mcp.call:"+s.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, door := range []string{"", "/s/" + s.name} {
		for _, stateless := range []bool{false, true} {
			c := &caller{MCP: &show.MCP{URL: r.URL() + door, Token: token, Stateless: stateless}, tool: "do"}
			c.door = "/mcp" + door + map[bool]string{false: ", 2025-11-25", true: ", 2026-07-28"}[stateless]
			if door == "" {
				c.tool = s.name + "__do"
			}
			if err := c.Initialize(ctx); err != nil {
				return err
			}
			if err := c.sees(ctx, "do"); err != nil {
				return err
			}
			go c.listen(background)
			s.clients = append(s.clients, c)
		}
	}
	return nil
}

// sees lists until a tool is there.
func (c *caller) sees(ctx context.Context, tool string) error {
	for {
		there, err := c.lists(ctx, tool)
		if there || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %s is not listed", c.door, tool)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// do does one row and prints its line.
func (r *run) do(ctx context.Context, s *station, a act) error {
	w := &row{run: r, station: s, name: s.name + ": " + a.name}
	w.key = fmt.Sprintf("%s.%d", s.name, s.ids.Add(1))
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := a.do(ctx, w); err != nil {
		r.problem("%s: %v", w.name, err)
	}
	r.slowest = max(r.slowest, w.took)
	if w.took > r.within {
		r.problem("%s: the next call took %v", w.name, w.took.Round(time.Millisecond))
	}
	twice, err := w.executions()
	if err != nil {
		return err
	}
	outcomes := map[string]int{}
	for _, m := range w.calls {
		outcomes[strings.TrimSpace(m.outcome+" "+m.kind)]++
		if a.all && m.outcome != succeeded {
			r.problem("%s: %s has %s %s", w.name, m.id, m.outcome, m.kind)
		}
	}
	var texts []string
	for _, o := range slices.Backward(slices.Sorted(maps.Keys(outcomes))) {
		texts = append(texts, fmt.Sprintf("%d %s", outcomes[o], o))
	}
	line := fmt.Sprintf("%5.1f s  %-56s %4d calls: %s; executed twice %d", time.Since(begun).Seconds(), w.name, len(w.calls), strings.Join(texts, ", "), twice)
	if w.took > 0 {
		line += fmt.Sprintf("; next call %v, after %d failed", w.took.Round(time.Millisecond), w.fails)
	}
	for _, text := range w.said {
		line += "; " + text
	}
	fmt.Println(line)
	r.calls = append(r.calls, w.calls...)
	return nil
}

// executions compares what the clients of a row were told with what the server noted.
func (r *row) executions() (twice int, err error) {
	notes, err := r.server.notes()
	if err != nil {
		return 0, err
	}
	executed := map[string]int{}
	for _, n := range notes {
		executed[n]++
	}
	for _, m := range r.calls {
		n := executed[m.id]
		if n > 1 {
			twice++
		}
		if n > 1 || m.outcome == succeeded && n != 1 || m.outcome == refused && n != 0 {
			r.problem("%s: %s %s at %s, and the server executed it %d times", m.id, m.outcome, m.kind, m.client.door, n)
		}
	}
	return twice, nil
}

// compare compares what clients were told with the log.
func (r *run) compare(ctx context.Context) error {
	rows, err := show.Audit(ctx, r.boss, 0)
	if err != nil {
		return err
	}
	type story struct {
		starts, outcomes int
		name             string // of the outcome
		began            bool   // the server may have executed it
	}
	calls, digests := map[string]*story{}, map[string][]*story{}
	for _, row := range rows {
		if row.Call == "" {
			continue
		}
		c := calls[row.Call]
		if c == nil {
			c = &story{}
			calls[row.Call] = c
		}
		var data struct {
			Digest  string `json:"argument_digest"`
			Started bool   `json:"execution_started"`
		}
		_ = json.Unmarshal(row.Data, &data) // the events below have these members
		switch row.Name {
		case "call_requested":
			digests[data.Digest] = append(digests[data.Digest], c)
		case "call_started":
			c.starts++
		case "call_succeeded", "call_indeterminate":
			c.outcomes, c.name, c.began = c.outcomes+1, row.Name, true
		case "call_failed":
			c.outcomes, c.name, c.began = c.outcomes+1, row.Name, data.Started
		case "call_blocked":
			c.name = row.Name
		}
	}
	retried := 0
	for _, m := range r.calls {
		began, done := 0, 0
		stories := digests[r.digest(m.arguments)]
		for _, c := range stories {
			if c.starts > 1 || c.starts == 1 && c.outcomes != 1 {
				r.problem("%s: %d starts and %d outcomes in the log", m.id, c.starts, c.outcomes)
			}
			if c.began {
				began++
			}
			if c.name == "call_succeeded" {
				done++
			}
		}
		if len(stories) > 1 {
			retried++
		}
		if began > 1 || m.outcome == succeeded && done != 1 || m.outcome == refused && began != 0 || m.outcome == unsure && m.kind != "no answer" && began != 1 {
			r.problem("%s, %s: %s %s, and in the log %d calls, of which %d may have been executed and %d succeeded", m.row, m.id, m.outcome, m.kind, len(stories), began, done)
		}
	}
	if retried == 0 || r.slowest == 0 {
		return fmt.Errorf("nothing was hit: the show showed nothing")
	}
	fmt.Printf("the slowest next call took %v\n", r.slowest.Round(time.Millisecond))
	fmt.Printf("%d calls compared with the log, of which %d were asked again as nothing had been executed\n", len(r.calls), retried)
	return nil
}

// digest is what the log knows arguments by.
func (r *run) digest(arguments string) string {
	none, err := redact.NewRedactor()
	if err != nil {
		panic(err)
	}
	v, err := none.Arguments(redact.NewRaw([]byte(arguments)), r.key)
	if err != nil {
		panic(err)
	}
	return v.Digest
}

// close stops it in good order, while clients listen.
func (r *run) close() error {
	begun := time.Now()
	r.up.Interrupt()
	code, err := r.up.Wait(30 * time.Second)
	if err != nil || code != 0 {
		return fmt.Errorf("an orderly stop ended with %d, %v: %s", code, err, r.up.Stderr.String())
	}
	fmt.Printf("an orderly stop with open subscriptions took %v\n", time.Since(begun).Round(time.Millisecond))
	return nil
}
