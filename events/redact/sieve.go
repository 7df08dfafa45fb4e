package redact

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
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
	forms    []squashedForm // the short ones as the sieve sees them
	grams    []gramOf
	heads    []int32 // first of the grams with a hash, plus one; a power of two
	blind    bool    // a pattern is too short for the sieve
	sieve    sieve
	wide     bool // the matcher is for many texts
	echo     echo
	long     []pattern // values whose encodings are a second echo
	plus     bool      // which may have a plus in them

	once, onceEncoded sync.Once
	m                 *matcher
	last              atomic.Pointer[lastMatcher]
	encoded           echo
}

// lastMatcher is the one that was built last, and for which forms.
type lastMatcher struct {
	forms []formFound
	m     *matcher
}

// squashedForm is a pattern without what the sieve does not see.
type squashedForm struct {
	text    string
	pattern int32
}

// gramOf is four bytes of a form.
type gramOf struct {
	bytes      uint32
	form, next int32
	offset     int32
}

// newLayer makes a layer. Its matcher is built when a text needs it, and so are the
// encodings of what is long.
func newLayer(patterns, long []pattern, wide bool) *layer {
	l := &layer{patterns: patterns, long: long, wide: wide}
	l.plus = slices.ContainsFunc(long, func(p pattern) bool { return hasPlus(p.text) })
	size, extent := 0, 0
	for _, p := range patterns {
		if len(p.text) < longPattern {
			size += len(p.text)
		} else {
			extent += len(p.text)
		}
	}
	l.echo = newEcho(extent)
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
	l.forms = make([]squashedForm, 0, len(patterns))
	for i, p := range patterns {
		if len(p.text) < longPattern {
			from := len(buffer)
			buffer = squashed(buffer, p.text)
			l.forms = append(l.forms, squashedForm{all[from:len(buffer)], int32(i)})
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
			g := binary.LittleEndian.Uint32([]byte(form.text[o : o+gram]))
			h := gramHash(g)
			l.sieve.bits[h/64] |= 1 << (h % 64)
			head := &l.heads[int(h)&(heads-1)]
			l.grams = append(l.grams, gramOf{bytes: g, form: int32(i), offset: int32(o), next: *head})
			*head = int32(len(l.grams))
		}
	}
	return l
}

// matcher finds those patterns of the layer that sifted says may be there. The one
// of a connection is built at its first use and kept, that of a call until other forms
// are met: what a call says is often said again.
func (l *layer) matcher(i int, found sifted) *matcher {
	if l.wide || l.blind || found.everything {
		l.once.Do(func() { l.m = newMatcher(l.patterns, l.wide) })
		return l.m
	}
	if last := l.last.Load(); last != nil && slices.Equal(last.forms, found.forms) {
		return last.m
	}
	var present []pattern
	for _, f := range found.forms {
		if f.layer == i {
			present = append(present, l.patterns[l.forms[f.form].pattern])
		}
	}
	m := newMatcher(present, false)
	l.last.Store(&lastMatcher{found.forms, m})
	return m
}

// encodings finds parts of what is long in base64 and hexadecimal. echoed is where
// text has long parts of it as they are, in which nothing else is looked for.
func (l *layer) encodings(text string, echoed []span) []span {
	if len(l.long) == 0 || !runBeside(text, echoed, l.plus) {
		return nil
	}
	return l.findEncoded(text)
}

// findEncoded is encodings in any text.
func (l *layer) findEncoded(text string) []span {
	l.onceEncoded.Do(func() {
		var forms []pattern
		extent := 0
		for _, p := range l.long {
			for _, f := range encodedForms(p.text, inJSON(p.text), p.secret) {
				forms = append(forms, f)
				extent += len(f.text)
			}
		}
		l.encoded = newEcho(extent)
		for _, f := range forms {
			l.encoded.add(f)
		}
	})
	return l.encoded.find(text)
}

// runBeside says that there are as many bytes in a row as an echo must have, of which
// base64 is made, and not all of them in one of spans, which are in order. With plus a
// blank is one of them.
func runBeside(text string, spans []span, plus bool) bool {
	from := 0
	for _, s := range spans {
		if blockRun(text[from:s.start+block-1], plus) {
			return true
		}
		from = s.end - (block - 1)
	}
	return blockRun(text[from:], plus)
}

// blockRun says that s has a run for runBeside.
func blockRun(s string, plus bool) bool {
	for from := 0; from+block <= len(s); {
		i := from + block - 1
		for i >= from && (class[s[i]]&isRun != 0 || plus && s[i] == ' ') {
			i--
		}
		if i < from {
			return true
		}
		from = i + 1
	}
	return false
}

// hasPlus says that the base64 of s may have a plus, for which a blank may stand: six
// bits that are 62 are the end of one of these bytes, or reach over one beyond ASCII.
func hasPlus(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 || s[i]&0x3f == 62 {
			return true
		}
	}
	return false
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

// sifted is what a sieve let pass.
type sifted struct {
	layers     uint64      // with patterns that may be there, a bit each
	everything bool        // nothing is known: all may be there
	forms      []formFound // of layers that are not wide, which ones
}

type formFound struct{ layer, form int }

// has says that patterns of the layer may be there. Of layers from the 64th on
// nothing is known.
func (s sifted) has(layer int) bool { return s.everything || layer >= 64 || s.layers>>layer&1 == 1 }

// none says that nothing is there.
func (s sifted) none() bool { return !s.everything && s.layers == 0 }

// sift tells which patterns may be in s.
func (r *Redactor) sift(s string) (found sifted) {
	for i, l := range r.layers {
		if l.blind {
			found.layers |= 1 << i
		}
	}
	found.everything = len(r.layers) > 64
	if r.sieve.bits == nil || len(s) < gram || found.everything {
		return found
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
					if l.heads != nil && !(l.wide && found.layers>>j&1 == 1) {
						l.look(b, i, g, h, j, &found, &budget)
					}
				}
				if budget < 0 {
					found.everything = true
					return found
				}
			}
		}
		if len(s) >= large {
			runtime.Gosched() // where one processor is all there is
		}
		carry = min(len(b), siftCarry)
		copy(buffer[:], b[len(b)-carry:])
	}
	return found
}

// look adds the forms of the layer j with the gram g at i that are in b.
func (l *layer) look(b []byte, i int, g, h uint32, j int, found *sifted, budget *int) {
	for next := l.heads[int(h)&(len(l.heads)-1)]; next != 0 && *budget >= 0; {
		e := l.grams[next-1]
		next = e.next
		*budget--
		if e.bytes != g {
			continue
		}
		form, from := l.forms[e.form].text, i-int(e.offset)
		if from < 0 || from+len(form) > len(b) || string(b[from:from+len(form)]) != form {
			continue
		}
		found.layers |= 1 << j
		if l.wide {
			return
		}
		if f := (formFound{j, int(e.form)}); !slices.Contains(found.forms, f) {
			found.forms = append(found.forms, f)
			*budget -= len(found.forms)
		}
	}
}
