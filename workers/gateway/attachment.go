package gateway

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/go-json-experiment/json/jsontext"
)

// maxTurns is how many implicit turns an attachment keeps (decision 4).
const maxTurns = 16

// maxListeners is how many subscriptions an attachment can have.
const maxListeners = 256

// attachment is one client between its initialize and its end, or all stateless
// requests of a principal at an endpoint. Many of them can share a session
// (decision 3).
type attachment struct {
	backend Backend
	at      address
	peer    Peer // as servers know it

	ctx    context.Context // ends with the attachment
	cancel context.CancelCauseFunc

	changed   *listener     // among the listeners, of the GET streams
	preparing chan struct{} // capacity 1, full while a turn is prepared

	busy int       // requests under way; guarded by Gateway.mu
	used time.Time // end of the last one; guarded by Gateway.mu

	mu        sync.Mutex // guards the rest
	session   string     // "" until the first list or call
	turns     []*turn    // newest first, at most maxTurns
	calls     map[*call]struct{}
	listeners map[*listener]struct{}
	seen      kinds              // what the client has asked for
	level     string             // of the log messages that it wants; "" until it is set
	stream    context.CancelFunc // of the newest GET stream
	streams   []*stream          // of a peer, oldest first
	opened    chan struct{}      // closed and replaced when one more is there
	asks      map[string]*asking // of servers, by our id
	lastAsk   int                // number in the last id
	links     links              // of results
}

// kinds are the kinds of lists that an endpoint has.
type kinds uint8

const (
	kindTools kinds = 1 << iota
	kindResources
	kindPrompts

	allKinds = kindTools | kindResources | kindPrompts
)

// listener wants to be told of changed lists.
type listener struct {
	wake chan struct{} // capacity 1, full while something may be due
	want kinds
	// The rest is guarded by attachment.mu: what changed and was not told yet, of lists
	// and of the resources that are subscribed to.
	due           kinds
	updates       [][]byte // params of notifications
	logs          [][]byte // likewise, of logBytes together
	logBytes      int
	subscriptions map[string]*subscription // by URI
}

// signal wakes who tells the listener.
func (l *listener) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// turn is an implicit turn. calls, dropped and the diagnostics are guarded by
// attachment.mu.
type turn struct {
	client.Turn
	tools   map[string]*client.Tool // by the name in their definitions
	prompts map[string]*client.Item // likewise
	lists   map[string][]jsontext.Value
	calls   int  // under way
	dropped bool // to be ended with its last call
}

// call is a request to a server under way.
type call struct {
	id     string // of the request, as sent
	params []byte
	token  jsontext.Value // for progress, as sent; nil: none
	logs   bool           // a stateless client wants log messages
	input  []byte         // what it can be asked for, nil: it would not understand
	watch  *Watch         // the subscription that it is about
	cancel context.CancelFunc
	// guarded by attachment.mu, set while a person is asked
	approval string
	resume   context.CancelFunc
}

func newCall(m message, cancel context.CancelFunc) *call {
	return &call{id: string(m.id), params: m.params, token: m.meta.token, logs: m.meta.level != nil, input: m.input, cancel: cancel}
}

func newAttachment(b Backend, at address) *attachment {
	a := &attachment{
		backend: b, at: at, used: time.Now(),
		changed: newListener(allKinds), preparing: make(chan struct{}, 1),
		calls: map[*call]struct{}{}, asks: map[string]*asking{}, opened: make(chan struct{}),
	}
	a.listeners = map[*listener]struct{}{a.changed: {}}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	return a
}

// bound returns a context that ends with ctx and with the attachment.
func (a *attachment) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.ctx, func() { cancel(context.Cause(a.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

func newListener(want kinds) *listener { return &listener{wake: make(chan struct{}, 1), want: want} }

// signalLocked notes that clients must be told to list again. It never blocks, and
// many changes before a client listens are one.
func (a *attachment) signalLocked(changed kinds) {
	for l := range a.listeners {
		if l.due |= changed & l.want; l.due != 0 {
			l.signal()
		}
	}
}

// due is what a listener is to be told, and is told from now on; what could not be
// is put back.
func (a *attachment) due(l *listener) kinds {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := l.due
	l.due = 0
	return due
}

func (a *attachment) putBack(l *listener, due kinds) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.due |= due
	l.signal()
}

// asked notes that a client has asked for a list.
func (a *attachment) asked(k kinds) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen |= k
}

// listen makes one more who is told of changes, unless there are too many.
func (a *attachment) listen(want kinds) (l *listener, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.listeners) > maxListeners {
		return nil, false
	}
	l = newListener(want)
	a.listeners[l] = struct{}{}
	a.seen |= want
	return l, true
}

func (a *attachment) allListeners() []*listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.listeners))
}

func (a *attachment) unlisten(l *listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.listeners, l)
}

// take makes a GET stream the one of the attachment. The one before ends: a
// client that comes again has lost it, also where the kernel does not know yet.
func (a *attachment) take(cancel context.CancelFunc) {
	a.mu.Lock()
	before := a.stream
	a.stream = cancel
	a.mu.Unlock()
	if before != nil {
		before()
	}
}

// begin starts the session, unless it is active.
func (a *attachment) begin(ctx context.Context) error {
	release, err := a.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, err = a.join(ctx)
	return err
}

// alone waits until nobody prepares.
func (a *attachment) alone(ctx context.Context) (release func(), err error) {
	select {
	case a.preparing <- struct{}{}:
		return func() { <-a.preparing }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// join makes the present session the one of the attachment.
func (a *attachment) join(ctx context.Context) (string, error) {
	session, err := a.backend.Session(ctx, a.at.who, a.at.path)
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	var dead []string
	if a.session != session { // its turns ended with it
		dead = a.dropLocked(func(*turn) bool { return true })
	}
	// Set before the catalog is resolved: what changes from here on is signalled.
	a.session = session
	a.mu.Unlock()
	a.endAll(ctx, dead)
	return session, nil
}

// prepare makes the turn of the present catalog the newest one.
func (a *attachment) prepare(ctx context.Context) (*turn, error) {
	release, err := a.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	session, err := a.join(ctx)
	if err != nil {
		return nil, err
	}
	made, err := a.backend.Prepare(ctx, a.at.who, a.peer, session, a.at.server, a.reusable)
	if a.ctx.Err() != nil { // closed meanwhile, and what was opened since
		a.leaveServers(context.WithoutCancel(ctx))
	}
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	t := &turn{Turn: made}
	if i := slices.IndexFunc(a.turns, func(t *turn) bool { return t.Turn.Turn == made.Turn }); i >= 0 {
		t = a.turns[i]
		t.Diagnostics = made.Diagnostics
		a.turns = slices.Delete(a.turns, i, i+1)
	} else {
		t.tools = make(map[string]*client.Tool, len(made.Tools))
		for i := range made.Tools {
			tool := &made.Tools[i]
			name := tool.Name
			if a.at.server != "" {
				name = tool.RawName
			}
			t.tools[name] = tool
		}
		t.beside(a.at.server)
	}
	a.turns = slices.Insert(a.turns, 0, t)
	var dead []string
	if len(a.turns) > maxTurns {
		last := a.turns[maxTurns]
		dead = a.dropLocked(func(t *turn) bool { return t == last })
	}
	if a.ctx.Err() != nil { // closed meanwhile
		dead = append(dead, a.dropLocked(func(*turn) bool { return true })...)
	}
	a.mu.Unlock()
	a.endAll(ctx, dead)
	return t, nil
}

// reusable returns the turn that is kept for a catalog.
func (a *attachment) reusable(catalog string) (client.Turn, bool) {
	if t := a.find(func(t *turn) bool { return t.CatalogID == catalog }); t != nil {
		return t.Turn, true
	}
	return client.Turn{}, false
}

// find returns the newest turn that matches, or nil.
func (a *attachment) find(match func(*turn) bool) *turn {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.turns, match); i >= 0 {
		return a.turns[i]
	}
	return nil
}

// hold keeps a turn from being ended until release.
func (a *attachment) hold(t *turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t.calls++
}

func (a *attachment) release(ctx context.Context, t *turn) {
	a.mu.Lock()
	t.calls--
	over := t.dropped && t.calls == 0
	a.mu.Unlock()
	if over {
		a.endAll(ctx, []string{t.Turn.Turn})
	}
}

// drop forgets a turn and ends it, or lets its last call do so.
func (a *attachment) drop(ctx context.Context, dead *turn) {
	a.mu.Lock()
	ended := a.dropLocked(func(t *turn) bool { return t == dead })
	a.mu.Unlock()
	a.endAll(ctx, ended)
}

func (a *attachment) dropAll(ctx context.Context) {
	a.mu.Lock()
	ended := a.dropLocked(func(*turn) bool { return true })
	a.mu.Unlock()
	a.endAll(ctx, ended)
}

// dropLocked forgets the turns that match and returns those to end now.
func (a *attachment) dropLocked(match func(*turn) bool) []string {
	var now []string
	a.turns = slices.DeleteFunc(a.turns, func(t *turn) bool {
		if !match(t) {
			return false
		}
		t.dropped = true
		if t.calls == 0 {
			now = append(now, t.Turn.Turn)
		}
		return true
	})
	return now
}

// endAll ends turns, also when the request that noticed is over.
func (a *attachment) endAll(ctx context.Context, turns []string) {
	if len(turns) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTurns)
	defer cancel()
	for _, id := range turns {
		a.backend.EndTurn(ctx, a.at.who, id)
	}
}

func (a *attachment) add(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[c] = struct{}{}
}

func (a *attachment) remove(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.calls, c)
}

// cancelCalls cancels the calls with a request id. Ids are compared as sent: a
// client writes one id one way. Clients that use an id twice at a time (C7) get
// both cancelled, as nothing tells them apart.
func (a *attachment) cancelCalls(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls {
		if c.id == id {
			c.cancel()
		}
	}
}

// answered ends the waiting of the calls that an approval holds.
func (a *attachment) answered(approval string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls {
		if approval != "" && c.approval == approval { // an automatic yes names none
			c.resume()
		}
	}
}
