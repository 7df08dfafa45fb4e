// Package connector opens, refreshes and closes connections to MCP servers.
//
// It follows the log. A connection that was requested walks the gate (R49): cwd
// and URL here, capability, policy and approval in package connection. One that
// was approved becomes a durable job: claim, start, initialize, list, report. One
// whose events say that it ended is closed. Nothing is started but after the
// event that permits it, and what was started is reported as a command. What was lost
// on the way, a job or a report, is found in the model every five seconds and taken
// up again.
//
// A private connection, of one client attachment that servers may ask, is opened
// beside the shared one by the process where its attachment is, and offers the server
// what the log says that it is offered. No other connection offers anything.
package connector

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/live"
	"github.com/gatebus/gatebus/workers/stdio"
)

// Slots is how many discoveries are under way at once in a runtime; no core can
// raise it (R130).
const Slots = 4

// jobConnect is the kind of the durable jobs that walk a connection on.
const jobConnect = "connect"

// settle is how long a burst of tool list changes is collected.
const settle = 250 * time.Millisecond

// Config is what a Connector needs. All fields are required but
// Secrets, MaxFrame, StderrBytes, Trusted, Resolve, Dial, Asks, Quota, Refused and Logged.
type Config struct {
	Bus   *bus.Bus
	Model *bus.Model
	Cores *cores.Cores
	Pool  *live.Pool
	// Runtime is the id of this process. Alive reports whether a runtime of the home
	// lives by the log, Valid says why this one may begin nothing.
	Runtime string
	Alive   func(runtime string) bool
	Valid   func() error
	Home    string
	// Serves is the workspace of the home: what others do on the same bus is theirs.
	Serves string
	// Workspace is the root that a server's cwd must be inside (R71).
	Workspace string
	// PreviewKey keys the digests in previews (R64).
	PreviewKey []byte
	// Lookup reads the host's environment; it is called after consent only (R74),
	// but for HOME where a cwd begins with ~ (R71).
	Lookup func(string) (string, bool)
	// Secrets looks up what the keystore has for an installed server, when it is started
	// and only then (R86). nil is for a process in which nothing is installed.
	Secrets func(ctx context.Context, item string) (redact.Raw[string], bool, error)
	Version string
	// MaxFrame bounds a message of a server, in bytes; 0 is the default.
	MaxFrame int
	// StderrBytes bounds the log of what servers write to their standard error; 0 is
	// the default.
	StderrBytes int64
	// Trusted is where servers behind HTTP may be reached beside public places (R108).
	// Resolve asks for the addresses of a name and Dial makes connections, each nil as
	// package httpclient does by itself.
	Trusted []urlpolicy.Trusted
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	Dial    func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
	// Asks makes what answers the server of a private connection, but for the offers;
	// timeout is that of its calls. nil is for a process without clients.
	Asks func(key live.Key, timeout time.Duration) live.Asks
	// Quota is how many requests a server may make of its client.
	Quota live.Quota
	// Refused hears of what a server asks its client, and may not; nil drops it. See
	// [live.Options].
	Refused func(key live.Key, conn *live.Conn, method string, often bool)
	// Logged gets the log messages of servers that belong to no call; nil drops them.
	Logged func(key live.Key, conn *live.Conn, n live.Notice)
	Log    *slog.Logger
}

// Connector owns the live connections of a runtime.
type Connector struct {
	Config
	slots   chan struct{}
	eras    live.Eras       // by fingerprint of the declaration
	run     context.Context // of Run
	retries sync.WaitGroup
	walks   sync.WaitGroup // of private connections

	errors     *stdio.Log
	collecting sync.WaitGroup // of processes
	mu         sync.Mutex
	processes  map[*stdio.Process]running // guarded by mu
	openings   map[live.Key]bool          // that are under way here; guarded by mu
}

// New makes a Connector.
func New(c Config) *Connector {
	return &Connector{
		Config: c, slots: make(chan struct{}, Slots),
		errors:    &stdio.Log{Path: filepath.Join(c.Home, filepath.FromSlash(stdio.LogFile)), Max: c.StderrBytes},
		processes: map[*stdio.Process]running{}, openings: map[live.Key]bool{},
	}
}

// Run works until ctx ends and its goroutines are gone. Live connections stay in
// the pool: who drains the runtime closes them.
func (c *Connector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.run = ctx
	defer c.retries.Wait()
	var wg sync.WaitGroup
	wg.Go(func() {
		// More jobs at once than slots: walking the gate needs none.
		if err := c.Bus.ConsumeJobs(ctx, jobConnect, 4*Slots, c.walk); err != nil && ctx.Err() == nil {
			c.Log.Error("connect jobs", "error", err)
			cancel()
		}
	})
	wg.Go(func() { c.mendAll(ctx) })
	err := c.follow(ctx)
	cancel()
	wg.Wait()
	c.walks.Wait()
	return err
}

// follow turns what happened to connections into work.
func (c *Connector) follow(ctx context.Context) error {
	head := c.Bus.Head()
	// What a process before this one was permitted to do and had not begun.
	for at, s := range c.Model.Connections.All() {
		if at.Workspace == c.Serves && s.Attachment == "" && (s.Phase == connection.Requested || s.Phase == connection.Approved) {
			c.enqueue(ctx, at.Workspace, at.Key, head, "")
		}
	}
	ofConnections := func(commit *events.Commit) bool {
		return commit.Aggregate.Kind == events.KindConnection && commit.Workspace == c.Serves
	}
	for commit, err := range c.Bus.FollowSome(ctx, head, ofConnections) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, e := range commit.Events {
			switch e := e.(type) {
			case events.ConnectRequested:
				if e.Attachment != "" {
					c.private(ctx, commit.Workspace, commit.Aggregate.Key, e)
					continue
				}
				c.enqueue(ctx, commit.Workspace, commit.Aggregate.Key, commit.Seq, "")
			case events.ConnectionClaimed:
				// One that did not know yet that it was given up: nobody would open it.
				if !c.Alive(e.Runtime) {
					c.reap(ctx, commit.Workspace, commit.Aggregate.Key, e.Runtime)
				}
			case events.ApprovalDecided:
				if s := c.Model.Connections.Get(commit.Workspace, commit.Aggregate.Key); s.Phase == connection.Approved && s.Attachment == "" {
					c.enqueue(ctx, commit.Workspace, commit.Aggregate.Key, commit.Seq, "")
				}
			case events.ConnectionClosed:
				c.drop(live.Key{Connection: commit.Aggregate.Key, Generation: e.Generation})
			case events.ConnectionLost:
				c.drop(live.Key{Connection: commit.Aggregate.Key, Generation: e.Generation})
			}
		}
	}
	return nil
}

// enqueue makes a job of a connection's next step. The sequence that gave rise
// to it is part of the job's id: a repeat is the same job, and the next step of
// the same connection is another one; so is one that is asked for again.
func (c *Connector) enqueue(ctx context.Context, ws, id string, seq uint64, again string) {
	if err := c.Bus.PublishJob(ctx, ws, jobConnect, id+"@"+strconv.FormatUint(seq, 10)+"@"+again); err != nil && ctx.Err() == nil {
		c.Log.Error("connect job", "connection", id, "error", err)
	}
}

// reap closes what a runtime claimed after its own end.
func (c *Connector) reap(ctx context.Context, ws, id, gone string) {
	s := c.Model.Connections.Get(ws, id)
	if _, err := c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), connection.Reap{Runtime: gone}); err != nil && ctx.Err() == nil {
		c.Log.Error("a connection of a runtime that is gone is still open", "connection", id, "error", err)
	}
}

// drop closes the live connection of one opening, if it is here.
func (c *Connector) drop(key live.Key) {
	if conn := c.Pool.Remove(key); conn != nil {
		go conn.Close(context.Background()) // bounded by itself
	}
}

// walk takes a connection as far as it goes without a person. It is driven by
// the state alone, so a job that comes twice does nothing the second time.
func (c *Connector) walk(ctx context.Context, ws, job string) error {
	id, at, _ := strings.Cut(job, "@")
	at, _, _ = strings.Cut(at, "@")
	// The job may be faster than the commit that gave rise to it.
	if seq, err := strconv.ParseUint(at, 10, 64); err == nil {
		if err := c.Bus.Reached(ctx, seq); err != nil {
			return err
		}
	}
	if err := c.Cores.Current(ctx); err != nil {
		return err
	}
	for {
		s := c.Model.Connections.Get(ws, id)
		var err error
		switch s.Phase {
		case connection.Requested:
			err = c.gate(ctx, ws, id, s)
		case connection.Approved:
			err = c.open(ctx, ws, id, s)
		default:
			return nil
		}
		if fault.Is(err, fault.Conflict) {
			continue // it moved on meanwhile
		}
		if err != nil {
			return err
		}
	}
}

func (c *Connector) meta(id string, s connection.State) bus.Meta {
	return bus.Meta{
		Correlation: id, Actor: "runtime", Principal: s.Principal,
		Scope: events.Scope{Session: s.Session, Connection: id, Server: s.Server},
	}
}

// declared is the declaration that the connection was requested for; a changed
// one is a new request and no longer this connection's business.
func (c *Connector) declared(s connection.State) (cores.Server, bool) {
	d, ok := c.Cores.Server(s.Server)
	return d, ok && d.Enabled && d.Fingerprint == s.Fingerprint
}

// gate walks the steps between policy and approval (R49 steps 3 and 4).
func (c *Connector) gate(ctx context.Context, ws, id string, s connection.State) error {
	cmd := connection.Gate{
		Approval: "a-" + ulid.Make().String(), At: time.Now(),
		Interactive: c.Model.Policies.Get(ws, ws).Interactive(),
	}
	d, ok := c.declared(s)
	if !ok {
		cmd.Stage, cmd.Reason = connection.StageCapability, string(fault.InstallationUnavailable)
	} else {
		if _, err := c.cwd(d); fault.Is(err, fault.CWDOutsideWorkspace) {
			cmd.Stage, cmd.Reason = connection.StageCwd, string(fault.KindOf(err))
		} else if d.Transport == declaration.StreamableHTTP {
			if cmd.URL = c.judge(ctx, d); !cmd.URL.Allowed {
				cmd.Stage, cmd.Reason = connection.StageURL, cmd.URL.Reason
			}
		}
		cmd.Preview, cmd.PreviewDigest = preview(d, c.PreviewKey, s.Policy, cmd.URL, s.Swapped)
	}
	gated, err := c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), cmd)
	if err == nil {
		c.later(ws, id, gated.State)
	}
	return err
}

// cwd resolves the working directory of a server: inside the workspace after
// symbolic links (R71). It is checked before the approval and again at start. A
// directory that is not there is resolved as far as it is; the start then fails.
func (c *Connector) cwd(d cores.Server) (string, error) {
	root, err := filepath.EvalSymlinks(c.Workspace)
	if err != nil {
		return "", fault.New("connector.cwd", fault.SpawnFailed, redact.Static("the workspace root is not there"))
	}
	dir := expandHome(d.Cwd, c.Lookup)
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(root, dir)
	}
	resolved, missing := filepath.Clean(dir), ""
	for {
		at, err := filepath.EvalSymlinks(resolved)
		if err == nil {
			resolved = filepath.Join(at, missing)
			break
		}
		missing = filepath.Join(filepath.Base(resolved), missing)
		resolved = filepath.Dir(resolved) // ends at the root, which is there
	}
	rel, err := filepath.Rel(root, resolved)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fault.New("connector.cwd", fault.CWDOutsideWorkspace, redact.Static("the working directory is outside of the workspace"))
	}
	if missing != "" {
		return "", fault.New("connector.cwd", fault.SpawnFailed, redact.Static("the working directory is not there"))
	}
	return resolved, nil
}

// stepError is a failure of the opening with the step that failed (R49 steps 6
// to 8).
type stepError struct {
	stage string
	kind  fault.Kind
	text  redact.EventText
}

func (e *stepError) Error() string { return "connector: " + e.stage + ": " + e.text.String() }

// open claims the connection and opens it: interpolation, start, initialize and
// list under one deadline, within one of the slots (R130, R131). A conflict says
// that somebody else has claimed it.
func (c *Connector) open(ctx context.Context, ws, id string, s connection.State) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.Valid(); err != nil {
		return err
	}
	key, err := c.claim(ctx, ws, id, s)
	if err != nil || key == (live.Key{}) {
		return err
	}
	defer c.begin(key)()
	// What ends the connection meanwhile ends its opening.
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = c.Model.Connections.Wait(opening, ws, id, func(s connection.State) bool {
			return s.Phase != connection.Opening || s.Generation != key.Generation
		})
	}()
	conn, opened, err := c.start(opening, ws, key, s)
	if err == nil && !c.Pool.Put(key, conn) {
		_ = conn.Close(ctx)
		err = context.Canceled // the pool takes nothing while the runtime closes
	}
	// The report is made also when the runtime is closing: a start has an end.
	ctx = context.WithoutCancel(ctx)
	var report connection.Command = opened
	switch step, failed := errors.AsType[*stepError](err); {
	case failed:
		report = connection.Fail{Generation: key.Generation, Stage: step.stage, Kind: string(step.kind), Message: step.text, At: time.Now(),
			Program: opened.Opened.Program, ProgramDigest: opened.Opened.ProgramDigest}
	case err != nil && opening.Err() != nil, errors.Is(err, context.Canceled):
		report = connection.Close{Generation: key.Generation, Reason: string(fault.RuntimeClosed)}
	case err != nil:
		report = connection.Fail{Generation: key.Generation, Stage: connection.StageList, Kind: string(fault.ListToolsFailed), At: time.Now(),
			Program: opened.Opened.Program, ProgramDigest: opened.Opened.ProgramDigest}
	}
	reported, failed := c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), report)
	if err == nil && fault.Is(failed, fault.FrameTooLarge) { // it would be opening for ever
		c.Pool.Remove(key)
		_ = conn.Close(ctx)
		err = failed
		reported, failed = c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), connection.Fail{
			Generation: key.Generation, Stage: connection.StageList, Kind: string(fault.CatalogTooLarge), At: time.Now(),
			Message: tooLarge,
			Program: opened.Opened.Program, ProgramDigest: opened.Opened.ProgramDigest,
		})
	}
	switch {
	case err != nil:
		if failed == nil {
			c.later(ws, id, reported.State)
		}
	case failed != nil:
		c.Pool.Remove(key)
		_ = conn.Close(ctx)
	default:
		go c.watch(ws, key, s, conn)
	}
	if fault.Is(failed, fault.RuntimeNotLive) {
		return nil // it was closed while it was being opened
	}
	return failed
}

// soon is how many failures in a row are each tried again as soon as their time is
// over, which is a minute in all, and seldom how long it takes after that each time.
const (
	soon   = 8
	seldom = 10 * time.Minute
)

// later has a connection asked for again that was open before and has failed. Those of
// installed servers are asked for by who supervises them.
func (c *Connector) later(ws, id string, s connection.State) {
	if s.Phase == connection.Failed && s.Opened && s.Attachment == "" && !s.Installed() {
		c.retries.Go(func() { c.again(ws, id, s) })
	}
}

// again asks for a connection that was open before and could not be opened again.
// Whoever lists has found nothing of it meanwhile, and would not ask for it.
func (c *Connector) again(ws, id string, s connection.State) {
	wait := time.Until(s.RetryAfter)
	if s.Failures > soon {
		wait += seldom
	}
	select {
	case <-time.After(wait):
	case <-c.run.Done():
		return
	}
	_, err := c.Model.Connections.DispatchWith(c.run, ws, id, c.meta(id, s), bus.With{Reads: bus.AuthorityReads(ws, s.Principal)},
		func() (connection.Command, error) {
			d, ok := c.declared(s)
			now := c.Model.Connections.Get(ws, id)
			if !ok || now.Phase != connection.Failed || !c.Model.Sessions.Get(ws, s.Session).Active {
				return nil, fault.New("connector.again", fault.Conflict, redact.Static("nobody wants it any more"))
			}
			return d.Request(c.Model, ws, s.Principal, s.Session, time.Now()), nil
		})
	if err != nil && !fault.Is(err, fault.Conflict) && c.run.Err() == nil {
		c.Log.Warn("a connection that failed is not tried again", "connection", id, "error", err)
	}
}

// claim takes the right to open the connection, or finds that what permitted it
// has changed since: then it is asked for anew, on the facts as they are, and no
// key is returned. A revoke's reply therefore precedes or follows the whole start
// (decision 16).
func (c *Connector) claim(ctx context.Context, ws, id string, s connection.State) (live.Key, error) {
	reads := bus.AuthorityReads(ws, s.Principal)
	if d, ok := c.Cores.Server(s.Server); ok && s.Installed() {
		reads = d.Reads(ws, s.Principal)
	}
	claimed, err := c.Model.Connections.DispatchWith(ctx, ws, id, c.meta(id, s), bus.With{Reads: reads},
		func() (connection.Command, error) {
			d, ok := c.Cores.Server(s.Server)
			if !ok || !d.Enabled {
				return connection.Claim{Runtime: c.Runtime}, nil // start says that it is gone
			}
			r := c.request(ws, d, s)
			now := c.Model.Connections.Get(ws, id).Standing.Approval
			if r.Fingerprint == s.Fingerprint && r.PolicySequence == s.PolicySequence && slices.Equal(r.Offers, s.Offers) &&
				(s.Attachment == "" || r.Approval == now) && (!s.Installed() || r.Approval == s.Install) &&
				r.Authority.Allows(connection.Capability(s.Server), r.At) {
				return connection.Claim{Runtime: c.Runtime}, nil
			}
			if s.Installed() { // who supervises it asks anew, for who has installed it now
				return connection.Close{Generation: s.Generation, Reason: connection.ReasonOutdated}, nil
			}
			return r, nil
		})
	if err != nil || claimed.State.Phase != connection.Opening || claimed.Seq == 0 || claimed.Repeated {
		return live.Key{}, err
	}
	return live.Key{Connection: id, Generation: claimed.State.Generation}, nil
}

// watch reports the end of a connection that nobody here ended.
func (c *Connector) watch(ws string, key live.Key, s connection.State, conn *live.Conn) {
	retired := false
	select {
	case <-conn.Done():
	case <-conn.Retired():
		retired = true
	}
	c.Pool.Remove(key)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if !retired { // else calls under way may be answered while it is opened again
		_ = conn.Close(ctx)
	}
	if _, err := c.Model.Connections.Dispatch(ctx, ws, key.Connection, c.meta(key.Connection, s), connection.Close{
		Generation: key.Generation, Reason: connection.ReasonServerEnded, Exit: conn.Exit(),
	}); err != nil {
		c.Log.Debug("the end of a connection was not recorded", "connection", key.Connection, "error", err)
	}
	if retired {
		<-conn.Done()
		_ = conn.Close(context.Background()) // bounded by itself
	}
}
