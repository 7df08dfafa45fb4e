package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/inquiry"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpin"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxBody leaves room around arguments of 1 MiB (R198).
	maxBody = 4 << 20
	// heartbeat keeps a GET stream alive and finds out that its client is gone.
	heartbeat = 25 * time.Second
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
)

// versions are the revisions with a handshake, newest first. The last of them had
// another transport over HTTP; over pipes there are clients that speak no other one.
var versions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Codes of JSON-RPC errors that mean more than the kind of a fault says.
const (
	codeParse         = -32700
	codeUnknownMethod = -32601
	codeInvalidParams = -32602
)

// rpcError is a JSON-RPC error object with the kind and the GB code in data.
type rpcError struct {
	Code    int       `json:"code"`
	Message string    `json:"message"`
	Data    errorData `json:"data"`
}

type errorData struct {
	Kind      fault.Kind `json:"kind"`
	Code      string     `json:"code"`
	Supported []string   `json:"supported,omitempty"`
	Requested string     `json:"requested,omitempty"`
}

func newError(kind fault.Kind, message string) *rpcError {
	entry, _ := fault.Lookup(kind)
	return &rpcError{Code: entry.RPC(), Message: message, Data: errorData{Kind: kind, Code: entry.Code()}}
}

func unsupported(requested string) *rpcError {
	e := newError(fault.InvalidRequest, "unsupported protocol version")
	e.Code, e.Data.Supported, e.Data.Requested = codeVersion, served, requested
	return e
}

// json of an error object cannot fail: it holds strings and numbers.
func (e *rpcError) json() []byte {
	b, _ := json.Marshal(e)
	return b
}

// Handler serves /mcp and what is below /mcp/s/. Its server should bound the time for
// headers and idle connections, and not the time for an answer: calls are held
// and streams stay open.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// serve lets in what comes from the right place with the right token, before
// anything of the body is read (A5).
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	if ok, reason := httpin.FromHere(r); !ok {
		g.reject(r, reason)
		refuse(w, http.StatusForbidden, nil, newError(fault.InvalidRequest, "the "+reason+" header is not allowed"))
		return
	}
	at := address{endpoint: endpoint{path: r.URL.Path}}
	if server, ok := strings.CutPrefix(at.path, serverPath); ok && server != "" {
		at.server = server
	} else if at.path != path {
		refuse(w, http.StatusNotFound, nil, newError(fault.NotFound, "there is no endpoint here"))
		return
	}
	who, ok := httpin.Authenticate(w, r, g.opts.Authenticate, g.opts.Anonymous)
	if !ok {
		g.reject(r, "auth")
		refuse(w, http.StatusUnauthorized, nil, newError(fault.AuthenticationRequired, "a bearer token of a host is needed"))
		return
	}
	if at.who = who; at.server != "" && !g.opts.Backend.Serves(at.server) {
		refuse(w, http.StatusNotFound, nil, newError(fault.NotFound, "there is no such server"))
		return
	}
	switch r.Method {
	case http.MethodPost:
		g.post(w, r, at)
	case http.MethodGet, http.MethodDelete:
		if r.Header.Get(versionHeader) >= stateless {
			w.Header().Set("Allow", "POST")
			refuse(w, http.StatusMethodNotAllowed, nil, newError(fault.InvalidRequest, "the method is not allowed"))
			return
		}
		if e := versionError(r); e != nil {
			refuse(w, http.StatusBadRequest, nil, e)
			return
		}
		a := g.attached(w, r, at, nil)
		if a == nil {
			return
		}
		defer g.leave(a)
		if r.Method == http.MethodGet {
			listenGET(w, r, a)
			return
		}
		g.end(func(b *attachment) bool { return a == b })
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		refuse(w, http.StatusMethodNotAllowed, nil, newError(fault.InvalidRequest, "the method is not allowed"))
	}
}

// reject logs that a request was turned away; nothing of it is logged but where
// it came from.
func (g *Gateway) reject(r *http.Request, reason string) {
	g.opts.Logger.LogAttrs(r.Context(), slog.LevelWarn, "request rejected", slog.String("reason", reason), slog.String("remote", r.RemoteAddr))
}

// capabilities are those of an endpoint, as members, whatever servers are connected: a
// client hears of them once, and servers come later. What a server does not have is an
// empty list there, or its own error.
const capabilities = `"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{}`

// versionError refuses a protocol version that is not served.
func versionError(r *http.Request) *rpcError {
	v := r.Header.Get(versionHeader)
	if v == "" || slices.Contains(versions, v) {
		return nil
	}
	return unsupported(v)
}

// attached enters the attachment that the request names, or answers and returns
// nil. An unknown one is 404 with a null id, which makes clients begin anew.
func (g *Gateway) attached(w http.ResponseWriter, r *http.Request, at address, id jsontext.Value) *attachment {
	if at.id = r.Header.Get(sessionHeader); at.id == "" {
		refuse(w, http.StatusBadRequest, id, newError(fault.InvalidRequest, "the Mcp-Session-Id header is missing; send initialize first"))
		return nil
	}
	a, closed := g.enter(at)
	switch {
	case closed:
		refuse(w, http.StatusServiceUnavailable, id, newError(fault.RuntimeClosed, "gatebus is shutting down"))
	case a == nil:
		refuse(w, http.StatusNotFound, nil, newError(fault.NotFound, "the MCP session is unknown or over; send initialize"))
	}
	return a
}

func (g *Gateway) post(w http.ResponseWriter, r *http.Request, at address) {
	if !isJSON(r.Header.Get("Content-Type")) {
		g.reject(r, "content_type")
		refuse(w, http.StatusUnsupportedMediaType, nil, newError(fault.InvalidRequest, "the Content-Type must be application/json"))
		return
	}
	body, err := httpin.Body(w, r, maxBody)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			refuse(w, http.StatusRequestEntityTooLarge, nil, newError(fault.ArgumentsTooLarge, "the request is larger than 4 MiB"))
			return
		}
		refuse(w, http.StatusBadRequest, nil, newError(fault.InvalidRequest, "the body could not be read"))
		return
	}
	m, bad := scan(body)
	if bad == nil && isStateless(r, m) {
		g.stateless(w, r, at, m)
		return
	}
	if bad == nil {
		bad = versionError(r)
	}
	if bad != nil {
		refuse(w, http.StatusBadRequest, m.id, bad)
		return
	}
	if m.method == "initialize" && m.id != nil {
		g.initialize(w, at, m)
		return
	}
	a := g.attached(w, r, at, m.id)
	if a == nil {
		return
	}
	defer g.leave(a)
	if !m.request() {
		g.told(r.Context(), a, m)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	out := &answer{w: w, id: m.id, streams: accepts(r, "text/event-stream")}
	defer a.open(out, false)()
	switch m.method {
	case "ping":
		out.result([]byte("{}"))
	case "tools/call":
		g.call(r.Context(), a, m, out)
	case methodSetLevel:
		g.setLevel(r.Context(), a, m, out)
	case methodSubscribe:
		g.subscribe(r.Context(), a, m, out)
	case methodUnsubscribe:
		g.unsubscribed(r.Context(), a, m, out)
	default:
		if serve := g.method(m.method); serve != nil {
			serve(r.Context(), a, m, out)
			return
		}
		out.fail(newError(fault.UnknownMethod, "the method is not known here"))
	}
}

// isJSON reports whether a Content-Type is that of JSON.
func isJSON(value string) bool {
	if value == "application/json" {
		return true // as nearly all send it
	}
	media, _, err := mime.ParseMediaType(value)
	return err == nil && media == "application/json"
}

// accepts reports whether the client names the media type. A wildcard is no
// wish: many that send one read plain JSON only.
func accepts(r *http.Request, want string) bool {
	for _, line := range r.Header["Accept"] {
		for item := range strings.SplitSeq(line, ",") {
			media, _, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(media), want) {
				return true
			}
		}
	}
	return false
}

// initialize answers the handshake. A version that is not served is answered
// with the newest one, and the client decides.
func (g *Gateway) initialize(w http.ResponseWriter, at address, m message) {
	asked := text(m.protocolVersion)
	if asked == "" {
		(&answer{w: w, id: m.id}).fail(newError(fault.InvalidInput, "params.protocolVersion is missing"))
		return
	}
	version := versions[0]
	if slices.Contains(versions, asked) {
		version = asked
	}
	at.id = rand.Text()
	if g.attach(at, inquiry.Offers(m.capabilities)...) == nil {
		refuse(w, http.StatusServiceUnavailable, m.id, newError(fault.ResourceExhausted, "too many MCP sessions are in use, or gatebus is shutting down"))
		return
	}
	w.Header().Set(sessionHeader, at.id)
	result := `{"protocolVersion":"` + version + `","capabilities":{` + capabilities + `,"logging":{}},"serverInfo":` + string(g.info) + `}`
	(&answer{w: w, id: m.id}).result([]byte(result))
}

// listenGET serves the GET stream: it tells that lists changed. What was not
// told, as nobody listened, is told first.
func listenGET(w http.ResponseWriter, r *http.Request, a *attachment) {
	if !accepts(r, "text/event-stream") {
		refuse(w, http.StatusNotAcceptable, nil, newError(fault.InvalidRequest, "the Accept header must name text/event-stream"))
		return
	}
	ctx, cancel := a.bound(r.Context())
	defer cancel()
	a.take(cancel)
	out := &answer{w: w, streams: true}
	defer a.open(out, true)()
	out.tell(ctx, a, a.changed, nil)
}

// failure is the error that a client may see of err. A request whose context
// ended is told why.
func (g *Gateway) failure(ctx context.Context, err error) *rpcError {
	if f, ok := errors.AsType[*fault.Fault](context.Cause(ctx)); ok {
		return newError(f.Kind, f.Text.String())
	}
	if ctx.Err() != nil {
		return newError(fault.Cancelled, "the request was cancelled")
	}
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok {
		f = fault.New("gateway", fault.Internal, redact.Static("internal error"))
	}
	g.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "request failed", slog.String("kind", string(f.Kind)), slog.String("error", f.Error()))
	return newError(f.Kind, f.Text.String())
}

// refuse answers a request that got no further than HTTP.
func refuse(w http.ResponseWriter, status int, id jsontext.Value, e *rpcError) {
	if id == nil {
		id = jsontext.Value("null")
	}
	out := &answer{w: w, id: id, status: status}
	out.fail(e)
}
