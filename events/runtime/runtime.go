// Package runtime decides which process serves a home. Every boot has an epoch
// above all earlier ones, so that what a dead process left open can be told
// from what a live one owns (R172).
package runtime

import (
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// State is what the decider reads of one home.
type State struct {
	// Runtime is the id of the process that booted last.
	Runtime string
	Epoch   uint32
	// Running is false after it closed in order.
	Running bool
}

// Command is a request about the runtime of a home.
type Command interface{ command() }

// Boot says that a process serves the home from now on. The lock of the home
// has made sure that the one before is gone.
type Boot struct{ Runtime, Version string }

// Close says that the process ends in order (R154).
type Close struct{ Runtime, Reason string }

func (Boot) command()  {}
func (Close) command() {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Boot:
		return []events.Event{events.RuntimeBooted{Runtime: c.Runtime, Epoch: s.Epoch + 1, Version: c.Version}}, nil
	case Close:
		if c.Runtime != s.Runtime || !s.Running {
			return nil, fault.New("runtime.close", fault.RuntimeClosed, redact.Static("another process serves the home"))
		}
		return []events.Event{events.RuntimeClosed{Runtime: c.Runtime, Reason: c.Reason}}, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.RuntimeBooted:
		s = State{Runtime: e.Runtime, Epoch: e.Epoch, Running: true}
	case events.RuntimeClosed:
		s.Running = false
	}
	return s
}
