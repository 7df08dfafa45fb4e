package gateway

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// pageSize is how many definitions a list has before it is cut into pages.
const pageSize = 1000

// lists are the lists of an endpoint by method: the member of the result, which
// names them in a turn, and whose changes are told.
var lists = map[string]struct {
	member string
	kind   kinds
}{
	"tools/list":               {"tools", kindTools},
	"resources/list":           {"resources", kindResources},
	"resources/templates/list": {"resourceTemplates", kindResources},
	"prompts/list":             {"prompts", kindPrompts},
}

// beside sorts what the turn has for the endpoint of a server, "" for all.
func (t *turn) beside(server string) {
	t.lists = map[string][]jsontext.Value{}
	for _, tool := range t.Tools {
		t.lists["tools"] = append(t.lists["tools"], jsontext.Value(tool.Definition))
	}
	add := func(member string, items []client.Item) {
		for _, i := range items {
			t.lists[member] = append(t.lists[member], jsontext.Value(i.Definition))
		}
	}
	add("resources", t.Resources)
	add("resourceTemplates", t.Templates)
	add("prompts", t.Prompts)
	t.prompts = make(map[string]*client.Item, len(t.Prompts))
	for i := range t.Prompts {
		p := &t.Prompts[i]
		name := p.Name
		if server != "" {
			name = p.RawName
		}
		t.prompts[name] = p
	}
}

// list answers with the definitions as they are. Without a cursor it resolves the
// catalog; a cursor reads on in the one it was made of.
func (g *Gateway) list(ctx context.Context, a *attachment, m message, out *answer) {
	what := lists[m.method]
	ctx, cancel := a.bound(ctx)
	defer cancel()
	a.asked(what.kind)
	var t *turn
	from := 0
	if m.cursor != nil && m.cursor.Kind() != 'n' {
		if t, from = a.page(what.member, text(m.cursor)); t == nil {
			out.fail(newError(fault.InvalidInput, "the cursor is unknown; list again without one"))
			return
		}
	} else {
		var err error
		if t, err = a.prepare(ctx); err != nil {
			out.fail(g.failure(ctx, err))
			return
		}
	}
	list := t.lists[what.member]
	to := min(from+pageSize, len(list))
	size := 256
	for _, definition := range list[from:to] {
		size += len(definition) + 1
	}
	b := append(make([]byte, 0, size), '{')
	if out.stateless {
		b = append(b, g.hints("0")...)
	}
	b = append(append(append(b, '"'), what.member...), `":[`...)
	for i, definition := range list[from:to] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, definition...)
	}
	b = append(b, ']')
	if to < len(list) {
		next, _ := json.Marshal(strconv.Itoa(to) + "." + t.CatalogID)
		b = append(append(b, `,"nextCursor":`...), next...)
	}
	out.result(append(b, '}'))
}

// page finds the turn and the place of a cursor, "<place>.<catalog id>".
func (a *attachment) page(member, cursor string) (*turn, int) {
	place, catalog, _ := strings.Cut(cursor, ".")
	n, err := strconv.Atoi(place)
	if err != nil || n <= 0 {
		return nil, 0
	}
	return a.find(func(t *turn) bool { return t.CatalogID == catalog && n < len(t.lists[member]) }), n
}
