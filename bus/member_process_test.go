package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
)

// errMoved says that the connection is not as the child knew it.
var errMoved = errors.New("the connection was claimed by another")

// work is a worker process of its own. It says what it does, a line each: it
// begins to start a call on connection c1, with the grant of ana, and goes on when
// it is told to.
func work(url, creds, home string) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			fmt.Println("error", err, cause(err))
			os.Exit(1)
		}
	}
	text, err := os.ReadFile(creds)
	check(err)
	b, err := Open(ctx, Options{Home: home, Worker: true, External: &External{URL: url, Creds: text}})
	check(err)
	tb := register(b)
	check(b.Load(ctx))
	m, err := b.Join(ctx, tb.model(), JoinOptions{Runtime: "r-2", Home: "h", Version: "v"})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, func(context.Context, string) error { return nil }) }()
	fmt.Println("joined")

	generation := tb.connections.Get("default", "c1")
	lines := bufio.NewScanner(os.Stdin)
	d, err := tb.calls.DispatchWith(ctx, "default", "call", Meta{}, With{
		Reads: []events.AggregateID{{Kind: events.KindGrant, Key: "ana"}},
		Fence: events.AggregateID{Kind: events.KindConnection, Key: "c1"},
	}, func() (callDo, error) {
		if tb.connections.Get("default", "c1") != generation {
			return callDo{}, errMoved
		}
		fmt.Println("deciding")
		lines.Scan()
		return callDo{may: true, generation: generation}, nil
	})
	fmt.Println("decided", d.Seq, err)
	err = <-ended
	fmt.Println("ended", fault.KindOf(err))
	os.Exit(0)
}

// child is a worker process of a bus.
type child struct {
	*exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

func (b *testBus) child(t *testing.T) *child {
	t.Helper()
	creds := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(creds, b.workerCreds(t), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GATEBUS_TEST_WORKER="+b.URL(), "GATEBUS_TEST_CREDS="+creds, "GATEBUS_TEST_WORKER_HOME="+b.Bus.opts.Home)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &child{cmd, in, bufio.NewScanner(out)}
}

func (c *child) says(t *testing.T, want string) {
	t.Helper()
	if !c.lines.Scan() || !strings.HasPrefix(c.lines.Text(), want) {
		t.Fatalf("the worker says %q, want %q", c.lines.Text(), want)
	}
}

// deciding is a bus with a worker process that is about to start a call, and the
// runtimes that were reaped.
func deciding(t *testing.T) (one *joined, c *child, reaped func() []string) {
	t.Helper()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	var mu sync.Mutex
	var ids []string
	one = b.join(t, "r-1", func(ctx context.Context, id string) error {
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, id)
		_, err := b.connections.Dispatch(ctx, "default", "c1", Meta{}, "nobody")
		return err
	})
	if _, err := b.grants.Dispatch(patient(t), "default", "ana", Meta{}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := b.connections.Dispatch(patient(t), "default", "c1", Meta{}, "r-2"); err != nil {
		t.Fatal(err)
	}
	c = b.child(t)
	c.says(t, "joined")
	c.says(t, "deciding")
	return one, c, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return ids
	}
}

// settling begins to settle a revoke, which waits for the worker.
func settling(t *testing.T, one *joined) <-chan error {
	t.Helper()
	if _, err := one.grants.Dispatch(patient(t), "default", "ana", Meta{}, false); err != nil {
		t.Fatal(err)
	}
	settled := make(chan error, 1)
	go func() {
		settled <- one.Settle(patient(t), "default", events.AggregateID{Kind: events.KindGrant, Key: "ana"})
	}()
	select {
	case err := <-settled:
		t.Fatalf("settled while the worker decides: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	return settled
}

func TestKilledWorkerIsReapedAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	one, c, reaped := deciding(t)
	settled := settling(t, one)
	killed := time.Now()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	t.Logf("settled %v after the kill", time.Since(killed))
	if d := time.Since(killed); d > 15*time.Second {
		t.Errorf("settled after %v", d)
	}
	if fmt.Sprint(reaped()) != "[r-2]" || one.Alive("r-2") || !one.Alive("r-1") {
		t.Error(reaped(), one.Peers())
	}
}
