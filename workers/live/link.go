package live

import (
	"context"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxAsked bounds the requests of a server that are being answered. The SDK
// queues what it is given without a bound.
const maxAsked = 64

// link is the part of the byte stream that the SDK's client sees: responses to
// its own requests, and requests of the server. It is both transport and
// connection of the SDK.
type link struct {
	transport Transport
	overflow  *atomic.Uint64
	inbox     chan jsonrpc.Message // written by the read loop, never blocking
	closed    chan struct{}
	close     sync.Once

	mu     sync.Mutex
	asked  map[string]jsontext.Value // ids of the server, by the id the SDK sees
	count  int
	sent   map[int64]string // methods of the SDK's own requests, by id
	result jsontext.Value   // raw result of initialize
	hello  []byte           // the request initialize; nil once it was made again
	broken error            // why the SDK's request did not get there, or its answer will not come
}

func newLink(t Transport, overflow *atomic.Uint64) *link {
	return &link{
		transport: t,
		overflow:  overflow,
		inbox:     make(chan jsonrpc.Message, 2*maxAsked),
		closed:    make(chan struct{}),
		asked:     make(map[string]jsontext.Value),
		sent:      make(map[int64]string),
	}
}

// Connect is mcp.Transport.
func (l *link) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// SessionID is mcp.Connection; sessions are the business of the transport.
func (l *link) SessionID() string { return "" }

// Close is mcp.Connection. It ends the SDK's part only.
func (l *link) Close() error {
	l.end()
	return nil
}

func (l *link) end() { l.close.Do(func() { close(l.closed) }) }

// Read is mcp.Connection.
func (l *link) Read(context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-l.inbox:
		return m, nil
	default:
	}
	select {
	case m := <-l.inbox:
		return m, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

// Write is mcp.Connection. Answers go out under the id that the server chose.
func (l *link) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *jsonrpc.Request:
		if id, ok := m.ID.Raw().(int64); ok {
			l.mu.Lock()
			l.sent[id] = m.Method
			if m.Method == "initialize" {
				l.hello = data
			}
			l.mu.Unlock()
		}
	case *jsonrpc.Response:
		key, _ := m.ID.Raw().(string)
		l.mu.Lock()
		id := l.asked[key]
		delete(l.asked, key)
		l.mu.Unlock()
		if id == nil {
			return nil
		}
		if data, err = replaceMember(data, "id", id); err != nil {
			return err
		}
	}
	if _, err = l.transport.Write(ctx, data); err != nil {
		l.fail(err)
	}
	return err
}

// fail ends the SDK's part for a reason.
func (l *link) fail(err error) {
	l.mu.Lock()
	l.broken = err
	l.mu.Unlock()
	l.end()
}

// failure is that reason.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// request hands a request of the server to the SDK. It travels under an id of
// ours, because the SDK alters fractions and large numbers. Where there is no SDK
// any more, as a server of the stateless era may ask for nothing, it is dropped.
func (l *link) request(frame frame.Frame) {
	select {
	case <-l.closed:
		l.overflow.Add(1)
		return
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) >= maxAsked {
		l.overflow.Add(1)
		return
	}
	l.count++
	key := strconv.Itoa(l.count)
	id, err := jsonrpc.MakeID(key)
	if err == nil && l.push(&jsonrpc.Request{ID: id, Method: frame.Method, Params: []byte(frame.Params)}) {
		l.asked[key] = frame.ID
	}
}

// response hands the response to a request of the SDK to the SDK. It reports
// false for one that the SDK does not wait for or cannot read.
func (l *link) response(id int64, frame frame.Frame) bool {
	l.mu.Lock()
	method, waiting := l.sent[id]
	if method == "initialize" {
		if frame.Error != nil && l.greetLocked(frame.Error) {
			l.mu.Unlock()
			return true
		}
		l.result = frame.Result
	}
	delete(l.sent, id)
	l.mu.Unlock()
	m, err := jsonrpc.DecodeMessage(frame.Raw)
	return waiting && err == nil && l.push(m)
}

// older are the revisions with a handshake that a server may want in place of the one
// that we ask for, the newest first.
var older = []string{"2025-06-18", "2025-03-26", "2024-11-05"}

// greetLocked makes a request initialize once more, with a revision that the server
// says it has where it refused ours (bug-reports #24). It reports false where there is
// none, or it was made again already.
func (l *link) greetLocked(refused jsontext.Value) bool {
	hello := l.hello
	l.hello = nil
	data, _, err := findOnce(refused, "data")
	if err != nil || data.Kind() != '{' || hello == nil {
		return false
	}
	supported, _, err := findOnce(data, "supported")
	if err != nil {
		return false
	}
	for _, revision := range older {
		if !lists(supported, revision) {
			continue
		}
		params, at, err := findOnce(hello, "params")
		if err == nil {
			var asked []byte
			if asked, err = replaceMember(params, "protocolVersion", []byte(`"`+revision+`"`)); err == nil {
				hello = replace(hello, at, len(params), asked)
			}
		}
		if err != nil {
			return false
		}
		go func() { // off the read loop; ends with the transport at the latest
			if _, err := l.transport.Write(context.Background(), hello); err != nil {
				l.fail(err)
			}
		}()
		return true
	}
	return false
}

// push gives m to the SDK unless its queue is full, which is a server that
// floods.
func (l *link) push(m jsonrpc.Message) bool {
	select {
	case l.inbox <- m:
		return true
	default:
		l.overflow.Add(1)
		return false
	}
}

// initialized returns the raw result of initialize, nil without one.
func (l *link) initialized() jsontext.Value {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result
}
