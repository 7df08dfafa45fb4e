// Package grant decides which capabilities a principal holds. A revoke is final
// once it is answered: no call starts after it (decision 16).
package grant

import (
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// State is what the decider reads of one principal.
type State struct {
	// Granted is sorted by capability.
	Granted []authority.Granted
	// Seq is the log sequence of the last change.
	Seq uint32
}

// Snapshot is the authority of the principal at this state.
func (s State) Snapshot(principal string) authority.Snapshot {
	return authority.Snapshot{Principal: principal, Capabilities: s.Granted, Seq: uint64(s.Seq)}
}

// Command is a request to change the capabilities of a principal.
type Command interface{ command() }

// Grant gives a capability, until a time where that is not zero.
type Grant struct {
	Capability string
	Until      time.Time
	Note       redact.EventText
}

// Revoke takes a capability away.
type Revoke struct {
	Capability string
	Note       redact.EventText
}

// RevokeAll takes away every capability that there is, of a host that is revoked: a
// name that is given again begins with nothing.
type RevokeAll struct{ Note redact.EventText }

func (Grant) command()     {}
func (Revoke) command()    {}
func (RevokeAll) command() {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Grant:
		if authority.CheckGrant(c.Capability) != nil {
			return nil, fault.New("grant.add", fault.InvalidRequest, redact.Static("a capability is like mcp.connect:docs or mcp.call:*"))
		}
		if i, ok := s.find(c.Capability); ok && s.Granted[i].Until.Equal(c.Until) {
			return nil, nil
		}
		e := events.CapabilityGranted{Capability: c.Capability, Note: c.Note}
		if !c.Until.IsZero() {
			e.Until = c.Until.UTC().Format(time.RFC3339Nano)
		}
		return []events.Event{e}, nil
	case Revoke:
		if _, ok := s.find(c.Capability); !ok {
			return nil, fault.New("grant.revoke", fault.NotFound, redact.Static("the principal does not hold the capability"))
		}
		return []events.Event{events.CapabilityRevoked{Capability: c.Capability, Note: c.Note}}, nil
	case RevokeAll:
		var out []events.Event
		for _, g := range s.Granted {
			out = append(out, events.CapabilityRevoked{Capability: g.Capability, Note: c.Note})
		}
		return out, nil
	}
	return nil, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.CapabilityGranted:
		g := authority.Granted{Capability: e.Capability}
		g.Until, _ = time.Parse(time.RFC3339Nano, e.Until)
		i, ok := s.find(e.Capability)
		granted := slices.Clone(s.Granted)
		if ok {
			granted[i] = g
		} else {
			granted = slices.Insert(granted, i, g)
		}
		s.Granted, s.Seq = granted, uint32(r.Seq)
	case events.CapabilityRevoked:
		if i, ok := s.find(e.Capability); ok {
			s.Granted = slices.Delete(slices.Clone(s.Granted), i, i+1)
		}
		s.Seq = uint32(r.Seq)
	}
	return s
}

func (s State) find(capability string) (int, bool) {
	return slices.BinarySearchFunc(s.Granted, capability, func(g authority.Granted, c string) int {
		return strings.Compare(g.Capability, c)
	})
}
