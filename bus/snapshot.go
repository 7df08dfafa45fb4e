package bus

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// snapshotEvery is how many commits lie between two snapshots.
	snapshotEvery = 10_000
	// snapshotAfter is how long a change waits for one that is less.
	snapshotAfter = 30 * time.Second
	// snapshotWorth is how many commits are worth one: reading them takes no longer
	// than writing it.
	snapshotWorth = 1000
	// snapshotShare bounds the time that goes into snapshots: one part in so many.
	snapshotShare = 20
	// snapshotsKept are the generations that are kept.
	snapshotsKept = 2
)

// Kept is something that is folded from the log beside the tables and is in the
// snapshots with them.
type Kept interface {
	// Save writes what is held, as of one commit, and says which.
	Save(w io.Writer) (seq uint64, err error)
	// Restore reads what Save wrote; install puts it in the place of what is held.
	Restore(r io.Reader, seq uint64) (install func(), err error)
}

// Keep puts something into the snapshots, under a name of its own. Call it before
// Load, which restores it: what it holds afterwards says where it goes on.
func (b *Bus) Keep(name string, k Kept) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded || b.snapshots.kept[name] != nil {
		panic("bus: " + name + " is kept twice, or after Load")
	}
	if b.snapshots.kept == nil {
		b.snapshots.kept = make(map[string]Kept)
	}
	b.snapshots.kept[name] = k
}

// snapshots write the tables, and what is kept beside them, to files from which
// the next process goes on. They are disposable: they hold nothing that the log
// does not, and one that is not of this program, home and log is not used.
type snapshots struct {
	kept    map[string]Kept
	writing sync.Mutex
	last    atomic.Uint64 // where the oldest part of the newest one is
	// gate is held while a commit is folded and given to the feed, and whole for the
	// moment in which a snapshot begins.
	gate sync.RWMutex
}

// footer ends a snapshot and says what it is.
type footer struct {
	Format int
	// Program is the SHA-256 of the program file: another one may fold otherwise.
	Program string
	// Log is when the stream was made.
	Log time.Time
	// Seq is the commit up to which the tables have every one. Commits that were
	// appended at the same time can be folded already: Top is the last of them, and
	// Message the SHA-256 of the message that is stored there.
	Seq, Top uint64
	Message  []byte
	Parts    []part
}

// part is one stretch of the file, in their order.
type part struct {
	Name   string
	Seq    uint64 // of what is kept beside the tables
	Size   int64
	Digest []byte
}

const (
	snapshotFormat  = 1
	boundariesPart  = "boundaries"
	snapshotSuffix  = ".snapshot"
	footerTail      = 8 + sha256.Size // its length and its authentication
	maxFooter       = 1 << 20
	snapshotKeyName = "snapshots"
)

func (b *Bus) snapshotDir() string { return filepath.Join(b.opts.Home, "snapshots") }

// programFile is the file of this program as it was when the first bus was opened.
var programFile = sync.OnceValues(func() (os.FileInfo, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.Stat(path)
})

// programSum is the SHA-256 of the file of this program, if that is still the one
// that runs.
var programSum = sync.OnceValues(func() (string, error) {
	was, err := programFile()
	if err != nil {
		return "", err
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	is, err := f.Stat()
	if err == nil && (!os.SameFile(was, is) || !was.ModTime().Equal(is.ModTime())) {
		err = errors.New("the file of the program was replaced")
	}
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
})

// keepSnapshots writes snapshots until the bus closes.
func (b *Bus) keepSnapshots() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var since time.Time // when enough had changed
	rest := time.Now()  // no snapshot before it
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		changed := b.Head() - b.snapshots.last.Load()
		if changed < snapshotWorth {
			since = time.Time{}
			continue
		}
		if since.IsZero() {
			since = now
		}
		if now.Before(rest) || changed < snapshotEvery && now.Sub(since) < snapshotAfter {
			continue
		}
		if err := b.snapshot(b.ctx); err != nil {
			b.log.Warn("no snapshot was written", "error", err.Error())
			rest = now.Add(snapshotAfter)
			continue
		}
		since, rest = time.Time{}, now.Add(snapshotShare*time.Since(now))
	}
}

// lastSnapshot writes one at an orderly end, if it is worth it.
func (b *Bus) lastSnapshot() {
	if !b.open.Load() || b.opts.Worker || b.Head()-b.snapshots.last.Load() < snapshotWorth {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), snapshotAfter)
	defer cancel()
	if err := b.snapshot(ctx); err != nil {
		b.log.Warn("no snapshot was written", "error", err.Error())
	}
}

// snapshot writes one. Nobody is held up for longer than it takes to note where
// the tables are: what changes while they are written is kept as it was.
func (b *Bus) snapshot(ctx context.Context) (err error) {
	b.snapshots.writing.Lock()
	defer b.snapshots.writing.Unlock()
	if err := cmp.Or(b.Damage(), b.LogErr(), b.feed.broken()); err != nil {
		return err
	}
	key, err := b.HomeKey(snapshotKeyName)
	if err != nil {
		return err
	}
	end := footer{Format: snapshotFormat}
	if end.Program, err = programSum(); err != nil {
		return err
	}
	f, err := os.CreateTemp(b.snapshotDir(), disk.Pattern) // 0600
	if err != nil {
		return err
	}
	defer func() {
		f.Close() // it was closed when all went well
		os.Remove(f.Name())
	}()
	w := &partWriter{w: bufio.NewWriterSize(f, 1<<16)}

	// What is kept beside the tables comes first: it may be behind them.
	for _, name := range slices.Sorted(maps.Keys(b.snapshots.kept)) {
		w.begin()
		seq, err := b.snapshots.kept[name].Save(w)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		end.Parts = append(end.Parts, w.end(name, seq))
	}

	began := time.Now()
	boundaries := b.beginSnapshot(&end)
	held := time.Since(began)
	defer func() {
		for _, t := range b.tables {
			t.endSave()
		}
	}()

	w.begin()
	if err := gob.NewEncoder(w).Encode(boundaries); err != nil {
		return err
	}
	end.Parts = append(end.Parts, w.end(boundariesPart, end.Seq))
	for _, kind := range slices.Sorted(maps.Keys(b.tables)) {
		w.begin()
		if err := b.tables[kind].save(gob.NewEncoder(w)); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		end.Parts = append(end.Parts, w.end(string(kind), end.Seq))
	}
	if end.Log, end.Message, err = b.anchor(ctx, end.Top); err != nil {
		return err
	}
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	data = binary.BigEndian.AppendUint64(data, uint64(len(data)))
	_, err = w.w.Write(append(data, authentic(key, data)...))
	if err = errors.Join(err, w.w.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	name := filepath.Join(b.snapshotDir(), strconv.FormatUint(end.Seq, 10)+snapshotSuffix)
	if err := errors.Join(os.Rename(f.Name(), name), disk.SyncDir(b.snapshotDir())); err != nil {
		return err
	}
	b.snapshots.last.Store(end.oldest())
	b.log.Debug("snapshot", "seq", end.Seq, "held", held, "took", time.Since(began))
	found, err := b.findSnapshots()
	for _, s := range found[min(snapshotsKept, len(found)):] {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// beginSnapshot notes the moment that a snapshot is of: where the log is, where
// its boundaries are, and that the tables keep what they hold.
func (b *Bus) beginSnapshot(end *footer) (boundaries map[string]uint64) {
	boundaries = make(map[string]uint64)
	b.snapshots.gate.Lock()
	defer b.snapshots.gate.Unlock()
	end.Seq, end.Top = b.feed.last(), b.known.Load()
	b.boundaries.Range(func(subject, bd any) bool {
		if last := bd.(*boundary).sequence(); last > 0 {
			boundaries[subject.(string)] = last
		}
		return true
	})
	for _, t := range b.tables {
		t.beginSave()
	}
	return boundaries
}

// oldest is where the part begins that is furthest behind. One that is far behind
// costs the next start as much as an old snapshot.
func (f footer) oldest() uint64 {
	return slices.MinFunc(f.Parts, func(a, b part) int { return cmp.Compare(a.Seq, b.Seq) }).Seq
}

func authentic(key, data []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	return mac.Sum(nil)
}

// partWriter measures and digests the parts of a snapshot.
type partWriter struct {
	w    *bufio.Writer
	sum  hash.Hash
	size int64
}

func (w *partWriter) begin() { w.sum, w.size = sha256.New(), 0 }

func (w *partWriter) Write(p []byte) (int, error) {
	w.sum.Write(p)
	w.size += int64(len(p))
	return w.w.Write(p)
}

func (w *partWriter) end(name string, seq uint64) part {
	return part{Name: name, Seq: seq, Size: w.size, Digest: w.sum.Sum(nil)}
}

// anchor says which log this is, and which message is at a sequence of it.
func (b *Bus) anchor(ctx context.Context, seq uint64) (made time.Time, message []byte, err error) {
	s, err := b.js.Stream(ctx, eventStream)
	if err != nil {
		return made, nil, err
	}
	m, err := s.GetMsg(ctx, seq)
	if err != nil {
		return made, nil, err
	}
	h := sha256.New()
	field := func(b []byte) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(b))) // a hash takes everything
		h.Write(b)
	}
	field([]byte(m.Subject))
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		field([]byte(name + "\x00" + strings.Join(m.Header[name], "\x00")))
	}
	field(m.Data)
	return s.CachedInfo().Created, h.Sum(nil), nil
}

// snapshotFile is a snapshot that lies there.
type snapshotFile struct {
	path string
	seq  uint64
}

// verdict says that a snapshot can never be used.
type verdict string

func (v verdict) Error() string { return string(v) }

const errDamaged = verdict("it is damaged, or of another home")

// findSnapshots are those that lie there, the newest first.
func (b *Bus) findSnapshots() (found []snapshotFile, err error) {
	entries, err := os.ReadDir(b.snapshotDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), snapshotSuffix)
		if seq, err := strconv.ParseUint(name, 10, 64); ok && err == nil {
			found = append(found, snapshotFile{filepath.Join(b.snapshotDir(), e.Name()), seq})
		}
	}
	slices.SortFunc(found, func(a, b snapshotFile) int { return cmp.Compare(b.seq, a.seq) })
	return found, err
}

// restore fills the tables, and what is kept beside them, from the newest
// snapshot that can be used, and says up to which commit; 0 is the beginning. What
// can not be used is removed: it would stand in the way of later ones. A worker
// only reads what the runtime of its home wrote.
func (b *Bus) restore(ctx context.Context) (seq uint64, err error) {
	found, err := b.findSnapshots()
	if err != nil {
		return 0, fault.Wrap("load", fault.HomeNotWritable, redact.Static("the snapshots cannot be read"), err)
	}
	for _, s := range found {
		seq, err := b.restoreFrom(ctx, s)
		if err == nil {
			b.log.Info("the log is read from a snapshot on", "seq", seq)
			return seq, nil
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		b.log.Warn("a snapshot is not used", "file", filepath.Base(s.path), "reason", err.Error())
		if _, ok := errors.AsType[verdict](err); !ok || b.opts.Worker {
			continue
		}
		if err := os.Remove(s.path); err != nil {
			b.log.Warn("a snapshot is not removed", "file", filepath.Base(s.path), "error", err.Error())
		}
	}
	if len(found) > 0 {
		b.log.Warn("no snapshot can be used, the whole log is read")
	}
	return 0, nil
}

func (b *Bus) restoreFrom(ctx context.Context, s snapshotFile) (uint64, error) {
	key, err := b.HomeKey(snapshotKeyName)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(s.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	end, err := readFooter(f, key)
	if err != nil {
		return 0, err
	}
	is, err := programSum()
	if err != nil {
		return 0, err
	}
	switch {
	case end.Format != snapshotFormat || end.Program != is:
		return 0, verdict("another version of the program wrote it")
	case end.Seq != s.seq || end.Top < end.Seq:
		return 0, verdict("it has another name")
	}
	state, err := b.streamState(ctx)
	if err != nil {
		return 0, err
	}
	if state.LastSeq < end.Top || state.FirstSeq != 1 || state.NumDeleted != 0 {
		return 0, verdict(fmt.Sprintf("the log has %d to %d without %d, it is of %d", state.FirstSeq, state.LastSeq, state.NumDeleted, end.Top))
	}
	made, message, err := b.anchor(ctx, end.Top)
	if err != nil {
		return 0, err
	}
	if !made.Equal(end.Log) || !bytes.Equal(message, end.Message) {
		return 0, verdict("it is of another log")
	}
	install, err := b.readParts(f, end)
	if err != nil {
		return 0, err
	}
	for _, fn := range install {
		fn()
	}
	b.known.Store(end.Top)
	b.snapshots.last.Store(end.oldest())
	return end.Seq, nil
}

// readFooter reads and checks what says what a snapshot is.
func readFooter(f *os.File, key []byte) (end footer, err error) {
	info, err := f.Stat()
	if err != nil {
		return end, err
	}
	if info.Size() < footerTail {
		return end, errDamaged
	}
	tail := make([]byte, footerTail)
	if _, err := f.ReadAt(tail, info.Size()-footerTail); err != nil {
		return end, err
	}
	size := binary.BigEndian.Uint64(tail)
	if size > maxFooter || int64(size) > info.Size()-footerTail {
		return end, errDamaged
	}
	data := make([]byte, size+8)
	if _, err := f.ReadAt(data, info.Size()-footerTail-int64(size)); err != nil {
		return end, err
	}
	if !hmac.Equal(authentic(key, data), tail[8:]) {
		return end, errDamaged
	}
	if err := json.Unmarshal(data[:size], &end); err != nil {
		return end, err
	}
	at := int64(0)
	for _, p := range end.Parts {
		at += p.Size
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(f, at-p.Size, p.Size)); err != nil {
			return end, err
		}
		if !bytes.Equal(h.Sum(nil), p.Digest) {
			return end, errDamaged
		}
	}
	if at != info.Size()-footerTail-int64(size) {
		return end, errDamaged
	}
	return end, nil
}

// readParts decodes the whole before anything is installed.
func (b *Bus) readParts(f *os.File, end footer) (install []func(), err error) {
	want := 1 + len(b.tables) + len(b.snapshots.kept)
	if len(end.Parts) != want {
		return nil, verdict(fmt.Sprintf("it has %d parts, not %d", len(end.Parts), want))
	}
	at := int64(0)
	for _, p := range end.Parts {
		r := bufio.NewReaderSize(io.NewSectionReader(f, at, p.Size), 1<<16)
		at += p.Size
		var fn func()
		switch kept, table := b.snapshots.kept[p.Name], b.tables[events.Kind(p.Name)]; {
		case p.Name == boundariesPart:
			var last map[string]uint64
			err = gob.NewDecoder(r).Decode(&last)
			fn = func() {
				for subject, seq := range last {
					b.boundary(subject).last = seq
				}
			}
		case kept != nil:
			fn, err = kept.Restore(r, p.Seq)
		case table != nil:
			fn, err = table.restore(gob.NewDecoder(r))
		default:
			err = errors.New("nobody takes it")
		}
		if err != nil {
			return nil, verdict(p.Name + ": " + err.Error())
		}
		install = append(install, fn)
	}
	return install, nil
}
