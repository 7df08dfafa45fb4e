// Package bubble runs tests of the bus in virtual time. It is for tests only.
package bubble

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// inBubble holds the name of the test whose process it is.
const inBubble = "GATEBUS_TEST_IN_BUBBLE"

// Run runs a test in a bubble. It runs in a process of its own, the test binary
// again: the NATS client and server keep timers for the whole process, and one
// that has been in a bubble kills whoever meets it outside. A test, or subtest,
// has one bubble at the most.
func Run(t *testing.T, fn func(t *testing.T)) {
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

// Sweep removes the store of a bus that was closed. The server's file store may
// write for a moment after its end, which the removal of a test's directory would
// take for a failure.
func Sweep(home string) {
	for range 500 {
		if os.RemoveAll(filepath.Join(home, "bus")) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
