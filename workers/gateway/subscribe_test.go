package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/google/go-cmp/cmp"
)

// noting is a backend that remembers the requests for subscriptions.
type noting struct {
	*fake
	reply   client.CallReply
	asked   chan string
	watches map[string]*Watch // by principal and URI; guarded by fake.mu
}

func newNoting() *noting {
	f, _ := newShelves()
	b := &noting{fake: f, asked: make(chan string, 16), watches: map[string]*Watch{}}
	f.releases = make(chan string, 16)
	b.reply = client.CallReply{Status: "succeeded", ExecutionStarted: true, Result: []byte(`{"n":1.0}`)}
	f.call = func(_ context.Context, who Who, c Call) (client.CallReply, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		b.watches[who.Principal+" "+c.Watch.URI] = c.Watch
		b.asked <- strings.Join([]string{who.Principal, c.Method, c.Name, c.Subject, string(c.Params.Reveal())}, " ")
		return b.reply, nil
	}
	return b
}

func (b *noting) answers(r client.CallReply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reply = r
}

func (b *noting) watch(who, uri string) *Watch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watches[who+" "+uri]
}

func (b *noting) gone(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.released, id)
}

// ends waits until subscriptions are released.
func (b *noting) ends(t *testing.T, subscriptions ...*Watch) {
	for _, w := range subscriptions {
		for !b.gone(w.ID) {
			select {
			case <-b.releases:
			case <-time.After(10 * time.Second):
				t.Fatal("a subscription does not end")
			}
		}
	}
}

// getStream is the GET stream of a session.
func getStream(t *testing.T, g *Gateway, session string, more ...header) <-chan string {
	t.Helper()
	resp := send(t, t.Context(), serveLoopback(t, g), http.MethodGet, session, "", more...)
	return messagesOf(resp.Body)
}

const ok = `{"jsonrpc":"2.0","id":1,"result":{"n":1.0}}`

// A client hears of the resources that it has subscribed to, and nobody else does.
func TestUpdatesReachWhoHasSubscribed(t *testing.T) {
	t.Parallel()
	b := newNoting()
	g, _ := start(t, options(b.fake, nil))
	bob := header{"Authorization", "Bearer token-of-bob"}
	mine, deaf, his := attach(t, g), attach(t, g), attach(t, g, bob)
	streams := []<-chan string{getStream(t, g, mine), getStream(t, g, deaf), getStream(t, g, his, bob)}
	if got := do(g, "POST", mine, rpc(methodSubscribe, `{"uri":"file:///two", "x":1.0}`)).Body.String(); got != ok {
		t.Error(got)
	}
	if got, want := <-b.asked, `ana resources/subscribe other file:///two {"uri":"file:///two", "x":1.0}`; got != want {
		t.Errorf("asked for %s\nwant %s", got, want)
	}
	do(g, "POST", his, rpc(methodSubscribe, `{"uri":"file:///one"}`), bob)
	<-b.asked
	w, other := b.watch("ana", "file:///two"), b.watch("bob", "file:///one")
	w.Updated([]byte(`{"uri":"file:///two/x", "n":1e400}`))
	other.Updated([]byte(`{"uri":"file:///one"}`))
	for i, want := range map[int]string{0: `{"uri":"file:///two/x", "n":1e400}`, 2: `{"uri":"file:///one"}`} {
		if diff := cmp.Diff(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":`+want+`}`, <-streams[i]); diff != "" {
			t.Error(diff)
		}
	}
	// The same again is the same subscription, and another one's is not ended by this.
	do(g, "POST", mine, rpc(methodSubscribe, `{"uri":"file:///two"}`))
	if <-b.asked; b.watch("ana", "file:///two").ID != w.ID {
		t.Error("one client has two subscriptions to a resource")
	}
	if got := do(g, "POST", mine, rpc(methodUnsubscribe, `{"uri":"file:///one"}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` || len(b.asked) != 0 {
		t.Errorf("%s, %d requests", got, len(b.asked))
	}
	// It ends, whatever the server says.
	b.answers(client.CallReply{Error: &client.CallError{JSONRPC: []byte(`{"code":7,"message":"m"}`)}})
	if got := do(g, "POST", mine, rpc(methodUnsubscribe, `{"uri":"file:///two"}`)).Body.String(); got != `{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"m"}}` {
		t.Error(got)
	}
	if got, want := <-b.asked, `ana resources/unsubscribe other file:///two {"uri":"file:///two"}`; got != want || !b.gone(w.ID) || b.gone(other.ID) {
		t.Errorf("asked for %s\nwant %s", got, want)
	}
	w.Updated([]byte(`{"uri":"file:///two"}`))
	// What is refused is no subscription.
	do(g, "POST", mine, rpc(methodSubscribe, `{"uri":"demo://x"}`))
	<-b.asked
	refused := b.watch("ana", "demo://x")
	if refused.Updated([]byte(`{}`)); !b.gone(refused.ID) {
		t.Error("a subscription that was refused is held")
	}
	// With its session it ends as well.
	do(g, "DELETE", his, "", bob)
	b.ends(t, other)
	// Nothing came meanwhile that was not for a client.
	b.answers(client.CallReply{Result: []byte(`{}`)})
	for i, session := range []string{mine, deaf} {
		do(g, "POST", session, rpc(methodSubscribe, `{"uri":"demo://end"}`))
		<-b.asked
		b.watch("ana", "demo://end").Updated([]byte(`{"uri":"demo://end"}`))
		if got, want := <-streams[i], `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"demo://end"}}`; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	for _, params := range []string{`{}`, `{"uri":7}`, `{"uri":"file:///nobody"}`} {
		code, _, _ := failureOf(t, do(g, "POST", mine, rpc(methodSubscribe, params)).Body.String())
		if len(b.asked) != 0 || code != -32602 && code != codeNoResource {
			t.Errorf("%s: %d", params, code)
		}
	}
}

// In the stateless era a subscription lasts as long as the request for it.
func TestStatelessSubscriptionTellsOfResources(t *testing.T) {
	t.Parallel()
	b := newNoting()
	g, _ := start(t, options(b.fake, nil))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	const wanted = `{"resourceSubscriptions":["file:///one","file:///nobody","demo:\/\/x",7,"file:///one"]}`
	s := listening(t, ctx, g, `"s"`, wanted)
	others := listening(t, t.Context(), g, `2`, `{"resourceSubscriptions":["file:///two"]}`)
	if got, want := <-s, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+subscriptionTag(`"s"`)+`,"notifications":{"resourceSubscriptions":["file:///one","demo:\/\/x"]}}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	<-others
	want := []string{
		`ana resources/subscribe demo demo://{+path} {"uri":"demo:\/\/x"}`, `ana resources/subscribe demo file:///one {"uri":"file:///one"}`,
		`ana resources/subscribe other file:///two {"uri":"file:///two"}`,
	}
	got := []string{<-b.asked, <-b.asked, <-b.asked}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("asked for %q", got)
	}
	w, x := b.watch("ana", "file:///one"), b.watch("ana", "demo://x")
	tag := strings.TrimSuffix(strings.TrimPrefix(subscriptionTag(`"s"`), `"_meta":{`), `}`)
	for _, c := range []struct{ params, want string }{
		{`{"uri":"file:///one", "n":1e400}`, `{"_meta":{` + tag + `},"uri":"file:///one", "n":1e400}`},
		{`{"uri":"file:///one","_meta":{"v":1.0}}`, `{"uri":"file:///one","_meta":{` + tag + `,"v":1.0}}`},
		{`{"_meta":{}}`, `{"_meta":{` + tag + `}}`},
		{`{"_meta":7}`, `{"_meta":{` + tag + `}}`},
	} {
		w.Updated([]byte(c.params))
		if diff := cmp.Diff(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":`+c.want+`}`, <-s); diff != "" {
			t.Error(diff)
		}
	}
	leave()
	b.ends(t, w, x)
	if two := b.watch("ana", "file:///two"); b.gone(two.ID) || len(others) != 0 {
		t.Error("the subscription of somebody else ended, or told of something")
	}
}

// A subscription is made again at the connection that takes the place of its own, and
// ends where the right to it does.
func TestSubscriptionIsMadeAgain(t *testing.T) {
	t.Parallel()
	b, l := newNoting(), make(fakeLog)
	g, _ := start(t, options(b.fake, l))
	mine := attach(t, g)
	stream := getStream(t, g, mine)
	for _, uri := range []string{"file:///one", "file:///two"} {
		do(g, "POST", mine, rpc(methodSubscribe, `{"uri":"`+uri+`"}`))
		<-b.asked
	}
	one, two := b.watch("ana", "file:///one"), b.watch("ana", "file:///two")
	happens := func(of events.AggregateID, scope events.Scope, e events.Event) {
		l <- &events.Commit{Workspace: "default", Aggregate: of, Scope: scope, Events: []events.Event{e}}
	}
	opened := func(session, server string) {
		happens(events.AggregateID{Kind: events.KindConnection, Key: "x"}, events.Scope{Session: session, Server: server}, events.ConnectionOpened{})
	}
	revoked := func(who string) {
		happens(events.AggregateID{Kind: events.KindGrant, Key: who}, events.Scope{}, events.CapabilityRevoked{})
	}
	opened("defaultbob/mcp", "demo")
	opened("defaultana/mcp", "demo")
	if got, want := <-b.asked, `ana resources/subscribe demo file:///one {"uri":"file:///one"}`; got != want || b.watch("ana", "file:///one").ID != one.ID {
		t.Errorf("asked for %s\nwant %s", got, want)
	}
	// What changed meanwhile was not heard.
	if got, want := <-stream, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///one"}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	// A connection that is away comes back; a right does not by itself.
	b.answers(client.CallReply{Status: "invalid", Error: &client.CallError{Kind: "runtime_not_live"}})
	opened("defaultana/mcp", "demo")
	<-b.asked
	<-b.asked // with a turn of now
	b.answers(client.CallReply{Status: "denied", Error: &client.CallError{Kind: "capability_denied"}})
	revoked("bob")
	revoked("ana")
	<-b.asked
	<-b.asked
	b.ends(t, one, two)
	// Nothing is asked for or told of after that, as what comes next is the next thing.
	one.Updated([]byte(`{}`))
	opened("defaultana/mcp", "demo")
	b.answers(client.CallReply{Result: []byte(`{}`)})
	do(g, "POST", mine, rpc(methodSubscribe, `{"uri":"demo://end"}`))
	opened("defaultana/mcp", "demo")
	for range 2 {
		if got, want := <-b.asked, `ana resources/subscribe demo demo://{+path} {"uri":"demo://end"}`; got != want {
			t.Errorf("asked for %s\nwant %s", got, want)
		}
	}
	if got, want := <-stream, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"demo://end"}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// What is due to who does not read is bounded, and nothing is forgotten by that.
func TestUpdatesThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	a := newAttachment(newFake(), address{})
	s, _ := a.subscription(a.changed, "x:y", nil)
	for i := range 2 * maxUpdates {
		s.Updated(fmt.Appendf(nil, `{"uri":"x:y/%d"}`, i))
		s.Updated(fmt.Appendf(nil, `{"uri":"x:y/%d"}`, i))
	}
	due := a.dueUpdates(a.changed)
	if len(due) != maxUpdates+1 || string(due[maxUpdates]) != `{"uri":"x:y"}` || string(due[1]) != `{"uri":"x:y/1"}` {
		t.Errorf("%d updates are due, %s at the end", len(due), due[len(due)-1])
	}
	for i := range maxSubscriptions {
		s, _ = a.subscription(a.changed, fmt.Sprint(i), nil)
	}
	if s != nil {
		t.Error("there are too many subscriptions")
	}
}

// A client that begins before its server hears of all that there may be.
func TestSubscriptionsAreOffered(t *testing.T) {
	t.Parallel()
	g, _ := start(t, options(newFake(), nil))
	_, discovered := ask(g, "1", "server/discover", "", "")
	for _, got := range []string{do(g, "POST", "", initialize).Body.String(), discovered} {
		if want := `"resources":{"subscribe":true,"listChanged":true}`; !strings.Contains(got, want) {
			t.Errorf("%s\nhas no %s", got, want)
		}
	}
}
