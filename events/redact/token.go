package redact

import (
	"errors"
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
	has        traits        // of what stands in the source, without the quotes
}

// none is no token.
const none = -1

// parser reads a JSON value into tokens, in one pass over the text. Repeated names,
// broken surrogates and bytes that are no UTF-8 pass, as they pass through the
// gateway; what is no JSON (RFC 8259) does not. FuzzTokens holds it to what jsontext
// takes.
type parser struct {
	src       string
	at        int // of what comes next in src
	tokens    []token
	sensitive map[string]bool // names seen
	depth     int
	deepest   int    // that is read
	passing   bool   // nothing is kept of what is read, nor marked in it
	scratch   []byte // for texts with escapes
}

// maxDepth bounds containers in containers. Marking what a name governs takes
// time for each level above a token, so that depth must have a bound.
const maxDepth = 256

// parsers keeps what a parser allocates.
var parsers = sync.Pool{New: func() any { return &parser{sensitive: map[string]bool{}} }}

// A parser that is kept has room for so many tokens and for texts of so many bytes at
// most.
const keptTokens, keptScratch = 4096, 64 << 10

// release lets go of the text and gives the parser back, with its tokens.
func (p *parser) release() {
	clear(p.sensitive)
	if p.src, p.tokens = "", p.tokens[:0]; cap(p.tokens) <= keptTokens && cap(p.scratch) <= keptScratch {
		parsers.Put(p)
	}
}

var (
	errJSON  = errors.New("redact: no JSON value")
	errLarge = errors.New("redact: the JSON value is too large")
	errDeep  = errors.New("redact: the JSON value is too deep")
)

// tokenize returns the tokens of src, which are good until release.
func (p *parser) tokenize(src string) ([]token, error) {
	if len(src) > math.MaxInt32 {
		return nil, errLarge
	}
	p.begin(src, maxDepth)
	if _, err := p.value(none, false); err != nil {
		return nil, err
	}
	if !p.end() {
		return nil, errJSON
	}
	return p.tokens, nil
}

// begin takes a text that is read with members, elements and raw, or with value.
func (p *parser) begin(src string, deepest int) {
	p.src, p.at, p.depth, p.deepest, p.passing = src, 0, 0, deepest, false
}

// end says that nothing but white space is left.
func (p *parser) end() bool { return p.next() == 0 && p.at == len(p.src) }

// members reads an object, of which f reads the values.
func (p *parser) members(f func(name string) error) error {
	if !p.take('{') {
		return errJSON
	}
	if p.take('}') {
		return nil
	}
	for {
		if p.next() != '"' {
			return errJSON
		}
		if err := p.string(none, true); err != nil {
			return err
		}
		name := p.text(int32(len(p.tokens) - 1))
		p.tokens = p.tokens[:0]
		if !p.take(':') {
			return errJSON
		}
		if err := f(name); err != nil {
			return err
		}
		if !p.take(',') {
			break
		}
	}
	if !p.take('}') {
		return errJSON
	}
	return nil
}

// elements reads an array, of which f reads the values.
func (p *parser) elements(f func() error) error {
	if !p.take('[') {
		return errJSON
	}
	if p.take(']') {
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if !p.take(',') {
			break
		}
	}
	if !p.take(']') {
		return errJSON
	}
	return nil
}

// raw reads a value as it stands in the text.
func (p *parser) raw() (string, error) {
	p.next()
	from := p.at
	p.passing = true // it may be deeper than maxDepth
	_, err := p.value(none, false)
	p.passing, p.tokens = false, p.tokens[:0]
	return p.src[from:p.at], err
}

// lenient reads JSON as it passes through the gateway: with repeated names and
// broken surrogates.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// next is the byte that comes next behind white space, 0 at the end.
func (p *parser) next() byte {
	for ; p.at < len(p.src); p.at++ {
		if c := p.src[p.at]; !blank(c) {
			return c
		}
	}
	return 0
}

// take goes on behind the byte c, where that comes next behind white space.
func (p *parser) take(c byte) bool {
	if p.next() != c {
		return false
	}
	p.at++
	return true
}

// value reads a value below the member name key and says whether it looks like a
// JSON schema.
func (p *parser) value(key int32, inArray bool) (schema bool, err error) {
	if p.depth++; p.depth > p.deepest {
		return false, errDeep
	}
	switch c := p.next(); {
	case c == '{':
		schema, err = p.object()
	case c == '[':
		err = p.array(key, inArray)
	case c == '"':
		err = p.string(key, false)
	case c == '-' || digit(c):
		err = p.number(key)
	case !p.literal("true") && !p.literal("false") && !p.literal("null"):
		err = errJSON
	}
	p.depth--
	return schema, err
}

func (p *parser) literal(s string) bool {
	if !strings.HasPrefix(p.src[p.at:], s) {
		return false
	}
	p.at += len(s)
	return true
}

func (p *parser) number(key int32) error {
	s, start, i := p.src, p.at, p.at
	digits := func() bool {
		from := i
		for i < len(s) && digit(s[i]) {
			i++
		}
		return i > from
	}
	if s[i] == '-' {
		i++
	}
	switch {
	case i < len(s) && s[i] == '0':
		i++
	case !digits():
		return errJSON
	}
	if i < len(s) && s[i] == '.' {
		if i++; !digits() {
			return errJSON
		}
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if !digits() {
			return errJSON
		}
	}
	p.at = i
	p.tokens = append(p.tokens, token{kind: '0', start: int32(start), end: int32(i), key: key, field: none})
	return nil
}

// string reads the string that begins at p.at.
func (p *parser) string(key int32, name bool) error {
	s, i := p.src, p.at+1
	var has traits
	for {
		for i+8 <= len(s) {
			t := traitsOf[s[i]] | traitsOf[s[i+1]] | traitsOf[s[i+2]] | traitsOf[s[i+3]] |
				traitsOf[s[i+4]] | traitsOf[s[i+5]] | traitsOf[s[i+6]] | traitsOf[s[i+7]]
			if t&endsPlain != 0 {
				break
			}
			has |= t
			i += 8
		}
		for i < len(s) && traitsOf[s[i]]&endsPlain == 0 {
			has |= traitsOf[s[i]]
			i++
		}
		switch {
		case i == len(s):
			return errJSON
		case s[i] == '"':
			i++
			p.tokens = append(p.tokens, token{kind: '"', start: int32(p.at), end: int32(i), name: name, key: key, field: none, has: has})
			p.at = i
			return nil
		case s[i] == '\\' && i+1 < len(s):
			has |= hasEscape | endsPlain
			switch i += 2; s[i-1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for end := i + 4; i < end; i++ {
					if i == len(s) || !isHex(s[i]) {
						return errJSON
					}
				}
			default:
				return errJSON
			}
		default: // a control character
			return errJSON
		}
	}
}

// object reads an object and marks what sensitive names govern in it: the
// members of such a name with all below them, unless they describe a value (a
// schema) and hold none, and the value in {"name": "API_KEY", "value": …}.
func (p *parser) object() (schema bool, err error) {
	p.at++
	if p.take('}') {
		return false, nil
	}
	label := int32(none)
	var from, to int // the tokens of the member called value
	for {
		if p.next() != '"' {
			return false, errJSON
		}
		key := int32(len(p.tokens))
		if err := p.string(key, true); err != nil {
			return false, err
		}
		if !p.take(':') {
			return false, errJSON
		}
		if p.passing {
			p.tokens = p.tokens[:key]
		}
		i := len(p.tokens)
		described, err := p.value(key, false)
		if err != nil {
			return false, err
		}
		if p.passing {
			p.tokens = p.tokens[:key]
			if !p.take(',') {
				break
			}
			continue
		}
		below := p.tokens[i:]
		if !described && p.isSensitive(key) {
			govern(below, key)
		}
		switch p.text(key) {
		case "name", "key", "header":
			if len(below) == 1 && below[0].kind == '"' && p.isSensitive(int32(i)) {
				label = int32(i)
			}
		case "value":
			from, to = i, len(p.tokens)
		case "type":
			schema = schema || len(below) > 1 || len(below) == 1 && below[0].kind == '"' && schemaTypes[p.text(int32(i))]
		case "anyOf", "oneOf", "allOf", "$ref", "enum":
			schema = true
		}
		if !p.take(',') {
			break
		}
	}
	if !p.take('}') {
		return false, errJSON
	}
	if label != none {
		govern(p.tokens[from:to], label)
	}
	return schema, nil
}

var schemaTypes = setOf("string number integer boolean object array null")

// array reads an array. In a list of pairs a sensitive name governs its pair,
// as in [["Authorization", "Bearer …"]].
func (p *parser) array(key int32, inArray bool) error {
	p.at++
	if p.take(']') {
		return nil
	}
	i, n := len(p.tokens), 1
	for ; ; n++ {
		if _, err := p.value(key, true); err != nil {
			return err
		}
		if p.passing {
			p.tokens = p.tokens[:i]
		}
		if !p.take(',') {
			break
		}
	}
	if !p.take(']') {
		return errJSON
	}
	if pair := p.tokens[i:]; !p.passing && inArray && n == 2 && len(pair) == 2 && p.isSensitive(int32(i)) {
		govern(pair[1:], int32(i))
	}
	return nil
}

func govern(tokens []token, name int32) {
	for i := range tokens {
		if !tokens[i].name && tokens[i].field == none {
			tokens[i].field = name
		}
	}
}

// text is the decoded text of a token, as it is unless it has escapes.
func (p *parser) text(i int32) string {
	t := &p.tokens[i]
	if t.has&endsPlain == 0 && t.kind == '"' {
		return p.src[t.start+1 : t.end-1]
	}
	return unquote(p.src[t.start:t.end])
}

func (p *parser) isSensitive(i int32) bool {
	name := p.text(i)
	if !endsLikeSecret(name) {
		return false
	}
	s, ok := p.sensitive[name]
	if !ok {
		s = SensitiveName(name)
		p.sensitive[name] = s
	}
	return s
}

// of is the text of the token that t refers to, or nothing.
func (p *parser) of(i int32) string {
	if i == none {
		return ""
	}
	return strings.ToValidUTF8(p.text(i), "\uFFFD")
}

// decoded is the text of a token, and its traits. Of broken UTF-8 it makes U+FFFD.
func (p *parser) decoded(t token) (string, traits) {
	if s := p.src[t.start:t.end]; t.kind == '"' && t.has&endsPlain == 0 && (t.has&hasHigh == 0 || utf8.ValidString(s)) {
		return s[1 : len(s)-1], t.has
	}
	if t.kind != '"' {
		return p.src[t.start:t.end], 0
	}
	s := string(p.unquoted(t))
	return s, skim(s)
}

// unquoted is the text of a string, good until the next one.
func (p *parser) unquoted(t token) []byte {
	p.scratch, _ = jsontext.AppendUnquote(p.scratch[:0], p.src[t.start:t.end])
	return p.scratch
}

// unquote decodes a string or number of valid JSON; of broken UTF-8 it makes U+FFFD.
// What needs no decoding is a part of src.
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
