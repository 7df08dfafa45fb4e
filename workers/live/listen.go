package live

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
)

// firstWait and lastWait bound how long the subscription to the lists stays away that
// has ended, and lasting is how long one lasts that may come back soon.
const (
	firstWait = time.Second
	lastWait  = 5 * time.Minute
	lasting   = 25 * time.Second // proxies end what is idle after 30 seconds and more
)

// tellsOfLists are the lists that the server says it tells the changes of, as what
// a subscription asks for; empty for none.
func (c *Conn) tellsOfLists() string {
	var wanted []string
	for _, list := range []string{"tools", "resources", "prompts"} {
		v, _, err := findOnce(c.info.Capabilities, list)
		if err != nil || v.Kind() != '{' {
			continue
		}
		if changes, _, err := findOnce(v, "listChanged"); err == nil && changes.Kind() == 't' {
			wanted = append(wanted, `"`+list+`ListChanged":true`)
		}
	}
	return strings.Join(wanted, ",")
}

// listen keeps a subscription to the changes of the lists open as long as the
// connection lives: in the stateless era a server tells those who listen.
func (c *Conn) listen() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wanted := `{"notifications":{` + c.tellsOfLists() + `}}`
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		begun := time.Now()
		reply, _ := c.Call(ctx, "subscriptions/listen", redact.NewRaw([]byte(wanted)), CallOptions{listens: true})
		c.first.Do(func() { close(c.subscribed) })
		if reply.Error != nil && methodNotFound(reply.Error) {
			return
		}
		if time.Since(begun) > lasting {
			wait = firstWait
		}
		select {
		case <-time.After(wait):
		case <-c.done:
			return
		}
	}
}

// listening is told when the server has begun a subscription. What changed before
// a later one was not heard.
func (c *Conn) listening() {
	again := true
	c.first.Do(func() {
		again = false
		close(c.subscribed)
	})
	if again {
		c.listsChanged()
	}
}

// catchUp takes it that what the server tells of has changed whenever it may have said
// so to nobody.
func (c *Conn) catchUp(missed <-chan struct{}) {
	for {
		select {
		case <-missed:
		case <-c.done:
			return
		}
		if c.tellsOfLists() != "" {
			c.listsChanged()
		}
		c.mu.Lock()
		watched := slices.Collect(maps.Keys(c.topics))
		c.mu.Unlock()
		for _, uri := range watched {
			if quoted, err := jsontext.AppendQuote(nil, uri); err == nil {
				c.tell([]byte(`{"uri":`+string(quoted)+`}`), func(of string, _ *topic) bool { return of == uri })
			}
		}
	}
}

// listsChanged makes a call of OnListChanged due.
func (c *Conn) listsChanged() {
	select {
	case c.changed <- struct{}{}:
	default: // one is due already
	}
}

// unlisten ends the subscription that the server says it has ended. No other
// request of ours is the server's to cancel.
func (c *Conn) unlisten(f frame.Frame) {
	id, _, err := findOnce(f.Params, "requestId")
	n, ok := integer(id)
	if err != nil || !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.calls[n]; p != nil && p.listens && !p.abandoned {
		delete(c.calls, n)
		p.reply <- answer{Reply: Reply{Result: []byte(`{}`)}}
	}
}
