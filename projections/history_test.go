package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/turn"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/projections/internal/memlog"
	"github.com/gatebus/gatebus/projections/sessions"
)

const workspace = "default"

var (
	offered = []string{"docs", "files"}
	tools   = []string{"read", "write"}
)

// table is the states of one kind of aggregate, as the bus would hold them.
type table[S, C any] struct {
	kind   events.Kind
	decide func(S, C) ([]events.Event, error)
	evolve func(S, events.Recorded) S
	states map[string]S
}

func tableOf[S, C any](kind events.Kind, decide func(S, C) ([]events.Event, error), evolve func(S, events.Recorded) S) *table[S, C] {
	return &table[S, C]{kind, decide, evolve, make(map[string]S)}
}

// world is a small Gatebus whose log the deciders write: a plausible history.
type world struct {
	*memlog.Log
	*rand.Rand
	now         time.Time
	ids         int
	principalOf map[string]string // session to principal
	callOf      map[string]events.Commit
	// live is asked for the answers that stand for a session, as the caller does.
	live *Set

	hosts       *table[host.State, host.Command]
	grants      *table[grant.State, grant.Command]
	policies    *table[policy.State, policy.Command]
	cores       *table[core.State, core.Command]
	sessions    *table[session.State, session.Command]
	connections *table[connection.State, connection.Command]
	turns       *table[turn.State, turn.Command]
	calls       *table[call.State, call.Command]
	servers     *table[server.State, server.Command]
}

func newWorld(seed uint64) *world {
	return &world{
		Log: memlog.Of(), Rand: rand.New(rand.NewPCG(seed, 0)), now: start, principalOf: map[string]string{}, callOf: map[string]events.Commit{}, live: New(),
		hosts:       tableOf(events.KindHost, host.Decide, host.Evolve),
		grants:      tableOf(events.KindGrant, grant.Decide, grant.Evolve),
		policies:    tableOf(events.KindPolicy, policy.Decide, policy.Evolve),
		cores:       tableOf(events.KindCore, core.Decide, core.Evolve),
		sessions:    tableOf(events.KindSession, session.Decide, session.Evolve),
		connections: tableOf(events.KindConnection, connection.Decide, connection.Evolve),
		turns:       tableOf(events.KindTurn, turn.Decide, turn.Evolve),
		calls:       tableOf(events.KindCall, call.Decide, call.Evolve),
		servers:     tableOf(events.KindServer, server.Decide, server.Evolve),
	}
}

func (w *world) id(prefix string) string {
	w.ids++
	return fmt.Sprintf("%s%03d", prefix, w.ids)
}

// dispatch decides a command and appends what happens; a refusal changes nothing.
func dispatch[S, C any](w *world, tb *table[S, C], key, principal string, scope events.Scope, cmd C) {
	happened, err := tb.decide(tb.states[key], cmd)
	if err != nil || len(happened) == 0 {
		return
	}
	c := &events.Commit{
		Command: w.id("cmd"), Correlation: "flow" + key, Actor: "local", Principal: principal, Workspace: workspace,
		Aggregate: events.AggregateID{Kind: tb.kind, Key: key}, Time: w.now, Scope: scope, Events: happened,
	}
	w.Add(c)
	if err := w.live.apply(c); err != nil {
		panic(err)
	}
	for r := range c.Recorded() {
		tb.states[key] = tb.evolve(tb.states[key], r)
	}
	if tb.kind == events.KindCall && w.callOf[key].Aggregate.Key == "" {
		w.callOf[key] = *c
	}
}

// step draws one command.
func (w *world) step() {
	pick := func(from []string) string { return from[w.IntN(len(from))] }
	yes := func() bool { return w.IntN(2) == 0 }
	w.now = w.now.Add(time.Duration([]int{0, 0, 0, 0, 0, 1, 1, 1, 5, 20, 600}[w.IntN(11)]) * time.Minute)
	who, label := pick([]string{"ana", "ana", "ana", "bob"}), pick([]string{"/mcp", "/mcp", "/mcp", "editor"})
	server, tool := pick(offered), pick(tools)
	sid := session.ID(workspace, who, label)
	w.principalOf[sid] = who
	cid := connection.ID(sid, server)
	conn := w.connections.states[cid]
	runtime := pick([]string{"r1", "r1", "r1", "r1", "r1", "r1", "r1", "r1", "r2"})
	scope := events.Scope{Session: sid, Connection: cid, Server: server}
	link := func(cmd connection.Command) { dispatch(w, w.connections, cid, who, scope, cmd) }
	discovery := connection.Discovery{
		Catalog: pick([]string{"v1", "v2", "v3"}), Blob: "blob", Approval: w.id("a"), At: w.now,
		OnChange: pick([]string{"block", "block", "flag"}),
	}
	for _, tool := range tools {
		discovery.Tools = append(discovery.Tools, events.ToolDigest{Tool: tool, Digest: pick([]string{"d1", "d1", "d1", "d1", "d2"})})
	}

	if w.IntN(8) == 0 {
		w.stepServer(pick([]string{"mail", "chat"}), pick)
	}

	// Most steps go on with what is there, so that histories get far.
	action := w.IntN(61)
	if action > 23 {
		action = 11 + action%12
	}
	switch action {
	case 0:
		dispatch(w, w.cores, "main", "local", events.Scope{Core: "main"}, core.Command(core.Load{
			Revision: pick([]string{"1", "2"}), Digest: pick([]string{"x", "y"}), Code: pick([]string{"", "", "core_load_failed"}),
			Loaded: []events.DeclarationLoaded{
				{Server: "docs", Path: "docs.yaml", Fingerprint: "fp", Enabled: true},
				{Server: "files", Path: "files.yaml", Fingerprint: pick([]string{"fp", "fp2"}), Enabled: yes()},
			},
		}))
	case 1, 2:
		dispatch(w, w.grants, who, who, events.Scope{}, grant.Command(grant.Grant{
			Capability: pick([]string{"mcp.connect:*", "mcp.call:*", authority.Connect(server), authority.Call(server)}),
		}))
	case 3:
		if yes() {
			dispatch(w, w.grants, who, who, events.Scope{}, grant.Command(grant.Revoke{Capability: pick([]string{"mcp.connect:*", "mcp.call:*"})}))
		}
	case 4:
		if w.IntN(4) == 0 {
			dispatch(w, w.policies, workspace, "local", events.Scope{}, policy.Command(policy.Set{
				Level: policy.Level{Level: "gateway"}, After: events.Policy{DefaultApproval: pick([]string{"", "prompt"})},
			}))
		}
	case 5:
		id := w.id("t")
		dispatch(w, w.hosts, who, who, events.Scope{}, host.Command(host.IssueToken{
			Role: pick([]string{"host", "host", "operator"}), Token: id, Hash: "hash of " + id, Workspace: workspace,
			Expires: w.now.Add(time.Hour),
		}))
	case 6:
		if yes() {
			dispatch(w, w.hosts, who, who, events.Scope{}, host.Command(host.Revoke{}))
		}
	case 7, 8:
		dispatch(w, w.sessions, sid, who, events.Scope{}, session.Command(session.Start{Label: label}))
	case 9:
		dispatch(w, w.sessions, sid, who, events.Scope{}, session.Command(session.Publish{Catalog: events.CatalogPublished{
			Catalog: w.id("cat"), Tools: []events.CatalogTool{{Name: "docs__read", Server: "docs", Tool: "read"}},
		}}))
	case 10:
		if yes() {
			dispatch(w, w.sessions, sid, who, events.Scope{}, session.Command(session.End{}))
		}
	case 11, 12:
		if !w.sessions.states[sid].Active {
			break
		}
		link(connection.Request{
			Session: sid, Server: server, Fingerprint: pick([]string{"fp", "fp", "fp", "fp", "fp2"}), Policy: authority.Prompt,
			Authority: w.grants.states[who].Snapshot(who), PolicySequence: w.policies.states[workspace].Seq,
			Retry: yes(), At: w.now,
		})
	case 13, 14, 15:
		w.moveConnection(cid, runtime, discovery)
	case 16, 17, 18, 19:
		if !w.sessions.states[sid].Active || conn.Phase != connection.Open && w.IntN(8) > 0 {
			w.moveConnection(cid, runtime, discovery)
			break
		}
		key := w.id("call")
		digest, policySequence := conn.Current[tool], w.policies.states[workspace].Seq
		standing, _ := w.live.Approvals.SessionApproval(workspace, who, sid, conn.Fingerprint, tool, digest, policySequence, w.now)
		dispatch(w, w.calls, key, who, events.Scope{Session: sid, Server: server, Call: key}, call.Command(call.Request{
			Facts: w.facts(who, cid, runtime),
			Requested: events.CallRequested{
				Session: sid, Connection: cid, Server: server, Tool: tool, Fingerprint: conn.Fingerprint, DefinitionDigest: digest,
				Capability: authority.Call(server), ArgumentDigest: pick([]string{"args1", "args2"}),
				Policy: pick([]string{"auto", "prompt", "prompt", "prompt", "deny"}),
			},
			Ready: yes(), Approval: w.id("a"), Interactive: true, SessionApproval: standing,
		}))
	case 20, 21, 22:
		w.moveCall(runtime)
	case 23:
		key := w.id("turn")
		cmd := turn.Command(turn.Bind{Requested: events.TurnRequested{Session: sid}, Bound: events.TurnBound{Runtime: runtime}})
		dispatch(w, w.turns, key, who, events.Scope{Session: sid}, cmd)
		if yes() {
			dispatch(w, w.turns, key, who, events.Scope{Session: sid}, turn.Command(turn.End{}))
		}
	}
}

// stepServer installs a server, or does something to one that is, or was.
func (w *world) stepServer(name string, pick func([]string) string) {
	do := func(cmd server.Command) {
		dispatch(w, w.servers, name, "local", events.Scope{Server: name}, cmd)
	}
	yes := w.IntN(2) == 0
	s := w.servers.states[name]
	switch w.IntN(8) {
	case 0, 1:
		do(server.Install{Installation: events.Installation{
			ScopeKind: server.ScopeWorkspace, ScopeKey: workspace, Name: name, Home: "h1", Fingerprint: pick([]string{"fp", "fp2"}),
			Transport: "stdio", Enabled: yes, By: "local",
		}})
	case 2:
		do(server.SetPolicy{Enabled: &yes})
	case 3:
		if yes {
			do(server.Uninstall{})
		}
	case 4:
		do(server.Boot{})
	default:
		for range 3 {
			do(server.Observe{
				To: server.Statuses[w.IntN(len(server.Statuses))], Reason: pick([]string{"", "x"}), Message: redact.Static("in words"),
				Generation: s.Generation, RetryAt: w.now.Add(time.Second),
			})
		}
	}
}

func (w *world) facts(who, cid, runtime string) call.Facts {
	return call.Facts{
		Authority: w.grants.states[who].Snapshot(who), PolicySequence: w.policies.states[workspace].Seq,
		Connection: w.connections.states[cid], Runtime: runtime, At: w.now,
	}
}

// moveConnection gives a command to a connection, most often the one that it
// waits for.
func (w *world) moveConnection(cid, runtime string, d connection.Discovery) {
	c := w.connections.states[cid]
	who := w.principalOf[c.Session]
	move := func(cmd connection.Command) {
		scope := events.Scope{Session: c.Session, Connection: cid, Server: c.Server}
		dispatch(w, w.connections, cid, who, scope, cmd)
	}
	odd := w.IntN(8) == 0
	switch c.Phase {
	case connection.Requested:
		gate := connection.Gate{Approval: w.id("a"), Interactive: true, At: w.now}
		if w.IntN(2) == 0 {
			gate.URL = &events.UrlDecision{Server: c.Server, Allowed: !odd}
		}
		if odd {
			gate.Stage, gate.Reason = connection.StageURL, "url_blocked"
		}
		move(gate)
	case connection.Approved:
		move(connection.Claim{Runtime: runtime})
	case connection.Opening:
		if odd {
			move(connection.Fail{Generation: c.Generation, Kind: "auth_required", At: w.now})
		}
		move(connection.Opened{Opened: events.ConnectionOpened{Generation: c.Generation}, Discovery: d})
	case connection.Open:
		switch w.IntN(10) {
		case 0:
			move(connection.Close{Generation: c.Generation, Reason: "idle"})
		case 1:
			move(connection.Reap{Runtime: c.Runtime})
		case 2, 3, 4:
			move(connection.Discovered{Generation: c.Generation, Discovery: d})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.Pending)) {
		move(connection.Answer{Authority: w.grants.states[who].Snapshot(who), Approval: id, Allow: !odd, By: "local", At: w.now})
	}
	if odd {
		move(connection.Expire{At: w.now})
	}
}

// moveCall gives a command to a call that has not ended.
func (w *world) moveCall(runtime string) {
	var keys []string
	for key, s := range w.calls.states {
		if s.Phase != call.Done {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return
	}
	slices.Sort(keys)
	key := keys[w.IntN(len(keys))]
	s := w.calls.states[key]
	who := w.principalOf[s.Session]
	move := func(cmd call.Command) {
		dispatch(w, w.calls, key, who, events.Scope{Session: s.Session, Server: s.Server, Call: key}, cmd)
	}
	switch s.Phase {
	case call.Waiting:
		move(call.Answer{
			Authority: w.grants.states[who].Snapshot(who), Approval: s.Approval, Allow: w.IntN(4) > 0, Session: w.IntN(2) == 0,
			By: "local", At: w.now,
		})
	case call.Allowed, call.Queued:
		switch w.IntN(4) {
		case 0:
			move(call.Abandon{Outcome: call.Cancelled})
		case 1:
			move(call.Expire{At: w.now})
		default:
			move(call.Start{Facts: w.facts(who, s.Connection, runtime)})
		}
	case call.Started:
		switch w.IntN(4) {
		case 0:
			move(call.Reap{Runtime: s.Runtime})
		case 1:
			move(call.Finish{Generation: s.Generation, Failed: &events.CallFailed{Status: call.StatusFailed}})
		case 2:
			move(call.Finish{Generation: s.Generation, Unknown: fault.RuntimeNotLive})
			move(call.Late{})
		default:
			move(call.Finish{Generation: s.Generation, Succeeded: &events.CallSucceeded{Status: call.Succeeded}})
		}
	}
}

// history draws a log that the deciders wrote. Only its seed and its length are
// drawn: rapid prefers small numbers, which here would be the same few commands
// again and again.
func history(t *rapid.T, longest int) *world {
	w := newWorld(rapid.Uint64().Draw(t, "seed"))
	for _, c := range []string{"mcp.connect:*", "mcp.call:*"} {
		dispatch(w, w.grants, "ana", "ana", events.Scope{}, grant.Command(grant.Grant{Capability: c}))
	}
	for range rapid.IntRange(longest/2, longest).Draw(t, "steps") {
		w.step()
	}
	return w
}

func TestPiecesOfAHistoryFoldAsTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := history(rt, 120)
		if w.Head() == 0 {
			return
		}
		live := New()
		for _, c := range w.Commits {
			if err := live.apply(c); err != nil {
				rt.Fatal(err)
			}
			if rapid.IntRange(0, 20).Draw(rt, "look") > 0 {
				continue
			}
			ask(t, live, w.now)
			whole := folded(t, w.Commits[:c.Seq])
			if diff := gocmp.Diff(digestsOf(whole), digestsOf(live)); diff != "" {
				rt.Fatalf("at %d: %s", c.Seq, diff)
			}
		}
		got, err := live.Rebuild(t.Context(), fromStore{w.Log, t}, 0)
		if err != nil {
			rt.Fatal(err)
		}
		for name, p := range got.Projections {
			if !p.Equal() {
				rt.Errorf("%s: rebuilt is not live", name)
			}
		}
	})
}

// What the projections answer is what the deciders hold.
func TestProjectionsAgreeWithTheDeciders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := history(rt, 400)
		s := folded(t, w.Commits)
		w.checkApprovals(rt, s)
		w.checkConnections(rt, s)
		w.checkServers(rt, s)
		w.checkSessions(rt, s)
		w.checkGrants(rt, s)
		if rapid.IntRange(0, 5).Draw(rt, "file") > 0 {
			return // a file costs more than all the rest
		}
		file, stop := written(t, w)
		defer stop()
		w.checkAudit(rt, file)
		w.checkViews(rt, file)
	})
}

func (w *world) checkServers(t *rapid.T, s *Set) {
	want, got := map[string]server.State{}, map[string]server.State{}
	for name, x := range w.servers.states {
		if x.Installed {
			want[name] = x
		}
	}
	for _, row := range s.Servers.List(workspace, "ana") {
		if i := row.Install; i != nil {
			got[row.Name] = server.State{
				Installation: i.Installation, Installed: true, Enabled: row.Enabled, Implicit: i.Implicit, Status: server.Status(row.State),
				Since: i.Since, Reason: i.Reason, RetryAttempt: i.RetryAttempt, NextRetryAt: i.NextRetryAt, Generation: i.Generation, Catalog: i.Catalog,
			}
		}
	}
	// What only deciders ask for.
	if diff := gocmp.Diff(want, got, cmpopts.IgnoreFields(server.State{}, "Rotated", "Last")); diff != "" {
		t.Errorf("installed servers: %s", diff)
	}
}

func (w *world) checkApprovals(t *rapid.T, s *Set) {
	var want []string
	for _, c := range w.connections.states {
		want = append(want, slices.Collect(maps.Keys(c.Pending))...)
	}
	open := map[approvals.Binding][]string{}
	var due []string
	for key, c := range w.calls.states {
		first := w.callOf[key]
		b := approvals.Binding{
			Workspace: workspace, Principal: first.Principal, Session: c.Session, Server: c.Server, Tool: c.Tool,
			DefinitionDigest: c.DefinitionDigest, ArgumentDigest: c.ArgumentDigest,
		}
		switch c.Phase {
		case call.Waiting:
			want = append(want, c.Approval)
			open[b] = append(open[b], key)
		case call.Allowed:
			a, ok := s.Approvals.Get(c.Approval)
			if !ok || a.State != approvals.Allowed || a.Spent {
				t.Errorf("the approval of call %s, which may start, is %+v", key, a)
			}
			if a.Kind == call.Once {
				open[b] = append(open[b], key)
			}
		}
		if (c.Phase == call.Waiting || c.Phase == call.Allowed) && !w.now.Before(c.Expires) {
			due = append(due, c.Approval)
		}
		// The keys are in the order of the requests.
		got, ok := s.Approvals.OpenCall(b)
		if newest := slices.Sorted(slices.Values(open[b])); ok && len(newest) > 0 && got < newest[len(newest)-1] {
			t.Errorf("OpenCall(%+v) = %s, the newest is %v", b, got, newest)
		}
	}
	for b, keys := range open {
		if got, ok := s.Approvals.OpenCall(b); !ok || got != slices.Max(keys) {
			t.Errorf("OpenCall(%+v) = %q, %v; open are %v", b, got, ok, keys)
		}
	}
	for key, c := range w.calls.states {
		b := approvals.Binding{
			Workspace: workspace, Principal: w.callOf[key].Principal, Session: c.Session, Server: c.Server, Tool: c.Tool,
			DefinitionDigest: c.DefinitionDigest, ArgumentDigest: c.ArgumentDigest,
		}
		if got, ok := s.Approvals.OpenCall(b); ok && len(open[b]) == 0 {
			t.Errorf("OpenCall(%+v) = %s, none is open", b, got)
		}
	}
	var got []string
	for _, a := range s.Approvals.Pending(workspace) {
		got = append(got, a.ID)
		if a.Principal == "" || a.Session == "" || a.Server == "" || w.principalOf[a.Session] != a.Principal {
			t.Errorf("pending approval without its principal and session: %+v", a)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("pending: %s", diff)
	}
	for _, c := range w.connections.states {
		for id, p := range c.Pending {
			if !w.now.Before(p.Expires) {
				due = append(due, id)
			}
		}
	}
	got = nil
	for _, a := range s.Approvals.Due(w.now) {
		got = append(got, a.ID)
	}
	slices.Sort(due)
	slices.Sort(got)
	if diff := gocmp.Diff(due, got); diff != "" {
		t.Errorf("due: %s", diff)
	}
	w.checkStanding(t, s)
}

// checkStanding compares with a naive reading of the log.
func (w *world) checkStanding(t *rapid.T, s *Set) {
	for i, c := range w.Commits {
		for _, e := range c.Events {
			d, ok := e.(events.ApprovalDecided)
			if !ok || d.Cached || d.Kind != call.Session || c.Aggregate.Kind != events.KindCall {
				continue
			}
			a, ok := s.Approvals.Get(d.Approval)
			if !ok || a.State != approvals.Allowed {
				t.Errorf("an answer for the session is %+v", a)
			}
			until, _ := time.Parse(time.RFC3339Nano, d.Until)
			want := w.now.Before(until)
			for _, later := range w.Commits[i:] {
				for _, e := range later.Events {
					switch e := e.(type) {
					case events.SessionEnded:
						want = want && later.Aggregate.Key != a.Session
					case events.HostRevoked:
						want = want && later.Aggregate.Key != a.Principal
					case events.ApprovalDecided:
						// A later answer to the same question takes its place.
						b, _ := s.Approvals.Get(e.Approval)
						if !e.Cached && e.Kind == call.Session && b.ID != a.ID && b.Principal == a.Principal &&
							b.Session == a.Session && b.Tool == a.Tool && b.Fingerprint == a.Fingerprint &&
							b.DefinitionDigest == a.DefinitionDigest && b.PolicySequence == a.PolicySequence {
							return
						}
					}
				}
			}
			id, ok := s.Approvals.SessionApproval(workspace, a.Principal, a.Session, a.Fingerprint, a.Tool,
				a.DefinitionDigest, a.PolicySequence, w.now)
			if ok != want || ok && id != a.ID {
				t.Errorf("SessionApproval of %s = %q, %v; want %v", a.ID, id, ok, want)
			}
			if _, ok := s.Approvals.SessionApproval(workspace, a.Principal, a.Session, a.Fingerprint, a.Tool,
				a.DefinitionDigest, a.PolicySequence, until); ok {
				t.Errorf("%s is in force at its end", a.ID)
			}
		}
	}
}

func (w *world) checkConnections(t *rapid.T, s *Set) {
	got := map[string]string{}
	for _, c := range s.Servers.Connections(workspace) {
		got[c.Connection] = c.State
		if c.State == string(connection.Waiting) {
			if _, ok := w.connections.states[c.Connection].Pending[c.Approval]; !ok {
				t.Errorf("connection %s waits for %q", c.Connection, c.Approval)
			}
		}
	}
	var listed []string
	for key, c := range w.connections.states {
		state := string(c.Phase)
		if c.Phase == connection.Open {
			state = "ready"
			for tool, digest := range c.Current {
				listed = append(listed, fmt.Sprint(key, tool, digest, c.Blocked[tool], c.Catalog))
			}
		}
		_, known := got[key]
		if active := w.sessions.states[c.Session].Active; c.Session != "" && active && !known {
			t.Errorf("connection %s of an active session is not listed", key)
		}
		if known && got[key] != state {
			t.Errorf("connection %s is %s, listed as %s", key, state, got[key])
		}
	}
	var tools []string
	for _, x := range s.Catalog.Tools(catalog.Filter{Workspace: workspace}) {
		tools = append(tools, fmt.Sprint(x.Connection, x.RawName, x.Digest, x.Blocked, x.CatalogVersion))
		if see := w.sessions.states[x.Session]; (x.Name == "docs__read") != (see.Catalog != "" && x.Server == "docs" && x.RawName == "read") {
			t.Errorf("%s of %s is visible as %q", x.RawName, x.Server, x.Name)
		}
	}
	slices.Sort(listed)
	slices.Sort(tools)
	if diff := gocmp.Diff(listed, tools); diff != "" {
		t.Errorf("tools: %s", diff)
	}
}

func (w *world) checkSessions(t *rapid.T, s *Set) {
	for id, state := range w.sessions.states {
		began := uint64(0)
		for _, c := range w.Commits {
			if _, ok := c.Events[0].(events.SessionStarted); ok && c.Aggregate.Key == id {
				began = c.Seq
			}
		}
		want := sessions.Session{
			Workspace: workspace, ID: id, Principal: state.Principal, Label: state.Label, Active: state.Active,
			Catalog: state.Catalog, Calls: map[string]int{},
		}
		for key, c := range w.calls.states {
			if c.Session != id || w.callOf[key].Seq < began {
				continue
			}
			if c.Phase == call.Done {
				want.Calls[c.Outcome]++
			} else {
				want.InFlight++
			}
		}
		for _, c := range w.Commits {
			if e, ok := c.Events[0].(events.TurnRequested); ok && e.Session == id && c.Seq > began {
				want.Turns++
			}
		}
		for key, c := range w.connections.states {
			if c.Session == id && c.Phase == connection.Open {
				want.Connections = append(want.Connections, key)
			}
		}
		slices.Sort(want.Connections)
		if want.Catalog != "" {
			want.Tools = 1
		}
		got, ok := s.Sessions.Get(workspace, id)
		if diff := gocmp.Diff(want, got, cmpopts.IgnoreFields(want, "Started", "Ended")); !ok || diff != "" {
			t.Errorf("session: %s", diff)
		}
	}
}

func (w *world) checkGrants(t *rapid.T, s *Set) {
	var want, got []string
	for who, state := range w.grants.states {
		for _, g := range state.Granted {
			want = append(want, who+" "+g.Capability)
		}
	}
	for _, g := range s.Grants.Capabilities(workspace, "") {
		got = append(got, g.Principal+" "+g.Capability)
	}
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("capabilities: %s", diff)
	}
	valid := map[string]string{}
	for who, state := range w.hosts.states {
		for _, x := range state.Tokens {
			valid[x.Hash] = who + " " + state.Role
		}
	}
	for i := range w.ids {
		hash := fmt.Sprintf("hash of t%03d", i+1)
		token, ok := s.Grants.TokenByHash(hash)
		if whose := token.Principal + " " + token.Role; ok != (valid[hash] != "") || ok && whose != valid[hash] {
			t.Errorf("%s is of %q, %v; want %q", hash, whose, ok, valid[hash])
		}
	}
	if p := s.Grants.Policy(workspace); p.Sequence != w.policies.states[workspace].Seq {
		t.Errorf("policy at %d", p.Sequence)
	}
}

// checkAudit compares with a naive reading of the log, by pages.
func (w *world) checkAudit(t *rapid.T, p *audit.Projection) {
	f := audit.Filter{
		Name:      rapid.SampledFrom([]string{"", "", "call_requested", "url_decision", "no_such"}).Draw(t, "name"),
		Server:    rapid.SampledFrom([]string{"", "", "docs", "files"}).Draw(t, "server"),
		Principal: rapid.SampledFrom([]string{"", "", "ana", "local"}).Draw(t, "principal"),
		After:     rapid.Uint64Range(0, 10).Draw(t, "after"),
	}
	if rapid.Bool().Draw(t, "times") {
		f.Since, f.Until = start.Add(time.Hour), w.now
	}
	var want []string
	for _, c := range w.Commits {
		for i, e := range c.Events {
			server := c.Scope.Server
			if x, ok := e.(events.DeclarationLoaded); ok {
				server = x.Server
			}
			if c.Seq > f.After && (f.Name == "" || e.EventName() == f.Name) && (f.Server == "" || f.Server == server) &&
				(f.Principal == "" || f.Principal == c.Principal) && (f.Since.IsZero() || !c.Time.Before(f.Since)) &&
				(f.Until.IsZero() || c.Time.Before(f.Until)) {
				want = append(want, fmt.Sprint(c.Seq, i, e.EventName()))
			}
		}
	}
	var got []string
	f.Limit = rapid.IntRange(8, 30).Draw(t, "limit") // no commit here has more
	for {
		page, err := p.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Rows) > f.Limit {
			t.Errorf("%d rows, the limit is %d", len(page.Rows), f.Limit)
		}
		for _, r := range page.Rows {
			got = append(got, fmt.Sprint(r.Seq, r.I, r.Name))
		}
		if !page.More {
			if page.Next != max(f.After, w.Head()) {
				t.Errorf("the last page goes on at %d, the head is %d", page.Next, w.Head())
			}
			break
		}
		f.After = page.Next
	}
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("audit %+v: %s", f, diff)
	}
	for key := range w.calls.states {
		w.checkTrace(t, p, key)
	}
}

// checkViews compares what SQL says with what the deciders hold.
func (w *world) checkViews(t *rapid.T, p *audit.Projection) {
	ask := func(question string) []string {
		answer, err := audit.Query(context.Background(), p.Path, question, 0)
		if err != nil {
			t.Fatalf("%s: %v", question, err)
		}
		out := []string{}
		for _, row := range answer.Rows {
			out = append(out, fmt.Sprint(row...))
		}
		return out
	}
	equal := func(what string, want, got []string) {
		slices.Sort(want)
		slices.Sort(got)
		if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	var calls, open, openings []string
	for key, c := range w.calls.states {
		calls = append(calls, strings.Join([]string{key, c.Session, c.Server, c.Tool, c.Outcome, c.Reason}, " "))
		if c.Phase == call.Waiting {
			open = append(open, c.Approval)
		}
	}
	equal("calls", calls, ask(`SELECT concat_ws(' ', call, session, server, tool, coalesce(outcome, ''), coalesce(reason, '')) FROM calls`))
	for _, c := range w.connections.states {
		open = append(open, slices.Collect(maps.Keys(c.Pending))...)
		if c.Phase == connection.Open || c.Phase == connection.Opening {
			openings = append(openings, fmt.Sprint(c.Generation, c.Runtime, c.Phase == connection.Open))
		}
	}
	equal("connections", openings, ask(`SELECT generation || runtime || iif(opened IS NULL, 'false', 'true') FROM connections WHERE ended IS NULL`))
	// A question ends unanswered with what asked it, so that the view may have more.
	pending := ask("SELECT approval FROM approvals WHERE decided IS NULL AND expired IS NULL")
	for _, id := range open {
		if !slices.Contains(pending, id) {
			t.Errorf("approvals: %s waits and is not pending in %v", id, pending)
		}
	}
	var turns []string
	for key, s := range w.turns.states {
		turns = append(turns, fmt.Sprint(key, s.Phase != turn.Ended))
	}
	equal("turns", turns, ask("SELECT turn || iif(ended IS NULL, 'true', 'false') FROM turns"))
	for _, view := range audit.Tables() {
		ask("SELECT * FROM " + view)
	}
}

// granted is the last commit up to a sequence that gave a principal a capability, by
// whatever name.
func (w *world) granted(principal, capability string, until uint64) (seq uint64) {
	for _, c := range w.Commits {
		if c.Seq > until || c.Aggregate != (events.AggregateID{Kind: events.KindGrant, Key: principal}) {
			continue
		}
		for _, e := range c.Events {
			if g, ok := e.(events.CapabilityGranted); ok && slices.Contains(authority.Covering(capability), g.Capability) {
				seq = c.Seq
			}
		}
	}
	return seq
}

// checkTrace: a call's trace has all of the call and all that it cites, once and
// in order.
func (w *world) checkTrace(t *rapid.T, p *audit.Projection, key string) {
	rows, err := p.Trace(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(rows, func(a, b audit.Row) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.I, b.I)) }) {
		t.Errorf("the trace of %s is not in order", key)
	}
	has := map[uint64]int{}
	for _, r := range rows {
		has[r.Seq]++
	}
	for _, c := range w.Commits {
		cited := c.Aggregate == events.AggregateID{Kind: events.KindCall, Key: key}
		if cited {
			for _, e := range c.Events {
				switch e := e.(type) {
				case events.CallAuthorized:
					granted := w.granted(c.Principal, e.Capability, uint64(e.AuthoritySequence))
					for _, seq := range []uint64{granted, uint64(e.PolicySequence), uint64(e.CatalogSequence)} {
						if seq > 0 && has[seq] == 0 {
							t.Errorf("the trace of %s lacks commit %d, which the call rests on", key, seq)
						}
					}
				case events.CallStarted:
					if has[uint64(e.Generation)] == 0 {
						t.Errorf("the trace of %s lacks the claim of its connection", key)
					}
				}
			}
		}
		if n := has[c.Seq]; n > 0 && n != len(c.Events) || cited && n == 0 {
			t.Errorf("the trace of %s has %d of %d rows of commit %d", key, n, len(c.Events), c.Seq)
		}
	}
}

// A set as of a commit is the live set as it was then.
func TestAsOfIsWhatTheLiveSetWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := history(rt, 150)
		live, was := New(), map[uint64]map[string]string{0: digestsOf(New())}
		for _, c := range w.Commits {
			if err := live.apply(c); err != nil {
				rt.Fatal(err)
			}
			if rapid.IntRange(0, 10).Draw(rt, "look") == 0 || c.Seq == w.Head() {
				was[c.Seq] = digestsOf(live)
			}
		}
		for seq, want := range was {
			s, at, err := AsOf(t.Context(), fromStore{w.Log, t}, seq)
			if err != nil {
				rt.Fatal(err)
			}
			if diff := gocmp.Diff(want, digestsOf(s)); diff != "" {
				rt.Errorf("at %d: %s", seq, diff)
			}
			if seq > 0 && !at.Equal(w.Commits[seq-1].Time) {
				rt.Errorf("commit %d is of %v, not %v", seq, w.Commits[seq-1].Time, at)
			}
		}
		if _, _, err := AsOf(t.Context(), w, w.Head()+1); !errors.Is(err, ErrAhead) {
			rt.Errorf("ahead of the log: %v", err)
		}
	})
}
