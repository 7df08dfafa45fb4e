// Hosts runs ten host processes with their own credentials, two runtimes of one
// home, an operator and an auditor. The hosts call a tool whose effects can be
// counted, and another one that needs a person's yes each time, while the operator
// answers, takes rights away and gives them back, and a server changes its tools.
// In the end what hosts were told, what was done and what the log says must agree;
// no call may have started behind the reply of a revoke; and who listened to the
// changes of catalogs, over NATS and over SSE, and was cut off at random, must have
// heard of each once.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

const (
	freeTool  = "free__count"
	askedTool = "asked__count"
	catalogs  = "mcp/server/catalog_changed"
	// streams is how many readers of /rpc/events there are.
	streams = 3
	serves  = 60 * time.Second
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "host" {
		if err := hostMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var r run
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.StringVar(&r.counter, "counter", "", "the program of the counting fake")
	flag.StringVar(&r.shifting, "misbehave", "", "the program of the fake that changes its tools")
	flag.IntVar(&r.calls, "calls", 600, "calls of all hosts together")
	flag.IntVar(&r.askEvery, "ask", 10, "one call in so many needs a person")
	flag.IntVar(&r.count, "hosts", 10, "host processes")
	flag.Uint64Var(&r.seed, "seed", uint64(time.Now().UnixNano()), "seed of the moments")
	limit := flag.Duration("limit", 5*time.Minute, "how long it may take")
	flag.Parse()
	fmt.Printf("seed %d, %d hosts, %d calls\n", r.seed, r.count, r.calls)
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	err := r.show(ctx, *bin, *dir)
	cancel()
	r.stop()
	if err == nil && len(r.problems) > 0 {
		err = fmt.Errorf("%d problems", len(r.problems))
	}
	show.Verdict(err)
}

// run is the show.
type run struct {
	*show.Gatebus
	counter, shifting, counted string
	calls, askEvery, count     int
	seed                       uint64
	url                        string
	creds                      map[string]string // files, by principal
	processes                  []*show.Process
	hosts                      []*hostProcess
	boss, auditor              *client.Client

	mu       sync.Mutex
	problems []string
	revokes  []revoke
	answered map[string]int // approvals, by what was said

	changes atomic.Int64 // of the tools, asked for
}

// revoke is one right that was taken away for a while.
type revoke struct {
	host          string
	replied, back time.Time // between them nothing may start
	head          uint64    // of the log behind the reply
	took          time.Duration
}

// hostProcess is a host with what it has said.
type hostProcess struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	called  chan struct{} // closed when its calls are made
	ended   chan struct{}
	results []result
	heard   []uint64
	cuts    int
	err     error
}

// problem notes what must not be.
func (r *run) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if r.problems = append(r.problems, text); len(r.problems) <= 20 {
		fmt.Println("      !", text)
	}
}

func (r *run) stop() {
	for _, h := range r.hosts {
		_ = h.cmd.Process.Kill() // it may have ended
	}
	for _, p := range slices.Backward(r.processes) {
		p.Kill()
	}
}

const declaration = `transport: stdio
command: %q
env: {COUNTER_FILE: %q}
risk: low
approval_policy: %s
supports_parallel_tool_calls: true
`

func (r *run) show(ctx context.Context, bin, dir string) (err error) {
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	r.counted, r.creds, r.answered = filepath.Join(dir, "counted"), map[string]string{}, map[string]int{}
	for name, policy := range map[string]string{"free": "auto", "asked": "prompt"} {
		if err := r.Declare(name, fmt.Sprintf(declaration, r.counter, r.counted, policy)); err != nil {
			return err
		}
	}
	if err := r.Declare("shifting", fmt.Sprintf("transport: stdio\ncommand: %q\nargs: [drift]\nrisk: low\napproval_policy: auto\n", r.shifting)); err != nil {
		return err
	}
	if err := r.open(ctx, dir); err != nil {
		return err
	}
	begin, err := head(ctx, r.boss)
	if err != nil {
		return err
	}

	// Whoever works in the background ends before the log is compared.
	background, quit := context.WithCancel(ctx)
	defer quit()
	var all sync.WaitGroup
	all.Go(func() { r.answer(background, begin) })
	readers := make([]*reader, streams)
	var until atomic.Uint64
	until.Store(client.Latest)
	var reading sync.WaitGroup
	for i := range readers {
		readers[i] = &reader{name: fmt.Sprintf("h%d", i+1), rand: rand.New(rand.NewPCG(r.seed, uint64(100+i)))}
		token, errs, code := r.CLI(ctx, "host", "token", readers[i].name, "-q")
		if code != 0 {
			return fmt.Errorf("host token: %d %s", code, errs)
		}
		readers[i].token = strings.TrimSpace(token)
		reading.Go(func() { readers[i].read(ctx, "http://"+r.Listen, begin, &until) })
	}
	began := time.Now()
	if err := r.start(ctx, begin); err != nil {
		return err
	}
	all.Go(func() { r.revoke(background) })
	all.Go(func() { r.change(background) })
	for _, h := range r.hosts {
		select {
		case <-h.called:
		case <-h.ended:
			return fmt.Errorf("%s ended: %v", h.name, h.err)
		case <-ctx.Done():
			return fmt.Errorf("%s does not come to an end", h.name)
		}
	}
	took := time.Since(began)
	quit()
	all.Wait()

	rows, err := show.Audit(ctx, r.boss, 0)
	if err != nil {
		return err
	}
	want := catalogChanges(rows, begin)
	if len(want) == 0 {
		return fmt.Errorf("no catalog changed: the show showed nothing")
	}
	until.Store(want[len(want)-1])
	for _, h := range r.hosts {
		if _, err := fmt.Fprintln(h.in, want[len(want)-1]); err != nil {
			return err
		}
	}
	for _, h := range r.hosts {
		select {
		case <-h.ended:
			if h.err != nil {
				r.problem("%s ended: %v", h.name, h.err)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s does not end", h.name)
		}
	}
	reading.Wait()
	r.compareHeard(want, readers)
	if err := r.compareCalls(rows, took); err != nil {
		return err
	}
	return r.close(ctx, rows)
}

// open starts both runtimes and enrols everybody.
func (r *run) open(ctx context.Context, dir string) error {
	starting, cancel := context.WithTimeout(ctx, serves)
	defer cancel()
	up, err := r.Up(starting)
	if err != nil {
		return err
	}
	r.processes = append(r.processes, up)
	var about struct{ URL string }
	data, err := os.ReadFile(filepath.Join(r.Home, "run", "bus.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &about); err != nil {
		return err
	}
	r.url = about.URL
	roles := map[string]string{"boss": "operator", "eye": "auditor", "w1": "worker", "curator": "host"}
	for i := range r.count {
		roles[fmt.Sprintf("h%d", i+1)] = "host"
	}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		text, errs, code := r.CLI(ctx, "bus", "creds", name, "--role", roles[name])
		if code != 0 {
			return fmt.Errorf("bus creds %s: %d %s", name, code, errs)
		}
		r.creds[name] = filepath.Join(dir, name+".creds")
		if err := os.WriteFile(r.creds[name], []byte(text), 0o600); err != nil {
			return err
		}
	}
	worker, err := r.Start("worker", "-o", "json", "--home", r.Home, "--core", r.Core, "--bus", r.url, "--creds", r.creds["w1"])
	if err != nil {
		return err
	}
	r.processes = append(r.processes, worker)
	if err := worker.Ready(starting); err != nil {
		return err
	}
	for name, c := range map[string]**client.Client{"boss": &r.boss, "eye": &r.auditor} {
		if *c, err = client.Dial(ctx, client.Options{URL: r.url, Creds: r.creds[name], Name: name}); err != nil {
			return err
		}
	}
	grants := map[string][]string{"curator": {"mcp.connect:shifting", "mcp.call:shifting"}}
	for name, role := range roles {
		if role == "host" && name != "curator" {
			grants[name] = []string{"mcp.connect:free", "mcp.connect:asked", "mcp.call:free", "mcp.call:asked", "mcp.read"}
		}
	}
	for name, capabilities := range grants {
		for _, capability := range capabilities {
			if err := r.boss.Do(ctx, "grant/add", client.Grant{Principal: name, Capability: capability}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func head(ctx context.Context, c *client.Client) (uint64, error) {
	var info client.BusInfo
	err := c.Do(ctx, "bus/info", nil, &info)
	return info.Commits, err
}

// start starts the host processes.
func (r *run) start(ctx context.Context, begin uint64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range r.count {
		name := fmt.Sprintf("h%d", i+1)
		j, err := json.Marshal(job{
			Name: name, URL: r.url, Creds: r.creds[name], After: begin, Calls: r.calls / r.count, Lines: 3, AskEvery: r.askEvery, Seed: r.seed + uint64(i),
		})
		if err != nil {
			return err
		}
		h := &hostProcess{name: name, cmd: exec.CommandContext(ctx, self, "host", string(j)), called: make(chan struct{}), ended: make(chan struct{})}
		h.cmd.Stderr = os.Stderr
		if h.in, err = h.cmd.StdinPipe(); err != nil {
			return err
		}
		out, err := h.cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := h.cmd.Start(); err != nil {
			return err
		}
		r.hosts = append(r.hosts, h)
		go h.read(out)
	}
	return nil
}

// read takes what the host says.
func (h *hostProcess) read(out io.Reader) {
	defer close(h.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var rec record
		if h.err = json.Unmarshal(lines.Bytes(), &rec); h.err != nil {
			break
		}
		switch {
		case rec.Result != nil:
			h.results = append(h.results, *rec.Result)
		case rec.Cuts > 0:
			h.heard, h.cuts = rec.Heard, rec.Cuts
		default:
			close(h.called)
		}
	}
	h.err = cmp.Or(h.err, lines.Err(), h.cmd.Wait())
}

// answer is the operator who answers: yes to connections and tools, no to every
// fifth call.
func (r *run) answer(ctx context.Context, begin uint64) {
	n := 0
	for one, err := range r.boss.Watch(ctx, begin, "approvals/requested") {
		if err != nil {
			if ctx.Err() == nil {
				r.problem("the operator hears no more: %v", err)
			}
			return
		}
		var p client.ApprovalRequested
		if err := json.Unmarshal(one.Params, &p); err != nil {
			r.problem("%s: %v", one.Params, err)
			return
		}
		said, say := "yes", func() (client.Approval, error) { return r.boss.Approve(ctx, p.Approval) }
		if n++; p.Action == "mcp.call" && n%5 == 0 {
			said, say = "no", func() (client.Approval, error) { return r.boss.Deny(ctx, p.Approval, "not this one") }
		}
		// A question about tools may be void by now, and a question may be over.
		if _, err := say(); err != nil && ctx.Err() == nil && !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.ApprovalExpired) {
			r.problem("the answer to %s: %v", p.Approval, err)
		}
		r.mu.Lock()
		r.answered[p.Action+" "+said]++
		r.mu.Unlock()
	}
}

// revoke is the operator who takes rights away at random and gives them back.
func (r *run) revoke(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(r.seed, 50))
	for ctx.Err() == nil {
		wait(ctx, time.Duration(100+rnd.IntN(400))*time.Millisecond)
		g := client.Grant{Principal: fmt.Sprintf("h%d", 1+rnd.IntN(r.count)), Capability: "mcp.call:free"}
		asking := context.WithoutCancel(ctx) // what was taken away is given back
		v := revoke{host: g.Principal}
		began := time.Now()
		if err := r.boss.Do(asking, "grant/revoke", g, nil); err != nil {
			r.problem("grant/revoke: %v", err)
			return
		}
		v.replied = time.Now()
		v.took = v.replied.Sub(began)
		var err error
		if v.head, err = head(asking, r.auditor); err != nil {
			r.problem("bus/info: %v", err)
			return
		}
		wait(ctx, time.Duration(50+rnd.IntN(150))*time.Millisecond)
		v.back = time.Now()
		if err := r.boss.Do(asking, "grant/add", g, nil); err != nil {
			r.problem("grant/add: %v", err)
			return
		}
		r.mu.Lock()
		r.revokes = append(r.revokes, v)
		r.mu.Unlock()
	}
}

// change is a host whose calls change the tools of a server.
func (r *run) change(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(r.seed, 60))
	c, err := client.Dial(ctx, client.Options{URL: r.url, Creds: r.creds["curator"], Name: "curator"})
	if err != nil {
		r.problem("curator: %v", err)
		return
	}
	defer c.Close()
	turn := ""
	for ctx.Err() == nil {
		wait(ctx, time.Duration(50+rnd.IntN(250))*time.Millisecond)
		if turn == "" {
			session, err := c.SessionStart(ctx, "work")
			if err != nil {
				continue
			}
			t, err := c.PrepareTurn(ctx, client.TurnPrepare{Session: session, ExplicitServers: []string{"shifting"}})
			if err != nil || !slices.ContainsFunc(t.Tools, func(t client.Tool) bool { return t.RawName == "change" }) {
				continue
			}
			turn = t.Turn
		}
		reply, err := c.CallTool(ctx, turn, "shifting__change", nil, 0)
		if err != nil || reply.Status != "succeeded" {
			turn = ""
			continue
		}
		r.changes.Add(1)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// reader reads /rpc/events over connections that it drops at random.
type reader struct {
	name, token string
	rand        *rand.Rand
	heard       []uint64
	cuts        int
	problem     string
}

// read goes on where it was until it has heard of the last one, or much later.
func (s *reader) read(ctx context.Context, base string, after uint64, until *atomic.Uint64) {
	last := strconv.FormatUint(after, 10)
	var deadline time.Time
	for ctx.Err() == nil && s.problem == "" {
		end := until.Load()
		if end != client.Latest {
			if n, _ := strconv.ParseUint(last, 10, 64); n >= end || !deadline.IsZero() && time.Now().After(deadline) {
				return
			}
			if deadline.IsZero() {
				deadline = time.Now().Add(30 * time.Second)
			}
		}
		cut, cancel := context.WithTimeout(ctx, time.Duration(s.rand.IntN(2000))*time.Millisecond)
		last = s.once(cut, base, last)
		cancel()
		s.cuts++
		wait(ctx, time.Duration(s.rand.IntN(100))*time.Millisecond)
	}
}

// once reads from one connection and returns the id to go on with.
func (s *reader) once(ctx context.Context, base, last string) string {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/rpc/events?topics="+catalogs, nil)
	if err != nil {
		s.problem = err.Error()
		return last
	}
	q.Header.Set("Authorization", "Bearer "+s.token)
	q.Header.Set("Last-Event-ID", last)
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		return last // it was cut off
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		s.problem = "HTTP status " + w.Status
		return last
	}
	lines := bufio.NewScanner(w.Body)
	id, left := "", 1+s.rand.IntN(4)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "data":
			var n struct{ Params client.CatalogChanged }
			if err := json.Unmarshal([]byte(value), &n); err != nil || id == "" {
				s.problem = "an event that cannot be read: " + value
				return last
			}
			s.heard = append(s.heard, n.Params.SnapshotVersion)
			last, id = id, ""
			if left--; left == 0 {
				return last
			}
		}
	}
	return last
}

// catalogChanges are the sequences at which a server listed what it had not listed
// before, as the audit has them.
func catalogChanges(rows []client.AuditRow, after uint64) (all []uint64) {
	version := map[string]string{}
	for _, row := range rows {
		if row.Name != "tools_discovered" {
			continue
		}
		var e struct {
			Version string `json:"catalog_version"`
		}
		if json.Unmarshal(row.Data, &e) == nil && version[row.Server] != e.Version {
			if version[row.Server] = e.Version; row.Seq > after {
				all = append(all, row.Seq)
			}
		}
	}
	return all
}

func (r *run) compareHeard(want []uint64, readers []*reader) {
	complete := 0
	compare := func(who string, got []uint64) {
		// A change behind the last one that was asked for is heard by some.
		got = slices.DeleteFunc(slices.Clone(got), func(seq uint64) bool { return seq > want[len(want)-1] })
		if slices.Equal(want, got) {
			complete++
			return
		}
		missed, twice := 0, 0
		times := map[uint64]int{}
		for _, seq := range got {
			if times[seq]++; times[seq] == 2 {
				twice++
			}
		}
		for _, seq := range want {
			if times[seq] == 0 {
				missed++
			}
		}
		r.problem("%s heard of %d changes of %d: missed %d, twice %d", who, len(got), len(want), missed, twice)
	}
	nats, sse := 0, 0
	for _, h := range r.hosts {
		compare(h.name+" over NATS", h.heard)
		nats += h.cuts
	}
	for _, s := range readers {
		compare(s.name+" over SSE", s.heard)
		if s.problem != "" {
			r.problem("%s over SSE: %s", s.name, s.problem)
		}
		sse += s.cuts
	}
	if nats < 2*r.count || sse < 2*streams {
		r.problem("%d and %d connections of listeners: nobody was cut off", nats, sse)
	}
	fmt.Printf("catalog changes %d; %d listeners over NATS on %d connections, %d over SSE on %d; %d heard of each change once\n",
		len(want), len(r.hosts), nats, len(readers), sse, complete)
}

func (r *run) compareCalls(rows []client.AuditRow, took time.Duration) error {
	data, err := os.ReadFile(r.counted)
	if err != nil {
		return err
	}
	executed := map[string]int{}
	for _, id := range bytes.Fields(data) {
		executed[string(id)]++
	}
	type story struct {
		principal, server string
		started           uint64
		starts, outcomes  int
		end               string
	}
	calls := map[string]*story{}
	grants := map[string][]uint64{} // when the right to call free came, by principal
	for _, row := range rows {
		switch row.Name {
		case "capability_granted":
			if strings.Contains(string(row.Data), `"mcp.call:free"`) {
				grants[row.Principal] = append(grants[row.Principal], row.Seq)
			}
			continue
		case "call_requested", "call_blocked", "call_started", "call_succeeded", "call_failed", "call_indeterminate":
		default:
			continue
		}
		c := calls[row.Call]
		if c == nil {
			c = &story{principal: row.Principal, server: row.Server}
			calls[row.Call] = c
		}
		switch row.Name {
		case "call_requested":
		case "call_started":
			c.starts, c.started = c.starts+1, row.Seq
		default:
			c.outcomes, c.end = c.outcomes+1, row.Name
		}
	}
	statuses := map[string]int{}
	var durations, asked []time.Duration
	known := map[string]bool{}
	retried := 0
	for _, h := range r.hosts {
		if len(h.results) != r.calls/r.count {
			r.problem("%s has %d results of %d", h.name, len(h.results), r.calls/r.count)
		}
		for _, x := range h.results {
			statuses[strings.TrimSpace(x.Status+" "+x.Kind)]++
			retried += x.Retried
			c := calls[x.Call]
			known[x.Call] = true
			if c == nil {
				r.problem("%s: call %s is not in the log (%s %s)", x.ID, x.Call, x.Status, x.Kind)
				continue
			}
			n := executed[x.ID]
			delete(executed, x.ID)
			done := x.Status == "succeeded"
			if done != (c.end == "call_succeeded") || done != (n == 1) || n > 1 || x.Executed != (c.starts == 1) || done && !x.Result || c.principal != h.name {
				r.problem("%s: the host has %s %s (started %v), the log %+v, the server did it %d times", x.ID, x.Status, x.Kind, x.Executed, *c, n)
			}
			if done && x.Asked {
				asked = append(asked, x.Ended.Sub(x.Began))
			} else if done {
				durations = append(durations, x.Ended.Sub(x.Began))
			}
			// What began behind the reply of a revoke and ended before the right came
			// back cannot have been started.
			for _, v := range r.revokes {
				if v.host == h.name && !x.Asked && x.Executed && x.Began.After(v.replied) && x.Ended.Before(v.back) {
					r.problem("%s began %v behind the reply of a revoke and was made", x.ID, x.Began.Sub(v.replied))
				}
			}
		}
	}
	for id, n := range executed {
		r.problem("nobody knows of %s, which the server did %d times", id, n)
	}
	between, behind := 0, 0
	for key, c := range calls {
		if c.principal == "curator" {
			continue
		}
		if !known[key] && c.starts > 0 {
			r.problem("call %s of the log is in no host's records", key)
		}
		if c.starts > 1 || c.starts == 1 && c.outcomes != 1 {
			r.problem("call %s: %d starts, %d outcomes", key, c.starts, c.outcomes)
		}
		// Behind the head that was read after the reply, up to the next grant.
		for _, v := range r.revokes {
			if c.principal != v.host || c.server != "free" || c.started <= v.head {
				continue
			}
			i := slices.IndexFunc(grants[v.host], func(seq uint64) bool { return seq > v.head })
			if between++; i < 0 || c.started < grants[v.host][i] {
				behind++
				r.problem("call %s started at %d, behind the reply of a revoke at %d or before", key, c.started, v.head)
			}
		}
	}
	denied := statuses["denied capability_denied"]
	if len(r.revokes) == 0 || denied == 0 || r.answered["mcp.call yes"] == 0 || r.answered["mcp.call no"] == 0 {
		r.problem("nothing was revoked in the middle of work, or nobody was asked: the show showed nothing: %v %v", statuses, r.answered)
	}
	var revokes []time.Duration
	for _, v := range r.revokes {
		revokes = append(revokes, v.took)
	}
	fmt.Printf("calls %d in %.1fs; asked for again, as not started, %d; changes of tools asked for %d\n", r.calls, took.Seconds(), retried, r.changes.Load())
	for _, s := range slices.Sorted(maps.Keys(statuses)) {
		fmt.Printf("  %6d %s\n", statuses[s], s)
	}
	for _, s := range slices.Sorted(maps.Keys(r.answered)) {
		fmt.Printf("  %6d answered: %s\n", r.answered[s], s)
	}
	percentiles("call", durations)
	percentiles("call with a person", asked)
	percentiles("revoke", revokes)
	fmt.Printf("starts behind the head that a revoke's reply left, each compared with the next grant: %d, behind a reply %d\n", between, behind)
	return nil
}

func percentiles(what string, all []time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	at := func(p float64) time.Duration { return all[int(p*float64(len(all)-1))].Round(10 * time.Microsecond) }
	fmt.Printf("%-20s n %6d  p50 %v  p90 %v  p99 %v  max %v\n", what+":", len(all), at(0.5), at(0.9), at(0.99), at(1))
}

// close compares what the auditor sees and stops both runtimes in good order.
func (r *run) close(ctx context.Context, rows []client.AuditRow) error {
	seen, err := show.Audit(ctx, r.auditor, 0)
	if err != nil {
		return err
	}
	if len(seen) < len(rows) {
		r.problem("the auditor sees %d events of %d", len(seen), len(rows))
	}
	if err := r.auditor.Do(ctx, "grant/add", client.Grant{Principal: "eye", Capability: "mcp.read"}, nil); err == nil {
		r.problem("the auditor grants")
	}
	if _, err := r.Rebuilt(ctx); err != nil {
		r.problem("%v", err)
	}
	r.boss.Close()
	r.auditor.Close()
	for _, p := range slices.Backward(r.processes) {
		p.Interrupt()
		if code, err := p.Wait(serves); err != nil || code != 0 {
			r.problem("an orderly stop ended with %d, %v: %s", code, err, p.Stderr.String())
		}
	}
	fmt.Printf("in the log: %d events\n", len(seen))
	return nil
}
