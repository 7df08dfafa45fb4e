package notifier_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/runtime"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
	"github.com/gatebus/gatebus/workers/notifier"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// eventful is a runtime in which all that is told of has happened: ana and bob
// are hosts with sessions to docs, whose tools changed; bob was approved by a
// person and lost his grants.
func eventful(t *testing.T) *rig.Rig {
	r := rig.New(t, rig.Options{})
	for name, role := range map[string]string{"ana": host.RoleHost, "bob": host.RoleHost, "eve": host.RoleHost, "audy": host.RoleAuditor} {
		r.Ask("host/token", client.HostToken{Name: name, Role: role}, nil)
	}
	r.Declare("docs", rig.Command(fakes.Build(t, "misbehave"), "drift"), "approval_policy: auto")
	r.Load()
	r.GrantAll("ana")
	r.GrantAll("bob")
	turn := r.Connected("ana")
	r.Connected("bob")
	if reply := r.Call("ana", turn.Turn, "docs__change", `{}`); reply.Status != "succeeded" {
		t.Fatalf("%+v", reply)
	}
	r.Decide(r.AwaitPending(1)[0].ID, true)
	r.Ask("grant/revoke", client.Grant{Principal: "bob", Capability: "mcp.connect:*"}, nil)
	r.CatchUp()
	return r
}

// page is what a principal is answered.
func page(t interface{ Fatal(...any) }, r *rig.Rig, principal string, p client.NotificationsList) client.Notifications {
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.Answer(principal, "notifications/list", body)
	if err != nil {
		t.Fatal(err)
	}
	return out.(client.Notifications)
}

func ptr(n uint64) *uint64 { return &n }

// Any way to cut the log into pages gives the same notifications, each once.
func TestPagesAreTogetherTheWhole(t *testing.T) {
	t.Parallel()
	r := eventful(t)
	for _, who := range []string{"local", "ana"} {
		whole := page(t, r, who, client.NotificationsList{After: ptr(0)})
		if whole.Next != r.Bus.Head() || len(whole.Notifications) == 0 {
			t.Fatalf("%s: %+v", who, whole)
		}
		rapid.Check(t, func(t *rapid.T) {
			var got []client.Notification
			for after := uint64(0); after < whole.Next; {
				p := page(t, r, who, client.NotificationsList{After: ptr(after), Limit: rapid.IntRange(1, 5).Draw(t, "limit")})
				if p.Next <= after {
					t.Fatalf("stays at %d", after)
				}
				got, after = append(got, p.Notifications...), p.Next
			}
			if diff := cmp.Diff(whole.Notifications, got); diff != "" {
				t.Fatal(diff)
			}
		})
		for i := 1; i < len(whole.Notifications); i++ {
			a, b := whole.Notifications[i-1], whole.Notifications[i]
			if a.Seq > b.Seq || a.Seq == b.Seq && a.I >= b.I {
				t.Errorf("%s: %+v before %+v", who, a, b)
			}
		}
	}
}

func TestWhoSeesWhat_Decision26(t *testing.T) {
	t.Parallel()
	r := eventful(t)
	seen := func(who string) map[string]int {
		count := map[string]int{}
		for _, n := range page(t, r, who, client.NotificationsList{After: ptr(0)}).Notifications {
			var about struct{ Principal string }
			if err := json.Unmarshal(n.Params, &about); err != nil {
				t.Fatal(err)
			}
			count[fmt.Sprintf("%s %s", n.Method, about.Principal)]++
		}
		return count
	}
	everything := seen("local")
	for _, key := range []string{
		"mcp/changed ", "mcp/changed ana", "mcp/changed bob", "mcp/server/catalog_changed ", "mcp/server/status_changed ana",
		"mcp/server/status_changed bob", "approvals/requested ana", "approvals/requested bob", "approvals/decided ana", "approvals/decided bob",
	} {
		if everything[key] == 0 {
			t.Errorf("nobody is told of %s: %v", key, everything)
		}
	}
	if diff := cmp.Diff(everything, seen("audy")); diff != "" {
		t.Errorf("the auditor does not see what the operator sees:\n%s", diff)
	}
	own := func(name string, catalogs bool) map[string]int {
		want := map[string]int{}
		for key, n := range everything {
			switch key {
			case "mcp/changed ", "mcp/changed " + name, "mcp/server/status_changed " + name, "approvals/requested " + name, "approvals/decided " + name:
				want[key] = n
			case "mcp/server/catalog_changed ":
				if catalogs {
					want[key] = n
				}
			}
		}
		return want
	}
	// The list that ana's session got first and the one that her call changed; what
	// bob's session was listed was known.
	if n := everything["mcp/server/catalog_changed "]; n != 2 {
		t.Errorf("%d changes of the catalog", n)
	}
	for name, catalogs := range map[string]bool{"ana": true, "bob": false, "eve": false} {
		if diff := cmp.Diff(own(name, catalogs), seen(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// What may be read may be heard of.
	r.Grant("eve", "mcp.read")
	if seen("eve")["mcp/server/catalog_changed "] == 0 {
		t.Error("who may read hears of no catalog")
	}
	for _, m := range []string{"mcp/server/catalog_changed", "approvals"} {
		topic := page(t, r, "local", client.NotificationsList{After: ptr(0), Topics: []string{m}})
		if len(topic.Notifications) == 0 || slices.ContainsFunc(topic.Notifications, func(n client.Notification) bool { return n.Method[:len(m)] != m }) {
			t.Errorf("%s: %+v", m, topic)
		}
	}
}

func TestLongPollEndsWithTheNews(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	now := page(t, r, "local", client.NotificationsList{})
	if len(now.Notifications) != 0 || now.Next != r.Bus.Known() {
		t.Errorf("from now on: %+v", now)
	}
	got := make(chan client.Notifications, 1)
	go func() {
		v, _ := r.Answer("local", "notifications/list", fmt.Appendf(nil, `{"after":%d,"wait_ms":30000}`, now.Next))
		n, _ := v.(client.Notifications)
		got <- n
	}()
	r.Grant("ana", "mcp.read")
	if n := <-got; len(n.Notifications) != 1 || n.Notifications[0].Method != "mcp/changed" || n.Next != n.Notifications[0].Seq {
		t.Errorf("%+v", n)
	}
	if n := page(t, r, "local", client.NotificationsList{After: ptr(r.Bus.Known()), WaitMS: 1}); len(n.Notifications) != 0 || n.Next != r.Bus.Known() {
		t.Errorf("nothing: %+v", n)
	}
	for body, kind := range map[string]fault.Kind{
		`{"topics":["mcp/none"]}`: fault.InvalidInput, `{"limit":-1}`: fault.InvalidInput, `{"afters":1}`: fault.UnknownArgument, `{"after":-1}`: fault.InvalidInput,
	} {
		if _, err := r.Answer("local", "notifications/list", []byte(body)); !fault.Is(err, kind) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := r.Answer("nobody", "notifications/list", nil); !fault.Is(err, fault.RoleDenied) {
		t.Errorf("nobody: %v", err)
	}
}

// A stream that goes on where another was cut gives the same.
func TestFollowGoesOnBehindAnyCommit(t *testing.T) {
	t.Parallel()
	r := eventful(t)
	id := client.Identity{Workspace: rig.Workspace, Principal: "local", Actor: "local"}
	var whole []client.Notifications
	for b, err := range r.Notifier.Follow(r.Context(), id, 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if whole = append(whole, b); b.Next == r.Bus.Head() {
			break
		}
	}
	for cut := range whole {
		for b, err := range r.Notifier.Follow(r.Context(), id, uint64(cut), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(whole[cut], b); diff != "" {
				t.Errorf("behind %d:\n%s", cut, diff)
			}
			break
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	for _, err := range r.Notifier.Follow(ctx, id, r.Bus.Head(), nil) {
		if err == nil {
			t.Error("a stream that was cancelled goes on")
		}
	}
}

// Whoever watches over NATS gets what the cursor gives, while it happens.
func TestWatchOverNATSIsWhatTheCursorGives(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	begin := r.Bus.Known()
	const rounds = 50
	got := make(chan []client.Notification, 1)
	go func() {
		var all []client.Notification
		for n, err := range r.Local.Watch(r.Context(), begin, "mcp/changed") {
			if err != nil {
				t.Error(err)
				break
			}
			if all = append(all, n); len(all) == 2*rounds {
				break
			}
		}
		got <- all
	}()
	for range rounds {
		r.Grant("ana", "mcp.read")
		r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.read"}, nil)
	}
	want := page(t, r, "local", client.NotificationsList{After: &begin}).Notifications
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error(diff)
	}
}

// The oldest living runtime pushes; when it is closed in the log the next one
// does, and goes back for what the first may not have sent.
func TestNextRuntimePushesAfterTheOldest(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	const house = "h-other" // the runtimes of the test are not the rig's
	record := func(cmd runtime.Command) uint64 {
		t.Helper()
		d, err := r.Model.Runtimes.Dispatch(r.Context(), rig.Workspace, house, bus.Meta{Actor: "runtime", Principal: "runtime"}, cmd)
		if err != nil {
			t.Fatal(err)
		}
		return d.Seq
	}
	sent := map[string]chan client.Notification{}
	var stops []func()
	for _, id := range []string{"r-1", "r-2"} {
		record(runtime.Boot{Runtime: id})
		out := make(chan client.Notification, 100)
		sent[id] = out
		c := r.Notifier.Config
		c.Home, c.Runtime = house, id
		c.Send = func(workspace, principal string, n client.Notification) error {
			if workspace == rig.Workspace && principal == "local" {
				out <- n
			}
			return nil
		}
		n := notifier.New(c)
		ctx, cancel := context.WithCancel(r.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		stop := func() { cancel(); <-ended }
		stops = append(stops, stop)
		t.Cleanup(stop)
	}
	begin := r.Bus.Known()
	next := func(id string) client.Notification {
		t.Helper()
		select {
		case n := <-sent[id]:
			return n
		case <-r.Context().Done():
			t.Fatal("nothing is sent")
			return client.Notification{}
		}
	}
	r.Grant("ana", "mcp.read")
	first := next("r-1")
	if first.Seq <= begin || first.Method != "mcp/changed" {
		t.Errorf("%+v", first)
	}
	stops[0]() // as if it were killed: what happens now, nobody sends
	r.Grant("ana", "mcp.call:docs")
	missed := r.Bus.Known()
	record(runtime.Close{Runtime: "r-1", Reason: bus.Lost})
	for n := next("r-2"); n.Seq != missed; n = next("r-2") {
		if n.Seq > missed {
			t.Fatalf("%d is not sent", missed)
		}
	}
	r.Grant("ana", "mcp.call:files")
	if n := next("r-2"); n.Seq <= missed {
		t.Errorf("again %+v", n)
	}
	select {
	case n := <-sent["r-1"]:
		t.Errorf("the one that was stopped sends %+v", n)
	default:
	}
}

// What comes at the end is answered by nobody any more, which is no error of ours.
func TestListDuringAnOrderlyStop(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.CatchUp()
	r.Stop()
	head := r.Bus.Known()
	r.SetPolicy(events.Policy{DefaultApproval: "deny"})
	for _, params := range []client.NotificationsList{{After: &head}, {After: &head, WaitMS: 30_000}} {
		body, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := r.Answer("local", "notifications/list", body); !fault.Is(err, fault.RuntimeClosed) {
			t.Errorf("%v, %v", out, err)
		}
	}
	if _, err := r.Answer("local", "grant/list", nil); !fault.Is(err, fault.RuntimeClosed) {
		t.Errorf("grants: %v", err)
	}
}
