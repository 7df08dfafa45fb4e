// Package bustest opens real buses for tests: there is no fake log.
package bustest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"

	"github.com/gatebus/gatebus/bus"
)

// New opens a bus in a home of its own, without a listener, lets register make
// its tables, loads it, and closes it when the test ends. register may be nil.
func New(t testing.TB, register func(*bus.Bus)) *bus.Bus {
	t.Helper()
	return Open(t, t.TempDir(), register)
}

// Open is New on a home that may hold something already.
func Open(t testing.TB, home string, register func(*bus.Bus)) *bus.Bus {
	t.Helper()
	b, err := bus.Open(context.Background(), bus.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if register != nil {
		register(b)
	}
	if err := b.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	return b
}

// inBubble holds the name of the test whose process it is.
const inBubble = "GATEBUS_TEST_IN_BUBBLE"

// Bubble runs a test in virtual time with real buses: an hour of waiting takes
// no time, and a goroutine that stays behind fails the test. A bus must be opened
// inside, by New; it closes before the bubble ends.
//
// The test runs in a process of its own, the test binary again: the NATS client
// and server keep timers for the whole process, and one that has been in a bubble
// kills whoever meets it outside.
func Bubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inBubble) != t.Name() {
		alone(t)
		return
	}
	// One clock of the servers is shared by the whole process. It must not be born
	// in a bubble, where servers outside could neither leave nor end it.
	ats.Register()
	defer ats.Unregister()
	synctest.Test(t, func(t *testing.T) {
		// The file store's flush loop sleeps on for a moment after its end. Cleanups
		// run last in, first out: this one after every bus is closed.
		t.Cleanup(func() { time.Sleep(time.Second) })
		fn(t)
	})
}

// alone runs the test, and only it, in another process.
func alone(t *testing.T) {
	t.Helper()
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0],
		"-test.run="+strings.Join(pattern, "/"), "-test.count=1", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), inBubble+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")) {
		t.Errorf("in its own process: %v\n%s", err, out)
	}
}
