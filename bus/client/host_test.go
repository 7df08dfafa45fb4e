package client_test

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// inside is a client of a bus in a bubble.
func inside(t *testing.T) (*bus.Bus, *client.Client) {
	t.Helper()
	b := bustest.New(t, nil)
	if err := b.Announce(t.Context(), "r-1", nil); err != nil {
		t.Fatal(err)
	}
	creds, err := b.LocalCredentials()
	if err != nil {
		t.Fatal(err)
	}
	return b, dial(t, client.Options{InProcess: b, CredsText: creds})
}

func serve(t *testing.T, b *bus.Bus, method string, fn func(r *bus.Request) (any, error)) {
	t.Helper()
	if err := b.Serve(method, func(_ context.Context, r *bus.Request) (any, error) { return fn(r) }); err != nil {
		t.Fatal(err)
	}
}

// A command that got no answer is sent again, and is the same command.
func TestSilentCommandIsSentAgainWithItsID(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		var mu sync.Mutex
		var ids []string
		serve(t, b, "session/start", func(r *bus.Request) (any, error) {
			mu.Lock()
			ids = append(ids, r.Command)
			first := len(ids) == 1
			mu.Unlock()
			if first {
				time.Sleep(2 * time.Minute) // as good as stopped
			}
			return client.Session{Session: "s1"}, nil
		})
		began := time.Now()
		s, err := c.SessionStart(t.Context(), "editor")
		if took := time.Since(began); err != nil || s != "s1" || took < time.Second || took > 10*time.Second {
			t.Errorf("%q after %v: %v", s, took, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(ids) != 2 || ids[0] != ids[1] {
			t.Errorf("commands %v", ids)
		}
		time.Sleep(2 * time.Minute) // until the first one has ended too
	})
}

// Of two answers to one call the one with the result counts, whichever is first.
func TestCallThatWasAskedForTwiceHasItsResult(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		var mu sync.Mutex
		asked := 0
		serve(t, b, "tool/call", func(r *bus.Request) (any, error) {
			mu.Lock()
			asked++
			first := asked == 1
			mu.Unlock()
			if first {
				time.Sleep(3*time.Second + 500*time.Millisecond)
				return client.CallReply{Status: "succeeded", Result: json.RawMessage(`{"n":1}`)}, nil
			}
			return client.CallReply{Status: "succeeded"}, nil // it knows the outcome only
		})
		serve(t, b, "turn/prepare", func(*bus.Request) (any, error) { return client.Turn{Turn: "t1"}, nil })
		r, err := c.CallTool(t.Context(), "t1", "docs__count", nil, 20*time.Second)
		if err != nil || string(r.Result) != `{"n":1}` {
			t.Errorf("%+v: %v", r, err)
		}
		// Only the one who knows the outcome is left.
		if r, err = c.CallTool(t.Context(), "t1", "docs__count", nil, 0); err != nil || r.Status != "succeeded" || r.Result != nil {
			t.Errorf("%+v: %v", r, err)
		}
	})
}

func TestNobodyThereIsWaitedForAndAMethodOfAnotherRoleIsNot(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		go func() {
			time.Sleep(time.Minute)
			serve(t, b, "session/start", func(*bus.Request) (any, error) { return client.Session{Session: "s1"}, nil })
		}()
		began := time.Now()
		if s, err := c.SessionStart(t.Context(), "editor"); err != nil || s != "s1" || time.Since(began) < time.Minute {
			t.Errorf("%q after %v: %v", s, time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Approvals(ctx); err != context.DeadlineExceeded {
			t.Errorf("no runtime: %v", err)
		}
		serve(t, b, "bus/info", func(*bus.Request) (any, error) { return client.BusInfo{}, nil })
		began = time.Now()
		if _, err := c.Approvals(t.Context()); !fault.Is(err, fault.RoleDenied) || time.Since(began) > time.Second {
			t.Errorf("no such method, after %v: %v", time.Since(began), err)
		}
		c.Close()
		if _, err := c.Approvals(t.Context()); !fault.Is(err, fault.BusUnavailable) {
			t.Errorf("closed: %v", err)
		}
	})
}

func TestAnswerThatWasGivenAlreadyIsNoConflict(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := listening(t, home)
	var by atomic.Value
	by.Store("local")
	serve(t, b, "approvals/decide", func(*bus.Request) (any, error) {
		return nil, fault.New("", fault.Conflict, redact.Static("answered already"))
	})
	serve(t, b, "approvals/get", func(*bus.Request) (any, error) {
		return client.Approval{ID: "a1", State: "allowed", By: by.Load().(string)}, nil
	})
	c := dial(t, client.Options{Home: home})
	if a, err := c.Approve(t.Context(), "a1"); err != nil || a.ID != "a1" {
		t.Errorf("%+v: %v", a, err)
	}
	if _, err := c.Deny(t.Context(), "a1", ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("another answer: %v", err)
	}
	by.Store("somebody")
	if _, err := c.Approve(t.Context(), "a1"); !fault.Is(err, fault.Conflict) {
		t.Errorf("somebody else's: %v", err)
	}
}

// A watcher gets everything once, in order, when pushes are missed, come twice,
// come too soon and come late.
func TestWatchIsCompleteWhateverIsPushed(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		var mu sync.Mutex
		var log []client.Notification
		serve(t, b, "notifications/list", func(r *bus.Request) (any, error) {
			var p client.NotificationsList
			if err := r.Decode(&p); err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			out := client.Notifications{Notifications: []client.Notification{}, Next: uint64(len(log))}
			if p.After != nil {
				for _, n := range log[*p.After:] {
					if len(out.Notifications) < 3 {
						out.Notifications = append(out.Notifications, n)
						out.Next, out.More = n.Seq, int(n.Seq) < len(log)
					}
				}
			}
			return out, nil
		})
		push := func(seq int) {
			if err := b.Notify("default", bus.Local, client.Notification{Seq: uint64(seq), Method: "mcp/changed", Params: []byte("{}")}); err != nil {
				t.Error(err)
			}
		}
		const all = 60
		go func() {
			for i := 1; i <= all; i++ {
				if i%5 == 0 {
					push(i) // before it can be read
				}
				mu.Lock()
				log = append(log, client.Notification{Seq: uint64(i), Method: "mcp/changed", Params: []byte("{}")})
				mu.Unlock()
				if i%3 == 0 {
					push(i)
					push(i - 1)
					push(i)
				}
				time.Sleep(time.Duration(i%7) * 700 * time.Millisecond)
			}
		}()
		var got, want []uint64
		for n, err := range c.Watch(t.Context(), 0, "mcp") {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, n.Seq); n.Seq == all {
				break
			}
		}
		for i := range all {
			want = append(want, uint64(i+1))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n, err := range c.Watch(ctx, client.Latest) {
			if err != context.DeadlineExceeded {
				t.Errorf("%+v: %v", n, err)
			}
		}
	})
}
