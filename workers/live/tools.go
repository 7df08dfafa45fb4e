package live

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a listing (R133). The bytes bound what we hold of a server that
// fills its pages.
const (
	maxPages     = 1000
	maxTools     = 10000
	maxListBytes = 64 << 20
)

// anySchema takes the place of an input schema that is no object (R48).
const anySchema = `{"type":"object","properties":{}}`

// Tool is a definition of a server.
type Tool struct {
	// Name is the raw name, unescaped.
	Name string
	// Definition is the object as the server sent it. Only a missing or
	// non-object inputSchema was repaired (R48, decision 22).
	Definition jsontext.Value
	// Digest is the SHA-256 of the canonical Definition, hex: members sorted,
	// no white space, strings in one spelling. Numbers count as written,
	// because 2^53 and 2^53+1 must not be the same definition.
	Digest string
}

// ListTools asks for all tools of the server, in its order. A server without
// the tools capability is not asked and has none; nor has one that does not
// know the method. Definitions without a usable name, with a member named
// twice or with a name already taken are left out and counted.
//
// Errors: that of ctx, [ErrLost], or a fault of kind list_tools_failed.
func (c *Conn) ListTools(ctx context.Context) ([]Tool, error) {
	l := listing{names: make(map[string]bool)}
	defer func() {
		c.unusableTools.Store(l.unusable)
		c.doubledTools.Store(l.doubled)
	}()
	if !c.hasTools() {
		return nil, nil
	}
	var cursor jsontext.Value
	cursors := make(map[string]bool)
	for range maxPages {
		var params []byte
		if cursor != nil {
			params = append(append([]byte(`{"cursor":`), cursor...), '}')
		}
		reply, err := c.Call(ctx, "tools/list", redact.NewRaw(params), CallOptions{})
		switch {
		case err != nil:
			return nil, err
		case reply.Error != nil && methodNotFound(reply.Error):
			return l.tools, nil
		case reply.Error != nil:
			return nil, listFailed(redact.Static("the server answered with an error"))
		}
		if cursor, err = l.page(reply.Result); err != nil {
			return nil, err
		}
		if cursor == nil {
			return l.tools, nil
		}
		if cursors[string(cursor)] {
			return nil, listFailed(redact.Static("the server gave the same cursor twice"))
		}
		cursors[string(cursor)] = true
	}
	return nil, listFailed(redact.Static("the server has more than 1000 pages of tools"))
}

func listFailed(text redact.EventText) error {
	return fault.New("live.list_tools", fault.ListToolsFailed, text)
}

// hasTools reports whether the server advertised the tools capability.
func (c *Conn) hasTools() bool {
	tools, _, err := findOnce(c.info.Capabilities, "tools")
	return err == nil && tools.Kind() == '{'
}

func methodNotFound(e []byte) bool {
	code, _, err := findOnce(e, "code")
	n, ok := integer(code)
	return err == nil && ok && n == -32601
}

// listing collects pages.
type listing struct {
	tools             []Tool
	names             map[string]bool
	listed, bytes     int
	unusable, doubled uint64
}

// page takes the tools of one result and returns the cursor of the next page,
// nil after the last one.
func (l *listing) page(result []byte) (jsontext.Value, error) {
	var tools, next jsontext.Value
	err := members(result, func(name string, value jsontext.Value, _ int) error {
		switch name {
		case "tools":
			tools = value
		case "nextCursor":
			next = value
		}
		return nil
	})
	// Go servers write null for an empty list.
	if err == nil && tools.Kind() != 'n' {
		err = elements(tools, l.add)
	}
	switch {
	case err == errTooMany:
		return nil, listFailed(redact.Static("the server lists more than 10000 tools or 64 MiB of definitions"))
	case err != nil:
		return nil, listFailed(redact.Static("the server answered without a list of tools"))
	case next == nil, next.Kind() == 'n', string(next) == `""`:
		return nil, nil
	case next.Kind() != '"':
		return nil, listFailed(redact.Static("the server gave a cursor that is no string"))
	}
	return next, nil
}

// add takes one definition.
func (l *listing) add(definition jsontext.Value) error {
	l.listed++
	l.bytes += len(definition)
	if l.listed > maxTools || l.bytes > maxListBytes {
		return errTooMany
	}
	tool, ok := readTool(definition)
	switch {
	case !ok:
		l.unusable++
	case l.names[tool.Name]:
		l.doubled++
	default:
		l.names[tool.Name] = true
		l.tools = append(l.tools, tool)
	}
	return nil
}

// readTool reads one definition. It refuses what has no name that is more than
// blank, or names a member twice at any depth.
func readTool(definition jsontext.Value) (Tool, bool) {
	var name, schema jsontext.Value
	at, size := -1, 0
	err := members(definition, func(key string, value jsontext.Value, offset int) error {
		switch key {
		case "name":
			name = value
		case "inputSchema":
			schema, at, size = value, offset, len(value)
		}
		return nil
	})
	if err != nil || strings.TrimSpace(text(name)) == "" {
		return Tool{}, false
	}
	switch {
	case at < 0:
		// The object has a member, the name, so a comma is right.
		definition = replace(definition, len(definition)-1, 0, []byte(`,"inputSchema":`+anySchema))
	case schema.Kind() != '{':
		definition = replace(definition, at, size, []byte(anySchema))
	default:
		definition = bytes.Clone(definition) // the page is not kept for it
	}
	canonical := definition.Clone()
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return Tool{}, false
	}
	sum := sha256.Sum256(canonical)
	return Tool{Name: text(name), Definition: definition, Digest: hex.EncodeToString(sum[:])}, true
}
