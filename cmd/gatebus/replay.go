package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

// auditReplayCommand shows what the lists said at a place of the log.
func (m *Main) auditReplayCommand() *cobra.Command {
	var at string
	var q client.AuditAsOf
	cmd := &cobra.Command{
		Use: "replay", Short: "Show grants, approvals, servers, sessions, tools and hosts as they were", Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("at") {
				var err error
				if q.AtSeq, err = strconv.ParseUint(at, 10, 32); err != nil {
					if q.AtTime, err = when(at, time.Now(), earlier); err != nil || q.AtTime.IsZero() {
						return usage("--at: %q is neither a place in the log nor a time like 2026-11-29T18:00:00Z", at)
					}
				} else if q.AtSeq == 0 {
					return usage("--at: the log begins at 1")
				}
			}
			return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				var state client.AuditState
				if err := bus.ask(ctx, "audit/asof", q, &state); err != nil {
					return err
				}
				m.note("as of commit %d of the log, %s", state.Seq, clock(state.Time))
				return m.printObject(state, fmt.Sprint(state.Seq), func(t *table) { showState(t, state) })
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "after this commit, or the last one not later than this time or so long ago (now)")
	cmd.Flags().BoolVar(&q.All, "all", false, "also approvals that were answered and sessions that had ended")
	return cmd
}

func showState(t *table, s client.AuditState) {
	t.row("WHAT", "NAME", "STATE", "DETAIL")
	for _, h := range s.Hosts {
		state := "enrolled"
		if h.Revoked {
			state = "revoked"
		}
		t.row("host", h.Name, state, h.Role)
	}
	for _, g := range s.Grants {
		detail := ""
		if !g.Until.IsZero() {
			detail = "until " + clock(g.Until)
		}
		t.row("grant", g.Principal+" "+g.Capability, "held", detail)
	}
	for _, v := range s.Servers {
		t.row("server", v.Name, v.State, fmt.Sprintf("%d tools", v.Tools))
		for _, c := range v.Connections {
			t.row("connection", c.Connection, c.State, strings.TrimSpace(c.Principal+" "+c.Reason))
		}
	}
	for _, x := range s.Sessions {
		state := "active"
		if !x.Active {
			state = "ended"
		}
		t.row("session", x.Session, state, fmt.Sprintf("%s %s, %d turns, %d calls under way", x.Principal, x.Label, x.Turns, x.InFlight))
	}
	for _, x := range s.Tools {
		state := "listed"
		if x.Blocked {
			state = "blocked"
		}
		t.row("tool", x.Name, state, x.Principal+" "+x.Digest)
	}
	for _, a := range s.Approvals {
		t.row("approval", a.ID, a.State, a.Action+" "+a.Target+" "+a.Principal)
	}
}

// exports are the formats of audit export.
var exports = []string{"jsonl", "cloudevents"}

// auditExportCommand writes events for other programs, page by page.
func (m *Main) auditExportCommand() *cobra.Command {
	var filter auditFilter
	var format string
	cmd := &cobra.Command{
		Use: "export --format jsonl|cloudevents", Short: "Write events for other programs, one JSON object a line", Args: exactly(),
		Long: "Writes events oldest first, as audit list -o jsonl does, or as CloudEvents 1.0. An export goes on where another\n" +
			"ended with --after and the sequence that it ended with.",
	}
	filter.flags(cmd)
	cmd.Flags().StringVar(&format, "format", "", "jsonl or cloudevents")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(exports, format) {
			return usage("--format must be one of %s", strings.Join(exports, ", "))
		}
		q, err := filter.query()
		if err != nil {
			return err
		}
		return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			line := func(r client.AuditRow) any { return r }
			if format == "cloudevents" {
				info, err := busInfo(ctx, bus)
				if err != nil {
					return err
				}
				line = func(r client.AuditRow) any { return cloudEventOf(info.HomeID, r) }
			}
			var failed error
			last := q.After
			for page := range auditPages(ctx, bus, q, &failed) {
				for _, r := range page {
					if err := m.encode("jsonl", line(r)); err != nil {
						return err
					}
					last = r.Seq
				}
			}
			m.note("up to commit %d of the log", last)
			return failed
		})(cmd, args)
	}
	return cmd
}

// cloudEvent is an event as CloudEvents 1.0 has it in JSON. Source and id
// together name it for ever; what is behind subject are extensions.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Time            time.Time `json:"time"`
	Subject         string    `json:"subject"`
	DataContentType string    `json:"datacontenttype"`

	Workspace   string `json:"workspace,omitempty"`
	Principal   string `json:"principal,omitempty"`
	Actor       string `json:"actor,omitempty"`
	Server      string `json:"server,omitempty"`
	Session     string `json:"session,omitempty"`
	Turn        string `json:"turn,omitempty"`
	Call        string `json:"call,omitempty"`
	Causation   string `json:"causation,omitempty"`
	Correlation string `json:"correlation,omitempty"`

	Data json.RawMessage `json:"data"`
}

func cloudEventOf(home string, r client.AuditRow) cloudEvent {
	return cloudEvent{
		SpecVersion: "1.0", ID: place(r), Source: "urn:gatebus:" + home + ":" + r.Workspace, Type: "mcp." + r.Name, Time: r.Time,
		Subject: r.Aggregate, DataContentType: "application/json", Workspace: r.Workspace, Principal: r.Principal, Actor: r.Actor,
		Server: r.Server, Session: r.Session, Turn: r.Turn, Call: r.Call, Causation: r.Causation, Correlation: r.Correlation, Data: r.Data,
	}
}
