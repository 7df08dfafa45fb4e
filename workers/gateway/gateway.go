// Package gateway is the side of Gatebus that MCP clients see, over streamable
// HTTP: at /mcp all servers, with visible names, and at /mcp/s/{server} one of
// them, as if it were connected directly. Each endpoint speaks MCP 2026-07-28,
// which is stateless, and the revisions with a handshake before it.
//
// Requests are read in one strict pass and answered with the bytes that the
// backend gives: ids, params, definitions, results and errors go through
// untouched, because types would round numbers and drop unknown members. Both
// ways to begin are a few small answers, so they are here as well: one way in, one
// place that checks Host, Origin, token and principal, and no goroutine or server
// object for each client.
//
// The gateway decides nothing. It keeps one implicit turn for each catalog that
// a client has listed, and finds the turn a call belongs to (decision 4). Lists of
// tools, resources, templates and prompts come from the turn; a call, a read, a
// prompt and a completion go to the server whose they are there, and so does a
// subscription to a resource: it holds until its client leaves it, and is made again
// at the connection that takes the place of its own.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Who is on whose authority a request acts.
type Who struct {
	Workspace string
	Principal string
	// Actor acts; it differs from Principal where an operator acts for somebody.
	Actor string
}

// Call is one tools/call, or another request to a server.
type Call struct {
	Turn string
	// Name is the name that the turn has for the tool; with a Method it is a server.
	Name string
	// Method is that of a request that is no tools/call, and Subject the prompt, URI
	// or template that it is about, as the server listed it.
	Method, Subject string
	// Params is the params object as the client sent it, but for the name of a prompt:
	// one JSON object that has each member once, at every depth. It is the backend's
	// to keep.
	Params redact.Raw[[]byte]
	// Input is what a stateless client can be asked for by the result of a request
	// that allows it: those of its capabilities, as a JSON object. nil is for a client
	// that would take such a result for the end.
	Input []byte
	// Wait is how long the call may be held for a person (decision 9).
	Wait time.Duration
	// OnPending is called when a person is asked.
	OnPending func(approval string)
	// Notify gets whole notifications of the server, in order: progress with the
	// client's own token and, with Logs, log messages. It blocks while the client does
	// not read. It is nil where nobody listens.
	Notify func(message []byte)
	Logs   bool
	// Watch is the subscription that a request to subscribe to a resource or to
	// unsubscribe is about; else nil. It holds until Release.
	Watch *Watch
}

// Backend is what the gateway stands in front of. It is called concurrently.
//
// Errors are faults, whose text the client sees; of others it sees that they
// are internal.
type Backend interface {
	// Serves reports whether there is a server of that name.
	Serves(server string) bool
	// Sees reports whether a client may see a server that was installed, and of which the
	// endpoint would have something: the server of that name, or all in "".
	Sees(who Who, endpoint, server string) bool
	// Session returns the session of a client (decision 3). It is started if it
	// is not; label is the path of the endpoint.
	Session(ctx context.Context, who Who, label string) (string, error)
	// Prepare resolves the catalog: of all servers, or of one alone, whose
	// definitions stay its own then. Where reuse has a turn for its id, which binds
	// authority and policy, that turn is the result and no new one begins. It does
	// not wait for servers that are not connected (decision 8). A peer that offers
	// something has connections of its own where it may (decision 3).
	Prepare(ctx context.Context, who Who, peer Peer, session, server string, reuse func(catalog string) (client.Turn, bool)) (client.Turn, error)
	// Call makes a call. It calls Notify and OnPending only before it returns.
	Call(ctx context.Context, who Who, call Call) (client.CallReply, error)
	// Release ends a subscription, if it is there.
	Release(ctx context.Context, subscription string)
	// EndTurn ends a turn that has no call any more.
	EndTurn(ctx context.Context, who Who, turn string)
	// Told passes a notification of a peer to the servers that it made an offer to,
	// Leave ends what they had for it alone.
	Told(ctx context.Context, who Who, peer, offer, method string)
	Leave(ctx context.Context, who Who, peer string)
}

// Options make a gateway.
type Options struct {
	Backend Backend
	// Authenticate returns whose token it is. It compares in constant time.
	Authenticate func(token string) (Who, bool)
	// Anonymous is who acts when a request from this machine has no token, if
	// anybody; as is the host that one over the socket names. nil is nobody.
	Anonymous func(as string) (Who, bool)
	// Follow yields the commits after a sequence, those at least that Concerns accepts, and does not end by itself; Head
	// is the last sequence.
	Follow func(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error]
	Head   func() uint64
	// Version is that of the program.
	Version string
	// Hold is how long a call is held for an approval; 45 s if zero.
	Hold time.Duration
	// Logger gets refusals and errors, never a body or a token; nil: nobody.
	Logger *slog.Logger
	// Idle is how long an attachment lives without a request; 1 h if zero.
	Idle time.Duration
}

// The endpoints: of all servers, and of one that follows.
const (
	path       = "/mcp"
	serverPath = "/mcp/s/"
)

// endpoint is where a client connects to.
type endpoint struct {
	path   string // the label of the sessions behind it
	server string // the only one there; "" for all
}

// address is what a request must have right to reach its attachment: at another
// endpoint, and for another principal (A9), it is not there.
type address struct {
	endpoint
	who Who
	id  string // Mcp-Session-Id, 130 random bits; "" for all stateless requests
}

// maxAttachments is how many attachments a principal can have. A client that
// always connects anew and never leaves costs its own oldest ones.
const maxAttachments = 256

// endTurns is how long the turns of a closed attachment may take to end.
const endTurns = 5 * time.Second

// errClosed is why a request of a closed attachment ends.
var errClosed = fault.New("gateway", fault.RuntimeClosed, redact.Static("the connection was closed by gatebus"))

// Gateway serves MCP clients. Its methods may be called concurrently.
type Gateway struct {
	opts Options
	info []byte // of the server, JSON

	mu          sync.Mutex
	attachments map[address]*attachment
	closed      bool
	work        sync.WaitGroup // requests of attachments, and turns being ended; grows under mu
}

// New makes a gateway. The error is about missing options.
func New(o Options) (*Gateway, error) {
	if o.Backend == nil || o.Authenticate == nil || o.Follow == nil || o.Head == nil {
		return nil, errors.New("gateway: Backend, Authenticate, Follow and Head are needed")
	}
	if o.Hold == 0 {
		o.Hold = 45 * time.Second
	}
	if o.Idle == 0 {
		o.Idle = time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Anonymous == nil {
		o.Anonymous = func(string) (who Who, ok bool) { return who, false }
	}
	info, err := json.Marshal(map[string]string{"name": "gatebus", "version": o.Version})
	if err != nil {
		return nil, err
	}
	return &Gateway{
		opts: o, info: info, attachments: map[address]*attachment{},
	}, nil
}

// Run tells clients that their lists changed and closes attachments that
// nobody uses. When ctx ends, it ends every request and turn, waits for the
// handlers and returns nil; the handler answers 503 from then on. An error is
// that of the log. Changes from before Run are not told: start it before the
// handler serves.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.close()
	ctx, cancel := context.WithCancel(ctx)
	var sweeper sync.WaitGroup
	defer sweeper.Wait()
	defer cancel()
	sweeper.Go(func() { g.sweep(ctx) })
	for c, err := range g.opts.Follow(ctx, g.opts.Head()) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		g.committed(c)
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("gateway: the log ended")
}

// close ends what there is and lets nothing new begin.
func (g *Gateway) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.end(func(*attachment) bool { return true })
	g.work.Wait()
}

// sweep closes attachments that were idle for too long.
func (g *Gateway) sweep(ctx context.Context) {
	tick := time.NewTicker(max(g.opts.Idle/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.end(func(a *attachment) bool { return a.busy == 0 && now.Sub(a.used) >= g.opts.Idle })
		}
	}
}

// end closes the attachments that match; match runs under mu. Their requests
// are cancelled and their turns end in the background, so that nobody waits for
// somebody else's.
func (g *Gateway) end(match func(*attachment) bool) {
	g.mu.Lock()
	var ended []*attachment
	for at, a := range g.attachments {
		if match(a) {
			delete(g.attachments, at)
			ended = append(ended, a)
		}
	}
	if len(ended) == 0 {
		g.mu.Unlock()
		return
	}
	g.work.Add(1)
	g.mu.Unlock()
	for _, a := range ended {
		a.cancel(errClosed)
	}
	go func() {
		defer g.work.Done()
		ctx, cancel := context.WithTimeout(context.Background(), endTurns)
		defer cancel()
		for _, a := range ended {
			for _, l := range a.allListeners() {
				g.unsubscribe(ctx, a, l, every)
			}
			a.dropAll(ctx)
			a.leaveServers(ctx)
		}
	}()
}

// attach makes an attachment, unless it is there. It takes the place of the principal's longest
// idle one where there are too many. It returns nil when none of them is idle
// or the gateway is closed.
func (g *Gateway) attach(at address, offers ...string) *attachment {
	g.mu.Lock()
	if a := g.attachments[at]; a != nil && !g.closed {
		g.mu.Unlock()
		return a
	}
	var oldest *attachment
	n, most := 0, maxAttachments
	if len(offers) > 0 {
		most = maxPeers
	}
	for _, a := range g.attachments {
		if a.at.who != at.who || len(offers) > 0 && len(a.peer.Offers) == 0 {
			continue
		}
		n++
		if a.busy == 0 && (oldest == nil || a.used.Before(oldest.used)) {
			oldest = a
		}
	}
	if g.closed || n >= most && oldest == nil {
		g.mu.Unlock()
		return nil
	}
	a := newAttachment(g.opts.Backend, at)
	if len(offers) > 0 {
		a.peer = Peer{ID: "x-" + rand.Text(), Offers: offers}
	}
	g.attachments[at] = a
	g.mu.Unlock()
	if n >= most {
		g.end(func(a *attachment) bool { return a == oldest && a.busy == 0 })
	}
	return a
}

// enter finds the attachment of a request and keeps it, and Run, until leave.
func (g *Gateway) enter(at address) (a *attachment, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a = g.attachments[at]
	if g.closed || a == nil {
		return nil, g.closed
	}
	a.busy++
	g.work.Add(1)
	return a, false
}

func (g *Gateway) leave(a *attachment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a.busy--
	a.used = time.Now()
	g.work.Done()
}
