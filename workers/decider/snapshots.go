package decider

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/connection"
)

// maxSnapshots bounds the catalogs that are kept decoded.
const maxSnapshots = 256

// snapshots keeps the decoded catalogs of the blobs used last.
type snapshots struct {
	bus *bus.Bus

	mu   sync.Mutex
	blob map[string]connection.Snapshot
}

func (s *snapshots) get(ctx context.Context, digest string) (connection.Snapshot, error) {
	s.mu.Lock()
	snapshot, ok := s.blob[digest]
	s.mu.Unlock()
	if ok {
		return snapshot, nil
	}
	data, err := s.bus.Blob(ctx, digest)
	if err == nil {
		err = json.Unmarshal(data, &snapshot)
	}
	if err != nil {
		return connection.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.blob) >= maxSnapshots {
		clear(s.blob) // content-addressed: forgetting costs one read each
	}
	s.blob[digest] = snapshot
	return snapshot, nil
}
