package bus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/semaphore"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// maxDecisions bounds how often a command is decided again after conflicts.
	maxDecisions = 8
	// maxDecisionsAmong is the same while there are other processes: who has lost a
	// race begins the next one later than who has won it.
	maxDecisionsAmong = 64
)

// Meta is what the commit of a command says about it (R211).
type Meta struct {
	// Command is the id of the command: the same one again does nothing. Empty ids
	// are minted.
	Command, Correlation string
	// Actor acts, Principal is whose authority it is about.
	Actor, Principal string
	// Time of the command; zero is now.
	Time  time.Time
	Scope events.Scope
}

// With says what else a command depends on.
type With struct {
	// Reads are the aggregates whose facts the command carries: this process changes
	// none of them between the reading and the append, and who changes one elsewhere
	// can wait until this is over (decision 16, [Member.Settle]).
	Reads []events.AggregateID
	// Fence is the aggregate that must not have moved at the append, in place of
	// the own one (decision 20); the zero id is the own one. What another process
	// appended to the own one meanwhile is in the state that is returned: who acts on
	// what happened must see in the state that it holds.
	Fence events.AggregateID
	// Fenced says of what happens whether Fence is for it; nil is all of it. The rest
	// must not have been overtaken on the own boundary.
	Fenced func(happened []events.Event) bool
}

// Decided is what came of a command.
type Decided[S any] struct {
	// Seq is the sequence of the commit; 0 when nothing happened.
	Seq uint64
	// Events are what happened; empty when Repeated.
	Events []events.Event
	// State is that of the aggregate afterwards.
	State S
	// Repeated says that the command had been decided before: what it permits has
	// been begun by who dispatched it first.
	Repeated bool
}

// boundary is one subject of the log.
type boundary struct {
	subject string
	// lock is held over a decision, whole by whose boundary it is and in part by
	// those who read it. A semaphore, as waiting for it ends with the context.
	lock *semaphore.Weighted
	mu   sync.Mutex // orders the folding
	last uint64     // the sequence of its last commit
}

// whole is the weight of an exclusive lock.
const whole = 1 << 30

func (b *Bus) boundary(subject string) *boundary {
	if bd, ok := b.boundaries.Load(subject); ok {
		return bd.(*boundary)
	}
	bd, _ := b.boundaries.LoadOrStore(subject, &boundary{subject: subject, lock: semaphore.NewWeighted(whole)})
	return bd.(*boundary)
}

// place finds boundaries without making their subjects. What shares one of a few
// boundaries with others is found by its shard.
type place struct {
	workspace string
	kind      events.Kind
	key       string // of what has a boundary of its own
	shard     byte
}

// at is the boundary of an aggregate; nil when the workspace or the id is not valid.
func (b *Bus) at(workspace string, id events.AggregateID) *boundary {
	p := place{workspace: workspace, kind: id.Kind, key: id.Key}
	if id.Key != "" && utf8.ValidString(id.Key) && sharded(id.Kind) {
		p.key, p.shard = "", shardOf(id.Key)
	}
	b.placed.RLock()
	bd := b.places[p]
	b.placed.RUnlock()
	if bd != nil {
		return bd
	}
	subject := subjectOf(workspace, id)
	if subject == "" {
		return nil
	}
	bd = b.boundary(subject)
	b.placed.Lock()
	defer b.placed.Unlock()
	if b.places == nil {
		b.places = make(map[place]*boundary)
	}
	b.places[p] = bd
	return bd
}

func (bd *boundary) sequence() uint64 {
	bd.mu.Lock()
	defer bd.mu.Unlock()
	return bd.last
}

// fold gives a commit to its table, once, in the order of its boundary.
func (b *Bus) fold(c *events.Commit) {
	bd := b.at(c.Workspace, c.Aggregate)
	bd.mu.Lock()
	defer bd.mu.Unlock()
	if c.Seq <= bd.last {
		return
	}
	bd.last = c.Seq
	for old := b.known.Load(); c.Seq > old && !b.known.CompareAndSwap(old, c.Seq); old = b.known.Load() {
	}
	if t := b.tables[c.Aggregate.Kind]; t != nil {
		t.fold(c)
	}
}

// adopt takes commits that are in the log: it makes sure that they stay there,
// folds them and gives them to the followers, in this order.
func (b *Bus) adopt(batch ...*events.Commit) error {
	if err := b.durable(eventStream); err != nil {
		return err
	}
	for _, c := range batch {
		b.take(c)
	}
	return nil
}

// take folds a commit that stays in the log.
func (b *Bus) take(c *events.Commit) {
	b.snapshots.gate.RLock()
	defer b.snapshots.gate.RUnlock()
	b.fold(c)
	b.feed.offer(c)
}

// catchUp folds what others appended to a boundary.
func (b *Bus) catchUp(ctx context.Context, subject string) error {
	bd := b.boundary(subject)
	for {
		var batch []message
		err := b.patiently(ctx, func() (err error) {
			batch, err = b.fetch(ctx, subject, bd.sequence()+1)
			return err
		})
		if err != nil || len(batch) == 0 {
			return err
		}
		commits := make([]*events.Commit, len(batch))
		for i, m := range batch {
			if commits[i], err = m.commit(); err != nil {
				return err
			}
		}
		if err := b.adopt(commits...); err != nil {
			return err
		}
	}
}

// locks are those of one decision.
type locks struct {
	own *boundary
	all []*boundary // sorted, each once
	n   int         // how many of them are taken
}

// lock takes the own boundary whole and the others in part, in sorted order, so
// that no two decisions wait for each other.
func lock(ctx context.Context, own *boundary, others ...*boundary) (locks, error) {
	h := locks{own: own, all: append(others, own)}
	slices.SortFunc(h.all, func(a, b *boundary) int { return strings.Compare(a.subject, b.subject) })
	h.all = slices.Compact(h.all)
	for _, bd := range h.all {
		if err := bd.lock.Acquire(ctx, h.weight(bd)); err != nil {
			h.unlock()
			return locks{}, err
		}
		h.n++
	}
	return h, nil
}

func (h *locks) weight(bd *boundary) int64 {
	if bd == h.own {
		return whole
	}
	return 1
}

func (h *locks) unlock() {
	for _, bd := range slices.Backward(h.all[:h.n]) {
		bd.lock.Release(h.weight(bd))
	}
}

// Dispatch decides a command of an aggregate and appends what happens, as one
// commit. No event means that nothing happened: nothing is appended and that is
// no error. A refusal of Decide is returned as it is, with the state. Otherwise
// errors are: the context's before anything is appended; audit_unavailable when
// the log does not take the commit; conflict after too many lost races;
// not_found when the aggregate ended and has left the table.
//
// A conflict is decided again on the newer state; nothing else retries (R205).
func (t *Table[S, C]) Dispatch(ctx context.Context, workspace, key string, m Meta, cmd C) (Decided[S], error) {
	return t.DispatchWith(ctx, workspace, key, m, With{}, func() (C, error) { return cmd, nil })
}

// DispatchWith is Dispatch of a command that is built under the locks of what it
// depends on; build may read tables but must not dispatch. It runs again after a
// conflict.
func (t *Table[S, C]) DispatchWith(ctx context.Context, workspace, key string, m Meta, with With, build func() (C, error)) (Decided[S], error) {
	const op = "dispatch"
	var none Decided[S]
	a := t.address(workspace, key)
	own := t.bus.at(workspace, a.AggregateID)
	if own == nil {
		return none, fault.New(op, fault.InvalidInput, redact.Name("no aggregate: "+workspace+" "+a.String()))
	}
	fence := own
	others := make([]*boundary, 0, len(with.Reads)+2)
	for _, id := range with.Reads {
		others = append(others, t.bus.at(workspace, id))
	}
	if with.Fence != (events.AggregateID{}) {
		fence = t.bus.at(workspace, with.Fence)
		others = append(others, fence)
	}
	if slices.Contains(others, nil) {
		return none, fault.New(op, fault.InvalidInput, redact.Static("a command depends on what is no aggregate"))
	}
	if m.Command == "" {
		m.Command = ulid.Make().String()
	}
	if m.Correlation == "" {
		m.Correlation = m.Command
	}
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	if !t.bus.open.Load() {
		return none, fault.New(op, fault.AuditUnavailable, redact.Static("the log is not loaded"))
	}
	if err := t.bus.enter(op); err != nil {
		return none, err
	}
	defer t.bus.work.Done()
	locks, err := lock(ctx, own, others...)
	if err != nil {
		return none, err
	}
	defer locks.unlock()

	tries := maxDecisions
	if !t.bus.alone() {
		tries = maxDecisionsAmong
	}
	for range tries {
		if err := ctx.Err(); err != nil {
			return none, err
		}
		d, err := t.decide(ctx, a, own, fence, m, with.Fenced, build)
		if !errors.Is(err, errConflict) {
			return d, err
		}
		for _, bd := range slices.Compact([]*boundary{own, fence}) {
			if err := t.bus.catchUp(ctx, bd.subject); err != nil {
				return none, asFault(op, fault.AuditUnavailable, redact.Static("the log cannot be read"), err)
			}
		}
	}
	return none, fault.New(op, fault.Conflict, redact.Name("too many others change "+a.String()))
}

// decide is one try of a dispatch, under its locks.
func (t *Table[S, C]) decide(ctx context.Context, a Address, own, fence *boundary, m Meta, fenced func([]events.Event) bool, build func() (C, error)) (d Decided[S], err error) {
	// The sequences come first: what others append, and the feed folds, while this
	// is decided must be a conflict.
	bus := t.bus
	before, stood := own.sequence(), fence.sequence()
	d.State, _ = t.get(a)
	if seq, ok := t.commandSeq(a, m.Command); ok {
		d.Seq, d.Repeated = seq, true
		return d, nil
	}
	if t.Forgotten(a.Workspace, a.Key) {
		return d, fault.New("dispatch", fault.NotFound, redact.Name(a.String()+" has ended"))
	}
	cmd, err := build()
	if err != nil {
		return d, err
	}
	happened, err := t.rules.Decide(d.State, cmd)
	if err != nil || len(happened) == 0 {
		return d, err
	}
	if fenced != nil && !fenced(happened) {
		fence, stood = own, before
	}
	c := &events.Commit{
		Command: m.Command, Correlation: m.Correlation, Actor: m.Actor, Principal: m.Principal,
		Workspace: a.Workspace, Aggregate: a.AggregateID, Time: time.Unix(0, m.Time.UnixNano()).UTC(), Scope: m.Scope, Events: happened,
	}
	c.Seq, err = bus.append(ctx, own.subject, c, expectation{fence.subject, stood}, before)
	if err != nil {
		return d, err
	}
	defer func() {
		if err != nil {
			bus.feed.disown(c.Seq)
		}
	}()
	// A fence does not say that the own boundary stood still. When every sequence
	// before ours is known, or of another boundary that is being decided here, it did.
	if fence != own && !bus.feed.known(c.Seq) {
		// Without it nobody could say whether what happened holds.
		if err := bus.catchUp(context.WithoutCancel(ctx), own.subject); err != nil {
			return d, asFault("dispatch", fault.AuditUnavailable, redact.Static("the own boundary cannot be read after a fenced append"), err)
		}
	}
	if err := bus.adopt(c); err != nil {
		return d, fault.Wrap("dispatch", fault.AuditUnavailable, redact.Static("the event cannot be made durable"), err)
	}
	d.Seq, d.Events = c.Seq, happened
	d.State, _ = t.get(a)
	return d, nil
}
