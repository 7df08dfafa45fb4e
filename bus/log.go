package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The names of what the bus keeps.
const (
	eventStream = "GATEBUS_EVENTS"
	jobStream   = "GATEBUS_JOBS"
	blobBucket  = "GATEBUS_BLOBS"
	blobStream  = "OBJ_" + blobBucket // of its object store
	leaseBucket = "GATEBUS_LEASES"
)

// eventConfig is the log: nothing ends, nothing can be deleted. Its duplicate
// window is short because nothing relies on it: a repeated command is found in
// its aggregate.
var eventConfig = jetstream.StreamConfig{
	Name: eventStream, Subjects: []string{eventSubjects}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
	MaxConsumers: -1, MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, Replicas: 1,
	DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: time.Second,
}

// jobConfig is the work queue of durable jobs, which hold nothing raw
// (decision 17). A repeat within the window is one job.
var jobConfig = jetstream.StreamConfig{
	Name: jobStream, Subjects: []string{jobSubjects}, Storage: jetstream.FileStorage, Retention: jetstream.WorkQueuePolicy,
	MaxConsumers: -1, MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, Replicas: 1,
	Duplicates: 2 * time.Minute,
}

// duplicates is the window of a replicated log. There an append that got no
// answer can still be on its way through a server that is left behind; when its
// bytes are sent again, they are known by their id.
const duplicates = 2 * time.Minute

// leaseConfig is the bucket of leases, which end by themselves.
var leaseConfig = jetstream.KeyValueConfig{Bucket: leaseBucket, History: 1, Storage: jetstream.FileStorage, LimitMarkerTTL: 10 * time.Second}

// openStreams makes the streams that are missing and refuses to run on one that
// was weakened, or on a bus where any stream captures what must not be stored. A
// worker makes nothing, and looks at the log.
func (b *Bus) openStreams(ctx context.Context) error {
	replicas := 1
	if b.server == nil && b.nc.ConnectedClusterName() != "" {
		replicas = 3
	}
	for _, want := range []jetstream.StreamConfig{eventConfig, jobConfig} {
		if b.opts.Worker && want.Name != eventStream {
			continue
		}
		got, err := b.openStream(ctx, want, replicas)
		if err != nil {
			return err
		}
		if want.Name == eventStream {
			b.replicated = got.Replicas > 1
		}
	}
	if err := b.patiently(ctx, func() error { return b.openBuckets(ctx, replicas) }); err != nil {
		return err
	}
	if b.opts.Worker {
		return nil
	}
	return b.patiently(ctx, func() error { return b.refuseCapture(ctx) })
}

// openStream finds or makes a stream, whose replicas may be what somebody chose.
func (b *Bus) openStream(ctx context.Context, want jetstream.StreamConfig, replicas int) (got jetstream.StreamConfig, err error) {
	const op = "open streams"
	shape := func(replicas int) {
		want.Replicas = replicas
		if want.Name == eventStream && replicas > 1 {
			want.Duplicates = duplicates
		}
	}
	var s jetstream.Stream
	err = b.patiently(ctx, func() (err error) {
		s, err = b.js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) && !b.opts.Worker {
			if want.Name == eventStream && b.signed > 0 {
				return damage(problem(1, b.signed, "the server does not find the log"))
			}
			shape(replicas)
			s, err = b.js.CreateStream(ctx, want)
		}
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return got, fault.Wrap(op, fault.BusUnavailable, redact.Static("no runtime has made the log of this bus yet"), err)
	}
	if err != nil {
		return got, err
	}
	if state := s.CachedInfo().State; want.Name == eventStream {
		if err := b.checkLog(state.FirstSeq, state.LastSeq, state.NumDeleted); err != nil {
			return got, err
		}
	}
	got = s.CachedInfo().Config
	shape(got.Replicas)
	got.Metadata = nil // the server's own notes
	if !reflect.DeepEqual(got, want) {
		return got, fault.Wrap(op, fault.BusWeakened, redact.Name("the stream "+want.Name+" is not configured as it must be"),
			fmt.Errorf("have %+v, want %+v", got, want))
	}
	return got, nil
}

// openBuckets finds or makes the buckets of blobs and leases.
func (b *Bus) openBuckets(ctx context.Context, replicas int) error {
	const op = "open buckets"
	weakened := func(name string) error {
		return fault.New(op, fault.BusWeakened, redact.Name("the stream "+name+" is not configured as it must be"))
	}
	blobs, err := b.js.ObjectStore(ctx, blobBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) && !b.opts.Worker {
		blobs, err = b.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: blobBucket, Replicas: replicas})
	}
	if err != nil {
		return err
	}
	b.blobs.store = blobs
	leases, err := b.js.KeyValue(ctx, leaseBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) && !b.opts.Worker {
		want := leaseConfig
		want.Replicas = replicas
		leases, err = b.js.CreateKeyValue(ctx, want)
	}
	if err != nil {
		return err
	}
	b.leases = leases
	if b.opts.Worker {
		return nil
	}
	// What is named in the log must stay, and a lease must be able to end.
	status, err := blobs.Status(ctx)
	if err != nil {
		return err
	}
	if c := status.(*jetstream.ObjectBucketStatus).StreamInfo().Config; c.Storage != jetstream.FileStorage || c.MaxAge != 0 || c.MaxBytes > 0 || c.MaxMsgs > 0 {
		return weakened(c.Name)
	}
	lease, err := leases.Status(ctx)
	if err != nil {
		return err
	}
	if lease.LimitMarkerTTL() == 0 || lease.History() != 1 || lease.TTL() != 0 {
		return weakened("KV_" + leaseBucket)
	}
	return nil
}

// refuseCapture looks at every stream of the account.
func (b *Bus) refuseCapture(ctx context.Context) error {
	streams := b.js.ListStreams(ctx)
	for info := range streams.Info() {
		for _, s := range info.Config.Subjects {
			for _, p := range private {
				if server.SubjectsCollide(s, p) {
					return fault.New("open streams", fault.BusWeakened, redact.Name("the stream "+info.Config.Name+" captures "+p))
				}
			}
		}
	}
	return streams.Err()
}

var (
	// errConflict says that the boundary is not where the append expected it.
	errConflict = errors.New("bus: the expected sequence is not the last one")
	// errOnItsWay says that something was sent before, of which a cluster does not
	// know yet whether it is stored; the message itself is not.
	errOnItsWay = errors.New("bus: a message before this one is on its way")
)

// expectation is what must hold at the moment of the append: the last sequence
// of a boundary, which is the own one unless the commit is fenced (decision 20).
type expectation struct {
	subject string
	last    uint64
}

// bodies keeps the memory of the bodies of commits, unless one was very large.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

const maxKeptBody = 64 << 10

// headerRoom is kept for the headers of a message, one of which holds a subject; a
// server takes no more than 4 KiB of that.
const headerRoom = 8 << 10

// append writes a commit, as one message, when the expectation holds. It is the
// only function that writes to the log, and Dispatch is its only caller. When
// the answer does not come it finds out what happened: after is a sequence of
// the own subject that the commit cannot be before. Errors: errConflict;
// frame_too_large for what no message can hold, with which nothing is wrong with the
// log; audit_unavailable when the commit is not, or not known to be, in the log.
func (b *Bus) append(ctx context.Context, subject string, c *events.Commit, expect expectation, after uint64) (uint64, error) {
	const op = "append"
	unavailable := func(err error) error {
		return fault.Wrap(op, fault.AuditUnavailable, redact.Static("the log does not take the event"), err)
	}
	buf := bodies.Get().(*[]byte) // nothing keeps it: the connection copies what it sends
	data, err := c.AppendTo((*buf)[:0])
	defer func() {
		if cap(data) <= maxKeptBody {
			*buf = data
			bodies.Put(buf)
		}
	}()
	if err != nil {
		return 0, unavailable(err)
	}
	// The server would end the connection that everybody's appends go through.
	if int64(len(data)) > b.nc.MaxPayload()-headerRoom {
		return 0, fault.New(op, fault.FrameTooLarge, redact.Static("the event is larger than a message may be"))
	}
	if err := b.Damage(); err != nil {
		return 0, err
	}
	if err := b.feed.broken(); err != nil {
		return 0, unavailable(err)
	}
	if err := b.LogErr(); err != nil {
		return 0, unavailable(err)
	}
	// Event data holds 32-bit sequences.
	if b.feed.last() >= math.MaxUint32 {
		return 0, unavailable(errors.New("the log is full"))
	}
	// One header, which is for the server: what else is to be said of the commit is in
	// its body, and each header costs every process that sees the message.
	m := &publication{subject: subject, data: data, last: strconv.FormatUint(expect.last, 10)}
	if expect.subject != subject {
		m.of = expect.subject
	}
	if b.server == nil {
		m.id = ulid.Make().String() // of this append: the same bytes are stored once
	}
	// A caller that gives up must not leave us ignorant of what was written.
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	unknown := false // what was sent may be stored, or on its way
	pause := firstPause
	for try := 0; b.goesOn(try, began); try++ {
		if b.server == nil && try > 0 {
			b.pause(ctx, pause)
			if pause = min(2*pause, lastPause); !unknown {
				pause = firstPause // what is on its way is there in a moment
			}
		}
		// The bytes are sent again only when they are known not to have arrived, for a
		// fence does not move by our own commit.
		if unknown {
			if !b.settle(ctx, subject) {
				continue
			}
			found, e := b.find(ctx, subject, after, data)
			if found != nil {
				return found.seq, nil
			}
			if err = e; b.passing(err) {
				continue
			}
			if err != nil {
				return 0, unavailable(err)
			}
		}
		var seq uint64
		seq, err = b.publish(ctx, m)
		switch {
		case err == nil:
			return seq, nil
		case errors.Is(err, errConflict) && unknown:
			// What was on its way may have come in between.
			if found, e := b.find(ctx, subject, after, data); e != nil {
				err = e
				continue
			} else if found != nil {
				return found.seq, nil
			}
			return 0, errConflict
		case errors.Is(err, errConflict):
			return 0, errConflict
		case errors.Is(err, errOnItsWay):
			continue
		case b.passing(err):
		case !errors.Is(err, context.DeadlineExceeded), !b.storeWell():
			b.silent(subject, err)
			return 0, unavailable(err)
		}
		unknown = true
	}
	if errors.Is(err, errOnItsWay) && !unknown {
		return 0, errConflict // nothing is wrong with the log
	}
	b.silent(subject, err)
	return 0, unavailable(err)
}

// publication is a message for the log.
type publication struct {
	subject string
	data    []byte
	// last is the expected last sequence of the subject, or of another one where of is
	// set, or of the whole log.
	last  string
	of    string
	whole bool
	id    string // by which the server knows it again; empty for none
}

// headers gives f what the server is to read of it.
func (p *publication) headers(f func(name, value string)) {
	if p.whole {
		f(jetstream.ExpectedLastSeqHeader, p.last)
	} else {
		f(jetstream.ExpectedLastSubjSeqHeader, p.last)
	}
	if p.of != "" {
		f(jetstream.ExpectedLastSubjSeqSubjHeader, p.of)
	}
	if p.id != "" {
		f(jetstream.MsgIDHeader, p.id)
	}
}

// maxTries bounds what is tried while an embedded log does not answer.
const maxTries = 4

// goesOn bounds the tries of an append.
func (b *Bus) goesOn(try int, began time.Time) bool {
	if b.server == nil {
		return try == 0 || b.ctx.Err() == nil && time.Since(began) < patience
	}
	return try < maxTries
}

// publish is one try of an append.
func (b *Bus) publish(ctx context.Context, m *publication) (uint64, error) {
	seq, err := b.appends.publish(ctx, b.timeout, m)
	if err == nil {
		return seq, nil
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch e.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence:
			return 0, errConflict
		case jetstream.JSErrCodeStreamWrongLastSequenceConstant, duplicateOnItsWay:
			return 0, errOnItsWay
		}
	}
	return 0, err
}

// duplicateOnItsWay is the answer to bytes whose first copy is on its way.
const duplicateOnItsWay = 10158

// settle reports whether everything sent to the log before it was either stored
// or refused: an impossible expectation is answered in its turn.
func (b *Bus) settle(ctx context.Context, subject string) bool {
	_, err := b.publish(ctx, &publication{subject: subject, last: strconv.FormatUint(math.MaxUint64, 10), whole: true})
	return errors.Is(err, errConflict)
}

// find looks for the very bytes behind the sequence.
func (b *Bus) find(ctx context.Context, subject string, after uint64, data []byte) (*message, error) {
	for {
		batch, err := b.fetch(ctx, subject, after+1)
		if err != nil || len(batch) == 0 {
			return nil, err
		}
		for _, m := range batch {
			if bytes.Equal(m.data, data) {
				return &m, nil
			}
			after = m.seq
		}
	}
}

// message is one stored message of the log.
type message struct {
	subject string
	seq     uint64
	data    []byte
	time    int64 // when it was stored, in nanoseconds since 1970
	header  nats.Header
}

// commit decodes the message and checks that it is where it belongs.
func (m message) commit() (*events.Commit, error) {
	c, err := events.Decode(m.seq, m.data)
	if errors.Is(err, events.ErrUnknown) {
		return nil, err
	}
	if err != nil {
		return nil, damaged(m.seq, err)
	}
	if subjectOf(c.Workspace, c.Aggregate) != m.subject {
		return nil, damaged(m.seq, fmt.Errorf("%s of %s lies on %s", c.Aggregate, c.Workspace, m.subject))
	}
	return c, nil
}

func damaged(seq uint64, err error) error {
	return fault.Wrap("read log", fault.AuditDamaged, redact.Name(fmt.Sprintf("the log is damaged at sequence %d", seq)), err)
}

const (
	// fetchSize is how many messages are asked for at a time, fetchBytes how many
	// bytes: a large message more is what the connection can hold back.
	fetchSize  = 500
	fetchBytes = 2 * maxPayload
)

// fetch gets at most fetchSize messages of one subject from a sequence on,
// straight from the store. Its cost goes with what it finds. Nothing stored
// before is missing, so a replicated log is asked at its leader, which gives one
// message at a time: any other server may lag behind.
func (b *Bus) fetch(ctx context.Context, subject string, from uint64) ([]message, error) {
	if b.replicated {
		m, err := b.leaders(ctx, subject, from)
		if m == nil {
			return nil, err
		}
		return []message{*m}, nil
	}
	got, err := b.ask(ctx, "$JS.API.DIRECT.GET."+eventStream, fetchSize+1, // and the end
		map[string]any{"seq": from, "batch": fetchSize, "next_by_subj": subject, "max_bytes": fetchBytes})
	if err != nil {
		return nil, err
	}
	batch := make([]message, len(got))
	for i, m := range got {
		seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
		if err != nil {
			return nil, err
		}
		batch[i] = message{subject: m.Header.Get(jetstream.SubjectHeader), seq: seq, data: m.Data}
	}
	return batch, nil
}

// leaders is the first message of a subject from a sequence on, nil when the
// leader has none.
func (b *Bus) leaders(ctx context.Context, subject string, from uint64) (*message, error) {
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	m, err := b.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+eventStream, request)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Data    []byte    `json:"data"`
			Header  []byte    `json:"hdrs"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, err
	}
	if e := answer.Error; e != nil {
		if e.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, e
	}
	got := message{subject: answer.Message.Subject, seq: answer.Message.Seq, data: answer.Message.Data, time: answer.Message.Time.UnixNano()}
	if len(answer.Message.Header) > 0 {
		if got.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, err
		}
	}
	return &got, nil
}

// ask sends a request that is answered by at most n messages; fewer when a
// status ends them.
func (b *Bus) ask(ctx context.Context, subject string, n int, request map[string]any) ([]*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	data, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	if err := b.nc.PublishRequest(subject, inbox, data); err != nil {
		return nil, err
	}
	var got []*nats.Msg
	for len(got) < n {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		status := m.Header.Get("Status")
		switch {
		case status == "" || len(m.Data) > 0:
			got = append(got, m)
		case status == "204" || status == "404": // the end; nothing there
			return got, nil
		case len(got) > 0 && (status == "408" || status == "409"): // no more there; enough bytes
			return got, nil
		default:
			return nil, fmt.Errorf("%s answers %s %s", subject, status, m.Header.Get("Description"))
		}
	}
	return got, nil
}

// Read yields the commits after a sequence, in order, up to the one that is last
// when it is called. It ends at the first error: audit_damaged when a sequence
// is missing, or is no commit, or lies on a subject that is not its own;
// events.ErrUnknown when a commit is of a newer program. With durability power it
// yields nothing that is not on the disk.
func (b *Bus) Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		head, err := b.stored(ctx)
		if err == nil {
			if err = b.durable(eventStream); err != nil && b.open.Load() {
				head, err = b.Head(), nil // what was given out is durable
			}
		}
		if err != nil {
			yield(nil, err)
			return
		}
		b.read(ctx, after, head, yield)
	}
}

// read yields the commits (after, head]; false when it ended early.
func (b *Bus) read(ctx context.Context, after, head uint64, yield func(*events.Commit, error) bool) bool {
	return b.readRecords(ctx, after, head, func(m message, err error) bool {
		var c *events.Commit
		if err == nil {
			c, err = m.commit()
		}
		return yield(c, err) && err == nil
	})
}

// readRecords yields the messages (after, head] as they are stored; false when it
// ended early.
func (b *Bus) readRecords(ctx context.Context, after, head uint64, yield func(message, error) bool) bool {
	began := time.Now()
	for after < head {
		last, err := b.readOnce(ctx, after, head, yield)
		if errors.Is(err, errEnough) {
			return false
		}
		if last > after {
			after, began = last, time.Now()
		}
		if err == nil || b.passing(err) && time.Since(began) < patience && b.pause(ctx, lastPause) {
			continue
		}
		yield(message{}, asFault("read log", fault.AuditUnavailable, redact.Static("the log cannot be read"), err))
		return false
	}
	return true
}

// errEnough says that a reader wants no more.
var errEnough = errors.New("bus: enough")

// readOnce is readRecords until an error, with the last sequence that it yielded. It uses
// a consumer of its own without any state to keep, which for a long range costs
// less than half of direct gets.
func (b *Bus) readOnce(ctx context.Context, after, head uint64, yield func(message, error) bool) (uint64, error) {
	var consumer jetstream.Consumer
	if err := b.briefly(ctx, func(ctx context.Context) (err error) {
		consumer, err = b.js.CreateConsumer(ctx, eventStream, jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
			MemoryStorage: true, InactiveThreshold: time.Hour,
		})
		return err
	}); err != nil {
		return after, err
	}
	name := consumer.CachedInfo().Name
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		if err := b.js.DeleteConsumer(ctx, eventStream, name); err != nil && !b.nc.IsClosed() {
			b.log.Warn("consumer not deleted", "error", err.Error())
		}
	}()
	for after < head {
		n := int(min(head-after, fetchSize))
		got, err := b.ask(ctx, "$JS.API.CONSUMER.MSG.NEXT."+eventStream+"."+name, n,
			map[string]any{"batch": n, "no_wait": true, "max_bytes": fetchBytes})
		if err != nil {
			return after, err
		}
		batch, err := followers(got)
		if err != nil {
			return after, err
		}
		if len(batch) == 0 {
			missing, err := b.hole(ctx, after+1, errors.New("nothing is stored there"))
			if err != nil {
				return after, err
			}
			batch = append(batch, missing)
		}
		for i := 0; i < len(batch); i++ {
			m := batch[i]
			if m.seq <= after && b.replicated {
				continue // the leader gave it before
			}
			if m.seq != after+1 {
				if m, err = b.hole(ctx, after+1, fmt.Errorf("%d follows %d", m.seq, after)); err != nil {
					return after, err
				}
				i-- // and once more the one behind it
			}
			if !yield(m, nil) {
				return after, errEnough
			}
			after = m.seq
		}
	}
	return after, nil
}

// hole is asked for what a reader did not get. What is not there either when it is
// asked for by itself is damage; answers to a reader get lost when its connection
// does. On a replicated log the server that was asked may lag behind, or lack what
// its leader has; and a leader that was replaced without knowing it can say for a
// moment that there is nothing.
func (b *Bus) hole(ctx context.Context, seq uint64, why error) (message, error) {
	for began := time.Now(); ; {
		m, err := b.leaders(ctx, eventSubjects, seq)
		if m != nil && m.seq == seq {
			return *m, nil
		}
		late := time.Since(began) >= patience
		switch {
		case err != nil && (late || !b.passing(err)):
			return message{}, err
		case err == nil && (late || !b.replicated):
			return message{}, damaged(seq, why)
		}
		if !b.pause(ctx, lastPause) {
			return message{}, errors.Join(err, ctx.Err(), b.ctx.Err())
		}
	}
}

// followers are the messages of a consumer.
func followers(got []*nats.Msg) ([]message, error) {
	batch := make([]message, len(got))
	for i, m := range got {
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		batch[i] = message{m.Subject, meta.Sequence.Stream, m.Data, meta.Timestamp.UnixNano(), m.Header}
	}
	return batch, nil
}

// stored is the last sequence in the store.
func (b *Bus) stored(ctx context.Context) (uint64, error) {
	state, err := b.streamState(ctx)
	return state.LastSeq, err
}

// Size is what the log takes on disk, in bytes.
func (b *Bus) Size(ctx context.Context) (uint64, error) {
	state, err := b.streamState(ctx)
	return state.Bytes, err
}

// streamState asks the server, the leader of a cluster, for the state of the
// log's stream.
func (b *Bus) streamState(ctx context.Context) (jetstream.StreamState, error) {
	var s jetstream.Stream
	err := b.patiently(ctx, func() error {
		return b.briefly(ctx, func(ctx context.Context) (err error) {
			s, err = b.js.Stream(ctx, eventStream)
			return err
		})
	})
	if err != nil {
		return jetstream.StreamState{}, asFault("read log", fault.AuditUnavailable, redact.Static("the log cannot be read"), err)
	}
	return s.CachedInfo().State, nil
}

// Head is the last sequence up to which every commit is known here; 0 on an
// empty log and before Load.
func (b *Bus) Head() uint64 { return b.feed.last() }

// Known is the sequence of the newest commit that the tables have. It is what to
// wait for before a projection is asked about something that a table has shown: a
// commit that overtook another is folded here before followers get either.
func (b *Bus) Known() uint64 { return b.known.Load() }
