package gateway

import (
	"context"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Peer is an attachment as servers that may ask it know it: by an id that is no
// secret, and with what it offers. The zero Peer offers nothing.
type Peer struct {
	ID     string
	Offers []string
}

// maxPeers is how many attachments that offer something a principal can have: each
// has connections of its own. One more costs the longest idle one.
const maxPeers = 32

// rootsChanged is what a client says when its roots are others.
const rootsChanged = "notifications/roots/list_changed"

// asking is a request of a server that the client has not answered yet.
type asking struct{ reply chan message } // capacity 1

// stream is an event stream to the client that is open: the answer to a request of
// it, or its GET stream.
type stream struct {
	out *answer
	get bool
	// server is whose call the request is; guarded by attachment.mu.
	server string
}

// Ask asks the client of an attachment for a server, and returns what it answers, as
// it was sent: a result or an error. The request goes out on the stream of a call of
// that server, else on the GET stream, else on any other one, as soon as there is
// one. When ctx ends the client is told that nobody waits any more.
//
// Errors: that of ctx, or a fault of kind runtime_closed when the client is gone.
func (g *Gateway) Ask(ctx context.Context, attachment, server, method string, params []byte) (result, failure []byte, err error) {
	a := g.peer(attachment)
	if a == nil {
		return nil, nil, errLeft
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	q := &asking{make(chan message, 1)}
	a.mu.Lock()
	a.lastAsk++
	id := "gatebus-" + strconv.Itoa(a.lastAsk)
	a.asks[id] = q
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asks, id)
	}()
	quoted, err := jsontext.AppendQuote(nil, method)
	if err != nil {
		return nil, nil, err
	}
	request := append(append([]byte(`{"jsonrpc":"2.0","id":"`+id+`","method":`), quoted...), closing(params)...)
	on, err := a.say(ctx, anyOf(server), request)
	if err != nil {
		return nil, nil, a.why(ctx)
	}
	select {
	case m := <-q.reply:
		if m.failure.Kind() == 'n' { // beside a result
			m.failure = nil
		}
		return m.result, m.failure, nil
	case <-ctx.Done():
		if a.ctx.Err() == nil {
			a.try(following(on), []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"`+id+`","reason":"nobody waits for the answer any more"}}`))
		}
		return nil, nil, a.why(ctx)
	}
}

// closing ends a message with its params, if it has any.
func closing(params []byte) []byte {
	if params == nil {
		return []byte{'}'}
	}
	return append(append([]byte(`,"params":`), params...), '}')
}

// errLeft is why a client cannot be asked.
var errLeft = fault.New("gateway.ask", fault.RuntimeClosed, redact.Static("the client is gone"))

// why is why a request got no answer.
func (a *attachment) why(ctx context.Context) error {
	if a.ctx.Err() != nil {
		return errLeft
	}
	return ctx.Err()
}

// Tell tells the client of an attachment something that a server says, if it has a
// stream open.
func (g *Gateway) Tell(attachment, server, method string, params []byte) {
	a := g.peer(attachment)
	if a == nil {
		return
	}
	if quoted, err := jsontext.AppendQuote(nil, method); err == nil {
		a.try(related(server), append(append([]byte(`{"jsonrpc":"2.0","method":`), quoted...), closing(params)...))
	}
}

// peer finds an attachment by its id for servers.
func (g *Gateway) peer(id string) *attachment {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.attachments {
		if id != "" && a.peer.ID == id {
			return a
		}
	}
	return nil
}

// rank says how well a stream fits a message; 0 is not at all.
type rank func(*stream) int

// related is for what a server says by itself: with one of its calls, or on the GET
// stream.
func related(server string) rank {
	return func(s *stream) int {
		switch {
		case s.server == server:
			return 3
		case s.get:
			return 2
		}
		return 0
	}
}

// anyOf is for a request: it may be what another one waits for.
func anyOf(server string) rank {
	return func(s *stream) int { return max(related(server)(s), 1) }
}

// following is for what follows a request: on its stream, or on the GET stream.
func following(as *stream) rank {
	return func(s *stream) int {
		switch {
		case s == as:
			return 2
		case s.get:
			return 1
		}
		return 0
	}
}

// try sends a message on the best stream that takes it, nil where there is none. Of
// streams that fit equally it is the one that began first, as with log messages.
func (a *attachment) try(fits rank, message []byte) *stream {
	tried := map[*stream]bool{}
	for {
		var best *stream
		a.mu.Lock()
		for _, s := range a.streams {
			if n := fits(s); !tried[s] && n > 0 && (best == nil || n > fits(best)) {
				best = s
			}
		}
		a.mu.Unlock()
		if best == nil || best.out.say(message) {
			return best
		}
		tried[best] = true
	}
}

// say is try, and waits for a stream where there is none. The error is that of ctx.
func (a *attachment) say(ctx context.Context, fits rank, message []byte) (*stream, error) {
	for {
		a.mu.Lock()
		opened := a.opened
		a.mu.Unlock()
		if s := a.try(fits, message); s != nil {
			return s, nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// open makes an answer a stream that servers can ask on, until shut.
func (a *attachment) open(out *answer, get bool) (shut func()) {
	if len(a.peer.Offers) == 0 || !out.streams {
		return func() {}
	}
	s := &stream{out: out, get: get}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams = append(a.streams, s)
	close(a.opened)
	a.opened = make(chan struct{})
	return func() {
		a.mu.Lock()
		a.streams = slices.DeleteFunc(a.streams, func(o *stream) bool { return o == s })
		a.mu.Unlock()
		out.end() // somebody may have found it just before
	}
}

// towards notes which server a request goes to.
func (a *attachment) towards(out *answer, server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		if s.out == out {
			s.server = server
		}
	}
}

// say sends a message before the result; false says that it can not any more.
func (o *answer) say(message []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams && !o.done && o.event(message) == nil
}

// end makes what else is said go nowhere: the handler returns.
func (o *answer) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
}

// replied takes the client's answer to a request of a server. One that nobody waits
// for is of no interest.
func (a *attachment) replied(m message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.asks[text(m.id)]; q != nil {
		delete(a.asks, text(m.id))
		q.reply <- m
	}
}

// told takes a notification, or an answer, of the client.
func (g *Gateway) told(ctx context.Context, a *attachment, m message) {
	switch {
	case m.method == "":
		a.replied(m)
	case m.method == "notifications/cancelled":
		a.cancelCalls(string(m.requestID))
	case m.method == rootsChanged && slices.Contains(a.peer.Offers, connection.OfferRootsChanged):
		ctx, cancel := context.WithTimeout(ctx, endTurns)
		defer cancel()
		g.opts.Backend.Told(ctx, a.at.who, a.peer.ID, connection.OfferRootsChanged, m.method)
	}
}

// sees reports whether a connection of a commit is one that the attachment uses: the
// shared one of its session, that of an installed server, or its own.
func (a *attachment) sees(c *events.Commit) bool {
	s, key := c.Scope, c.Aggregate.Key
	if s.Session == "" {
		return a.backend.Sees(a.at.who, a.at.server, s.Server)
	}
	return a.session == s.Session && (!connection.IsPrivate(key) || key == connection.PrivateID(s.Session, s.Server, a.peer.ID))
}

// leaveServers ends what the attachment had at servers alone.
func (a *attachment) leaveServers(ctx context.Context) {
	if len(a.peer.Offers) > 0 {
		a.backend.Leave(ctx, a.at.who, a.peer.ID)
	}
}
