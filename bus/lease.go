package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// leaseTTL is how long a lease lives without a renewal. A cluster may be without
	// a leader for seven seconds.
	leaseTTL           = 3 * time.Second
	leaseTTLReplicated = 15 * time.Second
)

// errLapsed says that a lease has run out.
var errLapsed = errors.New("bus: the lease has run out")

// lease is a key in the bucket of leases, which goes away by itself when it is
// not renewed. It says when to look at a process, and never that it is gone.
type lease struct {
	bus *Bus
	key string
	ttl time.Duration

	mu       sync.Mutex
	revision uint64
	deadline time.Time
}

// take makes the lease, or finds it ours already.
func (l *lease) take(ctx context.Context) error {
	sent := time.Now()
	revision, err := l.bus.leases.Create(ctx, l.key, []byte(l.key), jetstream.KeyTTL(l.ttl))
	if err == nil {
		l.renewed(revision, sent)
		return nil
	}
	if errors.Is(err, jetstream.ErrKeyExists) {
		if err := l.look(ctx); err != nil {
			return err
		}
		return l.renew(ctx)
	}
	return err
}

// renew makes the lease live on. errLapsed says that it has run out; after any
// other error nothing is known.
func (l *lease) renew(ctx context.Context) error {
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	sent := time.Now()
	// Not by the bucket's own update, which forgets that the key ends.
	ack, err := l.bus.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV." + leaseBucket + "." + l.key, Data: []byte(l.key)},
		jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithMsgTTL(l.ttl), jetstream.WithRetryAttempts(0))
	if err == nil {
		l.renewed(ack.Sequence, sent)
		return nil
	}
	// What was sent may have arrived: then the revision has moved by ourselves.
	if e := l.look(ctx); e != nil {
		return e
	}
	return err
}

// look takes over the revision of the key.
func (l *lease) look(ctx context.Context) error {
	entry, err := l.bus.leases.Get(ctx, l.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return errLapsed
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision = max(l.revision, entry.Revision()) // a server that lags behind knows an old one
	return nil
}

func (l *lease) renewed(revision uint64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision, l.deadline = revision, sent.Add(3*l.ttl/4)
}

// valid reports whether nobody can have seen the lease run out. The clock on the
// wall counts as well: the other one stands still while a machine sleeps.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return now.Before(l.deadline) && now.Round(0).Before(l.deadline.Round(0))
}

// end gives the lease back. What is left of it goes away.
func (l *lease) end(ctx context.Context) error {
	err := l.bus.leases.Purge(ctx, l.key, jetstream.PurgeTTL(leaseConfig.LimitMarkerTTL))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	return err
}

// held reports whether a lease is there.
func (b *Bus) held(ctx context.Context, key string) (bool, error) {
	_, err := b.leases.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}
