package audit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/internal/memlog"
)

func TestQuestionIsAnsweredWhileTheFileIsWrittenAndAfter(t *testing.T) {
	t.Parallel()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "dir with #?%", "audit.db")}
	if err := os.Mkdir(filepath.Dir(o.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	log := logOf("ana", "bob", "eve")
	p := audit.New(o)
	stop := run(t, p, log)
	if err := p.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	want := audit.Answer{
		Applied: 3, Columns: []string{"seq", "principal", "capability", "server", "half"},
		Rows: [][]any{{int64(2), "bob", "mcp.read", nil, 1.0}, {int64(3), "eve", "mcp.read", nil, 1.5}},
	}
	ask := func() {
		t.Helper()
		got, err := audit.Query(t.Context(), o.Path,
			"SELECT seq, principal, data ->> 'capability' AS capability, server, seq / 2.0 AS half FROM events WHERE seq > 1", 0)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Error(diff, err)
		}
	}
	ask()
	log.Add(granted("joe", noon))
	if err := p.Wait(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	want.Applied, want.Rows = 4, append(want.Rows, []any{int64(4), "joe", "mcp.read", nil, 2.0})
	ask()
	stop()
	ask()
	got, err := audit.Query(t.Context(), o.Path, "SELECT seq FROM events", 2)
	if err != nil || len(got.Rows) != 2 || !got.More {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = audit.Query(t.Context(), o.Path, "SELECT seq FROM events", 4); err != nil || len(got.Rows) != 4 || got.More {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEveryViewCanBeAskedAndTheTablesListed(t *testing.T) {
	t.Parallel()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	filled(t, logOf("ana"), o)
	all, err := audit.Query(t.Context(), o.Path, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY rowid", 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, row := range all.Rows {
		name := row[0].(string)
		names = append(names, name)
		got, err := audit.Query(t.Context(), o.Path, fmt.Sprintf("SELECT * FROM %q", name), 0)
		if err != nil || len(got.Columns) < 2 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if info, err := audit.Query(t.Context(), o.Path, fmt.Sprintf("SELECT name FROM pragma_table_info('%s')", name), 0); err != nil || len(info.Rows) != len(got.Columns) {
			t.Errorf("table_info of %s: %+v, %v", name, info, err)
		}
	}
	if diff := cmp.Diff(audit.Tables(), names); diff != "" {
		t.Error(diff)
	}
}

func TestQuestionReadsThatFileAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := audit.Options{Path: filepath.Join(dir, "audit.db")}
	filled(t, logOf("ana"), o)
	before, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.db")
	for _, question := range []string{
		"DELETE FROM events", "INSERT INTO log SELECT * FROM log", "UPDATE events SET name = 'x'", "DROP TABLE events",
		"CREATE TABLE t (x)", "CREATE TEMP TABLE t (x)", "CREATE TEMP VIEW v AS SELECT 1", "CREATE VIRTUAL TABLE v USING fts5(x)",
		"ALTER TABLE events RENAME TO x", "REINDEX", "ANALYZE", "VACUUM", "VACUUM INTO '" + other + "'",
		"ATTACH '" + other + "' AS o", "ATTACH ':memory:' AS o", "DETACH main", "SELECT load_extension('/lib/x.so')",
		"PRAGMA user_version = 7", "PRAGMA query_only = 0", "PRAGMA journal_mode = DELETE", "PRAGMA writable_schema = 1",
		"PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA temp_store_directory = '/tmp'", "SELECT * FROM pragma_user_version",
		"BEGIN IMMEDIATE", "COMMIT", "SAVEPOINT x", "SELECT 1; DELETE FROM events", "DELETE FROM events; SELECT 1",
		"SELECT 1; PRAGMA query_only = 0; DELETE FROM events", "WITH x AS (SELECT 1) DELETE FROM events",
		"DELETE FROM events RETURNING *", "", "  -- nothing", "SELECT nothing FROM events", "SELEC 1", `SELECT "no column" FROM events`,
		"SELECT ?", "EXPLAIN DELETE FROM events",
	} {
		_, err := audit.Query(t.Context(), o.Path, question, 0)
		if _, ok := errors.AsType[*audit.QuestionError](err); !ok {
			t.Errorf("%s: %v", question, err)
		}
	}
	after, err := os.ReadFile(o.Path)
	if err != nil || string(before) != string(after) {
		t.Errorf("the file has changed, %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "audit.db") {
			t.Errorf("%s was made", e.Name())
		}
	}
}

func TestQuestionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	filled(t, logOf("ana"), o)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := audit.Query(ctx, o.Path, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", 0)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Query: %v", err)
	}
}

func TestQuestionNeedsAFileOfThisVersion(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.db")
	if _, err := audit.Query(t.Context(), path, "SELECT 1", 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	filled(t, logOf("ana"), audit.Options{Path: path})
	edit(t, path, "PRAGMA user_version = 99")
	if _, err := audit.Query(t.Context(), path, "SELECT 1", 0); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("another version: %v", err)
	}
}

// What happened to an installed server is in the list of R201, once, with why.
func TestActionsOfInstalledServers_R201(t *testing.T) {
	t.Parallel()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	log := memlog.Of()
	add := func(kind events.Kind, key string, scope events.Scope, happened ...events.Event) {
		c := of(kind, key)
		c.Scope, c.Events = scope, happened
		log.Add(&c)
	}
	moved := func(from, to, reason string) {
		e := events.ServerStatusChanged{From: from, To: to, Live: to == "ready" || to == "degraded", ReasonCode: reason, Generation: 3}
		if e.Live {
			e.CatalogVersion = "sha256:1"
		}
		add(events.KindServer, "docs", events.Scope{}, e)
	}
	linked := func(session string, e events.Event) {
		add(events.KindConnection, "c-1", events.Scope{Server: "docs", Session: session}, e)
	}
	linked("", events.ConnectionClaimed{}) // of a declared server that had the name before
	add(events.KindServer, server.HomeKey("h-1"), events.Scope{}, events.KeystoreSelected{Provider: "file"})
	add(events.KindServer, "docs", events.Scope{}, events.ServerInstalled{}, events.SecretStored{}, events.ServerStatusChanged{To: "not_started"})
	moved("not_started", "starting", "enabled")
	linked("", events.ConnectionClaimed{})
	linked("", events.ConnectionOpened{})
	moved("starting", "ready", "")
	linked("", events.ToolsDiscovered{CatalogVersion: "sha256:1"})
	linked("s-1", events.ConnectionOpened{}) // that of one client
	moved("ready", "degraded", "refresh_failed")
	moved("degraded", "degraded", "call_failed")
	moved("degraded", "failed", "peer_closed")
	linked("", events.ConnectionClosed{})
	moved("failed", "starting", "")
	moved("starting", "failed", "spawn_failed")
	linked("", events.ServerFailed{Kind: "spawn_failed"})
	moved("failed", "starting", "")
	moved("starting", "auth_required", "missing_secret")
	add(events.KindServer, "docs", events.Scope{}, events.ServerUpdated{})
	moved("auth_required", "restarting", "fingerprint_changed")
	moved("restarting", "stopping", "fingerprint_changed")
	moved("stopping", "stopped", "")
	moved("stopped", "starting", "")
	moved("starting", "degraded", "list_failed")
	moved("degraded", "not_started", "boot")
	add(events.KindServer, "docs", events.Scope{}, events.ServerPolicyChanged{})
	moved("not_started", "disabled", "disabled_by_policy")
	add(events.KindServer, "user:default:docs", events.Scope{}, events.ServerUninstalled{})
	filled(t, log, o)
	got, err := audit.Query(t.Context(), o.Path,
		"SELECT coalesce(installation, '-'), server, action, decision, coalesce(reason, ''), coalesce(catalog_version, '') FROM actions", 0)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range got.Rows {
		rows = append(rows, strings.TrimSpace(fmt.Sprintln(row...)))
	}
	want := []string{
		"- docs start allowed",
		"docs docs install allowed",
		"docs docs start allowed enabled",
		"docs docs started allowed  sha256:1",
		"- docs catalog_refreshed allowed  sha256:1",
		"- docs started allowed",
		"docs docs stopped failed peer_closed",
		"docs docs start allowed",
		"docs docs start_failed failed spawn_failed",
		"docs docs start allowed",
		"docs docs auth_required failed missing_secret",
		"docs docs update allowed",
		"docs docs stop allowed fingerprint_changed",
		"docs docs stopped allowed",
		"docs docs start allowed",
		"docs docs started allowed list_failed sha256:1",
		"docs docs stopped failed boot",
		"docs docs policy allowed",
		"user:default:docs docs uninstall allowed",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}
