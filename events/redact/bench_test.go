package redact

import (
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

func BenchmarkText(b *testing.B) {
	r, s := benchRedactor(b), NewRaw(prose(10<<10))
	b.SetBytes(10 << 10)
	b.ReportAllocs()
	for b.Loop() {
		r.Text(s)
	}
}

func BenchmarkJSON(b *testing.B) {
	r := benchRedactor(b)
	src := []byte(`{"content":[{"type":"text","text":` + quote(prose(10<<10)) + `}],"isError":false}`)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		r.JSON(NewRaw(src))
	}
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
		values, _ := ArgumentValues(args)
		with, _ := r.With(secrets...)
		if _, err := with.WithStored(values...); err != nil {
			b.Fatal(err)
		}
	}
}
