package redact

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/internal/mint"
)

// Window is what may be kept of a text that is too long to be kept: the durable
// view of its beginning.
type Window struct {
	Text DurableText
	// Chars counts the characters of Text.
	Chars int
	// Truncated says that the text goes on.
	Truncated bool
	// Failed says that redaction failed and Text is the marker (R127).
	Failed bool
}

// Head makes the durable view of the beginning of a text, at most limit
// characters (R125). Raw holds some more than that, and the secrets are looked for
// in all of it: one that begins before the limit and ends behind it is hidden
// whole. More says that the text goes on behind raw. Lines stay; what does not
// print is escaped, so that nobody's terminal obeys it.
//
// A secret so long that raw may end within it fails the redaction.
func (r *Redactor) Head(raw Raw[string], limit int, more bool) (w Window) {
	defer func() {
		if recover() != nil {
			w = failedWindow()
		}
	}()
	s := raw.Reveal()
	end := offset(s, limit)
	if more && len(s)-end < r.reach() {
		return failedWindow()
	}
	text, rest := lines(r.part(s, 0, end, durable), limit)
	return Window{
		Text: mint.New[forDurable](text), Chars: utf8.RuneCountInString(text), Truncated: more || rest || end < len(s),
	}
}

func failedWindow() Window {
	return Window{Text: mint.New[forDurable](redactionFailed), Chars: len(redactionFailed), Failed: true}
}

// Tail makes the event view of the end of a text: one line of at most limit
// characters. Less says that the text begins before raw. A redaction that fails,
// for the reasons of Head, gives the marker.
func (r *Redactor) Tail(raw Raw[string], limit int, less bool) (t EventText) {
	defer func() {
		if recover() != nil {
			t = mint.New[forEvent](redactionFailed)
		}
	}()
	s := raw.Reveal()
	begin := 0
	if n := utf8.RuneCountInString(s); n > limit {
		begin = offset(s, n-limit)
	}
	if less && begin < r.reach() {
		return mint.New[forEvent](redactionFailed)
	}
	line := strings.Join(strings.Fields(valid(r.part(s, begin, len(s), event))), " ")
	line = printable(line, math.MaxInt)
	if n := utf8.RuneCountInString(line); n > limit {
		line = line[offset(line, n-limit):]
	}
	return mint.New[forEvent](line)
}

// Join puts event views together.
func Join(parts ...EventText) EventText {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.String())
	}
	return mint.New[forEvent](b.String())
}

// offset is where the character behind the first n begins. A byte that is none of
// a character counts as one.
func offset(s string, n int) int {
	for i := range s {
		if n--; n < 0 {
			return i
		}
	}
	return len(s)
}

// reach is how long the longest secret may be in any encoding; an escape like
// \u0041 is the longest form of a byte.
func (r *Redactor) reach() int {
	longest := 0
	for _, e := range r.entries {
		longest = max(longest, len(e.value))
	}
	return 6 * longest
}

// part is what a view shows of s from one offset to another. A secret that lies
// across one of them is hidden as a whole.
func (r *Redactor) part(s string, from, to, view int) string {
	var b strings.Builder
	at := from
	var e *entry
	for _, f := range r.perView(r.search(s))[view] {
		if f.end <= at || f.start >= to {
			continue
		}
		e = r.entry(f, s, view, e)
		b.WriteString(s[at:max(at, f.start)])
		b.WriteString(e.marker(view))
		at = f.end
	}
	if at < to {
		b.WriteString(s[at:to])
	}
	return b.String()
}

// lines escapes what does not print, but for the ends of lines and tabs, and keeps
// at most limit characters. More says that there were others.
func lines(s string, limit int) (kept string, more bool) {
	var out []rune
	for _, c := range strings.ReplaceAll(s, "\r\n", "\n") {
		if c != '\n' && c != '\t' && unicode.In(c, unicode.C, unicode.Zl, unicode.Zp) {
			out = append(out, []rune(fmt.Sprintf(`\u%04x`, c))...)
		} else {
			out = append(out, c) // what was no character is U+FFFD by now
		}
		if len(out) > limit {
			return string(out[:limit]), true
		}
	}
	return string(out), false
}
