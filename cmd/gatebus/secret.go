package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

func (m *Main) secretCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Secrets of installed servers, in the keystore of the home"}
	cmd.AddCommand(
		m.secretSetCommand(),
		&cobra.Command{
			Use: "list", Short: "List the secrets, without their values", Args: exactly(),
			RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				var list []client.Secret
				if err := bus.ask(ctx, "secret/list", nil, &list); err != nil {
					return err
				}
				return printList(m, list, secretName,
					column[client.Secret]{"NAME", secretName},
					column[client.Secret]{"STATE", func(s client.Secret) string { return s.State }},
					column[client.Secret]{"SCOPE", func(s client.Secret) string { return s.Scope }},
					column[client.Secret]{"VERSION", func(s client.Secret) string { return s.Version }},
				)
			}),
		},
		&cobra.Command{
			Use: "rm NAME", Short: "Delete a secret: the server that needs it does not start until it is set again", Args: exactly("NAME"),
			RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
				return m.changeSecret(ctx, bus, "secret/delete", client.SecretName{Name: args[0]})
			}),
		},
		m.secretCollectCommand(),
		&cobra.Command{
			Use: "doctor", Short: "Say where the key of the keystore is, and what is wrong with it", Args: exactly(),
			RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				var d client.SecretDoctor
				if err := bus.ask(ctx, "secret/doctor", nil, &d); err != nil {
					return err
				}
				if err := m.printObject(d, d.Provider, func(t *table) { showKeystore(t, d) }); err != nil {
					return err
				}
				if !d.Available {
					return exitCode(8) // it is said above
				}
				return nil
			}),
		},
	)
	return cmd
}

func (m *Main) secretSetCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Give a secret of an installed server another value", Args: exactly("NAME"),
		Long: "Gives a secret of an installed server another value, from stdin, from a file, or from a prompt on a terminal; its\n" +
			"last line end is left out. The server is started again with it. NAME is SERVER/env/KEY or SERVER/header/NAME, or\n" +
			"what secret list prints.",
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := m.readSecret(cmd.Context(), "value of "+args[0], file)
			if err != nil {
				return err
			}
			return m.onBus(func(ctx context.Context, bus asker, args []string) error {
				return m.changeSecret(ctx, bus, "secret/set", client.SecretSet{Name: args[0], Value: value})
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&file, "from-file", "", "the file that has the value; - is stdin")
	return cmd
}

func (m *Main) changeSecret(ctx context.Context, bus asker, method string, params any) error {
	var r client.SecretChanged
	if err := bus.ask(ctx, method, params, &r); err != nil {
		return err
	}
	return m.printObject(r, r.Ref, func(t *table) {
		t.field("secret", r.Ref)
		t.field("changed", fmt.Sprint(r.Changed))
	})
}

func (m *Main) secretCollectCommand() *cobra.Command {
	var p client.SecretCollect
	cmd := &cobra.Command{
		Use: "garbage-collection", Short: "Delete what the keystore has and no installed server refers to", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var r client.SecretsCollected
			if err := bus.ask(ctx, "secret/collect", p, &r); err != nil {
				return err
			}
			err := m.printObject(r, fmt.Sprint(r.DeletedRefs), func(t *table) {
				t.field("stored", count(r.StoredRefs))
				t.field("in use", count(r.ActiveRefs))
				t.field("orphans", count(r.OrphanRefs))
				t.field("deleted", count(r.DeletedRefs))
				t.field("not deleted", strings.Join(r.FailedDeletes, " "))
			})
			if err == nil && len(r.FailedDeletes) > 0 {
				return exitCode(1) // it is said above
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&p.DryRun, "dry-run", false, "count, and delete nothing")
	return cmd
}

// secretName is what a secret is called by: the short form where set and rm take
// it.
func secretName(s client.Secret) string {
	if s.Server != "" && strings.HasPrefix(s.Scope, "workspace") {
		return s.Server + "/" + s.Place + "/" + s.Key
	}
	return s.Ref
}

func showKeystore(t *table, d client.SecretDoctor) {
	t.field("key", d.Provider)
	t.field("because", d.Reason)
	if !d.Made {
		t.field("keystore", "none yet; the first secret makes it")
	}
	t.field("problem", d.Problem)
	t.field("secrets", fmt.Sprintf("%d stored, %d missing, %d that nothing refers to", d.Stored, d.Missing, d.Orphans))
	for _, w := range d.Warnings {
		t.field("warning", w.Message)
	}
}
