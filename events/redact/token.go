package redact

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A token is a string or number of a JSON text, in source order.
type token struct {
	kind       jsontext.Kind // '"' or '0'
	start, end int           // range in the source, quotes included
	name       bool          // it is a member name
	key        string        // its member name or the nearest above it
	field      string        // the sensitive name that governs it, if any
}

// parser reads a JSON value into tokens. Repeated names and broken surrogates
// pass, as they pass through the gateway; what is no JSON does not.
type parser struct {
	src       []byte
	d         *jsontext.Decoder
	tokens    []token
	sensitive map[string]bool // names seen
	depth     int
}

// maxDepth bounds containers in containers. Marking what a name governs takes
// time for each level above a token, so that depth must have a bound.
const maxDepth = 256

// decoders keeps what a decoder allocates.
var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

func tokenize(src []byte) ([]token, error) {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(src), lenient)
	defer func() {
		d.Reset(nothing{}) // lets go of the text
		decoders.Put(d)
	}()
	p := parser{src: src, d: d, sensitive: map[string]bool{}, tokens: make([]token, 0, 8)}
	if _, err := p.value("", false); err != nil {
		return nil, err
	}
	if _, err := p.d.ReadToken(); err != io.EOF {
		return nil, errors.New("redact: more than one JSON value")
	}
	return p.tokens, nil
}

// lenient reads JSON as it passes through the gateway: with repeated names and
// broken surrogates.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func decoder(src []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(src), lenient)
}

// value reads a value below the member key and says whether it looks like a
// JSON schema.
func (p *parser) value(key string, inArray bool) (schema bool, err error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		return false, errors.New("redact: the JSON value is too deep")
	}
	switch p.d.PeekKind() {
	case '{':
		return p.object()
	case '[':
		return false, p.array(key, inArray)
	case '"', '0':
		return false, p.scalar(key, false)
	}
	_, err = p.d.ReadToken()
	return false, err
}

func (p *parser) scalar(key string, name bool) error {
	kind := p.d.PeekKind()
	v, err := p.d.ReadValue()
	if err != nil {
		return err
	}
	end := int(p.d.InputOffset())
	p.tokens = append(p.tokens, token{kind: kind, start: end - len(v), end: end, name: name, key: key})
	return nil
}

// object reads an object and marks what sensitive names govern in it: the
// members of such a name with all below them, unless they describe a value (a
// schema) and hold none, and the value in {"name": "API_KEY", "value": …}.
func (p *parser) object() (schema bool, err error) {
	if _, err := p.d.ReadToken(); err != nil {
		return false, err
	}
	var label string
	var from, to int // the tokens of the member called value
	for p.d.PeekKind() != '}' {
		if err := p.scalar("", true); err != nil {
			return false, err
		}
		i := len(p.tokens)
		key := p.text(i - 1)
		p.tokens[i-1].key = key
		described, err := p.value(key, false)
		if err != nil {
			return false, err
		}
		below := p.tokens[i:]
		if !described && p.isSensitive(key) {
			govern(below, key)
		}
		switch key {
		case "name", "key", "header":
			if text := p.only(below); p.isSensitive(text) {
				label = text
			}
		case "value":
			from, to = i, len(p.tokens)
		case "type":
			schema = schema || slices.Contains(schemaTypes, p.only(below)) || len(below) > 1
		case "anyOf", "oneOf", "allOf", "$ref", "enum":
			schema = true
		}
	}
	if label != "" {
		govern(p.tokens[from:to], label)
	}
	_, err = p.d.ReadToken()
	return schema, err
}

var schemaTypes = []string{"string", "number", "integer", "boolean", "object", "array", "null"}

// array reads an array. In a list of pairs a sensitive name governs its pair,
// as in [["Authorization", "Bearer …"]].
func (p *parser) array(key string, inArray bool) error {
	if _, err := p.d.ReadToken(); err != nil {
		return err
	}
	i := len(p.tokens)
	n := 0
	for ; p.d.PeekKind() != ']'; n++ {
		if _, err := p.value(key, true); err != nil {
			return err
		}
	}
	if pair := p.tokens[i:]; inArray && n == 2 && len(pair) == 2 && p.isSensitive(p.text(i)) {
		govern(pair[1:], p.text(i))
	}
	_, err := p.d.ReadToken()
	return err
}

func govern(tokens []token, name string) {
	for i := range tokens {
		if !tokens[i].name && tokens[i].field == "" {
			tokens[i].field = name
		}
	}
}

// only returns the text of a value that is one string.
func (p *parser) only(tokens []token) string {
	if len(tokens) != 1 || tokens[0].kind != '"' {
		return ""
	}
	return unquote(p.src[tokens[0].start:tokens[0].end])
}

func (p *parser) text(i int) string { return unquote(p.src[p.tokens[i].start:p.tokens[i].end]) }

func (p *parser) isSensitive(name string) bool {
	s, ok := p.sensitive[name]
	if !ok {
		s = SensitiveName(name)
		p.sensitive[name] = s
	}
	return s
}

// unquote decodes a string or number that a decoder accepted; of broken UTF-8
// it makes U+FFFD.
func unquote(src []byte) string {
	if len(src) == 0 || src[0] != '"' {
		return string(src)
	}
	if bytes.IndexByte(src, '\\') < 0 && utf8.Valid(src) {
		return string(src[1 : len(src)-1])
	}
	b, _ := jsontext.AppendUnquote(nil, src)
	return string(b)
}

// quote encodes a string as JSON.
func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}
