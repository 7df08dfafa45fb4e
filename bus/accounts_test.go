package bus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
)

// revoke makes a credential void, or all of a principal, as its handler does.
func (b *testBus) revoke(t testing.TB, principal, credential string) {
	t.Helper()
	d, err := b.hosts.Dispatch(t.Context(), "default", principal, Meta{}, host.Revoke{Token: credential})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AccountsSettled(t.Context(), d.Seq); err != nil {
		t.Fatal(err)
	}
}

// cut fails unless the server ends a connection soon.
func cut(t testing.TB, nc *nats.Conn) {
	t.Helper()
	for range 100 {
		if !nc.IsConnected() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a revoked credential is still connected after a second")
}

// out fails unless credentials are refused.
func (b *testBus) out(t testing.TB, what string, creds []byte) {
	t.Helper()
	if nc, err := b.try(creds); err == nil {
		nc.Close()
		t.Errorf("%s: let in", what)
	}
}

// signed is a creds file of a user that somebody signed by hand.
func signed(t testing.TB, key nkeys.KeyPair, account, name string, change func(*jwt.UserClaims)) []byte {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	c := jwt.NewUserClaims(public(pair))
	c.Name, c.IssuerAccount = name, account
	change(c)
	token, err := c.Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := credsFile(token, pair)
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

func TestCredentialsThatAreNotOursAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	elsewhere := open(t, Options{Listen: "127.0.0.1:0"})
	foreign := elsewhere.enrolled(t, "alice", host.RoleHost)
	runtimes, err := b.accounts.runtimeUser(jwt.ConnectionTypeInProcess)
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := b.enrolled(t, "alice", host.RoleHost), b.enrolled(t, "bob", host.RoleHost)
	account := b.accountOf("alice")
	unknown, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	scoped := func(c *jwt.UserClaims) { c.SetScoped(true) }
	token, err := jwt.ParseDecoratedJWT(alice)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := jwt.ParseDecoratedUserNKey(bob)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect(b.URL(), nats.UserJWTAndSeed(token, string(seed))); err == nil {
		nc.Close()
		t.Error("alice's token with bob's seed: let in")
	}
	for name, creds := range map[string][]byte{
		"of another home":                 foreign,
		"the runtime's over a socket":     runtimes,
		"a host's, by the operators' key": signed(t, b.accounts.roles[host.RoleOperator], account, "alice", scoped),
		"a host's, by the workers' key":   signed(t, b.accounts.roles[host.RoleWorker], account, "alice", scoped),
		"the runtime's, by the hosts'":    signed(t, b.accounts.roles[host.RoleHost], b.accounts.rt, "alice", scoped),
		"the system's, by the hosts'":     signed(t, b.accounts.roles[host.RoleHost], b.accounts.sys, "alice", scoped),
		"permissions in the token":        signed(t, b.accounts.roles[host.RoleHost], account, "alice", func(c *jwt.UserClaims) { c.Pub.Allow.Add(">") }),
		"not scoped":                      signed(t, b.accounts.roles[host.RoleHost], account, "alice", func(*jwt.UserClaims) {}),
		"an unknown signer":               signed(t, unknown, account, "alice", scoped),
		"expired": signed(t, b.accounts.roles[host.RoleHost], account, "alice", func(c *jwt.UserClaims) {
			scoped(c)
			c.Expires = time.Now().Add(-time.Second).Unix()
		}),
		"an account that nobody has": signed(t, b.accounts.roles[host.RoleHost], public(unknown), "alice", scoped),
	} {
		b.out(t, name, creds)
	}
	if nc, err := nats.Connect(b.URL()); err == nil {
		nc.Close()
		t.Error("without credentials: let in")
	}
	b.as(t, alice)
	b.as(t, bob)
}

// What a credential is asked for with is looked at before anything is signed: a
// principal named "*" would be everybody.
func TestNothingIsSignedForWhatIsNoPrincipal(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	good := Issue{Workspace: "default", Principal: "ana", Role: host.RoleHost}
	for field, values := range map[string][]string{
		"name":       {"*", ">", "a.b", "", "a b", "a\tb", "-a", strings.Repeat("x", 65), Local, Runtime},
		"role":       {"", "root", "HOST"},
		"workspace":  {"*", ">", "a.b", "", "a b"},
		"public_key": {"U", "ana", "AA" + strings.Repeat("B", 54), strings.Repeat("U", 56)},
	} {
		for _, v := range values {
			i := good
			switch field {
			case "name":
				i.Principal = v
			case "role":
				i.Role = v
			case "workspace":
				i.Workspace = v
			case "public_key":
				i.PublicKey = v
			}
			_, err := b.Issue(t.Context(), Meta{}, i)
			wantKind(t, err, fault.InvalidInput)
			if err != nil && !strings.Contains(err.Error(), field+":") {
				t.Errorf("%s %q: %v", field, v, err)
			}
		}
	}
	late := good
	late.Expires = time.Now().Add(-time.Minute)
	_, err := b.Issue(t.Context(), Meta{}, late)
	wantKind(t, err, fault.InvalidInput)
	if n := b.Head(); n != 0 {
		t.Errorf("%d commits", n)
	}
	// And again where it would be signed.
	for _, name := range []string{"*", ">", "a.b"} {
		if _, err := b.accounts.principalClaims("default", name, host.State{Role: host.RoleHost}); err == nil {
			t.Errorf("an account for %q", name)
		}
		if _, err := b.accounts.principalUser(Issue{Workspace: "default", Principal: name, Role: host.RoleHost}, b.accounts.rt, ""); err == nil {
			t.Errorf("a user for %q", name)
		}
	}
}

func TestPrincipalKeepsRoleAndKeyIsIssuedOnce(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	mine := Issue{Workspace: "default", Principal: "ana", Role: host.RoleHost, PublicKey: public(pair)}
	command := Meta{Command: "01JZZZZZZZZZZZZZZZZZZZZZZZ"}
	c, err := b.Issue(t.Context(), command, mine)
	if err != nil || c.Text != nil || c.JWT == "" {
		t.Fatalf("%+v %v", c, err)
	}
	creds, err := credsFile(c.JWT, pair)
	if err != nil {
		t.Fatal(err)
	}
	b.as(t, creds)
	for name, i := range map[string]Issue{
		"the same key":  mine,
		"another role":  {Workspace: "default", Principal: "ana", Role: host.RoleOperator},
		"a worker":      {Workspace: "default", Principal: "ana", Role: host.RoleWorker},
		"another place": {Workspace: "other", Principal: "ana", Role: host.RoleOperator, PublicKey: ""},
	} {
		if _, err := b.Issue(t.Context(), Meta{}, i); name != "another place" {
			if wantKind(t, err, fault.Conflict); err == nil {
				t.Error(name)
			}
		} else if err != nil { // who has the name in another workspace is somebody else
			t.Error(err)
		}
	}
	// The command is not done twice, and its credential not given out twice.
	again := Issue{Workspace: "default", Principal: "ana", Role: host.RoleHost}
	_, err = b.Issue(t.Context(), command, again)
	wantKind(t, err, fault.Conflict)
}

// A credential that is revoked is cut at once wherever it is connected, and out
// for good; the others of the principal stay.
func TestRevokedCredentialIsCutAndStaysOut(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) { return "reached", nil })
	old, next := b.issued(t, "ana", host.RoleHost), b.issued(t, "ana", host.RoleHost)
	bob := b.as(t, b.enrolled(t, "bob", host.RoleHost))
	oldConn, nextConn := b.as(t, old.Text), b.as(t, next.Text)

	b.revoke(t, "ana", old.ID)
	cut(t, oldConn)
	b.out(t, "the revoked credential", old.Text)
	if got, e := request(t, nextConn, "ana", "tool/call", ""); e != nil || got != `"reached"` {
		t.Error("the other credential:", got, e)
	}

	b.revoke(t, "ana", "")
	cut(t, nextConn)
	b.out(t, "a credential of a revoked principal", next.Text)
	if got, e := request(t, bob, "bob", "tool/call", ""); e != nil || got != `"reached"` {
		t.Error("another principal:", got, e)
	}

	// Enrolled anew, in another role: what there was before is void.
	again := b.enrolled(t, "ana", host.RoleOperator)
	b.as(t, again)
	b.out(t, "a credential of the principal before", old.Text)
	b.out(t, "a credential of the principal before", next.Text)
}

// Whatever becomes of the credentials: the account itself lets nobody in, and has no
// rights.
func TestAccountOfARevokedPrincipalIsVoid(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.enrolled(t, "ana", host.RoleHost)
	for _, revoked := range []bool{false, true} {
		c, err := b.accounts.principalClaims("default", "ana", host.State{Account: b.accountOf("ana"), Role: host.RoleHost, Revoked: revoked})
		if err != nil {
			t.Fatal(err)
		}
		if void := c.Limits.Conn == 0 && len(c.Imports) == 0; void != revoked {
			t.Errorf("revoked %v: %d connections, %d imports", revoked, c.Limits.Conn, len(c.Imports))
		}
	}
}

func TestCommandOfARevokedPrincipalIsRefusedWhateverTheServerSays(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.enrolled(t, "ana", host.RoleHost)
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) { return "reached", nil })
	header := nats.Header{"Nats-Request-Info": {`{"acc":"` + b.accountOf("ana") + `"}`}}
	ask := func() string {
		t.Helper()
		m, err := b.nc.RequestMsg(&nats.Msg{Subject: commandSubject("default", "ana", "tool/call"), Header: header}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
	if got := ask(); got != `"reached"` {
		t.Fatal(got)
	}
	b.revoke(t, "ana", "")
	if got := ask(); !strings.Contains(got, string(fault.CapabilityDenied)) {
		t.Error(got)
	}
}

// The log is the truth: a bus that starts again, on a home with keys and log and
// nothing else, lets in whom the log lets in, and nobody else.
func TestAccountsAreThoseOfTheLogAfterARestart(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home, Listen: "127.0.0.1:0"})
	creds := map[string]Credential{"worker": b.issued(t, "w2", host.RoleWorker)}
	for name, role := range map[string]string{"host": host.RoleHost, "operator": host.RoleOperator, "auditor": host.RoleAuditor, "one": host.RoleHost, "all": host.RoleHost, "w1": host.RoleWorker} {
		creds[name] = b.issued(t, name, role)
	}
	local := func() []byte {
		t.Helper()
		if err := b.Announce(t.Context(), "r-1", nil); err != nil {
			t.Fatal(err)
		}
		text, err := b.LocalCredentials()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	creds["local"] = Credential{Text: local()}
	b.revoke(t, "one", creds["one"].ID)
	b.revoke(t, "all", "")
	b.revoke(t, "w1", "")
	in := []string{"host", "operator", "auditor", "worker"}
	look := func(when string, in ...string) {
		t.Helper()
		for name, c := range creds {
			nc, err := b.try(c.Text)
			if err == nil {
				nc.Close()
			}
			if want := slices.Contains(in, name); want != (err == nil) {
				t.Errorf("%s: %s: let in %v, want %v (%v)", when, name, err == nil, want, err)
			}
		}
	}
	look("before", append(in, "local")...)
	shut(t, b.Bus)
	entries, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{"keys", "bus"}, e.Name()) {
			if err := os.RemoveAll(filepath.Join(home, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	b = open(t, Options{Home: home, Listen: "127.0.0.1:0"})
	look("after", append(in, "local")...) // nobody has taken the name of local yet
	creds["new local"] = Credential{Text: local()}
	look("announced", append(in, "new local")...)
}

// A client of a bus that is killed comes back by itself, and one that knocks
// before the log is folded waits instead of being refused.
func TestWhoKnocksBeforeTheLogIsFoldedWaits(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home, Listen: "127.0.0.1:0"})
	good, bad := b.issued(t, "ana", host.RoleHost), b.issued(t, "bob", host.RoleHost)
	b.revoke(t, "bob", "")
	shut(t, b.Bus)
	early, err := Open(context.Background(), Options{Home: home, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, early) })
	b = &testBus{Bus: early}
	type knock struct {
		good bool
		err  error
	}
	knocks := make(chan knock)
	for _, c := range []Credential{good, bad} {
		go func() {
			nc, err := b.try(c.Text)
			if err == nil {
				nc.Close()
			}
			knocks <- knock{c.ID == good.ID, err}
		}()
	}
	for n := 0; n < 2; { // both have asked for their account
		early.resolver.mu.Lock()
		n = early.resolver.waiting
		early.resolver.mu.Unlock()
	}
	register(early)
	if err := early.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if k := <-knocks; k.good != (k.err == nil) {
			t.Errorf("good %v: %v", k.good, k.err)
		}
	}
}

func TestSameClaims(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	token := func(change func(*host.State)) string {
		t.Helper()
		s := host.State{Role: host.RoleAuditor, Account: b.accounts.sys, RevokedKeys: []string{"U1"}}
		change(&s)
		c, err := b.accounts.principalClaims("default", "ana", s)
		if err != nil {
			t.Fatal(err)
		}
		text, err := b.accounts.sign(c)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	now := token(func(*host.State) {})
	time.Sleep(1100 * time.Millisecond) // tokens know seconds
	if later := token(func(*host.State) {}); now == later || !sameClaims(now, later) {
		t.Error("the same claims, signed later, differ")
	}
	for name, other := range map[string]string{
		"another role":     token(func(s *host.State) { s.Role = host.RoleHost }),
		"another key":      token(func(s *host.State) { s.RevokedKeys = nil }),
		"revoked":          token(func(s *host.State) { s.Revoked = true }),
		"no token":         "x",
		"no token at all":  "",
		"another's tokens": token(func(s *host.State) { s.Account = b.accounts.rt }),
	} {
		if sameClaims(now, other) || sameClaims(other, now) {
			t.Error(name, "is the same")
		}
	}
}

// An auditor reads the log by direct get through its alias, and can do no more.
func TestAuditorReadsAndChangesNothing(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	b.do(t, "s1", Meta{}, "touch")
	nc := b.as(t, b.enrolled(t, "eve", host.RoleAuditor))
	js, err := jetstream.NewWithAPIPrefix(nc, strings.TrimSuffix(logAlias, "."))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, eventStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := events.Decode(1, m.Data); err != nil || c.Aggregate.Key != "s1" {
		t.Error(c, err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := s.DeleteMsg(short, 1); err == nil {
		t.Error("deleted a message")
	}
	if _, err := s.CreateConsumer(short, jetstream.ConsumerConfig{}); err == nil {
		t.Error("made a consumer")
	}
}

// A worker appends and serves, and can neither change what is stored nor speak
// for a principal.
func TestWorkerServesAndCannotSpeakForAPrincipal(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	b.do(t, "s1", Meta{}, "touch")
	creds := b.issued(t, "w1", host.RoleWorker)
	alice := b.as(t, b.enrolled(t, "alice", host.RoleHost))
	refused := make(chan error, 16)
	nc, err := nats.Connect(b.URL(), nats.UserCredentialBytes(creds.Text), nats.CustomInboxPrefix("_INBOX.w1"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sub, err := nc.QueueSubscribe(commandSubject("*", "*", "tool/call"), "gatebus", func(m *nats.Msg) { m.Respond([]byte("of the worker")) })
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if m, err := alice.Request(commandSubject("default", "alice", "tool/call"), nil, 10*time.Second); err != nil || string(m.Data) != "of the worker" {
		t.Error(m, err)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, eventStream)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetMsg(ctx, 1); err != nil {
		t.Error(err)
	}
	before := b.Head()
	for _, subject := range []string{
		commandSubject("default", "alice", "tool/call"), "$JS.API.STREAM.DELETE." + eventStream, "$JS.API.STREAM.PURGE." + eventStream,
		"$JS.API.STREAM.UPDATE." + eventStream, "$JS.API.STREAM.MSG.DELETE." + eventStream, "$JS.API.STREAM.CREATE.MINE",
		"$JS.API.CONSUMER.CREATE." + jobStream + ".mine", "$SYS.REQ.CLAIMS.UPDATE",
	} {
		if err := nc.PublishRequest(subject, nc.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
				t.Errorf("%s: %v", subject, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: not refused", subject)
		}
	}
	if b.Head() != before {
		t.Error("the log has grown")
	}
	b.revoke(t, "w1", creds.ID)
	cut(t, nc)
	b.out(t, "a revoked worker", creds.Text)
}

// The account that serves is not changed by those who come and go: answers under
// way arrive, also those that take longer than the server's own threshold.
func TestAnswersUnderWaySurviveEnrolments(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	began, release := make(chan struct{}), make(chan struct{})
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) {
		close(began)
		<-release
		return "late", nil
	})
	nc := b.as(t, b.enrolled(t, "ana", host.RoleHost))
	answer := make(chan string, 1)
	go func() {
		m, err := nc.Request(commandSubject("default", "ana", "tool/call"), nil, 10*time.Second)
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- string(m.Data)
	}()
	<-began
	b.issued(t, "w1", host.RoleWorker)
	b.issued(t, "bob", host.RoleHost)
	b.revoke(t, "bob", "")
	close(release)
	if got := <-answer; got != `"late"` {
		t.Error(got)
	}
	rt, err := b.server.LookupAccount(b.accounts.rt)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := rt.ServiceExportResponseThreshold("gatebus.*.cmd.*.>"); err != nil || d != 24*time.Hour {
		t.Errorf("answers may take %v (%v)", d, err)
	}
}
