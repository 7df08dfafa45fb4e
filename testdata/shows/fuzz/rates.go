package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// urls are what "policy url check" is measured with: each kind as often as another.
var urls = []string{
	"https://mcp.example/mcp", "http://10.0.0.1:8080/mcp", "http://0x7f.1/", "http://[2606:4700:4700::1111]/mcp", "https://bücher.example/mcp",
	"https://user:pass@mcp.example/", "http://169.254.169.254/latest/meta-data", "https://mcp.example:8443/a/b/c?x=1&y=2#z", "javascript:alert(1)",
	"http://127。0。0。1/", "https://mcp.example/" + strings.Repeat("a/%41", 100), "http://[::ffff:a9fe:a9fe]:80/",
}

// key is the secret in what "policy redact" is measured with.
const key = "tk4f1c9a7b3d2e4f65e1f0c9a7b3d2e"

// texts are what it is measured with: logs and results as servers write them, each
// with the secret once in a while.
var texts = []struct{ name, piece string }{
	{"plain text", "The quick brown fox jumps over the lazy dog, 42 times a day. "},
	{"log lines", `2026-11-30T10:15:30.123Z level=info msg="request done" status=200 bytes=5120 path=/v1/items/81 took=12.5ms` + "\n"},
	{"JSON in a text", `{"id":81,"name":"item","tags":["a","b"],"price":12.50,"note":"nothing \"special\""},` + "\n"},
	{"secrets", "Authorization: Bearer " + key + "\npassword=" + key + " https://bob:" + key + "@docs.example/?token=" + key + "\n"},
}

// rates prints how fast URLs are judged and texts redacted, by the CPU time of the
// program.
func rates(ctx context.Context, bin string) error {
	judge := []string{"policy", "url", "check", "--offline", "--file", "-", "-o", "json"}
	idle, _, err := cost(ctx, bin, []byte("\"https://a.example/\"\n"), judge...)
	if err != nil {
		return err
	}
	const rounds = 5000
	var one bytes.Buffer
	bytesOf := 0
	for _, raw := range urls {
		line, _ := json.Marshal(raw) // a text
		one.Write(append(line, '\n'))
		bytesOf += len(raw)
	}
	took, out, err := cost(ctx, bin, bytes.Repeat(one.Bytes(), rounds), judge...)
	if err != nil {
		return err
	}
	rows := rounds * len(urls)
	if said := bytes.Count(out, []byte(`"reason":`)); said != rows {
		return fmt.Errorf("%d URLs have %d verdicts", rows, said)
	}
	seconds := max(took-idle, time.Millisecond).Seconds()
	fmt.Printf("policy url check: %d rows, %.0f rows a second, %.1f MB/s\n", rows, float64(rows)/seconds, float64(bytesOf*rounds)/1e6/seconds)

	line := func(member string, input any) []byte {
		b, _ := json.Marshal(map[string]any{"secrets": []map[string]string{{"name": "TOKEN", "source": "show", "value": key}}, member: input})
		return append(b, '\n')
	}
	if idle, _, err = cost(ctx, bin, line("input", ""), "policy", "redact"); err != nil {
		return err
	}
	for _, t := range texts {
		text := strings.Repeat(t.piece, (4<<20)/len(t.piece))
		for _, form := range []struct {
			member string
			input  any
		}{{"input", text}, {"input_json", map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}}}} {
			took, out, err := cost(ctx, bin, line(form.member, form.input), "policy", "redact")
			if err != nil {
				return err
			}
			if bytes.Contains(out, []byte(key)) || bytes.Contains(out, []byte("<redaction-failed>")) || len(out) < len(text)/4 {
				return errors.New("the program did not redact " + t.name)
			}
			fmt.Printf("policy redact, %s as %s: %.1f MB/s\n", t.name, form.member, float64(len(text))/1e6/max(took-idle, time.Millisecond).Seconds())
		}
	}
	return nil
}

// cost is the CPU time that the program takes for an input, and what it prints.
func cost(ctx context.Context, bin string, input []byte, args ...string) (time.Duration, []byte, error) {
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdin, cmd.Env = bytes.NewReader(input), []string{"HOME=/nonexistent"}
	out, err := cmd.Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, e.Stderr)
	}
	if err != nil {
		return 0, nil, err
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), out, nil
}
