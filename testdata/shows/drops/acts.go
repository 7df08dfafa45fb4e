package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// act is something that is done to servers.
type act struct {
	name string
	fits func(*station) bool
	all  bool // every call is to succeed
	do   func(ctx context.Context, r *row) error
}

func isPipe(s *station) bool { _, ok := s.server.(*pipe); return ok && s.group == "" }
func isWeb(s *station) bool  { _, ok := s.server.(*web); return ok && s.group == "" }
func every(s *station) bool  { return s.group == "" }

func hasSessions(s *station) bool { w, ok := s.server.(*web); return isWeb(s) && ok && !w.stateless }

// of are the stations of a group. Those whose tools change are not killed by other
// rows: a subscription that ends again and again is taken up later each time.
func of(group string) func(*station) bool {
	return func(s *station) bool { return s.group == group }
}

// down is how long a server behind HTTP is away.
const down = 300 * time.Millisecond

var acts = []act{
	{"killed while idle", every, true, func(ctx context.Context, r *row) error {
		since, err := r.kill(down) // so that it is known that its connections are closed
		if err != nil {
			return err
		}
		l := r.load(ctx, 1, arguments{})
		defer l.stop()
		return r.next(ctx, since)
	}},
	{"killed while calls run", every, false, func(ctx context.Context, r *row) error {
		l := r.load(ctx, 2, arguments{Wait: 10})
		defer l.stop()
		for range 3 {
			if _, _, err := r.settled(ctx, time.Now(), 3); err != nil {
				return err
			}
			since, err := r.kill(0)
			if err != nil {
				return err
			}
			if err := r.next(ctx, since); err != nil {
				return err
			}
		}
		return nil
	}},
	{"killed and away, while calls run", isWeb, false, func(ctx context.Context, r *row) error {
		l := r.load(ctx, 1, arguments{Wait: 10})
		defer l.stop()
		if _, _, err := r.settled(ctx, time.Now(), 3); err != nil {
			return err
		}
		since, err := r.kill(1500 * time.Millisecond)
		if err != nil {
			return err
		}
		return r.next(ctx, since)
	}},
	{"killed in the handshake", isPipe, false, func(ctx context.Context, r *row) error {
		p := r.server.(*pipe)
		if err := p.mode("die"); err != nil {
			return err
		}
		died := r.noted("died")
		p.signal(syscall.SIGKILL)
		l := r.load(ctx, 1, arguments{})
		defer l.stop()
		if err := until(ctx, func() bool { return r.noted("died") > died }); err != nil {
			return err
		}
		if err := p.mode(""); err != nil {
			return err
		}
		return r.next(ctx, time.Now())
	}},
	{"stopped and continued, while calls run", isPipe, true, func(ctx context.Context, r *row) error {
		p := r.server.(*pipe)
		l := r.load(ctx, 2, arguments{Wait: 10})
		defer l.stop()
		if _, _, err := r.settled(ctx, time.Now(), 3); err != nil {
			return err
		}
		p.signal(syscall.SIGSTOP)
		time.Sleep(down)
		p.signal(syscall.SIGCONT)
		return r.next(ctx, time.Now())
	}},
	{"stopped, and clients cancel", isPipe, false, func(ctx context.Context, r *row) error {
		p := r.server.(*pipe)
		p.signal(syscall.SIGSTOP)
		began := time.Now()
		var mu sync.Mutex
		var ids []string
		r.each(func(c *caller) {
			leaving, leave := context.WithCancel(ctx)
			defer leave()
			id, over := c.Next(), make(chan made, 1)
			go func() { over <- r.callAs(leaving, c, id, arguments{Do: "hold"}) }()
			time.Sleep(down) // it is at the server, which does not read it
			if c.Stateless {
				leave()
			} else if err := c.Notify(ctx, "notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, id)); err != nil {
				r.problem("%s: %v", r.name, err)
			}
			m := <-over
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, m.id)
		})
		r.said = append(r.said, fmt.Sprintf("all clients free after %v", (time.Since(began)-down).Round(time.Millisecond)))
		p.signal(syscall.SIGCONT)
		if err := until(ctx, func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return r.noted("cancelled "+id) != 1 })
		}); err != nil {
			return fmt.Errorf("the server did not hear of each cancelling: %w", err)
		}
		l := r.load(ctx, 1, arguments{})
		defer l.stop()
		return r.next(ctx, time.Now())
	}},
	{"ends after each call", isPipe, false, func(ctx context.Context, r *row) error {
		begun := time.Now()
		l := r.load(ctx, 1, arguments{Do: "exit"})
		_, _, err := r.settled(ctx, begun, 3)
		l.stop()
		if err != nil {
			return err
		}
		l = r.load(ctx, 1, arguments{})
		defer l.stop()
		return r.next(ctx, time.Now())
	}},
	{"dies in place of the answer", isPipe, false, func(ctx context.Context, r *row) error {
		for _, c := range r.clients {
			if m := r.call(ctx, c, arguments{Do: "die"}); m.outcome != unsure {
				return fmt.Errorf("%s %s of a call that was begun", m.outcome, m.kind)
			}
		}
		l := r.load(ctx, 1, arguments{})
		defer l.stop()
		return r.next(ctx, time.Now())
	}},
	{"session forgotten, said with 404", hasSessions, true, forgotten("404")},
	{"session forgotten, said with 400", hasSessions, true, forgotten("400")},
	{"session forgotten, said with 200 and -32600", hasSessions, true, forgotten("200")},
	{"answer cut before its first byte", isWeb, false, cut("cut")},
	{"answer cut behind its headers", isWeb, false, cut("cut-head")},
	{"answer cut in the middle of an event", isWeb, false, cut("cut-half")},
	{"answer cut, and taken up again", hasSessions, true, func(ctx context.Context, r *row) error {
		l := r.load(ctx, 1, arguments{Do: "resume"})
		defer l.stop()
		return r.next(ctx, time.Now())
	}},
	{"takes requests and answers none for a while, while calls run", isWeb, true, func(ctx context.Context, r *row) error {
		l := r.load(ctx, 2, arguments{Wait: 10})
		defer l.stop()
		if _, _, err := r.settled(ctx, time.Now(), 3); err != nil {
			return err
		}
		goOn := r.server.(*web).hang()
		time.Sleep(down)
		goOn()
		return r.next(ctx, time.Now())
	}},
	{"headers come late", isWeb, true, func(ctx context.Context, r *row) error {
		r.each(func(c *caller) { r.call(ctx, c, arguments{Do: "slow"}) })
		return nil
	}},
	{"clients cancel", every, false, cancels},
	{"answers later than its calls may take", of(short), false, late},
	{"calls at once, all with the id 1", every, true, func(ctx context.Context, r *row) error {
		var all sync.WaitGroup
		for _, c := range r.clients {
			for i := range 5 {
				all.Go(func() { r.callAs(ctx, c, 1, arguments{Wait: 20, Size: 10 * (i + 1)}) })
			}
		}
		all.Wait()
		return nil
	}},
	{"tools change", of(shifting), true, func(ctx context.Context, r *row) error {
		return r.changes(ctx, func() (time.Time, error) {
			r.call(ctx, r.clients[0], arguments{Do: "tell"})
			r.call(ctx, r.clients[2], arguments{Do: "tell"}) // at the other door, where another process may be
			return time.Now(), nil
		})
	}},
	{"tools change, and it dies behind the notice", of(shifting), false, func(ctx context.Context, r *row) error {
		return r.changes(ctx, func() (time.Time, error) {
			w, web := r.server.(*web)
			for _, c := range []*caller{r.clients[0], r.clients[2]} {
				m := r.call(ctx, c, arguments{Do: "tell-die"})
				if m.outcome != unsure {
					return time.Time{}, fmt.Errorf("%s %s of a call that was begun", m.outcome, m.kind)
				}
				if web {
					break // all of it is one process
				}
			}
			if web {
				time.Sleep(down)
				return time.Now(), w.start()
			}
			return time.Now(), nil
		})
	}},
	{"tools change while it is away", of(shifting), false, func(ctx context.Context, r *row) error {
		return r.changes(ctx, func() (time.Time, error) {
			return r.kill(down)
		})
	}},
	{"tools change while its stream of notices is cut", func(s *station) bool { _, web := s.server.(*web); return web && s.group == shifting }, true,
		func(ctx context.Context, r *row) error {
			return r.changes(ctx, func() (time.Time, error) { // nobody is told
				r.server.(*web).cutStreams()
				return time.Now(), nil
			})
		}},
	{"arguments and results of 1 MB", every, true, func(ctx context.Context, r *row) error {
		for _, c := range r.clients {
			for _, a := range large() {
				r.call(ctx, c, a)
			}
		}
		return nil
	}},
	{"arguments and results of 1 MB, at gatebus stdio", every, true, func(ctx context.Context, r *row) error {
		p, err := show.OpenPipe(ctx, r.Root, r.Env, false, r.Bin, "stdio", "--home", r.Home, "--as", "user-of-"+r.station.name)
		if err != nil {
			return err
		}
		defer p.Close()
		c := &caller{door: "gatebus stdio"}
		for _, a := range large() {
			r.record(c, a, func(arguments string) (show.Answer, error) {
				return p.Do(ctx, "tools/call", `{"name":"`+r.station.name+`__do","arguments":`+arguments+`}`)
			})
		}
		return nil
	}},
}

// long are acts that take long: they wait until a server that does not read is
// given up.
var long = []act{
	{"reads no more, with 1 MB under way", isPipe, false, func(ctx context.Context, r *row) error {
		r.server.(*pipe).signal(syscall.SIGSTOP)
		// What was written to it in part is lost with it, and what was not at all is asked
		// again.
		r.each(func(c *caller) { r.call(ctx, c, large()[0]) })
		if !slices.ContainsFunc(r.calls, func(m made) bool { return m.outcome == unsure }) {
			return fmt.Errorf("every call succeeded at a server that is stopped")
		}
		l := r.load(ctx, 1, arguments{})
		defer l.stop()
		return r.next(ctx, time.Now())
	}},
}

// large are calls with much to carry, one way, the other way and both.
func large() []arguments {
	text := strings.Repeat("x", 1_000_000)
	return []arguments{{Text: text}, {Size: 1_000_000}, {Text: text, Size: 1_000_000}}
}

// each does something for all clients at once.
func (r *row) each(do func(c *caller)) {
	var all sync.WaitGroup
	for _, c := range r.clients {
		all.Go(func() { do(c) })
	}
	all.Wait()
}

// kill kills the server, keeps it away for a while where it is one that somebody
// else starts, and returns the moment from which on it can serve again.
func (r *row) kill(away time.Duration) (time.Time, error) {
	switch s := r.server.(type) {
	case *pipe:
		dead := s.processes()
		if n := s.signal(syscall.SIGKILL); n == 0 {
			return time.Time{}, fmt.Errorf("no process is there to be killed")
		}
		// One that is about to die still has its pipes, until it is buried.
		for pid := range dead {
			for {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	case *web:
		s.kill()
		time.Sleep(away)
		if err := s.start(); err != nil {
			return time.Time{}, err
		}
	}
	return time.Now(), nil
}

// next waits until each client has made three calls with success after a moment,
// and notes how long the first took.
func (r *row) next(ctx context.Context, since time.Time) error {
	took, failed, err := r.settled(ctx, since, 3)
	r.took, r.fails = max(r.took, took), max(r.fails, failed)
	return err
}

// until waits for a condition.
func until(ctx context.Context, done func() bool) error {
	return show.Until(ctx, func() (bool, error) { return done(), nil })
}

// noted is how often the server noted something.
func (r *row) noted(what string) (n int) {
	notes, err := r.server.notes()
	if err != nil {
		r.problem("%s: %v", r.name, err)
	}
	for _, note := range notes {
		if note == what {
			n++
		}
	}
	return n
}

// forgotten makes the server forget its sessions while calls run.
func forgotten(shape string) func(context.Context, *row) error {
	return func(ctx context.Context, r *row) error {
		l := r.load(ctx, 2, arguments{Wait: 5})
		defer l.stop()
		for range 3 {
			if _, _, err := r.settled(ctx, time.Now(), 3); err != nil {
				return err
			}
			r.server.(*web).expire(shape)
			if err := r.next(ctx, time.Now()); err != nil {
				return err
			}
		}
		return nil
	}
}

// cut cuts answers off while other calls run, which do not notice.
func cut(how string) func(context.Context, *row) error {
	return func(ctx context.Context, r *row) error {
		l := r.load(ctx, 1, arguments{Wait: 5})
		defer l.stop()
		for _, c := range r.clients {
			for range 3 {
				if m := r.call(ctx, c, arguments{Do: how}); m.outcome != unsure {
					return fmt.Errorf("%s %s of a call whose answer was cut off", m.outcome, m.kind)
				}
			}
		}
		err := r.next(ctx, time.Now())
		l.stop()
		for _, m := range r.calls {
			if m.outcome != succeeded && m.kind != "indeterminate" {
				r.problem("%s: %s has %s %s", r.name, m.id, m.outcome, m.kind)
			}
		}
		return err
	}
}

// slots is how many calls run at once on a connection.
const slots = 16

// cancels lets the clients of each door, in turn, take all slots of its connection
// and cancel. The server has to hear of each, and the next call has a slot.
func cancels(ctx context.Context, r *row) error {
	var slowest time.Duration
	cancelled := 0
	for _, c := range r.clients {
		leaving, leave := context.WithCancel(ctx)
		var all sync.WaitGroup
		var ids []int64
		from := int(r.count.Load())
		for range slots {
			id := c.Next()
			ids = append(ids, id)
			all.Go(func() { r.callAs(leaving, c, id, arguments{Do: "hold"}) })
		}
		holds := func(prefix string) (n int) {
			for i := range slots {
				n += r.noted(prefix + fmt.Sprintf("%s.%d", r.key, from+i+1))
			}
			return n
		}
		if err := until(ctx, func() bool { return holds("") == slots }); err != nil {
			leave()
			return fmt.Errorf("%s: %d of %d calls have begun: %w", c.door, holds(""), slots, err)
		}
		begun := time.Now()
		if !c.Stateless {
			for _, id := range ids {
				if err := c.Notify(ctx, "notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, id)); err != nil {
					leave()
					return err
				}
			}
		} else {
			leave()
		}
		err := until(ctx, func() bool { return holds("cancelled ") == slots })
		slowest = max(slowest, time.Since(begun))
		cancelled += holds("cancelled ")
		if err != nil {
			leave()
			return fmt.Errorf("%s: the server heard of %d of %d cancelled calls: %w", c.door, holds("cancelled "), slots, err)
		}
		begun = time.Now()
		if m := r.call(ctx, c, arguments{}); m.outcome != succeeded {
			r.problem("%s: %s: the next call has %s %s", r.name, c.door, m.outcome, m.kind)
		}
		r.took = max(r.took, time.Since(begun))
		leave()
		all.Wait()
	}
	r.said = append(r.said, fmt.Sprintf("%d cancelled at the server, the last of a client's %d after %v", cancelled, slots, slowest.Round(time.Millisecond)))
	return nil
}

// late lets the time of calls be over: the server has to hear of each once, and the
// next call has a slot.
func late(ctx context.Context, r *row) error {
	r.each(func(c *caller) {
		m := r.call(ctx, c, arguments{Do: "hold"})
		if m.outcome != unsure || m.kind != "timed_out" {
			r.problem("%s: %s has %s %s", r.name, m.id, m.outcome, m.kind)
		}
		if err := until(ctx, func() bool { return r.noted("cancelled "+m.id) > 0 }); err != nil {
			r.problem("%s: the server heard of no cancelling at %s: %v", r.name, c.door, err)
		}
		begun := time.Now()
		if next := r.call(ctx, c, arguments{}); next.outcome != succeeded {
			r.problem("%s: the next call has %s %s", r.name, next.outcome, next.kind)
		}
		r.mu.Lock()
		r.took = max(r.took, time.Since(begun))
		r.mu.Unlock()
		if n := r.noted("cancelled " + m.id); n != 1 {
			r.problem("%s: %s was cancelled %d times", r.name, m.id, n)
		}
	})
	return nil
}

// changes lets the tools of the server change, and waits until each client was told
// and, listing whenever it is told and only then, sees the new tool.
func (r *row) changes(ctx context.Context, change func() (since time.Time, err error)) error {
	r.tools++
	tool := fmt.Sprintf("grown%d", r.tools)
	var before []int
	for _, c := range r.clients {
		if there, err := c.lists(ctx, "do"); err != nil || !there {
			return fmt.Errorf("%s does not list the tool: %v", c.door, err)
		}
		before = append(before, c.told())
	}
	if err := r.server.grow(r.tools); err != nil {
		return err
	}
	since, err := change()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	seen, problems := make([]time.Duration, len(r.clients)), make([]error, len(r.clients))
	for i, c := range r.clients {
		all.Go(func() {
			for told := before[i]; ; {
				if problems[i] = until(ctx, func() bool { return c.told() > told }); problems[i] != nil {
					problems[i] = fmt.Errorf("%s was told %d times and does not list %s", c.door, told-before[i], tool)
					return
				}
				told = c.told()
				if there, err := c.lists(ctx, tool); there || err != nil {
					seen[i], problems[i] = time.Since(since), err
					return
				}
			}
		})
	}
	all.Wait()
	for _, p := range problems {
		if p != nil {
			r.problem("%s: %v", r.name, p)
		}
	}
	r.said = append(r.said, fmt.Sprintf("all clients told, and the new tool listed, after %v", slices.Max(seen).Round(time.Millisecond)))
	return nil
}
