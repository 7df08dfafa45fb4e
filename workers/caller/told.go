package caller

import (
	"bytes"
	"strings"
	"sync"

	"github.com/gatebus/gatebus/bus/client"
)

const (
	// maxTold and maxToldBytes bound the replies that are remembered.
	maxTold      = 1024
	maxToldBytes = 16 << 20
)

// told are the replies of the calls that were made here last, as the model may see
// them: one that got lost on its way is given again to who repeats the command. The
// log knows only that there was one. The zero value is ready.
type told struct {
	mu     sync.Mutex
	byCall map[string]client.CallReply
	order  []string // oldest first
	bytes  int
}

// size is what a server or a client decides the length of, and the names beside it.
func size(r client.CallReply) int {
	n := len(r.Status) + len(r.Call) + len(r.Result) + len(r.Text)
	if a := r.Approval; a != nil {
		n += len(a.ID) + len(a.URL)
	}
	if e := r.Error; e != nil {
		n += len(e.Kind) + len(e.Code) + len(e.Message) + len(e.JSONRPC)
	}
	return n
}

// clone is r with nothing of what it was read from: a result is a part of the frame
// that it came in, which may be a lot longer.
func clone(r client.CallReply) client.CallReply {
	r.Status, r.Call, r.Text = strings.Clone(r.Status), strings.Clone(r.Call), strings.Clone(r.Text)
	r.Result = bytes.Clone(r.Result)
	if r.Approval != nil {
		a := *r.Approval
		a.ID, a.URL = strings.Clone(a.ID), strings.Clone(a.URL)
		r.Approval = &a
	}
	if r.Error != nil {
		e := *r.Error
		e.Kind, e.Code, e.Message = strings.Clone(e.Kind), strings.Clone(e.Code), strings.Clone(e.Message)
		e.JSONRPC = bytes.Clone(e.JSONRPC)
		r.Error = &e
	}
	return r
}

// keep remembers the reply of a call that has its outcome, if it is no more than a
// quarter of all that may be remembered.
func (t *told) keep(r client.CallReply) {
	if size(r) > maxToldBytes/4 {
		return
	}
	r = clone(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byCall == nil {
		t.byCall = make(map[string]client.CallReply)
	}
	if _, ok := t.byCall[r.Call]; ok {
		return
	}
	t.byCall[r.Call] = r
	t.order = append(t.order, r.Call)
	for t.bytes += size(r); t.bytes > maxToldBytes || len(t.order) > maxTold; t.order = t.order[1:] {
		t.bytes -= size(t.byCall[t.order[0]])
		delete(t.byCall, t.order[0])
	}
}

// of is what was told of a call, if that is remembered.
func (t *told) of(call string) (client.CallReply, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.byCall[call]
	return r, ok
}
