package redact

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"unicode"
	"unicode/utf8"
)

// A span is a range of a text that holds secrets. Where matches overlap their
// union is one span, so that no tail of either stays; it is labelled with the
// secret of the longest match in it, a known one before one that has a shape only.
type span struct {
	start, end int
	secret     int    // an entry, or shaped
	size       int    // length of the longest match
	name       string // of one that is shaped
}

// addSpan adds s to spans, which are disjoint and sorted, and must end no
// later than s. Touching spans stay apart.
func addSpan(spans []span, s span) []span {
	for len(spans) > 0 {
		last := spans[len(spans)-1]
		if last.end <= s.start {
			break
		}
		s.start = min(s.start, last.start)
		if known := last.secret != shaped; known != (s.secret != shaped) && known || known == (s.secret != shaped) && last.size >= s.size {
			s.secret, s.size, s.name = last.secret, last.size, last.name
		}
		spans = spans[:len(spans)-1]
	}
	return append(spans, s)
}

// mergeSpans returns the union of spans in any order.
func mergeSpans(spans []span) []span {
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.end, b.end) })
	var out []span
	for _, s := range spans {
		out = addSpan(out, s)
	}
	return out
}

// fold maps bytes that encodings use for each other to one: letter case (hex
// digits, percent escapes, header names), the two alphabets of base64, and
// the space that a query writes as a plus.
var fold = func() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
	}
	for c := byte('A'); c <= 'Z'; c++ {
		t[c] = c + 'a' - 'A'
	}
	t['-'], t[' '], t['_'] = '+', '+', '/'
	return t
}()

// A matcher finds patterns of less than longPattern bytes in a text in time linear
// in the text, however the patterns and the text are chosen: an Aho-Corasick
// automaton over folded bytes. It is immutable once built.
type matcher struct {
	nodes    []node
	rows     [][256]int32 // all transitions, of the root and, for many texts, of its children, which are the first nodes
	patterns []pattern
}

// node is a state. Zero links mean none: the root is nobody's child.
type node struct {
	child, sibling int32
	fail           int32 // the longest proper suffix that is a state
	out            int32 // the nearest state on the fail chain, itself included, that ends a pattern
	pattern        int32 // first pattern that ends here, plus one
	b              byte
}

// pattern is a form of a secret.
type pattern struct {
	text   string
	secret int
	exact  bool  // the bytes must agree in case too
	word   bool  // no letter or digit may touch it
	next   int32 // next pattern of the same state, plus one
}

// longPattern is the length in bytes from which a pattern is one of an echo.
const longPattern = 128

func newMatcher(patterns []pattern, wide bool) *matcher {
	size := 0
	for _, p := range patterns {
		size += min(len(p.text), longPattern)
	}
	m := &matcher{nodes: make([]node, 1, 1+size), patterns: slices.Clone(patterns)}
	for _, p := range patterns {
		if len(p.text) < longPattern {
			m.grow(0, fold[p.text[0]])
		}
	}
	if m.rows = make([][256]int32, 1); wide {
		m.rows = make([][256]int32, len(m.nodes))
	}
	for i, p := range patterns {
		if len(p.text) >= longPattern {
			continue
		}
		s := int32(0)
		for j := range len(p.text) {
			s = m.grow(s, fold[p.text[j]])
		}
		m.patterns[i].next = m.nodes[s].pattern
		m.nodes[s].pattern = int32(i + 1)
	}
	m.link()
	return m
}

func (m *matcher) grow(s int32, b byte) int32 {
	if c := m.child(s, b); c != 0 {
		return c
	}
	c := int32(len(m.nodes))
	m.nodes = append(m.nodes, node{b: b, sibling: m.nodes[s].child})
	m.nodes[s].child = c
	return c
}

func (m *matcher) child(s int32, b byte) int32 {
	for c := m.nodes[s].child; c != 0; c = m.nodes[c].sibling {
		if m.nodes[c].b == b {
			return c
		}
	}
	return 0
}

// link fills the rows, with which ordinary text takes one look-up a byte, and
// sets fail and out breadth first.
func (m *matcher) link() {
	for i := range m.rows {
		m.rows[i] = m.rows[0]
		for c := m.nodes[i].child; c != 0; c = m.nodes[c].sibling {
			m.rows[i][m.nodes[c].b] = c
		}
	}
	queue := make([]int32, 1, len(m.nodes))
	for ; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		n := &m.nodes[s]
		for c := n.child; c != 0; c = m.nodes[c].sibling {
			if s != 0 {
				m.nodes[c].fail = m.step(n.fail, m.nodes[c].b)
			}
			queue = append(queue, c)
		}
		n.out = m.nodes[n.fail].out
		if n.pattern != 0 {
			n.out = s
		}
	}
}

func (m *matcher) step(s int32, b byte) int32 {
	for int(s) >= len(m.rows) {
		if c := m.child(s, b); c != 0 {
			return c
		}
		s = m.nodes[s].fail
	}
	return m.rows[s][b]
}

// find returns where patterns occur in text. Of the patterns that end at one
// place the longest covers the others, so one match a place suffices.
func (m *matcher) find(text string) []span {
	var spans []span
	s := int32(0)
	for i := range len(text) {
		s = m.step(s, fold[text[i]])
		if int(s) < len(m.rows) || m.nodes[s].out == 0 { // no pattern is one byte long
			continue
		}
		if p := m.longest(s, text, i+1); p != nil {
			spans = addSpan(spans, span{start: i + 1 - len(p.text), end: i + 1, secret: p.secret, size: len(p.text)})
		}
	}
	return spans
}

// findSqueezed is find as if text had no white space, for values that were
// wrapped or spaced out.
func (m *matcher) findSqueezed(text string) []span {
	var spans []span
	s := int32(0)
	for i := range len(text) {
		if blank(text[i]) {
			continue
		}
		s = m.step(s, fold[text[i]])
		if int(s) < len(m.rows) || m.nodes[s].out == 0 {
			continue
		}
		p := m.patterns[m.nodes[m.nodes[s].out].pattern-1]
		if utf8.RuneCountInString(p.text) < minSqueeze {
			continue
		}
		start := i + 1
		for left := len(p.text); left > 0; {
			if start--; !blank(text[start]) {
				left--
			}
		}
		spans = addSpan(spans, span{start: start, end: i + 1, secret: p.secret, size: len(p.text)})
	}
	return spans
}

func blank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// longest returns the longest pattern that ends at state s and at the offset
// end of text. Only short patterns can be refused, which bounds the loop.
func (m *matcher) longest(s int32, text string, end int) *pattern {
	for s = m.nodes[s].out; s != 0; s = m.nodes[m.nodes[s].fail].out {
		for i := m.nodes[s].pattern; i != 0; i = m.patterns[i-1].next {
			if p := &m.patterns[i-1]; p.accepts(text, end-len(p.text), end) {
				return p
			}
		}
	}
	return nil
}

func (p *pattern) accepts(text string, start, end int) bool {
	if p.exact && text[start:end] != p.text {
		return false
	}
	if !p.word {
		return true
	}
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return !letterOrDigit(before) && !letterOrDigit(after)
}

func letterOrDigit(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// echo finds long texts and parts of them: each aligned block is indexed by a
// rolling hash, and a block that occurs is extended to both sides as far as
// the text agrees. Any common part of 2*block-1 bytes is found, if the long
// text does not repeat itself to the end.
type echo struct {
	texts  []pattern
	blocks []place  // by their hashes, or the next that is free; at most half is used
	sieve  []uint64 // bits of the hashes, to spare most look-ups in blocks
}

// place is where a block is. Forms are bounded.
type place struct {
	hash   uint32
	text   int32 // plus one; 0 is none
	offset int32
}

// newEcho makes room for texts of so many bytes together.
func newEcho(size int) echo {
	if size == 0 {
		return echo{}
	}
	// At most one bit in sixteen is set, up to a bound. Both are powers of two.
	words := 1 << bits.Len(uint(min(size/block/4, maxSieve-1)))
	return echo{blocks: make([]place, 1<<bits.Len(uint(2*(size/block)))), sieve: make([]uint64, words)}
}

// passed reports whether a block with the hash may be there.
func (e *echo) passed(h uint32) bool {
	return e.sieve[int(h/64)&(len(e.sieve)-1)]&(1<<(h%64)) != 0
}

// slotSeed differs in each process, so that nobody can write a text whose blocks all come
// to one place. What is found does not depend on it.
var slotSeed = maphash.MakeSeed()

// at is the place of the block with the hash, or the one that is free for it.
func (e *echo) at(h uint32) *place {
	for i := int(maphash.Comparable(slotSeed, h)) & (len(e.blocks) - 1); ; i = (i + 1) & (len(e.blocks) - 1) {
		if p := &e.blocks[i]; p.text == 0 || p.hash == h {
			return p
		}
	}
}

const (
	block    = 32
	hashBase = 0x01000193
	maxSieve = 1 << 10 // words
)

// rollIn and rollOut are the weights of the bytes that enter and leave a window.
var rollIn, rollOut = func() (in, out [256]uint32) {
	weight := uint32(1) // hashBase to the power of block
	for range block {
		weight *= hashBase
	}
	for c := range in {
		in[c] = uint32(fold[c]) + 1
		out[c] = in[c] * weight
	}
	return in, out
}()

func (e *echo) add(p pattern) {
	e.texts = append(e.texts, p)
	h := uint32(0)
	for i := range len(p.text) {
		h = h*hashBase + rollIn[p.text[i]]
		if (i+1)%block == 0 {
			if at := e.at(h); at.text == 0 {
				*at = place{h, int32(len(e.texts)), int32(i + 1 - block)}
				e.sieve[int(h/64)&(len(e.sieve)-1)] |= 1 << (h % 64)
			}
			h = 0
		}
	}
}

// find returns where parts of the texts are, in order.
func (e *echo) find(text string) []span {
	var spans []span
	if len(e.texts) == 0 {
		return nil
	}
	h, from, low := uint32(0), 0, 0 // low: end of the last span
	for i := 0; i < len(text); i++ {
		if i-from >= block {
			h = h*hashBase + (rollIn[text[i]] - rollOut[text[i-block]])
		} else {
			h = h*hashBase + rollIn[text[i]]
		}
		if !e.passed(h) || i-from < block-1 {
			continue
		}
		at := e.at(h)
		if at.text == 0 {
			continue
		}
		p, start := e.texts[at.text-1], i+1-block
		end := start + agree(text[start:], p.text[at.offset:])
		if end < i+1 {
			continue
		}
		for o := int(at.offset); start > low && o > 0 && fold[text[start-1]] == fold[p.text[o-1]]; o-- {
			start--
		}
		spans = append(spans, span{start: start, end: end, secret: p.secret, size: end - start})
		h, from, low, i = 0, end, end, end-1
	}
	return spans
}

// agree returns how many bytes a and b begin with in common, folded.
func agree(a, b string) int {
	n, most := 0, min(len(a), len(b))
	for n < most {
		if n+8 <= most && a[n:n+8] == b[n:n+8] {
			n += 8
			continue
		}
		if fold[a[n]] != fold[b[n]] {
			break
		}
		n++
	}
	return n
}
