package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// blobCacheSize bounds the bytes of the blobs kept in memory.
const blobCacheSize = 16 << 20

// blobStore keeps blobs under their SHA-256, in hex, and the last used in memory.
type blobStore struct {
	store jetstream.ObjectStore
	put   sync.Mutex // one writer, so that no content is stored twice

	mu    sync.Mutex
	cache map[string][]byte
	order []string // least recently used first
	size  int
}

// PutBlob stores data under its SHA-256 and returns that, in hex. What is there
// already is not written again. A cluster without a leader has some seconds to find
// one. The data must not be changed afterwards.
func (b *Bus) PutBlob(ctx context.Context, data []byte) (digest string, err error) {
	sum := sha256.Sum256(data)
	digest = hex.EncodeToString(sum[:])
	s := &b.blobs
	s.put.Lock()
	defer s.put.Unlock()
	err = b.patiently(ctx, func() error { // bounded, as others wait for put
		err := b.briefly(ctx, func(ctx context.Context) error {
			_, err := s.store.GetInfo(ctx, digest)
			return err
		})
		if !errors.Is(err, jetstream.ErrObjectNotFound) {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err = s.store.PutBytes(ctx, digest, data)
		return err
	})
	if err == nil {
		err = b.durable(blobStream) // also what another process has only just stored
	}
	if err != nil {
		return "", asFault("put blob", fault.BusUnavailable, redact.Static("the blob is not stored"), err)
	}
	s.keep(digest, data)
	return digest, nil
}

// Blob returns what PutBlob stored, after comparing it with its digest. The
// bytes are shared: do not change them. Errors: not_found, audit_damaged.
func (b *Bus) Blob(ctx context.Context, digest string) ([]byte, error) {
	const op = "get blob"
	s := &b.blobs
	if data, ok := s.cached(digest); ok {
		return data, nil
	}
	var data []byte
	err := b.patiently(ctx, func() error {
		return b.briefly(ctx, func(ctx context.Context) (err error) {
			data, err = s.store.GetBytes(ctx, digest)
			return err
		})
	})
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return nil, fault.New(op, fault.NotFound, redact.Name("no blob "+digest))
	case errors.Is(err, jetstream.ErrDigestMismatch):
	case err != nil:
		return nil, asFault(op, fault.BusUnavailable, redact.Static("the blob cannot be read"), err)
	default:
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) == digest {
			s.keep(digest, data)
			return data, nil
		}
		err = fmt.Errorf("%d bytes have another digest", len(data))
	}
	return nil, fault.Wrap(op, fault.AuditDamaged, redact.Name("the blob "+digest+" is damaged"), err)
}

func (s *blobStore) cached(digest string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.cache[digest]
	if ok {
		s.touch(digest)
	}
	return data, ok
}

func (s *blobStore) keep(digest string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.cache[digest]; ok || len(data) > blobCacheSize/4 {
		return
	}
	if s.cache == nil {
		s.cache = make(map[string][]byte)
	}
	s.cache[digest] = data
	s.order = append(s.order, digest)
	for s.size += len(data); s.size > blobCacheSize; {
		oldest := s.order[0]
		s.size -= len(s.cache[oldest])
		delete(s.cache, oldest)
		s.order = s.order[1:]
	}
}

// touch moves a digest to the end; the cache holds few.
func (s *blobStore) touch(digest string) {
	i := slices.Index(s.order, digest)
	s.order = append(slices.Delete(s.order, i, i+1), digest)
}
