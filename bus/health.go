package bus

import (
	"net/http"
	"net/url"
	"sync"
	"time"
)

// probeEvery is how often a log that gave no answer is tried again.
const probeEvery = time.Second

// health says whether the log takes appends. After a full disk the store of the
// server answers nothing more, and every caller would wait for its time-out: the
// first one that gets no answer is the last one that waits.
type health struct {
	mu    sync.Mutex
	err   error
	final bool // it does not end before the bus is opened again
}

// LogErr says why the log takes no appends now; nil while it does. Reading goes
// on meanwhile. It may be called from any goroutine.
func (b *Bus) LogErr() error {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	return b.health.err
}

// silent notes that the log refused or did not answer, and tries it until it is
// well again.
func (b *Bus) silent(subject string, err error) {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	if b.health.err != nil {
		return
	}
	b.health.err = err
	b.log.Error("the log does not take events; nothing is decided until it does", "error", err.Error())
	b.work.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-b.ctx.Done():
				return
			case <-tick.C:
			}
			if b.storeWell() && b.settle(b.ctx, subject) && b.durable(eventStream) == nil {
				b.health.mu.Lock()
				defer b.health.mu.Unlock()
				if !b.health.final {
					b.health.err = nil
					b.log.Warn("the log takes events again")
				}
				return
			}
		}
	})
}

// broken notes that the log can not be relied on before it is opened again.
func (b *Bus) broken(err error) {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	if b.health.final {
		return
	}
	b.health.err, b.health.final = err, true
	b.log.Error("the log is broken; nothing is decided any more", "error", err.Error())
}

// storeWell asks the server for its own health. A stream whose disk was full or
// failed is frozen until the server starts again: it still refuses what has a
// wrong expectation, and stores nothing. Of a server elsewhere only its answers
// are known.
func (b *Bus) storeWell() bool {
	if b.server == nil {
		return true
	}
	w := healthAnswer{header: http.Header{}, code: http.StatusOK}
	b.server.HandleHealthz(&w, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/healthz"}})
	return w.code == http.StatusOK
}

// healthAnswer takes the answer of the server's health handler.
type healthAnswer struct {
	header http.Header
	code   int
}

func (w *healthAnswer) Header() http.Header         { return w.header }
func (w *healthAnswer) Write(p []byte) (int, error) { return len(p), nil }
func (w *healthAnswer) WriteHeader(code int)        { w.code = code }
