package projections

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/gatebus/gatebus/events"
)

// memory is a log in memory.
type memory struct {
	mu      sync.Mutex
	commits []*events.Commit
	grown   chan struct{}
	err     error // what Follow yields behind the last commit
}

func logOf(commits ...*events.Commit) *memory {
	m := &memory{grown: make(chan struct{})}
	for _, c := range commits {
		m.add(c)
	}
	return m
}

// add appends a commit and gives it its sequence unless it has one.
func (m *memory) add(c *events.Commit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Seq == 0 {
		c.Seq = uint64(len(m.commits)) + 1
	}
	m.commits = append(m.commits, c)
	close(m.grown)
	m.grown = make(chan struct{})
}

// fail makes Follow end with an error behind the last commit.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	close(m.grown)
	m.grown = make(chan struct{})
}

func (m *memory) rest(after uint64) ([]*events.Commit, chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.commits, func(c *events.Commit) bool { return c.Seq > after })
	if i < 0 {
		return nil, m.grown, m.err
	}
	return slices.Clone(m.commits[i:]), m.grown, m.err
}

func (m *memory) Head() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.commits) == 0 {
		return 0
	}
	return m.commits[len(m.commits)-1].Seq
}

func (m *memory) Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		rest, _, _ := m.rest(after)
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

func (m *memory) Follow(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for {
			rest, grown, err := m.rest(after)
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

// stored is the commit as it comes back from a real log.
func stored(t testing.TB, c *events.Commit) *events.Commit {
	t.Helper()
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	out, err := events.Decode(c.Seq, data)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// folded is a set with the commits applied.
func folded(t testing.TB, commits []*events.Commit) *Set {
	t.Helper()
	s := New()
	for _, c := range commits {
		if err := s.apply(c); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func digestsOf(s *Set) map[string]string {
	_, all := s.digests()
	out := make(map[string]string, len(all))
	for name, d := range all {
		out[name] = fmt.Sprintf("%x", d[:4])
	}
	return out
}
