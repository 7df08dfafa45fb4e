package connector

import (
	"context"
	"strconv"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/live"
)

// mendEvery is how often it is looked for connections that nobody works on. What is
// found twice in a row, unchanged, is mended.
const mendEvery = 5 * time.Second

// mendAll takes up what fell by the way while the log or the jobs took nothing: a
// cluster without a leader loses jobs and reports, and who asks for a connection
// again finds one that is being walked already, or is open, for ever.
func (c *Connector) mendAll(ctx context.Context) {
	tick := time.NewTicker(mendEvery)
	defer tick.Stop()
	var idle map[bus.Address]uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		idle = c.mend(ctx, idle)
	}
}

// mend mends the connections that were idle before and have not changed since, and
// returns those that are idle now, with the sequence of their last change.
func (c *Connector) mend(ctx context.Context, before map[bus.Address]uint64) (idle map[bus.Address]uint64) {
	idle = make(map[bus.Address]uint64)
	for at, s := range c.Model.Connections.All() {
		if at.Workspace != c.Serves || !c.abandoned(at.Key, s) {
			continue
		}
		seq := c.Model.Connections.Seq(at.Workspace, at.Key)
		idle[at] = seq
		if before[at] != seq {
			continue
		}
		if s.Phase == connection.Requested || s.Phase == connection.Approved {
			// The job as it was may have been taken and lost: it would count as a repeat.
			c.enqueue(ctx, at.Workspace, at.Key, seq, strconv.FormatInt(time.Now().Unix()/60, 10))
			continue
		}
		// Nobody has it: whoever wants it asks for it anew.
		reason := connection.ReasonServerEnded
		if s.Phase == connection.Opening {
			reason = connection.ReasonAbandoned
		}
		if _, err := c.Model.Connections.Dispatch(ctx, at.Workspace, at.Key, c.meta(at.Key, s), connection.Close{
			Generation: s.Generation, Reason: reason,
		}); err != nil && ctx.Err() == nil {
			c.Log.Warn("a connection that nobody holds is still open in the log", "connection", at.Key, "error", err)
		}
	}
	return idle
}

// abandoned reports whether nobody works on a connection that is on its way, as far
// as this process can know: whoever takes a job may have it, and only the process that
// opened a connection holds it.
func (c *Connector) abandoned(id string, s connection.State) bool {
	key := live.Key{Connection: id, Generation: s.Generation}
	switch s.Phase {
	case connection.Requested, connection.Approved:
		return s.Attachment == ""
	case connection.Opening:
		return s.Runtime == c.Runtime && !c.opening(key)
	case connection.Open:
		return s.Runtime == c.Runtime && !c.opening(key) && c.Pool.Get(key) == nil
	}
	return false
}

// opening reports whether this process opens a connection just now.
func (c *Connector) opening(key live.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.openings[key]
}

// begin notes that a connection is being opened here, until end.
func (c *Connector) begin(key live.Key) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.openings[key] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.openings, key)
	}
}
