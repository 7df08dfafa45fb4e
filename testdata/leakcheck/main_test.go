package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is known to be no secret passes, and nothing else that looks like it.
func TestFindings(t *testing.T) {
	t.Parallel()
	letters := strings.Repeat("aB3dE5gH7jK9", 8)
	for name, c := range map[string]struct {
		text  string
		found int
	}{
		"nothing":         {"all is well", 0},
		"a token":         {"token: ghp_" + letters[:36], 1},
		"an id":           {`"token": "tok-01M8PXZVR4E9ED56V7BP917C47"`, 0},
		"a key":           {"-----BEGIN PRIVATE KEY-----\n" + letters + "\n-----END PRIVATE KEY-----", 1},
		"a key in JSON":   {`"-----BEGIN RSA PRIVATE KEY-----\\n` + letters + `\\n-----END RSA PRIVATE KEY-----"`, 1},
		"a redacted key":  {"-----BEGIN PRIVATE KEY-----<redacted:private_key>-----END PRIVATE KEY-----" + strings.Repeat(" x", 40) + " the KEY-----", 0},
		"a key after one": {"-----BEGIN PRIVATE KEY-----<redacted>-----END PRIVATE KEY-----, -----BEGIN PRIVATE KEY-----\n" + letters + "\n-----END PRIVATE KEY-----", 1},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "keys"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{"text", filepath.Join("keys", "text")} {
			if err := os.WriteFile(filepath.Join(dir, at), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if found, err := check([]string{dir}, []string{"keys"}); err != nil || found != c.found {
			t.Errorf("%s: %d findings, %v, want %d", name, found, err, c.found)
		}
	}
}
