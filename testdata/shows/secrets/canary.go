package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// scene is the show.
type scene struct {
	*show.Gatebus
	targets []*target

	mu     sync.Mutex
	rand   *rand.Rand
	values []string // all secrets that there ever were
	seen   []byte   // all that was printed and answered
}

const letters = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// value is a new secret.
func (s *scene) value() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := make([]byte, 32)
	for i := range b {
		b[i] = letters[s.rand.IntN(len(letters))]
	}
	s.values = append(s.values, string(b))
	return string(b)
}

// keep keeps what was printed.
func (s *scene) keep(texts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range texts {
		s.seen = append(append(s.seen, t...), '\n')
	}
}

// said keeps what a process printed.
func (s *scene) said(p *show.Process) { s.keep(p.Stdout.String(), p.Stderr.String()) }

// ask asks, and keeps what was answered.
func (s *scene) ask(ctx context.Context, c *client.Client, method string, params, result any) error {
	var answer json.RawMessage
	err := c.Do(ctx, method, params, &answer)
	s.keep(string(answer))
	if err != nil {
		s.keep(err.Error())
		return err
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer, result)
}

// fields puts secrets into every field that a person can put one into, right or wrong.
func (s *scene) fields(ctx context.Context, c *client.Client) error {
	token := func() string { return "ghp_" + s.value() + "abcd" }
	good := map[string]any{
		"arguments": map[string]any{"command": "true", "args": []any{"--token", s.value(), "--api-key=" + s.value(), token(), "-H", "Authorization: Bearer " + s.value()}, "env": map[string]any{"API_KEY": s.value()}, "disabled": true},
		"path":      map[string]any{"url": "https://mcp.example/" + token() + "/mcp", "headers": map[string]any{"Authorization": "Bearer " + s.value(), "Cookie": "sid=" + s.value()}, "disabled": true},
	}
	bad := map[string]any{
		"userinfo":  map[string]any{"url": "https://" + s.value() + ":" + s.value() + "@mcp.example/mcp"},
		"query":     map[string]any{"url": "https://mcp.example/mcp?key=" + s.value() + "#" + s.value()},
		"scheme":    map[string]any{"url": s.value()},
		"both":      map[string]any{"url": "https://mcp.example/" + token(), "command": token()},
		"neither":   map[string]any{"env": map[string]any{"A": s.value()}},
		"name":      map[string]any{"command": "x", "env": map[string]any{"=" + token(): s.value(), "LD_PRELOAD": s.value()}},
		"headers":   map[string]any{"url": "https://mcp.example/mcp", "headers": map[string]any{"X-A": s.value() + "\n" + s.value(), "Bad Name " + token(): "x"}},
		"types":     map[string]any{"command": []any{s.value()}, "args": s.value(), "env": s.value(), "cwd": map[string]any{"x": s.value()}},
		"times":     map[string]any{"command": "x", "startup_timeout_sec": s.value(), "tool_timeout_sec": []any{s.value()}},
		"flags":     map[string]any{"command": "x", "enabled": s.value(), "required": s.value(), "allow_implicit_invocation": s.value()},
		"unknown":   map[string]any{"command": []any{}, "bearer_token": s.value(), token(): s.value()},
		token():     map[string]any{"command": "x", "env": map[string]any{"A": s.value()}},
		"no object": s.value(),
	}
	var done struct{ Status string }
	if err := s.ask(ctx, c, "mcp/install", map[string]any{"config": map[string]any{"mcpServers": good}}, &done); err != nil || done.Status != "ok" {
		return fmt.Errorf("secrets in good fields: %s, %v", done.Status, err)
	}
	if err := s.ask(ctx, c, "mcp/install", map[string]any{"config": map[string]any{"mcpServers": bad, "other": s.value()}}, &done); err != nil || done.Status != "validation_error" {
		return fmt.Errorf("secrets in bad fields: %s, %v", done.Status, err)
	}
	// What is refused as a whole.
	_ = s.ask(ctx, c, "mcp/install", map[string]any{"config": `{"mcpServers": {"x": "` + s.value() + `}`}, nil)
	_ = s.ask(ctx, c, "mcp/install", map[string]any{"config": "{}", "scope_kind": s.value()}, nil)
	_ = s.ask(ctx, c, "mcp/install", map[string]any{"config": "{}", "api_key": s.value()}, nil)
	_ = s.ask(ctx, c, "secret/set", map[string]any{"name": "nobody/env/TOKEN", "value": s.value()}, nil)
	_ = s.ask(ctx, c, "secret/set", map[string]any{"name": "vault/env/TOKEN", "value": []any{s.value()}}, nil)
	_ = s.ask(ctx, c, "secret/set", map[string]any{"name": "vault/env/TOKEN", "valeu": s.value()}, nil)
	// What is asked about all of it.
	for _, method := range []string{"mcp/list", "secret/list", "secret/doctor", "audit/list"} {
		if err := s.ask(ctx, c, method, nil, nil); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
	for name := range good {
		_ = s.ask(ctx, c, "mcp/server/details", client.ServerName{Name: name}, nil)
	}
	return nil
}

// canaries looks for every secret in all files of the home and in all that was printed
// and answered, as it is and in the forms that programs make of texts.
func (s *scene) canaries() error {
	const window = 16
	pieces := map[string]int{}
	for i, v := range s.values {
		escaped, _ := json.Marshal(v) // any text
		forms := []string{v, strings.Trim(string(escaped), `"`), url.QueryEscape(v), hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v)))}
		for shift := range 3 {
			text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), v...))
			forms = append(forms, text[(shift*8+5)/6:(shift+len(v))*8/6])
		}
		for _, f := range forms {
			for at := 0; at+window <= len(f); at++ {
				pieces[f[at:at+window]] = i
			}
		}
	}
	search := func(text []byte) (n int) {
		for at := 0; at+window <= len(text); at++ {
			if _, ok := pieces[string(text[at:at+window])]; ok {
				n++
			}
		}
		return n
	}
	if search([]byte(`x {"a":"`+s.values[0]+`"} y`)) == 0 || search([]byte(hex.EncodeToString([]byte(s.values[1])))) == 0 {
		return fmt.Errorf("the search finds nothing")
	}
	var hits []string
	files, size := 0, 0
	err := filepath.WalkDir(s.Home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		files++
		size += len(b)
		if search(b)+search([]byte(path)) > 0 {
			hits = append(hits, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	if search(s.seen) > 0 {
		hits = append(hits, "what was printed or answered")
	}
	fmt.Printf("%d secrets looked for in %d files of the home with %d bytes, and in %d bytes of what was printed and answered: found in %d\n",
		len(s.values), files, size, len(s.seen), len(hits))
	if !bytes.Contains(s.seen, []byte("gateway_settings:mcp:")) {
		return fmt.Errorf("no answer speaks of a secret: the search says nothing")
	}
	if len(hits) > 0 {
		return fmt.Errorf("secrets in %s", strings.Join(hits, ", "))
	}
	return nil
}
