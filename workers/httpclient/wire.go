package httpclient

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxIdle is how many TCP connections are kept for later, and idleTime how long.
	maxIdle  = 32
	idleTime = 90 * time.Second
	// leftoverTime is how long the end of an answer may come after what was asked of
	// it; such a connection is of no use before that.
	leftoverTime = time.Second
	tidyTime     = 10 * time.Second
	maxHeader    = 64 << 10
	// maxInterim is how many answers may come before the one that counts (RFC 9110,
	// 15.2).
	maxInterim = 5
	// together is how much is written before anything is read. A server may refuse
	// more before it has read it all.
	together = 64 << 10
	// buffered is also what may be left of an answer of which the rest is not wanted.
	buffered = 8 << 10
)

// errNotYet says that there is nothing to be read at the moment. A TLS connection
// goes on after it, as after a deadline.
var errNotYet net.Error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return "httpclient: nothing has come yet" }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

var errInterim = errors.New("httpclient: there is no end of interim answers")

// wire is a TCP connection to a server, with TLS where the URL wants it. It has one
// owner at a time: an exchange, or who looks through the idle ones.
type wire struct {
	net.Conn // TCP
	name     string
	limit    io.LimitedReader // what HTTP is read from
	in       *bufio.Reader    // of limit
	to       io.Writer
	out      atomic.Int64    // bytes written to TCP
	raw      syscall.RawConn // nil where nothing can be read without waiting
	polls    bool            // Read does not wait
	idle     time.Duration   // how long Read waits; 0 is as long as it takes

	rest    io.Reader // what was not read of the last answer, nil for nothing
	chunked bool      // the rest is
	since   time.Time // when the last exchange ended
}

// connect makes a connection to the address that was decided on, with TLS for the host
// where the URL wants that.
func (c *Client) connect(ctx context.Context, to pin) (*wire, error) {
	conn, err := c.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, name: to.name(), raw: rawOf(conn)}
	var plain net.Conn = w
	if to.Scheme == "https" {
		if plain, err = c.secure(ctx, w, to); err != nil {
			w.cut()
			return nil, err
		}
	}
	w.to, w.limit.R = plain, plain
	w.in = bufio.NewReaderSize(&w.limit, buffered)
	w.out.Store(0)
	return w, nil
}

// Read reads from TCP.
func (w *wire) Read(p []byte) (int, error) {
	switch {
	case !w.polls:
		if w.idle > 0 {
			_ = w.SetReadDeadline(time.Now().Add(w.idle))
		}
		return w.Conn.Read(p)
	case w.raw != nil:
		return readNow(w.raw, p)
	}
	_ = w.SetReadDeadline(time.Now().Add(time.Millisecond))
	n, err := w.Conn.Read(p)
	_ = w.SetReadDeadline(time.Time{})
	if e, ok := err.(net.Error); ok && e.Timeout() {
		err = errNotYet
	}
	return n, err
}

// Write writes to TCP.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.out.Add(int64(n))
	return n, err
}

// patient sets how long Read waits.
func (w *wire) patient(idle time.Duration) {
	if w.idle = idle; idle == 0 {
		_ = w.SetReadDeadline(time.Time{})
	}
}

// cut ends the connection at once, whoever uses it.
func (w *wire) cut() { _ = w.Conn.Close() }

// exchange sends a request, in one write where it is not long, and reads the
// headers of the answer. fit says that the connection can be used again after it.
func (w *wire) exchange(r *http.Request, data []byte) (response *http.Response, fit bool, err error) {
	fit = true
	var sending chan error
	var cut error
	if len(data) > together {
		sending = make(chan error, 1)
		go func() {
			_, err := w.to.Write(data)
			sending <- err
		}()
	} else if _, cut = w.to.Write(data); cut != nil {
		if w.out.Load() == 0 {
			return nil, false, cut
		}
		// The server may have said why it wants no more of it.
		fit = false
		w.patient(leftoverTime)
	}
	response, err = w.answer(r)
	if sending != nil {
		if err != nil {
			w.cut()
			<-sending // so that it is known whether anything went out
		}
		select {
		case err := <-sending:
			fit = err == nil
		default:
			fit = false
		}
	}
	if err != nil {
		return nil, false, cmp.Or(cut, err)
	}
	return response, fit && !response.Close && response.StatusCode >= 200, nil
}

// answer reads the headers of an answer.
func (w *wire) answer(r *http.Request) (*http.Response, error) {
	w.limit.N = maxHeader
	defer func() { w.limit.N = math.MaxInt64 }()
	for range maxInterim {
		response, err := http.ReadResponse(w.in, r)
		if err != nil || response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, err
		}
	}
	return nil, errInterim
}

// settle reads the end of the last answer as far as it has come, without waiting.
// It reports whether the connection is alive and nothing else has come; if not,
// whether it may be so later.
func (w *wire) settle() (ready, later bool) {
	w.patient(0)
	w.polls = true
	defer func() { w.polls = false }()
	var err error
	for err == nil {
		_, err = w.in.Peek(w.in.Buffered() + 1)
	}
	if err != errNotYet {
		return false, false
	}
	if w.rest != nil {
		if w.chunked {
			// Its reader does not go on after an error.
			if all, _ := w.in.Peek(w.in.Buffered()); !bytes.HasSuffix(all, []byte("0\r\n\r\n")) {
				return false, true
			}
		}
		if _, err := io.Copy(io.Discard, w.rest); err != nil {
			return false, err == errNotYet && !w.chunked
		}
		w.rest = nil
	}
	return w.in.Buffered() == 0, false
}

// wires are the connections of which nobody waits for anything.
type wires struct {
	mu     sync.Mutex
	idle   []*wire // those that were put last are the last
	closed bool
	tidies bool // a timer runs
}

// take returns one of a name that can be used, nil for none.
func (p *wires) take(name string) *wire {
	var late []*wire
	for {
		w := p.pop(name)
		if w == nil {
			p.keep(late...)
			return nil
		}
		ready, later := w.settle()
		switch {
		case ready:
			p.keep(late...)
			return w
		case later && time.Since(w.since) < leftoverTime:
			late = append(late, w)
		default:
			w.cut()
		}
	}
}

// pop takes out the one that was put last, of a name where there is one.
func (p *wires) pop(name string) *wire {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range slices.Backward(p.idle) {
		if name == "" || w.name == name {
			p.idle = slices.Delete(p.idle, i, i+1)
			return w
		}
	}
	return nil
}

// put keeps one of which the exchange has ended.
func (p *wires) put(w *wire) {
	w.since = time.Now()
	p.keep(w)
}

func (p *wires) keep(all ...*wire) {
	if len(all) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range all {
		if p.closed || len(p.idle) >= maxIdle {
			w.cut()
			continue
		}
		p.idle = append(p.idle, w)
	}
	if len(p.idle) > 0 && !p.tidies {
		p.tidies = true
		time.AfterFunc(tidyTime, p.tidy)
	}
}

// tidy ends what was idle for too long, and what the server has ended.
func (p *wires) tidy() {
	var good []*wire
	for w := p.pop(""); w != nil; w = p.pop("") {
		idle := time.Since(w.since)
		if ready, later := w.settle(); idle < idleTime && (ready || later && idle < leftoverTime) {
			good = append(good, w)
		} else {
			w.cut()
		}
	}
	slices.Reverse(good)
	p.mu.Lock()
	p.tidies = false
	p.mu.Unlock()
	p.keep(good...)
}

// close ends all, and those that are put back later.
func (p *wires) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.idle {
		w.cut()
	}
	p.idle = nil
}

// roundTripAt sends a request to an address and reads the headers of its answer, of
// which the body is to be closed. It is sent a second time where certainly no byte of
// it has gone out, and never else. written says whether any byte may have, when there
// is an error. The end of the context cuts the connection until the body is closed.
func (c *Client) roundTripAt(ctx context.Context, to pin, r *http.Request, data []byte) (response *http.Response, written bool, err error) {
	for {
		w := c.wires.take(to.name())
		again := w != nil
		if w == nil {
			if w, err = c.connect(ctx, to); err != nil {
				return nil, false, err
			}
		}
		w.out.Store(0)
		w.patient(c.Idle)
		stop := context.AfterFunc(ctx, w.cut)
		response, fit, err := w.exchange(r, data)
		if err == nil {
			response.Body = &body{ReadCloser: response.Body, response: response, wires: &c.wires, wire: w, stop: stop, fit: fit}
			return response, true, nil
		}
		stop()
		w.cut()
		if written = w.out.Load() > 0; written || !again || ctx.Err() != nil {
			return nil, written, err
		}
	}
}

// body is that of an answer. Close waits for nothing: what is left of it is read
// when the connection is used next.
type body struct {
	io.ReadCloser
	response *http.Response
	wires    *wires
	wire     *wire // nil once it is closed
	stop     func() bool
	fit      bool // the connection can be used again
	ended    bool
}

// Read reads from the answer.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = err == io.EOF
	b.fit = b.fit && (err == nil || b.ended)
	return n, err
}

// Close gives the connection back.
func (b *body) Close() error {
	w := b.wire
	if w == nil {
		return nil
	}
	b.wire = nil
	if !b.stop() || !b.fit {
		w.cut()
		return nil
	}
	if w.rest = nil; !b.ended {
		w.rest, w.chunked = b.ReadCloser, len(b.response.TransferEncoding) > 0
	}
	b.wires.put(w)
	return nil
}
