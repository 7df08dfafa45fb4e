package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// tail follows the log for the sake of what other processes append. A process
// that is alone on an embedded bus needs none.
type tail struct {
	mu   sync.Mutex
	stop context.CancelFunc // nil while it does not run
}

// follow makes the tail run, or not. It may be called from any goroutine.
func (b *Bus) follow(on bool) {
	t := &b.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case on && t.stop == nil:
		if b.enter("follow log") != nil {
			return
		}
		ctx, cancel := context.WithCancel(b.ctx)
		t.stop = cancel
		go func() {
			defer b.work.Done()
			var both sync.WaitGroup
			both.Go(func() { b.keepFollowing(ctx) })
			both.Go(func() { b.keepLooking(ctx) })
			both.Wait()
		}()
	case !on && t.stop != nil:
		t.stop()
		t.stop = nil
	}
}

func (b *Bus) keepFollowing(ctx context.Context) {
	for ctx.Err() == nil && b.feed.broken() == nil {
		if err := b.followOnce(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("the log is not followed, beginning again", "error", err.Error())
			b.pause(ctx, lastPause)
		}
	}
}

// keepLooking reads what the consumer lacks: it tries for long to be made again,
// and the log may say meanwhile that this process was given up.
func (b *Bus) keepLooking(ctx context.Context) {
	for b.pause(ctx, lookEvery) && b.feed.broken() == nil {
		_ = b.syncHead(ctx) // tried again
	}
}

// lookEvery is how long a process may lag behind by its consumer's fault.
const lookEvery = 5 * time.Second

// followOnce takes commits from a consumer until it fails.
func (b *Bus) followOnce(ctx context.Context) error {
	c, err := b.js.OrderedConsumer(ctx, eventStream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: b.feed.last() + 1,
	})
	if err != nil {
		return err
	}
	messages, err := c.Messages(jetstream.PullHeartbeat(tailHeartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	// Stop ends the tries to make the consumer anew; one that was made just then would
	// be waited on for ever, so Next has the context as well.
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		seq := meta.Sequence.Stream
		if b.feed.has(seq) {
			continue // our own
		}
		c, err := message{subject: m.Subject(), seq: seq, data: m.Data()}.commit()
		if err != nil {
			b.unreadable(err)
			return err
		}
		if err := b.adopt(c); err != nil {
			return err
		}
	}
}

// tailHeartbeat is how soon a consumer that has died is made again.
const tailHeartbeat = 2 * time.Second

// unreadable ends the feed when an error says that the log can never be read on.
func (b *Bus) unreadable(err error) {
	// What does not answer is asked again; what is not there never will be.
	if fault.KindOf(err) == fault.AuditDamaged || errors.Is(err, events.ErrUnknown) {
		if fault.KindOf(err) == fault.AuditDamaged {
			b.turnReadOnly(err)
		}
		b.log.Error("the log cannot be followed", "error", err.Error())
		b.feed.fail(err)
	}
}

// Reached returns when every commit up to a sequence is folded here. What does
// not come by itself in a moment is read from the log. Errors: the context's,
// bus_unavailable at Close, audit_unavailable when the log cannot be read, and
// why the feed has ended.
func (b *Bus) Reached(ctx context.Context, seq uint64) error {
	for {
		more, err := b.feed.until(seq)
		if more == nil {
			return err
		}
		select {
		case <-more:
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-b.ctx.Done():
			return errClosed("follow log")
		case <-time.After(gapPatience):
		}
		head, err := b.stored(ctx)
		if err == nil {
			err = b.fill(ctx, b.feed.last(), min(head, seq)) // a sequence may be yet to come
		}
		if err != nil {
			return err
		}
	}
}

// fill folds the commits (after, until] from the log.
func (b *Bus) fill(ctx context.Context, after, until uint64) error {
	failed := b.durable(eventStream)
	if failed != nil {
		return failed
	}
	b.read(ctx, after, until, func(c *events.Commit, err error) bool {
		if failed = err; err != nil {
			b.unreadable(err)
			return false
		}
		b.take(c)
		return true
	})
	return failed
}

// heads asks for the last sequence of the log, once for all who wait.
type heads struct {
	mu   sync.Mutex
	next *headRound // that begins when the one under way has ended
	busy bool
}

// headRound is one question that several may wait for.
type headRound struct {
	done chan struct{}
	seq  uint64
	err  error
}

// Sync returns when the model has every commit that was stored before it was
// called. It costs nothing while this process is alone on an embedded bus. (Of a
// cluster it asks the leader; one that was cut off, and replaced without knowing
// it yet, can leave out the last commits for a moment.) Errors: as [Bus.Reached].
func (b *Bus) Sync(ctx context.Context) error {
	if b.alone() {
		return nil
	}
	const op = "sync"
	h := &b.heads
	h.mu.Lock()
	r := h.next
	if r == nil {
		r = &headRound{done: make(chan struct{})}
		h.next = r
		if !h.busy {
			if err := b.enter(op); err != nil {
				h.next = nil
				h.mu.Unlock()
				return err
			}
			h.busy = true
			go b.askHeads()
		}
	}
	h.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.err != nil {
		return r.err
	}
	return b.Reached(ctx, r.seq)
}

// askHeads answers the rounds, each by a question that is sent after everybody
// who waits for it has come.
func (b *Bus) askHeads() {
	defer b.work.Done()
	h := &b.heads
	for {
		h.mu.Lock()
		r := h.next
		h.next = nil
		h.busy = r != nil
		h.mu.Unlock()
		if r == nil {
			return
		}
		r.seq, r.err = b.stored(b.ctx)
		close(r.done)
	}
}

// alone reports whether nobody else appends: the store is in this process and
// the log names no other one of the workspace.
func (b *Bus) alone() bool {
	if b.server == nil {
		return false
	}
	m := b.member.Load()
	return m == nil || m.alone()
}

// Settled returns when the tables have every commit that was stored at the call, also
// one of this process whose answer did not come. It fails while the log takes no
// appends: what became of the last one is not known then. alone says that no other
// process can have a commit on its way.
func (b *Bus) Settled(ctx context.Context) (alone bool, err error) {
	const op = "settle log"
	if err := b.LogErr(); err != nil {
		return false, fault.Wrap(op, fault.AuditUnavailable, redact.Static("the log takes no appends"), err)
	}
	alone = b.alone()
	if err := b.syncHead(ctx); err != nil {
		return false, asFault(op, fault.AuditUnavailable, redact.Static("the log cannot be read"), err)
	}
	return alone, nil
}

// syncHead is Sync also for who is alone.
func (b *Bus) syncHead(ctx context.Context) error {
	seq, err := b.stored(ctx)
	if err != nil {
		return err
	}
	return b.Reached(ctx, seq)
}
