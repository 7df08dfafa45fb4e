package connector_test

import (
	"strings"
	"testing"

	"github.com/gatebus/gatebus/workers/internal/rig"
)

// What a person approves is shown whatever a declaration has in its other fields: a
// variable with the command as its value does not hide it (R63).
func TestPreviewShowsTheCommand_R63(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.Declare("docs", "command: /opt/docs/bin-1", "cwd: Docs-1", "env: {ORDINARY: /opt/docs/bin-1, PLACE: Docs-1, OPTION: '--verbose'}",
		"args: [--verbose, 'canary-argument', -pcanary-password, --token, canary-token]")
	r.Load()
	r.GrantAll("ana")
	r.Prepare("ana")
	preview := r.AwaitPending(1)[0].Preview
	for _, part := range []string{`"command":"/opt/docs/bin-1"`, `"cwd":"Docs-1"`, `"--verbose"`, `"--token=\u003credacted\u003e"`} {
		if !strings.Contains(preview, part) {
			t.Errorf("%s is not in %s", part, preview)
		}
	}
	if strings.Contains(preview, "canary") || r.Stored("canary") {
		t.Errorf("a value is in the preview or in the log: %s", preview)
	}
}
