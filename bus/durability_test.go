package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events/fault"
)

// powered opens a bus with durability power; once it is open, between stands
// between its barriers and the disk.
func powered(t *testing.T, home string, between func(b *testBus, stream string, disk func() error) error) *testBus {
	var tb *testBus
	tb = open(t, Options{Home: home, Durability: Power, sync: func(stream string, disk func() error) error {
		if tb == nil {
			return disk()
		}
		return between(tb, stream, disk)
	}})
	return tb
}

func TestCommitIsOnTheDiskBeforeAnybodySeesIt(t *testing.T) {
	t.Parallel()
	var synced atomic.Int32
	tb := powered(t, "", func(tb *testBus, stream string, disk func() error) error {
		if stored, err := tb.stored(context.Background()); err != nil || stored != uint64(synced.Add(1)) {
			t.Errorf("%d are stored at sync %d of %s (%v)", stored, synced.Load(), stream, err)
		}
		if s := tb.sessions.Get("default", "s1"); s.Touched != int(synced.Load())-1 || tb.Known() != tb.Head() || tb.Head() != uint64(synced.Load())-1 {
			t.Errorf("before sync %d: %+v, known %d, head %d", synced.Load(), s, tb.Known(), tb.Head())
		}
		return disk()
	})
	for i := range 3 {
		if d := tb.do(t, "s1", Meta{}, "touch"); synced.Load() != int32(i)+1 || d.State.Touched != i+1 {
			t.Errorf("%d syncs for %d commits", synced.Load(), i+1)
		}
	}
}

func TestWhatOthersAppendedIsOnTheDiskBeforeItIsFolded(t *testing.T) {
	t.Parallel()
	var synced atomic.Int32
	tb := powered(t, "", func(tb *testBus, _ string, disk func() error) error {
		if tb.Known() != 0 {
			t.Errorf("known up to %d", tb.Known())
		}
		synced.Add(1)
		return disk()
	})
	tb.elsewhere(t, "session", "s1", "01C", touched())
	if err := tb.catchUp(t.Context(), subjectOf("default", tb.sessions.address("", "s1").AggregateID)); err != nil {
		t.Fatal(err)
	}
	if synced.Load() != 1 || tb.sessions.Get("default", "s1").Touched != 1 {
		t.Errorf("%d syncs, %+v", synced.Load(), tb.sessions.Get("default", "s1"))
	}
}

func TestReaderIsShownWhatIsOnTheDisk(t *testing.T) {
	t.Parallel()
	fail := errors.New("input/output error")
	var failing atomic.Bool
	tb := powered(t, "", func(_ *testBus, _ string, disk func() error) error {
		if failing.Load() {
			return fail
		}
		return disk()
	})
	tb.do(t, "s1", Meta{}, "touch")
	tb.elsewhere(t, "session", "s1", "01C", touched())
	failing.Store(true)
	if last, err := readError(tb.Bus); err != nil || last != 1 {
		t.Errorf("read up to %d: %v", last, err)
	}
}

func TestThoseWhoWaitDuringASyncShareTheNext(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		var syncs atomic.Int32
		first := make(chan struct{})
		tb := powered(t, "", func(_ *testBus, _ string, disk func() error) error {
			if syncs.Add(1) == 1 {
				<-first
			}
			return disk()
		})
		var writers sync.WaitGroup
		for i := range 30 {
			writers.Go(func() { tb.do(t, fmt.Sprint("s", i), Meta{}, "touch") })
		}
		synctest.Wait() // every one is stored, and waits, or waits for the boundary of one that does
		close(first)
		writers.Wait()
		if n := syncs.Load(); n < 2 || n > 6 {
			t.Errorf("%d syncs for 30 commits", n)
		}
	})
}

func TestAfterASyncThatFailedNothingIsDecided(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{eventStream, jobStream, blobStream} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			fail := errors.New("input/output error")
			var failed atomic.Bool
			home := t.TempDir()
			tb := powered(t, home, func(_ *testBus, s string, disk func() error) error {
				if s == stream && !failed.Swap(true) {
					return fail // once only: the next sync would know nothing of it
				}
				return disk()
			})
			var err error
			switch stream {
			case eventStream:
				_, err = tb.sessions.Dispatch(t.Context(), "default", "s1", Meta{}, "touch")
				wantKind(t, err, fault.AuditUnavailable)
			case jobStream:
				err = tb.PublishJob(t.Context(), "default", "connect", "c1")
				wantKind(t, err, fault.BusUnavailable)
			case blobStream:
				_, err = tb.PutBlob(t.Context(), []byte("x"))
				wantKind(t, err, fault.BusUnavailable)
			}
			if !errors.Is(tb.LogErr(), fail) {
				t.Errorf("the log says %v", tb.LogErr())
			}
			_, err = tb.sessions.Dispatch(t.Context(), "default", "s2", Meta{}, "touch")
			wantKind(t, err, fault.AuditUnavailable)
			if tb.sessions.Get("default", "s1").Touched+tb.sessions.Get("default", "s2").Touched != 0 || tb.Known() != 0 || tb.Head() != 0 {
				t.Errorf("what may not be on the disk was folded, up to %d", tb.Known())
			}
			shut(t, tb.Bus)
			again := open(t, Options{Home: home, Durability: Power})
			again.do(t, "s3", Meta{}, "touch")
		})
	}
}

// A disk that stalls is no disk that failed.
func TestDiskThatDoesNotAnswerRefusesUntilItDoes(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		stall, syncs := make(chan struct{}), 0
		tb := powered(t, "", func(_ *testBus, _ string, disk func() error) error {
			if syncs++; syncs == 1 {
				<-stall
			}
			return disk()
		})
		_, err := tb.sessions.Dispatch(t.Context(), "default", "s1", Meta{}, "touch")
		wantKind(t, err, fault.AuditUnavailable)
		if tb.LogErr() == nil || tb.sessions.Get("default", "s1").Touched != 0 {
			t.Errorf("the log says %v, the table %+v", tb.LogErr(), tb.sessions.Get("default", "s1"))
		}
		close(stall)
		for tb.LogErr() != nil {
			time.Sleep(probeEvery) // of the bubble's time
		}
		if d := tb.do(t, "s1", Meta{}, "touch"); d.State.Touched != 2 {
			t.Errorf("state %+v", d.State)
		}
	})
}

func TestBlobsAndJobsAreOnTheDiskBeforeTheyAreAcknowledged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var synced []string
	tb := powered(t, "", func(_ *testBus, stream string, disk func() error) error {
		mu.Lock()
		defer mu.Unlock()
		synced = append(synced, stream)
		return disk()
	})
	if err := tb.PublishJob(t.Context(), "default", "connect", "c1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is there already may not be on the disk yet
		if _, err := tb.PutBlob(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{jobStream, blobStream, blobStream}, synced); diff != "" {
		t.Error(diff)
	}
}

func TestEveryBlockFileSinceTheLastSyncIsSynced(t *testing.T) {
	t.Parallel()
	s := &blocks{dir: t.TempDir()}
	for _, step := range []struct {
		add, remove, want []int
		begun             bool
	}{
		{want: []int{}, begun: true}, // an empty stream has no file
		{add: []int{1}, want: []int{0, 1}, begun: true},
		{want: []int{1}},
		{add: []int{2, 3}, want: []int{1, 2, 3}, begun: true},
		{remove: []int{1, 2}, want: []int{3}},
		{add: []int{4}, remove: []int{3}, want: []int{3, 4}, begun: true},
		{add: []int{6}, remove: []int{4}, want: []int{6}, begun: true}, // 5 came and went
		{want: []int{6}},
	} {
		for _, n := range step.add {
			if err := os.WriteFile(s.path(n), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range step.remove {
			if err := os.Remove(s.path(n)); err != nil {
				t.Fatal(err)
			}
		}
		before := s.newest
		files, begun, err := s.behind()
		if diff := cmp.Diff(step.want, append([]int{}, files...)); diff != "" || begun != step.begun || err != nil {
			t.Errorf("%+v: %v, begun %v, %v", step, files, begun, err)
		}
		s.newest = before
		if err := s.sync(); err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
	if err := (&blocks{dir: filepath.Join(s.dir, "gone")}).sync(); err == nil {
		t.Error("a store that is not there was synced")
	}
}

func TestDurabilityIsOneOfTwo(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Options{Home: t.TempDir(), Durability: "always"})
	wantKind(t, err, fault.InvalidInput)
}

// A process without the store is not ahead of the disk either.
func TestWhatAWorkerAppendsIsOnTheDiskBeforeItIsSeenThere(t *testing.T) {
	t.Parallel()
	for _, durability := range []Durability{Process, Power} {
		t.Run(string(durability), func(t *testing.T) {
			t.Parallel()
			var worker atomic.Pointer[testBus]
			var syncs, commits atomic.Int32
			owner := open(t, Options{Listen: "127.0.0.1:0", Durability: durability, sync: func(stream string, disk func() error) error {
				if w := worker.Load(); w != nil {
					syncs.Add(1)
					if s := w.sessions.Get("default", "s1"); stream == eventStream && commits.Add(1) == 1 && s.Touched > 0 {
						t.Errorf("the worker has %+v before it is durable", s)
					}
				}
				return disk()
			}})
			w := owner.worker(t)
			if w.Durability() != durability {
				t.Errorf("the worker takes it for %q", w.Durability())
			}
			worker.Store(w)
			if d := w.do(t, "s1", Meta{}, "touch"); d.State.Touched != 1 {
				t.Errorf("state %+v", d.State)
			}
			before := syncs.Load()
			if err := w.PublishJob(t.Context(), "default", "connect", "c1"); err != nil {
				t.Fatal(err)
			}
			if want := durability == Power; (before > 0) != want || (syncs.Load() > before) != want {
				t.Errorf("%d syncs for a commit, %d with the job", before, syncs.Load())
			}
		})
	}
}
