package rig

import (
	"context"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// Install installs a server that runs a program, without secrets, on the yes of the
// operator local.
func (r *Rig) Install(name, program string, args []string, change ...func(*events.Installation)) {
	r.t.Helper()
	i := events.Installation{
		ScopeKind: server.ScopeWorkspace, ScopeKey: Workspace, Name: name, Home: home, Fingerprint: "f-" + name + "-1",
		Transport: "stdio", Command: events.TextRef{Text: redact.Name(program)}, StartupTimeoutS: 20, ToolTimeoutS: 20,
		Enabled: true, Implicit: true, Approval: "i-" + ulid.Make().String(), By: bus.Local,
	}
	for _, a := range args {
		i.Args = append(i.Args, events.TextRef{Text: redact.Name(a)})
	}
	for _, f := range change {
		f(&i)
	}
	r.Tell(name, server.Install{Installation: i})
}

// Tell gives a command to an installed server, as an operator.
func (r *Rig) Tell(name string, cmd server.Command) {
	r.t.Helper()
	_, err := r.Model.Servers.Dispatch(r.Context(), Workspace, name, bus.Meta{
		Actor: bus.Local, Principal: bus.Local, Scope: events.Scope{Server: name},
	}, cmd)
	r.must(err)
}

// Installed is the state of an installed server.
func (r *Rig) Installed(name string) server.State { return r.Model.Servers.Get(Workspace, name) }

// AwaitInstalled waits for a state of an installed server.
func (r *Rig) AwaitInstalled(name string, ok func(server.State) bool) server.State {
	r.t.Helper()
	s, err := r.Model.Servers.Wait(r.Context(), Workspace, name, ok)
	if err != nil {
		r.t.Fatalf("server %s: %v; it is %+v, and its connection %+v", name, err, s, r.Model.Connections.Get(Workspace, connection.ID("", name)))
	}
	return s
}

// AwaitStatus waits for an installed server to be in one of the states.
func (r *Rig) AwaitStatus(name string, status server.Status) server.State {
	r.t.Helper()
	return r.AwaitInstalled(name, func(s server.State) bool { return s.Status == status })
}

// Keep puts the value of a secret into the keystore of the rig.
func (r *Rig) Keep(ref, version, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = map[string]string{}
	}
	r.kept[server.Item(ref, version)] = value
}

// secret looks up what is in the keystore.
func (r *Rig) secret(_ context.Context, item string) (redact.Raw[string], bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.kept[item]
	return redact.NewRaw(v), ok, nil
}

// Moves are the states that an installed server has been in, in the order of the log, each
// with the reason.
func (r *Rig) Moves(name string) (moves []string) {
	r.t.Helper()
	for _, c := range r.Log() {
		for _, e := range c.Events {
			if e, ok := e.(events.ServerStatusChanged); ok && c.Scope.Server == name {
				moves = append(moves, e.To+" "+e.ReasonCode)
			}
		}
	}
	return moves
}
