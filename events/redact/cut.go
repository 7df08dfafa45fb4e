package redact

import (
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/internal/mint"
)

// Cut shortens a view to at most limit bytes, at the end of a character, and
// says whether anything was left out. A view is cut after redaction, never
// before it: the head of a secret at the cut would stay.
func Cut(t EventText, limit int) (cut EventText, truncated bool) {
	s := t.String()
	if len(s) <= limit {
		return t, false
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return mint.New[forEvent](s[:limit]), true
}
