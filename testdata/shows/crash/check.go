package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// place is where an event is in the log.
type place struct {
	seq uint64
	i   int
}

func placeOf(r client.AuditRow) place { return place{r.Seq, r.I} }

// text is an event as a reader of the log is shown it.
func text(r client.AuditRow) string {
	b, _ := json.Marshal(r) // it came as JSON
	return string(b)
}

// ledger is what is known of the log and of the effects.
type ledger struct {
	head   uint64
	rows   []client.AuditRow
	seen   map[place]string // all that was ever shown
	grants int              // acknowledged
	byCall map[string]*made // by call id
	byArgs map[string][]*made

	lost, twice, executed int
	slowest               time.Duration
}

// made is one call in the log.
type made struct {
	digest                string
	started, outcomes     int
	succeeded             bool
	startedAt, outcomeAt  uint64
	indeterminate, reaped bool
}

// count is how many events of a name follow a sequence.
func (l *ledger) count(name string, after uint64) (n int) {
	for _, r := range l.rows {
		if r.Seq > after && r.Name == name {
			n++
		}
	}
	return n
}

// fold takes the next events of the log.
func (r *run) fold(rows []client.AuditRow) {
	l := &r.log
	if l.seen == nil {
		l.seen, l.byCall, l.byArgs = map[place]string{}, map[string]*made{}, map[string][]*made{}
	}
	var last place
	if n := len(l.rows); n > 0 {
		last = placeOf(l.rows[n-1])
	}
	for _, row := range rows {
		at := placeOf(row)
		if at != (place{last.seq, last.i + 1}) && at != (place{last.seq + 1, 0}) {
			r.problem("the log is not contiguous: %v follows %v", at, last)
		}
		last, l.head = at, row.Seq
		l.rows = append(l.rows, row)
		l.seen[at] = text(row)
		id, ok := strings.CutPrefix(row.Aggregate, "call/")
		if !ok {
			continue
		}
		c := l.byCall[id]
		if c == nil {
			c = &made{}
			l.byCall[id] = c
		}
		var data struct {
			ArgumentDigest string `json:"argument_digest"`
			Reason         string
			Status         string
		}
		_ = json.Unmarshal(row.Data, &data) // the events looked at below have these members
		switch row.Name {
		case "call_requested":
			c.digest = data.ArgumentDigest
			l.byArgs[c.digest] = append(l.byArgs[c.digest], c)
		case "call_started":
			c.started++
			c.startedAt = row.Seq
		case "call_succeeded":
			c.outcomes++
			c.outcomeAt, c.succeeded = row.Seq, data.Status == "succeeded"
		case "call_failed":
			c.outcomes++
			c.outcomeAt = row.Seq
		case "call_indeterminate":
			c.outcomes++
			c.outcomeAt, c.indeterminate, c.reaped = row.Seq, true, data.Reason == "runtime_lost"
		}
	}
}

// check compares what the clients of a round know, what was executed and what
// the log says. After a kill it is made before any client works at the new
// process.
func (r *run) check(ctx context.Context, rd *round, killed bool) error {
	c, err := r.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	before := r.log.head
	rows, err := show.Audit(ctx, c, before)
	if err != nil {
		return err
	}
	rd.mu.Lock()
	defer rd.mu.Unlock()
	r.fold(rows)

	// Acknowledged commits: what a reader was shown, and the grants.
	for at, was := range rd.seen {
		if is := r.log.seen[at]; is != was {
			r.log.lost++
			r.problem("event %v was shown before the kill and is not there: %s", at, was)
		}
	}
	clear(rd.seen)
	granted := map[string]bool{}
	for _, row := range r.log.rows {
		if row.Name == "capability_granted" {
			var data struct{ Capability string }
			_ = json.Unmarshal(row.Data, &data) // an event of this name has one
			granted[data.Capability] = true
		}
	}
	for _, capability := range rd.granted {
		if !granted[capability] {
			r.log.lost++
			r.problem("the grant of %s was acknowledged and is not there", capability)
		}
	}
	r.log.grants += len(rd.granted)
	rd.granted = nil

	// Every start has exactly one outcome, and where the process died it is
	// call_indeterminate of the next one.
	boot := r.bootOf(before)
	for id, call := range r.log.byCall {
		switch {
		case call.started > 1:
			r.log.twice++
			r.problem("call %s started %d times", id, call.started)
		case call.started == 1 && call.outcomes != 1:
			r.problem("call %s started and has %d outcomes", id, call.outcomes)
		case call.started == 0 && (call.succeeded || call.indeterminate):
			r.problem("call %s has an outcome of an execution and no start", id)
		}
		if killed && call.started == 1 && call.startedAt < boot && call.outcomeAt > boot && !call.reaped {
			r.problem("call %s had no outcome at the kill and is not indeterminate", id)
		}
	}

	// What clients were told is so, and effects happened at most once and only
	// after their start.
	counted, err := os.ReadFile(r.counted)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	executed := map[string]int{}
	for line := range bytes.Lines(counted) {
		executed[strings.TrimSpace(string(line))]++
	}
	r.log.executed = len(executed)
	for name, n := range executed {
		if n > 1 {
			r.log.twice++
			r.problem("%s was executed %d times", name, n)
		}
		if started, _ := r.startsOf(r.digest(name)); started != 1 {
			r.problem("%s was executed and %d calls of it started", name, started)
		}
	}
	for _, ids := range rd.ids {
		for _, i := range ids {
			started, succeeded := r.startsOf(i.digest)
			switch {
			case started > 1:
				r.log.twice++
				r.problem("%s started %d times", i.name, started)
			case i.state == acked && (succeeded != 1 || executed[i.name] != 1):
				r.log.lost++
				r.problem("%s was acknowledged: %d successes in the log, executed %d times", i.name, succeeded, executed[i.name])
			case i.state == todo && started > 0:
				r.problem("%s was said not to be started and it was", i.name)
			case succeeded == 1 && executed[i.name] != 1:
				r.problem("%s succeeded in the log and was executed %d times", i.name, executed[i.name])
			case i.state == sent && started == 0:
				i.state = todo // the log knows
			case i.state == sent:
				i.state = lost
			}
		}
	}
	return nil
}

// bootOf is the sequence of the first boot after one.
func (r *run) bootOf(after uint64) uint64 {
	for _, row := range r.log.rows {
		if row.Seq > after && row.Name == "runtime_booted" {
			return row.Seq
		}
	}
	return 0
}

// startsOf is how many calls with these arguments started and succeeded.
func (r *run) startsOf(digest string) (started, succeeded int) {
	for _, c := range r.log.byArgs[digest] {
		started += c.started
		if c.succeeded {
			succeeded++
		}
	}
	return started, succeeded
}

// again reads the whole log anew and compares it with all that was ever shown.
func (r *run) again(ctx context.Context) error {
	c, err := r.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	rows, err := show.Audit(ctx, c, 0)
	if err != nil {
		return err
	}
	now := map[place]string{}
	for _, row := range rows {
		now[placeOf(row)] = text(row)
	}
	for at, was := range r.log.seen {
		if now[at] != was {
			r.log.lost++
			r.problem("event %v is not there any more", at)
		}
	}
	if _, err := r.Rebuilt(ctx); err != nil {
		r.problem("%v", err)
	}
	return nil
}
