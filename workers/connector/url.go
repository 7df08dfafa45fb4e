package connector

import (
	"context"
	"net/http"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/httpclient"
)

// urls decides where servers behind HTTP may be.
func (c *Connector) urls() httpclient.Gate {
	return httpclient.Gate{Policy: urlpolicy.Policy{Trusted: c.Trusted}, Resolve: c.Resolve}
}

// judge decides whether a server may be contacted at the URL of its declaration, for
// who is asked whether it shall be (R94). Nothing is contacted at what is decided
// here: each request is decided on when it is made.
func (c *Connector) judge(ctx context.Context, d cores.Server) *events.UrlDecision {
	v := c.urls().Judge(ctx, d.URL.Reveal())
	v.Server, v.Phase = d.ServerID, urlpolicy.PhaseConnect
	return &v
}

// client makes the transport to a server behind HTTP. Nothing is contacted before the
// first request. The values of headers leave the redactor's care here and nowhere
// else.
func (c *Connector) client(ws, id string, s connection.State, d cores.Server) *httpclient.Client {
	h := http.Header{"User-Agent": {"gatebus/" + c.Version}}
	for name, v := range d.Headers {
		h.Set(name, v.Reveal())
	}
	return httpclient.New(httpclient.Options{
		URL: d.URL.Reveal(), Server: d.ServerID, Header: h, Gate: c.urls(), Dial: c.Dial, MaxFrame: c.MaxFrame,
		Idle: max(d.CallTimeout, time.Minute), // R114
		Record: func(ctx context.Context, v events.UrlDecision) error {
			_, err := c.Model.Connections.Dispatch(ctx, ws, id, c.meta(id, s), connection.Judged{URL: v})
			if err != nil && ctx.Err() == nil {
				return fault.Wrap("connector.url", fault.AuditUnavailable, redact.Static("the decision on a request could not be recorded, so it was not sent"), err)
			}
			return err
		},
	})
}
