package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
)

// A worker reads what the runtime of its home wrote, and goes on from there.
func TestWorkerGoesOnFromASnapshotOfItsHome(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	for i := range 30 {
		b.do(t, fmt.Sprint("s", i%7), Meta{}, "touch")
	}
	at := b.Head()
	if err := b.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.do(t, "s1", Meta{}, "touch")
	external := &External{URL: b.URL(), Creds: b.workerCreds(t)}
	w := open(t, Options{Home: b.opts.Home, Worker: true, External: external})
	if w.snapshots.last.Load() != at {
		t.Errorf("it read from %d on", w.snapshots.last.Load())
	}
	if err := w.Sync(patient(t)); err != nil {
		t.Fatal(err)
	}
	if diff := differ(dumpOf(b.Bus), dumpOf(w.Bus)); diff != "" {
		t.Error(diff)
	}
	// Of another home it can use nothing, and leaves it there.
	other := t.TempDir()
	if err := os.CopyFS(filepath.Join(other, "snapshots"), os.DirFS(b.snapshotDir())); err != nil {
		t.Fatal(err)
	}
	w = open(t, Options{Home: other, Worker: true, External: external})
	if found, err := w.findSnapshots(); err != nil || len(found) != 1 || w.snapshots.last.Load() != 0 {
		t.Errorf("found %v, %v; it read from %d on", found, err, w.snapshots.last.Load())
	}
}

// A worker can do its work, over the listener and without the keys of the home.
func TestWorkerWorks(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	one := b.join(t, "r-1", nil)
	home := t.TempDir()
	w := open(t, Options{Home: home, Worker: true, External: &External{URL: b.URL(), Creds: b.workerCreds(t)}})
	two := w.join(t, "r-2", nil)
	ctx := patient(t)
	if err := w.Announce(ctx, "r-2", nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"run/bus.json", "run/bus.lock", "run/local.creds", "keys/operator.nk"} {
		if _, err := os.Stat(filepath.Join(home, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if w.URL() != b.URL() {
		t.Error(w.URL())
	}
	if _, err := w.InProcessConn(); err == nil {
		t.Error("a connection in the process to a server that is not there")
	}

	// Blobs, of one chunk and of many.
	for _, data := range [][]byte{[]byte("small"), bytes.Repeat([]byte("large"), 100_000)} {
		digest, err := w.PutBlob(ctx, data)
		if err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
		got, err := b.Blob(ctx, digest)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		fresh := b.worker(t)
		if got, err = fresh.Blob(ctx, digest); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v (%v)", len(got), err, cause(err))
		}
	}

	// Jobs: the worker waits until a runtime has made their consumer.
	jobs, stop := context.WithCancel(ctx)
	defer stop()
	did := make(chan string, 1)
	var work sync.WaitGroup
	work.Go(func() {
		if err := w.ConsumeJobs(jobs, "connect", 1, func(_ context.Context, workspace, id string) error {
			did <- workspace + " " + id
			return nil
		}); err != nil {
			t.Errorf("%v (%v)", err, cause(err))
		}
	})
	once, made := context.WithCancel(ctx)
	made()
	if err := b.ConsumeJobs(once, "connect", 1, nil); err == nil { // makes it, if there is time
		t.Log("made by a runtime that has no time to work")
	}
	if _, err := b.jobConsumer(ctx, "connect"); err != nil {
		t.Fatal(err)
	}
	if err := w.PublishJob(ctx, "default", "connect", "c1"); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if got := <-did; got != "default c1" {
		t.Error(got)
	}
	stop()
	work.Wait()

	two.leave(t)
	if err := one.Sync(ctx); err != nil || one.Alive("r-2") {
		t.Error(err, one.Peers())
	}
}

// What a worker must not do is refused by the server, not by our code.
func TestWorkerCanChangeNoStreamAndCommandNobody(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	b.do(t, "s1", Meta{}, "touch")
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) { return "reached", nil })
	if _, err := b.jobConsumer(patient(t), "connect"); err != nil {
		t.Fatal(err)
	}
	w := b.worker(t)
	state := func() string {
		var all []string
		infos := b.js.ListStreams(patient(t))
		for info := range infos.Info() {
			if info.Config.Name == eventStream {
				info.State.Consumers = 0 // it follows the log
			}
			all = append(all, fmt.Sprintf("%s %v %d..%d %d", info.Config.Name, info.Config.Subjects, info.State.FirstSeq, info.State.LastSeq, info.State.Consumers))
		}
		if err := infos.Err(); err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	before := state()
	refused := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: done", name)
		}
	}
	ctx := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err := w.js.CreateStream(ctx(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}})
	refused("a new stream", err)
	_, err = w.js.UpdateStream(ctx(), jetstream.StreamConfig{Name: jobStream, Subjects: []string{"gatebus.*.job.>", "gatebus.*.cmd.>"}})
	refused("an update", err)
	refused("a delete", w.js.DeleteStream(ctx(), jobStream))
	s, err := w.js.Stream(patient(t), eventStream)
	if err != nil {
		t.Fatal(err)
	}
	refused("a purge", s.Purge(ctx()))
	refused("the delete of a message", s.DeleteMsg(ctx(), 1))
	_, err = w.js.CreateOrUpdateConsumer(ctx(), jobStream, jetstream.ConsumerConfig{Durable: "mine", FilterSubject: "gatebus.x.job.y", AckPolicy: jetstream.AckExplicitPolicy})
	refused("a consumer of jobs", err)
	for _, subject := range []string{commandSubject("default", Local, "tool/call"), "$SYS.REQ.SERVER.PING", "$JS.API.STREAM.LIST"} {
		if m, err := w.nc.Request(subject, nil, 200*time.Millisecond); err == nil {
			t.Errorf("%s is answered: %s", subject, m.Data)
		}
	}
	sub, err := w.nc.SubscribeSync("_INBOX.>")
	if err == nil {
		err = w.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := b.nc.Publish("_INBOX.somebody.1", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("it gets what is meant for %s", m.Subject)
	}
	if after := state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestExternalBusThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	elsewhere := open(t, Options{Listen: "127.0.0.1:0"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for name, c := range map[string]struct {
		url   string
		creds []byte
		kind  fault.Kind
	}{
		"nobody there":          {"nats://" + l.Addr().String(), b.workerCreds(t), fault.BusUnavailable},
		"of another home":       {b.URL(), elsewhere.workerCreds(t), fault.AuthenticationRequired},
		"of a host":             {b.URL(), b.enrolled(t, "ana", host.RoleHost), fault.AuthenticationRequired},
		"of an operator":        {b.URL(), b.enrolled(t, "opa", host.RoleOperator), fault.AuthenticationRequired},
		"of an auditor":         {b.URL(), b.enrolled(t, "audy", host.RoleAuditor), fault.AuthenticationRequired},
		"no credentials":        {b.URL(), nil, fault.InvalidInput},
		"what is no creds file": {b.URL(), []byte("creds"), fault.InvalidInput},
	} {
		began := time.Now()
		_, err := Open(ctx, Options{Home: t.TempDir(), Worker: true, External: &External{URL: c.url, Creds: c.creds}})
		if !fault.Is(err, c.kind) {
			t.Errorf("%s: %v (%v), want kind %s", name, err, cause(err), c.kind)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%s: said after %v", name, took)
		}
	}
	_, err = Open(ctx, Options{Home: t.TempDir(), Worker: true})
	wantKind(t, err, fault.InvalidInput)
	_, err = Open(ctx, Options{Home: t.TempDir(), External: &External{URL: b.URL()}, Durability: Power})
	wantKind(t, err, fault.InvalidInput)
	// The keys of a home are no keys to another bus.
	_, err = Open(ctx, Options{Home: t.TempDir(), External: &External{URL: b.URL()}})
	wantKind(t, err, fault.AuthenticationRequired)
	// The runtime of an external bus holds the lock of its home as any other.
	_, err = Open(ctx, Options{Home: b.Bus.opts.Home, External: &External{URL: b.URL()}})
	wantKind(t, err, fault.HomeLocked)
}

func TestWorkerNeedsALogThatIsAsItMustBe(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	creds := b.workerCreds(t)
	weak := eventConfig
	weak.MaxMsgs = 1000
	if _, err := b.js.UpdateStream(patient(t), weak); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Home: t.TempDir(), Worker: true, External: &External{URL: b.URL(), Creds: creds}})
	wantKind(t, err, fault.BusWeakened)
	if err := b.js.DeleteStream(patient(t), eventStream); err != nil {
		t.Fatal(err)
	}
	_, err = Open(context.Background(), Options{Home: t.TempDir(), Worker: true, External: &External{URL: b.URL(), Creds: creds}})
	wantKind(t, err, fault.BusUnavailable)
}

// A host's next command lands on any process, and finds what the last one did.
func TestCommandsLandOnEitherProcess(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	both := []*joined{b.join(t, "r-1", nil), b.worker(t).join(t, "r-2", nil)}
	var mu sync.Mutex
	served := make(map[string]int)
	for _, j := range both {
		serve(t, j.testBus, "tool/call", func(ctx context.Context, _ *Request) (any, error) {
			mu.Lock()
			served[j.name()]++
			mu.Unlock()
			had := j.sessions.Get("default", "s").Touched
			_, err := j.sessions.Dispatch(ctx, "default", "s", Meta{}, "touch")
			return had, err
		})
	}
	nc := b.local(t)
	for i := range 100 {
		if got, e := request(t, nc, Local, "tool/call", ""); e != nil || got != fmt.Sprint(i) {
			t.Fatalf("request %d finds %s, %v", i, got, e)
		}
	}
	if served["r-1"] < 10 || served["r-2"] < 10 {
		t.Errorf("served by %v", served)
	}
	both[1].leave(t)
	shut(t, both[1].Bus)
	for i := range 20 {
		if got, e := request(t, nc, Local, "tool/call", ""); e != nil || got != fmt.Sprint(100+i) {
			t.Fatalf("request %d finds %s, %v", 100+i, got, e)
		}
	}
}

// A bus that many homes share gives each its own workspace.
func TestOtherWorkspacesAreLeftToOthers(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0", Workspace: "mine"})
	serve(t, b, "tool/call", func(context.Context, *Request) (any, error) { return nil, nil })
	if _, err := b.nc.Request(commandSubject("others", Local, "tool/call"), nil, 10*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a command of another workspace: %v", err)
	}
	if _, err := b.nc.Request(commandSubject("mine", Local, "tool/call"), nil, 10*time.Second); err != nil {
		t.Error(err)
	}
}

func TestAddressIsAsked(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	w := b.worker(t)
	ctx := patient(t)
	begun := make(chan struct{})
	stop, err := w.ServeAddress("default", "c1-7", func(ctx context.Context, verb string, data []byte, reply func([]byte) error) error {
		switch verb {
		case "echo":
			for i := range 3 {
				if err := reply(fmt.Appendf(nil, "%d %s", i, data)); err != nil {
					return err
				}
			}
			return nil
		case "fail":
			return fault.New("answer", fault.ToolDrift, redact.Static("it changed"))
		case "panic":
			panic("a secret")
		case "hang":
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}
		return errors.New("a secret")
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := b.AskAddress(ctx, "default", "c1-7", "echo", []byte("hello"), func(data []byte) error {
		got = append(got, string(data))
		return nil
	}); err != nil || fmt.Sprint(got) != "[0 hello 1 hello 2 hello]" {
		t.Error(got, err)
	}
	enough := errors.New("enough")
	if err := b.AskAddress(ctx, "default", "c1-7", "echo", nil, func([]byte) error { return enough }); err != enough {
		t.Error(err)
	}
	for verb, kind := range map[string]fault.Kind{"fail": fault.ToolDrift, "panic": fault.Internal, "other": fault.Internal} {
		err := b.AskAddress(ctx, "default", "c1-7", verb, nil, nil)
		if !fault.Is(err, kind) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	for _, c := range [][3]string{{"default", "c1-8", "echo"}, {"other", "c1-7", "echo"}} {
		err := b.AskAddress(ctx, c[0], c[1], c[2], nil, nil)
		if !errors.Is(err, ErrNoAddress) || !fault.Is(err, fault.RuntimeNotLive) {
			t.Errorf("%v: %v", c, err)
		}
	}
	wantKind(t, b.AskAddress(ctx, "default", "c.*", "echo", nil, nil), fault.InvalidInput)
	_, err = b.ServeAddress("default", "*", nil)
	wantKind(t, err, fault.InvalidInput)

	short, cancel := context.WithCancel(ctx)
	go func() {
		<-begun
		cancel()
	}()
	if err := b.AskAddress(short, "default", "c1-7", "hang", nil, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := b.AskAddress(ctx, "default", "c1-7", "echo", nil, nil); errors.Is(err, ErrNoAddress) {
			break
		} else if err != nil || time.Now().After(deadline) {
			t.Fatal("it is still there", err)
		}
	}
	stop()
	// Close ends what hangs when it has no more time.
	closing, end := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer end()
	if err := w.Close(closing); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Processes of a home that start at the same time share each key.
func TestKeyThatTwoProcessesMakeIsOne(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	w := b.worker(t)
	for i := range 20 {
		name := fmt.Sprint("k", i)
		keys := make([][]byte, 2)
		var work sync.WaitGroup
		for n, bus := range []*Bus{b.Bus, w.Bus} {
			work.Go(func() {
				var err error
				if keys[n], err = bus.HomeKey(name); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		if !bytes.Equal(keys[0], keys[1]) {
			t.Errorf("%s: two keys", name)
		}
	}
}

func TestQuestionsForTheHeadAreShared(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	b.join(t, "r-1", nil)
	w := b.worker(t)
	w.join(t, "r-2", nil)
	asked, err := b.nc.SubscribeSync("$JS.API.STREAM.INFO." + eventStream)
	if err == nil {
		err = b.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	var work sync.WaitGroup
	for range n {
		work.Go(func() {
			if err := w.Sync(patient(t)); err != nil {
				t.Errorf("%v (%v)", err, cause(err))
			}
		})
	}
	work.Wait()
	if pending, _, err := asked.Pending(); err != nil || pending == 0 || pending > n/2 {
		t.Errorf("%d questions for %d, %v", pending, n, err)
	}
}

// What is asked of a settlement is what travels: a type that does not would settle
// nothing.
func TestSettlementTravels(t *testing.T) {
	t.Parallel()
	q := settlement{Seq: 7, Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindGrant, Key: "ana"}}
	data, err := json.Marshal(q)
	var got settlement
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || got != q {
		t.Errorf("%s is %+v, %v", data, got, err)
	}
}
