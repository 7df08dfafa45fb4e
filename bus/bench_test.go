package bus

import (
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
)

// BenchmarkDispatch is one decision: one commit in the log.
func BenchmarkDispatch(b *testing.B) {
	for _, publishers := range []int{1, 16} {
		b.Run(fmt.Sprint(publishers), func(b *testing.B) {
			tb := open(b, Options{})
			var n atomic.Int64
			b.SetParallelism(max(publishers/2, 1))
			b.ReportAllocs()
			run := func() {
				if _, err := tb.sessions.Dispatch(context.Background(), "default", fmt.Sprint("s", n.Add(1)), Meta{}, "open"); err != nil {
					b.Error(err)
				}
			}
			if publishers == 1 {
				for b.Loop() {
					run()
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					run()
				}
			})
		})
	}
}

// BenchmarkRead is one commit read from the store and decoded.
func BenchmarkRead(b *testing.B) {
	tb := open(b, Options{})
	const size = 20000
	for i := range size {
		tb.do(b, fmt.Sprint("s", i), Meta{Actor: "local", Principal: "ana"}, "open")
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, err := range tb.Read(context.Background(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != size {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/commit")
}

// BenchmarkSeal is one commit read back from its block and folded into the chain
// and the tree; the signing and the files of a checkpoint come on top, once for a
// thousand.
func BenchmarkSeal(b *testing.B) {
	s := openSealed(b, b.TempDir(), "r1")
	const size = 20000
	for i := range size {
		s.do(b, fmt.Sprint("s", i), Meta{Actor: "local", Principal: "ana"}, "open")
	}
	b.ReportAllocs()
	for b.Loop() {
		one := &sealer{bus: s.Bus, key: s.sealer.key}
		if err := one.advance(context.Background(), size); err != nil || one.fold.size < size {
			b.Fatal(one.fold.size, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/commit")
}

// BenchmarkCheckpoint is one checkpoint of one commit: signed, written and
// remembered outside the store.
func BenchmarkCheckpoint(b *testing.B) {
	s := openSealed(b, b.TempDir(), "r1")
	for i := 0; b.Loop(); i++ {
		s.do(b, fmt.Sprint("s", i), Meta{}, "open")
		if _, err := s.sealer.write(context.Background(), false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBeginSnapshot is how long a snapshot holds up those who append, and
// BenchmarkSaveTables how long it takes in all, with the tables of a long log.
func BenchmarkBeginSnapshot(b *testing.B) {
	long := longTables()
	for b.Loop() {
		long.beginSnapshot(new(footer))
	}
}

func BenchmarkSaveTables(b *testing.B) {
	long := longTables()
	for b.Loop() {
		long.beginSnapshot(new(footer))
		for _, t := range long.tables {
			if err := t.save(gob.NewEncoder(io.Discard)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// longTables hold 300,000 sessions, and as many ids of what has left as they can.
func longTables() *Bus {
	long := folding()
	tb := register(long)
	for i := range 300_000 {
		long.fold(&events.Commit{
			Seq: uint64(i) + 1, Command: fmt.Sprint(i), Workspace: "default", Time: time.Unix(0, 0), Events: []events.Event{touched()},
			Aggregate: events.AggregateID{Kind: events.KindSession, Key: fmt.Sprint("s", i)},
		})
		tb.sessions.gone.add(tb.sessions.address("default", fmt.Sprint("gone", i)))
	}
	return long
}
