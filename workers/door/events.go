package door

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpin"
)

const (
	// heartbeat keeps a stream alive and finds out that its client is gone.
	heartbeat = 15 * time.Second
	// recheck is how often it is asked whether the principal may still listen.
	recheck = 500 * time.Millisecond
	// patience is how long a stream waits for a client that does not read. It holds
	// up nobody: what the client has not been sent is in the log.
	patience = time.Minute
)

// events streams notifications as Server-Sent Events, from a place of the log on:
// the one behind Last-Event-ID, which a client sends that comes again; else
// behind ?after=N; else the present one. Each has the JSON-RPC notification as
// data; the last one of a commit has the commit's sequence as id (decision 12), so
// that whoever comes again with it misses nothing and gets nothing twice.
func (d *Door) events(w http.ResponseWriter, r *http.Request, id client.Identity) {
	query := r.URL.Query()
	for name := range query {
		if name != "after" && name != "topics" {
			refuse(w, http.StatusBadRequest, fault.UnknownArgument, redact.Name("unknown parameter "+name+"; there are after and topics"))
			return
		}
	}
	after := d.opts.Head()
	for name, text := range map[string]string{"after": query.Get("after"), "Last-Event-ID": r.Header.Get("Last-Event-ID")} {
		if text == "" || name == "after" && r.Header.Get("Last-Event-ID") != "" {
			continue
		}
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			refuse(w, http.StatusBadRequest, fault.InvalidInput, redact.Name(name+": no sequence of the log"))
			return
		}
	}
	var topics []string
	for _, list := range query["topics"] {
		topics = append(topics, strings.Split(list, ",")...)
	}
	if f, ok := errors.AsType[*fault.Fault](d.opts.Check(r.Context(), after, topics)); ok {
		refuse(w, http.StatusBadRequest, f.Kind, f.Text)
		return
	}
	if !d.enter(id) {
		refuse(w, http.StatusTooManyRequests, fault.ResourceExhausted, redact.Static("the principal has too many streams"))
		return
	}
	defer d.leave(id)

	out := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		d.watch(ctx, r, id)
		cancel()
		_ = out.SetWriteDeadline(time.Now()) // the writer may be waiting for its client
	}()
	defer func() { cancel(); <-watched }()

	news := make(chan client.Notifications)
	reading := make(chan struct{})
	defer func() { cancel(); <-reading }()
	go func() {
		defer close(reading)
		defer close(news)
		for n, err := range d.opts.Follow(ctx, id, after, topics) {
			if err != nil {
				return
			}
			if len(n.Notifications) == 0 {
				continue
			}
			select {
			case news <- n:
			case <-ctx.Done():
				return
			}
		}
	}()

	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	send := func(b []byte) error {
		_ = out.SetWriteDeadline(time.Now().Add(patience))
		if ctx.Err() != nil { // the deadline of the end was before this one
			return ctx.Err()
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		return out.Flush()
	}
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for err := send([]byte("retry: 1000\n:\n\n")); err == nil; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err = send([]byte(":\n\n"))
		case n, ok := <-news:
			if !ok {
				return
			}
			err = send(encode(n))
		}
	}
}

// encode is what a commit brought, as events.
func encode(n client.Notifications) (b []byte) {
	for i, one := range n.Notifications {
		if i == len(n.Notifications)-1 {
			b = append(strconv.AppendUint(append(b, "id: "...), n.Next, 10), '\n')
		}
		b = append(append(b, "event: message\ndata: "...), one.Message()...)
		b = append(b, "\n\n"...)
	}
	return b
}

// watch returns when the principal may not listen any more: his token has expired
// or he was revoked.
func (d *Door) watch(ctx context.Context, r *http.Request, id client.Identity) {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now, ok := httpin.Authenticate(nowhere{}, r, d.opts.Authenticate, d.opts.Anonymous)
			if !ok || now != id {
				return
			}
		}
	}
}

// nowhere takes the headers of an answer that was sent already.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}

// enter counts a stream, unless the principal has too many.
func (d *Door) enter(id client.Identity) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.streams[id] >= maxStreams {
		return false
	}
	d.streams[id]++
	return true
}

func (d *Door) leave(id client.Identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.streams[id]--; d.streams[id] == 0 {
		delete(d.streams, id)
	}
}
