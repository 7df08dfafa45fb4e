package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events/fault"
)

// What was on its way when the connection for appends was cut is found, or sent
// again when it did not arrive: each is in the log once.
func TestAppendsGoOnWhereTheirConnectionWasCut(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var conns []net.Conn // the first is that of everything else
	b := open(t, Options{wrap: func(c net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c
	}})
	cut := func() {
		mu.Lock()
		defer mu.Unlock()
		_ = conns[len(conns)-1].Close()
	}
	const callers, each = 8, 50
	var work sync.WaitGroup
	var n atomic.Int64
	for i := range callers {
		work.Go(func() {
			for j := range each {
				if n.Add(1)%60 == 0 {
					cut()
				}
				key := fmt.Sprintf("s%d-%d", i, j)
				if _, err := b.sessions.Dispatch(context.Background(), "default", key, Meta{}, "touch"); err != nil {
					t.Errorf("%s: %v (%v)", key, err, cause(err))
				}
			}
		})
	}
	work.Wait()
	seen := make(map[string]int)
	for _, c := range commits(t, b.Bus) {
		seen[c.Aggregate.Key]++
	}
	for i := range callers {
		for j := range each {
			if key := fmt.Sprintf("s%d-%d", i, j); seen[key] != 1 {
				t.Errorf("%s is in the log %d times", key, seen[key])
			}
		}
	}
	if len(conns) < 4 {
		t.Errorf("only %d connections were made", len(conns))
	}
}

// The server remembers each subject that it has met.
func TestAnswersHaveNoMoreSubjectsThanThereAreAppendsAtATime(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	for i := range 50 {
		b.do(t, fmt.Sprint("s", i), Meta{}, "touch")
	}
	if n := len(b.wire.slots); n != 1 {
		t.Errorf("%d slots for one append at a time", n)
	}
}

// What was read of a connection before it ended may be looked at after it: the slot that
// it names is somebody else's by then.
func TestNoAnswerOfAConnectionThatEndedIsTaken(t *testing.T) {
	t.Parallel()
	before, _ := net.Pipe()
	now, _ := net.Pipe()
	s := &slot{answer: make(chan ack, 1), waits: true}
	w := &wire{feed: &feed{ours: map[uint64]struct{}{}}, say: func(error) {}, conn: now, slots: []*slot{s}}
	answer := string(ackPrefix) + "7}"
	in := bufio.NewReader(strings.NewReader(fmt.Sprintf("MSG before.0 1 %d\r\n%s\r\n", len(answer), answer)))
	w.read(before, in, "before.")
	select {
	case got := <-s.answer:
		t.Errorf("an append on the next connection got %+v", got)
	default:
	}
	if w.conn != now || !s.waits {
		t.Error("the next connection has ended")
	}
}

// A server that reads nothing ends the connection, and holds nobody for ever.
func TestAServerThatReadsNothingHoldsNoAppend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, _ := net.Pipe()
		w := &wire{
			open: func() (net.Conn, error) { return nil, errors.New("no other one") },
			say:  func(error) {}, feed: &feed{ours: map[uint64]struct{}{}}, closed: make(chan struct{}), ready: make(chan struct{}), conn: conn,
		}
		_, err := w.publish(t.Context(), time.Hour, &publication{subject: "s"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		w.close()
	})
}

// The server would end the connection of whoever sends more than it takes.
func TestACommitThatNoMessageHoldsIsRefusedAlone(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	b.do(t, "s1", Meta{}, "touch")
	_, err := b.sessions.Dispatch(context.Background(), "default", "s2", Meta{}, sessionDo("open "+strings.Repeat("x", maxPayload)))
	wantKind(t, err, fault.FrameTooLarge)
	if err := b.LogErr(); err != nil {
		t.Errorf("nothing is decided any more: %v", err)
	}
	b.do(t, "s1", Meta{}, "touch")
	_, err = b.sessions.Dispatch(context.Background(), "default", "s2", Meta{}, sessionDo("open "+strings.Repeat("x", maxPayload-headerRoom-1000)))
	if err != nil {
		t.Errorf("what a message holds: %v (%v)", err, cause(err))
	}
}
