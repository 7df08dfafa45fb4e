package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/go-json-experiment/json/jsontext"
)

// stateless is the first revision without a handshake: each request says which
// revision it speaks, who sends it and what that client can, and its headers
// repeat what a proxy may want to know.
const stateless = "2026-07-28"

const (
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
)

// Codes of JSON-RPC errors of that revision.
const (
	codeHeader     = -32020 // HeaderMismatch
	codeCapability = -32021 // MissingRequiredClientCapability
	codeVersion    = -32022 // UnsupportedProtocolVersion
)

// served are all revisions, newest first.
var served = append([]string{stateless}, versions...)

// The keys of _meta in which a client speaks of itself to who is next to it: they
// go no further.
const (
	keyVersion      = "io.modelcontextprotocol/protocolVersion"
	keyClient       = "io.modelcontextprotocol/clientInfo"
	keyCapabilities = "io.modelcontextprotocol/clientCapabilities"
	keyLevel        = "io.modelcontextprotocol/logLevel" // of log messages that it wants
)

// discovery is what a client may keep for five minutes; a list is old at once, as
// a yes of a person may change it at any time.
const discovery = "300000"

// isStateless reports whether a message is of the era without a handshake.
func isStateless(r *http.Request, m message) bool {
	return r.Header.Get(versionHeader) >= stateless || text(m.meta.version) >= stateless || m.method == "server/discover"
}

// stateless answers a request that stands for itself. Its attachment is that of
// the principal at the endpoint, so that the turns of one request serve the next
// one (decisions 3 and 4). A call ends with the connection of its answer; a
// notification has nothing to say here.
func (g *Gateway) stateless(w http.ResponseWriter, r *http.Request, at address, m message) {
	if bad := m.check(r.Header); bad != nil {
		refuse(w, http.StatusBadRequest, m.id, bad)
		return
	}
	if !m.request() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	out := &answer{w: w, id: m.id, streams: accepts(r, "text/event-stream"), stateless: true}
	var serve func(context.Context, *attachment, message, *answer)
	switch m.method {
	case "server/discover":
		out.result([]byte(`{` + g.hints(discovery) + `"supportedVersions":["` + strings.Join(served, `","`) + `"],"capabilities":{` + capabilities + `}}`))
		return
	case "tools/call":
		serve = g.call
	case "subscriptions/listen":
		serve = g.listen
	default:
		if serve = g.method(m.method); serve == nil {
			out.fail(newError(fault.UnknownMethod, "the method is not known here"))
			return
		}
	}
	m.params, m.input = m.forwarded(), m.offered()
	a, closed := g.enter(at)
	if a == nil && !closed && g.attach(at) != nil {
		a, _ = g.enter(at)
	}
	if a == nil {
		refuse(w, http.StatusServiceUnavailable, m.id, newError(fault.ResourceExhausted, "too many MCP sessions are in use, or gatebus is shutting down"))
		return
	}
	defer g.leave(a)
	serve(r.Context(), a, m, out)
}

// hints are the members that a result of our own begins with: how long it may be
// kept, in milliseconds, for nobody else, and whose it is.
func (g *Gateway) hints(ttl string) string {
	return `"ttlMs":` + ttl + `,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":` + string(g.info) + `},`
}

// check refuses a message whose headers say something else than its body, and a
// request that does not say what it must.
func (m *message) check(h http.Header) *rpcError {
	version, ok := single(h, versionHeader)
	if !ok {
		return mismatch("the " + versionHeader + " header must be there once")
	}
	if m.request() && m.meta.version.Kind() != '"' {
		return newError(fault.InvalidInput, "params._meta has no "+keyVersion)
	}
	switch {
	case m.request() && text(m.meta.version) != version:
		return mismatch("the " + versionHeader + " header is not what params._meta says")
	case version != stateless:
		return unsupported(version)
	case m.request() && m.meta.capabilities.Kind() != '{':
		return newError(fault.InvalidInput, "params._meta has no "+keyCapabilities)
	case m.request() && m.meta.client != nil && m.meta.client.Kind() != '{':
		return newError(fault.InvalidInput, "params._meta has a "+keyClient+" that is no object")
	case m.method == "":
		return nil
	}
	if method, ok := single(h, methodHeader); !ok || method != m.method {
		return mismatch("the " + methodHeader + " header must be there once and be the method of the body")
	}
	member, of := "name", m.name
	switch m.method {
	case "tools/call", "prompts/get":
	case "resources/read":
		member, of = "uri", m.uri
	default:
		return nil
	}
	if want := text(of); want != "" {
		name, ok := single(h, nameHeader)
		if ok {
			name, ok = decoded(name)
		}
		if !ok || name != want {
			return mismatch("the " + nameHeader + " header must be there once and be params." + member + " of the body")
		}
	}
	return nil
}

// mismatch is the error of a header.
func mismatch(message string) *rpcError {
	e := newError(fault.InvalidRequest, message)
	e.Code = codeHeader
	return e
}

// single returns a header that is there exactly once: of two, others could read
// the other one.
func single(h http.Header, name string) (string, bool) {
	if all := h.Values(name); len(all) == 1 && all[0] != "" {
		return all[0], true
	}
	return "", false
}

// decoded undoes the form of values that a header cannot hold.
func decoded(value string) (string, bool) {
	encoded, ok := strings.CutPrefix(value, "=?base64?")
	if ok {
		encoded, ok = strings.CutSuffix(encoded, "?=")
	}
	if !ok {
		return value, true
	}
	b, err := base64.StdEncoding.Strict().DecodeString(encoded)
	return string(b), err == nil
}

// forwarded is the params for the server: what its client says of itself is not
// in it, as the server has another client, which is Gatebus.
func (m *message) forwarded() []byte {
	kept := []byte{'{'}
	dec := jsontext.NewDecoder(bytes.NewBuffer(m.meta.raw))
	// It was read before, so nothing fails.
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() != '}'; {
		var name, v jsontext.Value
		if name, err = value(dec, m.meta.raw); err != nil {
			break
		}
		if v, err = value(dec, m.meta.raw); err != nil {
			break
		}
		switch known, _ := plain(name, metadata); known {
		case keyVersion, keyClient, keyCapabilities:
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(append(append(kept, name...), ':'), v...)
	}
	return slices.Concat(m.params[:m.meta.at], append(kept, '}'), m.params[m.meta.at+len(m.meta.raw):])
}

// offered is what the client can be asked for by the result of the request: of its
// capabilities those that there are requests for, nil where the result may not ask.
// Any other one would be a promise of ours that we do not keep.
func (m *message) offered() []byte {
	switch m.method {
	case "tools/call", "prompts/get", "resources/read":
	default:
		return nil
	}
	out := []byte{'{'}
	dec := jsontext.NewDecoder(bytes.NewBuffer(m.meta.capabilities))
	// It was read before, so nothing fails.
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() != '}'; {
		var name, v jsontext.Value
		if name, err = value(dec, m.meta.capabilities); err != nil {
			break
		}
		if v, err = value(dec, m.meta.capabilities); err != nil {
			break
		}
		switch text(name) {
		case "elicitation", "sampling", "roots":
			if v.Kind() != '{' {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(append(out, name...), ':'), v...)
		}
	}
	return append(out, '}')
}

// complete splices into a result that it is one, where it does not say itself
// what it is: a server of the handshake era does not know that there is anything
// else.
func complete(raw []byte) [][]byte {
	if object := bytes.TrimLeft(raw, space); len(object) == 0 || object[0] != '{' || redact.HasMember(redact.NewRaw(object), "resultType") {
		return [][]byte{raw}
	}
	return prepend(raw, `"resultType":"complete"`)
}

const space = " \t\r\n"

// prepend puts members before those of an object.
func prepend(object []byte, members string) [][]byte {
	rest := bytes.TrimLeft(bytes.TrimLeft(object, space)[1:], space)
	if rest[0] != '}' {
		members += ","
	}
	return [][]byte{[]byte("{" + members), rest}
}

// statusOf is the HTTP status of an answer that is an error.
func statusOf(code int) int {
	switch code {
	case codeUnknownMethod:
		return http.StatusNotFound
	case codeInvalidParams, codeHeader, codeCapability, codeVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// listen answers subscriptions/listen: it says first which of the wanted
// notifications there are, and then tells of changes until the client leaves.
// Each message has the id of the request, so that a client knows which of its
// subscriptions it is for.
func (g *Gateway) listen(ctx context.Context, a *attachment, m message, out *answer) {
	if !out.streams {
		out.status = http.StatusNotAcceptable
		out.fail(newError(fault.InvalidRequest, "the Accept header must name text/event-stream"))
		return
	}
	if m.notifications.Kind() != '{' {
		out.fail(newError(fault.InvalidInput, "params.notifications is missing"))
		return
	}
	want, agreed, uris, err := m.wants()
	if err != nil {
		out.fail(ambiguous())
		return
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	changed, ok := a.listen(want)
	if !ok {
		out.fail(newError(fault.ResourceExhausted, "too many subscriptions are open"))
		return
	}
	defer a.unlisten(changed)
	// What happens in a session is told from here on, also before it has listed.
	if err := a.begin(ctx); err != nil {
		out.fail(g.failure(ctx, err))
		return
	}
	if len(uris) > 0 {
		defer g.unsubscribe(ctx, a, changed, every)
		if list := string(g.subscribeAll(ctx, a, changed, uris)); list != "[]" {
			if agreed != "" {
				agreed += ","
			}
			agreed += `"resourceSubscriptions":` + list
		}
	}
	member := `"io.modelcontextprotocol/subscriptionId":` + string(m.id)
	tag := `{"_meta":{` + member + `}`
	ack := `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":` + tag + `,"notifications":{` + agreed + `}}}`
	if err := out.notify([]byte(ack)); err != nil {
		return
	}
	if agreed != "" {
		out.tell(ctx, a, changed, []byte(member))
	}
	if agreed == "" || a.ctx.Err() != nil {
		out.result([]byte(tag + `}`))
	}
}

// wants is what a client wants to hear of, as far as there is such a thing: lists, the
// same as members of the answer, and the URIs of resources.
func (m *message) wants() (want kinds, agreed string, uris []jsontext.Value, err error) {
	kind := map[string]kinds{"toolsListChanged": kindTools, "resourcesListChanged": kindResources, "promptsListChanged": kindPrompts}
	dec := jsontext.NewDecoder(bytes.NewBuffer(m.notifications))
	err = members(dec, m.notifications, append(slices.Collect(maps.Keys(kind)), wantsResources), func(name string) error {
		if name == wantsResources && dec.PeekKind() == '[' {
			uris, err = elements(dec, m.notifications)
			return err
		}
		v, err := value(dec, m.notifications)
		if kind[name] != 0 && v.Kind() == 't' {
			if want != 0 {
				agreed += ","
			}
			want |= kind[name]
			agreed += `"` + name + `":true`
		}
		return err
	})
	return want, agreed, uris, err
}

const wantsResources = "resourceSubscriptions"

// elements reads the array that comes next and returns the texts in it.
func elements(dec *jsontext.Decoder, body []byte) (texts []jsontext.Value, err error) {
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != ']' {
		v, err := value(dec, body)
		if err != nil {
			return nil, err
		}
		if text(v) != "" {
			texts = append(texts, v)
		}
	}
	_, err = dec.ReadToken()
	return texts, err
}
