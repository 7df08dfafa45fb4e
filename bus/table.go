package bus

import (
	"context"
	"encoding/gob"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// commandsKept is how many command ids an aggregate remembers.
	commandsKept = 16
	// keepEnded is how long an aggregate stays after its end (decision 15).
	keepEnded = 10 * time.Minute
	// maxForgotten bounds the ids of aggregates that left, for each table.
	maxForgotten = 1 << 16
)

// Decider is the rules of one kind of aggregate, as pure functions.
type Decider[S, C any] struct {
	Kind events.Kind
	// Decide says what happens when a command meets a state; an error is a refusal
	// and nothing happens.
	Decide func(S, C) ([]events.Event, error)
	// Evolve is the state after an event. It must not change what the old state
	// points to: states are handed out.
	Evolve func(S, events.Recorded) S
	// Ended says since when an aggregate is over; nil when its kind lives for ever.
	Ended func(S) (at time.Time, ok bool)
}

// Address is an aggregate in its workspace.
type Address struct {
	Workspace string
	events.AggregateID
}

// Table holds the states of all living aggregates of one kind, folded from the
// log. Its methods may be called from any goroutine.
type Table[S, C any] struct {
	bus    *Bus
	rules  Decider[S, C]
	mu     sync.RWMutex
	rows   map[Address]*row[S]
	ended  []Address // what is over and has not left, in the order of their ends
	now    time.Time // of the newest commit
	gone   set
	awaits map[Address]*await
	saving *saving[S] // nil while no snapshot of the table is being written
	epoch  uint32     // of that snapshot, or of the last one

	changes atomic.Uint64 // how often it was folded or restored
}

// row is one aggregate. Snapshots hold what is exported.
type row[S any] struct {
	State    S
	Seq      uint64
	Commands []commandRef // the last ones, oldest first
	epoch    uint32       // it is in that snapshot already, or no part of it
}

type commandRef struct {
	ID  string
	Seq uint64
}

// await is who waits for the next change of an aggregate.
type await struct {
	changed chan struct{}
	waiters int
}

// folder is a table without its types.
type folder interface {
	fold(*events.Commit)
	beginSave()
	endSave()
	save(*gob.Encoder) error
	restore(*gob.Decoder) (install func(), err error)
}

// Register makes the table of a kind. It must be called before Load, once for
// each kind.
func Register[S, C any](b *Bus, d Decider[S, C]) *Table[S, C] {
	if err := savable(reflect.TypeFor[S]()); err != nil {
		panic("bus: no snapshot can hold " + err.Error())
	}
	t := &Table[S, C]{bus: b, rules: d, rows: make(map[Address]*row[S]), awaits: make(map[Address]*await)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded || b.tables[d.Kind] != nil {
		panic("bus: " + string(d.Kind) + " is registered twice, or after Load")
	}
	b.tables[d.Kind] = t
	return t
}

func (t *Table[S, C]) address(workspace, key string) Address {
	return Address{workspace, events.AggregateID{Kind: t.rules.Kind, Key: key}}
}

// Get is the state of an aggregate; the zero state when there is none, or when
// it ended more than ten minutes ago.
func (t *Table[S, C]) Get(workspace, key string) S {
	state, _ := t.get(t.address(workspace, key))
	return state
}

// Seq is the sequence of the last commit of an aggregate; 0 when there is none.
func (t *Table[S, C]) Seq(workspace, key string) uint64 {
	_, seq := t.get(t.address(workspace, key))
	return seq
}

func (t *Table[S, C]) get(a Address) (state S, seq uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if r := t.rows[a]; r != nil {
		return r.State, r.Seq
	}
	return state, 0
}

// Forgotten reports whether an aggregate ended and left the table, as far as is
// remembered: the last 65536 of a kind are.
func (t *Table[S, C]) Forgotten(workspace, key string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.gone.has(t.address(workspace, key))
}

// All yields the aggregates that are there now, in no order. What changes
// meanwhile is not seen.
func (t *Table[S, C]) All() iter.Seq2[Address, S] {
	type pair struct {
		address Address
		state   S
	}
	return func(yield func(Address, S) bool) {
		t.mu.RLock()
		all := make([]pair, 0, len(t.rows))
		for a, r := range t.rows {
			all = append(all, pair{a, r.State})
		}
		t.mu.RUnlock()
		for _, p := range all {
			if !yield(p.address, p.state) {
				return
			}
		}
	}
}

// Wait returns the first state of an aggregate that satisfies the condition. It
// is told of changes, it does not poll; of states that follow each other fast it
// may see only the last. Errors: the context's, bus_unavailable at Close.
func (t *Table[S, C]) Wait(ctx context.Context, workspace, key string, ok func(S) bool) (S, error) {
	a := t.address(workspace, key)
	for {
		t.mu.Lock()
		var state S
		if r := t.rows[a]; r != nil {
			state = r.State
		}
		if ok(state) {
			t.mu.Unlock()
			return state, nil
		}
		w := t.awaits[a]
		if w == nil {
			w = &await{changed: make(chan struct{})}
			t.awaits[a] = w
		}
		w.waiters++
		t.mu.Unlock()

		var err error
		select {
		case <-w.changed:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-t.bus.ctx.Done():
			err = errClosed("wait")
		}
		t.mu.Lock()
		if w.waiters--; w.waiters == 0 && t.awaits[a] == w {
			delete(t.awaits, a)
		}
		t.mu.Unlock()
		return state, err
	}
}

// fold takes the next commit of a boundary.
func (t *Table[S, C]) fold(c *events.Commit) {
	a := Address{c.Workspace, c.Aggregate}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.changes.Add(1)
	r := t.rows[a]
	if r == nil {
		r = &row[S]{epoch: t.epoch}
		t.rows[a] = r
	}
	t.preserve(a, r)
	over := t.over(r.State)
	for e := range c.Recorded() {
		r.State = t.rules.Evolve(r.State, e)
	}
	r.Seq = c.Seq
	if len(r.Commands) == commandsKept {
		r.Commands = append(r.Commands[:0], r.Commands[1:]...)
	}
	r.Commands = append(r.Commands, commandRef{c.Command, c.Seq})
	if !over && t.over(r.State) {
		t.ended = append(t.ended, a)
	}
	if w := t.awaits[a]; w != nil {
		close(w.changed)
		delete(t.awaits, a)
	}
	if c.Time.After(t.now) {
		t.now = c.Time
	}
	t.forget()
}

func (t *Table[S, C]) over(state S) bool {
	if t.rules.Ended == nil {
		return false
	}
	_, ok := t.rules.Ended(state)
	return ok
}

// forget drops what ended long before the newest commit. The log's time counts,
// not the clock: a replay forgets what the live table forgot.
func (t *Table[S, C]) forget() {
	for len(t.ended) > 0 {
		a := t.ended[0]
		if r := t.rows[a]; r != nil {
			at, over := t.rules.Ended(r.State)
			if over && t.now.Sub(at) < keepEnded {
				return
			}
			if over {
				t.preserve(a, r)
				delete(t.rows, a)
				t.gone.add(a)
			}
		}
		t.ended = t.ended[1:]
	}
}

// commandSeq is the sequence of the commit of a command, if the aggregate still
// remembers it.
func (t *Table[S, C]) commandSeq(a Address, command string) (uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if r := t.rows[a]; r != nil {
		for _, ref := range r.Commands {
			if ref.ID == command {
				return ref.Seq, true
			}
		}
	}
	return 0, false
}

// set is a bounded set: the oldest leave.
type set struct {
	in    map[Address]struct{}
	order []Address // oldest first; what is there is never overwritten
}

func (s *set) has(a Address) bool { _, ok := s.in[a]; return ok }

func (s *set) add(a Address) {
	if s.has(a) {
		return
	}
	if s.in == nil {
		s.in = make(map[Address]struct{})
	}
	s.in[a] = struct{}{}
	s.order = append(s.order, a)
	if len(s.order) > maxForgotten {
		delete(s.in, s.order[0])
		s.order = s.order[1:]
	}
}

// Load folds the log into the tables, from the newest snapshot on that can be
// used, and opens them for Dispatch. Errors: as Read; home_not_writable.
func (b *Bus) Load(ctx context.Context) error {
	b.mu.Lock()
	again := b.loaded
	b.loaded = true
	b.mu.Unlock()
	if again {
		return fault.New("load", fault.Internal, redact.Static("the bus is loaded already"))
	}
	head, err := b.restore(ctx)
	if err != nil {
		return err
	}
	for c, err := range b.Read(ctx, head) {
		if err != nil {
			return err
		}
		b.fold(c)
		head = c.Seq
	}
	if err := b.enter("load"); err != nil {
		return err
	}
	b.feed.start(head)
	b.open.Store(true)
	go func() {
		defer b.work.Done()
		b.fillGaps()
	}()
	if !b.opts.Worker {
		b.work.Go(b.keepSnapshots)
	}
	if b.server == nil {
		b.follow(true)
	}
	return b.keepAccounts(ctx, head)
}
