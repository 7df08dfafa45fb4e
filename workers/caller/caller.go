// Package caller makes authorised tool calls, and other requests to servers, each
// at most once. What is no tools/call walks the same way without an approval and
// without a slot of its connection. A result that asks the client for input is the
// outcome of its call, and the same request with the input is another one.
//
// A call is made by the process that owns the connection of its tool (decision
// 21). There it is made here; asked for elsewhere, it is forwarded to the address
// of the connection, and what comes back is passed on.
//
// The walk of a call (R196): binding → capability → limits and arguments →
// approval → start → effect → redaction → finish. Up to the start everything is
// decided by package call in one commit; the effect happens only after that
// commit, and its outcome is the second one. Raw arguments are in the memory of
// this process and nowhere else (R118, R210).
//
// What a server of the handshake era asks its client walks likewise, the other way:
// on the private connection of one attachment, under a capability of its own, and
// nothing of its content is kept (decision 3). In either era it is judged by package
// inquiry first.
package caller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/turn"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/workers/live"
)

// endPatience bounds the wait for the record that a connection has ended. A server
// that closed its output and does not leave has a little longer.
const endPatience = 2 * time.Second

// Config is what a Caller needs. All fields are required but MaxArguments, URLs, Health,
// and Hosts where no client is asked.
type Config struct {
	Bus       *bus.Bus
	Model     *bus.Model
	Approvals *approvals.Projection
	// Caught waits until the projections have applied what the bus has appended.
	Caught func(context.Context) error
	Pool   *live.Pool
	// Workspace is that of the home, whose id is Home.
	Workspace, Home string
	// Runtime is the id of this process. Alive reports whether a runtime of the home
	// lives by the log, Valid says why this one may begin nothing: its peers may
	// have given it up.
	Runtime string
	Alive   func(runtime string) bool
	Valid   func() error
	// ArgumentKey makes argument digests worthless to who does not have it.
	ArgumentKey []byte
	// MaxArguments bounds the arguments in bytes; 0 is 1 MiB (decision 25).
	MaxArguments int
	// Hosts are the clients that servers may ask.
	Hosts Hosts
	// URLs says where a server may send the people of a client.
	URLs urlpolicy.Policy
	// Health is told whether a server took a request over an opening that goes on (R171);
	// nil is nobody.
	Health func(key live.Key, err error)
}

// Caller makes tool calls. It is safe for concurrent use.
type Caller struct {
	Config
	turns   turns
	errands errands
	told    told

	mu sync.Mutex
	// shown holds the operator view of the arguments of calls that wait for a
	// person, by approval id. It is in no log and gone with the process.
	shown map[string]shown
	// asking serialises requests for the same call, so that equal calls at once
	// share one approval (R61).
	asking     map[approvals.Binding]chan struct{}
	unrecorded []ended // outcomes that the log has not taken yet
	// watches are the subscriptions that this process has asked for, by their ids.
	watches map[string]*watch

	hearing sync.Mutex // guards heard: others can tell this process of updates
	heard   bool
}

// New makes a Caller.
func New(c Config) *Caller {
	if c.MaxArguments == 0 {
		c.MaxArguments = 1 << 20
	}
	return &Caller{
		Config: c,
		turns:  turns{bus: c.Bus, byBlob: map[string]bindings{}},
		shown:  map[string]shown{},
		asking: map[approvals.Binding]chan struct{}{}, watches: map[string]*watch{},
	}
}

// Request is one call of a bound tool, or another request to a server of the turn.
type Request struct {
	Turn, Name string
	// Method is that of a request that is no tools/call: its Name is a server, its
	// Params go there as they are, and it asks no person: what a server lists was
	// approved with it. The principal needs what a call needs, and a policy that
	// denies calls denies it.
	Method string
	// Subject is the prompt, the URI or the template that a request with a Method is
	// about, as the server listed it; it is in the log.
	Subject string
	// Params is the params object as the client sent it.
	Params redact.Raw[[]byte]
	// Input is what the server may ask the client for with its result, a JSON object of
	// client capabilities; nil where the client would take such a result for the end.
	Input []byte
	// Wait is how long to wait for a person; raw arguments are dropped then.
	Wait time.Duration
	// Call is the id that the call is to have; empty mints one. A call that was made
	// under it before is not made again: its outcome is the reply.
	Call string
	// OnPending is called when a person is asked, Notify for each notice that the
	// server sends meanwhile, as the model may see it.
	OnPending func(approval string)
	Notify    func(live.Notice)
	// Watch is the subscription that a request is about whose Method is
	// resources/subscribe or resources/unsubscribe; else nil.
	Watch *Watch
}

// shown are the arguments of a call that waits.
type shown struct {
	call string
	view redact.OperatorText
}

func (c *Caller) shownHere(approval string) redact.OperatorText {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[approval].view
}

// Arguments is what an operator may see of the arguments of a call that waits for
// an approval: the process that holds them is asked, if it is another one. It is
// empty where they are gone.
func (c *Caller) Arguments(ctx context.Context, call, approval string) string {
	if text := c.shownHere(approval).String(); text != "" {
		return text
	}
	s := c.Model.Connections.Get(c.Workspace, c.Model.Calls.Get(c.Workspace, call).Connection)
	if s.Phase != connection.Open || s.Runtime == c.Runtime {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, resumeEvery)
	defer cancel()
	var text string
	key := live.Key{Connection: s.ID(), Generation: s.Generation}
	_ = c.Bus.AskAddress(ctx, c.Workspace, address(key), verbArguments, []byte(approval), func(data []byte) error {
		text = string(data)
		return nil
	})
	return text
}

// Call makes the call. The error is not nil only where nothing could be decided;
// every decided outcome, denials included, is in the reply.
func (c *Caller) Call(ctx context.Context, id client.Identity, r Request) (client.CallReply, error) {
	a := &attempt{Caller: c, id: id, Request: r}
	defer a.leave()
	if r.Watch != nil {
		return a.watch(ctx)
	}
	return a.call(ctx)
}

// attempt is one request on its way.
type attempt struct {
	*Caller
	Request
	id    client.Identity
	reply client.CallReply
	// next is the id of the call that is made next; empty mints one.
	next string
	// became is set where another process asked: it is told of calls that were not
	// its own, and this one hands nothing on.
	became func(call string)

	heldAt  live.Key // where the subscription is that was asked for
	turn    turn.State
	binding turn.Binding
	bound   bool
	unbound *call.Refusal

	// attach sets these for the present opening of the connection.
	key     live.Key
	conn    *live.Conn          // nil when it is not live here
	release func()              // gives the slot of conn back; nil when we have none
	judged  *events.UrlDecision // on the next request to conn; nil where it is at no URL
	secrets *redact.Redactor    // knows the secrets of the server and of the arguments
	visible *redact.Redactor    // knows those that the model may not see either
	params  parsed
	view    redact.ArgumentView
	invalid *call.Refusal
}

// errMoved says that the connection was opened again since attach.
var errMoved = errors.New("caller: the connection is another opening now")

// call makes the call here, or where its connection is.
func (a *attempt) call(ctx context.Context) (client.CallReply, error) {
	if err := a.bind(ctx); err != nil {
		return client.CallReply{}, err
	}
	a.next = a.Request.Call
	var tried live.Key // nobody was there
	for {
		if key, runtime, ok := a.owner(); ok && key != tried {
			if a.became != nil {
				return client.CallReply{}, errNotHere
			}
			reply, err := a.forward(ctx, key, runtime)
			if err != errNotHere {
				return reply, err
			}
			if tried = key; ctx.Err() != nil {
				return client.CallReply{}, ctx.Err()
			}
			continue
		}
		again, err := a.run(ctx)
		if err != nil {
			return client.CallReply{}, err
		}
		if !again {
			a.ended(ctx)
			return a.reply, nil
		}
	}
}

// ended waits, where a call was not made because its connection is not live, until
// the log says so too, which it does in a moment. Who was told before and bound
// again would have the same connection once more.
func (a *attempt) ended(ctx context.Context) {
	e := a.reply.Error
	if !a.bound || e == nil || e.Kind != string(fault.RuntimeNotLive) || a.reply.ExecutionStarted || a.Valid() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	// What it says in the end is read by who binds.
	_, _ = a.Model.Connections.Wait(ctx, a.id.Workspace, a.binding.Connection, func(s connection.State) bool {
		return s.Phase != connection.Open || s.Generation != a.key.Generation || s.Runtime != a.Runtime
	})
}

// nextCall is the id of the call that is made next.
func (a *attempt) nextCall() string {
	if a.next == "" {
		a.next = "k-" + ulid.Make().String()
	}
	return a.next
}

// bind finds what the name is bound to. What is wrong with it becomes a refusal
// that is recorded.
func (a *attempt) bind(ctx context.Context) error {
	a.turn = a.Model.Turns.Get(a.id.Workspace, a.Turn)
	if a.turn.Principal != a.id.Principal {
		// A turn of somebody else is as good as none, and a text that names no turn
		// of ours does not enter the log.
		a.turn, a.Turn = turn.State{}, ""
	}
	if a.turn.Phase != turn.Bound || !a.Alive(a.turn.Runtime) {
		a.unbound = &call.Refusal{Reason: fault.TurnNotActive, Message: redact.Static("the turn is not active")}
		return nil
	}
	bound, err := a.turns.find(ctx, a.turn.Blob)
	if err != nil {
		return fault.Wrap("call.bind", fault.AuditUnavailable, redact.Static("the bindings of the turn cannot be read"), err)
	}
	names, missing := bound.tools, redact.Static("the turn has no tool of this name")
	if a.Method != "" {
		names, missing = bound.servers, redact.Static("the turn has no server of this name")
	}
	if a.binding, a.bound = names[a.Name]; !a.bound {
		a.unbound = &call.Refusal{Reason: fault.NotFound, Message: missing}
	}
	return nil
}

// attach takes the connection that is open now, with the secrets that its server
// was given: while a call waits, the connection may end and be opened again.
func (a *attempt) attach() {
	s := a.Model.Connections.Get(a.id.Workspace, a.binding.Connection)
	key := live.Key{Connection: a.binding.Connection, Generation: s.Generation}
	if a.conn != nil && key == a.key {
		return
	}
	a.leave()
	a.key, a.conn = key, a.Pool.Get(key)
	a.secrets = noSecrets
	if a.conn != nil {
		a.secrets = a.conn.Redactor()
	}
	a.visible = a.secrets
	a.arguments()
}

// noSecrets is the redactor of a server that is not there.
var noSecrets, _ = redact.NewRedactor() // fails for secrets only

// leave gives the slot of the connection back.
func (a *attempt) leave() {
	if a.release != nil {
		a.release()
		a.release = nil
	}
}

// arguments checks the arguments and makes the views and secrets of them (R198,
// R118). Secrets that cannot be derived stop the call (R122).
func (a *attempt) arguments() {
	refuse := func(kind fault.Kind, text redact.EventText) {
		a.invalid = &call.Refusal{Reason: kind, Message: text}
	}
	a.invalid = nil
	var err error
	if a.Method == "" {
		a.params, err = parseParams(a.Params)
	} else {
		a.params, err = plainParams(a.Params)
	}
	if err != nil {
		refuse(fault.InvalidArguments, redact.Static("the arguments are not a JSON object in which each member occurs once"))
		return
	}
	args := a.params.arguments
	if len(args.Reveal()) > a.MaxArguments {
		refuse(fault.ArgumentsTooLarge, redact.Static("the arguments are larger than allowed"))
		return
	}
	named, values, err := redact.ArgumentValues(args)
	if err == nil {
		a.secrets, err = a.secrets.With(named...)
	}
	if err == nil {
		a.visible = a.secrets
		a.secrets, err = a.secrets.WithStored(values...)
	}
	if err != nil {
		refuse(fault.RedactionFailed, redact.Static("the secrets in the arguments could not be told"))
		return
	}
	key := a.ArgumentKey
	if a.params.input {
		key = inputKey(key)
	}
	if a.view, err = a.secrets.Arguments(args, key); err != nil {
		refuse(fault.InvalidArguments, redact.Static("the arguments are not a JSON object in which each member occurs once"))
	}
}

// run takes the call from the request to its outcome. again says that somebody
// else used up what was waited for, or that the connection is another one, and
// the question is to be asked anew.
func (a *attempt) run(ctx context.Context) (again bool, err error) {
	a.attach()
	if a.conn != nil && a.release == nil && a.unbound == nil && a.invalid == nil {
		// Only where a slot is free: a call that may not start has no place in the
		// queue (R20), and what is no call needs no slot.
		if a.Method != "" {
			a.release = func() {}
		} else if release, ok := a.conn.TryAcquire(); ok {
			a.release = release
		}
	}
	if a.release != nil {
		a.judged = a.conn.Judge(ctx)
	}
	key, d, err := a.request(ctx)
	switch {
	case errors.Is(err, errMoved):
		return true, nil
	case errors.Is(err, errRecorded):
		a.reply, err = a.recorded(ctx, key)
		return false, err
	case err != nil:
		return false, err
	}
	a.next = ""
	a.reply = client.CallReply{Call: key}
	if s := d.State; s.Phase == call.Waiting {
		a.leave()
		a.pending(key, s.Approval)
		if s, err = a.await(ctx, key, s); err != nil {
			return false, err
		}
		d = bus.Decided[call.State]{State: s}
		if _, _, elsewhere := a.owner(); elsewhere && s.Phase == call.Allowed {
			return true, nil // its connection was opened again meanwhile, and not here
		}
	}
	if p := d.State.Phase; p == call.Allowed || p == call.Queued {
		d, err = a.start(ctx, key)
		switch {
		case fault.Is(err, fault.Conflict):
			d = bus.Decided[call.State]{State: a.Model.Calls.Get(a.id.Workspace, key)}
		case err != nil:
			return false, err
		}
	}
	switch s := d.State; {
	case s.Phase == call.Waiting:
		a.reply.Status = "approval_pending"
		a.reply.Approval = &client.ApprovalRef{ID: s.Approval, Expires: s.Expires}
		a.reply.Error = callError(fault.ApprovalPending, "the call waits for a person's approval")
	case started(d):
		a.effect(ctx, key, s)
	case startsCall(d.Events):
		a.reply = outcome(key, s)
	case len(d.Events) > 0, s.Outcome == call.Denied, s.Outcome == call.Invalid, s.Reason == string(fault.RuntimeClosed):
		a.refused(s)
	default:
		return true, nil // another retry started it, or gave it up (decision 9)
	}
	return false, nil
}

// started reports whether this very dispatch started the call: a call that some
// other one started has its effect already, and one that some other had refused
// before was not started by what came later.
func started(d bus.Decided[call.State]) bool {
	return d.State.Phase == call.Started && startsCall(d.Events)
}

func startsCall(happened []events.Event) bool {
	return slices.ContainsFunc(happened, func(e events.Event) bool { _, ok := e.(events.CallStarted); return ok })
}

// request dispatches the call to a new aggregate, or to the one that waits for
// the same thing.
func (a *attempt) request(ctx context.Context) (key string, d bus.Decided[call.State], err error) {
	ws := a.id.Workspace
	key = a.nextCall()
	retry := false
	if a.unbound == nil && a.invalid == nil && a.prompts() {
		binding := approvals.Binding{
			Workspace: ws, Principal: a.id.Principal, Session: a.turn.Session, Server: a.binding.Server, Tool: a.binding.Tool,
			DefinitionDigest: a.binding.Definition, ArgumentDigest: a.view.Digest,
		}
		unlock, err := a.askingOf(ctx, binding)
		if err != nil {
			return "", d, err
		}
		defer unlock()
		if err := a.Caught(ctx); err != nil {
			return "", d, err
		}
		if open, ok := a.Approvals.OpenCall(binding); ok {
			switch s := a.Model.Calls.Get(ws, open); s.Phase {
			case call.Allowed:
				a.tell(open)
				return open, bus.Decided[call.State]{State: s}, nil
			case call.Waiting:
				key, retry = open, true
				a.tell(open)
			}
		}
	}
	meta := a.meta(key)
	d, err = a.Model.Calls.DispatchWith(ctx, ws, key, meta, a.with(), func() (call.Command, error) {
		facts, err := a.facts(meta.Time)
		if err != nil {
			return nil, err
		}
		policies := a.Model.Policies.Get(ws, ws)
		session, _ := a.Approvals.SessionApproval(ws, a.id.Principal, a.turn.Session, a.binding.Fingerprint,
			a.binding.Tool, a.binding.Definition, policies.Seq, meta.Time)
		return call.Request{
			Facts: facts,
			Requested: events.CallRequested{
				Session: a.turn.Session, Turn: a.Turn, Connection: a.binding.Connection, Server: a.binding.Server,
				Tool: a.binding.Tool, Callable: a.callable(), Fingerprint: a.binding.Fingerprint,
				DefinitionDigest: a.binding.Definition, Capability: a.binding.Capability, Risk: a.binding.Risk,
				Policy: string(a.policy()), ArgumentKeys: a.view.Keys, ArgumentDigest: a.view.Digest,
				ArgumentBytes: uint32(a.view.Bytes), Arguments: a.view.Event, Method: a.Method,
			},
			Unbound: a.unbound, Invalid: a.invalid, Ready: a.release != nil,
			SessionApproval: session, Approval: "a-" + ulid.Make().String(),
			Preview: a.view.Event, PreviewDigest: a.view.Digest, Interactive: policies.Interactive(),
		}, nil
	})
	switch {
	case !fault.Is(err, fault.Conflict):
		return key, d, err
	case retry:
		// It was answered in this moment.
		return key, bus.Decided[call.State]{State: a.Model.Calls.Get(ws, key)}, nil
	}
	return key, d, errRecorded // the id was used before
}

// tell says which call it has become.
func (a *attempt) tell(key string) {
	if a.became != nil {
		a.became(key)
	}
}

// prompts reports whether the policy may ask a person.
func (a *attempt) prompts() bool { return a.policy() == authority.Prompt }

// policy is the effective call policy: what the declaration and every level of
// the policy say, the strictest (R52).
func (a *attempt) policy() authority.Policy {
	p := authority.CallPolicy(authority.Policy(a.binding.Policy), authority.Subject{
		Server: a.binding.Server, Tool: a.binding.Tool, Capability: a.binding.Capability, Risk: authority.Risk(a.binding.Risk),
	}, a.Model.Policies.Get(a.id.Workspace, a.id.Workspace).Rules(a.binding.Server)...)
	if a.Method != "" && p == authority.Prompt {
		return authority.Auto
	}
	return p
}

// callable is the name that the model used, where it could be one of ours.
func (a *attempt) callable() string {
	switch {
	case a.Method != "":
		return redact.Name(a.Subject).String()
	case a.bound:
		return a.Name
	}
	return redact.Name(a.Name).String()
}

// askingOf makes equal requests wait for each other.
func (a *attempt) askingOf(ctx context.Context, b approvals.Binding) (unlock func(), err error) {
	for {
		a.mu.Lock()
		busy, taken := a.asking[b]
		if !taken {
			done := make(chan struct{})
			a.asking[b] = done
			a.mu.Unlock()
			return func() {
				a.mu.Lock()
				delete(a.asking, b)
				a.mu.Unlock()
				close(done)
			}, nil
		}
		a.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// meta is the envelope of the call's commits.
func (a *attempt) meta(key string) bus.Meta {
	return bus.Meta{
		Correlation: key, Actor: a.id.Actor, Principal: a.id.Principal, Time: time.Now(),
		Scope: events.Scope{
			Session: a.turn.Session, Turn: a.Turn, Connection: a.binding.Connection, Call: key, Server: a.binding.Server,
		},
	}
}

// with names what a start rests on: nothing of it changes between the decision
// and the append, so a revoke's reply precedes or follows the whole start
// (decision 16). The expected sequence is the connection's, so that the owner of
// an older opening cannot start (decision 20). A refusal is expected on the boundary
// of the call: who is asked for it too may have started it.
func (a *attempt) with() bus.With {
	with := bus.With{Reads: bus.AuthorityReads(a.id.Workspace, a.id.Principal)}
	if a.bound {
		with.Fence = events.AggregateID{Kind: events.KindConnection, Key: a.binding.Connection}
		with.Fenced = startsCall
	}
	return with
}

// facts are what a start rests on. The opening must be the one that we attached
// to, for the slot and the secrets are its; and one that this process does not
// hold is not live, whatever the log says still.
func (a *attempt) facts(at time.Time) (call.Facts, error) {
	m := a.Model
	s := m.Connections.Get(a.id.Workspace, a.binding.Connection)
	if s.Generation != a.key.Generation {
		return call.Facts{}, errMoved
	}
	f := call.Facts{
		Authority:      m.Authority(a.id.Workspace, a.id.Principal),
		PolicySequence: m.Policies.Get(a.id.Workspace, a.id.Workspace).Seq,
		Connection:     s, Runtime: a.Runtime, Timeout: a.timeout(), At: at,
	}
	if a.conn == nil {
		f.Connection.Phase = connection.Lost
	} else {
		f.URL = a.judged
	}
	return f, nil
}

func (a *attempt) timeout() time.Duration {
	return time.Duration(a.binding.TimeoutMS) * time.Millisecond
}

// pending shows what waits to who may answer and to the caller.
func (a *attempt) pending(key, approval string) {
	a.mu.Lock()
	a.shown[approval] = shown{key, a.view.Operator()}
	a.mu.Unlock()
	if a.OnPending != nil {
		a.OnPending(approval)
	}
}

// await waits for a person's word, at most Wait. The state is still Waiting when
// there was none.
func (a *attempt) await(ctx context.Context, key string, s call.State) (call.State, error) {
	if a.Wait <= 0 {
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, a.Wait)
	defer cancel()
	state, err := a.Model.Calls.Wait(waiting, a.id.Workspace, key, func(s call.State) bool { return s.Phase != call.Waiting })
	switch {
	case err == nil:
		return state, nil
	case ctx.Err() != nil:
		return s, ctx.Err()
	}
	return s, nil
}

// start begins a call that was allowed or queued, once the connection has a slot
// for it.
func (a *attempt) start(ctx context.Context, key string) (d bus.Decided[call.State], err error) {
	queue, cancel := context.WithTimeout(ctx, a.timeout())
	defer cancel()
	for {
		a.attach()
		if a.conn != nil && a.release == nil && a.Method == "" {
			a.release, err = a.conn.Acquire(queue)
		}
		if err == nil {
			if a.judged = nil; a.conn != nil {
				a.judged = a.conn.Judge(queue)
			}
			meta := a.meta(key)
			d, err = a.Model.Calls.DispatchWith(queue, a.id.Workspace, key, meta, a.with(), func() (call.Command, error) {
				facts, err := a.facts(meta.Time)
				return call.Start{Facts: facts, ArgumentDigest: a.view.Digest}, err
			})
		}
		var lost *live.ErrLost
		switch {
		case errors.Is(err, errMoved), errors.As(err, &lost) && a.moved():
			err = nil
			continue
		case lost != nil:
			return a.abandon(ctx, key, call.Abandon{Outcome: call.Invalid, Reason: fault.RuntimeNotLive})
		case err != nil && stopped(ctx):
			return a.abandon(ctx, key, call.Abandon{Outcome: call.Cancelled, Reason: fault.RuntimeClosed})
		case err != nil && ctx.Err() != nil:
			return a.abandon(ctx, key, call.Abandon{Outcome: call.Cancelled})
		case err != nil && queue.Err() != nil:
			return a.abandon(ctx, key, call.Abandon{Outcome: call.TimedOut})
		}
		return d, err
	}
}

// moved reports whether the connection was opened again since attach.
func (a *attempt) moved() bool {
	return a.Model.Connections.Get(a.id.Workspace, a.binding.Connection).Generation != a.key.Generation
}

// abandon ends a call that was not started, also when the caller is gone.
func (a *attempt) abandon(ctx context.Context, key string, cmd call.Abandon) (bus.Decided[call.State], error) {
	return a.Model.Calls.Dispatch(context.WithoutCancel(ctx), a.id.Workspace, key, a.meta(key), cmd)
}

// refused fills the reply of a call that was not started.
func (a *attempt) refused(s call.State) {
	a.reply.Status = s.Outcome
	kind, text := fault.Kind(s.Reason), ""
	for _, r := range []*call.Refusal{a.unbound, a.invalid} {
		if r != nil && r.Reason == kind {
			text = r.Message.String()
		}
	}
	if kind == fault.URLBlocked && a.judged != nil {
		text = call.NotContacted(*a.judged).String()
	}
	a.reply.Error = callError(kind, text)
}

// callError makes the error of a reply; without a text it is the meaning of the
// kind.
func callError(kind fault.Kind, text string) *client.CallError {
	entry, _ := fault.Lookup(kind)
	return &client.CallError{Kind: string(kind), Code: entry.Code(), Message: cmp.Or(text, entry.Meaning)}
}
