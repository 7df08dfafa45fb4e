package bus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Role is what a principal may do on the bus (decision 2). An account has one.
type Role string

// The roles of principals.
const (
	RoleHost     Role = "host"
	RoleOperator Role = "operator"
	RoleAuditor  Role = "auditor"
)

// Local is the principal of whoever can read the home: the command line.
const Local = "local"

// logAlias is the prefix under which auditors reach the log's API: every account
// has its own $JS.API import, which would answer first.
const logAlias = "gatebus.log.api."

// rights are the methods that an account of the role imports, with "." for "/".
// They are its rights: the server enforces them, whatever a client says.
var rights = map[Role][]string{
	RoleHost:     {"tool.>", "turn.>", "session.>", "mcp.list", "mcp.server.details", "notifications.list", "bus.info"},
	RoleOperator: {"tool.>", "turn.>", "session.>", "mcp.>", "approvals.>", "grant.>", "host.>", "policy.>", "core.>", "review.>", "audit.>", "notifications.list", "bus.>"},
	RoleAuditor:  {"audit.>", "mcp.list", "mcp.server.details", "grant.list", "host.list", "policy.show", "notifications.list", "bus.info"},
}

// keyring makes and keeps the keys of a home, one file each, 0600.
type keyring struct{ dir string }

// pair is the key pair of the name, made at the first use.
func (k keyring) pair(name string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	seed, err := k.secret(name+".nk", func() ([]byte, error) {
		kp, err := nkeys.CreatePair(prefix)
		if err != nil {
			return nil, err
		}
		return kp.Seed()
	})
	if err != nil {
		return nil, err
	}
	return nkeys.FromSeed(seed)
}

// secret is the content of a key file; made, synced and renamed into place when
// it is not there. Losing it can lose what it opens: the store of the log is
// named after the runtime's account.
func (k keyring) secret(name string, make func() ([]byte, error)) ([]byte, error) {
	path := filepath.Join(k.dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err := make()
		if err != nil {
			return nil, err
		}
		err = createFile(path, b)
		if !errors.Is(err, fs.ErrExist) {
			return b, err
		}
		info, err = os.Stat(path) // another process of the home was faster
	}
	if err != nil {
		return nil, err
	}
	if !ownerOnly(info) {
		return nil, fault.New("read key", fault.PermissionTooOpen, redact.Name("others may read the key file "+name))
	}
	return os.ReadFile(path)
}

// writeFile replaces a file as a whole: a reader sees the old or the new.
func writeFile(path string, data []byte) error { return placeFile(path, data, os.Rename) }

// createFile is writeFile for a file that must not be there; then the error is
// fs.ErrExist.
func createFile(path string, data []byte) error { return placeFile(path, data, os.Link) }

func placeFile(path string, data []byte, place func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// HomeKey is 32 random bytes that the processes of this home share under the
// name, made once (decision 6): argument digest, preview hash.
func (b *Bus) HomeKey(name string) ([]byte, error) {
	const op = "home key"
	if !ValidName(name) {
		return nil, fault.New(op, fault.Internal, redact.Name("no name of a key: "+name))
	}
	b.keyMu.Lock()
	defer b.keyMu.Unlock()
	key, err := b.keys.secret(name, func() ([]byte, error) {
		k := make([]byte, 32)
		_, err := rand.Read(k)
		return k, err
	})
	if err == nil && len(key) != 32 {
		err = fmt.Errorf("%d bytes", len(key))
	}
	if err != nil {
		return nil, asFault(op, fault.HomeNotWritable, redact.Static("a key of the home cannot be read"), err)
	}
	return key, nil
}

// accounts is who may do what on the bus: operator mode, one account for each
// principal with one role, whose imports are its rights. It is the server's
// resolver. Accounts of principals live in memory and are derived afresh at each
// start; nothing secret is kept for each, because one key of a role signs the
// credentials of all its accounts.
type accounts struct {
	keys          keyring
	operator      *jwt.OperatorClaims
	operatorToken string
	signer        nkeys.KeyPair // of accounts
	runtime       nkeys.KeyPair // of the runtime's users and of activations
	rt, sys       string        // account ids

	mu          sync.RWMutex
	tokens      map[string]string // account id to its token
	byPrincipal map[string]string // principal to account id
}

func newAccounts(keys keyring) (*accounts, error) {
	a := &accounts{keys: keys, tokens: make(map[string]string), byPrincipal: make(map[string]string)}
	operator, err := keys.pair("operator", nkeys.PrefixByteOperator)
	if err != nil {
		return nil, err
	}
	if a.signer, err = keys.pair("operator-signing", nkeys.PrefixByteOperator); err != nil {
		return nil, err
	}
	if a.runtime, err = keys.pair("runtime-signing", nkeys.PrefixByteAccount); err != nil {
		return nil, err
	}
	for name, id := range map[string]*string{"runtime": &a.rt, "system": &a.sys} {
		pub, err := keys.secret(name+".account", func() ([]byte, error) {
			kp, err := nkeys.CreateAccount()
			if err != nil {
				return nil, err
			}
			pub, err := kp.PublicKey()
			return []byte(pub), err
		})
		if err != nil {
			return nil, err
		}
		*id = string(pub)
	}
	a.operator = jwt.NewOperatorClaims(public(operator))
	a.operator.Name = "gatebus"
	a.operator.SigningKeys.Add(public(a.signer))
	a.operator.StrictSigningKeyUsage = true
	a.operator.SystemAccount = a.sys
	// The server wants the claims as a token carries them.
	if a.operatorToken, err = a.operator.Encode(operator); err != nil {
		return nil, err
	}
	if a.operator, err = jwt.DecodeOperatorClaims(a.operatorToken); err != nil {
		return nil, err
	}

	sys := jwt.NewAccountClaims(a.sys)
	sys.Name = "SYS"
	rt := jwt.NewAccountClaims(a.rt)
	rt.Name = "RT"
	rt.SigningKeys.Add(public(a.runtime))
	worker, err := a.roleKey(roleWorker)
	if err != nil {
		return nil, err
	}
	rt.SigningKeys.AddScopedSigner(workerScope(public(worker)))
	rt.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	// One export for all commands: with several, an answer could enter another as
	// a command. The answer of a call may wait for a person (decision 17).
	rt.Exports.Add(
		&jwt.Export{Name: "commands", Subject: "gatebus.*.cmd.*.>", Type: jwt.Service, TokenReq: true, ResponseType: jwt.ResponseTypeSingleton, ResponseThreshold: 24 * time.Hour},
		&jwt.Export{Name: "notifications", Subject: "gatebus.*.ntf.>", Type: jwt.Stream, TokenReq: true},
		&jwt.Export{Name: "log", Subject: "$JS.API.DIRECT.GET." + eventStream, Type: jwt.Service, TokenReq: true, ResponseType: jwt.ResponseTypeStream},
		&jwt.Export{Name: "log info", Subject: "$JS.API.STREAM.INFO." + eventStream, Type: jwt.Service, TokenReq: true},
	)
	return a, errors.Join(a.store(sys), a.store(rt))
}

// store signs the claims of an account and gives them to the server.
func (a *accounts) store(c *jwt.AccountClaims) error {
	token, err := c.Encode(a.signer)
	if err != nil {
		return err
	}
	return a.Store(c.Subject, token)
}

// enrol makes the account of a principal: at most one role, one workspace.
func (a *accounts) enrol(principal string, role Role, workspace string) error {
	if !ValidName(principal) || !ValidName(workspace) || rights[role] == nil {
		return fmt.Errorf("no account for principal %q, role %q, workspace %q", principal, role, workspace)
	}
	kp, err := nkeys.CreateAccount() // its seed is never needed again
	if err != nil {
		return err
	}
	c := jwt.NewAccountClaims(public(kp))
	c.Name = principal
	c.Limits.NatsLimits = jwt.NatsLimits{Subs: 4096, Data: jwt.NoLimit, Payload: 1 << 20}
	c.Limits.AccountLimits = jwt.AccountLimits{Imports: jwt.NoLimit, WildcardExports: true, Conn: 32, DisallowBearer: true}

	add := func(subject, local string, kind jwt.ExportType) {
		if err != nil {
			return
		}
		act := jwt.NewActivationClaims(c.Subject)
		act.ImportSubject, act.ImportType, act.IssuerAccount = jwt.Subject(subject), kind, a.rt
		var token string
		if token, err = act.Encode(a.runtime); err == nil {
			c.Imports.Add(&jwt.Import{Name: subject, Subject: jwt.Subject(subject), LocalSubject: jwt.RenamingSubject(local), Account: a.rt, Token: token, Type: kind})
		}
	}
	commands := commandSubject(workspace, principal, "")
	for _, method := range rights[role] {
		add(commands+method, "", jwt.Service)
	}
	add(notificationSubject(workspace, principal, ">"), "", jwt.Stream)

	key, keyErr := a.roleKey(role)
	if err = errors.Join(err, keyErr); err != nil {
		return err
	}
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = public(key), string(role)
	scope.Template.Pub.Allow.Add(commandSubject(workspace, "{{account-name()}}", ">"))
	scope.Template.Sub.Allow.Add("_INBOX.>", notificationSubject(workspace, "{{account-name()}}", ">"))
	scope.Template.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	if role == RoleAuditor {
		for _, api := range []string{"DIRECT.GET.", "STREAM.INFO."} {
			add("$JS.API."+api+eventStream, logAlias+api+eventStream, jwt.Service)
			scope.Template.Pub.Allow.Add(logAlias + api + eventStream)
		}
		if err != nil {
			return err
		}
	}
	c.SigningKeys.AddScopedSigner(scope)
	if err := a.store(c); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byPrincipal[principal] = c.Subject
	return nil
}

// roleKey signs the credentials of a role's principals.
func (a *accounts) roleKey(role Role) (nkeys.KeyPair, error) {
	return a.keys.pair("role-"+string(role), nkeys.PrefixByteAccount)
}

// credentials makes a user of an enrolled principal, as the text of a creds file.
func (a *accounts) credentials(principal string, role Role) ([]byte, error) {
	key, err := a.roleKey(role)
	if err != nil {
		return nil, err
	}
	return a.user(a.account(principal), principal, key, func(c *jwt.UserClaims) { c.SetScoped(true) })
}

// runtimeUser makes the runtime's own user, for the kinds of connections given.
func (a *accounts) runtimeUser(kinds ...string) ([]byte, error) {
	return a.user(a.rt, "runtime", a.runtime, func(c *jwt.UserClaims) {
		c.AllowedConnectionTypes.Add(kinds...)
	})
}

// workerUser makes a user for a worker process; its name must be a token.
func (a *accounts) workerUser(name string) ([]byte, error) {
	key, err := a.roleKey(roleWorker)
	if err != nil {
		return nil, err
	}
	return a.user(a.rt, name, key, func(c *jwt.UserClaims) { c.SetScoped(true) })
}

// WorkerCredentials makes the text of a creds file for a worker process of this
// name. It is for a bus that has the keys of its home.
func (b *Bus) WorkerCredentials(name string) ([]byte, error) { return b.accounts.workerUser(name) }

// roleWorker is no role of a principal: a worker is a user of the runtime's own
// account, which can do what the work needs and cannot change the log's streams.
const roleWorker Role = "worker"

// workerScope is what workers may do. A worker is trusted code: what it must not
// is delete, purge or change a stream, make consumers of the jobs, and command in
// the name of a principal.
func workerScope(key string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = key, string(roleWorker)
	scope.Template.Pub.Allow.Add(
		eventSubjects, jobSubjects, "gatebus.*.conn.>", "gatebus.*.ntf.>", "_R_.>", "_INBOX.>",
		"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET."+eventStream,
		"$JS.API.CONSUMER.CREATE."+eventStream+".>", "$JS.API.CONSUMER.MSG.NEXT."+eventStream+".>",
		"$JS.API.CONSUMER.INFO."+eventStream+".>", "$JS.API.CONSUMER.DELETE."+eventStream+".>",
		"$JS.API.CONSUMER.CREATE.OBJ_"+blobBucket+".>", "$JS.API.CONSUMER.DELETE.OBJ_"+blobBucket+".>",
		"$JS.API.CONSUMER.INFO."+jobStream+".*", "$JS.API.CONSUMER.MSG.NEXT."+jobStream+".>",
		"$JS.ACK."+jobStream+".>", "$JS.FC.>", "$KV."+leaseBucket+".>", "$O."+blobBucket+".>",
	)
	scope.Template.Sub.Allow.Add("gatebus.*.cmd.*.>", "gatebus.*.conn.>", "gatebus.*.ntf.>", "_INBOX.{{name()}}.>")
	return scope
}

func (a *accounts) user(account, name string, key nkeys.KeyPair, limit func(*jwt.UserClaims)) ([]byte, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	c := jwt.NewUserClaims(public(kp))
	c.Name, c.IssuerAccount = name, account
	limit(c)
	token, err := c.Encode(key)
	if err != nil {
		return nil, err
	}
	seed, err := kp.Seed()
	if err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}

// account is the id of the account of a principal, empty when there is none.
func (a *accounts) account(principal string) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.byPrincipal[principal]
}

// Fetch is the server's question for an account.
func (a *accounts) Fetch(id string) (string, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if token, ok := a.tokens[id]; ok {
		return token, nil
	}
	return "", server.ErrMissingAccount
}

// Store takes a signed account.
func (a *accounts) Store(id, token string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens[id] = token
	return nil
}

// The rest of what a server wants of its resolver.
func (a *accounts) IsReadOnly() bool           { return false }
func (a *accounts) IsTrackingUpdate() bool     { return true }
func (a *accounts) Start(*server.Server) error { return nil }
func (a *accounts) Reload() error              { return nil }
func (a *accounts) Close()                     {}

// public is the public half; a pair that has one cannot fail to say it.
func public(kp nkeys.KeyPair) string {
	pub, _ := kp.PublicKey()
	return pub
}
