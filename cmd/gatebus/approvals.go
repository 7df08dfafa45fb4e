package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// poll is how long one question for news waits for some.
const poll = 20 * time.Second

func (m *Main) approvalsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "approvals", Short: "What waits for a person"}
	var all bool
	list := &cobra.Command{
		Use: "list", Short: "List the pending approvals", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			approvals, err := listApprovals(ctx, bus, client.ApprovalsList{All: all})
			if err != nil {
				return err
			}
			return printList(m, approvals.Approvals, func(a client.Approval) string { return a.ID },
				column[client.Approval]{"ID", func(a client.Approval) string { return a.ID }},
				column[client.Approval]{"STATE", func(a client.Approval) string { return a.State }},
				column[client.Approval]{"ACTION", func(a client.Approval) string { return a.Action }},
				column[client.Approval]{"TARGET", func(a client.Approval) string { return a.Target }},
				column[client.Approval]{"PRINCIPAL", func(a client.Approval) string { return a.Principal }},
				column[client.Approval]{"RISK", func(a client.Approval) string { return a.Risk }},
				column[client.Approval]{"EXPIRES", func(a client.Approval) string { return clock(a.Expires) }},
			)
		}),
	}
	list.Flags().BoolVar(&all, "all", false, "also those that were answered or have expired")
	cmd.AddCommand(list,
		&cobra.Command{
			Use: "show ID", Short: "Show what an approval is about; a unique beginning of the ID will do", Args: exactly("ID"),
			RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
				a, err := findApproval(ctx, bus, args[0])
				if err != nil {
					return err
				}
				if err := bus.ask(ctx, "approvals/get", client.ApprovalID{ID: a.ID}, &a); err != nil {
					return err
				}
				return m.printObject(a, a.ID, func(t *table) { showApproval(t, a) })
			}),
		},
		&cobra.Command{
			Use: "watch", Short: "Print the pending approvals and then each change, until interrupted", Args: exactly(),
			RunE: m.onBus(m.watchApprovals),
		},
	)
	return cmd
}

func listApprovals(ctx context.Context, bus asker, q client.ApprovalsList) (list client.Approvals, err error) {
	limit := bus.timeout + time.Duration(q.WaitMS)*time.Millisecond
	return list, bus.within(ctx, limit, "approvals/list", q, &list)
}

// findApproval finds an approval by its id or a unique beginning of it. What is
// pending comes before what is over.
func findApproval(ctx context.Context, bus asker, id string) (found client.Approval, err error) {
	all, err := listApprovals(ctx, bus, client.ApprovalsList{All: true})
	if err != nil {
		return found, err
	}
	var pending, over []client.Approval
	for _, a := range all.Approvals {
		switch {
		case a.ID == id:
			return a, nil
		case id == "" || !strings.HasPrefix(a.ID, id):
		case a.State == "pending":
			pending = append(pending, a)
		default:
			over = append(over, a)
		}
	}
	matches := pending
	if len(pending) == 0 {
		matches = over
	}
	switch len(matches) {
	case 0:
		return found, &problem{kind: fault.NotFound, text: "there is no approval " + id, hint: "see gatebus approvals list"}
	case 1:
		return matches[0], nil
	}
	ids := make([]string, len(matches))
	for i, a := range matches {
		ids[i] = a.ID
	}
	return found, usage("%s is the beginning of several approvals: %s", id, strings.Join(ids, ", "))
}

func showApproval(t *table, a client.Approval) {
	t.field("id", a.ID)
	t.field("state", a.State)
	t.field("action", a.Action)
	t.field("target", a.Target)
	t.field("principal", a.Principal)
	t.field("server", a.Server)
	t.field("tool", a.Tool)
	t.field("session", a.Session)
	t.field("waits", a.Aggregate)
	t.field("risk", a.Risk)
	t.field("policy", a.Policy)
	t.field("fingerprint", a.Fingerprint)
	t.field("requested", clock(a.Requested))
	t.field("expires", clock(a.Expires))
	t.field("answered by", a.By)
	t.field("kind", a.Kind)
	t.field("note", a.Note)
	showPreview(t, a)
	if a.Arguments != "" {
		t.field("arguments", " ")
		t.block(a.Arguments)
	}
}

// watchApprovals prints what is pending, and then every approval whose state is
// new.
func (m *Main) watchApprovals(ctx context.Context, bus asker, _ []string) error {
	states := make(map[string]string)
	query := client.ApprovalsList{All: true}
	for first := true; ; first = false {
		news, err := listApprovals(ctx, bus, query)
		if err != nil {
			return err
		}
		for _, a := range news.Approvals {
			if states[a.ID] == a.State {
				continue
			}
			states[a.ID] = a.State
			if first && a.State != "pending" {
				continue
			}
			err := m.event(a, a.ID, clock(a.Requested), a.State, a.ID, a.Action, a.Target, a.Principal, a.Risk, a.By)
			if err != nil {
				return err
			}
		}
		query.After, query.WaitMS = news.After, poll.Milliseconds()
	}
}

// event prints one line of a watch.
func (m *Main) event(v any, name string, cells ...string) error {
	switch m.output {
	case "name":
		return m.line(name)
	case "table":
		shown := make([]string, len(cells))
		for i, c := range cells {
			shown[i] = cell(c)
		}
		return m.line(strings.Join(shown, "  "))
	case "yaml":
		if err := m.line("---"); err != nil {
			return err
		}
		return m.encode("yaml", v)
	}
	return m.encode("jsonl", v)
}

func (m *Main) approveCommand() *cobra.Command {
	var session bool
	cmd := &cobra.Command{
		Use: "approve ID", Short: "Say yes; a unique beginning of the ID will do", Args: exactly("ID"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			return m.decide(ctx, bus, args[0], client.ApprovalsDecide{Decision: "allow", Session: session})
		}),
	}
	cmd.Flags().BoolVar(&session, "session", false, "let the yes to a call stand for its session")
	return cmd
}

func (m *Main) denyCommand() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "deny ID", Short: "Say no; a unique beginning of the ID will do", Args: exactly("ID"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			return m.decide(ctx, bus, args[0], client.ApprovalsDecide{Decision: "deny", Note: note})
		}),
	}
	cmd.Flags().StringVar(&note, "note", "", "why")
	return cmd
}

// answered is an approval with what came of it.
type answered struct {
	client.Approval
	Connection *connected `json:"connection,omitempty"`
}

// connected is what became of a connection that was approved.
type connected struct {
	State   string `json:"state"` // ready, failed, denied, closed or connecting
	Tools   int    `json:"tools"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// decide answers an approval, and waits for the connection that was approved.
func (m *Main) decide(ctx context.Context, bus asker, id string, d client.ApprovalsDecide) error {
	asked, err := findApproval(ctx, bus, id)
	if err != nil {
		return err
	}
	d.ID = asked.ID
	var a answered
	if err := bus.ask(ctx, "approvals/decide", d, &a.Approval); err != nil {
		return err
	}
	if d.Decision == "allow" && asked.Action == "mcp.connect" {
		if a.Connection, err = connectionOf(ctx, bus, asked); err != nil {
			return err
		}
	}
	err = m.printObject(a, a.ID, func(t *table) {
		t.field("approval", a.ID)
		t.field("state", a.State)
		t.field("target", a.Target)
		if c := a.Connection; c != nil {
			t.field("connection", c.State)
			t.field("reason", c.Reason)
			t.field("message", c.Message)
			if c.State == "ready" {
				t.field("tools", count(c.Tools))
			}
		}
	})
	switch {
	case err != nil:
		return err
	case d.Decision == "allow" && asked.Action == "mcp.call":
		m.note("hint: a call that still waits goes on; else make the same call again, as %s", asked.Principal)
	case a.Connection == nil:
	case a.Connection.State == "connecting":
		m.note("hint: the server is still connecting; see gatebus server get %s", asked.Server)
	case a.Connection.State != "ready":
		kind := fault.Kind(a.Connection.Reason)
		if _, known := fault.Lookup(kind); !known {
			kind = fault.ServerFailed
		}
		return &problem{kind: kind, text: fmt.Sprintf("approved, but server %s is %s: %s", asked.Server, a.Connection.State, a.Connection.Message)}
	}
	return nil
}

// connection waits in the log for what becomes of the connection that waited for
// the approval.
func connectionOf(ctx context.Context, bus asker, asked client.Approval) (*connected, error) {
	deadline := time.Now().Add(bus.timeout)
	after := asked.Seq
	for {
		wait := min(time.Until(deadline), poll)
		if wait <= 0 {
			return &connected{State: "connecting"}, nil
		}
		var page client.AuditRows
		q := client.AuditList{Server: asked.Server, After: after, WaitMS: wait.Milliseconds()}
		if err := bus.within(ctx, wait+bus.timeout, "audit/list", q, &page); err != nil {
			return nil, err
		}
		for _, r := range page.Rows {
			if r.Aggregate != asked.Aggregate {
				continue
			}
			if c := connectionOutcome(r); c != nil {
				return c, nil
			}
		}
		after = max(after, page.Next)
	}
}

// connectionOutcome is what an event says about where a connection ended up; nil
// when it is on its way.
func connectionOutcome(r client.AuditRow) *connected {
	var e struct {
		Tools                        []json.RawMessage
		Blocked                      []string
		Reason, Message, Stage, Kind string
	}
	if json.Unmarshal(r.Data, &e) != nil {
		return nil
	}
	switch r.Name {
	case "tools_discovered":
		return &connected{State: "ready", Tools: len(e.Tools) - len(e.Blocked)}
	case "server_failed":
		return &connected{State: "failed", Reason: e.Kind, Message: e.Message}
	case "server_denied":
		return &connected{State: "denied", Reason: e.Reason, Message: "denied at the stage " + e.Stage}
	case "connection_closed", "connection_lost":
		return &connected{State: "closed", Reason: e.Reason}
	}
	return nil
}
