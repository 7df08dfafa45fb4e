package events

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/internal/eventspb"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	schemaDir = "../schemas/json/events"
	goldenDir = "../testdata/golden"
	tableFile = "../testdata/events.txt"
)

// same compares commits; the log does not tell an empty list from none.
var same = cmp.Options{
	cmp.Comparer(func(a, b redact.EventText) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

var textType = reflect.TypeFor[redact.EventText]()

// fill sets every field of v, and of what it holds, to what the makers say.
func fill(v reflect.Value, path string, text func(path string) string, number func(path string) int64, length func(path string) int) {
	switch {
	case v.Type() == textType:
		v.Set(reflect.ValueOf(redact.FromStored(text(path))))
	case v.Kind() == reflect.String:
		v.SetString(text(path))
	case v.Kind() == reflect.Bool:
		v.SetBool(number(path)%2 != 0)
	case v.Kind() == reflect.Uint32:
		v.SetUint(uint64(uint32(number(path))))
	case v.Kind() == reflect.Int32:
		v.SetInt(int64(int32(number(path))))
	case v.Kind() == reflect.Slice:
		n := length(path)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), fmt.Sprintf("%s[%d]", path, i), text, number, length)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name, text, number, length)
		}
	default:
		panic("an event has a field of type " + v.Type().String())
	}
}

// zero is the event without any field set.
func (b binding) zero(t testing.TB) Event {
	t.Helper()
	e, err := b.decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// drawn is an event with whatever fields rapid likes.
func (b binding) drawn(t testing.TB, r *rapid.T) Event {
	v := reflect.New(reflect.TypeOf(b.zero(t))).Elem()
	fill(v, b.name,
		func(path string) string { return rapid.String().Draw(r, path) },
		func(path string) int64 { return rapid.Int64().Draw(r, path) },
		func(path string) int { return rapid.IntRange(0, 3).Draw(r, path) })
	return v.Interface().(Event)
}

// sample is the event of the golden encoding: every field is set, to a text that
// names it or a number of its own, and every list has two elements.
func (b binding) sample(t testing.TB) Event {
	t.Helper()
	v := reflect.New(reflect.TypeOf(b.zero(t))).Elem()
	n := int64(-1)
	fill(v, b.name,
		func(path string) string { return path + " é世🚌" },
		func(string) int64 { n += 2; return n },
		func(string) int { return 2 })
	return v.Interface().(Event)
}

var sampleTime = time.Date(2026, 11, 29, 12, 34, 56, 789012345, time.UTC)

// sampleCommit is the commit of the golden encoding.
func sampleCommit(kind Kind, list ...Event) Commit {
	return Commit{
		Seq: 7, Command: "m-1", Correlation: "f-1", Actor: "local", Principal: "ana", Workspace: "default",
		Aggregate: AggregateID{Kind: kind, Key: "k-1"}, Time: sampleTime,
		Scope:  Scope{Session: "s-1", Turn: "t-1", Connection: "c-1", Call: "k-1", Server: "docs", Core: "core"},
		Events: list,
	}
}

func mustEncode(t testing.TB, c Commit) []byte {
	t.Helper()
	b, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What the writer accepts the reader can decode, for every event of the table,
// on every kind of aggregate that has it, with any envelope (report 64).
func TestEveryEventRoundTrips_R211(t *testing.T) {
	t.Parallel()
	for _, b := range registry {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				text := func(name string) string { return rapid.String().Draw(r, name) }
				want := Commit{
					Seq: rapid.Uint64().Draw(r, "seq"), Command: text("command"), Correlation: text("correlation"),
					Actor: text("actor"), Principal: text("principal"), Workspace: text("workspace"),
					Aggregate: AggregateID{
						Kind: rapid.SampledFrom(b.kinds).Draw(r, "kind"),
						Key:  rapid.StringN(1, 20, -1).Draw(r, "key"),
					},
					Time: time.Unix(0, rapid.Int64().Draw(r, "time")).UTC(),
					Scope: Scope{
						Session: text("session"), Turn: text("turn"), Connection: text("connection"),
						Call: text("call"), Server: text("server"), Core: text("core"),
					},
				}
				for range rapid.IntRange(1, 3).Draw(r, "events") {
					want.Events = append(want.Events, b.drawn(t, r))
				}
				body, err := want.Encode()
				if err != nil {
					r.Fatal(err)
				}
				got, err := Decode(want.Seq, body)
				if err != nil {
					r.Fatal(err)
				}
				if diff := cmp.Diff(want, *got, same); diff != "" {
					r.Fatalf("a commit changed in the log (-want +got):\n%s", diff)
				}
				again, err := got.Encode()
				if err != nil || !bytes.Equal(again, body) {
					r.Fatalf("a commit read and written again has other bytes (%v)", err)
				}
			})
		})
	}
}

// messageOf is an empty message of the event's type.
func messageOf(t testing.TB, e Event) proto.Message {
	t.Helper()
	m, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("gatebus.v1." + reflect.TypeOf(e).Name()))
	if err != nil {
		t.Fatal(err)
	}
	return m.New().Interface()
}

// What is written here by hand is what protobuf's own encoders write.
func TestEncodersWriteWhatThoseOfProtobufWrite(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, e Event) error {
		var w wire
		e.wire(&w)
		m := messageOf(t, e)
		if err := proto.Unmarshal(w.b, m); err != nil {
			return err
		}
		if want, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil || !bytes.Equal(w.b, want) {
			return fmt.Errorf("%+v: %x, want %x, %v", e, w.b, want, err)
		}
		loose, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
		if err != nil {
			return err
		}
		var want bytes.Buffer // protojson varies its white space on purpose
		if err := json.Compact(&want, loose); err != nil {
			return err
		}
		if got, err := JSON(e); err != nil || string(got) != want.String() {
			return fmt.Errorf("%+v: %s, want %s, %v", e, got, &want, err)
		}
		return nil
	}
	for _, b := range registry {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for _, e := range []Event{b.zero(t), b.sample(t)} {
				if err := check(t, e); err != nil {
					t.Error(err)
				}
			}
			rapid.Check(t, func(r *rapid.T) {
				if err := check(t, b.drawn(t, r)); err != nil {
					r.Fatal(err)
				}
			})
		})
	}
	every := make([]rune, 0, 0x300)
	for r := range rune(0x300) {
		every = append(every, r)
	}
	if err := check(t, CallQueued{WaitsFor: string(every) + "\u2028\u2029\ufffd\ufeff\U0010ffff"}); err != nil {
		t.Error(err)
	}
	if text, err := JSON(CallQueued{WaitsFor: "\xff"}); err == nil {
		t.Errorf("text that is no UTF-8 became %s", text)
	}
}

// A struct field that the message lacks, or the other way round, would be lost
// without a word (report 64).
func TestEventStructsAndMessagesHaveTheSameFields_R211(t *testing.T) {
	t.Parallel()
	var check func(t *testing.T, s reflect.Type, m protoreflect.MessageDescriptor)
	check = func(t *testing.T, s reflect.Type, m protoreflect.MessageDescriptor) {
		fields := m.Fields()
		if s.NumField() != fields.Len() {
			t.Errorf("%s has %d fields, message %s has %d", s, s.NumField(), m.FullName(), fields.Len())
		}
		for i := range fields.Len() {
			f := fields.Get(i)
			name := strings.ReplaceAll(string(f.Name()), "_", "")
			g, ok := s.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
			if !ok {
				t.Errorf("%s has no field for %s", s, f.FullName())
				continue
			}
			if f.Message() != nil {
				inner := g.Type
				if f.IsList() {
					inner = inner.Elem()
				}
				check(t, inner, f.Message())
			}
		}
	}
	for _, b := range registry {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			e := b.zero(t)
			if e.EventName() != b.name || e.EventVersion() != b.version {
				t.Errorf("the row %s version %d decodes to %s version %d", b.name, b.version, e.EventName(), e.EventVersion())
			}
			check(t, reflect.TypeOf(e), messageOf(t, e).ProtoReflect().Descriptor())
		})
	}
}

// noLoader keeps schemas to themselves: nothing is fetched, no file is read.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) { return nil, fmt.Errorf("no loading of %s", url) }

func readSchema(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(filepath.Join(schemaDir, name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	compiler.DefaultDraft(jsonschema.Draft2020)
	if err := compiler.AddResource("event:"+name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("event:" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestJSONOfEveryEventIsValidAgainstItsSchema(t *testing.T) {
	t.Parallel()
	for _, b := range registry {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			schema := readSchema(t, b.name)
			parse := func(e Event) map[string]any {
				text, err := JSON(e)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.ContainsAny(text, "\n\t") {
					t.Fatalf("the JSON of %s is not compact: %s", b.name, text)
				}
				v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				return v.(map[string]any)
			}
			for _, e := range []Event{b.zero(t), b.sample(t)} {
				if err := schema.Validate(parse(e)); err != nil {
					t.Errorf("%+v: %v", e, err)
				}
			}
			rapid.Check(t, func(r *rapid.T) {
				if err := schema.Validate(parse(b.drawn(t, r))); err != nil {
					r.Fatal(err)
				}
			})
			// A schema that allows everything would pass all of the above.
			for field := range parse(b.sample(t)) {
				v := parse(b.sample(t))
				delete(v, field)
				if schema.Validate(v) == nil {
					t.Errorf("the schema does not miss %s", field)
				}
				v[field] = nil
				if schema.Validate(v) == nil {
					t.Errorf("the schema takes null for %s", field)
				}
			}
			v := parse(b.sample(t))
			v["raw"] = "x"
			if schema.Validate(v) == nil {
				t.Error("the schema takes a field that the event does not have")
			}
		})
	}
}

func TestNoSchemaWithoutEventNorEventWithoutSchema(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir(schemaDir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range files {
		have = append(have, strings.TrimSuffix(f.Name(), ".schema.json"))
	}
	slices.Sort(have)
	if diff := cmp.Diff(Names(), have); diff != "" {
		t.Errorf("events (-) and schemas (+) differ:\n%s", diff)
	}
}

// The closed list is written down once more, by hand: an event that appears or
// vanishes, changes its version or moves to another kind of aggregate shows here.
func TestTheTableOfEventsIsClosed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			want = append(want, line)
		}
	}
	var got []string
	for _, b := range registry {
		line := fmt.Sprintf("%s %d", b.name, b.version)
		for _, k := range b.kinds {
			line += " " + string(k)
		}
		got = append(got, line)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-) and the registry (+) differ:\n%s", tableFile, diff)
	}
	var names []string
	for _, line := range want {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	if diff := cmp.Diff(names, Names()); diff != "" {
		t.Errorf("%s (-) and Names (+) differ:\n%s", tableFile, diff)
	}
}

// The bytes of a commit are the contract with every log that exists: they change
// only when somebody says so with -update.
func TestGoldenEncodings(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, b := range registry {
		want[b.name+".hex"] = true
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			c := sampleCommit(b.kinds[0], b.sample(t))
			body := mustEncode(t, c)
			path := filepath.Join(goldenDir, b.name+".hex")
			if *Update {
				if err := os.WriteFile(path, lines(hex.EncodeToString(body)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden := readGolden(t, path)
			if !bytes.Equal(golden, body) {
				t.Errorf("the encoding of %s changed; -update if that is meant", b.name)
			}
			got, err := Decode(c.Seq, golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c, *got, same); diff != "" {
				t.Errorf("the golden commit decodes to something else (-want +got):\n%s", diff)
			}
		})
	}
	files, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !want[f.Name()] {
			t.Errorf("%s is the golden encoding of no event", f.Name())
		}
	}
}

// lines breaks a long text into lines of 96 characters.
func lines(s string) []byte {
	var b bytes.Buffer
	for part := range slices.Chunk([]byte(s), 96) {
		b.Write(part)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func readGolden(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// stranger is an event that is not in the table.
type stranger struct{ CallQueued }

func (stranger) EventName() string { return "call_teleported" }

func TestEncodeRefusesWhatDecodeCannotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Commit{
		"no events":         sampleCommit(KindCall),
		"no key":            {Aggregate: AggregateID{Kind: KindCall}, Events: []Event{CallQueued{}}},
		"no kind":           {Aggregate: AggregateID{Key: "k-1"}, Events: []Event{CallQueued{}}},
		"unknown kind":      sampleCommit("planet", CallQueued{}),
		"wrong kind":        sampleCommit(KindHost, CallQueued{}),
		"one of wrong kind": sampleCommit(KindCall, CallQueued{}, TurnEnded{}),
		"unknown event":     sampleCommit(KindCall, stranger{}),
		"invalid UTF-8":     sampleCommit(KindCall, CallQueued{WaitsFor: "\xff"}),
	} {
		if body, err := c.Encode(); err == nil {
			t.Errorf("%s: encoded to %x", name, body)
		}
	}
}

func TestDecodeStopsAtWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	entry := func(e Event) *eventspb.Entry {
		var w wire
		e.wire(&w)
		return &eventspb.Entry{Name: e.EventName(), Version: e.EventVersion(), Data: w.b}
	}
	commit := func(kind string, change func(*eventspb.Commit), list ...Event) []byte {
		m := &eventspb.Commit{Aggregate: kind + "/k-1", Scope: &eventspb.Scope{}}
		for _, e := range list {
			m.Entries = append(m.Entries, entry(e))
		}
		if change != nil {
			change(m)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	later := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "from a later version")
	whole := mustEncode(t, sampleCommit(KindCall, CallQueued{WaitsFor: "connection"}))

	for _, c := range []struct {
		name    string
		body    []byte
		unknown bool
	}{
		{"name", commit("call", func(m *eventspb.Commit) { m.Entries[0].Name = "call_teleported" }, CallQueued{}), true},
		{"no name", commit("call", func(m *eventspb.Commit) { m.Entries[0].Name = "" }, CallQueued{}), true},
		{"version", commit("call", func(m *eventspb.Commit) { m.Entries[0].Version = 2 }, CallQueued{}), true},
		{"no version", commit("call", func(m *eventspb.Commit) { m.Entries[0].Version = 0 }, CallQueued{}), true},
		{"second event", commit("call", func(m *eventspb.Commit) { m.Entries[1].Name = "x" }, CallQueued{}, CallStarted{}), true},
		{"kind of aggregate", commit("planet", nil, CallQueued{}), true},
		{"event of another kind", commit("host", nil, CallQueued{}), true},
		{"field of the event", commit("call", func(m *eventspb.Commit) { m.Entries[0].Data = append(m.Entries[0].Data, later...) }, CallQueued{}), true},
		{"field inside the event", commit("policy", func(m *eventspb.Commit) {
			p := &eventspb.PolicySet{After: &eventspb.Policy{}}
			p.After.ProtoReflect().SetUnknown(later)
			m.Entries[0].Data, _ = proto.Marshal(p)
		}, PolicySet{}), true},
		{"field inside a list of the event", commit("connection", func(m *eventspb.Commit) {
			p := &eventspb.ToolsDiscovered{Tools: []*eventspb.ToolDigest{{}, {}}}
			p.Tools[1].ProtoReflect().SetUnknown(later)
			m.Entries[0].Data, _ = proto.Marshal(p)
		}, ToolsDiscovered{}), true},
		{"field of the commit", append(commit("call", nil, CallQueued{}), later...), true},
		{"field of the scope", commit("call", func(m *eventspb.Commit) { m.Scope.ProtoReflect().SetUnknown(later) }, CallQueued{}), true},
		{"field of the entry", commit("call", func(m *eventspb.Commit) { m.Entries[0].ProtoReflect().SetUnknown(later) }, CallQueued{}), true},

		{"nothing", nil, false},
		{"no events", commit("call", nil), false},
		{"no aggregate", commit("call", func(m *eventspb.Commit) { m.Aggregate = "" }, CallQueued{}), false},
		{"no key", commit("call", func(m *eventspb.Commit) { m.Aggregate = "call/" }, CallQueued{}), false},
		{"no kind", commit("call", func(m *eventspb.Commit) { m.Aggregate = "/k-1" }, CallQueued{}), false},
		{"no slash", commit("call", func(m *eventspb.Commit) { m.Aggregate = "call" }, CallQueued{}), false},
		{"truncated commit", whole[:len(whole)-1], false},
		{"truncated event", commit("call", func(m *eventspb.Commit) { m.Entries[0].Data = m.Entries[0].Data[:1] }, CallQueued{WaitsFor: "turn"}), false},
		{"not protobuf", []byte("{}"), false},
	} {
		got, err := Decode(3, c.body)
		if err == nil {
			t.Errorf("%s: decoded to %+v", c.name, got)
			continue
		}
		if errors.Is(err, ErrUnknown) != c.unknown {
			t.Errorf("%s: %v; ErrUnknown is %v, want %v", c.name, err, !c.unknown, c.unknown)
		}
	}
	if !strings.Contains(ErrUnknown.Error(), "upgrade") {
		t.Errorf("%q does not say what to do", ErrUnknown)
	}
}

// A commit cut anywhere is an error or, where the cut falls between two fields,
// a commit that lacks the ones after it; it never decodes to the whole.
func TestTruncatedCommitIsNeverTheWhole(t *testing.T) {
	t.Parallel()
	for _, b := range registry {
		want := sampleCommit(b.kinds[0], b.sample(t))
		body := mustEncode(t, want)
		for n := range body {
			if got, err := Decode(want.Seq, body[:n]); err == nil && cmp.Equal(want, *got, same) {
				t.Errorf("%s: %d of %d bytes decode to the whole commit", b.name, n, len(body))
			}
		}
	}
}

func TestAggregateIDIsKindAndKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		want := AggregateID{Kind: KindCall, Key: rapid.StringN(1, -1, -1).Draw(r, "key")}
		if got, err := ParseAggregateID(want.String()); err != nil || got != want {
			r.Fatalf("%q became %v (%v)", want, got, err)
		}
	})
}

func TestRecordedYieldsEventsInOrder(t *testing.T) {
	t.Parallel()
	c := sampleCommit(KindCall, CallRequested{}, CallAuthorized{}, CallStarted{})
	var names []string
	for r := range c.Recorded() {
		if r.Index != len(names) || r.Seq != c.Seq || r.Principal != "ana" {
			t.Errorf("event %d has index %d, sequence %d, principal %q", len(names), r.Index, r.Seq, r.Principal)
		}
		names = append(names, r.Event.EventName())
	}
	want := []string{"call_requested", "call_authorized", "call_started"}
	if !slices.Equal(names, want) || !slices.Equal(c.Names(), want) {
		t.Errorf("recorded %v, names %v, want %v", names, c.Names(), want)
	}
	for range c.Recorded() {
		break // a reader may stop early
	}
}

// Decode never panics, and what it reads can be written and read again.
func FuzzDecode(f *testing.F) {
	for _, b := range registry {
		f.Add(mustEncode(f, sampleCommit(b.kinds[0], b.sample(f))))
		f.Add(mustEncode(f, sampleCommit(b.kinds[0], b.zero(f), b.sample(f))))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := Decode(1, body)
		if err != nil {
			return
		}
		again, err := c.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		d, err := Decode(1, again)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if diff := cmp.Diff(c, d, same); diff != "" {
			t.Fatalf("a commit changed (-first +second):\n%s", diff)
		}
		for _, e := range c.Events {
			if _, err := JSON(e); err != nil {
				t.Fatal(err)
			}
		}
	})
}
