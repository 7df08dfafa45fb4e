package caller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

const (
	subscribe   = "resources/subscribe"
	unsubscribe = "resources/unsubscribe"
)

// Watch is what a request to subscribe to a resource, or to unsubscribe, is about. The
// request is recorded like any other one; the server gets it when it is the first or
// the last one on its connection.
type Watch struct {
	// ID is that of the subscription, made by who asks. The same one may ask again,
	// which makes it anew where its connection is another one.
	ID, URI string
	// Updated gets the params of a notification, as the model may see them. It must not
	// block, and may run before the request is answered.
	Updated func(params []byte)
}

// watch is a subscription that this process has asked for. at is where it is held,
// zero where nobody holds it.
type watch struct {
	Watch
	at live.Key
}

const (
	// leaveTime bounds how long a subscription takes to end that nobody wants any more.
	leaveTime = 5 * time.Second
	// maxUpdates is how many notices wait for another process, before one stands for
	// all.
	maxUpdates = 64
)

// updatesAddress is where another process tells of the updates that it has for a
// runtime.
func updatesAddress(runtime string) string { return runtime + "-updates" }

// update names the subscription of a notice, or of one that ends at its owner.
type update struct {
	ID  string `json:"id"`
	URI string `json:"uri,omitempty"`
}

// watch makes a request that is about a subscription, and notes where it is held.
func (a *attempt) watch(ctx context.Context) (client.CallReply, error) {
	if a.Method == subscribe {
		if err := a.hears(); err != nil {
			return client.CallReply{}, err
		}
		a.mu.Lock()
		if w := a.watches[a.Watch.ID]; w != nil {
			w.Watch = *a.Watch
		} else {
			a.watches[a.Watch.ID] = &watch{Watch: *a.Watch}
		}
		a.mu.Unlock()
	}
	reply, err := a.call(ctx)
	if err != nil || reply.Result == nil || a.Method != subscribe {
		return reply, err
	}
	a.mu.Lock()
	w := a.watches[a.Watch.ID]
	before := live.Key{}
	if w != nil {
		before, w.at = w.at, a.heldAt
	}
	a.mu.Unlock()
	switch {
	case w == nil: // released meanwhile
		a.end(ctx, watch{*a.Watch, a.heldAt})
	case before != live.Key{} && before != a.heldAt:
		a.end(ctx, watch{*a.Watch, before})
	}
	return reply, nil
}

// Release ends a subscription that nobody wants any more, whoever may not ask its
// server for anything by now: the server is told when it was the last one. One that is
// not there is what is wanted.
func (c *Caller) Release(ctx context.Context, id string) {
	c.mu.Lock()
	w := c.watches[id]
	delete(c.watches, id)
	c.mu.Unlock()
	if w != nil && w.at != (live.Key{}) {
		c.end(ctx, *w)
	}
}

func (c *Caller) end(ctx context.Context, w watch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if conn := c.Pool.Get(w.at); conn != nil {
		c.unwatch(ctx, conn, w.ID, w.URI)
		return
	}
	data, _ := json.Marshal(update{w.ID, w.URI}) // strings
	// An owner that is gone holds nothing.
	_ = c.Bus.AskAddress(ctx, c.Workspace, address(w.at), verbLeave, data, nil)
}

// unwatch ends a subscription at the connection.
func (c *Caller) unwatch(ctx context.Context, conn *live.Conn, id, uri string) {
	params, _ := json.Marshal(struct { // a string
		URI string `json:"uri"`
	}{uri})
	// A server that does not hear of it tells of what nobody watches.
	_, _ = conn.Unsubscribe(ctx, uri, redact.NewRaw(params), live.CallOptions{}, id)
}

// ask sends the request, or makes it one of those that share a subscription.
func (a *attempt) ask(ctx context.Context, method string, params redact.Raw[[]byte], opts live.CallOptions) (live.Reply, error) {
	switch {
	case a.Watch != nil && method == subscribe:
		a.heldAt = a.key
		secrets, updated := a.conn.Redactor(), a.Watch.Updated
		return a.conn.Subscribe(ctx, a.Watch.URI, params, opts, a.Watch.ID, func(params []byte) {
			if v := secrets.JSON(redact.NewRaw(params)); !v.Failed {
				updated([]byte(v.Model.String()))
			}
		})
	case a.Watch != nil && method == unsubscribe:
		return a.conn.Unsubscribe(ctx, a.Watch.URI, params, opts, a.Watch.ID)
	}
	return a.conn.Call(ctx, method, params, opts)
}

// hears makes this process one that others tell of updates, once.
func (c *Caller) hears() error {
	c.hearing.Lock()
	defer c.hearing.Unlock()
	if c.heard {
		return nil
	}
	_, err := c.Bus.ServeAddress(c.Workspace, updatesAddress(c.Runtime), func(_ context.Context, _ string, data []byte, _ func([]byte) error) error {
		var u update
		params, err := unpack(data, &u)
		if err != nil {
			return err
		}
		c.mu.Lock()
		w, ok := c.watches[u.ID]
		var updated func([]byte)
		if ok {
			updated = w.Updated
		}
		c.mu.Unlock()
		if !ok {
			return errNotHere
		}
		updated(bytes.Clone(params))
		return nil
	})
	c.heard = err == nil
	return err
}

// tells makes what tells another process of updates, in order. A process that is gone,
// or does not know the subscription, holds it no more.
func (c *Caller) tells(runtime string, key live.Key, of update) func(params []byte) {
	var mu sync.Mutex
	var waiting [][]byte
	busy := false
	next := func() []byte {
		mu.Lock()
		defer mu.Unlock()
		if len(waiting) == 0 {
			busy = false
			return nil
		}
		params := waiting[0]
		waiting = waiting[1:]
		return params
	}
	work := func() {
		for params := next(); params != nil; params = next() {
			ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
			data, err := pack(update{ID: of.ID}, params)
			if err == nil {
				err = c.Bus.AskAddress(ctx, c.Workspace, updatesAddress(runtime), verbUpdated, data, nil)
			}
			if conn := c.Pool.Get(key); conn != nil && (errors.Is(err, bus.ErrNoAddress) || fault.Is(err, fault.RuntimeNotLive)) {
				c.unwatch(ctx, conn, of.ID, of.URI)
			}
			cancel()
		}
	}
	return func(params []byte) {
		mu.Lock()
		defer mu.Unlock()
		if len(waiting) >= maxUpdates {
			params, _ = json.Marshal(map[string]string{"uri": of.URI})
			waiting = nil
		}
		waiting = append(waiting, params)
		if !busy {
			busy = true
			go work()
		}
	}
}
