package bridge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
)

// expect is from which size on the bus is asked whether it wants a body, so that
// what is too large is refused and does not break the connection.
const expect = 1 << 20

// errNothing says that nobody has taken what was sent.
var errNothing = errors.New("bridge: the request was not taken")

// errCut says that an answer did not come to its end.
var errCut = errors.New("bridge: the answer was cut off")

// do sends one HTTP request for a message.
func (l *link) do(ctx context.Context, method string, m message, body []byte) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, l.URL, r)
	if err != nil {
		return nil, err
	}
	h := req.Header
	for name, values := range l.Header {
		h[name] = values
	}
	h.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodGet {
		h.Set("Accept", "text/event-stream")
	}
	if body != nil {
		h.Set("Content-Type", "application/json")
	}
	if len(body) > expect {
		h.Set("Expect", "100-continue")
	}
	if m.version != "" {
		h.Set(versionHeader, headerValue(m.version))
		h.Set("Mcp-Method", headerValue(m.method))
		if m.name != "" {
			h.Set("Mcp-Name", headerValue(m.name))
		}
		return l.client.Do(req)
	}
	if l.session != "" {
		h.Set(sessionHeader, l.session)
	}
	if l.version != "" {
		h.Set(versionHeader, l.version)
	}
	return l.client.Do(req)
}

// exchange posts a message and emits what comes back, the answer last. Errors:
// errNothing when nobody has taken it; any other when it is not known what became
// of it. A refusal by the bus is an answer.
func (b *bridge) exchange(ctx context.Context, l *link, m message, line []byte, emit func([]byte) error) (http.Header, error) {
	resp, err := l.do(ctx, http.MethodPost, m, line)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound && m.version == "" && l.session != "" {
		return nil, errNothing // the session is over
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	wanted := m.wanted()
	switch {
	case media == "text/event-stream":
		answered := false
		err := events(resp.Body, func(data []byte) error {
			answered = answered || scan(data).method == ""
			return emit(data)
		})
		switch {
		case answered || !wanted:
		case errors.Is(err, errTooLong):
			b.tooLong(m)
		default:
			return nil, errors.Join(errCut, err)
		}
	case media == "application/json":
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		if err != nil {
			return nil, err
		}
		if len(body) > maxAnswer && wanted {
			b.tooLong(m)
			break
		}
		if !wanted {
			b.Note("the bus refused a notification: " + resp.Status)
			break
		}
		if m.id != nil {
			body = withID(body, m.id)
		}
		return resp.Header, emit(body)
	case wanted:
		b.fail(m.id, fault.BusUnavailable, "the bus answered "+resp.Status+" and no message")
	}
	return resp.Header, nil
}

// tooLong answers a request whose answer is more than passes; what it asked for is
// done.
func (b *bridge) tooLong(m message) {
	b.fail(m.id, fault.FrameTooLarge, "the answer of the bus is longer than 64 MiB")
}

// admitted asks whether the bus takes who the bridge is for: a stream without a
// session is refused, and for which reason tells it.
func (b *bridge) admitted(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	resp, err := l.do(ctx, http.MethodGet, message{}, nil)
	if err != nil {
		return fault.Wrap("stdio", fault.BusUnavailable, redact.Static("no bus is running"), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return fault.New("stdio", fault.AuthenticationRequired, redact.Static("the bus does not know whom this is for"))
	}
	return nil
}

// listen passes what the bus says by itself in a session, until the link ends.
func (b *bridge) listen(l *link) {
	for l.ctx.Err() == nil {
		resp, err := l.do(l.ctx, http.MethodGet, message{}, nil)
		if err != nil {
			b.lost(l)
			return
		}
		if resp.StatusCode == http.StatusOK {
			_ = events(resp.Body, b.write) // its end is no loss: the next try tells
		}
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusNotFound:
			b.lost(l)
			return
		default:
			return // there is no such stream
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-l.ctx.Done():
		}
	}
}

// events reads an event stream and emits the data of each event. The error is nil
// at its end.
func events(r io.Reader, emit func([]byte) error) error {
	in := bufio.NewReaderSize(r, 32<<10)
	var data []byte
	for {
		line, err := readLine(in, maxAnswer)
		if errors.Is(err, io.EOF) {
			return nil // an event that is not whole is none
		}
		if err != nil {
			return err
		}
		if len(line) == 0 {
			if data != nil {
				if err := emit(data); err != nil {
					return err
				}
			}
			data = nil
			continue
		}
		if part, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			part = bytes.TrimPrefix(part, []byte(" "))
			if data != nil {
				data = append(data, '\n')
			}
			data = append(append(make([]byte, 0, len(data)+len(part)), data...), part...)
			if len(data) > maxAnswer {
				return errTooLong
			}
		}
	}
}
