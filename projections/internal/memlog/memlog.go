// Package memlog is a log in memory, for the tests of the projections.
package memlog

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
)

// Log is a log in memory. Its methods may be called from any goroutine.
type Log struct {
	mu      sync.Mutex
	Commits []*events.Commit // changed by Add alone
	grown   chan struct{}
	err     error // what Follow yields behind the last commit
}

// Of is a log of commits.
func Of(commits ...*events.Commit) *Log {
	l := &Log{grown: make(chan struct{})}
	for _, c := range commits {
		l.Add(c)
	}
	return l
}

// Add appends a commit and gives it its sequence unless it has one.
func (l *Log) Add(c *events.Commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Seq == 0 {
		c.Seq = uint64(len(l.Commits)) + 1
	}
	l.Commits = append(l.Commits, c)
	close(l.grown)
	l.grown = make(chan struct{})
}

// Fail makes Follow end with an error behind the last commit.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *Log) rest(after uint64) ([]*events.Commit, chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.Commits, func(c *events.Commit) bool { return c.Seq > after })
	if i < 0 {
		return nil, l.grown, l.err
	}
	return slices.Clone(l.Commits[i:]), l.grown, l.err
}

// Head is the sequence of the last commit; 0 when there is none.
func (l *Log) Head() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.Commits) == 0 {
		return 0
	}
	return l.Commits[len(l.Commits)-1].Seq
}

// Read yields the commits after a sequence.
func (l *Log) Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		rest, _, _ := l.rest(after)
		for _, c := range rest {
			if ctx.Err() != nil {
				yield(nil, ctx.Err())
				return
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

// FollowLate is Follow, never late.
func (l *Log) FollowLate(ctx context.Context, after uint64, _ time.Duration, _ func(*events.Commit) bool, _ <-chan struct{}) iter.Seq2[*events.Commit, error] {
	return l.Follow(ctx, after)
}

// Follow yields the commits after a sequence and goes on with those that are
// added.
func (l *Log) Follow(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for {
			rest, grown, err := l.rest(after)
			for _, c := range rest {
				if !yield(c, nil) {
					return
				}
				after = c.Seq
			}
			if len(rest) > 0 {
				continue
			}
			if err != nil {
				yield(nil, err)
				return
			}
			select {
			case <-grown:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}
