package client

import (
	"context"
	"encoding/json"
	"errors"
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

// again asks for a method until there is an answer, always with the same command
// id, so that it is done once: after some seconds without one, as the process that
// was asked may be gone, and then ever more seldom up to wait and patience; after
// the connection was lost, and while no runtime is alive. Errors are those of Do; that
// nobody serves the method is one only where others are served.
func (c *Client) again(ctx context.Context, method string, params, result any, wait time.Duration) error {
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
				return decode(method, c.best(ctx, reply, answers), result)
			}
			// The first request behind a new subscription may find nobody.
			if alone++; alone > 2 && c.served(ctx) {
				return c.excluded(method)
			}
			silence.Reset(pause)
			select {
			case <-silence.C:
			case <-ctx.Done():
			case <-c.lost.Done():
			}
		case <-back:
		case <-silence.C:
			due = min(2*due, wait+patience)
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
	const method = "host/revoke"
	m, err := c.command(method, p)
	if err != nil {
		return h, err
	}
	for {
		once, cancel := context.WithTimeout(ctx, doubt)
		err := c.ask(once, method, m, &h)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return h, err
		}
	}
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
