// Start measures how long gatebus takes from its start until it serves, and what
// memory it has then, on a long log: with and without a snapshot, after an
// orderly end and after kill -9. At each start the projections must equal their
// rebuilding from the log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

const (
	patience = 10 * time.Minute // for a start, or a rebuilding
	writers  = 8
	people   = 64
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	commits := flag.Int("commits", 20_000, "commits in the log")
	rounds := flag.Int("rounds", 3, "starts of each kind")
	flag.Parse()
	show.Verdict(run(*bin, *dir, *commits, *rounds))
}

func run(bin, dir string, commits, rounds int) error {
	g, err := show.New(bin, dir)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := fill(g.Home, commits); err != nil {
		return fmt.Errorf("fill the log: %w", err)
	}
	fmt.Printf("%d commits were appended in %.1f s\n", commits, time.Since(begun).Seconds())
	snapshots := filepath.Join(g.Home, "snapshots")
	if err := os.RemoveAll(snapshots); err != nil { // of this program, which is not gatebus
		return err
	}
	// The first one also builds what is not there yet, and is not counted.
	if _, err := start(g, true, true); err != nil {
		return fmt.Errorf("the first start: %w", err)
	}
	fmt.Println("start                        seconds to ready         MiB at ready    peak")
	median := map[string]float64{}
	for _, c := range []struct {
		name             string
		snapshot, killed bool
	}{
		{"orderly end, snapshot", true, false},
		{"orderly end, no snapshot", false, false},
		{"kill -9, snapshot", true, true},
		{"kill -9, no snapshot", false, true},
	} {
		var all []started
		for n := range rounds {
			// What a start leaves behind is what the next one finds.
			if _, err := start(g, !c.killed, false); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			found, err := os.ReadDir(snapshots)
			if err != nil || len(found) == 0 {
				return fmt.Errorf("%s: there is no snapshot (%v)", c.name, err)
			}
			aside := snapshots + ".aside"
			if !c.snapshot {
				if err := os.Rename(snapshots, aside); err != nil {
					return err
				}
			}
			s, err := start(g, true, n == 0)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			all = append(all, s)
			if !c.snapshot {
				if err := errors.Join(os.RemoveAll(snapshots), os.Rename(aside, snapshots)); err != nil {
					return err
				}
			}
		}
		slices.SortFunc(all, func(a, b started) int { return int(a.ready - b.ready) })
		m := all[len(all)/2]
		median[c.name] = m.ready.Seconds()
		fmt.Printf("%-26s %8.2f [%.2f to %.2f] %12d %12d\n", c.name, m.ready.Seconds(), all[0].ready.Seconds(), all[len(all)-1].ready.Seconds(), m.rss, m.peak)
	}
	for _, end := range []string{"orderly end", "kill -9"} {
		with, without := median[end+", snapshot"], median[end+", no snapshot"]
		fmt.Printf("%s: a snapshot makes the start %.1f times as fast\n", end, without/with)
		if with >= 0.9*without {
			return fmt.Errorf("after %s a snapshot saves nothing", end)
		}
	}
	return nil
}

// started is one start.
type started struct {
	ready     time.Duration
	rss, peak int // MiB
}

// start starts gatebus, looks at it, and ends it, in order or not.
func start(g *show.Gatebus, orderly, check bool) (s started, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	p, err := g.Up(ctx)
	if err != nil {
		return s, err
	}
	defer p.Kill()
	s.ready = time.Since(begun)
	if s.rss, err = show.Memory(p.PID(), "VmRSS"); err != nil {
		return s, err
	}
	if s.peak, err = show.Memory(p.PID(), "VmHWM"); err != nil {
		return s, err
	}
	if check {
		if _, err := g.Rebuilt(ctx); err != nil {
			return s, fmt.Errorf("%w; up said %q", err, p.Stderr.String())
		}
	}
	if !orderly {
		return s, nil
	}
	p.Interrupt()
	if code, err := p.Wait(patience); err != nil || code != 0 {
		return s, fmt.Errorf("exit %d: %v: %s", code, err, p.Stderr.String())
	}
	return s, nil
}

// fill writes a log as a day of work would: people in their sessions call tools,
// two commits for each call.
func fill(home string, commits int) (err error) {
	ctx := context.Background()
	b, err := bus.Open(ctx, bus.Options{Home: home})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	m := bus.NewModel(b)
	if err := b.Load(ctx); err != nil {
		return err
	}
	day := time.Now().Add(-24 * time.Hour)
	at := func(n int64) time.Time {
		return day.Add(time.Duration(float64(24*time.Hour) * float64(n) / float64(commits)))
	}
	var next atomic.Int64
	for p := range people {
		who := fmt.Sprint("p", p)
		_, err := m.Sessions.Dispatch(ctx, "default", "s-"+who, bus.Meta{Actor: who, Principal: who, Time: at(next.Add(1))}, session.Start{Label: who, Reason: "client"})
		if err != nil {
			return err
		}
	}
	var group sync.WaitGroup
	failed := make(chan error, writers)
	for w := range writers {
		group.Go(func() {
			for i := 0; ; i++ {
				n := next.Add(2)
				if n > int64(commits) {
					return
				}
				if err := one(ctx, m, fmt.Sprintf("c-%d-%d", w, i), fmt.Sprint("p", n/2%people), at(n)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// one is a call that starts and succeeds.
func one(ctx context.Context, m *bus.Model, id, who string, at time.Time) error {
	facts := call.Facts{
		Authority: authority.Snapshot{Principal: who, Capabilities: []authority.Granted{{Capability: "mcp.connect:*"}, {Capability: "mcp.call:*"}}, Seq: 1},
		Connection: connection.State{
			Phase: connection.Open, Session: "s-" + who, Principal: who, Server: "docs", Fingerprint: "f", Runtime: "r-show", Generation: 1,
			Current: map[string]string{"read": "d"},
		},
		Runtime: "r-show", Timeout: time.Minute, At: at,
	}
	meta := bus.Meta{Actor: who, Principal: who, Time: at, Scope: events.Scope{Session: "s-" + who, Server: "docs", Call: id, Connection: connection.ID("s-"+who, "docs")}}
	d, err := m.Calls.Dispatch(ctx, "default", id, meta, call.Request{
		Facts: facts, Ready: true, Requested: events.CallRequested{
			Session: "s-" + who, Server: "docs", Tool: "read", Connection: connection.ID("s-"+who, "docs"), Fingerprint: "f", DefinitionDigest: "d",
			ArgumentDigest: strings.Repeat("a", 64), Risk: "low", Policy: "auto", Capability: "mcp.call:docs",
		},
	})
	if err != nil {
		return err
	}
	if d.State.Phase != call.Started {
		return fmt.Errorf("the call did not start: %+v", d.State)
	}
	_, err = m.Calls.Dispatch(ctx, "default", id, meta, call.Finish{
		Generation: d.State.Generation, Succeeded: &events.CallSucceeded{Status: call.Succeeded},
	})
	return err
}
