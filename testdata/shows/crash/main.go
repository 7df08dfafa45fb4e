// Crash kills a running gatebus again and again while twenty principals call a
// server that counts its effects in a file, and compares after each restart what
// clients were told, what was done and what the log says.
//
// The log has no arguments. A call is found by the keyed digest of them, which
// this program makes with the key of the home.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// The moments of the kill. One process is killed in each round; in a round of
// "starting" the next ones are killed as well, in their first tenth of a second.
var moments = []string{"calling", "connecting", "approving", "starting", "stopping"}

// Bounds.
const (
	serves   = 30 * time.Second // until up serves
	orphaned = 10 * time.Second // until the children of a dead up are gone
	settles  = 2 * time.Minute  // until all calls of a round have an outcome
)

func main() {
	var r run
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	flag.StringVar(&r.counter, "counter", "", "the program of the counting fake")
	flag.IntVar(&r.principals, "principals", 20, "principals of a round")
	flag.IntVar(&r.calls, "calls", 10, "concurrent calls of a principal")
	rounds := flag.Int("rounds", 3, "rounds")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the moments")
	flag.Parse()
	fmt.Printf("seed %d, %d rounds of %d principals × %d calls\n", *seed, *rounds, r.principals, r.calls)
	r.rand = rand.New(rand.NewPCG(*seed, 1))
	show.Verdict(r.show(*bin, *dir, *rounds))
}

// run is the show. One goroutine runs it; what clients share is in the round.
type run struct {
	*show.Gatebus
	rand              *rand.Rand
	counter, counted  string // the program, and the file it writes
	principals, calls int
	key               []byte // of argument digests
	log               ledger
	total             tally
	problems          []string
}

// tally are the figures of a round.
type tally struct {
	acked, started, indeterminate, refused, retried, approved, commits int
}

// problem notes what must not be.
func (r *run) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

const declaration = `transport: stdio
command: %q
env: {COUNTER_FILE: %q, COUNTER_DELAY: 40ms} # the time between effect and answer
risk: low
approval_policy: %s
supports_parallel_tool_calls: %t
`

func (r *run) show(bin, dir string, rounds int) (err error) {
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	r.counted = filepath.Join(dir, "counted")
	// One server that calls at once and one that asks a person for each call.
	for name, policy := range map[string]string{"free": "auto", "asked": "prompt"} {
		if err := r.Declare(name, fmt.Sprintf(declaration, r.counter, r.counted, policy, name == "free")); err != nil {
			return err
		}
	}
	ctx := context.Background()
	p, err := r.up(ctx)
	if err != nil {
		return err
	}
	if r.key, err = os.ReadFile(filepath.Join(r.Home, "keys", "arguments")); err != nil {
		p.Kill()
		return err
	}
	fmt.Println("round moment      acked started indeterm refused retried approved commits lost twice seconds")
	for n := range rounds {
		begun, before := time.Now(), len(r.problems)
		var t tally
		if p, t, err = r.round(ctx, p, n); err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		r.total.add(t)
		fmt.Printf("%5d %-11s %5d %7d %8d %7d %7d %8d %7d %4d %5d %7.1f\n", n+1, moments[n%len(moments)], t.acked, t.started,
			t.indeterminate, t.refused, t.retried, t.approved, t.commits, r.log.lost, r.log.twice, time.Since(begun).Seconds())
		for _, text := range r.problems[before:] {
			fmt.Println("      !", text)
		}
	}
	if err := r.finish(ctx, p); err != nil {
		return err
	}
	t := r.total
	fmt.Printf("total: %d successes acknowledged, %d calls started, %d indeterminate, %d refused, %d ids retried, %d calls approved\n",
		t.acked, t.started, t.indeterminate, t.refused, t.retried, t.approved)
	fmt.Printf("events shown and grants acknowledged, before and after the kills: %d, lost %d; executions: %d, twice %d; slowest end of orphans %v\n",
		len(r.log.seen)+r.log.grants, r.log.lost, r.log.executed, r.log.twice, r.log.slowest.Round(time.Millisecond))
	if n := len(r.problems); n > 0 {
		return fmt.Errorf("%d problems", n)
	}
	if t.acked == 0 || t.indeterminate == 0 || t.approved == 0 {
		return fmt.Errorf("the kills hit nothing: the show showed nothing")
	}
	return nil
}

func (t *tally) add(u tally) {
	t.acked += u.acked
	t.started += u.started
	t.indeterminate += u.indeterminate
	t.refused += u.refused
	t.retried += u.retried
	t.approved += u.approved
	t.commits += u.commits
}

// up starts a process that serves.
func (r *run) up(ctx context.Context) (*show.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, serves)
	defer cancel()
	return r.Up(ctx)
}

// within is a moment before the limit.
func (r *run) within(limit time.Duration) time.Duration {
	return time.Duration(r.rand.Int64N(int64(limit)))
}

// round lets the clients of a round begin at the process, kills it, starts
// another one on its home, compares, and lets the clients finish there.
func (r *run) round(ctx context.Context, p *show.Process, n int) (*show.Process, tally, error) {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	moment := moments[n%len(moments)]
	rd := newRound(r, n)
	from := r.log.head
	if err := rd.enrol(ctx); err != nil {
		return p, tally{}, err
	}
	rd.open(ctx)
	rd.start(ctx)

	switch moment {
	case "connecting":
		time.Sleep(r.within(1500 * time.Millisecond))
	case "approving":
		enough := r.rand.IntN(r.principals * r.calls / 10)
		rd.await(ctx, func() bool { return rd.approved > enough })
		time.Sleep(r.within(50 * time.Millisecond))
	default:
		enough := r.rand.IntN(r.principals * r.calls * 9 / 10)
		rd.await(ctx, func() bool { return rd.acked > enough })
		time.Sleep(r.within(50 * time.Millisecond))
	}
	if moment == "stopping" {
		p.Interrupt()
		time.Sleep(r.within(500 * time.Millisecond))
	}
	p.Kill()
	children := show.Running(r.counter)
	rd.close()
	if moment == "starting" {
		for range 3 {
			q, err := r.Launch()
			if err != nil {
				return p, tally{}, err
			}
			time.Sleep(r.within(100 * time.Millisecond))
			q.Kill()
		}
	}
	r.buried(children)
	p, err := r.up(ctx)
	if err != nil {
		return p, tally{}, err
	}
	if err := r.check(ctx, rd, true); err != nil {
		return p, tally{}, err
	}
	rd.open(ctx)
	if !rd.finished(ctx) {
		r.problem("round %d: %d calls are not settled", n+1, rd.unsettled())
	}
	rd.close()
	rd.stop()
	if err := r.check(ctx, rd, false); err != nil {
		return p, tally{}, err
	}
	for pid, parent := range show.Running(r.counter) {
		if parent != p.PID() {
			r.problem("server process %d is no child of the living gatebus", pid)
		}
	}
	if _, err := r.Rebuilt(ctx); err != nil {
		r.problem("round %d: %v", n+1, err)
	}
	t := rd.tally()
	t.started, t.indeterminate = r.log.count("call_started", from), r.log.count("call_indeterminate", from)
	t.commits = int(r.log.head - from)
	return p, t, nil
}

// buried waits for the end of the servers of a dead process.
func (r *run) buried(children map[int]int) {
	begun := time.Now()
	for time.Since(begun) < orphaned {
		left := 0
		for pid := range show.Running(r.counter) {
			if _, ok := children[pid]; ok {
				left++
			}
		}
		if left == 0 {
			r.log.slowest = max(r.log.slowest, time.Since(begun))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.problem("servers of a dead process are still there after %v", orphaned)
}

// finish reads the whole log again, as a process that was stopped in order and
// started anew tells it, and compares it with all that was seen.
func (r *run) finish(ctx context.Context, p *show.Process) error {
	stop := func() {
		p.Interrupt()
		if code, err := p.Wait(serves); err != nil || code != 0 {
			r.problem("an orderly stop ended with %d, %v", code, err)
			p.Kill()
		}
	}
	stop()
	var err error
	if p, err = r.up(ctx); err != nil {
		return err
	}
	defer stop()
	return r.again(ctx)
}
