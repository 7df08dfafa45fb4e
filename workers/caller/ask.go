package caller

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/inquiry"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/live"
)

const (
	// askTime is how long a client may take for a request of a server, at least: a
	// person may have to answer it.
	askTime = 10 * time.Minute
	// maxAsk bounds the params of such a request.
	maxAsk = 4 << 20
)

// Hosts are the MCP clients that servers may ask. Its methods are called
// concurrently.
type Hosts interface {
	// Ask asks the client of an attachment for a server. The reply is as the client
	// sent it. Errors: that of the context, or a fault.
	Ask(ctx context.Context, attachment, server, method string, params []byte) (live.Reply, error)
	// Tell tells it something, as far as it listens.
	Tell(attachment, server, method string, params []byte)
	// Log gives the params of a log message to the clients of a session, or to one of
	// them, that want messages of its level. It does not block.
	Log(session, attachment string, params []byte)
}

// Asks answers what a server asks on a private connection. Each request is decided
// and recorded as a call whose method is the server's; nothing that is in it, or in
// the answer, is stored.
func (c *Caller) Asks(key live.Key, timeout time.Duration) live.Asks {
	return live.Asks{
		Answer: func(ctx context.Context, conn *live.Conn, ask live.Ask) live.Reply {
			return c.ask(ctx, key, max(timeout, askTime), conn, ask)
		},
		Tell: func(conn *live.Conn, n live.Notice) {
			s := c.Model.Connections.Get(c.Workspace, key.Connection)
			if v := conn.Redactor().JSON(redact.NewRaw(n.Params)); !v.Failed {
				c.Hosts.Tell(s.Attachment, s.Server, n.Method, []byte(v.Model.String()))
			}
		},
	}
}

// ask walks one request of a server: decided, asked, recorded.
func (c *Caller) ask(ctx context.Context, key live.Key, timeout time.Duration, conn *live.Conn, ask live.Ask) live.Reply {
	s, ok := c.asker(ctx, key)
	if !ok {
		return refusal(fault.RuntimeNotLive, "")
	}
	id := "k-" + ulid.Make().String()
	v := judged(ask, s, c.URLs)
	d, err := c.askDecided(ctx, id, key, s, timeout, conn, ask, v)
	switch kind, text := v.No(); {
	case err != nil:
		return refusal(fault.AuditUnavailable, "")
	case d.State.Phase != call.Started && d.State.Reason == string(kind):
		return refusal(kind, text.String())
	case d.State.Phase != call.Started:
		return refusal(fault.Kind(d.State.Reason), "")
	}
	begun := time.Now()
	reply, finish := c.askHost(ctx, s, timeout, conn, ask)
	finish.Generation = key.Generation
	took := since(begun)
	if finish.Failed != nil {
		finish.Failed.DurationMs, finish.Failed.ExecutionStarted = took, true
	} else {
		finish.Succeeded.DurationMs = took
	}
	// The outcome is recorded also when the server has taken the request back.
	if s, _ := c.record(context.WithoutCancel(ctx), ended{id, askMeta(id, s), finish, took}); s.Phase != call.Done {
		return refusal(fault.AuditUnavailable, "")
	}
	return reply
}

// asker is the connection of a server that asks, which it may do before its opening is
// in the log; false where it is over.
func (c *Caller) asker(ctx context.Context, key live.Key) (connection.State, bool) {
	s, err := c.Model.Connections.Wait(ctx, c.Workspace, key.Connection, func(s connection.State) bool {
		return s.Phase != connection.Opening || s.Generation != key.Generation
	})
	return s, err == nil && s.Generation == key.Generation
}

// Refused records that a server has asked its client for what that had not offered, or
// too often, as a call that was blocked. Who calls it does so once for each method.
func (c *Caller) Refused(key live.Key, conn *live.Conn, method string, often bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	go func() {
		select {
		case <-conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	s, ok := c.asker(ctx, key)
	if !ok {
		return
	}
	v := inquiry.Judge(method, nil, nil, c.URLs)
	if often {
		v = inquiry.Verdict{Reason: fault.ResourceExhausted, Message: redact.Static("the server asks its client too often")}
	}
	// Where it cannot be recorded the server has been told no all the same.
	_, _ = c.askDecided(ctx, "k-"+ulid.Make().String(), key, s, askTime, conn, live.Ask{Method: method}, v)
}

// judged is what becomes of a request by what is in it.
func judged(ask live.Ask, s connection.State, urls urlpolicy.Policy) inquiry.Verdict {
	if len(ask.Params) > maxAsk {
		return inquiry.Verdict{Reason: fault.ArgumentsTooLarge, Message: redact.Static("the request of the server is larger than allowed")}
	}
	v := inquiry.Judge(ask.Method, ask.Params, s.Offers, urls)
	if v.URL != nil {
		v.URL.Server = s.Server
	}
	return v
}

func askMeta(id string, s connection.State) bus.Meta {
	return bus.Meta{
		Correlation: id, Actor: "runtime", Principal: s.Principal, Time: time.Now(),
		Scope: events.Scope{Session: s.Session, Connection: s.ID(), Call: id, Server: s.Server},
	}
}

// askDecided decides whether the client is asked: what the server was offered may
// have been taken from the principal since.
func (c *Caller) askDecided(ctx context.Context, id string, key live.Key, s connection.State, timeout time.Duration, conn *live.Conn, ask live.Ask, v inquiry.Verdict) (bus.Decided[call.State], error) {
	_, capability := connection.OfferOf(ask.Method, s.Server)
	meta := askMeta(id, s)
	var invalid *call.Refusal
	if v.Reason != "" {
		invalid = &call.Refusal{Reason: v.Reason, Message: v.Message}
	}
	with := bus.With{
		Reads: bus.AuthorityReads(c.Workspace, s.Principal),
		Fence: events.AggregateID{Kind: events.KindConnection, Key: key.Connection}, Fenced: startsCall,
	}
	return c.Model.Calls.DispatchWith(ctx, c.Workspace, id, meta, with, func() (call.Command, error) {
		if err := c.Valid(); err != nil {
			return nil, err
		}
		now := c.Model.Connections.Get(c.Workspace, key.Connection)
		if now.Generation != key.Generation || c.Pool.Get(key) != conn {
			return nil, errMoved
		}
		policies := c.Model.Policies.Get(c.Workspace, c.Workspace)
		policy := authority.CallPolicy(authority.Auto, authority.Subject{
			Server: s.Server, Capability: capability, Risk: authority.Risk(s.Risk),
		}, policies.Rules(s.Server)...)
		if policy == authority.Prompt { // the client's own person is asked, who sees what about
			policy = authority.Auto
		}
		return call.Request{
			Facts: call.Facts{
				Authority: c.Model.Authority(c.Workspace, s.Principal), PolicySequence: policies.Seq, Connection: now,
				Runtime: c.Runtime, Timeout: timeout, At: meta.Time, URL: v.URL,
			},
			Requested: events.CallRequested{
				Session: s.Session, Connection: key.Connection, Server: s.Server, Fingerprint: s.Fingerprint,
				Capability: capability, Risk: s.Risk, Policy: string(policy), ArgumentBytes: uint32(len(ask.Params)), Method: ask.Method, Flags: v.Flags,
			},
			Invalid: invalid, Ready: true,
		}, nil
	})
}

// askHost asks the client. The client sees the request without the server's secrets,
// the server the answer as it is.
func (c *Caller) askHost(ctx context.Context, s connection.State, timeout time.Duration, conn *live.Conn, ask live.Ask) (live.Reply, call.Finish) {
	failed := func(status string, kind fault.Kind, text redact.EventText) (live.Reply, call.Finish) {
		return refusal(kind, text.String()), call.Finish{Failed: &events.CallFailed{Status: status, Reason: string(kind), Message: text}}
	}
	params := ask.Params
	if params != nil {
		v := conn.Redactor().JSON(redact.NewRaw(params))
		if v.Failed {
			return failed(call.StatusFailed, fault.RedactionFailed, redact.Static("the secrets in the request could not be told"))
		}
		params = []byte(v.Model.String())
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := c.Hosts.Ask(waiting, s.Attachment, s.Server, ask.Method, params)
	var f *fault.Fault
	switch {
	case err == nil && reply.Error != nil:
		return reply, call.Finish{Failed: &events.CallFailed{
			Status: call.StatusFailed, Reason: string(fault.ExecutionFailed), Message: redact.Static("the client answered with an error"),
			Code: errorCode(reply.Error),
		}}
	case err == nil:
		return reply, call.Finish{Succeeded: &events.CallSucceeded{Status: call.Succeeded, Bytes: uint32(len(reply.Result))}}
	case ctx.Err() != nil:
		return failed(call.Cancelled, fault.Cancelled, redact.Static("the server took the request back, or is gone"))
	case waiting.Err() != nil:
		return failed(call.TimedOut, fault.TimedOut, redact.Static("the client did not answer in time"))
	case errors.As(err, &f):
		return failed(call.StatusFailed, f.Kind, f.Text)
	}
	return failed(call.StatusFailed, fault.Internal, redact.Static("the client could not be asked"))
}

// Told passes a notification of a client on to the servers that it was offered to.
func (c *Caller) Told(ctx context.Context, attachment, offer, method string) {
	for key, conn := range c.Pool.All() {
		s := c.Model.Connections.Get(c.Workspace, key.Connection)
		if s.Attachment == attachment && s.Generation == key.Generation && slices.Contains(s.Offers, offer) {
			_ = conn.Tell(ctx, method) // a server that is gone need not know
		}
	}
}

// refusal is the error that a server gets; it says no more than the kind does.
func refusal(kind fault.Kind, text string) live.Reply {
	entry, _ := fault.Lookup(kind)
	e := callError(entry.Kind, text)
	b, _ := json.Marshal(struct { // a number and a text of ours
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{entry.RPC(), e.Message})
	return live.Reply{Error: b}
}

// errorCode is the code of an error object as the log has it.
func errorCode(raw []byte) int32 {
	var e struct {
		Code jsontext.Value `json:"code"`
	}
	_ = json.Unmarshal(raw, &e) // what cannot be read has none
	return code(e.Code)
}
