package server

import (
	"slices"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Status is one of the ten states of a server (R160).
type Status string

// The states. A server that was never installed has none.
const (
	NotStarted   Status = "not_started"
	Disabled     Status = "disabled"
	Starting     Status = "starting"
	Ready        Status = "ready"
	Degraded     Status = "degraded"
	AuthRequired Status = "auth_required"
	Failed       Status = "failed"
	Stopping     Status = "stopping"
	Stopped      Status = "stopped"
	Restarting   Status = "restarting"
)

// Statuses are the ten.
var Statuses = []Status{NotStarted, Disabled, Starting, Ready, Degraded, AuthRequired, Failed, Stopping, Stopped, Restarting}

// Why a server moved, where it is no kind of a fault.
const (
	ReasonInstalled   = "installed"
	ReasonUninstalled = "uninstalled"
	ReasonBoot        = "boot"
	ReasonEnabled     = "enabled"
	ReasonDisabled    = string(fault.DisabledByPolicy)
	ReasonShutdown    = string(fault.RuntimeClosed)
	// Why it is restarted (R88, R163, R170).
	ReasonManual      = "manual"
	ReasonFingerprint = "fingerprint_changed"
	ReasonSecret      = "secret_material_changed"
	// Why it is live no more, or not whole.
	ReasonPeerClosed = "peer_closed"
	ReasonRefresh    = "refresh_failed"
	ReasonCall       = "call_failed"
	ReasonList       = "list_failed"
)

// legal are the moves of section 3 of the requirements. Those of an installation and
// of a boot are not among them: see [Install] and [Boot].
var legal = map[Status][]Status{
	NotStarted:   {Starting, Stopped, Disabled},
	Stopped:      {Starting, Disabled},
	Disabled:     {NotStarted},
	Starting:     {Ready, Degraded, AuthRequired, Failed, Restarting, Stopping},
	Ready:        {Degraded, AuthRequired, Failed, Restarting, Stopping},
	Degraded:     {Ready, AuthRequired, Failed, Restarting, Stopping},
	AuthRequired: {Restarting, Stopped, Disabled},
	Failed:       {Starting, Restarting, Stopped, Disabled},
	Restarting:   {Stopping},
	Stopping:     {Stopped, Disabled},
}

// Legal reports whether a server may go from one state to another.
func Legal(from, to Status) bool { return slices.Contains(legal[from], to) }

// Live reports whether it can be called.
func (s Status) Live() bool { return s == Ready || s == Degraded }

// resting reports whether nothing of it runs and nothing is about to.
func (s Status) resting() bool {
	return s == "" || s == NotStarted || s == Disabled || s == Stopped
}

// begin is where an installation begins.
func begin(enabled bool) Status {
	if enabled {
		return NotStarted
	}
	return Disabled
}

// observe is a move, or news of a state that is stayed in.
func observe(s State, c Observe) ([]events.Event, error) {
	const op = "server.observe"
	switch {
	case s.Status == "", !s.Installed && (c.To == Starting || c.To == NotStarted):
		return nil, unknown(op) // what was uninstalled may only end
	case c.Generation != 0 && c.Generation < s.Generation:
		return nil, fault.New(op, fault.RuntimeNotLive, redact.Static("the opening is not the present one"))
	case s.Status == c.To:
		// Another opening of what is live has begun somewhere.
		if s.Status.Live() && c.Generation > s.Generation {
			return nil, illegal(op)
		}
		if s.Reason == c.Reason && (c.Catalog == "" || c.Catalog == s.Catalog) && s.NextRetryAt.Equal(s.retry(c)) {
			return nil, nil
		}
	case !Legal(s.Status, c.To):
		return nil, illegal(op)
	}
	return []events.Event{s.moved(c.To, c)}, nil
}

func illegal(op string) error {
	return fault.New(op, fault.IllegalTransition, redact.Static("a server cannot go to that state from the one that it has"))
}

// boot forgets what ran in another process.
func boot(s State, c Boot) []events.Event {
	to := begin(s.Enabled && !c.Disabled)
	if !s.Installed {
		to = Stopped
	}
	if s.Status == "" || s.Status == to {
		return nil
	}
	return []events.Event{s.moved(to, Observe{Reason: ReasonBoot})}
}

// moved is the event of a move.
func (s State) moved(to Status, c Observe) events.ServerStatusChanged {
	e := events.ServerStatusChanged{
		From: string(s.Status), To: string(to), Live: to.Live(), ReasonCode: c.Reason, Message: c.Message,
		Generation: max(s.Generation, c.Generation), CatalogVersion: s.Catalog,
	}
	if c.Catalog != "" {
		e.CatalogVersion = c.Catalog
	}
	switch to {
	case Failed:
		e.RetryAttempt = s.RetryAttempt
		if s.Status != Failed {
			e.RetryAttempt++
		}
		if at := s.retry(c); !at.IsZero() {
			e.NextRetryAt = at.Format(time.RFC3339Nano)
		}
	case Starting: // it is counted until it is live
		e.RetryAttempt = s.RetryAttempt
	}
	return e
}

// retry is when what is observed is tried again by itself: only a failure is (R167).
func (s State) retry(c Observe) time.Time {
	if c.To != Failed {
		return time.Time{}
	}
	return c.RetryAt.UTC()
}
