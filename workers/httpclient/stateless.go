package httpclient

import (
	"bytes"
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// revisionStateless is the first revision without a handshake and a session. Its
// requests repeat in their headers what a proxy may want to know of the body, and
// closing the stream of an answer is how one is cancelled.
const revisionStateless = "2026-07-28"

// probe is the request that asks for it. It is only known there.
const probe = "server/discover"

// mirrored is what else of the params a header repeats, by method.
var mirrored = map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

// Stateless says that the connection goes on without a handshake: no session, no
// GET stream, and no stream that was cut is taken up again.
func (c *Client) Stateless() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stateless, c.session, c.protocol = true, "", revisionStateless
}

func (c *Client) isStateless() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateless
}

// mirror sets the headers that repeat what a request says.
func (c *Client) mirror(h http.Header, data []byte) {
	_, method := envelope(data)
	if method != probe && !c.isStateless() {
		return
	}
	set(h, "Mcp-Session-Id", "")
	set(h, "Mcp-Protocol-Version", revisionStateless)
	set(h, "Mcp-Method", method)
	name := ""
	if member, ok := mirrored[method]; ok {
		name, _ = primitive(find(data, "params", member))
	}
	set(h, "Mcp-Name", plain(name))
	if method != "tools/call" {
		return
	}
	c.mu.Lock()
	repeats := c.repeats[name]
	c.mu.Unlock()
	for header, path := range repeats {
		if v, ok := primitive(find(data, append([]string{"params", "arguments"}, path...)...)); ok {
			h.Set("Mcp-Param-"+header, plain(v)) // an empty one too
		}
	}
}

// Repeat says which parameters the calls of tools repeat in headers: tool, name of
// the header, path.
func (c *Client) Repeat(tools map[string]map[string][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeats = tools
}

// find returns a value of a frame of ours, nil where there is none.
func find(data []byte, path ...string) jsontext.Value {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for _, name := range path {
		if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
			return nil
		}
		for {
			t, err := dec.ReadToken()
			if err != nil || t.Kind() != '"' {
				return nil
			}
			if t.String() == name {
				break
			}
			if dec.SkipValue() != nil {
				return nil
			}
		}
	}
	v, err := dec.ReadValue()
	if err != nil {
		return nil
	}
	return v
}

// maxInteger is the largest whole number that all JSON parsers read as it is.
const maxInteger = 1<<53 - 1

// primitive is the text of a value that a header may repeat.
func primitive(v jsontext.Value) (string, bool) {
	switch v.Kind() {
	case '"':
		text, _ := jsontext.AppendUnquote(nil, v) // half a surrogate becomes a sign for it
		return string(text), true
	case 't', 'f':
		return string(v), true
	case '0':
		f, err := strconv.ParseFloat(string(v), 64)
		if err == nil && f == math.Trunc(f) && math.Abs(f) <= maxInteger {
			return strconv.FormatInt(int64(f), 10), true
		}
	}
	return "", false
}

// plain is a text as a header can hold it.
func plain(text string) string {
	const begin, end = "=?base64?", "?="
	odd := strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r > 0x7e })
	if odd || strings.TrimSpace(text) != text || strings.HasPrefix(text, begin) && strings.HasSuffix(text, end) {
		return begin + base64.StdEncoding.EncodeToString([]byte(text)) + end
	}
	return text
}
