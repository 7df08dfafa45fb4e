// Package session decides the life of a host conversation and which catalog it
// sees. The session of an MCP client is durable over reconnects: it is named by
// principal, workspace and endpoint path (decision 3).
package session

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// ID is the id of the session that the principal calls label: the endpoint path
// of an MCP client, or the name that a native host gave.
func ID(workspace, principal, label string) string {
	h := sha256.Sum256([]byte(workspace + "\x00" + principal + "\x00" + label))
	return "s-" + hex.EncodeToString(h[:8])
}

// State is what the decider reads of one session.
type State struct {
	Principal, Label string
	Active           bool
	// Catalog is the id of the catalog that was published last.
	Catalog string
	Seq     uint32
	EndedAt time.Time
}

// Command is a request to change a session.
type Command interface{ command() }

// Start begins the session, or does nothing where it is active.
type Start struct{ Label, CoreRevision, CapabilityDigest, Reason string }

// Publish records what the session sees, where that changed (R6).
type Publish struct{ Catalog events.CatalogPublished }

// End ends the session.
type End struct{ Reason string }

func (Start) command()   {}
func (Publish) command() {}
func (End) command()     {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Start:
		if s.Active {
			return nil, nil
		}
		return []events.Event{events.SessionStarted{
			Label: c.Label, CoreRevision: c.CoreRevision, CapabilityDigest: c.CapabilityDigest, Reason: c.Reason,
		}}, nil
	case Publish:
		if !s.Active {
			return nil, fault.New("session.publish", fault.SessionEvicted, redact.Static("the session is not active"))
		}
		if s.Catalog == c.Catalog.Catalog {
			return nil, nil
		}
		return []events.Event{c.Catalog}, nil
	case End:
		if !s.Active {
			return nil, fault.New("session.end", fault.NotFound, redact.Static("no such session, or it has ended"))
		}
		return []events.Event{events.SessionEnded{Reason: c.Reason}}, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.SessionStarted:
		s = State{Principal: r.Principal, Label: e.Label, Active: true}
	case events.CatalogPublished:
		s.Catalog = e.Catalog
	case events.SessionEnded:
		s.Active, s.Catalog, s.EndedAt = false, "", r.Time
	}
	s.Seq = uint32(r.Seq)
	return s
}
