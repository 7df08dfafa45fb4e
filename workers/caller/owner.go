package caller

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// The verbs of the address of a connection.
const (
	verbCall      = "call"      // make a call
	verbResume    = "resume"    // what has become of an errand?
	verbCancel    = "cancel"    // the same, and its caller has left
	verbLeave     = "leave"     // a subscription has ended
	verbUpdated   = "updated"   // at the address of a runtime: a resource has changed
	verbArguments = "arguments" // of an approval that waits, as an operator may see them
)

// address is that of one opening of a connection: minted with it, and never
// taken over by another process (decision 20).
func address(key live.Key) string {
	return key.Connection + "-" + strconv.FormatUint(uint64(key.Generation), 10)
}

// Hold answers at the address of a connection that this process has opened, until
// stop. What was asked before goes on after it.
func (c *Caller) Hold(key live.Key) (stop func(), err error) {
	return c.Bus.ServeAddress(c.Workspace, address(key), func(ctx context.Context, verb string, data []byte, reply func([]byte) error) error {
		switch verb {
		case verbCall:
			return c.errand(ctx, key, data, reply)
		case verbResume, verbCancel:
			final, ok := c.errands.look(string(data), verb == verbCancel)
			switch {
			case !ok:
				return errNotHere
			case final == nil:
				return nil // it runs
			}
			return reply(final)
		case verbLeave:
			var u update
			if err := json.Unmarshal(data, &u); err != nil {
				return fault.New("call.owner", fault.InvalidRequest, redact.Static("another runtime sent what this one does not understand"))
			}
			if conn := c.Pool.Get(key); conn != nil {
				c.unwatch(ctx, conn, u.ID, u.URI)
			}
			return nil
		case verbArguments:
			return reply([]byte(c.shownHere(string(data)).String()))
		}
		return fault.New("call.owner", fault.UnknownMethod, redact.Name("no verb of a connection: "+verb))
	})
}

// errNotHere says that nothing was started and nothing will be: the connection is
// not at the process that was asked.
var errNotHere error = fault.New("call.owner", fault.RuntimeNotLive, redact.Static("the connection is not here"))

// errand makes a call that another process was asked for, as if it had been asked
// for here, and says what becomes of it.
func (c *Caller) errand(ctx context.Context, key live.Key, data []byte, reply func([]byte) error) error {
	var f forwarded
	params, err := unpack(data, &f)
	if err != nil {
		return err
	}
	ctx, end, ok := c.errands.begin(ctx, f.Errand)
	if !ok {
		return errNotHere // who asked has given it up
	}
	var final []byte
	defer func() { end(final) }()
	if err := c.Bus.Reached(ctx, f.Known); err != nil {
		return err
	}
	if c.Pool.Get(key) == nil {
		return errNotHere
	}
	say := func(m message, raw []byte) {
		if data, err := pack(m, raw); err == nil {
			_ = reply(data) // who does not hear it asks again
		}
	}
	q := Request{
		Turn: f.Turn, Name: f.Name, Method: f.Method, Subject: f.Subject, Params: redact.NewRaw(params), Wait: time.Duration(f.WaitMS) * time.Millisecond, Call: f.Call,
		Input:     f.Input,
		OnPending: func(approval string) { say(message{Approval: approval}, nil) },
	}
	if f.Notify {
		q.Notify = func(n live.Notice) { say(message{Raw: n.Method}, n.Params) }
	}
	if f.Watch != nil {
		q.Watch = &Watch{ID: f.Watch.ID, URI: f.Watch.URI, Updated: c.tells(f.Asker, key, *f.Watch)}
	}
	a := &attempt{
		Caller: c, Request: q, id: client.Identity{Workspace: c.Workspace, Principal: f.Principal, Actor: f.Actor},
		became: func(call string) { say(message{Call: call}, nil) },
	}
	defer a.leave()
	r, err := a.call(ctx)
	if err != nil {
		return err
	}
	if final, err = packReply(r); err != nil {
		return err
	}
	if err := reply(final); !fault.Is(err, fault.FrameTooLarge) {
		return nil // who did not hear it asks what became of the errand
	}
	// The log has the view of it that is kept.
	r.Result, r.Text, r.Error = nil, "", callError(fault.FrameTooLarge, "the result is too large to be handed on by the runtime that made the call")
	if final, err = packReply(r); err != nil {
		return err
	}
	return reply(final)
}

const (
	// maxErrands and maxFinals bound the errands that are remembered after their
	// end, and the bytes of what was said last.
	maxErrands = 4096
	maxFinals  = 16 << 20
)

// errands are the calls that other processes asked for. Those that ended are
// remembered for a while, as a message can get lost; so are those that were given
// up before they came, which are not to be begun any more.
type errands struct {
	mu    sync.Mutex
	byID  map[string]*errand
	ended []string // oldest first
	bytes int      // of the finals
}

type errand struct {
	cancel context.CancelFunc // nil when it has ended, or was given up
	final  []byte             // nil when it was given up
}

// begin takes on an errand; end is to be called with what was said last, nil when
// nothing was.
func (e *errands) begin(ctx context.Context, id string) (_ context.Context, end func(final []byte), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byID[id] != nil {
		return nil, nil, false
	}
	if e.byID == nil {
		e.byID = map[string]*errand{}
	}
	ctx, cancel := context.WithCancel(ctx)
	e.byID[id] = &errand{cancel: cancel}
	return ctx, func(final []byte) {
		cancel()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.remember(id, &errand{final: final})
	}, true
}

// look says what has become of an errand: final is what was said last, nil while
// it runs. One that did not come is given up, and ok is false.
func (e *errands) look(id string, cancel bool) (final []byte, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.byID[id]
	switch {
	case at == nil:
		if e.byID == nil {
			e.byID = map[string]*errand{}
		}
		e.remember(id, &errand{})
		return nil, false
	case at.cancel == nil:
		return at.final, at.final != nil
	case cancel:
		at.cancel()
	}
	return nil, true
}

func (e *errands) remember(id string, at *errand) {
	e.byID[id] = at
	e.ended = append(e.ended, id)
	e.bytes += len(at.final)
	for len(e.ended) > maxErrands || e.bytes > maxFinals && len(e.ended) > 1 {
		oldest := e.ended[0]
		e.ended = e.ended[1:]
		e.bytes -= len(e.byID[oldest].final)
		delete(e.byID, oldest)
	}
}
