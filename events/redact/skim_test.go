package redact

import (
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// exact is search without anything that passes over text.
func (r *Redactor) exact(s string) []span {
	var out []span
	last := &level{text: s}
	add := func(l *level, spans []span) {
		for _, f := range spans {
			out = append(out, f.on(l))
		}
	}
	matchers := make([]*matcher, len(r.layers))
	for i, layer := range r.layers {
		matchers[i] = newMatcher(layer.patterns, layer.wide)
	}
	for n, l := 0, last; n <= maxLevels && l != nil; n, l = n+1, l.unescape() {
		for i, layer := range r.layers {
			add(l, matchers[i].find(l.text))
			add(l, layer.echo.find(l.text))
			add(l, layer.findEncoded(l.text))
		}
		add(l, findShapes(l.text, allTraits))
		last = l
	}
	for _, m := range matchers {
		add(last, m.findSqueezed(last.text))
	}
	return out
}

const (
	skimmed  = "tk4f1c9a7b-3d2e/4f65_e1f0"
	argument = "select price from orders; "
)

var (
	arrows = strings.Repeat(">>>", 60)
	blanks = strings.Repeat("Pj4 ", 20) // its base64, with blanks for plus
)

// skimmers know secrets of each kind.
func skimmers(t testing.TB) []*Redactor {
	t.Helper()
	r := mustRedactor(t, secret("API_KEY", skimmed), secret("PIN", "84x9q"))
	with, err := r.WithStored(secret("argument:q", argument), secret("argument:text", strings.Repeat(argument, 3)+prose(300)), secret("argument:plus", arrows))
	if err != nil {
		t.Fatal(err)
	}
	return []*Redactor{mustRedactor(t), r, with}
}

// agrees fails where passing over text changes what is found in s.
func agrees(t interface{ Fatalf(string, ...any) }, r *Redactor, s string) {
	if diff := cmp.Diff(r.perView(r.exact(s)), r.perView(r.search(s)), cmp.AllowUnexported(span{})); diff != "" {
		t.Fatalf("%q: %s", s, diff)
	}
	for n := range min(len(s)+1, minRun) { // of a short text
		if short := s[:n]; skim(short).quiet(n) && (len(findShapes(short, allTraits)) > 0 || escaped(short)) {
			t.Fatalf("%q is not quiet", short)
		}
	}
}

// fragments are what texts are made of in which something is found, or nearly.
var fragments = slices.Concat(strings.Split("token|password |login |: |:|=|=>|:=|\"|'|\\\"|\\n|\n| |  | -|-p|--token |</token>|<|>|@|a:|://|?code=|&|%2D|\\u002d|key|API_KEY|Authorization: |Bearer |basic |Cookie: a=|PRIVATE KEY|-----BEGIN |-----END |eyJ|.|glpat-|sk-ant-|é|\xff|mysql |ｔｏｋｅｎ|tcp(|host:5432:a:b:", "|"), []string{
	skimmed, skimmed[:12], skimmed[12:], strings.ToUpper(skimmed), base64.StdEncoding.EncodeToString([]byte("xy" + skimmed)), strings.Join(strings.Split(skimmed, ""), " "), "84x9q",
	blanks, blanks[:20], argument, strings.Repeat(argument, 2), prose(120), base64.URLEncoding.EncodeToString([]byte(prose(200))), strings.Repeat("x", 31), "4f1c9a7b3d2e4f65e1f0c9a7b3d2e", "Wq7Zb2KpXr9TnV4s",
})

func TestSkimmingFindsWhatTheEngineFinds(t *testing.T) {
	t.Parallel()
	if r := skimmers(t)[2]; len(r.search("x: "+blanks)) == 0 {
		t.Fatal("base64 with blanks is not found")
	}
	redactors := skimmers(t)
	for i, place := range places {
		text := strings.ReplaceAll(place, "%s", grown(uint64(i), 24, words))
		for _, r := range redactors {
			agrees(t, r, text)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 12).Draw(t, "text"), "")
		for _, r := range redactors {
			agrees(t, r, text)
		}
	})
}

func FuzzSkimming(f *testing.F) {
	for i, s := range fragments {
		f.Add(s, fragments[(i*7+3)%len(fragments)], uint8(i))
	}
	redactors := skimmers(f)
	f.Fuzz(func(t *testing.T, a, b string, i uint8) {
		if len(a)+len(b) > 4000 {
			return
		}
		agrees(t, redactors[int(i)%len(redactors)], a+fragments[int(i)%len(fragments)]+b)
	})
}

// A name that the lists know ends as the table says.
func TestNamesOfSecretsEndLikeOne(t *testing.T) {
	t.Parallel()
	var names []string
	for _, set := range []map[string]bool{headerNames, passwordNames, textNames, sensitiveNames, optionNames, queryNames, openNames, openKeys} {
		names = slices.AppendSeq(names, maps.Keys(set))
	}
	names = append(append(names, sensitiveEnds...), "my_password", "dbpasswd", "SIGNING_KEY", "ｔｏｋｅｎ", "tok\u00aden", "ſecret", "toKen")
	slices.Sort(names)
	passed := func(name string) bool {
		return !endsLikeSecret(name) && (SensitiveName(name) || listedKind(name) != openName)
	}
	for _, name := range names {
		if passed(name) {
			t.Errorf("%q is passed over", name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"", "x_", "my-", "X", "é.", "1"}).Draw(t, "before") + rapid.SampledFrom(names).Draw(t, "name")
		if at := rapid.IntRange(0, len(name)).Draw(t, "at"); rapid.Bool().Draw(t, "parted") {
			name = name[:at] + rapid.SampledFrom([]string{"_", "-", ".", "--", " ", "s", "é"}).Draw(t, "part") + name[at:]
		}
		if rapid.Bool().Draw(t, "upper") {
			name = strings.ToUpper(name)
		}
		if passed(name) {
			t.Fatalf("%q is passed over", name)
		}
	})
}

// reference are the tokens that jsontext reads.
func reference(src string) (tokens []token, ok bool) {
	d := jsontext.NewDecoder(strings.NewReader(src), lenient)
	for n := 0; ; n++ {
		kind, depth := d.PeekKind(), d.StackDepth()
		in, length := d.StackIndex(depth)
		if kind != '"' && kind != '0' {
			switch _, err := d.ReadToken(); {
			case errors.Is(err, io.EOF):
				return tokens, depth == 0 && n > 0
			case err != nil || depth == 0 && n > 0 || (kind == '{' || kind == '[') && depth >= maxDepth || depth >= maxDepth && kind != '}' && kind != ']':
				return nil, false
			}
			continue
		}
		v, err := d.ReadValue()
		if err != nil || depth == 0 && n > 0 || depth >= maxDepth && !(in == '{' && length%2 == 0) {
			return nil, false
		}
		end := int(d.InputOffset())
		tokens = append(tokens, token{start: int32(end - len(v)), end: int32(end), kind: kind, name: in == '{' && length%2 == 0})
	}
}

func sameTokens(t interface{ Fatalf(string, ...any) }, src string) {
	p := &parser{sensitive: map[string]bool{}}
	got, err := p.tokenize(src)
	want, ok := reference(src)
	if ok != (err == nil) {
		t.Fatalf("%q: %v, jsontext says %v", src, err, ok)
	}
	if !ok {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%q: %d tokens, jsontext reads %d", src, len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if g.start != w.start || g.end != w.end || g.kind != w.kind || g.name != w.name {
			t.Fatalf("%q: token %d is %v, jsontext reads %v", src, i, g, w)
		}
		inner := src[g.start:g.end]
		if g.kind == '"' {
			inner = inner[1 : len(inner)-1]
			if g.has != skim(inner) {
				t.Fatalf("%q: token %d has %b, and not %b", src, i, g.has, skim(inner))
			}
		}
	}
}

var documents = []string{
	``, ` `, `1`, `-0.5e+10`, `01`, `1.`, `-`, `1e`, `.5`, `+1`, `"a"`, `"a`, `"\u12G4"`, `"\ud800"`, `"\x41"`, "\"\x01\"", "\"\xff\"", `nul`, `null`, `true false`, `{}`, `[]`, `[1,]`, `[,]`, `{"a":1,}`, `{"a"}`, `{1:2}`,
	`{"a":[1,{"b":"c\n"}],"a":null} `, `[["x",1],["y",{"z":[]}]]`, "\t{\r\n\"é\" : \"\\u00e9\\/\" }", `"` + strings.Repeat("x", 20) + `\"` + strings.Repeat("y", 20) + `"`, "\x00", "1\x00", `{"a":1}{`,
	strings.Repeat("[", 256) + strings.Repeat("]", 256), strings.Repeat("[", 255) + `{"a":[]}` + strings.Repeat("]", 255), strings.Repeat(`{"a":`, 256) + "1" + strings.Repeat("}", 256), "\u00a01", "\ufeff1",
}

func TestTokensAreThoseOfJSON(t *testing.T) {
	t.Parallel()
	for _, src := range append(documents, rows(5000)) {
		sameTokens(t, src)
	}
	rapid.Check(t, func(t *rapid.T) {
		pieces := strings.Split("{|}|[|]|,|:|\"|\"a\"|\"b\\n\"|1|-|.|e|0|true|null| |\\|\\u00|\"name\"|é|\n|\xff", "|")
		sameTokens(t, strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "src"), ""))
	})
}

func FuzzTokens(f *testing.F) {
	for _, src := range documents {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) { sameTokens(t, src) })
}
