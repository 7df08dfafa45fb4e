package connector

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
	"github.com/gatebus/gatebus/workers/stdio"
)

// collect waits beside everything else for the end of a process, however it comes,
// and keeps what it wrote to its standard error (R124). What cannot be kept is lost
// and holds up nobody.
func (c *Connector) collect(ws string, key live.Key, s connection.State, process *stdio.Process, secrets *redact.Redactor) {
	c.mu.Lock()
	c.processes[process] = running{s.Server, key, secrets}
	c.mu.Unlock()
	c.collecting.Go(func() {
		defer func() {
			c.mu.Lock()
			delete(c.processes, process)
			c.mu.Unlock()
		}()
		said, err := process.Stderr(context.Background(), secrets)
		if err != nil || said.Bytes == 0 {
			return
		}
		if err := c.errors.Append(stdio.Entry{
			Time: time.Now().UTC(), Server: s.Server, Connection: key.Connection, Generation: key.Generation,
			Exit: process.Exit(), Bytes: said.Bytes, Truncated: said.Truncated,
		}, said.Text); err != nil {
			c.Log.Warn("what a server wrote to its standard error is not kept", "server", s.Server, "error", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := c.Model.Connections.Dispatch(ctx, ws, key.Connection, c.meta(key.Connection, s), connection.Captured{
			Stderr: events.StderrCaptured{
				Generation: key.Generation, Chars: uint32(said.Chars), Truncated: said.Truncated, RedactionFailed: said.Failed,
			},
		}); err != nil {
			c.Log.Warn("what was kept of a standard error was not recorded", "connection", key.Connection, "error", err)
		}
	})
}

// Collected waits until what all servers that have ended wrote is kept, or ctx
// ends. Nothing is opened any more.
func (c *Connector) Collected(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		c.collecting.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// running is a process whose standard error is still being written.
type running struct {
	server  string
	key     live.Key
	secrets *redact.Redactor
}

// The bounds of one answer to mcp/server/logs.
const (
	fewLogs  = 10
	manyLogs = 100
)

// Methods are those that it answers. Identity says who makes a request, when he has
// one of the roles.
func (c *Connector) Methods(identity func(r *bus.Request, roles ...string) (client.Identity, error)) []bus.Method {
	return []bus.Method{{Name: "mcp/server/logs", Handle: func(_ context.Context, r *bus.Request) (any, error) {
		if _, err := identity(r, host.RoleOperator); err != nil {
			return nil, err
		}
		var p client.ServerLogs
		if err := r.Decode(&p); err != nil {
			return nil, err
		}
		return c.logs(p)
	}}}
}

// logs are the newest entries of the log of a server, and what those of its
// processes that run here have written so far.
func (c *Connector) logs(p client.ServerLogs) ([]client.ServerLog, error) {
	if p.Limit < 0 || p.Limit > manyLogs {
		return nil, fault.New("server.logs", fault.InvalidInput, redact.Static("limit: a number from 1 to 100"))
	}
	limit := cmp.Or(p.Limit, fewLogs)
	ended, err := c.errors.Last(p.Name, limit)
	if err != nil {
		return nil, fault.Wrap("server.logs", fault.Internal, redact.Static("the log of the servers cannot be read"), err)
	}
	if _, ok := c.Cores.Server(p.Name); !ok && len(ended) == 0 {
		return nil, fault.New("server.logs", fault.NotFound, redact.Static("no such server"))
	}
	out := []client.ServerLog{}
	for _, e := range ended {
		out = append(out, client.ServerLog{
			Time: e.Time, Server: e.Server, Connection: e.Connection, Generation: e.Generation, Exit: e.Exit,
			Truncated: e.Truncated, Text: e.Text,
		})
	}
	c.mu.Lock()
	now := maps.Clone(c.processes)
	c.mu.Unlock()
	for process, of := range now {
		if of.server != p.Name {
			continue
		}
		if said := process.StderrSoFar(of.secrets); said.Bytes > 0 {
			out = append(out, client.ServerLog{
				Time: time.Now().UTC(), Server: of.server, Connection: of.key.Connection, Generation: of.key.Generation,
				Running: true, Truncated: said.Truncated, Text: said.Text.String(),
			})
		}
	}
	return out[max(0, len(out)-limit):], nil
}

// lastLines bounds the wait for the end of a process that is being ended.
const lastLines = 3 * time.Second

// withStderr adds the end of the standard error to the text of a failed start, for
// who reads the log or asks for the server; what a model is told has none of it.
func withStderr(err error, process *stdio.Process, secrets *redact.Redactor) error {
	step, ok := errors.AsType[*stepError](err)
	if !ok || process == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastLines)
	defer cancel()
	if said, err := process.Stderr(ctx, secrets); err == nil && said.Tail.String() != "" {
		step.text = redact.Join(step.text, redact.Static("; its standard error ends with: "), said.Tail)
	}
	return step
}
