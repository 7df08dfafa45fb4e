package redact

import (
	"encoding/base64"
	"encoding/hex"
	"html"
	"slices"
	"strings"
	"unicode/utf8"
)

// Sizes of secrets in characters. Blanking every "1" of a text because a
// variable is DEBUG=1 would destroy it, so short values are looked for with
// care (R120).
const (
	minWord    = 4  // below: hidden only as the value of a field of that name
	minText    = 6  // below: hidden in text as a whole word
	minFolded  = 8  // below: letter case must agree, and no encodings
	minSqueeze = 12 // below: not looked for across white space
	minHalf    = 16 // from here on a half of the value is hidden as well
)

// plain says that a value is ordinary text wherever it occurs: too short, a
// literal, or a part of the markers, which would otherwise spell it.
func plain(value string) bool {
	switch n := length(value); {
	case n < minWord:
		return true
	case n > len(redactionFailed): // longer than all that follows
		return false
	}
	v := strings.ToLower(value)
	return slices.Contains([]string{"true", "false", "null", "none"}, v) ||
		strings.Contains("<redacted:", v) || strings.Contains(redactionFailed, v)
}

// length is how many characters s has, as far as one of the sizes above or a marker
// is compared with it: a large text is not counted through.
func length(s string) int {
	return utf8.RuneCountInString(s[:min(len(s), 4*utf8.UTFMax*minHalf)])
}

// patterns returns the forms of a secret that are looked for in text. Escaped
// forms are not among them, decoding the text finds those (see level).
func patterns(value string, secret int, stored bool) []pattern {
	value = strings.TrimSpace(value)
	size := length(value)
	var out []pattern
	add := func(text string, least int) {
		if n := length(text); n >= least && !plain(text) {
			out = append(out, pattern{text: text, secret: secret, exact: n < minFolded, word: size < minText})
		}
	}
	add(value, minWord)
	if escaped(value) || !utf8.ValidString(value) {
		// A value with escapes in it is also what decoding makes of it, and of what
		// another writer made of it.
		decoded := []string{value}
		for _, v := range []string{value, inJSON(value), html.EscapeString(value)} {
			l := (&level{text: v}).unescape()
			for n := 0; n <= maxLevels && l != nil; n++ {
				if !slices.Contains(decoded, l.text) {
					decoded = append(decoded, l.text)
					add(l.text, minWord)
				}
				l = l.unescape()
			}
		}
	}
	if size < minText || stored && len(value) >= longPattern {
		return out // see layer.encodings
	}
	out = append(out, encodedForms(value, inJSON(value), secret)...)
	if stored {
		return out // a server may encode what it was given; it does not hide it on purpose
	}
	b64 := base64.RawStdEncoding
	add(b64.EncodeToString([]byte(b64.EncodeToString([]byte(value)))), minFolded)
	add(fullWidth(value), minFolded)
	if strings.IndexByte(value, '\'') >= 0 {
		add(strings.ReplaceAll(value, "'", `'\''`), minFolded) // in a shell
	}
	runes := []rune(value)
	if size >= minHalf {
		add(string(runes[:(len(runes)+1)/2]), minFolded)
		add(string(runes[len(runes)/2:]), minFolded)
	}
	slices.Reverse(runes)
	add(string(runes), minFolded)
	if squeezed := strings.Join(strings.Fields(value), ""); squeezed != value {
		add(squeezed, minSqueeze)
	}
	if strings.ContainsRune(value, '\n') {
		for line := range strings.Lines(value) {
			add(strings.TrimSpace(line), minFolded)
		}
	}
	return out
}

// encodedForms returns the forms of a value in base64 and in hexadecimal, as it is
// and as JSON writes it.
func encodedForms(value, inJSON string, secret int) []pattern {
	var out []pattern
	add := func(text string) {
		if len(text) >= minFolded && !plain(text) {
			out = append(out, pattern{text: text, secret: secret})
		}
	}
	b64 := base64.RawStdEncoding
	spellings := []string{value}
	if inJSON != value {
		spellings = append(spellings, inJSON) // of a whole document that was encoded
	}
	for _, v := range spellings {
		shifted := append(make([]byte, 2, 2+len(v)), v...)
		for shift, skip := range []int{0, 2, 3} {
			// The value may lie at any place of what was encoded: the characters
			// that its own bytes fix, and those of the case that it comes last.
			text := b64.EncodeToString(shifted[2-shift:])
			if len(text)-skip < longPattern { // of longer ones every part is found
				add(text[skip : (shift+len(v))*8/6])
			}
			add(text[skip:])
		}
		add(hex.EncodeToString(shifted[2:]))
	}
	return out
}

// inJSON is a value as JSON writes it, without the quotes.
func inJSON(value string) string {
	if verbatim(value) {
		return value
	}
	q := quote(value)
	return q[1 : len(q)-1]
}

// verbatim says that JSON writes s as it is.
func verbatim(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// fullWidth is s in the wide letters of East Asian text.
func fullWidth(s string) string {
	return strings.Map(func(r rune) rune {
		if r > ' ' && r <= '~' {
			r += '！' - '!'
		}
		return r
	}, s)
}
