package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

const (
	// refusal is how long what must not come is waited for; whether it came late is
	// looked at again at the end.
	refusal = 400 * time.Millisecond
	// answer is how long what must come may take.
	answer = 10 * time.Second
)

// never is an expectation that no stream fulfils: who gets its refusal has reached
// the stream, and has stored nothing.
var never = nats.Header{"Nats-Expected-Last-Sequence": {"18446744073709551615"}}

// attacker is one principal on the bus.
type attacker struct {
	name string
	nc   *nats.Conn

	mu     sync.Mutex
	denied map[string]chan struct{} // closed when the server refuses a subject
}

// login connects to one of the servers; nil when it is not let in.
func (b *bench) login(name string, server int, options ...nats.Option) (*attacker, error) {
	a := &attacker{name: name, denied: map[string]chan struct{}{}}
	options = append(options, nats.NoReconnect(), nats.Name(name), nats.Timeout(5*time.Second), nats.CustomInboxPrefix("_INBOX."+name),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for subject, refused := range a.denied {
				if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
					close(refused)
					delete(a.denied, subject)
				}
			}
		}))
	if file := b.creds[name]; file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	var err error
	a.nc, err = nats.Connect(b.urls[server%len(b.urls)], options...)
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) {
		return a, nil
	}
	return a, err
}

// refused is closed when the server refuses the subject.
func (a *attacker) refused(subject string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan struct{})
	a.denied[subject] = c
	return c
}

// ask sends a request with the reply subject, an own inbox if it is empty, and
// gives what comes there within the time; nil when it is refused.
func (a *attacker) ask(subject, reply string, header nats.Header, body string, wait time.Duration) *nats.Msg {
	if a.nc == nil {
		return nil
	}
	refused := a.refused(subject)
	inbox := a.nc.NewInbox()
	sub, err := a.nc.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer sub.Unsubscribe()
	if reply == "" {
		reply = inbox
	}
	if err := a.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: []byte(body)}); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	go func() {
		select {
		case <-refused:
			cancel()
		case <-ctx.Done():
		}
	}()
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil || m.Header.Get("Status") == "503" {
		return nil
	}
	return m
}

// hears subscribes, lets somebody send, and reports whether it came.
func (a *attacker) hears(subject string, wait time.Duration, send func()) bool {
	if a.nc == nil {
		return false
	}
	sub, err := a.nc.SubscribeSync(subject)
	if err != nil || a.nc.Flush() != nil {
		return false
	}
	defer sub.Unsubscribe()
	for deadline := time.Now().Add(wait); ; { // in a cluster a server hears of a subscription a moment later
		send()
		if _, err := sub.NextMsg(refusal / 2); err == nil {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// reached reports whether an answer of the store is one of the log's own account.
func reached(m *nats.Msg) bool {
	return m != nil && len(m.Data) > 0 && !strings.Contains(string(m.Data), "not enabled for account")
}

// served reports whether a method answered, and not that it is for others.
func served(m *nats.Msg) bool {
	return m != nil && !strings.Contains(string(m.Data), "role_denied") && !strings.Contains(string(m.Data), "the account is not the principal's")
}

// watch is what must not happen: everything that somebody else's connection sees.
type watch struct {
	mu   sync.Mutex
	seen []string
}

func (w *watch) note(m *nats.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, m.Subject+" "+string(m.Data))
}

// has reports whether a text was seen.
func (w *watch) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if strings.Contains(s, text) {
			return true
		}
	}
	return false
}

// family is a family of subjects: what an attack on it is, and who may.
type family struct {
	name string
	may  string // names, separated by blanks
	try  func(a *attacker, wait time.Duration) bool
}

// matrix lets everybody try everything.
func (b *bench) matrix(ctx context.Context) error {
	bob, err := b.login("bob", 1)
	if err != nil || bob.nc == nil {
		return fmt.Errorf("bob is not let in: %w", err)
	}
	defer bob.nc.Close()
	spy, err := b.login("spy", 2)
	if err != nil || spy.nc == nil {
		return fmt.Errorf("spy is not let in: %w", err)
	}
	defer spy.nc.Close()
	var victim, runtime watch // what bob got, what came into the runtime's account
	for _, s := range []struct {
		nc      *nats.Conn
		w       *watch
		subject string
	}{{bob.nc, &victim, "_INBOX.>"}, {bob.nc, &victim, "gatebus.default.ntf.bob.>"}, {spy.nc, &runtime, "gatebus.*.cmd.*.>"}, {spy.nc, &runtime, "gatebus.*.conn.>"}} {
		if _, err := s.nc.Subscribe(s.subject, s.w.note); err != nil {
			return err
		}
		if err := s.nc.Flush(); err != nil {
			return err
		}
	}
	if bob.ask("gatebus.default.cmd.bob.bus.info", "", nil, "{}", answer) == nil {
		return errors.New("bob is not served")
	}
	before, config, err := b.state(ctx, spy)
	if err != nil {
		return err
	}

	cmd := func(who, method string) string { return "gatebus.default.cmd." + who + "." + method }
	tag := func(a *attacker, what string) string { return "forged-by-" + a.name + "-" + what }
	// A command with a reply subject of somebody else: its own method is served, so
	// that an answer goes there.
	trick := func(a *attacker, reply string) {
		a.ask(cmd(a.name, "bus.info"), reply, nil, "{}", refusal)
		a.ask("gatebus.log.api.DIRECT.GET.GATEBUS_EVENTS", reply, nil, `{"seq":1}`, refusal)
	}
	none := ""
	families := []family{
		{"own command of a host", "alice olga", func(a *attacker, w time.Duration) bool {
			return served(a.ask(cmd(a.name, "session.end"), "", nil, `{"session":"s-none"}`, w))
		}},
		{"own command of an operator", "olga", func(a *attacker, w time.Duration) bool {
			return served(a.ask(cmd(a.name, "approvals.list"), "", nil, "{}", w))
		}},
		{"own command of an auditor", "olga audra", func(a *attacker, w time.Duration) bool {
			return served(a.ask(cmd(a.name, "audit.list"), "", nil, `{"limit":1}`, w))
		}},
		{"command of another principal", none, func(a *attacker, w time.Duration) bool {
			got := served(a.ask(cmd("bob", "session.end"), "", nil, tag(a, "cmd"), w))
			return served(a.ask(cmd("*", "session.end"), "", nil, tag(a, "cmd"), w)) || got || runtime.has(tag(a, "cmd"))
		}},
		{"command in another workspace", none, func(a *attacker, w time.Duration) bool {
			return served(a.ask("gatebus.other.cmd."+a.name+".bus.info", "", nil, tag(a, "ws"), w)) || runtime.has(tag(a, "ws"))
		}},
		{"evt publish", "wilma", func(a *attacker, w time.Duration) bool {
			if a.name != "wilma" { // whose commits would be real
				a.ask("gatebus.default.evt.session.00", "", nil, tag(a, "evt"), refusal)
			}
			return reached(a.ask("gatebus.default.evt.session.00", "", never, "x", w))
		}},
		{"evt by the reply subject", none, func(a *attacker, _ time.Duration) bool {
			trick(a, "gatebus.default.evt.session.00")
			return false // the log is compared
		}},
		{"cmd by the reply subject", none, func(a *attacker, _ time.Duration) bool {
			trick(a, cmd("bob", "tool.call"))
			trick(a, cmd(a.name, "approvals.decide"))
			return runtime.has(cmd("bob", "tool.call")) || runtime.has(cmd(a.name, "approvals.decide"))
		}},
		{"stream delete by the reply subject", none, func(a *attacker, _ time.Duration) bool {
			trick(a, "$JS.API.STREAM.DELETE.GATEBUS_EVENTS")
			return false // the streams are compared
		}},
	}
	for _, api := range []struct{ name, request, may string }{
		{"stream delete", "STREAM.DELETE.GATEBUS_EVENTS", none}, {"stream purge", "STREAM.PURGE.GATEBUS_EVENTS", none},
		{"stream limits", "STREAM.UPDATE.GATEBUS_EVENTS", none}, {"message delete", "STREAM.MSG.DELETE.GATEBUS_EVENTS", none},
		{"stream create", "STREAM.CREATE.FORGED", none}, {"consumer of the jobs", "CONSUMER.CREATE.GATEBUS_JOBS.forged", none},
		{"consumer of the log", "CONSUMER.CREATE.GATEBUS_EVENTS.forged", "wilma"}, {"stream info", "STREAM.INFO.GATEBUS_EVENTS", "audra wilma"},
	} {
		families = append(families, family{api.name, api.may, func(a *attacker, w time.Duration) bool {
			// A worker's request must not do what it asks for; the others' must not arrive.
			body := map[string]string{"STREAM.UPDATE.GATEBUS_EVENTS": `{"name":"GATEBUS_EVENTS","subjects":["gatebus.*.evt.>"],"max_age":1000000000}`,
				"STREAM.MSG.DELETE.GATEBUS_EVENTS": `{"seq":1}`, "STREAM.CREATE.FORGED": `{"name":"FORGED","subjects":["forged"]}`}[api.request]
			return reached(a.ask("$JS.API."+api.request, "", nil, body, w)) || reached(a.ask("gatebus.log.api."+api.request, "", nil, body, min(w, refusal)))
		}})
	}
	stored := func(m *nats.Msg) bool { return m != nil && m.Header.Get("Nats-Sequence") != "" }
	families = append(families, []family{
		{"direct get", "audra wilma", func(a *attacker, w time.Duration) bool {
			alias := stored(a.ask("gatebus.log.api.DIRECT.GET.GATEBUS_EVENTS", "", nil, `{"seq":1}`, w))
			return alias || stored(a.ask("$JS.API.DIRECT.GET.GATEBUS_EVENTS", "", nil, `{"seq":1}`, w))
		}},
		{"own inbox", "alice olga audra wilma", func(a *attacker, w time.Duration) bool {
			if a.name == "wilma" { // asks for no command
				return a.ask("$JS.API.INFO", "", nil, "", w) != nil
			}
			return served(a.ask(cmd(a.name, "bus.info"), "", nil, "{}", w))
		}},
		{"inbox of another, subscribe", none, func(a *attacker, w time.Duration) bool {
			return a.hears("_INBOX.bob.>", min(w, refusal), func() { bob.ask(cmd("bob", "bus.info"), "", nil, "{}", refusal) })
		}},
		{"inbox of another, publish", none, func(a *attacker, _ time.Duration) bool {
			a.ask("_INBOX.bob.1", "", nil, tag(a, "inbox"), refusal)
			trick(a, "_INBOX.bob.2")
			return victim.has(tag(a, "inbox")) || victim.has("_INBOX.bob.2 ")
		}},
		{"ntf own", "alice olga audra wilma", func(a *attacker, w time.Duration) bool {
			subject := "gatebus.default.ntf." + a.name + ".forge"
			return a.hears(subject, w, func() { _ = spy.nc.Publish(subject, []byte("x")) })
		}},
		{"ntf of another, subscribe", "wilma", func(a *attacker, w time.Duration) bool {
			return a.hears("gatebus.default.ntf.bob.>", w, func() { _ = spy.nc.Publish("gatebus.default.ntf.bob.forge", []byte("x")) })
		}},
		{"ntf of another, publish", "wilma", func(a *attacker, w time.Duration) bool {
			for deadline := time.Now().Add(w); ; {
				a.ask("gatebus.default.ntf.bob.forge", "", nil, tag(a, "ntf"), refusal)
				if victim.has(tag(a, "ntf")) || time.Now().After(deadline) {
					return victim.has(tag(a, "ntf"))
				}
			}
		}},
		{"address of a connection", "wilma", func(a *attacker, w time.Duration) bool {
			for deadline := time.Now().Add(w); ; {
				a.ask("gatebus.default.conn.forge.call", "", nil, tag(a, "conn"), refusal)
				if runtime.has(tag(a, "conn")) || time.Now().After(deadline) {
					return runtime.has(tag(a, "conn"))
				}
			}
		}},
		{"job", "wilma", func(a *attacker, w time.Duration) bool {
			return reached(a.ask("gatebus.default.job.connect", "", never, tag(a, "job"), w))
		}},
		{"lease", "wilma", func(a *attacker, w time.Duration) bool {
			return reached(a.ask("$KV.GATEBUS_LEASES.forged", "", never, "x", w))
		}},
		{"$SYS", none, func(a *attacker, w time.Duration) bool {
			ping := a.ask("$SYS.REQ.SERVER.PING", "", nil, "", w) != nil
			update := a.ask("$SYS.REQ.CLAIMS.UPDATE", "", nil, "x", w) != nil
			return a.hears("$SYS.>", min(w, refusal), func() {}) || ping || update
		}},
	}...)
	return b.judge(ctx, families, &victim, &runtime, spy, before, config)
}

// judge prints the matrix and compares what was before with what is now.
func (b *bench) judge(ctx context.Context, families []family, victim, runtime *watch, spy *attacker, before uint64, config string) error {
	cells := make([][]string, len(families))
	for i := range cells {
		cells[i] = make([]string, len(roles))
	}
	var all sync.WaitGroup
	for j, r := range roles {
		a, err := b.login(r.name, j)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if out := r.name == "anonymous" || r.name == "rex"; out != (a.nc == nil) {
			b.problem("%s is let in: %v", r.name, a.nc != nil)
		}
		if a.nc != nil {
			defer a.nc.Close()
		}
		all.Go(func() {
			for i, f := range families {
				may := strings.Contains(" "+f.may+" ", " "+r.name+" ")
				wait := refusal
				if may {
					wait = answer
				}
				got := f.try(a, wait)
				cells[i][j] = "refused"
				if got {
					cells[i][j] = "allowed"
				}
				if got != may {
					cells[i][j] += " (!)"
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("%-36s", "")
	for _, r := range roles {
		fmt.Printf("%-13s", map[string]string{"anonymous": "anonymous", "rex": "revoked"}[r.name]+map[bool]string{true: r.role}[r.name != "rex"])
	}
	fmt.Println()
	for i, f := range families {
		fmt.Printf("%-36s%s\n", f.name, fmt.Sprintf(strings.Repeat("%-13s", len(roles)), toAny(cells[i])...))
		for j, c := range cells[i] {
			if strings.HasSuffix(c, "(!)") {
				b.problem("%s: %s is %s, which is not the design", f.name, roles[j].name, c)
			}
		}
	}
	// What came late, and what nobody may have seen.
	for _, forbidden := range []string{"forged-by-alice", "forged-by-olga", "forged-by-audra", "forged-by-rex", "_INBOX.bob.1 ", "_INBOX.bob.2 "} {
		if victim.has(forbidden) || runtime.has(forbidden) {
			b.problem("somebody saw %s", forbidden)
		}
	}
	after, changed, err := b.state(ctx, spy)
	if err != nil {
		return err
	}
	if changed != config {
		b.problem("the streams were %s and are %s", config, changed)
	}
	rows, err := show.Audit(ctx, b.operator, before)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Name != "checkpoint_signed" { // the runtime's own
			b.problem("commit %d is of an attack: %s by %s", r.Seq, r.Name, r.Actor)
		}
	}
	var verified client.Verification
	if err := b.operator.Do(ctx, "audit/verify", nil, &verified); err != nil || !verified.Verified {
		b.problem("the log does not verify: %+v %v", verified, err)
	}
	fmt.Printf("%d families × %d roles; the log is at %d, as before (%d) but for checkpoints; verified %v\n", len(families), len(roles), after, before, verified.Verified)
	return nil
}

func toAny(texts []string) (all []any) {
	for _, t := range texts {
		all = append(all, t)
	}
	return all
}

// state is the head of the log, and how the streams are configured.
func (b *bench) state(ctx context.Context, spy *attacker) (head uint64, config string, err error) {
	for _, stream := range []string{"GATEBUS_EVENTS", "GATEBUS_JOBS", "OBJ_GATEBUS_BLOBS", "KV_GATEBUS_LEASES"} {
		m := spy.ask("$JS.API.STREAM.INFO."+stream, "", nil, "", answer)
		if m == nil {
			return 0, "", fmt.Errorf("no info of %s", stream)
		}
		var info struct {
			Config json.RawMessage `json:"config"`
			State  struct {
				First   uint64 `json:"first_seq"`
				Last    uint64 `json:"last_seq"`
				Deleted uint64 `json:"num_deleted"`
			} `json:"state"`
		}
		if err := json.Unmarshal(m.Data, &info); err != nil {
			return 0, "", err
		}
		config += stream + string(info.Config)
		if stream == "GATEBUS_EVENTS" {
			head = info.State.Last
			config += fmt.Sprintf(" from %d, %d deleted ", info.State.First, info.State.Deleted)
		}
	}
	return head, config, nil
}

// cut revokes a credential that is connected to every server, and measures.
func (b *bench) cut(ctx context.Context, dir string) error {
	name := "cut-" + strings.ToLower(ulid.Make().String())
	if err := b.issue(ctx, dir, name, "host"); err != nil {
		return err
	}
	gone := make([]chan time.Time, len(b.urls))
	for i := range b.urls {
		gone[i] = make(chan time.Time, 1)
		a, err := b.login(name, i, nats.ClosedHandler(func(*nats.Conn) { gone[i] <- time.Now() }))
		if err != nil || a.nc == nil {
			return fmt.Errorf("%s is not let in: %w", filepath.Base(b.creds[name]), err)
		}
		defer a.nc.Close()
		if !served(a.ask("gatebus.default.cmd."+name+".bus.info", "", nil, "{}", answer)) {
			return fmt.Errorf("%s is not served", name)
		}
	}
	began := time.Now()
	if _, err := b.operator.Revoke(ctx, client.HostRevoke{Name: name}); err != nil {
		return err
	}
	told := time.Since(began)
	line := fmt.Sprintf("revoked on a live connection: the reply after %v", told.Round(100*time.Microsecond))
	for i := range b.urls {
		select {
		case at := <-gone[i]:
			line += fmt.Sprintf(", cut at server %d after %v", i+1, at.Sub(began).Round(100*time.Microsecond))
			if at.Sub(began) > time.Second {
				b.problem("cut at server %d only after %v", i+1, at.Sub(began))
			}
		case <-time.After(answer):
			b.problem("not cut at server %d", i+1)
		}
		if a, err := b.login(name, i); err == nil && a.nc != nil {
			a.nc.Close()
			b.problem("server %d lets it in again", i+1)
		}
	}
	fmt.Println(line)
	return nil
}
