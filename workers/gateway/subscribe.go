package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

const (
	methodSubscribe   = "resources/subscribe"
	methodUnsubscribe = "resources/unsubscribe"
)

const (
	// maxSubscriptions is how many resources a listener can have subscribed to.
	maxSubscriptions = 256
	// maxUpdates is how many updates wait for a listener that does not read. What
	// comes then is told of by the URI that was subscribed to.
	maxUpdates = 1024
)

// Watch is the subscription that a request is about.
type Watch struct {
	// ID is random: who asks with it again has the same subscription.
	ID, URI string
	// Updated gets the params of each notification that the resource has changed. It
	// does not block.
	Updated func(params []byte)
}

// subscription is that of a listener to a resource.
type subscription struct {
	Watch
	listener *listener
	params   []byte // of the request for it
	server   string // whose the resource is; guarded by attachment.mu
}

// subscription is that of a listener to a URI, which is made unless it is there; nil
// is one too many.
func (a *attachment) subscription(l *listener, uri string, params []byte) (s *subscription, made bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s = l.subscriptions[uri]; s != nil || len(l.subscriptions) >= maxSubscriptions {
		return s, false
	}
	s = &subscription{listener: l, params: params}
	s.Watch = Watch{ID: rand.Text(), URI: uri, Updated: func(params []byte) { a.updated(s, params) }}
	if l.subscriptions == nil {
		l.subscriptions = map[string]*subscription{}
	}
	l.subscriptions[uri] = s
	return s, true
}

// updated makes an update due. Equal ones are one.
func (a *attachment) updated(s *subscription, params []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := s.listener
	if l.subscriptions[s.URI] != s {
		return
	}
	if len(l.updates) >= maxUpdates {
		params, _ = json.Marshal(map[string]string{"uri": s.URI}) // a string
	}
	if slices.ContainsFunc(l.updates, func(u []byte) bool { return bytes.Equal(u, params) }) {
		return
	}
	l.updates = append(l.updates, params)
	l.signal()
}

// dueUpdates are those that a listener is to be told, and is told from now on.
func (a *attachment) dueUpdates(l *listener) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := l.updates
	l.updates = nil
	return due
}

func (a *attachment) putBackUpdates(l *listener, due [][]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.updates = append(due, l.updates...)
	l.signal()
}

// unsubscribe forgets what matches of the subscriptions of a listener, and ends it.
func (g *Gateway) unsubscribe(ctx context.Context, a *attachment, l *listener, match func(*subscription) bool) {
	a.mu.Lock()
	var ended []string
	for uri, s := range l.subscriptions {
		if match(s) {
			delete(l.subscriptions, uri)
			ended = append(ended, s.ID)
		}
	}
	a.mu.Unlock()
	for _, id := range ended {
		g.opts.Backend.Release(ctx, id)
	}
}

func every(*subscription) bool { return true }

// subscribe answers resources/subscribe of a client with a session: its GET stream
// tells of updates, and what nobody reads waits for the next one.
func (g *Gateway) subscribe(ctx context.Context, a *attachment, m message, out *answer) {
	uri := text(m.uri)
	if uri == "" {
		out.fail(newError(fault.InvalidInput, "params.uri is missing"))
		return
	}
	s, made := a.subscription(a.changed, uri, m.params)
	if s == nil {
		out.fail(newError(fault.ResourceExhausted, "too many resources are subscribed to"))
		return
	}
	reply, bad := g.subscribed(ctx, a, m, s, out)
	if made && (bad != nil || reply.Result == nil) {
		g.unsubscribe(ctx, a, a.changed, func(at *subscription) bool { return at == s })
	}
	g.conclude(reply, bad, m.method, out)
}

// subscribed asks for a subscription. One of an attachment that has ended meanwhile
// ends with it.
func (g *Gateway) subscribed(ctx context.Context, a *attachment, m message, s *subscription, out *answer) (client.CallReply, *rpcError) {
	reply, server, bad := g.reach(ctx, a, m, &s.Watch, out)
	a.mu.Lock()
	if server != "" {
		s.server = server
	}
	gone := s.listener.subscriptions[s.URI] != s
	a.mu.Unlock()
	if gone || a.ctx.Err() != nil {
		g.opts.Backend.Release(ctx, s.ID)
	}
	return reply, bad
}

// unsubscribed answers resources/unsubscribe. Where nothing is subscribed to there is
// nothing to ask; else the subscription ends, whatever becomes of the request.
func (g *Gateway) unsubscribed(ctx context.Context, a *attachment, m message, out *answer) {
	a.mu.Lock()
	s := a.changed.subscriptions[text(m.uri)]
	a.mu.Unlock()
	if s == nil {
		out.result([]byte("{}"))
		return
	}
	reply, _, bad := g.reach(ctx, a, m, &s.Watch, out)
	g.unsubscribe(ctx, a, a.changed, func(at *subscription) bool { return at == s })
	g.conclude(reply, bad, m.method, out)
}

// renew asks for the subscriptions of the attachments that match once more: their
// connection is another one, or the right to them may be gone. What is denied then
// ends. missed says that changes may have been missed, so that clients are told.
func (g *Gateway) renew(missed bool, match func(a *attachment, s *subscription) bool) {
	g.each(func(a *attachment) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for l := range a.listeners {
			for _, s := range l.subscriptions {
				if !match(a, s) {
					continue
				}
				g.work.Add(1) // under mu, by each
				go func() {
					defer g.work.Done()
					g.again(a, s, missed)
				}()
			}
		}
	})
}

// again makes one subscription anew.
func (g *Gateway) again(a *attachment, s *subscription, missed bool) {
	m := message{method: methodSubscribe, params: s.params}
	m.uri, _ = jsontext.AppendQuote(nil, s.URI) // came out of valid JSON
	reply, bad := g.subscribed(a.ctx, a, m, s, &answer{})
	switch {
	case bad != nil: // its connection may come back
	case reply.Result != nil:
		if missed {
			params, _ := json.Marshal(map[string]string{"uri": s.URI}) // a string
			a.updated(s, params)
		}
	case !stale(reply):
		g.unsubscribe(a.ctx, a, s.listener, func(at *subscription) bool { return at == s })
	}
}

// moved renews what an event may have ended.
func (g *Gateway) moved(c *events.Commit, e events.Event) {
	here := func(a *attachment) bool { return a.at.who.Workspace == c.Workspace }
	switch e.(type) {
	case events.ConnectionOpened:
		g.relevel(c)
		g.renew(true, func(a *attachment, s *subscription) bool {
			return here(a) && s.server == c.Scope.Server && (a.session == c.Scope.Session || c.Scope.Session == "")
		})
	case events.CapabilityRevoked:
		g.renew(false, func(a *attachment, _ *subscription) bool { return here(a) && a.at.who.Principal == c.Aggregate.Key })
	case events.PolicySet:
		g.renew(false, func(a *attachment, _ *subscription) bool { return here(a) })
	}
}

// subscribeAll asks for what a stateless client wants to subscribe to, one after the
// other, and returns what there is, as a JSON list.
func (g *Gateway) subscribeAll(ctx context.Context, a *attachment, l *listener, uris []jsontext.Value) []byte {
	agreed := []byte{'['}
	for _, uri := range uris {
		params := slices.Concat([]byte(`{"uri":`), uri, []byte{'}'})
		s, made := a.subscription(l, text(uri), params)
		if s == nil || !made {
			continue
		}
		m := message{method: methodSubscribe, params: params, uri: uri}
		if reply, bad := g.subscribed(ctx, a, m, s, &answer{stateless: true}); bad != nil || reply.Result == nil {
			g.unsubscribe(ctx, a, l, func(at *subscription) bool { return at == s })
			continue
		}
		if len(agreed) > 1 {
			agreed = append(agreed, ',')
		}
		agreed = append(agreed, uri...)
	}
	return append(agreed, ']')
}

// updated is the notification of an update. tag, unless it is nil, is a member for its
// _meta.
func updated(params, tag []byte) []byte {
	b := []byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":`)
	return append(append(b, tagged(params, tag)...), '}')
}

// tagged is an object with one more member in its _meta. What cannot be read stays as
// it is.
func tagged(params, tag []byte) []byte {
	if tag == nil {
		return params
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(params), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() == '"' {
		var name, v jsontext.Value
		if name, err = value(dec, params); err != nil {
			break
		}
		if v, err = value(dec, params); err != nil || text(name) != "_meta" {
			continue
		}
		end := int(dec.InputOffset())
		meta := []byte(`{` + string(tag) + `}`)
		if v.Kind() == '{' {
			meta = slices.Concat(prepend(v, string(tag))...)
		}
		return slices.Concat(params[:end-len(v)], meta, params[end:])
	}
	if err != nil {
		return params
	}
	return slices.Concat(prepend(params, `"_meta":{`+string(tag)+`}`)...)
}
