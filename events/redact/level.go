package redact

import (
	"html"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A level is a text with one layer of encoding taken off, and how its offsets
// map to the level it came from. Decoding the text finds what encoding the
// secrets cannot: escapes that another writer chose differently, nested ones
// and mixtures.
type level struct {
	text  string
	up    *level
	jumps []jump
}

// jump says that the byte at offset at came from offset orig, where the escape
// of the byte before it ends. Between jumps offsets run in step.
type jump struct{ at, orig int }

// maxLevels bounds nested escapes.
const maxLevels = 4

// escaped says whether there may be an escape in s.
func escaped(s string) bool {
	return strings.IndexByte(s, '\\') >= 0 || strings.IndexByte(s, '%') >= 0 || strings.IndexByte(s, '&') >= 0
}

// unescape takes off one layer of JSON, Go, percent and HTML escapes; nil when
// there is none.
func (l *level) unescape() *level {
	if !escaped(l.text) {
		return nil
	}
	down := &level{up: l}
	var b strings.Builder
	done := 0
	for i := 0; i < len(l.text); i++ {
		c := l.text[i]
		if c != '\\' && c != '%' && c != '&' {
			continue
		}
		decoded, n := escape(l.text[i:])
		if n == 0 {
			continue
		}
		b.WriteString(l.text[done:i])
		b.WriteString(decoded)
		i += n - 1
		done = i + 1
		down.jumps = append(down.jumps, jump{b.Len(), done})
	}
	if done == 0 {
		return nil
	}
	b.WriteString(l.text[done:])
	down.text = b.String()
	return down
}

// origin maps an offset of l to the text that the levels began with. The end
// of a range maps as its last byte does, to the end of that byte's escape.
func (l *level) origin(at int) int {
	for ; l.up != nil; l = l.up {
		i := sort.Search(len(l.jumps), func(i int) bool { return l.jumps[i].at > at })
		if i > 0 {
			at += l.jumps[i-1].orig - l.jumps[i-1].at
		}
	}
	return at
}

// escape decodes the escape that s begins with and returns its length, 0 when
// s begins with none.
func escape(s string) (string, int) {
	if len(s) < 2 {
		return "", 0
	}
	switch s[0] {
	case '%':
		if c, ok := hexValue(s[1:], 2); ok {
			return string([]byte{byte(c)}), 3
		}
	case '&':
		if n := strings.IndexByte(s[:min(len(s), 12)], ';'); n > 1 {
			if t := html.UnescapeString(s[:n+1]); t != s[:n+1] {
				return t, n + 1
			}
		}
	case '\\':
		switch s[1] {
		case '"', '\\', '/', '\'':
			return s[1:2], 2
		case 'n':
			return "\n", 2
		case 'r':
			return "\r", 2
		case 't':
			return "\t", 2
		case 'b':
			return "\b", 2
		case 'f':
			return "\f", 2
		case 'x':
			if c, ok := hexValue(s[2:], 2); ok {
				return string([]byte{byte(c)}), 4
			}
		case 'u':
			c, ok := hexValue(s[2:], 4)
			if !ok {
				return "", 0
			}
			if utf16.IsSurrogate(c) && strings.HasPrefix(s[6:], `\u`) {
				if d, ok := hexValue(s[8:], 4); ok {
					if r := utf16.DecodeRune(c, d); r != unicode.ReplacementChar {
						return string(r), 12
					}
				}
			}
			return string(utf8.AppendRune(nil, c)), 6
		case 'U': // as Go and Python write what is beyond 16 bits
			if c, ok := hexValue(s[2:], 8); ok && utf8.ValidRune(c) {
				return string(c), 10
			}
		}
	}
	return "", 0
}

func hexValue(s string, digits int) (rune, bool) {
	if len(s) < digits {
		return 0, false
	}
	v, err := strconv.ParseUint(s[:digits], 16, 32)
	return rune(v), err == nil
}
