// Package redact keeps secrets out of every place but the one they are for.
//
// What comes from outside, or may hold a secret, is a Raw: it prints as
// "<raw>" and does not encode. A Redactor that knows the secrets in play
// makes the five views of it (R119), each a type of its own that fits only
// where it belongs. Nobody else can make one, apart from Static, of constants,
// and Name, of identifiers.
//
// One engine looks for known values: as they are, and in the encodings in which
// they travel. Another knows secrets by their shape: the name before them, their
// place in a URL, the form of a token. Every search is over the original text,
// matches that overlap are cut out as one, and replaced text is never searched
// again. The time is linear in the text. Whatever goes wrong, all five views
// become "<redaction-failed>" (R122).
package redact

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/internal/mint"
)

// redactionFailed is every view of what could not be redacted (R122).
const redactionFailed = "<redaction-failed>"

// A Secret is a value that no view may show. Name and Source are shown in its
// place and stored in the log: GITHUB_TOKEN, mcp.env:GITHUB_TOKEN.
type Secret struct {
	Name   string
	Source string
	Value  Raw[string]
}

// A Redactor makes views. It is immutable and safe for concurrent use.
type Redactor struct {
	entries []entry
	// layers has one for each call of With, so that what is built of the secrets of
	// a connection is not built for each call; sieve is that of all of them.
	layers []*layer
	sieve  sieve
	// fieldOnly says that an entry is.
	fieldOnly bool
}

// entry is what is shown of a secret.
type entry struct {
	name      string // safe to print, empty when the name itself tells the value
	source    string
	value     string
	shape     string // what name was made of, of one that is shaped
	stored    bool   // hidden in the stored views only
	fieldOnly bool   // hidden only as the value of a field of its name (R120)
}

// maxForms bounds the forms of the secrets of one layer, in bytes together.
const maxForms = 64 << 20

// NewRedactor makes a redactor that hides the secrets in every view. A secret
// without a name is an error, and so are secrets of more than 64 MiB in all
// their encodings together.
func NewRedactor(secrets ...Secret) (*Redactor, error) { return (&Redactor{}).With(secrets...) }

// With returns a redactor that hides more secrets in every view.
func (r *Redactor) With(more ...Secret) (*Redactor, error) { return r.with(more, false) }

// WithStored returns a redactor that hides more secrets in the views that are
// stored or logged (event, durable, debug) and leaves them in those of the
// model and the operator. It is for the arguments of a call, which the model
// wrote and no disk may hold (R118): they are looked for as they are and
// escaped, and of long ones any larger part.
func (r *Redactor) WithStored(more ...Secret) (*Redactor, error) { return r.with(more, true) }

func (r *Redactor) with(more []Secret, stored bool) (*Redactor, error) {
	if len(more) == 0 {
		return r, nil
	}
	base := len(r.entries)
	out := &Redactor{entries: slices.Clone(r.entries), layers: slices.Clone(r.layers), sieve: r.sieve, fieldOnly: r.fieldOnly}
	var forms, long []pattern
	size := 0
	for i, s := range more {
		if s.Name == "" {
			return nil, errors.New("redact: a secret has no name")
		}
		value := s.Value.Reveal()
		out.entries = append(out.entries, entry{
			name:      label(s.Name),
			source:    label(s.Source),
			value:     value,
			stored:    stored,
			fieldOnly: plain(strings.TrimSpace(value)),
		})
		out.fieldOnly = out.fieldOnly || out.entries[base+i].fieldOnly && !stored
		for _, p := range patterns(value, base+i, stored) {
			size += len(p.text)
			forms = append(forms, p)
		}
		if v := strings.TrimSpace(value); stored && len(v) >= longPattern {
			size += 8 * len(v)
			long = append(long, pattern{text: v, secret: base + i})
		}
		if size > maxForms {
			return nil, errors.New("redact: the secrets are too large")
		}
	}
	added := newLayer(forms, long, base == 0 && !stored) // arguments are those of one call
	out.layers, out.sieve = append(out.layers, added), out.sieve.join(added.sieve)
	relabel := out.entries
	if stored {
		relabel = out.entries[base:]
	}
	for i := range relabel {
		// A name that holds the value of a secret would print it.
		e := &relabel[i]
		e.name, e.source = out.safe(e.name), out.safe(e.source)
	}
	return out, nil
}

// safe returns a label, or nothing when it holds a secret.
func (r *Redactor) safe(label string) string {
	if len(r.entries) > 0 && slices.ContainsFunc(r.search(label), r.visible) {
		return ""
	}
	return label
}

// visible says that the secret of s is hidden in every view.
func (r *Redactor) visible(s span) bool { return s.secret == shaped || !r.entries[s.secret].stored }

// entry is what is shown of the secret of s in text. last is the one before, which
// often has the same name.
func (r *Redactor) entry(s span, text string, view int, last *entry) *entry {
	if s.secret != shaped {
		return &r.entries[s.secret]
	}
	e := entry{source: "text"}
	if last != nil && last.shape == s.name {
		e = *last
	} else if view != model {
		e.name, e.shape = r.safe(label(s.name)), s.name
	}
	e.value = text[s.start:s.end]
	return &e
}

// label makes a name fit for a marker: 64 characters without spaces, quotes
// and angle brackets.
func label(name string) string {
	name = strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf && (letterOrDigit(c) || strings.ContainsRune("_-./:", c)) {
			return c
		}
		return '_'
	}, name)
	return name[:min(len(name), 64)]
}

// fingerprint is 16 hex digits of the SHA-256 of a value.
func fingerprint(value string) string {
	h := sha256.New()
	var part [1 << 10]byte // a large value is not copied
	for len(value) > 0 {
		n := copy(part[:], value)
		h.Write(part[:n])
		value = value[n:]
	}
	return hex.EncodeToString(h.Sum(part[:0])[:8])
}

// The views in the order of the arrays of this package.
const (
	model = iota
	operator
	event
	durable
	debug
)

// The views that are made of a text. The durable one is the event's; where nobody
// debugs, the debug view is that as well.
var (
	fiveViews = []int{model, operator, event, debug}
	liveViews = []int{model, operator, event}
)

// texts are the five views before they get their types.
type texts [5]string

// filled has what was not made of its own.
func (t texts) filled(made []int) texts {
	t[durable] = t[event]
	if len(made) < len(fiveViews) {
		t[debug] = t[event]
	}
	return t
}

func (t texts) views() Views {
	return Views{
		Model:    mint.New[forModel](t[model]),
		Operator: mint.New[forOperator](valid(t[operator])),
		Event:    mint.New[forEvent](valid(t[event])),
		Durable:  mint.New[forDurable](valid(t[durable])),
		Debug:    mint.New[forDebug](valid(t[debug])),
	}
}

// valid makes text fit for the log and a screen; the model's view alone keeps
// the bytes as they came.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// same is one text for all views.
func same(s string) texts { return texts{s, s, s, s, s} }

// failed are the views of what could not be redacted, as text or JSON.
func failed(marker string) Views {
	v := same(marker).views()
	v.Failed = true
	return v
}

// failClosed is deferred by what makes views: after a panic all of them are
// the marker.
func failClosed(v *Views, marker string) {
	if recover() != nil {
		*v = failed(marker)
	}
}

// Text makes the views of a text. It never fails otherwise than by
// Views.Failed.
func (r *Redactor) Text(raw Raw[string]) (v Views) { return r.textViews(raw.Reveal(), fiveViews) }

func (r *Redactor) textViews(s string, made []int) (v Views) {
	defer failClosed(&v, redactionFailed)
	defer queue(len(s))()
	return r.text(s, made).views()
}

// Large texts wait for each other, so that half of the processors stay free for
// the others: a result of 16 MiB takes its time.
const large = 256 << 10

var slots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// queue waits for the turn of a text of so many bytes, and returns what ends it.
func queue(size int) (leave func()) {
	if size < large {
		return func() {}
	}
	slots <- struct{}{}
	return func() { <-slots }
}

func (r *Redactor) text(s string, made []int) texts {
	found := r.search(s)
	if len(found) == 0 {
		return same(s)
	}
	var out texts
	spans := r.perView(found)
	for _, view := range made {
		out[view] = r.replace(s, spans[view], view)
	}
	return out.filled(made)
}

// search finds all secrets in s, at every level of encoding, in no order.
func (r *Redactor) search(s string) []span {
	var out []span
	last := &level{text: s}
	var found sifted
	for n, l := 0, last; n <= maxLevels && l != nil; n, l = n+1, l.unescape() {
		found = r.sift(l.text)
		out = r.scan(out, l, found)
		for _, f := range findShapes(l.text, skim(l.text)) {
			out = append(out, f.on(l))
		}
		last = l
	}
	if found.none() {
		return out
	}
	for i, layer := range r.layers {
		if found.has(i) {
			for _, f := range layer.matcher(i, found).findSqueezed(last.text) {
				out = append(out, f.on(last))
			}
		}
	}
	return out
}

// on maps a span of the text of l to the text that the levels began with.
func (f span) on(l *level) span {
	f.start, f.end = l.origin(f.start), l.origin(f.end)
	return f
}

// scan adds the known secrets that l itself spells, of those that found says may
// be there.
func (r *Redactor) scan(spans []span, l *level, found sifted) []span {
	for i, layer := range r.layers {
		if found.has(i) {
			for _, f := range layer.matcher(i, found).find(l.text) {
				spans = append(spans, f.on(l))
			}
		}
		echoed := layer.echo.find(l.text)
		for _, f := range echoed {
			spans = append(spans, f.on(l))
		}
		for _, f := range layer.encodings(l.text, echoed) {
			spans = append(spans, f.on(l))
		}
	}
	return spans
}

// spelled finds the known secrets that s itself spells.
func (r *Redactor) spelled(s string) []span { return r.scan(nil, &level{text: s}, r.sift(s)) }

// perView returns what of found is hidden in each view, merged.
func (r *Redactor) perView(found []span) (spans [5][]span) {
	if len(found) == 0 {
		return spans
	}
	everything := mergeSpans(slices.Clone(found))
	visible := everything
	if slices.ContainsFunc(found, func(s span) bool { return !r.visible(s) }) {
		visible = mergeSpans(slices.DeleteFunc(slices.Clone(found), func(s span) bool { return !r.visible(s) }))
	}
	return [5][]span{visible, visible, everything, everything, everything}
}

func (r *Redactor) replace(s string, spans []span, view int) string {
	if len(spans) == 0 {
		return s
	}
	var b strings.Builder
	at := 0
	var e *entry
	for _, f := range spans {
		e = r.entry(f, s, view, e)
		b.WriteString(s[at:f.start])
		b.WriteString(e.marker(view))
		at = f.end
	}
	b.WriteString(s[at:])
	return b.String()
}

// marker is the text form of a hidden value (R119).
func (e *entry) marker(view int) string {
	switch {
	case view == debug:
		return "<redacted:" + e.name + ":" + fingerprint(e.value) + ">"
	case view == model || e.name == "":
		return "<redacted>"
	default:
		return "<redacted:" + e.name + ">"
	}
}

// maxError bounds the views of an error, in characters (R123).
const maxError = 500

// Error makes the views of an error at the operation op: op, the type and the
// message in one line of at most 500 characters. An error whose method panics
// gives the marker (R123).
func (r *Redactor) Error(op string, err Raw[error]) (v Views) {
	defer failClosed(&v, redactionFailed)
	e := err.Reveal()
	s := fmt.Sprintf("%T: %s", e, e.Error())
	if op != "" {
		s = op + ": " + s
	}
	return r.Line(NewRaw(s))
}
