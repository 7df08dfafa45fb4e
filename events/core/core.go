// Package core decides which revision of an agent core is live. A revision is
// atomic: one invalid file keeps the whole of it from being activated, and the
// previous one stays (R13).
package core

import (
	"github.com/gatebus/gatebus/events"
)

// State is what the decider reads of one core.
type State struct {
	// Revision is live; Digest covers its declarations.
	Revision, Digest string
	// Failed is the revision and the diagnostics of the last load that failed, so
	// that the same failure is recorded once.
	Failed string
	Seq    uint32
}

// Command is a request to change a core.
type Command interface{ command() }

// Load activates what was read, or records why it cannot be.
type Load struct {
	Revision string
	// Digest is over the fingerprints in path order.
	Digest   string
	Loaded   []events.DeclarationLoaded
	Ignored  []events.DeclarationIgnored
	Warnings []events.DeclarationWarning
	// Invalid is not empty where a file is bad, Code then says what failed: a file
	// (core_load_failed) or the core as a whole.
	Invalid []events.DeclarationInvalid
	Code    string
	// Problems is a digest of the diagnostics.
	Problems string
}

func (Load) command() {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	c, ok := cmd.(Load)
	if !ok {
		return nil, nil
	}
	var out []events.Event
	if c.Code != "" || len(c.Invalid) > 0 {
		if s.Failed == c.Revision+" "+c.Problems {
			return nil, nil
		}
		failed := events.CoreLoadFailed{Revision: c.Revision, Code: c.Code, Digest: c.Problems}
		for _, e := range c.Invalid {
			out = append(out, e)
			failed.Paths = append(failed.Paths, e.Path)
		}
		return append(out, failed), nil
	}
	if s.Revision == c.Revision && s.Digest == c.Digest && s.Failed == "" {
		return nil, nil
	}
	for _, e := range c.Loaded {
		out = append(out, e)
	}
	for _, e := range c.Ignored {
		out = append(out, e)
	}
	for _, e := range c.Warnings {
		out = append(out, e)
	}
	return append(out, events.CoreRevisionLoaded{
		Revision: c.Revision, Declarations: uint32(len(c.Loaded)), Digest: c.Digest,
	}), nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.CoreRevisionLoaded:
		s = State{Revision: e.Revision, Digest: e.Digest}
	case events.CoreLoadFailed:
		s.Failed = e.Revision + " " + e.Digest
	}
	s.Seq = uint32(r.Seq)
	return s
}
