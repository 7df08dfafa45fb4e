package main

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Where a canary is put, which says who may see it.
const (
	environment = "environment" // of the server, declared: nobody
	option      = "option"      // after a secret option of the server's command: nobody
	undeclared  = "undeclared"  // in the environment of gatebus only: nobody
	header      = "header"      // of a server behind HTTP, declared: nobody
	query       = "query"       // in the URL of that server: nobody
	broken      = "broken"      // in a declaration that is refused: nobody
	shaped      = "shaped"      // that only the server has, in a shape of secrets: nobody
	sensitive   = "sensitive"   // an argument with a sensitive name: only the server
	ordinary    = "ordinary"    // any other argument: the server and the caller, an operator while it waits
	meta        = "meta"        // in _meta of a call: as ordinary
	told        = "told"        // in the answer of a client to a request of the server: as ordinary
)

// nobody are the places of what nobody may see.
var nobody = []string{environment, option, undeclared, header, query, broken, shaped}

// canary is a random value that must not turn up.
type canary struct {
	name, place, kind, value string
}

// shapes are what tells that a value is a secret which nobody declared.
var shapes = []string{
	"ghp_%s", "glpat-%s", "xoxb-%s", "sk-ant-api03-%s", "npm_%s", "Authorization: Bearer %s", "password=%s", "postgres://app:%s@db.example:5432/app",
	"https://docs.example/cb?state=1&access_token=%s", "-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----", "tool --token %s", "Cookie: sid=%s",
}

// inShape is a text that gives a value away as the secret that it is.
func (c canary) inShape(i int) string { return fmt.Sprintf(shapes[i%len(shapes)], c.value) }

// flock is all canaries, with what is looked for.
type flock struct {
	all     []canary
	windows map[int]map[string]int // by length: pieces of forms, to the canary
	begins  []uint64               // a bit for each three bytes that a piece begins with
}

// window is how many bytes of a canary in a row are a leak; of a shorter one all
// of it. What an encoding makes of so many is looked for.
const window = 16

const letters = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"

func alphanumeric(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

// kinds of values. Each is random throughout, so that any piece of it is proof.
var kinds = map[string]func(*rand.Rand) string{
	"plain": func(r *rand.Rand) string { return alphanumeric(r, 28) },
	"token": func(r *rand.Rand) string { return alphanumeric(r, 36) },
	"short": func(r *rand.Rand) string { return alphanumeric(r, 11) },
	"long":  func(r *rand.Rand) string { return alphanumeric(r, 3000) },
	"unicode": func(r *rand.Rand) string {
		var b strings.Builder
		for range 10 {
			b.WriteRune(rune(0x4e00 + r.IntN(0x4000)))
			b.WriteString(alphanumeric(r, 2))
			b.WriteRune(rune(0x1f300 + r.IntN(0x200)))
		}
		return b.String()
	},
	"escaped": func(r *rand.Rand) string {
		var b strings.Builder
		for range 8 {
			b.WriteString(alphanumeric(r, 3))
			b.WriteByte("\"\\/<>&\n\t%+"[r.IntN(10)])
		}
		return b.String() + alphanumeric(r, 3)
	},
	"url": func(r *rand.Rand) string {
		return alphanumeric(r, 8) + "://" + alphanumeric(r, 9) + ":" + alphanumeric(r, 12) + "@" + alphanumeric(r, 9) + "/?" + alphanumeric(r, 8)
	},
}

// hatch makes n canaries, in all places and of all kinds in turn.
func hatch(r *rand.Rand, n int) *flock {
	f := &flock{windows: map[int]map[string]int{}, begins: make([]uint64, 1<<24/64)}
	places := []string{
		environment, sensitive, ordinary, shaped, environment, ordinary, sensitive, header, ordinary, option, undeclared, meta, shaped, broken, told, query,
	}
	names := []string{"plain", "unicode", "escaped", "long", "url", "short", "plain"}
	for i := range n {
		c := canary{place: places[i%len(places)], kind: names[i%len(names)]}
		switch {
		case c.place == option && c.kind == "escaped": // a line break does not go on a command line of YAML
			c.kind = "plain"
		case c.place == header && c.kind != "url" && c.kind != "short", c.place == query, c.place == broken:
			c.kind = "plain"
		case c.place == shaped:
			c.kind = "token"
		}
		c.name, c.value = fmt.Sprintf("%02d-%s-%s", i, c.place, c.kind), kinds[c.kind](r)
		f.all = append(f.all, c)
		f.look(i)
	}
	return f
}

// in are the canaries of a place.
func (f *flock) in(places ...string) (out []canary) {
	for _, c := range f.all {
		if slices.Contains(places, c.place) {
			out = append(out, c)
		}
	}
	return out
}

// look adds the pieces of all forms of a canary.
func (f *flock) look(i int) {
	c := f.all[i]
	v := c.value
	asJSON := func(html bool) string {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		_ = e.Encode(v) // any text
		return strings.Trim(b.String(), "\"\n")
	}
	forms := []string{
		v, asJSON(true), asJSON(false), strings.Trim(fmt.Sprintf("%+q", v), `"`), escapeUTF16(v, 0), escapeUTF16(v, ' '),
		url.QueryEscape(v), url.PathEscape(v),
		hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))),
	}
	// A value inside of other bytes has one of three forms in Base64.
	for shift := range 3 {
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := e.EncodeToString(append(make([]byte, shift), v...))
			forms = append(forms, text[(shift*8+5)/6:(shift+len(v))*8/6])
		}
	}
	if c.place != sensitive && c.place != ordinary && c.place != meta && c.place != told {
		// Who declared it must not find it hidden from a search either.
		b64 := base64.RawStdEncoding
		back := []rune(v)
		slices.Reverse(back)
		forms = append(forms, html.EscapeString(v), string(back), b64.EncodeToString([]byte(b64.EncodeToString([]byte(v)))))
	}
	for _, form := range forms {
		size := min((window*len(form)/len(v)+7)/8*8, len(form))
		if f.windows[size] == nil {
			f.windows[size] = map[string]int{}
		}
		for at := range len(form) - size + 1 {
			f.windows[size][form[at:at+size]] = i
			n := begin(form[at:])
			f.begins[n>>6] |= 1 << (n & 63)
		}
	}
}

// begin is the number of three bytes.
func begin[T string | []byte](b T) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// escapeUTF16 writes what is not ASCII as JSON escapes of four digits, and what
// comes before a character.
func escapeUTF16(v string, before rune) string {
	var b strings.Builder
	for _, r := range v {
		switch {
		case r < before:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r < 0x80:
			q, _ := json.Marshal(string(r)) // any rune
			b.WriteString(strings.Trim(string(q), `"`))
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		}
	}
	return b.String()
}

// hit is a canary in a text.
type hit struct {
	where string
	canary
	around string
}

// backslashes are as many escapes as there are levels of quotes.
var backslashes = regexp.MustCompile(`\\+`)

// search finds the canaries in a text, in the same with fewer quotes, without white
// space, and in what it decompresses to, each once.
func (f *flock) search(where string, text []byte) (hits []hit) {
	found := map[int]bool{}
	fewer := backslashes.ReplaceAll(text, []byte(`\`))
	for _, b := range append([][]byte{text, fewer, joined(fewer)}, unpacked(text)...) {
		for at := range len(b) - 2 {
			if n := begin(b[at:]); f.begins[n>>6]&(1<<(n&63)) == 0 {
				continue
			}
			for size, windows := range f.windows {
				if at+size > len(b) {
					continue
				}
				i, ok := windows[string(b[at:at+size])]
				if !ok || found[i] {
					continue
				}
				found[i] = true
				around := b[max(0, at-60):min(len(b), at+size+20)]
				hits = append(hits, hit{where, f.all[i], fmt.Sprintf("%q", around)})
			}
		}
	}
	return hits
}

// joined is a text whose lines and words stand together, in JSON too, so that what was
// split over them is whole.
func joined(text []byte) []byte {
	var b []byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ' ', c == '\n', c == '\r', c == '\t':
		case c == '\\' && i+1 < len(text) && (text[i+1] == 'n' || text[i+1] == 'r' || text[i+1] == 't'):
			i++
		default:
			b = append(b, c)
		}
	}
	return b
}

// unpacked is what gzip and zlib streams hold that begin anywhere in the text.
func unpacked(text []byte) (out [][]byte) {
	for at := range len(text) - 2 {
		var r io.Reader
		var err error
		switch {
		case text[at] == 0x1f && text[at+1] == 0x8b && text[at+2] == 8:
			r, err = gzip.NewReader(bytes.NewReader(text[at:]))
		case text[at] == 0x78 && (text[at+1] == 0x01 || text[at+1] == 0x9c || text[at+1] == 0xda):
			r, err = zlib.NewReader(bytes.NewReader(text[at:]))
		default:
			continue
		}
		if err != nil {
			continue
		}
		if b, _ := io.ReadAll(io.LimitReader(r, 8<<20)); len(b) > 0 { // up to where it breaks off
			out = append(out, b)
		}
	}
	return out
}
