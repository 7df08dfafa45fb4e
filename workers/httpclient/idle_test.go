package httpclient_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/httpclient"
	"github.com/gatebus/gatebus/workers/live"
)

// silence is a handler that says no more until its connection is cut.
func silence(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }

// A server that says nothing while an answer is due is given up, whatever its caller
// does, and where in the answer that is does not matter.
func TestASilentServerIsGivenUp_R114(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(http.ResponseWriter, message){
		"before its headers": func(http.ResponseWriter, message) {},
		"in a body": func(w http.ResponseWriter, m message) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, result(m, "ok")[:20])
			w.(http.Flusher).Flush()
		},
		"in a stream": func(w http.ResponseWriter, _ message) { stream(w, "id: 1\ndata: ") },
		"in an event": func(w http.ResponseWriter, m message) {
			stream(w, ": hello")
			_, _ = io.WriteString(w, "data: "+result(m, "ok"))
			w.(http.Flusher).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, closeAll := inBubble(t, &fake{call: once(func(w http.ResponseWriter, r *http.Request, m message) {
					begin(w, m)
					silence(w, r, m)
				})}, live.Options{Name: "gatebus"})
				defer closeAll()
				begun := time.Now()
				_, err := call(t, c)
				wantLost(t, err, true, fault.TimedOut, "the server said nothing for too long")
				if took := time.Since(begun); took < time.Minute || took > time.Minute+time.Second {
					t.Errorf("after %v", took)
				}
				wantOK(t, c)
			})
		})
	}
}

// What bounds silence does not bound an answer.
func TestASlowAnswerIsNoSilentOne_R114(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, closeAll := inBubble(t, &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) {
			for range 20 {
				stream(w, ": not yet")
				time.Sleep(50 * time.Second)
			}
			stream(w, "data: "+result(m, "ok"))
		}}, live.Options{Name: "gatebus"})
		defer closeAll()
		wantOK(t, c)
		time.Sleep(time.Hour) // its connection is idle, and used again
		wantOK(t, c)
	})
}

// A stream on which nothing is due may be silent; one that never begins is given up
// and asked for again, but not all the time.
func TestTheGetStreamMayBeSilent_R114(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		get         func(http.ResponseWriter, *http.Request, message)
		least, most int
	}{
		"it has begun": {func(w http.ResponseWriter, r *http.Request, m message) {
			stream(w, ": hello")
			silence(w, r, m)
		}, 1, 1},
		"it never begins": {silence, 5, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{get: test.get}
				_, closeAll := inBubble(t, f, live.Options{Name: "gatebus"})
				time.Sleep(time.Hour)
				if n := len(f.of("GET")); n < test.least || n > test.most {
					t.Errorf("%d times in an hour, want %d to %d", n, test.least, test.most)
				}
				closeAll()
			})
		})
	}
}

// The bound is one of the options.
func TestTheBoundOfSilenceIsSaid_R114(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		s := &http.Server{Handler: &fake{call: once(silence)}}
		go s.Serve(l)
		c, err := live.Open(t.Context(), client(t, "http://10.0.0.1/mcp", func(o *httpclient.Options) {
			o.Dial, o.Idle = l.dial, 10*time.Minute
		}), live.Options{Name: "gatebus"})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_, err = call(t, c)
		wantLost(t, err, true, fault.TimedOut, "the server said nothing for too long")
		if took := time.Since(begun); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("after %v", took)
		}
		_ = c.Close(t.Context())
		_ = s.Close()
		synctest.Wait()
	})
}
