package redact

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// rawMarker is all that a Raw ever prints.
const rawMarker = "<raw>"

// errRaw answers every attempt to encode a Raw. It is an error and no marker:
// a marker would silently replace a value that the other side needs.
var errRaw = errors.New("redact: a raw value is not encoded; make a view of it first")

// Raw holds a value before redaction (R118). It prints as "<raw>" through
// every verb of fmt, through slog and as GoString, and refuses to be encoded
// as JSON or text.
//
// The value lies behind a pointer because fmt does not call the methods of
// unexported fields: held inline it would print as part of another struct.
type Raw[T any] struct{ p *T }

// NewRaw wraps v.
func NewRaw[T any](v T) Raw[T] { return Raw[T]{p: &v} }

// Reveal returns the value; the zero Raw holds the zero T. The list of
// packages that may call it is a test of the house.
func (r Raw[T]) Reveal() T {
	if r.p == nil {
		var zero T
		return zero
	}
	return *r.p
}

// Same reports whether two raw texts are equal, in a time that does not say where
// they differ.
func Same(a, b Raw[string]) bool {
	return subtle.ConstantTimeCompare([]byte(a.Reveal()), []byte(b.Reveal())) == 1
}

// Format writes the marker whatever the verb.
func (Raw[T]) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, rawMarker) }

// String returns the marker.
func (Raw[T]) String() string { return rawMarker }

// GoString returns the marker.
func (Raw[T]) GoString() string { return rawMarker }

// LogValue returns the marker.
func (Raw[T]) LogValue() slog.Value { return slog.StringValue(rawMarker) }

// MarshalJSON fails always.
func (Raw[T]) MarshalJSON() ([]byte, error) { return nil, errRaw }

// MarshalText fails always.
func (Raw[T]) MarshalText() ([]byte, error) { return nil, errRaw }
