package redact_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Snippets outside of package events that must not compile, by the message
// that tells why; "" for those that must.
var snippets = []struct{ name, code, message string }{
	{"control", `
		import "github.com/gatebus/gatebus/events/redact"
		var r, _ = redact.NewRedactor()
		var v = r.Text(redact.NewRaw("x"))
		var m redact.ModelText = v.Model
		var e redact.EventText = redact.Static("a constant")
		var same = e == v.Event`, ""},
	{"assign", `
		import "github.com/gatebus/gatebus/events/redact"
		var v redact.Views
		var e redact.EventText = v.Model`, "cannot use v.Model"},
	{"convert", `
		import "github.com/gatebus/gatebus/events/redact"
		var v redact.Views
		var d = redact.DurableText(v.Operator)`, "cannot convert v.Operator"},
	{"compare", `
		import "github.com/gatebus/gatebus/events/redact"
		var v redact.Views
		var b = v.Event == v.Durable`, "mismatched types"},
	{"fromstring", `
		import "github.com/gatebus/gatebus/events/redact"
		var s = "x"
		var e = redact.EventText(s)`, "cannot convert s"},
	{"literal", `
		import "github.com/gatebus/gatebus/events/redact"
		var e = redact.EventText{s: "x"}`, "unexported"},
	{"static", `
		import "github.com/gatebus/gatebus/events/redact"
		var s = "x"
		var e = redact.Static(s)`, "cannot use s"},
	{"rawfield", `
		import "github.com/gatebus/gatebus/events/redact"
		var r = redact.NewRaw("x")
		var p = *r.p`, "r.p undefined"},
	{"debugged", `
		import "github.com/gatebus/gatebus/events/redact"
		func store(redact.DurableText) {}
		func init() { var v redact.Views; store(v.Debug) }`, "cannot use v.Debug"},
	{"mint", `
		import "github.com/gatebus/gatebus/events/internal/mint"
		var t = mint.New[int]("x")`, "use of internal package"},
}

func TestViewsDoNotMix(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The snippets exist in an overlay only, each in a package of its own.
	dir := t.TempDir()
	replace := map[string]string{}
	for _, s := range snippets {
		file := filepath.Join(dir, s.name+".go")
		code := regexp.MustCompile(`(?m)^\t\t`).ReplaceAllString(s.code, "")
		if err := os.WriteFile(file, []byte("package "+s.name+"\n"+code), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, "snippets", s.name, s.name+".go")] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	// An import that is refused stops the go tool before it compiles, so each
	// snippet is built alone.
	for _, s := range snippets {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlayFile, "./snippets/"+s.name)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		switch {
		case s.message == "" && err != nil:
			t.Errorf("%s does not compile: %s", s.name, out)
		case s.message != "" && (err == nil || !strings.Contains(string(out), s.message)):
			t.Errorf("%s: want %q, got %v: %s", s.name, s.message, err, out)
		}
	}
}
