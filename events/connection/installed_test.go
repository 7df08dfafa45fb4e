package connection_test

import (
	"slices"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

// installed asks for the connection of an installed server, on the yes i-1.
func installed(change ...func(*connection.Request)) connection.Request {
	return ask(append([]func(*connection.Request){func(c *connection.Request) {
		c.Session, c.Approval = "", "i-1"
	}}, change...)...)
}

func reinstalled(c *connection.Request) { c.Approval = "i-2" }

// What happens to the connection of an installed server; the claim comes third.
var (
	requestedShared = func() events.ConnectRequested {
		r := requested
		r.Session, r.Approval = "", "i-1"
		return r
	}()
	requestedRevoked = with(requestedShared, func(r *events.ConnectRequested) { r.AuthoritySequence = 5 })

	byInstall    = events.ApprovalDecided{Approval: "i-1", Decision: "allow", Kind: "session", By: "install", Automatic: true, Cached: true}
	openedShared = []events.Event{requestedShared, byInstall, claimed, events.ConnectionOpened{Generation: 3, ProgramDigest: "p1"}, atGeneration(3)}
	endedShared  = events.ConnectionClosed{Generation: 3, Reason: "server_ended"}
)

func atGeneration(g uint32) events.ToolsDiscovered {
	d := discovered
	d.Generation = g
	return d
}

func shared(more ...events.Event) []events.Event { return append(slices.Clone(openedShared), more...) }

func with(r events.ConnectRequested, change func(*events.ConnectRequested)) events.ConnectRequested {
	change(&r)
	return r
}

// failures are that many attempts of an installed server that failed, and one under way;
// at is the generation of that.
func failures(n int) (list []events.Event, at uint32) {
	for i := range n {
		e := failed
		e.Generation = uint32(4*i + 3)
		list = append(list, requestedShared, byInstall, claimed, e)
	}
	list = append(list, requestedShared, byInstall, claimed)
	return list, uint32(len(list))
}

func TestConnectionOfAnInstalledServer(t *testing.T) {
	t.Parallel()
	changed := listing("cat-2", "d1", "d2")
	swapped := events.ServerFailed{Server: "docs", Fingerprint: "f1", Generation: 8, Stage: "spawn", Kind: "program_changed", RetryAfter: stamp(time.Second)}
	swap := shared(endedShared, requestedShared, byInstall, claimed, swapped)
	underNewPolicy := with(requestedShared, func(r *events.ConnectRequested) { r.PolicySequence = 8 })
	under2 := with(requestedShared, func(r *events.ConnectRequested) { r.Approval = "i-2" })
	other := with(under2, func(r *events.ConnectRequested) { r.Fingerprint = "f2" })
	noMore := events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "capability", Reason: "capability_denied", Capability: "mcp.connect:docs", AuthoritySequence: 5, PolicySequence: 7}
	closedNow := func(reason string) events.Event { return events.ConnectionClosed{Generation: 3, Reason: reason} }
	askedAgain := func(id string) events.ApprovalRequested { a := asked; a.Approval = id; return a }

	decider.Run(t, []Case[connection.Command]{
		{Rule: "it is asked for on the yes of who installed it (C12)", When: installed(), Then: []events.Event{requestedShared}},
		{Rule: "and not without his authority (C1)", When: installed(revoked), Then: []events.Event{requestedRevoked, incapable}},
		{Rule: "nobody is asked, and the log says whose yes it is (C12)", Given: []events.Event{requestedShared}, When: gate(), Then: []events.Event{byInstall}},
		{
			Rule: "also where there is nobody to ask (C12)", Given: []events.Event{requestedShared},
			When: gate(func(c *connection.Gate) { c.Interactive = false }), Then: []events.Event{byInstall},
		},
		{
			Rule: "policy denies it all the same (R54)", Given: []events.Event{with(requestedShared, func(r *events.ConnectRequested) { r.Policy = "deny" })},
			When: gate(), Then: []events.Event{events.ApprovalDecided{Decision: "deny", Automatic: true, By: "policy"}, denied},
		},
		{
			Rule: "and so does a cwd outside of the workspace (R71)", Given: []events.Event{requestedShared},
			When: gate(func(c *connection.Gate) { c.Stage, c.Reason = connection.StageCwd, "cwd_outside_workspace" }),
			Then: []events.Event{events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "cwd", Reason: "cwd_outside_workspace", AuthoritySequence: 4, PolicySequence: 7}},
		},
		{Rule: "what is open is not asked for again", Given: openedShared, When: installed(retried)},

		{
			Rule: "another fingerprint is another server, on another yes (C12)", Given: openedShared,
			When: installed(redeclared, reinstalled), Then: []events.Event{closedNow("fingerprint_changed"), other},
		},
		{
			Rule: "another policy is judged anew (C1)", Given: openedShared,
			When: installed(newPolicy), Then: []events.Event{closedNow("policy_changed"), underNewPolicy},
		},
		{
			Rule: "and the yes holds under it (C12)", Given: shared(closedNow("policy_changed"), underNewPolicy), When: gate(), Then: []events.Event{byInstall},
		},
		{
			Rule: "but not for a definition that changed meanwhile (decision 7)", Given: shared(closedNow("policy_changed"), underNewPolicy, byInstall, claimed),
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 9}, Discovery: changed},
			Then: []events.Event{events.ConnectionOpened{Generation: 9}, found(9, changed, "write"), func() events.Event {
				a := askedTool("a-2-1", "write", "d2", redact.Static("diff"))
				a.PolicySequence = 8
				return a
			}()},
		},
		{
			Rule: "nor for one that changed while the server was away (decision 7)", Given: shared(endedShared, requestedShared, byInstall, claimed),
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 9}, Discovery: changed},
			Then: []events.Event{events.ConnectionOpened{Generation: 9}, found(9, changed, "write"), askedTool("a-2-1", "write", "d2", redact.Static("diff"))},
		},
		{
			Rule: "who installs it again says yes to what it lists then", Given: shared(endedShared, under2, byInstall, claimed),
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 9}, Discovery: changed},
			Then: []events.Event{events.ConnectionOpened{Generation: 9}, found(9, changed)},
		},
		{
			Rule: "the yes is not to a program that took the place of the first one (E7)", Given: append(swap, requestedShared),
			When: gate(), Then: []events.Event{asked},
		},
		{
			Rule: "a person may say yes to that one", Given: append(swap, requestedShared, askedAgain("a-7"), events.ApprovalDecided{Approval: "a-7", Decision: "allow"}, claimed, closed, requestedShared),
			When: gate(), Then: []events.Event{events.ApprovalDecided{Approval: "a-7", Decision: "allow", Kind: "session", By: "approval", Automatic: true, Cached: true}},
		},
		{
			Rule: "or install it again", Given: append(swap, requestedShared, askedAgain("a-7")),
			When: installed(reinstalled), Then: []events.Event{events.ApprovalExpired{Approval: "a-7"}, under2},
		},

		{
			Rule: "it ends with the authority of who installed it (C1)", Given: openedShared,
			When: connection.Withdraw{Authority: gone, At: Noon}, Then: []events.Event{closedNow("capability_denied"), noMore},
		},
		{Rule: "once", Given: shared(closedNow("capability_denied"), noMore), When: connection.Withdraw{Authority: gone, At: Noon}},
		{Rule: "and is not asked for again meanwhile", Given: []events.Event{requestedRevoked, incapable}, When: installed(revoked)},
		{
			Rule: "another policy is answered too, so that who starts it does not ask for ever", Given: []events.Event{requestedRevoked, incapable},
			When: installed(revoked, newPolicy),
			Then: []events.Event{with(requestedRevoked, func(r *events.ConnectRequested) { r.PolicySequence = 8 }), func() events.Event {
				e := incapable
				e.PolicySequence = 8
				return e
			}()},
		},
		{
			Rule: "and so is another yes", Given: []events.Event{requestedRevoked, incapable}, When: installed(revoked, reinstalled),
			Then: []events.Event{with(requestedRevoked, func(r *events.ConnectRequested) { r.Approval = "i-2" }), incapable},
		},
		{
			Rule: "the yes stands when he has it again (C12)", Given: shared(closedNow("capability_denied"), noMore, requestedShared),
			When: gate(), Then: []events.Event{byInstall},
		},

		{Rule: "what ended by itself is not started again at once (R167)", Given: shared(endedShared), When: installed(later(time.Second - 1))},
		{Rule: "but a second later (R167)", Given: shared(endedShared), When: installed(later(time.Second)), Then: []events.Event{requestedShared}},
		{Rule: "or when a person wants it (R170)", Given: shared(endedShared), When: installed(retried), Then: []events.Event{requestedShared}},
		{Rule: "what was ended here is started at once (R163)", Given: shared(closedNow("restart")), When: installed(), Then: []events.Event{requestedShared}},
		{
			Rule: "a failure is over where a person wants another attempt (R170)", Given: []events.Event{requestedShared, byInstall, claimed, failed},
			When: installed(retried), Then: []events.Event{requestedShared},
		},
		{
			Rule: "who stops it stops the waiting too", Given: shared(endedShared),
			When: connection.Close{Generation: 3, Reason: "restart"}, Then: []events.Event{closedNow("restart")},
		},
		{Rule: "once", Given: shared(endedShared, closedNow("restart")), When: connection.Close{Generation: 3, Reason: "restart"}},
		{
			Rule: "and forgets that it failed", Given: []events.Event{requestedShared, byInstall, claimed, failed},
			When: connection.Close{Generation: 3, Reason: "restart"}, Then: []events.Event{closedNow("restart")},
		},
		{
			Rule: "what is stopped is closed (R164)", Given: openedShared,
			When: connection.Close{Generation: 3, Reason: "disabled"}, Then: []events.Event{closedNow("disabled")},
		},
	})
}

// R167: one second, and twice as long with each further failure, up to a minute.
func TestAnInstalledServerIsTriedAgainLaterEachTime_R167(t *testing.T) {
	t.Parallel()
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		given, at := failures(n)
		got, err := connection.Decide(decider.Fold(given...), connection.Fail{Generation: at, Stage: "spawn", Kind: "spawn_failed", At: Noon})
		if err != nil || len(got) != 1 || got[0].(events.ServerFailed).RetryAfter != stamp(want*time.Second) {
			t.Errorf("after %d failures: %v, %v; want %v", n, got, err, want*time.Second)
		}
	}
	// The count begins anew when it was open.
	given, at := failures(4)
	s := decider.Then(decider.Fold(given...), uint64(at), events.ConnectionOpened{Generation: at})
	if s.Failures != 0 {
		t.Errorf("%d failures are counted of a server that is open", s.Failures)
	}
}

// A server that starts well and dies at once would fill the log with its starts.
func TestAnInstalledServerThatDiesAtOnceIsStartedLessOften_R167(t *testing.T) {
	t.Parallel()
	var s connection.State
	now, seq := Noon, uint64(0)
	then := func(e events.Event) {
		seq++
		s = connection.Evolve(s, events.Recorded{Commit: &events.Commit{Seq: seq, Time: now, Principal: "local"}, Event: e})
	}
	dies := func(after time.Duration) time.Duration {
		for _, e := range []events.Event{requestedShared, byInstall, claimed} {
			then(e)
		}
		g := s.Generation
		then(events.ConnectionOpened{Generation: g})
		now = now.Add(after)
		then(events.ConnectionClosed{Generation: g, Reason: connection.ReasonServerEnded})
		return s.RetryAfter.Sub(now)
	}
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if got := dies(time.Second); got != want*time.Second {
			t.Errorf("after %d ends it is left alone for %v, want %v", n, got, want*time.Second)
		}
	}
	if got := dies(time.Minute); got != time.Second {
		t.Errorf("one that ran for a minute is left alone for %v", got)
	}
	dies(time.Second)
	then(events.ConnectionClosed{Generation: s.Generation, Reason: "manual"})
	if got := dies(time.Second); got != time.Second {
		t.Errorf("one that a person has restarted is left alone for %v", got)
	}
}

// Other clients' private connections hang on the one that all share (C1).
func TestPrivateConnectionBesideAnInstalledServer(t *testing.T) {
	t.Parallel()
	all := decider.Fold(openedShared...)
	yes := all.Covering("f1", 7)
	if yes != "i-1" {
		t.Fatalf("the yes is %q", yes)
	}
	alone := func(session, attachment string) connection.State {
		r := requestedAlone
		r.Session, r.Attachment, r.Approval = session, attachment, yes
		return decider.Fold(r, citing, claimed)
	}
	own, other := alone("s-1", "x-1"), alone("s-2", "x-2")
	listed := []events.ToolDigest{{Tool: "read", Digest: "d1"}, {Tool: "drop", Digest: "d1"}}
	if got := own.Covered(all, nil, listed); got["read"] != "d1" || got["write"] != "d1" {
		t.Errorf("covered are %v", got)
	}
	if got := own.Started(all); got != "p1" {
		t.Errorf("it may start %q", got)
	}
	// What a person said yes to for another session is not said for this one.
	other.Granted = map[string]string{"drop": "d1"}
	if got := own.Covered(all, []connection.State{other}, listed); got["drop"] != "" {
		t.Errorf("covered are %v", got)
	}
	if got := own.Alike(other); got != nil {
		t.Errorf("alike are %v", got)
	}
	// Nothing is covered where the installer may not connect any more.
	gone := decider.Then(all, 5, events.ConnectionClosed{Generation: 3, Reason: "capability_denied"}, events.ServerDenied{Server: "docs", Fingerprint: "f1", Stage: "capability"})
	if got := gone.Covering("f1", 7); got != "" {
		t.Errorf("%q is in force", got)
	}
}

// What a session's connection is not.
func TestOnlyTheConnectionWithoutASessionIsInstalled(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]events.Event{"of a session": given[connection.Open], "private": openedAlone, "denied first": {incapable}} {
		if decider.Fold(list...).Installed() {
			t.Errorf("a connection that is %s is that of an installed server", name)
		}
	}
	if s := decider.Fold(openedShared...); !s.Installed() || s.ID() != connection.ID("", "docs") {
		t.Errorf("%+v", s)
	}
}
