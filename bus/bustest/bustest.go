// Package bustest opens real buses for tests: there is no fake log.
package bustest

import (
	"context"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/bus/internal/cluster"
)

// New opens a bus in a home of its own, without a listener, lets register make
// its tables, loads it, and closes it when the test ends. register may be nil.
func New(t testing.TB, register func(*bus.Bus)) *bus.Bus {
	t.Helper()
	return Open(t, t.TempDir(), register)
}

// Open is New on a home that may hold something already.
func Open(t testing.TB, home string, register func(*bus.Bus)) *bus.Bus {
	t.Helper()
	return OpenWith(t, bus.Options{Home: home}, register)
}

// OpenWith is Open with options.
func OpenWith(t testing.TB, o bus.Options, register func(*bus.Bus)) *bus.Bus {
	t.Helper()
	b, err := bus.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
		if o.External == nil {
			Sweep(o.Home)
		}
	})
	if register != nil {
		register(b)
	}
	if err := b.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	return b
}

// Sweep removes the store of a bus that was closed, when its test ends: the
// server may write for a moment after its end.
func Sweep(home string) { bubble.Sweep(home) }

// Bubble runs a test in virtual time with real buses: an hour of waiting takes
// no time, and a goroutine that stays behind fails the test. A bus must be opened
// inside, by New; it closes before the bubble ends. The test runs in a process of
// its own.
func Bubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	bubble.Run(t, fn)
}

// Cluster is three nats-server processes on the loopback interface.
type Cluster = cluster.Cluster

// NewCluster starts one that knows the keys of a home; it ends with the test. It
// takes some seconds until it has chosen its leaders: opening a bus waits for that.
func NewCluster(t testing.TB, home string) *Cluster {
	t.Helper()
	config, err := bus.ServerConfig(home)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Start(t, config)
}

// SweepCluster removes what NewCluster built: call it at the end of a TestMain.
func SweepCluster() { cluster.Sweep() }
