// Package hidden finds text in what servers say of themselves that is not meant for
// the person who reads it: characters that act on a terminal or are not seen, and
// phrases that speak to a model behind the back of its user.
//
// What is found is flagged, held for an approval and shown escaped; it is never
// rewritten (decision 22). The list is that of the attacks B1 and B6, and of what
// Unicode calls default ignorable. Text that needs such a character to be written,
// as an emoji of several parts or a word in Persian does, is not flagged.
package hidden

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"regexp"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The classes of what is found.
const (
	ANSI        = "ansi"        // begins a sequence that a terminal obeys
	Control     = "control"     // other controls, but tab, line feed and the end of a line
	Tag         = "tag"         // letters of the Unicode tags block, which nothing shows
	Bidi        = "bidi"        // changes the order in which text is shown
	ZeroWidth   = "zero_width"  // takes no room
	Variation   = "variation"   // selects a variant of nothing: a way to write bytes unseen
	Invisible   = "invisible"   // shown as nothing, or as a blank that is none
	Instruction = "instruction" // speaks to a model, not to its user
)

// Rune tells whether a character acts on a terminal, or is not seen where it stands
// or hides what stands beside it. Text for people has it escaped.
func Rune(r rune) bool {
	return r == utf8.RuneError || unicode.In(r, unicode.C, unicode.Zl, unicode.Zp, unicode.Variation_Selector) || ignorable(r)
}

// Text are the classes that a text has, sorted.
func Text(s string) []string {
	found := make(map[string]bool)
	scan(s, found)
	return slices.Sorted(maps.Keys(found))
}

// JSON are the classes that the strings of a JSON text have, names of members
// included, sorted. What is no JSON has none: nobody lists it.
func JSON(text []byte) []string {
	found := make(map[string]bool)
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		t, err := d.ReadToken()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return nil
			}
			return slices.Sorted(maps.Keys(found))
		}
		if t.Kind() == '"' {
			scan(t.String(), found)
		}
	}
}

func scan(s string, found map[string]bool) {
	runes := []rune(s)
	at := func(i int) rune {
		if i < 0 || i >= len(runes) {
			return 0
		}
		return runes[i]
	}
	for i, r := range runes {
		if r >= ' ' && r < 0x7f {
			continue
		}
		if c := class(at(i-1), r, at(i+1)); c != "" {
			found[c] = true
		}
	}
	for _, p := range phrases {
		if p.MatchString(s) {
			found[Instruction] = true
		}
	}
}

// phrases are what no description of a tool has a reason to say: marks of another
// speaker, the order to set others aside, and the order to keep something from the
// user. They are few on purpose, since each one holds a tool.
var phrases = []*regexp.Regexp{
	regexp.MustCompile(`(?i)<\s*/?\s*(important|system|instructions?)\s*/?\s*>`),
	regexp.MustCompile(`(?i)<\|(im_start|im_end|system|user|assistant|endoftext)\|>|\[/?INST\]`),
	regexp.MustCompile(`(?i)\b(ignore|disregard|forget|override)\b[^.\n]{0,30}\b(previous|prior|above|earlier|preceding)\b[^.\n]{0,20}\b(instruction|prompt|rule|direction|guideline)s?\b`),
	regexp.MustCompile(`(?i)\b(do not|don't|never|must not|without)\b[^.\n]{0,20}\b(tell|telling|mention|mentioning|inform|informing|notify|notifying|alert|alerting)\b[^.\n]{0,30}\busers?\b`),
}

// class is the class of a character between its neighbours, empty for one that is
// in its place.
func class(before, r, after rune) string {
	switch {
	case r == '\t', r == '\n', r == '\r' && after == '\n':
		return ""
	case r == 0x1b, r == 0x90, r == 0x9b, r >= 0x9d && r <= 0x9f:
		return ANSI
	case unicode.Is(unicode.Cc, r):
		return Control
	case r >= 0xe0000 && r <= 0xe007f:
		return Tag
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return Bidi
	case r == 0x200c, r == 0x200d:
		if joins(before, after) {
			return ""
		}
		return ZeroWidth
	case r == 0x200b, r == 0x2060, r == 0xfeff:
		return ZeroWidth
	case unicode.Is(unicode.Variation_Selector, r):
		if varies(before, r, after) {
			return ""
		}
		return Variation
	case ignorable(r):
		return Invisible
	}
	return ""
}

// ignorable tells what is shown as nothing or as a blank, beside the characters of
// other classes.
func ignorable(r rune) bool {
	return unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == 0x00ad || r == 0x180e || r == 0x2800 ||
		r >= 0x2061 && r <= 0x206f || r >= 0xfff9 && r <= 0xfffb || r >= 0x1bca0 && r <= 0x1bca3 || r >= 0x1d173 && r <= 0x1d17a
}

// joins tells whether a joiner between two characters belongs there: in an emoji of
// several parts, or between letters of a script that is written with joiners.
func joins(before, after rune) bool {
	return pictured(before) && unicode.Is(unicode.So, after) || cursive(before) && cursive(after)
}

func pictured(r rune) bool {
	return unicode.Is(unicode.So, r) || r == 0xfe0f || r >= 0x1f3fb && r <= 0x1f3ff
}

func cursive(r rune) bool {
	return unicode.In(r, unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Devanagari, unicode.Bengali, unicode.Gurmukhi,
		unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Sinhala, unicode.Khmer)
}

// varies tells whether a variation selector stands behind something that has
// variants: one selector behind a symbol, a keycap or a Chinese character.
func varies(before, r, after rune) bool {
	switch {
	case r == 0xfe0e || r == 0xfe0f:
		return unicode.In(before, unicode.So, unicode.Sm) || slices.Contains([]rune{0x203c, 0x2049, 0x2139, 0x3030}, before) ||
			after == 0x20e3 // a keycap
	case r >= 0xfe00 && r <= 0xfe02:
		return unicode.In(before, unicode.Han, unicode.Sm)
	case r >= 0xe0100:
		return unicode.Is(unicode.Han, before)
	}
	return unicode.Is(unicode.Mongolian, before) && r < 0xfe00
}
