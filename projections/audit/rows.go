package audit

import (
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/server"
)

// Row is one event, with the envelope of its commit (R201, R211).
type Row struct {
	// Seq is the sequence of the commit, I the index of the event in it.
	Seq       uint64
	I         int
	Time      time.Time
	Name      string
	Aggregate string // kind/key
	Workspace string
	Principal string
	Actor     string
	// What the event is about: from the commit's scope, else from the event or the
	// key of its aggregate; empty where it does not apply.
	Server, Session, Turn, Call string
	// Causation is the id of the command.
	Causation   string
	Correlation string
	// Data is the event as JSON, with the views that it holds.
	Data json.RawMessage
}

// record is one row of the table: a Row, which has no Data here, and what only the
// file asks for.
type record struct {
	Row
	connection, approval string
	data                 string
}

// row is the record for people.
func (r record) row() Row {
	r.Data = json.RawMessage(r.data)
	return r.Row
}

// writer makes rows of commits, in memory that it uses again.
type writer struct {
	text    []byte
	ends    []int
	records []record
}

// of are the rows of a commit, until the next call.
func (w *writer) of(c *events.Commit) (_ []record, err error) {
	w.text, w.ends, w.records = w.text[:0], w.ends[:0], w.records[:0]
	for _, e := range c.Events {
		if w.text, err = events.AppendJSON(w.text, e); err != nil {
			return nil, err
		}
		w.ends = append(w.ends, len(w.text))
	}
	text, begin, aggregate := string(w.text), 0, c.Aggregate.String()
	for r := range c.Recorded() {
		about := idsOf(r)
		w.records = append(w.records, record{
			Row: Row{
				Seq: r.Seq, I: r.Index, Time: r.Time, Name: r.Event.EventName(), Aggregate: aggregate,
				Workspace: r.Workspace, Principal: r.Principal, Actor: r.Actor, Server: about.Server, Session: about.Session,
				Turn: about.Turn, Call: about.Call, Causation: r.Command, Correlation: r.Correlation,
			},
			connection: about.Connection, approval: approvalOf(r.Event), data: text[begin:w.ends[r.Index]],
		})
		begin = w.ends[r.Index]
	}
	return w.records, nil
}

// columns are those of the table, in the order of scan.
const columns = "seq, i, time, name, kind, key, workspace, principal, actor, server, session, turn, call, connection, " +
	"approval, causation, correlation, data"

// runLength is how many rows are written with one statement at most.
const runLength = 8

// insertion is the statement that writes a run of n rows. What they have in common is
// bound once, as binding costs as much as writing. OR FAIL spares a copy of each page
// that it changes: who writes undoes all of the transaction anyway.
func insertion(n int) string {
	var b strings.Builder
	b.WriteString("INSERT OR FAIL INTO events (" + columns + ") VALUES ")
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		own := sharedValues + i*ownValues
		fmt.Fprintf(&b, "(?1, ?%d, ?2, ?%d, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?%d, ?13, ?14, ?%d)", own+1, own+2, own+3, own+4)
	}
	return b.String()
}

// sharedValues is how many values the rows of a run share, ownValues how many each
// has of its own.
const (
	sharedValues = 14
	ownValues    = 4
)

// run is how many of the records, which are of one commit, can be written as one.
func run(records []record) (n int) {
	shared := func(r record) [5]string { return [...]string{r.Server, r.Session, r.Turn, r.Call, r.connection} }
	for n = 1; n < min(len(records), runLength) && shared(records[n]) == shared(records[0]); n++ {
	}
	return n
}

// values are a run of records as the statement takes them: what does not apply is
// null. Of those before, what is the same is taken again: each text that becomes an any
// is an object, and most rows have most of them from the row before.
func values(run []record, before []driver.NamedValue) []driver.NamedValue {
	into := before[:0]
	add := func(v any) { into = append(into, driver.NamedValue{Ordinal: len(into) + 1, Value: v}) }
	given := func(s string) {
		if n := len(into); n < len(before) {
			if have, ok := before[n].Value.(string); ok && have == s {
				into = before[:n+1]
				return
			}
		}
		add(s)
	}
	text := func(s string) {
		if s == "" {
			add(nil)
		} else {
			given(s)
		}
	}
	r := run[0]
	kind, key, _ := strings.Cut(r.Aggregate, "/")
	add(int64(r.Seq))
	for _, s := range []string{stamp(r.Time), kind, key, r.Workspace, r.Principal, r.Actor} {
		given(s)
	}
	for _, s := range []string{r.Server, r.Session, r.Turn, r.Call, r.connection} {
		text(s)
	}
	given(r.Causation)
	given(r.Correlation)
	for _, r := range run {
		add(int64(r.I))
		given(r.Name)
		text(r.approval)
		add(r.data)
	}
	return into
}

// scan reads a row.
func scan(rows *sql.Rows) (r record, err error) {
	var at, kind, key string
	var server, session, turn, call, connection, approval sql.NullString
	err = rows.Scan(&r.Seq, &r.I, &at, &r.Name, &kind, &key, &r.Workspace, &r.Principal, &r.Actor, &server, &session, &turn,
		&call, &connection, &approval, &r.Causation, &r.Correlation, &r.data)
	if err != nil {
		return r, err
	}
	r.Aggregate = kind + "/" + key
	r.Server, r.Session, r.Turn, r.Call = server.String, session.String, turn.String, call.String
	r.connection, r.approval = connection.String, approval.String
	r.Time, err = time.Parse(time.RFC3339Nano, at)
	return r, err
}

// stamp is a time as the table has it: all of one length, so that they sort.
func stamp(t time.Time) string {
	t = t.UTC()
	switch {
	case t.Year() > 9999:
		t = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	case t.Year() < 0:
		t = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return t.Format("2006-01-02T15:04:05.000000000Z")
}

// digest is over rows in their order; two files with the same rows have the same.
type digest struct{ h hash.Hash }

func newDigest() digest { return digest{sha256.New()} }

func (d digest) add(r record) {
	d.number(r.Seq)
	d.number(uint64(r.I))
	for _, s := range []string{
		stamp(r.Time), r.Name, r.Aggregate, r.Workspace, r.Principal, r.Actor, r.Server, r.Session, r.Turn, r.Call, r.connection,
		r.approval, r.Causation, r.Correlation, r.data,
	} {
		d.text(s)
	}
}

func (d digest) text(s string) {
	d.number(uint64(len(s)))
	_, _ = io.WriteString(d.h, s) // a hash takes everything
}

func (d digest) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = d.h.Write(b[:])
}

func (d digest) sum() [32]byte { return [32]byte(d.h.Sum(nil)) }

// ids are what a row is about.
type ids struct{ Server, Session, Turn, Connection, Call string }

// idsOf is what an event is about: what the scope of its commit says, else what
// the event itself says, else the key of its aggregate.
func idsOf(r events.Recorded) ids {
	out := ids{r.Scope.Server, r.Scope.Session, r.Scope.Turn, r.Scope.Connection, r.Scope.Call}
	fill := func(field *string, id string) {
		if *field == "" {
			*field = id
		}
	}
	switch e := r.Event.(type) {
	case events.CallRequested:
		fill(&out.Server, e.Server)
		fill(&out.Session, e.Session)
		fill(&out.Turn, e.Turn)
		fill(&out.Connection, e.Connection)
	case events.CallStarted:
		fill(&out.Connection, e.Connection)
	case events.ConnectRequested:
		fill(&out.Server, e.Server)
		fill(&out.Session, e.Session)
	case events.TurnRequested:
		fill(&out.Session, e.Session)
	case events.ServerDenied:
		fill(&out.Server, e.Server)
	case events.ServerFailed:
		fill(&out.Server, e.Server)
	case events.UrlDecision:
		fill(&out.Server, e.Server)
	case events.ApprovalRequested:
		fill(&out.Server, e.Server)
	case events.DeclarationLoaded:
		fill(&out.Server, e.Server)
	case events.DeclarationIgnored:
		fill(&out.Server, e.Server)
	case events.PolicySet:
		fill(&out.Server, e.Server)
	}
	switch key := r.Aggregate.Key; r.Aggregate.Kind {
	case events.KindSession:
		fill(&out.Session, key)
	case events.KindTurn:
		fill(&out.Turn, key)
	case events.KindConnection:
		fill(&out.Connection, key)
	case events.KindCall:
		fill(&out.Call, key)
	case events.KindServer:
		if name, ok := server.Name(key); ok {
			fill(&out.Server, name)
		}
	}
	return out
}

// approvalOf is the approval that an event is about or cites.
func approvalOf(e events.Event) string {
	switch e := e.(type) {
	case events.ApprovalRequested:
		return e.Approval
	case events.ApprovalDecided:
		return e.Approval
	case events.ApprovalExpired:
		return e.Approval
	case events.CallAuthorized:
		return e.Approval
	}
	return ""
}
