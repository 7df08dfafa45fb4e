package installer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// The statuses of an install and of its items (R25).
const (
	statusOK        = "ok"
	statusPartial   = "partial"
	statusInvalid   = "validation_error"
	statusInstalled = "installed"
	statusUpdated   = "updated"
)

// install installs what is good of mcpServers JSON, each server by itself (R24, R25).
// Its error says that none of it could be installed, for a reason that is not in the
// JSON.
func (i *Installer) install(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.Install
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	scope, ok := declaration.ParseScope(p.ScopeKind)
	if !ok {
		return nil, fault.New(r.Method, fault.InvalidScopeKind, redact.Static("scope_kind: workspace or user"))
	}
	items, problems := declaration.ParseServers(configText(p.Config))
	out := client.Installed{Status: statusInvalid, Items: []client.InstalledItem{}, Diagnostics: diagnostics(problems)}
	if len(problems) > 0 {
		return out, nil
	}
	w, err := i.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer w.end()
	var failed error
	good := 0
	for _, it := range items {
		if where, ok := i.Declared(it.Name); ok && it.Valid() {
			it.Problems = append(it.Problems, declaration.Problem{
				Code: declaration.DuplicateServerID, Severity: declaration.Error, Path: "$.mcpServers." + it.Name,
				Message: "a core declares a server of this name, in " + where,
			})
		}
		one := client.InstalledItem{Name: it.Name, Status: statusInvalid}
		if it.Valid() {
			one.Status, one.Fingerprint, err = w.installOne(ctx, id, r, scope, it, p)
			if err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				failed = cmp.Or(failed, err)
				one.Status = statusInvalid
				it.Problems = append(it.Problems, problemOf(it.Name, err))
			} else {
				good++
			}
		}
		one.Diagnostics = diagnostics(it.Problems)
		out.Items = append(out.Items, one)
	}
	switch {
	case good == 0 && failed != nil:
		return nil, failed
	case good == len(items):
		out.Status = statusOK
	case good > 0:
		out.Status = statusPartial
	}
	return out, nil
}

// configText is mcpServers JSON that was given as it is, or as a text.
func configText(config json.RawMessage) []byte {
	if text := ""; json.Unmarshal(config, &text) == nil {
		return []byte(text)
	}
	return config
}

// problemOf is what kept a good item from being installed.
func problemOf(name string, err error) declaration.Problem {
	p := declaration.Problem{
		Code: declaration.Code(fault.KindOf(err)), Severity: declaration.Error, Path: "$.mcpServers." + name,
		Message: "could not be installed",
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		p.Message = f.Text.String()
	}
	return p
}

func diagnostics(problems []declaration.Problem) []client.ConfigDiagnostic {
	out := []client.ConfigDiagnostic{}
	for _, p := range problems {
		out = append(out, client.ConfigDiagnostic{Code: string(p.Code), Severity: string(p.Severity), Message: p.Message, Path: p.Path})
	}
	return out
}

// installOne installs a server, or installs it again.
func (w *work) installOne(ctx context.Context, id client.Identity, r *bus.Request, scope declaration.Scope, it declaration.Item, p client.Install) (status, fingerprint string, err error) {
	kind, of := scopeOf(scope, id.Workspace)
	key := server.Key(kind, of, it.Name)
	approval := "a-" + ulid.Make().String()
	dec, err := w.Model.Servers.DispatchWith(ctx, id.Workspace, key, asked(id, r, it.Name), bus.With{}, func() (server.Command, error) {
		terms := server.Terms{
			ScopeKind: kind, ScopeKey: of, Home: w.Home, Key: w.Key, Version: ulid.Make().String(), Approval: approval, By: id.Actor,
			Enabled: p.Enabled, Implicit: p.Implicit,
		}
		if s := w.Model.Servers.Get(id.Workspace, key); s.Installed {
			terms.Before = s.Installation
		}
		var unread error
		terms.Value = func(item string) (redact.Raw[string], bool) {
			v, ok, err := w.Store.Get(ctx, item)
			unread = cmp.Or(unread, err)
			return v, ok
		}
		plan, err := server.Plan(it, terms)
		if err = cmp.Or(unread, err); err != nil {
			return nil, err
		}
		cmd := server.Install{Installation: plan.Installation}
		for _, secret := range plan.Put {
			if err := w.store(ctx, secret); err != nil {
				return nil, err
			}
			cmd.Secrets = append(cmd.Secrets, events.SecretStored{Ref: secret.Ref, Version: secret.Version, Provider: w.provider})
		}
		if len(plan.Stale) > 0 {
			if err := w.leave(ctx); err != nil {
				return nil, err
			}
		}
		return cmd, nil
	})
	if err := w.done(ctx, err, dec.State); err != nil {
		return "", "", err
	}
	happened := dec.Events
	if dec.Repeated {
		if happened, err = w.eventsAt(ctx, dec.Seq); err != nil {
			return "", "", err
		}
	}
	status = statusUpdated
	for _, e := range happened {
		if _, ok := e.(events.ServerInstalled); ok {
			status = statusInstalled
		}
	}
	return status, dec.State.Installation.Fingerprint, w.settled(ctx, id.Workspace, key)
}

// eventsAt are those of a commit.
func (i *Installer) eventsAt(ctx context.Context, seq uint64) ([]events.Event, error) {
	for c, err := range i.Bus.Read(ctx, seq-1) {
		if err != nil {
			return nil, err
		}
		return c.Events, nil
	}
	return nil, nil
}
