package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events/fault"
)

// consume runs fn until it calls the cancel function, and returns when its
// goroutines are gone.
func consume(t *testing.T, b *testBus, kind string, parallel int, fn func(cancel func(), workspace, id string) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := b.ConsumeJobs(ctx, kind, parallel, func(_ context.Context, workspace, id string) error { return fn(cancel, workspace, id) }); err != nil {
		t.Error(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("it never came to an end")
	}
}

func (b *testBus) publish(t *testing.T, workspace, kind, id string) {
	t.Helper()
	if err := b.PublishJob(context.Background(), workspace, kind, id); err != nil {
		t.Fatal(err)
	}
}

// A repeated job is one job, and those of other workspaces are left to others.
func TestRepeatedJobIsOneJob(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		b.publish(t, "default", "connect", "c1")
		b.publish(t, "default", "connect", "c1")
		b.publish(t, "other", "connect", "c1")
		b.publish(t, "default", "refresh", "c1")
		var got []string
		consume(t, b, "connect", 1, func(cancel func(), workspace, id string) error {
			time.AfterFunc(time.Minute, cancel)
			got = append(got, workspace+" "+id)
			return nil
		})
		if diff := cmp.Diff([]string{"default c1"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFailedJobBeginsAgainAfterAWhile(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		b.publish(t, "default", "connect", "c1")
		began := time.Now()
		var at []time.Duration
		consume(t, b, "connect", 1, func(cancel func(), _, _ string) error {
			at = append(at, time.Since(began).Round(firstRetry))
			switch len(at) {
			case 1:
				return errors.New("not yet")
			case 2:
				panic("not yet")
			case 3:
				return errors.New("not yet")
			}
			time.AfterFunc(time.Minute, cancel)
			return nil
		})
		if diff := cmp.Diff([]time.Duration{0, firstRetry, 3 * firstRetry, 7 * firstRetry}, at); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLongJobIsNotGivenAway(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		b.publish(t, "default", "connect", "c1")
		var begun atomic.Int32
		consume(t, b, "connect", 4, func(cancel func(), _, _ string) error {
			begun.Add(1)
			time.Sleep(20 * jobPatience)
			time.AfterFunc(time.Minute, cancel)
			return nil
		})
		if begun.Load() != 1 {
			t.Errorf("begun %d times", begun.Load())
		}
	})
}

// A worker that took a job and is never heard of again has crashed.
func TestJobOfACrashedWorkerBeginsAgain(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		home := t.TempDir()
		b := open(t, Options{Home: home})
		b.publish(t, "default", "connect", "c1")
		c, err := b.js.CreateConsumer(context.Background(), jobStream, jetstream.ConsumerConfig{
			Durable: "connect", FilterSubject: jobSubject("*", "connect"), AckPolicy: jetstream.AckExplicitPolicy, AckWait: jobPatience, MaxDeliver: -1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(); err != nil {
			t.Fatal(err)
		}
		shut(t, b.Bus)

		b = open(t, Options{Home: home})
		began := time.Now()
		consume(t, b, "connect", 1, func(cancel func(), _, id string) error {
			cancel()
			if id != "c1" {
				t.Errorf("job %s", id)
			}
			return nil
		})
		if d := time.Since(began); d > jobPatience {
			t.Errorf("begun again after %v", d)
		}
	})
}

func TestJobsRunAtMostSoManyAtATime(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		b := open(t, Options{})
		const n = 20
		for i := range n {
			b.publish(t, "default", "connect", fmt.Sprint(i))
		}
		var now, most, done atomic.Int32
		consume(t, b, "connect", 4, func(cancel func(), _, _ string) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			if done.Add(1) == n {
				cancel()
			}
			return nil
		})
		if most.Load() != 4 {
			t.Errorf("%d at a time", most.Load())
		}
		s, err := b.js.Stream(context.Background(), jobStream)
		if err != nil {
			t.Fatal(err)
		}
		if left := s.CachedInfo().State.Msgs; left != 0 {
			t.Errorf("%d jobs are left, done were %d", left, done.Load())
		}
	})
}

func TestWhatIsNoJobIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	wantKind(t, b.PublishJob(context.Background(), "*", "connect", "c"), fault.InvalidInput)
	wantKind(t, b.PublishJob(context.Background(), "default", "a.b", "c"), fault.InvalidInput)
	wantKind(t, b.PublishJob(context.Background(), "default", "connect", ""), fault.InvalidInput)
	wantKind(t, b.ConsumeJobs(context.Background(), "a.b", 1, nil), fault.InvalidInput)
}

func TestBlobIsWhatWasPut(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, Options{Home: home})
	ctx := context.Background()
	big := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{}).Read(big)
	digests := make(map[string][]byte)
	for _, data := range [][]byte{nil, []byte("x"), big} {
		digest, err := b.PutBlob(ctx, data)
		if err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
		digests[digest] = data
	}
	shut(t, b.Bus)
	b = open(t, Options{Home: home})
	for digest, data := range digests {
		for range 2 { // from the store, from memory
			got, err := b.Blob(ctx, digest)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes instead of %d: %v (%v)", len(got), len(data), err, cause(err))
			}
		}
	}
	_, err := b.Blob(ctx, "00")
	wantKind(t, err, fault.NotFound)
}

func TestBlobIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() {
			if _, err := b.PutBlob(context.Background(), []byte("the same")); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	status, err := b.blobs.store.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if s := status.(*jetstream.ObjectBucketStatus).StreamInfo().State; s.Msgs != 2 { // one chunk, one name
		t.Errorf("%d messages", s.Msgs)
	}
}

func TestBlobThatIsNotItsDigestIsDamage(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	digest := "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // of "x"
	if _, err := b.blobs.store.PutBytes(context.Background(), digest, []byte("y")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Blob(context.Background(), digest)
	wantKind(t, err, fault.AuditDamaged)
}

func TestBlobCacheIsBounded(t *testing.T) {
	t.Parallel()
	var s blobStore
	for i := range 100 {
		s.keep(fmt.Sprint(i), make([]byte, blobCacheSize/10))
		s.cached("0") // stays, for it is used
	}
	if s.size > blobCacheSize || len(s.cache) != 10 || len(s.order) != 10 {
		t.Errorf("%d bytes in %d blobs", s.size, len(s.cache))
	}
	if _, ok := s.cached("0"); !ok {
		t.Error("the last used has left")
	}
	if s.keep("big", make([]byte, blobCacheSize)); len(s.cache) != 10 {
		t.Error("one blob takes the whole cache")
	}
}
