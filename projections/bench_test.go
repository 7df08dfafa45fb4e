package projections

import "testing"

// a history that deciders wrote, long enough to weigh.
func weighty(b *testing.B) *world {
	w := newWorld(1)
	for range 20_000 {
		w.step()
	}
	b.ResetTimer()
	return w
}

// BenchmarkFold folds one commit into every projection in memory.
func BenchmarkFold(b *testing.B) {
	w := weighty(b)
	b.ReportAllocs()
	commits := 0
	for b.Loop() {
		s := New()
		for _, c := range w.Commits {
			if err := s.apply(c); err != nil {
				b.Fatal(err)
			}
		}
		commits += len(w.Commits)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(commits), "ns/commit")
}

// BenchmarkAudit writes one log into an audit file.
func BenchmarkAudit(b *testing.B) {
	w := weighty(b)
	rows := 0
	for b.Loop() {
		_, stop := written(b, w)
		stop()
		for _, c := range w.Commits {
			rows += len(c.Events)
		}
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(w.Commits)), "ns/commit")
}
