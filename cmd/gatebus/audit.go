package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// auditPage is how many events are asked for at once.
const auditPage = 1000

func (m *Main) auditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "The log of every decision"}
	cmd.AddCommand(
		m.auditListCommand(),
		&cobra.Command{
			Use: "show SEQ", Short: "Show the commit at a place of the log", Args: exactly("SEQ"),
			RunE: func(cmd *cobra.Command, args []string) error {
				seq, err := strconv.ParseUint(args[0], 10, 64)
				if err != nil {
					return usage("%q is no place in the log", args[0])
				}
				return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
					var page client.AuditRows
					if err := bus.ask(ctx, "audit/show", client.AuditShow{Seq: seq}, &page); err != nil {
						return err
					}
					if m.output != "table" {
						return m.printEvents(page.Rows)
					}
					return m.table(func(t *table) { showCommit(t, page.Rows) })
				})(cmd, args)
			},
		},
		&cobra.Command{
			Use: "trace ID", Short: "List all that belongs to a call, turn, session, connection, approval or correlation", Args: exactly("ID"),
			RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
				var page client.AuditRows
				if err := bus.ask(ctx, "audit/trace", client.AuditTrace{ID: args[0]}, &page); err != nil {
					return err
				}
				return m.printEvents(page.Rows)
			}),
		},
		m.auditWatchCommand(),
		m.auditQueryCommand(),
		m.auditReplayCommand(),
		m.auditExportCommand(),
		m.auditVerifyCommand(),
	)
	return cmd
}

// auditFilter is what the filters of audit list and audit watch say.
type auditFilter struct {
	client.AuditList
	since, until string
}

func (f *auditFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Name, "name", "", "only events of this name, for example call_started")
	cmd.Flags().StringVar(&f.Server, "server", "", "only those of this server")
	cmd.Flags().StringVar(&f.Principal, "principal", "", "only those of this principal")
	cmd.Flags().StringVar(&f.Call, "call", "", "only those of this call")
	cmd.Flags().StringVar(&f.since, "since", "", "only from this time on, or from so long ago")
	cmd.Flags().StringVar(&f.until, "until", "", "only before this time, or before so long ago")
	cmd.Flags().Uint64Var(&f.After, "after", 0, "only commits after this place of the log")
	cmd.Flags().IntVar(&f.Limit, "limit", 0, "at most so many events (all)")
}

// query is the filter as the bus takes it.
func (f *auditFilter) query() (q client.AuditList, err error) {
	q = f.AuditList
	now := time.Now()
	if q.Since, err = when(f.since, now, earlier); err != nil {
		return q, usage("--since: %v", err)
	}
	if q.Until, err = when(f.until, now, earlier); err != nil {
		return q, usage("--until: %v", err)
	}
	if q.Limit < 0 {
		return q, usage("--limit must not be negative")
	}
	if names := events.Names(); q.Name != "" && !slices.Contains(names, q.Name) {
		return q, usage("--name: there is no event %q; there are %s", q.Name, strings.Join(names, ", "))
	}
	return q, nil
}

func (m *Main) auditListCommand() *cobra.Command {
	var filter auditFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List events, oldest first", Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := filter.query()
			if err != nil {
				return err
			}
			return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				return m.listAudit(ctx, bus, q)
			})(cmd, args)
		},
	}
	filter.flags(cmd)
	return cmd
}

func (m *Main) listAudit(ctx context.Context, bus asker, q client.AuditList) (err error) {
	var rows []client.AuditRow
	lines := m.output == "jsonl" || m.output == "name" // printed as they come
	for page := range auditPages(ctx, bus, q, &err) {
		if !lines {
			rows = append(rows, page...)
		} else if err := m.printEvents(page); err != nil {
			return err
		}
	}
	if err != nil || lines {
		return err
	}
	return m.printEvents(rows)
}

// auditPages yields the events of a query, page by page.
func auditPages(ctx context.Context, bus asker, q client.AuditList, failed *error) iter.Seq[[]client.AuditRow] {
	return func(yield func([]client.AuditRow) bool) {
		for left := q.Limit; ; {
			q.Limit = auditPage
			if left > 0 {
				q.Limit = min(left, auditPage)
			}
			var page client.AuditRows
			if *failed = bus.ask(ctx, "audit/list", q, &page); *failed != nil {
				return
			}
			if n := len(page.Rows); page.More && n == auditPage && page.Rows[0].Seq == page.Rows[n-1].Seq {
				// The only commit that is ever cut: it alone has more rows than a page.
				if *failed = wholeCommit(ctx, bus, q, &page); *failed != nil {
					return
				}
			}
			if !yield(page.Rows) || !page.More || left > 0 && len(page.Rows) >= left {
				return
			}
			q.After = page.Next
			if left > 0 {
				left -= len(page.Rows)
			}
		}
	}
}

// wholeCommit puts all rows of the commit of a page that match in place of the
// first ones.
func wholeCommit(ctx context.Context, bus asker, q client.AuditList, page *client.AuditRows) error {
	var commit client.AuditRows
	if err := bus.ask(ctx, "audit/show", client.AuditShow{Seq: page.Rows[0].Seq}, &commit); err != nil {
		return err
	}
	is := func(want, have string) bool { return want == "" || want == have }
	page.Rows = slices.DeleteFunc(commit.Rows, func(r client.AuditRow) bool {
		return !is(q.Name, r.Name) || !is(q.Server, r.Server) || !is(q.Call, r.Call)
	})
	return nil
}

func (m *Main) printEvents(rows []client.AuditRow) error {
	return printList(m, rows, func(r client.AuditRow) string { return fmt.Sprint(r.Seq) },
		column[client.AuditRow]{"SEQ", place},
		column[client.AuditRow]{"TIME", func(r client.AuditRow) string { return clock(r.Time) }},
		column[client.AuditRow]{"EVENT", func(r client.AuditRow) string { return r.Name }},
		column[client.AuditRow]{"AGGREGATE", func(r client.AuditRow) string { return r.Aggregate }},
		column[client.AuditRow]{"PRINCIPAL", func(r client.AuditRow) string { return r.Principal }},
		column[client.AuditRow]{"SERVER", func(r client.AuditRow) string { return r.Server }},
		column[client.AuditRow]{"DATA", func(r client.AuditRow) string { return string(r.Data) }},
	)
}

// place is where an event is: its commit, and its number in it.
func place(r client.AuditRow) string { return fmt.Sprintf("%d.%d", r.Seq, r.I) }

func showCommit(t *table, rows []client.AuditRow) {
	for i, r := range rows {
		if i == 0 {
			t.field("commit", fmt.Sprint(r.Seq))
			t.field("time", r.Time.UTC().Format(time.RFC3339Nano))
			t.field("aggregate", r.Aggregate)
			t.field("workspace", r.Workspace)
			t.field("principal", r.Principal)
			t.field("actor", r.Actor)
			t.field("server", r.Server)
			t.field("session", r.Session)
			t.field("turn", r.Turn)
			t.field("call", r.Call)
			t.field("causation", r.Causation)
			t.field("correlation", r.Correlation)
		}
		t.field("event "+strconv.Itoa(r.I), r.Name)
		data := jsontext.Value(r.Data)
		if data.Indent(jsontext.WithIndent("  ")) == nil {
			t.block(string(data))
		}
	}
}

func (m *Main) auditWatchCommand() *cobra.Command {
	var filter auditFilter
	cmd := &cobra.Command{Use: "watch", Short: "Print events as they happen, until interrupted", Args: exactly()}
	filter.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := filter.query()
		if err != nil {
			return err
		}
		return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			if !cmd.Flags().Changed("after") && q.Since.IsZero() {
				info, err := busInfo(ctx, bus)
				if err != nil {
					return err
				}
				q.After = info.Commits // nothing is ever cut from the log: its length is its head
			}
			return m.watchAudit(ctx, bus, q)
		})(cmd, args)
	}
	return cmd
}

func (m *Main) watchAudit(ctx context.Context, bus asker, q client.AuditList) error {
	left := q.Limit
	for {
		q.Limit, q.WaitMS = auditPage, poll.Milliseconds()
		var page client.AuditRows
		if err := bus.within(ctx, bus.timeout+poll, "audit/list", q, &page); err != nil {
			return err
		}
		for _, r := range page.Rows {
			if err := m.event(r, fmt.Sprint(r.Seq), place(r), clock(r.Time), r.Name, r.Aggregate, r.Principal, r.Server, string(r.Data)); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		q.After = max(q.After, page.Next)
	}
}

// auditVerifyCommand asks the running bus, and reads the store of a home itself
// when none runs: a damaged one does not come up.
func (m *Main) auditVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Check the whole log against everything that was signed of it", Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var v client.Verification
			err := m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				return bus.within(ctx, patient(cmd, bus), "audit/verify", nil, &v)
			})(cmd, args)
			if fault.Is(err, fault.BusUnavailable) && m.bus == "" {
				if v, err = bus.VerifyHome(cmd.Context(), m.home); fault.Is(err, fault.NotFound) {
					return fault.New("audit.verify", fault.BusUnavailable, redact.Static("no bus is running, and the home has no log that was sealed"))
				}
				m.note("no bus is running: the store is read as it lies")
			}
			if err != nil {
				return err
			}
			return m.printVerification(v)
		},
	}
}

func (m *Main) printVerification(v client.Verification) (err error) {
	if m.output == "table" {
		err = m.encode("jsonl", v) // one line for people and programs (interface)
	} else {
		err = m.printObject(v, v.Root, nil)
	}
	if err != nil || v.Verified {
		return err
	}
	var lines []string
	for _, p := range v.Problems {
		lines = append(lines, p.String())
	}
	return &problem{kind: fault.AuditDamaged, text: strings.Join(lines, "\n")}
}
