package bus

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/runtime"
)

// sealedBus is a bus that signs its log.
type sealedBus struct {
	*testBus
	home string // its id
}

// openSealed opens a bus with a runtime that signs.
func openSealed(t testing.TB, home, process string) *sealedBus {
	t.Helper()
	s := &sealedBus{testBus: open(t, Options{Home: home})}
	var err error
	if s.home, err = s.HomeID(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.runtimes.Dispatch(context.Background(), "default", s.home, Meta{}, runtime.Boot{Runtime: process, Embedded: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(s.runtimes, process); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	return s
}

// signed waits until the log tells of a checkpoint of so many commits.
func (s *sealedBus) signed(t testing.TB, size uint32) uint32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	state, err := s.runtimes.Wait(ctx, "default", s.home, func(r runtime.State) bool { return r.Checkpoint >= size })
	if err != nil {
		t.Fatal(err)
	}
	return state.Checkpoint
}

// seal seals at once.
func (s *sealedBus) seal(t testing.TB) {
	t.Helper()
	if err := s.sealer.seal(context.Background()); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
}

func verified(t testing.TB, b *Bus) client.Verification {
	t.Helper()
	v, err := b.Verify(context.Background())
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	return v
}

func verifiedHome(t testing.TB, home string) client.Verification {
	t.Helper()
	v, err := VerifyHome(context.Background(), home)
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	return v
}

// The tree is that of RFC 6962, whatever its size.
func TestFoldIsTheTreeOfTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var f fold
		var stored []tlog.Hash
		reader := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, err error) {
			for _, i := range at {
				out = append(out, stored[i])
			}
			return out, nil
		})
		for i := range rapid.IntRange(1, 300).Draw(t, "size") {
			leaf := tlog.RecordHash(fmt.Append(nil, i))
			more, err := tlog.StoredHashesForRecordHash(int64(i), leaf, reader)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, more...)
			f.add(leaf)
		}
		want, err := tlog.TreeHash(int64(f.size), reader)
		if err != nil {
			t.Fatal(err)
		}
		if f.root() != want {
			t.Fatalf("root of %d leaves differs", f.size)
		}
	})
}

// What a thing of the message is cannot be read as another.
func TestLeafTellsEverythingApart(t *testing.T) {
	t.Parallel()
	header := map[string][]string{"K": {"v", "w"}, "L": {"x"}}
	data := []byte("data")
	var l leafer
	seen := map[tlog.Hash]int{l.leaf(message{"a.b", 1, data, 2, header}): -1}
	for i, r := range []message{
		{"a.b", 2, data, 2, header}, {"a.b", 1, data, 3, header}, {"a.bK", 1, data, 2, header},
		{"a.b", 1, data, 2, map[string][]string{"K": {"v"}, "L": {"w", "x"}}},
		{"a.b", 1, data, 2, map[string][]string{"K": {"vw"}, "L": {"x"}}},
		{"a.b", 1, data, 2, map[string][]string{"K": {"v", "w"}, "Lx": {""}}},
		{"a.b", 1, data, 2, nil}, {"a.b", 1, nil, 2, header},
	} {
		if j, ok := seen[l.leaf(r)]; ok {
			t.Errorf("%d and %d are the same", i, j)
		}
		seen[l.leaf(r)] = i
	}
}

// A log hashes the same from its blocks and through a server.
func TestBlocksAreWhatTheServerDelivers(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	for i := range 300 {
		b.do(t, fmt.Sprint("s", i), Meta{Actor: "local"}, "touch")
	}
	b.raw(t, subjectOf("default", events.AggregateID{Kind: events.KindSession, Key: "s1"}), nil) // neither headers nor body
	var fromBlocks, fromServer []tlog.Hash
	var l leafer
	buf, err := os.ReadFile(filepath.Join(b.msgsDir(), "1.blk"))
	if err != nil {
		t.Fatal(err)
	}
	if end, err := newScanner(1).scan(buf, func(r message, _ int) bool {
		fromBlocks = append(fromBlocks, l.leaf(r))
		return true
	}); err != nil || end != len(buf) {
		t.Fatal(end, err)
	}
	b.readRecords(context.Background(), 0, 301, func(r message, err error) bool {
		if err != nil {
			t.Fatal(err)
		}
		fromServer = append(fromServer, l.leaf(r))
		return true
	})
	if len(fromBlocks) != 301 || !slices.Equal(fromBlocks, fromServer) {
		t.Errorf("%d from the blocks, %d from the server, and they differ", len(fromBlocks), len(fromServer))
	}
}

func TestLogIsSealedAfterAThousandCommitsAndVerifies(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	for i := range sealAfter + 10 {
		s.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	s.signed(t, sealAfter)
	live := verified(t, s.Bus)
	if len(live.Problems) > 0 || live.Commits < sealAfter+12 || live.Events != live.Commits || live.Checkpoint < sealAfter || live.Checkpoints < 3 {
		t.Errorf("verified %+v", live)
	}
	for _, name := range []string{"latest", "history"} {
		info, err := os.Stat(filepath.Join(checkpointsDir(home), name))
		if err != nil || !ownerOnly(info) {
			t.Error(name, info, err)
		}
	}
	shut(t, s.Bus)
	rest := verifiedHome(t, home)
	if len(rest.Problems) > 0 || rest.Commits != live.Commits || rest.Root != live.Root || rest.Chain != live.Chain || rest.Checkpoint != rest.Commits {
		t.Errorf("at rest %+v, it was %+v", rest, live)
	}
	s = openSealed(t, home, "r2")
	s.seal(t)
	again := verified(t, s.Bus)
	if len(again.Problems) > 0 || again.Commits <= live.Commits || again.Checkpoints <= live.Checkpoints {
		t.Errorf("then %+v", again)
	}
}

// Something new is sealed after ten seconds, once; a bus where nothing happens
// signs nothing, its own checkpoints included.
func TestIdleBusSignsNothing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		s := openSealed(t, t.TempDir(), "r1")
		signed := func() (n int) {
			for _, c := range commits(t, s.Bus) {
				if onlySealed(c) {
					n++
				}
			}
			return n
		}
		time.Sleep(9 * time.Second)
		if n := signed(); n != 0 {
			t.Errorf("%d checkpoints after nine seconds", n)
		}
		time.Sleep(2 * time.Second)
		if n := signed(); n != 1 {
			t.Errorf("%d checkpoints after eleven seconds", n)
		}
		time.Sleep(time.Hour)
		if n := signed(); n != 1 {
			t.Errorf("%d checkpoints after an hour of nothing", n)
		}
		s.do(t, "s1", Meta{}, "touch")
		time.Sleep(11 * time.Second)
		if n := signed(); n != 2 {
			t.Errorf("%d checkpoints after something new", n)
		}
	})
}

// Of several processes of a home one signs: the oldest that lives.
func TestOldestLivingProcessSigns(t *testing.T) {
	t.Parallel()
	s := openSealed(t, t.TempDir(), "r1")
	other := &sealer{bus: s.Bus, key: s.sealer.key, runtimes: s.runtimes, workspace: "default", runtime: "r2"}
	if _, err := s.runtimes.Dispatch(context.Background(), "default", s.home, Meta{}, runtime.Boot{Runtime: "r2"}); err != nil {
		t.Fatal(err)
	}
	server := s.server
	s.server = nil // as on a bus elsewhere
	first, second := s.sealer.mine(), other.mine()
	s.server = server
	if !first || second {
		t.Errorf("the older signs: %v, the younger: %v", first, second)
	}
	if _, err := s.runtimes.Dispatch(context.Background(), "default", s.home, Meta{}, runtime.Close{Runtime: "r1"}); err != nil {
		t.Fatal(err)
	}
	if s.sealer.mine() || !other.mine() {
		t.Error("who ended still signs, or who is left does not")
	}
}

// sums are the contents of everything below a directory.
func sums(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		h := tlog.RecordHash(data)
		out[rel] = hex.EncodeToString(h[:])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// damagedHome is a home with a log of several blocks, sealed and closed, and the
// directory of its blocks.
func damagedHome(t testing.TB) (home, dir string) {
	t.Helper()
	home = t.TempDir()
	s := openSealed(t, home, "r1")
	// Large commits, for a few blocks of eight megabytes.
	for i := range 60 {
		s.do(t, fmt.Sprint("s", i), Meta{}, sessionDo("touch "+strings.Repeat(fmt.Sprintf("%06d ", i), 60000)))
	}
	s.seal(t)
	dir = s.msgsDir()
	shut(t, s.Bus)
	files, err := blockFiles(dir)
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	return home, dir
}

func change(t testing.TB, path string, f func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, f(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// flip changes one bit in the text of an event.
func flip(data []byte) []byte {
	data[bytes.Index(data, []byte("0000"))+1] ^= 1
	return data
}

// What is done to a store at rest is found before a server opens it, named, and
// nothing is written.
func TestDamageIsNamedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	home, dir := damagedHome(t)
	files, err := blockFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	last := blockName(files[len(files)-1])
	good := verifiedHome(t, home)
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir, home string)
		what   string // in what is said of it
	}{
		"a bit in an old block":   {func(t *testing.T, dir, _ string) { change(t, filepath.Join(dir, "1.blk"), flip) }, "1.blk was changed"},
		"a bit in the last block": {func(t *testing.T, dir, _ string) { change(t, filepath.Join(dir, last), flip) }, last + " was changed"},
		"a bit in a length": {func(t *testing.T, dir, _ string) {
			change(t, filepath.Join(dir, "2.blk"), func(b []byte) []byte { b[1] ^= 4; return b })
		}, "2.blk was changed"},
		"a cut tail": {func(t *testing.T, dir, _ string) {
			change(t, filepath.Join(dir, last), func(b []byte) []byte { return b[:len(b)-500] })
		}, last + " was cut"},
		"a removed block": {func(t *testing.T, dir, _ string) {
			if err := os.Remove(filepath.Join(dir, "2.blk")); err != nil {
				t.Fatal(err)
			}
		}, "2.blk is missing"},
		"a removed last block": {func(t *testing.T, dir, _ string) {
			if err := os.Remove(filepath.Join(dir, last)); err != nil {
				t.Fatal(err)
			}
		}, last + " is missing"},
		"swapped blocks": {func(t *testing.T, dir, _ string) {
			one, two, tmp := filepath.Join(dir, "1.blk"), filepath.Join(dir, "2.blk"), filepath.Join(dir, "x")
			if err := errors.Join(os.Rename(one, tmp), os.Rename(two, one), os.Rename(tmp, two)); err != nil {
				t.Fatal(err)
			}
		}, "block 1.blk"},
		"a block of zeros": {func(t *testing.T, dir, _ string) {
			change(t, filepath.Join(dir, "2.blk"), func(b []byte) []byte { clear(b); return b })
		}, "2.blk was changed"},
		"the whole log": {func(t *testing.T, dir, _ string) {
			if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
		"a record more": {func(t *testing.T, dir, _ string) {
			change(t, filepath.Join(dir, last), func(b []byte) []byte {
				return append(b, forged(good.Commits+1, files[len(files)-1])...)
			})
		}, "while it was closed"},
		"another checkpoint": {func(t *testing.T, _, home string) {
			change(t, filepath.Join(checkpointsDir(home), "latest"), func(b []byte) []byte {
				return bytes.Replace(b, []byte(`"size":`), []byte(`"size":1`), 1)
			})
		}, "checkpoints/latest"},
		"the checkpoints alone": {func(t *testing.T, _, home string) {
			if err := os.RemoveAll(checkpointsDir(home)); err != nil {
				t.Fatal(err)
			}
		}, "are gone"},
		"no checkpoint": {func(t *testing.T, _, home string) {
			if err := errors.Join(os.RemoveAll(checkpointsDir(home)), os.Remove(filepath.Join(home, "keys", beganFile))); err != nil {
				t.Fatal(err)
			}
		}, "are gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := t.TempDir()
			if err := os.CopyFS(own, os.DirFS(home)); err != nil {
				t.Fatal(err)
			}
			ownersOnly(t, own)
			rel, _ := filepath.Rel(home, dir)
			c.damage(t, filepath.Join(own, rel), own)
			before := sums(t, filepath.Join(own, "bus"))

			_, err := VerifyHome(context.Background(), own)
			if err == nil {
				v := verifiedHome(t, own)
				if name != "no checkpoint" && name != "the checkpoints alone" && name != "a record more" && len(v.Problems) == 0 {
					t.Errorf("verified %+v", v)
				}
			}
			b, err := Open(context.Background(), Options{Home: own})
			if name == "no checkpoint" { // what the log tells is known when it is loaded
				if err != nil {
					t.Fatal(err)
				}
				defer shut(t, b)
				tb := register(b)
				if err := b.Load(context.Background()); err != nil {
					t.Fatal(err)
				}
				err = b.Seal(tb.runtimes, "r2")
			} else {
				if diff := cmp.Diff(before, sums(t, filepath.Join(own, "bus"))); diff != "" {
					t.Errorf("something was written: %s", diff)
				}
			}
			wantKind(t, err, fault.AuditDamaged)
			if !strings.Contains(err.Error(), c.what) {
				t.Errorf("it says %q and not %q", err, c.what)
			}
		})
	}
}

// What a running bus finds makes it read-only, and the next start looks again at
// everything: it comes up when it was put right, not before.
func TestDamageOfARunningBusMakesItReadOnly(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	for i := range 100 {
		s.do(t, fmt.Sprint("s", i), Meta{}, sessionDo(fmt.Sprintf("touch %06d", i)))
	}
	s.seal(t)
	// Behind the checkpoint a cut would look like what a crash leaves.
	last := s.do(t, "s1", Meta{}, "touch").Seq
	block := filepath.Join(s.msgsDir(), "1.blk")
	good, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	change(t, block, func(b []byte) []byte { return b[:len(b)-10] })
	v := verified(t, s.Bus)
	if v.Verified || v.Root != "" || len(v.Problems) == 0 || v.Problems[0].Last != last {
		t.Errorf("verified %+v", v)
	}
	before := sums(t, filepath.Dir(block))
	wantKind(t, s.Damage(), fault.AuditDamaged)
	_, err = s.sessions.Dispatch(context.Background(), "default", "s1", Meta{}, "touch")
	wantKind(t, err, fault.AuditDamaged)
	if got := s.sessions.Get("default", "s7").Label; got != "touch 000007" {
		t.Errorf("readers get %q", got)
	}
	if diff := cmp.Diff(before, sums(t, filepath.Dir(block))); diff != "" {
		t.Errorf("something was written: %s", diff)
	}
	shut(t, s.Bus)
	for range 2 {
		_, err = Open(context.Background(), Options{Home: home})
		wantKind(t, err, fault.AuditDamaged)
	}
	change(t, block, func([]byte) []byte { return good })
	open(t, Options{Home: home}).do(t, "s1", Meta{}, "touch")
}

// Who can write the store knows how to make a checksum; what was signed is known
// all the same, and where it goes wrong.
func TestRewrittenCommitIsFound(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	for i := range 10 {
		s.do(t, fmt.Sprint("s", i), Meta{}, sessionDo(fmt.Sprintf("touch %06d", i)))
		s.seal(t)
	}
	change(t, filepath.Join(s.msgsDir(), "1.blk"), func(b []byte) []byte {
		at := bytes.Index(b, []byte("touch 000004"))
		b[at] ^= 1
		sc := newScanner(1)
		for i := 0; i < len(b); {
			_, n, why := sc.one(b[i:])
			if why != "" { // one has the sum of what is there
				copy(b[i+n-recordTail:i+n], sc.sum.Sum(nil))
			}
			i += n
		}
		return b
	})
	v := verified(t, s.Bus)
	if len(v.Problems) != 2 || v.Problems[0].What != "block 1.blk was changed" {
		t.Fatalf("verified %+v", v)
	}
	// Between two checkpoints: the one commit and the checkpoint before it.
	if p := v.Problems[1]; !strings.Contains(p.What, "not those that") || p.First != 9 || p.Last != 10 {
		t.Errorf("it says %v", p)
	}
}

// A checkpoint in the log that the home did not sign, and one that was changed
// outside, are found.
func TestForgedCheckpointIsFound(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]struct {
		do   func(t *testing.T, s *sealedBus, c events.CheckpointSigned)
		what string
	}{
		"with a signature of another": {func(t *testing.T, s *sealedBus, c events.CheckpointSigned) {
			c.Size++
			s.elsewhere(t, events.KindRuntime, s.home, "01F", c)
		}, "this home did not sign"},
		"of the future": {func(t *testing.T, s *sealedBus, c events.CheckpointSigned) {
			c.Size = 1000
			s.elsewhere(t, events.KindRuntime, s.home, "01F", c)
		}, "comes behind it"},
		"with another root, in another home": {func(t *testing.T, s *sealedBus, c events.CheckpointSigned) {
			c.Root = strings.Repeat("00", 32)
			s.elsewhere(t, events.KindRuntime, "h-other", "01F", c)
		}, "not those that"},
		"in the history": {func(t *testing.T, s *sealedBus, c events.CheckpointSigned) {
			change(t, filepath.Join(s.checkpointsDir(), "history"), func(b []byte) []byte {
				return bytes.Replace(b, []byte(c.Root), []byte(strings.Repeat("00", 32)), 1)
			})
		}, "line 1 of checkpoints/history"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openSealed(t, t.TempDir(), "r1")
			s.do(t, "s1", Meta{}, "touch")
			s.seal(t)
			var c events.CheckpointSigned
			for _, m := range commits(t, s.Bus) {
				if e, ok := m.Events[0].(events.CheckpointSigned); ok {
					c = e
				}
			}
			if v := verified(t, s.Bus); !v.Verified || c.Size != 2 {
				t.Fatalf("before: %+v, %+v", v, c)
			}
			forge.do(t, s, c)
			if v := verified(t, s.Bus); len(v.Problems) != 1 || !strings.Contains(v.Problems[0].What, forge.what) {
				t.Errorf("verified %+v", v)
			}
		})
	}
}

// What a crash leaves torn behind the newest checkpoint is cut, and kept aside;
// after a loss of power pages in between can be missing.
func TestTornEndIsNoDamage(t *testing.T) {
	t.Parallel()
	for name, tear := range map[string]func(b []byte, next uint64) []byte{
		"a cut record": func(b []byte, next uint64) []byte { return append(b, forged(next, 1)[:40]...) },
		"nothing of a page": func(b []byte, next uint64) []byte {
			edge := (len(b)/sector + 2) * sector
			return append(append(b, make([]byte, edge-len(b))...), forged(next+5, 1)...)
		},
		"the end of the block": func(b []byte, next uint64) []byte { return b },
		"the middle of the end of the block": func(b []byte, next uint64) []byte {
			return append(b, make([]byte, 1000)...)
		},
		"a page that ends in a record": func(b []byte, next uint64) []byte {
			edge := (len(b)/sector + 2) * sector
			b = append(b, forged(next, 1)[:recordHead+10]...)
			b = append(b, make([]byte, edge-len(b))...)
			return append(append(b, []byte("rest of a record")...), forged(next+5, 1)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, dir, size := crashed(t)
			block := filepath.Join(dir, "1.blk")
			change(t, block, func(b []byte) []byte { return tear(b, size+1) })
			if strings.HasSuffix(name, "the block") {
				if err := os.WriteFile(filepath.Join(dir, "2.blk"), forged(size+9, 2), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			torn, err := os.ReadFile(block)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := VerifyHome(t.Context(), home); err != nil || !v.Verified || v.Commits != size {
				t.Errorf("verified %+v, %v", v, err)
			}
			b := open(t, Options{Home: home})
			if b.Known() != size {
				t.Errorf("%d commits, had %d", b.Known(), size)
			}
			if kept, err := os.ReadFile(filepath.Join(checkpointsDir(home), "open.blk")); err != nil || !bytes.Equal(kept, torn) {
				t.Error("the block as it was is not kept", err)
			}
		})
	}
}

// Behind the newest checkpoint as well a bad record with good ones behind it is
// damage, where no hole explains it.
func TestBadRecordBehindTheCheckpointIsDamage(t *testing.T) {
	t.Parallel()
	home, dir, size := crashed(t)
	change(t, filepath.Join(dir, "1.blk"), func(b []byte) []byte {
		bad := forged(size+1, 1)
		bad[recordHead+3] ^= 1
		return slices.Concat(b, bad, forged(size+2, 1))
	})
	if v, err := VerifyHome(t.Context(), home); err != nil || len(v.Problems) == 0 {
		t.Errorf("verified %+v, %v", v, err)
	}
	b, err := Open(t.Context(), Options{Home: home})
	if !fault.Is(err, fault.AuditDamaged) {
		t.Errorf("opened: %v", err)
	}
	if err == nil {
		shut(t, b)
	}
}

// crashed is a home that ended as after kill -9, sealed up to the size.
func crashed(t *testing.T) (home, dir string, size uint64) {
	t.Helper()
	home, dir = smallHome(t)
	s := openSealed(t, home, "r2") // the store is open from here on
	s.seal(t)
	size = s.Known()
	shut(t, s.Bus)
	key, _, err := readKeys(home)
	if err != nil {
		t.Fatal(err)
	}
	c, err := key.readCheckpoint(checkpointsDir(home))
	if err == nil {
		c.Closed = false
		err = key.writeCheckpoint(checkpointsDir(home), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return home, dir, size
}

// ownersOnly makes the keys of a copied home its owner's.
func ownersOnly(t testing.TB, home string) {
	t.Helper()
	keys, err := filepath.Glob(filepath.Join(home, "keys", "*"))
	for _, path := range keys {
		err = errors.Join(err, os.Chmod(path, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forged is a record as the server writes it.
func forged(seq uint64, block int) []byte {
	subject, body := "gatebus.default.evt.grant.c5n62", "x"
	le := func(n uint64, size int) (b []byte) {
		for range size {
			b, n = append(b, byte(n)), n>>8
		}
		return b
	}
	head := slices.Concat(le(seq, 8), le(1, 8))
	sum := newScanner(block).sum
	sum.Write(head)
	sum.Write([]byte(subject + body))
	return slices.Concat(le(uint64(recordHead+len(subject)+len(body)+recordTail), 4), head, le(uint64(len(subject)), 2), []byte(subject+body), sum.Sum(nil))
}
