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

	mu     sync.Mutex
	byBlob map[string]bindings
}

// bindings are those of a turn, by their names.
type bindings struct{ tools, servers map[string]turn.Binding }

// find returns the bindings in the blob of a turn.
func (t *turns) find(ctx context.Context, blob string) (bindings, error) {
	t.mu.Lock()
	found, ok := t.byBlob[blob]
	t.mu.Unlock()
	if ok {
		return found, nil
	}
	data, err := t.bus.Blob(ctx, blob)
	if err != nil {
		return bindings{}, err
	}
	var b turn.Bindings
	if err := json.Unmarshal(data, &b); err != nil {
		return bindings{}, err
	}
	found = bindings{named(b.Tools), named(b.Servers)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byBlob) >= maxTurns {
		// Blobs are content-addressed, so forgetting all costs one read each.
		clear(t.byBlob)
	}
	t.byBlob[blob] = found
	return found, nil
}

func named(list []turn.Binding) map[string]turn.Binding {
	names := make(map[string]turn.Binding, len(list))
	for _, b := range list {
		names[b.Name] = b
	}
	return names
}
