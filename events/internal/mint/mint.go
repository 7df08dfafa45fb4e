// Package mint holds the text type behind the five views of package redact.
//
// It lies below events/internal so that the go tool itself refuses an import
// from anywhere but events/...: a worker cannot make a view, only pass one on.
package mint

import "encoding/json"

// Text is text made for the audience A. The empty array keeps Text[X] and
// Text[Y] inconvertible: two struct types with the same single field would
// convert into each other even though the field is unexported.
//
// Texts of one audience compare with ==. The zero value is the empty text.
type Text[A any] struct {
	_ [0]A
	s string
}

// New makes the text s for the audience A. Whoever calls it vouches that s
// holds nothing that A must not see.
func New[A any](s string) Text[A] { return Text[A]{s: s} }

// String returns the text.
func (t Text[A]) String() string { return t.s }

// MarshalText returns the text, for map keys, XML and YAML.
func (t Text[A]) MarshalText() ([]byte, error) { return []byte(t.s), nil }

// MarshalJSON returns the text as a JSON string. There is no UnmarshalJSON on
// purpose: a view comes out of a redactor, never out of a decoder.
func (t Text[A]) MarshalJSON() ([]byte, error) { return json.Marshal(t.s) }
