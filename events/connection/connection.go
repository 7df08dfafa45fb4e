// Package connection decides the life of one session's link to one server: the
// gate before it (R49), its approval, who owns it, and which of its tools are
// approved. A client attachment of the session that the server may ask something has
// a link of its own beside it, on the same approval (decision 3).
//
// A server that was installed has one link that is of no session and that all share
// (C1). Who installed it has said yes to it by that (C12), so that nobody is asked; it
// is his authority that the link stands on.
//
// An opening is claimed before anything is started. The log sequence of the
// claim is the generation of the connection, and every report about an opening
// carries it, so that nothing of an earlier opening is taken for the present
// one (decision 20).
package connection

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// Times of decisions 10 and R134.
const (
	// ApprovalTTL is how long a connect approval or a tool approval waits.
	ApprovalTTL = 24 * time.Hour
	// RetryAfter is how long a failed discovery is not tried again. A server that was
	// open before is tried again after firstRetry, and after twice as long with each
	// further failure, up to RetryAfter (R134, R167).
	RetryAfter = 30 * time.Second
	firstRetry = 250 * time.Millisecond
	// installedRetry is how long after its end or its failure an installed server is
	// started again at the earliest, and twice as long with each further failure, up to
	// maxRetry (R167, C13).
	installedRetry = time.Second
	maxRetry       = time.Minute
)

// Actions that a person approves here.
const (
	ActionConnect = "mcp.connect"
	ActionTool    = "mcp.tool"
)

// Why a definition is flagged, beside the suspicious text in it.
const (
	FlagAdded   = "added"   // it came after the approval
	FlagChanged = "changed" // it is not as it was approved
)

// Why a connection ended.
const (
	ReasonServerEnded = "server_ended" // nobody here ended it
	ReasonAbandoned   = "abandoned"    // who opened it is gone
	ReasonRuntimeLost = "runtime_lost" // likewise, with its process
	ReasonOutdated    = "outdated"     // what permitted it changed before it was opened
)

// ByInstall is who has answered the question whether an installed server may be
// connected to: nobody is asked (C12).
const ByInstall = "install"

// What a server lists.
const (
	ListTools     = "tools"
	ListResources = "resources"
	ListPrompts   = "prompts"
	// Instructions are no list: a server tells them when it is opened.
	Instructions = "instructions"
)

// Stages of the gate that can deny.
const (
	StageCapability = "capability"
	StageCwd        = "cwd"
	StageURL        = "url"
	StageApproval   = "approval"
)

// Stages of an opening that can fail (R49 steps 6 to 8).
const (
	StageInterpolation = "interpolation"
	StageSpawn         = "spawn"
	StageInitialize    = "initialize"
	StageList          = "list"
)

// ID is the id of a session's connection to a server; without a session it is that of
// the connection to an installed server, which all sessions share.
func ID(session, server string) string {
	h := sha256.Sum256([]byte(session + "\x00" + server))
	return "c-" + hex.EncodeToString(h[:8])
}

// Capability is what a principal needs to connect to the server (R50).
func Capability(server string) string { return "mcp.connect:" + server }

// Phase is where a connection is in its life.
type Phase string

// The phases of a connection.
const (
	None      Phase = ""
	Requested Phase = "requested" // the gate is to be walked
	Waiting   Phase = "waiting"   // for a person
	Approved  Phase = "approved"  // may be opened
	Opening   Phase = "opening"   // claimed by a runtime
	Open      Phase = "open"
	Denied    Phase = "denied"
	Failed    Phase = "failed"
	Closed    Phase = "closed"
	Lost      Phase = "lost"
)

// Pending is one approval that waits for a person.
type Pending struct {
	Action string
	// Tool and Digest name the definition of a tool approval.
	Tool, Digest string
	Expires      time.Time
}

// State is what the decider reads of one connection.
type State struct {
	Phase                             Phase
	Session, Principal, Server        string
	Fingerprint                       string
	Risk, Policy                      string
	AuthoritySequence, PolicySequence uint32
	DeniedStage                       string
	// Reason is why it was denied, failed or ended.
	Reason     string
	RetryAfter time.Time
	// Opened says that it was open before under its fingerprint, and has not asked for a
	// login since: that one a person has to see to, so that the connection comes back
	// only for who asks for it (R115, R167). Failures is how often the discovery has
	// failed since.
	Opened   bool
	Failures uint32
	// OpenedAt is when an installed server was opened last, and Ends how often in a row it
	// has ended by itself within maxRetry of that: one that starts and dies is started
	// less often too.
	OpenedAt   time.Time
	Ends       uint32
	Runtime    string
	Generation uint32
	// Standing is the connect approval in force: it covers a fingerprint under a
	// policy (decision 7).
	Standing Standing
	// Install is the yes of who installed the server, as the connection was asked for
	// with it last; empty where a session asked. It is in force for its fingerprint under
	// every policy (C12), and Standing follows it.
	Install string
	// Swapped says that the program was another one under the last approval, which is
	// over with that.
	Swapped bool
	// Approved maps each tool to the definition digest that the approval covers;
	// nil until the first discovery under it.
	Approved map[string]string
	// Current maps each tool listed to its definition digest, Blocked holds those
	// that lack an approval.
	Current map[string]string
	Blocked map[string]bool
	// Base maps each tool that is not as it was approved to the blob of the last
	// discovery before it changed: what a person compares it with.
	Base    map[string]string
	Pending map[string]Pending
	// Catalog is the version, Blob the definitions, CatalogSequence the log
	// sequence of the last discovery.
	Catalog, Blob   string
	CatalogSequence uint32
	// Unlisted are the lists that the server answered with an error in the last
	// discovery (R166).
	Unlisted []string
	// ResourcesDigest and PromptsDigest are those of the last discovery.
	ResourcesDigest, PromptsDigest string
	// Instructions is the digest of the server's instructions in the last discovery,
	// Instructed of those that the approval covers.
	Instructions, Instructed string
	// Degraded is why the last discovery of an open connection failed, which left what was
	// discovered before; empty where it did not.
	Degraded string
	// Attachment is the only user of a private connection, Offers what the server is
	// offered there, and EndedAt is when it ended.
	Attachment string
	Offers     []string
	EndedAt    time.Time
	// Granted maps the tools that a person has approved on a private connection alone to
	// their definition digests: the yes holds for others of the session, see [State.Covered].
	Granted map[string]string
}

// Standing is a connect approval that was given.
type Standing struct {
	Approval       string
	Fingerprint    string
	PolicySequence uint32
	// Program is the SHA-256 of the program that was started first under it, which is
	// the only one that it covers; empty until then, and for a server behind HTTP.
	Program string
}

// Covers reports whether there is an approval, and it is in force for a fingerprint
// under a policy.
func (s Standing) Covers(fingerprint string, policySequence uint32) bool {
	return s.Approval != "" && s.Fingerprint == fingerprint && s.PolicySequence == policySequence
}

// same reports whether it is one approval, whatever was started under it.
func (s Standing) same(o Standing) bool {
	s.Program, o.Program = "", ""
	return s == o
}

// started is the approval once a program was started under it.
func (s Standing) started(digest string) Standing {
	if s.Program == "" {
		s.Program = digest
	}
	return s
}

// Installed reports whether it is the connection to an installed server that all
// sessions share.
func (s State) Installed() bool { return s.Install != "" }

// covered reports whether the approval is in force for the request at hand.
func (s State) covered() bool { return s.Standing.Covers(s.Fingerprint, s.PolicySequence) }

// Command is a request to change a connection.
type Command interface{ command() }

// Request asks for the connection. It does nothing where one is open or under
// way, while a failure is remembered (R134), and while a denial stands: until
// fingerprint, policy or grant changes, or Retry says that the question is
// asked afresh (decision 8, R136).
type Request struct {
	Session, Server, Fingerprint, CoreRevision, Transport, Risk string

	Authority      authority.Snapshot
	Policy         authority.Policy
	PolicySequence uint32
	Retry          bool
	At             time.Time

	// Attachment, where it lives, and what it offers make the connection a private
	// one; Approval is that of the shared connection, without which nothing happens:
	// nobody is asked twice (decision 3). Without a session the server is an installed
	// one, Approval the yes of its installation, and Authority that of who installed it;
	// Retry does not wait for the time of the next attempt then.
	Attachment, Runtime string
	Offers              []string
	Approval            string
}

// Gate is the answer of the checks between policy and approval (R49 steps 3
// and 4). Stage and Reason are empty when they passed. A name that cannot be resolved
// is a failure and no denial: it is tried again as others are.
type Gate struct {
	URL           *events.UrlDecision
	Stage, Reason string
	Preview       redact.EventText
	PreviewDigest string
	// Approval is the id of the approval that may have to be asked for.
	Approval string
	// Interactive says that there is somebody to ask (R55).
	Interactive bool
	At          time.Time
}

// Answer is a person's word on an approval. It is void where the principal may not
// connect any more.
type Answer struct {
	Authority authority.Snapshot
	Approval  string
	Allow     bool
	By        string
	Channel   string
	Note      redact.EventText
	At        time.Time
}

// Expire ends the approvals whose time is over; silence is a denial (decision 10).
type Expire struct{ At time.Time }

// Withdraw ends what waits for a person where the principal may not connect any
// more, so that nobody is asked for nothing.
type Withdraw struct {
	Authority authority.Snapshot
	At        time.Time
}

// Judged says what was decided on a request to the server's URL. It is recorded
// before the request goes out (R96), whatever becomes of the connection meanwhile:
// its last request ends the session at the server.
type Judged struct{ URL events.UrlDecision }

// Claim takes the right to open the connection.
type Claim struct{ Runtime string }

// Discovery is what the server listed.
type Discovery struct {
	Catalog, Blob string
	Tools         []events.ToolDigest
	Dropped       uint32
	// What else was listed; a list in Failed was answered with an error, and is
	// empty (R166).
	Resources, Templates, Prompts  uint32
	ResourcesDigest, PromptsDigest string
	Failed                         []string
	// Suspicious maps a tool to the classes of text in its definition that is not meant
	// for people; such a tool waits for an approval of its own from the beginning
	// (decision 22).
	Suspicious map[string][]string
	// Instructions is the digest of the server's instructions, empty for none, and
	// Orders are the classes of suspicious text in them.
	Instructions string
	Orders       []string
	// Flags are the suspicious ones of what else was listed. Nothing of it is held: a
	// model gets it only when its user or its host asks for it.
	Flags []events.ItemFlag
	// Previews holds what a person is shown of a tool that needs an approval.
	Previews map[string]redact.EventText
	// Approval is the prefix of the ids of approvals that must be asked for.
	Approval string
	// OnChange is block or flag (decision 7).
	OnChange string
	At       time.Time
	// Covered are the definitions that a private connection may have from the beginning;
	// see [State.Covered].
	Covered map[string]string
}

// Opened says that the server is initialized and listed its tools.
type Opened struct {
	Opened    events.ConnectionOpened
	Discovery Discovery
}

// Discovered says that the server listed its tools again.
type Discovered struct {
	Generation uint32
	Discovery  Discovery
}

// Undiscovered says that what an open connection has could not be listed again.
type Undiscovered struct {
	Generation uint32
	Kind       string
	Message    redact.EventText
}

// Fail says that the opening failed. Program and ProgramDigest are those of the program
// that was found, if it came so far.
type Fail struct {
	Generation             uint32
	Stage                  string
	Kind                   string
	Message                redact.EventText
	Program, ProgramDigest string
	At                     time.Time
}

// Close says that the connection ended; before it was opened that it is not wanted
// any more.
type Close struct {
	Generation   uint32
	Reason, Exit string
}

// Captured says what was kept of the standard error of a process of the server,
// which is known after its end and in no phase in particular.
type Captured struct{ Stderr events.StderrCaptured }

// Reap says that a runtime is gone: what it owned is lost. What any other one
// owns is none of it.
type Reap struct{ Runtime string }

func (Request) command()      {}
func (Gate) command()         {}
func (Answer) command()       {}
func (Expire) command()       {}
func (Withdraw) command()     {}
func (Judged) command()       {}
func (Claim) command()        {}
func (Opened) command()       {}
func (Discovered) command()   {}
func (Undiscovered) command() {}
func (Fail) command()         {}
func (Close) command()        {}
func (Captured) command()     {}
func (Reap) command()         {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Request:
		return request(s, c), nil
	case Gate:
		return gate(s, c)
	case Answer:
		return answer(s, c)
	case Expire:
		return expire(s, c.At), nil
	case Withdraw:
		if !s.Withheld(c.Authority, c.At) {
			return nil, nil
		}
		return incapable(s, s.Server, s.Fingerprint, c.Authority, s.PolicySequence), nil
	case Judged:
		return []events.Event{c.URL}, nil
	case Captured:
		return []events.Event{c.Stderr}, nil
	case Claim:
		if s.Phase != Approved {
			return nil, fault.New("connection.claim", fault.Conflict, redact.Static("the connection is not waiting to be opened"))
		}
		return []events.Event{events.ConnectionClaimed{Runtime: c.Runtime, Fingerprint: s.Fingerprint}}, nil
	case Opened:
		if err := s.current(Opening, c.Opened.Generation); err != nil {
			return nil, err
		}
		return append([]events.Event{c.Opened}, discovered(s, c.Opened.Generation, c.Discovery)...), nil
	case Discovered:
		if err := s.current(Open, c.Generation); err != nil {
			return nil, err
		}
		if c.Discovery.Catalog == s.Catalog && s.Degraded == "" {
			return nil, nil
		}
		return discovered(s, c.Generation, c.Discovery), nil
	case Undiscovered:
		if err := s.current(Open, c.Generation); err != nil {
			return nil, err
		}
		if c.Kind == s.Degraded { // a server may say that something changed for ever
			return nil, nil
		}
		return []events.Event{events.DiscoveryFailed{Generation: c.Generation, Kind: c.Kind, Message: c.Message}}, nil
	case Fail:
		if err := s.current(Opening, c.Generation); err != nil {
			return nil, err
		}
		return []events.Event{failed(s, c)}, nil
	case Close:
		if s.Generation != c.Generation {
			return nil, nil
		}
		closed := events.ConnectionClosed{Generation: c.Generation, Reason: c.Reason, Exit: c.Exit}
		switch s.Phase {
		case Open, Opening:
			if s.Attachment != "" { // nobody has a use for the answers
				return append(voided(s), closed), nil
			}
			return []events.Event{closed}, nil
		case Requested, Waiting, Approved:
			// It was not opened yet: nobody is to be asked any more.
			return append(voided(s), closed), nil
		case Failed, Denied, Closed:
			// It is over with that for who starts the server again, and with the time of the
			// next attempt.
			if s.Installed() && (s.Phase != Closed || !s.RetryAfter.IsZero()) {
				return []events.Event{closed}, nil
			}
		}
		return nil, nil
	case Reap:
		switch {
		case s.Runtime != c.Runtime:
		case s.Phase == Open, s.Phase == Opening:
			return []events.Event{events.ConnectionLost{Generation: s.Generation, Runtime: s.Runtime}}, nil
		case s.Phase == Requested, s.Phase == Approved:
			// A private one: nobody else opens it.
			return []events.Event{events.ConnectionClosed{Reason: string(fault.RuntimeClosed)}}, nil
		}
		return nil, nil
	}
	return nil, nil
}

// failed is a failure that is remembered for a while.
func failed(s State, c Fail) events.ServerFailed {
	return events.ServerFailed{
		Server: s.Server, Fingerprint: s.Fingerprint, Generation: c.Generation, Stage: c.Stage, Kind: c.Kind,
		Message: c.Message, RetryAfter: c.At.Add(s.retry()).UTC().Format(time.RFC3339Nano),
		Program: c.Program, ProgramDigest: c.ProgramDigest,
	}
}

// retry is how long a discovery that fails now is not tried again.
func (s State) retry() time.Duration {
	switch {
	case s.Installed():
		return again(s.Failures)
	case !s.Opened:
		return RetryAfter
	}
	return min(firstRetry<<min(s.Failures, 7), RetryAfter)
}

// again is how long an installed server is left alone after that many failures, or ends,
// and one more.
func again(before uint32) time.Duration { return min(installedRetry<<min(before, 6), maxRetry) }

// current says whether a report about an opening is about the present one.
func (s State) current(phase Phase, generation uint32) error {
	if s.Phase != phase || s.Generation != generation {
		return fault.New("connection", fault.RuntimeNotLive, redact.Static("the opening is not the present one"))
	}
	return nil
}

func request(s State, c Request) []events.Event {
	var out []events.Event
	same := s.Fingerprint == c.Fingerprint
	requested := events.ConnectRequested{
		Session: c.Session, Server: c.Server, Fingerprint: c.Fingerprint, CoreRevision: c.CoreRevision,
		Transport: c.Transport, Risk: c.Risk, Policy: string(c.Policy),
		AuthoritySequence: uint32(c.Authority.Seq), PolicySequence: c.PolicySequence,
		Attachment: c.Attachment, Runtime: c.Runtime, Offers: c.Offers, Approval: c.Approval,
	}
	if !c.Authority.Allows(Capability(c.Server), c.At) {
		// The same no to the same question is recorded once.
		if s.Phase == Denied && s.DeniedStage == StageCapability && same && s.AuthoritySequence == uint32(c.Authority.Seq) &&
			(c.Session != "" || s.Install == c.Approval && s.PolicySequence == c.PolicySequence && s.Generation == 0) {
			return nil
		}
		out = incapable(s, c.Server, c.Fingerprint, c.Authority, c.PolicySequence)
		if c.Session == "" { // who starts the server sees what the no is to, and waits
			out = slices.Insert(out, len(out)-1, events.Event(requested))
		}
		return out
	}
	asBefore := same && s.PolicySequence == c.PolicySequence && slices.Equal(s.Offers, c.Offers)
	// It was installed anew: whoever did has said yes again.
	afresh := c.Session == "" && c.Approval != s.Install
	soon := asBefore && !afresh && c.At.Before(s.RetryAfter) && (c.Session != "" || !c.Retry)
	switch s.Phase {
	case Open, Opening:
		if asBefore {
			return out
		}
		reason := "fingerprint_changed"
		switch {
		case same && s.PolicySequence == c.PolicySequence:
			reason = "offers_changed"
		case same:
			reason = "policy_changed"
		}
		out = append(out, events.ConnectionClosed{Generation: s.Generation, Reason: reason})
	case Requested, Waiting, Approved:
		// A private one that has not begun begins under the yes that is in force now.
		if asBefore && !afresh && (c.Attachment == "" || c.Approval == s.Standing.Approval) {
			// Silence is a denial, without waiting for the sweeper (decision 10).
			return append(out, expire(s, c.At)...)
		}
	case Failed, Closed:
		if soon {
			return out
		}
	case Denied:
		if asBefore && !afresh && s.AuthoritySequence == uint32(c.Authority.Seq) && !c.Retry {
			return out
		}
	}
	out = append(out, voided(s)...)
	switch {
	case c.Attachment == "", c.Approval != "" && len(c.Offers) > 0:
		return append(out, requested)
	case s.Phase == Requested, s.Phase == Approved:
		reason := "offers_changed"
		if c.Approval == "" {
			reason = "approval_ended"
		}
		return append(out, events.ConnectionClosed{Reason: reason})
	}
	return out // there is nothing to have it for, or nothing that permits it
}

// incapable ends what there is for a principal who may not connect.
func incapable(s State, server, fingerprint string, a authority.Snapshot, policySequence uint32) []events.Event {
	var out []events.Event
	if s.Phase == Open || s.Phase == Opening {
		out = append(out, events.ConnectionClosed{Generation: s.Generation, Reason: "capability_denied"})
	}
	return append(append(out, voided(s)...), events.ServerDenied{
		Server: server, Fingerprint: fingerprint, Stage: StageCapability, Reason: string(fault.CapabilityDenied),
		Capability: Capability(server), AuthoritySequence: uint32(a.Seq), PolicySequence: policySequence,
	})
}

// Withheld reports whether there is something that a principal who may not connect
// is not to have: a question to a person, a yes that stands, or the connection.
func (s State) Withheld(a authority.Snapshot, at time.Time) bool {
	switch s.Phase {
	case Requested, Approved, Opening, Open:
	default:
		// The yes of an installation is not the connection's to give up.
		if len(s.Pending) == 0 && (s.Standing.Approval == "" || s.Installed()) {
			return false
		}
	}
	return !a.Allows(Capability(s.Server), at)
}

// voided ends the approvals that wait for what is asked differently now.
func voided(s State) []events.Event {
	var out []events.Event
	for _, id := range sortedKeys(s.Pending) {
		out = append(out, events.ApprovalExpired{Approval: id})
	}
	return out
}

func gate(s State, c Gate) ([]events.Event, error) {
	if s.Phase != Requested {
		return nil, fault.New("connection.gate", fault.Conflict, redact.Static("the connection is not at the gate"))
	}
	var out []events.Event
	if c.URL != nil {
		out = append(out, *c.URL)
	}
	denied := func(stage, reason string) events.ServerDenied {
		return events.ServerDenied{
			Server: s.Server, Fingerprint: s.Fingerprint, Stage: stage, Reason: reason,
			AuthoritySequence: s.AuthoritySequence, PolicySequence: s.PolicySequence,
		}
	}
	switch {
	case c.Stage == StageURL && urlpolicy.Reason(c.Reason).Unresolved():
		// Nobody has said no: the name may be known in a moment (R104, R134).
		return append(out, failed(s, Fail{
			Stage: StageURL, Kind: string(fault.URLBlocked), Message: redact.Name("the name in the URL has no address now: " + c.Reason), At: c.At,
		})), nil
	case c.Stage != "":
		return append(out, denied(c.Stage, c.Reason)), nil
	case s.Policy == string(authority.Deny), (!c.Interactive || s.Attachment != "") && !s.covered():
		return append(out,
			events.ApprovalDecided{Decision: "deny", Automatic: true, By: "policy"},
			denied(StageApproval, string(fault.ApprovalDenied))), nil
	case s.covered():
		by := "approval"
		if s.Standing.Approval == s.Install {
			by = ByInstall
		}
		return append(out, events.ApprovalDecided{
			Approval: s.Standing.Approval, Decision: "allow", Kind: "session", By: by, Cached: true, Automatic: true,
		}), nil
	}
	return append(out, events.ApprovalRequested{
		Approval: c.Approval, Action: ActionConnect, Target: s.Server, Server: s.Server, Risk: s.Risk, Policy: s.Policy,
		Preview: c.Preview, PreviewDigest: c.PreviewDigest, Fingerprint: s.Fingerprint, PolicySequence: s.PolicySequence,
		Expires: c.At.Add(ApprovalTTL).UTC().Format(time.RFC3339Nano),
	}), nil
}

func answer(s State, c Answer) ([]events.Event, error) {
	p, ok := s.Pending[c.Approval]
	if !ok {
		return nil, fault.New("approval.decide", fault.Conflict, redact.Static("the approval was answered already or has expired"))
	}
	if !c.At.Before(p.Expires) {
		return expire(s, c.At), nil
	}
	if s.Withheld(c.Authority, c.At) {
		return incapable(s, s.Server, s.Fingerprint, c.Authority, s.PolicySequence), nil
	}
	decided := events.ApprovalDecided{
		Approval: c.Approval, Decision: "deny", Kind: "session", By: c.By, Channel: c.Channel, Note: c.Note,
	}
	if c.Allow {
		decided.Decision = "allow"
	}
	out := []events.Event{decided}
	if p.Action == ActionConnect && !c.Allow {
		out = append(out, s.approvalDenied())
	}
	return out, nil
}

func expire(s State, at time.Time) []events.Event {
	var out []events.Event
	for _, id := range sortedKeys(s.Pending) {
		p := s.Pending[id]
		if at.Before(p.Expires) {
			continue
		}
		out = append(out, events.ApprovalExpired{Approval: id})
		if p.Action == ActionConnect {
			out = append(out, s.approvalDenied())
		}
	}
	return out
}

func (s State) approvalDenied() events.ServerDenied {
	return events.ServerDenied{
		Server: s.Server, Fingerprint: s.Fingerprint, Stage: StageApproval, Reason: string(fault.ApprovalDenied),
		AuthoritySequence: s.AuthoritySequence, PolicySequence: s.PolicySequence,
	}
}

// discovered compares what was listed with what the approval covers. The first
// discovery under an approval is covered as a whole but for suspicious definitions;
// later a tool that is new or changed waits alone for its own approval while the
// others stay. A question about a definition that is gone is void, so that a late yes
// to it does not take the place of the yes to the present one.
func discovered(s State, generation uint32, d Discovery) []events.Event {
	e := events.ToolsDiscovered{
		Generation: generation, CatalogVersion: d.Catalog, Blob: d.Blob, Tools: d.Tools, Dropped: d.Dropped,
		Resources: d.Resources, ResourceTemplates: d.Templates, Prompts: d.Prompts,
		ResourcesDigest: d.ResourcesDigest, PromptsDigest: d.PromptsDigest, Failed: d.Failed,
		ItemFlags: d.Flags, Recovered: s.Phase == Open && s.Degraded != "", InstructionsDigest: d.Instructions,
	}
	if reasons := s.instructed(d); len(reasons) > 0 {
		e.ItemFlags = append([]events.ItemFlag{{List: Instructions, Reasons: reasons}}, d.Flags...)
	}
	before := s
	if s.Phase == Opening { // while it was not open, nothing was there
		before = State{}
	}
	if !maps.Equal(before.Current, digests(d.Tools)) {
		e.Changed = append(e.Changed, ListTools)
	}
	if before.ResourcesDigest != d.ResourcesDigest {
		e.Changed = append(e.Changed, ListResources)
	}
	if before.PromptsDigest != d.PromptsDigest {
		e.Changed = append(e.Changed, ListPrompts)
	}
	if s.Instructions != d.Instructions {
		e.Changed = append(e.Changed, Instructions)
	}
	var out []events.Event
	for _, id := range sortedKeys(s.Pending) {
		p := s.Pending[id]
		if p.Action == ActionTool && !slices.Contains(d.Tools, events.ToolDigest{Tool: p.Tool, Digest: p.Digest}) {
			out = append(out, events.ApprovalExpired{Approval: id})
		}
	}
	for _, t := range d.Tools {
		reasons, held := s.judge(d, t)
		if len(reasons) > 0 {
			e.Flags = append(e.Flags, events.ToolFlag{Tool: t.Tool, Reasons: reasons})
		}
		if !held {
			continue
		}
		e.Blocked = append(e.Blocked, t.Tool)
		if s.asked(t) {
			continue
		}
		out = append(out, events.ApprovalRequested{
			Approval: fmt.Sprintf("%s-%d", d.Approval, len(e.Blocked)), Action: ActionTool, Target: s.Server + "/" + t.Tool,
			Server: s.Server, Tool: t.Tool, Risk: s.Risk, Policy: s.Policy, Preview: d.Previews[t.Tool],
			Fingerprint: s.Fingerprint, DefinitionDigest: t.Digest, PolicySequence: s.PolicySequence,
			Expires: d.At.Add(ApprovalTTL).UTC().Format(time.RFC3339Nano),
		})
	}
	return append([]events.Event{e}, out...)
}

// covers is what the approvals cover before a discovery; whole says that there was
// none under the connect approval yet, so that it covers this one.
func (s State) covers(d Discovery) (approved map[string]string, whole bool) {
	switch {
	case s.Approved != nil:
		return s.Approved, false
	case s.Attachment != "": // never covered as a whole
		return d.Covered, false
	}
	return nil, true
}

// judge says what is the matter with a definition that was listed, and whether it
// is held until a person has approved it. A suspicious one is, whatever the policy
// says of changes.
func (s State) judge(d Discovery, t events.ToolDigest) (reasons []string, held bool) {
	approved, whole := s.covers(d)
	suspicious := d.Suspicious[t.Tool]
	digest, known := approved[t.Tool]
	if known && digest == t.Digest {
		return suspicious, false
	}
	held = len(suspicious) > 0
	if !whole {
		reason := FlagAdded
		if known {
			reason = FlagChanged
		}
		reasons = append(reasons, reason)
		held = held || d.OnChange != "flag"
	}
	return append(reasons, suspicious...), held
}

// instructed says what is the matter with the instructions of a server: they are not
// those that the approval covers (B4), or there is suspicious text in them.
func (s State) instructed(d Discovery) (reasons []string) {
	switch {
	case s.Approved == nil || d.Instructions == "" || d.Instructions == s.Instructed:
	case s.Instructed == "":
		reasons = append(reasons, FlagAdded)
	default:
		reasons = append(reasons, FlagChanged)
	}
	return append(reasons, d.Orders...)
}

// Held are the tools of a discovery that wait for an approval of their own, with the
// digest that was approved of each before, if there was one: who makes the discovery
// needs a preview of them.
func (s State) Held(d Discovery) map[string]string {
	approved, _ := s.covers(d)
	held := make(map[string]string)
	for _, t := range d.Tools {
		if _, yes := s.judge(d, t); yes {
			held[t.Tool] = approved[t.Tool]
		}
	}
	return held
}

// base follows which blob holds the approved definition of what changed since.
func (s State) base(tools []events.ToolDigest) map[string]string {
	out := s.Base
	for _, t := range tools {
		approved, known := s.Approved[t.Tool]
		switch {
		case !known || approved == t.Digest:
			out = without(out, t.Tool)
		case out[t.Tool] == "" && s.Blob != "":
			out = with(out, t.Tool, s.Blob)
		}
	}
	return out
}

// digests are the definitions of tools by their raw names.
func digests(tools []events.ToolDigest) map[string]string {
	m := make(map[string]string, len(tools))
	for _, t := range tools {
		m[t.Tool] = t.Digest
	}
	return m
}

// asked reports whether an approval for this very definition waits already.
func (s State) asked(t events.ToolDigest) bool {
	for _, p := range s.Pending {
		if p.Action == ActionTool && p.Tool == t.Tool && p.Digest == t.Digest {
			return true
		}
	}
	return false
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.ConnectRequested:
		same := e.Fingerprint == s.Fingerprint
		if !same {
			s.Opened, s.Failures, s.Ends = false, 0, 0
		}
		s.Phase, s.Session, s.Principal, s.Server = Requested, e.Session, r.Principal, e.Server
		s.Fingerprint, s.Risk, s.Policy = e.Fingerprint, e.Risk, e.Policy
		s.AuthoritySequence, s.PolicySequence = e.AuthoritySequence, e.PolicySequence
		s.Runtime, s.Generation, s.Current, s.Blocked, s.Degraded, s.Reason = e.Runtime, 0, nil, nil, "", ""
		s.Attachment, s.Offers, s.EndedAt = e.Attachment, e.Offers, time.Time{}
		switch {
		case e.Session == "":
			s = s.install(e, same)
		case e.Approval != "":
			standing := Standing{Approval: e.Approval, Fingerprint: e.Fingerprint, PolicySequence: e.PolicySequence}
			if !s.Standing.same(standing) {
				s.Granted = nil
			}
			s.Standing, s.Approved = standing, nil
		}
	case events.ServerDenied:
		s.Phase, s.DeniedStage, s.Server, s.Fingerprint = Denied, e.Stage, e.Server, e.Fingerprint
		s.AuthoritySequence, s.PolicySequence, s.Reason = e.AuthoritySequence, e.PolicySequence, e.Reason
		if e.Stage == StageCapability && !s.Installed() { // who has it again is to be asked for again
			s.Standing, s.Granted = Standing{}, nil
		}
		s = s.ended(r.Time)
	case events.ApprovalRequested:
		p := Pending{Action: e.Action, Tool: e.Tool, Digest: e.DefinitionDigest}
		p.Expires, _ = time.Parse(time.RFC3339Nano, e.Expires)
		s.Pending = with(s.Pending, e.Approval, p)
		if e.Action == ActionConnect {
			s.Phase = Waiting
		}
	case events.ApprovalDecided:
		p, waited := s.Pending[e.Approval]
		s.Pending = without(s.Pending, e.Approval)
		if e.Decision != "allow" {
			break
		}
		if waited && p.Action == ActionTool {
			s.Approved, s.Base = with(s.Approved, p.Tool, p.Digest), without(s.Base, p.Tool)
			if s.Attachment != "" {
				s.Granted = with(s.Granted, p.Tool, p.Digest)
			}
			if s.Current[p.Tool] == p.Digest {
				s.Blocked = without(s.Blocked, p.Tool)
			}
			break
		}
		if waited {
			// A fresh yes covers what is discovered next, whatever it was before.
			s.Standing = Standing{Approval: e.Approval, Fingerprint: s.Fingerprint, PolicySequence: s.PolicySequence}
			s.Approved, s.Base, s.Swapped = nil, nil, false
		}
		s.Phase = Approved
	case events.ApprovalExpired:
		s.Pending = without(s.Pending, e.Approval)
	case events.ConnectionClaimed:
		s.Phase, s.Runtime, s.Generation = Opening, e.Runtime, uint32(r.Seq)
	case events.ConnectionOpened:
		s.Phase, s.RetryAfter, s.Opened, s.Failures = Open, time.Time{}, true, 0
		if s.Installed() {
			s.OpenedAt = r.Time
		}
		s.Standing = s.Standing.started(e.ProgramDigest)
	case events.ToolsDiscovered:
		s.Base = s.base(e.Tools)
		s.Catalog, s.Blob, s.CatalogSequence = e.CatalogVersion, e.Blob, uint32(r.Seq)
		s.Current, s.Blocked = digests(e.Tools), map[string]bool{}
		s.ResourcesDigest, s.PromptsDigest, s.Degraded, s.Unlisted = e.ResourcesDigest, e.PromptsDigest, "", e.Failed
		if s.Instructions = e.InstructionsDigest; s.Approved == nil {
			s.Instructed = e.InstructionsDigest
		}
		for _, t := range e.Blocked {
			s.Blocked[t] = true
		}
		if s.Approved == nil {
			s.Approved = s.Current
			for _, t := range e.Blocked { // suspicious, or a private one, which is not covered as a whole
				s.Approved = without(s.Approved, t)
			}
		}
	case events.DiscoveryFailed:
		s.Degraded = e.Kind
	case events.ServerFailed:
		s.Phase, s.Reason = Failed, e.Kind
		if e.Stage != StageSpawn { // else it was found, and not started
			s.Standing = s.Standing.started(e.ProgramDigest)
		}
		if e.Kind == string(fault.ProgramChanged) { // the yes was to what it was before
			s.Standing, s.Granted, s.Swapped = Standing{}, nil, true
		}
		s.Opened = s.Opened && e.Kind != string(fault.AuthRequired)
		s.Failures++
		s.RetryAfter, _ = time.Parse(time.RFC3339Nano, e.RetryAfter)
		s = s.ended(r.Time)
	case events.ConnectionClosed:
		s.Phase, s.Reason, s.RetryAfter = Closed, e.Reason, time.Time{}
		if !s.Installed() || e.Reason != ReasonServerEnded {
			s.Ends = 0
		} else {
			if r.Time.Sub(s.OpenedAt) >= maxRetry {
				s.Ends = 0
			}
			s.RetryAfter = r.Time.Add(again(s.Ends))
			s.Ends++
		}
		s = s.ended(r.Time)
	case events.ConnectionLost:
		s.Phase, s.Reason = Lost, ReasonRuntimeLost
		s = s.ended(r.Time)
	}
	return s
}

// install takes the yes of who installed the server for a request that names it. A new
// one covers what is started and listed next. The one of before holds on, under
// whatever policy, with the program and the definitions that it covers already; once
// another program took the place of that one it does not, and a person is asked (E7).
func (s State) install(e events.ConnectRequested, same bool) State {
	switch {
	case !same || s.Install != e.Approval:
		s.Standing = Standing{Approval: e.Approval, Fingerprint: e.Fingerprint, PolicySequence: e.PolicySequence}
		s.Approved, s.Base, s.Granted, s.Swapped = nil, nil, nil, false
	case s.Standing.Approval != "":
		s.Standing.PolicySequence = e.PolicySequence
	}
	s.Install = e.Approval
	return s
}
