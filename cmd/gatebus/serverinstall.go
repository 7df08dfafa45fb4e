package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// maxServers bounds what is read of mcpServers JSON, and of a file of secrets.
const maxServers = 1 << 20

// addServer is what server add was told.
type addServer struct {
	from                string
	env, headers        []string
	envFile, headerFile string
	scope, cwd          string
	startup, tool       time.Duration
	required, parallel  bool
	implicit, disabled  bool
}

func (m *Main) serverAddCommand() *cobra.Command {
	var a addServer
	cmd := &cobra.Command{
		Use:   "add NAME (URL | -- COMMAND ARGS...) | add --from FILE|-",
		Short: "Install a server, or those of mcpServers JSON, or install them again",
		Long: "Installs a server that is reached at a URL or by starting a command, or all servers of mcpServers JSON as other\n" +
			"hosts have it. Values of variables and headers are kept in the keystore. They are never arguments: each --env KEY\n" +
			"and --header NAME is asked for at a terminal, or is the whole of stdin where there is one of them only, or stands\n" +
			"in a file, as KEY=VALUE or NAME: VALUE, one a line. A server that is installed already keeps its policy.",
		RunE: func(cmd *cobra.Command, args []string) error {
			params, err := m.installParams(cmd, &a, args)
			if err != nil {
				return err
			}
			return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
				return m.install(ctx, bus, params)
			})(cmd, nil)
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.from, "from", "", "a file of mcpServers JSON; - is stdin")
	f.StringArrayVar(&a.env, "env", nil, "the name of a variable of the command (repeatable)")
	f.StringVar(&a.envFile, "env-file", "", "a file of variables, one KEY=VALUE a line; - is stdin")
	f.StringArrayVar(&a.headers, "header", nil, "the name of a header of each request to the URL (repeatable)")
	f.StringVar(&a.headerFile, "header-file", "", "a file of headers, one NAME: VALUE a line; - is stdin")
	f.StringVar(&a.scope, "scope", "", "workspace or user (workspace)")
	f.StringVar(&a.cwd, "cwd", "", "the directory of the command, in the workspace")
	f.DurationVar(&a.startup, "startup-timeout", 0, "how long a start may take, in whole seconds (3m)")
	f.DurationVar(&a.tool, "tool-timeout", 0, "how long a call may take, in whole seconds (2m)")
	f.BoolVar(&a.required, "required", false, "no turn begins without the server")
	f.BoolVar(&a.parallel, "parallel", false, "several calls at once")
	f.BoolVar(&a.implicit, "implicit", false, "turns have its tools without selecting it")
	f.BoolVar(&a.disabled, "disabled", false, "do not start it")
	return cmd
}

// ofOneServer are the flags that say something of one server.
var ofOneServer = []string{"env", "env-file", "header", "header-file", "cwd", "startup-timeout", "tool-timeout", "required", "parallel"}

// installParams makes the params of mcp/install of a command line.
func (m *Main) installParams(cmd *cobra.Command, a *addServer, args []string) (p client.Install, err error) {
	p.ScopeKind = a.scope
	if a.implicit {
		p.Implicit = &a.implicit
	}
	if a.disabled {
		p.Enabled = new(bool)
	}
	if a.from != "" {
		if len(args) > 0 {
			return p, usage("%s: NAME and --from exclude each other", cmd.CommandPath())
		}
		for _, name := range ofOneServer {
			if cmd.Flags().Changed(name) {
				return p, usage("--%s and --from exclude each other", name)
			}
		}
		text, err := m.readText("--from", a.from)
		if err != nil {
			return p, err
		}
		p.Config, err = json.Marshal(text) // the runtime reads it, comments and all
		return p, err
	}
	server, err := a.server(cmd, args)
	if err != nil {
		return p, err
	}
	secrets := func(field, flag, separator, file string, names []string) error {
		values, err := m.secretValues(cmd.Context(), flag, separator, file, names)
		if err == nil && len(values) > 0 {
			server[field] = values
		}
		return err
	}
	if err := secrets("env", "env", "=", a.envFile, a.env); err != nil {
		return p, err
	}
	if err := secrets("headers", "header", ":", a.headerFile, a.headers); err != nil {
		return p, err
	}
	p.Config, err = json.Marshal(map[string]any{"mcpServers": map[string]any{args[0]: server}})
	return p, err
}

// server is the entry of mcpServers of a command line, but for its secrets.
func (a *addServer) server(cmd *cobra.Command, args []string) (map[string]any, error) {
	server := map[string]any{}
	dash := cmd.ArgsLenAtDash()
	switch {
	case len(args) == 0 || dash == 0:
		return nil, usage("%s: NAME is missing", cmd.CommandPath())
	case dash < 0 && len(args) == 1 || dash == 1 && len(args) == 1:
		return nil, usage("%s: a URL, or -- and a command, is missing", cmd.CommandPath())
	case dash < 0 && len(args) > 2:
		return nil, usage("%s: unexpected argument; a command and its arguments come after --", cmd.CommandPath())
	case dash > 1:
		return nil, usage("%s: a URL and a command exclude each other", cmd.CommandPath())
	case dash < 0:
		server["url"] = args[1]
	default:
		server["command"] = args[1]
		if len(args) > 2 {
			server["args"] = args[2:]
		}
	}
	if a.cwd != "" {
		server["cwd"] = a.cwd
	}
	for name, d := range map[string]time.Duration{"startup_timeout_sec": a.startup, "tool_timeout_sec": a.tool} {
		switch {
		case d < 0 || d%time.Second != 0:
			return nil, usage("--%s-timeout must be a whole number of seconds", strings.TrimSuffix(name, "_timeout_sec"))
		case d > 0:
			server[name] = int64(d / time.Second)
		}
	}
	if a.required {
		server["required"] = true
	}
	if a.parallel {
		server["supports_parallel_tool_calls"] = true
	}
	return server, nil
}

// secretValues are the values of names: those of the file, and those that are asked for.
func (m *Main) secretValues(ctx context.Context, flag, separator, file string, names []string) (map[string]string, error) {
	values := map[string]string{}
	if file != "" {
		text, err := m.readText("--"+flag+"-file", file)
		if err != nil {
			return nil, err
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), separator)
			if !ok {
				return nil, usage("--%s-file: line %d has no %q", flag, n, separator)
			}
			values[strings.TrimSpace(name)] = unquoted(strings.TrimSpace(value))
		}
	}
	var ask []string
	for _, name := range names {
		if strings.ContainsAny(name, "=:") {
			// What follows would be in the list of processes for everybody.
			return nil, usage("--%s takes a name and never a value: the value comes from stdin, a prompt or --%s-file", flag, flag)
		}
		if _, ok := values[name]; !ok {
			ask = append(ask, name)
		}
	}
	if len(ask) > 1 && !m.interactive() {
		return nil, usage("--%s is there %d times: stdin has the value of one, use --%s-file", flag, len(ask), flag)
	}
	for _, name := range ask {
		value, err := m.readSecret(ctx, name, "")
		if err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, nil
}

// interactive reports whether a person is at stdin.
func (m *Main) interactive() bool {
	f, ok := m.Stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// unquoted is a value without the quotes around it.
func unquoted(value string) string {
	if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
		return value[1 : len(value)-1]
	}
	return value
}

// readText reads a file that a flag names; - is stdin.
func (m *Main) readText(flag, file string) (string, error) {
	in := m.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usage("%s: %v", flag, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxServers+1))
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	switch {
	case err != nil:
		return "", usage("%s: %v", flag, err)
	case len(data) > maxServers:
		return "", usage("%s: is larger than 1 MiB", flag)
	case !utf8.Valid(data):
		return "", usage("%s: is not UTF-8", flag)
	}
	return string(data), nil
}

// install installs and says what became of each server: exit code 1 if some are not
// installed, 2 if none is.
func (m *Main) install(ctx context.Context, bus asker, p client.Install) error {
	var r client.Installed
	if err := bus.ask(ctx, "mcp/install", p, &r); err != nil {
		return err
	}
	if m.output == "name" {
		for _, i := range r.Items {
			if i.Fingerprint != "" {
				if err := m.line(i.Name); err != nil {
					return err
				}
			}
		}
	} else if err := m.printObject(r, "", func(t *table) {
		t.row("NAME", "STATUS", "FINGERPRINT")
		for _, i := range r.Items {
			t.row(i.Name, i.Status, i.Fingerprint)
		}
	}); err != nil {
		return err
	}
	m.diagnostics(r.Diagnostics)
	for _, i := range r.Items {
		m.diagnostics(i.Diagnostics)
	}
	switch r.Status {
	case "ok":
		return nil
	case "partial":
		return exitCode(1)
	}
	return exitCode(2)
}

func (m *Main) diagnostics(list []client.ConfigDiagnostic) {
	for _, d := range list {
		if d.Severity != "error" {
			m.note("warning: %s: %s", d.Path, d.Message)
			continue
		}
		entry, _ := fault.Lookup(fault.Kind(d.Code))
		fmt.Fprintf(m.Stderr, "%s %s\n", m.red(fmt.Sprintf("error GB%04d:", entry.Number)), printable(d.Path+": "+d.Message, ""))
	}
}

// serverPolicyCommand is enable or disable.
func (m *Main) serverPolicyCommand(use, short string, enabled bool) *cobra.Command {
	p := client.PolicySet{Enabled: &enabled}
	implicit := false
	cmd := &cobra.Command{Use: use + " NAME", Short: short, Args: exactly("NAME")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p.Name = args[0]
		if cmd.Flags().Changed("implicit") {
			p.Implicit = &implicit
		}
		return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var r client.PolicyState
			if err := bus.ask(ctx, "mcp/policy/set", p, &r); err != nil {
				return err
			}
			return m.printObject(r, r.Name, func(t *table) {
				t.field("name", r.Name)
				t.field("enabled", fmt.Sprint(r.Enabled))
				t.field("implicit", fmt.Sprint(r.Implicit))
			})
		})(cmd, args)
	}
	cmd.Flags().StringVar(&p.ScopeKind, "scope", "", "workspace or user (workspace)")
	cmd.Flags().BoolVar(&implicit, "implicit", false, "turns have its tools without selecting it; left out, that stays as it is")
	return cmd
}

// serverOfCommand asks a method for an installed server.
func (m *Main) serverOfCommand(use, short, method string) *cobra.Command {
	var p client.ServerOf
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short, Args: exactly("NAME"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			p.Name = args[0]
			var r client.ServerOf
			if err := bus.ask(ctx, method, p, &r); err != nil {
				return err
			}
			return m.printObject(r, r.Name, func(t *table) { t.field("name", r.Name) })
		}),
	}
	cmd.Flags().StringVar(&p.ScopeKind, "scope", "", "workspace or user (workspace)")
	return cmd
}
