// Package fault has the errors of Gatebus: what was done, a kind out of a
// closed list, and a text that is safe to show and to store.
//
// One table binds each kind to its GB number, its exit code and a hint. What
// caused a fault may hold a secret; it stays inside of redact.Raw and never
// becomes part of a message.
package fault

import (
	"errors"

	"github.com/gatebus/gatebus/events/redact"
)

// A Fault is an error that may leave the process. It is not changed once made
// known to others.
type Fault struct {
	Op   string           // what was done, as "call.start"
	Kind Kind             // what went wrong
	Text redact.EventText // in words
	Path redact.EventText // file that it is about, if any
	// Field of the file or the parameters, if any.
	Field redact.EventText

	cause redact.Raw[error]
}

// New makes a fault.
func New(op string, kind Kind, text redact.EventText) *Fault {
	return &Fault{Op: op, Kind: kind, Text: text}
}

// Wrap makes a fault with the error that caused it. The cause is not in the
// message; errors.Is finds what is in it, such as context.Canceled.
func Wrap(op string, kind Kind, text redact.EventText, cause error) *Fault {
	f := New(op, kind, text)
	f.cause = redact.NewRaw(cause)
	return f
}

// Error returns operation and text, never the cause.
func (f *Fault) Error() string { return f.Op + ": " + f.Text.String() }

// Is reports whether the cause is target. There is no Unwrap: whoever walked
// to the cause could print it.
func (f *Fault) Is(target error) bool { return errors.Is(f.cause.Reveal(), target) }

// Cause returns what caused the fault, for a redactor.
func (f *Fault) Cause() redact.Raw[error] { return f.cause }

// KindOf returns the kind of the first fault in err's tree, Internal when
// there is none, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Kind
	}
	return Internal
}

// Is reports whether err is a fault of the kind.
func Is(err error, kind Kind) bool {
	f, ok := errors.AsType[*Fault](err)
	return ok && f.Kind == kind
}
