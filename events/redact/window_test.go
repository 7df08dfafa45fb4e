package redact

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestWindowIsCutAfterRedaction_R125(t *testing.T) {
	t.Parallel()
	const key = "s3cret-of-the-server"
	r := mustRedactor(t, secret("API_KEY", key))
	ahead := strings.Repeat("z", 200)
	for name, test := range map[string]struct {
		raw       string
		more      bool
		limit     int
		want      string
		truncated bool
		failed    bool
	}{
		"nothing":                            {raw: "", limit: 10},
		"all of it":                          {raw: "ready\n", limit: 10, want: "ready\n"},
		"exactly the limit":                  {raw: "0123456789", limit: 10, want: "0123456789"},
		"characters and not bytes":           {raw: "äöü€𝄞", limit: 4, want: "äöü€", truncated: true},
		"a secret":                           {raw: "key " + key + " end", limit: 100, want: "key <redacted:API_KEY> end"},
		"a secret across the limit":          {raw: "key " + key + ahead, limit: 10, want: "key <redac", truncated: true},
		"one by its shape":                   {raw: "password=x1y2z3x1y2z3 end", limit: 100, want: "password=<redacted:password> end"},
		"its marker fits":                    {raw: "key " + key + ahead, limit: 23, want: "key <redacted:API_KEY>", truncated: true},
		"a secret behind the limit":          {raw: "0123456789" + key, limit: 10, want: "0123456789", truncated: true},
		"what is behind it does not come in": {raw: key + key[:9] + strings.Repeat("z", 150), limit: 21, want: "<redacted:API_KEY>s", truncated: true, more: true},
		"too little beside the window":       {raw: "key " + key[:9], more: true, limit: 13, want: redactionFailed, failed: true},
		"no character":                       {raw: "a\xff\xfeb", limit: 10, want: "a\ufffd\ufffdb"},
		"what a terminal obeys":              {raw: "\x1b]52;c;eA==\a\tx\r\ny\rz\u202e", limit: 60, want: `\u001b]52;c;eA==\u0007` + "\tx\ny" + `\u000dz\u202e`},
	} {
		w := r.Head(NewRaw(test.raw), test.limit, test.more)
		if w.Text.String() != test.want || w.Truncated != test.truncated || w.Failed != test.failed || w.Chars != utf8.RuneCountInString(test.want) {
			t.Errorf("%s: %q, %d characters, truncated %v, failed %v", name, w.Text, w.Chars, w.Truncated, w.Failed)
		}
	}
	var broken *Redactor // whatever panics
	if w := broken.Head(NewRaw("x"), 1, false); w.Text.String() != redactionFailed || !w.Failed {
		t.Errorf("a redactor that fails shows %q", w.Text)
	}
	if got := broken.Tail(NewRaw("x"), 1, false).String(); got != redactionFailed {
		t.Errorf("a redactor that fails shows %q", got)
	}
}

func TestTailIsOneLineOfTheEnd(t *testing.T) {
	t.Parallel()
	const key = "s3cret-of-the-server"
	r := mustRedactor(t, secret("API_KEY", key))
	before := strings.Repeat("z", 200)
	for name, test := range map[string]struct {
		raw   string
		less  bool
		limit int
		want  string
	}{
		"nothing":                   {raw: "", limit: 10},
		"lines":                     {raw: "Error: no\n  at x\r\n\x1b[0m", limit: 30, want: `Error: no at x \u001b[0m`},
		"its end":                   {raw: "0123456789 the end", limit: 7, want: "the end"},
		"a secret":                  {raw: "key " + key, limit: 100, want: "key <redacted:API_KEY>"},
		"one by its shape":          {raw: "password=x1y2z3x1y2z3 end", limit: 100, want: "password=<redacted:password> end"},
		"a secret across the limit": {raw: before + key + " is bad", limit: 12, want: "_KEY> is bad"},
		"in the middle of it":       {raw: before + key, less: true, limit: 4, want: "KEY>"},
		"too little before it":      {raw: key[9:] + " is bad", less: true, limit: 100, want: redactionFailed},
	} {
		if got := r.Tail(NewRaw(test.raw), test.limit, test.less).String(); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := Join(Static("it said: "), r.Tail(NewRaw(key), 100, false)).String(); got != "it said: <redacted:API_KEY>" {
		t.Errorf("joined: %q", got)
	}
}

// Wherever the edge is, nothing of a secret is left at it.
func TestNoEdgeLeavesAPartOfASecret(t *testing.T) {
	t.Parallel()
	const key = "XYXYZZYXQWQWXY"
	r := mustRedactor(t, secret("API_KEY", key))
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{key, "a", "ä", "\n", " "}), 0, 40).Draw(t, "text"), "")
		limit := rapid.IntRange(0, 80).Draw(t, "limit")
		if got := r.Head(NewRaw(text), limit, false).Text.String(); strings.ContainsAny(got, "XZQW") {
			t.Fatalf("%q", got)
		}
		if got := r.Tail(NewRaw(text), limit, false).String(); strings.ContainsAny(got, "XZQW") {
			t.Fatalf("%q", got)
		}
	})
}

// FuzzWindow: wherever a text is cut, nothing of a secret is left at the edge, known
// or known by its shape only, what is kept is not above the limit and stays as it is
// when it is redacted once more, and a text that is there as a whole never fails.
func FuzzWindow(f *testing.F) {
	for i := range places {
		f.Add("level=info ", " end\n", uint16(4*i), uint8(i), uint64(i))
	}
	f.Add("\xff\x1b[0m\r\n", "\u2028", uint16(30), uint8(3), uint64(7))
	f.Add("password: '", "-----BEGIN RSA PRIVATE KEY-----", uint16(3), uint8(9), uint64(7))
	const key = "ЖЩЖЩЭЭЩЖЮЯЮЯЖЩ"
	r := mustRedactor(f, secret("API_KEY", key))
	f.Fuzz(func(t *testing.T, before, after string, limit uint16, place uint8, seed uint64) {
		if len(before)+len(after) > 4000 {
			return
		}
		// The letters of the key are in nothing else.
		other := func(c rune) rune {
			if strings.ContainsRune(key, c) {
				return '-'
			}
			return c
		}
		shape := grown(seed, 24, words)
		before, after = strings.Map(other, before), strings.Map(other, after)
		text := before + key + "\n" + fmt.Sprintf(places[int(place)%len(places)], shape) + "\n" + key + after
		limit %= 2 << 10
		head := r.Head(NewRaw(text), int(limit), false)
		tail := r.Tail(NewRaw(text), int(limit), false).String()
		if head.Failed || head.Text.String() == redactionFailed || tail == redactionFailed {
			t.Fatalf("%q fails", text)
		}
		for _, got := range []string{head.Text.String(), tail} {
			if strings.ContainsAny(got, key) || strings.Contains(got, shape[:8]) || strings.Contains(got, shape[16:]) {
				t.Errorf("%q, cut at %d, shows %q", text, limit, got)
			}
			if n := utf8.RuneCountInString(got); n > int(limit) || !utf8.ValidString(got) {
				t.Errorf("%q, cut at %d, has %d characters: %q", text, limit, n, got)
			}
		}
	})
}
