package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
)

func (m *Main) policyExplainCommand() *cobra.Command {
	var q client.PolicyExplain
	cmd := &cobra.Command{
		Use: "explain --as PRINCIPAL --tool TOOL", Short: "Say which grants, rules and approvals decide a call", Args: exactly(),
		Long: "Says what would become of a call of a tool by a principal now, step by step, with the sequences of the commits\n" +
			"that each step rests on. TOOL is a visible name, SERVER__TOOL, or SERVER/RAWNAME. Nothing is asked and nothing is\n" +
			"called.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, f := range []struct{ flag, value string }{{"--as", q.Principal}, {"--tool", q.Tool}} {
			if f.value == "" {
				return usage("%s is missing", f.flag)
			}
		}
		return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var e client.PolicyExplanation
			if err := bus.ask(ctx, "policy/explain", q, &e); err != nil {
				return err
			}
			return m.printObject(e, e.Decision, func(t *table) { showExplanation(t, e) })
		})(cmd, args)
	}
	cmd.Flags().StringVar(&q.Principal, "as", "", "the principal that would call")
	cmd.Flags().StringVar(&q.Tool, "tool", "", "the tool that would be called")
	return cmd
}

func showExplanation(t *table, e client.PolicyExplanation) {
	t.field("decision", strings.ReplaceAll(e.Decision, "_", " "))
	t.field("reason", e.Reason)
	t.field("principal", e.Principal)
	t.field("tool", e.Server+"/"+e.RawName)
	t.field("name", e.Name)
	t.field("risk", e.Risk)
	t.field("authority sequence", count(e.AuthoritySequence))
	t.field("policy sequence", count(e.PolicySequence))
	t.row()
	t.row("STEP", "RESULT", "REASON", "BY", "WHAT", "SEQUENCE", "UNTIL")
	for _, s := range e.Steps {
		what := s.Policy
		if s.Needs != "" {
			what = "needs " + s.Needs
		}
		t.row(s.Step, strings.ReplaceAll(s.Result, "_", " "), s.Reason, "", what, "", "")
		for _, by := range s.By {
			sequence := ""
			if by.Sequence > 0 {
				sequence = fmt.Sprint(by.Sequence)
			}
			t.row("", "", "", by.Kind, by.Text, sequence, clock(by.Until))
		}
	}
}
