package httpin

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// atOnce is how much of an answer is gathered before it is written.
const atOnce = 64 << 10

// response is what a handler answers with. It is written at once where it is short
// and nobody flushes. No Content-Type is guessed.
type response struct {
	c       *conn
	header  http.Header
	status  int   // 0 until the header was written
	length  int64 // declared, -1 for unknown
	wrote   int64
	body    []byte // gathered while the length is unknown
	begun   bool   // the head is complete in c.out
	chunks  bool
	last    bool        // the connection ends after it
	limited atomic.Bool // the handler has set a deadline for writing
}

// Header returns the headers, which WriteHeader sends.
func (w *response) Header() http.Header { return w.header }

// mayHaveBody reports whether an answer with a status has a body.
func mayHaveBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// own are the headers that the server writes itself.
var own = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Connection": true}

// WriteHeader sends the headers, soon.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || status < 200 || status > 999 {
		return
	}
	w.status = status
	if text := w.header.Get("Content-Length"); text != "" && mayHaveBody(status) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			w.length = n
		}
	}
	w.last = w.header.Get("Connection") == "close"
	out := &w.c.out
	out.Reset()
	out.WriteString("HTTP/1.1 ")
	out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(status), 10))
	out.WriteByte(' ')
	out.WriteString(http.StatusText(status))
	out.WriteString("\r\n")
	_ = w.header.WriteSubset(out, own)
	if w.header["Date"] == nil {
		out.WriteString("Date: ")
		out.Write(time.Now().UTC().AppendFormat(out.AvailableBuffer(), http.TimeFormat))
		out.WriteString("\r\n")
	}
}

// begin ends the head, when it is known how the body is sent.
func (w *response) begin() {
	w.begun = true
	out := &w.c.out
	switch {
	case !mayHaveBody(w.status):
	case w.length >= 0:
		out.WriteString("Content-Length: ")
		out.Write(strconv.AppendInt(out.AvailableBuffer(), w.length, 10))
		out.WriteString("\r\n")
	default:
		w.chunks = true
		out.WriteString("Transfer-Encoding: chunked\r\n")
	}
	if w.last = w.last || w.c.server.closing.Load(); w.last {
		out.WriteString("Connection: close\r\n")
	}
	out.WriteString("\r\n")
}

// Write sends a part of the body.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !mayHaveBody(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	w.wrote += int64(len(p))
	if w.length >= 0 && w.wrote > w.length {
		return 0, http.ErrContentLength
	}
	if !w.begun && w.length < 0 {
		w.body = append(w.body, p...)
		if len(w.body) > atOnce {
			return len(p), w.FlushError()
		}
		return len(p), nil
	}
	if !w.begun {
		w.begin()
	}
	return len(p), w.send(p)
}

// send writes a part of the body behind the head.
func (w *response) send(p []byte) error {
	out := &w.c.out
	if w.chunks {
		if len(p) == 0 {
			return nil // it would be the end
		}
		out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(len(p)), 16))
		out.WriteString("\r\n")
	}
	if out.Len()+len(p) > atOnce {
		if err := w.flush(); err != nil {
			return err
		}
		if err := w.put(p); err != nil {
			return err
		}
	} else {
		out.Write(p)
	}
	if w.chunks {
		out.WriteString("\r\n")
	}
	return nil
}

// put writes to the client. One that cannot be written to has left.
func (w *response) put(p []byte) error {
	if w.c.broken {
		return net.ErrClosed
	}
	if !w.limited.Load() {
		// There may be one of an answer before it.
		w.c.writeBy.Store(0)
		_ = w.c.SetWriteDeadline(time.Time{})
	}
	_, err := w.c.Write(p)
	if err != nil {
		w.c.broken = true
		w.c.cancel()
	}
	return err
}

// flush writes what was gathered.
func (w *response) flush() error {
	if w.c.out.Len() == 0 {
		return nil
	}
	err := w.put(w.c.out.Bytes())
	if w.c.out.Cap() > 2*atOnce {
		w.c.out = bytes.Buffer{}
	}
	w.c.out.Reset()
	return err
}

// FlushError sends what was written so far.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.begun {
		w.begin()
		if err := w.send(w.body); err != nil {
			return err
		}
		w.body = nil
	}
	return w.flush()
}

// Flush is FlushError for who does not ask.
func (w *response) Flush() { _ = w.FlushError() }

// finish ends the answer.
func (w *response) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.begun {
		if w.length < 0 {
			w.length = int64(len(w.body))
		}
		w.begin()
		_ = w.send(w.body)
	}
	if w.chunks {
		w.c.out.WriteString("0\r\n\r\n")
	}
	_ = w.flush()
	if w.length >= 0 && mayHaveBody(w.status) && w.wrote != w.length {
		w.c.broken = true
	}
}

// SetReadDeadline bounds the reading of the body.
func (w *response) SetReadDeadline(t time.Time) error {
	w.c.readBy = t
	return w.c.SetReadDeadline(t)
}

// SetWriteDeadline bounds the writing of the answer. It may be called while something
// is written.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.limited.Store(true)
	w.c.writeBy.Store(0) // whatever it is, patience sets another one
	return w.c.SetWriteDeadline(t)
}

// patience lets the client take d to read, or up to Patience more where that was set
// before: setting it is dear.
func (w *response) patience(d time.Duration) {
	w.limited.Store(true)
	now := time.Now()
	if left := time.Duration(w.c.writeBy.Load() - now.UnixNano()); left < d || left > d+Patience {
		t := now.Add(d + Patience)
		w.c.writeBy.Store(t.UnixNano())
		_ = w.c.SetWriteDeadline(t)
	}
}
