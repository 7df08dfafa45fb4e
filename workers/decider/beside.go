package decider

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/events/turn"
)

// binding is what a turn binds of a server, but for a tool.
func (c choice) binding(name, key string, s connection.State) turn.Binding {
	return turn.Binding{
		Name: name, Server: c.ServerID, Connection: key, Fingerprint: c.Fingerprint, Catalog: s.Catalog, Generation: s.Generation,
		Capability: c.CallCapability(), Risk: string(c.Risk), Policy: string(c.ApprovalPolicy),
		TimeoutMS: c.CallTimeout.Milliseconds(), Reason: c.reason,
	}
}

// beside adds what a server lists beside its tools. A URI that two servers list is
// the first one's, in the order of the declarations: which one is read must not
// depend on what a server says.
func beside(out *client.Turn, server string, s connection.Snapshot) {
	add := func(into *[]client.Item, items []connection.SnapshotItem) {
		taken := make(map[string]bool, len(*into))
		for _, i := range *into {
			taken[i.RawName] = true
		}
		for _, i := range items {
			if !taken[i.Name] {
				*into = append(*into, client.Item{Name: i.Name, Server: server, RawName: i.Name, Definition: json.RawMessage(i.Definition)})
			}
		}
	}
	out.Servers = append(out.Servers, server)
	add(&out.Resources, s.Resources)
	add(&out.Templates, s.Templates)
	for _, i := range s.Prompts {
		out.Prompts = append(out.Prompts, client.Item{Server: server, RawName: i.Name, Definition: json.RawMessage(i.Definition)})
	}
}

// promptNames gives the prompts of a turn their visible names, which are made as
// those of tools (R42 to R46).
func promptNames(out *client.Turn, sources []toolname.Source, untouched bool) error {
	named, err := toolname.Assemble(sources, nil)
	if err != nil {
		return fault.Wrap("turn.prepare", fault.ToolNameCollision, redact.Static("the prompts of the servers cannot be named apart"), err)
	}
	type raw struct{ server, name string }
	visible := make(map[raw]string, len(named))
	for _, n := range named {
		visible[raw{n.ServerID, n.Raw}] = n.Name
	}
	for i := range out.Prompts {
		p := &out.Prompts[i]
		p.Name = visible[raw{p.Server, p.RawName}]
		if untouched {
			continue
		}
		if p.Definition, err = rename(p.Definition, p.Name); err != nil {
			return fault.New("turn.prepare", fault.Internal, redact.Static("a stored definition is no JSON object"))
		}
	}
	return nil
}

// rename is a definition with another name and nothing else changed (decision 22).
func rename(definition []byte, name string) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(definition), jsontext.AllowInvalidUTF8(true))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errNoObject
	}
	for dec.PeekKind() == '"' {
		member, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := member.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		if key != "name" {
			continue
		}
		quoted, err := jsontext.AppendQuote(nil, name)
		if err != nil {
			return nil, err
		}
		end := int(dec.InputOffset())
		return slices.Concat(definition[:end-len(value)], quoted, definition[end:]), nil
	}
	return nil, errNoObject
}

// names are the raw names of what a server lists.
func names(items []connection.SnapshotItem) []string {
	out := make([]string, len(items))
	for i := range items {
		out[i] = items[i].Name
	}
	return out
}
