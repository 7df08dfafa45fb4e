package notifier

import (
	"context"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
)

// repeat is how far back a runtime goes that takes over: what is older was sent
// by the one before it, which was alive then.
const repeat = time.Minute

// Run pushes notifications on NATS until ctx ends, from the moment on that this
// is the oldest living runtime of its home. An error is that of the log.
func (n *Notifier) Run(ctx context.Context) error {
	after, err := n.standBy(ctx)
	if err == nil {
		for c, e := range n.commits(ctx, after, tells) {
			if err = e; err != nil {
				break
			}
			n.push(c)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// standBy returns the sequence to push after, once it is this runtime's turn.
func (n *Notifier) standBy(ctx context.Context) (after uint64, err error) {
	after = n.from
	if n.oldest() {
		return after, nil
	}
	// Places of the last minute, by the times of the commits, one for each second.
	type place struct {
		after uint64
		time  time.Time
	}
	past := []place{{after: after}}
	for c, err := range n.commits(ctx, after, nil) {
		if err != nil {
			return 0, err
		}
		if last := past[len(past)-1]; c.Time.Sub(last.time) >= time.Second {
			past = append(past, place{c.Seq - 1, c.Time})
		}
		for len(past) > 1 && c.Time.Sub(past[1].time) >= repeat {
			past = past[1:]
		}
		if c.Aggregate.Kind == events.KindRuntime && n.oldest() {
			return past[0].after, nil
		}
	}
	return 0, ctx.Err()
}

// oldest reports whether no living runtime of the home booted before this one.
func (n *Notifier) oldest() bool {
	live := n.Model.Runtimes.Get(n.Workspace, n.Home).Live
	own, ok := live[n.Runtime]
	for _, p := range live {
		ok = ok && p.Epoch >= own.Epoch
	}
	return ok
}

// push sends what a commit brought to everybody who may see it. One that is not
// sent is not lost: the log has it.
func (n *Notifier) push(c *events.Commit) {
	all := Of(c, n.Projections.Servers.CatalogChanged)
	if len(all) == 0 {
		return
	}
	var names []string
	for _, h := range n.Projections.Grants.Hosts(c.Workspace) {
		if !h.Revoked {
			names = append(names, h.Name)
		}
	}
	for _, a := range all {
		for _, name := range names {
			if !n.sees(client.Identity{Workspace: c.Workspace, Principal: name}, a) {
				continue
			}
			if err := n.Send(c.Workspace, name, a.Notification); err != nil {
				n.Log.Warn("a notification was not sent", "seq", c.Seq, "error", err)
			}
		}
	}
}
