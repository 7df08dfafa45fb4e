package connector_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// logs are what mcp/server/logs answers the operator.
func logs(t *testing.T, r *rig.Rig, server string) (rows []client.ServerLog) {
	t.Helper()
	if err := r.Local.Do(r.Context(), "mcp/server/logs", client.ServerLogs{Name: server}, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestStandardErrorOfAServerThatFailsIsKeptAndSaid_R124_R126(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", rig.Command("/bin/sh", "-c", `echo "no such module, key $API_TOKEN" >&2; exit 1`), "env: {API_TOKEN: s3cret-token}")
	wantDiagnostic(t, r.Connected("ana"), "docs", fault.ServerFailed)
	failed := rig.Events[events.ServerFailed](r)[0]
	const said = "no such module, key <redacted:API_TOKEN>"
	if !strings.HasSuffix(failed.Message.String(), "; its standard error ends with: "+said) {
		t.Errorf("the failure says %q", failed.Message)
	}
	sh, err := os.ReadFile("/bin/sh")
	if sum := sha256.Sum256(sh); err != nil || failed.ProgramDigest != hex.EncodeToString(sum[:]) || failed.Program == "" {
		t.Errorf("the program is %q with the digest %q, %v", failed.Program, failed.ProgramDigest, err)
	}
	captured := rig.Await(r, func(e events.StderrCaptured) bool { return true })
	if captured.Generation != failed.Generation || captured.Chars != uint32(len(said)+1) || captured.Truncated || captured.RedactionFailed {
		t.Errorf("recorded %+v", captured)
	}
	path := filepath.Join(r.Home, "logs", "mcp-stderr.log")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if !strings.Contains(string(data), `"server":"docs"`) || !strings.Contains(string(data), said+"\n") {
		t.Errorf("the file is %q", data)
	}
	if strings.Contains(string(data), "s3cret") || r.Stored("s3cret") {
		t.Error("the secret is on the disk")
	}
	rows := logs(t, r, "docs")
	if len(rows) == 0 || rows[0].Text != said+"\n" || rows[0].Exit != "exit status 1" || rows[0].Running || rows[0].Generation != failed.Generation {
		t.Errorf("the operator sees %+v", rows)
	}
	if err := r.Local.Do(r.Context(), "mcp/server/logs", client.ServerLogs{Name: "none"}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("of no server: %v", err)
	}
	if err := r.Local.Do(r.Context(), "mcp/server/logs", client.ServerLogs{Name: "docs", Limit: 101}, nil); !fault.Is(err, fault.InvalidInput) {
		t.Errorf("more than there may be: %v", err)
	}
	r.Ask("host/token", client.HostToken{Name: "ana"}, nil)
	if _, err := r.Answer("ana", "mcp/server/logs", []byte(`{"name":"docs"}`)); !fault.Is(err, fault.RoleDenied) {
		t.Errorf("a host: %v", err)
	}
}

// What is written before the end is seen while the server runs, and in the file
// after it, however it comes.
func TestStandardErrorOfAServerThatRunsIsSeen_R124(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "stderr-flood"), "approval_policy: auto")
	turn := r.Connected("ana")
	r.Call("ana", turn.Turn, "docs__call", `{}`)
	rows := logs(t, r, "docs")
	if len(rows) != 1 || !rows[0].Running || !rows[0].Truncated || len(rows[0].Text) != 12_000 {
		t.Fatalf("while it runs there are %d: %+v", len(rows), rows)
	}
	r.Stop()
	captured := rig.Events[events.StderrCaptured](r)
	if len(captured) != 1 || captured[0].Chars != 12_000 || !captured[0].Truncated {
		t.Errorf("recorded %+v", captured)
	}
	data, err := os.ReadFile(filepath.Join(r.Home, "logs", "mcp-stderr.log"))
	if err != nil || !strings.HasSuffix(string(data), "\n<truncated>\n") || len(data) > 13_000 {
		t.Errorf("the file has %d bytes, %v", len(data), err)
	}
}

// R124: what cannot be kept is no reason for anything to fail.
func TestStandardErrorThatCannotBeKeptHoldsNothingUp_R124(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "stderr-flood"), "approval_policy: auto")
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(r.Home, "logs")); err != nil {
		t.Fatal(err)
	}
	turn := r.Connected("ana")
	if reply := r.Call("ana", turn.Turn, "docs__call", `{}`); reply.Status != "succeeded" {
		t.Errorf("the call: %+v", reply)
	}
	r.Stop()
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 || len(rig.Events[events.StderrCaptured](r)) > 0 {
		t.Errorf("written through the link: %v, %v", entries, err)
	}
}
