// Package bus is the one place that knows NATS: the embedded server with its
// accounts, the log and the only function that appends to it, the model folded
// from the log, durable jobs, blobs, the service of commands, addresses, and who
// of a home's processes lives.
//
// A decision is one message on the subject of its boundary, appended with the
// expected sequence of that boundary (decision 12). Aggregates live in memory,
// in tables folded from the log at start; Dispatch is the only way to change
// them and the only retry.
//
// Whoever reads a table, follows the log or has the answer of Dispatch may act on
// it, so with durability power a commit is on the disk before it is folded:
// append, barrier, fold, feed, answer, in this order. The same holds for commits
// of other processes that are read from the store, and a process without the
// store asks the one that has it. Only the server's own store sees one earlier.
//
// Every 10,000 commits, after half a minute with a thousand, and at an orderly
// end, the tables and what is kept with them ([Bus.Keep]) are written to a
// snapshot, from which the next process goes on. A snapshot is used only if this
// very program wrote it, with the keys of this home, from this log; else the whole
// log is read. Workers begin at those of their home, and write none.
//
// One bus is opened in three ways. Embedded, the server and its store are in this
// process. A runtime opens an external one with the keys of its home, and makes
// there what is missing. A worker has the credentials of a worker and no keys; it
// finds everything made. A workspace belongs to one home (this amends decision
// 6): processes serve commands and jobs of their own workspace only, so that a
// bus can be shared by homes with a workspace each.
//
// Whoever may have peers follows the log, and takes part in three promises. A
// command is served by a model that has every commit stored before it came
// ([Bus.Sync]). After [Member.Settle] returns, no process decides on anything
// older (this replaces the look before each start of decision 16). A process is
// gone for good when the log says so, never before: a lease that ran out is a
// reason to look, and what a process does after its end meets the fences of
// decision 20 and the end of its [Member.Run].
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
)

// maxPayload bounds a message: a commit, a command, an answer (decision 18).
const maxPayload = 8 << 20

// Options say how to open a bus.
type Options struct {
	// Home is the directory of everything durable; made if needed, 0700.
	Home string
	// Listen is the address for hosts and the command line: "127.0.0.1:0" picks a
	// port, "off" (or empty) lets nobody in but this process.
	Listen string
	// Socket serves the unix socket <home>/run/bus.sock too, whatever Listen says.
	Socket bool
	// Version is written to bus.json.
	Version string
	// Workspace is the one that is served, and that of the local credentials; empty
	// is "default".
	Workspace string
	// Durability is what acknowledged commits survive; empty is Process.
	Durability Durability
	// External is the bus of other processes to use; nil starts a server here.
	External *External
	// Worker opens the external bus without keys, streams to make and the lock of
	// the home: several workers can share a home, with its runtime.
	Worker bool
	// Logger takes the server's messages; nil discards them.
	Logger *slog.Logger

	// wrap lets a test slow down the runtime's own connection.
	wrap func(net.Conn) net.Conn
	// sync lets a test stand between a barrier and the disk.
	sync func(stream string, disk func() error) error
}

// External is a bus that runs elsewhere: a NATS cluster, or the listener of an
// embedded bus.
type External struct {
	// URL of a server; several are separated by commas.
	URL string
	// Creds is the text of a creds file: of a worker, or of a runtime. A runtime
	// without one makes its own from the keys of the home.
	Creds []byte
}

// Bus is an open bus. Its methods may be called from any goroutine.
type Bus struct {
	opts       Options
	log        *slog.Logger
	release    func() // the lock of the home
	keys       keyring
	accounts   *accounts // empty in a worker
	resolver   *resolver // of the embedded server
	remote     *remote   // the servers of an external bus, with the keys of the home
	keyMu      sync.Mutex
	server     *server.Server // nil when the bus is external
	socket     *socket
	nc         *nats.Conn
	js         jetstream.JetStream
	appends    appender
	wire       *wire // of an embedded bus: its appends
	replicated bool  // the log is on several servers; one that is asked may lag behind
	blobs      blobStore
	leases     jetstream.KeyValue
	barriers   map[string]*barrier // by stream; none without durability power

	open       atomic.Bool // Load has succeeded; dispatch works
	tables     map[events.Kind]folder
	hosts      *Table[host.State, host.Command] // accounts are derived from it
	due        propagation
	boundaries sync.Map // subject to *boundary
	placed     sync.RWMutex
	places     map[place]*boundary // as far as they were asked for
	known      atomic.Uint64
	feed       feed
	heads      heads
	tail       tail
	member     atomic.Pointer[Member]
	timeout    time.Duration // for one try of an append, or a question to the server
	health     health
	damage     atomic.Pointer[error] // why nothing is appended any more
	signed     uint64                // how many commits the newest checkpoint has at the start
	verifying  sync.Mutex
	sealer     *sealer      // nil until Seal
	reclose    func() error // says again that the store is closed; nil unless it was
	snapshots  snapshots
	store      store

	ctx      context.Context // ends when the bus closes
	cancel   context.CancelCauseFunc
	requests sync.WaitGroup // commands being served
	work     sync.WaitGroup // everything else that Close waits for

	mu       sync.Mutex
	loaded   bool // Load was called; no more tables
	closing  bool
	services map[*service]struct{}
}

// Open locks the home and opens the bus; ctx bounds how long it may take to open
// the store. Errors: home_not_writable, home_locked (another process has it, or
// this one), port_in_use, permission_too_open (a key file that others may read),
// bus_unavailable and authentication_required (an external bus that does not
// answer, or does not know us), bus_weakened (a stream that is not configured to
// keep what it must keep), audit_damaged (a store that does not open).
func Open(ctx context.Context, opts Options) (*Bus, error) {
	const op = "open bus"
	if opts.Workspace == "" {
		opts.Workspace = "default"
	}
	if !ValidName(opts.Workspace) {
		return nil, fault.New(op, fault.InvalidInput, redact.Name("no name of a workspace: "+opts.Workspace))
	}
	if d := opts.Durability; d != "" && d != Process && d != Power {
		return nil, fault.New(op, fault.InvalidInput, redact.Name("no durability: "+string(d)))
	}
	home, err := filepath.Abs(opts.Home)
	if err != nil || opts.Home == "" {
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("there is no home"), err)
	}
	opts.Home = home // others read the paths in bus.json
	if opts.Worker && (opts.External == nil || len(opts.External.Creds) == 0) {
		return nil, fault.New(op, fault.InvalidInput, redact.Static("a worker needs the URL of a bus and credentials for it"))
	}
	if opts.External != nil && opts.Durability == Power {
		return nil, fault.New(op, fault.InvalidInput, redact.Static("the servers of an external bus say what is durable there, as by sync_interval: always"))
	}
	b := &Bus{
		opts: opts, log: opts.Logger, keys: keyring{filepath.Join(home, "keys")}, timeout: 5 * time.Second,
		tables: make(map[events.Kind]folder), services: make(map[*service]struct{}),
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	_, _ = programFile() // now: it may be replaced later
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.hosts = Register(b, hostRules)
	if err := b.start(ctx); err != nil {
		b.stop()
		return nil, asFault(op, fault.BusUnavailable, redact.Static("the bus does not start"), err)
	}
	return b, nil
}

func (b *Bus) start(ctx context.Context) (err error) {
	if err := makeHome(b.opts.Home); err != nil {
		return err
	}
	b.accounts, b.resolver = new(accounts), newResolver(b)
	if !b.opts.Worker {
		if b.release, err = lockHome(b.opts.Home); err != nil {
			return err
		}
		if half, err := unfinishedRestore(b.opts.Home); err != nil || half {
			return fault.Wrap("open home", fault.Conflict, redact.Static("a restore into this home was not finished: run gatebus bus restore again"), err)
		}
		if b.accounts, err = newAccounts(b.keys); err != nil {
			return asFault("read keys", fault.HomeNotWritable, redact.Static("the keys of the home cannot be read"), err)
		}
		if err := b.checkStore(); err != nil {
			return err
		}
	}
	if b.opts.External == nil {
		if err := b.listen(ctx); err != nil {
			return err
		}
		if b.opts.Socket {
			// A path can be too long for a socket; there is the listener then.
			if err := b.listenSocket(); err != nil {
				b.log.Warn("there is no socket for the command line", "error", err.Error())
			}
		}
		b.nc, err = b.connect()
	} else {
		b.nc, err = b.dial()
	}
	if err != nil {
		return err
	}
	if b.js, err = jetstream.New(b.nc, jetstream.WithDefaultTimeout(b.timeout)); err != nil {
		return err
	}
	if err := b.openAppends(); err != nil {
		return err
	}
	if err := b.openStreams(ctx); err != nil {
		return err
	}
	return b.openBarriers()
}

// openAppends connects to the log for what is appended.
func (b *Bus) openAppends() (err error) {
	if b.server == nil {
		b.appends, err = openAcks(b.nc, &b.feed)
		return err
	}
	b.wire, err = openWire(&wire{
		open: wrapped{b}.InProcessConn,
		user: func() ([]byte, error) { return b.accounts.runtimeUser(jwt.ConnectionTypeInProcess) },
		feed: &b.feed,
		say:  func(err error) { b.log.Warn("bus connection", "error", err.Error()) },
	})
	b.appends = b.wire
	return err
}

// makeHome makes the directories of a home, for its owner alone.
func makeHome(home string) error {
	for _, dir := range []string{"", "keys", "run", "bus", "snapshots"} {
		dir = filepath.Join(home, dir)
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.Chmod(dir, 0o700)
		}
		if err != nil {
			return fault.Wrap("make home", fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
		}
	}
	return nil
}

// listen starts the server.
func (b *Bus) listen(ctx context.Context) error {
	o := &server.Options{
		ServerName: embeddedName, DontListen: true, NoSigs: true, MaxPayload: maxPayload,
		// The disk is the limit: by default a server takes no more than most of what is
		// free, and does not open a store that is larger.
		JetStream: true, StoreDir: filepath.Join(b.opts.Home, "bus"), JetStreamMaxStore: 1 << 60, DisableJetStreamBanner: true,
		TrustedOperators: []*jwt.OperatorClaims{b.accounts.operator}, SystemAccount: b.accounts.sys, AccountResolver: b.resolver,
		PingInterval: 5 * time.Second, MaxPingsOut: 2,
	}
	if l := b.opts.Listen; l != "" && l != "off" {
		host, port, err := net.SplitHostPort(l)
		n, portErr := strconv.Atoi(port)
		if err = errors.Join(err, portErr); err != nil {
			return fault.Wrap("listen", fault.InvalidInput, redact.Name("no address to listen on: "+l), err)
		}
		if n == 0 {
			n = server.RANDOM_PORT
		}
		o.DontListen, o.Host, o.Port = false, host, n
	}
	ns, err := server.NewServer(o)
	if err != nil {
		return err
	}
	lg := &serverLog{log: b.log, fatal: make(chan string, 1)}
	ns.SetLoggerV2(lg, false, false, false)
	started := make(chan struct{})
	go func() {
		defer close(started)
		ns.Start()
	}()
	select {
	case <-started:
	case <-ctx.Done():
		// A block that is damaged in the right place is indexed for ever. The server
		// still has the store, so the home stays locked until this process ends.
		b.release = nil
		return fault.Wrap("open store", fault.AuditDamaged, redact.Static("the store does not open"), ctx.Err())
	}
	b.server = ns
	b.resolver.serve()
	select {
	case text := <-lg.fatal:
		if strings.Contains(text, "listening on port") {
			return fault.Wrap("listen", fault.PortInUse, redact.Name("cannot listen on "+b.opts.Listen), errors.New(text))
		}
		return errors.New(text)
	default:
	}
	if !ns.ReadyForConnections(10 * time.Second) {
		return errors.New("the server is not ready after ten seconds")
	}
	return nil
}

// connect makes the runtime's own connection, which never touches a socket.
func (b *Bus) connect() (*nats.Conn, error) {
	creds, err := b.accounts.runtimeUser(jwt.ConnectionTypeInProcess)
	if err != nil {
		return nil, err
	}
	return nats.Connect("", append(b.connection(), nats.InProcessServer(wrapped{b}), nats.UserCredentialBytes(creds), nats.Name("runtime"),
		nats.ReconnectWait(20*time.Millisecond))...)
}

// connection is what every connection of ours has.
func (b *Bus) connection() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1), nats.Timeout(10 * time.Second),
		nats.ErrorHandler(b.connectionError),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // else we close it
				b.log.Warn("the bus is away", "error", err.Error())
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { b.log.Warn("the bus is there again") }),
	}
}

// Connected reports whether the bus is there. An embedded one always is.
func (b *Bus) Connected() bool { return b.nc != nil && b.nc.IsConnected() }

// connectionError logs what goes wrong beside what is asked.
func (b *Bus) connectionError(_ *nats.Conn, _ *nats.Subscription, err error) {
	b.log.Warn("bus connection", "error", err.Error())
}

// wrapped is the bus as the runtime's own connection sees it.
type wrapped struct{ b *Bus }

func (w wrapped) InProcessConn() (net.Conn, error) {
	c, err := w.b.InProcessConn()
	if err == nil && w.b.opts.wrap != nil {
		c = w.b.opts.wrap(c)
	}
	return c, err
}

// InProcessConn is a connection to the embedded bus without a socket; it has to
// log in like any other. It makes Bus a nats.InProcessConnProvider.
func (b *Bus) InProcessConn() (net.Conn, error) {
	if b.server == nil {
		return nil, fault.New("connect", fault.BusUnavailable, redact.Static("the bus is not in this process"))
	}
	return b.server.InProcessConn()
}

// URL is where the bus listens, empty when it does not.
func (b *Bus) URL() string {
	switch {
	case b.opts.External != nil:
		return b.opts.External.URL
	case b.server.Addr() == nil:
		return ""
	}
	return b.server.ClientURL()
}

// LocalCredentials is the text of the creds file of the principal "local".
func (b *Bus) LocalCredentials() ([]byte, error) { return os.ReadFile(b.runFile("local.creds")) }

func (b *Bus) runFile(name string) string { return filepath.Join(b.opts.Home, "run", name) }

// Announce makes the bus one that others find: it gives the principal "local" a
// new account and new credentials, which makes those of an earlier start void,
// and writes <home>/run/local.creds and <home>/run/bus.json. Call it, after Load,
// when the runtime can serve; runtime is its id, extra says more about it and may
// not replace what the bus says itself. The files go away at Close. A
// worker announces nothing.
func (b *Bus) Announce(ctx context.Context, runtime string, extra map[string]any) error {
	const op = "announce"
	if b.opts.Worker {
		return nil
	}
	if b.HasKeys() {
		if err := b.enrolLocal(ctx, runtime); err != nil {
			return asFault(op, fault.BusUnavailable, redact.Static("there are no credentials for the command line"), err)
		}
	}
	about := make(map[string]any, len(extra)+8)
	for k, v := range extra {
		about[k] = v
	}
	about["pid"] = os.Getpid()
	about["url"] = b.URL()
	if b.socket != nil {
		about["socket"] = b.socket.path
	}
	about["server_id"] = b.nc.ConnectedServerId()
	about["started"] = time.Now().UTC().Format(time.RFC3339Nano)
	about["version"] = b.opts.Version
	about["runtime"] = runtime
	if b.HasKeys() {
		about["creds"] = b.runFile("local.creds")
	}
	about["workspace"] = b.opts.Workspace
	data, err := json.Marshal(about)
	if err == nil {
		err = disk.Replace(b.runFile("bus.json"), append(data, '\n'))
	}
	if err != nil {
		return fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	return nil
}

// Close stops the bus: it takes no more requests, lets those under way end, and
// append what they must, until ctx ends; then it ends everything that waits on
// the bus and gives the home free. A second Close does nothing.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return nil
	}
	b.closing = true
	services := slices.Collect(maps.Keys(b.services))
	b.mu.Unlock()

	var err error
	for _, s := range services {
		if e := s.sub.Drain(); !errors.Is(e, nats.ErrBadSubscription) { // one that was stopped just now
			err = errors.Join(err, e)
		}
	}
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		for _, s := range services {
			<-s.drained
		}
		b.requests.Wait()
	}()
	select {
	case <-quiet:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	err = errors.Join(err, b.stop())
	<-quiet
	return err
}

// stop ends what start began, in reverse.
func (b *Bus) stop() (err error) {
	b.mu.Lock()
	b.cancel(errStopped) // nothing enters any more
	b.mu.Unlock()
	b.work.Wait()
	if b.sealer != nil {
		if e := b.sealer.finish(); e != nil {
			b.log.Warn("the log was not sealed at its end", "error", e.Error())
		}
	}
	b.lastSnapshot()
	if b.remote != nil {
		b.remote.nc.Close()
	}
	if b.nc != nil {
		b.nc.Close()
	}
	if b.wire != nil {
		b.wire.close()
	}
	if b.socket != nil {
		b.socket.stop()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.socket != nil {
		b.socket.wait()
	}
	if b.release != nil {
		if b.reclose != nil && b.sealer == nil && !b.open.Load() { // nothing could be appended
			err = b.reclose()
		}
		for _, name := range []string{"bus.json", "local.creds"} {
			if e := os.Remove(b.runFile(name)); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
		b.release()
	}
	return err
}

// enter begins a piece of work that Close waits for; b.work.Done ends it.
func (b *Bus) enter(op string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return errClosed(op)
	}
	b.work.Add(1)
	return nil
}

// errStopped is why the contexts of requests end when the bus does.
var errStopped = fault.New("stop", fault.RuntimeClosed, redact.Static("the runtime is being stopped"))

// errClosed answers what is asked of a closed bus.
func errClosed(op string) error {
	return fault.New(op, fault.BusUnavailable, redact.Static("the bus is closed"))
}

// asFault keeps a fault and wraps any other error.
func asFault(op string, kind fault.Kind, text redact.EventText, err error) error {
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		return f
	}
	return fault.Wrap(op, kind, text, err)
}

// serverLog gives the server's messages to slog, and its fatal ones to Open,
// which decides what they mean: the server itself would end the process.
type serverLog struct {
	log   *slog.Logger
	fatal chan string
}

func (l *serverLog) Fatalf(format string, v ...any) {
	text := l.emit(slog.LevelError, format, v)
	select {
	case l.fatal <- text:
	default:
	}
}
func (l *serverLog) Errorf(format string, v ...any)  { l.emit(slog.LevelError, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.emit(slog.LevelWarn, format, v) }
func (l *serverLog) Noticef(format string, v ...any) { l.emit(slog.LevelDebug, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.emit(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.emit(slog.LevelDebug, format, v) }

func (l *serverLog) emit(level slog.Level, format string, v []any) string {
	text := fmt.Sprintf(format, v...)
	l.log.Log(context.Background(), level, text)
	return text
}
