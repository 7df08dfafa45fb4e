// Secrets kills a gatebus with -9 while secrets are changed, again and again, at random
// moments, and compares after each what the log says with what the keystore has, and
// both with what was acknowledged.
//
// Three servers are changed at once: vault has its token rotated and is installed
// again with more or fewer variables, remote is the same with a header, guest comes
// and goes. The keystore is read by this program, with the key of the home; the log by
// audit list. The servers are disabled: what is looked at is their secrets.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// Bounds.
const (
	serves  = 30 * time.Second // until up serves
	settles = time.Minute      // until nothing is left to delete
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	rounds := flag.Int("kills", 6, "kills")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of values and moments")
	flag.Parse()
	s := &scene{rand: rand.New(rand.NewPCG(*seed, 5))}
	fmt.Printf("seed %d, %d kills\n", *seed, *rounds)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	var err error
	if s.Gatebus, err = show.New(*bin, *dir); err == nil {
		err = s.show(ctx, *rounds)
	}
	show.Verdict(err)
}

// show is the whole of it.
func (s *scene) show(ctx context.Context, rounds int) (err error) {
	if err := os.MkdirAll(s.Home, 0o700); err != nil {
		return err
	}
	p, err := s.up(ctx)
	if err != nil {
		return err
	}
	defer func() { p.Kill() }()
	if err := s.begin(ctx); err != nil {
		return err
	}
	fmt.Println("kill acked unacked  put-only stale-left  by-job by-gc  seconds")
	var all tally
	for n := range rounds {
		began := time.Now()
		var t tally
		if p, t, err = s.round(ctx, p, n); err != nil {
			return fmt.Errorf("kill %d: %w", n+1, err)
		}
		all.add(t)
		fmt.Printf("%4d %5d %7d %9d %10d %7d %5d %8.1f\n", n+1, t.acked, t.unknown, t.written, t.stale, t.job, t.collected, time.Since(began).Seconds())
	}
	fmt.Printf("all: %d changes acknowledged, %d killed; %d values found that no commit refers to, %d that one had replaced: all deleted, %d by the job, %d by garbage collection\n",
		all.acked, all.unknown, all.written, all.stale, all.job, all.collected)
	p.Interrupt()
	if code, err := p.Wait(serves); err != nil || code != 0 {
		return fmt.Errorf("an orderly stop ended with %d, %v", code, err)
	}
	s.said(p)
	if all.acked == 0 || all.unknown == 0 || all.written+all.stale == 0 {
		return fmt.Errorf("the kills hit nothing: the show showed nothing")
	}
	return s.canaries()
}
