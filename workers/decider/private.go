package decider

import (
	"context"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
)

// private gives an attachment connections of its own to the servers that may ask it
// something, once the shared ones are open: what a person has said yes to there is
// what these are opened on, and they go when that is in force no more (decision 3).
// The choices say which connections they are.
func (d *Decider) private(ctx context.Context, id client.Identity, p Preparation, servers []choice) error {
	p.Attachment.Runtime = d.Runtime
	var asked []choice
	for i, c := range servers {
		key, now := connection.PrivateID(p.Session, c.ServerID, p.Attachment.ID), time.Now()
		if c.denied || d.Model.Connections.Get(id.Workspace, c.Connection(p.Session)).Phase != connection.Open &&
			d.Model.Connections.Get(id.Workspace, key).Attachment == "" {
			continue
		}
		var request connection.Request
		dec, err := d.Model.Connections.DispatchWith(ctx, id.Workspace, key, bus.Meta{
			Correlation: key, Actor: id.Actor, Principal: id.Principal, Time: now,
			Scope: events.Scope{Session: p.Session, Connection: key, Server: c.ServerID, Core: c.Core},
		}, bus.With{Reads: bus.AuthorityReads(id.Workspace, id.Principal)}, func() (connection.Command, error) {
			request = c.Private(d.Model, id.Workspace, id.Principal, p.Session, p.Attachment, now)
			return request, nil
		})
		if err != nil {
			return err
		}
		if dec.State.Attachment != "" && len(request.Offers) > 0 && request.Approval != "" {
			servers[i].attachment = p.Attachment.ID
			asked = append(asked, servers[i])
		}
	}
	d.settled(ctx, id, p, asked)
	return nil
}

// alike gives the answer that a person gave to a question about a tool of one
// attachment to the same question about it of the others of the session, and returns
// the last sequence of that: nobody is asked twice (decision 3). An answer that comes
// too late is none.
func (d *Decider) alike(ctx context.Context, workspace string, yes connection.State, answer connection.Answer) (seq uint64) {
	if len(yes.Granted) == 0 {
		return 0
	}
	for at, s := range d.Model.Connections.All() {
		if at.Workspace != workspace {
			continue
		}
		for _, approval := range s.Alike(yes) {
			dec, err := d.Model.Connections.DispatchWith(ctx, workspace, at.Key, bus.Meta{
				Correlation: at.Key, Actor: answer.By, Principal: s.Principal, Time: answer.At,
				Scope: events.Scope{Session: s.Session, Connection: at.Key, Server: s.Server},
			}, bus.With{Reads: bus.AuthorityReads(workspace, s.Principal)}, func() (connection.Command, error) {
				c := answer
				c.Authority, c.Approval, c.Allow = d.Model.Authority(workspace, s.Principal), approval, true
				return c, nil
			})
			if err == nil {
				seq = max(seq, dec.Seq)
			} else if !fault.Is(err, fault.Conflict) {
				d.Log.Error("a question that was answered for another attachment is still open", "connection", at.Key, "error", err)
			}
		}
	}
	return seq
}

// Leave closes the connections that an attachment had alone.
func (d *Decider) Leave(ctx context.Context, workspace, attachment string) {
	for at, s := range d.Model.Connections.All() {
		if at.Workspace != workspace || s.Attachment != attachment {
			continue
		}
		if _, err := d.Model.Connections.Dispatch(ctx, at.Workspace, at.Key, bus.Meta{
			Correlation: at.Key, Actor: "runtime", Principal: s.Principal,
			Scope: events.Scope{Session: s.Session, Connection: at.Key, Server: s.Server},
		}, connection.Close{Generation: s.Generation, Reason: "attachment_ended"}); err != nil {
			d.Log.Error("the connection of a client that has left is still open", "connection", at.Key, "error", err)
		}
	}
}
