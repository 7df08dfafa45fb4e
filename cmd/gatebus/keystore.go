package main

import (
	"context"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/workers/secrets"
)

// keystore is where the environment says that the key of the keystore may be. The
// demo has a home that goes away, and leaves the keyring alone.
func (m *Main) keystore(isDemo bool) secrets.Options {
	lookup := m.lookupFor(isDemo)
	o := secrets.Options{KeyFile: m.Getenv("GATEBUS_KEYSTORE_KEY_FILE"), Credentials: m.Getenv("CREDENTIALS_DIRECTORY")}
	if !isDemo {
		o.Keyring = secrets.System(lookup)
	}
	return o
}

// watchKeystore records where the key of the keystore is, at the start and when the
// first secret has chosen (R90). It is done beside everything else: a keyring may
// take its time.
func (r *instance) watchKeystore(ctx context.Context) error {
	for made := r.secrets.Made(); ; made = nil {
		s := r.secrets.Selected(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if s.Made { // before there is a secret it would be news to nobody
			for _, w := range s.Warnings {
				r.log.Warn("keystore", "warning", w.Text.String())
			}
		}
		if s.Err != nil {
			r.log.Warn("secrets are not available", "error", s.Err)
		}
		if s.Provider != "" {
			if _, err := r.model.Servers.Dispatch(ctx, r.workspace, server.HomeKey(r.homeID), bus.Meta{
				Correlation: r.id, Actor: bus.Runtime, Principal: bus.Runtime,
			}, server.SelectKeystore{Provider: s.Provider, Reason: s.Reason}); err != nil && ctx.Err() == nil {
				r.log.Warn("the choice of the keystore is not recorded", "error", err)
			}
		}
		if made == nil {
			return nil
		}
		select {
		case <-made:
		case <-ctx.Done():
			return nil
		}
	}
}
