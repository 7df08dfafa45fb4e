package connection_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

var decider = Decider[connection.State, connection.Command]{Decide: connection.Decide, Evolve: connection.Evolve}

// may is the authority to connect to docs, granted at sequence 4.
var may = authority.Snapshot{Principal: Principal, Capabilities: []authority.Granted{{Capability: "mcp.connect:docs"}}, Seq: 4}

// ask is a request for docs as declared at first, under policy 7.
func ask(change ...func(*connection.Request)) connection.Request {
	c := connection.Request{
		Session: "s-1", Server: "docs", Fingerprint: "f1", CoreRevision: "r1", Transport: "stdio", Risk: "high",
		Authority: may, Policy: authority.Prompt, PolicySequence: 7, At: Noon,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func redeclared(c *connection.Request) { c.Fingerprint = "f2" }
func newPolicy(c *connection.Request)  { c.PolicySequence = 8 }
func newGrant(c *connection.Request)   { c.Authority.Seq = 5 }
func retried(c *connection.Request)    { c.Retry = true }
func unable(c *connection.Request)     { c.Authority.Capabilities = nil }
func revoked(c *connection.Request)    { c.Authority.Capabilities, c.Authority.Seq = nil, 5 }
func later(d time.Duration) func(*connection.Request) {
	return func(c *connection.Request) { c.At = Noon.Add(d) }
}

func stamp(d time.Duration) string { return Noon.Add(d).Format(time.RFC3339Nano) }

// What happens on the way to an open connection, and beside it. The n-th given
// event has sequence n, so claimed comes fourth or fifth and its generation is that.
var (
	requested    = events.ConnectRequested{Session: "s-1", Server: "docs", Fingerprint: "f1", CoreRevision: "r1", Transport: "stdio", Risk: "high", Policy: "prompt", AuthoritySequence: 4, PolicySequence: 7}
	asked        = events.ApprovalRequested{Approval: "a-1", Action: "mcp.connect", Target: "docs", Server: "docs", Risk: "high", Policy: "prompt", Preview: redact.Static("{}"), PreviewDigest: "pd", Fingerprint: "f1", PolicySequence: 7, Expires: stamp(24 * time.Hour)}
	allowed      = events.ApprovalDecided{Approval: "a-1", Decision: "allow", Kind: "session", By: "local", Channel: "cli"}
	refused      = events.ApprovalDecided{Approval: "a-1", Decision: "deny", Kind: "session", By: "local", Channel: "cli"}
	expired      = events.ApprovalExpired{Approval: "a-1"}
	denied       = events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "approval", Reason: "approval_denied", AuthoritySequence: 4, PolicySequence: 7}
	incapable    = events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "capability", Reason: "capability_denied", Capability: "mcp.connect:docs", AuthoritySequence: 5, PolicySequence: 7}
	claimed      = events.ConnectionClaimed{Runtime: "r-1", Fingerprint: "f1"}
	opened       = events.ConnectionOpened{Runtime: "r-1", Generation: 4}
	discovered   = events.ToolsDiscovered{Generation: 4, Changed: []string{connection.ListTools}, CatalogVersion: "cat-1", Blob: "b1", Tools: []events.ToolDigest{{Tool: "read", Digest: "d1"}, {Tool: "write", Digest: "d1"}}}
	failed       = events.ServerFailed{Server: "docs", Fingerprint: "f1", Generation: 4, Stage: "spawn", Kind: "spawn_failed", RetryAfter: stamp(30 * time.Second)}
	undiscovered = events.DiscoveryFailed{Generation: 4, Kind: "catalog_too_large"}
	closed       = events.ConnectionClosed{Generation: 4, Reason: "server_ended"}
	lost         = events.ConnectionLost{Generation: 4, Runtime: "r-1"}
	captured     = events.StderrCaptured{Generation: 4, Chars: 12000, Truncated: true}
)

// given is the history of each phase.
var given = map[connection.Phase][]events.Event{
	connection.None:      nil,
	connection.Requested: {requested},
	connection.Waiting:   {requested, asked},
	connection.Approved:  {requested, asked, allowed},
	connection.Opening:   {requested, asked, allowed, claimed},
	connection.Open:      {requested, asked, allowed, claimed, opened, discovered},
	connection.Denied:    {requested, asked, refused, denied},
	connection.Failed:    {requested, asked, allowed, claimed, failed},
	connection.Closed:    {requested, asked, allowed, claimed, opened, discovered, closed},
	connection.Lost:      {requested, asked, allowed, claimed, opened, discovered, lost},
}

// again is the history of a server that was open and is being opened again.
func again(more ...events.Event) []events.Event {
	return append(after(connection.Closed, requested, allowed, claimed), more...)
}

func fail(generation uint32) connection.Fail {
	return connection.Fail{Generation: generation, Stage: "spawn", Kind: "spawn_failed", At: Noon}
}

// login is a failure for the want of a login.
func login(e events.ServerFailed) events.ServerFailed {
	e.Kind = string(fault.AuthRequired)
	return e
}

func failedAgain(generation uint32, retry time.Duration) events.ServerFailed {
	e := failed
	e.Generation, e.RetryAfter = generation, stamp(retry)
	return e
}

func ofProgram(e events.ServerFailed, digest string) events.ServerFailed {
	e.Program, e.ProgramDigest = "node", digest
	return e
}

func underNew(e events.ServerFailed) events.ServerFailed {
	e.Fingerprint = "f2"
	return e
}

func after(phase connection.Phase, more ...events.Event) []events.Event {
	g := given[phase]
	return append(g[:len(g):len(g)], more...)
}

func gate(change ...func(*connection.Gate)) connection.Gate {
	c := connection.Gate{Preview: redact.Static("{}"), PreviewDigest: "pd", Approval: "a-1", Interactive: true, At: Noon}
	for _, f := range change {
		f(&c)
	}
	return c
}

func yes(id string) connection.Answer {
	return connection.Answer{Authority: may, Approval: id, Allow: true, By: "local", Channel: "cli", At: Noon}
}

// gone is what is left of the authority after a revoke.
var gone = authority.Snapshot{Principal: Principal, Seq: 5}

func no(id string) connection.Answer {
	return connection.Answer{Authority: may, Approval: id, By: "local", Channel: "cli", At: Noon}
}

// listing is a discovery of read and of write with the given definitions.
func listing(catalog, read, write string) connection.Discovery {
	return connection.Discovery{
		Catalog: catalog, Blob: "b2", Approval: "a-2", OnChange: "block", At: Noon,
		Tools:    []events.ToolDigest{{Tool: "read", Digest: read}, {Tool: "write", Digest: write}},
		Previews: map[string]redact.EventText{"write": redact.Static("diff")},
	}
}

// beside is a listing with more than tools; told is one of before it.
func beside(catalog, resources, prompts string) connection.Discovery {
	d := listing(catalog, "d1", "d1")
	d.ResourcesDigest, d.PromptsDigest = resources, prompts
	return d
}

func foundBeside(generation uint32, catalog, resources, prompts string, changed ...string) events.ToolsDiscovered {
	e := found(generation, listing(catalog, "d1", "d1"))
	e.ResourcesDigest, e.PromptsDigest, e.Changed = resources, prompts, changed
	return e
}

var told = foundBeside(4, "cat-4", "r1", "p1", connection.ListResources, connection.ListPrompts)

func unchanged(e events.ToolsDiscovered) events.ToolsDiscovered {
	e.Changed = nil
	return e
}

// found is a discovery in which the blocked tools have changed.
func found(generation uint32, d connection.Discovery, blocked ...string) events.ToolsDiscovered {
	e := events.ToolsDiscovered{Generation: generation, CatalogVersion: d.Catalog, Blob: d.Blob, Tools: d.Tools, Blocked: blocked, Changed: []string{connection.ListTools}}
	for _, tool := range blocked {
		e.Flags = append(e.Flags, events.ToolFlag{Tool: tool, Reasons: []string{connection.FlagChanged}})
	}
	return e
}

// because is a discovery with the reasons for its flags.
func because(e events.ToolsDiscovered, flags ...events.ToolFlag) events.ToolsDiscovered {
	e.Flags = flags
	return e
}

func flag(tool string, reasons ...string) events.ToolFlag {
	return events.ToolFlag{Tool: tool, Reasons: reasons}
}

func askedTool(id, tool, digest string, preview redact.EventText) events.ApprovalRequested {
	return events.ApprovalRequested{
		Approval: id, Action: "mcp.tool", Target: "docs/" + tool, Server: "docs", Tool: tool, Risk: "high", Policy: "prompt",
		Preview: preview, Fingerprint: "f1", DefinitionDigest: digest, PolicySequence: 7, Expires: stamp(24 * time.Hour),
	}
}

func TestConnectionRules(t *testing.T) {
	t.Parallel()
	changed := listing("cat-2", "d1", "d2")
	added := listing("cat-3", "d1", "d1")
	added.Tools = append(added.Tools, events.ToolDigest{Tool: "drop", Digest: "d1"})
	flagged := changed
	flagged.OnChange = "flag"
	suspicious := listing("cat-6", "d1", "d1")
	suspicious.Suspicious = map[string][]string{"write": {"bidi"}}
	suspiciousFlagged := suspicious
	suspiciousFlagged.OnChange = "flag"
	suspiciousAgain := suspicious
	suspiciousAgain.Catalog = "cat-7"
	becomes := flagged
	becomes.Suspicious = map[string][]string{"write": {"tag"}}
	held := because(found(4, suspicious, "write"), flag("write", "bidi"))
	suspiciousAsked := askedTool("a-2-1", "write", "d1", redact.Static("diff"))
	suspiciousAllowed := events.ApprovalDecided{Approval: "a-2-1", Decision: "allow", Kind: "session", By: "local", Channel: "cli"}
	blocked := found(4, changed, "write")
	toolAsked := askedTool("a-2-1", "write", "d2", redact.Static("diff"))
	urlNo := &events.UrlDecision{Server: "docs", Phase: "connect", Reason: "private_address"}
	urlYes := &events.UrlDecision{Server: "docs", Phase: "connect", Allowed: true}
	unresolved := &events.UrlDecision{Server: "docs", Phase: "connect", Reason: "dns_timeout"}
	unknown := func(retry time.Duration) events.ServerFailed {
		return events.ServerFailed{
			Server: "docs", Fingerprint: "f1", Stage: "url", Kind: "url_blocked",
			Message: redact.Static("the name in the URL has no address now: dns_timeout"), RetryAfter: stamp(retry),
		}
	}
	noName := gate(func(c *connection.Gate) { c.URL, c.Stage, c.Reason = unresolved, connection.StageURL, "dns_timeout" })
	swapped := events.ServerFailed{Server: "docs", Fingerprint: "f1", Generation: 10, Stage: "spawn", Kind: "program_changed", RetryAfter: stamp(250 * time.Millisecond)}
	redeclaredAsked := requested
	redeclaredAsked.Fingerprint = "f2"
	underNewPolicy := requested
	underNewPolicy.PolicySequence = 8
	underNewGrant := requested
	underNewGrant.AuthoritySequence = 5
	deny := requested
	deny.Policy = "deny"
	auto := requested
	auto.Policy = "auto"
	cached := events.ApprovalDecided{Approval: "a-1", Decision: "allow", Kind: "session", By: "approval", Automatic: true, Cached: true}
	automatic := events.ApprovalDecided{Decision: "deny", Automatic: true, By: "policy"}

	decider.Run(t, []Case[connection.Command]{
		// capability
		{Rule: "with the capability the request is recorded (R49, R50)", When: ask(), Then: []events.Event{requested}},
		{Rule: "without the capability nobody is asked (R50, R56)", When: ask(revoked), Then: []events.Event{incapable}},
		{
			Rule: "without a principal nothing is allowed (R57)",
			When: ask(func(c *connection.Request) { c.Authority.Principal = "" }),
			Then: []events.Event{func() events.ServerDenied { d := incapable; d.AuthoritySequence = 4; return d }()},
		},
		{
			Rule: "a capability that has ended is none (R51)",
			When: ask(func(c *connection.Request) {
				c.Authority.Capabilities, c.Authority.Seq = []authority.Granted{{Capability: "mcp.connect:docs", Until: Noon}}, 5
			}),
			Then: []events.Event{incapable},
		},
		{Rule: "the same no to the same question is recorded once", Given: []events.Event{incapable}, When: ask(revoked)},
		{
			Rule: "a no after another change of the grants is recorded", Given: []events.Event{incapable},
			When: ask(unable), Then: []events.Event{func() events.ServerDenied { d := incapable; d.AuthoritySequence = 4; return d }()},
		},
		{
			Rule: "a revoke closes an open connection at the next request (R142)", Given: given[connection.Open],
			When: ask(revoked), Then: []events.Event{events.ConnectionClosed{Generation: 4, Reason: "capability_denied"}, incapable},
		},
		{
			Rule: "a revoke voids the question that waits", Given: given[connection.Waiting],
			When: ask(revoked), Then: []events.Event{expired, incapable},
		},
		{
			Rule: "a grant after a denial asks again (decision 8)", Given: []events.Event{incapable},
			When: ask(func(c *connection.Request) { c.Authority.Seq = 6 }),
			Then: []events.Event{func() events.ConnectRequested { r := requested; r.AuthoritySequence = 6; return r }()},
		},

		// idempotence of what is under way
		{Rule: "an open connection is not asked for again", Given: given[connection.Open], When: ask(retried)},
		{Rule: "another grant leaves an open connection alone", Given: given[connection.Open], When: ask(newGrant)},
		{Rule: "a connection under way is not asked for again", Given: given[connection.Opening], When: ask()},
		{Rule: "one question is open at a time (decision 8)", Given: given[connection.Waiting], When: ask(retried)},

		// change
		{
			Rule: "a changed declaration closes the connection first (R62)", Given: given[connection.Open],
			When: ask(redeclared), Then: []events.Event{events.ConnectionClosed{Generation: 4, Reason: "fingerprint_changed"}, redeclaredAsked},
		},
		{
			Rule: "a changed policy closes the connection first (R142)", Given: given[connection.Open],
			When: ask(newPolicy), Then: []events.Event{events.ConnectionClosed{Generation: 4, Reason: "policy_changed"}, underNewPolicy},
		},
		{
			Rule: "a changed declaration voids the question about the old one (R62)", Given: given[connection.Waiting],
			When: ask(redeclared), Then: []events.Event{expired, redeclaredAsked},
		},
		{
			Rule: "a changed declaration is a new question after a yes to the old one (R62)", Given: given[connection.Approved],
			When: ask(redeclared), Then: []events.Event{redeclaredAsked},
		},

		// negative cache
		{Rule: "a failure is remembered for 30 s, without an event (R134)", Given: given[connection.Failed], When: ask(later(30*time.Second - 1))},
		{Rule: "a retry by an operator does not shorten it (R134)", Given: given[connection.Failed], When: ask(retried, later(time.Second))},
		{Rule: "it is over at its end (R134)", Given: given[connection.Failed], When: ask(later(30 * time.Second)), Then: []events.Event{requested}},
		{Rule: "a changed declaration bypasses it (R134)", Given: given[connection.Failed], When: ask(redeclared), Then: []events.Event{redeclaredAsked}},
		{Rule: "a changed policy bypasses it (R134)", Given: given[connection.Failed], When: ask(newPolicy), Then: []events.Event{underNewPolicy}},

		{Rule: "a server that was open is tried again soon (R167)", Given: again(), When: fail(10), Then: []events.Event{failedAgain(10, 250*time.Millisecond)}},
		{
			Rule:  "and later with each further failure (R167)",
			Given: again(failedAgain(10, 250*time.Millisecond), requested, allowed, claimed, failedAgain(14, 500*time.Millisecond), requested, allowed, claimed),
			When:  fail(18), Then: []events.Event{failedAgain(18, time.Second)},
		},
		{
			Rule:  "and not by itself once it wants a login (R115, R167)",
			Given: again(login(failedAgain(10, 250*time.Millisecond)), requested, allowed, claimed),
			When:  fail(14), Then: []events.Event{failedAgain(14, 30*time.Second)},
		},
		{
			Rule:  "but not when it was declared anew meanwhile (R134)",
			Given: after(connection.Closed, redeclaredAsked, allowed, claimed), When: fail(10), Then: []events.Event{underNew(failedAgain(10, 30*time.Second))},
		},

		// denials
		{Rule: "a denial stands (decision 8)", Given: given[connection.Denied], When: ask(later(1000 * time.Hour))},
		{Rule: "until the declaration changes (decision 8)", Given: given[connection.Denied], When: ask(redeclared), Then: []events.Event{redeclaredAsked}},
		{Rule: "until the policy changes (decision 8)", Given: given[connection.Denied], When: ask(newPolicy), Then: []events.Event{underNewPolicy}},
		{Rule: "until a grant changes (decision 8)", Given: given[connection.Denied], When: ask(newGrant), Then: []events.Event{underNewGrant}},
		{Rule: "until it is asked afresh (R136)", Given: given[connection.Denied], When: ask(retried), Then: []events.Event{requested}},

		// the gate
		{Rule: "the gate asks a person, with the preview (R52, R63)", Given: given[connection.Requested], When: gate(), Then: []events.Event{asked}},
		{
			Rule: "a connect is prompted even where the policy says auto (R52, R53)", Given: []events.Event{auto}, When: gate(),
			Then: []events.Event{func() events.ApprovalRequested { a := asked; a.Policy = "auto"; return a }()},
		},
		{
			Rule: "a cwd outside of the workspace is denied before anybody is asked (R49, R56)", Given: given[connection.Requested],
			When: gate(func(c *connection.Gate) { c.Stage, c.Reason = connection.StageCwd, "cwd_outside_workspace" }),
			Then: []events.Event{events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "cwd", Reason: "cwd_outside_workspace", AuthoritySequence: 4, PolicySequence: 7}},
		},
		{
			Rule: "a refused URL is denied after its decision is recorded (R49, R94)", Given: given[connection.Requested],
			When: gate(func(c *connection.Gate) { c.URL, c.Stage, c.Reason = urlNo, connection.StageURL, urlNo.Reason }),
			Then: []events.Event{*urlNo, events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "url", Reason: "private_address", AuthoritySequence: 4, PolicySequence: 7}},
		},
		{
			Rule: "a name that cannot be resolved is a failure and no denial (R104, R134)", Given: given[connection.Requested],
			When: noName, Then: []events.Event{*unresolved, unknown(30 * time.Second)},
		},
		{
			Rule: "and nobody asks for it again for 30 s (R134)", Given: []events.Event{requested, *unresolved, unknown(30 * time.Second)},
			When: ask(later(30*time.Second - 1)),
		},
		{
			Rule: "and then it is asked for again (R134)", Given: []events.Event{requested, *unresolved, unknown(30 * time.Second)},
			When: ask(later(30 * time.Second)), Then: []events.Event{requested},
		},
		{
			Rule: "a server that was open and whose name cannot be resolved is tried again soon (R167)", Given: after(connection.Closed, requested),
			When: noName, Then: []events.Event{*unresolved, unknown(250 * time.Millisecond)},
		},
		{
			Rule: "a failure tells of the program that was found", Given: given[connection.Opening],
			When: connection.Fail{Generation: 4, Stage: "spawn", Kind: "spawn_failed", Program: "node", ProgramDigest: "p1", At: Noon},
			Then: []events.Event{ofProgram(failed, "p1")},
		},
		{
			Rule: "an approval does not cover another program (E7)", Given: again(swapped, requested),
			When: gate(), Then: []events.Event{asked},
		},
		{
			Rule: "but one that fails otherwise (R134)", Given: again(failedAgain(10, 250*time.Millisecond), requested),
			When: gate(), Then: []events.Event{cached},
		},
		{
			Rule: "an allowed URL is recorded before the question (R94)", Given: given[connection.Requested],
			When: gate(func(c *connection.Gate) { c.URL = urlYes }), Then: []events.Event{*urlYes, asked},
		},
		{Rule: "deny asks nobody (R54)", Given: []events.Event{deny}, When: gate(), Then: []events.Event{automatic, denied}},
		{
			Rule: "where nobody can be asked it is denied at once (R55)", Given: given[connection.Requested],
			When: gate(func(c *connection.Gate) { c.Interactive = false }), Then: []events.Event{automatic, denied},
		},
		{
			Rule: "an approval in force is used again, automatically (R61)", Given: after(connection.Closed, requested),
			When: gate(), Then: []events.Event{cached},
		},
		{
			Rule: "an approval in force needs nobody to ask (R55, R61)", Given: after(connection.Closed, requested),
			When: gate(func(c *connection.Gate) { c.Interactive = false }), Then: []events.Event{cached},
		},
		{Rule: "deny wins over an approval in force (R54)", Given: after(connection.Closed, deny), When: gate(), Then: []events.Event{automatic, denied}},
		{
			Rule: "a URL that is refused now wins over an approval in force (R49)", Given: after(connection.Closed, requested),
			When: gate(func(c *connection.Gate) { c.URL, c.Stage, c.Reason = urlNo, connection.StageURL, urlNo.Reason }),
			Then: []events.Event{*urlNo, events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "url", Reason: "private_address", AuthoritySequence: 4, PolicySequence: 7}},
		},
		{
			Rule: "an approval does not cover another declaration (R62)", Given: after(connection.Closed, redeclaredAsked),
			When: gate(func(c *connection.Gate) { c.Approval = "a-2" }),
			Then: []events.Event{func() events.ApprovalRequested { a := asked; a.Approval, a.Fingerprint = "a-2", "f2"; return a }()},
		},
		{
			Rule: "an approval does not cover another policy", Given: after(connection.Closed, underNewPolicy),
			When: gate(func(c *connection.Gate) { c.Approval = "a-2" }),
			Then: []events.Event{func() events.ApprovalRequested { a := asked; a.Approval, a.PolicySequence = "a-2", 8; return a }()},
		},

		// answers
		{Rule: "a yes is recorded with who and how", Given: given[connection.Waiting], When: yes("a-1"), Then: []events.Event{allowed}},
		{Rule: "a no denies the server (R54, R56)", Given: given[connection.Waiting], When: no("a-1"), Then: []events.Event{refused, denied}},
		{Rule: "an approval is answered once", Given: given[connection.Approved], When: no("a-1"), Fault: fault.Conflict},
		{Rule: "an unknown approval is not answered", Given: given[connection.Waiting], When: yes("a-9"), Fault: fault.Conflict},
		{
			Rule: "a yes to a question about the old declaration is refused (R62)", Given: after(connection.Waiting, expired, redeclaredAsked),
			When: yes("a-1"), Fault: fault.Conflict,
		},
		{
			Rule: "a yes that comes too late is a denial (decision 10)", Given: given[connection.Waiting],
			When: func() connection.Answer { a := yes("a-1"); a.At = Noon.Add(24 * time.Hour); return a }(), Then: []events.Event{expired, denied},
		},
		{
			Rule: "a yes for who may not connect any more is void (R50)", Given: given[connection.Waiting],
			When: connection.Answer{Authority: gone, Approval: "a-1", Allow: true, At: Noon}, Then: []events.Event{expired, incapable},
		},
		{
			Rule: "nobody is asked for who may not connect any more (R50)", Given: given[connection.Waiting],
			When: connection.Withdraw{Authority: gone, At: Noon}, Then: []events.Event{expired, incapable},
		},
		{
			Rule: "a connection with a tool in question ends with its capability (R50)", Given: after(connection.Open, blocked, toolAsked),
			When: connection.Withdraw{Authority: gone, At: Noon},
			Then: []events.Event{events.ConnectionClosed{Generation: 4, Reason: "capability_denied"}, events.ApprovalExpired{Approval: "a-2-1"}, incapable},
		},
		{Rule: "silence is a denial (decision 10)", Given: given[connection.Waiting], When: connection.Expire{At: Noon.Add(24 * time.Hour)}, Then: []events.Event{expired, denied}},
		{Rule: "not before its time (decision 10)", Given: given[connection.Waiting], When: connection.Expire{At: Noon.Add(24*time.Hour - 1)}},
		{
			Rule: "a request finds the silence without the sweeper (decision 10)", Given: given[connection.Waiting],
			When: ask(later(24 * time.Hour)), Then: []events.Event{expired, denied},
		},

		// openings
		{Rule: "an approved connection is claimed by one runtime (R205)", Given: given[connection.Approved], When: connection.Claim{Runtime: "r-1"}, Then: []events.Event{claimed}},
		{Rule: "and by no second one", Given: given[connection.Opening], When: connection.Claim{Runtime: "r-2"}, Fault: fault.Conflict},
		{Rule: "a decision on a request is recorded (R96)", Given: given[connection.Open], When: connection.Judged{URL: *urlYes}, Then: []events.Event{*urlYes}},
		{Rule: "what was kept of a standard error is recorded after the end too (R124)", Given: given[connection.Closed], When: connection.Captured{Stderr: captured}, Then: []events.Event{captured}},
		{Rule: "also that on the last one (R96)", Given: given[connection.Closed], When: connection.Judged{URL: *urlYes}, Then: []events.Event{*urlYes}},
		{
			Rule: "an opening is reported with what was listed (R133)", Given: given[connection.Opening],
			When: connection.Opened{Opened: opened, Discovery: listing("cat-1", "d1", "d1")},
			Then: []events.Event{opened, found(4, listing("cat-1", "d1", "d1"))},
		},
		{
			Rule: "a report about an older opening is refused (decision 20)", Given: given[connection.Opening],
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 3}}, Fault: fault.RuntimeNotLive,
		},
		{
			Rule: "an opening is reported once", Given: given[connection.Open],
			When: connection.Opened{Opened: opened, Discovery: listing("cat-1", "d1", "d1")}, Fault: fault.RuntimeNotLive,
		},
		{
			Rule: "a failure says when it may be tried again (R134)", Given: given[connection.Opening],
			When: connection.Fail{Generation: 4, Stage: "spawn", Kind: "spawn_failed", At: Noon}, Then: []events.Event{failed},
		},
		{Rule: "a failure of an older opening is refused (decision 20)", Given: given[connection.Opening], When: connection.Fail{Generation: 3}, Fault: fault.RuntimeNotLive},
		{Rule: "an open connection does not fail, it closes", Given: given[connection.Open], When: connection.Fail{Generation: 4}, Fault: fault.RuntimeNotLive},
		{
			Rule: "an end is recorded", Given: given[connection.Open],
			When: connection.Close{Generation: 4, Reason: "server_ended"}, Then: []events.Event{closed},
		},
		{Rule: "the end of an older opening is nothing to the present one (decision 20)", Given: given[connection.Open], When: connection.Close{Generation: 3}},
		{
			Rule: "what waits for a person is given up with its session, and nobody is asked any more", Given: given[connection.Waiting],
			When: connection.Close{Reason: "session_ended"}, Then: []events.Event{expired, events.ConnectionClosed{Reason: "session_ended"}},
		},
		{
			Rule: "what was approved is not opened after its session", Given: given[connection.Approved],
			When: connection.Close{Reason: "session_ended"}, Then: []events.Event{events.ConnectionClosed{Reason: "session_ended"}},
		},
		{Rule: "an end is recorded once", Given: given[connection.Closed], When: connection.Close{Generation: 4}},
		{Rule: "what a dead runtime owned is lost (decision 11)", Given: given[connection.Open], When: connection.Reap{Runtime: "r-1"}, Then: []events.Event{lost}},
		{Rule: "what a dead runtime was opening is lost (decision 11)", Given: given[connection.Opening], When: connection.Reap{Runtime: "r-1"}, Then: []events.Event{lost}},
		{Rule: "what a live runtime owns stays when another one is gone (decision 20)", Given: given[connection.Open], When: connection.Reap{Runtime: "r-2"}},
		{Rule: "what a live runtime is opening as well (decision 20)", Given: given[connection.Opening], When: connection.Reap{Runtime: "r-2"}},
		{Rule: "an approval survives the runtime (decision 11)", Given: given[connection.Waiting], When: connection.Reap{Runtime: "r-1"}},

		// tools
		{
			Rule: "a list that cannot be taken again is told of (R168)", Given: given[connection.Open],
			When: connection.Undiscovered{Generation: 4, Kind: "catalog_too_large"}, Then: []events.Event{undiscovered},
		},
		{
			Rule: "and once, as long as it fails in the same way (R168)", Given: after(connection.Open, undiscovered),
			When: connection.Undiscovered{Generation: 4, Kind: "catalog_too_large"},
		},
		{
			Rule: "the same list as before ends that (R168)", Given: after(connection.Open, undiscovered),
			When: connection.Discovered{Generation: 4, Discovery: listing("cat-1", "d1", "d1")},
			Then: []events.Event{func() events.ToolsDiscovered {
				e := unchanged(found(4, listing("cat-1", "d1", "d1")))
				e.Recovered = true
				return e
			}()},
		},
		{
			Rule: "of an opening that is over nothing is told", Given: given[connection.Closed],
			When: connection.Undiscovered{Generation: 4, Kind: "catalog_too_large"}, Fault: fault.RuntimeNotLive,
		},
		{Rule: "the same list is recorded once (R175)", Given: given[connection.Open], When: connection.Discovered{Generation: 4, Discovery: listing("cat-1", "d1", "d1")}},
		{
			Rule: "a changed tool is blocked alone and asked about, with a diff (decision 7)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 4, Discovery: changed}, Then: []events.Event{blocked, toolAsked},
		},
		{
			Rule: "an added tool is blocked alone and asked about (decision 7)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 4, Discovery: added},
			Then: []events.Event{because(found(4, added, "drop"), flag("drop", connection.FlagAdded)), askedTool("a-2-1", "drop", "d1", redact.EventText{})},
		},
		{
			Rule: "each blocked tool has an approval of its own (decision 7)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 4, Discovery: listing("cat-4", "d2", "d2")},
			Then: []events.Event{
				found(4, listing("cat-4", "d2", "d2"), "read", "write"),
				askedTool("a-2-1", "read", "d2", redact.EventText{}), askedTool("a-2-2", "write", "d2", redact.Static("diff")),
			},
		},
		{
			Rule: "a policy may flag instead of block (decision 7)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 4, Discovery: flagged}, Then: []events.Event{because(found(4, flagged), flag("write", connection.FlagChanged))},
		},
		{
			Rule: "a suspicious tool is held from the beginning, the others are not (decision 22)", Given: given[connection.Opening],
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 4}, Discovery: suspicious},
			Then: []events.Event{events.ConnectionOpened{Generation: 4}, held, suspiciousAsked},
		},
		{
			Rule: "also where the policy flags changes (decision 22)", Given: given[connection.Opening],
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 4}, Discovery: suspiciousFlagged},
			Then: []events.Event{events.ConnectionOpened{Generation: 4}, held, suspiciousAsked},
		},
		{
			Rule: "and once it is approved it is flagged and not held", Given: after(connection.Opening, opened, held, suspiciousAsked, suspiciousAllowed),
			When: connection.Discovered{Generation: 4, Discovery: suspiciousAgain},
			Then: []events.Event{because(unchanged(found(4, suspiciousAgain)), flag("write", "bidi"))},
		},
		{
			Rule: "a tool that becomes suspicious is held although the policy flags changes (decision 22)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 4, Discovery: becomes},
			Then: []events.Event{because(found(4, becomes, "write"), flag("write", connection.FlagChanged, "tag")), toolAsked},
		},
		{
			Rule: "the question about one definition is asked once", Given: after(connection.Open, blocked, toolAsked),
			When: connection.Discovered{Generation: 4, Discovery: listing("cat-5", "d1", "d2")},
			Then: []events.Event{unchanged(found(4, listing("cat-5", "d1", "d2"), "write"))},
		},
		{
			Rule: "what changed is told apart (R168)", Given: after(connection.Open, told),
			When: connection.Discovered{Generation: 4, Discovery: beside("cat-5", "r1", "p2")}, Then: []events.Event{foundBeside(4, "cat-5", "r1", "p2", connection.ListPrompts)},
		},
		{
			Rule: "what is opened again has everything anew", Given: after(connection.Open, told, closed, requested, cached, claimed),
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 11}, Discovery: beside("cat-4", "r1", "")},
			Then: []events.Event{events.ConnectionOpened{Generation: 11}, foundBeside(11, "cat-4", "r1", "", connection.ListTools, connection.ListResources)},
		},
		{
			Rule: "a definition that changes while it waits is a new question, and the old one is void (decision 7)", Given: after(connection.Open, blocked, toolAsked),
			When: connection.Discovered{Generation: 4, Discovery: listing("cat-5", "d1", "d3")},
			Then: []events.Event{
				found(4, listing("cat-5", "d1", "d3"), "write"), events.ApprovalExpired{Approval: "a-2-1"},
				askedTool("a-2-1", "write", "d3", redact.Static("diff")),
			},
		},
		{
			Rule: "a tool that changes back is not blocked, and nobody is asked any more", Given: after(connection.Open, blocked, toolAsked),
			When: connection.Discovered{Generation: 4, Discovery: listing("cat-1", "d1", "d1")},
			Then: []events.Event{found(4, listing("cat-1", "d1", "d1")), events.ApprovalExpired{Approval: "a-2-1"}},
		},
		{
			Rule: "no to a tool denies the tool, not the server (decision 7)", Given: after(connection.Open, blocked, toolAsked),
			When: no("a-2-1"), Then: []events.Event{func() events.ApprovalDecided { d := refused; d.Approval = "a-2-1"; return d }()},
		},
		{
			Rule: "silence about a tool denies the tool, not the server (decision 10)", Given: after(connection.Open, blocked, toolAsked),
			When: connection.Expire{At: Noon.Add(24 * time.Hour)}, Then: []events.Event{events.ApprovalExpired{Approval: "a-2-1"}},
		},
		{
			Rule: "a list of an older opening is refused (decision 20)", Given: given[connection.Open],
			When: connection.Discovered{Generation: 3, Discovery: changed}, Fault: fault.RuntimeNotLive,
		},
		{
			Rule:  "a tool that changed while nobody was connected is blocked under the standing approval (decision 7)",
			Given: after(connection.Closed, requested, cached, claimed),
			When:  connection.Opened{Opened: events.ConnectionOpened{Generation: 10}, Discovery: changed},
			Then:  []events.Event{events.ConnectionOpened{Generation: 10}, found(10, changed, "write"), toolAsked},
		},
		{
			// The declaration was changed and changed back: the standing approval holds,
			// and so does what it covers.
			Rule:  "a declaration that changes back keeps what its approval covers (decision 7)",
			Given: after(connection.Closed, redeclaredAsked, requested, cached, claimed),
			When:  connection.Opened{Opened: events.ConnectionOpened{Generation: 11}, Discovery: changed},
			Then:  []events.Event{events.ConnectionOpened{Generation: 11}, found(11, changed, "write"), toolAsked},
		},
		{
			Rule: "a fresh yes covers what is discovered next, whatever it was before (decision 7)",
			Given: after(connection.Closed, redeclaredAsked,
				events.ApprovalRequested{Approval: "a-2", Action: "mcp.connect", Fingerprint: "f2", PolicySequence: 7, Expires: stamp(time.Hour)},
				events.ApprovalDecided{Approval: "a-2", Decision: "allow"}, claimed),
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 11}, Discovery: changed},
			Then: []events.Event{events.ConnectionOpened{Generation: 11}, found(11, changed)},
		},
	})
}

func TestAnsweredToolIsUnblocked(t *testing.T) {
	t.Parallel()
	waiting := decider.Fold(after(connection.Open, found(4, listing("cat-2", "d1", "d2"), "write"), askedTool("a-2-1", "write", "d2", redact.EventText{}))...)
	if !waiting.Blocked["write"] || waiting.Blocked["read"] || waiting.Phase != connection.Open {
		t.Fatalf("while it waits: %+v", waiting)
	}
	answered := decider.Then(waiting, 8, events.ApprovalDecided{Approval: "a-2-1", Decision: "allow"})
	if answered.Blocked["write"] || answered.Approved["write"] != "d2" || answered.Approved["read"] != "d1" || len(answered.Pending) != 0 {
		t.Errorf("after the yes: %+v", answered)
	}
	// A yes to a definition that is gone unblocks nothing.
	moved := decider.Then(waiting, 8, found(4, listing("cat-3", "d1", "d3"), "write"), events.ApprovalDecided{Approval: "a-2-1", Decision: "allow"})
	if !moved.Blocked["write"] {
		t.Errorf("after the yes to an older definition: %+v", moved)
	}
	// The states that readers hold do not change under them.
	if !waiting.Blocked["write"] || waiting.Approved["write"] != "d1" || len(waiting.Pending) != 1 {
		t.Errorf("an older state changed: %+v", waiting)
	}
}

func TestTheSequenceOfTheClaimIsTheGeneration(t *testing.T) {
	t.Parallel()
	s := decider.Fold(given[connection.Open]...)
	if s.Generation != 4 || s.Runtime != "r-1" || s.CatalogSequence != 6 || s.Catalog != "cat-1" || s.Blob != "b1" {
		t.Errorf("state %+v", s)
	}
	if s.Session != "s-1" || s.Principal != Principal || s.Server != "docs" || s.Fingerprint != "f1" {
		t.Errorf("state %+v", s)
	}
	again := decider.Then(s, 6, closed, requested)
	if again.Generation != 0 || again.Runtime != "" || again.Current != nil {
		t.Errorf("a new request keeps the old opening: %+v", again)
	}
}

func TestConnectionIDIsOfSessionAndServer(t *testing.T) {
	t.Parallel()
	if connection.ID("a", "bc") == connection.ID("ab", "c") {
		t.Error("two connections have the same id")
	}
	// It is in logs, so it stays what it is.
	if got, want := connection.ID("s-1", "docs"), "c-87603d51f31a75a8"; got != want {
		t.Errorf("the id is %s, want %s", got, want)
	}
}

// Every phase and every command, so that no cell is left to chance.
func TestEveryCommandInEveryPhase(t *testing.T) {
	t.Parallel()
	var phases []Named[[]events.Event]
	for _, p := range []connection.Phase{
		connection.None, connection.Requested, connection.Waiting, connection.Approved, connection.Opening, connection.Open, connection.Denied, connection.Failed, connection.Closed, connection.Lost,
	} {
		if s := decider.Fold(given[p]...); s.Phase != p {
			t.Fatalf("the history of %q leads to %q", p, s.Phase)
		}
		phases = append(phases, Named[[]events.Event]{Name: cmp.Or(string(p), "none"), Is: given[p]})
	}
	late := Noon.Add(48 * time.Hour)
	decider.Matrix(t, matrix, phases, []Named[connection.Command]{
		{Name: "request", Is: ask()},
		{Name: "request afresh", Is: ask(retried)},
		{Name: "request of a new declaration", Is: ask(redeclared)},
		{Name: "request under a new policy", Is: ask(newPolicy)},
		{Name: "request after a grant", Is: ask(newGrant)},
		{Name: "request after a revoke", Is: ask(revoked)},
		{Name: "request two days later", Is: ask(later(48 * time.Hour))},
		{Name: "gate", Is: gate()},
		{Name: "gate that denies", Is: gate(func(c *connection.Gate) { c.Stage = connection.StageCwd })},
		{Name: "gate with nobody to ask", Is: gate(func(c *connection.Gate) { c.Interactive = false })},
		{Name: "yes", Is: yes("a-1")},
		{Name: "no", Is: no("a-1")},
		{Name: "yes after a revoke", Is: connection.Answer{Authority: gone, Approval: "a-1", Allow: true, At: Noon}},
		{Name: "expire", Is: connection.Expire{At: late}},
		{Name: "withdraw", Is: connection.Withdraw{Authority: may, At: Noon}},
		{Name: "withdraw after a revoke", Is: connection.Withdraw{Authority: gone, At: Noon}},
		{Name: "claim", Is: connection.Claim{Runtime: "r-1"}},
		{Name: "opened", Is: connection.Opened{Opened: opened, Discovery: listing("cat-1", "d1", "d1")}},
		{Name: "opened of another opening", Is: connection.Opened{Opened: events.ConnectionOpened{Generation: 3}}},
		{Name: "discovered", Is: connection.Discovered{Generation: 4, Discovery: listing("cat-2", "d1", "d2")}},
		{Name: "discovered in another opening", Is: connection.Discovered{Generation: 3, Discovery: listing("cat-2", "d1", "d2")}},
		{Name: "fail", Is: connection.Fail{Generation: 4, At: Noon}},
		{Name: "fail of another opening", Is: connection.Fail{Generation: 3, At: Noon}},
		{Name: "close", Is: connection.Close{Generation: 4}},
		{Name: "close of another opening", Is: connection.Close{Generation: 3}},
		{Name: "reap of its runtime", Is: connection.Reap{Runtime: "r-1"}},
		{Name: "reap of another runtime", Is: connection.Reap{Runtime: "r-2"}},
	})
}

// matrix is every command in every phase: what happens, and the phases in which
// it does.
const matrix = `
request
  connect_requested: none closed lost
  -: requested waiting approved opening open denied failed
request afresh
  connect_requested: none denied closed lost
  -: requested waiting approved opening open failed
request of a new declaration
  connect_requested: none requested approved denied failed closed lost
  approval_expired+connect_requested: waiting
  connection_closed+connect_requested: opening open
request under a new policy
  connect_requested: none requested approved denied failed closed lost
  approval_expired+connect_requested: waiting
  connection_closed+connect_requested: opening open
request after a grant
  connect_requested: none denied closed lost
  -: requested waiting approved opening open failed
request after a revoke
  server_denied: none requested approved denied failed closed lost
  approval_expired+server_denied: waiting
  connection_closed+server_denied: opening open
request two days later
  connect_requested: none failed closed lost
  -: requested approved opening open denied
  approval_expired+server_denied: waiting
gate
  !conflict: none waiting approved opening open denied failed closed lost
  approval_requested: requested
gate that denies
  !conflict: none waiting approved opening open denied failed closed lost
  server_denied: requested
gate with nobody to ask
  !conflict: none waiting approved opening open denied failed closed lost
  approval_decided+server_denied: requested
yes
  !conflict: none requested approved opening open denied failed closed lost
  approval_decided: waiting
no
  !conflict: none requested approved opening open denied failed closed lost
  approval_decided+server_denied: waiting
yes after a revoke
  !conflict: none requested approved opening open denied failed closed lost
  approval_expired+server_denied: waiting
expire
  -: none requested approved opening open denied failed closed lost
  approval_expired+server_denied: waiting
withdraw
  -: none requested waiting approved opening open denied failed closed lost
withdraw after a revoke
  -: none denied
  server_denied: requested approved failed closed lost
  approval_expired+server_denied: waiting
  connection_closed+server_denied: opening open
claim
  !conflict: none requested waiting opening open denied failed closed lost
  connection_claimed: approved
opened
  !runtime_not_live: none requested waiting approved open denied failed closed lost
  connection_opened+tools_discovered: opening
opened of another opening
  !runtime_not_live: none requested waiting approved opening open denied failed closed lost
discovered
  !runtime_not_live: none requested waiting approved opening denied failed closed lost
  tools_discovered+approval_requested: open
discovered in another opening
  !runtime_not_live: none requested waiting approved opening open denied failed closed lost
fail
  !runtime_not_live: none requested waiting approved open denied failed closed lost
  server_failed: opening
fail of another opening
  !runtime_not_live: none requested waiting approved opening open denied failed closed lost
close
  -: none requested waiting approved denied failed closed lost
  connection_closed: opening open
close of another opening
  -: none requested waiting approved opening open denied failed closed lost
reap of its runtime
  -: none requested waiting approved denied failed closed lost
  connection_lost: opening open
reap of another runtime
  -: none requested waiting approved opening open denied failed closed lost
`

// What a person compares a changed definition with is the approved one, however
// often it has changed since (decision 7).
func TestBaseIsTheCatalogOfTheApprovedDefinition_Decision7(t *testing.T) {
	t.Parallel()
	list := func(blob, write string) events.ToolsDiscovered {
		d := listing("cat-"+blob, "d1", write)
		d.Blob = blob
		return found(4, d)
	}
	s := decider.Fold(after(connection.Opening, opened, list("b1", "d1"), list("b2", "d2"), list("b3", "d3"))...)
	if s.Base["write"] != "b1" || s.Base["read"] != "" {
		t.Errorf("after two changes: %v", s.Base)
	}
	asked := askedTool("a-2-1", "write", "d3", redact.Static("diff"))
	yes := events.ApprovalDecided{Approval: "a-2-1", Decision: "allow"}
	if s := decider.Then(decider.Then(s, 9, asked), 10, yes); s.Base["write"] != "" || s.Approved["write"] != "d3" {
		t.Errorf("after the yes: %v", s.Base)
	}
	if s := decider.Then(s, 9, list("b4", "d1")); s.Base["write"] != "" {
		t.Errorf("after it changed back: %v", s.Base)
	}
	held := s.Held(listing("cat-9", "d1", "d4"))
	if len(held) != 1 || held["write"] != "d1" {
		t.Errorf("held %v", held)
	}
}

func TestDiffNamesEachPlace_Decision7(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, want string }{
		{`{"name":"a","description":"x"}`, "{ \"description\":\"\\u0078\", \"name\":\"a\" }", `[]`},
		{`{"d":"x"}`, `{"d":"y"}`, `[{"path":"/d","before":"x","after":"y"}]`},
		{`{"a":{"b":[1,{"c":true}]}}`, `{"a":{"b":[1,{"c":false},2]}}`, `[{"path":"/a/b/1/c","before":true,"after":false},{"path":"/a/b/2","after":2}]`},
		{`{"a":1,"b":2}`, `{"b":2}`, `[{"path":"/a","before":1}]`},
		{`{"n":9007199254740992}`, `{"n":9007199254740993}`, `[{"path":"/n","before":9007199254740992,"after":9007199254740993}]`},
		{`{"a/b":1,"~":1}`, `{"a/b":2,"~":2}`, `[{"path":"/a~1b","before":1,"after":2},{"path":"/~0","before":1,"after":2}]`},
		{`{"a":{}}`, `{"a":[]}`, `[{"path":"/a","before":{},"after":[]}]`},
		{`{"a":1,"a":2}`, `{"a":2}`, `[{"path":"","before":{"a":1,"a":2},"after":{"a":2}}]`},
		{`not JSON`, `{}`, ``},
	} {
		diff := connection.Diff(connection.Definition(c.before), connection.Definition(c.after))
		if c.want == "" {
			if len(diff) != 1 || diff[0].Path != "" {
				t.Errorf("%s: %v", c.before, diff)
			}
			continue
		}
		got, err := json.Marshal(diff, jsontext.AllowDuplicateNames(true))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.want {
			t.Errorf("%s and %s:\ngot  %s\nwant %s", c.before, c.after, got, c.want)
		}
	}
}

// An approval covers the program that was started first under it, also where that did
// not come as far as to be open; one that was found and not started is none (E7).
func TestAProgramThatFailsIsTheOneThatWasApproved_E7(t *testing.T) {
	t.Parallel()
	ran, opens := failed, opened
	ran.Stage, ran.Kind, opens.ProgramDigest = "initialize", "initialize_failed", "p2"
	for _, test := range []struct {
		name string
		then []events.Event
		want string
	}{
		{"found and not started", []events.Event{ofProgram(failed, "p1")}, ""},
		{"started", []events.Event{ofProgram(ran, "p1")}, "p1"},
		{"the first one counts", []events.Event{ofProgram(ran, "p1"), requested, allowed, claimed, opens}, "p1"},
		{"the first that was started", []events.Event{ofProgram(failed, "p1"), requested, allowed, claimed, opens}, "p2"},
	} {
		s := decider.Fold(after(connection.Opening, test.then...)...)
		if s.Standing.Program != test.want {
			t.Errorf("%s: %q, want %q", test.name, s.Standing.Program, test.want)
		}
	}
}

// The digest of the instructions is in each discovery, and a change of them since the
// approval is flagged (R173, B4, B8).
func TestInstructionsThatChangeAreFlagged_R173(t *testing.T) {
	t.Parallel()
	s := decider.Fold(given[connection.Opening]...)
	for i, step := range []struct {
		digest  string
		orders  []string
		changed bool
		reasons []string
	}{
		{"i1", nil, true, nil},
		{"i1", nil, false, nil},
		{"i2", nil, true, []string{"changed"}},
		{"i2", []string{"instruction"}, false, []string{"changed", "instruction"}},
		{"i1", nil, true, nil},
		{"", nil, true, nil},
		{"i1", []string{"bidi"}, true, []string{"bidi"}},
	} {
		o := opened
		o.Generation = s.Generation
		d := listing("cat-1", "d1", "d1")
		d.Instructions, d.Orders = step.digest, step.orders
		list, err := decider.Decide(s, connection.Opened{Opened: o, Discovery: d})
		if err != nil {
			t.Fatal(i, err)
		}
		e := list[1].(events.ToolsDiscovered)
		if e.InstructionsDigest != step.digest || slices.Contains(e.Changed, "instructions") != step.changed {
			t.Errorf("step %d: %q, changed %v", i, e.InstructionsDigest, e.Changed)
		}
		var reasons []string
		for _, f := range e.ItemFlags {
			reasons = append(reasons, f.Reasons...)
		}
		if !slices.Equal(reasons, step.reasons) {
			t.Errorf("step %d: flagged %v, want %v", i, reasons, step.reasons)
		}
		s = decider.Then(s, uint64(10*i), append(list, closed, requested, allowed, claimed)...)
	}
	fresh := asked
	fresh.Approval = "a-2"
	yes := allowed
	yes.Approval = "a-2"
	s = decider.Then(s, 100, closed, requested, fresh, yes, claimed)
	d := listing("cat-1", "d1", "d1")
	d.Instructions = "i3"
	o := opened
	o.Generation = s.Generation
	list, err := decider.Decide(s, connection.Opened{Opened: o, Discovery: d})
	if err != nil || len(list[1].(events.ToolsDiscovered).ItemFlags) > 0 {
		t.Errorf("a fresh yes covers them: %+v, %v", list, err)
	}
}
