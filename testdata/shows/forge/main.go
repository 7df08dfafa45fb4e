// Forge attacks a bus as every kind of principal: what each tries on each family
// of subjects is compared with what the design allows it, with what reached the
// runtime and the victim, and with the log, which no attack may have changed. Then
// it measures how soon a revoked credential is cut.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	nats := flag.String("nats", "", "the program nats-server")
	dir := flag.String("dir", "", "an empty directory to work in")
	servers := flag.Int("servers", 0, "how many nats-server processes the bus has; 0 is an embedded bus")
	cuts := flag.Int("cuts", 3, "revocations to measure")
	flag.Parse()
	b := &bench{}
	err := b.show(*bin, *nats, *dir, *servers, *cuts)
	b.stop()
	if err == nil && b.problems > 0 {
		err = fmt.Errorf("%d problems", b.problems)
	}
	show.Verdict(err)
}

// bench is a running bus.
type bench struct {
	*show.Gatebus
	up       *show.Process
	nodes    []*exec.Cmd
	urls     []string // of each server
	operator *client.Client
	creds    map[string]string // files, by principal
	ids      map[string]string // of the credentials
	problems int
}

func (b *bench) problem(format string, args ...any) {
	b.problems++
	fmt.Printf("      ! "+format+"\n", args...)
}

func (b *bench) stop() {
	if b.operator != nil {
		b.operator.Close()
	}
	if b.up != nil {
		b.up.Interrupt()
		if _, err := b.up.Wait(30 * time.Second); err != nil {
			b.up.Kill()
		}
	}
	for _, n := range b.nodes {
		_ = n.Process.Kill() // it may have ended
		_ = n.Wait()
	}
}

func (b *bench) show(bin, nats, dir string, servers, cuts int) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if b.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	if servers > 0 {
		if err := b.serve(ctx, nats, dir, servers); err != nil {
			return err
		}
		b.Args = []string{"--bus", strings.Join(b.urls, ",")}
	}
	starting, done := context.WithTimeout(ctx, 90*time.Second)
	defer done()
	if b.up, err = b.Up(starting); err != nil {
		return err
	}
	if b.operator, err = b.Dial(ctx); err != nil {
		return err
	}
	if servers == 0 {
		var info client.BusInfo
		if err := b.operator.Do(ctx, "bus/info", nil, &info); err != nil {
			return err
		}
		b.urls = []string{info.NATS}
	}
	if err := b.enrol(ctx, dir); err != nil {
		return err
	}
	if err := b.matrix(ctx); err != nil {
		return err
	}
	for range cuts {
		if err := b.cut(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// serve starts the servers of an external bus.
func (b *bench) serve(ctx context.Context, program, dir string, n int) error {
	include, stderr, code := b.CLI(ctx, "bus", "config")
	if code != 0 {
		return errors.New(stderr)
	}
	var clients, routes []string
	var held []net.Listener // until all have theirs
	for range 2 * n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		held = append(held, l)
		if len(clients) < n {
			clients = append(clients, l.Addr().String())
		} else {
			routes = append(routes, l.Addr().String())
		}
	}
	var configs []string
	for i := range n {
		home := filepath.Join(dir, fmt.Sprint("n", i+1))
		if err := os.MkdirAll(home, 0o700); err != nil {
			return err
		}
		text := fmt.Sprintf("server_name: n%d\nlisten: %q\njetstream { store_dir: \"store\" }\n", i+1, clients[i])
		if n > 1 {
			text += fmt.Sprintf("cluster { name: show, listen: %q, routes: [%s] }\n", routes[i], "nats://"+strings.Join(routes, ", nats://"))
		}
		path := filepath.Join(home, "server.conf")
		if err := os.WriteFile(path, []byte(text+include), 0o600); err != nil {
			return err
		}
		configs = append(configs, path)
		b.urls = append(b.urls, "nats://"+clients[i])
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			return err
		}
	}
	for _, path := range configs {
		log, err := os.Create(path + ".log")
		if err != nil {
			return err
		}
		cmd := exec.Command(program, "-c", path)
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Dir(path), log, log
		err = cmd.Start()
		log.Close() // the child has its own
		if err != nil {
			return err
		}
		b.nodes = append(b.nodes, cmd)
	}
	for _, address := range clients { // up does not wait for a bus
		for {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return err
			}
		}
	}
	return nil
}

// roles are who attacks, each with its role on the bus. Anonymous has no
// credentials; revoked has some that are void.
var roles = []struct{ name, role string }{
	{"alice", "host"}, {"olga", "operator"}, {"audra", "auditor"}, {"wilma", "worker"}, {"anonymous", ""}, {"rex", "host"},
}

// enrol gives everybody credentials, as a person would.
func (b *bench) enrol(ctx context.Context, dir string) error {
	b.creds, b.ids = map[string]string{}, map[string]string{}
	for _, r := range append(roles[:len(roles):len(roles)], struct{ name, role string }{"bob", "host"}, struct{ name, role string }{"spy", "worker"}) {
		if r.role == "" {
			continue
		}
		if err := b.issue(ctx, dir, r.name, r.role); err != nil {
			return err
		}
	}
	_, stderr, code := b.CLI(ctx, "host", "revoke", "rex")
	if code != 0 {
		return errors.New(stderr)
	}
	return nil
}

func (b *bench) issue(ctx context.Context, dir, name, role string) error {
	text, stderr, code := b.CLI(ctx, "bus", "creds", name, "--role", role)
	if code != 0 {
		return fmt.Errorf("bus creds %s: %s", name, stderr)
	}
	b.creds[name] = filepath.Join(dir, name+".creds")
	return os.WriteFile(b.creds[name], []byte(text), 0o600)
}
