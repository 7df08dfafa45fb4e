// Package cluster runs real nats-server processes for tests.
package cluster

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Size is how many servers a cluster has.
const Size = 3

// A Cluster is three servers on the loopback interface, each in a process of its
// own, with the store of all below one temporary directory.
type Cluster struct {
	t      testing.TB
	dir    string
	nodes  [Size]*exec.Cmd
	client [Size]int // ports
}

// program builds the server once for a test binary, out of the module that it is
// linked with.
var program = sync.OnceValues(func() (string, error) {
	built.Store(true)
	dir, err := os.MkdirTemp("", "nats-server-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nats-server")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("go build: %v\n%s", err, out)
	}
	return path, nil
})

// Sweep removes the program, if it was built; call it at the end of TestMain.
func Sweep() {
	if built.Load() {
		if path, err := program(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
	}
}

var built atomic.Bool

// Start starts a cluster whose servers include the text. They end with the test.
func Start(t testing.TB, config string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: t.TempDir()}
	var routes []string
	var cluster [Size]int
	for i := range Size {
		c.client[i], cluster[i] = freePort(t), freePort(t)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", cluster[i]))
	}
	for i := range Size {
		dir := c.home(i)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		own := fmt.Sprintf("server_name: n%d\nlisten: 127.0.0.1:%d\njetstream { store_dir: \"store\" }\ncluster { name: gatebus, listen: 127.0.0.1:%d, routes: [%s] }\ninclude gatebus.conf\n",
			i, c.client[i], cluster[i], strings.Join(routes, ", "))
		for name, text := range map[string]string{"server.conf": own, "gatebus.conf": config} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c.Run(i)
	}
	t.Cleanup(func() {
		for i := range Size {
			c.Kill(i)
		}
		if t.Failed() {
			for i := range Size {
				log, _ := os.ReadFile(filepath.Join(c.home(i), "log"))
				t.Logf("the end of the log of n%d:\n%s", i, log[max(0, len(log)-4000):])
			}
		}
	})
	return c
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (c *Cluster) home(i int) string { return filepath.Join(c.dir, fmt.Sprint("n", i)) }

// URL of one server.
func (c *Cluster) URL(i int) string { return fmt.Sprintf("nats://127.0.0.1:%d", c.client[i]) }

// URLs of all, separated by commas.
func (c *Cluster) URLs() string {
	all := make([]string, Size)
	for i := range all {
		all[i] = c.URL(i)
	}
	return strings.Join(all, ",")
}

// Node is which server has a name.
func (c *Cluster) Node(name string) int {
	for i := range Size {
		if name == fmt.Sprint("n", i) {
			return i
		}
	}
	c.t.Fatalf("no server is %q", name)
	return -1
}

// Run starts a server, for the first time or again, and waits until it listens.
func (c *Cluster) Run(i int) {
	c.t.Helper()
	path, err := program()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(path, "-c", "server.conf", "-l", "log")
	cmd.Dir = c.home(i)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i] = cmd
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", c.client[i]))
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("n%d does not listen: %s", i, out.String())
		}
	}
}

// Kill ends a server at once, if it runs.
func (c *Cluster) Kill(i int) {
	if cmd := c.nodes[i]; cmd != nil {
		c.nodes[i] = nil
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
