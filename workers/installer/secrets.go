package installer

import (
	"context"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// find resolves the name of a secret: a reference, or the short form of one of the
// workspace, SERVER/env/KEY. Only what an installation of this home refers to is
// found.
func (i *Installer) find(method, workspace, name string) (ref, at, key string, err error) {
	ref, ok := short(workspace, name)
	if !ok {
		ref = name
	}
	at, key, ok = owner(ref)
	if !ok {
		return "", "", "", fault.New(method, fault.InvalidInput, redact.Static("name: SERVER/env/KEY, SERVER/header/NAME, or a reference as gatebus secret list prints it"))
	}
	if at == "" {
		at = workspace
	}
	s := i.Model.Servers.Get(at, key)
	if _, ok := s.Secrets()[ref]; !ok || at != workspace {
		return "", "", "", fault.New(method, fault.NotFound, redact.Static("no installed server has a secret of that name"))
	}
	if s.Installation.Home != i.Home {
		return "", "", "", fault.New(method, fault.Unavailable, redact.Static("another home has installed the server, and has its secrets"))
	}
	return ref, at, key, nil
}

// setSecret gives a secret that is in use a new value. An equal one changes nothing.
func (i *Installer) setSecret(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.SecretSet
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	ref, at, key, err := i.find(r.Method, id.Workspace, p.Name)
	if err != nil {
		return nil, err
	}
	w, err := i.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer w.end()
	value := redact.NewRaw(p.Value)
	m := asked(id, r, i.Model.Servers.Get(at, key).Installation.Name)
	dec, err := i.Model.Servers.DispatchWith(ctx, at, key, m, bus.With{}, func() (server.Command, error) {
		version, used := i.Model.Servers.Get(at, key).Secrets()[ref]
		if !used {
			return nil, fault.New(r.Method, fault.NotFound, redact.Static("the server does not use the secret any more"))
		}
		had, ok, err := i.Store.Get(ctx, server.Item(ref, version))
		if err != nil {
			return nil, err
		}
		if ok && redact.Same(had, value) {
			return server.StoreSecret{Secret: events.SecretStored{Ref: ref, Version: version}}, nil // it is the one already
		}
		next := server.Secret{Ref: ref, Version: ulid.Make().String(), Value: value}
		if err := w.store(ctx, next); err != nil {
			return nil, err
		}
		return server.StoreSecret{Secret: events.SecretStored{Ref: ref, Version: next.Version, Provider: w.provider}}, nil
	})
	if err := w.done(ctx, err, dec.State); err != nil {
		return nil, err
	}
	return client.SecretChanged{Ref: ref, Changed: len(dec.Events) > 0}, i.settled(ctx, at, key)
}

// deleteSecret takes the value away from a server, which cannot start without it.
func (i *Installer) deleteSecret(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.SecretName
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	ref, at, key, err := i.find(r.Method, id.Workspace, p.Name)
	if err != nil {
		return nil, err
	}
	// In part is enough: what is deleted is in use, so that no sweep looks at it.
	release, err := i.lock.take(ctx, false)
	if err != nil {
		return nil, err
	}
	defer release()
	s := i.Model.Servers.Get(at, key)
	it := item{ref, s.Secrets()[ref]}
	_, there, err := i.Store.Get(ctx, it.String())
	if err != nil {
		return nil, err
	}
	if !there {
		return client.SecretChanged{Ref: ref}, nil
	}
	if err := i.Store.Delete(ctx, it.String()); err != nil {
		return nil, err
	}
	// It is said when it has happened: the commit cannot bring it back, and without it
	// the secret is missing all the same.
	_, err = i.Model.Servers.Dispatch(ctx, at, key, asked(id, r, s.Installation.Name), server.DropSecret{Ref: ref, Version: it.version})
	if err != nil {
		return nil, err
	}
	return client.SecretChanged{Ref: ref, Changed: true}, i.settled(ctx, at, key)
}

// collect is the garbage collection that a person asks for (R91..R93).
func (i *Installer) collect(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.SecretCollect
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	out, err := i.sweep(ctx, p.DryRun, nil, func(item) bool { return false })
	var cmd server.Command = server.FailCollect{Reason: string(fault.KindOf(err))}
	if err == nil {
		cmd = server.Collect{Collected: events.SecretsCollected{
			DryRun: p.DryRun, ActiveRefs: uint32(out.active), StoredRefs: uint32(out.stored), OrphanRefs: uint32(out.orphans),
			DeletedRefs: uint32(out.deleted), Failed: out.failed,
		}}
	}
	if _, e := i.Model.Servers.Dispatch(ctx, i.Workspace, server.HomeKey(i.Home), asked(id, r, ""), cmd); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	return client.SecretsCollected{
		DryRun: p.DryRun, ActiveRefs: out.active, StoredRefs: out.stored, OrphanRefs: out.orphans, DeletedRefs: out.deleted,
		FailedDeletes: append([]string{}, out.failed...),
	}, nil
}
