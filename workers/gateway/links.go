package gateway

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/fault"
)

// maxLinks bounds the resources that an attachment remembers of results.
const maxLinks = 1000

// links are resources that results have named, and whose they are. A server need not
// list them (MCP 2025-11-25, tools, resource links), and at the endpoint of all nothing
// in a URI says where it is read. It belongs to an attachment and is guarded by its mu.
type links struct {
	servers map[string]string // by URI; empty for what several have named
	order   []string          // oldest first
}

var resourceLink = []byte(`"resource_link"`)

// linked are the URIs that a result of a tool or a prompt names.
func linked(result []byte) (uris []string) {
	if !bytes.Contains(result, resourceLink) {
		return nil
	}
	type content struct {
		Type string `json:"type"`
		URI  string `json:"uri"`
	}
	var r struct {
		Content  []jsontext.Value `json:"content"`
		Messages []struct {
			Content jsontext.Value `json:"content"`
		} `json:"messages"`
	}
	// What cannot be read names nothing.
	_ = json.Unmarshal(result, &r, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for _, m := range r.Messages {
		r.Content = append(r.Content, m.Content)
	}
	for _, raw := range r.Content {
		var c content
		if json.Unmarshal(raw, &c, jsontext.AllowInvalidUTF8(true)) == nil && c.Type == "resource_link" && c.URI != "" {
			uris = append(uris, c.URI)
		}
	}
	return uris
}

// link remembers what a result of a server links to.
func (a *attachment) link(server string, result []byte) {
	if a.at.server != "" { // there is no other
		return
	}
	uris := linked(result)
	if len(uris) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := &a.links
	if l.servers == nil {
		l.servers = map[string]string{}
	}
	for _, uri := range uris {
		switch before, known := l.servers[uri]; {
		case !known:
			l.servers[uri] = server
			l.order = append(l.order, uri)
		case before != server: // else one could take the place of another
			l.servers[uri] = ""
		}
		if len(l.order) > maxLinks {
			delete(l.servers, l.order[0])
			l.order = l.order[1:]
		}
	}
}

// target is that of the turn, and for a resource that no server lists the server whose
// result has named it, as long as that is connected.
func (a *attachment) target(t *turn, m message) (target, *rpcError) {
	to, bad := t.target(a.at.server, m)
	if bad == nil || bad.Data.Kind != fault.NotFound || !strings.HasPrefix(m.method, "resources/") {
		return to, bad
	}
	uri := text(m.uri)
	a.mu.Lock()
	server := a.links.servers[uri]
	a.mu.Unlock()
	if server == "" || !slices.Contains(t.Servers, server) {
		return to, bad
	}
	return target{server, "", m.params}, nil
}
