package bus

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
)

// The verbs of a process's address.
const (
	verbAlive  = "alive"
	verbSettle = "settle"
)

const (
	// silence is how long nobody may be at a process's address before it is gone.
	silence = 3 * time.Second
	// hush is the same when its lease has run out: what lost its connection for a
	// moment comes back sooner.
	hush = time.Second
)

// Lost is the reason in the log of a process that its peers have closed.
const Lost = "lost"

// JoinOptions say who joins.
type JoinOptions struct {
	// Runtime is the id of the process, new for each; Home that of its home.
	Runtime, Home, Version string
}

// Member is this process among those of its home. Its methods may be called from
// any goroutine.
type Member struct {
	bus     *Bus
	model   *Model
	opts    JoinOptions
	lease   *lease
	gone    []string
	silent  func() // ends the address
	leaving sync.Once
	seen    atomic.Pointer[view]
}

// Join makes this process one of the live ones of its home: it takes a lease,
// records the boot, and returns when every live peer follows what it appends.
// Call it after Load, once, and before anything is served; then call Recover, and
// keep Run going. Errors: home_locked when another home lives in the workspace;
// the context's; bus_unavailable and audit_unavailable.
func (b *Bus) Join(ctx context.Context, m *Model, o JoinOptions) (_ *Member, err error) {
	const op = "join"
	if !ValidName(o.Runtime) || !ValidName(o.Home) {
		return nil, fault.New(op, fault.InvalidInput, redact.Name("no names of a runtime and a home: "+o.Runtime+" "+o.Home))
	}
	ttl := leaseTTL
	if b.replicated {
		ttl = leaseTTLReplicated
	}
	me := &Member{bus: b, model: m, opts: o, lease: &lease{bus: b, key: o.Runtime, ttl: ttl}}
	if !b.member.CompareAndSwap(nil, me) {
		return nil, fault.New(op, fault.Internal, redact.Static("the process has joined already"))
	}
	booted := false
	defer func() {
		if err == nil {
			return
		}
		err = asFault(op, fault.BusUnavailable, redact.Static("the process cannot join the others of its home"), err)
		ctx := context.WithoutCancel(ctx)
		if booted {
			_ = me.close(ctx, o.Runtime, "join failed") // peers will find out
		}
		if me.silent != nil {
			me.silent()
		}
		_ = me.lease.end(ctx) // ends by itself
		b.member.Store(nil)
	}()
	if err := b.syncHead(ctx); err != nil {
		return nil, err
	}
	if err := me.refuseSecond(ctx); err != nil {
		return nil, err
	}
	// Who sees the boot finds the lease, and somebody at the address.
	if err := b.patiently(ctx, func() error { return me.lease.take(ctx) }); err != nil {
		return nil, err
	}
	if me.silent, err = b.ServeAddress(b.opts.Workspace, o.Runtime, me.answer); err != nil {
		return nil, err
	}
	boot, err := m.Runtimes.Dispatch(ctx, b.opts.Workspace, o.Home, me.meta(),
		runtime.Boot{Runtime: o.Runtime, Version: o.Version, Embedded: b.server != nil})
	if err != nil {
		return nil, err
	}
	booted = true
	if err := b.Reached(ctx, boot.Seq); err != nil {
		return nil, err
	}
	// Of two homes that came at the same time, one sees the other here.
	if err := me.refuseSecond(ctx); err != nil {
		return nil, err
	}
	if err := me.meet(ctx, boot.Seq); err != nil {
		return nil, err
	}
	me.follow()
	return me, nil
}

// meet makes sure that whoever is alone on an embedded bus is so no longer. All
// others follow the log anyway.
func (m *Member) meet(ctx context.Context, boot uint64) error {
	question := settlement{Seq: boot}
	for peer, p := range m.peers() {
		switch {
		case !p.Embedded:
		case m.bus.server != nil:
			m.gone = append(m.gone, peer) // we have the store
		default:
			if err := m.settle(ctx, peer, p.home, question); err != nil {
				return err
			}
		}
	}
	slices.Sort(m.gone)
	return nil
}

// refuseSecond refuses a workspace in which a process of another home lives.
func (m *Member) refuseSecond(ctx context.Context) error {
	for peer, p := range m.peers() {
		if p.home == m.opts.Home {
			continue
		}
		held, err := m.bus.held(ctx, peer)
		if err != nil {
			return err
		}
		if !held {
			held = m.ask(ctx, peer, m.lease.ttl/6, verbAlive, nil) == nil
		}
		if held {
			return fault.New("join", fault.HomeLocked, redact.Name("the workspace "+m.bus.opts.Workspace+" of this bus belongs to another home, whose runtime is "+peer))
		}
	}
	return nil
}

// peer is another process in the log.
type peer struct {
	runtime.Process
	home string
}

// peers are the other processes of the workspace that the log has as live. They are
// not to be changed.
func (m *Member) peers() map[string]peer { return m.view().peers }

// view is what the log says of who lives, as of so many changes. It is asked for by
// each decision and each call.
type view struct {
	changes uint64
	peers   map[string]peer
	own     bool // this process lives
}

func (m *Member) view() *view {
	changes := m.model.Runtimes.changes.Load()
	if v := m.seen.Load(); v != nil && v.changes == changes {
		return v
	}
	v := &view{changes: changes, peers: make(map[string]peer)}
	for at, s := range m.model.Runtimes.All() {
		if at.Workspace != m.bus.opts.Workspace {
			continue
		}
		for id, p := range s.Live {
			if id == m.opts.Runtime {
				v.own = true
			} else {
				v.peers[id] = peer{p, at.Key}
			}
		}
	}
	m.seen.Store(v)
	return v
}

func (m *Member) alone() bool { return len(m.peers()) == 0 }

// follow makes the tail run while there are peers.
func (m *Member) follow() { m.bus.follow(m.bus.server == nil || !m.alone()) }

// Peers are the ids of the other live processes, as the log has them.
func (m *Member) Peers() []string { return slices.Sorted(maps.Keys(m.peers())) }

// Alive reports whether a process, this one included, is live in the log.
func (m *Member) Alive(id string) bool {
	v := m.view()
	if id == m.opts.Runtime {
		return v.own
	}
	_, ok := v.peers[id]
	return ok
}

// Gone are the processes that are known to have died before this one joined: they
// had the store that this process has now.
func (m *Member) Gone() []string { return slices.Clone(m.gone) }

// Valid says whether this process may begin something: nobody can have seen its
// lease run out, or it has the store and is alone, for whoever joins asks it
// before he can give it up. Otherwise the error is of kind runtime_not_live. It
// costs no request.
func (m *Member) Valid() error {
	if m.lease.valid() || m.bus.server != nil && m.alone() && m.Alive(m.opts.Runtime) {
		return nil
	}
	return fault.New("begin", fault.RuntimeNotLive, redact.Static("the runtime could not renew its lease in time"))
}

// settlement is what a peer is asked to have done with.
type settlement struct {
	Seq       uint64             `json:"seq"`
	Workspace string             `json:"workspace,omitempty"`
	Aggregate events.AggregateID `json:"aggregate,omitzero"`
}

// Settle returns when no process decides any more on a state of the aggregate
// that is older than the one here: each live peer has folded it and has no
// decision under way that read an older one, or is closed in the log. It can
// wait as long as a peer is neither alive nor found dead. Errors: the context's,
// and as [Bus.Reached].
func (m *Member) Settle(ctx context.Context, workspace string, id events.AggregateID) error {
	subject := subjectOf(workspace, id)
	if subject == "" {
		return fault.New("settle", fault.InvalidInput, redact.Name("no aggregate: "+workspace+" "+id.String()))
	}
	question := settlement{Seq: m.bus.boundary(subject).sequence(), Workspace: workspace, Aggregate: id}
	// Who booted before it is in the model then; who boots later reads it.
	if err := m.bus.Reached(ctx, question.Seq); err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	for id, p := range m.peers() {
		all.Go(func() error { return m.settle(ctx, id, p.home, question) })
	}
	return all.Wait()
}

// settle asks one peer until it answers or is closed in the log.
func (m *Member) settle(ctx context.Context, id, home string, question settlement) error {
	data, err := json.Marshal(question)
	if err != nil {
		return err
	}
	closed, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = m.model.Runtimes.Wait(closed, m.bus.opts.Workspace, home, func(s runtime.State) bool {
			_, live := s.Live[id]
			return !live
		})
	}()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := m.ask(closed, id, m.bus.timeout, verbSettle, data)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case m.bus.ctx.Err() != nil:
			return errClosed("settle")
		case closed.Err() != nil:
			return nil
		}
		m.bus.pause(closed, pause)
	}
}

// ask asks the address of a process.
func (m *Member) ask(ctx context.Context, id string, patience time.Duration, verb string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return m.bus.AskAddress(ctx, m.bus.opts.Workspace, id, verb, data, nil)
}

// answer is what this process says at its address.
func (m *Member) answer(ctx context.Context, verb string, data []byte, _ func([]byte) error) error {
	switch verb {
	case verbAlive:
		return nil
	case verbSettle:
		var q settlement
		if err := json.Unmarshal(data, &q); err != nil {
			return err
		}
		if err := m.bus.Reached(ctx, q.Seq); err != nil {
			return err
		}
		m.follow()
		if q.Workspace == "" {
			return nil
		}
		// Whoever has the boundary, also in part, has decided when we get it whole.
		bd := m.bus.at(q.Workspace, q.Aggregate)
		if bd == nil {
			return fault.New("answer", fault.InvalidInput, redact.Name("no aggregate: "+q.Workspace+" "+q.Aggregate.String()))
		}
		locks, err := lock(ctx, bd)
		if err == nil {
			locks.unlock()
		}
		return err
	}
	return fault.New("answer", fault.UnknownMethod, redact.Name("no verb of a runtime: "+verb))
}

func (m *Member) meta() Meta {
	return Meta{Correlation: m.opts.Runtime, Actor: "runtime", Principal: "runtime"}
}

// Reap closes in the log what a process left open: its connections, then its
// calls that were started. It may be called by several processes at once, and
// again after an error.
type Reap func(ctx context.Context, runtime string) error

// Recover reaps the processes that are Gone, before this one serves anything.
func (m *Member) Recover(ctx context.Context, reap Reap) error {
	for _, id := range m.gone {
		if err := m.bury(ctx, id, reap); err != nil {
			return err
		}
	}
	return nil
}

// bury reaps a process and closes it: who sees the close may rely on the rest.
func (m *Member) bury(ctx context.Context, id string, reap Reap) error {
	if err := m.bus.syncHead(ctx); err != nil {
		return err
	}
	if !m.Alive(id) {
		return nil
	}
	if err := reap(ctx, id); err != nil {
		return err
	}
	return m.close(ctx, id, Lost)
}

// close records the end of a process, unless that is known.
func (m *Member) close(ctx context.Context, id, reason string) error {
	home := m.opts.Home
	if p, ok := m.peers()[id]; ok {
		home = p.home
	}
	_, err := m.model.Runtimes.Dispatch(ctx, m.bus.opts.Workspace, home, m.meta(), runtime.Close{Runtime: id, Reason: reason})
	if fault.Is(err, fault.RuntimeClosed) {
		return nil
	}
	return err
}

// Run keeps this process alive among its peers, and buries those that are gone,
// until ctx ends, whose error it returns. Any other error ends the process: kind
// runtime_closed when its peers have given it up and closed it in the log,
// bus_unavailable when the connection to the bus is over.
func (m *Member) Run(ctx context.Context, reap Reap) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return m.renew(ctx) })
	all.Go(func() error { return m.watch(ctx, reap) })
	all.Go(func() error {
		_, err := m.model.Runtimes.Wait(ctx, m.bus.opts.Workspace, m.opts.Home, func(s runtime.State) bool {
			_, live := s.Live[m.opts.Runtime]
			return !live
		})
		if err == nil {
			err = fault.New("run", fault.RuntimeClosed, redact.Static("the other runtimes of this home gave this one up, and closed it in the log"))
		}
		return err
	})
	return all.Wait()
}

// renew keeps the lease. One that has run out is taken again, as long as the log
// has this process as live: nothing was closed meanwhile.
func (m *Member) renew(ctx context.Context) error {
	tick := time.NewTicker(m.lease.ttl / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if m.bus.nc.IsClosed() {
			return fault.New("run", fault.BusUnavailable, redact.Static("the bus does not take this process back"))
		}
		for range 2 {
			if err := m.renewOnce(ctx); err == nil || ctx.Err() != nil || !m.bus.Connected() {
				break
			} else {
				m.bus.log.Warn("the lease is not renewed", "error", err.Error())
			}
		}
	}
}

func (m *Member) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.lease.ttl/4)
	defer cancel()
	err := m.lease.renew(ctx)
	if !errors.Is(err, errLapsed) {
		return err
	}
	if err := m.bus.syncHead(ctx); err != nil {
		return err
	}
	if !m.Alive(m.opts.Runtime) {
		return nil // Run ends
	}
	return m.lease.take(ctx)
}

// sight is what is known of a peer that gives no answer.
type sight struct {
	since  time.Time // of the first question without an answer
	absent time.Time // since when nobody is at the address; zero when somebody may be
	tries  int
}

// watch asks every peer whether it is alive, and buries who is not.
func (m *Member) watch(ctx context.Context, reap Reap) error {
	tick := time.NewTicker(m.lease.ttl / 12)
	defer tick.Stop()
	sights := make(map[string]*sight)
	well := time.Now() // since when we are
	reconnects := m.bus.nc.Stats().Reconnects
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		m.follow()
		peers := m.peers()
		maps.DeleteFunc(sights, func(id string, _ *sight) bool { _, ok := peers[id]; return !ok })
		if n := m.bus.nc.Stats().Reconnects; n != reconnects || m.bus.nc.Status() != nats.CONNECTED || !m.hears() {
			// What we did not hear says nothing.
			reconnects, well = n, time.Now()
			clear(sights)
			continue
		}
		var asked sync.WaitGroup
		answers := make(map[string]error, len(peers))
		var mu sync.Mutex
		for id := range peers {
			asked.Go(func() {
				err := m.ask(ctx, id, m.lease.ttl/6, verbAlive, nil)
				mu.Lock()
				defer mu.Unlock()
				answers[id] = err
			})
		}
		asked.Wait()
		now := time.Now()
		for id, err := range answers {
			if err == nil {
				delete(sights, id)
				continue
			}
			s := sights[id]
			if s == nil {
				s = &sight{since: now}
				sights[id] = s
			}
			s.tries++
			switch {
			case !errors.Is(err, ErrNoAddress):
				s.absent = time.Time{}
			case s.absent.IsZero():
				s.absent = now
			}
			gone := !s.absent.IsZero() && now.Sub(s.absent) >= silence && now.Sub(well) >= silence
			if !gone && s.tries > 1 && now.Sub(s.since) >= hush && m.Valid() == nil {
				held, err := m.bus.held(ctx, id)
				gone = err == nil && !held
			}
			if !gone || !m.hears() {
				continue
			}
			m.bus.log.Warn("a runtime of this home is gone", "runtime", id)
			if err := m.bury(ctx, id, reap); err != nil && ctx.Err() == nil {
				m.bus.log.Error("what a runtime left open is not closed yet", "runtime", id, "error", err.Error())
			}
		}
	}
}

// hears reports whether it means something that nobody is at an address. A server
// that was cut off from its cluster knows nobody, and renews no lease; the one of
// a store knows best, however slow its disk is.
func (m *Member) hears() bool { return !m.bus.replicated || m.Valid() == nil }

// Leave records the end of this process, in order: call it when it has nothing
// open any more. Peers that ask afterwards find nobody.
func (m *Member) Leave(ctx context.Context, reason string) (err error) {
	m.leaving.Do(func() {
		if m.Alive(m.opts.Runtime) {
			err = m.close(ctx, m.opts.Runtime, reason)
		}
		_ = m.lease.end(ctx) // ends by itself
		m.silent()
	})
	return err
}
