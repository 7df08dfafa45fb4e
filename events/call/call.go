// Package call decides the life of one tool call: whether it may start, and that
// it starts at most once.
//
// The start is an event before the first byte leaves (R195, R209). A call that
// started and has no outcome after a crash becomes indeterminate; it is never
// repeated. An approval is an event of the call that waits and is spent by the
// very append that starts it, so no two workers and no replay can spend it
// twice (decision 9).
package call

import (
	"cmp"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// Times of decisions 7 and 10.
const (
	// ApprovalTTL is how long a call approval waits.
	ApprovalTTL = 15 * time.Minute
	// SessionTTL is how long an approval for the session holds.
	SessionTTL = 8 * time.Hour
)

// Action is what a person approves here.
const Action = "mcp.call"

// Kinds of approval (decision 7).
const (
	Once    = "once"
	Session = "session"
)

// The closed set of outcomes (R129).
const (
	Succeeded     = "succeeded"
	Denied        = "denied"
	Invalid       = "invalid"
	NotFound      = "not_found"
	StatusFailed  = "failed"
	TimedOut      = "timed_out"
	Cancelled     = "cancelled"
	Indeterminate = "indeterminate"
)

// What the catalog of its server has become since a call was bound (R203).
const (
	DriftCatalog = "catalog" // it differs, and not in the tool
	DriftTool    = "tool"    // the definition of the tool is another one
	DriftGone    = "gone"    // the tool is there no more
)

// Drift says what the catalog of a connection has become since a turn was bound, from
// which a call has the version of the catalog, the tool and its definition; what is no
// tools/call has no tool. It is empty where the catalog is the same, or where nobody
// knows what it is now.
func Drift(catalog, tool, definition string, now connection.State) string {
	if now.Phase != connection.Open || now.Catalog == catalog {
		return ""
	}
	switch digest, there := now.Current[tool]; {
	case tool == "":
	case !there:
		return DriftGone
	case digest != definition:
		return DriftTool
	}
	return DriftCatalog
}

// Phase is where a call is in its life.
type Phase string

// The phases of a call.
const (
	None    Phase = ""
	Waiting Phase = "waiting" // for a person
	Allowed Phase = "allowed" // a person said yes, not started
	Queued  Phase = "queued"  // authorized, waits for a slot of its connection
	Started Phase = "started"
	Done    Phase = "done"
)

// State is what the decider reads of one call.
type State struct {
	Phase Phase
	// What the call is bound to.
	Session, Server, Tool, Fingerprint, DefinitionDigest, ArgumentDigest string
	Capability, Policy                                                   string
	// Method is that of a request that is no tools/call.
	Method         string
	PolicySequence uint32
	// Approval is the one that waits or was given; Expires is its end.
	Approval string
	Expires  time.Time
	// Runtime, Connection and Generation own the effect.
	Runtime, Connection string
	Generation          uint32
	// Outcome is one of the closed set once Phase is Done; Reason says why.
	Outcome, Reason string
	EndedAt         time.Time
	// Unexecuted says of one that was started that the server certainly did not begin it.
	Unexecuted bool
}

// Command is a request to change a call.
type Command interface{ command() }

// Facts are what a start rests on, read under the locks of their aggregates.
type Facts struct {
	Authority      authority.Snapshot
	PolicySequence uint32
	// Connection is the state of the connection the tool is bound to.
	Connection connection.State
	// Runtime is the process that would do the effect.
	Runtime string
	Timeout time.Duration
	At      time.Time
	// URL is what was decided on the request to a server behind HTTP (R96), or on the
	// page that a server asks a person to open; nil for any other one. Where it is a
	// no, the call does not start.
	URL *events.UrlDecision
}

// Refusal is the outcome of a check that needs no authority: an unknown or stale
// binding, arguments that are no object or too large.
type Refusal struct {
	Reason  fault.Kind
	Message redact.EventText
}

// Request asks for a call and starts it where nobody needs to be asked.
type Request struct {
	Facts
	Requested events.CallRequested
	// Unbound refuses before authority is looked at, Invalid after (R196).
	Unbound, Invalid *Refusal
	// Ready says that a slot of the connection is in hand; without it a call that
	// may start is queued.
	Ready bool
	// SessionApproval is an approval for the session that is in force.
	SessionApproval string
	// Approval is the id of the approval that may have to be asked for, Preview
	// what a person is shown.
	Approval      string
	Preview       redact.EventText
	PreviewDigest string
	// Interactive says that there is somebody to ask (R55).
	Interactive bool
}

// Answer is a person's word on the approval. It is void where the principal may
// not call any more.
type Answer struct {
	Authority authority.Snapshot
	Approval  string
	Allow     bool
	// Session lets the yes stand for the session (R61).
	Session bool
	By      string
	Channel string
	Note    redact.EventText
	At      time.Time
}

// Expire ends an approval whose time is over; silence is a denial.
type Expire struct{ At time.Time }

// Withdraw ends an approval whose principal may not call any more, so that nobody is
// asked for nothing, and no yes waits for whoever has the name next.
type Withdraw struct {
	Authority authority.Snapshot
	At        time.Time
}

// Start begins a call that was allowed by a person or queued. ArgumentDigest is
// that of the arguments at hand: they must be the ones that were approved.
type Start struct {
	Facts
	ArgumentDigest string
}

// Abandon ends a call that never started: its time was over in the queue, the
// caller went away, or the connection did. Reason is empty where the outcome says
// it all.
type Abandon struct {
	Outcome string
	Reason  fault.Kind
}

// Finish records the outcome of the effect.
type Finish struct {
	Generation uint32
	// URLs are the decisions on what the server asks for with its result.
	URLs []events.UrlDecision
	// Exactly one of them is set.
	Succeeded *events.CallSucceeded
	Failed    *events.CallFailed
	// Unknown is set where nobody knows whether it was executed.
	Unknown fault.Kind
}

// Late records an answer that came after the outcome was decided.
type Late struct{ Late events.CallLateResult }

// Reap says that a runtime is gone: a call that it had started or queued is closed
// (R172). Calls of any other one go on.
type Reap struct{ Runtime string }

func (Request) command()  {}
func (Answer) command()   {}
func (Expire) command()   {}
func (Withdraw) command() {}
func (Start) command()    {}
func (Abandon) command()  {}
func (Finish) command()   {}
func (Late) command()     {}
func (Reap) command()     {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Request:
		return request(s, c)
	case Answer:
		return answer(s, c)
	case Expire:
		if s.Phase != Waiting && s.Phase != Allowed || s.Expires.IsZero() || c.At.Before(s.Expires) {
			return nil, nil
		}
		return expired(s), nil
	case Withdraw:
		if !s.Withheld(c.Authority, c.At) {
			return nil, nil
		}
		return withdrawn(s), nil
	case Start:
		return start(s, c)
	case Abandon:
		if s.Phase != Queued && s.Phase != Allowed {
			return nil, nil
		}
		return []events.Event{events.CallFailed{Status: c.Outcome, Reason: cmp.Or(string(c.Reason), c.Outcome)}}, nil
	case Finish:
		if s.Phase != Started || s.Generation != c.Generation {
			return nil, fault.New("call.finish", fault.Conflict, redact.Static("the call is not running in this opening of the connection"))
		}
		var out []events.Event
		for _, v := range c.URLs {
			out = append(out, v)
		}
		switch {
		case c.Succeeded != nil:
			return append(out, *c.Succeeded), nil
		case c.Failed != nil:
			return append(out, *c.Failed), nil
		}
		return append(out, s.indeterminate(string(c.Unknown))), nil
	case Late:
		if s.Phase != Done || s.Generation == 0 {
			return nil, fault.New("call.late", fault.Conflict, redact.Static("the call has no outcome yet, or never started"))
		}
		return []events.Event{c.Late}, nil
	case Reap:
		if s.Runtime != c.Runtime {
			return nil, nil
		}
		switch s.Phase {
		case Started:
			return []events.Event{s.indeterminate("runtime_lost")}, nil
		case Queued:
			// Its arguments were in the memory of the runtime that is gone.
			return []events.Event{events.CallFailed{Status: Cancelled, Reason: string(fault.RuntimeClosed)}}, nil
		}
		return nil, nil
	}
	return nil, nil
}

func (s State) indeterminate(reason string) events.CallIndeterminate {
	return events.CallIndeterminate{Reason: reason, Runtime: s.Runtime, Generation: s.Generation}
}

func blocked(kind fault.Kind, message redact.EventText) events.CallBlocked {
	return events.CallBlocked{Reason: string(kind), Message: message}
}

func request(s State, c Request) ([]events.Event, error) {
	switch s.Phase {
	case None:
	case Waiting:
		// A retry while the question is open waits for the same answer, unless its
		// time is over, which is decided here without waiting for the sweeper.
		if c.At.Before(s.Expires) {
			return nil, nil
		}
		return expired(s), nil
	default:
		return nil, fault.New("call.request", fault.Conflict, redact.Static("the call was answered already"))
	}

	out := []events.Event{c.Requested}
	if c.Unbound != nil {
		return append(out, blocked(c.Unbound.Reason, c.Unbound.Message)), nil
	}
	if no := c.Facts.permit(c.Requested.Server, c.Requested.Capability); no != nil {
		return append(out, *no), nil
	}
	if c.Invalid != nil {
		return append(out, blocked(c.Invalid.Reason, c.Invalid.Message)), nil
	}
	bound := c.Requested
	if no := c.Facts.live(bound.Connection, bound.Method, bound.Tool, bound.Fingerprint, bound.DefinitionDigest); no != nil {
		return append(out, *no), nil
	}

	decided := events.ApprovalDecided{Decision: "allow", Kind: Once, By: "policy", Automatic: true}
	switch policy := authority.Policy(c.Requested.Policy); {
	case policy == authority.Deny, policy != authority.Auto && c.SessionApproval == "" && !c.Interactive:
		decided.Decision = "deny"
		return append(out, decided, blocked(fault.ApprovalDenied, redact.Static("policy denies the call"))), nil
	case policy == authority.Auto:
	case c.SessionApproval != "":
		decided = events.ApprovalDecided{
			Approval: c.SessionApproval, Decision: "allow", Kind: Session, By: "approval", Automatic: true, Cached: true,
		}
	default:
		r := c.Requested
		return append(out, events.ApprovalRequested{
			Approval: c.Approval, Action: Action, Target: r.Server + "/" + r.Tool, Server: r.Server, Tool: r.Tool,
			Risk: r.Risk, Policy: r.Policy, Preview: c.Preview, PreviewDigest: c.PreviewDigest, Fingerprint: r.Fingerprint,
			DefinitionDigest: r.DefinitionDigest, ArgumentDigest: r.ArgumentDigest, PolicySequence: c.PolicySequence,
			Expires: c.At.Add(ApprovalTTL).UTC().Format(time.RFC3339Nano),
		}), nil
	}
	out = append(out, decided)
	if !c.Ready {
		return append(out, events.CallQueued{
			WaitsFor: "connection", Runtime: c.Runtime, PolicySequence: c.PolicySequence,
		}), nil
	}
	return append(out, c.Facts.started(c.Requested.Capability, c.Requested.Policy, decided.Approval)...), nil
}

// permit checks that the principal may connect to the server and call the tool
// (R50, R58): having a name, a connection or an approval grants nothing (R47).
func (f Facts) permit(server, capability string) *events.CallBlocked {
	if server == "" || capability == "" ||
		!f.Authority.Allows(connection.Capability(server), f.At) || !f.Authority.Allows(capability, f.At) {
		b := blocked(fault.CapabilityDenied, redact.Static("the principal lacks the capability"))
		return &b
	}
	return nil
}

// live checks that what the call is bound to is what the connection has now, and
// that the connection is the bound one and the principal's own, or that of an installed
// server, which is everybody's who may (R145 to R147, R197, C1). What is no tools/call has no definition that could have changed.
func (f Facts) live(id, method, tool, fingerprint, definition string) *events.CallBlocked {
	var b events.CallBlocked
	c := f.Connection
	switch {
	case c.Phase != connection.Open || c.Runtime != f.Runtime:
		b = blocked(fault.RuntimeNotLive, redact.Static("the server is not connected"))
	case c.ID() != id || c.Principal != f.Authority.Principal && !c.Installed():
		b = blocked(fault.BindingMismatch, redact.Static("the tool is bound to another connection"))
	case c.Fingerprint != fingerprint:
		b = blocked(fault.BindingMismatch, redact.Static("the server was declared anew since the turn was bound"))
	case method != "": // names no tool
		return nil
	case c.Blocked[tool]:
		b = blocked(fault.ToolChanged, redact.Static("the tool came or changed after its server was approved"))
	case c.Current[tool] != definition:
		b = blocked(fault.ToolDrift, redact.Static("the tool changed since the turn was bound"))
	default:
		return nil
	}
	return &b
}

// NotContacted says why a call did not start.
func NotContacted(v events.UrlDecision) redact.EventText {
	if v.Phase == urlpolicy.PhaseElicitation {
		return redact.Name("nobody may be sent to the URL: " + v.Reason)
	}
	return redact.Name("the server may not be contacted: " + v.Reason)
}

func (f Facts) started(capability, policy, approval string) []events.Event {
	if f.URL != nil && !f.URL.Allowed {
		return []events.Event{*f.URL, blocked(fault.URLBlocked, NotContacted(*f.URL))}
	}
	out := []events.Event{events.CallAuthorized{
		Capability: capability, Policy: policy, AuthoritySequence: uint32(f.Authority.Seq), PolicySequence: f.PolicySequence,
		CatalogSequence: f.Connection.CatalogSequence, Approval: approval,
	}}
	if f.URL != nil {
		out = append(out, *f.URL)
	}
	return append(out, events.CallStarted{
		Runtime: f.Runtime, Connection: f.Connection.ID(),
		Generation: f.Connection.Generation, TimeoutMs: uint32(f.Timeout.Milliseconds()),
	})
}

func start(s State, c Start) ([]events.Event, error) {
	f := c.Facts
	switch s.Phase {
	case Allowed:
		if !f.At.Before(s.Expires) {
			return expired(s), nil
		}
	case Queued:
	default:
		return nil, fault.New("call.start", fault.Conflict, redact.Static("the call is not waiting to start"))
	}
	if c.ArgumentDigest != s.ArgumentDigest {
		return nil, fault.New("call.start", fault.BindingMismatch, redact.Static("the arguments are not those of the call"))
	}
	if f.PolicySequence != s.PolicySequence {
		return []events.Event{blocked(fault.ApprovalDenied, redact.Static("the policy changed after the call was allowed"))}, nil
	}
	if no := f.permit(s.Server, s.Capability); no != nil {
		return []events.Event{*no}, nil
	}
	if no := f.live(s.Connection, s.Method, s.Tool, s.Fingerprint, s.DefinitionDigest); no != nil {
		return []events.Event{*no}, nil
	}
	return f.started(s.Capability, s.Policy, s.Approval), nil
}

func answer(s State, c Answer) ([]events.Event, error) {
	if s.Phase != Waiting || s.Approval != c.Approval {
		return nil, fault.New("approval.decide", fault.Conflict, redact.Static("the approval was answered already or has expired"))
	}
	if !c.At.Before(s.Expires) {
		return expired(s), nil
	}
	if s.Withheld(c.Authority, c.At) {
		return withdrawn(s), nil
	}
	decided := events.ApprovalDecided{
		Approval: c.Approval, Decision: "allow", Kind: Once, By: c.By, Channel: c.Channel, Note: c.Note,
	}
	switch {
	case !c.Allow:
		decided.Decision = "deny"
		return []events.Event{decided, blocked(fault.ApprovalDenied, redact.Static("a person denied the call"))}, nil
	case c.Session:
		decided.Kind, decided.Until = Session, c.At.Add(SessionTTL).UTC().Format(time.RFC3339Nano)
	}
	return []events.Event{decided}, nil
}

func expired(s State) []events.Event {
	return []events.Event{
		events.ApprovalExpired{Approval: s.Approval},
		blocked(fault.ApprovalExpired, redact.Static("nobody answered the approval in time")),
	}
}

// Withheld reports whether the call waits, for a person or for its retry, without
// the right to be made.
func (s State) Withheld(a authority.Snapshot, at time.Time) bool {
	return (s.Phase == Waiting || s.Phase == Allowed) && Facts{Authority: a, At: at}.permit(s.Server, s.Capability) != nil
}

func withdrawn(s State) []events.Event {
	return []events.Event{
		events.ApprovalExpired{Approval: s.Approval},
		blocked(fault.CapabilityDenied, redact.Static("the principal lost the capability")),
	}
}

// Evolve folds one event. What has ended stays as it ended: two runtimes can be
// asked for the same call, and what the second one appends comes too late.
func Evolve(s State, r events.Recorded) State {
	if s.Phase == Done {
		return s
	}
	switch e := r.Event.(type) {
	case events.CallRequested:
		s.Session, s.Server, s.Tool, s.Fingerprint = e.Session, e.Server, e.Tool, e.Fingerprint
		s.DefinitionDigest, s.ArgumentDigest, s.Connection = e.DefinitionDigest, e.ArgumentDigest, e.Connection
		s.Capability, s.Policy, s.Method = e.Capability, e.Policy, e.Method
	case events.ApprovalRequested:
		s.Phase, s.Approval, s.PolicySequence = Waiting, e.Approval, e.PolicySequence
		s.Expires, _ = time.Parse(time.RFC3339Nano, e.Expires)
	case events.ApprovalDecided:
		if e.Decision != "allow" {
			break
		}
		// An automatic yes is followed by its start or its place in the queue.
		if !e.Automatic {
			s.Phase = Allowed
		}
		s.Approval = e.Approval
	case events.CallQueued:
		s.Phase, s.Runtime, s.PolicySequence = Queued, e.Runtime, e.PolicySequence
	case events.CallStarted:
		s.Phase, s.Runtime, s.Connection, s.Generation = Started, e.Runtime, e.Connection, e.Generation
	case events.CallBlocked:
		s = s.done(blockedOutcome(fault.Kind(e.Reason)), e.Reason, r.Time)
	case events.CallSucceeded:
		s = s.done(e.Status, "", r.Time)
	case events.CallFailed:
		s = s.done(e.Status, e.Reason, r.Time)
		s.Unexecuted = s.Generation != 0 && !e.ExecutionStarted
	case events.CallIndeterminate:
		s = s.done(Indeterminate, e.Reason, r.Time)
	}
	return s
}

func (s State) done(outcome, reason string, at time.Time) State {
	s.Phase, s.Outcome, s.Reason, s.EndedAt = Done, outcome, reason, at
	return s
}

// blockedOutcome is the outcome of a call that a check refused (R129).
func blockedOutcome(reason fault.Kind) string {
	switch reason {
	case fault.CapabilityDenied, fault.ApprovalDenied, fault.ApprovalExpired:
		return Denied
	case fault.NotFound, fault.ToolUnbound:
		return NotFound
	}
	return Invalid // not started
}

// Over reports when the call ended; the model forgets it later (decision 15).
func Over(s State) (time.Time, bool) { return s.EndedAt, s.Phase == Done }
