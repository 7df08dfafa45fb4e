package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/workers/httpin"
)

// held is how often a client hears that its call waits for a person.
const held = 5 * time.Second

// answer is the response to one request: JSON, or an event stream from the
// moment that something must come before the result. Messages go out in the
// order of the calls and nothing after the result.
type answer struct {
	w       http.ResponseWriter
	id      jsontext.Value // of the request, as sent
	streams bool           // the client reads event streams
	status  int            // of a JSON answer; 0: 200, or what the error has

	stateless bool // of the era that has result types, and statuses for errors

	mu        sync.Mutex
	streaming bool
	done      bool
	heard     bool // a notification of the server went out
}

// notify sends a message before the result. It is dropped where the client
// does not read event streams.
func (o *answer) notify(message []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard = true
	return o.event(message)
}

// comment sends something that clients ignore, so that the connection stays
// open.
func (o *answer) comment() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.commentLocked()
}

func (o *answer) commentLocked() error {
	if !o.streams || o.done {
		return nil
	}
	return o.flush([]byte(":\n\n"))
}

// tell sends a message for each kind of list that changed, until ctx ends or the
// client is gone, and one for each update of a resource. tag is a member for the
// _meta of their params, nil for none.
func (o *answer) tell(ctx context.Context, a *attachment, l *listener, tag []byte) {
	var params []byte
	if tag != nil {
		params = tagged([]byte("{}"), tag)
	}
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for err := o.comment(); err == nil; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err = o.comment()
		case <-l.wake:
			due := a.due(l)
			for _, k := range []kinds{kindTools, kindResources, kindPrompts} {
				if due&k == 0 {
					continue
				}
				if err = o.notify(k.message(params)); err != nil {
					a.putBack(l, due) // for the next stream
					break
				}
				due &^= k
			}
			updates := a.dueUpdates(l)
			for i, u := range updates {
				if err == nil {
					err = o.notify(updated(u, tag))
				}
				if err != nil {
					a.putBackUpdates(l, updates[i:])
					break
				}
			}
			for _, params := range a.dueLogs(l) {
				if err == nil {
					err = o.notify(logMessage(params))
				}
			}
		}
	}
}

// message says that a list changed.
func (k kinds) message(params []byte) []byte {
	name := map[kinds]string{kindTools: "tools", kindResources: "resources", kindPrompts: "prompts"}[k]
	b := []byte(`{"jsonrpc":"2.0","method":"notifications/` + name + `/list_changed"`)
	if params != nil {
		b = append(append(b, `,"params":`...), params...)
	}
	return append(b, '}')
}

// wait tells the client that its call waits for an approval, at once and then
// every five seconds, until ctx ends.
func (o *answer) wait(ctx context.Context, token jsontext.Value, approval string) {
	tick := time.NewTicker(held)
	defer tick.Stop()
	for n := 1; o.waiting(n, token, approval); n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// waiting sends the n-th word about the waiting. Progress must grow with each
// message and the server's own begins near zero, hence millionths.
func (o *answer) waiting(n int, token jsontext.Value, approval string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.streams || o.heard || o.done {
		return false
	}
	if token == nil {
		return o.commentLocked() == nil
	}
	about, err := jsontext.AppendQuote(nil, "waiting for approval "+approval)
	if err != nil {
		return false
	}
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), token...)
	b = strconv.AppendFloat(append(b, `,"progress":`...), float64(n)/1e6, 'f', -1, 64)
	b = append(append(append(b, `,"message":`...), about...), "}}"...)
	return o.event(b) == nil
}

// result sends the result, a JSON value, as it is, but for its type.
func (o *answer) result(raw []byte) {
	if o.stateless {
		o.finish(`,"result":`, complete(raw)...)
		return
	}
	o.finish(`,"result":`, raw)
}

// fail sends an error.
func (o *answer) fail(e *rpcError) {
	if o.stateless && o.status == 0 {
		o.status = statusOf(e.Code)
	}
	o.finish(`,"error":`, e.json())
}

// failRaw sends an error object as it is.
func (o *answer) failRaw(raw []byte) {
	if o.stateless {
		var e struct{ Code int }
		_ = json.Unmarshal(raw, &e) // without a code it has no status of its own
		o.status = statusOf(e.Code)
	}
	o.finish(`,"error":`, raw)
}

func (o *answer) finish(member string, raw ...[]byte) {
	head := make([]byte, 0, 32+len(o.id)+len(member))
	head = append(append(append(head, `{"jsonrpc":"2.0","id":`...), o.id...), member...)
	parts := append(append([][]byte{head}, raw...), []byte{'}'})
	o.mu.Lock()
	defer o.mu.Unlock()
	// Nobody is left to tell of a client that is gone.
	if o.streaming {
		_ = o.event(parts...)
		o.done = true
		return
	}
	o.done = true
	h := o.w.Header()
	h.Set("Content-Type", "application/json")
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	h.Set("Content-Length", strconv.Itoa(size))
	if o.status != 0 {
		o.w.WriteHeader(o.status)
	}
	_ = httpin.Write(o.w, parts...)
}

// event sends one message, in parts. Line breaks between its tokens begin
// another data line, as the format asks for.
func (o *answer) event(parts ...[]byte) error {
	if !o.streams || o.done {
		return nil
	}
	lines := [][]byte{[]byte("event: message\ndata: ")}
	for _, p := range parts {
		for {
			i := bytes.IndexAny(p, "\r\n")
			if i < 0 {
				break
			}
			lines = append(lines, p[:i], []byte("\ndata: "))
			p = p[i+1:]
		}
		lines = append(lines, p)
	}
	return o.flush(append(lines, []byte("\n\n"))...)
}

// flush writes to the event stream, which the first write opens.
func (o *answer) flush(parts ...[]byte) error {
	if !o.streaming {
		o.streaming = true
		h := o.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache, no-transform")
	}
	if err := httpin.Write(o.w, parts...); err != nil {
		return err
	}
	return http.NewResponseController(o.w).Flush()
}
