package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events/connection"
)

func TestAServerMayAskSoMuchInARow(t *testing.T) {
	t.Parallel()
	var a asking
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	may := func() (n int) {
		for a.mayLocked(now) {
			n++
		}
		return n
	}
	if n := may(); n != askBurst {
		t.Errorf("at first it may %d times", n)
	}
	now = now.Add(3 * time.Minute / asksPerMinute)
	if n := may(); n != 3 {
		t.Errorf("a little later it may %d times", n)
	}
	now = now.Add(time.Hour)
	if n := may(); n != askBurst {
		t.Errorf("an hour later it may %d times", n)
	}
}

func TestTheQuotaOfAServerCanBeLess(t *testing.T) {
	t.Parallel()
	a := asking{Asks: Asks{Quota: Quota{Open: 1, PerMinute: 2}}, open: map[string]context.CancelFunc{}}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for i, want := range []bool{true, true, false} {
		if a.mayLocked(now) != want {
			t.Errorf("%d in a minute: %v", i+1, !want)
		}
	}
	if now = now.Add(30 * time.Second); !a.mayLocked(now) {
		t.Error("not one more after half a minute")
	}
	now = now.Add(time.Hour)
	a.open["1"] = func() {}
	if a.mayLocked(now) {
		t.Error("two at once")
	}
}

func TestWhatAServerMayNotAskIsToldOfOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		asks Asks
		want []string
	}{
		{"of what was not offered", Asks{}, []string{"roots/list false", "sampling/createMessage false"}},
		{
			"of what is too often", Asks{
				Offers: []string{connection.OfferRoots}, Quota: Quota{PerMinute: 1},
				Answer: func(context.Context, *Conn, Ask) Reply { return Reply{Result: []byte(`{"roots":[]}`)} },
			},
			[]string{"roots/list true", "sampling/createMessage false"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var told []string
			conn := open(t, Options{Name: "gatebus", Asks: c.asks, OnRefused: func(_ *Conn, method string, often bool) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(method, " ", often))
			}}, "asker")
			for range 3 {
				call(t, conn, `{"name":"ask","arguments":{"method":"sampling/createMessage","params":{}}}`)
				call(t, conn, `{"name":"ask","arguments":{"method":"roots/list","params":{}}}`)
				call(t, conn, `{"name":"ask","arguments":{"method":"other","params":{}}}`)
			}
			if err := conn.Close(t.Context()); err != nil { // waits for what it started
				t.Fatal(err)
			}
			if slices.Sort(told); !slices.Equal(told, c.want) {
				t.Errorf("told of %q, want %q", told, c.want)
			}
		})
	}
}
