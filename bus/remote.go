package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
)

// remote is the servers of an external bus, which are told about accounts by a
// user of the system account. Each keeps the accounts that it was told.
type remote struct {
	bus *Bus
	nc  *nats.Conn

	mu     sync.Mutex
	seen   map[string]bool // ids of the servers that were ever heard of
	missed map[string]bool // ids of accounts that a server may not have
}

// openRemote connects to the servers as the system user.
func (b *Bus) openRemote() (*remote, error) {
	creds, err := b.accounts.systemUser()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(b.opts.External.URL, append(b.connection(), nats.UserCredentialBytes(creds), nats.Name("accounts"))...)
	if err != nil {
		return nil, err
	}
	r := &remote{bus: b, nc: nc, seen: make(map[string]bool), missed: make(map[string]bool)}
	// A server says its state when it starts. One that was away has old accounts
	// until the others have told it, so that it is told at once.
	_, err = nc.Subscribe("$SYS.SERVER.*.STATSZ", func(m *nats.Msg) {
		var about systemAnswer
		if json.Unmarshal(m.Data, &about) == nil && r.meet(about.Server.ID) {
			r.mu.Lock()
			missed := r.missed
			r.missed = make(map[string]bool)
			r.mu.Unlock()
			b.due.change(func() {
				for id := range missed {
					if b.due.due[id] == 0 {
						b.due.due[id] = b.due.followed
					}
				}
			})
		}
	})
	return r, err
}

// systemAnswer is what a server answers to the system account.
type systemAnswer struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Statsz struct {
		Active int `json:"active_servers"`
	} `json:"statsz"`
	Data  json.RawMessage `json:"data"`
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
}

// meet notes a server; true when it was never heard of.
func (r *remote) meet(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.seen[id] || id == ""
	r.seen[id] = true
	return !known
}

// quiet is how long a server that may be gone is waited for.
const quiet = 2 * time.Second

// push gives the account to all servers, and returns when each that is there has
// it. One that the others still count, and which answers nothing at all, is left
// behind after a while: it gets the account when it is there again.
func (r *remote) push(ctx context.Context, id, token string) error {
	answers := make(chan *nats.Msg, 64)
	inbox := r.nc.NewInbox()
	sub, err := r.nc.ChanSubscribe(inbox+".*", answers)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	ask := func() error {
		return errors.Join(r.nc.PublishRequest("$SYS.REQ.SERVER.PING", inbox+".ping", nil),
			r.nc.PublishRequest("$SYS.REQ.CLAIMS.UPDATE", inbox+".update", []byte(token)))
	}
	if err := ask(); err != nil {
		return err
	}
	there, has, active := make(map[string]bool), make(map[string]bool), 0
	last := time.NewTimer(quiet)
	defer last.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d servers have the account: %w", len(has), max(active, len(there)), ctx.Err())
		case <-last.C:
			if len(has) == 0 || len(has) < len(there) {
				if err := ask(); err != nil {
					return err
				}
				last.Reset(quiet)
				continue
			}
			r.bus.log.Warn("a server of the bus answers nothing; it gets a change of accounts when it is back", "servers", active, "answered", len(has))
			r.mu.Lock()
			r.missed[id] = true
			r.mu.Unlock()
			return nil
		case m := <-answers:
			var a systemAnswer
			if m.Header.Get("Status") == "503" {
				return nats.ErrNoResponders
			}
			if err := json.Unmarshal(m.Data, &a); err != nil || a.Server.ID == "" {
				return fmt.Errorf("a server answers %q: %w", m.Data, err)
			}
			if a.Error != nil {
				return fmt.Errorf("server %s does not take the account: %s", a.Server.ID, a.Error.Description)
			}
			r.meet(a.Server.ID)
			there[a.Server.ID] = true
			if m.Subject == inbox+".ping" {
				active = max(active, a.Statsz.Active)
			} else {
				has[a.Server.ID] = true
			}
			if active > 0 && len(has) >= active && len(has) == len(there) {
				return nil
			}
		}
	}
}

// account is the token of an account as some server has it, empty for none.
func (r *remote) account(ctx context.Context, id string) (string, error) {
	m, err := r.nc.RequestWithContext(ctx, "$SYS.REQ.ACCOUNT."+id+".CLAIMS.LOOKUP", nil)
	if err != nil {
		return "", err
	}
	return string(m.Data), nil
}

// accounts are the ids of all accounts that some server has.
func (r *remote) accounts(ctx context.Context) (ids []string, err error) {
	m, err := r.nc.RequestWithContext(ctx, "$SYS.REQ.CLAIMS.LIST", nil)
	if err != nil {
		return nil, err
	}
	var a systemAnswer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return nil, err
	}
	return ids, json.Unmarshal(a.Data, &ids)
}

// compare finds the accounts that the servers have otherwise than the log says: of
// an earlier release, of a push that did not end, of a principal that has another
// account now, or none; those are void, with the name of the principal.
func (r *remote) compare(ctx context.Context) (due []string, void map[string]string, err error) {
	ids, err := r.accounts(ctx)
	if err != nil {
		return nil, nil, err
	}
	// An account is in the log before any server has it.
	if err := r.bus.Sync(ctx); err != nil {
		return nil, nil, err
	}
	wanted := []string{r.bus.accounts.rt}
	for _, s := range r.bus.hosts.All() {
		if s.Account != "" {
			wanted = append(wanted, s.Account)
		}
	}
	for _, id := range wanted {
		has, err := r.account(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		token, err := r.bus.account(id)
		if err != nil {
			return nil, nil, err
		}
		if !sameClaims(has, token) {
			due = append(due, id)
		}
	}
	void = make(map[string]string)
	for _, id := range ids {
		if slices.Contains(wanted, id) {
			continue
		}
		token, err := r.account(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		claims, err := jwt.DecodeAccountClaims(token)
		if err == nil && claims.Tags.Contains(r.bus.accounts.tag()) && claims.Limits.Conn != 0 {
			due = append(due, id)
			void[id] = claims.Name
		}
	}
	return due, void, nil
}
