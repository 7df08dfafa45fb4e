package installer

import (
	"context"
	"strings"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// named is the key of an installation that a request names.
func named(r *bus.Request, workspace, name, scopeKind string) (key string, err error) {
	if strings.TrimSpace(name) == "" {
		return "", fault.New(r.Method, fault.InvalidRequest, redact.Static("name: is blank"))
	}
	scope, ok := declaration.ParseScope(scopeKind)
	if !ok {
		return "", fault.New(r.Method, fault.InvalidRequest, redact.Static("scope_kind: workspace or user"))
	}
	kind, of := scopeOf(scope, workspace)
	return server.Key(kind, of, name), nil
}

// scopeOf is a scope as the log has it.
func scopeOf(scope declaration.Scope, workspace string) (kind, key string) {
	if scope == declaration.UserScope {
		return server.ScopeUser, server.UserKey
	}
	return server.ScopeWorkspace, workspace
}

// setPolicy enables or disables a server, and makes it implicit or not (R38).
func (i *Installer) setPolicy(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.PolicySet
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	key, err := named(r, id.Workspace, p.Name, p.ScopeKind)
	if err != nil {
		return nil, err
	}
	dec, err := i.Model.Servers.Dispatch(ctx, id.Workspace, key, asked(id, r, p.Name), server.SetPolicy{Enabled: p.Enabled, Implicit: p.Implicit})
	if err != nil {
		return nil, err
	}
	return client.PolicyState{Name: p.Name, Enabled: dec.State.Enabled, Implicit: dec.State.Implicit}, i.settled(ctx, id.Workspace, key)
}

// uninstall removes a server. Its process is stopped by who follows the log, and its
// secrets are deleted behind that (R85).
func (i *Installer) uninstall(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ServerOf
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	key, err := named(r, id.Workspace, p.Name, p.ScopeKind)
	if err != nil {
		return nil, err
	}
	w, err := i.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer w.end()
	_, err = i.Model.Servers.DispatchWith(ctx, id.Workspace, key, asked(id, r, p.Name), bus.With{}, func() (server.Command, error) {
		if s := i.Model.Servers.Get(id.Workspace, key); s.Installed && len(s.Secrets()) > 0 {
			if err := w.leave(ctx); err != nil {
				return nil, err
			}
		}
		return server.Uninstall{}, nil
	})
	if err != nil {
		return nil, err
	}
	return p, i.settled(ctx, id.Workspace, key)
}

// restart says that a server is to be stopped and started again: who follows the log
// does that (R170). What does not run, because it is disabled or is about to start, is
// left as it is.
func (i *Installer) restart(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.ServerOf
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	key, err := named(r, id.Workspace, p.Name, p.ScopeKind)
	if err != nil {
		return nil, err
	}
	_, err = i.Model.Servers.DispatchWith(ctx, id.Workspace, key, asked(id, r, p.Name), bus.With{}, func() (server.Command, error) {
		s := i.Model.Servers.Get(id.Workspace, key)
		switch {
		case !s.Installed:
			return nil, fault.New(r.Method, fault.NotFound, redact.Static("no server of that name is installed"))
		case !server.Legal(s.Status, server.Restarting):
			return nil, nil
		}
		return server.Observe{To: server.Restarting, Reason: server.ReasonManual}, nil
	})
	if err != nil {
		return nil, err
	}
	return p, i.settled(ctx, id.Workspace, key)
}
