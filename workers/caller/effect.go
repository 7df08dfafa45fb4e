package caller

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// maxInline is how much of a result the event itself holds; the rest is in a
// blob (decision 18).
const maxInline = 256 << 10

// effect asks the server and records the outcome. It runs after call_started
// and at most once for a call.
func (a *attempt) effect(ctx context.Context, key string, s call.State) {
	begun := time.Now()
	finish := call.Finish{Generation: s.Generation}
	if err := a.Valid(); err != nil {
		// The peers may have closed the call in the log.
		finish.Failed = a.failed(begun, fault.RuntimeNotLive, redact.Static("the runtime lost its lease before the request was sent"), false)
		a.finish(ctx, key, begun, finish)
		return
	}
	deadline, cancel := context.WithTimeout(ctx, a.timeout())
	defer cancel()
	method, params := a.Method, a.Params
	if method == "" {
		method, params = "tools/call", a.params.upstream(a.binding.Tool)
	}
	answer, err := a.ask(deadline, method, params, live.CallOptions{
		Notify: a.notices(),
		OnLate: func(_ int64, r live.Reply) { a.late(key, begun, r) },
		Input:  a.Input,
		Judged: a.judged,
	})
	var lost *live.ErrLost
	switch {
	case err == nil && answer.Error != nil:
		finish.Failed = a.serverError(begun, answer.Error)
	case err == nil:
		a.result(ctx, begun, answer.Result, &finish)
	case errors.As(err, &lost) && !lost.Written:
		kind, text := notTaken(lost.Cause)
		finish.Failed = a.failed(begun, kind, text, false)
	case errors.As(err, &lost) && fault.Is(lost.Cause, fault.FrameTooLarge):
		finish.Failed = a.failed(begun, fault.FrameTooLarge, redact.Static("the server's answer is larger than a frame may be"), true)
	case errors.As(err, &lost):
		finish.Unknown = fault.Indeterminate
	case stopped(ctx):
		finish.Unknown = fault.Indeterminate // the server was not waited for
	case ctx.Err() != nil:
		finish.Failed = a.failed(begun, fault.Cancelled, redact.Static("the caller cancelled"), true)
	case deadline.Err() != nil:
		finish.Failed = a.failed(begun, fault.TimedOut, redact.Static("the server did not answer in time"), true)
	default:
		finish.Failed = a.failed(begun, fault.InvalidArguments, redact.Static("the request could not be made"), false)
	}
	a.health(err)
	a.finish(ctx, key, begun, finish)
}

// health says whether the server took a request over the opening, while that goes on: a
// transport that failed is one thing, what the server answers another (R171).
func (a *attempt) health(err error) {
	if a.Health == nil || a.Pool.Get(a.key) == nil {
		return
	}
	lost, failed := errors.AsType[*live.ErrLost](err)
	switch {
	case err == nil:
		a.Health(a.key, nil)
	case failed:
		a.Health(a.key, cmp.Or[error](lost.Cause, lost))
	}
}

// stopped reports whether a context ended because this process does, and not because
// the caller went away.
func stopped(ctx context.Context) bool { return fault.Is(context.Cause(ctx), fault.RuntimeClosed) }

// notTaken says why a server certainly did not begin a call: its connection had
// ended, or, while that goes on, the request was refused or did not get there.
func notTaken(cause error) (fault.Kind, redact.EventText) {
	f, ok := errors.AsType[*fault.Fault](cause)
	switch {
	case !ok:
		return fault.RuntimeNotLive, redact.Static("the connection was lost before the request was sent")
	case f.Kind == fault.AuthRequired, f.Kind == fault.Unavailable, f.Kind == fault.URLBlocked:
		return f.Kind, f.Text
	}
	return fault.RuntimeNotLive, f.Text
}

// notices makes the callback for what the server sends meanwhile: the model sees
// it without secrets.
func (a *attempt) notices() func(live.Notice) {
	if a.Notify == nil {
		return nil
	}
	return func(n live.Notice) {
		if v := a.visible.JSON(redact.NewRaw(n.Params)); !v.Failed {
			a.Notify(live.Notice{Method: n.Method, Params: []byte(v.Model.String())})
		}
	}
}

// result makes the views of a result: the model's is the original JSON with
// secrets spliced out, the stored one its text form (decision 22).
func (a *attempt) result(ctx context.Context, begun time.Time, raw []byte, finish *call.Finish) {
	var converted redact.Converted
	var flags []string
	var err error
	switch redact.ResultType(redact.NewRaw(raw)) {
	case redact.Complete:
		converted, err = redact.Result(a.Method, redact.NewRaw(raw))
	case inputRequired:
		var asked []wanted
		if asked, converted, err = questions(raw); err == nil {
			kind, text, urls, noted := a.unasked(asked)
			finish.URLs = urls
			if kind != "" {
				finish.Failed = a.failed(begun, kind, text, true)
				return
			}
			flags = noted
		}
	default:
		finish.Failed = a.failed(begun, fault.ResultInvalid, redact.Static("the server's result is of a type that was not agreed on"), true)
		return
	}
	if err != nil {
		finish.Failed = a.failed(begun, fault.ResultInvalid, redact.Static("the server's result is malformed"), true)
		return
	}
	// Of the JSON the model's view alone is used, in which arguments are not hidden.
	model, text := a.visible.JSON(redact.NewRaw(raw)), converted.Views(a.secrets)
	done := &events.CallSucceeded{
		IsError: converted.IsError, Status: call.Succeeded, DurationMs: since(begun), Bytes: uint32(len(raw)), Result: text.Event,
		Flags: flags,
	}
	finish.Succeeded = done
	if model.Failed || text.Failed {
		// One view that fails fails all of them (R122).
		done.IsError, done.RedactionFailed, done.Status = true, true, call.StatusFailed
		done.Result = redact.Static("<redaction-failed>")
		a.reply.Error = callError(fault.RedactionFailed, "<redaction-failed>")
		return
	}
	if converted.IsError {
		done.Status = call.StatusFailed
	}
	if cut, truncated := redact.Cut(text.Event, maxInline); truncated {
		blob, err := a.Bus.PutBlob(context.WithoutCancel(ctx), []byte(text.Event.String()))
		if err == nil {
			done.Blob = blob
		}
		done.Result, done.Truncated = cut, true
	}
	a.reply.Result, a.reply.Text = raw, text.Model.String()
	if shown := model.Model.String(); shown != string(raw) {
		a.reply.Result = []byte(shown)
	}
}

// serverError makes the outcome of a JSON-RPC error of the server: the model
// sees it whole but for secrets, the log its code and message.
func (a *attempt) serverError(begun time.Time, raw []byte) *events.CallFailed {
	var e struct {
		Code    jsontext.Value `json:"code"`
		Message any            `json:"message"`
	}
	f := a.failed(begun, fault.ExecutionFailed, redact.Static("the server answered with an error"), true)
	model := a.visible.JSON(redact.NewRaw(raw))
	if model.Failed || json.Unmarshal(raw, &e, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return f
	}
	message, _ := e.Message.(string)
	f.Code, f.Message = code(e.Code), a.secrets.Line(redact.NewRaw(message)).Event
	a.reply.Error.JSONRPC = []byte(model.Model.String())
	return f
}

// code is the code of an error as the log has it: 0 where it is no 32-bit integer
// in any spelling.
func code(v jsontext.Value) int32 {
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > math.MaxInt32 {
		return 0
	}
	return int32(n)
}

// failed makes the outcome of a call without a result, for the log and for the
// caller.
func (a *attempt) failed(begun time.Time, kind fault.Kind, text redact.EventText, started bool) *events.CallFailed {
	status := call.StatusFailed
	switch kind {
	case fault.TimedOut:
		status = call.TimedOut
	case fault.Cancelled:
		status = call.Cancelled
	case fault.InvalidArguments:
		status = call.Invalid
	}
	a.reply.Error = callError(kind, text.String())
	return &events.CallFailed{
		Status: status, Reason: string(kind), Message: text, DurationMs: since(begun), ExecutionStarted: started,
	}
}

// finish appends the outcome and only then lets the caller have it: a result
// that the log does not have would be one that nobody can account for.
func (a *attempt) finish(ctx context.Context, key string, begun time.Time, f call.Finish) {
	// The outcome is recorded also when the caller is gone.
	ctx = context.WithoutCancel(ctx)
	now := a.Model.Connections.Get(a.id.Workspace, a.binding.Connection)
	if drift := call.Drift(a.binding.Catalog, a.binding.Tool, a.binding.Definition, now); drift != "" {
		a.reply.CatalogDrift = drift
		switch {
		case f.Succeeded != nil:
			f.Succeeded.CatalogDrift, f.Succeeded.CatalogVersion = drift, now.Catalog
		case f.Failed != nil:
			f.Failed.CatalogDrift, f.Failed.CatalogVersion = drift, now.Catalog
		}
	}
	s, own := a.record(ctx, ended{key, a.meta(key), f, since(begun)})
	switch {
	case s.Phase != call.Done:
		a.reply = client.CallReply{
			Call: key, Status: call.Indeterminate, ExecutionStarted: true,
			Error: callError(fault.AuditUnavailable, "the outcome could not be recorded"),
		}
		return
	case !own:
		a.reply = outcome(key, s)
		return
	}
	a.reply.Status = s.Outcome
	a.reply.ExecutionStarted = f.Failed == nil || f.Failed.ExecutionStarted
	if f.Unknown != "" {
		a.reply.Error = callError(fault.Indeterminate, "the connection was lost after the call had started; whether it was executed is not known")
	}
	if a.Request.Call != "" { // else nobody can ask for it again
		a.told.keep(a.reply)
	}
}

// late records an answer that came after the call had its outcome.
func (a *attempt) late(key string, begun time.Time, r live.Reply) {
	converted, err := redact.Result(a.Method, redact.NewRaw(r.Result))
	late := events.CallLateResult{IsError: err != nil || converted.IsError, DurationMs: since(begun)}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The answer may be faster than the record of the outcome that it missed.
	if _, err := a.Model.Calls.Wait(ctx, a.id.Workspace, key, func(s call.State) bool { return s.Phase == call.Done }); err != nil {
		return
	}
	// Nobody waits for it; a log that cannot take it says so elsewhere.
	_, _ = a.Model.Calls.Dispatch(ctx, a.id.Workspace, key, a.meta(key), call.Late{Late: late})
}

func since(begun time.Time) uint32 {
	return uint32(min(time.Since(begun).Milliseconds(), 1<<32-1))
}
