// Package runtime decides which processes serve a home, and what they sign of the
// log. Every boot has an epoch above all earlier ones, so that what a dead
// process left open can be told from what a live one owns (R172).
package runtime

import (
	"maps"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Process is a runtime that booted and has not closed.
type Process struct {
	Epoch uint32
	// Embedded says that the store of the bus is in the process: while another has
	// it, this one is gone.
	Embedded bool
}

// State is what the decider reads of one home.
type State struct {
	// Epoch is that of the newest boot.
	Epoch uint32
	// Live holds the processes by their ids. One that died stays until a peer, or
	// the next process of the home, has closed what it left open and then itself.
	Live map[string]Process
	// Checkpoint is how many commits the last signed checkpoint covers.
	Checkpoint uint32
}

// Command is a request about the runtimes of a home.
type Command interface{ command() }

// Boot says that a process serves the home from now on.
type Boot struct {
	Runtime, Version string
	Embedded         bool
}

// Close says that a process ended, in order (R154) or not. It comes after what
// the process owned was closed: who reads it may rely on that.
type Close struct{ Runtime, Reason string }

// Sign records a checkpoint of the log.
type Sign struct{ Checkpoint events.CheckpointSigned }

func (Boot) command()  {}
func (Close) command() {}
func (Sign) command()  {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Boot:
		return []events.Event{events.RuntimeBooted{Runtime: c.Runtime, Epoch: s.Epoch + 1, Version: c.Version, Embedded: c.Embedded}}, nil
	case Close:
		if _, ok := s.Live[c.Runtime]; !ok {
			return nil, fault.New("runtime.close", fault.RuntimeClosed, redact.Static("the process does not serve the home"))
		}
		return []events.Event{events.RuntimeClosed{Runtime: c.Runtime, Reason: c.Reason}}, nil
	case Sign:
		// Of two processes that sign at once the later one says nothing new.
		if c.Checkpoint.Size <= s.Checkpoint {
			return nil, nil
		}
		return []events.Event{c.Checkpoint}, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.RuntimeBooted:
		s.Epoch = e.Epoch
		s.Live = copied(s.Live)
		s.Live[e.Runtime] = Process{Epoch: e.Epoch, Embedded: e.Embedded}
	case events.RuntimeClosed:
		s.Live = copied(s.Live)
		delete(s.Live, e.Runtime)
	case events.CheckpointSigned:
		s.Checkpoint = e.Size
	}
	return s
}

// copied is a map to change: states are shared with readers.
func copied(live map[string]Process) map[string]Process {
	out := make(map[string]Process, len(live)+1)
	maps.Copy(out, live)
	return out
}
