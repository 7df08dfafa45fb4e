package events_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/turn"
)

// world is a small Gatebus in memory: all aggregates, a log with increasing
// sequences, and workers that dispatch commands on facts as they are. Which
// command comes next is picked from outside, so that rapid can look for a bad
// order and a recorded history can be made again.
type world struct {
	models
	tb   tb
	pick func(n int) int // one of 0..n-1
	now  time.Time
	ids  int
	log  []events.Commit
	// live are the runtimes that serve the home, dead those that died and were not
	// reaped yet, token the credential issued last.
	live, dead []string
	token      string

	// What the world outside is like.
	declared map[string]int    // server → version of its declaration
	tools    map[string][]int  // server → versions of the definitions of its tools
	policies map[string]string // fingerprint → declared policy
	watch    watch
}

type tb interface {
	Helper()
	Fatalf(string, ...any)
}

// The closed world of the simulation.
var (
	principals = []string{"ana", "bob"}
	servers    = []string{"docs", "shell"}
	toolNames  = []string{"read", "write"}
	// capabilities to call; that of shell is an explicit one (R59).
	capabilities = map[string]string{"docs": "mcp.call:docs", "shell": "ops.run"}
)

const (
	workspace = "default"
	timeout   = time.Minute // of every call
)

// table is one kind of aggregate, folded in memory.
type table[S, C any] struct {
	kind   events.Kind
	decide func(S, C) ([]events.Event, error)
	evolve func(S, events.Recorded) S
	states map[string]S
}

func (t *table[S, C]) fold(c *events.Commit) {
	if c.Aggregate.Kind != t.kind {
		return
	}
	if t.states == nil {
		t.states = map[string]S{}
	}
	s := t.states[c.Aggregate.Key]
	for r := range c.Recorded() {
		s = t.evolve(s, r)
	}
	t.states[c.Aggregate.Key] = s
}

// print is every state by the id of its aggregate.
func (t *table[S, C]) print(out map[string]string) {
	for key, s := range t.states {
		out[events.AggregateID{Kind: t.kind, Key: key}.String()] = printed(s)
	}
}

// models are all deciders.
type models struct {
	hosts       table[host.State, host.Command]
	grants      table[grant.State, grant.Command]
	policy      table[policy.State, policy.Command]
	cores       table[core.State, core.Command]
	sessions    table[session.State, session.Command]
	connections table[connection.State, connection.Command]
	turns       table[turn.State, turn.Command]
	calls       table[call.State, call.Command]
	runtimes    table[runtime.State, runtime.Command]
	servers     table[server.State, server.Command]
}

func newModels() models {
	return models{
		hosts:       table[host.State, host.Command]{kind: events.KindHost, decide: host.Decide, evolve: host.Evolve},
		grants:      table[grant.State, grant.Command]{kind: events.KindGrant, decide: grant.Decide, evolve: grant.Evolve},
		policy:      table[policy.State, policy.Command]{kind: events.KindPolicy, decide: policy.Decide, evolve: policy.Evolve},
		cores:       table[core.State, core.Command]{kind: events.KindCore, decide: core.Decide, evolve: core.Evolve},
		sessions:    table[session.State, session.Command]{kind: events.KindSession, decide: session.Decide, evolve: session.Evolve},
		connections: table[connection.State, connection.Command]{kind: events.KindConnection, decide: connection.Decide, evolve: connection.Evolve},
		turns:       table[turn.State, turn.Command]{kind: events.KindTurn, decide: turn.Decide, evolve: turn.Evolve},
		calls:       table[call.State, call.Command]{kind: events.KindCall, decide: call.Decide, evolve: call.Evolve},
		runtimes:    table[runtime.State, runtime.Command]{kind: events.KindRuntime, decide: runtime.Decide, evolve: runtime.Evolve},
		servers:     table[server.State, server.Command]{kind: events.KindServer, decide: server.Decide, evolve: server.Evolve},
	}
}

// fold folds one commit into the aggregate that it is of.
func (m *models) fold(c *events.Commit) {
	m.hosts.fold(c)
	m.grants.fold(c)
	m.policy.fold(c)
	m.cores.fold(c)
	m.sessions.fold(c)
	m.connections.fold(c)
	m.turns.fold(c)
	m.calls.fold(c)
	m.runtimes.fold(c)
	m.servers.fold(c)
}

// print is every state of every aggregate.
func (m *models) print() map[string]string {
	out := map[string]string{}
	m.hosts.print(out)
	m.grants.print(out)
	m.policy.print(out)
	m.cores.print(out)
	m.sessions.print(out)
	m.connections.print(out)
	m.turns.print(out)
	m.calls.print(out)
	m.runtimes.print(out)
	m.servers.print(out)
	return out
}

func newWorld(tb tb, pick func(int) int) *world {
	w := &world{
		models: newModels(), tb: tb, pick: pick, now: eventstest.Noon,
		declared: map[string]int{}, tools: map[string][]int{}, policies: map[string]string{}, watch: newWatch(),
	}
	for _, s := range servers {
		w.tools[s] = make([]int, len(toolNames))
	}
	w.boot()
	w.boot()
	return w
}

func one[T any](w *world, list []T) T { return list[w.pick(len(list))] }

// chance is true once in n.
func (w *world) chance(n int) bool { return w.pick(n) == 0 }

func (w *world) id(prefix string) string {
	w.ids++
	return fmt.Sprintf("%s-%d", prefix, w.ids)
}

// dispatch decides a command and appends what happens, as the bus does.
func dispatch[S, C any](w *world, t *table[S, C], key, principal string, scope events.Scope, cmd C) error {
	w.tb.Helper()
	list, err := t.decide(t.states[key], cmd)
	if err != nil {
		if kind := fault.KindOf(err); kind == fault.Internal || len(list) > 0 {
			w.tb.Fatalf("%T on %s/%s: events %v and error %v of kind %q", cmd, t.kind, key, list, err, kind)
		}
		return err
	}
	if len(list) == 0 {
		return nil
	}
	c := events.Commit{
		Command: w.id("m"), Correlation: key, Actor: principal, Principal: principal, Workspace: workspace,
		Aggregate: events.AggregateID{Kind: t.kind, Key: key}, Time: w.now, Scope: scope, Events: list,
	}
	body, err := c.Encode()
	if err != nil {
		w.tb.Fatalf("%T on %s/%s: %v", cmd, t.kind, key, err)
	}
	c.Seq = uint64(len(w.log)) + 1
	got, err := events.Decode(c.Seq, body)
	if err != nil {
		w.tb.Fatalf("%T on %s/%s: %v", cmd, t.kind, key, err)
	}
	if diff := cmp.Diff(c, *got, eventstest.Equal); diff != "" {
		w.tb.Fatalf("%T on %s/%s changed in the log (-want +got):\n%s", cmd, t.kind, key, diff)
	}
	w.watch.commit(w, got)
	w.fold(got)
	w.log = append(w.log, *got)
	return nil
}

const home = "home"

// runtime is one of those that serve.
func (w *world) runtime() string { return one(w, w.live) }

func (w *world) boot() {
	w.live = append(w.live, w.id("r"))
	_ = dispatch(w, &w.runtimes, home, "local", events.Scope{}, runtime.Command(runtime.Boot{Runtime: w.live[len(w.live)-1], Version: "v1", Embedded: w.chance(2)}))
}

// die ends a runtime in no order; another one takes its place.
func (w *world) die() {
	i := w.pick(len(w.live))
	w.dead = append(w.dead, w.live[i])
	w.live = slices.Delete(slices.Clone(w.live), i, i+1)
	w.boot()
}

// reaped is a runtime that is gone; nobody reaps what lives.
func (w *world) reaped() string {
	if len(w.dead) == 0 {
		return "r-0" // of long ago
	}
	return one(w, w.dead)
}

// reap closes all that a dead runtime left open and then itself.
func (w *world) reap() {
	if len(w.dead) == 0 {
		return
	}
	gone := w.dead[0]
	w.dead = w.dead[1:]
	for _, p := range principals {
		for _, s := range servers {
			w.onConnection(p, s, connection.Reap{Runtime: gone})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.calls.states)) {
		w.onCall(w.watch.calls[key].principal, key, w.calls.states[key].Server, call.Reap{Runtime: gone})
	}
	_ = dispatch(w, &w.runtimes, home, "local", events.Scope{}, runtime.Command(runtime.Close{Runtime: gone, Reason: "lost"}))
}

// sign records a checkpoint of the log as it is.
func (w *world) sign() {
	size := uint32(len(w.log))
	_ = dispatch(w, &w.runtimes, home, "local", events.Scope{}, runtime.Command(runtime.Sign{Checkpoint: events.CheckpointSigned{
		Size: size, Root: fmt.Sprintf("root of %d", size), Chain: fmt.Sprintf("chain of %d", size), Key: "gatebus+0", Signature: "s",
	}}))
}

func (w *world) authority(principal string) authority.Snapshot {
	return w.grants.states[principal].Snapshot(principal)
}

func (w *world) grant(principal string, cmd grant.Command) {
	_ = dispatch(w, &w.grants, principal, principal, events.Scope{}, cmd)
}

func sessionOf(principal string) string { return session.ID(workspace, principal, "/mcp") }

func (w *world) fingerprint(server string) string {
	f := fmt.Sprintf("%s-f%d", server, w.declared[server])
	// docs says auto, shell says prompt.
	if w.policies[f] = "auto"; server == "shell" {
		w.policies[f] = "prompt"
	}
	return f
}

func (w *world) scope(principal, server string) events.Scope {
	s := sessionOf(principal)
	return events.Scope{Session: s, Server: server, Connection: connection.ID(s, server)}
}

func (w *world) onConnection(principal, server string, cmd connection.Command) {
	s := w.scope(principal, server)
	_ = dispatch(w, &w.connections, s.Connection, principal, s, cmd)
}

func (w *world) connection(principal, server string) connection.State {
	return w.connections.states[connection.ID(sessionOf(principal), server)]
}

func (w *world) request(principal, server string, retry bool) {
	p := w.policy.states[workspace]
	w.onConnection(principal, server, connection.Request{
		Session: sessionOf(principal), Server: server, Fingerprint: w.fingerprint(server), CoreRevision: "worktree",
		Transport: "stdio", Risk: "medium", Authority: w.authority(principal),
		Policy: authority.ConnectPolicy(authority.Policy(w.policies[w.fingerprint(server)]), authority.Subject{
			Server: server, Capability: connection.Capability(server), Risk: "medium",
		}, p.Rules(server)...),
		PolicySequence: p.Seq, Retry: retry, At: w.now,
	})
}

func (w *world) gate(principal, server string) {
	g := connection.Gate{
		Preview: redact.Static(`{"command":"run"}`), PreviewDigest: "pd", Approval: w.id("a"),
		Interactive: w.policy.states[workspace].Interactive(), At: w.now,
	}
	switch w.pick(24) {
	case 0:
		g.Stage, g.Reason = connection.StageCwd, string(fault.CWDOutsideWorkspace)
	case 1:
		g.URL = &events.UrlDecision{Server: server, Phase: "connect", Reason: "private_address", Origin: "http://10.0.0.1"}
		g.Stage, g.Reason = connection.StageURL, g.URL.Reason
	}
	w.onConnection(principal, server, g)
}

// listing is what the server lists now.
func (w *world) listing(server string) connection.Discovery {
	d := connection.Discovery{
		Catalog: fmt.Sprintf("%s-%v", server, w.tools[server]), Blob: "sha256:blob", Approval: w.id("a"),
		OnChange: w.policy.states[workspace].OnChange(), At: w.now, Previews: map[string]redact.EventText{},
	}
	for i, name := range toolNames {
		d.Tools = append(d.Tools, events.ToolDigest{Tool: name, Digest: fmt.Sprintf("d%d", w.tools[server][i])})
		d.Previews[name] = redact.Static("diff")
	}
	return d
}

func (w *world) opened(principal, server string) {
	s := w.connection(principal, server)
	w.onConnection(principal, server, connection.Opened{
		Opened: events.ConnectionOpened{
			Runtime: s.Runtime, Generation: w.generation(s.Generation), EnvNames: []string{"HOME", "PATH"},
			Program: "run", ProgramDigest: "sha256:program", Protocol: "2025-11-25", ServerName: redact.Static("a server"),
		},
		Discovery: w.listing(server),
	})
}

// generation is the right one, but for some reports that come late.
func (w *world) generation(g uint32) uint32 {
	if w.chance(8) {
		return g - 1
	}
	return g
}

// connect takes a connection as far as it goes, with the capabilities for it.
func (w *world) connect(principal, server string) {
	w.grant(principal, grant.Grant{Capability: connection.Capability(server)})
	w.grant(principal, grant.Grant{Capability: capabilities[server]})
	w.request(principal, server, true)
	w.gate(principal, server)
	for _, id := range slices.Sorted(maps.Keys(w.connection(principal, server).Pending)) {
		w.onConnection(principal, server, connection.Answer{Authority: w.authority(principal), Approval: id, Allow: true, By: "local", Channel: "cli", At: w.now})
	}
	w.onConnection(principal, server, connection.Claim{Runtime: w.runtime()})
	if w.chance(12) {
		w.fail(principal, server)
	}
	w.opened(principal, server)
}

func (w *world) fail(principal, server string) {
	w.onConnection(principal, server, connection.Fail{
		Generation: w.generation(w.connection(principal, server).Generation), Stage: "initialize", Kind: string(fault.InitializeFailed),
		Message: redact.Static("the server ended"), At: w.now,
	})
}

// facts are those of a call by the principal over its connection to the server.
func (w *world) facts(principal, server string) call.Facts {
	f := call.Facts{
		Authority: w.authority(principal), PolicySequence: w.policy.states[workspace].Seq,
		Connection: w.connection(principal, server), Runtime: w.runtime(), Timeout: timeout, At: w.now,
	}
	if !w.chance(10) {
		// Calls go to who owns the connection, also when it has died and does not
		// know.
		f.Runtime = f.Connection.Runtime
	}
	return f
}

// bind makes the request for a tool, mostly as the connection has it.
func (w *world) bind(principal, server, tool string) events.CallRequested {
	s := w.connection(principal, server)
	r := events.CallRequested{
		Session: sessionOf(principal), Turn: "t-1", Connection: connection.ID(sessionOf(principal), server), Server: server,
		Tool: tool, Callable: server + "__" + tool, Fingerprint: s.Fingerprint, DefinitionDigest: s.Current[tool],
		Capability: capabilities[server], Risk: "medium", ArgumentKeys: []string{"path"}, ArgumentDigest: "ad",
		ArgumentBytes: 12, Arguments: redact.Static(`{"path":"<string>"}`),
	}
	switch w.pick(12) {
	case 0:
		r.DefinitionDigest = "d0"
	case 1:
		r.Fingerprint = server + "-f0"
	case 2:
		// A binding of somebody else.
		r.Connection = connection.ID(sessionOf(one(w, principals)), server)
	}
	r.Policy = string(w.effective(r))
	return r
}

// effective is the call policy in force for what was requested (R52).
func (w *world) effective(r events.CallRequested) authority.Policy {
	return authority.CallPolicy(authority.Policy(w.policies[r.Fingerprint]), authority.Subject{
		Server: r.Server, Tool: r.Tool, Capability: r.Capability, Risk: authority.Risk(r.Risk),
	}, w.policy.states[workspace].Rules(r.Server)...)
}

func (w *world) onCall(principal, key, server string, cmd call.Command) {
	s := w.scope(principal, server)
	s.Call = key
	_ = dispatch(w, &w.calls, key, principal, s, cmd)
}

func (w *world) call(principal, server, tool string) {
	key := w.id("k")
	r := call.Request{
		Facts: w.facts(principal, server), Requested: w.bind(principal, server, tool), Ready: !w.chance(3),
		Approval: w.id("a"), Preview: redact.Static(`{"path":"<string>"}`), PreviewDigest: "pd",
		Interactive: w.policy.states[workspace].Interactive(),
	}
	r.SessionApproval = w.watch.sessionApproval(w, principal, r.Requested)
	switch w.pick(16) {
	case 0:
		r.Unbound = &call.Refusal{Reason: fault.NotFound, Message: redact.Static("the turn has no tool of this name")}
	case 1:
		r.Invalid = &call.Refusal{Reason: fault.InvalidArguments, Message: redact.Static("the arguments are no object")}
	}
	w.onCall(principal, key, server, r)
}

// someCall is one of the calls so far, with whose it is.
func (w *world) someCall() (key, principal string, s call.State, ok bool) {
	if len(w.calls.states) == 0 {
		return "", "", s, false
	}
	keys := slices.Sorted(maps.Keys(w.calls.states))
	// Mostly one that goes on.
	if open := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return w.calls.states[k].Phase == call.Done }); len(open) > 0 && !w.chance(4) {
		keys = open
	}
	key = one(w, keys)
	return key, w.watch.calls[key].principal, w.calls.states[key], true
}

// step is one thing that may happen next.
func (w *world) step() {
	principal, server := one(w, principals), one(w, servers)
	s := w.connection(principal, server)
	switch w.pick(38) {
	case 0, 1, 2:
		w.connect(principal, server)
	case 3, 4, 5, 6:
		if s.Phase != connection.Open && !w.chance(4) {
			w.connect(principal, server)
		}
		if w.chance(6) {
			w.stepGrant(principal, server)
		}
		w.call(principal, server, one(w, toolNames))
	case 7, 8, 9, 10:
		w.stepCall()
	case 11, 12, 13:
		w.stepCall()
	case 14:
		w.request(principal, server, w.chance(4))
	case 15:
		w.gate(principal, server)
	case 16:
		w.answer(principal, server)
	case 17:
		w.onConnection(principal, server, connection.Claim{Runtime: w.runtime()})
	case 18:
		w.opened(principal, server)
	case 19, 20:
		w.tools[server][w.pick(len(toolNames))]++
		w.onConnection(principal, server, connection.Discovered{Generation: w.generation(s.Generation), Discovery: w.listing(server)})
	case 21:
		if s.Phase == connection.Open {
			w.onConnection(principal, server, connection.Undiscovered{Generation: w.generation(s.Generation), Kind: string(fault.CatalogTooLarge)})
			return
		}
		w.fail(principal, server)
	case 22:
		w.onConnection(principal, server, connection.Close{Generation: w.generation(s.Generation), Reason: "server_ended", Exit: "exit status 1"})
		w.onConnection(principal, server, connection.Captured{Stderr: events.StderrCaptured{Generation: s.Generation, Chars: 80}})
	case 23:
		w.onConnection(principal, server, connection.Reap{Runtime: w.reaped()})
	case 24:
		w.onConnection(principal, server, connection.Expire{At: w.now})
		w.onConnection(principal, server, connection.Withdraw{Authority: w.authority(principal), At: w.now})
	case 25:
		w.stepGrant(principal, server)
	case 26:
		if w.chance(2) {
			w.stepPolicy()
		}
	case 27:
		w.declared[server] = w.pick(3)
	case 28:
		w.pass(one(w, []time.Duration{time.Second, time.Second, 20 * time.Second, 20 * time.Second, time.Minute, 2 * time.Minute, 16 * time.Minute, 9 * time.Hour, 25 * time.Hour}))
	case 30:
		switch w.pick(4) {
		case 0:
			w.die()
		case 1:
			w.reap()
		}
	case 29, 31:
		w.stepHost(principal)
	case 32:
		w.stepCore()
	case 33:
		w.stepSession(principal)
	case 34:
		w.sign()
	case 35, 36, 37:
		w.stepServer(server)
	}
}

// pass lets time go by. A call whose timeout is over in the queue is given up by
// its owner (R20).
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	if d < timeout {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(w.calls.states)) {
		if s := w.calls.states[key]; s.Phase == call.Queued {
			w.onCall(w.watch.calls[key].principal, key, s.Server, call.Abandon{Outcome: call.TimedOut})
		}
	}
}

func (w *world) answer(principal, server string) {
	pending := slices.Sorted(maps.Keys(w.connection(principal, server).Pending))
	pending = append(pending, "a-0")
	w.onConnection(principal, server, connection.Answer{
		Authority: w.authority(principal), Approval: one(w, pending), Allow: w.chance(2), By: "local", Channel: "cli", Note: redact.Static("seen"), At: w.now,
	})
}

func (w *world) stepCall() {
	key, principal, s, ok := w.someCall()
	if !ok {
		return
	}
	server := s.Server
	if server == "" {
		server = servers[0]
	}
	switch w.pick(12) {
	case 0, 1, 2:
		if w.chance(6) {
			w.stepGrant(principal, server)
		}
		w.onCall(principal, key, server, call.Start{Facts: w.facts(principal, server), ArgumentDigest: "ad"})
	case 3, 4:
		w.onCall(principal, key, server, call.Answer{
			Authority: w.authority(principal), Approval: s.Approval, Allow: !w.chance(4), Session: w.chance(2), By: "local", Channel: "cli", At: w.now,
		})
	case 5, 6, 7:
		f := call.Finish{Generation: w.generation(s.Generation)}
		switch w.pick(4) {
		case 0:
			f.Failed = &events.CallFailed{Status: call.TimedOut, Reason: call.TimedOut, DurationMs: 60000, ExecutionStarted: true}
		case 1:
			f.Unknown = fault.Indeterminate
		default:
			f.Succeeded = &events.CallSucceeded{Status: call.Succeeded, DurationMs: 5, Result: redact.Static("ok"), Bytes: 2}
		}
		w.onCall(principal, key, server, f)
	case 8:
		w.onCall(principal, key, server, call.Late{Late: events.CallLateResult{DurationMs: 90000}})
	case 9:
		w.onCall(principal, key, server, call.Reap{Runtime: w.reaped()})
	case 10:
		w.onCall(principal, key, server, call.Expire{At: w.now})
		w.onCall(principal, key, server, call.Withdraw{Authority: w.authority(principal), At: w.now})
	case 11:
		if w.chance(2) {
			w.onCall(principal, key, server, call.Abandon{Outcome: call.Cancelled})
			return
		}
		// The same call again, by a retry.
		w.onCall(principal, key, server, call.Request{
			Facts: w.facts(principal, server), Requested: w.watch.calls[key].requested, Ready: true, Approval: w.id("a"), Interactive: true,
		})
	}
}

func (w *world) stepGrant(principal, server string) {
	capability := one(w, []string{connection.Capability(server), capabilities[server], "mcp.connect:*", "mcp.call:*"})
	if w.chance(2) {
		w.grant(principal, grant.Revoke{Capability: capability, Note: redact.Static("moved on")})
		return
	}
	g := grant.Grant{Capability: capability}
	if w.chance(2) {
		g.Until = w.now.Add(10 * time.Minute)
	}
	w.grant(principal, g)
}

func (w *world) stepPolicy() {
	level := policy.Level{Level: one(w, []string{policy.LevelGateway, policy.LevelWorkspace}), Server: one(w, []string{"", "docs"})}
	p := events.Policy{
		Enabled: true, Implicit: true, DefaultApproval: one(w, []string{"", "", "", "auto", "auto", "prompt", "prompt", "deny"}),
		OnChange: one(w, []string{"", "block", "flag"}), Approvers: one(w, []string{"", "", "", "interactive", "interactive", "interactive", "interactive", "none"}),
	}
	if w.chance(2) {
		p.Rules = []events.ApprovalRule{{Tool: "write", Approval: one(w, []string{"auto", "prompt", "deny"})}}
	}
	_ = dispatch(w, &w.policy, workspace, "local", events.Scope{}, policy.Command(policy.Set{Level: level, After: p, Digest: w.id("d")}))
}

func (w *world) stepHost(principal string) {
	var cmd host.Command = host.Revoke{Note: redact.Static("left")}
	switch {
	case w.chance(4):
		cmd = host.Revoke{Token: w.token}
	case w.chance(4):
		cmd = host.Enrol{Role: host.RoleOperator, Account: w.id("A"), Workspace: workspace}
	case !w.chance(3):
		issue := host.IssueToken{Role: one(w, []string{host.RoleHost, host.RoleOperator, host.RoleWorker, "root"}), Token: w.id("tk"), Workspace: workspace}
		if w.chance(2) {
			issue.PublicKey, issue.Account = w.id("U"), w.id("A")
		} else {
			issue.Hash = "sha256:token"
		}
		if w.chance(2) {
			issue.Expires = w.now.Add(time.Hour)
		}
		w.token, cmd = issue.Token, issue
	}
	_ = dispatch(w, &w.hosts, principal, principal, events.Scope{}, cmd)
}

// installation is what is installed as a server, with the version of its secret.
func (w *world) installation(name string) (i events.Installation, secret events.SecretStored) {
	ref := "gateway_settings:mcp:workspace:" + workspace + ":" + name + ":env:TOKEN"
	secret = events.SecretStored{Ref: ref, Version: w.servers.states[name].Secrets()[ref], Provider: "file"}
	if secret.Version == "" || w.chance(3) {
		secret.Version = w.id("v")
	}
	return events.Installation{
		ScopeKind: server.ScopeWorkspace, ScopeKey: workspace, Name: name, Home: home, Fingerprint: w.fingerprint(name), Transport: "stdio",
		Command: events.TextRef{Text: redact.Static("run")}, Args: []events.TextRef{{Text: redact.Static("--quiet")}},
		Env: []events.SecretRef{{Key: "TOKEN", Ref: ref, Version: secret.Version}}, StartupTimeoutS: 180, ToolTimeoutS: 120,
		Required: name == servers[1], Enabled: w.chance(2), Approval: w.id("a"), By: "local",
	}, secret
}

func (w *world) stepServer(name string) {
	on := func(key string, cmd server.Command) {
		_ = dispatch(w, &w.servers, key, "local", events.Scope{Server: name}, cmd)
	}
	drop := func(ref, version string) {
		d := server.DropSecret{Ref: ref, Version: version}
		if w.chance(2) {
			d.Failed = "timed_out"
		}
		on(name, d)
	}
	before := w.servers.states[name]
	enabled, implicit := w.chance(2), w.chance(2)
	switch w.pick(7) {
	case 0, 1:
		i, secret := w.installation(name)
		install := server.Install{Installation: i}
		if before.Secrets()[secret.Ref] != secret.Version {
			install.Secrets = append(install.Secrets, secret)
		}
		on(name, install)
	case 2:
		on(name, server.SetPolicy{Enabled: &enabled, Implicit: &implicit})
	case 3:
		on(name, server.Uninstall{})
		for ref, version := range before.Secrets() { // it has one
			drop(ref, version)
		}
	case 4:
		_, secret := w.installation(name)
		on(name, server.StoreSecret{Secret: secret})
		drop(secret.Ref, before.Secrets()[secret.Ref])
	case 5:
		on(server.HomeKey(home), server.SelectKeystore{Provider: one(w, []string{"keyring", "file"}), Reason: redact.Static("it is there")})
		if w.chance(2) {
			on(server.HomeKey(home), server.FailCollect{Reason: string(fault.GCRefsUndecodable)})
			return
		}
		on(server.HomeKey(home), server.Collect{Collected: events.SecretsCollected{DryRun: w.chance(2), ActiveRefs: 1, StoredRefs: 3, OrphanRefs: 2, DeletedRefs: 1, Failed: []string{"ref"}}})
	case 6:
		on(name, server.Boot{Disabled: w.chance(2)})
	}
	for range 3 {
		s := w.servers.states[name]
		on(name, server.Observe{
			To: one(w, server.Statuses), Reason: "seen", Message: redact.Static("in words"), Generation: s.Generation + uint32(w.pick(2)),
			Catalog: fmt.Sprintf("%s-%v", name, w.tools[name]), RetryAt: w.now.Add(time.Second),
		})
	}
}

func (w *world) stepCore() {
	revision := one(w, []string{"worktree", "abc", "def"})
	load := core.Load{Revision: revision, Digest: fmt.Sprint(w.declared)}
	for _, s := range servers {
		load.Loaded = append(load.Loaded, events.DeclarationLoaded{
			Revision: revision, Path: "agent/mcp/" + s + ".yaml", Server: s, Fingerprint: w.fingerprint(s), Enabled: true,
			Transport: "stdio", Risk: "medium", ApprovalPolicy: w.policies[w.fingerprint(s)], Capability: capabilities[s],
			ConnectTimeoutMs: 30000, CallTimeoutMs: 60000,
		})
	}
	load.Ignored = []events.DeclarationIgnored{{Revision: revision, Path: "agent/mcp/old.yaml", Server: "old", Reason: "disabled"}}
	load.Warnings = []events.DeclarationWarning{{Revision: revision, Path: "agent/mcp/docs.yaml", Line: 3, Field: "env.TOKEN", Code: "literal_secret", Message: redact.Static("a literal secret")}}
	if w.chance(2) {
		load = core.Load{
			Revision: revision, Code: string(fault.CoreLoadFailed), Problems: w.id("p"),
			Invalid: []events.DeclarationInvalid{{Revision: revision, Path: "agent/mcp/docs.yaml", Line: 1, Code: "invalid_yaml", Message: redact.Static("not YAML")}},
		}
	}
	_ = dispatch(w, &w.cores, "agent", "local", events.Scope{Core: "agent"}, core.Command(load))
}

func (w *world) stepSession(principal string) {
	id := sessionOf(principal)
	scope := events.Scope{Session: id}
	var cmd session.Command = session.Start{Label: "/mcp", CoreRevision: "worktree", CapabilityDigest: "cd", Reason: "first_request"}
	switch w.pick(4) {
	case 0:
		cmd = session.End{Reason: "explicit"}
	case 1, 2:
		cmd = session.Publish{Catalog: events.CatalogPublished{
			Catalog: w.id("cat"), Tools: []events.CatalogTool{{Name: "docs__read", Server: "docs", Tool: "read"}},
			Counts:      []events.CatalogCount{{Server: "docs", Listed: 2, Filtered: 1, Visible: 1}},
			Diagnostics: []events.CatalogDiagnostic{{Server: "shell", Code: "approval_pending", Message: redact.Static("waits for a person")}},
		}}
	}
	_ = dispatch(w, &w.sessions, id, principal, scope, cmd)

	key := w.id("t")
	scope.Turn = key
	requested := events.TurnRequested{
		Session: id, IncludeImplicit: true, ExplicitServers: []string{"docs"}, ExplicitTools: []events.ToolSelection{{Server: "shell", Tool: "write"}},
		MaxTools: turn.Standard.Tools, MaxSchemaBytes: turn.Standard.SchemaBytes,
	}
	var open turn.Command = turn.Bind{
		Requested: requested,
		Rejected:  []events.CapabilityRejected{{Id: "mcp-tool:shell:write", Label: "write", Kind: "tool", Reason: "unavailable", Message: redact.Static("not connected")}},
		Bound: events.TurnBound{
			Runtime: w.runtime(), Catalog: "cat", ManifestHash: "mh", ToolCount: 1, Blob: "sha256:bindings",
			AuthoritySequence: uint32(w.authority(principal).Seq), PolicySequence: w.policy.states[workspace].Seq,
		},
	}
	if w.chance(3) {
		open = turn.Fail{Requested: requested, Failed: events.TurnFailed{Reason: string(fault.ToolNameCollision), Name: "read", Provenances: []string{"host:read", "mcp:docs/read"}}}
		if w.chance(2) {
			open = turn.Fail{
				Requested: requested, Limits: &events.LimitsRejected{Field: "tools", Maximum: 4096},
				Failed: events.TurnFailed{Reason: string(fault.LimitsInvalid), Name: "tools", Maximum: 4096},
			}
		}
	}
	_ = dispatch(w, &w.turns, key, principal, scope, open)
	if w.chance(2) {
		_ = dispatch(w, &w.turns, key, principal, scope, turn.Command(turn.End{Reason: "replaced"}))
	}
}

// watch knows the rules that hold across aggregates, from the log alone and
// without the deciders' states, and fails on the commit that breaks one.
type watch struct {
	calls       map[string]*watchedCall
	connections map[string]*watchedConnection
	approvals   map[string]*watchedApproval
	closed      map[string]bool // runtimes
}

type watchedCall struct {
	principal          string
	requested          events.CallRequested
	started, outcomes  int
	runtime            string // that started it
	authorized         bool
	approval, decision string
}

type watchedConnection struct {
	principal  string
	open       bool
	runtime    string
	generation uint32
	requested  events.ConnectRequested
	// A person's yes and what it covers; nil until the first discovery after it.
	yes     events.ConnectRequested
	said    bool
	covered map[string]string
	// What a tool's approval asks about.
	asked   map[string]events.ApprovalRequested
	blocks  bool
	current map[string]string
}

// watchedApproval is a yes of a person to a call.
type watchedApproval struct {
	call, principal string
	asked           events.ApprovalRequested
	session         bool
	until           time.Time
	spent           int
}

func newWatch() watch {
	return watch{calls: map[string]*watchedCall{}, connections: map[string]*watchedConnection{}, approvals: map[string]*watchedApproval{}, closed: map[string]bool{}}
}

// sessionApproval is an approval for the session that covers the request (R61).
func (x *watch) sessionApproval(w *world, principal string, r events.CallRequested) string {
	for _, id := range slices.Sorted(maps.Keys(x.approvals)) {
		if x.approvals[id].session && x.approvals[id].covers(w, principal, r) {
			return id
		}
	}
	return ""
}

func (a *watchedApproval) covers(w *world, principal string, r events.CallRequested) bool {
	return a.principal == principal && a.asked.Server == r.Server && a.asked.Tool == r.Tool && a.asked.Fingerprint == r.Fingerprint &&
		a.asked.DefinitionDigest == r.DefinitionDigest && a.asked.PolicySequence == w.policy.states[workspace].Seq && w.now.Before(a.until)
}

func (x *watch) commit(w *world, c *events.Commit) {
	w.tb.Helper()
	key := c.Aggregate.Key
	switch c.Aggregate.Kind {
	case events.KindCall:
		if x.calls[key] == nil {
			x.calls[key] = &watchedCall{principal: c.Principal}
		}
		for r := range c.Recorded() {
			x.callEvent(w, key, r)
		}
	case events.KindConnection:
		if x.connections[key] == nil {
			x.connections[key] = &watchedConnection{principal: c.Principal, asked: map[string]events.ApprovalRequested{}}
		}
		for r := range c.Recorded() {
			x.connectionEvent(w, key, r)
		}
	case events.KindRuntime:
		for _, e := range c.Events {
			if e, ok := e.(events.RuntimeClosed); ok {
				x.closing(w, e.Runtime)
			}
		}
	}
}

// closing holds that the end of a runtime comes after that of all it owned.
func (x *watch) closing(w *world, runtime string) {
	w.tb.Helper()
	x.closed[runtime] = true
	for key, c := range x.connections {
		if c.open && c.runtime == runtime {
			w.tb.Fatalf("runtime %s ends, and its connection %s is open", runtime, key)
		}
	}
	for key, k := range x.calls {
		if k.started > k.outcomes && k.runtime == runtime {
			w.tb.Fatalf("runtime %s ends, and its call %s has no outcome", runtime, key)
		}
	}
}

func (x *watch) callEvent(w *world, key string, r events.Recorded) {
	w.tb.Helper()
	k := x.calls[key]
	fail := func(format string, args ...any) {
		w.tb.Helper()
		w.tb.Fatalf("call %s, %s at %d: %s", key, r.Event.EventName(), r.Seq, fmt.Sprintf(format, args...))
	}
	if r.Principal != k.principal {
		fail("of %s, not of %s", r.Principal, k.principal)
	}
	switch e := r.Event.(type) {
	case events.CallRequested:
		k.requested = e
	case events.ApprovalRequested:
		x.approvals[e.Approval] = &watchedApproval{call: key, principal: k.principal, asked: e}
		k.approval = e.Approval
	case events.ApprovalDecided:
		k.decision = e.Decision
		if a := x.approvals[e.Approval]; !e.Automatic && e.Decision == "allow" {
			if a == nil || a.call != key {
				fail("a yes to an approval %s that was not asked for here", e.Approval)
			}
			a.session = e.Kind == call.Session
			expires, _ := time.Parse(time.RFC3339Nano, a.asked.Expires)
			if !r.Time.Before(expires) {
				fail("a yes after the end of the approval")
			}
			if a.until = expires; a.session {
				a.until, _ = time.Parse(time.RFC3339Nano, e.Until)
			}
		}
	case events.CallAuthorized:
		k.authorized, k.approval = true, e.Approval
		if e.PolicySequence != w.policy.states[workspace].Seq || uint64(e.AuthoritySequence) != w.authority(k.principal).Seq {
			fail("rests on authority %d and policy %d, which are not the present ones", e.AuthoritySequence, e.PolicySequence)
		}
	case events.CallStarted:
		x.start(w, key, k, e, fail)
	case events.CallBlocked, events.CallSucceeded, events.CallFailed, events.CallIndeterminate:
		if k.outcomes++; k.outcomes > 1 {
			fail("a second outcome (R129)")
		}
		if e, ok := e.(events.CallIndeterminate); ok && e.Reason == "runtime_lost" && (slices.Contains(w.live, e.Runtime) || e.Runtime != k.runtime) {
			fail("of a runtime that lives, or not of its own: %s (decision 20)", e.Runtime)
		}
	case events.CallLateResult:
		if k.started == 0 || k.outcomes == 0 {
			fail("a late result of a call that did not start or has no outcome")
		}
	}
}

// start holds the rules of a start (R58, R60, decisions 7, 16 and 20).
func (x *watch) start(w *world, key string, k *watchedCall, e events.CallStarted, fail func(string, ...any)) {
	w.tb.Helper()
	r := k.requested
	if k.runtime = e.Runtime; x.closed[e.Runtime] {
		fail("by %s, which has ended", e.Runtime)
	}
	if k.started++; k.started > 1 {
		fail("it starts again")
	}
	if k.outcomes > 0 {
		fail("it starts after its outcome")
	}
	if !k.authorized || k.decision != "allow" {
		fail("it starts without an authorization (decision %q)", k.decision)
	}
	a := w.authority(k.principal)
	for _, c := range []string{authority.Connect(r.Server), capabilities[r.Server]} {
		if !a.Allows(c, w.now) {
			fail("%s does not hold %s (R50, R58)", k.principal, c)
		}
	}
	c := x.connections[e.Connection]
	if c == nil || !c.open || c.generation != e.Generation || c.runtime != e.Runtime {
		fail("generation %d of %s in %s is not open: %+v", e.Generation, e.Connection, e.Runtime, c)
	}
	if e.Connection != r.Connection || c.principal != k.principal || c.requested.Session != r.Session || c.requested.Server != r.Server {
		fail("the connection %s is not the bound one (R145 to R147)", e.Connection)
	}
	if c.requested.Fingerprint != r.Fingerprint || c.current[r.Tool] != r.DefinitionDigest {
		fail("bound to %s of %s, the connection has %s of %s (R197)", r.DefinitionDigest, r.Fingerprint, c.current[r.Tool], c.requested.Fingerprint)
	}
	if c.blocks && c.covered[r.Tool] != r.DefinitionDigest {
		fail("nobody approved %s of %s (decision 7)", r.DefinitionDigest, r.Tool)
	}
	switch w.effective(r) {
	case authority.Auto:
	case authority.Prompt:
		p := x.approvals[k.approval]
		switch {
		case p == nil || p.until.IsZero():
			fail("it rests on %q, to which nobody said yes (R60)", k.approval)
		case !p.covers(w, k.principal, r):
			fail("the approval %s is for %+v until %v", k.approval, p.asked, p.until)
		case !p.session && (p.call != key || p.spent > 0):
			fail("the approval %s is for the call %s and was spent %d times", k.approval, p.call, p.spent)
		}
		p.spent++
	default:
		fail("policy denies it (R54)")
	}
}

func (x *watch) connectionEvent(w *world, key string, r events.Recorded) {
	w.tb.Helper()
	c := x.connections[key]
	fail := func(format string, args ...any) {
		w.tb.Helper()
		w.tb.Fatalf("connection %s, %s at %d: %s", key, r.Event.EventName(), r.Seq, fmt.Sprintf(format, args...))
	}
	switch e := r.Event.(type) {
	case events.ConnectRequested:
		if !w.authority(c.principal).Allows(authority.Connect(e.Server), w.now) {
			fail("%s does not hold the capability (R50)", c.principal)
		}
		if c.open {
			fail("while it is open")
		}
		c.requested = e
	case events.ApprovalRequested:
		if c.requested.Server == "" || c.requested.Policy == "deny" {
			fail("somebody is asked although policy denies (R54)")
		}
		c.asked[e.Approval] = e
	case events.ApprovalDecided:
		if e.Automatic || e.Decision != "allow" {
			return
		}
		asked, ok := c.asked[e.Approval]
		if !ok || asked.Fingerprint != c.requested.Fingerprint || asked.PolicySequence != c.requested.PolicySequence {
			fail("a yes to what is not asked: %+v", asked)
		}
		delete(c.asked, e.Approval)
		if asked.Action == connection.ActionConnect {
			c.yes, c.said, c.covered = c.requested, true, nil
		} else if c.covered != nil {
			c.covered = maps.Clone(c.covered)
			c.covered[asked.Tool] = asked.DefinitionDigest
		}
	case events.ApprovalExpired:
		delete(c.asked, e.Approval)
	case events.ConnectionClaimed:
		if !c.said || c.yes.Fingerprint != c.requested.Fingerprint || c.yes.PolicySequence != c.requested.PolicySequence || c.requested.Policy == "deny" {
			fail("nobody approved %s under policy %d (R49, R52)", c.requested.Fingerprint, c.requested.PolicySequence)
		}
		if uint64(uint32(r.Seq)) <= uint64(c.generation) {
			fail("the generation %d is not above %d", r.Seq, c.generation)
		}
		c.runtime, c.generation = e.Runtime, uint32(r.Seq)
	case events.ConnectionOpened:
		if c.open || e.Generation != c.generation {
			fail("generation %d, claimed was %d", e.Generation, c.generation)
		}
		c.open = true
	case events.ToolsDiscovered:
		c.current = map[string]string{}
		for _, t := range e.Tools {
			c.current[t.Tool] = t.Digest
		}
		if c.covered == nil {
			c.covered = c.current
		}
		c.blocks = w.policy.states[workspace].OnChange() == policy.OnChangeBlock
	case events.ConnectionLost:
		if slices.Contains(w.live, e.Runtime) || e.Runtime != c.runtime {
			fail("of a runtime that lives, or not of its own: %s (decision 20)", e.Runtime)
		}
		c.open = false
	case events.ConnectionClosed, events.ServerFailed, events.ServerDenied:
		c.open = false
	}
}

// rebuilt folds the log of the world afresh and compares (R208).
func (w *world) rebuilt(t tb) {
	t.Helper()
	fresh := newModels()
	for _, c := range w.log {
		body, err := c.Encode()
		if err != nil {
			t.Fatalf("%v", err)
		}
		got, err := events.Decode(c.Seq, body)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if again, err := got.Encode(); err != nil || !bytes.Equal(again, body) {
			t.Fatalf("commit %d has other bytes when written again (%v)", c.Seq, err)
		}
		fresh.fold(got)
	}
	if diff := cmp.Diff(w.print(), fresh.print()); diff != "" {
		t.Fatalf("the rebuilt states differ (-live +rebuilt):\n%s", diff)
	}
}
