package httpclient

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// resumes is how often in a row a stream that was cut is taken up again without
	// a word of the server, and pause how long before that when it does not say.
	resumes  = 3
	pause    = time.Second
	maxPause = 30 * time.Second
	// firstWait and lastWait bound how long the GET stream stays away. Its clean end
	// is no reason to come sooner (bug-reports #42); a stream that held is. Proxies end
	// what is idle after 30 seconds and more.
	firstWait = time.Second
	lastWait  = 5 * time.Minute
	held      = 25 * time.Second
	// opening is how long a server may take to begin the first one before the client
	// goes on without it.
	opening = 250 * time.Millisecond
	// refusal bounds what is read of an answer that is no result.
	refusal = 64 << 10
)

// errExpired is the end of a connection whose session is gone: another one has to
// be opened.
var errExpired = notLive(redact.Static("the session has expired: the server does not know it any more"))

// failure is why a request has no answer. fatal ends the connection.
type failure struct {
	frame.Lost
	fatal  bool
	status int // of the last response; 0: there was none
}

func lost(kind fault.Kind, text redact.EventText) *failure {
	return &failure{Lost: frame.Lost{Written: true, Cause: fault.New("httpclient", kind, text)}}
}

// expired is the failure of a request whose session is gone.
func expired() *failure { return &failure{Lost: frame.Lost{Cause: errExpired}} }

// refused is the failure of a request that the server did not begin.
func refused(kind fault.Kind, text redact.EventText) *failure {
	f := lost(kind, text)
	f.Written = false
	return f
}

// reply is a response of which the headers were read.
type reply struct {
	body    io.Reader
	events  bool // a stream of events
	session string
	raw     io.ReadCloser
}

// close leaves the rest of it and gives the TCP connection back.
func (a *reply) close() { _ = a.raw.Close() }

// waits says that what comes is no answer that is due, but what happens to happen.
func (a *reply) waits() {
	if b, ok := a.raw.(*body); ok {
		b.wire.patient(0)
	}
}

// post sends a frame that was decided on. A reply is to be closed.
func (c *Client) post(ctx context.Context, data []byte, judged *events.UrlDecision) (*reply, *failure) {
	q := c.outgoing(http.MethodPost, data)
	c.mirror(q.header, data)
	response, failed := c.send(ctx, q, judged)
	if failed != nil {
		return nil, failed
	}
	a, failed := c.accept(response, data)
	if failed != nil {
		_ = response.Body.Close()
		return nil, failed
	}
	return a, nil
}

// get opens a stream of events, after the event lastID if there is one. status is
// 0 when there is no response.
func (c *Client) get(ctx context.Context, lastID string) (a *reply, status int) {
	judged, err := c.decide(ctx)
	if err != nil {
		return nil, 0
	}
	q := c.outgoing(http.MethodGet, nil)
	set(q.header, "Last-Event-ID", lastID)
	response, failed := c.send(ctx, q, judged)
	if failed != nil {
		return nil, failed.status
	}
	if response.StatusCode == http.StatusOK {
		if a, failed := c.accept(response, nil); failed == nil && a.events {
			return a, response.StatusCode
		}
	}
	_ = response.Body.Close()
	return nil, response.StatusCode
}

// givenUp is the end of an answer that did not go on.
var givenUp = redact.Static("the server said nothing for too long")

// silent reports whether an error is that nothing came in time.
func silent(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// unanswered is the failure of a request without a response. A fault is that of
// Dial.
func unanswered(written bool, err error) *failure {
	var f *fault.Fault
	switch {
	case written && silent(err):
		return lost(fault.TimedOut, givenUp)
	case written:
		return lost(fault.Unavailable, redact.Static("the connection to the server was cut before it answered"))
	case errors.As(err, &f):
		return refused(f.Kind, f.Text)
	}
	return refused(fault.Unavailable, redact.Static("the server cannot be reached"))
}

// accept judges the status and the headers of a response to data.
func (c *Client) accept(response *http.Response, data []byte) (*reply, *failure) {
	a := &reply{body: response.Body, raw: response.Body, session: sessionOf(response.Header)}
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if a.events = media == "text/event-stream"; !a.events {
		// What is compressed may be endless and come to nothing.
		a.body = io.LimitReader(response.Body, int64(c.MaxFrame)+1)
	}
	switch encoding := response.Header.Get("Content-Encoding"); strings.ToLower(encoding) {
	case "", "identity":
	case "gzip", "x-gzip":
		// Without an answer to wait for nothing is decoded.
		a.body = &unzip{raw: a.body}
	default:
		return nil, lost(fault.InitializeFailed, redact.Static("the server's answer is in an encoding that was not asked for"))
	}
	status := response.StatusCode
	if status >= 200 && status < 300 {
		return a, nil
	}
	// Some servers answer a request with an error of JSON-RPC and a status of HTTP.
	if id, method := envelope(data); id != nil && method != "" && media == "application/json" {
		body, err := io.ReadAll(io.LimitReader(a.body, refusal))
		if f, ok := parse(bytes.TrimSpace(body)); ok && err == nil && f.Error != nil && sameID(f.ID, id) {
			a.body = bytes.NewReader(body)
			return a, nil
		}
	}
	return nil, c.refusal(status)
}

// refusal is what a status says that is no success.
func (c *Client) refusal(status int) *failure {
	c.mu.Lock()
	session, open := c.session, c.protocol != ""
	c.mu.Unlock()
	kind := fault.Unavailable
	if !open {
		kind = fault.InitializeFailed
	}
	number := strconv.Itoa(status)
	switch {
	case session != "" && (status == http.StatusNotFound || status == http.StatusBadRequest):
		return expired()
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f := refused(fault.AuthRequired, redact.Name("the server wants a login, or refuses the one in the headers: HTTP status "+number))
		f.fatal = status == http.StatusUnauthorized
		return f
	case status >= 300 && status < 400:
		return refused(fault.URLBlocked, redact.Name("the server names another place in a way that is not followed: HTTP status "+number))
	case status >= 400 && status < 500:
		return refused(kind, redact.Name("the server refused the request: HTTP status "+number))
	}
	return lost(kind, redact.Name("the server failed: HTTP status "+number))
}

// refusesSession reports whether an error of JSON-RPC says that the session is
// gone (bug-reports #29). A request that it calls invalid was not begun; of another
// error nobody knows.
func (c *Client) refusesSession(e []byte) (refuses, begun bool) {
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	var said struct {
		Code    float64 `json:"code"`
		Message string  `json:"message"`
	}
	if e == nil || session == "" || json.Unmarshal(e, &said) != nil || !strings.Contains(strings.ToLower(said.Message), "session") {
		return false, false
	}
	return said.Code == -32600 || said.Code == -32000 || said.Code == -32001, said.Code != -32600
}

// read delivers what a reply holds to take, until that has the answer, and closes
// it. A stream that was cut is taken up again where the server allows it.
func (c *Client) read(ctx context.Context, a *reply, take func(frame.Frame) (last bool)) *failure {
	if !a.events {
		return c.body(a, take)
	}
	cut := lost(fault.Unavailable, redact.Static("the server cut the stream before the answer"))
	after, wait, left := "", pause, resumes
	for {
		at := after
		s := newStream(a.body, c.MaxFrame, after)
		last, err := c.stream(s, take)
		after = s.id
		if s.retry > 0 {
			wait = min(s.retry, maxPause)
		}
		s.free()
		a.close()
		switch {
		case last:
			return nil
		case errors.Is(err, errTooLarge):
			return lost(fault.FrameTooLarge, redact.Static("the server sent a message above the frame limit"))
		case silent(err):
			return lost(fault.TimedOut, givenUp)
		case after == "", c.isStateless():
			return cut
		case after != at:
			left = resumes
		}
		for a = nil; a == nil; {
			if left--; left < 0 {
				return cut
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return cut
			}
			var status int
			if a, status = c.get(ctx, after); a == nil && status != 0 {
				return cut
			}
		}
	}
}

// body reads an answer that is one message.
func (c *Client) body(a *reply, take func(frame.Frame) bool) *failure {
	data, err := io.ReadAll(io.LimitReader(a.body, int64(c.MaxFrame)+1))
	a.close() // before somebody has the answer: his next request finds the connection
	all := len(data)
	data = bytes.TrimSpace(data)
	f, ok := parse(data)
	switch {
	case len(data) > c.MaxFrame, !ok && all > c.MaxFrame:
		return lost(fault.FrameTooLarge, redact.Static("the server sent a message above the frame limit"))
	case ok && take(f):
		return nil
	case ok, err == nil && len(data) == 0:
		return lost(fault.InitializeFailed, redact.Static("the server took the request and did not answer it"))
	case silent(err):
		return lost(fault.TimedOut, givenUp)
	case err != nil:
		return lost(fault.Unavailable, redact.Static("the server cut the answer"))
	}
	c.dropped.Add(1)
	return lost(fault.InitializeFailed, redact.Static("the server's answer is no MCP message; perhaps the URL is not that of an MCP server"))
}

// stream delivers the messages of a stream to take until that has the answer.
func (c *Client) stream(s *stream, take func(frame.Frame) bool) (last bool, err error) {
	for {
		data, err := s.next()
		if err != nil {
			return false, err
		}
		f, ok := parse(data)
		switch {
		case !ok:
			c.dropped.Add(1)
		case take(f):
			return true, nil
		}
	}
}

// listen opens the GET stream, on which the server says what belongs to no
// request, and comes back when it ends. It returns when the stream is there or is
// none, so that nothing is asked before what changes meanwhile is heard; and without
// it where the server, or ctx, does not allow for that.
func (c *Client) listen(ctx context.Context) {
	c.mu.Lock()
	again := c.listens
	c.listens = true
	c.mu.Unlock()
	if again || !c.begin(false) {
		return
	}
	answered := make(chan struct{})
	var late atomic.Bool
	go func() {
		defer c.wg.Done()
		c.hear(sync.OnceFunc(func() { close(answered) }), &late)
	}()
	select {
	case <-answered:
		return
	case <-time.After(opening):
	case <-ctx.Done():
	}
	late.Store(true)
}

// hear reads the GET stream again and again. answered is called when the server has
// answered, or could not be asked, and late is set once nobody has waited for that.
func (c *Client) hear(answered func(), late *atomic.Bool) {
	after, streamed, again := "", false, false
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		a, status := c.get(c.ctx, after)
		answered()
		switch {
		case a == nil && streamed && (status == http.StatusOK || status == http.StatusBadRequest || status == http.StatusNotFound):
			// What it gave before it gives no more. Without this nobody would hear of
			// what has changed at a server that was started again.
			c.expire()
			return
		case a == nil && status != 0 && status < 500 && status != http.StatusTooManyRequests:
			return // it has no such stream
		case a != nil:
			if again || late.Load() {
				select {
				case c.missed <- struct{}{}:
				default: // one is enough
				}
			}
			begun, some := time.Now(), false
			a.waits()
			s := newStream(a.body, c.MaxFrame, after)
			_, _ = c.stream(s, func(f frame.Frame) bool {
				some = true
				c.deliver(f)
				return false
			})
			after = s.id
			s.free()
			a.close()
			switch lived := time.Since(begun); {
			case !streamed && !some && lived < firstWait:
				return // nor has one that ends at once
			case lived > held:
				wait = firstWait
			}
			streamed = true
		}
		again = true
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			return
		}
	}
}

// Missed gets a value when the GET stream is there again: what the server said
// meanwhile nobody heard.
func (c *Client) Missed() <-chan struct{} { return c.missed }

// sessionOf is the session id of a response; one that is no visible ASCII is none.
func sessionOf(h http.Header) string {
	id := h.Get("Mcp-Session-Id")
	if len(id) > 1024 || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return ""
	}
	return id
}

// revision is the negotiated one in the result of initialize, empty for what is
// no text that a header can hold.
func revision(result []byte) string {
	var said struct {
		Version string `json:"protocolVersion"`
	}
	if json.Unmarshal(result, &said, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil || len(said.Version) > 32 ||
		strings.ContainsFunc(said.Version, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return ""
	}
	return said.Version
}

// envelope reads id and method of a frame of ours, without what follows them.
func envelope(data []byte) (id jsontext.Value, method string) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, ""
	}
	for (id == nil || method == "") && dec.PeekKind() == '"' {
		t, err := dec.ReadToken()
		if err != nil {
			break
		}
		name := t.String()
		if name == "result" || name == "error" {
			break
		}
		value, err := dec.ReadValue()
		if err != nil {
			break
		}
		switch name {
		case "id":
			id = value.Clone()
		case "method":
			quoted, _ := jsontext.AppendUnquote(nil, value)
			method = string(quoted)
		}
	}
	return id, method
}

// sameID compares ids as numbers too: some servers send 1.0 back for 1.
func sameID(a, b jsontext.Value) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if a.Kind() != '0' || b.Kind() != '0' {
		return false
	}
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && x == y
}

var parsers = sync.Pool{New: func() any { return new(frame.Parser) }}

// parse reads a message. Line ends between its tokens become blanks, so that it
// can be a line.
func parse(data []byte) (frame.Frame, bool) {
	p := parsers.Get().(*frame.Parser)
	defer parsers.Put(p)
	f, ok := p.Parse(data)
	if ok {
		for i, b := range data {
			if b == '\n' || b == '\r' {
				data[i] = ' '
			}
		}
	}
	return f, ok
}

// unzip decodes what is compressed, once it is read.
type unzip struct {
	raw io.Reader
	zip *gzip.Reader
}

func (u *unzip) Read(p []byte) (n int, err error) {
	if u.zip == nil {
		if u.zip, err = gzip.NewReader(u.raw); err != nil {
			return 0, err
		}
	}
	return u.zip.Read(p)
}

// errTooLarge says that an event is larger than a frame may be.
var errTooLarge = errors.New("httpclient: an event is larger than a frame may be")

// stream reads events. A line end is \n or \r\n: a lone \r is white space in JSON,
// and that is all that is sent here.
type stream struct {
	r     *bufio.Reader
	max   int
	id    string        // of the last event that had one
	retry time.Duration // how long to stay away, as the server said; 0: it did not
	long  []byte
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 8<<10) }}

func newStream(r io.Reader, max int, after string) *stream {
	b := readers.Get().(*bufio.Reader)
	b.Reset(r)
	return &stream{r: b, max: max, id: after}
}

// free gives the buffer back.
func (s *stream) free() {
	s.r.Reset(nil)
	readers.Put(s.r)
}

// next returns the data of the next event that is a message, in memory of its own.
func (s *stream) next() ([]byte, error) {
	var data []byte
	message, id := true, s.id
	for beside := 0; beside <= max(s.max, minBeside); { // what is no data
		line, err := s.line(s.max - len(data))
		if err != nil && !(err == io.EOF && len(line) > 0) {
			// What stands before the end without an empty line is an event too, if it
			// is a message.
			if data = bytes.TrimSpace(data); err == io.EOF && message && len(data) > 0 {
				s.id = id
				return data, nil
			}
			return nil, err
		}
		beside += len(line) + 1
		if len(line) == 0 {
			s.id = id
			if data = bytes.TrimSpace(data); message && len(data) > 0 {
				return data, nil
			}
			data, message = nil, true
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
			beside -= len(value)
		case "event":
			message = string(value) == "message" || len(value) == 0
		case "id":
			if len(value) <= 1024 && !bytes.ContainsFunc(value, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
				id = string(value)
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 32); err == nil {
				s.retry = max(time.Duration(ms)*time.Millisecond, 10*time.Millisecond)
			}
		}
	}
	return nil, errTooLarge
}

// minBeside is how much of a stream may be no data between two messages, comments for
// example, where a frame may not be larger than that.
const minBeside = 1 << 20

// line returns the next line without its end, valid until the next one.
func (s *stream) line(max int) ([]byte, error) {
	line, err := s.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		s.long = append(s.long[:0], line...)
		for err == bufio.ErrBufferFull && len(s.long) <= max+len("data: \r\n") {
			line, err = s.r.ReadSlice('\n')
			s.long = append(s.long, line...)
		}
		line = s.long
	}
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if len(line) > max+len("data: ") {
		return nil, errTooLarge
	}
	return line, err
}
