package projections

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/audit"
)

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

// written is an audit file of the log, up to its end.
func written(t testing.TB, log audit.Log) (p *audit.Projection, stop func()) {
	t.Helper()
	p = audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx, log) }) // Wait tells why it ended
	stop = func() {
		cancel()
		run.Wait()
	}
	if err := p.Wait(t.Context(), log.Head()); err != nil {
		stop()
		t.Fatal(err)
	}
	return p, stop
}
