package live

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
)

// keySubscription is where a message of the stateless era says which subscription
// it is for.
const keySubscription = "io.modelcontextprotocol/subscriptionId"

// firstTopicWait and lastTopicWait bound how long the subscription to a resource stays
// away that has ended; one that lasted longer comes back soon. Who watches a resource
// wants to know of it, unlike of the lists, which many servers tell of for nothing.
const (
	firstTopicWait = 500 * time.Millisecond
	lastTopicWait  = 30 * time.Second
)

// refusal is the answer where a server agrees to no subscription and says nothing
// more.
const refusal = `{"code":-32602,"message":"the server does not tell of changes of this resource"}`

// topic is a resource whose changes the server tells of.
type topic struct {
	watchers map[string]func(params []byte) // by who watches
	stop     func()                         // ends the subscription of the stateless era
}

// Subscribe has who told of the changes of a resource from then on, with the params
// of the server's notification but for the id of the subscription. updated must not
// block and may run at once. The server has one subscription to a resource, whoever
// watches it: it is asked for the first one, with the params of that, and for the
// others the answer is empty. Who watches already goes on with the new function.
//
// Errors are those of [Conn.Call]; with one, or with an error of the server, who is
// not told of anything.
func (c *Conn) Subscribe(ctx context.Context, uri string, params redact.Raw[[]byte], opts CallOptions, who string, updated func(params []byte)) (Reply, error) {
	release, err := c.settle(ctx)
	if err != nil {
		return Reply{}, err
	}
	defer release()
	c.mu.Lock()
	if t := c.topics[uri]; t != nil {
		t.watchers[who] = updated
		c.mu.Unlock()
		return Reply{Result: []byte(nothing)}, nil
	}
	// There before the server is asked, so that no change is missed.
	t := &topic{watchers: map[string]func([]byte){who: updated}}
	c.topics[uri] = t
	c.mu.Unlock()
	var reply Reply
	if c.own != nil {
		reply, err = c.follow(ctx, uri, t)
	} else {
		reply, err = c.Call(ctx, "resources/subscribe", params, opts)
	}
	if err != nil || reply.Error != nil {
		c.mu.Lock()
		delete(c.topics, uri)
		c.mu.Unlock()
	}
	return reply, err
}

// Unsubscribe ends what Subscribe began for who. The server is asked when the last
// one leaves; otherwise, and where who watches nothing, the answer is empty. Errors
// are those of [Conn.Call]; who is told of nothing more in any case.
func (c *Conn) Unsubscribe(ctx context.Context, uri string, params redact.Raw[[]byte], opts CallOptions, who string) (Reply, error) {
	none := Reply{Result: []byte(nothing)}
	release, err := c.settle(ctx)
	if err != nil {
		return Reply{}, err
	}
	defer release()
	c.mu.Lock()
	t := c.topics[uri]
	if t == nil || t.watchers[who] == nil {
		c.mu.Unlock()
		return none, nil
	}
	delete(t.watchers, who)
	if len(t.watchers) > 0 {
		c.mu.Unlock()
		return none, nil
	}
	delete(c.topics, uri)
	c.mu.Unlock()
	if t.stop != nil {
		t.stop()
		return none, nil
	}
	return c.Call(ctx, "resources/unsubscribe", params, opts)
}

// settle waits until no other subscription of the connection begins or ends.
func (c *Conn) settle(ctx context.Context) (release func(), err error) {
	select {
	case c.subscribing <- struct{}{}:
		return func() { <-c.subscribing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, &ErrLost{Cause: c.err}
	}
}

// follow begins the subscription to a resource in the stateless era, a request that
// lasts, and keeps it up until it is stopped or the connection ends. What changed
// before a later one was not heard, so that those who watch are told.
func (c *Conn) follow(ctx context.Context, uri string, t *topic) (Reply, error) {
	quoted, err := jsontext.AppendQuote(nil, uri)
	if err != nil {
		return Reply{Error: []byte(refusal)}, nil // it is no UTF-8
	}
	until, stop := context.WithCancel(context.Background())
	t.stop = stop
	type outcome struct {
		reply Reply
		err   error
	}
	begun := make(chan outcome, 1)
	var first sync.Once
	var again atomic.Bool // the next one is not the first
	go func() {           // ends with the connection
		defer stop()
		wanted := redact.NewRaw([]byte(`{"notifications":{"resourceSubscriptions":[` + string(quoted) + `]}}`))
		for wait := firstTopicWait; ; wait = min(2*wait, lastTopicWait) {
			at := time.Now()
			reply, err := c.Call(until, "subscriptions/listen", wanted, CallOptions{listens: true, topic: uri, acked: func(params []byte) {
				if !agrees(params, uri) {
					stop()
					return
				}
				first.Do(func() { begun <- outcome{reply: Reply{Result: []byte(nothing)}} })
				if again.Load() {
					c.tell([]byte(`{"uri":`+string(quoted)+`}`), func(_ string, of *topic) bool { return of == t })
				}
			}})
			failed := false
			first.Do(func() {
				if failed = true; reply.Error == nil && (err == nil || until.Err() != nil) {
					reply, err = Reply{Error: []byte(refusal)}, nil
				}
				begun <- outcome{reply, err}
			})
			if again.Store(true); failed || until.Err() != nil || reply.Error != nil && methodNotFound(reply.Error) {
				return
			}
			if time.Since(at) > lastTopicWait {
				wait = firstTopicWait
			}
			select {
			case <-time.After(wait):
			case <-until.Done():
				return
			case <-c.done:
				return
			}
		}
	}()
	select {
	case o := <-begun:
		return o.reply, o.err
	case <-ctx.Done():
		stop()
		return Reply{}, ctx.Err()
	}
}

// agrees reports whether the server has begun the subscription to a resource.
func agrees(params []byte, uri string) bool {
	notifications, _, err := findOnce(params, "notifications")
	if err != nil || notifications.Kind() != '{' {
		return false
	}
	uris, _, err := findOnce(notifications, "resourceSubscriptions")
	return err == nil && lists(uris, uri)
}

// acknowledged is told that the server has begun a subscription.
func (c *Conn) acknowledged(f frame.Frame) {
	if p := c.subscription(f.Params); p != nil && p.acked != nil {
		p.acked(f.Params)
		return
	}
	c.listening()
}

// subscription is the request that a message of a subscription is for, or nil.
func (c *Conn) subscription(params []byte) *pending {
	meta, _, err := findOnce(params, "_meta")
	if err != nil || meta.Kind() != '{' {
		return nil
	}
	id, _, err := findOnce(meta, keySubscription)
	n, ok := integer(id)
	if err != nil || !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[n]
}

// updated tells those who watch a resource that it changed. A server may name a part
// of what was subscribed to.
func (c *Conn) updated(f frame.Frame) {
	v, _, err := findOnce(f.Params, "uri")
	uri := text(v)
	if err != nil || uri == "" {
		c.strays.Add(1)
		return
	}
	of := ""
	if p := c.subscription(f.Params); p != nil {
		of = p.topic
	}
	params, err := untagged(f.Params)
	if err != nil {
		c.strays.Add(1)
		return
	}
	if !c.tell(params, func(watched string, _ *topic) bool {
		return watched == of || of == "" && (watched == uri || strings.HasPrefix(uri, strings.TrimSuffix(watched, "/")+"/"))
	}) {
		c.strays.Add(1)
	}
}

// tell tells those who watch the topics that match, and reports whether there are any.
func (c *Conn) tell(params []byte, match func(uri string, t *topic) bool) bool {
	var told []func([]byte)
	c.mu.Lock()
	for uri, t := range c.topics {
		if match(uri, t) {
			told = slices.AppendSeq(told, maps.Values(t.watchers))
		}
	}
	c.mu.Unlock()
	for _, f := range told {
		f(params)
	}
	return len(told) > 0
}

// untagged is params without the id of the subscription, which is between the server
// and us; every other byte stays.
func untagged(params []byte) ([]byte, error) {
	meta, at, err := findOnce(params, "_meta")
	if err != nil || meta.Kind() != '{' {
		return params, err
	}
	out := []byte{'{'}
	end := 1
	err = members(meta, func(name string, value jsontext.Value, at int) error {
		begin := end
		end = at + len(value)
		if name == keySubscription {
			return nil
		}
		part := meta[begin:end]
		if len(out) == 1 {
			part = []byte(strings.TrimPrefix(string(part), ","))
		}
		out = append(out, part...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return replace(params, at, len(meta), append(out, meta[end:]...)), nil
}
