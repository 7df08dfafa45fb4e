package decider

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/events/turn"
	"github.com/gatebus/gatebus/workers/cores"
)

// Grace is how long a list at the MCP endpoint waits for connections that are
// being opened and need nobody's consent: a client that runs once per command
// would otherwise see nothing after a restart. It waits for no person.
const Grace = 3 * time.Second

// Preparation asks for a turn.
type Preparation struct {
	Session string
	// Implicit takes every server whose tools a turn has without being selected.
	Implicit bool
	Servers  []string
	Tools    []client.ToolSelection
	// Untouched leaves the definitions the server's own, name included, in its
	// order. A call still names the tool as the turn does.
	Untouched bool
	// HostTools are the host's own tools (R45).
	HostTools []client.HostTool
	// NoTools says that the provider takes none: no server is asked for (R187).
	NoTools bool
	// Limits are those of the host, as it sent them.
	Limits map[string]jsontext.Value
	// Wait bounds the wait for connections that are being opened; 0 is until they
	// have settled, which their own deadlines bound.
	Wait time.Duration
	// Retry asks again what was denied before (R136).
	Retry bool
	// Attachment is the client that a server may ask, if any (decision 3).
	Attachment cores.Attachment
	// Reuse returns a turn that is bound to this very catalog already.
	Reuse func(catalog string) (client.Turn, bool)
}

// Session starts the session that a principal calls label, unless it is active.
func (d *Decider) Session(ctx context.Context, id client.Identity, label string) (string, error) {
	key := session.ID(id.Workspace, id.Principal, label)
	if d.Model.Sessions.Get(id.Workspace, key).Active {
		return key, nil
	}
	snapshot := d.Model.Authority(id.Workspace, id.Principal)
	_, err := d.Model.Sessions.Dispatch(ctx, id.Workspace, key, bus.Meta{
		Correlation: key, Actor: id.Actor, Principal: id.Principal, Scope: events.Scope{Session: key},
	}, session.Start{Label: label, CoreRevision: d.revisions(), CapabilityDigest: snapshot.Digest(), Reason: "attached"})
	return key, err
}

// revisions names the live revision of every core.
func (d *Decider) revisions() string {
	var b bytes.Buffer
	for i, s := range d.Cores.Specs() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.ID + "@" + d.Model.Cores.Get(d.Workspace, s.ID).Revision)
	}
	return b.String()
}

// Prepare binds a turn: it asks for the connections that the turn needs, takes
// the tools of those that are open, names them after all have settled, and fixes
// each name to its connection (R144). A session that is not the principal's is
// not there.
func (d *Decider) Prepare(ctx context.Context, id client.Identity, p Preparation) (client.Turn, error) {
	const op = "turn.prepare"
	s := d.Model.Sessions.Get(id.Workspace, p.Session)
	switch {
	case id.Principal == "":
		return client.Turn{}, fault.New(op, fault.ConnectAuthorityUnbound, redact.Static("no principal is bound to the request"))
	case !s.Active || s.Principal != id.Principal:
		return client.Turn{}, fault.New(op, fault.NotFound, redact.Static("the principal has no such session"))
	}
	limits, impossible, err := turn.ParseLimits(p.Limits)
	a := attempt{Decider: d, id: id, p: p, key: "t-" + ulid.Make().String(), limits: limits}
	if impossible != nil {
		return client.Turn{}, a.fail(ctx, turn.Fail{Limits: impossible, Failed: events.TurnFailed{
			Reason: string(fault.LimitsInvalid), Name: impossible.Field, Maximum: impossible.Maximum,
		}}, err)
	}
	if err != nil {
		return client.Turn{}, err
	}
	if err := d.Cores.Current(ctx); err != nil {
		return client.Turn{}, err
	}
	servers, rejected := d.selected(p)
	for i, server := range servers {
		if server.Installed { // it is connected all the time
			servers[i].denied = !d.Model.Authority(id.Workspace, id.Principal).Allows(server.ConnectCapability(), time.Now())
			continue
		}
		if err := d.connect(ctx, id, p, server.Server); err != nil {
			return client.Turn{}, err
		}
	}
	d.settled(ctx, id, p, servers)
	if p.Attachment.ID != "" {
		if err := d.private(ctx, id, p, servers); err != nil {
			return client.Turn{}, err
		}
	}
	return a.bind(ctx, servers, rejected)
}

// attempt is one turn on its way.
type attempt struct {
	*Decider
	id     client.Identity
	p      Preparation
	key    string
	limits turn.Limits
}

// requested is what the log has of the question.
func (a attempt) requested() events.TurnRequested {
	out := events.TurnRequested{
		Session: a.p.Session, IncludeImplicit: a.p.Implicit, MaxTools: a.limits.Tools, MaxSchemaBytes: a.limits.SchemaBytes,
	}
	for _, s := range a.p.Servers {
		out.ExplicitServers = append(out.ExplicitServers, redact.Name(s).String())
	}
	for _, t := range a.p.Tools {
		out.ExplicitTools = append(out.ExplicitTools, events.ToolSelection{
			Server: redact.Name(t.Server).String(), Tool: redact.Name(t.Tool).String(),
		})
	}
	return out
}

func (a attempt) meta() bus.Meta {
	return bus.Meta{
		Correlation: a.key, Actor: a.id.Actor, Principal: a.id.Principal, Scope: events.Scope{Session: a.p.Session, Turn: a.key},
	}
}

// fail records why the turn may not start, and returns why.
func (a attempt) fail(ctx context.Context, cmd turn.Fail, why error) error {
	cmd.Requested = a.requested()
	if _, err := a.Model.Turns.Dispatch(ctx, a.id.Workspace, a.key, a.meta(), cmd); err != nil {
		return err
	}
	return why
}

// choice is a server of a turn and which of its tools.
type choice struct {
	cores.Server
	tools  map[string]bool // nil: all
	reason string
	// attachment is that of the private connection to it; empty: the shared one.
	attachment string
	// denied says that the principal may not connect to an installed server, which is
	// connected all the same (C1).
	denied bool
}

// connection is the id of the connection to the server.
func (c choice) connection(session string) string { return c.Alone(session, c.attachment) }

// selected resolves the selections to servers, in declaration order. A selection
// that cannot be honoured gives a reason and the turn goes on (R185).
func (d *Decider) selected(p Preparation) ([]choice, []events.CapabilityRejected) {
	var rejected []events.CapabilityRejected
	if p.NoTools {
		for _, name := range p.Servers {
			rejected = append(rejected, rejection("server", name, fault.ProviderUnsupported))
		}
		for _, t := range p.Tools {
			rejected = append(rejected, rejection("tool", t.Server+"/"+t.Tool, fault.ProviderUnsupported))
		}
		return nil, rejected
	}
	whole, tools := map[string]bool{}, map[string]map[string]bool{}
	check := func(kind, server, label string) bool {
		c, ok := d.Cores.Server(server)
		switch {
		case !ok:
			rejected = append(rejected, rejection(kind, label, fault.NotFound))
		case !c.Enabled:
			rejected = append(rejected, rejection(kind, label, fault.DisabledByPolicy))
		default:
			return true
		}
		return false
	}
	for _, name := range p.Servers {
		if whole[name] {
			rejected = append(rejected, rejection("server", name, fault.Duplicate))
		} else if check("server", name, name) {
			whole[name] = true
		}
	}
	for _, t := range p.Tools {
		label := t.Server + "/" + t.Tool
		if whole[t.Server] || tools[t.Server][t.Tool] {
			rejected = append(rejected, rejection("tool", label, fault.Duplicate))
		} else if check("tool", t.Server, label) {
			if tools[t.Server] == nil {
				tools[t.Server] = map[string]bool{}
			}
			tools[t.Server][t.Tool] = true
		}
	}
	var out []choice
	for _, c := range d.Cores.Servers() {
		switch {
		case !c.Enabled:
		case whole[c.ServerID]:
			out = append(out, choice{Server: c, reason: "explicit_server"})
		case p.Implicit && (!c.Installed || c.Implicit):
			out = append(out, choice{Server: c, reason: "implicit_policy"})
		case tools[c.ServerID] != nil:
			out = append(out, choice{Server: c, tools: tools[c.ServerID], reason: "explicit_tool"})
		}
	}
	return out, rejected
}

// rejection says why a selection is not honoured (R185). The label is what the
// host named.
func rejection(kind, label string, reason fault.Kind) events.CapabilityRejected {
	name := redact.Name(label).String()
	return events.CapabilityRejected{Id: "mcp-" + kind + ":workspace:" + name, Label: name, Kind: kind, Reason: string(reason)}
}

// connect asks for one connection, on facts that cannot change before the answer
// is in the log.
func (d *Decider) connect(ctx context.Context, id client.Identity, p Preparation, c cores.Server) error {
	key := c.Connection(p.Session)
	now := time.Now()
	_, err := d.Model.Connections.DispatchWith(ctx, id.Workspace, key, bus.Meta{
		Correlation: key, Actor: id.Actor, Principal: id.Principal, Time: now,
		Scope: events.Scope{Session: p.Session, Connection: key, Server: c.ServerID, Core: c.Core},
	}, bus.With{Reads: bus.AuthorityReads(id.Workspace, id.Principal)}, func() (connection.Command, error) {
		r := c.Request(d.Model, id.Workspace, id.Principal, p.Session, now)
		r.Retry = p.Retry
		return r, nil
	})
	return err
}

// settled waits until no connection of the turn is being opened; for persons it
// does not wait.
func (d *Decider) settled(ctx context.Context, id client.Identity, p Preparation, servers []choice) {
	if p.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Wait)
		defer cancel()
	}
	var wg sync.WaitGroup
	for _, c := range servers {
		wg.Go(func() {
			// The outcome is read from the states afterwards, whatever ended the wait.
			_, _ = d.Model.Connections.Wait(ctx, id.Workspace, c.connection(p.Session), func(s connection.State) bool {
				return s.Phase != connection.Requested && s.Phase != connection.Approved && s.Phase != connection.Opening
			})
		})
	}
	wg.Wait()
}

// found is one tool that the turn may see.
type found struct {
	choice
	key   string
	state connection.State
	tool  connection.SnapshotTool
	at    int // its place in the server's list
}

// bind names the tools of the open connections and fixes them.
func (a attempt) bind(ctx context.Context, servers []choice, rejected []events.CapabilityRejected) (client.Turn, error) {
	d, id, p := a.Decider, a.id, a.p
	published := events.CatalogPublished{}
	var diagnostics []client.Diagnostic
	var sources, prompts []toolname.Source
	out := client.Turn{Tools: []client.Tool{}, Rejected: []client.Rejection{}}
	var bindings turn.Bindings
	manifest := sha256.New()
	tools := map[string]map[string]found{}
	grants := d.Model.Authority(id.Workspace, id.Principal)
	policies := d.Model.Policies.Get(id.Workspace, id.Workspace)
	catalog := sha256.New()
	fmt.Fprintf(catalog, "%s\x00%s\x00%s\x00%d\n", p.Session, grants.At(time.Now()).Digest(), d.revisions(), policies.Seq)

	for _, c := range servers {
		key := c.connection(p.Session)
		s := d.Model.Connections.Get(id.Workspace, key)
		source := toolname.Source{ServerID: c.ServerID, Path: c.Path}
		if s.Phase != connection.Open || s.Fingerprint != c.Fingerprint || c.denied {
			if c.Installation.Required && !c.denied {
				return client.Turn{}, a.required(ctx, c.ServerID)
			}
			diagnostics = append(diagnostics, c.missing(s))
			sources = append(sources, source) // its prefix is taken while it is away (R44)
			prompts = append(prompts, source)
			continue
		}
		snapshot, err := d.snapshots.get(ctx, s.Blob)
		if err != nil {
			return client.Turn{}, fault.Wrap("turn.prepare", fault.CatalogMissing, redact.Static("the catalog of a server cannot be read"), err)
		}
		count := events.CatalogCount{Server: c.ServerID, Listed: uint32(len(snapshot.Tools))}
		byName := map[string]found{}
		for i, t := range snapshot.Tools {
			switch {
			case s.Blocked[t.Name]:
				count.Blocked++
			case !toolname.Filter(t.Name, c.Include, c.Exclude), c.Overrides[t.Name].Disabled, c.tools != nil && !c.tools[t.Name]:
				count.Filtered++
			default:
				count.Visible++
				byName[t.Name] = found{choice: c, key: key, state: s, tool: t, at: i}
				source.Tools = append(source.Tools, t.Name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.tools)) {
			if _, ok := byName[name]; !ok {
				rejected = append(rejected, rejection("tool", c.ServerID+"/"+name, fault.ToolMissing))
			}
		}
		tools[c.ServerID] = byName
		sources = append(sources, source)
		if c.tools == nil { // chosen whole
			prompts = append(prompts, toolname.Source{ServerID: c.ServerID, Path: c.Path, Tools: names(snapshot.Prompts)})
			beside(&out, c.ServerID, snapshot)
			bindings.Servers = append(bindings.Servers, c.binding(c.ServerID, key, s))
			line := fmt.Sprintf("%s\x00%s\x00%s\x00%d\n", c.ServerID, s.Catalog, c.Fingerprint, s.Generation)
			manifest.Write([]byte(line))
			catalog.Write([]byte(line))
		}
		published.Counts = append(published.Counts, count)
	}

	others := make([]toolname.Provenance, len(p.HostTools))
	for i, t := range p.HostTools {
		others[i] = toolname.Provenance{Name: t.Name, Origin: t.Provenance}
	}
	named, err := toolname.Assemble(sources, others)
	if err != nil {
		failed := events.TurnFailed{Reason: string(fault.ToolNameCollision)}
		if clash, ok := errors.AsType[*toolname.Collision](err); ok {
			failed.Name = clash.Name
			for _, p := range clash.Provenances {
				failed.Provenances = append(failed.Provenances, redact.Name(p).String())
			}
		}
		text, lineErr := line(err.Error())
		if lineErr != nil {
			return client.Turn{}, lineErr
		}
		return client.Turn{}, a.fail(ctx, turn.Fail{Failed: failed}, fault.New("turn.prepare", fault.ToolNameCollision, text))
	}

	out.Diagnostics = diagnostics
	if err := promptNames(&out, prompts, p.Untouched); err != nil {
		return client.Turn{}, err
	}
	for _, n := range named {
		f := tools[n.ServerID][n.Raw]
		tool, risk, err := visible(f, n.Name, p.Untouched)
		if err != nil {
			return client.Turn{}, fault.New("turn.prepare", fault.Internal, redact.Static("a stored definition is no JSON object"))
		}
		// Weaker than declared is ignored, and the core's file says so to who reads it.
		risk, declared, _ := f.Overrides[f.tool.Name].Tighten(risk, f.ApprovalPolicy)
		b := f.binding(n.Name, f.key, f.state)
		b.Tool, b.Definition, b.Risk, b.Policy = f.tool.Name, f.tool.Digest, string(risk), string(declared)
		bindings.Tools = append(bindings.Tools, b)
		out.Tools = append(out.Tools, tool)
		published.Tools = append(published.Tools, events.CatalogTool{Name: n.Name, Server: f.ServerID, Tool: f.tool.Name})
		line := fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%s\x00%d\x00%d\n",
			n.Name, f.ServerID, f.tool.Name, f.tool.Digest, f.Fingerprint, b.TimeoutMS, f.state.Generation)
		manifest.Write([]byte(line))
		fmt.Fprintf(catalog, "%s%s\x00%s\n", line, b.Risk, b.Policy)
	}
	if failed := a.limits.Exceeded(len(out.Tools), schemaBytes(out.Tools, int(a.limits.SchemaBytes))); failed != nil {
		entry, _ := fault.Lookup(fault.Kind(failed.Reason))
		return client.Turn{}, a.fail(ctx, turn.Fail{Failed: *failed}, fault.New("turn.prepare", entry.Kind,
			redact.Name(fmt.Sprintf("%s: %d, %d at most", entry.Meaning, failed.Actual, failed.Maximum))))
	}
	if p.Untouched { // and so is their order
		slices.SortStableFunc(out.Tools, func(a, b client.Tool) int {
			return cmp.Compare(tools[a.Server][a.RawName].at, tools[b.Server][b.RawName].at)
		})
	}
	for _, r := range rejected {
		out.Rejected = append(out.Rejected, client.Rejection{ID: r.Id, Label: r.Label, Kind: r.Kind, Reason: r.Reason, Message: r.Message.String()})
	}
	if out.Diagnostics == nil {
		out.Diagnostics = []client.Diagnostic{}
	}
	for _, g := range out.Diagnostics {
		published.Diagnostics = append(published.Diagnostics, events.CatalogDiagnostic{Server: g.Server, Code: g.Code})
	}
	out.CatalogID = "cat-" + hex.EncodeToString(catalog.Sum(nil)[:12])
	out.ManifestHash = "sha256:" + hex.EncodeToString(manifest.Sum(nil))

	published.Catalog = publishedID(published)
	if _, err := d.Model.Sessions.Dispatch(ctx, id.Workspace, p.Session, bus.Meta{
		Correlation: a.key, Actor: id.Actor, Principal: id.Principal, Scope: events.Scope{Session: p.Session},
	}, session.Publish{Catalog: published}); err != nil {
		return client.Turn{}, err
	}
	if p.Reuse != nil {
		if t, ok := p.Reuse(out.CatalogID); ok {
			t.Diagnostics = out.Diagnostics // of now: why a server is away is not in the catalog
			return t, nil
		}
	}
	body, err := json.Marshal(bindings)
	if err != nil {
		return client.Turn{}, err
	}
	blob, err := d.Bus.PutBlob(ctx, body)
	if err != nil {
		return client.Turn{}, err
	}
	bound := events.TurnBound{
		Runtime: d.Runtime, Catalog: out.CatalogID, ManifestHash: out.ManifestHash, ToolCount: uint32(len(out.Tools)),
		Blob: blob, AuthoritySequence: uint32(grants.Seq), PolicySequence: policies.Seq,
	}
	if _, err := d.Model.Turns.Dispatch(ctx, id.Workspace, a.key, a.meta(), turn.Bind{Requested: a.requested(), Rejected: rejected, Bound: bound}); err != nil {
		return client.Turn{}, err
	}
	out.Turn = a.key
	return out, nil
}

// schemaBytes is how large the input schemas are together in canonical JSON (R190).
// That is never larger than what the servers sent, so that it is worked out only
// where more than enough was sent.
func schemaBytes(tools []client.Tool, enough int) (n int) {
	for _, t := range tools {
		n += len(t.InputSchema)
	}
	if n <= enough {
		return n
	}
	n = 0
	for _, t := range tools {
		canonical := jsontext.Value(t.InputSchema).Clone()
		// It was canonical once already, for the digest of its definition.
		_ = canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
		n += len(canonical)
	}
	return n
}

// publishedID identifies what a session sees, apart from whose process opened it.
func publishedID(p events.CatalogPublished) string {
	h := sha256.New()
	for _, t := range p.Tools {
		fmt.Fprintf(h, "%s\x00%s\x00%s\n", t.Name, t.Server, t.Tool)
	}
	for _, c := range p.Counts {
		fmt.Fprintf(h, "%s %d %d %d\n", c.Server, c.Listed, c.Filtered, c.Blocked)
	}
	for _, g := range p.Diagnostics {
		fmt.Fprintf(h, "%s\x00%s\n", g.Server, g.Code)
	}
	return "cat-" + hex.EncodeToString(h.Sum(nil)[:12])
}

var errNoObject = errors.New("decider: a definition is no object with a name")

// required records that a server without which there is to be no turn is not there (R33).
func (a attempt) required(ctx context.Context, server string) error {
	failed := events.TurnFailed{Reason: string(fault.RequiredUnavailable), Name: server}
	return a.fail(ctx, turn.Fail{Failed: failed}, fault.New("turn.prepare", fault.RequiredUnavailable,
		redact.Name("the server "+server+" is required and is not live; gatebus server get says why")))
}

// missing says why the server has no tools in the turn.
func (c choice) missing(s connection.State) client.Diagnostic {
	server := c.ServerID
	g := client.Diagnostic{Server: server}
	if c.denied {
		g.Code, g.Message = string(fault.CapabilityDenied), "the principal lacks "+c.ConnectCapability()
		return g
	}
	switch s.Phase {
	case connection.Waiting:
		g.Code, g.Message = string(fault.ApprovalPending), "connecting waits for a person's approval"
		for id, p := range s.Pending {
			if p.Action == connection.ActionConnect {
				g.Approval = id
			}
		}
	case connection.Denied:
		g.Code, g.Message = string(fault.ApprovalDenied), "connecting was denied"
		switch s.DeniedStage {
		case connection.StageCapability:
			g.Code, g.Message = string(fault.CapabilityDenied), "the principal lacks "+connection.Capability(server)
			if c.Installed {
				g.Message = "who installed the server is no operator any more"
			}
		case connection.StageCwd:
			g.Code, g.Message = string(fault.CWDOutsideWorkspace), "the working directory was refused"
		case connection.StageURL:
			g.Code, g.Message = string(fault.URLBlocked), "the URL was refused, gatebus policy url check says why; private addresses are reached where private_networks allows it"
		}
	case connection.Failed:
		g.Code, g.Message = string(fault.ServerFailed), "the server failed, gatebus server get says why"
		if !s.Installed() {
			g.Message += "; it is tried again after " + s.RetryAfter.UTC().Format(time.RFC3339)
		}
	case connection.Requested, connection.Approved, connection.Opening:
		g.Code, g.Message = string(fault.Unavailable), "the server is not connected yet"
		if s.Opened {
			g.Message = "the server is being connected again"
		}
	default:
		g.Code, g.Message = string(fault.Unavailable), "the server is not connected"
	}
	return g
}

// visible is the tool as the turn shows it: the server's definition with the
// visible name in place of its own, unless it is to be untouched, and nothing
// else changed (decision 22), and the risk that its hints may raise (R70).
func visible(f found, name string, untouched bool) (client.Tool, authority.Risk, error) {
	t := client.Tool{Name: name, Server: f.ServerID, RawName: f.tool.Name, Digest: f.tool.Digest}
	src := []byte(f.tool.Definition)
	risk := f.Risk
	dec := jsontext.NewDecoder(bytes.NewReader(src), jsontext.AllowInvalidUTF8(true))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return t, risk, errNoObject
	}
	for dec.PeekKind() == '"' {
		member, err := dec.ReadToken()
		if err != nil {
			return t, risk, err
		}
		key := member.String()
		value, err := dec.ReadValue()
		if err != nil {
			return t, risk, err
		}
		value = slices.Clone(value)
		switch key {
		case "description":
			if value.Kind() == '"' {
				text, _ := jsontext.AppendUnquote(nil, value) // half a character becomes U+FFFD
				t.Description = string(text)
			}
		case "inputSchema":
			t.InputSchema = json.RawMessage(value)
		case "annotations":
			risk, _ = authority.RaiseByHints(risk, value)
		}
	}
	t.Definition = json.RawMessage(src)
	if untouched {
		return t, risk, nil
	}
	var err error
	t.Definition, err = rename(src, name)
	return t, risk, err
}
