package bus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events/fault"
)

// A backup that is made while others append is the log of a moment: it verifies,
// and what it brings back is a prefix, with the blobs that it names and the jobs
// that were open.
func TestBackupUnderLoadIsAPrefixThatVerifies(t *testing.T) {
	t.Parallel()
	s := openSealed(t, t.TempDir(), "r1")
	ctx, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				blob := ""
				if i%20 == 0 {
					var err error
					if blob, err = s.PutBlob(context.Background(), fmt.Appendf(nil, "blob %d %d", w, i)); err != nil {
						t.Error(err)
						return
					}
				}
				s.do(t, fmt.Sprintf("s%d-%d", w, i), Meta{}, sessionDo("blob "+blob))
			}
		})
	}
	s.publish(t, "default", "connect", "c1")
	grown(t, s.Bus, 200)
	s.seal(t)
	before := s.Known()
	dir := filepath.Join(t.TempDir(), "backup")
	made, err := s.Backup(context.Background(), dir)
	stop()
	writers.Wait()
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if made.Commits < before || made.Commits > s.Known() || made.Bytes == 0 {
		t.Errorf("made %+v after %d commits", made, before)
	}
	all := commits(t, s.Bus)

	home := filepath.Join(t.TempDir(), "home")
	back, err := Restore(context.Background(), home, dir, false)
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if diff := cmp.Diff(made, back.Backup); diff != "" || back.Aside != "" {
		t.Errorf("restored %s, aside %q", diff, back.Aside)
	}
	if v := verifiedHome(t, home); !v.Verified || v.Commits != made.Commits || v.Root != made.Root {
		t.Errorf("verified %+v", v)
	}
	b := open(t, Options{Home: home})
	got := commits(t, b.Bus)
	if uint64(len(got)) != made.Commits {
		t.Fatalf("%d commits, the backup has %d", len(got), made.Commits)
	}
	for i, c := range got {
		if c.Command != all[i].Command || c.Seq != all[i].Seq {
			t.Fatalf("commit %d is another", c.Seq)
		}
		if label := b.sessions.Get("default", c.Aggregate.Key).Label; len(label) > len("blob ") {
			if _, err := b.Blob(context.Background(), strings.TrimPrefix(label, "blob ")); err != nil {
				t.Fatalf("the blob of commit %d: %v", c.Seq, err)
			}
		}
	}
	jobs := 0
	consume(t, b, "connect", 1, func(cancel func(), _, id string) error {
		jobs++
		cancel()
		return nil
	})
	if jobs != 1 {
		t.Errorf("%d jobs", jobs)
	}
	b.do(t, "after", Meta{}, "touch")
	// Every key is the owner's alone, and a credential of before is one of now.
	keys, _ := filepath.Glob(filepath.Join(dir, "keys", "*"))
	if len(keys) == 0 {
		t.Error("no keys")
	}
	for _, path := range append(keys, dir) {
		if info, err := os.Stat(path); err != nil || !ownerOnly(info) {
			t.Error(path, info.Mode(), err)
		}
	}
}

// What a stopped home is copied to is the same, and a home with a log is not
// overwritten.
func TestRestoreMovesTheOldLogAside(t *testing.T) {
	t.Parallel()
	home, _ := smallHome(t)
	good := verifiedHome(t, home)
	dir := filepath.Join(t.TempDir(), "backup")
	made, err := BackupHome(context.Background(), home, dir)
	if err != nil || made.Commits != good.Commits || made.Root != good.Root {
		t.Fatal(made, err, cause(err))
	}
	_, err = BackupHome(context.Background(), home, dir)
	wantKind(t, err, fault.InvalidInput)
	if key, _, err := readKeys(home); err != nil {
		t.Fatal(err)
	} else if c, err := key.readCheckpoint(checkpointsDir(home)); err != nil || !c.Closed {
		t.Error("the store is not closed any more", err)
	}

	_, err = Restore(context.Background(), home, dir, false)
	wantKind(t, err, fault.Conflict)
	before := sums(t, filepath.Join(home, "bus"))
	back, err := Restore(context.Background(), home, dir, true)
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	if diff := cmp.Diff(before, sums(t, filepath.Join(back.Aside, "bus"))); diff != "" {
		t.Errorf("aside is another: %s", diff)
	}
	s := openSealed(t, home, "r2")
	if v := verified(t, s.Bus); !v.Verified || v.Commits != good.Commits+1 {
		t.Errorf("verified %+v", v)
	}
	_, err = Restore(context.Background(), home, dir, true)
	wantKind(t, err, fault.HomeLocked)
	_, err = BackupHome(context.Background(), home, filepath.Join(t.TempDir(), "x"))
	wantKind(t, err, fault.HomeLocked)
}

// A restore that was killed while it changed places leaves a home that does not
// open, so that nobody begins another log there; the next restore does it.
func TestUnfinishedRestoreIsNotOpenedAsANewHome(t *testing.T) {
	t.Parallel()
	from, _ := smallHome(t)
	good := verifiedHome(t, from)
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := BackupHome(context.Background(), from, dir); err != nil {
		t.Fatal(err)
	}
	for gone, names := range [][]string{{"keys"}, {"keys", "bus"}, {"keys", "bus", "checkpoints"}, {"keys", "checkpoints"}} {
		home, _ := smallHome(t)
		for _, name := range append([]string{"replaced-1", ".restore-1"}, names...) {
			var err error
			if slices.Contains(names, name) {
				err = os.Rename(filepath.Join(home, name), filepath.Join(home, "replaced-1", name))
			} else {
				err = os.Mkdir(filepath.Join(home, name), 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(context.Background(), Options{Home: home})
		wantKind(t, err, fault.Conflict)
		if _, err := Restore(context.Background(), home, dir, true); err != nil {
			t.Fatalf("%d: %v (%v)", gone, err, cause(err))
		}
		if v := verifiedHome(t, home); v.Commits < good.Commits || !v.Verified {
			t.Errorf("%d: verified %+v", gone, v)
		}
		if left, _ := filepath.Glob(filepath.Join(home, restoring)); len(left) > 0 {
			t.Errorf("%d: left %v", gone, left)
		}
		open(t, Options{Home: home})
	}
}

// A backup that is not what it was restores nothing.
func TestDamagedBackupIsRefused(t *testing.T) {
	t.Parallel()
	home, _ := smallHome(t)
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := BackupHome(context.Background(), home, dir); err != nil {
		t.Fatal(err)
	}
	block, err := filepath.Glob(filepath.Join(dir, "log", "1.blk"))
	if err != nil || len(block) != 1 {
		t.Fatal(block, err)
	}
	for _, damage := range []func(){
		func() { change(t, filepath.Join(dir, "keys", "home"), func(b []byte) []byte { b[0] ^= 1; return b }) },
		func() { change(t, block[0], flip) },
		func() {
			if err := os.WriteFile(filepath.Join(dir, "keys", "more"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if err := os.Remove(block[0]); err != nil {
				t.Fatal(err)
			}
		},
	} {
		damage()
		to := filepath.Join(t.TempDir(), "home")
		_, err := Restore(context.Background(), to, dir, false)
		wantKind(t, err, fault.AuditDamaged)
		if _, err := os.Stat(filepath.Join(to, "bus")); err == nil {
			t.Error("something was restored")
		}
	}
	if err := os.Remove(filepath.Join(dir, "backup.json")); err != nil {
		t.Fatal(err)
	}
	_, err = Restore(context.Background(), filepath.Join(t.TempDir(), "home"), dir, false)
	wantKind(t, err, fault.NotFound)
}

// A damaged log makes no backup.
func TestDamagedLogIsNotBackedUp(t *testing.T) {
	t.Parallel()
	home, dir := smallHome(t)
	change(t, filepath.Join(dir, "1.blk"), flip)
	to := filepath.Join(t.TempDir(), "backup")
	_, err := BackupHome(context.Background(), home, to)
	wantKind(t, err, fault.AuditDamaged)
	if left, _ := os.ReadDir(filepath.Dir(to)); len(left) > 0 {
		t.Errorf("something was left: %v", left)
	}
}

// smallHome is a home with a log of one block, sealed and closed.
func smallHome(t testing.TB) (home, dir string) {
	t.Helper()
	home = t.TempDir()
	s := openSealed(t, home, "r1")
	for i := range 50 {
		s.do(t, fmt.Sprint("s", i), Meta{}, sessionDo(fmt.Sprintf("touch %06d", i)))
	}
	s.seal(t)
	dir = s.msgsDir()
	shut(t, s.Bus)
	return home, dir
}
