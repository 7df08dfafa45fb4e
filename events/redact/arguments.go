package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/internal/mint"
)

// Bounds of a preview of arguments (R68).
const (
	maxShapeDepth  = 4
	maxShapeItems  = 20
	maxShapeText   = 2048
	maxShapeString = 256
	maxKey         = 64
)

// ErrArguments says that the arguments of a call are no JSON object, or hold
// a name twice, so that two readers could see two calls in them.
var ErrArguments = errors.New("redact: the arguments are not a JSON object with distinct names")

// An ArgumentView is what may be told of the arguments of a call (R118).
type ArgumentView struct {
	Keys     []string     // names of the members, sorted, secrets in them hidden
	Digest   string       // HMAC-SHA256 of the canonical JSON, hex
	Bytes    int          // size as received
	Event    EventText    // JSON of the same shape with kinds and lengths for values
	Operator OperatorText // JSON with the values, secrets hidden; for live display, never stored
}

// Arguments makes the view of the arguments of a call. key makes the digest
// worthless to who does not have it: of short arguments a plain digest could
// be guessed. Numbers enter the digest as they are written. Both previews are
// bounded (R68) and mark what they leave out.
func (r *Redactor) Arguments(args Raw[[]byte], key []byte) (v ArgumentView, err error) {
	defer func() {
		if recover() != nil {
			v, err = ArgumentView{}, errors.New("redact: the view of the arguments failed")
		}
	}()
	src := args.Reveal()
	canonical := jsontext.Value(bytes.Clone(src))
	if canonical.Kind() != '{' || canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		return ArgumentView{}, ErrArguments
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(canonical)
	redacted, err := r.json(string(src), 0)
	if err != nil {
		return ArgumentView{}, ErrArguments
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal([]byte(redacted[event]), &members, lenient); err != nil {
		return ArgumentView{}, err
	}
	var keys []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		keys = append(keys, printable(name, maxKey))
	}
	// The shape is made of the operator's view, where hidden values are
	// strings still: their length tells nothing.
	shown := redacted[operator]
	return ArgumentView{
		Keys:     keys,
		Digest:   hex.EncodeToString(mac.Sum(nil)),
		Bytes:    len(src),
		Event:    mint.New[forEvent](valid(preview(shown, kindOnly))),
		Operator: mint.New[forOperator](valid(preview(shown, cutValue))),
	}, nil
}

// kindOnly shows a scalar in the log: nothing of a string but its length,
// nothing of a number.
func kindOnly(v jsontext.Value) string {
	switch v.Kind() {
	case '"':
		return quote(fmt.Sprintf("<string length:%d>", utf8.RuneCountInString(unquote(string(v)))))
	case '0':
		return `"<number>"`
	}
	return string(v)
}

// cutValue shows a scalar to an operator.
func cutValue(v jsontext.Value) string {
	if s := unquote(string(v)); v.Kind() == '"' {
		return quote(printable(s, maxShapeString))
	}
	return string(v)
}

// preview writes JSON with its scalars shown by leaf, less deep the larger it
// is.
func preview(src string, leaf func(jsontext.Value) string) string {
	for depth := maxShapeDepth; depth > 0; depth-- {
		var b bytes.Buffer
		if err := shape(&b, jsontext.NewDecoder(bytes.NewBufferString(src), lenient), depth, leaf); err != nil {
			return failedJSON
		}
		if utf8.RuneCount(b.Bytes()) <= maxShapeText {
			return b.String()
		}
	}
	return `{"…":"<truncated>"}`
}

func shape(b *bytes.Buffer, d *jsontext.Decoder, depth int, leaf func(jsontext.Value) string) error {
	kind := d.PeekKind()
	if kind != '{' && kind != '[' {
		v, err := d.ReadValue()
		if err == nil {
			b.WriteString(leaf(v))
		}
		return err
	}
	if depth == 0 {
		b.WriteString(map[jsontext.Kind]string{'{': `"<object>"`, '[': `"<array>"`}[kind])
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	b.WriteByte(byte(kind))
	n := 0
	for ; d.PeekKind() != '}' && d.PeekKind() != ']'; n++ {
		var name jsontext.Value
		if kind == '{' {
			v, err := d.ReadValue()
			if err != nil {
				return err
			}
			name = v.Clone()
		}
		if n >= maxShapeItems {
			if err := d.SkipValue(); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			b.WriteByte(',')
		}
		if kind == '{' {
			b.WriteString(quote(printable(unquote(string(name)), maxKey)) + ":")
		}
		if err := shape(b, d, depth-1, leaf); err != nil {
			return err
		}
	}
	if more := n - maxShapeItems; more > 0 {
		b.WriteByte(',')
		if kind == '{' {
			b.WriteString(`"…":`)
		}
		fmt.Fprintf(b, `"<%d more>"`, more)
	}
	t, err := d.ReadToken()
	b.WriteString(t.String())
	return err
}
