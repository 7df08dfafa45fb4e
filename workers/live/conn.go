package live

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// protocol is the revision that we ask for. 2025-11-25 is the newest with
	// an initialize handshake.
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
	// Decision is what is to be recorded of a tool call before it is sent (R96); nil
	// is nothing.
	Decision func() *events.UrlDecision
	// OnListChanged is called after the server said that one of its lists changed,
	// and not before Open returned or is about to.
	// Calls do not overlap, and notices during one are one more call. It runs
	// off the read loop and may block, but not longer than the connection lives.
	OnListChanged func(*Conn)
}

// Info is what the server said about itself. It is raw text of the server.
type Info struct {
	Name, Version string
	// Protocol is the negotiated revision.
	Protocol string
	// Capabilities is the JSON object as sent, nil when there was none.
	Capabilities jsontext.Value
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

// Conn is a live connection. Its methods are safe for concurrent use.
type Conn struct {
	redactor  *redact.Redactor
	decision  func() *events.UrlDecision
	transport Transport
	info      Info
	slots     chan struct{} // capacity is the number of calls at once
	link      *link         // the SDK's side
	changed   chan struct{} // capacity 1: a list changed

	nextID           atomic.Int64
	strays, overflow atomic.Uint64

	mu        sync.Mutex
	calls     map[int64]*pending // waiting and abandoned
	abandoned []int64            // oldest first; some may have been answered

	done chan struct{} // closed by the read loop when no frame follows
	err  error         // set before done
	wg   sync.WaitGroup
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

// Open shakes hands with the server behind t and owns t from then on: after an
// error it is closed. ctx bounds the handshake whatever the server does.
//
// Errors: that of ctx, or a fault of kind initialize_failed or frame_too_large.
func Open(ctx context.Context, t Transport, opts Options) (*Conn, error) {
	c := newConn(t, opts)
	c.wg.Go(c.read)
	// A write of the SDK may be stuck in a server that does not read, and the
	// SDK waits for it.
	stop := context.AfterFunc(ctx, t.Kill)
	client := mcp.NewClient(
		&mcp.Implementation{Name: opts.Name, Version: opts.Version},
		// Set explicitly: the SDK's default offers roots.
		&mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}},
	)
	client.AddReceivingMiddleware(onlyPing)
	session, err := client.Connect(ctx, c.link, &mcp.ClientSessionOptions{ProtocolVersion: protocol})
	if err == nil {
		c.wg.Go(func() { _ = session.Wait() })
		c.info, err = parseInfo(c.link.initialized())
	}
	if !stop() || err != nil {
		_ = c.Close(ctx)
		return nil, c.handshakeError(ctx, err)
	}
	if opts.OnListChanged != nil {
		c.wg.Go(func() { c.notify(opts.OnListChanged) })
	}
	return c, nil
}

// onlyPing refuses what we did not offer; the SDK itself would list no roots,
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
		redactor:  opts.Redactor,
		decision:  opts.Decision,
		transport: t,
		slots:     make(chan struct{}, 1),
		changed:   make(chan struct{}, 1),
		calls:     make(map[int64]*pending),
		done:      make(chan struct{}),
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
		case "serverInfo":
			if value.Kind() != '{' {
				return nil
			}
			return members(value, func(name string, value jsontext.Value, _ int) error {
				switch name {
				case "name":
					info.Name = text(value)
				case "version":
					info.Version = text(value)
				}
				return nil
			})
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

// Info returns what the server said about itself in the handshake.
func (c *Conn) Info() Info { return c.info }

// Redactor is that of the options.
func (c *Conn) Redactor() *redact.Redactor { return c.redactor }

// Decision is what is to be recorded of a tool call before it is sent; nil is
// nothing.
func (c *Conn) Decision() *events.UrlDecision {
	if c.decision == nil {
		return nil
	}
	return c.decision()
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
			c.link.request(frame)
		case frame.Method == "notifications/progress":
			c.progress(frame)
		case frame.Method == "notifications/message":
			c.logged(frame)
		case listChanged[frame.Method]:
			select {
			case c.changed <- struct{}{}:
			default: // a call is due already
			}
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
			c.link.end() // the SDK waits for nothing more than that
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
// the server does not say what it belongs to. Without one nobody is there for it.
func (c *Conn) logged(frame frame.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := int64(math.MaxInt64)
	for id, call := range c.calls {
		if id < first && call.wake != nil && !call.abandoned {
			first = id
		}
	}
	if call := c.calls[first]; call != nil && !call.note(Notice{frame.Method, bytes.Clone(frame.Params)}) {
		c.overflow.Add(1)
	}
}
