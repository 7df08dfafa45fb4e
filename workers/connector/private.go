package connector

import (
	"context"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/live"
)

// private walks the connection of one attachment, where that is in this process: it
// is of no use in any other one, so that it is no durable job. What fails is closed,
// and asked for again with the next list.
func (c *Connector) private(ctx context.Context, ws, id string, e events.ConnectRequested) {
	if e.Runtime != c.Runtime {
		return
	}
	c.walks.Go(func() {
		if err := c.walk(ctx, ws, id); err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		s := c.Model.Connections.Get(ws, id)
		if s.Phase != connection.Requested && s.Phase != connection.Approved {
			return
		}
		if _, err := c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), connection.Close{
			Generation: s.Generation, Reason: string(fault.Internal),
		}); err != nil {
			c.Log.Error("a private connection could not be opened nor closed", "connection", id, "error", err)
		}
	})
}

// request asks anew for what a connection was asked for.
func (c *Connector) request(ws string, d cores.Server, s connection.State) connection.Request {
	if s.Attachment == "" {
		return d.Request(c.Model, ws, s.Principal, s.Session, time.Now())
	}
	of := cores.Attachment{ID: s.Attachment, Runtime: s.Runtime, Offers: s.Offers}
	return d.Private(c.Model, ws, s.Principal, s.Session, of, time.Now())
}

// asks is what the server of a connection may ask.
func (c *Connector) asks(key live.Key, s connection.State, d cores.Server) live.Asks {
	if s.Attachment == "" || c.Asks == nil {
		return live.Asks{}
	}
	a := c.Asks(key, d.CallTimeout)
	a.Offers, a.Quota = s.Offers, c.Quota
	return a
}

// covered are the definitions that a private connection has without a question.
func (c *Connector) covered(ws string, s connection.State, listed []events.ToolDigest) map[string]string {
	if s.Attachment == "" {
		return nil
	}
	var others []connection.State
	for at, o := range c.Model.Connections.All() {
		if at.Workspace == ws && len(o.Granted) > 0 {
			others = append(others, o)
		}
	}
	return s.Covered(c.shared(ws, s), others, listed)
}

// shared is the connection beside which a private one is.
func (c *Connector) shared(ws string, s connection.State) connection.State {
	d, ok := c.Cores.Server(s.Server)
	if !ok {
		return connection.State{}
	}
	return c.Model.Connections.Get(ws, d.Connection(s.Session))
}
