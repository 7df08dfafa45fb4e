package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
)

// running is a bus for the examples, with answers that are made up, and a client
// of it. In earnest it is: client.Dial(ctx, client.Options{URL: url, Creds: file}).
func running() (c *client.Client, end func()) {
	home, err := os.MkdirTemp("", "gatebus-example-")
	if err != nil {
		log.Fatal(err)
	}
	b, err := bus.Open(context.Background(), bus.Options{Home: home})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(b.Load(context.Background()), b.Announce(context.Background(), "r-1", nil)); err != nil {
		log.Fatal(err)
	}
	approval := client.Approval{ID: "a-1", State: "pending", Action: "mcp.call", Target: "files/delete"}
	for method, answer := range map[string]func(r *bus.Request) any{
		"session/start": func(*bus.Request) any { return client.Session{Session: "s-1"} },
		"turn/prepare": func(*bus.Request) any {
			return client.Turn{Turn: "t-1", Tools: []client.Tool{{Name: "files__read"}, {Name: "files__delete"}}}
		},
		"tool/call": func(*bus.Request) any {
			return client.CallReply{Status: "succeeded", Result: json.RawMessage(`{"content":[{"type":"text","text":"hello"}]}`)}
		},
		"approvals/list": func(*bus.Request) any { return client.Approvals{Approvals: []client.Approval{approval}} },
		"approvals/decide": func(r *bus.Request) any {
			var p client.ApprovalsDecide
			_ = r.Decode(&p)
			approval.State, approval.Note = map[string]string{"allow": "allowed", "deny": "denied"}[p.Decision], p.Note
			return approval
		},
		"notifications/list": func(*bus.Request) any {
			return client.Notifications{Next: 8, Notifications: []client.Notification{
				{Seq: 7, Method: "approvals/requested", Params: json.RawMessage(`{"approval":"a-1","target":"files/delete"}`)},
			}}
		},
	} {
		if err := b.Serve(method, func(_ context.Context, r *bus.Request) (any, error) { return answer(r), nil }); err != nil {
			log.Fatal(err)
		}
	}
	creds, err := b.LocalCredentials()
	if err != nil {
		log.Fatal(err)
	}
	if c, err = client.Dial(context.Background(), client.Options{InProcess: b, CredsText: creds}); err != nil {
		log.Fatal(err)
	}
	return c, func() {
		c.Close()
		_ = b.Close(context.Background())
		bustest.Sweep(home)
	}
}

func ExampleClient_SessionStart() {
	c, end := running()
	defer end()
	session, err := c.SessionStart(context.Background(), "editor")
	fmt.Println(session, err)
	// Output: s-1 <nil>
}

func ExampleClient_PrepareTurn() {
	c, end := running()
	defer end()
	turn, err := c.PrepareTurn(context.Background(), client.TurnPrepare{Session: "s-1", IncludeImplicit: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, tool := range turn.Tools {
		fmt.Println(tool.Name)
	}
	// Output:
	// files__read
	// files__delete
}

func ExampleClient_CallTool() {
	c, end := running()
	defer end()
	// A person has a minute to agree, where one must.
	reply, err := c.CallTool(context.Background(), "t-1", "files__read", json.RawMessage(`{"path":"a.txt"}`), time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status, string(reply.Result))
	// Output: succeeded {"content":[{"type":"text","text":"hello"}]}
}

func ExampleClient_Approvals() {
	c, end := running()
	defer end()
	pending, err := c.Approvals(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range pending {
		fmt.Println(a.ID, a.Action, a.Target)
	}
	// Output: a-1 mcp.call files/delete
}

func ExampleClient_Approve() {
	c, end := running()
	defer end()
	a, err := c.Approve(context.Background(), "a-1")
	fmt.Println(a.State, err)
	// Output: allowed <nil>
}

func ExampleClient_Deny() {
	c, end := running()
	defer end()
	a, err := c.Deny(context.Background(), "a-1", "not on a Friday")
	fmt.Println(a.State, a.Note, err)
	// Output: denied not on a Friday <nil>
}

func ExampleClient_Watch() {
	c, end := running()
	defer end()
	// A program that keeps the Seq of what it has dealt with goes on there.
	for n, err := range c.Watch(context.Background(), 6, "approvals") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n.Seq, n.Method, string(n.Params))
		break
	}
	// Output: 7 approvals/requested {"approval":"a-1","target":"files/delete"}
}
