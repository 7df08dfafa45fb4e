package bus

import (
	"sync"
	"time"
)

// probeEvery is how often a log that gave no answer is tried again.
const probeEvery = time.Second

// health says whether the log takes appends. After a full disk the store of the
// server answers nothing more, and every caller would wait for its time-out: the
// first one that gets no answer is the last one that waits.
type health struct {
	mu  sync.Mutex
	err error
}

// LogErr says why the log takes no appends now; nil while it does. Reading goes
// on meanwhile. It may be called from any goroutine.
func (b *Bus) LogErr() error {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	return b.health.err
}

// silent notes that the log did not answer on a subject, and tries it until it
// does again.
func (b *Bus) silent(subject string, err error) {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	if b.health.err != nil {
		return
	}
	b.health.err = err
	b.log.Error("the log does not answer; nothing is decided until it does", "error", err)
	b.work.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-b.ctx.Done():
				return
			case <-tick.C:
			}
			if b.settle(b.ctx, subject) {
				b.health.mu.Lock()
				b.health.err = nil
				b.health.mu.Unlock()
				b.log.Warn("the log answers again")
				return
			}
		}
	})
}
