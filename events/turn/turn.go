// Package turn decides the life of a turn: a catalog frozen for one step of a
// session (R144). The bindings themselves lie in a blob that turn_bound names.
package turn

import (
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Phase is where a turn is in its life.
type Phase string

// The phases of a turn.
const (
	None   Phase = ""
	Bound  Phase = "bound"
	Failed Phase = "failed"
	Ended  Phase = "ended"
)

// State is what the decider reads of one turn.
type State struct {
	Phase     Phase
	Principal string
	Session   string
	// Runtime made the bindings; they are void without it (decision 11), and good
	// at every runtime of the home while it lives.
	Runtime string
	Catalog string
	// Blob holds the bindings.
	Blob              string
	AuthoritySequence uint32
	EndedAt           time.Time
}

// Command is a request to change a turn.
type Command interface{ command() }

// Bind fixes what the turn may call, with a reason for every selection that
// could not be honoured (R185).
type Bind struct {
	Requested events.TurnRequested
	Rejected  []events.CapabilityRejected
	Bound     events.TurnBound
}

// Fail says that the turn may not start (R45, R189). Limits is set where it is for
// limits that none can be (R193).
type Fail struct {
	Requested events.TurnRequested
	Limits    *events.LimitsRejected
	Failed    events.TurnFailed
}

// End makes the bindings void.
type End struct{ Reason string }

func (Bind) command() {}
func (Fail) command() {}
func (End) command()  {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Bind:
		if s.Phase != None {
			return nil, fault.New("turn.bind", fault.Conflict, redact.Static("the turn is bound already"))
		}
		out := []events.Event{c.Requested}
		for _, r := range c.Rejected {
			out = append(out, r)
		}
		return append(out, c.Bound), nil
	case Fail:
		if s.Phase != None {
			return nil, fault.New("turn.fail", fault.Conflict, redact.Static("the turn is bound already"))
		}
		out := []events.Event{c.Requested}
		if c.Limits != nil {
			out = append(out, *c.Limits)
		}
		return append(out, c.Failed), nil
	case End:
		if s.Phase != Bound {
			return nil, fault.New("turn.end", fault.TurnNotActive, redact.Static("no such turn, or it has ended"))
		}
		return []events.Event{events.TurnEnded{Reason: c.Reason}}, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.TurnRequested:
		s.Principal, s.Session = r.Principal, e.Session
	case events.TurnBound:
		s.Phase, s.Runtime, s.Catalog, s.Blob, s.AuthoritySequence = Bound, e.Runtime, e.Catalog, e.Blob, e.AuthoritySequence
	case events.TurnFailed:
		s.Phase, s.EndedAt = Failed, r.Time
	case events.TurnEnded:
		s.Phase, s.EndedAt = Ended, r.Time
	}
	return s
}

// Over reports when the turn ended; the model forgets it later (decision 15).
func Over(s State) (time.Time, bool) { return s.EndedAt, !s.EndedAt.IsZero() }
