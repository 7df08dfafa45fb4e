package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
)

// result is what a host knows of one effect that it wanted once.
type result struct {
	ID       string    `json:"id"`
	Asked    bool      `json:"asked"` // a person had to agree
	Call     string    `json:"call"`
	Status   string    `json:"status"`
	Kind     string    `json:"kind,omitempty"`
	Executed bool      `json:"executed"`
	Result   bool      `json:"result"`
	Retried  int       `json:"retried"` // what certainly did not start is asked for again, as another call
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended"`
}

// record is one line of what a host has to say: a result, or, at the end, what it
// heard of catalogs.
type record struct {
	Result *result  `json:"result,omitempty"`
	Heard  []uint64 `json:"heard,omitempty"`
	Cuts   int      `json:"cuts,omitempty"`
}

// job is what a host process is to do.
type job struct {
	Name, URL, Creds string
	After            uint64 // of the log: catalogs are listened for from there on
	Calls, Lines     int
	AskEvery         int // one call in so many needs a person
	Seed             uint64
}

// gives is when a host gives an effect up.
const gives = 2 * time.Minute

// host is one host process: it calls from several lines of work over its own
// credentials, and listens to changes of catalogs over connections that it drops
// at random. Its records go to out. It ends when a line of in has said up to which
// sequence it should have heard.
func host(j job, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	c, err := client.Dial(ctx, client.Options{URL: j.URL, Creds: j.Creds, Name: j.Name})
	if err != nil {
		return err
	}
	defer c.Close()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	put := func(r record) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(r) // the other side says what is missing
	}
	until := make(chan uint64, 1)
	heard := make(chan record, 1)
	go func() { heard <- listen(j, until) }()
	h := &worker{client: c}
	var work sync.WaitGroup
	for line := range j.Lines {
		work.Go(func() {
			for n := line; n < j.Calls; n += j.Lines {
				asked := n%j.AskEvery == j.AskEvery-1
				r := h.once(fmt.Sprintf("%s-%05d", j.Name, n), asked)
				put(record{Result: &r})
				if r.Kind == string(fault.CapabilityDenied) {
					time.Sleep(10 * time.Millisecond) // a host that is refused does not hammer
				}
			}
		})
	}
	work.Wait()
	put(record{}) // the calls are made
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	last, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return err
	}
	until <- last
	put(<-heard)
	return nil
}

// listen hears of catalogs, over a new connection after every few, and from where
// it was. It ends when it has heard of the last one, or much later.
func listen(j job, until <-chan uint64) (r record) {
	rnd := rand.New(rand.NewPCG(j.Seed, 2))
	after, last := j.After, client.Latest
	var deadline time.Time
	for ; after < last && (deadline.IsZero() || time.Now().Before(deadline)); r.Cuts++ {
		hear(j, rnd, &after, &r)
		select {
		case last = <-until:
			deadline = time.Now().Add(30 * time.Second)
		case <-time.After(time.Duration(rnd.IntN(100)) * time.Millisecond):
		}
	}
	return r
}

// hear listens for a while over a connection of its own.
func hear(j job, rnd *rand.Rand, after *uint64, r *record) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(2000))*time.Millisecond)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{URL: j.URL, Creds: j.Creds, Name: j.Name + " listens"})
	if err != nil {
		return
	}
	defer c.Close()
	left := 1 + rnd.IntN(4)
	for n, err := range c.Watch(ctx, *after, catalogs) {
		if err != nil {
			return
		}
		r.Heard, *after = append(r.Heard, n.Seq), n.Seq
		if left--; left == 0 {
			return
		}
	}
}

// worker calls tools; its lines share a turn.
type worker struct {
	client *client.Client
	mu     sync.Mutex
	turn   string
}

// current is a turn that has both tools.
func (h *worker) current(ctx context.Context, broken string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turn != broken {
		return h.turn, nil
	}
	for {
		session, err := h.client.SessionStart(ctx, "work")
		if err != nil {
			return "", err
		}
		t, err := h.client.PrepareTurn(ctx, client.TurnPrepare{Session: session, IncludeImplicit: true})
		if err != nil {
			return "", err
		}
		has := func(name string) bool {
			return slices.ContainsFunc(t.Tools, func(t client.Tool) bool { return t.Name == name })
		}
		if has(freeTool) && has(askedTool) {
			h.turn = t.Turn
			return h.turn, nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// again are the refusals after which nothing was started: the effect may be asked
// for again, as another call.
var again = []fault.Kind{
	fault.RuntimeNotLive, fault.TurnNotActive, fault.ToolDrift, fault.BindingMismatch, fault.RuntimeClosed, fault.NotFound,
}

// once has one effect done.
func (h *worker) once(id string, asked bool) (r result) {
	r = result{ID: id, Asked: asked, Began: time.Now(), Status: "given up"}
	defer func() { r.Ended = time.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), gives)
	defer cancel()
	tool := freeTool
	if asked {
		tool = askedTool
	}
	for broken := ""; ; r.Retried++ {
		turn, err := h.current(ctx, broken)
		if err != nil {
			r.Kind = err.Error()
			return r
		}
		r.Began = time.Now()
		reply, err := h.client.CallTool(ctx, turn, tool, json.RawMessage(fmt.Sprintf(`{"id":%q}`, id)), time.Minute)
		if err != nil {
			r.Kind = err.Error()
			return r
		}
		var kind fault.Kind
		if reply.Error != nil {
			kind = fault.Kind(reply.Error.Kind)
		}
		if !reply.ExecutionStarted && slices.Contains(again, kind) && ctx.Err() == nil {
			broken = turn
			continue
		}
		r.Call, r.Status, r.Kind, r.Executed, r.Result = reply.Call, reply.Status, string(kind), reply.ExecutionStarted, reply.Result != nil
		return r
	}
}

// hostMain reads its job from the arguments.
func hostMain() error {
	var j job
	if err := json.Unmarshal([]byte(os.Args[2]), &j); err != nil {
		return err
	}
	return host(j, os.Stdin, os.Stdout)
}
