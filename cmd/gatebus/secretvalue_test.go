package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/secrets"
)

// A secret comes from stdin or a file, without the end of its last line.
func TestSecretIsReadFromStdinOrAFile(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"hunter2\n": "hunter2", "hunter2\r\n": "hunter2", "hunter2": "hunter2", " two\nlines \n\n": " two\nlines \n",
		strings.Repeat("x", secrets.MaxValue) + "\r\n": strings.Repeat("x", secrets.MaxValue),
		"": "", "\n": "", strings.Repeat("x", secrets.MaxValue+1): "", "\xff": "", "a\x00b": "",
	} {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"", "-", path} {
			m := &Main{Stdin: strings.NewReader(input)}
			got, err := m.readSecret(t.Context(), "value of x", file)
			wrong, _ := errors.AsType[*problem](err)
			if got != want || (want == "") != (wrong != nil && wrong.kind == fault.Usage) {
				t.Errorf("%.20q from %q: %.20q, %v", input, file, got, err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter") {
				t.Errorf("the error shows it: %v", err)
			}
		}
	}
}
