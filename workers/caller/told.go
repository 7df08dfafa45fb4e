package caller

import (
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

func size(r client.CallReply) int { return len(r.Result) + len(r.Text) }

// keep remembers the reply of a call that has its outcome.
func (t *told) keep(r client.CallReply) {
	if size(r) > maxToldBytes/4 {
		return
	}
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
