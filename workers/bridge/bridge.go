// Package bridge lets a host that only starts commands use the MCP endpoint of a
// running bus: it passes MCP between a pair of pipes and streamable HTTP, and is
// a tool of the program, which says where the bus is and who the host is.
//
// It is a pipe: each message passes byte for byte, but for line breaks between
// its tokens, whatever revision of MCP it is of; what it must know of one is read
// from it and never written back. Each request has a goroutine and an HTTP
// exchange of its own, which writes what comes back in the order in which it
// came, a line at a time. A request is sent once, unless it is sure that nobody
// has taken it.
package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// maxLine is how long a line of the host may be.
	maxLine = 16 << 20
	// maxAnswer bounds a message of the bus.
	maxAnswer = 64 << 20
	// maxRequests bounds the requests under way; no more is read then.
	maxRequests = 1024
	// patience is how long a request waits for a bus that is away.
	patience = 15 * time.Second
	// handshake bounds an attempt to connect, and a notification.
	handshake = 10 * time.Second
	// lastAnswers is how long the answers under way may take when the host sends no
	// more: longer than a call is held for a person.
	lastAnswers = time.Minute
	// farewell bounds the end.
	farewell = 2 * time.Second
)

// Door is where a bus serves MCP.
type Door struct {
	Network, Address string      // as net.Dial takes them
	URL              string      // of the endpoint
	Header           http.Header // says who it is for
}

// Options make a bridge; all are needed.
type Options struct {
	// In has the messages of the host, one a line, and Out gets those for it.
	In  io.Reader
	Out io.Writer
	// Find finds the running bus, at the start and again after each loss.
	Find func(ctx context.Context) (Door, error)
	// Note tells a person what went wrong.
	Note func(text string)
}

// link is the way to one run of a bus.
type link struct {
	Door
	client           *http.Client
	session, version string // of the handshake; empty before it, and without one
	round            int    // that of the bridge when it was made
	ctx              context.Context
	cancel           context.CancelFunc
}

// flight is a request under way.
type flight struct {
	message
	ctx    context.Context
	cancel context.CancelFunc
}

type bridge struct {
	Options
	ctx     context.Context
	fatal   context.CancelCauseFunc
	answers sync.WaitGroup // requests that have an end
	work    sync.WaitGroup // all goroutines
	slots   chan struct{}

	out sync.Mutex // guards Out

	mu      sync.Mutex // guards the rest
	link    *link      // nil while the bus is away
	back    chan struct{}
	hello   []byte // the initialize that was answered last
	listed  bool   // the host has listed its tools since
	round   int    // how many handshakes of the host there were
	flights map[*flight]struct{}
}

// Run passes messages until In ends and the answers under way have come, or ctx
// ends. Errors: what Find says when there is no bus at the start;
// authentication_required when the bus does not take who it is for, then or when
// it has come back; ctx's. A bus that goes away later is waited for.
func Run(ctx context.Context, o Options) error {
	b := &bridge{Options: o, slots: make(chan struct{}, maxRequests), back: make(chan struct{}), flights: map[*flight]struct{}{}}
	b.ctx, b.fatal = context.WithCancelCause(ctx)
	defer b.fatal(nil)
	first, err := b.connect(b.ctx)
	if err != nil {
		return err
	}
	b.arrive(first)

	lines := make(chan []byte)
	go b.read(lines) // a read of a pipe cannot be interrupted, so nobody waits for it
	for more := true; more && b.ctx.Err() == nil; {
		var line []byte
		select {
		case line, more = <-lines:
			if more {
				b.take(line)
			}
		case <-b.ctx.Done():
		}
	}
	within(b.ctx, &b.answers, lastAnswers)
	err = context.Cause(b.ctx)
	b.fatal(nil)
	within(context.WithoutCancel(ctx), &b.work, farewell)
	b.leave(context.WithoutCancel(ctx))
	return err
}

// within waits for the group, for d at most.
func within(ctx context.Context, group *sync.WaitGroup, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	go func() { group.Wait(); cancel() }()
	<-ctx.Done()
}

// read reads the lines of the host; the last one needs no line break.
func (b *bridge) read(lines chan<- []byte) {
	defer close(lines)
	in := bufio.NewReaderSize(b.In, 64<<10)
	for {
		line, err := readLine(in, maxLine)
		if errors.Is(err, errTooLong) {
			b.fail(nil, fault.ArgumentsTooLarge, "the line is longer than 16 MiB")
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			select {
			case lines <- line:
			case <-b.ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// take handles a message of the host. What must be in order is done here, so that
// nothing overtakes it: the handshake, notifications, and answers of the host.
func (b *bridge) take(line []byte) {
	m := scan(line)
	switch {
	case m.method == "initialize" && m.id != nil:
		b.initialize(m, line)
	case m.wanted(): // what cannot be read, the bus answers
		b.start(m, line)
	case m.method == "notifications/cancelled":
		if modern := b.cancel(m.requestID); !modern {
			b.tell(m, line)
		}
	default:
		b.tell(m, line)
	}
}

// start begins a request.
func (b *bridge) start(m message, line []byte) {
	select {
	case b.slots <- struct{}{}:
	case <-b.ctx.Done():
		return
	}
	f := &flight{message: m}
	f.ctx, f.cancel = context.WithCancel(b.ctx)
	b.mu.Lock()
	b.flights[f] = struct{}{}
	b.listed = b.listed || m.method == "tools/list" && m.version == ""
	b.mu.Unlock()
	run := func() {
		defer func() {
			b.mu.Lock()
			delete(b.flights, f)
			b.mu.Unlock()
			f.cancel()
			<-b.slots
		}()
		b.request(f, line)
	}
	if m.method == "subscriptions/listen" { // has no end of its own
		b.work.Go(run)
		return
	}
	b.answers.Add(1)
	b.work.Go(func() { defer b.answers.Done(); run() })
}

// request sends a request and writes what comes back.
func (b *bridge) request(f *flight, line []byte) {
	away, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	for range 3 {
		l := b.wait(away)
		if l == nil {
			break
		}
		_, err := b.exchange(f.ctx, l, f.message, line, b.write)
		if err == nil || f.ctx.Err() != nil {
			return
		}
		b.lost(l)
		if !errors.Is(err, errNothing) {
			b.fail(f.id, fault.Indeterminate, "the bus went away before it answered; nobody knows whether the request took effect")
			return
		}
	}
	if f.ctx.Err() == nil {
		b.fail(f.id, fault.BusUnavailable, "the bus is away; the request was not sent")
	}
}

// cancel ends the requests with an id, and with them their exchanges, which the
// bus takes for a cancel in each era. It reports whether they were of the era
// that has no other way.
func (b *bridge) cancel(id jsontext.Value) (modern bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.flights {
		if id != nil && string(f.id) == string(id) {
			f.cancel()
			modern = modern || f.version != ""
		}
	}
	return modern
}

// tell passes a message that has no answer. While the bus is away it is dropped:
// what it is about is gone. So is one that names no revision where there was no
// handshake: the era without one has no such messages on HTTP, and a client that
// thinks of pipes says there all the same that it has cancelled what was answered
// already, or that its roots are others.
func (b *bridge) tell(m message, line []byte) {
	ctx, cancel := context.WithTimeout(b.ctx, handshake)
	defer cancel()
	b.mu.Lock()
	l := b.link
	b.mu.Unlock()
	if l == nil || l.version == "" && m.version == "" {
		return
	}
	if _, err := b.exchange(ctx, l, m, line, b.write); err != nil && b.ctx.Err() == nil {
		b.lost(l)
	}
}

// initialize passes the handshake of the host, which begins another session.
func (b *bridge) initialize(m message, line []byte) {
	away, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		l := b.wait(away)
		if l == nil {
			if b.ctx.Err() == nil {
				b.fail(m.id, fault.BusUnavailable, "the bus is away; the request was not sent")
			}
			return
		}
		next, err := b.open(b.ctx, l, m, line, b.write)
		if err != nil { // it has no effect, so that it may be sent again
			b.lost(l)
			continue
		}
		if next == nil { // refused, and the host knows why
			return
		}
		b.leave(b.ctx)
		l.cancel()
		b.mu.Lock()
		b.hello, b.listed = line, false
		b.round++
		next.round = b.round
		there := b.link == l
		if there {
			b.link = next
		}
		b.mu.Unlock()
		if there { // else the session is opened again, with the bus
			b.work.Go(func() { b.listen(next) })
		}
		return
	}
}

// open sends an initialize over a link and returns the link of its session, or
// nil when the answer is an error.
func (b *bridge) open(ctx context.Context, l *link, m message, line []byte, emit func([]byte) error) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	fresh := *l
	fresh.session, fresh.version = "", ""
	var answer struct {
		Result *struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	header, err := b.exchange(ctx, &fresh, m, line, func(line []byte) error {
		_ = json.Unmarshal(line, &answer) // without a result it is no session
		return emit(line)
	})
	if err != nil || answer.Result == nil {
		return nil, err
	}
	fresh.session, fresh.version = header.Get(sessionHeader), answer.Result.ProtocolVersion
	fresh.ctx, fresh.cancel = context.WithCancel(b.ctx)
	return &fresh, nil
}

// connect finds the bus and goes on there: with the session that the host had
// begun, if any.
func (b *bridge) connect(ctx context.Context) (*link, error) {
	door, err := b.Find(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{Door: door, client: dialer(door)}
	l.ctx, l.cancel = context.WithCancel(b.ctx)
	if err := b.admitted(ctx, l); err != nil {
		l.cancel()
		return nil, err
	}
	b.mu.Lock()
	hello, listed, round := b.hello, b.listed, b.round
	b.mu.Unlock()
	l.round = round
	if hello == nil {
		return l, nil
	}
	next, err := b.open(ctx, l, scan(hello), hello, func([]byte) error { return nil })
	l.cancel()
	if err != nil {
		return nil, err
	}
	if next == nil {
		return nil, fault.New("stdio", fault.BusUnavailable, redact.Static("the bus refuses the handshake that it took before"))
	}
	limited, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	initialized := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if _, err := b.exchange(limited, next, scan(initialized), initialized, b.write); err != nil {
		next.cancel()
		return nil, err
	}
	b.work.Go(func() { b.listen(next) })
	if listed { // perhaps others
		_ = b.write([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
	}
	return next, nil
}

// arrive makes a link the present one, unless the host began another session while
// it was made.
func (b *bridge) arrive(l *link) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.round != b.round {
		l.cancel()
		return false
	}
	b.link = l
	close(b.back)
	return true
}

// wait is the present link, or nil when ctx ends before there is one.
func (b *bridge) wait(ctx context.Context) *link {
	for {
		b.mu.Lock()
		l, back := b.link, b.back
		b.mu.Unlock()
		if l != nil {
			return l
		}
		select {
		case <-back:
		case <-ctx.Done():
			return nil
		}
	}
}

// lost gives a link up and looks for the bus until it is back.
func (b *bridge) lost(l *link) {
	b.mu.Lock()
	if b.link != l || b.ctx.Err() != nil {
		b.mu.Unlock()
		return
	}
	b.link, b.back = nil, make(chan struct{})
	b.mu.Unlock()
	l.cancel()
	b.work.Go(func() {
		for pause, said := 50*time.Millisecond, false; ; pause = min(2*pause, time.Second) {
			next, err := b.connect(b.ctx)
			switch {
			case err == nil:
				if b.arrive(next) {
					return
				}
			case b.ctx.Err() != nil:
				return
			case fault.Is(err, fault.AuthenticationRequired):
				b.fatal(err)
				return
			case !said && pause == time.Second:
				said = true
				b.Note("the bus is away; gatebus stdio waits for it")
			}
			select {
			case <-time.After(pause):
			case <-b.ctx.Done():
				return
			}
		}
	})
}

// leave ends the session at the bus.
func (b *bridge) leave(ctx context.Context) {
	b.mu.Lock()
	l := b.link
	b.mu.Unlock()
	if l == nil || l.session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	if resp, err := l.do(ctx, http.MethodDelete, message{}, nil); err == nil {
		resp.Body.Close()
	}
}

// fail answers a request in the name of the bus.
func (b *bridge) fail(id jsontext.Value, kind fault.Kind, text string) {
	entry, _ := fault.Lookup(kind)
	if id == nil {
		id = jsontext.Value("null")
	}
	type data struct {
		Kind fault.Kind `json:"kind"`
		Code string     `json:"code"`
	}
	answer, _ := json.Marshal(struct { // strings and numbers
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   any             `json:"error"`
	}{"2.0", json.RawMessage(id), struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    data   `json:"data"`
	}{entry.RPC(), text, data{kind, entry.Code()}}})
	_ = b.write(answer)
}

// write writes a message as one line. A host that reads no more ends the bridge.
func (b *bridge) write(message []byte) error {
	line := make([]byte, 0, len(message)+1)
	for _, c := range message {
		if c == '\n' || c == '\r' { // only between tokens
			c = ' '
		}
		line = append(line, c)
	}
	b.out.Lock()
	defer b.out.Unlock()
	_, err := b.Out.Write(append(line, '\n'))
	if err != nil {
		b.fatal(err)
	}
	return err
}

// dialer makes the client of a door, which knows no other address.
func dialer(d Door) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, d.Network, d.Address)
				if err != nil {
					return nil, errors.Join(errNothing, err)
				}
				return c, nil
			},
			DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
			ExpectContinueTimeout: handshake,
		},
	}
}
