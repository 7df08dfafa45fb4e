package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// node is one of the servers of the bus.
type node struct {
	name, dir             string
	client, route, status string // addresses
	cmd                   *exec.Cmd
}

// nodes are the servers of the bus: three processes of the program nats-server.
type nodes struct {
	program string
	all     []*node
}

// newNodes makes the folders and configurations of three servers that include
// what gatebus says about its accounts.
func newNodes(program, dir, include string) (*nodes, error) {
	c := &nodes{program: program}
	var routes []string
	for i := range 3 {
		n := &node{name: fmt.Sprintf("n%d", i+1)}
		n.dir = filepath.Join(dir, n.name)
		for _, at := range []*string{&n.client, &n.route, &n.status} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			*at = l.Addr().String()
			defer l.Close() // after all have theirs
		}
		routes = append(routes, "nats://"+n.route)
		c.all = append(c.all, n)
	}
	for _, n := range c.all {
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			return nil, err
		}
		text := fmt.Sprintf("server_name: %s\nlisten: %q\nhttp: %q\njetstream { store_dir: %q }\ncluster {\n  name: show\n  listen: %q\n  routes: [%s]\n}\n%s\n",
			n.name, n.client, n.status, filepath.Join(n.dir, "store"), n.route, strings.Join(routes, ", "), include)
		if err := os.WriteFile(filepath.Join(n.dir, "server.conf"), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// url is where clients connect.
func (c *nodes) url() string {
	var all []string
	for _, n := range c.all {
		all = append(all, "nats://"+n.client)
	}
	return strings.Join(all, ",")
}

// start starts a server.
func (c *nodes) start(n *node) error {
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	n.cmd = exec.Command(c.program, "-c", "server.conf")
	n.cmd.Dir, n.cmd.Stdout, n.cmd.Stderr = n.dir, log, log
	return n.cmd.Start()
}

// kill kills a server with -9 and waits for its end.
func (n *node) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill() // it may have ended
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

func (c *nodes) stop() {
	for _, n := range c.all {
		n.kill()
	}
}

// get asks a server's monitoring.
func (n *node) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.status+path, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", path, n.name, r.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(r.Body).Decode(into)
}

// well waits until every server that runs has caught up with the others.
func (c *nodes) well(ctx context.Context) error {
	for {
		var err error
		for _, n := range c.all {
			if n.cmd != nil && err == nil {
				err = n.get(ctx, "/healthz", nil)
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leader is the server that leads the log.
func (c *nodes) leader(ctx context.Context) (*node, error) {
	var info struct {
		Accounts []struct {
			Streams []struct {
				Name    string `json:"name"`
				Cluster struct {
					Leader string `json:"leader"`
				} `json:"cluster"`
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	for {
		for _, n := range c.all {
			if n.cmd == nil || n.get(ctx, "/jsz?accounts=true&streams=true", &info) != nil {
				continue
			}
			for _, a := range info.Accounts {
				for _, s := range a.Streams {
					for _, at := range c.all {
						if s.Name == "GATEBUS_EVENTS" && s.Cluster.Leader == at.name && at.cmd != nil {
							return at, nil
						}
					}
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no server leads the log")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
