package bus

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// fold is the log up to a commit as two hashes: a chain, in which every commit
// continues all before it, and a Merkle tree (RFC 6962), by which one commit can
// be proved to somebody who has the root. Of the tree only the right edge is kept.
type fold struct {
	size  uint64
	chain tlog.Hash
	edge  []tlog.Hash // of complete subtrees, the largest first
}

// add takes the next commit.
func (f *fold) add(leaf tlog.Hash) {
	f.chain = sha256.Sum256(append(f.chain[:], leaf[:]...))
	for range bits.TrailingZeros64(f.size + 1) {
		last := len(f.edge) - 1
		leaf, f.edge = tlog.NodeHash(f.edge[last], leaf), f.edge[:last]
	}
	f.edge = append(f.edge, leaf)
	f.size++
}

// root is that of the tree.
func (f *fold) root() tlog.Hash {
	if f.size == 0 {
		return sha256.Sum256(nil)
	}
	last := len(f.edge) - 1
	h := f.edge[last]
	for _, left := range slices.Backward(f.edge[:last]) {
		h = tlog.NodeHash(left, h)
	}
	return h
}

// leafer makes the hash of a stored message: over its sequence, its time, its
// subject, its headers in the order of their names, and its body, each with its
// length, so that nothing can move from one to another.
type leafer struct {
	buf  []byte
	keys []string
}

func (l *leafer) leaf(r message) tlog.Hash {
	be := binary.BigEndian
	text := func(b []byte, s string) []byte { return append(be.AppendUint32(b, uint32(len(s))), s...) }
	b := be.AppendUint64(l.buf[:0], r.seq)
	b = be.AppendUint64(b, uint64(r.time))
	b = text(b, r.subject)
	l.keys = l.keys[:0]
	for k := range r.header {
		l.keys = append(l.keys, k)
	}
	slices.Sort(l.keys)
	b = be.AppendUint32(b, uint32(len(l.keys)))
	for _, k := range l.keys {
		b = text(b, k)
		b = be.AppendUint32(b, uint32(len(r.header[k])))
		for _, v := range r.header[k] {
			b = text(b, v)
		}
	}
	b = be.AppendUint32(b, uint32(len(r.data)))
	b = append(b, r.data...)
	l.buf = b
	return tlog.RecordHash(b)
}
