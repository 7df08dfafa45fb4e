// Package door is the way in for programs that speak HTTP: /rpc answers the
// methods of the contract, and /rpc/events tells what changed.
//
// Both are the same as on NATS: the same handlers with the same parameters,
// results and error objects, and the same notifications. A bearer token says who
// asks; his role is checked by the handler, so that the door itself knows no
// rights. Results pass as the bytes that the method gave.
package door

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpin"
)

const (
	// maxBody leaves room around arguments of 1 MiB (R198), in a batch of some.
	maxBody = 4 << 20
	// maxBatch bounds the messages of a batch.
	maxBatch = 100
	// maxRequests bounds the requests under way.
	maxRequests = 1024
	// maxStreams bounds the streams of a principal.
	maxStreams = 16
)

// Options make a Door. All but Anonymous and Log are needed.
type Options struct {
	// Methods are those that are answered.
	Methods []bus.Method
	// Authenticate returns whose token it is, as long as it is good.
	Authenticate func(token string) (client.Identity, bool)
	// Anonymous is who acts when a request from this machine has no token, if
	// anybody; as is the host that one over the socket names. nil is nobody.
	Anonymous func(as string) (client.Identity, bool)
	// Follow yields what a principal may see of each commit behind a sequence and
	// does not end by itself; Check says what is wrong with the place or the topics, a
	// fault; Head is the last sequence.
	Follow func(ctx context.Context, id client.Identity, after uint64, topics []string) iter.Seq2[client.Notifications, error]
	Check  func(ctx context.Context, after uint64, topics []string) error
	Head   func() uint64
	Log    *slog.Logger
}

// Door serves programs. It is safe for concurrent use.
type Door struct {
	opts    Options
	methods map[string]bus.Method
	slots   chan struct{} // one for each request under way

	mu      sync.Mutex
	streams map[client.Identity]int
	ctx     context.Context // ends with the door
	cancel  context.CancelCauseFunc
}

// errClosed is why a request ends with the door.
var errClosed = fault.New("rpc", fault.RuntimeClosed, redact.Static("gatebus is shutting down"))

// New makes a door. The error is about missing options.
func New(o Options) (*Door, error) {
	if o.Methods == nil || o.Authenticate == nil || o.Follow == nil || o.Check == nil || o.Head == nil {
		return nil, errors.New("door: Methods, Authenticate, Follow, Check and Head are needed")
	}
	if o.Anonymous == nil {
		o.Anonymous = func(string) (id client.Identity, ok bool) { return id, false }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Door{
		opts: o, methods: make(map[string]bus.Method, len(o.Methods)), slots: make(chan struct{}, maxRequests),
		streams: make(map[client.Identity]int),
	}
	for _, m := range o.Methods {
		d.methods[m.Name] = m
	}
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	return d, nil
}

// Close ends every request and stream, and lets nothing new in.
func (d *Door) Close() { d.cancel(errClosed) }

// Handler serves /rpc and /rpc/events. Its server should bound the time for
// headers and idle connections, and not the time for an answer.
func (d *Door) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/rpc", d.serve(http.MethodPost, d.post))
	mux.HandleFunc("/rpc/events", d.serve(http.MethodGet, d.events))
	return mux
}

// serve lets in what comes from the right place with the right token, before
// anything of the body is read.
func (d *Door) serve(method string, next func(http.ResponseWriter, *http.Request, client.Identity)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if ok, reason := httpin.FromHere(r); !ok {
			d.reject(r, reason)
			refuse(w, http.StatusForbidden, fault.InvalidRequest, redact.Name("the "+reason+" header is not allowed"))
			return
		}
		id, ok := httpin.Authenticate(w, r, d.opts.Authenticate, d.opts.Anonymous)
		if !ok {
			d.reject(r, "auth")
			text := redact.Static("a bearer token is needed")
			if r.Header.Get("Authorization") != "" {
				text = redact.Static("the bearer token is not one of this home, has expired or was revoked")
			}
			refuse(w, http.StatusUnauthorized, fault.AuthenticationRequired, text)
			return
		}
		if r.Method != method {
			w.Header().Set("Allow", method)
			refuse(w, http.StatusMethodNotAllowed, fault.InvalidRequest, redact.Static("the method is not allowed"))
			return
		}
		if d.ctx.Err() != nil {
			refuse(w, http.StatusServiceUnavailable, fault.RuntimeClosed, errClosed.Text)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(d.ctx, func() { cancel(errClosed) })()
		next(w, r.WithContext(ctx), id)
	}
}

// reject logs that a request was turned away; nothing of it is logged but where
// it came from.
func (d *Door) reject(r *http.Request, reason string) {
	d.opts.Log.LogAttrs(r.Context(), slog.LevelWarn, "request rejected", slog.String("reason", reason), slog.String("remote", r.RemoteAddr))
}

// answer answers one request with the result as it is to be sent.
func (d *Door) answer(ctx context.Context, r *bus.Request) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.opts.Log.Error("panic", "method", r.Method, "stack", string(debug.Stack())) // what it says may be raw
			err = fault.New(r.Method, fault.Internal, redact.Static("gatebus has an error of its own"))
		}
	}()
	m, ok := d.methods[r.Method]
	if !ok {
		return nil, fault.New("rpc", fault.UnknownMethod, redact.Static("there is no such method"))
	}
	if err := r.Name(); err != nil {
		return nil, err
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	default:
		return nil, fault.New(r.Method, fault.ResourceExhausted, redact.Static("too many requests are under way"))
	}
	v, err := m.Handle(ctx, r)
	if cause, ok := errors.AsType[*fault.Fault](context.Cause(ctx)); ok && err != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	return bus.Result(v)
}
