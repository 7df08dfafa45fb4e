package redact

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A token is a string or number of a JSON text, in source order.
type token struct {
	start, end int32         // range in the source, quotes included
	key        int32         // the token of its member name or of the nearest above it, or none
	field      int32         // the token of the sensitive name that governs it, or none
	kind       jsontext.Kind // '"' or '0'
	name       bool          // it is a member name
}

// none is no token.
const none = -1

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

// parsers keeps what a parser allocates.
var parsers = sync.Pool{New: func() any { return &parser{d: new(jsontext.Decoder), sensitive: map[string]bool{}} }}

// keptTokens is how many tokens a parser that is kept has room for at most.
const keptTokens = 4096

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

// release lets go of the text and gives the parser back, with its tokens.
func (p *parser) release() {
	p.d.Reset(nothing{})
	clear(p.sensitive)
	clear(p.tokens)
	if p.src, p.tokens = nil, p.tokens[:0]; cap(p.tokens) <= keptTokens {
		parsers.Put(p)
	}
}

// tokenize returns the tokens of src, which are good until release.
func (p *parser) tokenize(src []byte) ([]token, error) {
	if len(src) > math.MaxInt32 {
		return nil, errors.New("redact: the JSON value is too large")
	}
	p.src, p.depth = src, 0
	p.d.Reset(bytes.NewBuffer(src), lenient)
	if _, err := p.value(none, false); err != nil {
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

// value reads a value below the member name key and says whether it looks like a
// JSON schema.
func (p *parser) value(key int32, inArray bool) (schema bool, err error) {
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

func (p *parser) scalar(key int32, name bool) error {
	kind := p.d.PeekKind()
	v, err := p.d.ReadValue()
	if err != nil {
		return err
	}
	end := int32(p.d.InputOffset())
	p.tokens = append(p.tokens, token{kind: kind, start: end - int32(len(v)), end: end, name: name, key: key, field: none})
	return nil
}

// object reads an object and marks what sensitive names govern in it: the
// members of such a name with all below them, unless they describe a value (a
// schema) and hold none, and the value in {"name": "API_KEY", "value": …}.
func (p *parser) object() (schema bool, err error) {
	if _, err := p.d.ReadToken(); err != nil {
		return false, err
	}
	label := int32(none)
	var from, to int // the tokens of the member called value
	for p.d.PeekKind() != '}' {
		key := int32(len(p.tokens))
		if err := p.scalar(key, true); err != nil {
			return false, err
		}
		i := len(p.tokens)
		described, err := p.value(key, false)
		if err != nil {
			return false, err
		}
		below := p.tokens[i:]
		if !described && p.isSensitive(key) {
			govern(below, key)
		}
		switch string(p.text(key)) {
		case "name", "key", "header":
			if len(below) == 1 && below[0].kind == '"' && p.isSensitive(int32(i)) {
				label = int32(i)
			}
		case "value":
			from, to = i, len(p.tokens)
		case "type":
			schema = schema || len(below) > 1 || len(below) == 1 && below[0].kind == '"' && schemaTypes[string(p.text(int32(i)))]
		case "anyOf", "oneOf", "allOf", "$ref", "enum":
			schema = true
		}
	}
	if label != none {
		govern(p.tokens[from:to], label)
	}
	_, err = p.d.ReadToken()
	return schema, err
}

var schemaTypes = setOf("string number integer boolean object array null")

// array reads an array. In a list of pairs a sensitive name governs its pair,
// as in [["Authorization", "Bearer …"]].
func (p *parser) array(key int32, inArray bool) error {
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
	if pair := p.tokens[i:]; inArray && n == 2 && len(pair) == 2 && p.isSensitive(int32(i)) {
		govern(pair[1:], int32(i))
	}
	_, err := p.d.ReadToken()
	return err
}

func govern(tokens []token, name int32) {
	for i := range tokens {
		if !tokens[i].name && tokens[i].field == none {
			tokens[i].field = name
		}
	}
}

// text is the decoded text of a token; of one without escapes it is a part of the
// source.
func (p *parser) text(i int32) []byte {
	src := p.src[p.tokens[i].start:p.tokens[i].end]
	if src[0] != '"' {
		return src
	}
	if bytes.IndexByte(src, '\\') < 0 {
		return src[1 : len(src)-1]
	}
	return []byte(unquote(string(src)))
}

func (p *parser) isSensitive(i int32) bool {
	name := p.text(i)
	s, ok := p.sensitive[string(name)]
	if !ok {
		s = SensitiveName(string(name))
		p.sensitive[string(name)] = s
	}
	return s
}

// of is the text of the token that t refers to, or nothing.
func (p *parser) of(i int32) string {
	if i == none {
		return ""
	}
	return strings.ToValidUTF8(string(p.text(i)), "\uFFFD")
}

// unquote decodes a string or number that a decoder accepted; of broken UTF-8
// it makes U+FFFD. What needs no decoding is a part of src.
func unquote(src string) string {
	if len(src) == 0 || src[0] != '"' {
		return src
	}
	if strings.IndexByte(src, '\\') < 0 && utf8.ValidString(src) {
		return src[1 : len(src)-1]
	}
	b, _ := jsontext.AppendUnquote(nil, src)
	return string(b)
}

// quote encodes a string as JSON.
func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}
