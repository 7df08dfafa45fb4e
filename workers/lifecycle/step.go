package lifecycle

import (
	"cmp"
	"time"

	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// Why a server is restarted or waits, beside what package server has.
const (
	ReasonPolicy  = "policy_changed"
	ReasonStopped = "stopped"
	ReasonWaiting = string(fault.ApprovalPending)
)

// facts are what the next step of a server rests on.
type facts struct {
	server     server.State
	connection connection.State
	// wanted says that it is installed, enabled at every level, and of this home.
	wanted bool
	// policy and authority are the sequences that a request would have now.
	policy, authority uint32
	// failure is the text of the last failure of its connection.
	failure redact.EventText
	now     time.Time
}

// step is what is done next; at most one of its fields is set, and none where there is
// nothing to do.
type step struct {
	observe *server.Observe
	// ask asks for the connection, close ends it for the reason, with those that hang on it.
	ask   bool
	close string
	// at is when something is due.
	at time.Time
}

func to(status server.Status, reason string) step {
	return step{observe: &server.Observe{To: status, Reason: reason}}
}

// next is the step that brings a server nearer to what is wanted of it. It is taken on
// the states alone, so that whoever takes over goes on where the one before was, and a
// step that was taken twice does nothing the second time (R161).
func next(f facts) step {
	s, c := f.server, f.connection
	switch s.Status {
	case server.NotStarted, server.Stopped, server.Disabled:
		return f.rest()
	case server.Starting:
		return f.start()
	case server.Ready, server.Degraded:
		return f.run()
	case server.Failed:
		return f.wait()
	case server.AuthRequired:
		switch reason := f.outdated(); {
		case underWay(c):
			return step{close: cmp.Or(s.Reason, ReasonStopped)}
		case !f.wanted:
			return f.end()
		case reason != "" && reason != ReasonPolicy:
			return to(server.Restarting, reason)
		}
	case server.Restarting:
		return to(server.Stopping, s.Reason)
	case server.Stopping:
		if left(c) {
			return step{close: cmp.Or(s.Reason, ReasonStopped)}
		}
		return f.end()
	}
	return step{}
}

// underWay reports whether a connection is there, or on its way.
func underWay(c connection.State) bool {
	switch c.Phase {
	case connection.Requested, connection.Waiting, connection.Approved, connection.Opening, connection.Open:
		return true
	}
	return false
}

// left reports whether a connection is not over with for who starts the server again: it
// is there, or it would be tried again, or it was denied.
func left(c connection.State) bool {
	return underWay(c) || c.Phase == connection.Failed || c.Phase == connection.Denied ||
		c.Phase == connection.Closed && !c.RetryAfter.IsZero()
}

// outdated says why what runs, or failed, is not what is wanted any more. A secret that
// has a new value has it in the log, behind the opening that began with the old one
// (R88).
func (f facts) outdated() string {
	s, c := f.server, f.connection
	switch {
	case c.Fingerprint != s.Installation.Fingerprint, c.Install != s.Installation.Approval:
		return server.ReasonFingerprint
	case c.Generation != 0 && uint64(c.Generation) < s.Rotated:
		return server.ReasonSecret
	case c.PolicySequence != f.policy:
		return ReasonPolicy
	}
	return ""
}

// unwanted is why a server is stopped.
func (f facts) unwanted() string {
	if !f.server.Installed {
		return server.ReasonUninstalled
	}
	return server.ReasonDisabled
}

// end is where a server ends of which nothing runs.
func (f facts) end() step {
	reason := f.unwanted()
	switch {
	case f.wanted:
		return to(server.Stopped, f.server.Reason) // on its way to start again
	case f.server.Installed:
		return to(server.Disabled, reason)
	}
	return to(server.Stopped, reason)
}

// rest is for a server of which nothing runs.
func (f facts) rest() step {
	s := f.server
	switch {
	case left(f.connection):
		return step{close: cmp.Or(s.Reason, ReasonStopped)}
	case f.wanted && s.Status == server.Disabled:
		return to(server.NotStarted, server.ReasonEnabled)
	case f.wanted:
		return to(server.Starting, s.Reason)
	case s.Installed && s.Status != server.Disabled, !s.Installed && s.Status == server.NotStarted:
		return f.end()
	}
	return step{}
}

// start is for a server that is being started.
func (f facts) start() step {
	s, c := f.server, f.connection
	if !f.wanted {
		return to(server.Stopping, f.unwanted())
	}
	if underWay(c) {
		if reason := f.outdated(); reason != "" {
			return to(server.Restarting, reason)
		}
	}
	switch c.Phase {
	case connection.Requested, connection.Approved, connection.Opening:
		return step{}
	case connection.Waiting:
		if s.Reason != ReasonWaiting {
			return to(server.Starting, ReasonWaiting)
		}
		return step{}
	case connection.Open:
		return f.live()
	case connection.Failed:
		if f.outdated() == "" && (wantsLogin(c) || f.now.Before(c.RetryAfter)) {
			return f.failed()
		}
	case connection.Denied:
		if !f.asked() {
			return f.failed()
		}
	case connection.Closed:
		if f.now.Before(c.RetryAfter) {
			return f.failed()
		}
	}
	return step{ask: true}
}

// asked reports whether a question that was denied would be another one now.
func (f facts) asked() bool {
	return f.outdated() != "" || f.connection.AuthoritySequence != f.authority
}

// wantsLogin reports whether a person has to see to what failed (R87, R167).
func wantsLogin(c connection.State) bool {
	return c.Reason == string(fault.AuthRequired) || c.Reason == string(fault.MissingSecret)
}

// live is the state of a server that is connected.
func (f facts) live() step {
	c := f.connection
	seen := server.Observe{To: server.Ready, Generation: c.Generation, Catalog: c.Catalog}
	switch {
	case c.Degraded == string(fault.AuthRequired):
		seen.To, seen.Reason, seen.Message = server.AuthRequired, c.Degraded, f.failure
	case c.Degraded != "": // what it listed before stands (R168)
		seen.To, seen.Reason, seen.Message = server.Degraded, server.ReasonRefresh, f.failure
	case len(c.Unlisted) > 0: // all but its tools, which it has (R166)
		seen.To, seen.Reason = server.Degraded, server.ReasonList
	}
	return step{observe: &seen}
}

// failed is the state of a server whose connection failed, was denied, or has ended.
func (f facts) failed() step {
	c := f.connection
	seen := server.Observe{To: server.Failed, Reason: c.Reason, Generation: c.Generation, RetryAt: c.RetryAfter}
	switch c.Phase {
	case connection.Failed:
		if seen.Message = f.failure; wantsLogin(c) {
			seen.To, seen.RetryAt = server.AuthRequired, time.Time{}
		}
	case connection.Denied: // until something changes that it was denied for
		seen.RetryAt = time.Time{}
	case connection.Closed:
		if c.Reason == connection.ReasonServerEnded {
			seen.Reason = server.ReasonPeerClosed
			break
		}
		seen.RetryAt = f.now
	default:
		seen.RetryAt = f.now
	}
	if seen.Generation < f.server.Generation {
		seen.Generation = 0 // it failed before it was opened
	}
	return step{observe: &seen}
}

// run is for a server that is live.
func (f facts) run() step {
	s, c := f.server, f.connection
	if !f.wanted {
		return to(server.Stopping, f.unwanted())
	}
	if c.Phase != connection.Open || c.Generation != s.Generation {
		return f.failed()
	}
	if reason := f.outdated(); reason != "" {
		return to(server.Restarting, reason)
	}
	seen := f.live()
	to, reason := seen.observe.To, seen.observe.Reason
	switch {
	case c.Catalog != s.Catalog:
		return seen
	case to == server.Ready && s.Reason == server.ReasonCall: // who calls says when it is over
	case to != s.Status, to == server.Degraded && reason != s.Reason:
		return seen
	}
	return step{}
}

// wait is for a server that has failed.
func (f facts) wait() step {
	s, c := f.server, f.connection
	switch {
	case !f.wanted && left(c):
		return step{close: f.unwanted()}
	case !f.wanted:
		return f.end()
	case underWay(c):
		return to(server.Starting, s.Reason)
	}
	switch reason := f.outdated(); reason {
	case server.ReasonFingerprint, server.ReasonSecret:
		return to(server.Restarting, reason)
	}
	switch {
	case c.Phase == connection.Denied && !f.asked():
		return step{}
	case f.now.Before(s.NextRetryAt):
		return step{at: s.NextRetryAt}
	}
	return to(server.Starting, s.Reason)
}
