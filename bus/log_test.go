package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

func TestReadBeginsBehindASequence(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	const n = 2*fetchSize + 7
	for i := range n {
		b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	for _, after := range []uint64{0, 1, fetchSize, n - 1, n, n + 5} {
		next := after + 1
		for c, err := range b.Read(context.Background(), after) {
			if err != nil {
				t.Fatal(err)
			}
			if c.Seq != next {
				t.Fatalf("%d follows %d", c.Seq, next-1)
			}
			next++
		}
		if want := max(after, n) + 1; next != want {
			t.Errorf("after %d: ended before %d, want %d", after, next, want)
		}
	}
	for range b.Read(context.Background(), 0) {
		break // leaves nothing behind
	}
	s, err := b.js.Stream(context.Background(), eventStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Consumers; n != 0 {
		t.Errorf("%d consumers are left", n)
	}
}

// readError is what a reader of the whole log ends with, and behind which commit.
func readError(b *Bus) (last uint64, err error) {
	for c, err := range b.Read(context.Background(), 0) {
		if err != nil {
			return last, err
		}
		last = c.Seq
	}
	return last, nil
}

func TestReaderStopsAtWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	good := events.Commit{Command: "01C", Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindSession, Key: "s1"}, Events: []events.Event{touched()}}
	data, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	home := subjectOf("default", good.Aggregate)
	for name, c := range map[string]struct {
		subject string
		data    []byte
		kind    fault.Kind
	}{
		"on another boundary":  {subjectOf("default", events.AggregateID{Kind: events.KindSession, Key: "s2"}), data, fault.AuditDamaged},
		"in another workspace": {subjectOf("other", good.Aggregate), data, fault.AuditDamaged},
		"on no boundary":       {"gatebus.default.evt.x", data, fault.AuditDamaged},
		"no commit":            {home, []byte("\xff\xff"), fault.AuditDamaged},
		"nothing":              {home, nil, fault.AuditDamaged},
		// A field that no commit of this release has.
		"of a newer release": {home, append(bytes.Clone(data), 0xfa, 0x7f, 0x01, 'x'), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, Options{})
			b.do(t, "s1", Meta{}, "touch")
			b.raw(t, c.subject, c.data)
			last, err := readError(b.Bus)
			if last != 1 {
				t.Errorf("read up to %d", last)
			}
			if c.kind == "" {
				if !errors.Is(err, events.ErrUnknown) {
					t.Errorf("error %v", err)
				}
				return
			}
			wantKind(t, err, c.kind)
		})
	}
}

// A flipped bit makes the server skip a message in silence: the reader sees it.
func TestDamagedStoreIsNotRead(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, block string){
		"a flipped bit": func(t *testing.T, block string) {
			data, err := os.ReadFile(block)
			if err != nil {
				t.Fatal(err)
			}
			// In the text of an event: in the length of a record it can make the server
			// index the block for ever.
			at := len(data)/2 + bytes.Index(data[len(data)/2:], []byte("touch"))
			data[at] ^= 1
			if err := os.WriteFile(block, data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a lost block": func(t *testing.T, block string) {
			if err := os.Remove(block); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			b := open(t, Options{Home: home})
			for i := range 100 {
				b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
			}
			shut(t, b.Bus)
			blocks, err := filepath.Glob(filepath.Join(home, "bus", "jetstream", "*", "streams", eventStream, "msgs", "1.blk"))
			if err != nil || len(blocks) != 1 {
				t.Fatal(blocks, err)
			}
			damage(t, blocks[0])

			damaged, err := Open(context.Background(), Options{Home: home})
			if err != nil { // the server has seen it itself
				wantKind(t, err, fault.AuditDamaged)
				return
			}
			defer shut(t, damaged)
			tb := register(damaged)
			wantKind(t, damaged.Load(context.Background()), fault.AuditDamaged)
			_, err = tb.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "touch")
			wantKind(t, err, fault.AuditUnavailable)
		})
	}
}

func TestWeakenedStreamIsRefused(t *testing.T) {
	t.Parallel()
	for name, weaken := range map[string]func(*jetstream.StreamConfig){
		"an age":    func(c *jetstream.StreamConfig) { c.MaxAge = 1 << 40 },
		"a limit":   func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 },
		"a subject": func(c *jetstream.StreamConfig) { c.Subjects = []string{"gatebus.default.evt.>"} },
		"a copy":    func(c *jetstream.StreamConfig) { c.RePublish = &jetstream.RePublish{Source: ">", Destination: "x.>"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			b := open(t, Options{Home: home})
			c := eventConfig
			weaken(&c)
			if _, err := b.js.UpdateStream(context.Background(), c); err != nil {
				t.Fatal(err)
			}
			shut(t, b.Bus)
			_, err := Open(context.Background(), Options{Home: home})
			wantKind(t, err, fault.BusWeakened)
			if !strings.Contains(err.Error(), eventStream) {
				t.Errorf("the text does not name the stream: %v", err)
			}
		})
	}
}

// Decision 17: what may be raw is captured by no stream.
func TestStreamThatCapturesWhatMayBeRawIsRefused(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{"gatebus.default.cmd.ana.tool.call", "gatebus.*.conn.>", "_INBOX.x.*"} {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			b := open(t, Options{Home: home})
			if _, err := b.js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{subject}}); err != nil {
				t.Fatal(err)
			}
			shut(t, b.Bus)
			_, err := Open(context.Background(), Options{Home: home})
			wantKind(t, err, fault.BusWeakened)
		})
	}
}

func TestSubjectsNameTheBoundary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind      events.Kind
		key, want string
	}{
		{events.KindGrant, "ana", "gatebus.default.evt.grant.c5n62"},
		{events.KindGrant, "Ana.*>", "gatebus.default.evt.grant.85n62bha7o"},
		{events.KindCall, "01J0000000000000000000000A", "gatebus.default.evt.call.5a"},
	} {
		if got := subjectOf("default", events.AggregateID{Kind: c.kind, Key: c.key}); got != c.want {
			t.Errorf("%s %s is on %s, want %s", c.kind, c.key, got, c.want)
		}
	}
	long := subjectOf("default", events.AggregateID{Kind: events.KindCore, Key: strings.Repeat("/core", 40)})
	if n := len(long) - len("gatebus.default.evt.core."); n != 64 {
		t.Errorf("a long key has %d characters", n)
	}
	shards := make(map[string]bool)
	for i := range 10000 {
		shards[subjectOf("default", events.AggregateID{Kind: events.KindCall, Key: fmt.Sprint(i)})] = true
	}
	if len(shards) != 256 {
		t.Errorf("%d shards", len(shards))
	}
}
