// Cluster runs two runtimes of a home on a bus of three servers, with hosts that
// call a tool whose effects can be counted, and takes away in each round the
// server that leads the log, one runtime, and for a while the other one, which is
// only stopped and finds itself given up when it goes on. What hosts were told,
// what was done and what the log says are compared at the end.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// Bounds.
const (
	serves = 60 * time.Second // until a process serves
	flows  = 90 * time.Second // until every host has a success that began after a fault
	ends   = 60 * time.Second // until a process that was given up has ended
)

func main() {
	if len(os.Args) == 6 && os.Args[1] == "host" {
		if err := host(os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var r run
	bin := flag.String("bin", "", "the program gatebus")
	nats := flag.String("nats", "", "the program nats-server")
	counter := flag.String("counter", "", "the program of the counting fake")
	dir := flag.String("dir", "", "an empty directory to work in")
	rounds := flag.Int("rounds", 2, "rounds of three faults")
	flag.IntVar(&r.count, "hosts", 4, "host processes")
	flag.Parse()
	err := r.show(*bin, *nats, *counter, *dir, *rounds)
	r.stop()
	show.Verdict(err)
}

// run is the show.
type run struct {
	*show.Gatebus
	nodes    *nodes
	count    int
	dir      string
	counted  string
	up       *runtime
	worker   *runtime
	operator *client.Client
	hosts    []*exec.Cmd
	quit     context.CancelFunc
	problems int
	times    map[string][]time.Duration // until every host was served again, by fault
}

// runtime is one of the two.
type runtime struct {
	name  string
	start func() (*show.Process, error)
	*show.Process
}

func (r *run) problem(format string, args ...any) {
	r.problems++
	fmt.Printf("      ! "+format+"\n", args...)
}

// launch starts a runtime and waits until it serves.
func (t *runtime) launch() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), serves)
	defer cancel()
	if t.Process, err = t.start(); err == nil {
		err = t.Ready(ctx)
	}
	return err
}

const declaration = `transport: stdio
command: %q
env: {COUNTER_FILE: %q, COUNTER_DELAY: 20ms} # the time between effect and answer
risk: low
approval_policy: auto
supports_parallel_tool_calls: true
`

func (r *run) show(bin, nats, counter, dir string, rounds int) (err error) {
	r.dir, r.counted, r.times = dir, filepath.Join(dir, "counted"), map[string][]time.Duration{}
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	if err := r.Declare("free", fmt.Sprintf(declaration, counter, r.counted)); err != nil {
		return err
	}
	if err := r.open(nats); err != nil {
		return err
	}
	fmt.Printf("three servers, two runtimes, %d host processes with %d sessions each\n", r.count, lines)
	fmt.Println("round fault                     served again: first  all hosts, the last")
	for n := range rounds {
		if err := r.round(n); err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
	}
	return r.check()
}

// open starts everything.
func (r *run) open(nats string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*serves)
	defer cancel()
	out, errs, code := r.CLI(ctx, "bus", "config", "-o", "json")
	var config struct{ Config string }
	if code != 0 || json.Unmarshal([]byte(out), &config) != nil {
		return fmt.Errorf("bus config: %d %s", code, errs)
	}
	var err error
	if r.nodes, err = newNodes(nats, r.dir, config.Config); err != nil {
		return err
	}
	for _, n := range r.nodes.all {
		if err := r.nodes.start(n); err != nil {
			return err
		}
	}
	if err := r.nodes.well(ctx); err != nil {
		return err
	}
	url := r.nodes.url()
	r.Args = []string{"--bus", url}
	r.up = &runtime{name: "up", start: r.Launch}
	if err := r.up.launch(); err != nil {
		return err
	}
	creds := map[string]string{}
	for _, name := range append(r.names(), "boss", "w1") {
		role := map[string]string{"boss": "operator", "w1": "worker"}[name]
		if role == "" {
			role = "host"
		}
		text, errs, code := r.CLI(ctx, "bus", "creds", name, "--role", role)
		if code != 0 {
			return fmt.Errorf("bus creds %s: %d %s; up says: %s", name, code, errs, r.up.Stderr.String())
		}
		creds[name] = filepath.Join(r.dir, name+".creds")
		if err := os.WriteFile(creds[name], []byte(text), 0o600); err != nil {
			return err
		}
	}
	r.worker = &runtime{name: "worker", start: func() (*show.Process, error) {
		return r.Start("worker", "-o", "json", "--home", r.Home, "--core", r.Core, "--bus", url, "--creds", creds["w1"])
	}}
	if err := r.worker.launch(); err != nil {
		return err
	}
	if r.operator, err = client.Dial(ctx, client.Options{URL: url, Creds: creds["boss"], Name: "boss"}); err != nil {
		return err
	}
	for _, name := range r.names() {
		for _, capability := range []string{"mcp.connect:*", "mcp.call:*"} {
			if err := r.operator.Do(ctx, "grant/add", client.Grant{Principal: name, Capability: capability}, nil); err != nil {
				return err
			}
		}
	}
	background, quit := context.WithCancel(context.Background())
	r.quit = quit
	go r.approve(background)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range r.names() {
		cmd := exec.Command(self, "host", name, url, creds[name], r.output(name))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		r.hosts = append(r.hosts, cmd)
	}
	_, _, _, err = r.served(time.Now())
	return err
}

func (r *run) names() (all []string) {
	for i := range r.count {
		all = append(all, fmt.Sprintf("h%d", i+1))
	}
	return all
}

func (r *run) output(host string) string { return filepath.Join(r.dir, host+".jsonl") }

// approve says yes to every connection, also when the bus is away for a moment.
func (r *run) approve(ctx context.Context) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, answers)
		waiting, _ := r.operator.Approvals(asking) // what is not seen now is seen next
		for _, a := range waiting {
			_, _ = r.operator.Approve(asking, a.ID) // the same
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// round takes away a server, a runtime, and for a while the other runtime.
func (r *run) round(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	leader, err := r.nodes.leader(ctx)
	if err != nil {
		return err
	}
	if err := r.fault(n, "kill -9 of the leader "+leader.name, "leader", func() error { leader.kill(); return nil }); err != nil {
		return err
	}
	if err := r.nodes.start(leader); err != nil {
		return err
	}
	if err := r.nodes.well(ctx); err != nil {
		return err
	}
	dies, stops := r.worker, r.up
	if n%2 == 1 {
		dies, stops = stops, dies
	}
	if err := r.fault(n, "kill -9 of the "+dies.name, "runtime", func() error { dies.Kill(); return nil }); err != nil {
		return err
	}
	if err := dies.launch(); err != nil {
		return err
	}
	if err := r.fault(n, "SIGSTOP of the "+stops.name, "stopped", stops.Stop); err != nil {
		return err
	}
	if err := stops.Continue(); err != nil {
		return err
	}
	// It finds itself closed in the log.
	if code, err := stops.Wait(ends); err != nil || code != 8 {
		return fmt.Errorf("the %s that was given up ended with %d, %v: %s", stops.name, code, err, stops.Stderr.String())
	}
	return stops.launch()
}

// fault does something bad and waits until every host is served again.
func (r *run) fault(n int, text, kind string, do func() error) error {
	at := time.Now()
	if err := do(); err != nil {
		return err
	}
	first, all, last, err := r.served(at)
	if err != nil {
		return fmt.Errorf("after the %s: %w", text, err)
	}
	r.times[kind] = append(r.times[kind], all)
	fmt.Printf("%5d %-32s %10.2fs %9.2fs  %s\n", n+1, text, first.Seconds(), all.Seconds(), last)
	return nil
}

// served waits until every session has a success that began after a moment, and
// says how long the first and the last took, and which that was.
func (r *run) served(since time.Time) (first, all time.Duration, last string, err error) {
	deadline := time.Now().Add(flows)
	for {
		missing := r.count * lines
		first, all = time.Hour, 0
		for _, host := range r.names() {
			results, err := r.results(host)
			if err != nil {
				return 0, 0, "", err
			}
			for line := range lines {
				for _, x := range results {
					if x.Line == line && x.Status == "succeeded" && x.Began.After(since) {
						took := x.Ended.Sub(since)
						if first = min(first, took); took > all {
							all, last = took, fmt.Sprintf("%s-%d", host, line)
						}
						missing--
						break
					}
				}
			}
		}
		if missing == 0 {
			return first, all, last, nil
		}
		if time.Now().After(deadline) {
			return 0, 0, "", fmt.Errorf("%d of %d sessions are not served within %v", missing, r.count*lines, flows)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// results are those of a host so far.
func (r *run) results(host string) (all []result, err error) {
	data, err := os.ReadFile(r.output(host))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data[:bytes.LastIndexByte(data, '\n')+1]))
	for lines.Scan() {
		var x result
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, lines.Err()
}

// check lets the hosts finish and compares.
func (r *run) check() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, h := range r.hosts {
		_ = h.Process.Signal(syscall.SIGTERM)
		if err := h.Wait(); err != nil {
			r.problem("a host ended with %v", err)
		}
	}
	r.hosts = nil
	data, err := os.ReadFile(r.counted)
	if err != nil {
		return err
	}
	executed := map[string]int{}
	for _, id := range bytes.Fields(data) {
		executed[string(id)]++
	}
	// The audit lists what the log has.
	rows, err := show.Audit(ctx, r.operator, 0)
	if err != nil {
		return err
	}
	starts, outcomes, succeeded := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, row := range rows {
		switch row.Name {
		case "call_started":
			starts[row.Call]++
		case "call_blocked": // by a second runtime that was asked, before the start, which is void then
			outcomes[row.Call]++
		case "call_succeeded", "call_failed", "call_indeterminate":
			outcomes[row.Call]++
			succeeded[row.Call] = row.Name == "call_succeeded"
		}
	}
	told := map[string]result{} // what a host was told of an effect
	var total, acked, indeterminate, other, again, lost, twice, silent int
	for _, host := range r.names() {
		results, err := r.results(host)
		if err != nil {
			return err
		}
		for _, x := range results {
			total++
			told[x.ID] = x
			again += x.Retried
			switch x.Status {
			case "succeeded":
				acked++
				if x.Kind != "" {
					silent++ // the outcome was told, its result got lost
				}
				if executed[x.ID] == 0 || !succeeded[x.Call] {
					lost++
					r.problem("%s was acknowledged as call %s; executed %d times, in the log %v", x.ID, x.Call, executed[x.ID], succeeded[x.Call])
				}
			case "indeterminate":
				indeterminate++
			default:
				other++
				r.problem("%s: %s %s, executed %d times; it began at %s and ended at %s", x.ID, x.Status, x.Kind, executed[x.ID],
					x.Began.Format("15:04:05.000"), x.Ended.Format("15:04:05.000"))
				story(rows, x.Call)
			}
		}
	}
	for id, n := range executed {
		if n > 1 {
			twice++
			r.problem("%s was executed %d times; its host was told %+v", id, n, told[id])
			story(rows, told[id].Call)
		}
	}
	for call, n := range starts {
		if n != 1 || outcomes[call] != 1 {
			r.problem("call %s: %d starts, %d outcomes", call, n, outcomes[call])
			story(rows, call)
		}
	}
	if _, err := r.Rebuilt(ctx); err != nil {
		r.problem("%v", err)
	}
	for _, t := range []*runtime{r.worker, r.up} {
		t.Interrupt()
		if code, err := t.Wait(ends); err != nil || code != 0 {
			r.problem("an orderly stop of the %s ended with %d, %v", t.name, code, err)
		}
	}
	fmt.Printf("calls asked for: %d; acknowledged %d, of these without their result %d; lost %d; executed twice %d; indeterminate %d; other %d; asked for again, as not started, %d\n",
		total, acked, silent, lost, twice, indeterminate, other, again)
	fmt.Printf("in the log: %d events, %d calls started\n", len(rows), len(starts))
	for _, kind := range []string{"leader", "runtime", "stopped"} {
		times := r.times[kind]
		slices.Sort(times)
		fmt.Printf("until all hosts are served again, %-8s median %6.2fs  max %6.2fs\n", kind+":", times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
	}
	switch {
	case r.problems > 0:
		return fmt.Errorf("%d problems", r.problems)
	case acked == 0 || indeterminate+again == 0:
		return errors.New("the faults hit nothing: the show showed nothing")
	}
	return nil
}

// story prints what the log has of a call, of its connection and of runtimes.
func story(rows []client.AuditRow, call string) {
	connection := ""
	for _, row := range rows {
		if row.Call == call && row.Name == "call_requested" {
			var e struct{ Connection string }
			_ = json.Unmarshal(row.Data, &e)
			connection = "connection/" + e.Connection
		}
	}
	for _, row := range rows {
		if row.Call == call || row.Aggregate == connection || strings.HasPrefix(row.Aggregate, "runtime/") {
			fmt.Printf("      %d.%d %s %s %s %.300s\n", row.Seq, row.I, row.Time.Format("15:04:05.000"), row.Aggregate, row.Name, row.Data)
		}
	}
}

// stop ends what runs still.
func (r *run) stop() {
	if r.quit != nil {
		r.quit()
	}
	for _, h := range r.hosts {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	for _, t := range []*runtime{r.worker, r.up} {
		if t != nil && t.Process != nil {
			t.Kill()
		}
	}
	if r.nodes != nil {
		r.nodes.stop()
	}
}
