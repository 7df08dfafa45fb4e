package bus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/internal/cluster"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// onCluster starts three servers that know a home.
func onCluster(t testing.TB, home string) *cluster.Cluster {
	t.Helper()
	config, err := ServerConfig(home)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Start(t, config)
}

// leader is which server leads the log.
func (b *testBus) leader(t testing.TB, c *cluster.Cluster) int {
	t.Helper()
	s, err := b.js.Stream(patient(t), eventStream)
	if err != nil {
		t.Fatal(err)
	}
	return c.Node(s.CachedInfo().Cluster.Leader)
}

// A cluster loses its leader in the middle of the work of two processes: what
// was acknowledged is there, in order and once, what was refused is not, and work
// goes on by itself.
func TestClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	clusterLoses(t, (*cluster.Cluster).Kill, (*cluster.Cluster).Run)
}

func clusterLoses(t *testing.T, lose, giveBack func(*cluster.Cluster, int)) {
	home := t.TempDir()
	c := onCluster(t, home)
	began := time.Now()
	b := open(t, Options{Home: home, External: &External{URL: c.URLs()}})
	t.Logf("open after %v", time.Since(began))
	if !b.replicated {
		t.Fatal("the log is on one server")
	}
	creds := b.workerCreds(t)
	one := b.join(t, "r-1", nil)
	two := open(t, Options{Home: home, Worker: true, External: &External{URL: c.URLs(), Creds: creds}}).join(t, "r-2", nil)
	t.Logf("joined after %v", time.Since(began))

	// Each has a session of its own, all touch one, and calls start behind a fence,
	// which does not move by their own commits.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fence := events.AggregateID{Kind: events.KindConnection, Key: "c1"}
	if _, err := one.connections.Dispatch(ctx, "default", "c1", Meta{}, "r-1"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var work sync.WaitGroup
	var mu sync.Mutex
	acked := make(map[uint64]string)
	for _, j := range []*joined{one, two} {
		for i := range 4 {
			work.Go(func() {
				for n := 0; ; {
					select {
					case <-stop:
						return
					default:
					}
					key := fmt.Sprintf("%s-%d-%d", j.name(), i, n)
					var seq uint64
					var err error
					switch i {
					case 0:
						var d Decided[sessionState]
						d, err = j.sessions.Dispatch(ctx, "default", "shared", Meta{Command: key}, "touch")
						seq = d.Seq
					case 1:
						var d Decided[sessionState]
						d, err = j.sessions.Dispatch(ctx, "default", j.name(), Meta{Command: key}, "touch")
						seq = d.Seq
					default:
						var d Decided[int]
						d, err = j.calls.DispatchWith(ctx, "default", key, Meta{Command: key}, With{Fence: fence}, func() (callDo, error) {
							return callDo{may: true, generation: j.connections.Get("default", "c1")}, nil
						})
						seq = d.Seq
					}
					if fault.Is(err, fault.Conflict) {
						continue // with the same command
					}
					if err != nil {
						t.Errorf("%s: %v (%v)", key, err, cause(err))
						return
					}
					n++
					mu.Lock()
					acked[seq] = key
					mu.Unlock()
				}
			})
		}
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	until := func(n int) {
		for deadline := time.Now().Add(30 * time.Second); count() < n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d commits after thirty seconds, want %d", count(), n)
			}
		}
	}
	until(200)
	leader := b.leader(t, c)
	lose(c, leader)
	killed := time.Now()
	n := count()
	until(n + 9) // eight may have been acknowledged before
	t.Logf("n%d led and is lost; appends flow again after %v", leader, time.Since(killed))
	until(n + 200)
	t.Logf("two hundred more after %v", time.Since(killed))
	giveBack(c, leader)
	until(n + 300)
	close(stop)
	work.Wait()

	commands := make(map[string]uint64)
	for _, j := range []*joined{one, two} {
		if err := j.Sync(ctx); err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
	}
	touched := make(map[string]int)
	for _, commit := range commits(t, b.Bus) {
		if slices.Contains([]events.Kind{events.KindRuntime, events.KindConnection, events.KindHost}, commit.Aggregate.Kind) {
			continue
		}
		if commit.Aggregate.Kind == events.KindSession {
			touched[commit.Aggregate.Key]++
		}
		if other, ok := commands[commit.Command]; ok {
			t.Errorf("%s is in the log twice, at %d and %d", commit.Command, other, commit.Seq)
		}
		commands[commit.Command] = commit.Seq
		if key := acked[commit.Seq]; key != commit.Command {
			t.Errorf("%s at %d was not acknowledged as such: %q", commit.Command, commit.Seq, key)
		}
		delete(acked, commit.Seq)
	}
	if len(acked) > 0 {
		t.Errorf("acknowledged and lost: %v", acked)
	}
	for _, j := range []*joined{one, two} {
		for key, n := range touched {
			if got := j.sessions.Get("default", key).Touched; got != n {
				t.Errorf("%s: %d touches of %s in the model, %d in the log", j.name(), got, key, n)
			}
		}
		select {
		case err := <-j.ended:
			t.Errorf("%s ended: %v", j.name(), err)
		default:
		}
	}
	two.leave(t)
	one.leave(t)
	if d := time.Since(began); d > 40*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A cluster loses the server that leads the jobs: what is handed in then is stored some
// seconds later, within the time of an election and not that of who asks.
func TestClusterWithoutALeaderStoresJobsAndBlobsALittleLater(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := onCluster(t, home)
	b := open(t, Options{Home: home, External: &External{URL: c.URLs()}})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of a caller who is patient
	defer cancel()
	s, err := b.js.Stream(patient(t), jobStream)
	if err != nil {
		t.Fatal(err)
	}
	c.Kill(c.Node(s.CachedInfo().Cluster.Leader))
	began := time.Now()
	if err := b.PublishJob(ctx, "default", "connect", "c1@7"); err != nil {
		t.Errorf("the job: %v (%v) after %v", err, cause(err), time.Since(began))
	}
	if _, err := b.PutBlob(ctx, []byte("a catalog")); err != nil {
		t.Errorf("the blob: %v (%v) after %v", err, cause(err), time.Since(began))
	}
	if d := time.Since(began); d > 2*patience {
		t.Errorf("it took %v", d)
	}
}
