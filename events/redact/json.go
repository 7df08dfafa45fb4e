package redact

import (
	"cmp"
	"slices"
	"strings"
)

// failedJSON is every view of JSON that could not be redacted (R122).
const failedJSON = `"` + redactionFailed + `"`

// maxNesting bounds JSON in strings of JSON.
const maxNesting = 3

// JSON makes the views of a JSON text, each a JSON text again. Only strings,
// member names included, and numbers that hold a secret or are governed by a
// sensitive name change; all else is byte for byte the original. A value that
// is hidden whole is, in the event and durable views, {"redacted":true,
// "name":…,"source":…}, with a fingerprint in the debug view (R119). What is
// no JSON, or deeper than 256 levels, fails.
func (r *Redactor) JSON(raw Raw[[]byte]) (v Views) {
	return r.jsonViews(string(raw.Reveal()), fiveViews)
}

func (r *Redactor) jsonViews(src string, made []int) (v Views) {
	defer failClosed(&v, failedJSON)
	defer queue(len(src))()
	t, err := r.json(src, 0, made)
	if err != nil {
		return failed(failedJSON)
	}
	return t.views()
}

// edit replaces a token in all views.
type edit struct {
	start, end int
	texts      texts
}

func (r *Redactor) json(text string, nesting int, made []int) (texts, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	tokens, err := p.tokenize(text)
	if err != nil {
		return texts{}, err
	}
	found := r.sift(text)
	hits := r.scan(nil, &level{text: text}, found)
	slices.SortFunc(hits, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var edits []edit
	ahead := touching{hits: hits}
	for _, t := range tokens {
		start, end := int(t.start), int(t.end)
		over := ahead.next(start, end)
		if len(over) == 0 && t.field == none && !r.fieldOnly &&
			(t.kind == '0' || t.has.quiet(end-start-len(`""`)) && (found.none() || t.has&hasBlank == 0)) {
			continue
		}
		if out, ok := r.token(p, t, over, nesting, found.none(), made); ok {
			edits = append(edits, edit{start, end, out})
		}
	}
	return splice(text, edits, made), nil
}

// touching finds the hits that touch each of ranges that come in order. One that is
// long stays, and those beside it are not looked at again.
type touching struct{ hits, over []span }

// next returns what touches the next range, good until the one after it.
func (t *touching) next(start, end int) []span {
	ended := func(s span) bool { return s.end <= start }
	t.over = slices.DeleteFunc(t.over, ended)
	for ; len(t.hits) > 0 && t.hits[0].start < end; t.hits = t.hits[1:] {
		if !ended(t.hits[0]) {
			t.over = append(t.over, t.hits[0])
		}
	}
	return t.over
}

func splice(text string, edits []edit, made []int) texts {
	if len(edits) == 0 {
		return same(text)
	}
	var out texts
	for _, view := range made {
		if !slices.ContainsFunc(edits, func(e edit) bool { return e.texts[view] != text[e.start:e.end] }) {
			out[view] = text
			continue
		}
		var b strings.Builder
		at := 0
		for _, e := range edits {
			b.WriteString(text[at:e.start])
			b.WriteString(e.texts[view])
			at = e.end
		}
		b.WriteString(text[at:])
		out[view] = b.String()
	}
	return out.filled(made)
}

// token makes the views of a token. over are the secrets in the source that
// touch it; they may begin before it or end after it. sifted says that there are
// none with blanks in them either.
func (r *Redactor) token(p *parser, t token, over []span, nesting int, sifted bool, made []int) (out texts, changed bool) {
	src := p.src[t.start:t.end]
	value, has := p.decoded(t)
	if t.field != none && value != "" && !isMarker(value) {
		return r.field(p.of(t.field), value), true
	}
	if e := r.ownField(p, t, value); e != nil {
		return e.field(), true
	}
	var inner texts
	var found []span
	nested := false
	if t.kind == '"' {
		if !t.name && nesting < maxNesting && isContainer(value) {
			var err error
			inner, err = r.json(value, nesting+1, made)
			nested = err == nil
		}
		// What stands in the source as it is was looked for there.
		plainly := value == src[1:len(src)-1] && has&hasEscape == 0 && (sifted || has&hasBlank == 0)
		switch {
		case nested:
		case len(over) > 0 || !plainly:
			found = r.search(value)
		default:
			found = findShapes(value, has)
		}
	}
	if !nested && len(over) == 0 && len(found) == 0 {
		return out, false
	}
	var hits [5][]span
	parts, as := r.perView(found), src
	if !isAll(parts[event], value) || slices.ContainsFunc(over, r.visible) {
		hits = r.perView(over)
	}
	for _, view := range made {
		spans, text := parts[view], value
		if nested {
			text = inner[view]
		} else {
			text = r.replace(value, spans, view)
		}
		out[view] = as
		if text != value {
			out[view] = quote(text)
		}
		if isAll(spans, value) {
			out[view] = r.entry(spans[0], value, view, nil).whole(view, t.name)
		} else if text != value || len(hits[view]) > 0 {
			// Does the token still spell a secret? Then it is a number, or the
			// secret spans tokens or holds escapes itself: nothing may stay.
			left := r.perView(r.spelled(out[view]))[view]
			for _, h := range hits[view] {
				if h.start < int(t.start) || h.end > int(t.end) {
					left = append(left, h)
				}
			}
			if len(left) > 0 {
				out[view] = r.entries[left[0].secret].whole(view, t.name)
			}
		}
		changed = changed || out[view] != as
	}
	return out.filled(made), changed
}

// isAll says that spans, which are merged, are all of s.
func isAll(spans []span, s string) bool {
	return len(spans) == 1 && spans[0].start == 0 && spans[0].end == len(s)
}

// isContainer says that s is an object or an array, if it is JSON.
func isContainer(s string) bool {
	for i := range len(s) {
		if !blank(s[i]) {
			return s[i] == '{' || s[i] == '['
		}
	}
	return false
}

// field hides the value of a field with a sensitive name. A secret that is
// known keeps its own name.
func (r *Redactor) field(name, value string) texts {
	e := entry{name: r.safe(label(name)), source: "field", value: value}
	if i := slices.IndexFunc(r.entries, func(e entry) bool { return e.value == value && !e.stored }); i >= 0 {
		e = r.entries[i]
	}
	return e.field()
}

// ownField finds the secret that is too short for text and hidden as the
// value of a field of its own name (R120).
func (r *Redactor) ownField(p *parser, t token, value string) *entry {
	if !r.fieldOnly {
		return nil
	}
	for i := range r.entries {
		e := &r.entries[i]
		if e.fieldOnly && !e.stored && !t.name && e.value != "" && e.value == value && normalName(p.of(t.key)) == normalName(lastPart(e.name)) {
			return e
		}
	}
	return nil
}

// lastPart is NAME of mcp.env:NAME.
func lastPart(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }

func (e *entry) field() (out texts) {
	for view := range out {
		out[view] = e.whole(view, false)
	}
	return out
}

// whole is the JSON that stands for a hidden value: the structured form in
// what is stored, but for member names, which are strings.
func (e *entry) whole(view int, name bool) string {
	if name || view == model || view == operator {
		return quote(e.marker(view))
	}
	out := `{"redacted":true,"name":` + quote(e.name) + `,"source":` + quote(e.source)
	if view == debug {
		out += `,"fingerprint":` + quote(fingerprint(e.value))
	}
	return out + "}"
}

// isMarker says that a value was hidden before.
func isMarker(s string) bool {
	return s == redactionFailed ||
		strings.HasPrefix(s, "<redacted") && strings.HasSuffix(s, ">") && !strings.ContainsAny(s[1:len(s)-1], "<> ")
}
