package caller

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

const (
	// resumeEvery is how often the owner of a call is asked what has become of it;
	// a message on the way back can get lost with a server of the bus.
	resumeEvery = 2 * time.Second
	// leaveEvery and leavePatience are the same after the caller has left.
	leaveEvery    = 100 * time.Millisecond
	leavePatience = 5 * time.Second
)

// owner is the opening of the bound connection that another living process holds.
func (a *attempt) owner() (key live.Key, runtime string, ok bool) {
	if !a.bound {
		return key, "", false
	}
	s := a.Model.Connections.Get(a.id.Workspace, a.binding.Connection)
	key = live.Key{Connection: a.binding.Connection, Generation: s.Generation}
	return key, s.Runtime, s.Phase == connection.Open && s.Runtime != a.Runtime && a.Alive(s.Runtime)
}

// question is an errand on the side of who asks.
type question struct {
	*attempt
	owner   live.Key
	runtime string // of the owner
	errand  string

	mu    sync.Mutex
	call  string // what it has become
	final *client.CallReply
}

// What ends the waiting for an owner, beside errNotHere.
var (
	errHeard    = errors.New("caller: the owner has answered after all")
	errRecorded = errors.New("caller: the outcome is in the log")
)

// forward has the owner of the connection make the call, and passes on what it
// says (decision 21). Nobody there, or an owner that holds the connection no
// longer, is errNotHere: nothing was started. An owner that falls silent is waited
// for until it is closed in the log, and then the log is the answer.
func (a *attempt) forward(ctx context.Context, owner live.Key, runtime string) (client.CallReply, error) {
	// The id stays that of the call until it is in the log: who repeats the command
	// finds it there, whoever makes the call in the end.
	q := &question{attempt: a, owner: owner, runtime: runtime, errand: ulid.Make().String(), call: a.nextCall()}
	f := forwarded{
		Errand: q.errand, Call: q.call, Principal: a.id.Principal, Actor: a.id.Actor, Turn: a.Turn, Name: a.Name,
		Method: a.Method, Subject: a.Subject, WaitMS: a.Wait.Milliseconds(), Notify: a.Notify != nil, Input: a.Input, Known: a.Bus.Known(),
	}
	if a.Watch != nil {
		f.Watch, f.Asker, a.heldAt = &update{a.Watch.ID, a.Watch.URI}, a.Runtime, owner
	}
	data, err := pack(f, a.Params.Reveal())
	if err != nil {
		return client.CallReply{}, fault.Wrap("call.forward", fault.InvalidInput, redact.Static("the request has no JSON form"), err)
	}
	asking, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var watching sync.WaitGroup
	watching.Go(func() {
		if verdict := q.watch(ctx, asking); verdict != nil {
			stop(verdict)
		}
	})
	err = a.Bus.AskAddress(asking, a.id.Workspace, address(owner), verbCall, data, q.hear)
	verdict := context.Cause(asking)
	stop(nil)
	watching.Wait()
	switch {
	case q.final != nil:
		return *q.final, nil
	case errors.Is(verdict, errRecorded):
		return a.recorded(ctx, q.call)
	case ctx.Err() != nil:
		return client.CallReply{}, context.Cause(ctx)
	case verdict != nil:
		return client.CallReply{}, verdict
	case fault.Is(err, fault.RuntimeNotLive):
		return client.CallReply{}, errNotHere
	case err == nil:
		err = fault.New("call.forward", fault.Internal, redact.Static("the owner of the connection said nothing"))
	}
	return client.CallReply{}, err
}

// hear takes a message of the owner.
func (q *question) hear(data []byte) error {
	var m message
	raw, err := unpack(data, &m)
	if err != nil {
		return err
	}
	q.mu.Lock()
	if m.Call != "" {
		q.call = m.Call
	}
	if r := m.reply(raw); r != nil {
		q.final = r
	}
	q.mu.Unlock()
	switch {
	case m.Approval != "" && q.OnPending != nil:
		q.OnPending(m.Approval)
	case strings.HasPrefix(m.Raw, "notifications/") && q.Notify != nil:
		q.Notify(live.Notice{Method: m.Raw, Params: bytes.Clone(raw)})
	}
	return nil
}

// watch asks the owner from time to time what has become of the call, and gives
// the verdict that ends the waiting: nil when the answer came.
func (q *question) watch(ctx, asking context.Context) error {
	tick := time.NewTicker(resumeEvery)
	defer tick.Stop()
	verb, left := verbResume, ctx.Done()
	var patience <-chan time.Time
	for {
		select {
		case <-asking.Done():
			return nil
		case <-left:
			if stopped(ctx) {
				return context.Cause(ctx) // whoever asks again hears how the owner ended it
			}
			// The owner answers with how it ended the call.
			verb, left, patience = verbCancel, nil, time.After(leavePatience)
			tick.Reset(leaveEvery)
		case <-patience:
			return ctx.Err()
		case <-tick.C:
		}
		if verdict := q.resume(asking, verb); verdict != nil {
			return verdict
		}
	}
}

// resume asks the owner once, and the log where the owner does not answer.
func (q *question) resume(ctx context.Context, verb string) error {
	ctx, cancel := context.WithTimeout(ctx, resumeEvery)
	defer cancel()
	err := q.Bus.AskAddress(ctx, q.id.Workspace, address(q.owner), verb, []byte(q.errand), q.hear)
	q.mu.Lock()
	heard, key := q.final != nil, q.call
	q.mu.Unlock()
	switch {
	case heard:
		return errHeard
	case err == nil:
		return nil // it runs
	case ctx.Err() == nil && q.Bus.Sync(ctx) != nil:
		return nil
	}
	nobody := errors.Is(err, bus.ErrNoAddress)
	refused := !nobody && fault.Is(err, fault.RuntimeNotLive)
	lost := !q.Alive(q.runtime)
	connected := q.Model.Connections.Get(q.id.Workspace, q.owner.Connection)
	ended := connected.Phase != connection.Open || connected.Generation != q.owner.Generation
	switch phase := q.Model.Calls.Get(q.id.Workspace, key).Phase; {
	case phase == call.Done && (nobody || refused || lost):
		return errRecorded
	case phase == call.Started && refused:
		return errRecorded // its outcome could not be recorded yet
	case refused || lost, nobody && ended && phase != call.Started && phase != call.Queued:
		return errNotHere
	}
	return nil
}

// recorded answers with what the log says of a call that somebody else made, or
// that this principal has made before, once it has an outcome.
func (a *attempt) recorded(ctx context.Context, key string) (client.CallReply, error) {
	s, err := a.Model.Calls.Wait(ctx, a.id.Workspace, key, func(s call.State) bool { return s.Phase == call.Done })
	if err != nil {
		return client.CallReply{}, err
	}
	if s.Session != "" && a.Model.Sessions.Get(a.id.Workspace, s.Session).Principal != a.id.Principal {
		return client.CallReply{}, fault.New("call", fault.Conflict, redact.Static("the id is that of another call"))
	}
	if r, ok := a.told.of(key); ok {
		return r, nil
	}
	return outcome(key, s), nil
}

// outcome is the reply that the log has for a call.
func outcome(key string, s call.State) client.CallReply {
	r := client.CallReply{Call: key, Status: s.Outcome, ExecutionStarted: s.Generation != 0 && !s.Unexecuted}
	switch s.Outcome {
	case call.Indeterminate:
		r.Error = callError(fault.Indeterminate, "the runtime that made the call was lost; whether it was executed is not known")
	case call.Succeeded:
		r.Error = callError(fault.Unavailable, "the call was made, and its result got lost on the way; gatebus audit trace shows what is kept of it")
	default:
		r.Error = callError(cmp.Or(fault.Kind(s.Reason), fault.ExecutionFailed), "")
	}
	return r
}
