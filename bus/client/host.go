package client

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// doubt is how long an answer may take before the command is sent again for the
	// first time, for who had it may have stopped; patience is what it may take in
	// the end, beside what is asked for to wait.
	doubt    = 3 * time.Second
	patience = 20 * time.Second
	// pause is how long a client waits after there was nobody to answer.
	pause = 100 * time.Millisecond
	// grace is how long the answer of the one who made a call may take longer than
	// that of another one, who only knows how it ended.
	grace = time.Second
)

// asking says how a method is asked for.
type asking struct {
	// wait is what an answer may take beside patience.
	wait time.Duration
	// patient waits for a runtime while none is alive.
	patient bool
}

// again is Do for what a host does: it waits for a runtime too.
func (c *Client) again(ctx context.Context, method string, params, result any, wait time.Duration) error {
	return c.ask(ctx, method, params, result, asking{wait: wait, patient: true})
}

// ask asks for a method until there is an answer, always with the same command
// id, so that it is done once: after some seconds without one, as the process that
// was asked may be gone, and then ever more seldom up to wait and patience, and
// after the connection was lost. Errors are those of Do; for who is patient, that
// nobody serves the method is one only where others are served.
func (c *Client) ask(ctx context.Context, method string, params, result any, how asking) error {
	m, err := c.command(method, params)
	if err != nil {
		return err
	}
	// One inbox for all: the first one asked may be the last to answer.
	answers := make(chan *nats.Msg, 16)
	m.Reply = c.nc.NewInbox()
	sub, err := c.nc.ChanSubscribe(m.Reply, answers)
	if err != nil {
		return fault.Wrap(method, fault.BusUnavailable, redact.Static("the bus went away"), err)
	}
	defer sub.Unsubscribe()
	for alone, due := 0, doubt; ; {
		back := c.returned()
		if err := c.nc.PublishMsg(m); err != nil && c.lost.Err() == nil {
			return fault.Wrap(method, fault.InvalidInput, redact.Static("the parameters cannot be sent"), err)
		}
		silence := time.NewTimer(due)
		select {
		case reply := <-answers:
			if len(reply.Data) > 0 || reply.Header.Get("Status") != "503" {
				silence.Stop()
				err := decode(method, c.best(ctx, reply, answers), result)
				if !how.patient || !fault.Is(err, fault.RuntimeClosed) || ctx.Err() != nil || c.lost.Err() != nil {
					return err
				}
				// Who had it stops, and takes nothing any more: another one has it next.
			} else {
				// In a cluster a server may not have heard yet who serves a method.
				alone++
				served := method != probe && c.served(ctx)
				switch {
				case served && alone > 1:
					return c.excluded(method)
				case !served && !how.patient && ctx.Err() == nil:
					return c.nobody(method)
				}
			}
			silence.Reset(pause)
			select {
			case <-silence.C:
			case <-ctx.Done():
			case <-c.lost.Done():
			}
		case <-back:
		case <-silence.C:
			due = min(2*due, how.wait+patience)
		case <-ctx.Done():
		case <-c.lost.Done():
		}
		silence.Stop()
		switch {
		case c.lost.Err() != nil:
			return fault.New(method, fault.BusUnavailable, redact.Static("the bus went away"))
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// Revoke makes a credential void, or all of a principal, and returns when no server
// lets it in any more. Errors are those of Do.
func (c *Client) Revoke(ctx context.Context, p HostRevoke) (h Host, err error) {
	err = c.Do(ctx, "host/revoke", p, &h)
	return h, err
}

// served reports whether a runtime is alive.
func (c *Client) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.Do(ctx, probe, nil, nil) == nil
}

// best is the answer that says most. Where a call was asked for twice, one may
// have its result and the other only know that there was one.
func (c *Client) best(ctx context.Context, first *nats.Msg, answers <-chan *nats.Msg) *nats.Msg {
	var r CallReply
	if json.Unmarshal(first.Data, &r) != nil || r.Status != "succeeded" || r.Result != nil {
		return first
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	for {
		select {
		case m := <-answers:
			if json.Unmarshal(m.Data, &r) == nil && r.Result != nil {
				return m
			}
		case <-late.C:
			return first
		case <-ctx.Done():
			return first
		}
	}
}

// returned is closed when the connection was lost and is there again.
func (c *Client) returned() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.back
}

// SessionStart begins the session of a label, or goes on with it: sessions outlive
// connections. A label has 200 characters at most. Errors are those of Do; while no
// runtime is alive it waits for one until ctx ends, as the other methods do.
func (c *Client) SessionStart(ctx context.Context, label string) (session string, err error) {
	var s Session
	err = c.again(ctx, "session/start", SessionStart{Label: label}, &s, 0)
	return s.Session, err
}

// PrepareTurn binds the tools of a turn (R144): it waits for servers that connect,
// and not for persons. What could not be honoured is in the result.
func (c *Client) PrepareTurn(ctx context.Context, p TurnPrepare) (Turn, error) {
	var t Turn
	err := c.again(ctx, "turn/prepare", p, &t, time.Minute)
	return t, err
}

// CallTool calls a tool of a turn by its name. The arguments are a JSON object that
// reaches the server as it is; nil is the empty one. Where a person must agree, it
// waits so long; the reply has the status approval_pending then, and the same call
// again goes on with that approval. When ctx ends before the outcome, the call goes
// on without its caller.
//
// A call is made once, whatever happens on the way: one whose answer got lost is
// asked for again by its id. The error is not nil only where nothing could be
// decided; every outcome is in the reply.
func (c *Client) CallTool(ctx context.Context, turn, name string, arguments json.RawMessage, wait time.Duration) (CallReply, error) {
	var r CallReply
	err := c.again(ctx, "tool/call", ToolCall{Turn: turn, Name: name, Arguments: arguments, WaitMS: wait.Milliseconds()}, &r, wait)
	return r, err
}

// Approvals are what waits for a person, oldest first.
func (c *Client) Approvals(ctx context.Context) ([]Approval, error) {
	var a Approvals
	err := c.again(ctx, "approvals/list", ApprovalsList{}, &a, 0)
	return a.Approvals, err
}

// Approve says yes to an approval, once; what this principal has said yes to
// already is as it was. Errors: conflict when somebody else was first or it was
// another answer, approval_expired, not_found.
func (c *Client) Approve(ctx context.Context, id string) (Approval, error) {
	return c.decide(ctx, ApprovalsDecide{ID: id, Decision: "allow"}, "allowed")
}

// Deny is Approve with a no; the note says why.
func (c *Client) Deny(ctx context.Context, id, note string) (Approval, error) {
	return c.decide(ctx, ApprovalsDecide{ID: id, Decision: "deny", Note: note}, "denied")
}

func (c *Client) decide(ctx context.Context, d ApprovalsDecide, state string) (a Approval, err error) {
	if err = c.again(ctx, "approvals/decide", d, &a, 0); !fault.Is(err, fault.Conflict) {
		return a, err
	}
	// The answer to the first of two may have been lost.
	if e := c.again(ctx, "approvals/get", ApprovalID{ID: d.ID}, &a, 0); e == nil && a.State == state && a.By == c.principal {
		return a, nil
	}
	return Approval{}, err
}
