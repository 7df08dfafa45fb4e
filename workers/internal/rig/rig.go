// Package rig runs a whole runtime in a test: a real bus, the projections and
// the workers, wired as cmd/gatebus wires them but without a gateway and a
// listener. Servers are real child processes. It is of no use outside of tests,
// and is the only package beside cmd that may import several workers.
package rig

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/projections"
	"github.com/gatebus/gatebus/projections/approvals"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/connector"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/installer"
	"github.com/gatebus/gatebus/workers/lifecycle"
	"github.com/gatebus/gatebus/workers/live"
	"github.com/gatebus/gatebus/workers/notifier"
	"github.com/gatebus/gatebus/workers/secrets"
)

// Workspace is the workspace of every rig.
const Workspace = "default"

// home is the id of the home of every rig.
const home = "h-rig"

// patience bounds every wait: what takes so long will not come.
const patience = 30 * time.Second

// Options change a rig.
type Options struct {
	// Home is that of an earlier rig, from Image; empty is a new one. Root is the
	// workspace root and Dirs are the cores, each empty for a new directory.
	Home, Root string
	Dirs       []string
	// Env is the environment of the host.
	Env map[string]string
	// Policy is the gateway's; without Approvers they are interactive.
	Policy       events.Policy
	MaxArguments int
	// Trusted is where servers behind HTTP may be reached, Resolve answers for their
	// names, and Dial makes connections.
	Trusted []urlpolicy.Trusted
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	Dial    func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
	// Still leaves out the sweeper of due times.
	Still bool
	// Listen lets peers in.
	Listen bool
	// Idle opens no connections any more once there is a peer, which does.
	Idle bool
	// Hosts are the MCP clients of this runtime; a peer has none.
	Hosts caller.Hosts
	// Secrets stands between the installer and the keystore; nil is nothing.
	Secrets func(installer.Store) installer.Store
}

// Rig is a running runtime. Its methods fail the test when something does not
// work or takes too long; those that are called from other goroutines say so.
type Rig struct {
	Options
	Runtime     string
	Bus         *bus.Bus
	Model       *bus.Model
	Member      *bus.Member
	Projections *projections.Set
	Cores       *cores.Cores
	Pool        *live.Pool
	Caller      *caller.Caller
	Decider     *decider.Decider
	Notifier    *notifier.Notifier
	Keystore    *secrets.Store
	// Methods are those that the bus serves.
	Methods []bus.Method
	// Local asks as the operator "local".
	Local *client.Client

	t  testing.TB
	mu sync.Mutex
	// looked counts the reads of the host's environment, by name.
	looked map[string]int
	kept   map[string]string // secrets, by item
	stop   func()
	rest   func() // ends the connector
	// of is the runtime that this one is a worker beside; nil when it is none.
	of   *Rig
	wire *wire
	// given is closed when the peers have closed this runtime in the log.
	given   chan struct{}
	crashed atomic.Bool
}

// New starts a runtime and stops it when the test ends.
func New(t testing.TB, o Options) *Rig {
	t.Helper()
	o.Home, o.Root = cmp.Or(o.Home, t.TempDir()), cmp.Or(o.Root, t.TempDir())
	if o.Dirs == nil {
		o.Dirs = []string{t.TempDir()}
	}
	if o.Env == nil {
		o.Env = map[string]string{}
	}
	o.Policy.Enabled, o.Policy.Implicit, o.Policy.Approvers = true, true, cmp.Or(o.Policy.Approvers, "interactive")
	r := &Rig{Options: o, t: t}
	b := bus.Options{Home: o.Home}
	if o.Listen {
		b.Listen = "127.0.0.1:0"
	}
	r.open(b)
	return r
}

// Peer starts a worker beside a runtime that was started with Listen: a second
// runtime of its home, with the same cores and the same environment. It opens
// connections.
func (r *Rig) Peer() *Rig {
	r.t.Helper()
	creds, err := r.Bus.Issue(r.Context(), bus.Meta{}, bus.Issue{Workspace: Workspace, Principal: "w-" + ulid.Make().String(), Role: host.RoleWorker})
	r.must(err)
	p := &Rig{Options: r.Options, t: r.t, of: r}
	p.Hosts = nil
	if p.Idle = false; r.Idle {
		r.rest()
	}
	wire, url := newWire(r.t, r.Bus.URL())
	p.wire = wire
	p.open(bus.Options{Home: r.Home, Worker: true, External: &bus.External{URL: url, Creds: creds.Text}})
	return p
}

// open opens the bus and becomes one of the runtimes of the home.
func (r *Rig) open(o bus.Options) {
	r.t.Helper()
	r.Runtime, r.Pool, r.looked, r.given = "r-"+ulid.Make().String(), new(live.Pool), map[string]int{}, make(chan struct{})
	r.Bus = bustest.OpenWith(r.t, o, func(b *bus.Bus) { r.Model = bus.NewModel(b) })
	var err error
	r.Member, err = r.Bus.Join(r.Context(), r.Model, bus.JoinOptions{Runtime: r.Runtime, Home: home, Version: "1.0.0"})
	r.must(err)
	r.must(r.Member.Recover(r.Context(), r.reaper().Reap))
	r.start()
}

func (r *Rig) reaper() decider.Reaper {
	return decider.Reaper{Bus: r.Bus, Model: r.Model, Workspace: Workspace}
}

// Reap is what a peer does that finds a runtime gone.
func (r *Rig) Reap(gone string) error { return r.reaper().Reap(r.Context(), gone) }

// GivenUp is closed when the peers have closed this runtime in the log.
func (r *Rig) GivenUp() <-chan struct{} { return r.given }

// AwaitRuntimes waits for as many runtimes of the home to live, by the log.
func (r *Rig) AwaitRuntimes(n int) {
	r.t.Helper()
	if s, err := r.Model.Runtimes.Wait(r.Context(), Workspace, home, func(s runtime.State) bool { return len(s.Live) == n }); err != nil {
		r.t.Fatalf("no %d runtimes live: %v; there are %v", n, err, s.Live)
	}
}

// Crash takes a peer off the bus as its death would; its servers go on. Nothing of
// it may be used afterwards.
func (r *Rig) Crash() {
	r.crashed.Store(true)
	r.wire.cut()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing is waited for
	_ = r.Bus.Close(ctx)
}

func (r *Rig) start() {
	r.t.Helper()
	specs, err := cores.Specs(r.Dirs)
	r.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var connects *connector.Connector
	run := func(name string, work func(context.Context) error) {
		wg.Go(func() {
			err := work(ctx)
			switch {
			case err == nil, ctx.Err() != nil, r.crashed.Load():
			case name == "membership" && fault.Is(err, fault.RuntimeClosed):
				close(r.given)
			default:
				r.t.Errorf("rig: %s ended: %v", name, err)
			}
		})
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		closing, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Pool.Close(closing); err != nil {
			r.t.Errorf("rig: close: %v", err)
		}
		wg.Wait()
		if connects != nil {
			connects.Collected(closing)
		}
	})
	r.t.Cleanup(r.stop)

	log := slog.New(slog.DiscardHandler)
	key := func(name string) []byte {
		k, err := r.Bus.HomeKey(name)
		r.must(err)
		return k
	}
	run("membership", func(ctx context.Context) error { return r.Member.Run(ctx, r.reaper().Reap) })
	r.Projections = projections.New()
	run("projections", func(ctx context.Context) error { return r.Projections.Run(ctx, r.Bus) })
	var file *audit.Projection // of the runtime of the home
	if r.of == nil {
		file = audit.New(audit.Options{Path: filepath.Join(r.Home, audit.File), Log: log})
		run("audit", func(ctx context.Context) error { return file.Run(ctx, r.Bus) })
	}
	r.CatchUp()
	if r.of == nil {
		r.SetPolicy(r.Policy)
		r.Cores = cores.New(r.Model, Workspace, home, specs, log)
		r.Load()
	} else {
		r.Cores = cores.Follow(r.Model, Workspace, home, specs, log)
		r.must(r.Cores.Current(r.Context()))
	}
	installed := lifecycle.New(lifecycle.Config{
		Bus: r.Bus, Model: r.Model, Cores: r.Cores, Workspace: Workspace, Home: home, Runtime: r.Runtime,
		Alive: r.Member.Alive, Valid: r.Member.Valid, Log: log,
	})
	r.Caller = caller.New(caller.Config{
		Bus: r.Bus, Model: r.Model, Approvals: r.Projections.Approvals, Pool: r.Pool, Workspace: Workspace, Home: home, Hosts: r.Hosts,
		Runtime: r.Runtime, Alive: r.Member.Alive, Valid: r.Member.Valid,
		Caught:      func(ctx context.Context) error { return r.Projections.Wait(ctx, r.Bus.Known()) },
		ArgumentKey: key("arguments"), MaxArguments: r.MaxArguments, Health: installed.Health,
	})
	r.Pool.Hold = r.Caller.Hold
	if r.Hosts != nil {
		_, err := r.Caller.HearLogs()
		r.must(err)
	}
	r.Decider = decider.New(decider.Config{
		Bus: r.Bus, Model: r.Model, Projections: r.Projections, Audit: file, Cores: r.Cores, Workspace: Workspace, Home: home, Runtime: r.Runtime,
		Info: func() client.BusInfo { return client.BusInfo{Runtime: r.Runtime} }, Arguments: r.Caller.Arguments, Tidy: r.Caller.Tidy,
		Settle: r.Member.Settle, Log: log,
	})
	connects = connector.New(connector.Config{
		Bus: r.Bus, Model: r.Model, Cores: r.Cores, Pool: r.Pool, Home: r.Home, Serves: Workspace, Workspace: r.Root,
		Runtime: r.Runtime, Alive: r.Member.Alive, Valid: r.Member.Valid,
		PreviewKey: key("previews"), Lookup: r.lookup, Version: "1.0.0", Trusted: r.Trusted, Resolve: r.Resolve, Dial: r.Dial, Logged: r.Caller.Logged, Refused: r.Caller.Refused, Log: log,
		Secrets: r.secret,
	})
	run("lifecycle", installed.Run)
	connecting, rest := context.WithCancel(ctx)
	r.rest = rest
	run("connector", func(context.Context) error { return connects.Run(connecting) })
	if !r.Still {
		run("decider", r.Decider.Run)
	}
	r.Notifier = notifier.New(notifier.Config{
		Bus: r.Bus, Model: r.Model, Projections: r.Projections, Workspace: Workspace, Home: home, Runtime: r.Runtime,
		Identity: r.Decider.Identity, Role: r.Decider.Role, Send: r.Bus.Notify, Log: log,
	})
	run("notifier", r.Notifier.Run)
	r.Keystore, err = secrets.Open(r.Context(), secrets.Options{Home: r.Home})
	r.must(err)
	store := installer.Store(r.Keystore)
	if r.Secrets != nil {
		store = r.Secrets(store)
	}
	installs := installer.New(installer.Config{
		Bus: r.Bus, Model: r.Model, Store: store, Workspace: Workspace, Home: home, Dir: r.Home, Key: key("previews"),
		Provider: func(ctx context.Context) string { return r.Keystore.Selected(ctx).Provider },
		Identity: r.Decider.Identity, Declared: r.declared, Settle: r.Member.Settle, Log: log,
	})
	run("installer", installs.Run)
	r.Methods = slices.Concat(r.Decider.Methods(), connects.Methods(r.Decider.Identity), r.Notifier.Methods(), installs.Methods(),
		r.Keystore.Methods(r.Decider.Identity, installs.Items), r.Caller.Methods(func(q *bus.Request, principal string) (client.Identity, error) {
			id, err := r.Decider.Identity(q, host.RoleHost, host.RoleOperator)
			if err != nil {
				return id, err
			}
			return r.Decider.As(id, principal)
		}))
	for _, m := range r.Methods {
		r.must(r.Bus.Serve(m.Name, m.Handle))
	}
	if r.of != nil {
		r.Local = r.of.Local
		return
	}
	r.must(r.Bus.Announce(ctx, r.Runtime, nil))
	creds, err := r.Bus.LocalCredentials()
	r.must(err)
	r.Local, err = client.Dial(r.Context(), client.Options{InProcess: r.Bus, CredsText: creds})
	r.must(err)
	r.t.Cleanup(r.Local.Close)
}

// declared says where a core declares a server.
func (r *Rig) declared(name string) (string, bool) {
	s, ok := r.Cores.Server(name)
	return "core " + s.Core + ", " + s.Path, ok && s.Core != ""
}

// Do asks this runtime, and no other one of its home, as the operator "local". It is
// safe in any goroutine.
func (r *Rig) Do(method string, params, result any) error {
	data, err := json.Marshal(params)
	if err != nil {
		return err
	}
	q := &bus.Request{Workspace: Workspace, Principal: bus.Local, Method: method, Data: data}
	if err := q.Name(); err != nil {
		return err
	}
	at := slices.IndexFunc(r.Methods, func(m bus.Method) bool { return m.Name == method })
	if at < 0 {
		return fmt.Errorf("no method %s", method)
	}
	got, err := r.Methods[at].Handle(r.Context(), q)
	if err != nil || result == nil {
		return err
	}
	if data, err = bus.Result(got); err != nil {
		return err
	}
	return json.Unmarshal(data, result)
}

// Stop ends the workers and the live connections before the test ends; the bus
// stays open.
func (r *Rig) Stop() { r.stop() }

// Image copies the home as a crash would leave it: nothing was closed.
func (r *Rig) Image() (home string) {
	r.t.Helper()
	home = r.t.TempDir()
	r.must(filepath.WalkDir(r.Home, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file of the store
		}
		rel, _ := filepath.Rel(r.Home, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(home, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(home, rel), data, 0o600)
	}))
	return home
}

func (r *Rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// Context ends when a wait has taken too long.
func (r *Rig) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *Rig) lookup(name string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked[name]++
	v, ok := r.Env[name]
	return v, ok
}

// Looked is how often the host's environment was read.
func (r *Rig) Looked() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.looked {
		n += times
	}
	return n
}

// Setenv sets a variable of the host.
func (r *Rig) Setenv(name, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Env[name] = value
}

// Declare writes the declaration of a server into the first core. It is read by
// Load.
func (r *Rig) Declare(server string, lines ...string) {
	r.t.Helper()
	Declare(r.t, r.Dirs[0], server, lines...)
}

// Declare writes the declaration of a server into a core.
func Declare(t testing.TB, dir, server string, lines ...string) {
	t.Helper()
	dir = filepath.Join(dir, "agent", "mcp")
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, server+".yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Command is the line of a declaration that says what to run.
func Command(program string, args ...string) string {
	quoted, _ := json.Marshal(append([]string{}, args...))
	return fmt.Sprintf("command: %q\nargs: %s", program, quoted)
}

// Load reads the cores again.
func (r *Rig) Load() []cores.Loaded {
	r.t.Helper()
	loaded, err := r.Cores.Load(r.Context(), "test")
	r.must(err)
	return loaded
}

// SetPolicy replaces the gateway's policy. It is safe in any goroutine.
func (r *Rig) SetPolicy(p events.Policy) {
	p.Enabled, p.Implicit, p.Approvers = true, true, cmp.Or(p.Approvers, "interactive")
	body, _ := json.Marshal(p)
	sum := sha256.Sum256(body)
	if _, err := r.Model.Policies.Dispatch(r.Context(), Workspace, Workspace, bus.Meta{Actor: "runtime", Principal: "runtime"}, policy.Set{
		Level: policy.Level{Level: policy.LevelGateway}, After: p, Digest: hex.EncodeToString(sum[:]),
	}); err != nil {
		r.t.Error(err)
	}
}

// Ask asks a method as the operator.
func (r *Rig) Ask(method string, params, result any) {
	r.t.Helper()
	r.must(r.Local.Do(r.Context(), method, params, result))
	r.must(r.Bus.Sync(r.Context())) // a peer may have done it
}

// Answer is what a principal is answered to a method, past the subject that names
// him. It may be called from any goroutine.
func (r *Rig) Answer(principal, method string, params []byte) (any, error) {
	i := slices.IndexFunc(r.Methods, func(m bus.Method) bool { return m.Name == method })
	if i < 0 {
		return nil, fmt.Errorf("rig: nothing answers %s", method)
	}
	q := &bus.Request{Workspace: Workspace, Principal: principal, Method: method, Data: params}
	if err := q.Name(); err != nil {
		return nil, err
	}
	return r.Methods[i].Handle(context.Background(), q)
}

// Grant gives capabilities to a principal.
func (r *Rig) Grant(principal string, capabilities ...string) {
	r.t.Helper()
	for _, c := range capabilities {
		r.Ask("grant/add", client.Grant{Principal: principal, Capability: c}, nil)
	}
}

// GrantAll lets a principal connect to and call everything.
func (r *Rig) GrantAll(principal string) {
	r.t.Helper()
	r.Grant(principal, "mcp.connect:*", "mcp.call:*")
}

// As is the identity of a principal.
func As(principal string) client.Identity {
	return client.Identity{Workspace: Workspace, Principal: principal, Actor: principal}
}

// Session is the session of a principal, made at its first use.
func (r *Rig) Session(principal string) string {
	r.t.Helper()
	key, err := r.Decider.Session(r.Context(), As(principal), "test")
	r.must(err)
	return key
}

// Prepare binds a turn over all servers, once they have settled.
func (r *Rig) Prepare(principal string, change ...func(*decider.Preparation)) client.Turn {
	r.t.Helper()
	t, err := r.TryPrepare(principal, change...)
	r.must(err)
	return t
}

// TryPrepare is Prepare with its error.
func (r *Rig) TryPrepare(principal string, change ...func(*decider.Preparation)) (client.Turn, error) {
	r.t.Helper()
	p := decider.Preparation{Session: r.Session(principal), Implicit: true}
	for _, f := range change {
		f(&p)
	}
	return r.Decider.Prepare(r.Context(), As(principal), p)
}

// Request asks for a principal's connection as a turn would at some time.
func (r *Rig) Request(principal, server string, at time.Time) {
	r.t.Helper()
	d, ok := r.Cores.Server(server)
	if !ok {
		r.t.Fatalf("no server %s", server)
	}
	session := r.Session(principal)
	key := d.Connection(session)
	_, err := r.Model.Connections.Dispatch(r.Context(), Workspace, key, bus.Meta{
		Actor: principal, Principal: principal, Time: at, Scope: events.Scope{Session: session, Connection: key, Server: server},
	}, d.Request(r.Model, Workspace, principal, session, at))
	r.must(err)
}

// Connected binds a turn after saying yes to everything that it waited for.
func (r *Rig) Connected(principal string) client.Turn {
	r.t.Helper()
	r.Prepare(principal)
	for _, a := range r.Pending() {
		r.Decide(a.ID, true)
	}
	return r.Prepare(principal)
}

// Decide answers an approval; a session answer stands for the session.
func (r *Rig) Decide(id string, allow bool, session ...bool) {
	r.t.Helper()
	p := client.ApprovalsDecide{ID: id, Decision: "deny", Session: len(session) > 0}
	if allow {
		p.Decision = "allow"
	}
	r.Ask("approvals/decide", p, nil)
}

// CatchUp waits until the projections have what the log has.
func (r *Rig) CatchUp() {
	r.t.Helper()
	r.must(r.Projections.Wait(r.Context(), r.Bus.Known()))
}

// Pending are the approvals that wait.
func (r *Rig) Pending() []approvals.Approval {
	r.t.Helper()
	r.CatchUp()
	return r.Projections.Approvals.Pending(Workspace)
}

// AwaitPending waits for as many approvals to wait.
func (r *Rig) AwaitPending(n int) []approvals.Approval {
	r.t.Helper()
	for {
		at := r.Projections.Applied()
		if list := r.Projections.Approvals.Pending(Workspace); len(list) == n {
			return list
		}
		if _, err := r.Projections.Changed(r.Context(), at); err != nil {
			r.t.Fatalf("no %d approvals wait: %v", n, err)
		}
	}
}

// Params are the params of tools/call.
func Params(name, arguments string) redact.Raw[[]byte] {
	quoted, _ := json.Marshal(name)
	return redact.NewRaw([]byte(`{"name":` + string(quoted) + `,"arguments":` + arguments + `}`))
}

// Call calls a tool and waits for no person. It is safe in any goroutine.
func (r *Rig) Call(principal, turn, name, arguments string, change ...func(*caller.Request)) client.CallReply {
	r.t.Helper()
	q := caller.Request{Turn: turn, Name: name, Params: Params(name, arguments)}
	for _, f := range change {
		f(&q)
	}
	reply, err := r.Caller.Call(r.Context(), As(principal), q)
	if err != nil {
		r.t.Errorf("call of %s: %v", name, err)
	}
	return reply
}

// Wait makes a call wait for a person.
func Wait(q *caller.Request) { q.Wait = patience }

// connectionID is the id of a principal's connection, or of that which he shares.
func (r *Rig) connectionID(principal, server string) string {
	if d, ok := r.Cores.Server(server); ok {
		return d.Connection(r.Session(principal))
	}
	return connection.ID(r.Session(principal), server)
}

// Connection is the state of a principal's connection.
func (r *Rig) Connection(principal, server string) connection.State {
	r.t.Helper()
	return r.Model.Connections.Get(Workspace, r.connectionID(principal, server))
}

// AwaitConnection waits for a state of a principal's connection.
func (r *Rig) AwaitConnection(principal, server string, ok func(connection.State) bool) connection.State {
	r.t.Helper()
	s, err := r.Model.Connections.Wait(r.Context(), Workspace, r.connectionID(principal, server), ok)
	if err != nil {
		r.t.Fatalf("connection to %s: %v; it is %+v", server, err, s)
	}
	return s
}

// AwaitCall waits for a state of a call.
func (r *Rig) AwaitCall(key string, ok func(call.State) bool) call.State {
	r.t.Helper()
	s, err := r.Model.Calls.Wait(r.Context(), Workspace, key, ok)
	if err != nil {
		r.t.Fatalf("call: %v; it is %+v", err, s)
	}
	return s
}

// Log is the whole log.
func (r *Rig) Log() []*events.Commit {
	r.t.Helper()
	var out []*events.Commit
	for c, err := range r.Bus.Read(r.Context(), 0) {
		r.must(err)
		out = append(out, c)
	}
	return out
}

// Events are the events of one type in the log.
func Events[E events.Event](r *Rig) []E {
	r.t.Helper()
	var out []E
	for _, c := range r.Log() {
		for _, e := range c.Events {
			if e, ok := e.(E); ok {
				out = append(out, e)
			}
		}
	}
	return out
}

// Await returns the first event of a type that satisfies the condition, now or
// later.
func Await[E events.Event](r *Rig, ok func(E) bool) E {
	r.t.Helper()
	for c, err := range r.Bus.Follow(r.Context(), 0) {
		r.must(err)
		for _, e := range c.Events {
			if e, is := e.(E); is && ok(e) {
				return e
			}
		}
	}
	var none E
	r.t.Fatalf("no %T in the log", none)
	return none
}

// Names are the names of the events of a server's connections and calls, in the
// order of the log.
func (r *Rig) Names(server string) (names []string) {
	r.t.Helper()
	for _, c := range r.Log() {
		if c.Scope.Server == server && (c.Aggregate.Kind == events.KindConnection || c.Aggregate.Kind == events.KindCall) {
			names = append(names, c.Names()...)
		}
	}
	return names
}

// Rebuilt fails the test unless the projections made afresh equal the live ones.
func (r *Rig) Rebuilt() {
	r.t.Helper()
	var out client.Rebuild
	r.Ask("bus/rebuild", nil, &out)
	for name, p := range out.Projections {
		if !p.Equal {
			r.t.Errorf("projection %s rebuilt is not the live one", name)
		}
	}
}

// Stored reports whether the bytes are in the log, or in any file of the home
// but the children's own directories.
func (r *Rig) Stored(secret string) bool {
	r.t.Helper()
	for _, c := range r.Log() {
		data, err := c.Encode()
		r.must(err)
		if strings.Contains(string(data), secret) {
			return true
		}
	}
	found := false
	r.must(filepath.WalkDir(r.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), secret) {
			found = true
		}
		return nil
	}))
	return found
}

// Tool finds the visible tool of a server by its raw name.
func Tool(t testing.TB, turn client.Turn, server, raw string) client.Tool {
	t.Helper()
	i := slices.IndexFunc(turn.Tools, func(c client.Tool) bool { return c.Server == server && c.RawName == raw })
	if i < 0 {
		t.Fatalf("the turn has no tool %s/%s: %+v", server, raw, turn)
	}
	return turn.Tools[i]
}
