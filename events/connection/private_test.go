package connection_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/redact"
)

// alone is the request of an attachment, on the approval a-1 of the shared connection.
func alone(change ...func(*connection.Request)) connection.Request {
	return ask(append([]func(*connection.Request){func(c *connection.Request) {
		c.Attachment, c.Runtime, c.Approval, c.Offers = "x-1", "r-1", "a-1", []string{"roots"}
	}}, change...)...)
}

// On the way of a private connection; the claim comes third.
var (
	requestedAlone = func() events.ConnectRequested {
		r := requested
		r.Attachment, r.Runtime, r.Approval, r.Offers = "x-1", "r-1", "a-1", []string{"roots"}
		return r
	}()
	citing       = events.ApprovalDecided{Approval: "a-1", Decision: "allow", Kind: "session", By: "approval", Automatic: true, Cached: true}
	openedAlone  = []events.Event{requestedAlone, citing, claimed}
	withoutOffer = func(c *connection.Request) { c.Offers = nil }
	unapproved   = func(c *connection.Request) { c.Approval = "" }
)

func TestPrivateConnectionRules(t *testing.T) {
	t.Parallel()
	covered := listing("cat-1", "d1", "d1")
	covered.Covered = map[string]string{"read": "d1", "write": "d1"}
	other := covered
	other.Covered = map[string]string{"read": "d1", "write": "d0"}
	uncovered := listing("cat-1", "d1", "d1")
	open := append(openedAlone[:3:3], events.ConnectionOpened{Generation: 3}, found(3, other, "write"), askedTool("a-2-1", "write", "d1", redact.EventText{}))
	closedNow := func(reason string) events.Event { return events.ConnectionClosed{Generation: 3, Reason: reason} }

	decider.Run(t, []Case[connection.Command]{
		{Rule: "what the shared connection was approved for is asked for", When: alone(), Then: []events.Event{requestedAlone}},
		{Rule: "without that approval nothing happens", When: alone(unapproved)},
		{Rule: "without an offer there is nothing to have it for", When: alone(withoutOffer)},
		{Rule: "without the capability it is denied", When: alone(revoked), Then: []events.Event{incapable}},
		{Rule: "nobody is asked a second time", Given: []events.Event{requestedAlone}, When: gate(), Then: []events.Event{citing}},
		{
			Rule: "and nobody at all where the approval is of something else", Given: []events.Event{func() events.Event { r := requestedAlone; r.Approval = ""; return r }()},
			When: gate(), Then: []events.Event{events.ApprovalDecided{Decision: "deny", Automatic: true, By: "policy"}, denied},
		},
		{
			Rule: "what the shared connection has is there", Given: openedAlone,
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 3}, Discovery: covered},
			Then: []events.Event{events.ConnectionOpened{Generation: 3}, found(3, covered)},
		},
		{
			Rule: "and what is other there waits for a yes", Given: openedAlone,
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 3}, Discovery: other},
			Then: []events.Event{events.ConnectionOpened{Generation: 3}, found(3, other, "write"), askedTool("a-2-1", "write", "d1", redact.Static("diff"))},
		},
		{
			Rule: "also where the shared one has not listed yet", Given: openedAlone,
			When: connection.Opened{Opened: events.ConnectionOpened{Generation: 3}, Discovery: uncovered},
			Then: []events.Event{
				events.ConnectionOpened{Generation: 3},
				because(found(3, uncovered, "read", "write"), flag("read", connection.FlagAdded), flag("write", connection.FlagAdded)),
				askedTool("a-2-1", "read", "d1", redact.EventText{}), askedTool("a-2-2", "write", "d1", redact.Static("diff")),
			},
		},
		{Rule: "the same offers change nothing", Given: open, When: alone()},
		{
			Rule: "other offers need another handshake", Given: open, When: alone(func(c *connection.Request) { c.Offers = []string{"roots", "sampling"} }),
			Then: []events.Event{closedNow("offers_changed"), events.ApprovalExpired{Approval: "a-2-1"}, func() events.Event {
				r := requestedAlone
				r.Offers = []string{"roots", "sampling"}
				return r
			}()},
		},
		{
			Rule: "no offer any more ends it", Given: open, When: alone(withoutOffer),
			Then: []events.Event{closedNow("offers_changed"), events.ApprovalExpired{Approval: "a-2-1"}},
		},
		{
			Rule: "also before it is opened", Given: openedAlone[:2], When: alone(withoutOffer),
			Then: []events.Event{events.ConnectionClosed{Reason: "offers_changed"}},
		},
		{
			Rule: "nor does it begin once the yes is gone", Given: openedAlone[:2], When: alone(unapproved),
			Then: []events.Event{events.ConnectionClosed{Reason: "approval_ended"}},
		},
		{
			Rule: "and under another yes it is asked for anew", Given: openedAlone[:2], When: alone(func(c *connection.Request) { c.Approval = "a-9" }),
			Then: []events.Event{func() events.Event { r := requestedAlone; r.Approval = "a-9"; return r }()},
		},
		{Rule: "what has begun goes on", Given: openedAlone, When: alone(unapproved)},
		{
			Rule: "with its attachment go the questions", Given: open, When: connection.Close{Generation: 3, Reason: "attachment_ended"},
			Then: []events.Event{events.ApprovalExpired{Approval: "a-2-1"}, closedNow("attachment_ended")},
		},
		{
			Rule: "nobody else opens what its runtime has not", Given: openedAlone[:2], When: connection.Reap{Runtime: "r-1"},
			Then: []events.Event{events.ConnectionClosed{Reason: "runtime_closed"}},
		},
		{
			Rule: "what is open is lost with its runtime", Given: open, When: connection.Reap{Runtime: "r-1"},
			Then: []events.Event{events.ConnectionLost{Generation: 3, Runtime: "r-1"}},
		},
	})
}

func TestPrivateConnectionIsForgotten(t *testing.T) {
	t.Parallel()
	for _, end := range []events.Event{closed, lost, failed, denied} {
		s := decider.Fold(append(openedAlone[:3:3], end)...)
		if at, over := connection.Over(s); !over || at.IsZero() {
			t.Errorf("after %T it is over at %v: %v", end, at, over)
		}
		if _, over := connection.Over(decider.Then(s, 4, requestedAlone)); over {
			t.Errorf("asked for again after %T it is over", end)
		}
	}
	if _, over := connection.Over(decider.Fold(given[connection.Closed]...)); over {
		t.Error("a shared connection is forgotten")
	}
}

// A yes to a tool of one attachment holds for that definition on those of the others,
// as long as the yes to the server stands that it was given beside.
func TestYesToAToolOfOneAttachmentHoldsForOthers(t *testing.T) {
	t.Parallel()
	listed := []events.ToolDigest{{Tool: "read", Digest: "d1"}, {Tool: "write", Digest: "d1"}}
	other := listing("cat-1", "d1", "d1")
	other.Covered = map[string]string{"read": "d1"}
	granted := append(openedAlone[:3:3], events.ConnectionOpened{Generation: 3, ProgramDigest: "p"}, found(3, other, "write"),
		askedTool("a-2-1", "write", "d1", redact.EventText{}), events.ApprovalDecided{Approval: "a-2-1", Decision: "allow", Kind: "session", By: "local"}, closed)
	yes := decider.Fold(granted...)
	shared := connection.State{Session: yes.Session, Server: yes.Server, Standing: yes.Standing, Approved: map[string]string{"read": "d1"}}
	own := decider.Fold(openedAlone...)
	if got := own.Covered(shared, []connection.State{yes}, listed); !maps.Equal(got, map[string]string{"read": "d1", "write": "d1"}) {
		t.Errorf("covered is %v", got)
	}
	if _, over := connection.Over(yes); over {
		t.Error("the yes is forgotten")
	}
	if s := decider.Then(yes, 9, requestedAlone); s.Granted["write"] != "d1" {
		t.Error("the attachment itself has to ask again")
	}
	if got := own.Covered(shared, []connection.State{yes}, []events.ToolDigest{{Tool: "write", Digest: "d2"}}); !maps.Equal(got, shared.Approved) {
		t.Errorf("of another definition covered is %v", got)
	}
	for name, change := range map[string]func(shared, yes *connection.State){
		"another yes":         func(shared, _ *connection.State) { shared.Standing.Approval = "a-9" },
		"another fingerprint": func(shared, _ *connection.State) { shared.Standing.Fingerprint = "f9" },
		"another policy":      func(shared, _ *connection.State) { shared.Standing.PolicySequence++ },
		"no yes": func(shared, yes *connection.State) {
			shared.Standing, yes.Standing = connection.Standing{}, connection.Standing{}
		},
		"another session":     func(shared, _ *connection.State) { shared.Session = "s-9" },
		"another server":      func(shared, _ *connection.State) { shared.Server = "other" },
		"another yes there":   func(_, yes *connection.State) { yes.Standing.Approval = "a-9" },
		"a shared connection": func(_, yes *connection.State) { yes.Attachment = "" },
	} {
		s, y := shared, yes
		change(&s, &y)
		want := shared.Approved
		if s.Session != own.Session || s.Server != own.Server || s.Standing != shared.Standing {
			want = nil // the own yes is of something else
		}
		if got := own.Covered(s, []connection.State{y}, listed); !maps.Equal(got, want) {
			t.Errorf("with %s covered is %v", name, got)
		}
	}
	// The same question that waits elsewhere has its answer.
	waits := decider.Fold(granted[:6]...)
	waits.Attachment = "x-2"
	if got := waits.Alike(yes); !slices.Equal(got, []string{"a-2-1"}) {
		t.Errorf("answered is %q", got)
	}
	for name, change := range map[string]func(s *connection.State){
		"another yes":         func(s *connection.State) { s.Standing.Approval = "a-9" },
		"another session":     func(s *connection.State) { s.Session = "s-9" },
		"a shared connection": func(s *connection.State) { s.Attachment = "" },
		"another definition": func(s *connection.State) {
			s.Pending = map[string]connection.Pending{"a-2-1": {Action: connection.ActionTool, Tool: "write", Digest: "d2"}}
		},
	} {
		s := waits
		if change(&s); len(s.Alike(yes)) > 0 {
			t.Errorf("with %s there is an answer", name)
		}
	}
	// A no to the server takes the yes with it, and so do another program and another yes.
	if s := decider.Then(yes, 9, events.ServerFailed{Kind: string(fault.ProgramChanged)}); s.Granted != nil {
		t.Error("another program has the yes")
	}
	if s := decider.Then(yes, 9, incapable); s.Granted != nil {
		t.Error("who may not connect any more has a yes")
	}
	again := requestedAlone
	again.Approval = "a-9"
	if s := decider.Then(yes, 9, again); s.Granted != nil {
		t.Error("under another yes to the server the old one of a tool holds")
	}
}

// What the shared connection has started is all that a private one may start, and only
// under the same yes (attack E7).
func TestPrivateConnectionStartsWhatTheSharedOneHas(t *testing.T) {
	t.Parallel()
	own := decider.Fold(openedAlone...)
	shared := connection.State{Session: own.Session, Server: own.Server, Standing: own.Standing}
	if got := own.Started(shared); got != "" {
		t.Errorf("before the shared one has started it is %q", got)
	}
	shared.Standing.Program = "p"
	if got := own.Started(shared); got != "p" {
		t.Errorf("it is %q", got)
	}
	for name, change := range map[string]func(*connection.State){
		"no yes any more": func(s *connection.State) { s.Standing = connection.Standing{} },
		"another yes":     func(s *connection.State) { s.Standing.Approval = "a-9" },
		"another server":  func(s *connection.State) { s.Server = "other" },
	} {
		s := shared
		if change(&s); own.Started(s) != "" {
			t.Errorf("with %s there is a program", name)
		}
	}
}

func TestPrivateConnectionHasAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	s := decider.Fold(openedAlone...)
	ids := []string{connection.ID("s-1", "docs"), s.ID(), connection.PrivateID("s-1", "docs", "x-2"), connection.PrivateID("s-2", "docs", "x-1")}
	for i, id := range ids {
		if connection.IsPrivate(id) != (i > 0) || slices.Index(ids, id) != i {
			t.Errorf("%d: %s", i, id)
		}
	}
	if s.ID() != connection.PrivateID("s-1", "docs", "x-1") || decider.Fold(given[connection.Open]...).ID() != ids[0] {
		t.Error("a state does not know its id")
	}
}

func TestPermittedOffers(t *testing.T) {
	t.Parallel()
	all := []string{"roots", "elicitation.form", "elicitation", "sampling", "sampling.tools", "experimental"}
	a := authority.Snapshot{Principal: Principal, Capabilities: []authority.Granted{
		{Capability: "mcp.elicit:*"}, {Capability: "mcp.roots:docs", Until: Noon.Add(time.Hour)}, {Capability: "mcp.sample:other"},
	}}
	for at, want := range map[time.Time][]string{
		Noon: {"elicitation", "elicitation.form", "roots"}, Noon.Add(2 * time.Hour): {"elicitation", "elicitation.form"},
	} {
		if got := connection.Permitted(all, "docs", a, at); !slices.Equal(got, want) {
			t.Errorf("at %v: %q, want %q", at, got, want)
		}
	}
	for method, want := range map[string]string{
		"sampling/createMessage": "mcp.sample:docs", "elicitation/create": "mcp.elicit:docs", "roots/list": "mcp.roots:docs", "ping": "",
	} {
		if _, got := connection.OfferOf(method, "docs"); got != want {
			t.Errorf("%s needs %q, want %q", method, got, want)
		}
	}
}
