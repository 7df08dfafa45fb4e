package redact

import (
	"encoding/binary"
	"sync"
)

// A sieve tells texts that hold none of the patterns of a layer from others, and
// is much faster than the matcher: it looks at the text as if there were no white
// space in it, at one place in several, where four bytes must be four of a
// pattern. What passes is searched by the matcher.
type sieve struct {
	bits   *[sieveWords]uint64 // of the hashes of grams
	stride int                 // one in so many places is looked at
}

const (
	gram       = 4
	maxStride  = 8
	sieveWords = 512
	// siftPiece is how much of a text is looked at at a time, and siftCarry what of
	// the piece before is looked at again: what no short pattern is longer than.
	siftPiece = 8 << 10
	siftCarry = longPattern
)

// squash folds bytes as the matcher does, in the low byte, and tells, in the
// high one, which are kept: blanks are not, nor what a blank may stand for.
var squash = func() (t [256]uint16) {
	for c := range t {
		t[c] = uint16(fold[c])
		if !blank(byte(c)) && fold[c] != '+' {
			t[c] |= 1 << 8
		}
	}
	return t
}()

// squashed appends s without what is not kept. There must be room.
func squashed(b []byte, s string) []byte {
	n := len(b)
	b = b[:n+len(s)]
	for i := range len(s) {
		c := squash[s[i]]
		b[n] = byte(c)
		n += int(c >> 8)
	}
	return b[:n]
}

// gramHash is the place of four bytes in a sieve.
func gramHash(g uint32) uint32 { return g * 0x9E3779B1 >> 17 }

// A layer is a set of patterns that were added together.
type layer struct {
	patterns []pattern
	forms    []string // the short ones as the sieve sees them
	grams    []gramOf
	heads    []int32 // first of the grams with a hash, plus one; a power of two
	blind    bool    // a pattern is too short for the sieve
	sieve    sieve
	echo     echo

	once sync.Once
	m    *matcher
}

// gramOf is four bytes of a form.
type gramOf struct {
	bytes      uint32
	form, next int32
	offset     int32
}

// newLayer makes a layer. Its matcher is built when a text needs it.
func newLayer(patterns []pattern) *layer {
	l := &layer{patterns: patterns}
	size, long := 0, 0
	for _, p := range patterns {
		if len(p.text) < longPattern {
			size += len(p.text)
		} else {
			long += len(p.text)
		}
	}
	l.echo = newEcho(long)
	buffer := make([]byte, 0, size)
	l.sieve.stride = maxStride
	for _, p := range patterns {
		if len(p.text) >= longPattern {
			l.echo.add(p)
			continue
		}
		from := len(buffer)
		buffer = squashed(buffer, p.text)
		n := len(buffer) - from
		l.blind = l.blind || n < gram
		l.sieve.stride = min(l.sieve.stride, max(1, n-gram+1))
	}
	if size == 0 || l.blind {
		return l
	}
	all := string(buffer)
	buffer = buffer[:0]
	l.forms = make([]string, 0, len(patterns))
	for _, p := range patterns {
		if len(p.text) < longPattern {
			from := len(buffer)
			buffer = squashed(buffer, p.text)
			l.forms = append(l.forms, all[from:len(buffer)])
		}
	}
	heads := 64
	for heads < 2*len(l.forms)*l.sieve.stride {
		heads *= 2
	}
	l.sieve.bits = new([sieveWords]uint64)
	l.heads = make([]int32, heads)
	l.grams = make([]gramOf, 0, len(l.forms)*l.sieve.stride)
	for i, form := range l.forms {
		for o := range l.sieve.stride {
			g := binary.LittleEndian.Uint32([]byte(form[o : o+gram]))
			h := gramHash(g)
			l.sieve.bits[h/64] |= 1 << (h % 64)
			head := &l.heads[int(h)&(heads-1)]
			l.grams = append(l.grams, gramOf{bytes: g, form: int32(i), offset: int32(o), next: *head})
			*head = int32(len(l.grams))
		}
	}
	return l
}

// matcher is built at its first use.
func (l *layer) matcher() *matcher {
	l.once.Do(func() { l.m = newMatcher(l.patterns) })
	return l.m
}

// join is the sieve of both.
func (s sieve) join(t sieve) sieve {
	switch {
	case s.bits == nil:
		return t
	case t.bits == nil:
		return s
	}
	out := sieve{new([sieveWords]uint64), min(s.stride, t.stride)}
	for i := range out.bits {
		out.bits[i] = s.bits[i] | t.bits[i]
	}
	return out
}

var siftBuffers = sync.Pool{New: func() any { return new([siftCarry + siftPiece]byte) }}

// sift tells for each layer whether its patterns may be in s, a bit each; of the
// layers from the 64th on it tells nothing, they pass.
func (r *Redactor) sift(s string) (hit uint64) {
	for i, l := range r.layers {
		if l.blind {
			hit |= 1 << i
		}
	}
	if r.sieve.bits == nil || len(s) < gram {
		return hit
	}
	buffer := siftBuffers.Get().(*[siftCarry + siftPiece]byte)
	defer siftBuffers.Put(buffer)
	bits, stride := r.sieve.bits, r.sieve.stride
	budget := 256 + len(s)/4 // of grams to look at, so that a hostile text takes linear time
	carry := 0
	for len(s) > 0 {
		n := min(len(s), siftPiece)
		b := squashed(buffer[:carry], s[:n])
		s = s[n:]
		for i := 0; i+gram <= len(b); i += stride {
			g := binary.LittleEndian.Uint32(b[i:])
			if h := gramHash(g); bits[h/64]&(1<<(h%64)) != 0 {
				for j, l := range r.layers {
					if hit>>j&1 == 0 && l.heads != nil && l.holds(b, i, g, h, &budget) {
						hit |= 1 << j
					}
				}
				if budget < 0 {
					return ^uint64(0)
				}
			}
		}
		carry = min(len(b), siftCarry)
		copy(buffer[:], b[len(b)-carry:])
	}
	return hit
}

// holds says that a form of the layer with the gram g at i is in b.
func (l *layer) holds(b []byte, i int, g, h uint32, budget *int) bool {
	for e := l.heads[int(h)&(len(l.heads)-1)]; e != 0; e = l.grams[e-1].next {
		*budget--
		if e := l.grams[e-1]; e.bytes == g {
			form, from := l.forms[e.form], i-int(e.offset)
			if from >= 0 && from+len(form) <= len(b) && string(b[from:from+len(form)]) == form {
				return true
			}
		}
		if *budget < 0 {
			return true
		}
	}
	return false
}
