// Package audit lists the events of the log as rows, by filters and by trace, and
// gives people a file to ask with SQL.
//
// The file is SQLite, <home>/audit.db: one row for each event, views for calls,
// approvals, connections and turns (R201, R202). Nobody who decides waits for it:
// a follower of its own takes commits from the log and writes them in batches,
// one transaction each, with the sequence up to which the file now is. Whoever
// asks waits until the file has what the bus knew at the time, and that wait ends
// the batch.
//
// It is a projection like the others: it holds nothing that the log does not. A
// file of another version, of another log, ahead of the log or damaged is deleted
// and made afresh from the log's beginning. It is the one effect that a projection
// has, and the one timer: a pause between two batches. What is in the file
// depends on the log alone.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
)

const (
	// linger is how long a commit may wait for others to be written with: each write
	// has the last pages of all indices, however much they got. It is looked so often
	// meanwhile whether there are enough.
	linger = time.Second
	looks  = 20
	// most is how many commits are written at once. The log keeps some more in memory,
	// and who lets that many come reads them from it at twice the cost of writing them.
	most = 1000
	// patience is the pause after a write that failed.
	patience = time.Second
)

// Log is the log as the file follows it (projections.Source).
type Log interface {
	// Read yields the commits after a sequence up to the head.
	Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error]
	// Follow yields the commits after a sequence and goes on with new ones.
	Follow(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error]
	// Head is the sequence of the newest commit; 0 when the log is empty.
	Head() uint64
}

// Options say what file it is.
type Options struct {
	// Path is where it lies.
	Path string
	// Keep is how long rows are kept, reckoned from the newest commit, in whole
	// seconds; 0 is for ever. What is in the file depends on it and on the log, not
	// on when it was written.
	Keep time.Duration
	// Log is told of a file that is made afresh or can not be written; nil discards.
	Log *slog.Logger
}

// Projection is the audit file. Its methods may be called from any goroutine;
// those that ask may be called while Run runs.
type Projection struct {
	Options

	files sync.RWMutex
	file  *file // nil until Run has opened it

	mu      sync.Mutex
	applied uint64
	err     error          // why nothing is written; nil while it is well
	wanted  map[uint64]int // how many wait for each commit
	wake    chan struct{}  // closed at the next change; nil when nobody waits

	asked chan struct{} // tells the writer that somebody waits
}

// New makes a projection; Run fills it.
func New(o Options) *Projection {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Projection{Options: o, wanted: map[uint64]int{}, asked: make(chan struct{}, 1)}
}

// Run opens the file, or makes it afresh, and writes what the log has and gets,
// until ctx ends or the log can not be followed: then it returns why, and the
// file is closed. A file that can not be written is tried again each second.
func (p *Projection) Run(ctx context.Context, log Log) error {
	said := ""
	for again := false; ; again = true {
		err := p.run(ctx, log)
		if e, ok := errors.AsType[*sourceError](err); ok {
			err = e.error
		} else if ctx.Err() == nil {
			why := fmt.Errorf("audit: the file can not be used: %w", err)
			if mustRebuild(err) {
				p.Log.Warn("the audit file is made afresh from the log", "reason", err.Error())
				if err = remove(p.Path); err == nil && !again {
					p.fail(nil) // who waits has only to wait longer
					continue
				}
			}
			p.fail(why)
			if err != nil && err.Error() != said {
				said = err.Error()
				p.Log.Error("the audit file can not be used", "error", said)
			}
			pause := time.NewTimer(patience)
			select {
			case <-pause.C:
				continue
			case <-ctx.Done():
			}
			pause.Stop()
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		p.fail(err)
		return err
	}
}

// sourceError is an error of the log, not of the file.
type sourceError struct{ error }

// run opens the file and follows the log until something fails.
func (p *Projection) run(ctx context.Context, log Log) (err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer func() {
		if found := context.Cause(ctx); found != nil && found != ctx.Err() {
			err = found // by a reader
		}
	}()
	f, err := openFile(ctx, end, p.Path, p.Keep)
	if err != nil {
		return err
	}
	p.files.Lock()
	p.file = f
	p.files.Unlock()
	defer func() {
		end(nil) // ends those who read
		p.files.Lock()
		defer p.files.Unlock()
		p.file = nil
		f.close()
	}()
	applied, err := f.begin(ctx, log)
	if err != nil {
		return err
	}
	p.reached(applied)

	// Whoever follows the log is held up by nothing: what it has meanwhile is read
	// from memory, or from the log.
	batch := make([]*events.Commit, 0, most)
	var head uint64
	for c, err := range log.Follow(ctx, applied) {
		if err != nil {
			return &sourceError{err}
		}
		if len(batch) == 0 {
			p.linger(ctx, func() bool { return log.Head()-c.Seq >= most })
			head = log.Head()
		}
		if batch = append(batch, c); len(batch) < most && c.Seq < head {
			continue
		}
		if applied, err = f.add(ctx, batch, p.Keep); err != nil {
			return err
		}
		p.reached(applied)
		clear(batch)
		batch = batch[:0]
	}
	return &sourceError{errors.New("audit: the log ended")}
}

// linger lets commits come that are written with the first: until there are enough, it
// has waited long enough, or somebody waits for one.
func (p *Projection) linger(ctx context.Context, enough func() bool) {
	look := time.NewTimer(linger / looks)
	defer look.Stop()
	for n := 0; n < looks && !enough() && !p.awaited(); {
		select {
		case <-p.asked:
		case <-look.C:
			look.Reset(linger / looks)
			n++
		case <-ctx.Done():
			return
		}
	}
}

// awaited reports whether somebody waits for what the file has not.
func (p *Projection) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for want := range p.wanted {
		if want > p.applied {
			return true
		}
	}
	return false
}

// reached tells those who wait that the file has the commit.
func (p *Projection) reached(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied, p.err = seq, nil
	p.notify()
}

// fail tells those who wait why the file has nothing; nil makes them wait on.
func (p *Projection) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied, p.err = 0, err
	p.notify()
}

func (p *Projection) notify() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// Applied is the sequence of the last commit that the file has, and why it gets
// no more; 0 while the file is opened.
func (p *Projection) Applied() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied, p.err
}

// Wait returns once the file has the commit of the sequence; what is on its way
// is written at once. Errors: the context's, and why nothing is written.
func (p *Projection) Wait(ctx context.Context, seq uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted[seq]++
	defer func() {
		if p.wanted[seq]--; p.wanted[seq] == 0 {
			delete(p.wanted, seq)
		}
	}()
	for p.err == nil && p.applied < seq {
		if p.wake == nil {
			p.wake = make(chan struct{})
		}
		wake := p.wake
		p.mu.Unlock()
		select {
		case p.asked <- struct{}{}:
		default:
		}
		var err error
		select {
		case <-wake:
		case <-ctx.Done():
			err = ctx.Err()
		}
		p.mu.Lock()
		if err != nil {
			return err
		}
	}
	return p.err
}

// begin is where the file goes on. It has to be of this log: its last commit must
// be the log's.
func (f *file) begin(ctx context.Context, log Log) (uint64, error) {
	var applied uint64
	var have []byte
	if err := f.write.QueryRowContext(ctx, "SELECT applied, digest FROM log").Scan(&applied, &have); err != nil {
		return 0, err
	}
	if applied == 0 {
		return 0, nil
	}
	for c, err := range log.Read(ctx, applied-1) {
		if err != nil {
			return 0, &sourceError{err}
		}
		records, err := f.writer.of(c)
		if err != nil {
			return 0, &sourceError{err}
		}
		if sum := digestOf(records); c.Seq == applied && bytes.Equal(sum[:], have) {
			return applied, nil
		}
		return 0, &stale{fmt.Sprintf("the commit %d of the file is not that of the log", applied)}
	}
	return 0, &stale{fmt.Sprintf("the file is at %d, ahead of the log", applied)}
}

// add writes commits in one transaction, and cuts what is too old by then. It
// returns how far the file is: another process of the home may have written too.
func (f *file) add(ctx context.Context, batch []*events.Commit, keep time.Duration) (applied uint64, err error) {
	conn, err := f.write.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	var newest string
	if err := tx.QueryRowContext(ctx, "SELECT applied, newest FROM log").Scan(&applied, &newest); err != nil {
		return 0, err
	}
	// A context that can end costs a goroutine for each statement; a batch is short.
	ctx = context.WithoutCancel(ctx)
	var last []record
	before := applied
	err = conn.Raw(func(conn any) error {
		inserts := inserts{conn: conn}
		defer inserts.close()
		for _, c := range batch {
			if c.Seq <= applied {
				continue
			}
			if c.Seq != applied+1 {
				return fmt.Errorf("audit: commit %d follows %d", c.Seq, applied)
			}
			var err error
			if last, err = f.writer.of(c); err != nil {
				return &sourceError{err}
			}
			for rest := last; len(rest) > 0; {
				n := run(rest)
				if err := inserts.write(ctx, rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			applied, newest = c.Seq, max(newest, stamp(c.Time))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if applied == before {
		return applied, nil
	}
	sum := digestOf(last)
	if _, err := tx.ExecContext(ctx, "UPDATE log SET applied = ?, digest = ?, newest = ?", applied, sum[:], newest); err != nil {
		return 0, err
	}
	if keep > 0 {
		if _, err := tx.ExecContext(ctx, "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE i = 0 AND time < ?)", cut(newest, keep)); err != nil {
			return 0, err
		}
	}
	return applied, tx.Commit()
}

// cut is the time before which rows are cut.
func cut(newest string, keep time.Duration) string {
	t, _ := time.Parse(time.RFC3339Nano, newest) // a stamp
	return stamp(t.Add(-keep))
}

func digestOf(records []record) [32]byte {
	d := newDigest()
	for _, r := range records {
		d.add(r)
	}
	return d.sum()
}

// errReplaced says that a connection has come to a file that is not the one which
// is written: another process of the home made it afresh.
var errReplaced = errors.New("audit: another process has made the file afresh")

// reading runs a question on the file as it is now.
func (p *Projection) reading(ctx context.Context, ask func(context.Context, *sql.Tx) error) error {
	p.files.RLock()
	defer p.files.RUnlock()
	written, err := p.Applied()
	if p.file == nil {
		return cmp.Or(err, errors.New("audit: the file is not open"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.file.ctx, cancel)() // Run waits for those who read
	tx, err := p.file.read.BeginTx(ctx, nil)
	if err == nil {
		defer tx.Rollback()
		var have uint64
		if err = tx.QueryRowContext(ctx, "SELECT applied FROM log").Scan(&have); err == nil && have < written {
			err = errReplaced
		}
	}
	if err == nil {
		err = ask(ctx, tx)
	}
	if isDamage(err) || errors.Is(err, errReplaced) {
		p.file.end(err)
	}
	return err
}

// Compare folds the log afresh and compares the rows with those of the file, at
// one and the same sequence, upTo or a later one: it returns the digests of the
// two. The file is not held up. Errors are those of Wait and of the log.
func (p *Projection) Compare(ctx context.Context, log Log, upTo uint64) (live, rebuilt [32]byte, err error) {
	if err := p.Wait(ctx, upTo); err != nil {
		return live, rebuilt, err
	}
	var applied uint64
	var oldest string // before it rows are cut
	err = p.reading(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var newest, result string
		if err := tx.QueryRowContext(ctx, "SELECT applied, newest FROM log").Scan(&applied, &newest); err != nil {
			return err
		}
		if p.Keep > 0 {
			oldest = cut(newest, p.Keep)
		}
		if err := tx.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&result); err != nil {
			return err
		}
		d := newDigest()
		for r, err := range query(ctx, tx, "ORDER BY rowid") {
			if err != nil {
				return err
			}
			d.add(r)
		}
		d.text(newest)
		if result != "ok" { // an index that leads astray is a difference too
			d.text(result)
		}
		live = d.sum()
		return nil
	})
	if err != nil {
		return live, rebuilt, err
	}
	d := newDigest()
	var at uint64
	var latest string
	var w writer
	if applied > 0 {
		for c, err := range log.Read(ctx, 0) {
			if err != nil {
				return live, rebuilt, err
			}
			records, err := w.of(c)
			if err != nil {
				return live, rebuilt, err
			}
			if at, latest = c.Seq, max(latest, stamp(c.Time)); stamp(c.Time) >= oldest {
				for _, r := range records {
					d.add(r)
				}
			}
			if at == applied {
				break
			}
		}
	}
	d.text(latest)
	if rebuilt = d.sum(); at != applied {
		return live, rebuilt, fmt.Errorf("audit: the log ends at %d, the file is at %d", at, applied)
	}
	return live, rebuilt, nil
}
