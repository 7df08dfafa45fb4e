package redact

// Most texts hold no secret, and most of what could be one is told apart from
// secrets by a byte or two. What follows passes over such text, so that the exact
// engine looks at the rest only. It never decides that something is a secret, and it
// passes over nothing that the engine would find, for it asks for less than that does:
//
//   - A rule of the shape engine leaps from anchor to anchor, a byte or a short text
//     that all its findings have. A text without that byte has none of them (traits,
//     findShapes, quiet), and skipping the rule skips a loop without a turn.
//   - A name in text is that of a secret only if it is on one of the lists of names or
//     ends like one of them. So its last three letters and digits are the last three
//     of an entry (endings), apart from names that are not ASCII, which always pass.
//   - A token is a run of minRun bytes and more, and each window of so many
//     bytes that is none has a byte behind which the next one can begin (nextRun).
//   - Known values are sifted out by four bytes of them (sieve).
//
// TestSkimmingFindsWhatTheEngineFinds and FuzzSkimming hold it to that.

// traits are kinds of bytes that a text has, a bit each.
type traits uint16

const (
	hasColon  traits = 1 << iota
	hasEquals        // =
	hasHyphen        // -
	hasLess          // <
	hasAt            // @
	hasW             // w, as in "password "
	hasV             // V, as in "PRIVATE KEY"
	hasEscape        // \, % or &
	hasBlank         // as the matcher sees them
	hasHigh          // of no ASCII
	endsPlain        // what does not stand in a string of JSON as it is
	allTraits traits = 1<<iota - 1
)

var traitsOf = func() (t [256]traits) {
	for _, k := range []struct {
		bytes string
		traits
	}{
		{":", hasColon}, {"=", hasEquals}, {"-", hasHyphen}, {"<", hasLess}, {"@", hasAt}, {"w", hasW}, {"V", hasV},
		{`\%&`, hasEscape}, {" \t\r\n", hasBlank}, {`"\`, endsPlain},
	} {
		for i := range len(k.bytes) {
			t[k.bytes[i]] |= k.traits
		}
	}
	for c := range ' ' {
		t[c] |= endsPlain
	}
	for c := 0x80; c < len(t); c++ {
		t[c] |= hasHigh
	}
	return t
}()

// all says that t has all of others.
func (t traits) all(others traits) bool { return t&others == others }

// skim returns the traits of s.
func skim(s string) (t traits) {
	for len(s) >= 8 {
		t |= traitsOf[s[0]] | traitsOf[s[1]] | traitsOf[s[2]] | traitsOf[s[3]] |
			traitsOf[s[4]] | traitsOf[s[5]] | traitsOf[s[6]] | traitsOf[s[7]]
		s = s[8:]
	}
	for i := range len(s) {
		t |= traitsOf[s[i]]
	}
	return t
}

// quiet says that a text of n bytes has no shape in it: it is too short for a token,
// for a private key and for the password behind a login, and has no byte of the other
// rules. Nor is it encoded.
func (t traits) quiet(n int) bool {
	return n < minRun && t&(hasColon|hasEquals|hasLess|hasEscape|hasHigh|endsPlain) == 0 && !t.all(hasBlank|hasHyphen)
}

// endings has a bit for the last three letters and digits of each name of a secret.
var endings = func() (t [1 << 15 / 64]uint64) {
	for _, set := range []map[string]bool{headerNames, passwordNames, textNames, sensitiveNames} {
		for name := range set {
			i := ending(name[len(name)-1], name[len(name)-2], name[len(name)-3])
			t[i/64] |= 1 << (i % 64)
		}
	}
	var b [maxBack]byte
	for _, name := range append([]string{"password", "passwd", "_KEY"}, sensitiveEnds...) {
		n := squeezed(b[:0], name)
		i := ending(n[len(n)-1], n[len(n)-2], n[len(n)-3])
		t[i/64] |= 1 << (i % 64)
	}
	return t
}()

// ending is the place of the last three letters or digits of a name, from its end;
// some share one.
func ending(last, second, third byte) uint {
	return uint(last&31) | uint(second&31)<<5 | uint(third&31)<<10
}

// endsLikeSecret says whether a name may be that of a secret, by how it ends.
func endsLikeSecret(name string) bool {
	var last [3]byte
	n := 0
	for i := len(name) - 1; i >= 0; i-- {
		switch c := name[i]; {
		case class[c]&isWord != 0:
			last[n] = c
			if n++; n == len(last) {
				e := ending(last[0], last[1], last[2])
				return endings[e/64]>>(e%64)&1 == 1
			}
		case c >= 0x80:
			return true
		}
	}
	return false
}

// nextRun returns where in s the next run of n bytes and more of tokens begins, at the
// offset from or behind it. The byte before from is none of a token.
func nextRun(s string, from, n int) (start int, ok bool) {
	for end := from + n; end <= len(s); {
		i := end - 1
		for i >= from && class[s[i]]&isRun != 0 {
			i--
		}
		if i < from {
			return from, true
		}
		from, end = i+1, i+1+n
	}
	return 0, false
}
