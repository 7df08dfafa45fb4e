package connector

import (
	"context"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/live"
)

// Mend is mend, for a connector that does not run.
func (c *Connector) Mend(ctx context.Context, before map[bus.Address]uint64) map[bus.Address]uint64 {
	return c.mend(ctx, before)
}

// Claim is claim, likewise.
func (c *Connector) Claim(ctx context.Context, ws, id string, s connection.State) (live.Key, error) {
	return c.claim(ctx, ws, id, s)
}
