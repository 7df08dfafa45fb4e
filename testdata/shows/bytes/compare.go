package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// reasons say why a door changes something.
var reasons = map[string]string{
	"name":        "at /mcp a tool or prompt has its visible name, <server>__<tool>, and nothing else of its definition changes (R42..R46, decision 22)",
	"order":       "at /mcp the tools of all servers are one list, by visible name, whatever the order in which servers came (R46)",
	"envelope":    "a list is Gatebus's own, of definitions: its pages and its other members are not the server's",
	"left out":    "a definition without a name, with a name already taken or with a member twice cannot be used (R133)",
	"schema":      "a missing input schema, or one that is no object, is repaired (R48)",
	"redaction":   "the server's own secrets are cut out of what it says",
	"result type": "a result says what it is in 2026-07-28, which a server of the handshake era does not (SEP-2322)",
	"keeping":     "what is read of a resource says how long it may be kept in 2026-07-28, which such a server does not either (SEP-2549)",
}

// ask sends a request, or one for each page of a list.
func ask(ctx context.Context, p peer, method, params string) (all []show.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		a, err := p.Do(ctx, method, params)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
		var page struct{ NextCursor json.RawMessage }
		if lists[method] == "" || a.Result == nil || json.Unmarshal(a.Result, &page) != nil || page.NextCursor == nil {
			return all, nil
		}
		if len(all) == 100 {
			return nil, errors.New("there is no end of pages")
		}
		params = `{"cursor":` + string(page.NextCursor) + `}`
	}
}

// items are the elements of the lists in all pages, as they are.
func items(pages []show.Answer, member string) (all []json.RawMessage, err error) {
	for _, a := range pages {
		var page map[string]json.RawMessage
		var some []json.RawMessage
		if a.Error != nil {
			return nil, fmt.Errorf("%s", a.Error)
		}
		if err := json.Unmarshal(a.Result, &page); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(page[member], &some); err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// named is the member that names a definition, "" where a client cannot use it.
func named(definition []byte, key string) string {
	if !jsontext.Value(definition).IsValid(jsontext.AllowInvalidUTF8(true)) { // names a member twice
		return ""
	}
	var d map[string]any
	_ = json.Unmarshal(definition, &d)
	s, _ := d[key].(string)
	return strings.TrimSpace(s)
}

// visible is the name of a tool at /mcp.
func visible(s server, raw string) string {
	return s.name + "__" + strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '_' || r == '-' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z') {
			return r
		}
		return '-'
	}, raw)
}

// params are those of a row at a door: a tool or prompt has the name that it has
// there.
func (d door) params(r row) string {
	var of struct {
		Name string
		Ref  struct{ Name string }
	}
	if !d.mapped || json.Unmarshal([]byte(r.params), &of) != nil || of.Name+of.Ref.Name == "" {
		return r.params
	}
	raw := of.Name + of.Ref.Name
	return strings.Replace(r.params, `"name":`+quote(raw), `"name":`+quote(visible(server{name: r.server}, raw)), 1)
}

// part is one thing to compare: what the server said, and what the door must make
// of it, with the kinds of change that takes.
type part struct {
	direct, want []byte
	kinds        map[string]int
}

func (p *part) change(kind string, want []byte) {
	if !bytes.Equal(p.want, want) {
		p.want = want
		p.kinds[kind]++
	}
}

// expected are the parts of what a door must answer, by name.
func (d door) expected(s server, r row, direct []show.Answer) (map[string]*part, error) {
	parts := map[string]*part{}
	add := func(name string, b []byte) *part {
		p := &part{direct: b, want: b, kinds: map[string]int{}}
		parts[name] = p
		if s.env != nil {
			p.change("redaction", redacted(b))
		}
		return p
	}
	if member := lists[r.method]; member != "" {
		return parts, d.list(s, member, direct, add)
	}
	a := direct[0]
	switch {
	case a.Error != nil:
		add("error", a.Error)
	default:
		p := add("result", a.Result)
		if d.stateless && r.method == "resources/read" && !bytes.Contains(a.Result, []byte(`"ttlMs"`)) {
			p.change("keeping", prepended(p.want, `"ttlMs":0,"cacheScope":"private"`))
		}
		if d.stateless && !bytes.Contains(a.Result, []byte(`"resultType"`)) {
			p.change("result type", prepended(p.want, `"resultType":"complete"`))
		}
	}
	for i, b := range progress(a) {
		add(fmt.Sprintf("progress %d", i+1), b)
	}
	return parts, nil
}

// prepended is an object with members before its own.
func prepended(object []byte, members string) []byte {
	rest := bytes.TrimLeft(bytes.TrimLeft(object, " ")[1:], " ")
	if rest[0] != '}' {
		members += ","
	}
	return slices.Concat([]byte("{"+members), rest)
}

// list expects a list: its order, and each item.
func (d door) list(s server, member string, direct []show.Answer, add func(string, []byte) *part) error {
	all, err := items(direct, member)
	if err != nil {
		return err
	}
	var names, shown []string
	for _, b := range all {
		raw := named(b, keys[member])
		if raw == "" || slices.Contains(names, raw) {
			continue
		}
		seen := raw
		if d.mapped && keys[member] == "name" {
			seen = visible(s, raw)
		}
		names, shown = append(names, raw), append(shown, seen)
		p := add(seen, b)
		if member == "tools" {
			p.change("schema", repaired(p.want))
		}
		if seen != raw {
			p.change("name", renamed(p.want, seen))
		}
	}
	if len(names) == 0 {
		return errors.New("the server lists nothing")
	}
	order := add("the order", []byte(strings.Join(shown, "\n")))
	if d.mapped && member == "tools" {
		slices.Sort(shown)
		order.change("order", []byte(strings.Join(shown, "\n")))
	}
	order.kinds["left out"] = len(all) - len(names)
	order.kinds["envelope"] = len(direct)
	return nil
}

// parts are those of an answer at a door.
func (d door) parts(s server, r row, got []show.Answer, own map[string]*part) (map[string][]byte, error) {
	parts := map[string][]byte{}
	if member := lists[r.method]; member != "" {
		all, err := items(got, member)
		var order []string
		for _, b := range all {
			name := named(b, keys[member])
			// Where all servers are, what has no prefix may be another's.
			if d.mapped && own[name] == nil && !strings.HasPrefix(name, s.name+"__") {
				continue
			}
			order = append(order, name)
			parts[name] = b
		}
		parts["the order"] = []byte(strings.Join(order, "\n"))
		return parts, err
	}
	a := got[0]
	if a.Error != nil {
		parts["error"] = a.Error
	} else {
		parts["result"] = a.Result
	}
	for i, b := range progress(a) {
		parts[fmt.Sprintf("progress %d", i+1)] = b
	}
	return parts, nil
}

// progress are the params of the notices of progress before an answer.
func progress(a show.Answer) (all [][]byte) {
	for _, b := range a.Before {
		var m struct {
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(b, &m) == nil && m.Method == "notifications/progress" {
			all = append(all, m.Params)
		}
	}
	return all
}

// repaired is a definition with an input schema.
func repaired(definition []byte) []byte {
	const any = `{"type":"object","properties":{}}`
	at, end := member(definition, "inputSchema")
	switch {
	case at == 0:
		return slices.Concat(definition[:len(definition)-1], []byte(`,"inputSchema":`+any+`}`))
	case definition[at] != '{':
		return slices.Concat(definition[:at], []byte(any), definition[end:])
	}
	return definition
}

// renamed is a definition with another name.
func renamed(definition []byte, name string) []byte {
	at, end := member(definition, "name")
	return slices.Concat(definition[:at], []byte(quote(name)), definition[end:])
}

// member finds the value of a member of an object.
func member(object []byte, name string) (at, end int) {
	dec := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() == '"' {
		key, _ := dec.ReadToken()
		is := key.String() == name
		var v jsontext.Value
		if v, err = dec.ReadValue(); is {
			return int(dec.InputOffset()) - len(v), int(dec.InputOffset())
		}
	}
	return 0, 0
}

// redacted is a text without the secret of odd, in the forms in which its tool
// tells it.
func redacted(b []byte) []byte {
	for _, form := range []string{token, base64.StdEncoding.EncodeToString([]byte(token))} {
		b = bytes.ReplaceAll(b, []byte(form), []byte("<redacted>"))
	}
	return b
}

func quote(s string) string {
	b, _ := json.Marshal(s) // any text
	return string(b)
}
