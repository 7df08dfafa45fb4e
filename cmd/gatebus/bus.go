package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

func (m *Main) busCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bus", Short: "The bus and its log"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "info", Short: "Show the running bus", Args: exactly(),
			RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				info, err := busInfo(ctx, bus)
				if err != nil {
					return err
				}
				return m.printObject(info, info.Runtime, func(t *table) { showBus(t, info) })
			}),
		},
		m.busConfigCommand(),
		m.busCredsCommand(),
		m.busRebuildCommand(),
		m.busBackupCommand(),
		m.busRestoreCommand(),
	)
	return cmd
}

// busConfigCommand prints what servers need to know of this home before it can
// use them, so that it asks no bus.
func (m *Main) busConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config", Short: "Print what every nats-server of an external bus includes in its configuration", Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			text, err := bus.ServerConfig(m.home)
			if err != nil {
				return err
			}
			if m.output == "table" || m.output == "name" {
				_, err := io.WriteString(m.Stdout, text)
				return err
			}
			return m.encode(m.output, map[string]string{"config": text})
		},
	}
}

func (m *Main) busCredsCommand() *cobra.Command {
	var p client.BusCreds
	var expires string
	cmd := &cobra.Command{
		Use: "creds NAME", Short: "Enrol a principal and print credentials for the bus, the only time that they are seen", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if p.Expires, err = when(expires, time.Now(), later); err != nil {
				return usage("--expires: %v", err)
			}
			return m.onBus(func(ctx context.Context, bus asker, args []string) error {
				p.Name = args[0]
				return m.busCreds(ctx, bus, p)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&p.Role, "role", "", "host, operator, auditor or worker (host)")
	cmd.Flags().StringVar(&p.Workspace, "workspace", "", "the workspace that the credentials are for (that of the bus)")
	cmd.Flags().StringVar(&expires, "expires", "", "when the credentials end: a time, or how long from now (never)")
	cmd.Flags().StringVar(&p.PublicKey, "public-key", "", "the public key (U…) of a NATS user whose seed you keep: a token for it is printed, in place of a creds file")
	return cmd
}

// busCreds enrols a principal. In a table the credentials are alone on stdout, so
// that they can go to a file.
func (m *Main) busCreds(ctx context.Context, bus asker, p client.BusCreds) error {
	var r client.BusCredsResult
	if err := bus.ask(ctx, "bus/creds", p, &r); err != nil {
		return err
	}
	if m.output != "table" {
		return m.printObject(r, r.Credential, nil)
	}
	m.note("credential %s of %s, role %s, workspace %s; it is stored nowhere and not shown again", r.Credential, r.Principal, r.Role, r.Workspace)
	_, err := fmt.Fprintln(m.Stdout, printable(strings.TrimSpace(r.Creds+r.JWT), "\n"))
	return err
}

func busInfo(ctx context.Context, bus asker) (info client.BusInfo, err error) {
	return info, bus.ask(ctx, "bus/info", nil, &info)
}

func showBus(t *table, b client.BusInfo) {
	t.field("version", b.Version)
	t.field("home", b.Home)
	t.field("workspace", b.Workspace)
	t.field("runtime", b.Runtime)
	t.field("epoch", count(b.Epoch))
	for _, r := range b.Runtimes {
		if r.Runtime != b.Runtime {
			t.field("peer", r.Runtime+" epoch "+count(r.Epoch))
		}
	}
	t.field("process", count(b.PID))
	t.field("started", clock(b.Started))
	t.field("nats", b.NATS)
	t.field("mcp", b.MCP)
	t.field("durability", b.Durability)
	t.field("commits", count(b.Commits))
	t.field("events", count(b.Events))
	t.field("bytes", count(b.Bytes))
	showCores(t, b.Cores)
}

func showCores(t *table, cores []client.Core) {
	for _, c := range cores {
		state := "revision " + c.Revision
		if c.Failed {
			state += ", the newest does not load"
		}
		t.field("core", c.ID+" "+state)
	}
}

// busRebuildCommand compares the projections, those in memory and the audit file,
// with a fold of the log made afresh. It replaces nothing: a start does where it
// must.
func (m *Main) busRebuildCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "rebuild", Short: "Fold every projection afresh from the log and compare it with the live one", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var r client.Rebuild
			if err := bus.ask(ctx, "bus/rebuild", nil, &r); err != nil {
				return err
			}
			names := slices.Sorted(maps.Keys(r.Projections))
			var err error
			if m.output == "table" {
				err = m.encode("jsonl", r) // one line for people and programs (interface)
			} else {
				err = m.printObject(r, strings.Join(names, " "), nil)
			}
			if err != nil || !check {
				return err
			}
			for _, name := range names {
				if !r.Projections[name].Equal {
					return &problem{kind: fault.AuditDamaged, text: "the projection " + name + " differs from its rebuilding"}
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&check, "check", false, "exit 10 when one differs")
	return cmd
}

// patience is how long a verb that reads or copies the whole log may take;
// --timeout says otherwise.
const patience = 10 * time.Minute

// patient is how long to wait for such a verb.
func patient(cmd *cobra.Command, bus asker) time.Duration {
	if cmd.Flags().Changed("timeout") {
		return bus.timeout
	}
	return patience
}

// busBackupCommand copies the running bus, or a stopped one.
func (m *Main) busBackupCommand() *cobra.Command {
	return &cobra.Command{
		Use: "backup DIR", Short: "Copy the log, jobs, blobs, checkpoints and keys into a new directory", Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return usage("%q is no directory", args[0])
			}
			var done client.Backup
			err = m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				return bus.within(ctx, patient(cmd, bus), "bus/backup", client.BackupTo{Dir: dir}, &done)
			})(cmd, args)
			if fault.Is(err, fault.BusUnavailable) && m.bus == "" {
				done, err = bus.BackupHome(cmd.Context(), m.home, dir)
			}
			if err != nil {
				return err
			}
			m.note("the backup holds the keys of the home: keep it as secret as the home itself")
			return m.printObject(done, done.Dir, func(t *table) { showBackup(t, done) })
		},
	}
}

// busRestoreCommand needs no bus: it works on the home.
func (m *Main) busRestoreCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "restore DIR", Short: "Put a backup into a home whose bus does not run", Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := bus.Restore(cmd.Context(), m.home, args[0], force)
			if err != nil {
				return err
			}
			return m.printObject(done, done.Dir, func(t *table) {
				showBackup(t, done.Backup)
				if done.Aside != "" {
					t.field("moved aside", done.Aside)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "move the log that is there aside")
	return cmd
}

func showBackup(t *table, b client.Backup) {
	t.field("backup", b.Dir)
	t.field("made", clock(b.Created))
	t.field("commits", count(b.Commits))
	t.field("events", count(b.Events))
	t.field("root", b.Root)
	t.field("files", fmt.Sprintf("%d, %d bytes", b.Files, b.Bytes))
}
