package live

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// annotation is the member of a schema that names the header which repeats a
// parameter of a tool (MCP 2026-07-28, custom headers).
const annotation = "x-mcp-header"

// maxPath is how deep a parameter may be that is repeated. Each level is read anew.
const maxPath = 64

// repeats tells a transport with headers which parameters the calls of tools repeat
// in them. A tool that says so in a way that is not allowed is left out and counted,
// as nobody knows how it wants to be called.
func (c *Conn) repeats(tools []Item) (usable []Item, left int) {
	t, ok := c.transport.(Stateless)
	if !ok || c.own == nil {
		return tools, 0
	}
	headers := make(map[string]map[string][]string)
	usable = slices.DeleteFunc(tools, func(tool Item) bool {
		schema, _, err := findOnce(tool.Definition, "inputSchema")
		paths := make(map[string][]string)
		if err == nil {
			err = annotated(schema, nil, paths)
		}
		if err == nil && len(paths) > 0 {
			headers[tool.Name] = paths
		}
		return err != nil
	})
	t.Repeat(headers)
	return usable, len(tools) - len(usable)
}

// annotated collects the paths of the parameters of a schema that are repeated, by
// the name of the header in lower case.
func annotated(schema jsontext.Value, path []string, into map[string][]string) error {
	if schema.Kind() != '{' || len(path) > maxPath || !bytes.Contains(schema, []byte(annotation)) && bytes.IndexByte(schema, '\\') < 0 {
		return nil // in a text without escapes a name stands as it is
	}
	properties, _, err := findOnce(schema, "properties")
	if err != nil || properties.Kind() != '{' {
		return err
	}
	return members(properties, func(name string, property jsontext.Value, _ int) error {
		if property.Kind() != '{' {
			return nil // true and false are schemas too
		}
		path := append(slices.Clip(path), name)
		var header, kind jsontext.Value
		if err := members(property, func(name string, value jsontext.Value, _ int) error {
			switch {
			case name == annotation && header == nil:
				header = value
			case name == "type" && kind == nil:
				kind = value
			case name == annotation, name == "type":
				return errShape
			}
			return nil
		}); err != nil {
			return err
		}
		if header != nil {
			name := strings.ToLower(text(header))
			if header.Kind() != '"' || !token(name) || into[name] != nil || !slices.Contains([]string{"string", "integer", "boolean"}, text(kind)) {
				return errShape
			}
			into[name] = path
		}
		return annotated(property, path, into)
	})
}

// token reports whether a header can have the name (RFC 9110, 5.6.2).
func token(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
