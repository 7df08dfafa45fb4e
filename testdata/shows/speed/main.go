// Speed measures calls of one client to one echo server: directly, through
// Gatebus, and through two yardsticks, a bare reverse proxy and a gateway made with
// the SDK. All ways of a kind are measured in turns, over and over, and what counts
// is the median of the ratios of each turn to the direct calls of the same turn:
// the machine may be as noisy as it likes. Then the lists of a server with 500
// tools, the start on an empty home, and its memory.
//
// Every call must succeed, be two commits of the log, and everything must have been
// measured. With -judge the figures must also hold what is said beside them.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

func main() {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var r run
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.IntVar(&r.rounds, "rounds", 3, "turns of each way, not counting the first")
	flag.DurationVar(&r.turn, "turn", 100*time.Millisecond, "how long a turn is")
	flag.IntVar(&r.starts, "starts", 5, "starts on an empty home")
	flag.BoolVar(&r.judge, "judge", false, "fail on a figure that does not hold")
	limit := flag.Duration("limit", 5*time.Minute, "how long it may take")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	err := r.show(ctx, *bin, *dir)
	cancel()
	r.stop()
	if err == nil && r.judge && len(r.missed) > 0 {
		err = fmt.Errorf("%d figures do not hold: %s", len(r.missed), strings.Join(r.missed, "; "))
	}
	show.Verdict(err)
}

// run is the show.
type run struct {
	*show.Gatebus
	rounds, starts int
	turn           time.Duration
	judge          bool

	self    string
	helpers []*exec.Cmd
	up      *show.Process
	boss    *client.Client
	token   string
	missed  []string // figures below what they must hold
}

// many is how many tools the server has whose lists are measured.
const many = 500

func (r *run) show(ctx context.Context, bin, dir string) (err error) {
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	if r.self, err = os.Executable(); err != nil {
		return err
	}
	if err := r.beginnings(ctx, dir); err != nil {
		return err
	}
	echo, err := r.helper("echo")
	if err != nil {
		return err
	}
	full, err := r.helper("echo", "-tools", fmt.Sprint(many))
	if err != nil {
		return err
	}
	proxy, err := r.helper("proxy", echo.url)
	if err != nil {
		return err
	}
	typed := []string{"sdk"}
	for _, e := range eras {
		typed = append(typed, "stdio"+e.word()+"="+r.self, "http"+e.word()+"="+echo.url+"/"+e.word())
	}
	sdk, err := r.helper(typed...)
	if err != nil {
		return err
	}
	if err := r.open(ctx, echo.url, full.url); err != nil {
		return err
	}

	fmt.Printf("%d turns of %v of each way; ratios to direct are medians of the turns [quartiles]\n", r.rounds, r.turn)
	var all []*way
	for _, e := range eras {
		ways, err := r.ways(ctx, e, echo, proxy, sdk)
		if err != nil {
			return err
		}
		for _, size := range []int{100, 10 << 10} {
			for _, callers := range []int{1, 16} {
				if err := r.compare(ctx, ways, cell{e, size, callers}); err != nil {
					return err
				}
			}
		}
		all = append(all, ways...)
	}
	if err := r.lists(ctx, full.url); err != nil {
		return err
	}
	if err := r.commits(ctx, all); err != nil {
		return err
	}
	memory, err := show.Memory(r.up.PID(), "VmRSS")
	if err != nil {
		return err
	}
	fmt.Printf("memory after all of it: %d MiB\n", memory)
	return nil
}

// served is a process of this program that serves.
type served struct {
	url string
	pid int
}

// helper starts this program in one of its roles.
func (r *run) helper(args ...string) (s served, err error) {
	cmd := exec.Command(r.self, args...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process
		return s, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	r.helpers = append(r.helpers, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return s, fmt.Errorf("%s does not serve: %w", args[0], err)
	}
	return served{strings.TrimSpace(line), cmd.Process.Pid}, nil
}

func (r *run) stop() {
	if r.boss != nil {
		r.boss.Close()
	}
	if r.up != nil {
		r.up.Kill()
	}
	for _, cmd := range r.helpers {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
}

// open starts gatebus with the echo server behind it, at stdio and behind HTTP, of
// each era, and connects a host to all of them.
func (r *run) open(ctx context.Context, echo, full string) (err error) {
	servers := []string{"many"}
	declare := func(name, text string) {
		err = errors.Join(err, r.Declare(name, text+"risk: low\napproval_policy: auto\nsupports_parallel_tool_calls: true\n"))
	}
	behind := "transport: streamable_http\nurl: %q\n"
	declare("many", fmt.Sprintf(behind, full+"/"+handshake.word()))
	for _, e := range eras {
		declare("stdio"+e.word(), fmt.Sprintf("transport: stdio\ncommand: %q\nargs: [echo, -stdio, %q]\n", r.self, e))
		declare("http"+e.word(), fmt.Sprintf(behind, echo+"/"+e.word()))
		servers = append(servers, "stdio"+e.word(), "http"+e.word())
	}
	config := filepath.Join(filepath.Dir(r.Home), "gatebus.yaml")
	if err := errors.Join(err, os.WriteFile(config, []byte("private_networks: [127.0.0.1]\n"), 0o600)); err != nil {
		return err
	}
	r.Args = []string{"-c", config}
	starting, cancel := context.WithTimeout(ctx, serves)
	defer cancel()
	if r.up, err = r.Up(starting); err != nil {
		return err
	}
	if r.boss, err = r.Dial(ctx); err != nil {
		return err
	}
	if r.token, err = show.Enrol(ctx, r.boss, "ana", "mcp.connect:*", "mcp.call:*"); err != nil {
		return err
	}
	if err := r.connect(ctx, r.URL(), many+5); err != nil {
		return err
	}
	for _, name := range servers {
		if err := r.connect(ctx, r.URL()+"/s/"+name, 1); err != nil {
			return err
		}
	}
	return nil
}

// serves bounds a start.
const serves = 60 * time.Second

// connect lists at an endpoint, and says yes to what is asked, until so many tools
// are there.
func (r *run) connect(ctx context.Context, url string, tools int) error {
	c := &show.MCP{URL: url, Token: r.token}
	if err := c.Initialize(ctx); err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, serves)
	defer cancel()
	for {
		names, err := c.Tools(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
		if len(names) >= tools {
			return nil
		}
		waiting, err := r.boss.Approvals(ctx)
		if err != nil {
			return err
		}
		for _, a := range waiting {
			if a.State == "pending" {
				if _, err := r.boss.Approve(ctx, a.ID); err != nil {
					return err
				}
			}
		}
	}
}

// ways are all ways to the echo server in an era, direct first.
func (r *run) ways(ctx context.Context, e era, echo, proxy, sdk served) (ways []*way, err error) {
	up := r.up.PID()
	for _, w := range []struct {
		name, url, tool string
		pid             int
		is              kind
	}{
		{"direct", echo.url + "/" + e.word(), "echo", 0, kind{}},
		{"gatebus /mcp/s, stdio", r.URL() + "/s/stdio" + e.word(), "echo", up, kind{true, "stdio"}},
		{"gatebus /mcp, stdio", r.URL(), "stdio" + e.word() + "__echo", up, kind{true, "stdio"}},
		{"typed SDK gateway, stdio", sdk.url + "/stdio" + e.word(), "echo", sdk.pid, kind{false, "stdio"}},
		{"gatebus /mcp/s, http", r.URL() + "/s/http" + e.word(), "echo", up, kind{true, "http"}},
		{"gatebus /mcp, http", r.URL(), "http" + e.word() + "__echo", up, kind{true, "http"}},
		{"typed SDK gateway, http", sdk.url + "/http" + e.word(), "echo", sdk.pid, kind{false, "http"}},
		{"bare reverse proxy, http", proxy.url + "/" + e.word(), "echo", proxy.pid, kind{false, "http"}},
	} {
		session, err := dial(ctx, e, w.url, r.token)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		if got := session.InitializeResult().ProtocolVersion; got != string(e) {
			return nil, fmt.Errorf("%s speaks %s, not %s", w.name, got, e)
		}
		one := &way{name: w.name, tool: w.tool, pid: w.pid, session: session, is: w.is}
		if w.is.gatebus {
			one.settled = r.settled
		}
		ways = append(ways, one)
	}
	return ways, nil
}

// settled returns when the audit file has every call, so that what is written to it
// late is counted where it belongs and slows nobody else.
func (r *run) settled(ctx context.Context) error {
	return r.boss.Do(ctx, "audit/list", client.AuditList{Limit: 1}, nil)
}

// compare measures all ways of a cell in turns, each turn in another order, and
// prints them.
func (r *run) compare(ctx context.Context, ways []*way, c cell) error {
	samples := make([][]sample, len(ways))
	for round := range r.rounds + 1 {
		for i := range ways {
			at := (i + round) % len(ways)
			s, err := ways[at].load(ctx, c.callers, c.size, r.turn)
			if err != nil {
				return err
			}
			if round > 0 { // the first one warms up
				samples[at] = append(samples[at], s)
			}
		}
	}
	fmt.Printf("\n%s, %d B, callers: %d\n%-26s %8s %8s %8s %6s %-12s %7s\n", c.era, c.size, c.callers,
		"", "calls/s", "p50 us", "p99 us", "ratio", "", "cpu us")
	for i, w := range ways {
		var rates, ratios []float64
		var latency []time.Duration
		var calls int
		var cpu time.Duration
		for n, s := range samples[i] {
			rates, ratios = append(rates, s.rate()), append(ratios, s.rate()/samples[0][n].rate())
			latency = append(latency, s.latency...)
			calls, cpu = calls+s.calls, cpu+s.cpu
		}
		slices.Sort(latency)
		ratio := median(ratios)
		perCall := float64(cpu.Microseconds()) / float64(calls)
		fmt.Printf("%-26s %8.0f %8d %8d %6.2f [%.2f-%.2f]  %7.0f", w.name, median(rates),
			quantile(latency, 0.5).Microseconds(), quantile(latency, 0.99).Microseconds(), ratio, quantile(ratios, 0.25), quantile(ratios, 0.75), perCall)
		if goal, ok := c.ratio(w.is); ok {
			r.least(fmt.Sprintf("%s, %v", w.name, c), ratio, goal)
		}
		if goal, ok := c.cpu(w.is); ok {
			r.most(fmt.Sprintf("cpu of %s, %v", w.name, c), perCall, goal)
		}
		fmt.Println()
	}
	return nil
}

// lists measures the lists of a server with many tools.
func (r *run) lists(ctx context.Context, full string) error {
	direct, err := dial(ctx, handshake, full+"/"+handshake.word(), r.token)
	if err != nil {
		return err
	}
	through, err := dial(ctx, handshake, r.URL()+"/s/many", r.token)
	if err != nil {
		return err
	}
	var ratios []float64
	var took [2][]float64
	for round := range 10*r.rounds + 1 {
		a, base, err := list(ctx, direct)
		if err != nil {
			return err
		}
		b, got, err := list(ctx, through)
		if err != nil {
			return err
		}
		if a != many+1 || b != a {
			return fmt.Errorf("the lists have %d and %d tools", a, b)
		}
		if round > 0 {
			ratios = append(ratios, got.Seconds()/base.Seconds())
			took[0], took[1] = append(took[0], base.Seconds()*1000), append(took[1], got.Seconds()*1000)
		}
	}
	ratio := median(ratios)
	fmt.Printf("\n%d tools listed: %.1f ms directly, %.1f ms through /mcp/s, time to direct %.2f [%.2f-%.2f]", many+1,
		median(took[0]), median(took[1]), ratio, quantile(ratios, 0.25), quantile(ratios, 0.75))
	r.most("500 tools listed", ratio, goal{1.1, 1.1})
	fmt.Println()
	return nil
}

// commits counts what the log has of calls: two commits of each.
func (r *run) commits(ctx context.Context, ways []*way) error {
	const calls = 20
	for _, w := range ways {
		if !w.is.gatebus {
			continue
		}
		var info client.BusInfo
		if err := r.boss.Do(ctx, "bus/info", nil, &info); err != nil {
			return err
		}
		for range calls {
			if err := w.once(ctx, map[string]string{"text": "x"}, "x"); err != nil {
				return err
			}
		}
		rows, err := show.Audit(ctx, r.boss, info.Commits)
		if err != nil {
			return err
		}
		of, ended := map[string]map[uint64]bool{}, 0
		for _, row := range rows {
			if row.Name == "checkpoint_signed" { // of the log, by itself
				continue
			}
			if of[row.Aggregate] == nil {
				of[row.Aggregate] = map[uint64]bool{}
			}
			of[row.Aggregate][row.Seq] = true
			if row.Name == "call_succeeded" {
				ended++
			}
		}
		for aggregate, seqs := range of {
			if !strings.HasPrefix(aggregate, "call/") || len(seqs) != 2 {
				return fmt.Errorf("%s: %s has %d commits", w.name, aggregate, len(seqs))
			}
		}
		if len(of) != calls || ended != calls {
			return fmt.Errorf("%s: the log has %d calls, %d succeeded, of %d", w.name, len(of), ended, calls)
		}
	}
	fmt.Println("commits per call: 2, at each door")
	return nil
}

// beginnings measures starts on empty homes and the memory of what does nothing.
func (r *run) beginnings(ctx context.Context, dir string) error {
	var ready []float64
	var memory int
	for n := range r.starts {
		g, err := show.New(r.Bin, filepath.Join(dir, fmt.Sprint("empty", n)))
		if err != nil {
			return err
		}
		g.Listen = "127.0.0.1:0"
		starting, cancel := context.WithTimeout(ctx, serves)
		began := time.Now()
		p, err := g.Up(starting)
		took := time.Since(began)
		cancel()
		if err != nil {
			return err
		}
		ready = append(ready, float64(took.Milliseconds()))
		if n == r.starts-1 {
			time.Sleep(idle)
			if memory, err = show.Memory(p.PID(), "VmRSS"); err != nil {
				return err
			}
		}
		p.Kill()
	}
	middle := median(ready)
	fmt.Printf("ready on an empty home: %.0f ms [%.0f-%.0f]", middle, ready[0], ready[len(ready)-1])
	r.most("ready, ms", middle, goal{300, 300})
	fmt.Printf("\nidle memory: %d MiB", memory)
	r.most("idle memory, MiB", float64(memory), goal{60, 60})
	fmt.Println()
	return nil
}

// idle is how long a runtime does nothing before its memory is looked at.
const idle = 3 * time.Second
