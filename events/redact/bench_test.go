package redact

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// prose is text as tools return it, of about n bytes.
func prose(n int) string {
	line := "The quick brown fox, 42 years old, read /home/ana/notes/2026.md and said: \"nothing new\".\n"
	return strings.Repeat(line, n/len(line)+1)[:n]
}

func benchRedactor(b *testing.B) *Redactor {
	b.Helper()
	var secrets []Secret
	for i := range 10 {
		name := fmt.Sprint("TOKEN_", i)
		secrets = append(secrets, Secret{name, "mcp.env:" + name, NewRaw("tk" + fingerprint(name) + fingerprint(name+"x"))})
	}
	r, err := NewRedactor(secrets...)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkCall is what a call adds to the redactor of its connection.
func BenchmarkCall(b *testing.B) {
	r := benchRedactor(b)
	args := NewRaw([]byte(`{"path":"/home/ana/notes/2026.md","query":"select name from users","limit":100,"token":"sekret-value-1234"}`))
	b.ReportAllocs()
	for b.Loop() {
		secrets, err := ArgumentSecrets(args)
		if err != nil {
			b.Fatal(err)
		}
		_, values, _ := ArgumentValues(args)
		with, _ := r.With(secrets...)
		if _, err := with.WithStored(values...); err != nil {
			b.Fatal(err)
		}
	}
}

// code is text of a program, of about n bytes.
func code(n int) string {
	part := `	for i, name := range names {
		if err := s.client.Get(ctx, "https://docs.example/v1/items?page="+strconv.Itoa(i), &items); err != nil {
			return fmt.Errorf("list items of %s: %w", name, err)
		}
		total += len(items) // see issue 4711: a page may be empty
	}
`
	return strings.Repeat(part, n/len(part)+1)[:n]
}

// rows is structured content, of about n bytes.
func rows(n int) string {
	var b strings.Builder
	b.WriteString(`{"rows":[`)
	for i := 0; b.Len() < n; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":%d,"name":"item %d","created":"2026-11-30T10:15:%02dZ","tags":["a","b"],"url":"https://docs.example/items/%d","price":12.5,"open":true}`, i, i, i%60, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

// BenchmarkRates tells how fast texts are redacted of which each says something.
func BenchmarkRates(b *testing.B) {
	r := benchRedactor(b)
	with, err := r.WithStored(Secret{"argument:path", "argument", NewRaw("/srv/files/of/berta.txt")}, Secret{"argument:query", "argument", NewRaw("select price from orders")})
	if err != nil {
		b.Fatal(err)
	}
	token := r.entries[3].value
	texts := []struct {
		name, text string
		json       bool
	}{
		{"100 B text", prose(100), false},
		{"10 KB text", prose(10 << 10), false},
		{"10 KB code", code(10 << 10), false},
		{"10 KB result", `{"content":[{"type":"text","text":` + quote(prose(10<<10)) + `}],"isError":false}`, true},
		{"10 KB rows", rows(10 << 10), true},
		{"10 KB with a secret", prose(5<<10) + token + prose(5<<10), false},
		{"1 MB text", prose(1 << 20), false},
		{"1 MB rows", rows(1 << 20), true},
		{"1 MB base64", base64.StdEncoding.EncodeToString([]byte(prose(768 << 10))), false},
		{"1 MB of names", strings.Repeat("password:", 1<<20/9), false},
		{"1 MB of headers", strings.Repeat("Authorization: Bearer x ", 1<<20/24), false},
		{"1 MB of half secrets", strings.Repeat(token[:len(token)-1], 1<<20/len(token)), false},
		{"1 MB of escapes", strings.Repeat(`\\u0026amp;`, 1<<20/11), false},
		{"1 MB of keys", strings.Repeat("-----BEGIN PRIVATE KEY-----", 1<<20/27), false},
		{"1 MB of JWTs", strings.Repeat("eyJ-", 1<<20/4), false},
		{"1 MB of at signs", strings.Repeat("a:@", 1<<20/3), false},
		{"1 MB of options", strings.Repeat(" -p", 1<<20/3), false},
		{"1 MB of quotes", strings.Repeat(`token="`, 1<<20/7), false},
		{"1 MB of elements", strings.Repeat("</token>", 1<<20/8), false},
	}
	for _, c := range texts {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				if c.json {
					with.JSON(NewRaw([]byte(c.text)))
				} else {
					with.Text(NewRaw(c.text))
				}
			}
		})
	}
}

// BenchmarkEcho is a call whose result is its argument of 10 KB.
func BenchmarkEcho(b *testing.B) {
	for _, n := range []int{100, 10 << 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := benchRedactor(b)
			args := NewRaw([]byte(`{"text":` + quote(prose(n)) + `}`))
			result := NewRaw([]byte(`{"content":[{"type":"text","text":` + quote(prose(n)) + `}],"isError":false}`))
			for b.Loop() {
				named, _ := ArgumentSecrets(args)
				with, _ := r.With(named...)
				_, values, _ := ArgumentValues(args)
				with, _ = with.WithStored(values...)
				with.Arguments(args, []byte("k"))
				with.JSON(result)
				c, err := Result("", result)
				if err != nil {
					b.Fatal(err)
				}
				c.Views(with)
			}
		})
	}
}
