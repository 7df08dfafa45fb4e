package bus

import (
	"context"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
)

// HasKeys reports whether this process can sign accounts and credentials of the
// bus: whoever runs it can, and who opened it with the keys of the home alone.
func (b *Bus) HasKeys() bool {
	return !b.opts.Worker && (b.opts.External == nil || len(b.opts.External.Creds) == 0)
}

// Issue says which credential is wanted: for whom, in which role, and until when
// (the zero time is for ever). PublicKey is that of a key pair whose seed somebody
// keeps; empty makes a pair.
type Issue struct {
	Workspace, Principal, Role string
	PublicKey                  string
	Expires                    time.Time
}

// Credential is what a principal logs in with.
type Credential struct {
	// ID names it in the log.
	ID string
	// Text is a creds file, the only place where its seed ever is; nil when the
	// public key was given.
	Text []byte
	// JWT is what goes with the seed that somebody keeps.
	JWT string
}

// Issue enrols a principal where needed, records a new credential of it, and
// returns when the credential works on every server. Errors: invalid_input for a
// name, role, key or time that cannot be; conflict for a principal of another role
// or workspace, and for a key or a command that was there before; otherwise those
// of Dispatch and AccountsSettled, after which the credential may be on record
// although nobody has it. Only a process with the keys of the home can do it.
func (b *Bus) Issue(ctx context.Context, m Meta, i Issue) (Credential, error) {
	const op = "issue credential"
	bad := func(text redact.EventText) (Credential, error) {
		return Credential{}, fault.New(op, fault.InvalidInput, text)
	}
	switch {
	case !Enrollable(i.Principal):
		return bad(redact.Static("name: 1 to 64 letters, digits, _, @ or -, and neither local nor runtime"))
	case b.accounts.roles[i.Role] == nil:
		return bad(redact.Static("role: host, operator, auditor or worker"))
	case !ValidName(i.Workspace):
		return bad(redact.Static("workspace: 1 to 64 letters, digits, _ or -"))
	case i.PublicKey != "" && !nkeys.IsValidPublicUserKey(i.PublicKey):
		return bad(redact.Static("public_key: the public key of a NATS user, which begins with U"))
	case !i.Expires.IsZero() && !i.Expires.After(time.Now()):
		return bad(redact.Static("expires: lies in the past"))
	}
	c := Credential{ID: "key-" + ulid.Make().String()}
	issue := host.IssueToken{Role: i.Role, Token: c.ID, PublicKey: i.PublicKey, Workspace: i.Workspace, Expires: i.Expires}
	var pair nkeys.KeyPair
	if i.PublicKey == "" {
		var err error
		if pair, err = nkeys.CreateUser(); err != nil {
			return c, err
		}
		issue.PublicKey = public(pair)
	}
	if i.Role != host.RoleWorker {
		var err error
		if issue.Account, err = newAccountID(); err != nil {
			return c, err
		}
	}
	d, err := b.hosts.Dispatch(ctx, i.Workspace, i.Principal, m, issue)
	if err != nil {
		return c, err
	}
	if d.Repeated {
		return c, fault.New(op, fault.Conflict, redact.Static("the credential of this command was given out already; ask for another"))
	}
	if c.JWT, err = b.accounts.principalUser(i, d.State.Account, issue.PublicKey); err != nil {
		return c, err
	}
	if pair != nil {
		if c.Text, err = credsFile(c.JWT, pair); err != nil {
			return c, err
		}
	}
	return c, b.AccountsSettled(ctx, d.Seq)
}

// Enrollable reports whether somebody may be enrolled under a name: it names a
// principal, is a token of a subject as it is, and is not reserved. A principal
// named "*" would be everybody.
func Enrollable(name string) bool {
	return authority.CheckPrincipal(name) == nil && name != Local && name != Runtime
}

// enrolLocal gives the principal "local" a new account and writes its credentials
// to the home. It makes those of an earlier start void.
func (b *Bus) enrolLocal(ctx context.Context, runtime string) error {
	i := Issue{Workspace: b.opts.Workspace, Principal: Local, Role: host.RoleOperator}
	id, err := newAccountID()
	if err != nil {
		return err
	}
	d, err := b.hosts.Dispatch(ctx, i.Workspace, Local, Meta{Correlation: runtime, Actor: Runtime, Principal: Local},
		host.Enrol{Role: i.Role, Account: id, Workspace: i.Workspace})
	if err != nil {
		return err
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	token, err := b.accounts.principalUser(i, id, public(pair))
	if err != nil {
		return err
	}
	creds, err := credsFile(token, pair)
	if err != nil {
		return err
	}
	if err := b.AccountsSettled(ctx, d.Seq); err != nil {
		return err
	}
	if err := disk.Replace(b.runFile("local.creds"), creds); err != nil {
		return fault.Wrap("write credentials", fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	return nil
}
