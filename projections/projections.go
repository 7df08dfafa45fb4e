// Package projections answers what people and programs ask, from the log. Each
// package below it is one projection: a pure fold of commits and a query face.
// Projections are disposable: they hold nothing that the log does not, and one
// made afresh equals the one that lived (R208). They perform no effect and read no
// clock; the times they know are those of commits, and whoever asks about a
// moment says which.
//
// Those of a Set live in memory and follow the log together, from its beginning or
// from a snapshot that the bus keeps of them. The audit file lies
// on disk and follows by itself: nothing else waits for it.
package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/grants"
	"github.com/gatebus/gatebus/projections/internal/canon"
	"github.com/gatebus/gatebus/projections/internal/connections"
	"github.com/gatebus/gatebus/projections/servers"
	"github.com/gatebus/gatebus/projections/sessions"
)

// Source is the log as projections read it. Commits are shared and not changed.
type Source interface {
	// Read yields the commits after a sequence up to the head.
	Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error]
	// FollowLate yields the commits after a sequence and goes on with new ones; it
	// ends with an error only. What soon does not accept may come later by late, but not
	// once something came from asked. soon must not block.
	FollowLate(ctx context.Context, after uint64, late time.Duration, soon func(*events.Commit) bool, asked <-chan struct{}) iter.Seq2[*events.Commit, error]
	// Head is the sequence of the newest commit; 0 when the log is empty.
	Head() uint64
}

// Projection is one read model. The queries of each may be called from any
// goroutine; what is here is for the set, under the one lock of all of them.
type Projection interface {
	// Name is that of the package.
	Name() string
	// Apply folds one commit.
	Apply(*events.Commit)
	// State points to all that the projection holds: a struct whose fields, those of
	// what they hold included, are exported.
	State() any
}

// Set holds one of each projection in memory and folds the log into them.
type Set struct {
	Approvals *approvals.Projection
	Catalog   *catalog.Projection
	Grants    *grants.Projection
	Servers   *servers.Projection
	Sessions  *sessions.Projection

	// shared is the fold that the others look at; its lock is held over each commit,
	// and to keep all projections at one sequence.
	shared *connections.Projection
	all    []Projection // shared is the first
	// folding is held by whoever folds, and to keep it waiting while queries go on.
	folding sync.Mutex

	wanted atomic.Uint64 // the last commit that somebody waits for, or did
	asked  chan struct{} // capacity 1: somebody has begun to wait

	mu      sync.Mutex
	running bool
	status  Status
	wake    chan struct{} // closed at the next change; nil when nobody waits
}

// Status is how far a Set is and whether it is well.
type Status struct {
	// Applied is the sequence of the last commit that every projection has.
	Applied uint64
	// Events is how many events those commits hold.
	Events uint64
	// Err is why the Set has stopped; nil while it runs. What it answers from then
	// on is as old as Applied says.
	Err error
}

// Failure says that a projection panicked. The fold of that commit is not
// finished and the Set goes no further.
type Failure struct {
	Projection string
	Seq        uint64
	// Stack is where; it holds no data of the log.
	Stack []byte
}

// Error names the projection and the commit. What was panicked with is left out,
// as it may hold a part of the event.
func (f *Failure) Error() string {
	return fmt.Sprintf("projections: %s failed at commit %d", f.Projection, f.Seq)
}

// New makes an empty set.
func New() *Set {
	c := new(connections.Projection)
	s := &Set{
		Approvals: approvals.New(c), Catalog: catalog.New(c), Grants: grants.New(&c.RWMutex),
		Servers: servers.New(c), Sessions: sessions.New(c), shared: c, asked: make(chan struct{}, 1),
	}
	s.all = []Projection{c, s.Approvals, s.Catalog, s.Grants, s.Servers, s.Sessions}
	return s
}

// Run folds the log from its beginning, or from what was restored, and goes on with new commits until ctx
// ends or the fold can not go on. It always returns an error: the context's, the
// source's (events.ErrUnknown among them), a *Failure, or one that says that the
// log has a hole. A Set runs once.
func (s *Set) Run(ctx context.Context, src Source) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		return errors.New("projections: a set runs once")
	}
	err := s.follow(ctx, src)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
	s.notify()
	return err
}

// late is how long the Set may know nothing of what nobody waits for.
const late = 50 * time.Millisecond

// soon reports whether a commit is to be folded at once. Those of a call that nobody
// is asked about are most of a log; what they change here is asked for by who waits.
func (s *Set) soon(c *events.Commit) bool {
	if c.Aggregate.Kind != events.KindCall || c.Seq <= s.wanted.Load() {
		return true
	}
	for _, e := range c.Events {
		switch e := e.(type) {
		case events.CallRequested, events.UrlDecision, events.CallAuthorized, events.CallStarted, events.CallSucceeded:
		case events.ApprovalDecided:
			if !e.Automatic {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// ask has everything folded up to a sequence as soon as it is there.
func (s *Set) ask(seq uint64) {
	for old := s.wanted.Load(); seq > old && !s.wanted.CompareAndSwap(old, seq); old = s.wanted.Load() {
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

func (s *Set) follow(ctx context.Context, src Source) error {
	for c, err := range src.FollowLate(ctx, s.Applied(), late, s.soon, s.asked) {
		if err != nil {
			return fmt.Errorf("projections: follow the log: %w", err)
		}
		if err := s.apply(c); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.New("projections: the log ended")
}

// apply folds one commit into every projection.
func (s *Set) apply(c *events.Commit) error {
	s.folding.Lock()
	defer s.folding.Unlock()
	s.shared.Lock()
	defer s.shared.Unlock()
	if have := s.Applied(); c.Seq != have+1 {
		return fmt.Errorf("projections: commit %d follows %d", c.Seq, have)
	}
	for _, p := range s.all {
		if err := guarded(p, c); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Applied = c.Seq
	s.status.Events += uint64(len(c.Events))
	s.notify()
	return nil
}

func guarded(p Projection, c *events.Commit) (err error) {
	defer func() {
		if recover() != nil {
			err = &Failure{Projection: p.Name(), Seq: c.Seq, Stack: debug.Stack()}
		}
	}()
	p.Apply(c)
	return nil
}

func (s *Set) notify() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// Status is the present state of the set.
func (s *Set) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Applied is the sequence of the last commit that every projection has.
func (s *Set) Applied() uint64 { return s.Status().Applied }

// Wait returns once the commit of the sequence is applied. Errors: the context's,
// and why the set stopped when it stopped before: runtime_closed in an orderly stop.
func (s *Set) Wait(ctx context.Context, seq uint64) error {
	for {
		wake, err := s.reached(seq)
		if wake == nil {
			return err
		}
		s.ask(seq)
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reached gives the channel that is closed at the next change, or nil where there
// is nothing to wait for.
func (s *Set) reached(seq uint64) (wake <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.status.Applied >= seq:
		return nil, nil
	case errors.Is(s.status.Err, context.Canceled):
		return nil, fault.Wrap("projections", fault.RuntimeClosed, redact.Static("the runtime is being stopped"), s.status.Err)
	case s.status.Err != nil:
		return nil, fmt.Errorf("projections: stopped at %d: %w", s.status.Applied, s.status.Err)
	}
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake, nil
}

// Changed returns the sequence applied, once that is later than after. It is for
// long polls: whoever asks looks first, and waits with the sequence it looked at.
// Errors are those of Wait.
func (s *Set) Changed(ctx context.Context, after uint64) (uint64, error) {
	err := s.Wait(ctx, after+1)
	return s.Applied(), err
}

// Compared is one projection beside the same one made afresh.
type Compared struct{ Live, Rebuilt [32]byte }

// Equal reports whether they have the same content.
func (c Compared) Equal() bool { return c.Live == c.Rebuilt }

// Rebuilt is the result of a rebuild. Commits and Events count what was folded,
// up to and with Seq.
type Rebuilt struct {
	Seq, Commits, Events uint64
	Projections          map[string]Compared
}

// Rebuild folds the log afresh beside the set and compares the two at one and
// the same sequence, upTo or a later one. The set is held only while its digests
// are taken; it goes on while the log is read again. A set that has stopped can
// not be compared: what stopped it may have left one projection behind another.
func (s *Set) Rebuild(ctx context.Context, src Source, upTo uint64) (Rebuilt, error) {
	if err := s.Wait(ctx, upTo); err != nil {
		return Rebuilt{}, err
	}
	at, live := s.digests()
	if status := s.Status(); status.Err != nil {
		return Rebuilt{}, fmt.Errorf("projections: rebuild: stopped at %d: %w", status.Applied, status.Err)
	}
	fresh, _, err := AsOf(ctx, src, at)
	if err != nil {
		return Rebuilt{}, err
	}
	_, rebuilt := fresh.digests()
	out := Rebuilt{Seq: at, Commits: at, Events: fresh.Status().Events, Projections: make(map[string]Compared, len(s.all))}
	for name, digest := range live {
		out.Projections[name] = Compared{Live: digest, Rebuilt: rebuilt[name]}
	}
	return out, nil
}

// AsOf is a set as it was after a commit, and the time of that commit: the log
// is folded up to there, beside the live set. Errors: ErrAhead, the context's,
// and what Run can end with.
func AsOf(ctx context.Context, src Source, seq uint64) (*Set, time.Time, error) {
	s := New()
	if seq == 0 {
		return s, time.Time{}, nil
	}
	for c, err := range src.Read(ctx, 0) {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = s.apply(c)
		}
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("projections: fold up to %d: %w", seq, err)
		}
		if c.Seq == seq {
			return s, c.Time, nil
		}
	}
	return nil, time.Time{}, fmt.Errorf("%w %d, not at %d", ErrAhead, s.Applied(), seq)
}

// ErrAhead says that the log does not reach so far.
var ErrAhead = errors.New("projections: the log ends at")

// digests holds the set at the sequence it is at.
func (s *Set) digests() (at uint64, all map[string][32]byte) {
	s.shared.RLock()
	defer s.shared.RUnlock()
	all = make(map[string][32]byte, len(s.all))
	for _, p := range s.all {
		all[p.Name()] = canon.Sum(p.State())
	}
	return s.Applied(), all
}
