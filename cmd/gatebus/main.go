// Command gatebus is the program of Gatebus: it runs the bus with its workers
// (up), and it is the command line that asks a running one. Each verb has a file
// of its own; this one holds what they share: the global flags, the way to the
// bus, and the one place that turns an error into a message and an exit code.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/stdio"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	m := Main{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Adopt: stdio.Adopt}
	os.Exit(m.Run(ctx))
}

// interrupted is the exit code after a signal.
const interrupted = 130

// Main is one run of the program with everything it touches, so that tests run
// it in their own process.
type Main struct {
	Args           []string // without the name of the program
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Adopt is [stdio.Adopt] where the whole process is a runtime; nil does nothing.
	Adopt func() (end func(), err error)

	// Global flags.
	output, home, bus, creds, config string
	homeGiven                        bool // by flag or environment, not by default
	timeout                          time.Duration
	noColor, quiet, verbose          bool
}

// Run runs the command line and returns the exit code. When ctx ends, the verb
// is interrupted.
func (m *Main) Run(ctx context.Context) int {
	root := m.root()
	root.SetArgs(append([]string{}, m.Args...)) // nil would mean those of the process
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	return m.exit(ctx, root.ExecuteContext(ctx))
}

// root is the tree of all verbs.
func (m *Main) root() *cobra.Command {
	root := &cobra.Command{
		Use:               "gatebus",
		Short:             "Connects and calls MCP servers for many agent hosts, with one log of every decision",
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return m.globals() },
		Args:              cobra.ArbitraryArgs,
		RunE:              group,
	}
	f := root.PersistentFlags()
	f.StringVarP(&m.output, "output", "o", "", "table, json, yaml, jsonl or name (GATEBUS_OUTPUT)")
	f.StringVar(&m.home, "home", "", "home directory (GATEBUS_HOME; ~/.gatebus)")
	f.StringVar(&m.bus, "bus", "", "URL of a bus in place of the one of the home (GATEBUS_BUS)")
	f.StringVar(&m.creds, "creds", "", "credentials file for --bus (GATEBUS_CREDS)")
	f.StringVarP(&m.config, "config", "c", "", "configuration file (gatebus.yaml in the home, if it is there)")
	f.DurationVar(&m.timeout, "timeout", 30*time.Second, "how long to wait for the bus")
	f.BoolVar(&m.noColor, "no-color", false, "no colours (NO_COLOR)")
	f.BoolVarP(&m.quiet, "quiet", "q", false, "no notes and hints on stderr")
	f.BoolVarP(&m.verbose, "verbose", "v", false, "say more on stderr")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%s: %v", cmd.CommandPath(), err)
	})
	root.AddCommand(
		m.upCommand(), m.workerCommand(), m.stdioCommand(), m.serverCommand(), m.hostCommand(), m.toolCommand(), m.grantCommand(),
		m.approvalsCommand(), m.approveCommand(), m.denyCommand(), m.policyCommand(),
		m.auditCommand(), m.busCommand(), m.secretCommand(), m.statusCommand(),
		m.errorsCommand(), m.versionCommand(), m.demoServerCommand(),
	)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if !cmd.Runnable() { // cobra would print help and exit 0 for a verb that is not there
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, group
		}
	}
	return root
}

// globals completes the global flags from the environment and checks them.
func (m *Main) globals() error {
	m.output = cmp.Or(m.output, m.Getenv("GATEBUS_OUTPUT"), "table")
	if !slices.Contains(formats, m.output) {
		return usage("output %q is none of %s", m.output, strings.Join(formats, ", "))
	}
	m.bus = cmp.Or(m.bus, m.Getenv("GATEBUS_BUS"))
	m.creds = cmp.Or(m.creds, m.Getenv("GATEBUS_CREDS"))
	m.home = cmp.Or(m.home, m.Getenv("GATEBUS_HOME"))
	if m.homeGiven = m.home != ""; !m.homeGiven {
		dir, err := os.UserHomeDir()
		if err != nil {
			return usage("no home directory is known: say --home or GATEBUS_HOME")
		}
		m.home = filepath.Join(dir, ".gatebus")
	}
	if m.timeout <= 0 {
		return usage("--timeout must be above 0")
	}
	return nil
}

// group is what runs for a verb that only has verbs below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unknown command %q for %q", args[0], cmd.CommandPath())
	}
	if !cmd.HasParent() {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

// exactly wants the arguments that are named, no more.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return usage("%s: unexpected argument %q", cmd.CommandPath(), args[len(names)])
		case len(args) < len(names):
			return usage("%s: %s is missing", cmd.CommandPath(), strings.Join(names[len(args):], " and "))
		}
		return nil
	}
}

// problem is an error of the command line itself: about what was typed, about a
// file of the user, or about an answer of the bus that is not a fault.
type problem struct {
	kind fault.Kind
	text string // may have several lines, one for each thing that is wrong
	hint string // in place of that of the kind
}

func (p *problem) Error() string { return p.text }

// usage says that the command line is wrong.
func usage(format string, args ...any) error {
	return &problem{kind: fault.Usage, text: fmt.Sprintf(format, args...)}
}

// exitCode ends the program with a code when everything has been said.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exit says what is wrong and returns the exit code.
func (m *Main) exit(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	if ctx.Err() != nil {
		return interrupted
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	p, op := m.explain(err)
	entry, _ := fault.Lookup(p.kind)
	for line := range strings.Lines(p.text) {
		fmt.Fprintf(m.Stderr, "%s %s\n", m.red(fmt.Sprintf("error GB%04d:", entry.Number)), printable(strings.TrimSuffix(line, "\n"), ""))
	}
	if m.verbose {
		fmt.Fprintf(m.Stderr, "kind: %s\n", entry.Kind)
		if op != "" {
			fmt.Fprintf(m.Stderr, "operation: %s\n", printable(op, ""))
		}
	}
	m.note("hint: %s", cmp.Or(p.hint, entry.Hint))
	return entry.Exit
}

// listVerbs say where to look for what a method did not find, or found to be other
// than it must be, by what its name begins with.
var listVerbs = map[string]string{
	"mcp":       "see gatebus server list",
	"host":      "see gatebus host list",
	"grant":     "see gatebus grant list",
	"approvals": "see gatebus approvals list",
	"audit":     "see gatebus audit list",
	"tool":      "see gatebus tool list",
	"secret":    "see gatebus secret list",
}

// explain makes a problem of any error, and says the operation that failed.
func (m *Main) explain(err error) (p *problem, op string) {
	if errors.As(err, &p) {
		return p, ""
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		p = &problem{kind: f.Kind, text: f.Text.String()}
		if noun, _, ok := strings.Cut(f.Op, "/"); ok && (f.Kind == fault.NotFound || f.Kind == fault.Conflict) {
			p.hint = listVerbs[noun]
		}
		return p, f.Op
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &problem{
			kind: fault.TimedOut, text: fmt.Sprintf("no answer within %v", m.timeout), hint: "wait longer with --timeout",
		}, ""
	}
	return &problem{kind: fault.Internal, text: err.Error()}, ""
}

// note tells something that is not data.
func (m *Main) note(format string, args ...any) {
	if !m.quiet {
		fmt.Fprintln(m.Stderr, printable(fmt.Sprintf(format, args...), ""))
	}
}

// red marks a text on a terminal that wants colours.
func (m *Main) red(s string) string {
	f, ok := m.Stderr.(*os.File)
	if !ok || m.noColor || m.Getenv("NO_COLOR") != "" || m.Getenv("TERM") == "dumb" {
		return s
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return s
	}
	return "\x1b[31m" + s + "\x1b[0m"
}

// asker is the part of a bus client that verbs use.
type asker struct {
	*client.Client
	timeout time.Duration
}

// ask asks for a method, for as long as --timeout allows.
func (a asker) ask(ctx context.Context, method string, params, result any) error {
	return a.within(ctx, a.timeout, method, params, result)
}

// within asks for a method that may take longer.
func (a asker) within(ctx context.Context, limit time.Duration, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.Do(ctx, method, params, result)
}

// onBus makes the function of a verb that asks the running bus.
func (m *Main) onBus(run func(ctx context.Context, bus asker, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		o := client.Options{Home: m.home, Creds: m.creds, Name: "gatebus " + cmd.Name(), NoReconnect: true}
		config, err := m.loadConfig()
		if err != nil {
			return err
		}
		if url := cmp.Or(m.bus, string(config.Bus)); url != "" {
			if m.creds == "" {
				return usage("a bus that is not the one of the home needs --creds FILE")
			}
			o.Home, o.URL = "", url
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
		defer cancel()
		c, err := client.Dial(ctx, o)
		if err != nil {
			return err
		}
		defer c.Close()
		return typed(cmd, run(cmd.Context(), asker{c, m.timeout}, args))
	}
}

// flagNames are those that a parameter of the bus has another name than.
var flagNames = map[string]string{"at_seq": "at", "at_time": "at", "principal": "as"}

// typed names what is wrong as it was typed: an answer of the bus about a parameter
// becomes one about the flag or the argument that it came from.
func typed(cmd *cobra.Command, err error) error {
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok {
		return err
	}
	parameter, what, ok := strings.Cut(f.Text.String(), ": ")
	if !ok || strings.Contains(parameter, " ") {
		return err
	}
	kind := f.Kind
	if kind == fault.InvalidInput {
		kind = fault.Usage
	}
	argument := strings.ToUpper(parameter)
	for _, flag := range []string{strings.ReplaceAll(parameter, "_", "-"), flagNames[parameter]} {
		if cmd.Flags().Changed(flag) {
			return &problem{kind: kind, text: "--" + flag + ": " + what}
		}
	}
	if slices.Contains(strings.Fields(cmd.Use), argument) {
		return &problem{kind: kind, text: argument + ": " + what}
	}
	return err
}
