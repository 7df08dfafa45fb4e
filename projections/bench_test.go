package projections

import "testing"

// BenchmarkFold folds one commit of a history that deciders wrote into every
// projection in memory.
func BenchmarkFold(b *testing.B) {
	w := newWorld(1)
	for range 20_000 {
		w.step()
	}
	b.ReportAllocs()
	commits := 0
	for b.Loop() {
		s := New()
		for _, c := range w.commits {
			if err := s.apply(c); err != nil {
				b.Fatal(err)
			}
		}
		commits += len(w.commits)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(commits), "ns/commit")
}
