package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

func (m *Main) hostCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "Principals that may use this bus, and their credentials"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the principals with their credentials", Args: exactly(),
			RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				var hosts []client.Host
				if err := bus.ask(ctx, "host/list", nil, &hosts); err != nil {
					return err
				}
				return m.printHosts(hosts)
			}),
		},
		m.hostTokenCommand(),
		m.hostRevokeCommand(),
	)
	return cmd
}

// printHosts prints principals; in a table with a line for each credential.
func (m *Main) printHosts(hosts []client.Host) error {
	if m.output != "table" {
		return printList(m, hosts, func(h client.Host) string { return h.Name })
	}
	type line struct {
		client.Host
		client.HostCredential
	}
	var lines []line
	for _, h := range hosts {
		if len(h.Credentials) == 0 {
			lines = append(lines, line{Host: h})
		}
		for _, c := range h.Credentials {
			lines = append(lines, line{h, c})
		}
	}
	return printList(m, lines, nil,
		column[line]{"NAME", func(l line) string { return l.Name }},
		column[line]{"ROLE", func(l line) string { return l.Role }},
		column[line]{"REVOKED", func(l line) string { return fmt.Sprint(l.Revoked) }},
		column[line]{"CREDENTIAL", func(l line) string { return l.ID }},
		column[line]{"KIND", func(l line) string { return l.Kind }},
		column[line]{"EXPIRES", func(l line) string { return clock(l.Expires) }},
	)
}

func (m *Main) hostRevokeCommand() *cobra.Command {
	var credential string
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Take every right of a principal, or one credential, at once and for good", Args: exactly("NAME"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, m.timeout)
			defer cancel()
			h, err := bus.Revoke(ctx, client.HostRevoke{Name: args[0], Credential: credential})
			if err != nil {
				return err
			}
			return m.printObject(h, h.Name, func(t *table) {
				t.field("name", h.Name)
				t.field("role", h.Role)
				t.field("revoked", fmt.Sprint(h.Revoked))
				for _, c := range h.Credentials {
					t.field("credential", c.ID)
				}
			})
		}),
	}
	cmd.Flags().StringVar(&credential, "credential", "", "the id of one credential (see host list); else all, and the principal with them")
	return cmd
}

func (m *Main) hostTokenCommand() *cobra.Command {
	var role, workspace, expires string
	cmd := &cobra.Command{
		Use: "token NAME", Short: "Enrol a host and print a token for it, the only time that it is seen", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			until, err := when(expires, time.Now(), later)
			if err != nil {
				return usage("--expires: %v", err)
			}
			return m.onBus(func(ctx context.Context, bus asker, args []string) error {
				return m.hostToken(ctx, bus, client.HostToken{Name: args[0], Role: role, Workspace: workspace, Expires: until})
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "host, operator or auditor (host)")
	cmd.Flags().StringVar(&workspace, "workspace", "", "the workspace that the token is for (that of the bus)")
	cmd.Flags().StringVar(&expires, "expires", "", "when the token ends: a time, or how long from now (never)")
	return cmd
}

// hostToken enrols a host. In a table the token is alone on stdout, so that a
// script can take it.
func (m *Main) hostToken(ctx context.Context, bus asker, p client.HostToken) error {
	var r client.HostTokenResult
	if err := bus.ask(ctx, "host/token", p, &r); err != nil {
		return err
	}
	if m.output != "table" {
		return m.printObject(r, r.Principal, nil)
	}
	m.note("token of %s, role %s, workspace %s; it is stored hashed and not shown again", r.Principal, r.Role, r.Workspace)
	return m.line(r.Token)
}

// Directions of a length of time given for a time.
const (
	earlier = -1
	later   = +1
)

// when reads a time: RFC 3339, a date, or a length of time before or after now.
// Nothing is the zero time.
func when(text string, now time.Time, direction time.Duration) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(direction * d).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a time like 2026-11-29T18:00:00Z, nor a date, nor a length of time like 8h", text)
}
