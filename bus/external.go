package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// patience is how long an external bus may give no answer before what was asked
	// has failed: the servers of a cluster need some seconds to choose a new leader.
	patience = 15 * time.Second
	// firstPause doubles up to lastPause between the tries meanwhile.
	firstPause = 2 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// dial connects to an external bus.
func (b *Bus) dial() (*nats.Conn, error) {
	const op = "connect"
	b.timeout = 2 * time.Second // a server that is silent is left for another one
	creds := b.opts.External.Creds
	if len(creds) == 0 {
		var err error
		if creds, err = b.accounts.runtimeUser(jwt.ConnectionTypeStandard); err != nil {
			return nil, err
		}
	}
	name, err := userName(creds)
	if err != nil {
		return nil, fault.Wrap(op, fault.InvalidInput, redact.Static("the credentials of the bus cannot be read"), err)
	}
	quiet := func(*nats.Conn, *nats.Subscription, error) {} // until it is known whose credentials they are
	// Nothing is sent late: what is published while there is no connection fails, so
	// that an append knows what it has to find out.
	nc, err := nats.Connect(b.opts.External.URL, append(b.connection(), nats.UserCredentialBytes(creds), nats.Name(name),
		nats.CustomInboxPrefix("_INBOX."+name), nats.Timeout(2*time.Second), nats.ReconnectBufSize(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond), nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2), nats.ErrorHandler(quiet))...)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return nil, fault.Wrap(op, fault.AuthenticationRequired, redact.Static("the bus does not take these credentials"), err)
	case err != nil:
		return nil, fault.Wrap(op, fault.BusUnavailable, redact.Static("the bus does not answer"), err)
	}
	// What the role of a runtime or a worker has and no other: the server says no at
	// once, and without this it would look as if nobody answered.
	err = nc.Publish("$JS.API.STREAM.INFO."+eventStream, nil)
	if err == nil {
		err = nc.FlushTimeout(patience)
	}
	if errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		nc.Close()
		return nil, fault.New(op, fault.AuthenticationRequired, redact.Static("the credentials are not those of a worker"))
	}
	if err != nil {
		nc.Close()
		return nil, fault.Wrap(op, fault.BusUnavailable, redact.Static("the bus does not answer"), err)
	}
	nc.SetErrorHandler(b.connectionError)
	if n := nc.MaxPayload(); n < maxPayload {
		b.log.Warn("the servers of the bus take smaller messages than they should; see gatebus bus config", "max_payload", n, "want", maxPayload)
	}
	return nc, nil
}

// userName is the name of the user of a creds file, which its inboxes begin with.
func userName(creds []byte) (string, error) {
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		return "", err
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", err
	}
	if c.Name == "" || strings.ContainsAny(c.Name, ".*> \t\r\n") {
		return "", errors.New("the user has no name that a subject can have")
	}
	return c.Name, nil
}

// passing reports whether an error of an external bus may be gone in a moment: a
// cluster without a leader, a connection that is being made again.
func (b *Bus) passing(err error) bool {
	if b.server != nil {
		return false
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.Code == 503
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting) || errors.Is(err, nats.ErrStaleConnection)
}

// patiently repeats a question to an external bus while it may get its answer in
// a moment. The question must do no harm when it is repeated.
func (b *Bus) patiently(ctx context.Context, ask func() error) error {
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := ask()
		if err == nil || !b.passing(err) || ctx.Err() != nil || time.Since(began) > patience {
			return err
		}
		if !b.pause(ctx, pause) {
			return err
		}
	}
}

// briefly bounds one question by what an answer takes, whatever ctx allows: one that
// was lost with a server would be waited for as long as that.
func (b *Bus) briefly(ctx context.Context, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return ask(ctx)
}

// pause waits; false when ctx or the bus ended meanwhile.
func (b *Bus) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-b.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
