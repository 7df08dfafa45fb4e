package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// jobPatience is how long a job may be silent before it is given to somebody
	// else: after a crash that is when it begins again.
	jobPatience = 5 * time.Second
	// jobPull is how long one request for a job waits.
	jobPull = 30 * time.Second
	// A job that failed begins again after firstRetry, doubled each time up to
	// lastRetry.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// idleRetry is how often at least a process looks for jobs while it gets none for
	// an error.
	idleRetry = time.Second
)

// PublishJob makes a durable job: the work of a kind on an id, without anything
// raw (decision 17). The same kind and id again within two minutes is one job.
// It returns when the job is stored; a cluster without a leader has some seconds to
// find one.
func (b *Bus) PublishJob(ctx context.Context, workspace, kind, id string) error {
	const op = "publish job"
	if !ValidName(workspace) || !ValidName(kind) || id == "" {
		return fault.New(op, fault.InvalidInput, redact.Name("no job: "+workspace+" "+kind+" "+id))
	}
	err := b.patiently(ctx, func() error { // a repeat is one job
		return b.briefly(ctx, func(ctx context.Context) error {
			_, err := b.js.Publish(ctx, jobSubject(workspace, kind), []byte(id),
				jetstream.WithMsgID(workspace+" "+kind+" "+id), jetstream.WithRetryAttempts(0))
			return err
		})
	})
	if err == nil {
		err = b.durable(jobStream)
	}
	if err != nil {
		return asFault(op, fault.BusUnavailable, redact.Static("the job is not stored"), err)
	}
	return nil
}

// ConsumeJobs runs fn for every job of a kind in the own workspace, at most
// parallel at a time, until ctx ends or the bus closes; it returns when its
// goroutines are gone. A job is done when fn returns nil. One that fails, or
// panics, or whose process dies, begins again: fn must bear that. There is one
// consumer for each kind, shared by all processes of the home; a runtime makes
// it, and a worker waits until one has.
func (b *Bus) ConsumeJobs(ctx context.Context, kind string, parallel int, fn func(ctx context.Context, workspace, id string) error) error {
	const op = "consume jobs"
	if !ValidName(kind) || strings.Contains(kind, "_") || parallel < 1 {
		return fault.New(op, fault.InvalidInput, redact.Name("no jobs: "+kind))
	}
	if err := b.enter(op); err != nil {
		return err
	}
	defer b.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	c, err := b.jobConsumer(ctx, kind)
	if err != nil {
		return asFault(op, fault.BusUnavailable, redact.Static("the jobs cannot be consumed"), err)
	}
	var consumers sync.WaitGroup
	for range parallel {
		consumers.Go(func() {
			for pause := firstRetry; ctx.Err() == nil; {
				// One at a time: a job that waits in a buffer would be given away.
				pull, cancel := context.WithTimeout(ctx, jobPull)
				batch, err := c.Fetch(1, jetstream.FetchContext(pull))
				if err == nil {
					for m := range batch.Messages() {
						b.do(ctx, m, fn)
					}
					err = batch.Error()
				}
				cancel()
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					pause = firstRetry
					continue
				}
				if ctx.Err() == nil && b.Connected() { // else it has been said
					b.log.Warn("jobs", "kind", kind, "error", err.Error())
				}
				b.pause(ctx, pause)
				pause = min(2*pause, idleRetry)
			}
		})
	}
	consumers.Wait()
	return nil
}

// jobConsumer makes the consumer of a kind of jobs, or finds it when this is a
// worker.
func (b *Bus) jobConsumer(ctx context.Context, kind string) (jetstream.Consumer, error) {
	name := kind + "_" + b.opts.Workspace // no kind has a "_"
	want := jetstream.ConsumerConfig{
		Durable: name, FilterSubject: jobSubject(b.opts.Workspace, kind), AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: jobPatience, MaxDeliver: -1,
	}
	for {
		var c jetstream.Consumer
		var err error
		if b.opts.Worker {
			c, err = b.js.Consumer(ctx, jobStream, name)
		} else {
			c, err = b.js.CreateOrUpdateConsumer(ctx, jobStream, want)
			if e, ok := errors.AsType[*jetstream.APIError](err); ok && e.ErrorCode == consumersOverlap {
				// Of a release that consumed the jobs of all workspaces.
				if err = b.js.DeleteConsumer(ctx, jobStream, kind); err == nil {
					continue
				}
			}
		}
		if err == nil || !b.passing(err) && !(b.opts.Worker && errors.Is(err, jetstream.ErrConsumerNotFound)) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// consumersOverlap refuses a second consumer on jobs that another one takes.
const consumersOverlap = 10100

// do runs one job and says what came of it.
func (b *Bus) do(ctx context.Context, m jetstream.Msg, fn func(context.Context, string, string) error) {
	beats := make(chan struct{})
	var heart sync.WaitGroup
	heart.Go(func() {
		tick := time.NewTicker(jobPatience / 3)
		defer tick.Stop()
		for {
			select {
			case <-beats:
				return
			case <-tick.C:
				if err := m.InProgress(); err != nil {
					b.log.Warn("job heartbeat", "error", err.Error())
				}
			}
		}
	})
	workspace, _, _ := strings.Cut(strings.TrimPrefix(m.Subject(), "gatebus."), ".")
	err := b.safely(func() error { return fn(ctx, workspace, string(m.Data())) })
	close(beats)
	heart.Wait()

	if err == nil {
		// The answer makes sure that a job that was done is not done again.
		ackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		if err := m.DoubleAck(ackCtx); err != nil {
			b.log.Warn("job done, not acknowledged", "subject", m.Subject(), "error", err.Error())
		}
		return
	}
	delay := firstRetry
	if md, e := m.Metadata(); e == nil {
		delay = min(firstRetry<<min(md.NumDelivered-1, 16), lastRetry)
	}
	if ctx.Err() != nil {
		delay = 0 // we stop; nothing is wrong with the job
	} else {
		b.log.Warn("job failed", "subject", m.Subject(), "error", err.Error())
	}
	if err := m.NakWithDelay(delay); err != nil {
		b.log.Warn("job not given back", "subject", m.Subject(), "error", err.Error())
	}
}

// safely turns a panic into an error. Where it was is logged; what it says may
// be raw.
func (b *Bus) safely(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("panic", "stack", string(debug.Stack()))
			err = fault.Wrap("run", fault.Internal, redact.Static("gatebus has an error of its own"), fmt.Errorf("panic: %v", p))
		}
	}()
	return fn()
}
