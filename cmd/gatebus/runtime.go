package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/projections"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/connector"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/door"
	"github.com/gatebus/gatebus/workers/gateway"
	"github.com/gatebus/gatebus/workers/httpin"
	"github.com/gatebus/gatebus/workers/installer"
	"github.com/gatebus/gatebus/workers/lifecycle"
	"github.com/gatebus/gatebus/workers/live"
	"github.com/gatebus/gatebus/workers/notifier"
	"github.com/gatebus/gatebus/workers/secrets"
)

// drain bounds an orderly stop, away one without a bus, which can record nothing.
const (
	drain = 20 * time.Second
	away  = 2 * time.Second
)

// settings are what a runtime is made of, flags and configuration joined.
type settings struct {
	home, listen, natsListen string
	external                 *bus.External // the bus of other processes to use; nil runs one here
	worker                   bool          // beside the runtime of the home, on its bus
	workspace                string        // its name
	root                     string        // what a server's cwd must be inside
	cores                    []cores.Spec
	anonymous                string // the principal of loopback requests without a token; empty refuses them
	durability               bus.Durability
	policy                   events.Policy
	limits                   Limits
	trusted                  []urlpolicy.Trusted
	keepAudit                time.Duration // 0 is for ever
	keepStderr               int64         // bytes; 0 is the default
	lookup                   func(string) (string, bool)
	keystore                 secrets.Options // without the home
	log                      *slog.Logger
}

// instance is a running runtime: the bus with its workers in one process, or a
// worker, which is the same beside the runtime of its home: it has no listener
// for MCP clients, and what the home has loaded and set is not its to say. This
// file is the whole wiring, from top to bottom.
type instance struct {
	settings
	id      string
	homeID  string // of the home, in the log
	started time.Time

	bus         *bus.Bus
	model       *bus.Model
	member      *bus.Member
	projections *projections.Set
	audit       *audit.Projection
	auditEnd    func(context.Context) // nil before it runs
	declared    *cores.Cores
	secrets     *secrets.Store
	pool        *live.Pool
	decider     *decider.Decider
	caller      *caller.Caller
	connector   *connector.Connector
	notifier    *notifier.Notifier
	installer   *installer.Installer
	methods     []bus.Method // the contract, on NATS and on /rpc
	gateway     *gateway.Gateway
	serving     chan struct{} // closed when there is a gateway
	listener    net.Listener
	socket      string // the path of the one for MCP clients; empty without one
	server      *httpin.Server

	stop    context.CancelFunc // of the workers
	workers sync.WaitGroup
	failed  chan error // the first worker that ended by itself
}

// start opens a runtime: bus, membership, recovery, projections, workers,
// listener. What was begun is undone when a step fails.
func start(ctx context.Context, s settings) (_ *instance, err error) {
	r := &instance{settings: s, id: "r-" + ulid.Make().String(), started: time.Now(), failed: make(chan error, 8), stop: func() {}, serving: make(chan struct{})}
	if s.natsListen != "" && s.natsListen != "off" {
		if err := loopback("--nats-listen", s.natsListen); err != nil {
			return nil, err
		}
	}
	if !s.worker {
		// The address is taken first: a port in use must not cost a boot in the log.
		if r.listener, err = listen(s.listen); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			r.close(context.WithoutCancel(ctx), "start failed")
		}
	}()
	r.bus, err = bus.Open(ctx, bus.Options{
		Home: s.home, Listen: s.natsListen, Socket: true, Version: programVersion().Version, Workspace: s.workspace,
		External: s.external, Worker: s.worker, Durability: s.durability, Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	r.model = bus.NewModel(r.bus)
	r.projections = projections.New()
	r.bus.Keep("projections", r.projections)
	if err := r.bus.Load(ctx); err != nil {
		return nil, err
	}
	keys := map[string][]byte{}
	for _, name := range []string{"arguments", "previews"} {
		if keys[name], err = r.bus.HomeKey(name); err != nil {
			return nil, err
		}
	}
	if r.homeID, err = r.bus.HomeID(); err != nil {
		return nil, err
	}
	r.member, err = r.bus.Join(ctx, r.model, bus.JoinOptions{Runtime: r.id, Home: r.homeID, Version: programVersion().Version})
	if err != nil {
		return nil, err
	}
	// What a process before this one left open is closed before anything is served.
	if err := r.member.Recover(ctx, r.reaper().Reap); err != nil {
		return nil, err
	}

	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.run("membership", func() error { return r.member.Run(ctx, r.reaper().Reap) })
	if !s.worker {
		if err := r.bus.Seal(r.model.Runtimes, r.id); err != nil {
			return nil, err
		}
		r.run("scrubber", func() error { return r.bus.Scrub(ctx) })
		if err := r.setPolicy(ctx); err != nil {
			return nil, err
		}
	}
	r.run("projections", func() error { return r.projections.Run(ctx, r.bus) })
	if !s.worker {
		r.runAudit(ctx)
	}
	if err := r.projections.Wait(ctx, r.bus.Head()); err != nil {
		return nil, err
	}

	if err := r.declare(ctx); err != nil {
		return nil, err
	}
	r.run("cores", func() error { return r.declared.Watch(ctx) })

	s.keystore.Home = s.home
	if r.secrets, err = secrets.Open(ctx, s.keystore); err != nil {
		return nil, err
	}

	r.pool = new(live.Pool)
	installed := lifecycle.New(lifecycle.Config{
		Bus: r.bus, Model: r.model, Cores: r.declared, Workspace: s.workspace, Home: r.homeID, Runtime: r.id,
		Alive: r.member.Alive, Valid: r.member.Valid, Log: s.log,
	})
	var clients caller.Hosts // a worker has none
	if !s.worker {
		clients = hosts{r}
	}
	r.caller = caller.New(caller.Config{
		Bus: r.bus, Model: r.model, Approvals: r.projections.Approvals, Pool: r.pool, Workspace: s.workspace, Home: r.homeID,
		Runtime: r.id, Alive: r.member.Alive, Valid: r.member.Valid,
		Caught:      func(ctx context.Context) error { return r.projections.Wait(ctx, r.bus.Known()) },
		ArgumentKey: keys["arguments"], MaxArguments: int(s.limits.MaxArgumentBytes), Hosts: clients,
		URLs: urlpolicy.Policy{Trusted: s.trusted}, Health: installed.Health,
	})
	r.pool.Hold = r.caller.Hold
	r.decider = decider.New(decider.Config{
		Bus: r.bus, Model: r.model, Projections: r.projections, Audit: r.audit, Cores: r.declared, Workspace: s.workspace, Anonymous: s.anonymous, Home: r.homeID, Runtime: r.id,
		Info: r.info, Arguments: r.caller.Arguments, Tidy: r.caller.Tidy, Settle: r.member.Settle, Log: s.log,
	})
	r.connector = connector.New(connector.Config{
		Bus: r.bus, Model: r.model, Cores: r.declared, Pool: r.pool, Home: s.home, Serves: s.workspace, Workspace: s.root,
		Runtime: r.id, Alive: r.member.Alive, Valid: r.member.Valid,
		PreviewKey: keys["previews"], Lookup: s.lookup, Version: programVersion().Version, MaxFrame: int(s.limits.MaxFrameBytes),
		StderrBytes: s.keepStderr, Trusted: s.trusted, Asks: r.caller.Asks, Logged: r.caller.Logged, Secrets: r.secrets.Get, Log: s.log,
		Quota: live.Quota{Open: int(s.limits.MaxServerRequests), PerMinute: int(s.limits.ServerRequestsPerMinute)}, Refused: r.caller.Refused,
	})
	r.notifier = notifier.New(notifier.Config{
		Bus: r.bus, Model: r.model, Projections: r.projections, Workspace: s.workspace, Home: r.homeID, Runtime: r.id,
		Identity: r.decider.Identity, Role: r.decider.Role, Send: r.bus.Notify, Log: s.log,
	})
	r.installer = installer.New(installer.Config{
		Bus: r.bus, Model: r.model, Store: r.secrets, Workspace: s.workspace, Home: r.homeID, Dir: s.home, Key: keys["previews"],
		Provider: func(ctx context.Context) string { return r.secrets.Selected(ctx).Provider },
		Identity: r.decider.Identity, Declared: r.declaredIn, Settle: r.member.Settle, Log: s.log,
	})
	r.methods = slices.Concat(r.decider.Methods(), r.connector.Methods(r.decider.Identity), r.notifier.Methods(), r.caller.Methods(r.calls),
		r.secrets.Methods(r.decider.Identity, r.installer.Items), r.installer.Methods())
	r.run("installer", func() error { return r.installer.Run(ctx) })
	r.run("notifier", func() error { return r.notifier.Run(ctx) })
	r.run("connector", func() error { return r.connector.Run(ctx) })
	r.run("lifecycle", func() error { return installed.Run(ctx) })
	r.run("decider", func() error { return r.decider.Run(ctx) })
	r.run("log", func() error { return r.watchLog(ctx) })
	if err := r.serveBus(); err != nil {
		return nil, err
	}
	if s.worker {
		return r, nil
	}
	r.run("keystore", func() error { return r.watchKeystore(ctx) })
	if err := r.serveHTTP(ctx); err != nil {
		return nil, err
	}
	about := map[string]any{"mcp": r.mcpURL()}
	if r.socket != "" {
		about["mcp_socket"] = r.socket
	}
	return r, r.bus.Announce(ctx, r.id, about)
}

// run starts a worker; one that ends while the runtime is up ends the runtime.
func (r *instance) run(name string, work func() error) {
	r.workers.Go(func() { r.ended(name, work()) })
}

func (r *instance) ended(name string, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	r.log.Error("worker", "name", name, "error", err)
	select {
	case r.failed <- err:
	default:
	}
}

// runAudit keeps the audit file. It ends after everything else, so that the file
// has the last words of the log.
func (r *instance) runAudit(ctx context.Context) {
	r.audit = audit.New(audit.Options{Path: filepath.Join(r.home, audit.File), Keep: r.keepAudit, Log: r.log})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var run sync.WaitGroup
	run.Go(func() { r.ended("audit", r.audit.Run(ctx, r.bus)) })
	r.auditEnd = func(ctx context.Context) {
		ctx, late := context.WithTimeout(ctx, lastWords)
		defer late()
		_ = r.audit.Wait(ctx, r.bus.Head()) // what it lacks it gets at the next start
		cancel()
		run.Wait()
	}
}

// lastWords bounds the wait for the audit file at the end.
const lastWords = 2 * time.Second

// logPatience is how long the log may give no answer before the runtime ends:
// the store of the server does not come back by itself once its disk was full,
// and whoever supervises the process can start it again.
const logPatience = 30 * time.Second

// watchLog ends the runtime when nothing can be decided any more.
func (r *instance) watchLog(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if r.bus.LogErr() == nil {
				since = now
			} else if now.Sub(since) > logPatience {
				return fault.Wrap("up", fault.AuditUnavailable, redact.Static("the log takes no appends; free the disk and start again"), r.bus.LogErr())
			}
		}
	}
}

// setPolicy records the policy of the configuration. Nothing that runs goes on
// under another one.
func (r *instance) setPolicy(ctx context.Context) error {
	body, err := json.Marshal(r.policy)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if _, err = r.model.Policies.Dispatch(ctx, r.workspace, r.workspace, bus.Meta{
		Correlation: r.id, Actor: "runtime", Principal: "runtime",
	}, policy.Set{
		Level: policy.Level{Level: policy.LevelGateway}, After: r.policy, Digest: hex.EncodeToString(sum[:]),
	}); err != nil {
		return err
	}
	return r.member.Settle(ctx, r.workspace, events.AggregateID{Kind: events.KindPolicy, Key: r.workspace})
}

// declare loads the cores. A worker has what the runtime of its home has loaded,
// or does not start.
func (r *instance) declare(ctx context.Context) error {
	if r.worker {
		r.declared = cores.Follow(r.model, r.workspace, r.homeID, r.cores, r.log)
		return r.declared.Current(ctx)
	}
	r.declared = cores.New(r.model, r.workspace, r.homeID, r.cores, r.log)
	loaded, err := r.declared.Load(ctx, "up")
	if err != nil {
		return err
	}
	return loadProblems(loaded, r.log)
}

// declaredIn says where a core declares a server.
func (r *instance) declaredIn(name string) (where string, ok bool) {
	s, ok := r.declared.Server(name)
	return "core " + s.Core + ", " + s.Path, ok && s.Core != ""
}

func (r *instance) reaper() decider.Reaper {
	return decider.Reaper{Bus: r.bus, Model: r.model, Workspace: r.workspace}
}

// serveBus answers the methods of the bus.
func (r *instance) serveBus() error {
	for _, m := range r.methods {
		if err := r.bus.Serve(m.Name, m.Handle); err != nil {
			return err
		}
	}
	return nil
}

// calls says for whom a tool/call is.
func (r *instance) calls(q *bus.Request, principal string) (client.Identity, error) {
	id, err := r.decider.Identity(q, host.RoleHost, host.RoleOperator)
	if err != nil {
		return id, err
	}
	return r.decider.As(id, principal)
}

// serveHTTP answers MCP clients and programs.
func (r *instance) serveHTTP(ctx context.Context) error {
	// Only who is a host may act without a token, or be acted for.
	isHost := func(id client.Identity) bool {
		return id.Principal != "" && r.decider.Role(id.Workspace, id.Principal) == host.RoleHost
	}
	anonymous := func(as string) (id client.Identity, ok bool) {
		id = client.Identity{Workspace: r.workspace, Principal: r.anonymous, Actor: r.anonymous}
		return id, as == "" && isHost(id)
	}
	var err error
	r.gateway, err = gateway.New(gateway.Options{
		Backend: backend{r.declared, r.decider, r.caller},
		Authenticate: func(token string) (gateway.Who, bool) {
			id, ok := r.decider.Authenticate(token)
			return gateway.Who(id), ok && r.decider.Role(id.Workspace, id.Principal) != host.RoleAuditor
		},
		Anonymous: func(as string) (gateway.Who, bool) {
			id, ok := anonymous(as)
			if as != "" {
				id = client.Identity{Workspace: r.workspace, Principal: as, Actor: bus.Local}
				ok = isHost(id)
			}
			return gateway.Who(id), ok
		},
		Follow: func(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
			return r.bus.FollowSome(ctx, after, gateway.Concerns)
		},
		Head: r.bus.Head, Version: programVersion().Version,
		Hold: time.Duration(r.limits.Hold), Logger: r.log,
	})
	if err != nil {
		return err
	}
	close(r.serving)
	if _, err := r.caller.HearLogs(); err != nil { // until the bus closes
		return err
	}
	programs, err := door.New(door.Options{
		Methods: r.methods, Authenticate: r.decider.Authenticate, Anonymous: anonymous,
		Follow: r.notifier.Follow, Check: r.notifier.Check, Head: r.bus.Known, Log: r.log,
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, programs.Close)
	r.run("gateway", func() error { return r.gateway.Run(ctx) })
	mux := http.NewServeMux()
	mux.Handle("/mcp", r.gateway.Handler())
	mux.Handle("/mcp/s/", r.gateway.Handler())
	mux.Handle("/rpc", programs.Handler())
	mux.Handle("/rpc/events", programs.Handler())
	mux.HandleFunc("GET /metrics", r.serveMetrics)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case r.projections.Status().Err != nil:
			http.Error(w, "the projections have stopped", http.StatusServiceUnavailable)
			return
		case r.bus.Damage() != nil:
			http.Error(w, "the log is damaged; nothing is decided", http.StatusServiceUnavailable)
			return
		case r.bus.LogErr() != nil:
			http.Error(w, "the log takes no appends", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	r.server = httpin.NewServer(&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)})
	listeners := []net.Listener{r.listener}
	switch l, err := r.bus.ListenSocket("mcp.sock"); {
	case err == nil:
		r.socket = l.Addr().String()
		listeners = append(listeners, l)
	case !errors.Is(err, errors.ErrUnsupported):
		// A path can be too long for a socket; there is the listener then.
		r.log.Warn("there is no socket for MCP clients", "error", err.Error())
	}
	for _, l := range listeners {
		r.run("http", func() error {
			if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	return nil
}

// close stops in reverse: no more intake, held calls end, connections close and
// say so, and the log has the last word.
func (r *instance) close(ctx context.Context, reason string) error {
	limit := drain
	if r.bus != nil && !r.bus.Connected() {
		limit = away
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.stop()
	var err error
	if r.server != nil {
		err = errors.Join(err, r.server.Shutdown(ctx))
	} else if r.listener != nil {
		r.listener.Close()
	}
	if r.bus == nil {
		return err
	}
	if r.pool != nil {
		for key := range r.pool.All() {
			s := r.model.Connections.Get(r.workspace, key.Connection)
			_, e := r.model.Connections.Dispatch(ctx, r.workspace, key.Connection, bus.Meta{
				Correlation: r.id, Actor: "runtime", Principal: s.Principal,
				Scope: events.Scope{Session: s.Session, Connection: key.Connection, Server: s.Server},
			}, connection.Close{Generation: key.Generation, Reason: string(fault.RuntimeClosed)})
			err = errors.Join(err, e)
		}
		err = errors.Join(err, r.pool.Close(ctx))
	}
	r.workers.Wait()
	if r.caller != nil {
		r.caller.Tidy(ctx)
	}
	if r.connector != nil {
		r.connector.Collected(ctx)
	}
	if r.member != nil {
		err = errors.Join(err, r.reaper().Reap(ctx, r.id), r.member.Leave(ctx, reason))
	}
	if r.auditEnd != nil {
		r.auditEnd(ctx)
	}
	return errors.Join(err, r.bus.Close(ctx))
}

// mcpURL is where MCP clients are served; a worker serves none.
func (r *instance) mcpURL() string {
	if r.listener == nil {
		return ""
	}
	return "http://" + r.listener.Addr().String() + "/mcp"
}

// info is what bus/info says of this process.
func (r *instance) info() client.BusInfo {
	live := 0
	for range r.pool.All() {
		live++
	}
	all := r.model.Runtimes.Get(r.workspace, r.homeID).Live
	runtimes := []client.Runtime{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		runtimes = append(runtimes, client.Runtime{Runtime: id, Epoch: all[id].Epoch, Embedded: all[id].Embedded})
	}
	return client.BusInfo{
		Version: programVersion().Version, Home: r.home, HomeID: r.homeID, Runtime: r.id, Epoch: all[r.id].Epoch, Runtimes: runtimes,
		PID: os.Getpid(), Started: r.started, NATS: r.bus.URL(), MCP: r.mcpURL(), Durability: string(cmp.Or(r.bus.Durability(), "external")),
		Workspace: r.workspace, Live: live, Cores: []client.Core{},
	}
}

// listen takes a loopback address.
func listen(address string) (net.Listener, error) {
	if err := loopback("--listen", address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.Wrap("listen", fault.PortInUse, redact.Name("the address "+address+" cannot be listened on"), err)
	}
	return l, nil
}

// loopback refuses an address that is wider: that needs TLS, which is not there
// yet.
func loopback(flag, address string) error {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return usage("%s: %q is no host:port", flag, address)
	}
	if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usage("%s: %q is no loopback address; a wider one needs TLS", flag, address)
	}
	return nil
}

// loadProblems logs warnings and makes one error of everything that keeps a core
// from being loaded: a start is refused, while a reload keeps what was there.
func loadProblems(loaded []cores.Loaded, log *slog.Logger) error {
	var lines []string
	kind := fault.CoreLoadFailed
	for _, l := range loaded {
		for _, d := range l.Diagnostics {
			switch {
			case d.Warning:
				log.Warn("declaration", "core", l.Core, "problem", d.String())
			case d.Path == "" && len(lines) > 0:
				// The summary of what was said already.
			default:
				if len(lines) == 0 {
					kind = fault.Kind(d.Code)
				}
				lines = append(lines, "core "+l.Core+": "+d.String())
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return &problem{kind: kind, text: strings.Join(lines, "\n")}
}

// backend is the gateway's way to the runtime: functions, as both are in one
// process (decision 21).
type backend struct {
	declared *cores.Cores
	decider  *decider.Decider
	caller   *caller.Caller
}

func (b backend) Serves(server string) bool {
	_, ok := b.declared.Server(server)
	return ok
}

func (b backend) Sees(who gateway.Who, endpoint, server string) bool {
	s, ok := b.declared.Server(server)
	if !ok || !s.Enabled || endpoint != server && (endpoint != "" || s.Installed && !s.Implicit) {
		return false
	}
	return b.decider.Model.Authority(who.Workspace, who.Principal).Allows(s.ConnectCapability(), time.Now())
}

func (b backend) Session(ctx context.Context, who gateway.Who, label string) (string, error) {
	return b.decider.Session(ctx, client.Identity(who), label)
}

func (b backend) Prepare(ctx context.Context, who gateway.Who, peer gateway.Peer, session, server string, reuse func(string) (client.Turn, bool)) (client.Turn, error) {
	p := decider.Preparation{
		Session: session, Implicit: true, Wait: decider.Grace, Reuse: reuse,
		Attachment: cores.Attachment{ID: peer.ID, Offers: peer.Offers},
	}
	if server != "" {
		p.Implicit, p.Servers, p.Untouched = false, []string{server}, true
	}
	return b.decider.Prepare(ctx, client.Identity(who), p)
}

func (b backend) Call(ctx context.Context, who gateway.Who, c gateway.Call) (client.CallReply, error) {
	r := caller.Request{
		Turn: c.Turn, Name: c.Name, Method: c.Method, Subject: c.Subject, Params: c.Params, Input: c.Input, Wait: c.Wait, OnPending: c.OnPending,
	}
	if c.Watch != nil {
		r.Watch = (*caller.Watch)(c.Watch)
	}
	if c.Notify != nil {
		r.Notify = func(n live.Notice) {
			if n.Method != "notifications/progress" && !c.Logs {
				return
			}
			message := append([]byte(`{"jsonrpc":"2.0","method":"`+n.Method+`","params":`), n.Params...)
			c.Notify(append(message, '}'))
		}
	}
	return b.caller.Call(ctx, client.Identity(who), r)
}

func (b backend) Release(ctx context.Context, subscription string) {
	b.caller.Release(ctx, subscription)
}

func (b backend) Told(ctx context.Context, _ gateway.Who, peer, offer, method string) {
	b.caller.Told(ctx, peer, offer, method)
}

func (b backend) Leave(ctx context.Context, who gateway.Who, peer string) {
	b.decider.Leave(ctx, who.Workspace, peer)
}

// hosts are the MCP clients as the caller knows them. Nobody is asked before the
// gateway, which is made later, serves somebody.
type hosts struct{ of *instance }

func (h hosts) Ask(ctx context.Context, attachment, server, method string, params []byte) (r live.Reply, err error) {
	r.Result, r.Error, err = h.of.gateway.Ask(ctx, attachment, server, method, params)
	return r, err
}

func (h hosts) Tell(attachment, server, method string, params []byte) {
	h.of.gateway.Tell(attachment, server, method, params)
}

func (h hosts) Log(session, attachment string, params []byte) {
	select {
	case <-h.of.serving:
		h.of.gateway.Log(session, attachment, params)
	default: // a server of before is faster than its clients
	}
}

func (b backend) EndTurn(ctx context.Context, who gateway.Who, turn string) {
	// A turn that has ended already is what is wanted.
	_ = b.decider.EndTurn(ctx, client.Identity(who), turn)
}
