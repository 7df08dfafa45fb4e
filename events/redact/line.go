package redact

import "strings"

// Line makes the views of a short text that somebody else wrote: one line of at
// most 500 characters, with nothing in it that does not print.
func (r *Redactor) Line(raw Raw[string]) (v Views) {
	defer failClosed(&v, redactionFailed)
	t := r.text(raw.Reveal())
	for view := range t {
		t[view] = printable(strings.Join(strings.Fields(t[view]), " "), maxError)
	}
	return t.views()
}
