package client

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Latest is the place of the log for who wants what comes from now on.
const Latest = ^uint64(0)

const (
	// look is how often a watcher looks without having been woken.
	look = 5 * time.Second
	// soon is how long the runtime that is asked may know less than the one that
	// pushed.
	soon = 2 * time.Second
)

// Watch yields the notifications behind a place of the log, in order and each
// once, and goes on with new ones until ctx ends: after a lost connection and
// through the end of a runtime too, when after is the Seq of the last one seen of a
// whole commit. 0 is the beginning, Latest the present. topics are methods of
// notifications, or what they begin with; none is all.
//
// The error is the last that is yielded: the context's, bus_unavailable when the
// client was closed, or what notifications/list answered.
func (c *Client) Watch(ctx context.Context, after uint64, topics ...string) iter.Seq2[Notification, error] {
	return func(yield func(Notification, error) bool) {
		w := watch{client: c, wake: make(chan uint64, 1)}
		defer w.end()
		if err := w.listen(topics); err != nil {
			yield(Notification{}, fault.Wrap("watch", fault.BusUnavailable, redact.Static("the bus went away"), err))
			return
		}
		p := NotificationsList{Topics: topics}
		if after != Latest {
			p.After = &after
		}
		for {
			back := c.returned()
			var page Notifications
			if err := c.again(ctx, "notifications/list", p, &page, soon); err != nil {
				yield(Notification{}, err)
				return
			}
			for _, n := range page.Notifications {
				if !yield(n, nil) {
					return
				}
			}
			p.After, p.WaitMS = &page.Next, 0
			if page.More || len(page.Notifications) > 0 {
				continue
			}
			timer := time.NewTimer(look)
			for waiting := true; waiting; {
				select {
				case seq := <-w.wake:
					if seq > page.Next {
						p.WaitMS, waiting = soon.Milliseconds(), false
					}
				case <-timer.C:
					waiting = false
				case <-back:
					waiting = false
				case <-ctx.Done():
					waiting = false
				case <-c.lost.Done():
					waiting = false
				}
			}
			timer.Stop()
		}
	}
}

// watch is the ear of a watcher. What is pushed is only the moment to read: it
// can be missed and come twice.
type watch struct {
	client *Client
	subs   []*nats.Subscription
	wake   chan uint64 // the newest sequence that was pushed
}

func (w *watch) listen(topics []string) error {
	subjects := []string{">"}
	if len(topics) > 0 {
		subjects = nil
		for _, t := range topics {
			t = strings.ReplaceAll(t, "/", ".")
			subjects = append(subjects, t, t+".>")
		}
	}
	for _, s := range subjects {
		sub, err := w.client.nc.Subscribe("gatebus."+w.client.workspace+".ntf."+w.client.principal+"."+s, w.hear)
		if err != nil {
			return err
		}
		w.subs = append(w.subs, sub)
	}
	return nil
}

func (w *watch) hear(m *nats.Msg) {
	seq, err := strconv.ParseUint(m.Header.Get("Gb-Seq"), 10, 64)
	if err != nil {
		return
	}
	for {
		select {
		case w.wake <- seq:
			return
		case older := <-w.wake:
			seq = max(seq, older)
		}
	}
}

func (w *watch) end() {
	for _, s := range w.subs {
		_ = s.Unsubscribe() // of a connection that may have ended
	}
}
