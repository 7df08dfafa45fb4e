package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/testdata/shows/show"
	"github.com/gatebus/gatebus/workers/secrets"
)

// held is what a server has: values by reference; nil is a server that is not there.
type held map[string]string

// target is a server that is changed.
type target struct {
	name string
	// now is what was acknowledged, or found after a kill; trying is what was asked for
	// while unknown is set.
	now, trying held
	unknown     bool
	acked       int
}

// tally are the figures of a kill.
type tally struct {
	acked, unknown int // changes
	written, stale int // values that were there at the kill and nothing referred to: of no commit, of one before
	job, collected int // who deleted them
}

func (t *tally) add(u tally) {
	t.acked += u.acked
	t.unknown += u.unknown
	t.written += u.written
	t.stale += u.stale
	t.job += u.job
	t.collected += u.collected
}

// up starts a process that serves.
func (s *scene) up(ctx context.Context) (*show.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, serves)
	defer cancel()
	return s.Up(ctx)
}

// ref is the reference of a secret of a server of the workspace.
func ref(server, place, key string) string {
	return "gateway_settings:mcp:workspace:default:" + server + ":" + place + ":" + key
}

// entry is what mcpServers says of a server that is to have the values.
func (s *scene) entry(name string, h held) map[string]any {
	values := map[string]string{}
	for r, v := range h {
		values[r[strings.LastIndexByte(r, ':')+1:]] = v
	}
	if name == "remote" {
		return map[string]any{"url": "https://mcp.example/mcp", "headers": values, "disabled": true}
	}
	return map[string]any{"command": "true", "env": values, "disabled": true}
}

// put installs a server with the values.
func (s *scene) put(ctx context.Context, c *client.Client, name string, h held) error {
	var done struct{ Status string }
	config := map[string]any{"mcpServers": map[string]any{name: s.entry(name, h)}}
	if err := s.ask(ctx, c, "mcp/install", map[string]any{"config": config}, &done); err != nil {
		return err
	}
	if done.Status != "ok" {
		return fmt.Errorf("%s was not installed: %s", name, done.Status)
	}
	return nil
}

// begin installs the servers.
func (s *scene) begin(ctx context.Context) error {
	c, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, t := range []*target{
		{name: "vault", now: held{ref("vault", "env", "TOKEN"): s.value()}},
		{name: "remote", now: held{ref("remote", "header", "authorization"): "Bearer " + s.value()}},
		{name: "guest", now: held{ref("guest", "env", "TOKEN"): s.value()}},
	} {
		if err := s.put(ctx, c, t.name, t.now); err != nil {
			return err
		}
		s.targets = append(s.targets, t)
	}
	return s.fields(ctx, c)
}

// change asks for the next change of a server, and returns what it makes of it.
func (s *scene) change(ctx context.Context, c *client.Client, t *target) error {
	next := maps.Clone(t.now)
	var main, extra string
	switch t.name {
	case "remote":
		main, extra = ref(t.name, "header", "authorization"), ref(t.name, "header", "x-extra")
	default:
		main, extra = ref(t.name, "env", "TOKEN"), ref(t.name, "env", "EXTRA")
	}
	s.mu.Lock()
	kind := s.rand.IntN(10)
	s.mu.Unlock()
	var do func() error
	switch {
	case t.name == "guest" && next != nil:
		next = nil
		do = func() error { return s.ask(ctx, c, "mcp/uninstall", map[string]string{"name": t.name}, nil) }
	case t.name == "guest" || kind < 4:
		if next == nil {
			next = held{}
		}
		next[main] = s.value()
		if _, ok := next[extra]; ok {
			delete(next, extra)
		} else {
			next[extra] = s.value()
		}
		do = func() error { return s.put(ctx, c, t.name, next) }
	default:
		next[main] = s.value()
		do = func() error {
			return s.ask(ctx, c, "secret/set", client.SecretSet{Name: main, Value: next[main]}, nil)
		}
	}
	t.trying, t.unknown = next, true
	err := do()
	if err == nil {
		t.now, t.unknown = next, false
		t.acked++
	}
	return err
}

// write changes a server until the process is gone.
func (s *scene) write(ctx context.Context, t *target) error {
	c, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if err := s.change(ctx, c, t); err != nil {
			if ctx.Err() != nil {
				return nil // it was killed meanwhile
			}
			return err
		}
	}
}

// round lets the servers be changed, kills the process, starts another one and
// compares.
func (s *scene) round(ctx context.Context, p *show.Process, n int) (*show.Process, tally, error) {
	var t tally
	working, stop := context.WithCancel(ctx)
	errs := make([]error, len(s.targets))
	var writers sync.WaitGroup
	for i, to := range s.targets {
		to.acked = 0
		writers.Go(func() { errs[i] = s.write(working, to) })
	}
	if n%3 == 2 { // the collection at the same time
		writers.Go(func() {
			c, err := s.Dial(working)
			if err != nil {
				return // the process is gone
			}
			defer c.Close()
			for s.ask(working, c, "secret/collect", client.SecretCollect{}, nil) == nil {
			}
		})
	}
	s.mu.Lock()
	moment := 100*time.Millisecond + time.Duration(s.rand.Int64N(int64(400*time.Millisecond)))
	s.mu.Unlock()
	time.Sleep(moment)
	// What comes after the order to kill counts as killed.
	stop()
	p.Kill()
	writers.Wait()
	s.said(p)
	for i, to := range s.targets {
		if errs[i] != nil {
			return p, t, fmt.Errorf("%s: %w", to.name, errs[i])
		}
		t.acked += to.acked
		if to.unknown {
			t.unknown++
		}
	}
	there, err := s.keystore(ctx)
	if err != nil {
		return p, t, err
	}
	if p, err = s.up(ctx); err != nil {
		return p, t, err
	}
	c, err := s.Dial(ctx)
	if err != nil {
		return p, t, err
	}
	defer c.Close()
	log, err := s.log(ctx, c)
	if err != nil {
		return p, t, err
	}
	if err := s.compare(log, there); err != nil {
		return p, t, err
	}
	for it := range there {
		switch {
		case log.active[it]:
		case log.known[it]:
			t.stale++
		default:
			t.written++
		}
	}
	if n%2 == 1 {
		out, said, code := s.CLI(ctx, "secret", "garbage-collection", "-o", "json")
		s.keep(out, said)
		var report client.SecretsCollected
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
			return p, t, fmt.Errorf("garbage collection: exit %d: %s", code, said)
		}
		t.collected = report.DeletedRefs
	}
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	for first := true; ; first = false {
		if there, err = s.keystore(ctx); err != nil {
			return p, t, err
		}
		left := 0
		for it := range there {
			if !log.active[it] {
				left++
			}
		}
		if left == 0 {
			break
		}
		if first && n%2 == 1 {
			return p, t, fmt.Errorf("%d values are left after the garbage collection", left)
		}
		select {
		case <-ctx.Done():
			return p, t, fmt.Errorf("%d values are left that nothing refers to", left)
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.job = t.stale + t.written - t.collected
	return p, t, s.compare(log, there)
}

// compare says whether each server has what it may have, and its values are there.
func (s *scene) compare(log history, there map[string]redact.Raw[string]) error {
	for _, t := range s.targets {
		found := map[string]redact.Raw[string]{}
		for it := range log.active {
			r, _, _ := strings.Cut(it, "@")
			if !strings.HasPrefix(r, "gateway_settings:mcp:workspace:default:"+t.name+":") {
				continue
			}
			value, ok := there[it]
			if !ok {
				return fmt.Errorf("lost: the server %s refers to %s, which is not there", t.name, r)
			}
			found[r] = value
		}
		switch {
		case t.now.is(found):
		case t.unknown && t.trying.is(found):
			t.now = t.trying
		default:
			return fmt.Errorf("the server %s has neither what it had nor what it was to have: %d of its values differ", t.name, len(found))
		}
		t.unknown = false
	}
	return nil
}

// is reports whether these are the values.
func (h held) is(found map[string]redact.Raw[string]) bool {
	return maps.EqualFunc(found, h, func(a redact.Raw[string], b string) bool { return redact.Same(a, redact.NewRaw(b)) })
}

// history is what the log says of secrets, by item: those that are referred to, and all
// that ever were.
type history struct{ active, known map[string]bool }

// log reads it.
func (s *scene) log(ctx context.Context, c *client.Client) (h history, err error) {
	rows, err := show.Audit(ctx, c, 0)
	if err != nil {
		return h, err
	}
	h.known = map[string]bool{}
	versions := map[string]map[string]string{} // by server, by reference
	type secret struct{ Ref, Version string }
	for _, row := range rows {
		var e struct {
			Installation struct {
				Env, Headers, Args []secret
				URL, Command       secret
			}
			secret
		}
		if err := json.Unmarshal(row.Data, &e); err != nil {
			return h, err
		}
		switch row.Name {
		case "server_installed", "server_updated":
			now := map[string]string{}
			i := e.Installation
			for _, x := range slices.Concat(i.Env, i.Headers, i.Args, []secret{i.URL, i.Command}) {
				if x.Ref != "" {
					now[x.Ref] = x.Version
				}
			}
			versions[row.Aggregate] = now
		case "secret_stored":
			if _, ok := versions[row.Aggregate][e.Ref]; ok {
				versions[row.Aggregate][e.Ref] = e.Version
			}
		case "server_uninstalled":
			delete(versions, row.Aggregate)
		default:
			continue
		}
		for r, v := range versions[row.Aggregate] {
			h.known[r+"@"+v] = true
		}
	}
	h.active = map[string]bool{}
	for _, now := range versions {
		for r, v := range now {
			h.active[r+"@"+v] = true
		}
	}
	return h, nil
}

// keystore reads all values.
func (s *scene) keystore(ctx context.Context) (map[string]redact.Raw[string], error) {
	store, err := secrets.Open(ctx, secrets.Options{Home: s.Home})
	if err != nil {
		return nil, err
	}
	items, err := store.Items(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]redact.Raw[string]{}
	for _, it := range items {
		value, ok, err := store.Get(ctx, it)
		if err != nil {
			return nil, err
		}
		if ok { // it may be gone by now
			out[it] = value
		}
	}
	return out, nil
}
