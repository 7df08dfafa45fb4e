package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Answer is what a question in SQL comes to.
type Answer struct {
	// Applied is the last commit that the file has.
	Applied uint64
	Columns []string
	// Rows hold nil, int64, float64, string or []byte, in the order of Columns.
	Rows [][]any
	// More says that the limit cut the rows.
	More bool
}

// QuestionError says what is wrong with a question, in the words of SQLite.
type QuestionError struct{ Text string }

// Error is the text.
func (e *QuestionError) Error() string { return e.Text }

// Query answers a question in SQL from the file at the path, whether a bus writes
// it at the time or not. It reads that file and nothing else: whatever changes,
// attaches or loads is refused. A limit of none or less is no limit. Errors: a
// *QuestionError; os.ErrNotExist; the context's; and what SQLite says of a file
// that it can not read.
func Query(ctx context.Context, path, question string, limit int) (answer Answer, err error) {
	if _, err := os.Stat(path); err != nil {
		return Answer{}, err
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{
		"mode": {"ro"}, "_dqs": {"0"}, "_defensive": {"1"},
		"_pragma": {"busy_timeout(10000)", "query_only(1)", "trusted_schema(0)", "temp_store(MEMORY)"},
	}))
	if err != nil {
		return Answer{}, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return Answer{}, err
	}
	if have != version {
		return Answer{}, &stale{fmt.Sprintf("the file is of version %d, this program reads version %d", have, version)}
	}
	// One transaction, so that the answer is of the place in the log.
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Answer{}, err
	}
	defer tx.Rollback()
	if err := tx.QueryRowContext(ctx, "SELECT applied FROM log").Scan(&answer.Applied); err != nil {
		return Answer{}, err
	}
	if err := conn.Raw(func(c any) error {
		return c.(sqlite.AuthorizerRegisterer).RegisterAuthorizer(readsOnly)
	}); err != nil {
		return Answer{}, err
	}
	err = answer.ask(ctx, tx, question, limit)
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return Answer{}, ctx.Err()
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY:
			return Answer{}, &QuestionError{"the audit file is only read: SELECT and the like, nothing that changes, attaches or loads"}
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY,
			sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_FULL:
			return Answer{}, err
		}
	}
	return Answer{}, &QuestionError{err.Error()}
}

func (a *Answer) ask(ctx context.Context, tx *sql.Tx, question string, limit int) error {
	rows, err := tx.QueryContext(ctx, question)
	if err != nil {
		return err
	}
	defer rows.Close()
	if a.Columns, err = rows.Columns(); err != nil {
		return err
	}
	if len(a.Columns) == 0 {
		return &QuestionError{"the question is empty"}
	}
	for rows.Next() {
		if limit > 0 && len(a.Rows) == limit {
			a.More = true
			return nil
		}
		values := make([]any, len(a.Columns))
		into := make([]any, len(values))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		a.Rows = append(a.Rows, values)
	}
	return rows.Err()
}

// pragmas are those that only tell what tables there are.
var pragmas = []string{"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"}

// readsOnly lets a statement read tables and call functions, and nothing else.
func readsOnly(action sqlite.AuthorizerActionCode, what, more, _, _ string) sqlite.AuthorizerReturnCode {
	ok := false
	switch action {
	case sqlite.AuthSelect, sqlite.AuthRead, sqlite.AuthRecursive:
		ok = true
	case sqlite.AuthFunction:
		ok = !strings.EqualFold(more, "load_extension")
	case sqlite.AuthPragma:
		ok = slices.Contains(pragmas, strings.ToLower(what))
	case sqlite.AuthTransaction:
		ok = what == "ROLLBACK" // how the driver ends the reading
	}
	if ok {
		return sqlite.AuthorizerOK
	}
	return sqlite.AuthorizerDeny
}
