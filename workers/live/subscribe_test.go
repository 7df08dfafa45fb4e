package live

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watcher is one who watches resources.
type watcher struct {
	t    *testing.T
	c    *Conn
	name string
	told chan string
}

func watching(t *testing.T, c *Conn, name string) watcher {
	return watcher{t, c, name, make(chan string, 16)}
}

func about(uri string) string { return `{"uri":"` + uri + `"}` }

func (w watcher) subscribe(uri string) (result, failure string) {
	w.t.Helper()
	reply, err := w.c.Subscribe(w.t.Context(), uri, raw(about(uri)), CallOptions{}, w.name, func(params []byte) { w.told <- string(params) })
	if err != nil {
		w.t.Fatal(err)
	}
	return string(reply.Result), string(reply.Error)
}

func (w watcher) unsubscribe(uri string) {
	w.t.Helper()
	if reply, err := w.c.Unsubscribe(w.t.Context(), uri, raw(about(uri)), CallOptions{}, w.name); err != nil || reply.Error != nil {
		w.t.Fatal(err, string(reply.Error))
	}
}

// hears expects notices and, as the server answers after its notices, no other ones.
func (w watcher) hears(want ...string) {
	w.t.Helper()
	var got []string
	for range want {
		select {
		case notice := <-w.told:
			got = append(got, notice)
		case <-time.After(10 * time.Second):
			w.t.Fatalf("%s hears of %q and nothing more", w.name, got)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s: %s", w.name, diff)
	}
	select {
	case more := <-w.told:
		w.t.Errorf("%s hears of %s as well", w.name, more)
	default:
	}
}

// touched has the shelf change something: one, and a part of it.
func touched(t *testing.T, c *Conn) {
	t.Helper()
	if reply, err := c.Call(t.Context(), "resources/read", raw(about("file:///a/touch")), CallOptions{}); err != nil || reply.Error != nil {
		t.Fatal(err, string(reply.Error))
	}
}

// asked are the requests for subscriptions that the shelf has got.
func asked(t *testing.T, c *Conn) (lines []string) {
	t.Helper()
	reply, err := c.Call(t.Context(), "resources/read", raw(about("file:///a/subscribed")), CallOptions{})
	var read struct{ Contents []struct{ Text string } }
	if err != nil || json.Unmarshal(reply.Result, &read) != nil {
		t.Fatal(err, string(reply.Result))
	}
	return strings.Fields(read.Contents[0].Text)
}

const (
	noticeOne  = `{"uri":"file:///a/one", "n":1e400,"_meta":{"v":1.0}}`
	noticePart = `{"uri":"file:///a/one/part"}`
)

// The server has one subscription to a resource, from the first one who watches it to
// the last one, and each hears of what he watches.
func TestAResourceIsSubscribedToOnce(t *testing.T) {
	t.Parallel()
	c := open(t, Options{}, "shelf")
	first, second, other := watching(t, c, "first"), watching(t, c, "second"), watching(t, c, "other")
	if result, failure := first.subscribe("file:///a/one"); result != `{"n":1.0}` || failure != "" {
		t.Error(result, failure)
	}
	if result, _ := second.subscribe("file:///a/one"); result != `{}` {
		t.Error(result)
	}
	other.subscribe("file:///a/two")
	if _, failure := other.subscribe("file:///a/refused"); !strings.Contains(failure, "-32050") {
		t.Error(failure)
	}
	touched(t, c)
	first.hears(noticeOne, noticePart)
	second.hears(noticeOne, noticePart)
	other.hears()

	first.unsubscribe("file:///a/one")
	first.unsubscribe("file:///a/one")
	touched(t, c)
	first.hears()
	second.hears(noticeOne, noticePart)
	second.unsubscribe("file:///a/one")
	touched(t, c)
	second.hears()
	want := []string{"+file:///a/one", "+file:///a/two", "+file:///a/refused", "-file:///a/one"}
	if diff := cmp.Diff(want, asked(t, c)); diff != "" {
		t.Error(diff)
	}
	// Whoever comes then is the first one again.
	first.subscribe("file:///a/one")
	if got := asked(t, c); len(got) != 5 {
		t.Errorf("asked for %q", got)
	}
}

func TestASubscriptionThatIsNotAnsweredEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := open(t, Options{}, "shelf")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := c.Subscribe(ctx, "file:///a/silent", raw(about("file:///a/silent")), CallOptions{}, "w", func([]byte) {})
		errs <- err
	}()
	// The server has it when it has answered the next request.
	for len(asked(t, c)) == 0 {
	}
	cancel()
	if err := <-errs; err != context.Canceled {
		t.Error(err)
	}
	if result, _ := watching(t, c, "w").subscribe("file:///a/one"); result != `{"n":1.0}` {
		t.Error(result)
	}
}

// In the stateless era a subscription is a request that lasts: it is for one resource,
// the server's id of it goes no further, and one that ends is made again.
func TestAResourceIsSubscribedToWithoutAHandshake(t *testing.T) {
	t.Parallel()
	c, _, err := opening(t, Options{}, "stateless")
	if err != nil {
		t.Fatal(err)
	}
	read := func(uri string) {
		t.Helper()
		if reply, err := c.Call(t.Context(), "resources/read", raw(about(uri)), CallOptions{}); err != nil || reply.Error != nil {
			t.Fatal(err, string(reply.Error))
		}
	}
	one, two := watching(t, c, "one"), watching(t, c, "two")
	for _, w := range []watcher{one, two} {
		if result, failure := w.subscribe("x:1"); result != `{}` || failure != "" {
			t.Error(result, failure)
		}
	}
	two.subscribe("x:2")
	if _, failure := one.subscribe("x:refused"); failure != refusal {
		t.Error(failure)
	}
	read("x:1")
	read("x:2")
	const changed = `{"uri":"x:%d/part","_meta":{"v":1.0}}`
	one.hears(fmt.Sprintf(changed, 1))
	two.hears(fmt.Sprintf(changed, 1), fmt.Sprintf(changed, 2))
	two.unsubscribe("x:1")

	read("end") // the server ends all of them
	one.hears(about("x:1"))
	two.hears(about("x:2"))
	read("x:1")
	one.hears(fmt.Sprintf(changed, 1))
	one.unsubscribe("x:1")
	read("x:1")
	one.hears()
	var refused int64 // the server ends it, or we do, whoever is first
	cancelled := 0
	for _, line := range seen(t, c) {
		var m struct {
			ID     int64
			Params struct{ RequestID int64 }
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(line, "x:refused"):
			refused = m.ID
		case strings.Contains(line, `"notifications/cancelled"`) && m.Params.RequestID != refused:
			cancelled++
		}
	}
	if cancelled != 1 {
		t.Errorf("%d subscriptions were cancelled", cancelled)
	}
}

func TestServerWithoutSubscriptionsSaysSo(t *testing.T) {
	t.Parallel()
	w := watching(t, open(t, Options{}, "misbehave", "probe-result"), "who")
	if result, failure := w.subscribe("file:///a/one"); result != "" || !strings.Contains(failure, "-32601") {
		t.Error(result, failure)
	}
}
