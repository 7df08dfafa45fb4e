// Package notifier tells principals what changed: notifications are a pure
// function of the log (Of), so that whoever has seen those of one commit can go
// on behind it, at any time and at any process. They are read by cursor, with
// notifications/list and /rpc/events; on NATS they are pushed besides.
//
// A push goes to whoever listens at that moment. One runtime pushes: the oldest
// of the home that is alive. The next one repeats what the one before may not
// have sent, so a receiver drops what is not behind what it has, by Gb-Seq and
// Gb-Index, and asks for what it has missed.
//
// Who may see a notification is decided when it is read (decision 26): operators
// and auditors see all of their workspace; a host sees what concerns its own
// grants, connections and approvals, and the catalogs of the servers that it may
// connect to or read. What a notification says is the same for everybody who may
// see it, and holds ids and codes and no text of a person or a server.
package notifier

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections"
)

const (
	// pageSize bounds the notifications of one answer, up to those of one commit.
	pageSize = 1000
	// pageCommits bounds the commits that are read for one answer.
	pageCommits = 20_000
	// maxPoll bounds a long poll.
	maxPoll = 30 * time.Second
)

// Config is what a Notifier needs. All fields are required.
type Config struct {
	Bus         *bus.Bus
	Model       *bus.Model
	Projections *projections.Set
	Workspace   string
	// Home is the key of the home's runtimes in the log, Runtime the id of this one.
	Home, Runtime string
	// Identity says who makes a request, when he has one of the roles.
	Identity func(r *bus.Request, roles ...string) (client.Identity, error)
	// Role is the role of a principal, empty when it has none.
	Role func(workspace, principal string) string
	// Send pushes a notification to a principal.
	Send func(workspace, principal string, n client.Notification) error
	Log  *slog.Logger
}

// Notifier tells principals what changed. It is safe for concurrent use.
type Notifier struct {
	Config
	from uint64 // what came before is not pushed
}

// New makes a Notifier.
func New(c Config) *Notifier { return &Notifier{Config: c, from: c.Bus.Head()} }

// Follow yields for each commit after a sequence, in order, what it brought that
// the principal may see, often nothing, and goes on with new ones. topics are as in notifications/list; none is all. It ends with an
// error: what bus.Follow can end with, or why the projections have stopped.
// Whoever reads slowly holds nobody up.
func (n *Notifier) Follow(ctx context.Context, id client.Identity, after uint64, topics []string) iter.Seq2[client.Notifications, error] {
	return func(yield func(client.Notifications, error) bool) {
		for c, err := range n.commits(ctx, after, nil) {
			if err != nil {
				yield(client.Notifications{}, err)
				return
			}
			b := client.Notifications{Next: c.Seq}
			for _, a := range Of(c, n.Projections.Servers.CatalogChanged) {
				if wanted(topics, a.Method) && n.sees(id, a) {
					b.Notifications = append(b.Notifications, a.Notification)
				}
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// commits follows the log as far as the projections have it, as [bus.Bus.FollowSome].
func (n *Notifier) commits(ctx context.Context, after uint64, wants func(*events.Commit) bool) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for c, err := range n.Bus.FollowSome(ctx, after, wants) {
			if err == nil {
				err = n.Projections.Wait(ctx, c.Seq)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

// sees reports whether a principal may see a notification now.
func (n *Notifier) sees(id client.Identity, a Addressed) bool {
	if id.Workspace != a.Workspace {
		return false
	}
	switch n.Role(id.Workspace, id.Principal) {
	case host.RoleOperator, host.RoleAuditor:
		return true
	case host.RoleHost:
	default:
		return false
	}
	switch {
	case a.Principal != "":
		return id.Principal == a.Principal
	case a.Server == "":
		return true
	}
	now := time.Now()
	held := n.Model.Grants.Get(id.Workspace, id.Principal).Snapshot(id.Principal)
	return held.Allows(authority.Connect(a.Server), now) || held.Allows(authority.Read, now)
}

// wanted reports whether one of the topics is the method or what it begins with.
func wanted(topics []string, method string) bool {
	return len(topics) == 0 || slices.ContainsFunc(topics, func(t string) bool {
		rest, ok := strings.CutPrefix(method, t)
		return ok && (rest == "" || rest[0] == '/')
	})
}

// CheckTopics returns an error when one of the topics matches no notification.
func CheckTopics(topics []string) error {
	for _, t := range topics {
		if !slices.ContainsFunc(client.Topics, func(m client.Method) bool { return wanted([]string{t}, m.Name) }) {
			names := make([]string, len(client.Topics))
			for i, m := range client.Topics {
				names[i] = m.Name
			}
			return fault.New("notifications", fault.InvalidInput, redact.Name("topics: "+strings.Join(names, ", ")+" or what they begin with, not "+t))
		}
	}
	return nil
}

// lag is how long a server of a cluster may not know the end of the log.
const lag = 2 * time.Second

// Check says what is wrong with topics, as CheckTopics, or with a place behind the
// end of the log: it is of another log, or of one that was restored, and whoever
// went on from there would miss what comes until the log is as long. Errors:
// invalid_input, and as [bus.Bus.Reached].
func (n *Notifier) Check(ctx context.Context, after uint64, topics []string) error {
	if err := CheckTopics(topics); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, lag)
	defer cancel()
	err := n.Bus.Reached(waiting, after)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.New("notifications", fault.InvalidInput, redact.Name(fmt.Sprintf("after: the log ends at %d, before %d", n.Bus.Known(), after)))
	}
	return err
}

// Methods are those that it answers.
func (n *Notifier) Methods() []bus.Method {
	return []bus.Method{{Name: "notifications/list", Handle: n.list}}
}

func (n *Notifier) list(ctx context.Context, r *bus.Request) (any, error) {
	id, err := n.Identity(r, host.RoleHost, host.RoleOperator, host.RoleAuditor)
	if err != nil {
		return nil, err
	}
	var p client.NotificationsList
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	limit := pageSize
	if p.Limit > 0 {
		limit = min(p.Limit, pageSize)
	}
	// What the bus knows is what the caller may know of already.
	head := n.Bus.Known()
	out := client.Notifications{Notifications: []client.Notification{}, Next: head}
	if p.After != nil {
		out.Next = *p.After
	}
	if err := n.Check(ctx, out.Next, p.Topics); err != nil {
		return nil, err
	}
	wait := ctx
	if p.WaitMS > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, min(time.Duration(p.WaitMS)*time.Millisecond, maxPoll))
		defer cancel()
	} else if out.Next >= head {
		return out, nil
	}
	read := 0
	for b, err := range n.Follow(wait, id, out.Next, p.Topics) {
		switch {
		case err != nil && ctx.Err() == nil && wait.Err() != nil:
			out.More = out.Next < head
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("notifications: %w", err)
		}
		out.Notifications = append(out.Notifications, b.Notifications...)
		out.Next = b.Next
		read++
		out.More = b.Next < head && (len(out.Notifications) >= limit || read >= pageCommits)
		if out.More || b.Next >= head && (len(out.Notifications) > 0 || p.WaitMS <= 0) {
			break
		}
	}
	return out, nil
}
