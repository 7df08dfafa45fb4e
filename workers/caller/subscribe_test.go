package caller_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

const one = "file:///a/one"

// watch is a change of a request that makes it one of a subscription, which tells.
func watch(id string, told chan string) func(*caller.Request) {
	return func(q *caller.Request) {
		q.Watch = &caller.Watch{ID: id, URI: one, Updated: func(params []byte) { told <- string(params) }}
	}
}

// subscription makes a request about one.
func (s *served) subscription(method, id string, told chan string) client.CallReply {
	s.t.Helper()
	return s.request("resources/"+method, one, `{"uri":"`+one+`"}`, watch(id, told))
}

// shelf reads something of the shelf and returns its text.
func (s *served) shelf(name string) string {
	s.t.Helper()
	var got struct{ Contents []struct{ Text string } }
	if err := json.Unmarshal(s.request(read, "", `{"uri":"file:///a/`+name+`"}`).Result, &got); err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(got.Contents[0].Text)
}

// A subscription is asked for like anything else, in the log whether its server is
// asked or not, and ends with the last one who wants it.
func TestSubscriptionIsRecordedLikeACall_R195(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{Env: map[string]string{"T": "s3cret-of-the-shelf"}}, program(t, "shelf"), "env: {TOKEN: '${T}'}", "approval_policy: prompt")
	first, second := make(chan string, 16), make(chan string, 16)
	for id, told := range map[string]chan string{"first": first, "second": second} {
		s.wants(s.subscription("subscribe", id, told), "succeeded", "", true)
	}
	s.shelf("touch")
	for _, told := range []chan string{first, second} {
		if diff := cmp.Diff(`{"uri":"file:///a/one", "n":1e400,"_meta":{"v":1.0},"token":"<redacted>"}`, <-told); diff != "" {
			t.Error(diff)
		}
		if got := <-told; got != `{"uri":"file:///a/one/part"}` {
			t.Error(got)
		}
	}
	s.wants(s.subscription("unsubscribe", "first", nil), "succeeded", "", true)
	s.Caller.Release(s.Context(), "first")
	if got := s.shelf("subscribed"); got != "+"+one {
		t.Errorf("the server was asked for %s", got)
	}
	s.Caller.Release(s.Context(), "second") // its client is gone
	if got := s.shelf("subscribed"); got != "+"+one+" -"+one {
		t.Errorf("the server was asked for %s", got)
	}
	s.shelf("touch")
	if len(first)+len(second) != 0 {
		t.Error("who has left is told of changes")
	}
	var said []string
	for _, e := range rig.Events[events.CallRequested](s.Rig) {
		if e.Method != read {
			said = append(said, strings.Join([]string{e.Method, e.Server, e.Callable, e.Capability, e.Policy}, " "))
		}
	}
	const more = " docs " + one + " mcp.call:docs auto"
	if diff := cmp.Diff([]string{"resources/subscribe" + more, "resources/subscribe" + more, "resources/unsubscribe" + more}, said); diff != "" {
		t.Error(diff)
	}
	s.Rebuilt()
}

func TestSubscriptionNeedsWhatACallNeeds_R58(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "shelf"), auto)
	told := make(chan string, 16)
	s.wants(s.subscription("subscribe", "w", told), "succeeded", "", true)
	s.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
	for _, method := range []string{"subscribe", "unsubscribe"} {
		s.wants(s.subscription(method, "w", told), "denied", fault.CapabilityDenied, false)
	}
	// It ends all the same.
	s.Caller.Release(s.Context(), "w")
	s.Grant("ana", "mcp.call:*")
	if got := s.shelf("subscribed"); got != "+"+one+" -"+one {
		t.Errorf("the server was asked for %s", got)
	}
}

// A subscription is held where the connection is, and its updates come over the bus; it
// ends there too, and with the process that wants it.
func TestSubscriptionIsHeldByTheOwner_Decision21(t *testing.T) {
	t.Parallel()
	s, owner := beside(t, rig.Options{}, program(t, "shelf"), auto)
	told, there := make(chan string, 16), make(chan string, 16)
	s.wants(s.subscription("subscribe", "w", told), "succeeded", "", true)
	at := &served{owner, t, s.turn}
	s.wants(at.subscription("subscribe", "o", there), "succeeded", "", true)
	for _, told := range []chan string{told, there} {
		s.shelf("touch")
		for _, want := range []string{`{"uri":"file:///a/one", "n":1e400,"_meta":{"v":1.0}}`, `{"uri":"file:///a/one/part"}`} {
			if got := <-told; got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
		}
	}
	at.Caller.Release(s.Context(), "o")
	s.Caller.Release(s.Context(), "w")
	if got := s.shelf("subscribed"); got != "+"+one+" -"+one {
		t.Errorf("the server was asked for %s", got)
	}
}
