package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// result is what a host knows of one effect that it wanted once.
type result struct {
	ID       string    `json:"id"`
	Line     int       `json:"line"` // of the host's own work
	Call     string    `json:"call"`
	Status   string    `json:"status"`
	Kind     string    `json:"kind,omitempty"`
	Executed bool      `json:"executed"`
	Retried  int       `json:"retried"` // what certainly did not start is asked for again, as another call
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended"`
}

const (
	// answers is how long a host waits for a turn before it asks for another one.
	answers = 5 * time.Second
	// gives is when it gives an effect up.
	gives = 2 * time.Minute
	lines = 2 // of work in a host
)

// host is one host process: it connects to the bus with its own credentials and
// calls the counting tool as fast as it is answered, until it is interrupted.
// Each outcome is a line of its output file.
func host(name, url, creds, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	file, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	c, err := client.Dial(ctx, client.Options{URL: url, Creds: creds, Name: name})
	if err != nil {
		return err
	}
	defer c.Close()
	var mu sync.Mutex
	var work sync.WaitGroup
	for i := range lines {
		w := &line{client: c, label: fmt.Sprintf("line-%d", i)}
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := w.once(fmt.Sprintf("%s-%d-%05d", name, i, n))
				r.Line = i
				data, _ := json.Marshal(r) // strings, numbers, times
				mu.Lock()
				_, _ = file.Write(append(data, '\n'))
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return nil
}

// line is one line of work: a session of its own, so a connection of its own.
type line struct {
	client *client.Client
	label  string
	turn   string
}

// prepare binds a turn that has the tool.
func (w *line) prepare(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	session, err := w.client.SessionStart(ctx, w.label)
	if err != nil {
		return false
	}
	t, err := w.client.PrepareTurn(ctx, client.TurnPrepare{Session: session, IncludeImplicit: true})
	if err != nil {
		return false
	}
	if !slices.ContainsFunc(t.Tools, func(t client.Tool) bool { return t.Name == "free__count" }) {
		return false
	}
	w.turn = t.Turn
	return true
}

// again are the refusals after which nothing was started: the effect may be asked
// for again, as another call.
var again = []fault.Kind{
	fault.RuntimeNotLive, fault.TurnNotActive, fault.ToolDrift, fault.BindingMismatch, fault.RuntimeClosed, fault.NotFound,
}

// once has one effect done.
func (w *line) once(id string) result {
	r := result{ID: id, Began: time.Now(), Status: "given up"}
	ctx, cancel := context.WithTimeout(context.Background(), gives)
	defer cancel()
	pause := func() {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	for ctx.Err() == nil {
		if w.turn == "" && !w.prepare(ctx) {
			pause()
			continue
		}
		// The client repeats the command where its answer gets lost.
		reply, err := w.client.CallTool(ctx, w.turn, "free__count", json.RawMessage(fmt.Sprintf(`{"id":%q}`, id)), 0)
		if err != nil {
			r.Kind = err.Error()
			break // nobody knows what became of it
		}
		kind := fault.Kind("")
		if reply.Error != nil {
			kind = fault.Kind(reply.Error.Kind)
		}
		if !reply.ExecutionStarted && slices.Contains(again, kind) {
			w.turn = ""
			r.Retried++
			pause()
			continue
		}
		r.Call, r.Status, r.Kind, r.Executed = reply.Call, reply.Status, string(kind), reply.ExecutionStarted
		break
	}
	r.Ended = time.Now()
	return r
}
