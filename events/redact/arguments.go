package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

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
	Keys     []string  // names of the members, sorted, secrets in them hidden
	Digest   string    // HMAC-SHA256 of the canonical JSON, hex
	Bytes    int       // size as received
	Event    EventText // JSON of the same shape with kinds and lengths for values
	operator string    // JSON with the values, secrets hidden
}

// Operator is JSON with the values, secrets hidden; for live display, never stored. It
// is made when it is asked for, as most calls need no operator.
func (v ArgumentView) Operator() (shown OperatorText) {
	defer func() {
		if recover() != nil {
			shown = mint.New[forOperator](failedJSON)
		}
	}()
	return mint.New[forOperator](valid(preview(v.operator, cutValue)))
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
	redacted, err := r.json(string(src), 0, liveViews)
	if err != nil {
		return ArgumentView{}, ErrArguments
	}
	keys, err := memberNames(redacted[event])
	if err != nil {
		return ArgumentView{}, err
	}
	// The shape is made of the operator's view, where hidden values are
	// strings still: their length tells nothing.
	shown := redacted[operator]
	return ArgumentView{
		Keys:     keys,
		Digest:   hex.EncodeToString(mac.Sum(nil)),
		Bytes:    len(src),
		Event:    mint.New[forEvent](valid(preview(shown, kindOnly))),
		operator: shown,
	}, nil
}

// memberNames are the names of the members of an object, sorted and fit to print.
func memberNames(object string) ([]string, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.begin(object, maxDepth)
	var names []string
	err := p.members(func(name string) error {
		names = append(names, name)
		_, err := p.raw()
		return err
	})
	slices.Sort(names)
	names = slices.Compact(names)
	for i, name := range names {
		names[i] = printable(name, maxKey)
	}
	return names, err
}

// kindOnly shows a scalar in the log: nothing of a string but its length,
// nothing of a number.
func kindOnly(p *parser, t token) string {
	if t.kind == '0' {
		return `"<number>"`
	}
	n := int(t.end-t.start) - len(`""`)
	if t.has&(endsPlain|hasHigh) != 0 {
		n = utf8.RuneCount(p.unquoted(t))
	}
	return `"<string length:` + strconv.Itoa(n) + `>"`
}

// cutValue shows a scalar to an operator.
func cutValue(p *parser, t token) string {
	s := p.src[t.start:t.end]
	if t.kind == '0' {
		return s
	}
	const most = (maxShapeString + 1) * utf8.UTFMax // in bytes, of what is looked at
	if t.has&endsPlain == 0 {
		s = s[1 : len(s)-1]
		s = s[:min(len(s), most)]
	} else {
		b := p.unquoted(t)
		s = string(b[:min(len(b), most)])
	}
	return quote(printable(s, maxShapeString))
}

// preview writes JSON with its scalars shown by leaf, less deep the larger it
// is.
func preview(src string, leaf func(*parser, token) string) string {
	p := parsers.Get().(*parser)
	defer p.release()
	for depth := maxShapeDepth; depth > 0; depth-- {
		var b bytes.Buffer
		p.begin(src, maxDepth)
		if err := p.shape(&b, depth, leaf); err != nil {
			return failedJSON
		}
		if utf8.RuneCount(b.Bytes()) <= maxShapeText {
			return b.String()
		}
	}
	return `{"…":"<truncated>"}`
}

// shape writes the value that comes next.
func (p *parser) shape(b *bytes.Buffer, depth int, leaf func(*parser, token) string) error {
	kind := p.next()
	if kind != '{' && kind != '[' {
		from := p.at
		if _, err := p.value(none, false); err != nil {
			return err
		}
		if len(p.tokens) == 0 { // true, false or null
			b.WriteString(p.src[from:p.at])
			return nil
		}
		t := p.tokens[0]
		p.tokens = p.tokens[:0]
		b.WriteString(leaf(p, t))
		return nil
	}
	if depth == 0 {
		b.WriteString(map[byte]string{'{': `"<object>"`, '[': `"<array>"`}[kind])
		_, err := p.raw()
		return err
	}
	n := 0
	one := func(name string) error {
		if n++; n > maxShapeItems {
			_, err := p.raw()
			return err
		}
		if n > 1 {
			b.WriteByte(',')
		}
		if kind == '{' {
			b.WriteString(quote(printable(name, maxKey)) + ":")
		}
		return p.shape(b, depth-1, leaf)
	}
	b.WriteByte(kind)
	var err error
	if kind == '{' {
		err = p.members(one)
	} else {
		err = p.elements(func() error { return one("") })
	}
	if more := n - maxShapeItems; more > 0 {
		b.WriteByte(',')
		if kind == '{' {
			b.WriteString(`"…":`)
		}
		fmt.Fprintf(b, `"<%d more>"`, more)
	}
	b.WriteByte(kind + 2) // the closing one
	return err
}
