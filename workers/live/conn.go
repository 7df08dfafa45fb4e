package live

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// protocol is the revision that we ask for in a handshake. 2025-11-25 is the
	// newest that has one.
	protocol = "2025-11-25"
	// firstID is the first request id of ours; the SDK counts from 1.
	firstID = 1 << 40
	// parallelCalls is how many calls run at once on a connection that allows
	// it (R20, R191).
	parallelCalls = 16
	// maxAbandoned bounds the calls that are remembered after their caller left.
	maxAbandoned = 1024
)

// Options say how to open a connection.
type Options struct {
	// Name and Version are the client that the server sees.
	Name, Version string
	// Parallel allows 16 calls at once instead of one (R20).
	Parallel bool
	// Redactor knows the secrets that the server was given; who calls it makes
	// views of the answers with it.
	Redactor *redact.Redactor
	// Restart makes another transport where the first one ended over the probe; nil
	// is for a server that cannot be started again.
	Restart func(context.Context) (Transport, error)
	// Eras remembers the era of the server under the name Server; nil asks the server
	// each time.
	Eras   *Eras
	Server string
	// Patience is how long a server may leave the probe unanswered, once it has read
	// it, before a handshake goes out too, but not longer than a quarter of the time
	// there is; 0 is two seconds.
	Patience time.Duration
	// OnListChanged is called after the server said that one of its lists changed,
	// and not before Open returned or is about to.
	// Calls do not overlap, and notices during one are one more call. It runs
	// off the read loop and may block, but not longer than the connection lives.
	OnListChanged func(*Conn)
	// OnLog gets the log messages that come while no call listens, one after the other
	// and off the read loop; those that come faster than it returns are dropped.
	OnLog func(*Conn, Notice)
	// OnRefused hears of what a server asks its client, and may not: the first request of
	// each method that was not offered, and the first that was too often. It runs off
	// the read loop and may block, but not longer than the connection lives.
	OnRefused func(c *Conn, method string, often bool)
	// Asks are what the server may ask. A server of both eras is spoken to in the one
	// that has a handshake then, as it can ask there only.
	Asks Asks
}

// Info is what the server said about itself. It is raw text of the server, and all
// but the revision may be empty.
type Info struct {
	Name, Version string
	// Protocol is the negotiated revision, or that of the stateless era.
	Protocol string
	// Capabilities is the JSON object as sent, nil when there was none.
	Capabilities jsontext.Value
	// Instructions are for a model that uses the server.
	Instructions string
}

// Counts are the oddities of a connection since its start.
type Counts struct {
	// Frames are lines of the server that were no JSON-RPC message.
	Frames uint64
	// Strays are responses and progress that nobody waited for: late after
	// OnLate was given up, duplicate, or never asked for.
	Strays uint64
	// Overflow are notifications and requests of the server beyond what is kept of
	// them.
	Overflow uint64
}

// Transport carries the frames of one connection: a process of
// package stdio, or a client of package httpclient. Its methods are safe for concurrent use;
// Read has one caller at a time.
type Transport interface {
	// Write sends one frame without a line feed. With an error, sent tells whether
	// the server may have got a part of it.
	Write(ctx context.Context, frame []byte) (sent bool, err error)
	// Read returns the next frame of the server, in memory of its own. Its error is
	// final: io.EOF, or a fault that says why the connection has ended.
	Read() (frame.Frame, error)
	// Kill ends the connection at once, Close in an orderly way, as long as ctx
	// allows. Both may be called at any time and more than once.
	Kill()
	Close(ctx context.Context) error
	// Exit says in safe text how the server or the connection to it ended; empty
	// before that.
	Exit() string
	// Dropped counts what the server sent that was no frame.
	Dropped() uint64
}

// Stateless is a Transport that says more to the server than the frames do.
type Stateless interface {
	// Stateless is called once before the first request of the stateless era but the
	// probe, and never after a handshake.
	Stateless()
	// Repeat is called with each list of tools: for those that want it, the paths of
	// the parameters that their calls repeat, by the name of the header.
	Repeat(tools map[string]map[string][]string)
}

// Judging is a Transport that decides of each request whether it may go out, and
// records the decision before it does (R96). Who records it himself, with something
// else, asks for it before.
type Judging interface {
	// Judge decides on the next request.
	Judge(ctx context.Context) *events.UrlDecision
	// WriteJudged is Write of a request, where a decision of Judge holds that has been
	// recorded. It holds for one request.
	WriteJudged(ctx context.Context, frame []byte, judged *events.UrlDecision) (sent bool, err error)
}

// Starting is a Transport that can tell whether the server is still starting.
type Starting interface {
	// Unread reports whether the server has not read all that was sent to it.
	Unread() bool
}

// Retiring is a Transport that may take no more requests some time before it ends.
type Retiring interface {
	// Retired is closed then. Requests under way may still be answered.
	Retired() <-chan struct{}
}

// Listening is a Transport on which a server of the handshake era says what belongs to
// no request on a stream that can be away for a while.
type Listening interface {
	// Missed gets a value when that is there again: what the server said meanwhile
	// nobody heard.
	Missed() <-chan struct{}
}

// Conn is a live connection. Its methods are safe for concurrent use.
type Conn struct {
	redactor  *redact.Redactor
	transport Transport
	info      Info
	self      []byte        // members of _meta that say who we are
	own       []byte        // self in the stateless era, else nil; set before Open returns
	slots     chan struct{} // capacity is the number of calls at once
	link      *link         // the SDK's side
	changed   chan struct{} // capacity 1: a list changed
	asks      asking
	onRefused func(c *Conn, method string, often bool) // nil where nobody wants to know
	logs      chan Notice                              // log messages of no call; nil where nobody wants them

	level            atomic.Pointer[string] // of log messages, in the stateless era; nil until it is set
	nextID           atomic.Int64
	strays, overflow atomic.Uint64

	mu        sync.Mutex
	calls     map[int64]*pending // waiting and abandoned
	abandoned []int64            // oldest first; some may have been answered

	topics      map[string]*topic // by URI; guarded by mu
	subscribing chan struct{}     // capacity 1, full while a subscription to a resource begins or ends

	subscribed chan struct{} // closed when the first subscription has begun, or has ended
	first      sync.Once     // guards subscribed

	done  chan struct{} // closed by the read loop when no frame follows
	err   error         // set before done
	ended bool          // the server ended by itself while it was being opened
	wg    sync.WaitGroup
}

// ErrLost is the error of a call whose connection, or whose own part of it, ended
// before the answer.
type ErrLost struct {
	// Written says that the server may have begun the request; otherwise the call
	// has certainly not run.
	Written bool
	// Cause is the end of the connection, as [Conn.Err], or of the call's own part
	// of it.
	Cause error
}

// Error says that the connection was lost.
func (e *ErrLost) Error() string {
	if e.Written {
		return "live: the connection was lost after the request was sent"
	}
	return "live: the connection was lost before the server took the request"
}

// Unwrap returns Cause.
func (e *ErrLost) Unwrap() error { return e.Cause }

// Open finds out how the server behind t wants to be spoken to, and owns t from
// then on: after an error it is closed. ctx bounds it whatever the server does.
//
// Errors: that of ctx, that of Restart, or a fault: mostly initialize_failed or
// frame_too_large, else what the transport says.
func Open(ctx context.Context, t Transport, opts Options) (*Conn, error) {
	known := opts.Eras.of(opts.Server)
	if len(opts.Asks.Offers) > 0 {
		known = eraHandshake
	}
	c := newConn(t, opts)
	err := c.open(ctx, opts, known)
	if c.ended && known != eraHandshake && opts.Restart != nil && ctx.Err() == nil {
		if t, err = opts.Restart(ctx); err == nil {
			c = newConn(t, opts)
			err = c.open(ctx, opts, eraHandshake)
		}
	}
	switch {
	case err == nil && c.own != nil:
		opts.Eras.remember(opts.Server, eraStateless)
	case err == nil, known == eraUnknown && (c.ended || ctx.Err() == context.DeadlineExceeded):
		// The probe may be what the server tripped over.
		opts.Eras.remember(opts.Server, eraHandshake)
	case known == eraStateless:
		opts.Eras.remember(opts.Server, eraUnknown)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// open connects as far as ctx allows, and closes what it could not open.
func (c *Conn) open(ctx context.Context, opts Options, known era) error {
	c.wg.Go(c.read)
	// A write of the SDK may be stuck in a server that does not read, and the
	// SDK waits for it.
	stop := context.AfterFunc(ctx, c.transport.Kill)
	err := c.connect(ctx, opts, known)
	if !stop() || err != nil {
		select {
		case <-c.done:
			c.ended = ctx.Err() == nil && fault.KindOf(c.err) == fault.RuntimeNotLive
		default:
		}
		if c.ended { // a process that only closed its output is of no use either
			c.transport.Kill()
		}
		_ = c.Close(ctx)
		return c.handshakeError(ctx, err)
	}
	if opts.OnListChanged != nil {
		c.wg.Go(func() { c.notify(opts.OnListChanged) })
	}
	if opts.Asks.Tell != nil {
		c.wg.Go(c.listenTo)
	}
	if t, ok := c.transport.(Listening); ok {
		c.wg.Go(func() { c.catchUp(t.Missed()) })
	}
	if opts.OnLog != nil {
		c.wg.Go(func() { c.logTo(opts.OnLog) })
	}
	return nil
}

// connect speaks to the server in one era or the other. What is known of it comes
// first, and the probe where nothing is.
func (c *Conn) connect(ctx context.Context, opts Options, known era) error {
	patience := opts.Patience
	if patience <= 0 {
		patience = probeTime
	}
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/4)
	}
	var d *discovery
	if known != eraHandshake {
		d = c.discover(ctx)
		defer d.forget()
		limit := patience
		if known == eraStateless {
			limit = math.MaxInt64
		}
		switch v, err := d.wait(ctx, limit); {
		case err != nil:
			return err
		case v == modern:
			c.adopt(ctx, d, opts, patience)
			return nil
		}
	}
	// The probe of a server that is slow to start stays open beside the handshake.
	refused := c.handshake(ctx, opts)
	if refused == nil || ctx.Err() != nil {
		return refused
	}
	if d == nil {
		d = c.discover(ctx)
		defer d.forget()
	}
	if v, _ := d.wait(ctx, patience); v == modern {
		c.adopt(ctx, d, opts, patience)
		return nil
	}
	return refused
}

// adopt goes on in the stateless era. It subscribes before anybody lists, so that
// no change is missed between the two.
func (c *Conn) adopt(ctx context.Context, d *discovery, opts Options, patience time.Duration) {
	c.info, c.own = d.info, c.self
	c.link.end() // the SDK has no part in it
	if t, ok := c.transport.(Stateless); ok {
		t.Stateless()
	}
	if opts.OnListChanged == nil || c.tellsOfLists() == "" {
		return
	}
	c.wg.Go(c.listen)
	select {
	case <-c.subscribed:
	case <-time.After(patience):
	case <-ctx.Done():
	}
}

// handshake has the SDK initialize the connection.
func (c *Conn) handshake(ctx context.Context, opts Options) error {
	client := mcp.NewClient(
		&mcp.Implementation{Name: opts.Name, Version: opts.Version},
		// Set explicitly: the SDK's default offers roots.
		&mcp.ClientOptions{Capabilities: opts.Asks.capabilities()},
	)
	client.AddReceivingMiddleware(onlyPing)
	session, err := client.Connect(ctx, c.link, &mcp.ClientSessionOptions{ProtocolVersion: protocol})
	if err == nil {
		c.wg.Go(func() { _ = session.Wait() })
		c.info, err = parseInfo(c.link.initialized())
		return err
	}
	switch cause := c.link.failure(); {
	case cause == nil:
	case errors.As(cause, new(*fault.Fault)):
		return cause
	default:
		// A write that failed comes before the end that it is a sign of.
		select {
		case <-c.done:
		case <-ctx.Done():
		}
	}
	return err
}

// onlyPing refuses what was not offered, and what was goes past the SDK; the SDK itself would list no roots,
// and has other codes for sampling and elicitation.
func onlyPing(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "ping" {
			return next(ctx, method, req)
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
	}
}

func newConn(t Transport, opts Options) *Conn {
	c := &Conn{
		redactor:    opts.Redactor,
		transport:   t,
		onRefused:   opts.OnRefused,
		slots:       make(chan struct{}, 1),
		self:        self(opts.Name, opts.Version),
		changed:     make(chan struct{}, 1),
		subscribed:  make(chan struct{}),
		subscribing: make(chan struct{}, 1),
		calls:       make(map[int64]*pending),
		topics:      make(map[string]*topic),
		done:        make(chan struct{}),
		asks:        asking{Asks: opts.Asks, told: make(chan Notice, noticeRoom), open: make(map[string]context.CancelFunc)},
	}
	if opts.OnLog != nil {
		c.logs = make(chan Notice, noticeRoom)
	}
	if opts.Parallel {
		c.slots = make(chan struct{}, parallelCalls)
	}
	c.nextID.Store(firstID - 1)
	c.link = newLink(t, &c.overflow)
	return c
}

// handshakeError says why the handshake failed, after Close. What the server
// said about it stays out of the text.
func (c *Conn) handshakeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text := redact.Static("the server ended during the handshake")
	switch {
	case fault.KindOf(c.err) != fault.RuntimeNotLive:
		return c.err
	case !c.ended && errors.As(err, new(*fault.Fault)):
		return err
	case errors.As(err, new(*jsonrpc.Error)):
		text = redact.Static("the server refused to initialize")
	case c.link.initialized() != nil:
		text = redact.Static("the server's answer to initialize cannot be used, perhaps for its protocol revision")
	}
	return fault.New("live.open", fault.InitializeFailed, text)
}

// parseInfo reads the result of initialize.
func parseInfo(result jsontext.Value) (Info, error) {
	info := Info{}
	err := members(result, func(name string, value jsontext.Value, _ int) error {
		switch name {
		case "protocolVersion":
			info.Protocol = text(value)
		case "capabilities":
			if value.Kind() == '{' {
				info.Capabilities = value
			}
		case "instructions":
			info.Instructions = text(value)
		case "serverInfo":
			if value.Kind() == '{' {
				return info.identify(value)
			}
		}
		return nil
	})
	// The SDK lets newer revisions pass, but those have no initialize and want
	// more in every request than we send.
	if err == nil && info.Protocol > protocol {
		err = errors.New("live: the server answers with a revision that was not asked for")
	}
	return info, err
}

// Info returns what the server said about itself when it was opened.
func (c *Conn) Info() Info { return c.info }

// Redactor is that of the options.
func (c *Conn) Redactor() *redact.Redactor { return c.redactor }

// Judge decides whether a request may go to the server (R95). What it returns is to
// be recorded before the request, which takes it along in its options; nil is for a
// server that is at no URL. ctx bounds it.
func (c *Conn) Judge(ctx context.Context) *events.UrlDecision {
	if t, ok := c.transport.(Judging); ok {
		return t.Judge(ctx)
	}
	return nil
}

// Exit says how the server, or the connection to it, ended; empty before that.
func (c *Conn) Exit() string { return c.transport.Exit() }

// Counts returns the oddities seen so far.
func (c *Conn) Counts() Counts {
	return Counts{
		Frames:   c.transport.Dropped(),
		Strays:   c.strays.Load(),
		Overflow: c.overflow.Load(),
	}
}

// Done is closed when the connection has ended; calls fail from then on.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Retired is closed when no call can be begun any more, though those under way may
// still be answered. A connection can end without it; nil is one that always does.
func (c *Conn) Retired() <-chan struct{} {
	if t, ok := c.transport.(Retiring); ok {
		return t.Retired()
	}
	return nil
}

// Err says why the connection ended, as a fault: frame_too_large,
// initialize_failed for a wrong framing, else runtime_not_live. It is nil
// before Done.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close ends the server, or the connection to it, as its transport does and waits, as long as
// ctx allows, for the callbacks to return. Calls under way fail with ErrLost.
// It may be called more than once and concurrently.
func (c *Conn) Close(ctx context.Context) error {
	err := c.transport.Close(ctx)
	idle := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	return err
}

// Acquire waits for the connection's turn to make a call: one at a time, or 16
// when Options allow it, in the order of asking (R20). The caller calls release
// when the call is over; more than once is harmless.
//
// Errors: that of ctx, or ErrLost.
func (c *Conn) Acquire(ctx context.Context) (release func(), err error) {
	// Those who wait to send on a channel are served in order.
	select {
	case c.slots <- struct{}{}:
		return sync.OnceFunc(func() { <-c.slots }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, &ErrLost{Cause: c.err}
	}
}

// TryAcquire is Acquire where a slot is free, and does not wait.
func (c *Conn) TryAcquire() (release func(), ok bool) {
	select {
	case c.slots <- struct{}{}:
		return sync.OnceFunc(func() { <-c.slots }), true
	default:
		return nil, false
	}
}

// read is the read loop. It blocks on nothing but the server.
func (c *Conn) read() {
	for {
		frame, err := c.transport.Read()
		if err != nil {
			c.end(err)
			return
		}
		switch {
		case frame.Method == "":
			c.response(frame)
		case frame.ID != nil:
			if !c.ask(frame) {
				c.link.request(frame)
			}
		case frame.Method == "notifications/progress":
			c.progress(frame)
		case frame.Method == "notifications/message":
			c.logged(frame)
		case listChanged[frame.Method]:
			c.listsChanged()
		case frame.Method == "notifications/subscriptions/acknowledged":
			c.acknowledged(frame)
		case frame.Method == "notifications/resources/updated":
			c.updated(frame)
		case frame.Method == "notifications/cancelled":
			c.unlisten(frame)
			c.takenBack(frame)
		case frame.Method == "notifications/elicitation/complete":
			c.heard(frame)
		}
		// Nothing was asked for that comes with other notifications.
	}
}

// listChanged are the notices that a list is another one.
var listChanged = map[string]bool{
	"notifications/tools/list_changed": true, "notifications/resources/list_changed": true, "notifications/prompts/list_changed": true,
}

// end closes what hangs on the connection.
func (c *Conn) end(err error) {
	if err == io.EOF {
		err = notLive(redact.Static("the server has ended or closed its output"))
	}
	c.err = err
	close(c.done)
	c.link.end()
	c.asks.end()
	// A server that closed its output or broke the limits may still run.
	_ = c.transport.Close(context.Background())
}

func notLive(text redact.EventText) error {
	return fault.New("live.connection", fault.RuntimeNotLive, text)
}

// notify calls f for each change, one at a time.
func (c *Conn) notify(f func(*Conn)) {
	for {
		select {
		case <-c.changed:
			f(c)
		case <-c.done:
			return
		}
	}
}

// response hands a response to the one who asked.
func (c *Conn) response(frame frame.Frame) {
	id, ok := integer(frame.ID)
	if ok && id < firstID {
		if frame.Lost != nil {
			c.link.fail(frame.Lost.Cause) // the SDK waits for nothing more than that
		} else if !c.link.response(id, frame) {
			c.strays.Add(1)
		}
		return
	}
	c.mu.Lock()
	call := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	reply := Reply{Result: frame.Result, Error: frame.Error}
	switch {
	case call == nil && frame.Lost == nil:
		c.strays.Add(1)
	case call == nil:
	case !call.abandoned:
		call.reply <- answer{reply, frame.Lost}
	case frame.Lost == nil:
		c.wg.Go(func() { call.onLate(id, reply) })
	}
}

// progress hands a progress notification to its call, under the caller's token.
func (c *Conn) progress(frame frame.Frame) {
	token, at, err := findOnce(frame.Params, "progressToken")
	id, _ := integer(token)
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	switch {
	case err != nil || call == nil || call.abandoned || call.token == nil:
		c.strays.Add(1)
	case !call.note(Notice{frame.Method, replace(frame.Params, at, len(token), call.token)}):
		c.overflow.Add(1)
	}
}

// logged hands a log message to the call that began first of those that listen:
// the server does not say what it belongs to. Without one it is the connection's.
func (c *Conn) logged(frame frame.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := int64(math.MaxInt64)
	for id, call := range c.calls {
		if id < first && call.wake != nil && !call.abandoned {
			first = id
		}
	}
	n := Notice{frame.Method, bytes.Clone(frame.Params)}
	switch call := c.calls[first]; {
	case call != nil:
		if !call.note(n) {
			c.overflow.Add(1)
		}
	case c.logs != nil:
		select {
		case c.logs <- n:
		default:
			c.overflow.Add(1)
		}
	}
}

// logTo gives the log messages of no call to who wants them.
func (c *Conn) logTo(f func(*Conn, Notice)) {
	for {
		select {
		case n := <-c.logs:
			f(c, n)
		case <-c.done:
			return
		}
	}
}
