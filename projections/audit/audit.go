// Package audit lists the events of the log as rows, by filters and by trace.
//
// The fold keeps only an index: for each commit its time, which events it holds,
// and 32-bit hashes of the ids it is about. The rows themselves are read from the
// log when they are asked for, and only then is it certain that they match: a
// hash that two ids share costs one reading in vain. An index of hashes needs no
// table of the ids that are born all day; it costs 64 bytes for a commit and grows
// with the log, as nothing else here does.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events"
)

// Reader is the log as far as rows are read from it.
type Reader interface {
	// Read yields the commits after a sequence up to the head.
	Read(ctx context.Context, after uint64) iter.Seq2[*events.Commit, error]
}

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
	// Limit is the most rows that are wanted; none or less is no limit.
	Limit int
}

// Page is an answer to List.
type Page struct {
	Rows []Row
	// Next is what After must be to go on.
	Next uint64
	// More says that the limit cut the rows.
	More bool
}

// ids are what a row is about.
type ids struct{ Server, Session, Turn, Connection, Call string }

// hash of an id; 0 is that of the empty one.
type hash uint32

func hashOf(id string) hash {
	if id == "" {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // a hash takes everything
	if sum := hash(h.Sum32()); sum != 0 {
		return sum
	}
	return 1
}

// names is a set of wire names, by their place in the closed table.
type names [2]uint64

func (n *names) add(i int)     { n[i/64] |= 1 << (i % 64) }
func (n names) has(i int) bool { return n[i/64]&(1<<(i%64)) != 0 }

// place maps each wire name to its place in the set.
var place = func() map[string]int {
	all := events.Names()
	if len(all) > len(names{})*64 {
		panic("audit: the set of names is too small for the closed table")
	}
	m := make(map[string]int, len(all))
	for i, name := range all {
		m[name] = i
	}
	return m
}()

// entry is one commit. Where its events are about several servers, Server is one
// of them and the others are in state.Also.
type entry struct {
	// Seq fits: sequences in the data of events are 32 bits too.
	Seq                                                  uint32
	Workspace, Principal                                 hash
	Server, Session, Turn, Connection, Call, Correlation hash
	Time                                                 int64 // nanoseconds since the Unix epoch
	Names                                                names
}

type state struct {
	// Entries are in the order of the log and never change once they are in.
	Entries []entry
	// Also maps an id to the commits that are about it beyond what their entry
	// says: approvals, and further servers.
	Also map[hash][]uint32
}

// Projection is the index. Its methods may be called from any goroutine; those
// that read the log hold up nobody.
type Projection struct {
	mu    sync.RWMutex
	state state
}

// New makes an empty index.
func New() *Projection { return &Projection{state: state{Also: make(map[hash][]uint32)}} }

// Name is "audit".
func (p *Projection) Name() string { return "audit" }

// State is all that is held.
func (p *Projection) State() any { return &p.state }

// Apply folds one commit.
func (p *Projection) Apply(c *events.Commit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := entry{
		Seq: uint32(c.Seq), Workspace: hashOf(c.Workspace), Principal: hashOf(c.Principal),
		Correlation: hashOf(c.Correlation), Time: c.Time.UnixNano(),
	}
	for r := range c.Recorded() {
		e.Names.add(place[r.Event.EventName()])
		about := idsOf(r)
		for _, x := range []struct {
			column *hash
			id     string
		}{
			{&e.Server, about.Server}, {&e.Session, about.Session}, {&e.Turn, about.Turn},
			{&e.Connection, about.Connection}, {&e.Call, about.Call},
		} {
			switch id := hashOf(x.id); {
			case id == 0 || id == *x.column:
			case *x.column == 0:
				*x.column = id
			default:
				p.state.also(id, e.Seq)
			}
		}
		p.state.also(hashOf(approvalOf(r.Event)), e.Seq)
	}
	p.state.Entries = append(p.state.Entries, e)
}

func (s *state) also(id hash, seq uint32) {
	seqs := s.Also[id]
	if id == 0 || len(seqs) > 0 && seqs[len(seqs)-1] == seq {
		return
	}
	s.Also[id] = append(seqs, seq)
}

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

// List gives the rows that match, oldest first. A commit is given whole or not at
// all, so that After can go on behind it; only when the first one that matches
// has more rows than the limit is it cut, and its other rows are left to Show.
// Errors: the context's and those of the log.
func (p *Projection) List(ctx context.Context, log Reader, f Filter) (Page, error) {
	page := Page{Rows: []Row{}, Next: f.After}
	hits, head := p.match(f)
	for c, err := range bodies(ctx, log, hits) {
		if err != nil {
			return Page{}, err
		}
		rows, err := rowsOf(c, f.matches)
		if err != nil {
			return Page{}, err
		}
		switch free := f.Limit - len(page.Rows); {
		case len(rows) == 0:
		case f.Limit <= 0 || len(rows) <= free:
			page.Rows = append(page.Rows, rows...)
		case len(page.Rows) == 0:
			return Page{Rows: rows[:f.Limit], Next: c.Seq, More: true}, nil
		default:
			page.More = true
			return page, nil
		}
		page.Next = c.Seq
	}
	// There is nothing more up to where the index was.
	page.Next = max(page.Next, head)
	return page, nil
}

// Show gives the rows of one commit, none where there is no such.
func (p *Projection) Show(ctx context.Context, log Reader, seq uint64) ([]Row, error) {
	p.mu.RLock()
	_, ok := p.state.find(seq)
	p.mu.RUnlock()
	if !ok {
		return []Row{}, nil
	}
	return read(ctx, log, []uint64{seq})
}

// Trace gives everything that has the id as its call, turn, session, connection,
// approval or correlation, oldest first. With a call come the opening of the
// connection that it ran on, and the grant, policy and approval that it cites.
func (p *Projection) Trace(ctx context.Context, log Reader, id string) ([]Row, error) {
	about := func(r events.Recorded) bool {
		x := idsOf(r)
		return id != "" && (x.Call == id || x.Turn == id || x.Session == id || x.Connection == id ||
			r.Correlation == id || approvalOf(r.Event) == id)
	}
	var seqs []uint64
	for c, err := range bodies(ctx, log, p.about(hashOf(id))) {
		if err != nil {
			return nil, err
		}
		hit := false
		for r := range c.Recorded() {
			hit = hit || about(r)
			if idsOf(r).Call == id {
				seqs = append(seqs, p.cited(r)...)
			}
		}
		if hit {
			seqs = append(seqs, c.Seq)
		}
	}
	slices.Sort(seqs)
	return read(ctx, log, slices.Compact(seqs))
}

// cited are the commits that a call rests on.
func (p *Projection) cited(r events.Recorded) []uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []uint64
	switch e := r.Event.(type) {
	case events.CallAuthorized:
		for _, seq := range []uint32{e.AuthoritySequence, e.PolicySequence, e.CatalogSequence} {
			if _, ok := p.state.find(uint64(seq)); ok {
				out = append(out, uint64(seq))
			}
		}
		if e.Approval != "" {
			for _, seq := range p.state.Also[hashOf(e.Approval)] {
				// Only the question and the answer: other calls may cite it too.
				if i, ok := p.state.find(uint64(seq)); ok && p.state.Entries[i].decides() {
					out = append(out, uint64(seq))
				}
			}
		}
	case events.CallStarted:
		out = p.state.opening(hashOf(e.Connection), e.Generation)
	}
	return out
}

// decides reports whether the commit asks or answers an approval and starts
// nothing by it.
func (e entry) decides() bool {
	return !e.Names.has(place["call_authorized"]) &&
		(e.Names.has(place["approval_requested"]) || e.Names.has(place["approval_decided"]))
}

// opening is the story of an opening of a connection: from the request that led
// to the claim, whose sequence is the generation, to the first discovery.
func (s *state) opening(connection hash, generation uint32) []uint64 {
	at, ok := s.find(uint64(generation))
	if !ok || s.Entries[at].Connection != connection {
		return nil
	}
	var out []uint64
	for i := at; i >= 0; i-- {
		if e := s.Entries[i]; e.Connection == connection && e.Call == 0 {
			out = append(out, uint64(e.Seq))
			if e.Names.has(place["connect_requested"]) {
				break
			}
		}
	}
	for _, e := range s.Entries[at+1:] {
		if e.Connection == connection && e.Call == 0 {
			out = append(out, uint64(e.Seq))
			if e.Names.has(place["tools_discovered"]) || e.Names.has(place["server_failed"]) ||
				e.Names.has(place["connection_closed"]) || e.Names.has(place["connection_lost"]) {
				break
			}
		}
	}
	return out
}

// find is the place of a commit.
func (s *state) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(s.Entries, seq, func(e entry, seq uint64) int {
		switch {
		case uint64(e.Seq) < seq:
			return -1
		case uint64(e.Seq) > seq:
			return 1
		}
		return 0
	})
}

// match gives the sequences of the commits that may hold rows of the filter, and
// the sequence up to which it looked.
func (p *Projection) match(f Filter) (hits []uint64, head uint64) {
	p.mu.RLock()
	all := p.state.Entries // what is in it does not change
	from, found := p.state.find(f.After)
	server := hashOf(f.Server)
	also := slices.Clone(p.state.Also[server])
	p.mu.RUnlock()
	if found {
		from++
	}
	if len(all) > 0 {
		head = uint64(all[len(all)-1].Seq)
	}
	workspace, principal, call := hashOf(f.Workspace), hashOf(f.Principal), hashOf(f.Call)
	name, known := place[f.Name]
	if f.Name != "" && !known {
		return nil, head
	}
	for _, e := range all[from:] {
		if is(e.Workspace, workspace) && is(e.Principal, principal) && is(e.Call, call) &&
			(f.Name == "" || e.Names.has(name)) && within(time.Unix(0, e.Time), f) {
			if !is(e.Server, server) {
				if _, ok := slices.BinarySearch(also, e.Seq); !ok {
					continue
				}
			}
			hits = append(hits, uint64(e.Seq))
		}
	}
	return hits, head
}

// is reports whether a hash is the wanted one, where one is wanted.
func is(have, want hash) bool { return want == 0 || have == want }

func within(t time.Time, f Filter) bool {
	return (f.Since.IsZero() || !t.Before(f.Since)) && (f.Until.IsZero() || t.Before(f.Until))
}

// about gives the sequences of the commits that may be about an id.
func (p *Projection) about(id hash) []uint64 {
	p.mu.RLock()
	all, also := p.state.Entries, slices.Clone(p.state.Also[id])
	p.mu.RUnlock()
	if id == 0 {
		return nil
	}
	var out []uint64
	for _, e := range all {
		_, listed := slices.BinarySearch(also, e.Seq)
		if listed || e.Call == id || e.Turn == id || e.Session == id || e.Connection == id || e.Correlation == id {
			out = append(out, uint64(e.Seq))
		}
	}
	return out
}

// matches is the filter on the event itself.
func (f Filter) matches(r events.Recorded) bool {
	about := idsOf(r)
	return (f.Workspace == "" || f.Workspace == r.Workspace) && (f.Principal == "" || f.Principal == r.Principal) &&
		(f.Name == "" || f.Name == r.Event.EventName()) && (f.Server == "" || f.Server == about.Server) &&
		(f.Call == "" || f.Call == about.Call) && within(r.Time, f) && r.Seq > f.After
}

func rowsOf(c *events.Commit, match func(events.Recorded) bool) ([]Row, error) {
	var out []Row
	for r := range c.Recorded() {
		if !match(r) {
			continue
		}
		data, err := events.JSON(r.Event)
		if err != nil {
			return nil, err
		}
		about := idsOf(r)
		out = append(out, Row{
			Seq: r.Seq, I: r.Index, Time: r.Time, Name: r.Event.EventName(), Aggregate: r.Aggregate.String(),
			Workspace: r.Workspace, Principal: r.Principal, Actor: r.Actor, Server: about.Server, Session: about.Session,
			Turn: about.Turn, Call: about.Call, Causation: r.Command, Correlation: r.Correlation, Data: data,
		})
	}
	return out, nil
}

// read gives all rows of the commits.
func read(ctx context.Context, log Reader, seqs []uint64) ([]Row, error) {
	out := []Row{}
	for c, err := range bodies(ctx, log, seqs) {
		if err != nil {
			return nil, err
		}
		rows, err := rowsOf(c, func(events.Recorded) bool { return true })
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return out, nil
}

// readOn is the gap between two hits up to which it is cheaper to read on than to
// begin a reading of the log anew.
const readOn = 64

// bodies reads the commits of the sequences, which are sorted, from the log.
func bodies(ctx context.Context, log Reader, seqs []uint64) iter.Seq2[*events.Commit, error] {
	return func(yield func(*events.Commit, error) bool) {
		for len(seqs) > 0 {
			first := seqs[0]
			for c, err := range log.Read(ctx, first-1) {
				if err != nil {
					yield(nil, fmt.Errorf("audit: read the log: %w", err))
					return
				}
				if c.Seq < seqs[0] {
					continue
				}
				if c.Seq > seqs[0] {
					break // a hole
				}
				seqs = seqs[1:]
				if !yield(c, nil) {
					return
				}
				if len(seqs) == 0 || seqs[0]-c.Seq > readOn {
					break
				}
			}
			if len(seqs) > 0 && seqs[0] == first {
				yield(nil, fmt.Errorf("audit: the log has no commit %d", first))
				return
			}
		}
	}
}
