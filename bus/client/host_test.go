package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
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
		t.Error(err) // may be called by what serves already
	}
}

// beside is another process of the home that takes one request of a method and
// leaves. It is alone when beside returns; taken is called as it has the request.
func beside(t *testing.T, b *bus.Bus, method string, taken func(*nats.Msg)) {
	t.Helper()
	cred, err := b.Issue(t.Context(), bus.Meta{}, bus.Issue{Workspace: "default", Principal: "w1", Role: host.RoleWorker})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(b), nats.UserCredentialBytes(cred.Text), nats.CustomInboxPrefix("_INBOX.w1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sub, err := nc.QueueSubscribe("gatebus.default.cmd.*."+strings.ReplaceAll(method, "/", "."), "gatebus", func(m *nats.Msg) {
		if err := errors.Join(m.Sub.Unsubscribe(), nc.Flush()); err != nil {
			t.Error(err)
		}
		taken(m)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil || !sub.IsValid() {
		t.Fatal(err)
	}
}

// What was lost with the process that had it is sent again, and is the same
// command, whatever method of a client it came from.
func TestSilentCommandIsSentAgainWithItsID(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		for method, ask := range map[string]func() (string, error){
			"session/start": func() (string, error) { return c.SessionStart(t.Context(), "editor") },
			"grant/revoke": func() (string, error) {
				var s client.Session
				err := c.Do(t.Context(), "grant/revoke", nil, &s)
				return s.Session, err
			},
		} {
			var lost, again string
			beside(t, b, method, func(m *nats.Msg) {
				lost = m.Header.Get("Gb-Command")
				serve(t, b, method, func(r *bus.Request) (any, error) {
					again = r.Command
					return client.Session{Session: "s1"}, nil
				})
			})
			began := time.Now()
			s, err := ask()
			if took := time.Since(began); err != nil || s != "s1" || took < time.Second || took > 10*time.Second {
				t.Errorf("%s: %q after %v: %v", method, s, took, err)
			}
			if lost == "" || lost != again {
				t.Errorf("%s: command %s, then %s", method, lost, again)
			}
		}
	})
}

// Who stops takes nothing any more: what it broke off is asked of another one.
func TestCommandThatAStopBrokeOffIsSentAgainWithItsID(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		var broken, again string
		beside(t, b, "tool/call", func(m *nats.Msg) {
			broken = m.Header.Get("Gb-Command")
			serve(t, b, "tool/call", func(r *bus.Request) (any, error) {
				again = r.Command
				return client.CallReply{Status: "succeeded", Result: []byte("{}")}, nil
			})
			answer := nats.NewMsg(m.Reply)
			answer.Header.Set("Nats-Service-Error-Code", "-32000")
			answer.Data = []byte(`{"code":-32000,"message":"the runtime is being stopped","data":{"code":"GB4003","kind":"runtime_closed"}}`)
			if err := m.RespondMsg(answer); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		r, err := c.CallTool(t.Context(), "t1", "docs__count", nil, 0)
		if took := time.Since(began); err != nil || r.Status != "succeeded" || took > 3*time.Second {
			t.Errorf("%+v after %v: %v", r, took, err)
		}
		if broken == "" || broken != again {
			t.Errorf("command %s, then %s", broken, again)
		}
	})
}

// Of two answers to one call the one with the result counts, whichever is first.
func TestCallThatWasAskedForTwiceHasItsResult(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, c := inside(t)
		beside(t, b, "tool/call", func(m *nats.Msg) {
			serve(t, b, "tool/call", func(r *bus.Request) (any, error) {
				return client.CallReply{Status: "succeeded"}, nil // it knows the outcome only
			})
			time.Sleep(3*time.Second + 500*time.Millisecond)
			if err := m.Respond([]byte(`{"status":"succeeded","result":{"n":1}}`)); err != nil {
				t.Error(err)
			}
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

// A command that is sent again while it is under way is done once, and whoever
// sent it is answered; the same id of another principal is another command.
func TestCommandUnderWayIsNotBegunAgain(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b, _ := inside(t)
		var begun atomic.Int64
		enough := make(chan struct{})
		serve(t, b, "bus/backup", func(r *bus.Request) (any, error) {
			begun.Add(1)
			<-enough
			return r.Principal, nil
		})
		local, err := b.LocalCredentials()
		if err != nil {
			t.Fatal(err)
		}
		alice, err := b.Issue(t.Context(), bus.Meta{}, bus.Issue{Workspace: "default", Principal: "alice", Role: host.RoleOperator})
		if err != nil {
			t.Fatal(err)
		}
		answers := make(chan *nats.Msg, 8)
		for _, who := range []struct {
			name  string
			creds []byte
		}{{"local", local}, {"alice", alice.Text}, {"local", local}} {
			nc, err := nats.Connect("", nats.InProcessServer(b), nats.UserCredentialBytes(who.creds))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			m := &nats.Msg{Subject: "gatebus.default.cmd." + who.name + ".bus.backup", Reply: nc.NewInbox(), Header: nats.Header{"Gb-Command": {"01ARZ3NDEKTSV4RRFFQ69G5FAV"}}}
			if _, err := nc.ChanSubscribe(m.Reply, answers); err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if n := begun.Load(); n != 2 {
			t.Errorf("begun %d times", n)
		}
		close(enough)
		got := map[string]int{}
		for range 3 {
			got[string((<-answers).Data)]++
		}
		if diff := cmp.Diff(map[string]int{`"local"`: 2, `"alice"`: 1}, got); diff != "" {
			t.Error(diff)
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
