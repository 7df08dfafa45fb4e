// Package lifecycle keeps installed servers as they are wanted: it starts what is
// enabled, stops what is not, starts again what failed, and says in the log where each of
// them is (R160 to R172).
//
// It compares what the log says is wanted with what the log says is there, and takes one
// step after the other until they agree; it remembers nothing that it would have to know.
// A restart is asked for by the move to restarting, whoever observes that; a secret with
// a new value is noticed by the place of that in the log. So it does not matter which
// process does it, or that one begins where another was killed. Of the processes of a
// home the one that booted first does.
//
// What is wanted of a connection is said to package connection, and what becomes of it
// is said by package connector. While an opening goes on, whoever uses it says whether
// that works (Health).
package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/live"
)

const (
	// lookEvery is how often it is looked for what fell by the way while the log took
	// nothing.
	lookEvery = 5 * time.Second
	// steps bounds how many of them a server takes before another one has its turn.
	steps = 16
	// reportTime bounds the report on an opening.
	reportTime = 10 * time.Second
)

// Config is what a Supervisor needs. All fields are required.
type Config struct {
	Bus   *bus.Bus
	Model *bus.Model
	Cores *cores.Cores
	// Workspace is that of the home, Home its id in the log, Runtime that of this process.
	Workspace, Home, Runtime string
	// Alive reports whether a runtime of the home lives by the log, Valid says why this one
	// may begin nothing.
	Alive func(runtime string) bool
	Valid func() error
	Log   *slog.Logger
}

// Supervisor keeps the installed servers of a home. It is safe for concurrent use.
type Supervisor struct {
	Config
	wake chan struct{} // capacity 1, full while there may be something to do

	mu       sync.Mutex
	failures map[string]redact.EventText // of connections that failed last; guarded by mu
}

// New makes a Supervisor.
func New(c Config) *Supervisor {
	return &Supervisor{Config: c, wake: make(chan struct{}, 1), failures: map[string]redact.EventText{}}
}

// Run supervises until ctx ends. An error is that of the log.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	head := s.Bus.Head()
	if s.first() {
		if err := s.boot(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	var followed error
	var following sync.WaitGroup
	following.Go(func() {
		defer cancel()
		followed = s.follow(ctx, head)
	})
	defer following.Wait()
	for {
		wait := lookEvery
		if s.first() && s.Valid() == nil {
			if due := s.pass(ctx); !due.IsZero() {
				wait = max(min(wait, time.Until(due)), 0)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			following.Wait()
			return followed
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// first reports whether no living process of the home booted before this one.
func (s *Supervisor) first() bool {
	live := s.Model.Runtimes.Get(s.Workspace, s.Home).Live
	own, ok := live[s.Runtime]
	for _, p := range live {
		ok = ok && p.Epoch >= own.Epoch
	}
	return ok
}

// follow wakes the supervisor, and keeps what is not in the model: the words of failures.
func (s *Supervisor) follow(ctx context.Context, after uint64) error {
	for c, err := range s.Bus.FollowSome(ctx, after, s.concerns) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, e := range c.Events {
			switch e := e.(type) {
			case events.ServerFailed:
				s.failed(c.Aggregate.Key, e.Message)
			case events.DiscoveryFailed:
				s.failed(c.Aggregate.Key, e.Message)
			}
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *Supervisor) failed(id string, text redact.EventText) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[id] = text
}

// concerns reports whether a commit can change what is wanted of a server, or what there
// is of it.
func (s *Supervisor) concerns(c *events.Commit) bool {
	switch c.Aggregate.Kind {
	case events.KindServer, events.KindPolicy, events.KindHost, events.KindRuntime:
		return true
	case events.KindConnection:
		return c.Workspace == s.Workspace && c.Scope.Session == ""
	}
	return false
}

// installations are the servers of the home, by their keys in order.
func (s *Supervisor) installations() []string {
	var keys []string
	for at, state := range s.Model.Servers.All() {
		if at.Workspace == s.Workspace && s.own(state) {
			keys = append(keys, at.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// own reports whether a server is of this home, and one that is connected to.
func (s *Supervisor) own(state server.State) bool {
	i := state.Installation
	return state.Status != "" && i.Home == s.Home && i.ScopeKind == server.ScopeWorkspace
}

// boot forgets what ran in a process before this one (R172). What a process that lives
// holds goes on.
func (s *Supervisor) boot(ctx context.Context) error {
	for _, key := range s.installations() {
		state := s.Model.Servers.Get(s.Workspace, key)
		c := s.Model.Connections.Get(s.Workspace, connection.ID("", state.Installation.Name))
		if c.Phase == connection.Open && c.Runtime != s.Runtime && s.Alive(c.Runtime) {
			continue
		}
		enabled, _ := s.Model.Policies.Get(s.Workspace, s.Workspace).Allows(state.Installation.Name)
		if _, err := s.Model.Servers.Dispatch(ctx, s.Workspace, key, s.meta(state), server.Boot{Disabled: !enabled}); err != nil {
			return err
		}
	}
	return nil
}

// pass takes every server as far as it goes now, and says when the next one is due.
func (s *Supervisor) pass(ctx context.Context) (due time.Time) {
	for _, key := range s.installations() {
		at, err := s.walk(ctx, key)
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("an installed server is not where it should be", "server", key, "error", err)
		}
		if !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}

// walk takes one server as far as it goes now. at is when it is due; its zero value is
// when something happens.
func (s *Supervisor) walk(ctx context.Context, key string) (at time.Time, err error) {
	for range steps {
		f := s.facts(key)
		st := next(f)
		switch {
		case st.observe != nil:
			_, err = s.Model.Servers.Dispatch(ctx, s.Workspace, key, s.meta(f.server), *st.observe)
		case st.ask:
			err = s.ask(ctx, f)
			if err == nil && !underWay(s.facts(key).connection) {
				return time.Now().Add(time.Second), nil // nobody takes it on
			}
		case st.close != "":
			err = s.close(ctx, f, st.close)
		default:
			return st.at, nil
		}
		// It moved on meanwhile: it is looked at again.
		if err != nil && !fault.Is(err, fault.IllegalTransition) && !fault.Is(err, fault.RuntimeNotLive) && !fault.Is(err, fault.Conflict) {
			return time.Now().Add(time.Second), err
		}
	}
	return time.Now().Add(time.Second), err
}

func (s *Supervisor) facts(key string) facts {
	state := s.Model.Servers.Get(s.Workspace, key)
	name := state.Installation.Name
	id := connection.ID("", name)
	d, ok := s.Cores.Server(name)
	f := facts{
		server: state, connection: s.Model.Connections.Get(s.Workspace, id), wanted: ok && d.Installed && d.Enabled,
		policy:    s.Model.Policies.Get(s.Workspace, s.Workspace).Seq,
		authority: uint32(s.Model.Installer(s.Workspace, state.Installation.By, name).Seq), now: time.Now(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.failure = s.failures[id]
	return f
}

func (s *Supervisor) meta(of server.State) bus.Meta {
	return bus.Meta{
		Correlation: of.Installation.Name, Actor: "runtime", Principal: "runtime", Scope: events.Scope{Server: of.Installation.Name},
	}
}

// ask asks for the connection of a server, on facts that cannot change before the answer
// is in the log.
func (s *Supervisor) ask(ctx context.Context, f facts) error {
	name := f.server.Installation.Name
	d, ok := s.Cores.Server(name)
	if !ok {
		return nil
	}
	id, at := connection.ID("", name), time.Now()
	_, err := s.Model.Connections.DispatchWith(ctx, s.Workspace, id, bus.Meta{
		Correlation: id, Actor: "runtime", Principal: d.Installation.By, Time: at,
		Scope: events.Scope{Connection: id, Server: name},
	}, bus.With{Reads: d.Reads(s.Workspace, "")}, func() (connection.Command, error) {
		now, ok := s.Cores.Server(name)
		if !ok || !now.Installed || !now.Enabled || now.Installation.By != d.Installation.By { // whose connection it is
			return nil, fault.New("lifecycle.ask", fault.Conflict, redact.Static("the server is not wanted any more"))
		}
		return now.Request(s.Model, s.Workspace, "", "", at), nil
	})
	return err
}

// close ends the connection of a server, and those of single clients beside it.
func (s *Supervisor) close(ctx context.Context, f facts, reason string) error {
	name := f.server.Installation.Name
	for at, c := range s.Model.Connections.All() {
		if at.Workspace != s.Workspace || c.Server != name || !c.Installed() && (c.Attachment == "" || !underWay(c)) {
			continue
		}
		if _, err := s.Model.Connections.Dispatch(ctx, s.Workspace, at.Key, bus.Meta{
			Correlation: at.Key, Actor: "runtime", Principal: c.Principal,
			Scope: events.Scope{Session: c.Session, Connection: at.Key, Server: name},
		}, connection.Close{Generation: c.Generation, Reason: reason}); err != nil {
			return err
		}
	}
	return nil
}

// Health says of an opening that goes on whether the server took a request: err is nil
// where it did (R171). Of a connection that is not that of an installed server nothing is
// said. It may be called from any goroutine, and costs little while nothing changes.
func (s *Supervisor) Health(key live.Key, err error) {
	c := s.Model.Connections.Get(s.Workspace, key.Connection)
	if !c.Installed() || c.Generation != key.Generation || c.Phase != connection.Open {
		return
	}
	at := server.Key(server.ScopeWorkspace, s.Workspace, c.Server)
	state := s.Model.Servers.Get(s.Workspace, at)
	seen := server.Observe{To: server.Ready, Generation: key.Generation}
	switch {
	case state.Generation != key.Generation:
		return
	case err == nil:
		if state.Status != server.Degraded || state.Reason != server.ReasonCall {
			return
		}
	case !state.Status.Live():
		return
	default:
		seen.To, seen.Reason, seen.Message = server.Degraded, server.ReasonCall, redact.Static("the server did not take the request")
		if f, ok := errors.AsType[*fault.Fault](err); ok {
			if seen.Message = f.Text; f.Kind == fault.AuthRequired {
				seen.To, seen.Reason = server.AuthRequired, string(fault.AuthRequired)
			}
		}
		if seen.To == state.Status {
			return // it is known, whatever for
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportTime)
	defer cancel()
	_, failed := s.Model.Servers.Dispatch(ctx, s.Workspace, at, s.meta(state), seen)
	if failed != nil && !fault.Is(failed, fault.IllegalTransition) && !fault.Is(failed, fault.RuntimeNotLive) {
		s.Log.Warn("how a server does is not in the log", "server", c.Server, "error", failed)
	}
}
