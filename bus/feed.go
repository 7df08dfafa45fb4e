package bus

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
)

const (
	// feedSize is how many commits a follower may lag behind before it reads from
	// the log again.
	feedSize = 4096
	// nudge is how many commits a follower may lag behind whom none of them concerns:
	// it looks at them in the ring, not in the log.
	nudge = feedSize / 4
	// gapPatience is how long a sequence may be missing before it is fetched:
	// appends of this process are given to the feed a moment after they are stored.
	gapPatience = 20 * time.Millisecond
)

// feed puts the commits that were appended in the order of their sequences and
// lets followers take them. Nothing is read back from the log on the way, and
// nobody who appends waits for a follower.
type feed struct {
	mu    sync.Mutex
	head  uint64                    // every commit up to it was given out
	ring  [feedSize]*events.Commit  // the last ones, by sequence
	first uint64                    // the oldest in the ring
	early map[uint64]*events.Commit // appended behind a gap
	ours  map[uint64]struct{}       // appended by this process and not offered yet
	err   error                     // why the feed has ended
	wake  chan struct{}             // closed at the next change; nil when nobody waits
	gap   chan struct{}             // tells fillGaps that something is early

	followers map[*follower]struct{}
}

// follower is who takes commits from the feed.
type follower struct {
	// wants says which commits to be woken for; nil is all. It is called once for each
	// that is given out, in their order, and decides nothing else.
	wants func(*events.Commit) bool
	wake  chan struct{} // capacity 1, full while there may be something
	at    uint64        // what it has; guarded by feed.mu
	// late is how long what it does not want may lie before it is woken; 0 is for ever.
	late  time.Duration
	alarm *time.Timer // wakes it then; nil until something lies there
	armed bool        // alarm runs; guarded by feed.mu
}

// join makes a follower of what comes after a sequence.
func (f *feed) join(after uint64, wants func(*events.Commit) bool) *follower {
	return f.joinLate(after, wants, 0)
}

// joinLate makes one that is woken a little later for what it does not want.
func (f *feed) joinLate(after uint64, wants func(*events.Commit) bool, late time.Duration) *follower {
	fo := &follower{wants: wants, wake: make(chan struct{}, 1), at: after, late: late}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.followers == nil {
		f.followers = make(map[*follower]struct{})
	}
	f.followers[fo] = struct{}{}
	return fo
}

func (f *feed) leave(fo *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.followers, fo)
	if fo.alarm != nil {
		fo.alarm.Stop()
	}
}

// signal wakes a follower.
func (fo *follower) signal() {
	select {
	case fo.wake <- struct{}{}:
	default:
	}
}

// lie notes that something lies there which a follower does not want.
func (f *feed) lie(fo *follower) {
	if fo.late == 0 || fo.armed {
		return
	}
	fo.armed = true
	if fo.alarm != nil {
		fo.alarm.Reset(fo.late)
		return
	}
	fo.alarm = time.AfterFunc(fo.late, func() {
		f.mu.Lock()
		fo.armed = false
		f.mu.Unlock()
		fo.signal()
	})
}

// start makes the feed begin behind head.
func (f *feed) start(head uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.head, f.first = head, head+1
	f.early = make(map[uint64]*events.Commit)
	f.ours = make(map[uint64]struct{})
	f.gap = make(chan struct{}, 1)
	f.notify()
}

func (f *feed) last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head
}

// has reports whether a sequence was offered.
func (f *feed) has(seq uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return seq <= f.head || f.early[seq] != nil
}

// appended says that this process has appended a commit, which it offers before it
// decides anything else on that boundary, or disowns.
func (f *feed) appended(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq > f.head && f.ours != nil {
		f.ours[seq] = struct{}{}
	}
}

// disown says of a commit that was appended that it is not going to be offered.
func (f *feed) disown(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ours, seq)
}

// known reports whether each commit before a sequence was offered, or appended by
// this process.
func (f *feed) known(seq uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := f.head + 1; s < seq; s++ {
		if _, ok := f.ours[s]; !ok && f.early[s] == nil {
			return false
		}
	}
	return true
}

// until gives the channel that is closed at the next change while the head is
// before a sequence; nil when it is there, or will never be.
func (f *feed) until(seq uint64) (more <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head >= seq {
		return nil, nil
	}
	if f.err != nil {
		return nil, f.err
	}
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	return f.wake, nil
}

// offer takes a commit that is in the log; twice does no harm.
func (f *feed) offer(c *events.Commit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Seq <= f.head || f.err != nil {
		return
	}
	head := f.head
	if c.Seq > f.head+1 {
		f.early[c.Seq] = c
	}
	for next, ok := c, c.Seq == f.head+1; ok; next, ok = f.early[f.head+1], f.early[f.head+1] != nil {
		delete(f.early, next.Seq)
		delete(f.ours, next.Seq)
		f.head = next.Seq
		f.ring[f.head%feedSize] = next
		for fo := range f.followers {
			if fo.wants == nil || fo.wants(next) || f.head-fo.at >= nudge {
				fo.signal()
			} else {
				f.lie(fo)
			}
		}
		if f.head-f.first >= feedSize {
			f.first = f.head - feedSize + 1
		}
	}
	if f.head > head {
		f.notify()
	}
	if len(f.early) > 0 {
		select {
		case f.gap <- struct{}{}:
		default:
		}
	}
}

// fail ends the feed; followers get the error after the last good commit.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		f.notify()
		for fo := range f.followers {
			fo.signal()
		}
	}
}

// broken is why the feed has ended.
func (f *feed) broken() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *feed) notify() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// missing is the gap before the earliest of the early commits: (after, until).
func (f *feed) missing() (after, until uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for seq := range f.early {
		if !ok || seq < until {
			until, ok = seq, true
		}
	}
	return f.head, until, ok
}

// take gives the commits behind a sequence that are in the ring. When there is
// none, it gives the head if the follower has to read up to it from the log, or
// nothing, and the follower is woken when there is more.
func (f *feed) take(fo *follower, after uint64, into []*events.Commit) (batch []*events.Commit, head uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fo.at = after
	switch {
	case after < f.head && after+1 < f.first:
		return nil, f.head, nil
	case after < f.head:
		for seq := after + 1; seq <= f.head && len(into) < cap(into); seq++ {
			into = append(into, f.ring[seq%feedSize])
		}
		return into, 0, nil
	}
	return nil, 0, f.err
}

// Follow yields the commits after a sequence, in order, and goes on with what is
// appended. It ends with an error: the context's, bus_unavailable when the bus
// closes, or what Read can end with. A follower that is slow holds nobody up: it
// reads from the log what it missed. Commits are shared: do not change them.
func (b *Bus) Follow(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return b.FollowSome(ctx, after, nil)
}

// FollowSome is Follow of the commits that wants accepts; nil accepts all. The
// others wake nobody: most commits of a busy process are calls, and most followers
// do not care. wants is quick and takes no lock.
func (b *Bus) FollowSome(ctx context.Context, after uint64, wants func(*events.Commit) bool) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		some := func(c *events.Commit, err error) bool {
			if err == nil && wants != nil && !wants(c) {
				return true
			}
			return yield(c, err)
		}
		fo := b.feed.join(after, wants)
		defer b.feed.leave(fo)
		b.takeAll(ctx, fo, after, nil, some)
	}
}

// FollowLate is Follow of all commits by who is in no hurry: those that soon does
// not accept are given a little later, together with those that came meanwhile, but
// at once when something comes from asked. To wake somebody for each commit costs
// more than most do with it. soon is quick and takes no lock.
func (b *Bus) FollowLate(ctx context.Context, after uint64, late time.Duration, soon func(*events.Commit) bool, asked <-chan struct{}) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		fo := b.feed.joinLate(after, soon, late)
		defer b.feed.leave(fo)
		b.takeAll(ctx, fo, after, asked, yield)
	}
}

// takeAll gives a follower the commits after a sequence until it has enough.
func (b *Bus) takeAll(ctx context.Context, fo *follower, after uint64, asked <-chan struct{}, yield func(*events.Commit, error) bool) {
	buf := make([]*events.Commit, 0, 64)
	for {
		batch, head, err := b.feed.take(fo, after, buf[:0])
		switch {
		case err != nil:
			yield(nil, err)
			return
		case head > 0:
			if !b.read(ctx, after, head, yield) {
				return
			}
			after = head
		case len(batch) == 0:
			select {
			case <-fo.wake:
			case <-asked:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			case <-b.ctx.Done():
				yield(nil, errClosed("follow log"))
				return
			}
		}
		for _, c := range batch {
			if !yield(c, nil) {
				return
			}
			after = c.Seq
		}
	}
}

// fillGaps fetches what others appended: a sequence that stays missing from the
// feed is a commit of another process, folded here like our own, or a hole.
func (b *Bus) fillGaps() {
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.feed.gap:
		}
		for {
			before, _, ok := b.feed.missing()
			if !ok {
				break
			}
			select {
			case <-b.ctx.Done():
				return
			case <-time.After(gapPatience):
			}
			after, until, ok := b.feed.missing()
			if !ok || after != before {
				continue
			}
			_ = b.fill(b.ctx, after, until-1) // tried again, or the feed is broken
			if b.feed.broken() != nil {
				return
			}
		}
	}
}
