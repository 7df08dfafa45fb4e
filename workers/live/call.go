package live

import (
	"bytes"
	"context"
	"slices"
	"strconv"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
)

// noticeRoom is how many notices wait for a slow callback; the next ones are
// dropped and counted.
const noticeRoom = 64

// Notice is a notification that the server sent during a call.
type Notice struct {
	// Method is notifications/progress or notifications/message.
	Method string
	// Params are as sent, but for a progress token, which is the caller's again.
	Params []byte
}

// CallOptions are the callbacks of one call.
type CallOptions struct {
	// Notify gets the progress for the token of the call, and log messages: one of
	// these goes to the call that began first. It runs in the goroutine of Call, in
	// order and before Call returns, so no notice comes after the answer; Call
	// returns no sooner.
	Notify func(Notice)
	// OnLate gets an answer that came after Call had returned the error of its
	// context. It runs at most once, in a goroutine of its own; id is the
	// request id on this connection. The oldest of more than 1,024 abandoned
	// calls are given up.
	OnLate func(id int64, reply Reply)
	// Input is what the server may ask of who makes the call, as a JSON object of
	// client capabilities; nil is nothing. A server of the stateless era is told, and
	// asks with its result.
	Input []byte
	// Judged is what [Conn.Judge] returned for this request, once it is recorded; nil
	// leaves deciding and recording to the transport.
	Judged *events.UrlDecision

	listens bool                // a subscription, which the server may end
	topic   string              // the resource that it is to, or empty
	acked   func(params []byte) // runs in the read loop when the server has begun it
}

// Reply is the raw answer to a request: exactly one of the two is set.
type Reply struct {
	// Result is any JSON value.
	Result []byte
	// Error is a JSON-RPC error object with its data.
	Error []byte
}

// answer is what the read loop has for a call: a reply, or that none will come.
type answer struct {
	Reply
	lost *frame.Lost
}

// pending is a request that was not answered yet. Its fields are set before it is
// registered, but for abandoned.
type pending struct {
	reply chan answer    // capacity 1, written by the read loop
	wake  chan struct{}  // capacity 1, full while there may be notices; nil: nobody listens
	token jsontext.Value // the caller's progress token, nil: none

	notify  func(Notice)
	onLate  func(int64, Reply)
	listens bool
	topic   string
	acked   func([]byte)

	// guarded by Conn.mu
	notices   []Notice
	abandoned bool // the caller has left
}

// note queues a notice; false when there is no room. It is called under Conn.mu.
func (p *pending) note(n Notice) bool {
	switch {
	case p.wake == nil:
		return true // the caller does not listen
	case len(p.notices) >= noticeRoom:
		return false
	}
	p.notices = append(p.notices, n)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// deliver gives the notices that are queued to the caller.
func (c *Conn) deliver(p *pending) {
	if p.wake == nil {
		return
	}
	c.mu.Lock()
	queued := p.notices
	p.notices = nil
	c.mu.Unlock()
	for _, n := range queued {
		p.notify(n)
	}
}

// Call sends a request and waits for its answer. params is a JSON object or
// nothing; it goes out byte for byte, but for line feeds between tokens and for
// the progress token, which is replaced by one of ours and put back. In the
// stateless era what we say of ourselves comes into its _meta, in place of what
// somebody else says there; the level of log messages is said there as well, so that
// logging/setLevel reaches no server.
//
// When ctx ends, Call returns its error at once and tells the server once with
// notifications/cancelled, if the server may know the request (R199, R200).
// Other errors: [ErrLost], or a fault of kind invalid_arguments.
func (c *Conn) Call(ctx context.Context, method string, params redact.Raw[[]byte], opts CallOptions) (Reply, error) {
	own := c.own
	if own != nil {
		if method == "logging/setLevel" {
			return c.setLevel(params.Reveal())
		}
		own = c.stamp(opts.Input, !leveled(params.Reveal()))
	}
	id := c.nextID.Add(1)
	p := &pending{reply: make(chan answer, 1), notify: opts.Notify, onLate: opts.OnLate, listens: opts.listens, topic: opts.topic, acked: opts.acked}
	frame, err := request(id, method, params.Reveal(), own, p)
	if err != nil {
		return Reply{}, fault.New("live.call", fault.InvalidArguments, redact.Static("params is not a JSON object with each member once"))
	}
	if opts.Notify != nil {
		p.wake = make(chan struct{}, 1)
	}
	c.mu.Lock()
	c.calls[id] = p
	c.mu.Unlock()

	sent, err := c.write(ctx, frame, opts.Judged)
	if err != nil {
		return c.leave(ctx, id, p, sent)
	}
	for {
		select {
		case <-p.wake:
			c.deliver(p)
		case reply := <-p.reply:
			return c.finish(p, reply)
		case <-ctx.Done():
			return c.leave(ctx, id, p, true)
		case <-c.done:
			return c.leave(ctx, id, p, true)
		}
	}
}

// leveled reports whether params say themselves which log messages are wanted, however
// the name of that is written.
func leveled(params []byte) bool {
	meta, _, err := findOnce(params, "_meta")
	if err != nil || meta.Kind() != '{' {
		return false
	}
	level, _, err := findOnce(meta, keyLevel)
	return err == nil && level != nil
}

// write sends a request on which was decided, or is to be.
func (c *Conn) write(ctx context.Context, frame []byte, judged *events.UrlDecision) (sent bool, err error) {
	if t, ok := c.transport.(Judging); ok && judged != nil {
		return t.WriteJudged(ctx, frame, judged)
	}
	return c.transport.Write(ctx, frame)
}

// finish delivers the notices that the read loop queued before the answer.
func (c *Conn) finish(p *pending, a answer) (Reply, error) {
	c.deliver(p)
	if a.lost != nil {
		return Reply{}, &ErrLost{Written: a.lost.Written, Cause: a.lost.Cause}
	}
	return a.Reply, nil
}

// leave ends a call without an answer, unless there is one after all.
func (c *Conn) leave(ctx context.Context, id int64, p *pending, sent bool) (Reply, error) {
	c.mu.Lock()
	_, waiting := c.calls[id]
	lost := ctx.Err() == nil
	if waiting {
		delete(c.calls, id)
		if !lost && sent && p.onLate != nil {
			p.abandoned = true
			c.calls[id] = p
			c.abandoned = append(c.abandoned, id)
			if len(c.abandoned) > maxAbandoned {
				delete(c.calls, c.abandoned[0])
				c.abandoned = c.abandoned[1:]
			}
		}
	}
	c.mu.Unlock()
	switch {
	case !waiting:
		return c.finish(p, <-p.reply)
	case lost:
		cause := c.Err()
		if cause == nil {
			cause = notLive(redact.Static("the connection is being closed"))
		}
		return Reply{}, &ErrLost{Written: sent, Cause: cause}
	case sent:
		// The server may not read; the process ends the write at the latest.
		go c.transport.Write(context.WithoutCancel(ctx), cancelled(id, ctx.Err()))
	}
	return Reply{}, ctx.Err()
}

// cancelled is the notification that a request is of no interest any more.
func cancelled(id int64, why error) []byte {
	reason := "cancelled"
	if why == context.DeadlineExceeded {
		reason = "timed out"
	}
	return []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` +
		strconv.FormatInt(id, 10) + `,"reason":"` + reason + `"}}`)
}

// request builds the frame of a request, takes the caller's progress token out of
// it into p, and stamps it with own, members of _meta; nil is none.
func request(id int64, method string, params, own []byte, p *pending) ([]byte, error) {
	number := strconv.AppendInt(nil, id, 10)
	if len(params) == 0 && own != nil {
		params = []byte("{}")
	}
	if len(params) > 0 {
		meta, at, err := findOnce(params, "_meta")
		if err != nil {
			return nil, err
		}
		changed := meta
		if meta.Kind() == '{' {
			token, inner, err := findOnce(meta, "progressToken")
			if err != nil {
				return nil, err
			}
			if token != nil {
				p.token = bytes.Clone(token)
				changed = replace(meta, inner, len(token), number)
			}
		}
		if own != nil {
			if changed, err = stamped(changed, own); err != nil {
				return nil, err
			}
		}
		switch {
		case meta != nil && (own != nil || p.token != nil):
			params = replace(params, at, len(meta), changed)
		case meta == nil && own != nil:
			params = first(params, `"_meta":`+string(changed))
		}
	}
	frame := make([]byte, 0, len(params)+len(method)+64)
	frame = append(frame, `{"jsonrpc":"2.0","id":`...)
	frame = append(frame, number...)
	frame = append(frame, `,"method":`...)
	frame, err := jsontext.AppendQuote(frame, method)
	if err != nil {
		return nil, err
	}
	if len(params) > 0 {
		frame = append(frame, `,"params":`...)
		frame = appendLine(frame, params)
	}
	return append(frame, '}'), nil
}

// few is how many members are compared with each other.
const few = 16

// findOnce returns the value of a member of the object v and its offset; nil
// when v has none. An object that names any member twice is refused: two
// readers could understand it differently.
func findOnce(v []byte, name string) (value jsontext.Value, at int, err error) {
	var seen []string
	var many map[string]bool // more would be compared with each other for too long
	err = members(v, func(key string, member jsontext.Value, offset int) error {
		switch {
		case many[key], many == nil && slices.Contains(seen, key):
			return errShape
		case many == nil && len(seen) == few:
			many = make(map[string]bool, 2*few)
			for _, s := range seen {
				many[s] = true
			}
		}
		if many != nil {
			many[key] = true
		} else {
			seen = append(seen, key)
		}
		if key == name {
			value, at = member, offset
		}
		return nil
	})
	return value, at, err
}
