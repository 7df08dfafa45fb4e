// Package redaction reads the corpus of redaction beside it, for the tests of the
// engine and for the show that asks the program.
package redaction

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Row is a case of the corpus; its placeholders are filled by Expand.
type Row struct {
	ID, Class, Level, Why string
	Parts                 map[string][]string
	Context               struct {
		Secrets []struct{ Name, Source, Value string }
		Env     map[string]string
		Headers map[string]string
		Args    []string
		URL     string
		Inject  string
		Repeat  int

		CallArgs           json.RawMessage `json:"call_args"`
		ExtraRandomSecrets int             `json:"extra_random_secrets"`
	}
	Input          *string
	InputJSON      json.RawMessage `json:"input_json"`
	MustNotContain []string        `json:"must_not_contain"`
	MustContain    []string        `json:"must_contain"`
}

// Beyond are the hardened rows that are not met, and why.
var Beyond = map[string]string{
	"nfd-nfc": "the same letters in another normal form of Unicode are not taken for each other",
}

// Read reads the rows in the folder dir.
func Read(dir string) ([]Row, error) {
	f, err := os.Open(filepath.Join(dir, "redaction.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []Row
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("row %d of the corpus: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, errors.New("the corpus of redaction has no rows")
	}
	return rows, lines.Err()
}

// Check returns what is wrong with a view.
func (r *Row) Check(view string) (wrong []string) {
	for _, s := range r.MustNotContain {
		if s = r.Expand(s); strings.Contains(view, s) {
			wrong = append(wrong, fmt.Sprintf("%s: shows %.60q", r.ID, s))
		}
	}
	for _, s := range r.MustContain {
		if s = r.Expand(s); !strings.Contains(view, s) {
			wrong = append(wrong, fmt.Sprintf("%s: lost %.60q", r.ID, s))
		}
	}
	return wrong
}

var placeholder = regexp.MustCompile(`\{\{([^{}]*)\}\}`)

// part joins the pieces of a named part.
func (r *Row) part(name string) string {
	var b strings.Builder
	for _, piece := range r.Parts[name] {
		b.WriteString(r.Expand(piece))
	}
	return b.String()
}

// Expand fills the placeholders of s, by the rules of the corpus.
func (r *Row) Expand(s string) string {
	return placeholder.ReplaceAllStringFunc(s, func(m string) string {
		op, arg, ok := strings.Cut(m[2:len(m)-2], ":")
		if !ok {
			return r.part(op)
		}
		count, rest, _ := strings.Cut(arg, ":")
		n, _ := strconv.Atoi(count)
		switch op {
		case "rep":
			return strings.Repeat(rest, n)
		case "repp":
			return strings.Repeat(r.part(rest), n)
		case "first":
			return string([]rune(r.part(rest))[:n])
		case "last":
			v := []rune(r.part(rest))
			return string(v[len(v)-n:])
		case "lines":
			var lines []string
			for chunk := range slices.Chunk([]rune(r.part(rest)), n) {
				lines = append(lines, string(chunk))
			}
			return strings.Join(lines, "\n")
		}
		return Encodings[op](r.part(arg))
	})
}

// ExpandJSON fills the placeholders in the strings of a JSON text, which is
// compact. They are filled in the decoded strings, as a value may need escapes.
func (r *Row) ExpandJSON(src []byte) string {
	return jsonString.ReplaceAllStringFunc(string(src), func(token string) string {
		var s string
		if json.Unmarshal([]byte(token), &s) != nil || !strings.Contains(s, "{{") {
			return token
		}
		return `"` + Encodings["json"](r.Expand(s)) + `"`
	})
}

var jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Encodings are the operations of placeholders on a value.
var Encodings = map[string]func(string) string{
	"b64":      func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"b64nopad": func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) },
	"b64url":   func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
	"url":      percent,
	"urlq":     url.QueryEscape,
	"url2":     func(s string) string { return percent(percent(s)) },
	"urlall": func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
		return b.String()
	},
	"hex":   func(s string) string { return hex.EncodeToString([]byte(s)) },
	"HEX":   func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	"json":  escape,
	"json2": func(s string) string { return escape(escape(s)) },
	"uni": func(s string) string {
		var b strings.Builder
		for _, r := range utf16.Encode([]rune(s)) {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		return b.String()
	},
	"html":  strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;").Replace,
	"sh":    func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" },
	"upper": strings.ToUpper,
	"lower": strings.ToLower,
	"fw": func(s string) string {
		return strings.Map(func(r rune) rune {
			if r > ' ' && r <= '~' {
				return r + '！' - '!'
			}
			return r
		}, s)
	},
	"rev": func(s string) string {
		r := []rune(s)
		slices.Reverse(r)
		return string(r)
	},
	"spaced": func(s string) string { return strings.Join(strings.Split(s, ""), " ") },
}

func percent(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// escape writes s as JSON does, without the quotes.
func escape(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil {
		return s
	}
	return b.String()[1 : b.Len()-2]
}
