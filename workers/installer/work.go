package installer

import (
	"context"
	"errors"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// work is a request that puts secrets or makes some stale. It takes part in the lock
// from begin to end.
type work struct {
	*Installer
	release func()
	later   bool // there is a job that deletes what it leaves behind
	// provider has the key of the keystore; known from the first put on.
	provider string
	put      []server.Secret // what is in the keystore by the decision under way
}

func (i *Installer) begin(ctx context.Context) (*work, error) {
	release, err := i.lock.take(ctx, false)
	if err != nil {
		return nil, err
	}
	return &work{Installer: i, release: release}, nil
}

func (w *work) end() { w.release() }

// leave makes sure that what nothing refers to afterwards is deleted, whatever
// becomes of this process. The job waits for the lock: it is stored first and begins
// last.
func (w *work) leave(ctx context.Context) error {
	if w.later {
		return nil
	}
	err := w.Bus.PublishJob(ctx, w.Workspace, w.jobs, ulid.Make().String())
	w.later = err == nil
	return err
}

// store puts a value.
func (w *work) store(ctx context.Context, s server.Secret) error {
	if err := w.leave(ctx); err != nil {
		return err
	}
	if w.provider == "" {
		w.provider = w.Provider(ctx)
	}
	w.put = append(w.put, s)
	err := w.Store.Put(ctx, s.Item(), s.Value)
	if _, ok := errors.AsType[*fault.Fault](err); err != nil && !ok {
		err = fault.Wrap("put secret", fault.KeystoreWriteFailed, redact.Name("the keystore does not take "+s.Ref), err)
	}
	return err
}

// done ends a decision on what was put: what came to nothing is taken back. What the
// log may have all the same is left to the job, which waits until that is known. The
// error is that of the decision.
func (w *work) done(ctx context.Context, err error, s server.State) error {
	put := w.put
	w.put = nil
	switch {
	case fault.Is(err, fault.AuditUnavailable):
		if len(put) == 0 {
			return err
		}
		return fault.Wrap("install", fault.InstallCommitFailed, redact.Static("the log does not take the change, or does not say whether it did"), err)
	case err != nil && ctx.Err() != nil:
		return err
	}
	used := s.Secrets()
	for _, secret := range put {
		if err == nil && used[secret.Ref] == secret.Version {
			continue
		}
		if e := w.Store.Delete(ctx, secret.Item()); e != nil {
			w.Log.Warn("a secret that was not used is deleted later", "ref", secret.Ref, "error", e.Error())
		}
	}
	return err
}
