package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/internal/memlog"
)

// granted is a commit that every log may hold.
func granted(principal string, at time.Time) *events.Commit {
	c := of(events.KindGrant, principal)
	c.Principal, c.Time, c.Events = principal, at, []events.Event{events.CapabilityGranted{Capability: "mcp.read"}}
	return &c
}

func logOf(principals ...string) *memlog.Log {
	l := memlog.Of()
	for i, p := range principals {
		l.Add(granted(p, noon.Add(time.Duration(i)*time.Minute)))
	}
	return l
}

// followed says where it was followed from.
type followed struct {
	*memlog.Log
	from []uint64
}

func (f *followed) Follow(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error] {
	f.from = append(f.from, after)
	return f.Log.Follow(ctx, after)
}

// filled makes the file of a log, and closes it.
func filled(t *testing.T, log audit.Log, o audit.Options) {
	t.Helper()
	p := audit.New(o)
	stop := run(t, p, log)
	if err := p.Wait(t.Context(), log.Head()); err != nil {
		t.Fatal(err)
	}
	stop()
}

// edit changes a file behind the back of its projection.
func edit(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(statement)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func principals(t *testing.T, p *audit.Projection) string {
	t.Helper()
	page, err := p.List(t.Context(), audit.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range page.Rows {
		out = append(out, r.Principal)
	}
	return strings.Join(out, " ")
}

func TestFileGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	log := &followed{Log: logOf("ana", "bob")}
	filled(t, log, o)
	log.Add(granted("eve", noon))
	p := audit.New(o)
	stop := run(t, p, log)
	if err := p.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if got := principals(t, p); got != "ana bob eve" {
		t.Error(got)
	}
	stop()
	if got := fmt.Sprint(log.from); got != "[0 2]" {
		t.Errorf("the log was followed after %s", got)
	}
	if info, err := os.Stat(o.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
}

func TestFileBelowARelativeHome(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Rel(here, filepath.Join(t.TempDir(), "a b%3f?#.db"))
	if err != nil {
		t.Fatal(err)
	}
	p, log := audit.New(audit.Options{Path: path}), logOf("ana")
	defer run(t, p, log)()
	if err := p.Wait(t.Context(), log.Head()); err != nil {
		t.Fatal(err)
	}
	if got := principals(t, p); got != "ana" {
		t.Error(got)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestFileThatIsOfNoUseIsMadeAfresh(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("p%d", i))
	}
	whole := strings.Join(many, " ")
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		log   *memlog.Log // in place of the one it was made of
		keep  time.Duration
		why   string
	}{
		"another version":   {spoil: func(t *testing.T, p string) { edit(t, p, "PRAGMA user_version = 99") }, why: "of version 99"},
		"another log":       {log: logOf(append([]string{"eve"}, many[:199]...)...), why: "commit 200 of the file is not that of the log"},
		"ahead of the log":  {log: logOf(many[:150]...), why: "ahead of the log"},
		"another retention": {keep: time.Hour, why: "retention"},
		"no database": {spoil: func(t *testing.T, p string) {
			if err := os.WriteFile(p, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, why: "not a database"},
		"a cut tail": {spoil: func(t *testing.T, p string) {
			info, err := os.Stat(p)
			if err == nil {
				err = os.Truncate(p, info.Size()/2)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, why: "malformed"},
		"a page of zeros": {spoil: func(t *testing.T, p string) {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err == nil {
				_, err = f.WriteAt(make([]byte, 8192), 8192)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}, why: "damaged"},
		"a table is missing":   {spoil: func(t *testing.T, p string) { edit(t, p, "DROP TABLE log") }, why: "no such table"},
		"the place is missing": {spoil: func(t *testing.T, p string) { edit(t, p, "DELETE FROM log") }, why: "no rows"},
		"a row is there twice": {spoil: func(t *testing.T, p string) {
			edit(t, p, "UPDATE log SET applied = 100, digest = (SELECT digest FROM log)")
		}, why: "commit 100 of the file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said bytes.Buffer
			o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db"), Log: slog.New(slog.NewTextHandler(&said, nil))}
			log := logOf(many...)
			filled(t, log, o)
			if said.Len() > 0 {
				t.Fatalf("of a new file it said %s", &said)
			}
			if c.spoil != nil {
				c.spoil(t, o.Path)
			}
			want := whole
			if c.log != nil {
				log, want = c.log, ""
				for _, x := range c.log.Commits {
					want = strings.TrimSpace(want + " " + x.Principal)
				}
			}
			if c.keep > 0 {
				o.Keep, want = c.keep, strings.Join(many[139:], " ")
			}
			p := audit.New(o)
			stop := run(t, p, log)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := p.Wait(ctx, log.Head()); err != nil { // only longer
				t.Fatal(err)
			}
			if got := principals(t, p); got != want {
				t.Errorf("rows of %s", got)
			}
			live, rebuilt, err := p.Compare(t.Context(), log, log.Head())
			if err != nil || live != rebuilt {
				t.Errorf("rebuilt is not live: %v", err)
			}
			stop()
			if !strings.Contains(said.String(), "made afresh") || !strings.Contains(said.String(), c.why) {
				t.Errorf("it said %q", said.String())
			}
		})
	}
}

func TestCompareFindsARowThatIsNotTheLogs(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"UPDATE events SET data = '{}' WHERE seq = 1", "DELETE FROM events WHERE seq = 2", "UPDATE events SET call = 'c' WHERE seq = 1",
		"UPDATE log SET newest = '2031'",
	} {
		log := logOf("ana", "bob", "eve")
		o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
		filled(t, log, o)
		edit(t, o.Path, statement)
		p := audit.New(o)
		stop := run(t, p, log)
		live, rebuilt, err := p.Compare(t.Context(), log, 3)
		if err != nil || live == rebuilt {
			t.Errorf("%s: equal %v, %v", statement, live == rebuilt, err)
		}
		stop()
	}
}

func TestNobodyWaitsForABatchAndWhoAsksEndsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := logOf()
		p := audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")})
		stop := run(t, p, log)
		defer stop()
		at := func(want uint64) {
			t.Helper()
			synctest.Wait()
			if got, err := p.Applied(); got != want || err != nil {
				t.Errorf("applied %d, %v; want %d", got, err, want)
			}
		}
		log.Add(granted("ana", noon))
		at(0)
		log.Add(granted("bob", noon))
		time.Sleep(1001 * time.Millisecond)
		at(2)
		log.Add(granted("eve", noon))
		at(2)
		began := time.Now()
		if err := p.Wait(t.Context(), 3); err != nil || time.Since(began) > 0 {
			t.Errorf("it took %v, %v", time.Since(began), err)
		}
		// Who waits for what is not there yet holds up nobody, and has it as soon as it
		// comes.
		go func() {
			time.Sleep(time.Second)
			log.Add(granted("joe", noon))
		}()
		began = time.Now()
		if err := p.Wait(t.Context(), 4); err != nil || time.Since(began) != time.Second {
			t.Errorf("it took %v, %v", time.Since(began), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = p.Wait(ctx, 99) }()
		log.Add(granted("sue", noon))
		synctest.Wait()
		began = time.Now()
		if err := p.Wait(t.Context(), 5); err != nil || time.Since(began) > 0 {
			t.Errorf("it took %v, %v", time.Since(began), err)
		}
	})
}

// A busy log does not run away from the file: what it has no more in memory would have
// to be read from it.
func TestABatchThatIsFullDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := logOf()
		p := audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")})
		defer run(t, p, log)()
		log.Add(granted("ana", noon))
		synctest.Wait() // it lingers
		for range 1000 {
			log.Add(granted("bob", noon))
		}
		time.Sleep(101 * time.Millisecond)
		synctest.Wait()
		if got, err := p.Applied(); got < 1000 || err != nil {
			t.Errorf("a tenth of a second later %d of 1001 are written, %v", got, err)
		}
	})
}

// A reader may be the first to see that the file is damaged.
func TestFileThatIsDamagedWhileItIsOpenIsMadeAfresh(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 3000 {
		many = append(many, fmt.Sprintf("p%d", i))
	}
	log := logOf(many...)
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	filled(t, log, o)
	p := audit.New(o)
	run(t, p, log)
	if err := p.Wait(t.Context(), log.Head()); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(o.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(bytes.Repeat([]byte{0xa5}, int(info.Size())-3*4096), 2*4096)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	failed := 0
	for {
		page, err := p.List(ctx, audit.Filter{})
		if err == nil && len(page.Rows) == len(many) {
			break
		}
		if failed++; ctx.Err() != nil {
			t.Fatalf("%d rows, %v", len(page.Rows), err)
		}
		_ = p.Wait(ctx, log.Head()) // while it is made afresh
	}
	if failed == 0 {
		t.Error("the damage was not seen")
	}
	if live, rebuilt, err := p.Compare(ctx, log, log.Head()); err != nil || live != rebuilt {
		t.Errorf("rebuilt is not live: %v", err)
	}
}

func TestRowsAreCutByTheTimesOfTheLogAlone(t *testing.T) {
	t.Parallel()
	log := logOf("p0", "p1", "p2", "p3", "p4")
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db"), Keep: 2 * time.Minute}
	filled(t, log, o)
	log.Add(granted("late", noon)) // its clock was behind
	p := audit.New(o)
	run(t, p, log)
	if err := p.Wait(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if got := principals(t, p); got != "p2 p3 p4" {
		t.Error(got)
	}
	log.Add(granted("p6", noon.Add(5*time.Minute)))
	if err := p.Wait(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	once := audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db"), Keep: o.Keep})
	run(t, once, log)
	if err := once.Wait(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if a, b := principals(t, p), principals(t, once); a != "p3 p4 p6" || b != a {
		t.Errorf("in pieces %s, at once %s", a, b)
	}
	live, rebuilt, err := p.Compare(t.Context(), log, 7)
	if err != nil || live != rebuilt {
		t.Errorf("rebuilt is not live: %v", err)
	}
}

func TestTwoProcessesOfAHomeWriteOneFile(t *testing.T) {
	t.Parallel()
	log := logOf()
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	both := []*audit.Projection{audit.New(o), audit.New(o)}
	var asking sync.WaitGroup
	for _, p := range both {
		run(t, p, log)
	}
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprintf("p%d", i))
		log.Add(granted(want[i], noon))
		if i%10 == 0 {
			asking.Go(func() {
				if err := both[i/10%2].Wait(t.Context(), uint64(i)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	asking.Wait()
	for _, p := range both {
		if err := p.Wait(t.Context(), 200); err != nil {
			t.Fatal(err)
		}
		if got := principals(t, p); got != strings.Join(want, " ") {
			t.Error(got)
		}
	}
}

func TestFileThatAnotherProcessMadeAfreshIsNotedNotAnsweredFrom(t *testing.T) {
	t.Parallel()
	log := logOf("ana", "bob", "eve")
	o := audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")}
	p := audit.New(o)
	run(t, p, log)
	if err := p.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(o.Path + end); err != nil {
			t.Fatal(err)
		}
	}
	filled(t, logOf("ana"), o)
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			page, err := p.List(t.Context(), audit.Filter{})
			if err == nil && len(page.Rows) != 3 {
				t.Errorf("%d rows of 3", len(page.Rows))
			}
		})
	}
	asking.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if page, err := p.List(ctx, audit.Filter{}); err == nil && len(page.Rows) == 3 {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
		_ = p.Wait(ctx, 3)
	}
}

func TestRunEndsWithTheLog(t *testing.T) {
	t.Parallel()
	log := logOf("ana")
	gone := errors.New("gone")
	log.Fail(gone)
	p := audit.New(audit.Options{Path: filepath.Join(t.TempDir(), "audit.db")})
	if err := p.Run(t.Context(), log); !errors.Is(err, gone) {
		t.Errorf("Run: %v", err)
	}
	if err := p.Wait(t.Context(), 1); !errors.Is(err, gone) {
		t.Errorf("Wait: %v", err)
	}
	if _, err := p.List(t.Context(), audit.Filter{}); !errors.Is(err, gone) {
		t.Errorf("List: %v", err)
	}
}

func TestFileThatCanNotBeWrittenIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "later")
		log := logOf("ana")
		p := audit.New(audit.Options{Path: filepath.Join(dir, "audit.db")})
		stop := run(t, p, log)
		defer stop()
		synctest.Wait()
		if err := p.Wait(t.Context(), 1); err == nil {
			t.Error("a file that is not there was written")
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if err := p.Wait(t.Context(), 1); err != nil {
			t.Error(err)
		}
	})
}
