package show

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Listen tells of what the endpoint says by itself, until its stream or ctx ends:
// on the GET stream, or on that of a subscription to all lists. heard gets the
// method of each notification.
func (c *MCP) Listen(ctx context.Context, heard func(method string)) error {
	r, err := c.stream(ctx)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		return Status(r.StatusCode)
	}
	lines := bufio.NewReader(r.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		var m struct{ Method string }
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("no message: %w", err)
		}
		if m.Method != "" {
			heard(m.Method)
		}
	}
}

// stream opens the stream of Listen.
func (c *MCP) stream(ctx context.Context) (*http.Response, error) {
	if c.Stateless {
		params := introduce(`{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"promptsListChanged":true}}`)
		return c.post(ctx, "subscriptions/listen", params, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":%s}`, c.last.Add(1), params))
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "text/event-stream")
	q.Header.Set("Authorization", "Bearer "+c.Token)
	q.Header.Set("Mcp-Session-Id", c.session)
	q.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	return c.http.Do(q)
}
