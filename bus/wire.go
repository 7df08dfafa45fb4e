package bus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
)

// wire is a connection to the embedded server for appends and nothing else. The
// client of NATS serves every need, and hands each message and each answer from
// one goroutine to another; here who appends writes what all have to send, and one
// goroutine gives the answers to who waits for them. It speaks the protocol of
// docs.nats.io/reference/reference-protocols/nats-protocol.
//
// The subject of an answer names a slot, of which there are no more than appends at
// a time: the server remembers each subject that it has met.
type wire struct {
	open   func() (net.Conn, error)
	user   func() (creds []byte, err error)
	feed   *feed
	say    func(err error) // what goes wrong beside what is asked
	closed chan struct{}
	work   sync.WaitGroup // goroutines

	mu         sync.Mutex
	over       bool          // closed is closed
	conn       net.Conn      // nil while there is none
	coming     net.Conn      // one that is being made
	ready      chan struct{} // closed when there is one again
	prefix     string        // of the subjects of answers on it
	out, spare []byte        // what is to be written; memory for more of it
	writing    bool          // somebody writes
	slots      []*slot       // by their numbers
	free       []*slot
}

// slot is what somebody waits with for an answer.
type slot struct {
	number int
	answer chan ack // capacity 1
	alarm  *time.Timer
	// guarded by wire.mu
	waits bool // the answer goes to somebody
	lost  bool // nobody waits any more, and the answer may still come
}

const (
	// wireTime bounds the opening of a connection, and each write to it.
	wireTime = 10 * time.Second
	// wirePause lies between two tries of it.
	wirePause = 20 * time.Millisecond
	// maxKeptOut bounds the memory that is kept for what is written.
	maxKeptOut = 256 << 10
)

// openWire connects to the embedded server.
func openWire(w *wire) (*wire, error) {
	w.closed, w.ready = make(chan struct{}), make(chan struct{})
	if err := w.dial(); err != nil {
		return nil, err
	}
	return w, nil
}

// close ends the connection; who waits is told that it is closed.
func (w *wire) close() {
	w.mu.Lock()
	if !w.over {
		w.over = true
		close(w.closed)
	}
	if w.coming != nil {
		_ = w.coming.Close()
	}
	w.end(w.conn)
	w.mu.Unlock()
	w.work.Wait()
}

// publish is that of appender.
func (w *wire) publish(ctx context.Context, patience time.Duration, p *publication) (uint64, error) {
	s, err := w.send(ctx, patience, p)
	if err != nil {
		return 0, err
	}
	select {
	case got := <-s.answer:
		return w.got(s, got)
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.alarm.C:
		err = context.DeadlineExceeded
	}
	w.mu.Lock()
	s.lost, s.waits = s.waits, false
	lost := s.lost
	if lost {
		s.alarm.Stop() // under the lock: once it is free it may be somebody else's
	}
	w.mu.Unlock()
	if lost {
		return 0, err
	}
	return w.got(s, <-s.answer) // it has come in this moment
}

// got gives a slot back.
func (w *wire) got(s *slot, a ack) (uint64, error) {
	s.alarm.Stop()
	w.mu.Lock()
	w.free = append(w.free, s)
	w.mu.Unlock()
	return a.seq, a.err
}

// send writes a message, with what others have to send at the same time, and returns
// what its answer comes to. Nothing is sent late: while there is no connection it
// waits.
func (w *wire) send(ctx context.Context, patience time.Duration, p *publication) (*slot, error) {
	w.mu.Lock()
	for w.conn == nil && !w.over {
		ready := w.ready
		w.mu.Unlock()
		late := time.NewTimer(patience)
		select {
		case <-ready:
		case <-w.closed:
		case <-ctx.Done():
		case <-late.C:
		}
		if !late.Stop() {
			return nil, context.DeadlineExceeded
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w.mu.Lock()
	}
	if w.over {
		w.mu.Unlock()
		return nil, nats.ErrConnectionClosed
	}
	var s *slot
	if n := len(w.free); n > 0 {
		s, w.free = w.free[n-1], w.free[:n-1]
		s.alarm.Reset(patience)
	} else {
		s = &slot{number: len(w.slots), answer: make(chan ack, 1), alarm: time.NewTimer(patience)}
		w.slots = append(w.slots, s)
	}
	s.waits = true
	w.out = p.appendTo(w.out, w.prefix, s.number)
	w.flushLocked()
	w.mu.Unlock()
	return s, nil
}

// flushLocked writes what is to be written, unless somebody does: he takes it along.
// It lets go of the lock meanwhile.
func (w *wire) flushLocked() {
	if w.writing {
		return
	}
	w.writing = true
	for w.conn != nil && len(w.out) > 0 {
		conn, out := w.conn, w.out
		w.out, w.spare = w.spare[:0], nil
		w.mu.Unlock()
		err := conn.SetWriteDeadline(time.Now().Add(wireTime))
		if err == nil {
			_, err = conn.Write(out)
		}
		w.mu.Lock()
		if cap(out) <= maxKeptOut {
			w.spare = out
		}
		if err != nil {
			w.end(conn)
		}
	}
	w.writing = false
}

// end lets go of a connection that has ended. What had no answer is not known to be
// in the log, or not to be in it; no answer to it comes any more, as what is read of
// this connection from now on is for nobody. It is called under the lock.
func (w *wire) end(conn net.Conn) {
	if conn == nil || w.conn != conn {
		return
	}
	_ = conn.Close()
	w.conn, w.out = nil, w.out[:0]
	err := error(context.DeadlineExceeded)
	if w.over {
		err = nats.ErrConnectionClosed
	}
	for _, s := range w.slots {
		switch {
		case s.waits:
			s.waits = false
			s.answer <- ack{err: err}
		case s.lost:
			s.lost = false
			w.free = append(w.free, s)
		}
	}
	if w.over {
		return
	}
	w.ready = make(chan struct{})
	w.work.Go(w.redial)
}

// redial makes the connection anew.
func (w *wire) redial() {
	for {
		err := w.dial()
		if err == nil {
			return
		}
		pause := time.NewTimer(wirePause)
		select {
		case <-w.closed:
			pause.Stop()
			return
		case <-pause.C:
		}
		w.say(fmt.Errorf("connection for appends: %w", err))
	}
}

// dial makes a connection, logs in and subscribes to the answers.
func (w *wire) dial() (err error) {
	conn, err := w.open()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	w.mu.Lock()
	over := w.over
	w.coming = conn
	w.mu.Unlock()
	if over {
		return nats.ErrConnectionClosed
	}
	if err := conn.SetDeadline(time.Now().Add(wireTime)); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	hello, ok := bytes.CutPrefix(line, []byte("INFO "))
	if !ok {
		return errors.New("the server does not say who it is")
	}
	connect, err := w.login(hello)
	if err != nil {
		return err
	}
	prefix := nats.NewInbox() + "."
	if _, err := fmt.Fprintf(conn, "CONNECT %s\r\nSUB %s* 1\r\nPING\r\n", connect, prefix); err != nil {
		return err
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte("-ERR")) {
			return refusal(line)
		}
		if bytes.HasPrefix(line, []byte("PONG")) {
			break
		}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.coming = nil; w.over {
		return nats.ErrConnectionClosed
	}
	w.conn, w.prefix = conn, prefix
	close(w.ready)
	w.work.Go(func() { w.read(conn, in, prefix) })
	return nil
}

// login answers the server's greeting.
func (w *wire) login(hello []byte) ([]byte, error) {
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal(hello, &info); err != nil {
		return nil, err
	}
	creds, err := w.user()
	if err != nil {
		return nil, err
	}
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		return nil, err
	}
	pair, err := jwt.ParseDecoratedUserNKey(creds)
	if err != nil {
		return nil, err
	}
	signature, err := pair.Sign([]byte(info.Nonce))
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"jwt": token, "sig": base64.RawURLEncoding.EncodeToString(signature), "name": "appends", "lang": "go",
		"protocol": 1, "headers": true, "no_responders": true, "verbose": false, "pedantic": false,
	})
}

// refusal is the error that a line tells of.
func refusal(line []byte) error {
	return errors.New(strings.Trim(strings.TrimPrefix(string(line), "-ERR"), " '\r\n"))
}

// read gives the answers of a connection to who waits for them, until its end.
func (w *wire) read(conn net.Conn, in *bufio.Reader, prefix string) {
	err := w.answers(conn, in, prefix)
	w.mu.Lock()
	if w.conn == conn && !w.over {
		w.say(fmt.Errorf("connection for appends: %w", err))
	}
	w.end(conn)
	w.mu.Unlock()
}

func (w *wire) answers(conn net.Conn, in *bufio.Reader, prefix string) error {
	var large []byte
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		verb, rest, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(" "))
		switch string(verb) {
		case "MSG", "HMSG":
			number, head, size, ok := answerLine(rest, prefix, len(verb) > len("MSG"))
			if !ok {
				return fmt.Errorf("the server sends %q", line)
			}
			size += len("\r\n")
			var body []byte
			if size <= in.Size() {
				body, err = in.Peek(size)
			} else {
				large = append(large[:0], make([]byte, size)...)
				body = large
				_, err = io.ReadFull(in, body)
			}
			if err != nil {
				return err
			}
			body = body[:size-len("\r\n")]
			w.answered(conn, number, readAck(body[:head], body[head:]))
			if size <= in.Size() {
				_, _ = in.Discard(size) // which is there
			}
		case "PING":
			// Not here: while the server writes to us it may read nothing.
			w.work.Go(func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.conn != nil {
					w.out = append(w.out, "PONG\r\n"...)
					w.flushLocked()
				}
			})
		case "-ERR":
			w.say(refusal(line))
		}
	}
}

// answerLine reads what is behind the verb of a message: which slot it is for, the
// size of its header and of all of it.
func answerLine(line []byte, prefix string, header bool) (number, head, size int, ok bool) {
	fields := bytes.Fields(line) // subject, subscription, perhaps a reply, sizes
	n := len(fields)
	sizes := 1
	if header {
		sizes = 2
	}
	if n < 2+sizes || !bytes.HasPrefix(fields[0], []byte(prefix)) {
		return 0, 0, 0, false
	}
	number, ok = digits(fields[0][len(prefix):])
	if header && ok {
		head, ok = digits(fields[n-2])
	}
	if ok {
		size, ok = digits(fields[n-1])
	}
	return number, head, size, ok && head <= size && size <= maxPayload
}

func digits(b []byte) (n int, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = 10*n + int(d-'0')
	}
	return n, true
}

// answered hands an answer to who waits for it. Nobody does for one that is late, or
// that a connection brings which has ended: its slot may be somebody else's.
func (w *wire) answered(conn net.Conn, number int, got ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != conn || number >= len(w.slots) {
		return
	}
	switch s := w.slots[number]; {
	case s.waits:
		if s.waits = false; got.err == nil {
			w.feed.appended(got.seq)
		}
		s.answer <- got
	case s.lost:
		s.lost = false
		w.free = append(w.free, s)
	}
}

// appendTo appends the message as the protocol has it.
func (p *publication) appendTo(b []byte, prefix string, number int) []byte {
	const version = "NATS/1.0\r\n"
	size := len(version) + len("\r\n")
	p.headers(func(name, value string) { size += len(name) + len(": ") + len(value) + len("\r\n") })
	b = append(append(b, "HPUB "...), p.subject...)
	b = append(append(b, ' '), prefix...)
	b = append(strconv.AppendInt(b, int64(number), 10), ' ')
	b = append(strconv.AppendInt(b, int64(size), 10), ' ')
	b = append(strconv.AppendInt(b, int64(size+len(p.data)), 10), "\r\n"...)
	b = append(b, version...)
	p.headers(func(name, value string) {
		b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
	})
	b = append(b, "\r\n"...)
	return append(append(b, p.data...), "\r\n"...)
}
