package audit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // the schema
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// version is that of the schema and of how a commit becomes rows: count it up
// when either changes, and the file is made again.
const version = 3

// File is the name of the file in a home.
const File = "audit.db"

//go:embed schema.sql
var schema string

// Schema is the SQL that made the file, for people who query it.
func Schema() string { return schema }

var created = regexp.MustCompile(`(?m)^CREATE (?:TABLE|VIEW) (\w+)`)

// Tables are the names of the tables and views, in the order of the schema.
func Tables() (names []string) {
	for _, m := range created.FindAllStringSubmatch(schema, -1) {
		names = append(names, m[1])
	}
	return names
}

// file is an open audit file: one connection that writes, some that read.
type file struct {
	write, read *sql.DB
	ctx         context.Context         // ends before it is closed
	end         context.CancelCauseFunc // ends it, for the reason that it is damaged
	writer      writer
}

// dsn names the file to SQLite; more are its parameters. The path is opaque: of one
// that is relative file:// would take the first name for a host.
func dsn(path string, more url.Values) string {
	escaped := (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath()
	u := url.URL{Scheme: "file", Opaque: escaped, RawQuery: more.Encode()}
	return u.String()
}

// openFile opens the file, makes it if it is not there, and looks whether it is
// whole and of this version. The error is a stale one when it must be made again.
func openFile(ctx context.Context, end context.CancelCauseFunc, path string, keep time.Duration) (_ *file, err error) {
	// SQLite gives the files beside it the mode of this one.
	empty, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if err := errors.Join(empty.Chmod(0o600), empty.Close()); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	f := &file{ctx: ctx, end: end}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	// Larger pages and rarer checkpoints are fewer writes. NORMAL: a power failure may take the last transactions, never the whole, and
	// the log has what it took. To wait for the disk at each batch would buy nothing.
	f.write, err = sql.Open("sqlite", dsn(path, url.Values{
		"_pragma": {"busy_timeout(10000)", "page_size(8192)", "journal_mode(WAL)", "synchronous(NORMAL)", "temp_store(MEMORY)",
			"wal_autocheckpoint(4000)"}, "_txlock": {"immediate"},
	}))
	if err != nil {
		return nil, err
	}
	f.write.SetMaxOpenConns(1)
	if err := f.prepare(ctx, keep); err != nil {
		return nil, err
	}
	f.read, err = sql.Open("sqlite", dsn(path, url.Values{
		"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "query_only(1)", "temp_store(MEMORY)"},
	}))
	if err != nil {
		return nil, err
	}
	f.read.SetMaxOpenConns(4)
	return f, nil
}

// inserts are the statements that write a batch. They go to the driver itself, as
// database/sql looks at each value of each row.
type inserts struct {
	conn     any
	byLength [runLength + 1]driver.Stmt
	args     [runLength + 1][]driver.NamedValue // likewise, the last ones
}

// write writes a run of rows.
func (s *inserts) write(ctx context.Context, run []record) error {
	n := len(run)
	if s.byLength[n] == nil {
		var err error
		if s.byLength[n], err = s.conn.(driver.ConnPrepareContext).PrepareContext(ctx, insertion(n)); err != nil {
			return err
		}
	}
	s.args[n] = values(run, s.args[n])
	_, err := s.byLength[n].(driver.StmtExecContext).ExecContext(ctx, s.args[n])
	return err
}

// close ends the statements, without which SQLite keeps the file open.
func (s *inserts) close() {
	for _, stmt := range s.byLength {
		if stmt != nil {
			_ = stmt.Close() // what it wrote has its own errors
		}
	}
}

// stale says why a file must be made again.
type stale struct{ why string }

func (s *stale) Error() string { return "audit: " + s.why }

// prepare makes the tables of a new file and checks those of an old one.
func (f *file) prepare(ctx context.Context, keep time.Duration) error {
	var have int
	var kept int64
	var tables bool
	seconds := int64(keep / time.Second)
	if err := f.write.QueryRowContext(ctx, "SELECT count(*) > 0 FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if !tables {
		if err := f.create(ctx, seconds); err != nil {
			return err
		}
	}
	if err := f.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	if have != version {
		return &stale{fmt.Sprintf("the file is of version %d, this program makes version %d", have, version)}
	}
	var result string
	if err := f.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return err
	}
	if result != "ok" {
		return &stale{"the file is damaged: " + result}
	}
	if err := f.write.QueryRowContext(ctx, "SELECT keep FROM log").Scan(&kept); err != nil {
		return err
	}
	if kept != seconds {
		return &stale{"the retention has changed"}
	}
	return nil
}

// create makes the tables, unless another process of the home has made them.
func (f *file) create(ctx context.Context, keep int64) error {
	tx, err := f.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var tables bool
	if err := tx.QueryRowContext(ctx, "SELECT count(*) > 0 FROM sqlite_schema").Scan(&tables); err != nil || tables {
		return err
	}
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO log VALUES (0, x'', '', ?)", keep); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
		return err
	}
	return tx.Commit()
}

func (f *file) close() {
	for _, db := range []*sql.DB{f.read, f.write} { // the last one to close sweeps
		if db != nil {
			_ = db.Close() // what was not committed is in the log
		}
	}
}

// mustRebuild reports whether the file is no use any more.
func mustRebuild(err error) bool {
	if _, ok := errors.AsType[*stale](err); ok {
		return true
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT:
			return true // SQLITE_ERROR: a table or a column is missing
		}
	}
	return isDamage(err) || errors.Is(err, sql.ErrNoRows) // the one row of log is missing
}

// isDamage reports whether SQLite finds that the file is not as it wrote it.
func isDamage(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_CORRUPT || e.Code()&0xff == sqlite3.SQLITE_NOTADB)
}

// remove deletes the file and what SQLite keeps beside it.
func remove(path string) error {
	var all error
	for _, name := range []string{path + "-wal", path + "-shm", path + "-journal", path} {
		if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}
