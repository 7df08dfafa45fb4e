package call_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

var decider = Decider[call.State, call.Command]{Decide: call.Decide, Evolve: call.Evolve}

var id = connection.ID("s-1", "docs")

// open is the connection that the calls are bound to.
func open() connection.State {
	return connection.State{
		Phase: connection.Open, Session: "s-1", Principal: Principal, Server: "docs", Fingerprint: "f1",
		Runtime: "r-1", Generation: 9, CatalogSequence: 10,
		Current: map[string]string{"read": "d1", "write": "d2"}, Blocked: map[string]bool{"write": true},
	}
}

// facts are those of a call that may start: granted at 4, under policy 7.
func facts(change ...func(*call.Facts)) call.Facts {
	f := call.Facts{
		Authority: authority.Snapshot{
			Principal:    Principal,
			Capabilities: []authority.Granted{{Capability: "mcp.call:docs"}, {Capability: "mcp.connect:docs"}}, Seq: 4,
		},
		PolicySequence: 7, Connection: open(), Runtime: "r-1", Timeout: time.Minute, At: Noon,
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func without(capability string) func(*call.Facts) {
	return func(f *call.Facts) {
		f.Authority.Capabilities = slices.DeleteFunc(slices.Clone(f.Authority.Capabilities), func(g authority.Granted) bool { return g.Capability == capability })
	}
}

func newPolicy(f *call.Facts)              { f.PolicySequence = 8 }
func at(d time.Duration) func(*call.Facts) { return func(f *call.Facts) { f.At = Noon.Add(d) } }
func connected(change func(*connection.State)) func(*call.Facts) {
	return func(f *call.Facts) { change(&f.Connection) }
}

// everybodys makes it that of a server which somebody else has installed.
func everybodys(c *connection.State) { c.Session, c.Principal, c.Install = "", "ops", "i-1" }

// bound is the request for a tool under a policy.
func bound(policy string) events.CallRequested {
	return events.CallRequested{
		Session: "s-1", Turn: "t-1", Connection: id, Server: "docs", Tool: "read", Callable: "docs__read", Fingerprint: "f1",
		DefinitionDigest: "d1", Capability: "mcp.call:docs", Risk: "low", Policy: policy, ArgumentDigest: "ad",
	}
}

func ask(policy string, change ...func(*call.Request)) call.Request {
	c := call.Request{
		Facts: facts(), Requested: bound(policy), Ready: true, Approval: "a-1", Preview: redact.Static("{}"), PreviewDigest: "pd", Interactive: true,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// on gives the request other facts.
func on(change ...func(*call.Facts)) func(*call.Request) {
	return func(c *call.Request) { c.Facts = facts(change...) }
}

func overHTTP(c *call.Request)              { c.URL = &judged }
func elsewhere(c *call.Request)             { c.URL = &notThere }
func cached(c *call.Request)                { c.SessionApproval = "a-0" }
func nobody(c *call.Request)                { c.Interactive = false }
func busy(c *call.Request)                  { c.Ready = false }
func unbound(c *call.Request)               { c.Unbound = &call.Refusal{Reason: fault.NotFound} }
func invalid(c *call.Request)               { c.Invalid = &call.Refusal{Reason: fault.InvalidArguments} }
func (c change) apply() func(*call.Request) { return func(r *call.Request) { c(&r.Requested) } }

// change alters what is requested.
type change func(*events.CallRequested)

func stamp(d time.Duration) string { return Noon.Add(d).Format(time.RFC3339Nano) }

func authorized(policy, approval string) events.CallAuthorized {
	return events.CallAuthorized{Capability: "mcp.call:docs", Policy: policy, AuthoritySequence: 4, PolicySequence: 7, CatalogSequence: 10, Approval: approval}
}

func refusal(kind fault.Kind, text redact.EventText) events.CallBlocked {
	return events.CallBlocked{Reason: string(kind), Message: text}
}

var (
	started   = events.CallStarted{Runtime: "r-1", Connection: id, Generation: 9, TimeoutMs: 60000}
	judged    = events.UrlDecision{Server: "docs", Phase: "request", Number: 5, Allowed: true, Reason: "allowed", Policy: "private"}
	notThere  = events.UrlDecision{Server: "docs", Phase: "request", Number: 5, Reason: "private_address", Policy: "default"}
	byPolicy  = events.ApprovalDecided{Decision: "allow", Kind: "once", By: "policy", Automatic: true}
	byNobody  = events.ApprovalDecided{Decision: "deny", Kind: "once", By: "policy", Automatic: true}
	bySession = events.ApprovalDecided{Approval: "a-0", Decision: "allow", Kind: "session", By: "approval", Automatic: true, Cached: true}
	asked     = events.ApprovalRequested{
		Approval: "a-1", Action: "mcp.call", Target: "docs/read", Server: "docs", Tool: "read", Risk: "low", Policy: "prompt",
		Preview: redact.Static("{}"), PreviewDigest: "pd", Fingerprint: "f1", DefinitionDigest: "d1", ArgumentDigest: "ad",
		PolicySequence: 7, Expires: stamp(15 * time.Minute),
	}
	allowed       = events.ApprovalDecided{Approval: "a-1", Decision: "allow", Kind: "once", By: "local", Channel: "cli"}
	allowedAlways = events.ApprovalDecided{Approval: "a-1", Decision: "allow", Kind: "session", By: "local", Channel: "cli", Until: stamp(8 * time.Hour)}
	deniedByOne   = events.ApprovalDecided{Approval: "a-1", Decision: "deny", Kind: "once", By: "local", Channel: "cli"}
	queued        = events.CallQueued{WaitsFor: "connection", Runtime: "r-1", PolicySequence: 7}
	succeeded     = events.CallSucceeded{Status: "succeeded", DurationMs: 5, Result: redact.Static("ok")}
	failed        = events.CallFailed{Status: "timed_out", Reason: "timed_out", ExecutionStarted: true}
	unknown       = events.CallIndeterminate{Reason: "runtime_lost", Runtime: "r-1", Generation: 9}

	noCapability = refusal(fault.CapabilityDenied, redact.Static("the principal lacks the capability"))
	notLive      = refusal(fault.RuntimeNotLive, redact.Static("the server is not connected"))
	otherOne     = refusal(fault.BindingMismatch, redact.Static("the tool is bound to another connection"))
	redeclared   = refusal(fault.BindingMismatch, redact.Static("the server was declared anew since the turn was bound"))
	toolChanged  = refusal(fault.ToolChanged, redact.Static("the tool came or changed after its server was approved"))
	drifted      = refusal(fault.ToolDrift, redact.Static("the tool changed since the turn was bound"))
	policyMoved  = refusal(fault.ApprovalDenied, redact.Static("the policy changed after the call was allowed"))
	policyDenies = refusal(fault.ApprovalDenied, redact.Static("policy denies the call"))
	expired      = []events.Event{events.ApprovalExpired{Approval: "a-1"}, refusal(fault.ApprovalExpired, redact.Static("nobody answered the approval in time"))}
	withdrawn    = []events.Event{events.ApprovalExpired{Approval: "a-1"}, refusal(fault.CapabilityDenied, redact.Static("the principal lost the capability"))}
)

// given is the history of each phase. Two ways lead to the start: at once, and
// through a person.
var given = map[call.Phase][]events.Event{
	call.None:    nil,
	call.Waiting: {bound("prompt"), asked},
	call.Allowed: {bound("prompt"), asked, allowed},
	call.Queued:  {bound("auto"), byPolicy, queued},
	call.Started: {bound("auto"), byPolicy, authorized("auto", ""), started},
	call.Done:    {bound("auto"), byPolicy, authorized("auto", ""), started, succeeded},
}

func TestCallRules(t *testing.T) {
	t.Parallel()
	explicit := change(func(r *events.CallRequested) { r.Capability = "ops.run" }).apply()
	requested := func(policy string, c change) events.CallRequested {
		r := bound(policy)
		if c != nil {
			c(&r)
		}
		return r
	}
	decider.Run(t, []Case[call.Command]{
		// the automatic way
		{
			Rule: "what policy allows starts in one commit, with what it rests on (R53, R195)", When: ask("auto"),
			Then: []events.Event{bound("auto"), byPolicy, authorized("auto", ""), started},
		},
		{
			Rule: "the decision on its request is in the commit that starts it (R96)", When: ask("auto", overHTTP),
			Then: []events.Event{bound("auto"), byPolicy, authorized("auto", ""), judged, started},
		},
		{
			Rule: "a place that may not be contacted is a call that does not start (R95)", When: ask("auto", overHTTP, elsewhere),
			Then: []events.Event{bound("auto"), byPolicy, notThere, refusal(fault.URLBlocked, redact.Static("the server may not be contacted: private_address"))},
		},
		{Rule: "what does not start makes no request (R96)", When: ask("auto", overHTTP, busy), Then: []events.Event{bound("auto"), byPolicy, queued}},
		{
			Rule: "an approval that was not needed is not cited (R61)", When: ask("auto", cached),
			Then: []events.Event{bound("auto"), byPolicy, authorized("auto", ""), started},
		},
		{
			Rule: "without a slot it waits for one (R20)", When: ask("auto", busy),
			Then: []events.Event{bound("auto"), byPolicy, queued},
		},

		// the order of the checks
		{Rule: "an unknown name is refused first (R145, R196)", When: ask("deny", unbound, invalid, on(without("mcp.call:docs"))), Then: []events.Event{bound("deny"), refusal(fault.NotFound, redact.EventText{})}},
		{Rule: "then the capability (R58, R196)", When: ask("deny", invalid, on(without("mcp.call:docs"))), Then: []events.Event{bound("deny"), noCapability}},
		{Rule: "then the arguments (R198, R196)", When: ask("deny", invalid, on(connected(func(c *connection.State) { c.Phase = connection.Lost }))), Then: []events.Event{bound("deny"), refusal(fault.InvalidArguments, redact.EventText{})}},
		{Rule: "then the binding (R197)", When: ask("deny", on(connected(func(c *connection.State) { c.Phase = connection.Lost }))), Then: []events.Event{bound("deny"), notLive}},
		{Rule: "then policy (R54)", When: ask("deny"), Then: []events.Event{bound("deny"), byNobody, policyDenies}},

		// capability
		{Rule: "a call needs its capability (R58)", When: ask("auto", on(without("mcp.call:docs"))), Then: []events.Event{bound("auto"), noCapability}},
		{Rule: "and that to connect, as a floor (R50)", When: ask("auto", on(without("mcp.connect:docs"))), Then: []events.Event{bound("auto"), noCapability}},
		{
			Rule: "a capability that has ended is none (R51)",
			When: ask("auto", on(func(f *call.Facts) { f.Authority.Capabilities[0].Until = Noon })), Then: []events.Event{bound("auto"), noCapability},
		},
		{Rule: "no principal, no call (R57)", When: ask("auto", on(func(f *call.Facts) { f.Authority.Principal = "" })), Then: []events.Event{bound("auto"), noCapability}},
		{
			Rule: "an explicit capability replaces that of the server (R59)", When: ask("auto", explicit),
			Then: []events.Event{requested("auto", func(r *events.CallRequested) { r.Capability = "ops.run" }), noCapability},
		},
		{
			Rule: "a call without a capability to ask for is refused (R58)", When: ask("auto", change(func(r *events.CallRequested) { r.Capability = "" }).apply()),
			Then: []events.Event{requested("auto", func(r *events.CallRequested) { r.Capability = "" }), noCapability},
		},
		{Rule: "an approval grants no capability (R47)", When: ask("prompt", cached, on(without("mcp.call:docs"))), Then: []events.Event{bound("prompt"), noCapability}},

		// binding
		{Rule: "no connection, no call", When: ask("auto", on(connected(func(c *connection.State) { *c = connection.State{} }))), Then: []events.Event{bound("auto"), notLive}},
		{Rule: "a connection that is being opened takes no call", When: ask("auto", on(connected(func(c *connection.State) { c.Phase = connection.Opening }))), Then: []events.Event{bound("auto"), notLive}},
		{Rule: "a connection of another runtime takes no call (decision 20)", When: ask("auto", on(connected(func(c *connection.State) { c.Runtime = "r-0" }))), Then: []events.Event{bound("auto"), notLive}},
		{Rule: "a binding of another session is refused (R146, R147)", When: ask("auto", on(connected(func(c *connection.State) { c.Session = "s-2" }))), Then: []events.Event{bound("auto"), otherOne}},
		{Rule: "a binding to another server is refused (R146)", When: ask("auto", on(connected(func(c *connection.State) { c.Server = "shell" }))), Then: []events.Event{bound("auto"), otherOne}},
		{Rule: "the connection of another principal is refused (R146)", When: ask("auto", on(connected(func(c *connection.State) { c.Principal = "bob" }))), Then: []events.Event{bound("auto"), otherOne}},
		{
			Rule: "that of an installed server is everybody's (C1)",
			When: ask("auto", on(connected(everybodys)), change(func(r *events.CallRequested) { r.Connection = connection.ID("", "docs") }).apply()),
			Then: []events.Event{
				requested("auto", func(r *events.CallRequested) { r.Connection = connection.ID("", "docs") }), byPolicy, authorized("auto", ""),
				func() events.CallStarted { e := started; e.Connection = connection.ID("", "docs"); return e }(),
			},
		},
		{
			Rule: "who may connect to it and call (R50, R58, C1)",
			When: ask("auto", on(connected(everybodys), without("mcp.connect:docs")), change(func(r *events.CallRequested) { r.Connection = connection.ID("", "docs") }).apply()),
			Then: []events.Event{requested("auto", func(r *events.CallRequested) { r.Connection = connection.ID("", "docs") }), noCapability},
		},
		{Rule: "a server that was declared anew is refused (R146, R197)", When: ask("auto", on(connected(func(c *connection.State) { c.Fingerprint = "f2" }))), Then: []events.Event{bound("auto"), redeclared}},
		{
			Rule: "a tool that waits for its own approval is blocked (decision 7)", When: ask("auto", change(func(r *events.CallRequested) { r.Tool, r.DefinitionDigest = "write", "d2" }).apply()),
			Then: []events.Event{requested("auto", func(r *events.CallRequested) { r.Tool, r.DefinitionDigest = "write", "d2" }), toolChanged},
		},
		{Rule: "a tool whose definition changed has drifted (R197)", When: ask("auto", on(connected(func(c *connection.State) { c.Current = map[string]string{"read": "d9"} }))), Then: []events.Event{bound("auto"), drifted}},
		{Rule: "a tool that is gone has drifted (R197)", When: ask("auto", on(connected(func(c *connection.State) { c.Current = nil }))), Then: []events.Event{bound("auto"), drifted}},

		// approval
		{Rule: "prompt asks a person and starts nothing (R60)", When: ask("prompt"), Then: []events.Event{bound("prompt"), asked}},
		{Rule: "a policy that says nothing asks (R52)", When: ask(""), Then: []events.Event{bound(""), func() events.ApprovalRequested { a := asked; a.Policy = ""; return a }()}},
		{Rule: "deny asks nobody, whatever was approved (R54)", When: ask("deny", cached), Then: []events.Event{bound("deny"), byNobody, policyDenies}},
		{Rule: "where nobody can be asked it is denied at once (R55)", When: ask("prompt", nobody), Then: []events.Event{bound("prompt"), byNobody, policyDenies}},
		{
			Rule: "an approval for the session is used again and cited (R61)", When: ask("prompt", cached),
			Then: []events.Event{bound("prompt"), bySession, authorized("prompt", "a-0"), started},
		},
		{
			Rule: "it needs nobody to ask (R55, R61)", When: ask("prompt", cached, nobody),
			Then: []events.Event{bound("prompt"), bySession, authorized("prompt", "a-0"), started},
		},
		{
			Rule: "it is cited after a wait for a slot (R61)", Given: []events.Event{bound("prompt"), bySession, queued},
			When: starting(facts()), Then: []events.Event{authorized("prompt", "a-0"), started},
		},
		{Rule: "a yes is recorded and starts nothing by itself (decision 9)", Given: given[call.Waiting], When: call.Answer{Authority: facts().Authority, Approval: "a-1", Allow: true, By: "local", Channel: "cli", At: Noon}, Then: []events.Event{allowed}},
		{Rule: "a yes may stand for the session, for 8 h (R61)", Given: given[call.Waiting], When: call.Answer{Authority: facts().Authority, Approval: "a-1", Allow: true, Session: true, By: "local", Channel: "cli", At: Noon}, Then: []events.Event{allowedAlways}},
		{
			Rule: "a no ends the call, also one for the session (R60)", Given: given[call.Waiting], When: call.Answer{Authority: facts().Authority, Approval: "a-1", Session: true, By: "local", Channel: "cli", At: Noon},
			Then: []events.Event{deniedByOne, refusal(fault.ApprovalDenied, redact.Static("a person denied the call"))},
		},
		{Rule: "another approval is not answered here", Given: given[call.Waiting], When: call.Answer{Authority: facts().Authority, Approval: "a-2", Allow: true, At: Noon}, Fault: fault.Conflict},
		{Rule: "a yes that comes too late is a denial (decision 10)", Given: given[call.Waiting], When: call.Answer{Authority: facts().Authority, Approval: "a-1", Allow: true, At: Noon.Add(15 * time.Minute)}, Then: expired},
		{
			Rule: "a yes for who may not call any more is void, also for the session (R50)", Given: given[call.Waiting],
			When: call.Answer{Authority: facts(without("mcp.call:docs")).Authority, Approval: "a-1", Allow: true, Session: true, At: Noon}, Then: withdrawn,
		},
		{
			Rule: "nobody is asked for who may not connect any more (R50)", Given: given[call.Waiting],
			When: call.Withdraw{Authority: facts(without("mcp.connect:docs")).Authority, At: Noon}, Then: withdrawn,
		},
		{
			Rule: "no yes waits for who may not call any more (R50)", Given: given[call.Allowed],
			When: call.Withdraw{Authority: facts(without("mcp.call:docs")).Authority, At: Noon}, Then: withdrawn,
		},
		{Rule: "silence is a denial after 15 minutes (decision 10)", Given: given[call.Waiting], When: call.Expire{At: Noon.Add(15 * time.Minute)}, Then: expired},
		{Rule: "not before (decision 10)", Given: given[call.Waiting], When: call.Expire{At: Noon.Add(15*time.Minute - 1)}},
		{Rule: "a yes that nobody used is over then too (decision 10)", Given: given[call.Allowed], When: call.Expire{At: Noon.Add(15 * time.Minute)}, Then: expired},

		// the retry
		{Rule: "a retry waits for the same answer (decision 9)", Given: given[call.Waiting], When: ask("prompt")},
		{Rule: "a retry finds the silence without the sweeper (decision 10)", Given: given[call.Waiting], When: ask("prompt", on(at(15*time.Minute))), Then: expired},
		{Rule: "a retry after the yes starts, and spends it (decision 9)", Given: given[call.Allowed], When: starting(facts()), Then: []events.Event{authorized("prompt", "a-1"), started}},
		{Rule: "a yes to other arguments starts nothing (decision 7)", Given: given[call.Allowed], When: call.Start{Facts: facts(), ArgumentDigest: "ad2"}, Fault: fault.BindingMismatch},
		{Rule: "a spent approval starts nothing more (decision 7)", Given: append(slices.Clone(given[call.Allowed]), authorized("prompt", "a-1"), started), When: starting(facts()), Fault: fault.Conflict},
		{Rule: "a second retry is refused here, so that it opens a new request (decision 9)", Given: append(slices.Clone(given[call.Allowed]), authorized("prompt", "a-1"), started), When: ask("prompt"), Fault: fault.Conflict},
		{Rule: "a start finds that the yes is over (decision 10)", Given: given[call.Allowed], When: starting(facts(at(15 * time.Minute))), Then: expired},

		// between permission and start
		{Rule: "a revoke between approval and start blocks (R58, decision 16)", Given: given[call.Allowed], When: starting(facts(without("mcp.call:docs"))), Then: []events.Event{noCapability}},
		{Rule: "so does one of the capability to connect (R50)", Given: given[call.Allowed], When: starting(facts(without("mcp.connect:docs"))), Then: []events.Event{noCapability}},
		{Rule: "a revoke while it is queued blocks (R58, decision 16)", Given: given[call.Queued], When: starting(facts(without("mcp.call:docs"))), Then: []events.Event{noCapability}},
		{Rule: "a policy that changed after the approval voids it (decision 7)", Given: given[call.Allowed], When: starting(facts(newPolicy)), Then: []events.Event{policyMoved}},
		{Rule: "a policy that changed while it was queued voids its permission (decision 16)", Given: given[call.Queued], When: starting(facts(newPolicy)), Then: []events.Event{policyMoved}},
		{Rule: "a tool that changed after the approval has drifted (R197)", Given: given[call.Allowed], When: starting(facts(connected(func(c *connection.State) { c.Current = map[string]string{"read": "d9"} }))), Then: []events.Event{drifted}},
		{Rule: "a server that was declared anew after the approval is refused (R62)", Given: given[call.Allowed], When: starting(facts(connected(func(c *connection.State) { c.Fingerprint = "f2" }))), Then: []events.Event{redeclared}},
		{Rule: "the connection of another session does not serve a queued call (R147)", Given: given[call.Queued], When: starting(facts(connected(func(c *connection.State) { c.Session = "s-2" }))), Then: []events.Event{otherOne}},
		{Rule: "a connection that was lost meanwhile is not live", Given: given[call.Queued], When: starting(facts(connected(func(c *connection.State) { c.Phase = connection.Lost }))), Then: []events.Event{notLive}},
		{
			Rule: "a connection that was opened again meanwhile serves it (decision 20)", Given: given[call.Queued],
			When: starting(facts(connected(func(c *connection.State) { c.Generation = 12 }))),
			Then: []events.Event{authorized("auto", ""), func() events.CallStarted { s := started; s.Generation = 12; return s }()},
		},
		{Rule: "a queued call starts when it has its slot (R20)", Given: given[call.Queued], When: starting(facts()), Then: []events.Event{authorized("auto", ""), started}},
		{
			Rule: "a call whose connection ended while it was queued says so", Given: given[call.Queued],
			When: call.Abandon{Outcome: call.Invalid, Reason: fault.RuntimeNotLive}, Then: []events.Event{events.CallFailed{Status: "invalid", Reason: "runtime_not_live"}},
		},
		{Rule: "a call whose time is over in the queue was not started (R20)", Given: given[call.Queued], When: call.Abandon{Outcome: call.TimedOut}, Then: []events.Event{events.CallFailed{Status: "timed_out", Reason: "timed_out"}}},

		// outcome
		{Rule: "a result is the outcome", Given: given[call.Started], When: call.Finish{Generation: 9, Succeeded: &succeeded}, Then: []events.Event{succeeded}},
		{Rule: "no result is an outcome (R199)", Given: given[call.Started], When: call.Finish{Generation: 9, Failed: &failed}, Then: []events.Event{failed}},
		{
			Rule: "silence of the owner is indeterminate (R209, decision 21)", Given: given[call.Started], When: call.Finish{Generation: 9, Unknown: fault.TimedOut},
			Then: []events.Event{events.CallIndeterminate{Reason: "timed_out", Runtime: "r-1", Generation: 9}},
		},
		{Rule: "the result of another opening is refused (decision 20)", Given: given[call.Started], When: call.Finish{Generation: 8, Succeeded: &succeeded}, Fault: fault.Conflict},
		{Rule: "there is one outcome (R129)", Given: given[call.Done], When: call.Finish{Generation: 9, Failed: &failed}, Fault: fault.Conflict},
		{
			Rule: "a result after the outcome is late (R172, decision 20)", Given: append(slices.Clone(given[call.Started]), unknown),
			When: call.Late{Late: events.CallLateResult{IsError: true, DurationMs: 7}}, Then: []events.Event{events.CallLateResult{IsError: true, DurationMs: 7}},
		},
		{Rule: "what never started has no result", Given: []events.Event{bound("auto"), noCapability}, When: call.Late{}, Fault: fault.Conflict},
		{Rule: "a result before the outcome is not late", Given: given[call.Started], When: call.Late{}, Fault: fault.Conflict},

		// crash
		{Rule: "what a dead runtime had started is indeterminate (R172, decision 11)", Given: given[call.Started], When: call.Reap{Runtime: "r-1"}, Then: []events.Event{unknown}},
		{Rule: "what a live runtime has started goes on when another one is gone (decision 20)", Given: given[call.Started], When: call.Reap{Runtime: "r-2"}},
		{Rule: "what a dead runtime had queued was not started (R172)", Given: given[call.Queued], When: call.Reap{Runtime: "r-1"}, Then: []events.Event{events.CallFailed{Status: "cancelled", Reason: "runtime_closed"}}},
		{Rule: "what a live runtime has queued goes on (decision 20)", Given: given[call.Queued], When: call.Reap{Runtime: "r-2"}},
		{Rule: "a question survives the runtime (decision 11)", Given: given[call.Waiting], When: call.Reap{Runtime: "r-1"}},
		{Rule: "an approval survives the runtime (decision 11)", Given: given[call.Allowed], When: call.Reap{Runtime: "r-1"}},
	})
}

func TestOutcomesAreOfTheClosedSet_R129(t *testing.T) {
	t.Parallel()
	block := func(kind fault.Kind) []events.Event {
		return []events.Event{bound("auto"), refusal(kind, redact.EventText{})}
	}
	for name, c := range map[string]struct {
		given []events.Event
		want  string
	}{
		"result":         {given[call.Done], call.Succeeded},
		"isError (R117)": {append(slices.Clone(given[call.Started]), events.CallSucceeded{IsError: true, Status: "failed"}), call.StatusFailed},
		"time over":      {append(slices.Clone(given[call.Started]), failed), call.TimedOut},
		"crash":          {append(slices.Clone(given[call.Started]), unknown), call.Indeterminate},
		"late result":    {append(slices.Clone(given[call.Started]), unknown, events.CallLateResult{}), call.Indeterminate},
		"refused, then started by a second one (decision 20)": {append(block(fault.RuntimeNotLive), given[call.Started]...), call.Invalid},
		"no capability":      {block(fault.CapabilityDenied), call.Denied},
		"denied":             {block(fault.ApprovalDenied), call.Denied},
		"silence":            {block(fault.ApprovalExpired), call.Denied},
		"unknown name":       {block(fault.NotFound), call.NotFound},
		"unbound":            {block(fault.ToolUnbound), call.NotFound},
		"drift":              {block(fault.ToolDrift), call.Invalid},
		"another connection": {block(fault.BindingMismatch), call.Invalid},
		"arguments":          {block(fault.InvalidArguments), call.Invalid},
	} {
		s := decider.Fold(c.given...)
		if s.Phase != call.Done || s.Outcome != c.want {
			t.Errorf("%s: phase %q, outcome %q, want %q", name, s.Phase, s.Outcome, c.want)
		}
		if at, over := call.Over(s); !over || at != Noon {
			t.Errorf("%s: over %v at %v", name, over, at)
		}
	}
	for phase, list := range given {
		if _, over := call.Over(decider.Fold(list...)); over != (phase == call.Done) {
			t.Errorf("%q: over %v", phase, over)
		}
	}
}

// Who asks again for what was started hears whether the server began it: only then
// it may be asked for as another call.
func TestStartThatNeverCameToTheServerIsKnown(t *testing.T) {
	t.Parallel()
	lease := events.CallFailed{Status: "failed", Reason: string(fault.RuntimeNotLive)}
	executed := lease
	executed.ExecutionStarted = true
	for name, c := range map[string]struct {
		given []events.Event
		want  bool
	}{
		"not begun":     {append(slices.Clone(given[call.Started]), lease), true},
		"begun":         {append(slices.Clone(given[call.Started]), executed), false},
		"unknown":       {append(slices.Clone(given[call.Started]), unknown), false},
		"never started": {append(slices.Clone(given[call.Queued]), lease), false},
	} {
		if s := decider.Fold(c.given...); s.Phase != call.Done || s.Unexecuted != c.want {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Every phase and every command, so that no cell is left to chance.
func TestEveryCommandInEveryPhase(t *testing.T) {
	t.Parallel()
	var phases []Named[[]events.Event]
	for _, p := range []call.Phase{call.None, call.Waiting, call.Allowed, call.Queued, call.Started, call.Done} {
		if s := decider.Fold(given[p]...); s.Phase != p {
			t.Fatalf("the history of %q leads to %q", p, s.Phase)
		}
		phases = append(phases, Named[[]events.Event]{Name: cmp.Or(string(p), "none"), Is: given[p]})
	}
	decider.Matrix(t, matrix, phases, []Named[call.Command]{
		{Name: "request", Is: ask("auto")},
		{Name: "request that prompts", Is: ask("prompt")},
		{Name: "request that is denied", Is: ask("deny")},
		{Name: "request without a slot", Is: ask("auto", busy)},
		{Name: "request of an unknown name", Is: ask("auto", unbound)},
		{Name: "request an hour later", Is: ask("auto", on(at(time.Hour)))},
		{Name: "yes", Is: call.Answer{Authority: facts().Authority, Approval: "a-1", Allow: true, At: Noon}},
		{Name: "yes for the session", Is: call.Answer{Authority: facts().Authority, Approval: "a-1", Allow: true, Session: true, At: Noon}},
		{Name: "no", Is: call.Answer{Authority: facts().Authority, Approval: "a-1", At: Noon}},
		{Name: "yes after a revoke", Is: call.Answer{Authority: facts(without("mcp.call:docs")).Authority, Approval: "a-1", Allow: true, At: Noon}},
		{Name: "expire", Is: call.Expire{At: Noon.Add(time.Hour)}},
		{Name: "withdraw", Is: call.Withdraw{Authority: facts().Authority, At: Noon}},
		{Name: "withdraw after a revoke", Is: call.Withdraw{Authority: facts(without("mcp.call:docs")).Authority, At: Noon}},
		{Name: "start", Is: starting(facts())},
		{Name: "start under a new policy", Is: starting(facts(newPolicy))},
		{Name: "start after a revoke", Is: starting(facts(without("mcp.call:docs")))},
		{Name: "start without a connection", Is: starting(facts(connected(func(c *connection.State) { c.Phase = connection.Closed })))},
		{Name: "abandon", Is: call.Abandon{Outcome: call.Cancelled}},
		{Name: "finish", Is: call.Finish{Generation: 9, Succeeded: &succeeded}},
		{Name: "finish in failure", Is: call.Finish{Generation: 9, Failed: &failed}},
		{Name: "finish unknown", Is: call.Finish{Generation: 9, Unknown: fault.TimedOut}},
		{Name: "finish of another opening", Is: call.Finish{Generation: 8, Succeeded: &succeeded}},
		{Name: "late", Is: call.Late{}},
		{Name: "reap of its runtime", Is: call.Reap{Runtime: "r-1"}},
		{Name: "reap of another runtime", Is: call.Reap{Runtime: "r-2"}},
	})
}

// matrix is every command in every phase: what happens, and the phases in which
// it does.
const matrix = `
request
  call_requested+approval_decided+call_authorized+call_started: none
  -: waiting
  !conflict: allowed queued started done
request that prompts
  call_requested+approval_requested: none
  -: waiting
  !conflict: allowed queued started done
request that is denied
  call_requested+approval_decided+call_blocked: none
  -: waiting
  !conflict: allowed queued started done
request without a slot
  call_requested+approval_decided+call_queued: none
  -: waiting
  !conflict: allowed queued started done
request of an unknown name
  call_requested+call_blocked: none
  -: waiting
  !conflict: allowed queued started done
request an hour later
  call_requested+approval_decided+call_authorized+call_started: none
  approval_expired+call_blocked: waiting
  !conflict: allowed queued started done
yes
  !conflict: none allowed queued started done
  approval_decided: waiting
yes for the session
  !conflict: none allowed queued started done
  approval_decided: waiting
no
  !conflict: none allowed queued started done
  approval_decided+call_blocked: waiting
yes after a revoke
  !conflict: none allowed queued started done
  approval_expired+call_blocked: waiting
expire
  -: none queued started done
  approval_expired+call_blocked: waiting allowed
withdraw
  -: none waiting allowed queued started done
withdraw after a revoke
  -: none queued started done
  approval_expired+call_blocked: waiting allowed
start
  !conflict: none waiting started done
  call_authorized+call_started: allowed queued
start under a new policy
  !conflict: none waiting started done
  call_blocked: allowed queued
start after a revoke
  !conflict: none waiting started done
  call_blocked: allowed queued
start without a connection
  !conflict: none waiting started done
  call_blocked: allowed queued
abandon
  -: none waiting started done
  call_failed: allowed queued
finish
  !conflict: none waiting allowed queued done
  call_succeeded: started
finish in failure
  !conflict: none waiting allowed queued done
  call_failed: started
finish unknown
  !conflict: none waiting allowed queued done
  call_indeterminate: started
finish of another opening
  !conflict: none waiting allowed queued started done
late
  !conflict: none waiting allowed queued started
  call_late_result: done
reap of its runtime
  -: none waiting allowed done
  call_failed: queued
  call_indeterminate: started
reap of another runtime
  -: none waiting allowed queued started done
`

// starting begins the call with the arguments that it was requested with.
func starting(f call.Facts) call.Start { return call.Start{Facts: f, ArgumentDigest: "ad"} }

// What the catalog has become while a call ran (R203).
func TestDrift_R203(t *testing.T) {
	t.Parallel()
	now := func(catalog string, current map[string]string) connection.State {
		return connection.State{Phase: connection.Open, Catalog: catalog, Current: current}
	}
	closed := now("v2", nil)
	closed.Phase = connection.Closed
	for _, test := range []struct {
		name, tool string
		now        connection.State
		want       string
	}{
		{"the same", "read", now("v1", map[string]string{"read": "d1"}), ""},
		{"another tool came", "read", now("v2", map[string]string{"read": "d1", "write": "d1"}), call.DriftCatalog},
		{"the tool changed", "read", now("v2", map[string]string{"read": "d2"}), call.DriftTool},
		{"the tool is gone", "read", now("v2", map[string]string{"write": "d1"}), call.DriftGone},
		{"a request that is no call", "", now("v2", map[string]string{"write": "d1"}), call.DriftCatalog},
		{"nobody knows", "read", closed, ""},
	} {
		if got := call.Drift("v1", test.tool, "d1", test.now); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
