package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/bus/client"
)

// StoryOptions are what a story is told with.
type StoryOptions struct {
	// MCP is the endpoint, where requests without a token are the demo principal's.
	MCP string
	// Ask asks the bus as an operator.
	Ask func(ctx context.Context, method string, params, result any) error
	// Out takes the story.
	Out io.Writer
}

// storyTime bounds the whole story.
const storyTime = 60 * time.Second

// Story runs the main job once, from outside: an MCP client lists and calls, an
// operator approves, and every step prints the events that it left in the log.
// It returns an error where something came out otherwise than it should.
func Story(ctx context.Context, o StoryOptions) error {
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	t := &teller{StoryOptions: o}
	var info client.BusInfo
	if err := o.Ask(ctx, "bus/info", nil, &info); err != nil {
		return err
	}
	t.after = info.Commits

	changed := make(chan struct{}, 1)
	mcpClient := mcp.NewClient(&mcp.Implementation{Name: "story", Version: "1"}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	session, err := mcpClient.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: o.MCP}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		return fmt.Errorf("the MCP client could not attach: %w", err)
	}
	defer session.Close()

	t.say("An MCP client attaches and lists. Nobody has approved the server yet, so it sees nothing.")
	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	if len(tools.Tools) != 0 {
		return errors.New("the list was to be empty before the approval")
	}
	if err := t.events(ctx); err != nil {
		return err
	}

	t.say("The server at the metadata address was denied before anybody was asked. An operator approves the other one.")
	if err := t.approve(ctx, "mcp.connect"); err != nil {
		return err
	}
	for len(tools.Tools) == 0 {
		select {
		case <-changed: // list_changed follows the yes
		case <-ctx.Done():
			return errors.New("no list_changed followed the approval")
		}
		if tools, err = session.ListTools(ctx, nil); err != nil {
			return err
		}
	}
	if err := t.events(ctx); err != nil {
		return err
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	t.note("the client now sees: %s", strings.Join(names, ", "))

	t.say("It calls a harmless tool.")
	if err := t.call(ctx, session, "demo__echo", map[string]any{"text": "hello"}, "hello"); err != nil {
		return err
	}

	t.say("It calls a destructive tool: the call is held until the operator approves this very call.")
	done := make(chan error, 1)
	go func() { done <- t.call(ctx, session, "demo__delete_everything", map[string]any{}, "not really") }()
	if err := t.approve(ctx, "mcp.call"); err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}

	t.say("It calls a tool that gives away the server's secret: the secret comes back redacted.")
	if err := t.call(ctx, session, "demo__leak_token", map[string]any{}, "<redacted>"); err != nil {
		return err
	}

	t.say("A principal without the capability is denied, whatever it knows.")
	var guest client.Session
	if err := o.Ask(ctx, "session/start", client.SessionStart{Label: "story", Principal: "guest"}, &guest); err != nil {
		return err
	}
	var turn client.Turn
	if err := o.Ask(ctx, "turn/prepare", client.TurnPrepare{Session: guest.Session, Principal: "guest", IncludeImplicit: true}, &turn); err != nil {
		return err
	}
	if len(turn.Tools) != 0 {
		return errors.New("a guest was to see nothing")
	}
	if err := t.events(ctx); err != nil {
		return err
	}

	t.say("The log is read again and compared with its hash chain, its Merkle tree and every signed checkpoint.")
	var verified client.Verification
	if err := o.Ask(ctx, "audit/verify", nil, &verified); err != nil {
		return err
	}
	if !verified.Verified {
		return errors.New("the log does not verify")
	}
	t.note("%d commits verified, root %.16s", verified.Commits, verified.Root)

	t.say("The log is folded afresh and compared with what is live.")
	var rebuilt client.Rebuild
	if err := o.Ask(ctx, "bus/rebuild", nil, &rebuilt); err != nil {
		return err
	}
	for name, p := range rebuilt.Projections {
		if !p.Equal {
			return fmt.Errorf("projection %s differs from the log", name)
		}
	}
	t.note("%d commits with %d events, %d projections equal", rebuilt.Commits, rebuilt.Events, len(rebuilt.Projections))
	return t.err
}

// teller prints the story; the first failure to print is kept.
type teller struct {
	StoryOptions
	step  int
	after uint64
	err   error
}

func (t *teller) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.Out, format, args...); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *teller) say(text string) {
	t.step++
	t.printf("%d. %s\n", t.step, text)
}

func (t *teller) note(format string, args ...any) { t.printf("   "+format+"\n", args...) }

// events prints what happened since the last time.
func (t *teller) events(ctx context.Context) error {
	var page client.AuditRows
	if err := t.Ask(ctx, "audit/list", client.AuditList{After: t.after}, &page); err != nil {
		return err
	}
	for _, r := range page.Rows {
		t.note("#%d.%d %-20s %s", r.Seq, r.I, r.Name, detail(r))
	}
	t.after = page.Next
	return nil
}

// detail picks what tells an event from its neighbours.
func detail(r client.AuditRow) string {
	var data map[string]any
	if json.Unmarshal(r.Data, &data) != nil {
		return ""
	}
	parts := []string{r.Principal}
	if r.Server != "" {
		parts = append(parts, r.Server)
	}
	for _, key := range []string{"tool", "capability", "stage", "reason", "decision", "policy", "origin", "status", "result"} {
		if v, ok := data[key].(string); ok && v != "" {
			parts = append(parts, key+"="+v)
		}
	}
	return strings.Join(parts, " ")
}

// approve waits for an open approval of the action and answers yes.
func (t *teller) approve(ctx context.Context, action string) error {
	after := uint64(0)
	for {
		var page client.Approvals
		if err := t.Ask(ctx, "approvals/list", client.ApprovalsList{After: after, WaitMS: 5000}, &page); err != nil {
			return err
		}
		for _, a := range page.Approvals {
			if a.Action == action {
				return t.Ask(ctx, "approvals/decide", client.ApprovalsDecide{ID: a.ID, Decision: "allow"}, nil)
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nobody asked for approval of %s", action)
		}
		after = page.After
	}
}

// call calls a tool and checks that the answer holds want.
func (t *teller) call(ctx context.Context, session *mcp.ClientSession, name string, args map[string]any, want string) error {
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var text strings.Builder
	for _, c := range result.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	if result.IsError || !strings.Contains(text.String(), want) || strings.Contains(text.String(), Token) {
		return fmt.Errorf("%s answered otherwise than it should", name)
	}
	if err := t.events(ctx); err != nil {
		return err
	}
	t.note("the client gets: %s", text.String())
	return nil
}
