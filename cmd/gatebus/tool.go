package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/toolname"
)

const (
	// callPatience bounds a call without --timeout. Servers may be given an hour;
	// their own time-outs are the runtime's to keep.
	callPatience = 2 * time.Hour
	// approvalWait is how long a call waits for a person by itself (decision 9).
	approvalWait = 45 * time.Second
)

func (m *Main) toolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tool", Short: "Tools of the connected servers"}
	cmd.AddCommand(m.toolListCommand(), m.toolShowCommand(), m.toolCallCommand())
	return cmd
}

func (m *Main) toolListCommand() *cobra.Command {
	var filter client.ToolList
	cmd := &cobra.Command{
		Use: "list", Short: "List the tools", Args: exactly(),
		RunE: m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			var tools []client.ToolInfo
			if err := bus.ask(ctx, "tool/list", filter, &tools); err != nil {
				return err
			}
			return printList(m, tools, toolName,
				column[client.ToolInfo]{"NAME", toolName},
				column[client.ToolInfo]{"SERVER", func(t client.ToolInfo) string { return t.Server }},
				column[client.ToolInfo]{"PRINCIPAL", func(t client.ToolInfo) string { return t.Principal }},
				column[client.ToolInfo]{"BLOCKED", func(t client.ToolInfo) string { return fmt.Sprint(t.Blocked) }},
				column[client.ToolInfo]{"FLAGS", func(t client.ToolInfo) string { return strings.Join(t.Flags, " ") }},
				column[client.ToolInfo]{"DESCRIPTION", func(t client.ToolInfo) string { return t.Description }},
			)
		}),
	}
	cmd.Flags().StringVar(&filter.Principal, "as", "", "only those that this principal is connected to")
	cmd.Flags().StringVar(&filter.Server, "server", "", "only those of this server")
	return cmd
}

func (m *Main) toolShowCommand() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use: "show TOOL", Short: "Show a tool with its definition; one that is blocked by SERVER/RAWNAME", Args: exactly("TOOL"),
		RunE: m.onBus(func(ctx context.Context, bus asker, args []string) error {
			var tools []client.ToolInfo
			if err := bus.ask(ctx, "tool/list", client.ToolList{Principal: as}, &tools); err != nil {
				return err
			}
			t, err := findTool(tools, args[0])
			if err != nil {
				return err
			}
			return m.printObject(t, toolName(t), func(out *table) {
				out.field("name", t.Name)
				out.field("server", t.Server)
				out.field("tool", t.RawName)
				out.field("principal", t.Principal)
				out.field("blocked", fmt.Sprint(t.Blocked))
				out.field("flags", strings.Join(t.Flags, " "))
				out.field("digest", t.Digest)
				definition := jsontext.Value(t.Definition)
				if definition.Indent(jsontext.WithIndent("  "), jsontext.AllowInvalidUTF8(true)) == nil {
					out.block(string(definition))
				}
			})
		}),
	}
	cmd.Flags().StringVar(&as, "as", "", "as this principal is connected to it")
	return cmd
}

// toolName is what a tool is called: its visible name, or what its approvals call one
// that nobody sees.
func toolName(t client.ToolInfo) string { return cmp.Or(t.Name, target(t)) }

func target(t client.ToolInfo) string { return t.Server + "/" + t.RawName }

// findTool finds the tool of a name. Principals may see different tools by it.
func findTool(tools []client.ToolInfo, name string) (client.ToolInfo, error) {
	var found []client.ToolInfo
	for _, t := range tools {
		if t.Name != name && target(t) != name {
			continue
		}
		if found = append(found, t); found[0].Digest != t.Digest {
			return t, usage("%s is not the same for %s and %s: choose with --as", name, found[0].Principal, t.Principal)
		}
	}
	if found == nil {
		return client.ToolInfo{}, &problem{kind: fault.NotFound, text: "no connected server has a tool " + name}
	}
	return found[0], nil
}

func (m *Main) toolCallCommand() *cobra.Command {
	var c callTool
	var arguments string
	var noWait bool
	cmd := &cobra.Command{
		Use: "call TOOL", Short: "Call a tool by its visible name, SERVER__TOOL", Args: exactly("TOOL"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		c.tool = args[0]
		if c.arguments, err = m.readArguments(arguments); err != nil {
			return err
		}
		if noWait {
			if cmd.Flags().Changed("wait") {
				return usage("--wait and --no-wait exclude each other")
			}
			c.wait = 0
		}
		c.patience = callPatience
		if cmd.Flags().Changed("timeout") {
			c.patience = m.timeout
		}
		return m.onBus(func(ctx context.Context, bus asker, _ []string) error {
			return m.callTool(ctx, bus, c)
		})(cmd, args)
	}
	f := cmd.Flags()
	f.StringVar(&arguments, "args", "{}", "arguments as JSON, @FILE, or - for stdin")
	f.StringVar(&c.as, "as", "", "the principal to call for")
	f.DurationVar(&c.wait, "wait", approvalWait, "how long to wait for an approval")
	f.BoolVar(&noWait, "no-wait", false, "do not wait for an approval")
	return cmd
}

// readArguments reads what --args says.
func (m *Main) readArguments(text string) (json.RawMessage, error) {
	data, err := []byte(text), error(nil)
	if text == "-" {
		data, err = io.ReadAll(m.Stdin)
	} else if file, ok := strings.CutPrefix(text, "@"); ok {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, usage("--args: %v", err)
	}
	if !json.Valid(data) {
		return nil, usage("--args is not JSON")
	}
	return data, nil
}

// callTool is one call from the command line.
type callTool struct {
	tool, as  string
	arguments json.RawMessage
	wait      time.Duration // for an approval
	patience  time.Duration // for each answer of the bus
}

// callTool prepares a turn of the session "cli" and calls one tool in it.
func (m *Main) callTool(ctx context.Context, bus asker, c callTool) error {
	var session client.Session
	if err := bus.ask(ctx, "session/start", client.SessionStart{Label: "cli", Principal: c.as}, &session); err != nil {
		return err
	}
	var turn client.Turn
	err := bus.within(ctx, c.patience, "turn/prepare",
		client.TurnPrepare{Session: session.Session, Principal: c.as, IncludeImplicit: true}, &turn)
	if err != nil {
		return err
	}
	if err := c.missing(turn); err != nil {
		return m.pending(err)
	}
	params := client.ToolCall{Turn: turn.Turn, Name: c.tool, Arguments: c.arguments, Principal: c.as}
	var reply client.CallReply
	if err := bus.within(ctx, c.patience, "tool/call", params, &reply); err != nil {
		return err
	}
	if reply.Approval != nil && c.wait > 0 {
		// The person hears of it before the wait, and the same call attaches to the
		// approval that is open (decision 9).
		m.note("the call waits for an approval: gatebus approve %s", reply.Approval.ID)
		params.WaitMS = c.wait.Milliseconds()
		reply = client.CallReply{}
		if err := bus.within(ctx, c.patience+c.wait, "tool/call", params, &reply); err != nil {
			return err
		}
	}
	if err := m.printReply(reply); err != nil {
		return err
	}
	return m.pending(c.outcome(reply))
}

// waits is an error that names the approval it waits for.
type waits struct {
	problem
	approval string
}

// pending names the approval on stderr where an error is that one is waited for:
// that line is what a person needs, so --quiet keeps it.
func (m *Main) pending(err error) error {
	w, ok := err.(*waits)
	if !ok {
		return err
	}
	fmt.Fprintf(m.Stderr, "approval %s\ngatebus approve %s\n", printable(w.approval, ""), printable(w.approval, ""))
	return &w.problem
}

func (w *waits) Error() string { return w.text }

// missing says why the turn lacks the tool, if it does: its server may wait for
// an approval, be denied or have failed.
func (c callTool) missing(turn client.Turn) error {
	for _, t := range turn.Tools {
		if t.Name == c.tool {
			return nil
		}
	}
	prefix, _, _ := strings.Cut(c.tool, toolname.Separator)
	for _, d := range turn.Diagnostics {
		switch {
		case d.Server == "" || toolname.Prefix(d.Server) != prefix:
		case d.Approval != "":
			return &waits{problem{kind: fault.ApprovalPending, text: fmt.Sprintf("server %s: %s", d.Server, d.Message)}, d.Approval}
		default:
			return c.refusal(d.Code, fmt.Sprintf("server %s: %s", d.Server, d.Message), fault.Unavailable)
		}
	}
	if c.as == "" && len(turn.Tools) == 0 {
		return c.refusal(string(fault.CapabilityDenied), "the principal local may not call "+c.tool, fault.CapabilityDenied)
	}
	return c.refusal(string(fault.NotFound), "there is no tool "+c.tool+" for this principal", fault.NotFound)
}

// refusal is the problem of a kind that came as text, or else of another one.
func (c callTool) refusal(kind, text string, otherwise fault.Kind) *problem {
	p := &problem{kind: fault.Kind(kind), text: text}
	if _, known := fault.Lookup(p.kind); !known {
		p.kind = otherwise
	}
	if p.kind == fault.CapabilityDenied && c.as == "" {
		p.hint = "say whom the call is for with --as PRINCIPAL; local may call nothing"
	}
	return p
}

// printReply prints the outcome of a call: its text to a person, else the reply.
func (m *Main) printReply(r client.CallReply) error {
	if m.output != "table" {
		return m.printObject(r, r.Call, nil)
	}
	if r.Text == "" {
		return nil
	}
	_, err := fmt.Fprintln(m.Stdout, printable(strings.TrimSuffix(r.Text, "\n"), "\n\t"))
	return err
}

// statusKinds are the kinds of outcomes that came without an error.
var statusKinds = map[string]fault.Kind{
	"denied": fault.CapabilityDenied, "invalid": fault.InvalidArguments, "not_found": fault.NotFound, "failed": fault.ServerFailed,
	"timed_out": fault.TimedOut, "cancelled": fault.Cancelled, "indeterminate": fault.Indeterminate,
	"approval_pending": fault.ApprovalPending,
}

// outcome is the error of a call that did not succeed.
func (c callTool) outcome(r client.CallReply) error {
	var result struct {
		IsError bool `json:"isError"`
	}
	switch {
	case r.Error == nil && json.Unmarshal(r.Result, &result) == nil && result.IsError:
		return exitCode(exitToolError) // the text is what went wrong
	case r.Status == "succeeded":
		return nil
	}
	kind, known := statusKinds[r.Status]
	if !known {
		kind = fault.Internal
	}
	p := &problem{kind: kind, text: "the call of " + c.tool + " ended as " + r.Status}
	if r.Error != nil {
		p = c.refusal(r.Error.Kind, r.Error.Message, kind)
	}
	if r.Approval != nil {
		return &waits{*p, r.Approval.ID}
	}
	return p
}

// exitToolError is the exit code for a result that is an error.
const exitToolError = 9
