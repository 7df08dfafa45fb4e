package projections

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/internal/memlog"
)

// saveAt is what a set saves.
func saveOf(t testing.TB, s *Set) []byte {
	t.Helper()
	var out bytes.Buffer
	seq, err := s.Save(&out)
	if err != nil || seq != s.Applied() {
		t.Fatalf("saved at %d of %d: %v", seq, s.Applied(), err)
	}
	return out.Bytes()
}

// reborn is a set that holds what was saved at a sequence.
func reborn(t testing.TB, data []byte, seq uint64) *Set {
	t.Helper()
	s := New()
	install, err := s.Restore(bytes.NewReader(data), seq)
	if err != nil {
		t.Fatal(err)
	}
	install()
	return s
}

// checkCuts restores at each cut, folds the tail and compares with the whole.
func checkCuts(t testing.TB, commits []*events.Commit, cuts func(at int) bool) {
	t.Helper()
	whole := folded(t, commits)
	want := digestsOf(whole)
	live := New()
	for at := 0; ; at++ {
		if cuts(at) {
			s := reborn(t, saveOf(t, live), live.Applied())
			if diff := gocmp.Diff(digestsOf(live), digestsOf(s)); diff != "" {
				t.Fatalf("restored at %d: %s", at, diff)
			}
			for _, c := range commits[at:] {
				if err := s.apply(c); err != nil {
					t.Fatal(err)
				}
			}
			if diff := gocmp.Diff(want, digestsOf(s)); diff != "" {
				t.Fatalf("the tail behind %d: %s", at, diff)
			}
			if s.Status() != whole.Status() {
				t.Fatalf("the tail behind %d: %+v, the whole %+v", at, s.Status(), whole.Status())
			}
		}
		if at == len(commits) {
			return
		}
		if err := live.apply(commits[at]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSnapshotAndTailEqualTheWholeAtEveryCut(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2} {
		w := newWorld(seed)
		for range 300 {
			w.step()
		}
		checkCuts(t, w.Commits, func(int) bool { return true })
	}
}

func TestSnapshotAndTailEqualTheWholeOfRecordedHistories(t *testing.T) {
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
		checkCuts(t, commits, func(at int) bool { return at%7 == 0 || at == len(commits) })
	}
}

// What no decider would let happen is saved as well.
func TestAnythingFoldedIsSavedWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var commits []*events.Commit
		for n := rapid.IntRange(1, 40).Draw(rt, "commits"); n > 0; n-- {
			commits = append(commits, anyCommit(rt, uint64(len(commits))+1))
		}
		cut := rapid.IntRange(0, len(commits)).Draw(rt, "cut")
		checkCuts(t, commits, func(at int) bool { return at == cut })
	})
}

func TestSetThatFailedSavesNothing(t *testing.T) {
	t.Parallel()
	s := New()
	s.all = append(s.all, broken{2})
	var failure *Failure
	if err := s.Run(t.Context(), memlog.Of(granted("ana"), granted("bob"))); !errors.As(err, &failure) {
		t.Fatal(err)
	}
	if _, err := s.Save(new(bytes.Buffer)); !errors.As(err, &failure) {
		t.Errorf("saved: %v", err)
	}
}

func TestRestoreRefusesWhatIsOfOtherProjections(t *testing.T) {
	t.Parallel()
	s := folded(t, []*events.Commit{memlog.Of(granted("ana")).Commits[0]})
	data := saveOf(t, s)
	for name, other := range map[string]func(*Set){
		"fewer":   func(s *Set) { s.all = s.all[1:] },
		"in turn": func(s *Set) { s.all[1], s.all[2] = s.all[2], s.all[1] },
	} {
		o := New()
		other(o)
		if _, err := o.Restore(bytes.NewReader(data), 1); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
	if _, err := New().Restore(bytes.NewReader(data[:len(data)/2]), 1); err == nil {
		t.Error("a half was restored")
	}
}

func TestRestoredSetGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	log := memlog.Of(granted("ana"), granted("bob"))
	data := saveOf(t, folded(t, log.Commits))
	log.Add(granted("eve"))
	s := reborn(t, data, 2)
	go func() { _ = s.Run(t.Context(), log) }()
	if err := s.Wait(t.Context(), 3); err != nil || len(s.Grants.Capabilities("default", "")) != 3 {
		t.Errorf("%v, %v", err, s.Grants.Capabilities("default", ""))
	}
	got, err := s.Rebuild(t.Context(), log, 3)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range got.Projections {
		if !c.Equal() {
			t.Errorf("%s differs from its rebuilding", name)
		}
	}
}
