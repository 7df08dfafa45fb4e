package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// retryAfter is when a client may ask again for a call that waits for a person.
const retryAfter = 5 * time.Second

// call answers tools/call. It binds to the newest turn that listed the name.
// Where that turn or its connection is gone and nothing was started, it binds
// once more, provided that the definition is the same (decision 11).
func (g *Gateway) call(ctx context.Context, a *attachment, m message, out *answer) {
	name := text(m.name)
	if name == "" {
		out.fail(newError(fault.InvalidInput, "params.name is missing"))
		return
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	c := newCall(m, cancel)
	a.add(c)
	defer a.remove(c)

	var err error
	t := a.listed(name)
	if t == nil {
		// A client may call without a list before.
		if t, err = a.prepare(ctx); err != nil {
			out.fail(g.failure(ctx, err))
			return
		}
	}
	tool := t.tools[name]
	if tool == nil {
		if d := a.missing(t, a.owner(name)); d != nil {
			explainAway(out, d)
			return
		}
		out.fail(unknownTool())
		return
	}
	var reply client.CallReply
	reply, err = g.invoke(ctx, a, c, t, tool, out)
	if err == nil && stale(reply) {
		a.drop(ctx, t) // or it would be reused for its catalog
		var fresh *turn
		if fresh, err = a.prepare(ctx); err == nil {
			again := fresh.tools[name]
			switch d := a.missing(fresh, named(tool.Server)); {
			case again != nil && again.Digest == tool.Digest:
				reply, err = g.invoke(ctx, a, c, fresh, again, out)
			case again == nil && d != nil:
				explainAway(out, d)
				return
			default:
				reply.Status = "invalid"
				reply.Error = &client.CallError{Kind: string(fault.ToolDrift), Message: "the tool changed or went away since it was listed; list the tools again"}
			}
		}
	}
	if err != nil {
		out.fail(g.failure(ctx, err))
		return
	}
	a.link(tool.Server, reply.Result)
	report(reply, tool.Definition, out)
}

// listed returns the newest turn that has the tool, or nil.
func (a *attachment) listed(name string) *turn {
	return a.find(func(t *turn) bool { return t.tools[name] != nil })
}

// stale reports whether binding again may help: the binding is gone, not the
// right to call, and nothing was started.
func stale(r client.CallReply) bool {
	if r.Error == nil || r.ExecutionStarted {
		return false
	}
	switch fault.Kind(r.Error.Kind) {
	case fault.TurnNotActive, fault.BindingMismatch, fault.RuntimeNotLive:
		return true
	}
	return false
}

// invoke hands the call to the backend. When it returns nothing more is sent
// but the answer.
func (g *Gateway) invoke(ctx context.Context, a *attachment, c *call, t *turn, tool *client.Tool, out *answer) (client.CallReply, error) {
	a.hold(t)
	defer a.release(ctx, t)
	a.towards(out, tool.Server)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer a.resume(c)
	in := Call{
		Turn: t.Turn.Turn, Name: tool.Name, Params: redact.NewRaw(c.params), Input: c.input, Wait: g.opts.Hold,
		OnPending: func(approval string) {
			ctx := a.pend(ctx, c, approval)
			waiting.Go(func() { out.wait(ctx, c.token, approval) })
		},
	}
	in.listen(c, out)
	return g.opts.Backend.Call(ctx, a.at.who, in)
}

// listen lets the client of a call hear what the server says meanwhile: its
// progress where it has a token for it, and log messages, which a stateless client
// asks for with each request.
func (in *Call) listen(c *call, out *answer) {
	in.Logs = c.logs || !out.stateless
	if out.streams && (c.token != nil || in.Logs) {
		// A client that is gone ends ctx; there is nobody else to tell.
		in.Notify = func(message []byte) { _ = out.notify(message) }
	}
}

// pend notes that the call waits for an approval; the context ends when it does
// not any more.
func (a *attachment) pend(ctx context.Context, c *call, approval string) context.Context {
	ctx, resume := context.WithCancel(ctx)
	a.resume(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	c.approval, c.resume = approval, resume
	return ctx
}

// resume ends the waiting of a call, if it waits.
func (a *attachment) resume(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.resume != nil {
		c.resume()
	}
	c.approval, c.resume = "", nil
}

// toolResult is a result that says why there is no result of the tool. It is
// for the model, so it is no JSON-RPC error. What a program wants to know is in
// structuredContent, unless the tool declares an outputSchema: clients hold even
// an error's structuredContent against that and would lose the whole answer, so
// that it is in _meta then.
type toolResult struct {
	Content           [1]textContent `json:"content"`
	StructuredContent any            `json:"structuredContent,omitempty"`
	Meta              map[string]any `json:"_meta,omitempty"`
	IsError           bool           `json:"isError"`
}

// outcomeKey is where _meta has what is not in structuredContent.
const outcomeKey = "gatebus/outcome"

type textContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type outcome struct {
	Code             fault.Kind `json:"code"`
	Status           string     `json:"status"`
	Call             string     `json:"call"`
	ExecutionStarted bool       `json:"execution_started"`
}

type pending struct {
	Code         fault.Kind `json:"code"`
	ID           string     `json:"id"`
	URL          string     `json:"url"`
	RetryAfterMS int64      `json:"retry_after_ms"`
}

// declaresOutput reports whether a tool definition has an outputSchema.
func declaresOutput(definition []byte) bool {
	var tool struct {
		OutputSchema json.RawMessage `json:"outputSchema"`
	}
	// Where it cannot be read, a client reads no schema from it either.
	return json.Unmarshal(definition, &tool) == nil && tool.OutputSchema != nil
}

// report answers with what became of a call of a tool with a definition.
func report(r client.CallReply, definition []byte, out *answer) {
	switch {
	case r.Result != nil:
		out.result(r.Result)
	case r.Error != nil && r.Error.JSONRPC != nil:
		out.failRaw(r.Error.JSONRPC)
	case r.Status == "not_found":
		out.fail(unknownTool())
	case r.Approval != nil && r.Status == "approval_pending":
		explain(out, fault.ApprovalPending, "a person must approve the call first (gatebus approve "+r.Approval.ID+"); then repeat the same call", declaresOutput(definition),
			pending{fault.ApprovalPending, r.Approval.ID, r.Approval.URL, retryAfter.Milliseconds()})
	default:
		kind, message := reason(r)
		explain(out, kind, message, declaresOutput(definition), outcome{kind, r.Status, r.Call, r.ExecutionStarted})
	}
}

// reason is why there is no result, in words where nobody has found any.
func reason(r client.CallReply) (kind fault.Kind, message string) {
	kind = fault.Kind(r.Status)
	if r.Error != nil {
		kind, message = fault.Kind(r.Error.Kind), r.Error.Message
	}
	entry, ok := fault.Lookup(kind)
	if !ok {
		kind = entry.Kind
	}
	return kind, cmp.Or(message, entry.Meaning)
}

// explain answers with a result that is an error.
func explain(out *answer, kind fault.Kind, message string, typed bool, structured any) {
	entry, _ := fault.Lookup(kind)
	text := string(kind) + " (" + entry.Code() + "): " + message
	r := toolResult{Content: [1]textContent{{"text", text}}, IsError: true}
	if typed {
		r.Meta = map[string]any{outcomeKey: structured}
	} else {
		r.StructuredContent = structured
	}
	b, _ := json.Marshal(r) // strings, numbers and booleans: it cannot fail
	out.result(b)
}

func unknownTool() *rpcError {
	e := newError(fault.NotFound, "Unknown tool")
	e.Code = codeInvalidParams
	return e
}
