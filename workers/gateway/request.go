package gateway

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/yosida95/uritemplate/v3"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// codeNoResource is what the revisions before 2026-07-28 say of a resource that
// is not there.
const codeNoResource = -32002

// method is what serves a method in every revision, nil for none.
func (g *Gateway) method(name string) func(context.Context, *attachment, message, *answer) {
	if lists[name].member != "" {
		return g.list
	}
	switch name {
	case "resources/read", "prompts/get", "completion/complete":
		return g.request
	}
	return nil
}

// target is the server that a request goes to. subject is what the server listed
// of it, empty where it did not, and params is what it is to get.
type target struct {
	server, subject string
	params          []byte
}

// target finds where a request goes by what the servers of a turn list; at the
// endpoint of one server everything goes there.
func (t *turn) target(only string, m message) (target, *rpcError) {
	if only != "" && !slices.Contains(t.Servers, only) {
		return target{}, newError(fault.Unavailable, "the server is not connected")
	}
	switch m.method {
	case "resources/read", methodSubscribe, methodUnsubscribe:
		if text(m.uri) == "" {
			return target{}, newError(fault.InvalidInput, "params.uri is missing")
		}
		return t.resource(only, text(m.uri), m.params)
	case "prompts/get":
		if text(m.name) == "" {
			return target{}, newError(fault.InvalidInput, "params.name is missing")
		}
		return t.prompt(only, text(m.name), m.params, "name")
	}
	var kind, name, uri jsontext.Value
	if m.ref.Kind() == '{' {
		dec := jsontext.NewDecoder(bytes.NewBuffer(m.ref))
		if err := members(dec, m.ref, []string{"type", "name", "uri"}, func(member string) error {
			v, err := value(dec, m.ref)
			switch member {
			case "type":
				kind = v
			case "name":
				name = v
			case "uri":
				uri = v
			}
			return err
		}); err != nil {
			return target{}, ambiguous()
		}
	}
	switch {
	case text(kind) == "ref/prompt" && text(name) != "":
		return t.prompt(only, text(name), m.params, "ref", "name")
	case text(kind) == "ref/resource" && text(uri) != "":
		return t.resource(only, text(uri), m.params)
	}
	return target{}, newError(fault.InvalidInput, "params.ref is no reference to a prompt or a resource")
}

// prompt finds the server of a prompt. The place of the name in params gets the
// server's own name.
func (t *turn) prompt(only, name string, params []byte, place ...string) (target, *rpcError) {
	p := t.prompts[name]
	switch {
	case p == nil && only != "":
		return target{only, "", params}, nil // it may have some that it does not list
	case p == nil:
		e := newError(fault.NotFound, "Unknown prompt")
		e.Code = codeInvalidParams
		return target{}, e
	case name != p.RawName:
		params = splice(params, p.RawName, place...)
	}
	return target{p.Server, p.RawName, params}, nil
}

// resource finds the server of a URI, or of a template where that is what is
// named: the one that lists it, else the first one with a template that fits.
func (t *turn) resource(only, uri string, params []byte) (target, *rpcError) {
	named := func(i client.Item) bool { return i.RawName == uri }
	if i := slices.IndexFunc(t.Resources, named); i >= 0 {
		return target{t.Resources[i].Server, uri, params}, nil
	}
	if i := slices.IndexFunc(t.Templates, func(i client.Item) bool { return named(i) || fits(i.RawName, uri) }); i >= 0 {
		return target{t.Templates[i].Server, t.Templates[i].RawName, params}, nil
	}
	if only != "" {
		return target{only, "", params}, nil
	}
	return target{}, newError(fault.NotFound, "Resource not found")
}

// fits reports whether a URI can be one of a template (RFC 6570).
func fits(template, uri string) bool {
	t, err := uritemplate.New(template)
	return err == nil && t.Regexp().MatchString(uri)
}

// splice returns an object with another string at the place of one, which is there.
func splice(object []byte, with string, place ...string) []byte {
	dec := jsontext.NewDecoder(bytes.NewBuffer(object))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != '}' {
		var name, v jsontext.Value
		if name, err = value(dec, object); err != nil {
			break
		}
		if v, err = value(dec, object); err != nil || text(name) != place[0] {
			continue
		}
		end := int(dec.InputOffset())
		replaced, _ := jsontext.AppendQuote(nil, with) // came out of valid JSON
		if len(place) > 1 {
			replaced = splice(v, with, place[1:]...)
		}
		return slices.Concat(object[:end-len(v)], replaced, object[end:])
	}
	return object
}

// request answers what is asked of a server beside its tools.
func (g *Gateway) request(ctx context.Context, a *attachment, m message, out *answer) {
	reply, server, bad := g.reach(ctx, a, m, nil, out)
	a.link(server, reply.Result)
	g.conclude(reply, bad, m.method, out)
}

// conclude answers with what came of a request.
func (g *Gateway) conclude(reply client.CallReply, bad *rpcError, method string, out *answer) {
	if bad != nil {
		out.fail(bad)
		return
	}
	g.respond(reply, method, out)
}

// reach makes a request of the server that it is for, and says which one that is.
// Where its turn or connection is gone and nothing was started, it asks once more
// (decision 11). bad is for the client: there is no reply.
func (g *Gateway) reach(ctx context.Context, a *attachment, m message, w *Watch, out *answer) (reply client.CallReply, server string, bad *rpcError) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	c := newCall(m, cancel)
	c.watch = w
	a.add(c)
	defer a.remove(c)

	t := a.find(func(*turn) bool { return true })
	var before string // the server that it was for in an older turn
	for again := false; ; again = true {
		var err error
		if t == nil {
			if t, err = a.prepare(ctx); err != nil {
				return reply, "", g.failure(ctx, err)
			}
			again = true
		}
		var to target
		to, bad = a.target(t, m)
		if bad == nil {
			reply, err = g.ask(ctx, a, c, t, to, m.method, out)
		}
		switch {
		case err != nil:
			return reply, to.server, g.failure(ctx, err)
		case again && bad != nil:
			if d := a.missing(t, a.of(m, before)); d != nil {
				return reply, "", unreachable(d)
			}
			if strings.HasPrefix(m.method, "resources/") && bad.Data.Kind == fault.NotFound {
				bad.noResource(out.stateless)
				a.whose(t, bad)
			}
			return reply, "", bad
		case again || bad == nil && !stale(reply):
			return reply, to.server, nil
		}
		// The newest turn may be out of date.
		if bad == nil {
			a.drop(ctx, t) // or it would be reused for its catalog
			before = to.server
		}
		t = nil
	}
}

// noResource makes it the error of a resource that is not there.
func (e *rpcError) noResource(stateless bool) {
	if e.Code = codeNoResource; stateless {
		e.Code = codeInvalidParams
	}
}

// ask hands a request to the backend.
func (g *Gateway) ask(ctx context.Context, a *attachment, c *call, t *turn, to target, method string, out *answer) (client.CallReply, error) {
	a.hold(t)
	defer a.release(ctx, t)
	a.towards(out, to.server)
	in := Call{Turn: t.Turn.Turn, Name: to.server, Method: method, Subject: to.subject, Params: redact.NewRaw(to.params), Input: c.input, Watch: c.watch}
	in.listen(c, out)
	return g.opts.Backend.Call(ctx, a.at.who, in)
}

// respond answers with what became of a request that is no call of a tool: there
// is nothing but its result that a client could make something of.
func (g *Gateway) respond(r client.CallReply, method string, out *answer) {
	result := redact.NewRaw([]byte(r.Result))
	switch {
	case r.Result != nil && method == "resources/read" && out.stateless && !redact.HasMember(result, "ttlMs") &&
		redact.ResultType(result) == redact.Complete: // what asks for input is not kept anyway
		out.result(bytes.Join(prepend(r.Result, `"ttlMs":0,"cacheScope":"private"`), nil))
	case r.Result != nil:
		out.result(r.Result)
	case r.Error != nil && r.Error.JSONRPC != nil:
		out.failRaw(r.Error.JSONRPC)
	default:
		out.fail(newError(reason(r)))
	}
}

// levels are those of log messages, the least severe first (RFC 5424).
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

const methodSetLevel = "logging/setLevel"

// setLevel tells every server of the endpoint that is connected, and those that will
// be, which log messages are wanted. One that has none, or cannot be told, logs as
// before.
func (g *Gateway) setLevel(ctx context.Context, a *attachment, m message, out *answer) {
	if !slices.Contains(levels, text(m.level)) {
		out.fail(newError(fault.InvalidInput, "params.level is none of debug, info, notice, warning, error, critical, alert, emergency"))
		return
	}
	a.setsLevel(m.level) // before a server can say something
	ctx, cancel := a.bound(ctx)
	defer cancel()
	c := newCall(m, cancel)
	a.add(c)
	defer a.remove(c)
	t, err := a.prepare(ctx)
	if err != nil {
		out.fail(g.failure(ctx, err))
		return
	}
	for _, server := range t.Servers {
		if _, err := g.ask(ctx, a, c, t, target{server: server, params: m.params}, m.method, out); err != nil {
			out.fail(g.failure(ctx, err))
			return
		}
	}
	out.result([]byte("{}"))
}
