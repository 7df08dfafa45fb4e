package decider

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/events/turn"
	"github.com/gatebus/gatebus/projections"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/servers"
)

// maxPoll bounds a long poll.
const maxPoll = 30 * time.Second

// meta is the envelope of a command that came as a request.
func meta(id client.Identity, r *bus.Request, s events.Scope) bus.Meta {
	return bus.Meta{Command: r.Command, Correlation: r.Correlation, Actor: id.Actor, Principal: id.Principal, Scope: s}
}

func badRequest(text redact.EventText) error { return fault.New("request", fault.InvalidInput, text) }

func (d *Decider) sessionStart(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.SessionStart
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.Label == "" || len(p.Label) > 200 {
		return nil, badRequest(redact.Static("label is required, 200 characters at most"))
	}
	id, err := d.As(id, p.Principal)
	if err != nil {
		return nil, err
	}
	key, err := d.Session(ctx, id, p.Label)
	return client.Session{Session: key}, err
}

func (d *Decider) sessionEnd(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.Session
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	s := d.Model.Sessions.Get(id.Workspace, p.Session)
	if s.Principal != id.Principal && d.Role(id.Workspace, id.Actor) != host.RoleOperator {
		return nil, fault.New("session.end", fault.NotFound, redact.Static("the principal has no such session"))
	}
	m := meta(id, r, events.Scope{Session: p.Session})
	m.Principal = s.Principal
	return p, d.endSession(ctx, id, p.Session, m, "ended")
}

// endSession ends a session with its connections.
func (d *Decider) endSession(ctx context.Context, id client.Identity, key string, m bus.Meta, reason string) error {
	if _, err := d.Model.Sessions.Dispatch(ctx, id.Workspace, key, m, session.End{Reason: reason}); err != nil {
		return err
	}
	for at, c := range d.Model.Connections.All() {
		if at.Workspace == id.Workspace && c.Session == key {
			if _, err := d.Model.Connections.Dispatch(ctx, at.Workspace, at.Key, bus.Meta{
				Correlation: key, Actor: id.Actor, Principal: c.Principal,
				Scope: events.Scope{Session: key, Connection: at.Key, Server: c.Server},
			}, connection.Close{Generation: c.Generation, Reason: "session_ended"}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Decider) turnPrepare(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct {
		client.TurnPrepare
		// As they were sent: what is wrong with them is recorded (R193).
		Limits map[string]jsontext.Value `json:"limits,omitempty"`
	}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.Workspace != "" && p.Workspace != id.Workspace {
		return nil, badRequest(redact.Static("workspace: the credential is for another one"))
	}
	id, err := d.As(id, p.Principal)
	if err != nil {
		return nil, err
	}
	return d.Prepare(ctx, id, Preparation{
		Session: p.Session, Implicit: p.IncludeImplicit, Servers: p.ExplicitServers, Tools: p.ExplicitTools,
		HostTools: p.HostTools, NoTools: p.Provider != nil && !p.Provider.SupportsTools, Limits: p.Limits, Retry: true,
	})
}

func (d *Decider) turnEnd(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.TurnEnd
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	return p, d.EndTurn(ctx, id, p.Turn)
}

// EndTurn makes the bindings of a turn void.
func (d *Decider) EndTurn(ctx context.Context, id client.Identity, key string) error {
	s := d.Model.Turns.Get(id.Workspace, key)
	if s.Principal != id.Principal {
		return fault.New("turn.end", fault.TurnNotActive, redact.Static("the principal has no such turn"))
	}
	_, err := d.Model.Turns.Dispatch(ctx, id.Workspace, key, bus.Meta{
		Correlation: key, Actor: id.Actor, Principal: id.Principal, Scope: events.Scope{Session: s.Session, Turn: key},
	}, turn.End{Reason: "ended"})
	return err
}

func (d *Decider) toolList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ToolList
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	return d.tools(ctx, d.Projections, catalog.Filter{Workspace: id.Workspace, Principal: p.Principal, Server: p.Server})
}

// tools are the tools that a set knows, with their definitions.
func (d *Decider) tools(ctx context.Context, set *projections.Set, f catalog.Filter) ([]client.ToolInfo, error) {
	out := []client.ToolInfo{}
	for _, t := range set.Catalog.Tools(f) {
		info := client.ToolInfo{
			Name: t.Name, Server: t.Server, RawName: t.RawName, Principal: t.Principal, Digest: t.Digest, Blocked: t.Blocked,
			Flags: t.Flags,
		}
		snapshot, err := d.snapshots.get(ctx, t.Blob)
		if err != nil {
			return nil, fault.Wrap("tool.list", fault.CatalogMissing, redact.Static("the catalog of a server cannot be read"), err)
		}
		for _, s := range snapshot.Tools {
			if s.Name == t.RawName {
				info.Definition = json.RawMessage(s.Definition)
				var text struct {
					Description string `json:"description"`
				}
				_ = json.Unmarshal(s.Definition, &text) // no text is no description
				info.Description = text.Description
			}
		}
		if info.Name == "" && !info.Blocked {
			// No session has a catalog with it yet: the name it would get by itself.
			if named, err := toolname.Assemble([]toolname.Source{{ServerID: t.Server, Tools: []string{t.RawName}}}, nil); err == nil {
				info.Name = named[0].Name
			}
		}
		out = append(out, info)
	}
	return out, nil
}

func serverRow(s servers.Server) client.Server {
	row := client.Server{
		Name: s.Name, Core: s.Core, Path: s.Path, Enabled: s.Enabled, Transport: s.Transport, Risk: s.Risk,
		Approval: s.ApprovalPolicy, Capability: s.Capability, Fingerprint: s.Fingerprint, State: s.State, Tools: s.Tools,
		Connections: []client.ServerConnection{}, Installed: installation(s.Install),
	}
	if row.Capability == "" {
		row.Capability = authority.Call(s.Name)
	}
	for _, c := range s.Connections {
		reason := c.Reason
		if c.Stage != "" {
			reason = c.Stage + ": " + c.Reason
		}
		of := client.ServerConnection{
			Connection: c.Connection, Principal: c.Principal, Session: c.Session, State: c.State, Reason: reason,
			Message: c.Message, Since: c.Since, Generation: c.Generation, Tools: c.Tools, Approval: c.Approval,
		}
		for _, f := range c.Flags {
			of.Flags = append(of.Flags, client.ItemFlag{List: f.List, Name: f.Name, Reasons: f.Reasons})
		}
		row.Connections = append(row.Connections, of)
	}
	return row
}

// servers are the rows that an identity may see: an operator and an auditor see
// every connection, a host its own (decision 26).
func (d *Decider) servers(ctx context.Context, id client.Identity) ([]client.Server, error) {
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	return serverRows(d.Projections, id.Workspace, d.whose(id)), nil
}

// whose are the connections that an identity sees; empty is those of all.
func (d *Decider) whose(id client.Identity) string {
	if d.Role(id.Workspace, id.Actor) == host.RoleHost {
		return id.Principal
	}
	return ""
}

func serverRows(set *projections.Set, workspace, principal string) []client.Server {
	out := []client.Server{}
	for _, s := range set.Servers.List(workspace, principal) {
		out = append(out, serverRow(s))
	}
	return out
}

func (d *Decider) serverList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	return d.servers(ctx, id)
}

func (d *Decider) serverDetails(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ServerName
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	for _, s := range d.Projections.Servers.List(id.Workspace, d.whose(id)) {
		if s.Name == p.Name {
			row := serverRow(s)
			err := d.detail(ctx, id, s, &row)
			return row, err
		}
	}
	return nil, fault.New("server.get", fault.NotFound, redact.Static("no such server"))
}

func (d *Decider) grantParams(id client.Identity, r *bus.Request) (client.Grant, bus.Meta, redact.EventText, error) {
	var p client.Grant
	if err := r.Decode(&p); err != nil {
		return p, bus.Meta{}, redact.EventText{}, err
	}
	if authority.CheckPrincipal(p.Principal) != nil {
		return p, bus.Meta{}, redact.EventText{}, badRequest(redact.Static("principal: 1 to 64 letters, digits, _, @ or -"))
	}
	if p.Principal == bus.Local {
		return p, bus.Meta{}, redact.EventText{}, badRequest(redact.Static("principal: local is an operator and holds no capabilities; it acts for others with --as"))
	}
	m := meta(id, r, events.Scope{})
	m.Principal = p.Principal
	note, err := line(p.Note)
	return p, m, note, err
}

// line makes a view of a text that a person typed.
func line(s string) (redact.EventText, error) {
	r, err := redact.NewRedactor()
	if err != nil {
		return redact.EventText{}, err
	}
	return r.Line(redact.NewRaw(s)).Event, nil
}

func (d *Decider) grantAdd(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	p, m, note, err := d.grantParams(id, r)
	if err != nil {
		return nil, err
	}
	if !p.Until.IsZero() && !p.Until.After(time.Now()) {
		return nil, badRequest(redact.Static("until: lies in the past"))
	}
	_, err = d.Model.Grants.Dispatch(ctx, id.Workspace, p.Principal, m, grant.Grant{Capability: p.Capability, Until: p.Until, Note: note})
	return p, err
}

func (d *Decider) grantRevoke(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	p, m, note, err := d.grantParams(id, r)
	if err != nil {
		return nil, err
	}
	_, err = d.Model.Grants.Dispatch(ctx, id.Workspace, p.Principal, m, grant.Revoke{Capability: p.Capability, Note: note})
	if err != nil {
		return nil, err
	}
	if err := d.settle(ctx, id.Workspace, events.KindGrant, p.Principal); err != nil {
		return nil, err
	}
	return p, d.withdrawOf(ctx, id, p.Principal)
}

// withdrawOf ends what a principal may not have any more, before whoever took
// something away has his answer.
func (d *Decider) withdrawOf(ctx context.Context, id client.Identity, principal string) error {
	if err := d.caught(ctx); err != nil {
		return err
	}
	d.withdraw(ctx, id.Actor, time.Now(), principal)
	return nil
}

// settle makes what was taken away by a command hold at every process of the
// home before its reply: nothing starts after it that it does not permit
// (decision 16).
func (d *Decider) settle(ctx context.Context, workspace string, kind events.Kind, key string) error {
	return d.Settle(ctx, workspace, events.AggregateID{Kind: kind, Key: key})
}

func (d *Decider) grantList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.GrantList
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	return grantRows(d.Projections, id.Workspace, p.Principal), nil
}

func grantRows(set *projections.Set, workspace, principal string) []client.Grant {
	out := []client.Grant{}
	for _, c := range set.Grants.Capabilities(workspace, principal) {
		out = append(out, client.Grant{Principal: c.Principal, Capability: c.Capability, Until: c.Until, Note: c.Note})
	}
	return out
}

func (d *Decider) hostToken(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.HostToken
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	p.Role, p.Workspace = cmp.Or(p.Role, host.RoleHost), cmp.Or(p.Workspace, id.Workspace)
	if !bus.Enrollable(p.Name) {
		return nil, badRequest(redact.Static("name: 1 to 64 letters, digits, _, @ or -, and neither local nor runtime"))
	}
	if !p.Expires.IsZero() && !p.Expires.After(time.Now()) {
		return nil, badRequest(redact.Static("expires: lies in the past"))
	}
	if p.Workspace != d.Workspace {
		return nil, badRequest(redact.Static("workspace: there is no such workspace"))
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	token := "gb_" + base64.RawURLEncoding.EncodeToString(secret[:])
	m := meta(id, r, events.Scope{})
	m.Principal = p.Name
	dec, err := d.Model.Hosts.Dispatch(ctx, p.Workspace, p.Name, m, host.IssueToken{
		Role: p.Role, Token: "tok-" + ulid.Make().String(), Hash: TokenHash(token), Workspace: p.Workspace, Expires: p.Expires,
	})
	if err != nil {
		return nil, err
	}
	if dec.Repeated {
		return nil, fault.New("host.token", fault.Conflict, redact.Static("the token of this command was given out already; ask for another"))
	}
	// Who has the token may use it.
	if err := d.Projections.Wait(ctx, dec.Seq); err != nil {
		return nil, err
	}
	return client.HostTokenResult{Principal: p.Name, Role: p.Role, Workspace: p.Workspace, Token: token}, nil
}

// TokenHash is what is stored of a token.
func TokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// newToken bounds the wait for a token that another process issued.
const newToken = 2 * time.Second

// Authenticate finds whose token it is. What he may do is the matter of his role.
func (d *Decider) Authenticate(token string) (client.Identity, bool) {
	hash := TokenHash(token)
	if id, ok := d.owner(hash); ok {
		return id, true
	}
	// Another process may have issued it a moment ago.
	ctx, cancel := context.WithTimeout(context.Background(), newToken)
	defer cancel()
	if d.Bus.Sync(ctx) != nil || d.caught(ctx) != nil {
		return client.Identity{}, false
	}
	return d.owner(hash)
}

// owner is whose token has the hash, as far as is known here.
func (d *Decider) owner(hash string) (client.Identity, bool) {
	t, ok := d.Projections.Grants.TokenByHash(hash)
	if !ok || !t.Expires.IsZero() && !time.Now().Before(t.Expires) {
		return client.Identity{}, false
	}
	// The projection may be behind by a revoke; the model is not.
	s := d.Model.Hosts.Get(t.Workspace, t.Principal)
	if _, ok := s.Tokens[t.ID]; !ok {
		return client.Identity{}, false
	}
	return client.Identity{Workspace: t.Workspace, Principal: t.Principal, Actor: t.Principal}, true
}

func (d *Decider) busCreds(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.BusCreds
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	p.Role, p.Workspace = cmp.Or(p.Role, host.RoleHost), cmp.Or(p.Workspace, id.Workspace)
	if p.Workspace != d.Workspace {
		return nil, badRequest(redact.Static("workspace: there is no such workspace"))
	}
	m := meta(id, r, events.Scope{})
	m.Principal = p.Name
	c, err := d.Bus.Issue(ctx, m, bus.Issue{
		Workspace: p.Workspace, Principal: p.Name, Role: p.Role, PublicKey: p.PublicKey, Expires: p.Expires,
	})
	if err != nil {
		return nil, err
	}
	out := client.BusCredsResult{
		Principal: p.Name, Role: p.Role, Workspace: p.Workspace, Credential: c.ID, Expires: p.Expires, Creds: string(c.Text),
	}
	if p.PublicKey != "" {
		out.JWT = c.JWT
	}
	return out, nil
}

func (d *Decider) hostRevoke(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.HostRevoke
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.Name == bus.Local {
		return nil, badRequest(redact.Static("name: local is whoever can read the home; a start of the runtime gives it new credentials"))
	}
	m := meta(id, r, events.Scope{})
	m.Principal = p.Name
	dec, err := d.Model.Hosts.Dispatch(ctx, id.Workspace, p.Name, m, host.Revoke{Token: p.Credential})
	if err != nil {
		return nil, err
	}
	if p.Credential == "" {
		if _, err := d.Model.Grants.Dispatch(ctx, id.Workspace, p.Name, m, grant.RevokeAll{Note: redact.Static("the host was revoked")}); err != nil {
			return nil, err
		}
		if err := d.settle(ctx, id.Workspace, events.KindGrant, p.Name); err != nil {
			return nil, err
		}
	}
	// Who hears of it may rely on it: no process decides on what was before, and no
	// server lets the credential in any more.
	if err := d.settle(ctx, id.Workspace, events.KindHost, p.Name); err != nil {
		return nil, err
	}
	if p.Credential == "" {
		if err := d.withdrawOf(ctx, id, p.Name); err != nil {
			return nil, err
		}
		for at, s := range d.Model.Sessions.All() {
			if at.Workspace != id.Workspace || s.Principal != p.Name || !s.Active {
				continue
			}
			of := bus.Meta{Correlation: at.Key, Actor: id.Actor, Principal: p.Name, Scope: events.Scope{Session: at.Key}}
			if err := d.endSession(ctx, id, at.Key, of, "host_revoked"); err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
		}
	}
	if err := d.Bus.AccountsSettled(ctx, dec.Seq); err != nil {
		return nil, err
	}
	out := client.Host{Name: p.Name, Role: dec.State.Role, Revoked: dec.State.Revoked, Credentials: []client.HostCredential{}}
	for id, t := range dec.State.Tokens {
		out.Credentials = append(out.Credentials, credentialRow(id, t.PublicKey, t.Workspace, t.Expires))
	}
	slices.SortFunc(out.Credentials, func(a, b client.HostCredential) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

func credentialRow(id, publicKey, workspace string, expires time.Time) client.HostCredential {
	kind := "token"
	if publicKey != "" {
		kind = "key"
	}
	return client.HostCredential{ID: id, Kind: kind, PublicKey: publicKey, Workspace: workspace, Expires: expires}
}

func (d *Decider) hostList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	return hostRows(d.Projections, id.Workspace), nil
}

func hostRows(set *projections.Set, workspace string) []client.Host {
	out := []client.Host{}
	for _, h := range set.Grants.Hosts(workspace) {
		row := client.Host{Name: h.Name, Role: h.Role, Revoked: h.Revoked, Credentials: []client.HostCredential{}}
		for _, c := range h.Credentials {
			row.Credentials = append(row.Credentials, credentialRow(c.ID, c.PublicKey, c.Workspace, c.Expires))
		}
		out = append(out, row)
	}
	return out
}

func approval(a approvals.Approval) client.Approval {
	out := client.Approval{
		ID: a.ID, Seq: a.Seq, State: string(a.State), Action: a.Action, Target: a.Target, Principal: a.Principal,
		Server: a.Server, Tool: a.Tool, Session: a.Session, Aggregate: a.Aggregate.String(), Risk: a.Risk, Policy: a.Policy,
		Fingerprint: a.Fingerprint, Requested: a.Requested, Expires: a.Expires, Kind: a.Kind, By: a.By, Note: a.Note,
	}
	if json.Valid([]byte(a.Preview)) {
		out.Preview = json.RawMessage(a.Preview)
	}
	return out
}

func approvalRows(set *projections.Set, workspace string, all bool) []client.Approval {
	out := []client.Approval{}
	for _, a := range set.Approvals.List(workspace, all) {
		out = append(out, approval(a))
	}
	return out
}

func (d *Decider) approvalsList(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ApprovalsList
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	if p.WaitMS > 0 {
		ctx, cancel := context.WithTimeout(ctx, min(time.Duration(p.WaitMS)*time.Millisecond, maxPoll))
		defer cancel()
		// What is there is the answer, also when nothing came.
		_, _ = d.Projections.Changed(ctx, p.After)
	}
	after := d.Projections.Applied()
	return client.Approvals{After: after, Approvals: approvalRows(d.Projections, id.Workspace, p.All)}, nil
}

func (d *Decider) approvalsGet(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ApprovalID
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	a, err := d.findApproval(ctx, id, p.ID)
	if err != nil {
		return nil, err
	}
	out := approval(a)
	if a.State == approvals.Pending && a.Aggregate.Kind == events.KindCall {
		out.Arguments = d.Arguments(ctx, a.Aggregate.Key, a.ID)
	}
	return out, nil
}

func (d *Decider) findApproval(ctx context.Context, id client.Identity, key string) (approvals.Approval, error) {
	if err := d.caught(ctx); err != nil {
		return approvals.Approval{}, err
	}
	a, ok := d.Projections.Approvals.Get(key)
	if !ok || a.Workspace != id.Workspace {
		return a, fault.New("approval", fault.NotFound, redact.Static("no such approval"))
	}
	return a, nil
}

func (d *Decider) approvalsDecide(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ApprovalsDecide
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if p.Decision != "allow" && p.Decision != "deny" {
		return nil, badRequest(redact.Static("decision: allow or deny"))
	}
	note, err := line(p.Note)
	if err != nil {
		return nil, err
	}
	a, err := d.findApproval(ctx, id, p.ID)
	if err != nil {
		return nil, err
	}
	if a.State != approvals.Pending {
		kind := fault.Conflict
		if a.State == approvals.Expired {
			kind = fault.ApprovalExpired
		}
		return nil, fault.New("approval.decide", kind, redact.Static("the approval was answered already or has expired"))
	}
	if p.Session && a.Action != call.Action {
		return nil, badRequest(redact.Static("session: only a call can be approved for the session; a connection always is"))
	}
	now := time.Now()
	m := meta(id, r, scope(a.Aggregate, a.Session, a.Server))
	m.Principal, m.Correlation, m.Time = a.Principal, a.Aggregate.Key, now
	with := bus.With{Reads: bus.AuthorityReads(a.Workspace, a.Principal)}
	var seq uint64
	var withheld bool
	switch a.Aggregate.Kind {
	case events.KindCall:
		dec, err := d.Model.Calls.DispatchWith(ctx, a.Workspace, a.Aggregate.Key, m, with, func() (call.Command, error) {
			return call.Answer{
				Authority: d.Model.Authority(a.Workspace, a.Principal), Approval: a.ID, Allow: p.Decision == "allow",
				Session: p.Session, By: id.Actor, Channel: string(r.Channel), Note: note, At: now,
			}, nil
		})
		if err != nil {
			return nil, err
		}
		seq, withheld = dec.Seq, dec.State.Reason == string(fault.CapabilityDenied)
	case events.KindConnection:
		dec, err := d.Model.Connections.DispatchWith(ctx, a.Workspace, a.Aggregate.Key, m, with, func() (connection.Command, error) {
			of := d.Model.Connections.Get(a.Workspace, a.Aggregate.Key)
			return connection.Answer{
				Authority: d.Model.Holder(a.Workspace, of), Approval: a.ID, Allow: p.Decision == "allow",
				By: id.Actor, Channel: string(r.Channel), Note: note, At: now,
			}, nil
		})
		if err != nil {
			return nil, err
		}
		seq, withheld = dec.Seq, dec.State.Phase == connection.Denied && dec.State.DeniedStage == connection.StageCapability
		if p.Decision == "allow" {
			seq = max(seq, d.alike(ctx, a.Workspace, dec.State, connection.Answer{By: id.Actor, Channel: string(r.Channel), Note: note, At: now}))
		}
	}
	d.Tidy(ctx)
	// Who was told yes must see it used by the next call.
	if err := d.Projections.Wait(ctx, seq); err != nil {
		return nil, err
	}
	a, err = d.findApproval(ctx, id, p.ID)
	if err != nil {
		return nil, err
	}
	if a.State == approvals.Expired && withheld {
		return nil, fault.New("approval.decide", fault.CapabilityDenied, redact.Static("the principal lost the capability; nothing waits for the answer any more"))
	}
	if a.State == approvals.Expired {
		return nil, fault.New("approval.decide", fault.ApprovalExpired, redact.Static("the approval expired before the answer"))
	}
	return approval(a), nil
}

func (d *Decider) policyShow(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	policy := d.Projections.Grants.Policy(id.Workspace)
	out := client.PolicyShow{
		Workspace: id.Workspace, Sequence: policy.Sequence, Approvers: policy.Approvers, OnChange: policy.OnChange,
		Levels: []client.PolicyLevel{},
	}
	for _, l := range policy.Levels {
		level := client.PolicyLevel{Level: l.Level, Server: l.Server, Default: l.Default, Rules: []client.ApprovalRule{}}
		for _, rule := range l.Rules {
			level.Rules = append(level.Rules, client.ApprovalRule(rule))
		}
		out.Levels = append(out.Levels, level)
	}
	return out, nil
}

func (d *Decider) coreReload(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	loaded, err := d.Cores.Load(ctx, id.Actor)
	if err != nil {
		return nil, err
	}
	for _, l := range loaded {
		if err := d.settle(ctx, id.Workspace, events.KindCore, l.Core); err != nil {
			return nil, err
		}
	}
	out := client.CoreReload{Cores: []client.CoreLoad{}}
	for _, l := range loaded {
		c := client.CoreLoad{ID: l.Core, Revision: l.Revision, Servers: l.Servers, Failed: l.Failed, Problems: []string{}}
		for _, g := range l.Diagnostics {
			c.Problems = append(c.Problems, g.String())
		}
		out.Cores = append(out.Cores, c)
	}
	return out, nil
}

func (d *Decider) busBackup(ctx context.Context, _ client.Identity, r *bus.Request) (any, error) {
	var p client.BackupTo
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	return d.Bus.Backup(ctx, p.Dir)
}

func (d *Decider) busRebuild(ctx context.Context, _ client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	rebuilt, err := d.Projections.Rebuild(ctx, d.Bus, d.Bus.Head())
	if err != nil {
		return nil, fault.Wrap("bus.rebuild", fault.AuditDamaged, redact.Static("the log cannot be folded"), err)
	}
	live, fresh, err := d.Audit.Compare(ctx, d.Bus, rebuilt.Seq)
	if err != nil {
		return nil, noFile(err)
	}
	rebuilt.Projections["audit"] = projections.Compared{Live: live, Rebuilt: fresh}
	out := client.Rebuild{Commits: rebuilt.Commits, Events: rebuilt.Events, Projections: map[string]client.RebuiltProjection{}}
	for name, c := range rebuilt.Projections {
		out.Projections[name] = client.RebuiltProjection{
			Live: hex.EncodeToString(c.Live[:]), Rebuilt: hex.EncodeToString(c.Rebuilt[:]), Equal: c.Equal(),
		}
	}
	return out, nil
}
