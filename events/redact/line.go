package redact

import "strings"

// Line makes the views of a short text that somebody else wrote: one line of at
// most 500 characters, with nothing in it that does not print.
func (r *Redactor) Line(raw Raw[string]) (v Views) {
	defer failClosed(&v, redactionFailed)
	s := raw.Reveal()
	defer queue(len(s))()
	t := r.text(s, fiveViews)
	for view := range t {
		t[view] = printable(strings.Join(strings.Fields(t[view]), " "), maxError)
	}
	return t.views()
}
