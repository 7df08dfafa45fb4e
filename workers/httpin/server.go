package httpin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server answers HTTP. The requests that nearly all are, a POST with a plain head
// and a short body of known length, it reads and answers itself, which takes half the
// time; a connection with any other one goes to net/http as it is and for good, with
// what was read of it. Handlers see no difference.
//
// What it reads itself is a strict subset: whatever can be understood in two ways is
// not in it, so that net/http reads the same request out of the same bytes.
type Server struct {
	http *http.Server

	closing atomic.Bool
	looking atomic.Bool // look runs, again and again
	conns   sync.WaitGroup

	mu   sync.Mutex
	open map[*conn]struct{}
}

// NewServer makes a server of one of net/http, whose handler and limits are used and
// which nobody else may start or stop.
func NewServer(s *http.Server) *Server {
	return &Server{http: s, open: make(map[*conn]struct{})}
}

// Serve answers what comes to a listener, until Shutdown. It may be called with
// several. The error is http.ErrServerClosed then, else that of the listener.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(s.Listen(l)) }

// Listen serves what comes to a listener and returns one for net/http, with the
// connections that it does not serve.
func (s *Server) Listen(l net.Listener) net.Listener {
	h := &handover{Listener: l, conns: make(chan net.Conn), failed: make(chan error), done: make(chan struct{})}
	go s.accept(h)
	return h
}

// Shutdown takes nothing new and waits for the requests under way, as long as ctx
// allows. The error is that of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.Store(true)
	for _, c := range s.all() {
		c.mu.Lock()
		if c.idle {
			c.shut = true
			_ = c.Close()
		}
		c.mu.Unlock()
	}
	err := s.http.Shutdown(ctx)
	done := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// accept serves the connections of a listener.
func (s *Server) accept(h *handover) {
	for {
		conn, err := h.Listener.Accept()
		if err != nil {
			// It is for net/http to say whether and when to go on.
			select {
			case h.failed <- err:
			case <-h.done:
				return
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		c := newConn(s, h, conn)
		s.mu.Lock()
		if s.closing.Load() {
			s.mu.Unlock()
			_ = conn.Close()
			continue
		}
		s.open[c] = struct{}{}
		s.conns.Add(1)
		s.mu.Unlock()
		go func() {
			c.serve()
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
			s.conns.Done()
		}()
	}
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*conn, 0, len(s.open))
	for c := range s.open {
		out = append(out, c)
	}
	return out
}

const (
	// blink is how long a request is answered before its client is watched: it costs
	// nearly as much as the rest, and hardly a call takes so long.
	blink = 20 * time.Millisecond
	// lull is how many of them without a request are enough.
	lull = 50
)

// look has the client of each request watched that is not answered soon, and looks
// again, as long as there are requests.
func (s *Server) look(quiet int) {
	busy := false
	for _, c := range s.all() {
		busy = c.watchIfLate() || busy
	}
	if quiet++; busy {
		quiet = 0
	}
	if quiet == lull {
		s.looking.Store(false)
		// A request that has begun since then has seen that, or is seen here.
		for _, c := range s.all() {
			busy = c.isBusy() || busy
		}
		if !busy || !s.looking.CompareAndSwap(false, true) {
			return
		}
		quiet = 0
	}
	time.AfterFunc(blink, func() { s.look(quiet) })
}

// begun looks after the requests from now on.
func (s *Server) begun() {
	if !s.looking.Load() && s.looking.CompareAndSwap(false, true) {
		time.AfterFunc(blink, func() { s.look(0) })
	}
}

// handover is the listener of net/http: it gives what the server does not serve.
type handover struct {
	net.Listener
	conns  chan net.Conn
	failed chan error
	once   sync.Once
	done   chan struct{}
}

// Accept returns the next connection for net/http.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case err := <-h.failed:
		return nil, err
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close ends the listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return h.Listener.Close()
}

// give hands a connection over, with what was read of it.
func (h *handover) give(c net.Conn, read []byte) {
	_ = c.SetDeadline(time.Time{})
	select {
	case h.conns <- &handed{c, read}:
	case <-h.done:
		_ = c.Close()
	}
}

// handed is a connection of which something was read.
type handed struct {
	net.Conn
	read []byte
}

// Read returns first what was read before.
func (h *handed) Read(p []byte) (int, error) {
	if len(h.read) > 0 {
		n := copy(p, h.read)
		h.read = h.read[n:]
		return n, nil
	}
	return h.Conn.Read(p)
}

// CloseWrite lets net/http end an answer before the request has ended.
func (h *handed) CloseWrite() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
