package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// caller is an MCP client of one era at one door.
type caller struct {
	*show.MCP
	door string // as printed
	tool string // what do is called there

	mu    sync.Mutex
	heard int // notices of changed tools
}

// told is how many notices it has heard.
func (c *caller) told() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard
}

// listen counts notices as long as ctx lasts.
func (c *caller) listen(ctx context.Context) {
	for ctx.Err() == nil {
		_ = c.Listen(ctx, func(method string) {
			if method == notice {
				c.mu.Lock()
				c.heard++
				c.mu.Unlock()
			}
		})
	}
}

// What became of a call, as its client knows.
const (
	succeeded = "succeeded"
	refused   = "not started" // and so it was not executed
	unsure    = "unsure"      // executed once or not at all
)

// made is one call with its outcome.
type made struct {
	row, id, arguments string
	client             *caller
	begun, ended       time.Time
	outcome, kind      string
}

// call makes a call with an id of the row, and notes it.
func (r *row) call(ctx context.Context, c *caller, a arguments) made {
	return r.callAs(ctx, c, c.Next(), a)
}

// callAs is call with a request id.
func (r *row) callAs(ctx context.Context, c *caller, request int64, a arguments) made {
	return r.record(c, a, func(arguments string) (show.Answer, error) {
		return c.DoAs(ctx, request, "tools/call", `{"name":"`+c.tool+`","arguments":`+arguments+`}`)
	})
}

// record notes what became of a call.
func (r *row) record(c *caller, a arguments, call func(arguments string) (show.Answer, error)) made {
	a.ID = fmt.Sprintf("%s.%d", r.key, r.count.Add(1))
	m := made{row: r.name, id: a.ID, arguments: a.json(), client: c, begun: time.Now()}
	answer, err := call(m.arguments)
	m.ended = time.Now()
	m.outcome, m.kind = outcome(answer, err)
	if m.outcome == succeeded && !strings.Contains(string(answer.Result), `"`+strings.Repeat("y", max(a.Size, 1))+`"`) {
		r.problem("%s: the result is not that of the tool: %.200s", a.ID, answer.Result)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, m)
	return m
}

// outcome reads an answer. One without an answer may have been executed.
func outcome(a show.Answer, err error) (outcome, kind string) {
	if err != nil {
		return unsure, "no answer"
	}
	if a.Error != nil {
		var e struct {
			Code int
			Data struct{ Kind string }
		}
		_ = json.Unmarshal(a.Error, &e) // what is not there is empty
		if e.Data.Kind == "" || e.Data.Kind == "cancelled" {
			return unsure, fmt.Sprintf("error %d %s", e.Code, e.Data.Kind)
		}
		return refused, e.Data.Kind
	}
	var result struct {
		IsError           bool
		StructuredContent struct {
			Code    string
			Started *bool `json:"execution_started"`
		}
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		return unsure, "no result"
	}
	switch s := result.StructuredContent; {
	case !result.IsError:
		return succeeded, ""
	case s.Started != nil && !*s.Started:
		return refused, s.Code
	default:
		return unsure, s.Code
	}
}

// load is clients that call without a break.
type load struct {
	stop func()
}

// load lets each client make calls with some workers until stop.
func (r *row) load(ctx context.Context, workers int, a arguments) *load {
	calling, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, c := range r.clients {
		for range workers {
			all.Go(func() {
				for calling.Err() == nil {
					if m := r.call(ctx, c, a); m.outcome != succeeded {
						// As a client that has an error does not come again at once.
						select {
						case <-calling.Done():
						case <-time.After(20 * time.Millisecond):
						}
					}
				}
			})
		}
	}
	return &load{stop: func() { cancel(); all.Wait() }}
}

// settled waits until every client has made calls with success that it began after
// a moment, and returns how long it took after that until the last of them had the
// first such answer, and how many calls of a client failed before, at most.
func (r *row) settled(ctx context.Context, since time.Time, want int) (took time.Duration, failed int, err error) {
	for {
		took, failed = 0, 0
		missing := ""
		for _, c := range r.clients {
			n, bad := 0, 0
			for _, m := range r.made(c, since) {
				switch {
				case m.outcome != succeeded && n == 0:
					bad++
				case m.outcome == succeeded:
					if n++; n == 1 {
						took = max(took, m.ended.Sub(since))
					}
				}
			}
			if failed = max(failed, bad); n < want {
				missing = c.door
			}
		}
		if missing == "" {
			return took, failed, nil
		}
		select {
		case <-ctx.Done():
			return 0, failed, fmt.Errorf("no call succeeds any more at %s", missing)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// made are the calls of a client that began after a moment, by their end.
func (r *row) made(c *caller, since time.Time) (all []made) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.calls {
		if m.client == c && m.begun.After(since) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b made) int { return a.ended.Compare(b.ended) })
	return all
}

// lists reports whether a client's list has a tool.
func (c *caller) lists(ctx context.Context, tool string) (bool, error) {
	names, err := c.Tools(ctx)
	return slices.ContainsFunc(names, func(n string) bool { return n == tool || strings.HasSuffix(n, "__"+tool) }), err
}
