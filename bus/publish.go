package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// appender sends messages to the log and waits for their answers. It lets the feed
// know what is ours before the next answer. Errors: that of ctx,
// context.DeadlineExceeded, that of the connection, or the *jetstream.APIError of the
// server.
type appender interface {
	publish(ctx context.Context, patience time.Duration, p *publication) (uint64, error)
}

// acks is the appender of an external bus. One subscription takes all answers in the
// order in which they come, which costs a third of a request of JetStream's client.
type acks struct {
	nc     *nats.Conn
	prefix string // of the subjects of answers
	feed   *feed
	closed chan struct{} // when none follows

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan ack // by the number in the subject
}

// ack is one answer.
type ack struct {
	seq uint64
	err error
}

// openAcks subscribes to the answers.
func openAcks(nc *nats.Conn, f *feed) (*acks, error) {
	a := &acks{nc: nc, prefix: nc.NewInbox() + ".", feed: f, closed: make(chan struct{}), waiting: map[uint64]chan ack{}}
	s, err := nc.Subscribe(a.prefix+"*", a.take)
	if err != nil {
		return nil, err
	}
	s.SetClosedHandler(func(string) { close(a.closed) })
	return a, nil
}

// wait is what somebody waits with for an answer.
type wait struct {
	answer chan ack // capacity 1
	alarm  *time.Timer
}

// waits are those that are not in use: nothing is in them, and nobody sends to them.
var waits = sync.Pool{New: func() any {
	w := &wait{answer: make(chan ack, 1), alarm: time.NewTimer(time.Hour)}
	w.alarm.Stop()
	return w
}}

// publish is that of appender.
func (a *acks) publish(ctx context.Context, patience time.Duration, p *publication) (uint64, error) {
	w := waits.Get().(*wait)
	answer := w.answer
	w.alarm.Reset(patience)
	defer func() {
		w.alarm.Stop()
		waits.Put(w)
	}()
	a.mu.Lock()
	a.last++
	number := a.last
	a.waiting[number] = answer
	a.mu.Unlock()
	m := &nats.Msg{Subject: p.subject, Reply: a.prefix + strconv.FormatUint(number, 10), Data: p.data, Header: make(nats.Header, 2)}
	p.headers(func(name, value string) { m.Header[name] = []string{value} })
	err := a.nc.PublishMsg(m)
	if err == nil {
		select {
		case got := <-answer:
			return got.seq, got.err
		case <-a.closed:
			err = nats.ErrConnectionClosed
		case <-ctx.Done():
			err = ctx.Err()
		case <-w.alarm.C:
			err = context.DeadlineExceeded
		}
	}
	if a.waiter(number) == nil { // it has come in this moment
		got := <-answer
		return got.seq, got.err
	}
	return 0, err
}

// waiter takes out who waits for an answer; nil when somebody else did.
func (a *acks) waiter(number uint64) chan ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.waiting[number]
	delete(a.waiting, number)
	return answer
}

// take hands an answer to who waits for it. Nobody waits for one that is late.
func (a *acks) take(m *nats.Msg) {
	number, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, a.prefix), 10, 64)
	if err != nil {
		return
	}
	answer := a.waiter(number)
	if answer == nil {
		return
	}
	got := ack{err: jetstream.ErrNoStreamResponse}
	if len(m.Data) > 0 || m.Header.Get("Status") != "503" {
		got = readAck(nil, m.Data)
	}
	if got.err == nil {
		a.feed.appended(got.seq)
	}
	answer <- got
}

// ackPrefix is what the answer begins with that says where a message is stored.
var ackPrefix = []byte(`{"stream":"` + eventStream + `","seq":`)

// readAck reads an answer, and its header as it was sent.
func readAck(header, data []byte) ack {
	if rest, ok := bytes.CutPrefix(data, ackPrefix); ok {
		if seq, ok := digits(bytes.TrimSuffix(rest, []byte{'}'})); ok {
			return ack{seq: uint64(seq)}
		}
	}
	if len(data) == 0 && bytes.HasPrefix(header, []byte("NATS/1.0 503")) {
		return ack{err: jetstream.ErrNoStreamResponse}
	}
	var said struct {
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
		Error  *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(data, &said); {
	case err != nil:
		return ack{err: err}
	case said.Error != nil:
		return ack{err: said.Error}
	case said.Stream == "":
		return ack{err: jetstream.ErrInvalidJSAck}
	}
	return ack{seq: said.Seq}
}
