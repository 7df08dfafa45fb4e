package caller

import (
	"context"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/fault"
)

// ended is the outcome of a call that this process started, as it is to be recorded.
type ended struct {
	key    string
	meta   bus.Meta
	finish call.Finish
	took   uint32 // milliseconds
}

// record appends an outcome and returns the state of its call; own says that this
// outcome is the one in the log. Nobody else knows it, so that one which the log does
// not take is kept for Tidy: the call is Started as long as this process lives, and
// its effect is over. No call starts meanwhile, so that no more are kept than ran.
func (c *Caller) record(ctx context.Context, e ended) (s call.State, own bool) {
	if e.meta.Command == "" {
		e.meta.Command = ulid.Make().String() // the same one again is one that has come
	}
	d, err := c.Model.Calls.Dispatch(ctx, c.Workspace, e.key, e.meta, e.finish)
	if err == nil {
		return d.State, true
	}
	switch s = c.Model.Calls.Get(c.Workspace, e.key); {
	case s.Phase == call.Started:
		c.mu.Lock()
		c.unrecorded = append(c.unrecorded, e)
		c.mu.Unlock()
	case s.Phase == call.Done && fault.Is(err, fault.Conflict):
		// A peer held this runtime to be gone and closed the call: that stands.
		f := e.finish
		if f.Succeeded != nil || f.Failed != nil && f.Failed.Reason == string(fault.ExecutionFailed) {
			e.meta.Command = ""
			_, _ = c.Model.Calls.Dispatch(ctx, c.Workspace, e.key, e.meta, call.Late{Late: events.CallLateResult{
				IsError: f.Succeeded == nil || f.Succeeded.IsError, DurationMs: e.took,
			}})
		}
	}
	return s, false
}

// Tidy records the outcomes that the log did not take before, and drops what is shown
// of calls that wait no longer. Its owner calls it from time to time, and before it
// says of the calls that are still open that nobody knows their outcome.
func (c *Caller) Tidy(ctx context.Context) {
	c.mu.Lock()
	for approval, s := range c.shown {
		if c.Model.Calls.Get(c.Workspace, s.call).Phase != call.Waiting {
			delete(c.shown, approval)
		}
	}
	kept := c.unrecorded
	c.unrecorded = nil
	c.mu.Unlock()
	for _, e := range kept {
		c.record(ctx, e)
	}
}
