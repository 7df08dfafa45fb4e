package redact

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/internal/mint"
)

type (
	forModel    struct{}
	forOperator struct{}
	forEvent    struct{}
	forDurable  struct{}
	forDebug    struct{}
)

// The five views (R119). They are distinct types that do not convert into
// each other, so text for one place in another does not compile.
type (
	// ModelText is replayed to the model.
	ModelText = mint.Text[forModel]
	// OperatorText is shown to a person: approvals, command line, console.
	OperatorText = mint.Text[forOperator]
	// EventText is stored in the log.
	EventText = mint.Text[forEvent]
	// DurableText is stored in files such as mcp-stderr.log.
	DurableText = mint.Text[forDurable]
	// DebugText goes to debug output and is never stored.
	DebugText = mint.Text[forDebug]
)

// Views are the five views of one raw value.
type Views struct {
	Model    ModelText
	Operator OperatorText
	Event    EventText
	Durable  DurableText
	Debug    DebugText
	// Failed says that redaction failed and every view is the marker (R122).
	Failed bool
}

// staticString is unexported so that only untyped constants fit.
type staticString string

// Static makes an EventText of a constant of the program.
func Static(s staticString) EventText { return mint.New[forEvent](string(s)) }

// maxName bounds Name, in characters.
const maxName = 200

// Name makes an EventText of an identifier: a server, a tool, a principal, a
// path. It is no way in for free text: 200 characters at most, and control
// and format characters are escaped so that it cannot break a line or hide.
func Name(s string) EventText { return mint.New[forEvent](printable(s, maxName)) }

// FromStored makes an EventText of text that was one when it was written to
// the log. Only package events may call it, when it decodes; a test of the
// house holds callers to that.
func FromStored(s string) EventText { return mint.New[forEvent](s) }

// printable escapes what does not print and keeps at most limit characters.
func printable(s string, limit int) string {
	var out []rune
	for _, r := range s {
		if ' ' <= r && r <= '~' {
			out = append(out, r)
		} else if r == utf8.RuneError || unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
			out = append(out, []rune(fmt.Sprintf(`\u%04x`, r))...)
		} else {
			out = append(out, r)
		}
		if len(out) > limit {
			return string(append(out[:limit-1], '…'))
		}
	}
	return string(out)
}
