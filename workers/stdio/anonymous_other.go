//go:build !linux

package stdio

import (
	"bytes"
	"sync"
)

// memory is a file without a name where there is none that is on no disk.
type memory struct {
	mu   sync.Mutex
	data []byte
}

func anonymous() (file, error) { return new(memory), nil }

func (m *memory) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = append(m.data, p...)
	return len(p), nil
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(m.data).ReadAt(p, at)
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = nil
	return nil
}
