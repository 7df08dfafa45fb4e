// Redact measures what redaction costs: how fast hostile texts are redacted and
// whether the time is linear in them, by the CPU time of "policy redact", and how
// much results of 15 MiB hold up small calls beside them.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

const (
	// slowest is the rate that hostile text may have at least, in MB of text for a
	// second of CPU; steepest is how much more time the double of a text may take.
	slowest, steepest = 0.5, 3.5
	// tries are made of what seems too slow: CPU time is more where others compute.
	tries = 4
	// held is how much longer a small call may take beside large results.
	held = 50 * time.Millisecond
	// big is a large result.
	big = 15 << 20
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	echo := flag.String("echo", "", "the fake echo")
	dir := flag.String("dir", "", "an empty directory to work in")
	calls := flag.Int("calls", 200, "small calls, without and with large ones beside them")
	judge := flag.Bool("judge", false, "whether small calls may be held up is judged, on a machine that does nothing else")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	show.Verdict(errors.Join(hostile(ctx, *bin), beside(ctx, *bin, *echo, *dir, *calls, *judge)))
}

// token is a secret of whose pieces hostile text is made.
const token = "tk4f1c9a7b3d2e4f65e1f0c9a7b3d2e"

// pieces are what hostile texts repeat, for a rule of the engine each.
var pieces = []string{
	"clean text of words, 42 of them; ", "password:", "Authorization: Bearer x ", token[:len(token)-1], `\\u0026amp;`, "-----BEGIN PRIVATE KEY-----",
	"eyJ-", "a:@", " -p", ` token="`, "</token>", "glpat-", "a.b=", "11:", "{\"token\":", "<redacted:", "%2541",
}

// hostile redacts texts of 1 and 2 MiB.
func hostile(ctx context.Context, bin string) error {
	idle, err := cost(ctx, bin, "")
	if err != nil {
		return err
	}
	bad := 0
	for _, piece := range pieces {
		var rate, steps float64
		slow := true
		for try := 0; slow && try < tries; try++ {
			var took [2]time.Duration
			for i := range took {
				size := (i + 1) << 20
				if took[i], err = cost(ctx, bin, strings.Repeat(piece, size/len(piece))); err != nil {
					return err
				}
				took[i] = max(took[i]-idle, time.Millisecond)
			}
			rate, steps = 2*1.048576/took[1].Seconds(), took[1].Seconds()/took[0].Seconds()
			// Of what is fast the measure is too coarse.
			slow = rate < slowest || steps > steepest && took[0] > 100*time.Millisecond
		}
		verdict := ""
		if slow {
			verdict, bad = "  too slow", bad+1
		}
		fmt.Printf("  %-36q %8.1f MB/s, the double takes %.1f times as long%s\n", piece, rate, steps, verdict)
	}
	if bad > 0 {
		return fmt.Errorf("%d hostile texts take too long", bad)
	}
	return nil
}

// cost is the CPU time that the program takes to redact a text.
func cost(ctx context.Context, bin, text string) (time.Duration, error) {
	line, err := json.Marshal(map[string]any{"secrets": []map[string]string{{"name": "TOKEN", "source": "show", "value": token}}, "input": text})
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, bin, "policy", "redact")
	cmd.Stdin, cmd.Env = bytes.NewReader(append(line, '\n')), []string{"HOME=/nonexistent"}
	out, err := cmd.Output()
	if err == nil && (!bytes.HasPrefix(out, []byte(`{"model":`)) || bytes.Contains(out, []byte("<redaction-failed>"))) {
		err = errors.New("the program redacted nothing")
	}
	if err != nil {
		return 0, err
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// beside makes small calls without and with large results beside them.
func beside(ctx context.Context, bin, echo, dir string, calls int, judge bool) (err error) {
	g, err := show.New(bin, dir)
	if err != nil {
		return err
	}
	for _, name := range []string{"small", "large"} { // processes of their own
		if err := g.Declare(name, "transport: stdio\napproval_policy: auto\ncommand: "+echo+"\n"); err != nil {
			return err
		}
	}
	up, err := g.Up(ctx)
	if err != nil {
		return err
	}
	defer up.Kill()
	boss, err := g.Dial(ctx)
	if err != nil {
		return err
	}
	defer boss.Close()
	key, err := show.Enrol(ctx, boss, "ana", "mcp.connect:small", "mcp.call:small", "mcp.connect:large", "mcp.call:large")
	if err != nil {
		return err
	}
	client := func() (*show.MCP, error) {
		m := &show.MCP{URL: g.URL(), Token: key}
		if err := m.Initialize(ctx); err != nil {
			return nil, err
		}
		for {
			names, err := m.Tools(ctx)
			if err != nil || slices.Contains(names, "small__echo") && slices.Contains(names, "large__big") {
				return m, err
			}
			if _, err := g.ApproveWaiting(ctx); err != nil {
				return nil, err
			}
			select {
			case <-ctx.Done():
				return nil, errors.New("the servers are not connected")
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	m, err := client()
	if err != nil {
		return err
	}
	defer m.Close()
	alone, err := small(ctx, m, func(i int) bool { return i < calls })
	if err != nil {
		return err
	}
	var results atomic.Int64
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 2)
	for range 2 {
		l, err := client()
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for stop.Err() == nil {
				a, err := l.Call(stop, "large__big", fmt.Sprintf(`{"bytes":%d}`, big))
				if stop.Err() != nil {
					break
				}
				if err == nil && len(a.Result) < big {
					err = fmt.Errorf("a large result has %d bytes: %.200s", len(a.Result), a.Error)
				}
				if err != nil {
					failed <- err
					return
				}
				results.Add(1)
			}
			failed <- nil
		}()
	}
	// So many calls, and at least while two large results come in full.
	with, err := small(ctx, m, func(i int) bool { return i < calls || results.Load() < 2 && len(failed) == 0 })
	cancel()
	if err := errors.Join(err, <-failed, <-failed); err != nil {
		return err
	}
	fmt.Printf("  small calls alone: p50 %v, p99 %v; beside %d results of %d MiB: p50 %v, p99 %v\n",
		at(alone, 50), at(alone, 99), results.Load(), big>>20, at(with, 50), at(with, 99))
	if longer := at(with, 99) - at(alone, 99); judge && longer > held {
		return fmt.Errorf("large results hold up small calls for %v", longer)
	}
	return nil
}

// small makes small calls while more says so, and returns how long they took, sorted.
func small(ctx context.Context, m *show.MCP, more func(int) bool) ([]time.Duration, error) {
	var took []time.Duration
	for i := 0; more(i); i++ {
		begun := time.Now()
		a, err := m.Call(ctx, "small__echo", fmt.Sprintf(`{"text":"call %d"}`, i))
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(a.Result, fmt.Appendf(nil, "call %d", i)) {
			return nil, fmt.Errorf("a small call got %s%s", a.Result, a.Error)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took, nil
}

// at is a percentile.
func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(10 * time.Microsecond)
}
