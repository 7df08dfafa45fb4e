package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
)

// Filter selects rows; zero fields match all.
type Filter struct {
	Workspace, Principal string
	// Name is the exact wire name of an event.
	Name         string
	Server, Call string
	// Since is the first moment, Until the one after the last.
	Since, Until time.Time
	// After is a sequence: only later commits.
	After uint64
	// Limit is the most rows that are wanted, Bytes the most bytes of their data, of
	// which the first commit may have more; none or less is no limit.
	Limit, Bytes int
}

// Page is an answer to List.
type Page struct {
	Rows []Row
	// Next is what After must be to go on.
	Next uint64
	// More says that a limit cut the rows.
	More bool
}

// query yields the rows of a question: what follows the table in a SELECT.
func query(ctx context.Context, tx *sql.Tx, rest string, args ...any) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		rows, err := tx.QueryContext(ctx, "SELECT "+columns+" FROM events "+rest, args...)
		if err != nil {
			yield(record{}, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			if r, err := scan(rows); !yield(r, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(record{}, err)
		}
	}
}

// where is the filter as a question, in the order of the log.
func (f Filter) where() (rest string, args []any) {
	// The rows lie in the order of the log, so that a place in it is a rowid.
	terms := []string{"rowid > coalesce((SELECT rowid FROM events WHERE seq <= ? ORDER BY seq DESC, i DESC LIMIT 1), 0)"}
	args = []any{int64(min(f.After, maxSeq))}
	add := func(term, value string) {
		if value != "" {
			terms, args = append(terms, term), append(args, value)
		}
	}
	add("workspace = ?", f.Workspace)
	add("principal = ?", f.Principal)
	add("name = ?", f.Name)
	add("server = ?", f.Server)
	add("call = ?", f.Call)
	if !f.Since.IsZero() {
		add("time >= ?", stamp(f.Since))
		add("rowid >= (SELECT coalesce(min(rowid), 9223372036854775807) FROM events WHERE i = 0 AND time >= ?)", stamp(f.Since)) // no sooner
	}
	if !f.Until.IsZero() {
		add("time < ?", stamp(f.Until))
	}
	return "WHERE " + strings.Join(terms, " AND ") + " ORDER BY rowid", args
}

// maxSeq is above every sequence of a log; SQLite has no larger numbers.
const maxSeq = 1<<63 - 1

// List gives the rows that match, oldest first. A commit is given whole or not at
// all, so that After can go on behind it; only when the first one that matches
// has more rows than the limit is it cut, and its other rows are left to Show.
// Errors: the context's and those of the file.
func (p *Projection) List(ctx context.Context, f Filter) (Page, error) {
	page := Page{Rows: []Row{}, Next: f.After}
	err := p.reading(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var head uint64
		if err := tx.QueryRowContext(ctx, "SELECT applied FROM log").Scan(&head); err != nil {
			return err
		}
		rest, args := f.where()
		if f.Limit > 0 {
			rest, args = rest+" LIMIT ?", append(args, int64(f.Limit)+1)
		}
		bytes := 0
		for r, err := range query(ctx, tx, rest, args...) {
			if err != nil {
				return err
			}
			bytes += len(r.data)
			// Next is behind a commit: the first one is never cut for its size.
			fits := f.Bytes <= 0 || bytes <= f.Bytes || len(page.Rows) > 0 && r.Seq == page.Rows[0].Seq
			if n := len(page.Rows); n == 0 || (f.Limit <= 0 || n < f.Limit) && fits {
				page.Rows = append(page.Rows, r.row())
				continue
			}
			page.More = true
			if whole := slices.IndexFunc(page.Rows, func(x Row) bool { return x.Seq == r.Seq }); whole > 0 {
				page.Rows = page.Rows[:whole]
			}
			break
		}
		if page.More {
			page.Next = page.Rows[len(page.Rows)-1].Seq
		} else {
			page.Next = max(page.Next, head) // there is nothing more up to where the file is
		}
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	return page, nil
}

// Show gives the rows of one commit, none where there is no such.
func (p *Projection) Show(ctx context.Context, seq uint64) ([]Row, error) {
	return p.rows(ctx, "WHERE seq = ? ORDER BY rowid", int64(min(seq, maxSeq)))
}

// Installed gives the newest rows about an installed server, oldest first: those of the
// aggregate of the key.
func (p *Projection) Installed(ctx context.Context, workspace, key string, limit int) ([]Row, error) {
	// By name, as there are few of those events and an index of them.
	names := make([]string, 0, len(installed))
	args := make([]any, 0, len(installed)+3)
	for _, e := range installed {
		names, args = append(names, "?"), append(args, e.EventName())
	}
	rows, err := p.rows(ctx, "WHERE name IN ("+strings.Join(names, ", ")+") AND kind = 'server' AND key = ? AND workspace = ? ORDER BY seq DESC, i DESC LIMIT ?",
		append(args, key, workspace, int64(limit))...)
	slices.Reverse(rows)
	return rows, err
}

// installed are the events of an installed server.
var installed = []events.Event{
	events.ServerInstalled{}, events.ServerUpdated{}, events.ServerPolicyChanged{}, events.ServerUninstalled{}, events.SecretStored{},
	events.SecretDeleted{}, events.SecretDeleteFailed{}, events.ServerStatusChanged{},
}

// ErrCut says that the file may lack what is asked about: older rows were cut.
var ErrCut = errors.New("audit: the rows of that time are cut")

// At is the last commit that is not later than a time; 0 where all are.
func (p *Projection) At(ctx context.Context, t time.Time) (seq uint64, err error) {
	err = p.reading(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var newest string
		if err := tx.QueryRowContext(ctx, "SELECT newest FROM log").Scan(&newest); err != nil {
			return err
		}
		if p.Keep > 0 && stamp(t) < cut(newest, p.Keep) {
			return ErrCut
		}
		return tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE i = 0 AND time <= ?", stamp(t)).Scan(&seq)
	})
	return seq, err
}

// about are the rows that have an id, in the words of the indices.
var about = func() string {
	parts := []string{
		"SELECT rowid FROM events WHERE call = ?1", "SELECT rowid FROM events WHERE approval = ?1",
		"SELECT rowid FROM events WHERE correlation = ?1 AND correlation IS NOT call",
	}
	for _, column := range []string{"session", "turn", "connection"} {
		parts = append(parts,
			"SELECT rowid FROM events WHERE "+column+" = ?1 AND (kind <> 'call' OR name = 'call_requested')",
			"SELECT e.rowid FROM events q JOIN events e ON e.call = q.call AND e."+column+" = ?1 "+
				"WHERE q."+column+" = ?1 AND q.call IS NOT NULL AND (q.kind <> 'call' OR q.name = 'call_requested')")
	}
	return strings.Join(parts, " UNION ")
}()

// Trace gives everything that has the id as its call, turn, session, connection,
// approval or correlation, oldest first. With a call come the opening of the
// connection that it ran on, and the grant, policy and approval that it cites.
func (p *Projection) Trace(ctx context.Context, id string) ([]Row, error) {
	if id == "" {
		return []Row{}, nil
	}
	var seqs []uint64
	err := p.reading(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for r, err := range query(ctx, tx, "WHERE rowid IN ("+about+")", id) {
			if err != nil {
				return err
			}
			seqs = append(seqs, r.Seq)
			if r.Call == id {
				rests, err := cited(ctx, tx, r)
				if err != nil {
					return err
				}
				seqs = append(seqs, rests...)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(seqs)
	list, err := json.Marshal(slices.Compact(seqs))
	if err != nil {
		return nil, err
	}
	return p.rows(ctx, "WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY rowid", string(list))
}

func (p *Projection) rows(ctx context.Context, rest string, args ...any) ([]Row, error) {
	out := []Row{}
	err := p.reading(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for r, err := range query(ctx, tx, rest, args...) {
			if err != nil {
				return err
			}
			out = append(out, r.row())
		}
		return nil
	})
	return out, err
}

// cited are the commits that an event of a call rests on.
func cited(ctx context.Context, tx *sql.Tx, r record) ([]uint64, error) {
	var e struct {
		Authority  uint64 `json:"authority_sequence"`
		Capability string `json:"capability"`
		Policy     uint64 `json:"policy_sequence"`
		Catalog    uint64 `json:"catalog_sequence"`
		Generation uint64 `json:"generation"`
		Connection string `json:"connection"`
	}
	switch r.Name {
	case "call_authorized", "call_started":
		if err := json.Unmarshal([]byte(r.data), &e); err != nil {
			return nil, err
		}
	}
	var out []uint64
	ask := func(sql string, args ...any) error {
		rows, err := tx.QueryContext(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var seq uint64
			if err := rows.Scan(&seq); err != nil {
				return err
			}
			out = append(out, seq)
		}
		return rows.Err()
	}
	switch r.Name {
	case "call_authorized":
		out = append(out, e.Policy, e.Catalog)
		// The grants that permitted it and its connection, as they were then: the
		// authority's own sequence may be that of any other one.
		covering, err := json.Marshal(append(authority.Covering(e.Capability), authority.Covering(authority.Connect(r.Server))...))
		if err != nil {
			return nil, err
		}
		err = ask(`SELECT max(seq) FROM events WHERE name = 'capability_granted' AND workspace = ?1 AND key = ?2 AND seq <= ?3 AND
			data ->> 'capability' IN (SELECT value FROM json_each(?4)) GROUP BY data ->> 'capability'`,
			r.Workspace, r.Principal, int64(e.Authority), string(covering))
		if err != nil {
			return nil, err
		}
		// Only the question and the answer: other calls may cite it too.
		err = ask(`SELECT seq FROM events x WHERE approval = ? AND
			EXISTS (SELECT 1 FROM events WHERE seq = x.seq AND name IN ('approval_requested', 'approval_decided')) AND
			NOT EXISTS (SELECT 1 FROM events WHERE seq = x.seq AND name = 'call_authorized')`, r.approval)
		return out, err
	case "call_started":
		// The story of the opening: from the request that led to the claim, whose
		// sequence is the generation, to the first discovery.
		err := ask(`WITH claim AS (SELECT 1 FROM events WHERE seq = ?2 AND connection = ?1 LIMIT 1)
			SELECT seq FROM events, claim WHERE connection = ?1 AND call IS NULL AND (kind <> 'call' OR name = 'call_requested') AND
			seq >= (SELECT coalesce(max(seq), 0) FROM events WHERE connection = ?1 AND name = 'connect_requested' AND seq <= ?2 AND
				(kind <> 'call' OR name = 'call_requested')) AND
			seq <= (SELECT coalesce(min(seq), ?3) FROM events WHERE connection = ?1 AND seq > ?2 AND (kind <> 'call' OR name = 'call_requested') AND
				name IN ('tools_discovered', 'server_failed', 'connection_closed', 'connection_lost'))`,
			e.Connection, int64(e.Generation), int64(maxSeq))
		return out, err
	}
	return nil, nil
}
