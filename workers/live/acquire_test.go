package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// R20: one call at a time, first come first served.
func TestASerialConnectionServesInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConn(nil, Options{})
		first, err := c.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		running := 0
		for i := range 10 {
			go func() {
				release, err := c.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if running++; running != 1 {
					t.Errorf("%d calls at once", running)
				}
				order = append(order, i)
				time.Sleep(time.Second)
				running--
				release()
				release() // harmless
			}()
			synctest.Wait()
		}
		// One who gives up waiting takes no turn.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx); err != context.DeadlineExceeded {
			t.Errorf("the error is %v", err)
		}
		first()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Errorf("the order is %v", order)
		}
	})
}

func TestAParallelConnectionServesSixteen(t *testing.T) {
	t.Parallel()
	c := newConn(nil, Options{Parallel: true})
	for range 16 {
		if _, err := c.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Acquire(ctx); err != context.Canceled {
		t.Errorf("the seventeenth got %v", err)
	}
}

func TestTheEndOfTheConnectionEndsTheWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConn(nil, Options{})
		if _, err := c.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context())
			got <- err
		}()
		synctest.Wait()
		c.err = notLive(redact.Static("over"))
		close(c.done)
		wantLost(t, <-got, false, fault.RuntimeNotLive)
	})
}

func TestThePoolHoldsOneConnectionPerGeneration(t *testing.T) {
	t.Parallel()
	var p Pool
	one, two := newConn(nil, Options{}), newConn(nil, Options{})
	key := Key{"c", 1}
	if !p.Put(key, one) || p.Put(key, two) || !p.Put(Key{"c", 2}, two) {
		t.Error("a generation is taken twice or not at all")
	}
	if p.Get(key) != one || p.Get(Key{"c", 2}) != two || p.Get(Key{"c", 3}) != nil || p.Get(Key{"d", 1}) != nil {
		t.Error("Get finds another connection")
	}
	all := map[Key]*Conn{}
	for key, c := range p.All() {
		all[key] = p.Remove(key) // changes what is iterated over
		if all[key] != c {
			t.Errorf("Remove(%v) returned another connection", key)
		}
	}
	if len(all) != 2 || p.Get(key) != nil || p.Remove(key) != nil {
		t.Errorf("All yielded %v", all)
	}
	if err := p.Close(t.Context()); err != nil || p.Put(key, one) {
		t.Error("a closed pool takes a connection")
	}
}

func TestAPoolIsUsedByManyAndClosedByOne(t *testing.T) {
	t.Parallel()
	var p Pool
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range uint32(100) {
				key := Key{fmt.Sprint(i), n}
				p.Put(key, newConn(nil, Options{}))
				p.Get(key)
				for range p.All() {
				}
				p.Remove(key)
			}
		})
	}
	group.Wait()
	c := open(t, Options{Name: "gatebus"}, "echo")
	other := open(t, Options{Name: "gatebus"}, "echo")
	p.Put(Key{"a", 1}, c)
	p.Put(Key{"b", 1}, other)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-c.Done()
	<-other.Done()
}
