package httpin

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHead bounds the head of a request that the server reads itself, with all of
	// its headers, and maxShort its body.
	maxHead    = 8 << 10
	maxHeaders = 32
	maxShort   = 256 << 10
	// remains bounds the reading of a body that the handler did not want.
	remains = 10 * time.Second
)

// conn is a connection that the server serves itself.
type conn struct {
	net.Conn
	server *Server
	h      *handover
	ctx    context.Context // the values of net/http
	remote string

	buf      []byte // of which r to w was read and not used
	r, w     int
	left     int          // of the body of the request, in buf or to come
	gone     bool         // the client is; set by the watch
	readBy   time.Time    // the deadline, zero for none
	writeBy  atomic.Int64 // the deadline of patience, in Unix nanoseconds
	broken   bool         // no other request can be read
	out      bytes.Buffer
	template http.Request       // without a context
	cancel   context.CancelFunc // of the request

	mu      sync.Mutex
	idle    bool          // no request is there
	shut    bool          // it was closed as it was idle
	busy    bool          // a request is answered, and its body was read
	number  int           // of such requests
	seen    int           // the number when it was last looked at
	watched chan struct{} // closed when the watch of the client has ended; nil: there is none
}

func newConn(s *Server, h *handover, c net.Conn) *conn {
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.http)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, c.LocalAddr())
	return &conn{Conn: c, server: s, h: h, ctx: ctx, remote: c.RemoteAddr().String(), buf: make([]byte, maxHead)}
}

// serve answers requests until one is not for it, or the connection ends.
func (c *conn) serve() {
	for first := true; ; first = false {
		head, ok := c.head(first)
		if !ok {
			_ = c.Close()
			return
		}
		var r *http.Request
		if head != nil {
			r = c.request(head)
		}
		if r == nil {
			c.h.give(c.Conn, c.buf[:c.w])
			return
		}
		c.r = len(head)
		if !c.answer(r) {
			_ = c.Close()
			return
		}
	}
}

var (
	post    = []byte("POST /")
	lineEnd = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
)

// head waits for the head of the next request, nil for one that is not read here. It
// is not ok at the end of the connection.
func (c *conn) head(first bool) (head []byte, ok bool) {
	c.mu.Lock()
	// Who shuts down sees that it is idle, or this sees that somebody does.
	c.idle = !c.server.closing.Load()
	c.mu.Unlock()
	if !c.idle {
		return nil, false
	}
	head, ok = c.read(first)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = false
	return head, ok && !c.shut
}

func (c *conn) read(first bool) (head []byte, ok bool) {
	c.w = copy(c.buf, c.buf[c.r:c.w])
	c.r = 0
	for begun := false; ; {
		head = c.buf[:c.w]
		if at := bytes.Index(head, headEnd); at >= 0 {
			if begun {
				c.readDeadline(time.Time{})
			}
			return head[:at+len(headEnd)], true
		}
		if n := min(len(head), len(post)); c.w == len(c.buf) || !bytes.Equal(head[:n], post[:n]) || bytes.Count(head, lineEnd) != bytes.Count(head, lineEnd[1:]) {
			return nil, true
		}
		switch {
		case begun:
		case first, c.w > 0:
			begun = true
			if limit := c.server.http.ReadHeaderTimeout; limit > 0 {
				c.readDeadline(time.Now().Add(limit))
			}
		default:
			// Setting it is dear, so that it is set to a little more, and not each time.
			if idle := c.server.http.IdleTimeout; idle > 0 && time.Until(c.readBy) < idle {
				c.readDeadline(time.Now().Add(idle + idle/4))
			}
		}
		n, err := c.Read(c.buf[c.w:])
		c.w += n
		if err != nil {
			return nil, false
		}
	}
}

// readDeadline bounds reading; the zero time does not.
func (c *conn) readDeadline(t time.Time) {
	c.readBy = t
	_ = c.SetReadDeadline(t)
}

// known are the headers that the server reads itself, and their names for handlers.
var known = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Connection", "Content-Length",
		"Content-Type", AsHeader, "Host", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id", "Origin",
		"Sec-Fetch-Dest", "Sec-Fetch-Mode", "Sec-Fetch-Site", "Traceparent", "Tracestate", "User-Agent",
	} {
		m[strings.ToLower(name)] = name
	}
	return m
}()

// param begins the names of headers that repeat parameters of tools.
const param = "mcp-param-"

// canonical is the name of a header for handlers, empty for one that is not read
// here.
func canonical(name string) string {
	var lower [64]byte
	if len(name) > len(lower) {
		return ""
	}
	for i := range len(name) {
		b := name[i]
		switch {
		case b >= 'A' && b <= 'Z':
			b += 'a' - 'A'
		case b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '-':
		default:
			return ""
		}
		lower[i] = b
	}
	if key := known[string(lower[:len(name)])]; key != "" {
		return key
	}
	if strings.HasPrefix(string(lower[:len(name)]), param) {
		return http.CanonicalHeaderKey(name)
	}
	return ""
}

// request reads a head; nil is for what net/http is to read.
func (c *conn) request(head []byte) *http.Request {
	line, rest, ok := bytes.Cut(head, lineEnd)
	path, isPost := bytes.CutPrefix(line, post[:len(post)-1])
	path, is11 := bytes.CutSuffix(path, []byte(" HTTP/1.1"))
	if !ok || !isPost || !is11 || !plainPath(path) {
		return nil
	}
	text := string(rest) // the values are parts of it
	header := make(http.Header, 8)
	values := make([]string, 0, maxHeaders)
	host, length := "", -1
	for n := 0; len(text) > len(lineEnd); n++ {
		at := strings.Index(text, "\r\n") // there is one, as the head ends with two
		line := text[:at]
		text = text[at+len(lineEnd):]
		colon := strings.IndexByte(line, ':')
		if colon <= 0 || n == maxHeaders {
			return nil
		}
		key := canonical(line[:colon])
		value := strings.Trim(line[colon+1:], " \t")
		if key == "" || !plainValue(value) {
			return nil
		}
		switch key {
		case "Host":
			if host != "" || !plainHost(value) {
				return nil
			}
			host = value
			continue
		case "Content-Length":
			n, ok := decimal(value)
			if length >= 0 || !ok {
				return nil
			}
			length = n
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return nil
			}
		}
		if all := header[key]; all != nil {
			header[key] = append(all, value)
			continue
		}
		values = append(values, value)
		header[key] = values[len(values)-1 : len(values) : len(values)]
	}
	if host == "" || length < 0 || string(text) != string(lineEnd) {
		return nil
	}
	c.left = length
	target := string(path)
	r := &c.template // handlers get a copy with a context
	*r = http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: target}, RequestURI: target, Host: host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(length), Body: http.NoBody, RemoteAddr: c.remote,
	}
	if length > 0 {
		r.Body = &body{c}
	}
	return r
}

// plainPath reports whether a path can be read in one way only.
func plainPath(path []byte) bool {
	slash := false
	for i, b := range path {
		switch {
		case b == '/':
			if slash {
				return false
			}
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-', b == '_':
		default:
			return false
		}
		slash = b == '/'
		if i == 0 && !slash {
			return false
		}
	}
	return len(path) > 0
}

// plainHost reports whether a Host is nothing but a name or address, with a port
// perhaps.
func plainHost(host string) bool {
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-.:[]", r)
	})
}

// plainValue reports whether a value is visible ASCII and blanks.
func plainValue(value string) bool {
	for i := range len(value) {
		if b := value[i]; (b < ' ' || b > '~') && b != '\t' {
			return false
		}
	}
	return true
}

// decimal reads a Content-Length that is short enough.
func decimal(value string) (int, bool) {
	if value == "" || len(value) > 7 || value[0] == '0' && value != "0" {
		return 0, false
	}
	n, err := strconv.ParseUint(value, 10, 32)
	return int(n), err == nil && n <= maxShort
}

// answer has a request answered; it reports whether there may be another one.
func (c *conn) answer(r *http.Request) bool {
	ctx, cancel := context.WithCancel(c.ctx)
	c.cancel = cancel
	if c.left == 0 {
		c.begin()
	}
	w := &response{c: c, header: make(http.Header, 4), length: -1}
	aborted := c.handle(w, r.WithContext(ctx))
	c.end()
	cancel()
	if aborted {
		return false
	}
	w.finish()
	return !w.last && !c.broken && c.discard()
}

// handle calls the handler and reports whether it panicked. What it sent is cut off
// then, as net/http does.
func (c *conn) handle(w http.ResponseWriter, r *http.Request) (aborted bool) {
	defer func() {
		e := recover()
		if aborted = e != nil; aborted && e != http.ErrAbortHandler && c.server.http.ErrorLog != nil {
			c.server.http.ErrorLog.Printf("http: panic serving %s: %v\n%s", c.remote, e, debug.Stack())
		}
	}()
	c.server.http.Handler.ServeHTTP(w, r)
	return false
}

// discard reads what the handler left of the body.
func (c *conn) discard() bool {
	if n := min(c.left, c.w-c.r); n > 0 {
		c.r += n
		c.left -= n
	}
	if c.left == 0 {
		return true
	}
	c.readDeadline(time.Now().Add(remains))
	_, err := io.CopyN(io.Discard, c.Conn, int64(c.left))
	c.readDeadline(time.Time{})
	return err == nil
}

// body is that of a request.
type body struct{ c *conn }

// Read reads from the body. The end of it begins the watch.
func (b *body) Read(p []byte) (n int, err error) {
	c := b.c
	if c.left == 0 {
		return 0, io.EOF
	}
	if p = p[:min(len(p), c.left)]; c.r < c.w {
		n = copy(p, c.buf[c.r:c.w])
		c.r += n
	} else if n, err = c.Read(p); err != nil {
		c.broken = true
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	if c.left -= n; c.left == 0 {
		c.begin()
	}
	return n, err
}

// Close leaves the rest of it.
func (b *body) Close() error { return nil }

// arrived takes a body that has come with its head as a whole.
func arrived(r io.Reader) ([]byte, bool) {
	b, ok := r.(*body)
	if !ok || b.c.left == 0 || b.c.left > b.c.w-b.c.r {
		return nil, false
	}
	c := b.c
	data := bytes.Clone(c.buf[c.r : c.r+c.left])
	c.r += c.left
	c.left = 0
	c.begin()
	return data, true
}

// begin notes that a request was read as a whole.
func (c *conn) begin() {
	c.mu.Lock()
	if c.r == c.w {
		c.r, c.w = 0, 0 // there must be room for what comes next
	}
	c.busy = true
	c.number++
	c.mu.Unlock()
	c.server.begun()
}

// end notes that it is answered, and ends the watch.
func (c *conn) end() {
	c.mu.Lock()
	c.busy = false
	watched := c.watched
	c.watched = nil
	c.mu.Unlock()
	if watched != nil {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-watched
		c.broken = c.broken || c.gone
		c.readDeadline(time.Time{})
	}
}

func (c *conn) isBusy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy
}

// watchIfLate has the client watched where the same request was answered when it was
// last called. It reports whether one is.
func (c *conn) watchIfLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	late := c.busy && c.number == c.seen
	c.seen = c.number
	if late && c.watched == nil && c.w < len(c.buf) {
		c.watched = make(chan struct{})
		_ = c.SetReadDeadline(time.Time{}) // before end sets another one
		go c.watch(c.watched)
	}
	return c.busy
}

// watch waits for the client to leave, which cancels its request, or to send the next
// one: nobody hears then that it leaves, as with net/http.
func (c *conn) watch(done chan struct{}) {
	defer close(done)
	n, err := c.Read(c.buf[c.w:])
	c.w += n
	if e, ok := err.(net.Error); err != nil && (!ok || !e.Timeout()) {
		c.gone = true
		c.cancel()
	}
}
