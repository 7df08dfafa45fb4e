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
	maxItems     = 10000
	maxListBytes = 64 << 20
	// maxName and maxURI bound what an event holds of each definition. The protocol
	// wants names of at most 128 characters.
	maxName = 1 << 10
	maxURI  = 8 << 10
)

// List is one of the lists that a server may have.
type List struct {
	// Name is what is listed, and the member of the result; Method asks for it.
	Name, Method string
	// capability must have been advertised for the server to be asked, key is the
	// member that names a definition.
	capability, key string
}

// The lists of the protocol.
var (
	Tools     = List{"tools", "tools/list", "tools", "name"}
	Resources = List{"resources", "resources/list", "resources", "uri"}
	Templates = List{"resourceTemplates", "resources/templates/list", "resources", "uriTemplate"}
	Prompts   = List{"prompts", "prompts/list", "prompts", "name"}
)

// anySchema takes the place of an input schema that is no object (R48).
const anySchema = `{"type":"object","properties":{}}`

// Item is a definition of a server.
type Item struct {
	// Name is the raw name, unescaped: of a resource its URI, of a template the
	// template.
	Name string
	// Definition is the object as the server sent it. Of a tool only a missing or
	// non-object inputSchema was repaired (R48, decision 22).
	Definition jsontext.Value
	// Digest is the SHA-256 of the canonical Definition, hex: members sorted,
	// no white space, strings in one spelling. Numbers count as written,
	// because 2^53 and 2^53+1 must not be the same definition. A Definition with
	// half a pair of surrogates has no canonical form and counts as written.
	Digest string
}

// List asks for all definitions of a kind, in the order of the server. A server
// that did not advertise them is not asked and has none; nor has one that does
// not know the method. Definitions without a usable name, or with one that is too long, with a member named
// twice or with a name already taken are left out; dropped is how many.
//
// Errors: that of ctx, [ErrLost], or a fault of kind list_tools_failed.
func (c *Conn) List(ctx context.Context, what List) (items []Item, dropped int, err error) {
	l := listing{List: what, names: make(map[string]bool), anyCursor: c.own != nil}
	if !c.has(what.capability) {
		return nil, 0, nil
	}
	var cursor jsontext.Value
	cursors := make(map[string]bool)
	for range maxPages {
		var params []byte
		if cursor != nil {
			params = append(append([]byte(`{"cursor":`), cursor...), '}')
		}
		reply, err := c.Call(ctx, what.Method, redact.NewRaw(params), CallOptions{})
		switch {
		case err != nil:
			return nil, 0, err
		case reply.Error != nil && methodNotFound(reply.Error):
			return l.items, l.dropped, nil
		case reply.Error != nil:
			return nil, 0, listFailed(redact.Static("the server answered with an error"))
		}
		if cursor, err = l.page(reply.Result); err != nil {
			return nil, 0, err
		}
		if cursor == nil {
			if what == Tools {
				items, left := c.repeats(l.items)
				return items, l.dropped + left, nil
			}
			return l.items, l.dropped, nil
		}
		if cursors[string(cursor)] {
			return nil, 0, listFailed(redact.Static("the server gave the same cursor twice"))
		}
		cursors[string(cursor)] = true
	}
	return nil, 0, listFailed(redact.Static("the server has more than 1000 pages of a list"))
}

func listFailed(text redact.EventText) error {
	return fault.New("live.list", fault.ListToolsFailed, text)
}

// has reports whether the server advertised a capability.
func (c *Conn) has(capability string) bool {
	v, _, err := findOnce(c.info.Capabilities, capability)
	return err == nil && v.Kind() == '{'
}

func methodNotFound(e []byte) bool {
	code, _, err := findOnce(e, "code")
	n, ok := integer(code)
	return err == nil && ok && n == -32601
}

// listing collects pages.
type listing struct {
	List
	// anyCursor says that an empty cursor is one like others, as MCP 2026-07-28 has it.
	// The revisions before do not speak of it, and servers end their lists with it.
	anyCursor              bool
	items                  []Item
	names                  map[string]bool
	listed, bytes, dropped int
}

// page takes the definitions of one result and returns the cursor of the next page,
// nil after the last one.
func (l *listing) page(result []byte) (jsontext.Value, error) {
	var list, next jsontext.Value
	err := members(result, func(name string, value jsontext.Value, _ int) error {
		switch name {
		case l.Name:
			list = value
		case "nextCursor":
			next = value
		}
		return nil
	})
	// Go servers write null for an empty list.
	if err == nil && list.Kind() != 'n' {
		err = elements(list, l.add)
	}
	switch {
	case err == errTooMany:
		return nil, listFailed(redact.Static("the server lists more than 10000 items or 64 MiB of definitions"))
	case err != nil:
		return nil, listFailed(redact.Static("the server answered without a list"))
	case next == nil, next.Kind() == 'n', string(next) == `""` && !l.anyCursor:
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
	if l.listed > maxItems || l.bytes > maxListBytes {
		return errTooMany
	}
	item, ok := l.read(definition)
	if !ok || l.names[item.Name] {
		l.dropped++
		return nil
	}
	l.names[item.Name] = true
	l.items = append(l.items, item)
	return nil
}

// read reads one definition. It refuses what has no name that is more than
// blank, or one that is too long, or names a member twice at any depth.
func (l *listing) read(definition jsontext.Value) (Item, bool) {
	var name, schema jsontext.Value
	at, size := -1, 0
	err := members(definition, func(key string, value jsontext.Value, offset int) error {
		switch key {
		case l.key:
			name = value
		case "inputSchema":
			schema, at, size = value, offset, len(value)
		}
		return nil
	})
	longest := maxURI
	if l.key == "name" {
		longest = maxName
	}
	if called := text(name); err != nil || strings.TrimSpace(called) == "" || len(called) > longest {
		return Item{}, false
	}
	switch {
	case l.List != Tools:
		definition = bytes.Clone(definition) // the page is not kept for it
	case at < 0:
		// The object has a member, the name, so a comma is right.
		definition = replace(definition, len(definition)-1, 0, []byte(`,"inputSchema":`+anySchema))
	case schema.Kind() != '{':
		definition = replace(definition, at, size, []byte(anySchema))
	default:
		definition = bytes.Clone(definition)
	}
	canonical := definition.Clone()
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		// A text that a server cut in the middle of an emoji ends in half a pair of
		// surrogates, for which there is no canonical form.
		if !definition.IsValid(jsontext.AllowInvalidUTF8(true)) {
			return Item{}, false
		}
		canonical = definition
	}
	sum := sha256.Sum256(canonical)
	return Item{Name: text(name), Definition: definition, Digest: hex.EncodeToString(sum[:])}, true
}
