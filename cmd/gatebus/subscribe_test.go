package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/bus/client"
)

// An independent client of each era subscribes to a resource, through the whole program
// and a host that starts a command, hears of changes, also after its server was
// started again, and hears no more when it has unsubscribed.
func TestSubscriptionSDK(t *testing.T) {
	t.Parallel()
	home := stdioHome(t)
	shelf := filepath.Join(filepath.Dir(home), "shelf")
	if out, err := exec.Command("go", "build", "-o", shelf, "github.com/gatebus/gatebus/testdata/fakes/shelf").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	declaration := filepath.Join(filepath.Dir(home), "core", "agent", "mcp", "demo.yaml")
	if err := os.WriteFile(declaration, fmt.Appendf(nil, "command: %q\n", shelf), 0o600); err != nil {
		t.Fatal(err)
	}
	launch(t, "up", "-o", "json", "--home", home)
	c := operator(t, home)
	for i, version := range []string{"", "2025-11-25"} {
		name := fmt.Sprintf("ana%d", i)
		enrol(t, c, name)
		changed, updated := make(chan struct{}, 64), make(chan string, 64)
		connect := func() *mcp.ClientSession {
			t.Helper()
			peer := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ClientOptions{
				ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
				ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
			})
			cs, err := peer.Connect(t.Context(), &mcp.CommandTransport{Command: stdioCommand(t, home, "--as", name)}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			return cs
		}
		subscribes := func(cs *mcp.ClientSession) bool { return cs.InitializeResult().Capabilities.Resources.Subscribe }
		cs := connect()
		if !subscribes(cs) { // before its server is connected
			t.Error("no subscriptions are offered")
		}
		if _, err := cs.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		approveNext(t, c)
		<-changed
		const one = "file:///a/one"
		read := func(what string) error {
			_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "file:///a/" + what})
			return err
		}
		next := func() string {
			t.Helper()
			select {
			case uri := <-updated:
				return uri
			case <-time.After(30 * time.Second):
				t.Fatalf("%q is told of nothing more", version)
				return ""
			}
		}
		touch := func(want ...string) {
			t.Helper()
			if err := read("touch"); err != nil {
				t.Fatal(err)
			}
			for _, want := range want {
				if got := next(); got != want {
					t.Errorf("%q is told of %s, want %s", version, got, want)
				}
			}
		}
		recorded := func(event string) {
			t.Helper()
			for {
				var rows client.AuditRows
				if err := c.Do(t.Context(), "audit/list", client.AuditList{Name: event, Principal: name, Limit: 1}, &rows); err != nil {
					t.Fatal(err)
				}
				if len(rows.Rows) > 0 {
					return
				}
			}
		}
		if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: one}); err != nil {
			t.Fatal(err)
		}
		if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "file:///a/refused"}); (err == nil) != (version == "") {
			t.Errorf("%q subscribes to what is refused: %v", version, err)
		}
		// Without a handshake the client does not wait for its subscription.
		recorded("call_succeeded")
		touch(one, one+"/part")
		if err := read("leave"); err == nil {
			t.Error("the server answers before it leaves")
		}
		// A client lists again when it is told that its lists changed, which connects.
		for end := time.Now().Add(30 * time.Second); len(updated) == 0 && time.Now().Before(end); {
			if _, err := cs.ListTools(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := next(); got != one { // as it may have changed meanwhile
			t.Errorf("%q is told of %s", version, got)
		}
		touch(one, one+"/part")
		if err := cs.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: one}); err != nil {
			t.Error(err)
		}
		if err := cs.Close(); err != nil {
			t.Error(err)
		}
		if len(updated) != 0 {
			t.Errorf("%q is told of %s as well", version, <-updated)
		}
	}
	var rows client.AuditRows
	if err := c.Do(t.Context(), "audit/list", client.AuditList{Name: "call_requested", Principal: "ana1", Limit: 20}, &rows); err != nil {
		t.Fatal(err)
	}
	// Twice for the one, once for the other, three reads, and the end.
	if len(rows.Rows) != 7 {
		t.Errorf("%d requests are recorded: %+v", len(rows.Rows), rows)
	}
}
