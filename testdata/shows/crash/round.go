package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// The states of an id.
const (
	todo    = iota // not sent, or known not to have been started
	sent           // on its way, or its outcome is not known to the client
	acked          // the client got the result
	refused        // the client got an outcome that is no success of what had started
	lost           // the client got nothing and the log says that it was started
)

// id is one effect that a client wants once.
type id struct {
	name, tool, digest string
	state, tries       int
}

// round is the clients of a round with what they share.
type round struct {
	*run
	n      int
	tokens []string // by principal

	mu       sync.Mutex
	changed  chan struct{} // closed at each change
	gate     context.Context
	shut     context.CancelFunc
	ids      [][]*id // by principal
	acked    int
	retried  int
	approved int
	seen     map[place]string // what a reader of the log was shown
	granted  []string         // capabilities whose grant was acknowledged
	done     int              // principals that have finished
	over     context.CancelFunc
	clients  sync.WaitGroup
	helpers  sync.WaitGroup
}

func newRound(r *run, n int) *round {
	rd := &round{run: r, n: n, changed: make(chan struct{}), seen: map[place]string{}}
	for p := range r.principals {
		var ids []*id
		for c := range r.calls {
			name := fmt.Sprintf("r%02d-p%02d-c%02d", n, p, c)
			tool := "free__count"
			if p%4 == 0 && c%2 == 0 { // a share of the calls asks a person
				tool = "asked__count"
			}
			ids = append(ids, &id{name: name, tool: tool, digest: r.digest(name)})
		}
		rd.ids = append(rd.ids, ids)
	}
	return rd
}

func arguments(name string) string { return fmt.Sprintf(`{"id":%q}`, name) }

// digest is what the log knows a call of the id by.
func (r *run) digest(name string) string {
	none, err := redact.NewRedactor()
	if err != nil {
		panic(err)
	}
	v, err := none.Arguments(redact.NewRaw([]byte(arguments(name))), r.key)
	if err != nil {
		panic(err)
	}
	return v.Digest
}

func (rd *round) principal(p int) string { return fmt.Sprintf("r%02d-p%02d", rd.n, p) }

func (rd *round) enrol(ctx context.Context) error {
	c, err := rd.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for p := range rd.ids {
		token, err := show.Enrol(ctx, c, rd.principal(p), "mcp.connect:*", "mcp.call:*")
		if err != nil {
			return err
		}
		rd.tokens = append(rd.tokens, token)
	}
	return nil
}

// change does something under the lock and tells who waits.
func (rd *round) change(f func()) {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	f()
	close(rd.changed)
	rd.changed = make(chan struct{})
}

// await waits for a condition, which is asked for under the lock.
func (rd *round) await(ctx context.Context, ok func() bool) bool {
	for {
		rd.mu.Lock()
		is, changed := ok(), rd.changed
		rd.mu.Unlock()
		if is {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// open lets the clients work at the process that serves, with an operator who
// says yes to everything and a witness of what is acknowledged.
func (rd *round) open(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	rd.helpers.Go(func() { rd.operate(ctx) })
	rd.helpers.Go(func() { rd.witness(ctx) })
	rd.change(func() { rd.gate, rd.shut = ctx, cancel })
}

// close ends the work at a process and waits until nobody speaks to it.
func (rd *round) close() {
	rd.change(func() {
		rd.shut()
		rd.gate = nil
	})
	rd.helpers.Wait()
}

// start starts the clients; they work where the gate is open.
func (rd *round) start(ctx context.Context) {
	ctx, rd.over = context.WithCancel(ctx)
	for p := range rd.ids {
		rd.clients.Go(func() { rd.client(ctx, p) })
	}
}

func (rd *round) stop() {
	rd.over()
	rd.clients.Wait()
}

func (rd *round) finished(ctx context.Context) bool {
	return rd.await(ctx, func() bool { return rd.done == len(rd.ids) })
}

func (rd *round) unsettled() (n int) {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	for _, ids := range rd.ids {
		for _, i := range ids {
			if i.state <= sent {
				n++
			}
		}
	}
	return n
}

func (rd *round) tally() (t tally) {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	t = tally{acked: rd.acked, retried: rd.retried, approved: rd.approved}
	for _, ids := range rd.ids {
		for _, i := range ids {
			if i.state == refused {
				t.refused++
			}
		}
	}
	return t
}

// client is one principal's host: it connects, waits for the tools and makes all
// calls at once, as often as processes die. A call whose outcome it does not know
// is left to the reconciliation after the restart.
func (rd *round) client(ctx context.Context, p int) {
	for {
		var gate context.Context
		if !rd.await(ctx, func() bool { gate = rd.gate; return gate != nil }) {
			return
		}
		left := rd.work(gate, p)
		if left == 0 {
			break
		}
		if gate.Err() != nil {
			continue
		}
		select { // something went wrong at a living process: not too fast
		case <-gate.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	rd.change(func() { rd.done++ })
}

// pending are the ids to be called now; left counts also those whose outcome is
// not known yet.
func (rd *round) pending(p int) (ids []*id, left int) {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	for _, i := range rd.ids[p] {
		if i.state == todo {
			ids = append(ids, i)
		}
		if i.state <= sent {
			left++
		}
	}
	return ids, left
}

// work makes the calls that are to be made and returns how many are left.
func (rd *round) work(ctx context.Context, p int) (left int) {
	ids, left := rd.pending(p)
	if len(ids) == 0 {
		return left
	}
	c := &show.MCP{URL: rd.URL(), Token: rd.tokens[p]}
	defer c.Close()
	if c.Initialize(ctx) != nil {
		return left
	}
	for {
		names, err := c.Tools(ctx)
		if err != nil || ctx.Err() != nil {
			return left
		}
		if !slices.ContainsFunc(ids, func(i *id) bool { return !slices.Contains(names, i.tool) }) {
			break
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(100 * time.Millisecond):
		}
	}
	var calls sync.WaitGroup
	for _, i := range ids {
		calls.Go(func() { rd.call(ctx, c, i) })
	}
	calls.Wait()
	_, left = rd.pending(p)
	return left
}

// call makes one call. Only an answer that says that nothing was started, or a
// request that never left, makes it one to be made again.
func (rd *round) call(ctx context.Context, c *show.MCP, i *id) {
	rd.change(func() {
		if i.state, i.tries = sent, i.tries+1; i.tries > 1 {
			rd.retried++
		}
	})
	a, err := c.Call(ctx, i.tool, arguments(i.name))
	state := sent
	switch {
	case show.NotSent(err):
		state = todo
	case err != nil:
	default:
		state = outcome(a, i.name)
	}
	rd.change(func() {
		if i.state = state; state == acked {
			rd.acked++
		}
	})
}

// outcome is what an answer tells a client.
func outcome(a show.Answer, name string) int {
	var result struct {
		IsError           bool
		Content           []struct{ Text string }
		StructuredContent struct {
			Code    string
			Started *bool `json:"execution_started"`
		}
	}
	switch {
	case a.Error != nil:
		return sent // of a process that stops: the log will say
	case json.Unmarshal(a.Result, &result) != nil:
		return sent
	case !result.IsError && len(result.Content) == 1 && result.Content[0].Text == "counted "+name:
		return acked
	}
	s := result.StructuredContent
	switch {
	case s.Code == "approval_pending", s.Started != nil && !*s.Started:
		return todo
	case s.Started != nil:
		return refused
	}
	return sent
}

// operate says yes to all that is asked.
func (rd *round) operate(ctx context.Context) {
	c, err := rd.Dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	q := client.ApprovalsList{}
	for ctx.Err() == nil {
		var page client.Approvals
		if c.Do(ctx, "approvals/list", q, &page) != nil {
			return
		}
		for _, a := range page.Approvals {
			err := c.Do(ctx, "approvals/decide", client.ApprovalsDecide{ID: a.ID, Decision: "allow"}, nil)
			if err == nil && a.Action == "mcp.call" {
				rd.change(func() { rd.approved++ })
			}
		}
		q.After, q.WaitMS = page.After, 200
	}
}

// witness grants and reads, and keeps what it was told.
func (rd *round) witness(ctx context.Context) {
	c, err := rd.Dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	after := rd.log.head
	for n := 0; ctx.Err() == nil; n++ {
		capability := fmt.Sprintf("mcp.call:w%d-%d", rd.n, time.Now().UnixNano())
		if c.Do(ctx, "grant/add", client.Grant{Principal: fmt.Sprintf("witness-%d-%d", rd.n, n/10), Capability: capability}, nil) == nil {
			rd.change(func() { rd.granted = append(rd.granted, capability) })
		}
		rows, err := show.Audit(ctx, c, after)
		if err != nil {
			return // the process is gone
		}
		rd.change(func() {
			for _, row := range rows {
				after = row.Seq
				rd.seen[placeOf(row)] = text(row)
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}
