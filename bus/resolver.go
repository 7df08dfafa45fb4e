package bus

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// account is the token of an account as the log says it is now; empty when no
// principal has it.
func (b *Bus) account(id string) (string, error) {
	switch id {
	case b.accounts.sys:
		return b.accounts.sign(b.accounts.systemClaims())
	case b.accounts.rt:
		revoked, err := b.revokedWorkers()
		if err != nil {
			return "", err
		}
		return b.accounts.sign(b.accounts.runtimeClaims(revoked))
	}
	for at, s := range b.hosts.All() {
		if s.Account == id {
			c, err := b.accounts.principalClaims(at.Workspace, at.Key, s)
			if err != nil {
				return "", err
			}
			return b.accounts.sign(c)
		}
	}
	return "", nil
}

// revokedFile notes the keys of workers that are void, beside the keys of the home:
// a server must know them before the log can be read.
const revokedFile = "workers.revoked"

// revokedWorkers are the keys of workers that are void: those of the log, which are
// noted, or those that were noted while the log is not folded yet.
func (b *Bus) revokedWorkers() ([]string, error) {
	noted, err := b.keys.revoked()
	if err != nil || !b.open.Load() {
		return noted, err
	}
	revoked := []string{}
	for _, s := range b.hosts.All() {
		revoked = append(revoked, s.RevokedWorkers...)
	}
	slices.Sort(revoked)
	if !slices.Equal(noted, revoked) {
		err = disk.Replace(filepath.Join(b.keys.dir, revokedFile), []byte(strings.Join(revoked, "\n")))
	}
	return revoked, err
}

// revoked are the keys of workers that were noted as void.
func (k keyring) revoked() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(k.dir, revokedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// servers are where accounts take effect: the embedded one, or a cluster.
type servers interface {
	// push gives them the token of an account. It returns nil when all have it, and
	// the connections that it makes void are cut.
	push(ctx context.Context, id, token string) error
}

// accountPatience bounds one try of a push.
const accountPatience = 5 * time.Second

// propagation brings the accounts of the log to the servers, in the process that
// has the keys. One goroutine follows the log and says what is due, another one
// pushes it until it is done.
type propagation struct {
	mu       sync.Mutex
	followed uint64            // what the log said of hosts up to here is due, or done
	due      map[string]uint64 // account id to the sequence that made it due
	void     map[string]string // accounts of nobody any more, with the name
	wake     chan struct{}     // closed at the next change; nil when nobody waits
}

func (p *propagation) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// changed is closed at the next change. The lock is held.
func (p *propagation) changed() <-chan struct{} {
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	return p.wake
}

// wait returns when what the log said up to a sequence has reached the servers.
func (p *propagation) wait(ctx context.Context, seq uint64) error {
	for {
		p.mu.Lock()
		done := p.followed >= seq
		for _, since := range p.due {
			done = done && since > seq
		}
		changed := p.changed()
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// The address at which the process with the keys answers.
const (
	addressAccounts = "accounts"
	verbSettled     = "settled"
)

// AccountsSettled returns when the accounts that the log made and made void, up
// to the sequence of a commit of a host, are so on every server: a new credential works, a revoked one
// has no connection left and gets none. Errors: the context's; bus_unavailable
// when the bus closes, or when no process with the keys is there to do it, which
// then does it when it starts.
func (b *Bus) AccountsSettled(ctx context.Context, seq uint64) error {
	const op = "settle accounts"
	if b.HasKeys() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(b.ctx, cancel)()
		err := b.due.wait(ctx, seq)
		if err != nil && b.ctx.Err() != nil {
			return errClosed(op)
		}
		return err
	}
	ask := func() error { // again, as an answer can get lost
		ctx, cancel := context.WithTimeout(ctx, accountPatience)
		defer cancel()
		return b.AskAddress(ctx, b.opts.Workspace, addressAccounts, verbSettled, strconv.AppendUint(nil, seq, 10), nil)
	}
	err := ask()
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = ask()
	}
	if errors.Is(err, ErrNoAddress) {
		return fault.Wrap(op, fault.BusUnavailable, redact.Static("it is on record, but no process with the keys of the home runs, which would tell the servers; it will when it starts"), err)
	}
	return err
}

// keepAccounts brings the servers what the log says of accounts up to head, and
// goes on with what comes behind it.
func (b *Bus) keepAccounts(ctx context.Context, head uint64) (err error) {
	if !b.HasKeys() {
		return nil
	}
	p := &b.due
	p.followed, p.due, p.void = head, make(map[string]uint64), make(map[string]string)
	last := make(map[Address]string)
	for at, s := range b.hosts.All() {
		last[at] = s.Account
	}
	var s servers = b.resolver
	if b.server != nil {
		close(b.resolver.loaded)
		// Of use after a crash between the revocation of a worker and its note.
		if err := b.pushAccount(s, b.accounts.rt); err != nil {
			return err
		}
	} else {
		if b.remote, err = b.openRemote(); err != nil {
			return err
		}
		s = b.remote
		due, void, err := b.remote.compare(ctx)
		if err != nil {
			return err
		}
		p.void = void
		for _, id := range due {
			p.due[id] = head
		}
	}
	b.work.Go(func() { b.followAccounts(head, last) })
	b.work.Go(func() { b.pushAccounts(s) })
	_, err = b.ServeAddress(b.opts.Workspace, addressAccounts, func(ctx context.Context, _ string, data []byte, _ func([]byte) error) error {
		seq, err := strconv.ParseUint(string(data), 10, 64)
		if err != nil {
			return err
		}
		return b.AccountsSettled(ctx, seq)
	})
	return err
}

// followAccounts says which accounts are due, by each commit of a host, behind head;
// last are the accounts of principals there.
func (b *Bus) followAccounts(head uint64, last map[Address]string) {
	ofHosts := func(c *events.Commit) bool { return c.Aggregate.Kind == events.KindHost }
	for c, err := range b.FollowSome(b.ctx, head, ofHosts) {
		if err != nil {
			if b.ctx.Err() == nil {
				b.log.Error("accounts do not follow the log", "error", err.Error())
			}
			return
		}
		b.due.change(func() {
			p := &b.due
			at := Address{c.Workspace, c.Aggregate}
			for r := range c.Recorded() {
				switch e := r.Event.(type) {
				case events.HostEnrolled:
					if old := last[at]; old != "" && old != e.PublicKey {
						p.void[old], p.due[old] = at.Key, c.Seq
					}
					last[at] = e.PublicKey
				case events.HostRevoked:
				default:
					continue // what is issued is of an account that is there
				}
				if id := last[at]; id != "" {
					p.due[id] = c.Seq
				} else if len(b.hosts.Get(at.Workspace, at.Key).RevokedWorkers) > 0 {
					p.due[b.accounts.rt] = c.Seq
				}
			}
			p.followed = c.Seq
		})
	}
}

// pushAccounts pushes what is due until the bus closes.
func (b *Bus) pushAccounts(s servers) {
	p := &b.due
	for b.ctx.Err() == nil {
		p.mu.Lock()
		due := make(map[string]uint64, len(p.due))
		for id, seq := range p.due {
			due[id] = seq
		}
		changed := p.changed()
		p.mu.Unlock()
		failed := false
		for id, seq := range due {
			if err := b.pushAccount(s, id); err != nil {
				if b.ctx.Err() == nil {
					b.log.Error("an account is not everywhere what the log says", "account", id, "error", err.Error())
				}
				failed = true
				continue
			}
			p.change(func() {
				if p.due[id] == seq {
					delete(p.due, id)
				}
			})
		}
		switch {
		case failed:
			select {
			case <-b.ctx.Done():
			case <-time.After(firstRetry):
			}
		case len(due) == 0:
			select {
			case <-b.ctx.Done():
			case <-changed:
			}
		}
	}
}

// pushAccount pushes one account as it is now.
func (b *Bus) pushAccount(s servers, id string) error {
	b.due.mu.Lock()
	name, void := b.due.void[id]
	b.due.mu.Unlock()
	var token string
	var err error
	if void {
		token, err = b.accounts.sign(b.accounts.voidClaims(id, name))
	} else {
		token, err = b.account(id)
	}
	if err != nil || token == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, accountPatience)
	defer cancel()
	return s.push(ctx, id, token)
}

// resolver answers the embedded server: accounts are derived from the log when
// they are asked for, and nothing of them is stored.
type resolver struct {
	bus    *Bus
	loaded chan struct{} // closed when the log is folded

	mu      sync.Mutex
	started bool
	waiting int // logins
	given   map[string]given
}

// given is the token of an account that the server has, and when it asked.
type given struct {
	token string
	at    time.Time
}

func newResolver(b *Bus) *resolver {
	return &resolver{bus: b, loaded: make(chan struct{}), given: make(map[string]given)}
}

// serve says that the server listens.
func (r *resolver) serve() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = true
}

// fetchPatience is how long who logs in waits for the log to be folded. The
// server ends such a login earlier, and says so; a refusal would make clients
// give up for ever.
const fetchPatience = 10 * time.Second

// Fetch is the server's question for an account.
func (r *resolver) Fetch(id string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// At its own start the server asks for what it finds on the disk.
	if a := r.bus.accounts; r.started && id != a.rt && id != a.sys {
		r.waiting++
		r.mu.Unlock()
		select {
		case <-r.loaded:
		case <-r.bus.ctx.Done():
		case <-time.After(fetchPatience):
		}
		r.mu.Lock()
		r.waiting--
	}
	token, err := r.bus.account(id)
	if err == nil && token == "" {
		return "", server.ErrMissingAccount
	}
	r.given[id] = given{token, time.Now()}
	return token, err
}

// The rest of what a server wants of its resolver.
func (r *resolver) Store(string, string) error { return errors.New("accounts come from the log") }
func (r *resolver) IsReadOnly() bool           { return true }
func (r *resolver) IsTrackingUpdate() bool     { return true }
func (r *resolver) Start(*server.Server) error { return nil }
func (r *resolver) Reload() error              { return nil }
func (r *resolver) Close()                     {}

// registration is how long the server may take from the answer of Fetch until it
// has the account.
const registration = 250 * time.Millisecond

// push changes an account that the server has; another one it will ask for. What
// is void is cut before push returns.
func (r *resolver) push(_ context.Context, id, token string) error {
	r.mu.Lock()
	has, ok := r.given[id]
	r.mu.Unlock()
	// A login that asked just before may put older claims over the new ones.
	late := id != r.bus.accounts.rt && time.Since(has.at) < registration
	if !ok || !late && sameClaims(has.token, token) {
		return nil
	}
	claims, err := jwt.DecodeAccountClaims(token)
	if err != nil {
		return err
	}
	update := func() error {
		account, err := r.bus.server.LookupAccount(id)
		if err == nil {
			r.bus.server.UpdateAccountClaims(account, claims)
		}
		return err
	}
	if err := update(); err != nil {
		return err
	}
	if late {
		select {
		case <-time.After(registration):
		case <-r.bus.ctx.Done():
			return r.bus.ctx.Err()
		}
		if err := update(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given[id] = given{token, has.at}
	return nil
}
