package caller

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/turn"
)

// maxTurns bounds the turns whose bindings are kept decoded.
const maxTurns = 256

// turns keeps the decoded bindings of the blobs used last.
type turns struct {
	bus *bus.Bus

	mu   sync.Mutex
	byID map[string]map[string]turn.Binding // blob → name → binding
}

// find returns the binding of a name in the blob of a turn.
func (t *turns) find(ctx context.Context, blob, name string) (turn.Binding, bool, error) {
	t.mu.Lock()
	names, ok := t.byID[blob]
	t.mu.Unlock()
	if !ok {
		data, err := t.bus.Blob(ctx, blob)
		if err != nil {
			return turn.Binding{}, false, err
		}
		var b turn.Bindings
		if err := json.Unmarshal(data, &b); err != nil {
			return turn.Binding{}, false, err
		}
		names = make(map[string]turn.Binding, len(b.Tools))
		for _, tool := range b.Tools {
			names[tool.Name] = tool
		}
		t.mu.Lock()
		if len(t.byID) >= maxTurns {
			// Blobs are content-addressed, so forgetting all costs one read each.
			clear(t.byID)
		}
		t.byID[blob] = names
		t.mu.Unlock()
	}
	b, ok := names[name]
	return b, ok, nil
}
