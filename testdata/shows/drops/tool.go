package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// message is what a server is sent.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments arguments       `json:"arguments"`
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// arguments are those of the tool do.
type arguments struct {
	// ID is noted when the tool has been executed.
	ID string `json:"id"`
	// Do is what goes wrong: see the servers.
	Do string `json:"do,omitempty"`
	// Wait is how many milliseconds the tool takes after that, Size how long its
	// text is, and Text is there to be long.
	Wait int    `json:"wait,omitempty"`
	Size int    `json:"size,omitempty"`
	Text string `json:"text,omitempty"`
}

func (a arguments) json() string {
	b, _ := json.Marshal(a) // strings and numbers
	return string(b)
}

// core is a server without what carries its messages.
type core struct {
	stateless bool
	note      func(line string)
	grown     func() int // how many tools there are beside do

	mu   sync.Mutex
	held map[string]held // calls that wait to be cancelled, by key
}

type held struct {
	id   string
	gone chan struct{}
}

const notice = "notifications/tools/list_changed"

// answer is the result or the error of a request that is no tools/call; empty for
// what wants no answer.
func (c *core) answer(m message) string {
	switch {
	case m.ID == nil:
		return ""
	case m.Method == "initialize" && !c.stateless:
		return `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"drops","version":"1"}}`
	case m.Method == "server/discover" && c.stateless:
		return `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":0,"cacheScope":"private",` +
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"drops","version":"1"}}}`
	case m.Method == "tools/list":
		var b strings.Builder
		for i := range c.grown() {
			fmt.Fprintf(&b, `,{"name":"grown%d","inputSchema":{"type":"object"}}`, i+1)
		}
		return `"result":{` + c.kind() + `"tools":[{"name":"do","inputSchema":{"type":"object"}}` + b.String() + `]}`
	}
	return `"error":{"code":-32601,"message":"method not found"}`
}

// kind begins a result.
func (c *core) kind() string {
	if c.stateless {
		return `"resultType":"complete",`
	}
	return ""
}

// call executes the tool, which is noted first, and answers when the function that
// it returns is called. hold waits until key is cancelled.
func (c *core) call(m message, key string) (answer func() string) {
	a := m.Params.Arguments
	c.note(a.ID)
	var cancelled <-chan struct{}
	if a.Do == "hold" {
		cancelled = c.hold(key, a.ID)
	}
	return func() string {
		if a.Do == "hold" {
			<-cancelled
		}
		time.Sleep(time.Duration(a.Wait) * time.Millisecond) // this is what the tool does
		return `"result":{` + c.kind() + `"content":[{"type":"text","text":"` + strings.Repeat("y", max(a.Size, 1)) + `"}]}`
	}
}

func (c *core) hold(key, id string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[string]held{}
	}
	h := held{id, make(chan struct{})}
	c.held[key] = h
	return h.gone
}

// cancel ends a call that waits for it.
func (c *core) cancel(key string) {
	c.mu.Lock()
	h, ok := c.held[key]
	delete(c.held, key)
	c.mu.Unlock()
	if ok {
		c.note("cancelled " + h.id)
		close(h.gone)
	}
}
