//go:build unix

package bus

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/internal/cluster"
	"github.com/gatebus/gatebus/events"
)

// A leader that was frozen comes back with all that it had been sent.
func TestClusterWhoseLeaderFreezes(t *testing.T) {
	t.Parallel()
	clusterLoses(t, (*cluster.Cluster).Stop, (*cluster.Cluster).Continue)
}

// A worker that is stopped for too long is given up. It goes on with what it had
// decided, and the fence keeps that out of the log.
func TestStoppedWorkerIsReapedAndFencedOff(t *testing.T) {
	t.Parallel()
	one, c, reaped := deciding(t)
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	settled := settling(t, one)
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	t.Logf("settled %v after the stop", time.Since(stopped))
	if fmt.Sprint(reaped()) != "[r-2]" || one.Alive("r-2") {
		t.Error(reaped(), one.Peers())
	}
	if _, err := fmt.Fprintln(c.in, "go"); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.says(t, "decided 0 "+errMoved.Error())
	c.says(t, "ended runtime_closed")
	for _, commit := range commits(t, one.Bus) {
		if _, ok := commit.Events[0].(events.CallStarted); ok {
			t.Errorf("commit %d starts the call", commit.Seq)
		}
	}
}

// A stop that is short is no end.
func TestWorkerThatIsStoppedForAMomentGoesOn(t *testing.T) {
	t.Parallel()
	one, c, reaped := deciding(t)
	settled := settling(t, one)
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c.in, "go"); err != nil {
		t.Fatal(err)
	}
	c.says(t, "decided ")
	if strings.HasPrefix(c.lines.Text(), "decided 0") {
		t.Error(c.lines.Text())
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if len(reaped()) > 0 || !one.Alive("r-2") {
		t.Error(reaped(), one.Peers())
	}
}
