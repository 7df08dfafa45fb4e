package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// accept is sent with every request, in this order: some servers compare it
	// with what they expect (bug-reports #45).
	accept = "application/json, text/event-stream"
	// farewell bounds the end of the session at Close.
	farewell = 2 * time.Second
	// notice bounds a POST that has no answer but its status.
	notice = 10 * time.Second
	// silence is how long a server may say nothing where nothing else is said.
	silence = time.Minute
)

// ErrClosed says that the connection has ended or is being closed.
var ErrClosed = errors.New("httpclient: the connection takes no more frames")

// Options say which server is reached and how.
type Options struct {
	// URL is that of the server as it was declared, and Server its name.
	URL, Server string
	// Header goes with every request to the origin of URL, and to no other one;
	// headers of the protocol win over it.
	Header http.Header
	// Gate decides on every request.
	Gate Gate
	// Record is told of each decision before its request goes out, or is refused. An
	// error, which is a fault or that of its context, keeps it from being sent.
	Record func(context.Context, events.UrlDecision) error
	// Dial makes a TCP connection to an address that was decided on; nil is one of
	// package net.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// TLS is the configuration for https; nil is the default one.
	TLS *tls.Config
	// MaxFrame is the longest frame accepted, in bytes; 0: [frame.DefaultMax].
	MaxFrame int
	// Idle is how long a server may say nothing while an answer is due; 0 is a minute.
	Idle time.Duration
}

// Client is one connection. Its methods are safe for concurrent use; Read has one
// caller at a time. It has a pool of TCP connections of its own.
type Client struct {
	Options
	wires     wires
	target    urlpolicy.Target
	reason    urlpolicy.Reason // that there is no target
	redirects int              // of a request, that are followed
	frames    chan frame.Frame // what the server said, for Read
	dropped   atomic.Uint64

	ctx    context.Context // of every request
	cancel context.CancelFunc
	number atomic.Uint32 // of decisions
	closed sync.Once     // guards done
	done   chan struct{} // closed when no frame follows
	err    error         // set before done
	bye    sync.Once     // guards farewell
	left   chan struct{} // closed when all is over after Close
	wg     sync.WaitGroup
	// requests are those under way; none is added once closing is set.
	requests sync.WaitGroup
	retired  chan struct{} // closed when the session is gone
	missed   chan struct{} // capacity 1; see Missed

	mu        sync.Mutex
	closing   bool       // no request is begun
	expired   bool       // retired is closed, or about to be
	session   string     // empty: none
	protocol  string     // the negotiated revision; empty until then
	listens   bool       // the GET stream was opened
	good      netip.Addr // of the last connection
	stateless bool
	repeats   map[string]map[string][]string // tool, header, path of the parameter
}

// New makes a connection. Nothing is sent before the first Write.
func New(o Options) *Client {
	if o.MaxFrame <= 0 {
		o.MaxFrame = frame.DefaultMax
	}
	if o.Idle <= 0 {
		o.Idle = silence
	}
	c := &Client{
		Options: o,
		frames:  make(chan frame.Frame),
		done:    make(chan struct{}),
		left:    make(chan struct{}),
		retired: make(chan struct{}),
		missed:  make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.Dial == nil {
		c.Dial = dial
	}
	c.redirects = urlpolicy.MaxRedirects
	c.target, c.reason = urlpolicy.Parse(o.URL)
	return c
}

// Write sends one frame.
//
// A request goes out in the background, and its answer comes by Read, or else a
// frame with Lost; when ctx ends before, its stream is closed and neither comes.
// A notification or an answer has been taken by the server when Write returns.
// Errors: that of ctx, ErrClosed, that of Record, or a fault.
func (c *Client) Write(ctx context.Context, data []byte) (sent bool, err error) {
	return c.WriteJudged(ctx, data, nil)
}

// WriteJudged is Write with a decision of Judge for this request, which was recorded;
// nil decides and records.
func (c *Client) WriteJudged(ctx context.Context, data []byte, judged *events.UrlDecision) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	id, method := envelope(data)
	if method == "notifications/cancelled" && c.isStateless() {
		return true, nil // the end of ctx has said it, by closing the stream
	}
	if judged == nil {
		if judged, err = c.decide(ctx); err != nil {
			return false, err
		}
	} else if !judged.Allowed {
		return false, notContacted(judged)
	}
	asks := id != nil && method != ""
	if !c.begin(asks) {
		return false, ErrClosed
	}
	if asks {
		go func() {
			defer c.wg.Done()
			defer c.requests.Done()
			c.request(ctx, id, method, data, judged)
		}()
		return true, nil
	}
	defer c.wg.Done()
	ctx, cancel := c.bounded(ctx, notice)
	defer cancel()
	a, failed := c.post(ctx, data, judged)
	if failed != nil {
		return failed.Written, failed.Cause
	}
	a.close()
	if method == "notifications/initialized" {
		c.listen(ctx)
	}
	return true, nil
}

// begin takes part in the connection; wg.Done ends it, and requests.Done where it
// asks. It reports false when the connection is over.
func (c *Client) begin(asks bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.wg.Add(1)
	if asks {
		c.requests.Add(1)
	}
	return true
}

// bounded is a context that ends with ctx, with the connection, or in time.
func (c *Client) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// request posts a request and reads its answer.
func (c *Client) request(caller context.Context, id jsontext.Value, method string, data []byte, judged *events.UrlDecision) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	// The caller may leave as soon as he has his answer, and what follows it on the
	// stream is still read then.
	stop := context.AfterFunc(caller, cancel)
	defer stop()
	failed := c.exchange(ctx, id, method, data, judged, stop)
	if failed != nil && failed.Cause == errExpired {
		c.expire()
	}
	if failed != nil && caller.Err() == nil {
		c.deliver(frame.Frame{ID: id, Lost: &frame.Lost{Written: failed.Written, Cause: failed.Cause}})
	}
	if failed != nil && failed.fatal {
		c.end(failed.Cause)
	}
}

// exchange posts a request and delivers all that is said on its stream, the answer
// last. answered is called before that.
func (c *Client) exchange(ctx context.Context, id jsontext.Value, method string, data []byte, judged *events.UrlDecision, answered func() bool) *failure {
	a, failed := c.post(ctx, data, judged)
	if failed != nil {
		return failed
	}
	if method == "initialize" {
		c.mu.Lock()
		c.session = a.session
		c.mu.Unlock()
	}
	if method == "subscriptions/listen" {
		a.waits()
	}
	gone := false
	take := func(f frame.Frame) (last bool) {
		if f.Method != "" || !sameID(f.ID, id) {
			c.deliver(f)
			return false
		}
		if method == "initialize" {
			c.mu.Lock()
			c.protocol = revision(f.Result)
			c.mu.Unlock()
		}
		refuses, begun := c.refusesSession(f.Error)
		if gone = refuses && !begun; gone {
			return true // it was no answer of what was asked
		}
		answered()
		c.deliver(f)
		if refuses {
			c.expire()
		}
		return true
	}
	if failed := c.read(ctx, a, take); failed != nil {
		return failed
	}
	if gone {
		return expired()
	}
	return nil
}

// deliver hands a frame to Read.
func (c *Client) deliver(f frame.Frame) {
	select {
	case c.frames <- f:
	case <-c.ctx.Done():
	}
}

// Read returns the next frame of the server. Its error is final: io.EOF after
// Close or Kill, else a fault that says why the connection has ended.
func (c *Client) Read() (frame.Frame, error) {
	select {
	case f := <-c.frames:
		return f, nil
	case <-c.done:
		return frame.Frame{}, c.err
	}
}

// Dropped returns how many messages of the server were no frames.
func (c *Client) Dropped() uint64 { return c.dropped.Load() }

// Exit says why the connection has ended, empty before that.
func (c *Client) Exit() string {
	select {
	case <-c.done:
	case <-c.retired:
		return errExpired.Text.String()
	default:
		return ""
	}
	if f, ok := errors.AsType[*fault.Fault](c.err); ok {
		return f.Text.String()
	}
	return "closed"
}

// Retired is closed when the server has forgotten the session: no request is begun
// any more. Those under way it may still answer; when they have come to their ends,
// the connection ends.
func (c *Client) Retired() <-chan struct{} { return c.retired }

// expire retires the connection.
func (c *Client) expire() {
	c.mu.Lock()
	again := c.expired
	c.expired, c.closing = true, true
	c.mu.Unlock()
	if again {
		return
	}
	close(c.retired)
	go func() {
		c.requests.Wait()
		c.end(errExpired)
	}()
}

// end ends the connection: requests under way are cut off.
func (c *Client) end(err error) {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.closed.Do(func() {
		c.err = err
		close(c.done)
		c.cancel()
		c.wires.close()
	})
}

// Kill ends the connection at once, and tells the server nothing.
func (c *Client) Kill() { c.end(io.EOF) }

// Close ends the connection, and the session at the server, within two seconds
// and as long as ctx allows. The error is always nil.
func (c *Client) Close(ctx context.Context) error {
	c.bye.Do(func() {
		go func() {
			defer close(c.left)
			c.mu.Lock()
			open := !c.closing && c.session != ""
			c.closing = true
			c.mu.Unlock()
			if open {
				c.leave()
			}
			c.end(io.EOF)
			c.wg.Wait()
		}()
	})
	select {
	case <-c.left:
	case <-ctx.Done():
	}
	return nil
}

// leave ends the session. Servers that have no use for it say 405.
func (c *Client) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	judged, err := c.decide(ctx)
	if err != nil {
		return
	}
	if response, failed := c.send(ctx, c.outgoing(http.MethodDelete, nil), judged); failed == nil {
		_ = response.Body.Close()
	}
}

// outgoing makes a request to the server with the headers of the session.
func (c *Client) outgoing(verb string, body []byte) outgoing {
	header := c.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	header.Set("Accept", accept)
	header.Set("Accept-Encoding", "identity")
	c.mu.Lock()
	defer c.mu.Unlock()
	set(header, "Mcp-Session-Id", c.session)
	set(header, "Mcp-Protocol-Version", c.protocol)
	return outgoing{verb: verb, header: header, body: body}
}

// set sets a header of the protocol; a declared one does not take its place.
func set(h http.Header, name, value string) {
	if h.Del(name); value != "" {
		h.Set(name, value)
	}
}

func notLive(text redact.EventText) *fault.Fault {
	return fault.New("httpclient", fault.RuntimeNotLive, text)
}
