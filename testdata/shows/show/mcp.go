package show

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// MCP is a client of an MCP endpoint that sends and keeps raw bytes. Its methods
// may be called from any goroutine once Initialize has returned.
type MCP struct {
	URL, Token string
	// Stateless speaks MCP 2026-07-28, where each request says who it is from.
	Stateless bool
	// Seen takes every byte of every response.
	Seen func([]byte)

	http    http.Client
	session string
	last    atomic.Int64
}

// Answer is the response to a request: one of Result and Error.
type Answer struct {
	Result, Error json.RawMessage
	// Before are the messages that came before it.
	Before []json.RawMessage
}

// Status is an answer of HTTP that is no answer of MCP.
type Status int

func (s Status) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// NotSent reports whether the request certainly never left: nobody listened.
func NotSent(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

// hello is the client of a handshake.
const hello = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"show","version":"1"}}`

// about is what a stateless request says of its client.
const about = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"show","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// Initialize shakes hands, where that is the way to begin.
func (c *MCP) Initialize(ctx context.Context) error {
	if err := c.Begin(ctx); err != nil || c.Stateless {
		return err
	}
	return c.Notify(ctx, "notifications/initialized", `{}`)
}

// Begin is Initialize but for the notice that ends the handshake.
func (c *MCP) Begin(ctx context.Context) error {
	c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 16}
	if c.Stateless {
		return nil
	}
	_, err := c.Do(ctx, "initialize", hello)
	return err
}

// Close drops the connections.
func (c *MCP) Close() { c.http.CloseIdleConnections() }

// Notify sends a notification.
func (c *MCP) Notify(ctx context.Context, method, params string) error {
	r, err := c.post(ctx, method, params, fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
	if err != nil {
		return err
	}
	return r.Body.Close()
}

// Do sends a request with params as they are; those of a stateless one get what
// it must say of its client.
func (c *MCP) Do(ctx context.Context, method, params string) (Answer, error) {
	return c.DoAs(ctx, c.Next(), method, params)
}

// Next is the next id of a request.
func (c *MCP) Next() int64 { return c.last.Add(1) }

// DoAs is Do with an id of the caller's choice.
func (c *MCP) DoAs(ctx context.Context, id int64, method, params string) (a Answer, err error) {
	if c.Stateless {
		params = introduce(params)
	}
	r, err := c.post(ctx, method, params, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
	if err != nil {
		return a, err
	}
	defer r.Body.Close()
	body := bufio.NewReader(r.Body)
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		b, err := io.ReadAll(body)
		c.saw(b)
		if err != nil {
			return a, err
		}
		if done, err := a.take(b, id); done || err != nil {
			return a, err
		}
		return a, Status(r.StatusCode)
	}
	for data := []byte(nil); ; {
		line, err := body.ReadBytes('\n')
		c.saw(line)
		if err != nil {
			return a, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if more, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			data = append(data, more...)
		} else if len(line) == 0 && data != nil {
			if done, err := a.take(data, id); done || err != nil {
				return a, err
			}
			data = nil
		}
	}
}

// take reads one message; done says that it answers the request.
func (a *Answer) take(b []byte, id int64) (done bool, err error) {
	var m struct {
		ID            json.RawMessage
		Method        string
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return false, fmt.Errorf("no message: %w", err)
	}
	if m.Method != "" || string(m.ID) != fmt.Sprint(id) {
		a.Before = append(a.Before, bytes.Clone(b))
		return false, nil
	}
	a.Result, a.Error = m.Result, m.Error
	return true, nil
}

func (c *MCP) saw(b []byte) {
	if c.Seen != nil {
		c.Seen(b)
	}
}

// introduce splices the client into the _meta of params. A _meta that is there
// has members.
func introduce(params string) string {
	if before, after, ok := strings.Cut(params, `"_meta":{`); ok {
		return before + `"_meta":{` + about + "," + after
	}
	if params = strings.TrimPrefix(params, "{"); params != "}" {
		params = "," + params
	}
	return `{"_meta":{` + about + "}" + params
}

// headers repeat what a stateless request says.
func headers(h http.Header, method, params string) {
	h.Set("Mcp-Protocol-Version", "2026-07-28")
	h.Set("Mcp-Method", method)
	var named struct{ Name, URI string }
	_ = json.Unmarshal([]byte(params), &named) // our own
	if name := cmp.Or(named.Name, named.URI); name != "" {
		h.Set("Mcp-Name", "=?base64?"+base64.StdEncoding.EncodeToString([]byte(name))+"?=")
	}
}

func (c *MCP) post(ctx context.Context, method, params, body string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	q.Header.Set("Authorization", "Bearer "+c.Token)
	if c.Stateless {
		headers(q.Header, method, params)
	}
	if c.session != "" {
		q.Header.Set("Mcp-Session-Id", c.session)
		q.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	r, err := c.http.Do(q)
	if err != nil {
		return nil, err
	}
	for name, values := range r.Header {
		c.saw([]byte(name + ": " + strings.Join(values, ", ")))
	}
	if s := r.Header.Get("Mcp-Session-Id"); s != "" && c.session == "" {
		c.session = s
	}
	return r, nil
}

// Tools lists the names of the tools, all pages.
func (c *MCP) Tools(ctx context.Context) (names []string, err error) {
	params := `{}`
	for {
		a, err := c.Do(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tools      []struct{ Name string }
			NextCursor string
		}
		if a.Error != nil {
			return nil, fmt.Errorf("tools/list: %s", a.Error)
		}
		if err := json.Unmarshal(a.Result, &page); err != nil {
			return nil, err
		}
		for _, t := range page.Tools {
			names = append(names, t.Name)
		}
		if page.NextCursor == "" {
			return names, nil
		}
		next, _ := json.Marshal(page.NextCursor)
		params = `{"cursor":` + string(next) + `}`
	}
}

// Call calls a tool with arguments, a JSON object.
func (c *MCP) Call(ctx context.Context, tool, arguments string) (Answer, error) {
	name, _ := json.Marshal(tool)
	return c.Do(ctx, "tools/call", `{"name":`+string(name)+`,"arguments":`+arguments+`,"_meta":{"progressToken":`+fmt.Sprint(c.last.Load()+1_000_000)+`}}`)
}
