package bus

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/host"
)

// Principals with a meaning of their own; nobody is enrolled under their names.
const (
	// Local is the principal of whoever can read the home: the command line.
	Local = "local"
	// Runtime is who acts when nobody asked.
	Runtime = "runtime"
)

// logAlias is the prefix under which auditors reach the log's API: every account
// has its own $JS.API import, which would answer first.
const logAlias = "gatebus.log.api."

// workspaceTag is the tag of a user that says for which workspace it is.
const workspaceTag = "workspace:"

// rights are the methods that an account of the role imports, with "." for "/".
// They are its rights: the server enforces them, whatever a client says. bus.info
// is in each, so that who asks can tell a method that is not its role's from a
// bus without a runtime. A worker has no account and imports nothing.
var rights = map[string][]string{
	host.RoleHost:     {"tool.>", "turn.>", "session.>", "mcp.list", "mcp.server.details", "notifications.list", "bus.info"},
	host.RoleOperator: {"tool.>", "turn.>", "session.>", "mcp.>", "approvals.>", "grant.>", "host.>", "policy.>", "secret.>", "core.>", "review.>", "audit.>", "notifications.list", "bus.>"},
	host.RoleAuditor:  {"audit.>", "mcp.list", "mcp.server.details", "grant.list", "host.list", "policy.show", "policy.explain", "notifications.list", "bus.info"},
}

// The permissions of a worker inside of the runtime's account: it appends to the
// log and serves commands, and can neither delete, purge or change a stream, nor
// ask in the name of a principal, nor make a consumer of the jobs. It can make
// consumers of the log, so it is trusted code.
var (
	workerPublish = []string{
		eventSubjects, jobSubjects, "gatebus.*.conn.>", "gatebus.*.ntf.>", "_R_.>", "_INBOX.>",
		"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET." + eventStream,
		"$JS.API.CONSUMER.CREATE." + eventStream + ".>", "$JS.API.CONSUMER.MSG.NEXT." + eventStream + ".>",
		"$JS.API.CONSUMER.INFO." + eventStream + ".>", "$JS.API.CONSUMER.DELETE." + eventStream + ".>",
		"$JS.API.CONSUMER.CREATE.OBJ_" + blobBucket + ".>", "$JS.API.CONSUMER.DELETE.OBJ_" + blobBucket + ".>",
		"$JS.API.CONSUMER.INFO." + jobStream + ".*", "$JS.API.CONSUMER.MSG.NEXT." + jobStream + ".>",
		"$JS.ACK." + jobStream + ".>", "$JS.FC.>", "$KV." + leaseBucket + ".>", "$O." + blobBucket + ".>",
	}
	workerSubscribe = []string{"gatebus.*.cmd.*.>", "gatebus.*.conn.>", "gatebus.*.ntf.>", "_INBOX.{{name()}}.>"}
)

// always is a moment behind every credential: what is revoked by it is void
// whenever it was issued.
var always = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)

// accounts are the keys of a home and what they sign: operator mode, one account
// for each principal with one role, whose imports are its rights. Accounts are a
// function of the log (host.State): nothing secret is kept for each, because one
// key of a role signs the credentials of all its accounts.
type accounts struct {
	operator      *jwt.OperatorClaims
	operatorToken string
	signer        nkeys.KeyPair            // of accounts
	runtime       nkeys.KeyPair            // of the runtime's users and of activations
	system        nkeys.KeyPair            // of users that tell servers about accounts
	roles         map[string]nkeys.KeyPair // of the users of each role
	rt, sys       string                   // account ids
}

func newAccounts(keys keyring) (*accounts, error) {
	a := &accounts{roles: make(map[string]nkeys.KeyPair)}
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
	if a.system, err = keys.pair("system-signing", nkeys.PrefixByteAccount); err != nil {
		return nil, err
	}
	for _, role := range []string{host.RoleHost, host.RoleOperator, host.RoleAuditor, host.RoleWorker} {
		if a.roles[role], err = keys.pair("role-"+role, nkeys.PrefixByteAccount); err != nil {
			return nil, err
		}
	}
	for name, id := range map[string]*string{"runtime": &a.rt, "system": &a.sys} {
		pub, err := keys.secret(name+".account", func() ([]byte, error) {
			id, err := newAccountID()
			return []byte(id), err
		})
		if err == nil && !nkeys.IsValidPublicAccountKey(string(pub)) {
			// Else the server would not start, or would look for the log elsewhere.
			err = damagedKey(name + ".account")
		}
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
	a.operator, err = jwt.DecodeOperatorClaims(a.operatorToken)
	return a, err
}

// newAccountID is the id of a new account. Its seed is never needed.
func newAccountID() (string, error) {
	kp, err := nkeys.CreateAccount()
	if err != nil {
		return "", err
	}
	return kp.PublicKey()
}

// systemClaims are those of the account in which servers talk about themselves.
func (a *accounts) systemClaims() *jwt.AccountClaims {
	c := jwt.NewAccountClaims(a.sys)
	c.Name = "SYS"
	c.SigningKeys.Add(public(a.system))
	return c
}

// runtimeClaims are those of the runtime's account, which owns the streams and
// exports what principals may import. It lets workers in, but for those with
// revoked keys. This account is changed when a worker is revoked and else never:
// a server then loses the answers under way, and from then on those that take
// longer than two minutes (it sets the threshold of an export only when it first
// sees the account).
func (a *accounts) runtimeClaims(revoked []string) *jwt.AccountClaims {
	c := jwt.NewAccountClaims(a.rt)
	c.Name = "RT"
	c.SigningKeys.Add(public(a.runtime))
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = public(a.roles[host.RoleWorker]), host.RoleWorker
	scope.Template.Pub.Allow.Add(workerPublish...)
	scope.Template.Sub.Allow.Add(workerSubscribe...)
	c.SigningKeys.AddScopedSigner(scope)
	for _, key := range revoked {
		c.RevokeAt(key, always)
	}
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	// One export for all commands: with several, an answer could enter another as
	// a command. The answer of a call may wait for a person (decision 17).
	c.Exports.Add(
		&jwt.Export{Name: "commands", Subject: "gatebus.*.cmd.*.>", Type: jwt.Service, TokenReq: true, ResponseType: jwt.ResponseTypeSingleton, ResponseThreshold: 24 * time.Hour},
		&jwt.Export{Name: "notifications", Subject: "gatebus.*.ntf.>", Type: jwt.Stream, TokenReq: true},
		&jwt.Export{Name: "log", Subject: "$JS.API.DIRECT.GET." + eventStream, Type: jwt.Service, TokenReq: true, ResponseType: jwt.ResponseTypeStream},
		&jwt.Export{Name: "log info", Subject: "$JS.API.STREAM.INFO." + eventStream, Type: jwt.Service, TokenReq: true},
	)
	return c
}

// voidClaims are those of an account that nobody may use any more. An account is
// made void and never deleted: a server of a cluster that was away would bring it
// back.
func (a *accounts) voidClaims(id, principal string) *jwt.AccountClaims {
	c := jwt.NewAccountClaims(id)
	c.Name = principal
	c.Tags.Add(a.tag())
	c.Limits.Conn = 0
	c.RevokeAt(jwt.All, always)
	return c
}

// principalClaims are those of the account of a principal.
func (a *accounts) principalClaims(workspace, principal string, s host.State) (*jwt.AccountClaims, error) {
	if authority.CheckPrincipal(principal) != nil || !ValidName(workspace) {
		return nil, fmt.Errorf("no account for principal %q, workspace %q", principal, workspace)
	}
	id := s.Account
	if s.Revoked {
		return a.voidClaims(id, principal), nil
	}
	if rights[s.Role] == nil {
		return nil, fmt.Errorf("no account for role %q", s.Role)
	}
	c := jwt.NewAccountClaims(id)
	c.Name = principal
	c.Tags.Add(a.tag())
	c.Limits.NatsLimits = jwt.NatsLimits{Subs: 4096, Data: jwt.NoLimit, Payload: 2 << 20} // arguments of 1 MiB and what is around them
	c.Limits.AccountLimits = jwt.AccountLimits{Imports: jwt.NoLimit, WildcardExports: true, Conn: 32, DisallowBearer: true}
	for _, key := range s.RevokedKeys {
		c.RevokeAt(key, always)
	}

	var err error
	add := func(subject, local string, kind jwt.ExportType) {
		if err != nil {
			return
		}
		act := jwt.NewActivationClaims(id)
		act.ImportSubject, act.ImportType, act.IssuerAccount = jwt.Subject(subject), kind, a.rt
		var token string
		if token, err = act.Encode(a.runtime); err == nil {
			c.Imports.Add(&jwt.Import{Name: subject, Subject: jwt.Subject(subject), LocalSubject: jwt.RenamingSubject(local), Account: a.rt, Token: token, Type: kind})
		}
	}
	for _, method := range rights[s.Role] {
		add(commandSubject(workspace, principal, method), "", jwt.Service)
	}
	add(notificationSubject(workspace, principal, ">"), "", jwt.Stream)

	scope := jwt.NewUserScope()
	scope.Key, scope.Role = public(a.roles[s.Role]), s.Role
	scope.Template.Pub.Allow.Add(commandSubject(workspace, "{{account-name()}}", ">"))
	scope.Template.Sub.Allow.Add("_INBOX.>", notificationSubject(workspace, "{{account-name()}}", ">"))
	scope.Template.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	if s.Role == host.RoleAuditor {
		for _, api := range []string{"DIRECT.GET.", "STREAM.INFO."} {
			add("$JS.API."+api+eventStream, logAlias+api+eventStream, jwt.Service)
			scope.Template.Pub.Allow.Add(logAlias + api + eventStream)
		}
	}
	c.SigningKeys.AddScopedSigner(scope)
	return c, err
}

// tag marks the accounts that are derived from this bus's log: on a cluster
// there may be others.
func (a *accounts) tag() string { return "gatebus:" + a.rt }

// sign is the token of the claims of an account.
func (a *accounts) sign(c *jwt.AccountClaims) (string, error) { return c.Encode(a.signer) }

// sameClaims reports whether two tokens say the same of an account, whenever
// they were signed.
func sameClaims(x, y string) bool {
	said := func(token string) []byte {
		c, err := jwt.DecodeAccountClaims(token)
		if err != nil {
			return nil
		}
		c.ID, c.IssuedAt = "", 0
		for _, i := range c.Imports {
			if act, err := jwt.DecodeActivationClaims(i.Token); err == nil {
				act.ID, act.IssuedAt = "", 0
				b, _ := json.Marshal(act) // texts and numbers
				i.Token = string(b)
			}
		}
		b, _ := json.Marshal(c)
		return b
	}
	a := said(x)
	return a != nil && slices.Equal(a, said(y))
}

// principalUser signs a credential of a principal, or of a worker, which has no
// account of its own.
func (a *accounts) principalUser(i Issue, account, publicKey string) (token string, err error) {
	key := a.roles[i.Role]
	if key == nil || authority.CheckPrincipal(i.Principal) != nil || !ValidName(i.Workspace) {
		return "", fmt.Errorf("no credential for principal %q, role %q, workspace %q", i.Principal, i.Role, i.Workspace)
	}
	if i.Role == host.RoleWorker {
		account = a.rt
	}
	c := jwt.NewUserClaims(publicKey)
	c.Name, c.IssuerAccount = i.Principal, account
	c.SetScoped(true)
	c.Tags = append(c.Tags, workspaceTag+i.Workspace) // Add would make it lower case
	if !i.Expires.IsZero() {
		c.Expires = i.Expires.Unix()
	}
	return c.Encode(key)
}

// runtimeUser makes the creds file of the runtime's own user, for one kind of
// connection.
func (a *accounts) runtimeUser(kind string) ([]byte, error) {
	return ownUser(a.rt, a.runtime, func(c *jwt.UserClaims) { c.AllowedConnectionTypes.Add(kind) })
}

// systemUser makes the creds file of a user that tells servers about accounts.
func (a *accounts) systemUser() ([]byte, error) {
	return ownUser(a.sys, a.system, func(*jwt.UserClaims) {})
}

// ownUser makes a user that lives as long as this process.
func ownUser(account string, key nkeys.KeyPair, limit func(*jwt.UserClaims)) ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	c := jwt.NewUserClaims(public(pair))
	c.Name, c.IssuerAccount = Runtime, account
	limit(c)
	token, err := c.Encode(key)
	if err != nil {
		return nil, err
	}
	return credsFile(token, pair)
}

// credsFile is the text of a creds file.
func credsFile(token string, pair nkeys.KeyPair) ([]byte, error) {
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}
