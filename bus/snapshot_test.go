package bus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// dumped is all that a table holds.
type dumped struct {
	Rows  map[string]any
	Ended []Address
	Now   time.Time
	Gone  []Address
}

func (t *Table[S, C]) dump() dumped {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d := dumped{Rows: map[string]any{}, Ended: t.ended, Now: t.now, Gone: t.gone.order}
	for a, r := range t.rows {
		d.Rows[a.Workspace+" "+a.String()] = row[S]{State: r.State, Seq: r.Seq, Commands: r.Commands}
	}
	for _, a := range d.Gone {
		if !t.gone.has(a) {
			panic("the set of those that left lacks one")
		}
	}
	return d
}

// dumpOf is all that the tables of a bus hold, with the ends of the boundaries.
func dumpOf(b *Bus) map[string]any {
	all := map[string]any{}
	for kind, t := range b.tables {
		all[string(kind)] = t.(interface{ dump() dumped }).dump()
	}
	b.boundaries.Range(func(subject, bd any) bool {
		if last := bd.(*boundary).sequence(); last > 0 {
			all[subject.(string)] = last
		}
		return true
	})
	return all
}

// differ compares dumps. An empty slice is none, as for whoever reads it; an empty
// map is not, for it can be written to.
func differ(a, b any) string {
	if reflect.DeepEqual(a, b) {
		return "" // soon
	}
	return cmp.Diff(a, b, cmp.Exporter(func(reflect.Type) bool { return true }), cmp.FilterValues(func(x, y any) bool {
		v, w := reflect.ValueOf(x), reflect.ValueOf(y)
		return v.Kind() == reflect.Slice && w.Kind() == reflect.Slice && v.Len() == 0 && w.Len() == 0
	}, cmp.Comparer(func(any, any) bool { return true })))
}

// folding is a bus without a log.
func folding() *Bus {
	b := &Bus{tables: make(map[events.Kind]folder)}
	b.hosts = Register(b, hostRules)
	return b
}

// reborn has the tables that another bus saves.
func reborn(t testing.TB, from, into *Bus, boundaries map[string]uint64) *Bus {
	t.Helper()
	for kind, table := range from.tables {
		var out bytes.Buffer
		if err := table.save(gob.NewEncoder(&out)); err != nil {
			t.Fatal(err)
		}
		install, err := into.tables[kind].restore(gob.NewDecoder(&out))
		if err != nil {
			t.Fatal(err)
		}
		install()
	}
	for subject, last := range boundaries {
		into.boundary(subject).last = last
	}
	return into
}

func TestSnapshotAndTailEqualTheFoldAtEveryCutOfRecordedHistories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/histories/*/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var commits []*events.Commit
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l struct {
				Seq  uint64
				Body []byte
			}
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatal(err)
			}
			c, err := events.Decode(l.Seq, l.Body)
			if err != nil {
				t.Fatal(err)
			}
			commits = append(commits, c)
		}
		model := func() *Bus {
			b := folding()
			NewModel(b)
			return b
		}
		whole := model()
		for _, c := range commits {
			whole.fold(c)
		}
		want := dumpOf(whole)
		live := model()
		for at := range len(commits) + 1 {
			cut := reborn(t, live, model(), live.beginSnapshot(new(footer)))
			if diff := differ(dumpOf(live), dumpOf(cut)); diff != "" {
				t.Fatalf("%s, restored at %d: %s", file, at, diff)
			}
			if at%5 == 0 { // what is equal folds to what is equal, but for a mistake here
				for _, c := range commits[at:] {
					cut.fold(c)
				}
				if diff := differ(want, dumpOf(cut)); diff != "" {
					t.Fatalf("%s, the tail behind %d: %s", file, at, diff)
				}
			}
			if at < len(commits) {
				live.fold(commits[at])
			}
		}
	}
}

// What is folded while a snapshot is written is not in it.
func TestSnapshotIsOfTheMomentInWhichItBegan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		small := func() *Bus {
			b := folding()
			register(b)
			return b
		}
		var commits []*events.Commit
		now := time.Unix(0, 0).UTC()
		for seq := range uint64(rapid.IntRange(1, 60).Draw(rt, "commits")) {
			now = now.Add(time.Duration(rapid.IntRange(-1, 6).Draw(rt, "minutes")) * time.Minute)
			e := rapid.SampledFrom([]events.Event{
				events.SessionStarted{Label: "x", Reason: "touch"}, events.SessionStarted{Label: "y"}, events.SessionEnded{},
			}).Draw(rt, "event")
			commits = append(commits, &events.Commit{
				Seq: seq + 1, Command: fmt.Sprint(seq % 20), Workspace: "default", Time: now, Events: []events.Event{e},
				Aggregate: events.AggregateID{Kind: events.KindSession, Key: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key")},
			})
		}
		cut := rapid.IntRange(0, len(commits)).Draw(rt, "cut")
		live, moment := small(), small()
		for _, c := range commits[:cut] {
			live.fold(c)
			moment.fold(c)
		}
		boundaries := live.beginSnapshot(new(footer))
		meanwhile := rapid.IntRange(cut, len(commits)).Draw(rt, "meanwhile")
		for _, c := range commits[cut:meanwhile] {
			live.fold(c)
		}
		saved := reborn(t, live, small(), boundaries)
		if diff := differ(dumpOf(moment), dumpOf(saved)); diff != "" {
			rt.Fatal(diff)
		}
		for _, c := range commits[meanwhile:] {
			live.fold(c)
		}
		for _, c := range commits[cut:] {
			saved.fold(c)
		}
		if diff := differ(dumpOf(live), dumpOf(saved)); diff != "" {
			rt.Fatal("the tail: " + diff)
		}
	})
}

func TestSetOfThoseThatLeftIsSavedInItsOrder(t *testing.T) {
	t.Parallel()
	b := folding()
	table := Register(b, sessionRules)
	for i := range maxForgotten + 3 {
		table.gone.add(table.address("default", fmt.Sprint(i)))
	}
	into := folding()
	again := Register(into, sessionRules)
	reborn(t, b, into, b.beginSnapshot(new(footer)))
	if diff := differ(table.dump(), again.dump()); diff != "" {
		t.Error(diff)
	}
	if again.Forgotten("default", "2") || !again.Forgotten("default", "3") {
		t.Error("the oldest is not the one that leaves")
	}
}

func TestStateThatNoSnapshotHoldsIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []any{
		struct{ a int }{}, struct{ A any }{}, struct{ A []struct{ b string } }{}, map[string]redact.EventText{}, struct{ A func() }{},
	} {
		if savable(reflect.TypeOf(s)) == nil {
			t.Errorf("%T can be saved", s)
		}
	}
	if err := savable(reflect.TypeFor[sessionState]()); err != nil {
		t.Error(err)
	}
}

// counted is something kept: how many commits there were.
type counted struct {
	b      *Bus
	n, seq uint64
}

func (k *counted) follow(t testing.TB, upTo uint64) {
	for c, err := range k.b.Follow(t.Context(), k.seq) {
		if err != nil {
			t.Error(err)
			return
		}
		k.n++
		if k.seq = c.Seq; k.seq >= upTo {
			return
		}
	}
}

func (k *counted) Save(w io.Writer) (uint64, error) {
	return k.seq, binary.Write(w, binary.BigEndian, k.n)
}

func (k *counted) Restore(r io.Reader, seq uint64) (func(), error) {
	var n uint64
	err := binary.Read(r, binary.BigEndian, &n)
	return func() { k.n, k.seq = n, seq }, err
}

// kept opens a bus that keeps a count, without an end by itself.
func kept(t testing.TB, home string) (*testBus, *counted) {
	t.Helper()
	b, err := Open(context.Background(), Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	tb, k := register(b), &counted{b: b}
	b.Keep("count", k)
	if err := b.Load(context.Background()); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	return tb, k
}

// wholeOf are the tables folded from the whole log.
func wholeOf(t testing.TB, b *Bus) map[string]any {
	t.Helper()
	whole := folding()
	register(whole)
	for _, c := range commits(t, b) {
		whole.fold(c)
	}
	return dumpOf(whole)
}

func TestLoadGoesOnFromASnapshot(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	defer bubble.Sweep(home)
	b, k := kept(t, home)
	for i := range 30 {
		b.do(t, fmt.Sprint("s", i%7), Meta{Command: fmt.Sprint("c", i)}, "touch")
	}
	k.follow(t, 20)
	if err := b.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		b.do(t, fmt.Sprint("s", i%9), Meta{}, "touch")
	}
	shut(t, b.Bus)

	b, k = kept(t, home)
	defer func() { shut(t, b.Bus) }()
	// What is kept beside the tables was behind, so that another one is due sooner.
	if b.snapshots.last.Load() != 20 || k.seq != 20 || k.n != 20 {
		t.Errorf("loaded from %d; counted %d up to %d", b.snapshots.last.Load(), k.n, k.seq)
	}
	if diff := differ(wholeOf(t, b.Bus), dumpOf(b.Bus)); diff != "" {
		t.Error(diff)
	}
	if b.Head() != 40 || b.Known() != 40 {
		t.Errorf("head %d, known %d", b.Head(), b.Known())
	}
	if k.follow(t, 40); k.n != 40 {
		t.Errorf("counted %d", k.n)
	}
	// What the snapshot knows of commands and boundaries is in force.
	if d := b.do(t, "s1", Meta{Command: "c29"}, "touch"); !d.Repeated || d.Seq != 30 {
		t.Errorf("a repeated command: %+v", d)
	}
	if d := b.do(t, "s1", Meta{}, "touch"); d.Seq != 41 {
		t.Errorf("decided as %d", d.Seq)
	}
}

func TestSnapshotThatCannotBeUsedIsNot(t *testing.T) {
	t.Parallel()
	// sign makes a footer authentic again.
	resign := func(t *testing.T, b *testBus, path string, change func(*footer)) {
		key, err := b.HomeKey(snapshotKeyName)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		size := int(binary.BigEndian.Uint64(data[len(data)-footerTail:]))
		parts, tail := data[:len(data)-footerTail-size], data[len(data)-footerTail-size:]
		var end footer
		if err := json.Unmarshal(tail[:size], &end); err != nil {
			t.Fatal(err)
		}
		change(&end)
		foot, err := json.Marshal(end)
		if err != nil {
			t.Fatal(err)
		}
		foot = binary.BigEndian.AppendUint64(foot, uint64(len(foot)))
		if err := os.WriteFile(path, append(append(parts, foot...), authentic(key, foot)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flip := func(at func(size int) int) func(*testing.T, *testBus, string) {
		return func(t *testing.T, _ *testBus, path string) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[at(len(data))] ^= 1
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(t *testing.T, b *testBus, path string){
		"a bit of a part":     flip(func(int) int { return 10 }),
		"a bit of the footer": flip(func(size int) int { return size - footerTail - 20 }),
		"a bit of its length": flip(func(size int) int { return size - footerTail }),
		"a bit of its proof":  flip(func(size int) int { return size - 1 }),
		"cut":                 func(_ *testing.T, _ *testBus, path string) { os.Truncate(path, 200) },
		"empty":               func(_ *testing.T, _ *testBus, path string) { os.Truncate(path, 0) },
		"another program":     func(t *testing.T, b *testBus, path string) { resign(t, b, path, func(f *footer) { f.Program = "x" }) },
		"another format":      func(t *testing.T, b *testBus, path string) { resign(t, b, path, func(f *footer) { f.Format++ }) },
		"another log": func(t *testing.T, b *testBus, path string) {
			resign(t, b, path, func(f *footer) { f.Log = f.Log.Add(1) })
		},
		"another message":       func(t *testing.T, b *testBus, path string) { resign(t, b, path, func(f *footer) { f.Message[0] ^= 1 }) },
		"a commit that is lost": func(t *testing.T, b *testBus, path string) { resign(t, b, path, func(f *footer) { f.Top += 100 }) },
		"a part too few": func(t *testing.T, b *testBus, path string) {
			resign(t, b, path, func(f *footer) { f.Parts[0].Name = "other" })
		},
		"of another home": func(t *testing.T, b *testBus, path string) {
			other, k := kept(t, t.TempDir())
			defer bubble.Sweep(other.opts.Home)
			defer shut(t, other.Bus)
			for range 20 {
				other.do(t, "s1", Meta{}, "touch")
			}
			k.follow(t, 20)
			if err := other.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(other.snapshotDir(), filepath.Base(path)), path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			defer bubble.Sweep(home)
			b, k := kept(t, home)
			for _, n := range []int{10, 10, 5} {
				for range n {
					b.do(t, "s1", Meta{}, "touch")
				}
				if k.follow(t, b.Head()); b.Head() <= 20 {
					if err := b.snapshot(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			newest := filepath.Join(b.snapshotDir(), "20"+snapshotSuffix)
			spoil(t, b, newest)
			shut(t, b.Bus)

			b, _ = kept(t, home)
			if b.snapshots.last.Load() != 10 {
				t.Errorf("loaded from %d, not from the older one", b.snapshots.last.Load())
			}
			if diff := differ(wholeOf(t, b.Bus), dumpOf(b.Bus)); diff != "" {
				t.Error(diff)
			}
			if _, err := os.Stat(newest); !errors.Is(err, os.ErrNotExist) {
				t.Error("it still lies there")
			}
			older := filepath.Join(b.snapshotDir(), "10"+snapshotSuffix)
			flip(func(int) int { return 0 })(t, b, older)
			shut(t, b.Bus)

			b, _ = kept(t, home)
			defer shut(t, b.Bus)
			if b.snapshots.last.Load() != 0 {
				t.Errorf("loaded from %d, and none is good", b.snapshots.last.Load())
			}
			if diff := differ(wholeOf(t, b.Bus), dumpOf(b.Bus)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A snapshot that knows more than the log, which lost its end and went on, must
// not bring back what is gone.
func TestSnapshotOfALogThatWentOnOtherwiseIsNotUsed(t *testing.T) {
	t.Parallel()
	home, copied := t.TempDir(), t.TempDir()
	defer bubble.Sweep(home)
	b, _ := kept(t, home)
	for range 10 {
		b.do(t, "s1", Meta{}, "touch")
	}
	shut(t, b.Bus)
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(home, "bus"))); err != nil {
		t.Fatal(err)
	}
	b, _ = kept(t, home)
	for range 10 {
		b.do(t, "s2", Meta{}, "touch")
	}
	if err := b.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	shut(t, b.Bus)
	bubble.Sweep(home)
	if err := os.CopyFS(filepath.Join(home, "bus"), os.DirFS(copied)); err != nil {
		t.Fatal(err)
	}
	b, _ = kept(t, home)
	if b.snapshots.last.Load() != 0 || b.sessions.Get("default", "s2").Touched != 0 {
		t.Errorf("loaded from %d: %+v", b.snapshots.last.Load(), b.sessions.Get("default", "s2"))
	}
	shut(t, b.Bus)
}

// grown waits until the log has a sequence.
func grown(t testing.TB, b *Bus, seq uint64) {
	t.Helper()
	for c, err := range b.Follow(t.Context(), seq-1) {
		if err != nil || c.Seq < seq {
			t.Fatalf("%+v, %v", c, err)
		}
		return
	}
}

func TestSnapshotsAreConsistentUnderLoad(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	defer bubble.Sweep(home)
	b, _ := kept(t, home)
	defer func() { shut(t, b.Bus) }()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				do := sessionDo("touch")
				if i%3 == 2 {
					do = "end"
				}
				// The clock of the log runs, so that sessions leave.
				m := Meta{Time: time.Unix(0, 0).Add(time.Duration(i) * time.Minute)}
				_, err := b.sessions.Dispatch(context.Background(), "default", fmt.Sprintf("s%d-%d", w, i/3), m, do)
				if err != nil && !fault.Is(err, fault.NotFound) {
					t.Error(err)
					return
				}
			}
		})
	}
	taken := map[string]uint64{}
	for i := range 10 {
		grown(t, b.Bus, uint64(100*(i+1)))
		if err := b.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(home, fmt.Sprint("taken", i))
		found, err := b.findSnapshots()
		if err == nil {
			err = os.Link(found[0].path, path)
		}
		if err != nil {
			t.Fatal(err)
		}
		taken[path] = found[0].seq
	}
	close(stop)
	writers.Wait()
	all := commits(t, b.Bus)
	// Two commits of one moment are folded in the order in which they come: of those
	// that ended then, any may leave first.
	strip := func(dump map[string]any) map[string]any {
		for kind, v := range dump {
			if d, ok := v.(dumped); ok {
				d.Ended, d.Gone, d.Now = nil, nil, time.Time{}
				dump[kind] = d.Rows
			}
		}
		return dump
	}
	key, err := b.HomeKey(snapshotKeyName)
	if err != nil {
		t.Fatal(err)
	}
	for path, seq := range taken {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		end, err := readFooter(f, key)
		if err != nil {
			t.Fatal(err)
		}
		again := folding()
		register(again)
		again.Keep("count", &counted{})
		install, err := again.readParts(f, end)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		for _, fn := range install {
			fn()
		}
		for _, c := range all[seq:] {
			again.fold(c)
		}
		whole := folding()
		register(whole)
		for _, c := range all {
			whole.fold(c)
		}
		for subject := range dumpOf(whole) {
			if strings.HasPrefix(subject, "gatebus.") && again.boundary(subject).sequence() != whole.boundary(subject).sequence() {
				t.Errorf("from %d: %s ends at %d, not %d", seq, subject, again.boundary(subject).sequence(), whole.boundary(subject).sequence())
			}
		}
		if diff := differ(strip(dumpOf(whole)), strip(dumpOf(again))); diff != "" {
			t.Fatalf("from %d (%d): %s", seq, end.Top, diff)
		}
	}
}

func TestSnapshotsAreWrittenAsTheLogGrows(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		home := t.TempDir()
		b := open(t, Options{Home: home})
		names := func() (out []string) {
			all, err := os.ReadDir(b.snapshotDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				out = append(out, e.Name())
			}
			return out
		}
		some := func(n int) {
			for range n {
				b.do(t, "s1", Meta{}, "touch")
			}
		}
		some(snapshotWorth - 1)
		time.Sleep(2 * snapshotAfter)
		if got := names(); len(got) > 0 {
			t.Errorf("a snapshot that is not worth it: %v", got)
		}
		for i := range 3 {
			some(snapshotWorth)
			time.Sleep(2 * snapshotAfter)
			if got := names(); len(got) != min(i+1, snapshotsKept) {
				t.Errorf("after %d: %v", i+1, got)
			}
		}
		some(snapshotWorth)
		shut(t, b.Bus)
		if got := names(); len(got) != snapshotsKept || b.snapshots.last.Load() != b.Head() {
			t.Errorf("at the end: %v, the last of %d", got, b.snapshots.last.Load())
		}
	})
}

func TestBrokenLogIsNotSaved(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.do(t, "s1", Meta{}, "touch")
	b.broken(errors.New("input/output error"))
	if err := b.snapshot(t.Context()); err == nil {
		t.Error("a snapshot was written")
	}
}
