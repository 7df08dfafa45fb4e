package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/session"
)

// measured is a bus of one durability.
type measured struct {
	durability bus.Durability
	bus        *bus.Bus
	model      *bus.Model
	n          int
}

// cost dispatches with both durabilities by turns and prints how they compare.
func cost(dir string, slice time.Duration, count int) (err error) {
	ctx := context.Background()
	both := []*measured{{durability: bus.Process}, {durability: bus.Power}}
	for _, m := range both {
		home := filepath.Join(dir, "cost-"+string(m.durability))
		if m.bus, err = bus.Open(ctx, bus.Options{Home: home, Durability: m.durability}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.bus.Close(ctx)) }()
		m.model = bus.NewModel(m.bus)
		if err := m.bus.Load(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("cost: commits a second, %d slices of %v of each by turns\n", count, slice)
	fmt.Println("writers  process/s    p50    p99   power/s    p50    p99  power/process")
	for _, w := range []int{1, 16, 64} {
		var rates [2][]float64
		var took [2][]time.Duration
		for range count {
			for i, m := range both {
				rate, t, err := m.slice(ctx, w, slice)
				if err != nil {
					return err
				}
				rates[i], took[i] = append(rates[i], rate), append(took[i], t...)
			}
		}
		ratios := make([]float64, count)
		for i := range ratios {
			ratios[i] = rates[1][i] / rates[0][i]
		}
		for i := range both {
			slices.Sort(rates[i])
			slices.Sort(took[i])
		}
		slices.Sort(ratios)
		at := func(i, percent int) time.Duration {
			return took[i][len(took[i])*percent/100].Round(10 * time.Microsecond)
		}
		fmt.Printf("%7d %10.0f %6v %6v %9.0f %6v %6v  %.3f [%.3f to %.3f]\n", w, rates[0][count/2], at(0, 50), at(0, 99),
			rates[1][count/2], at(1, 50), at(1, 99), ratios[count/2], ratios[0], ratios[count-1])
	}
	return nil
}

// slice dispatches for a while; each commit is on an aggregate of its own.
func (m *measured) slice(ctx context.Context, writers int, long time.Duration) (rate float64, took []time.Duration, err error) {
	var group sync.WaitGroup
	var mu sync.Mutex
	begun := time.Now()
	for range writers {
		m.n++
		name := fmt.Sprint("s", m.n)
		group.Go(func() {
			var mine []time.Duration
			var failed error
			for i := 0; time.Since(begun) < long && failed == nil; i++ {
				at := time.Now()
				_, failed = m.model.Sessions.Dispatch(ctx, "default", fmt.Sprintf("%s-%d", name, i), bus.Meta{Actor: "show", Principal: "show"}, session.Start{Label: "x", Reason: "client"})
				mine = append(mine, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			took, err = append(took, mine...), errors.Join(err, failed)
		})
	}
	group.Wait()
	return float64(len(took)) / time.Since(begun).Seconds(), took, err
}
