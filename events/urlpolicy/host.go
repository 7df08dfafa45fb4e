package urlpolicy

import (
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253 // octets of a name, without the root dot
	maxLabel = 63
	// maxHost bounds a host before it is mapped, of which the time is not linear.
	maxHost = 1024
)

// unicodeNames maps names as browsers do (UTS 46, not transitional). Which
// characters are in the result is tested after it.
var unicodeNames = idna.New(
	idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.CheckJoiners(true),
	idna.CheckHyphens(false), idna.StrictDomainName(false), idna.VerifyDNSLength(false),
)

// normalHost makes the normal form of a host (R99 to R102): an address in any
// spelling that a resolver would take for one, else a name in ASCII.
func normalHost(host string) (name string, addr netip.Addr, ok bool) {
	if strings.HasPrefix(host, "[") {
		inner, ok := strings.CutSuffix(host[1:], "]")
		a, err := netip.ParseAddr(inner)
		if !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return "", addr, false
		}
		a = a.Unmap()
		return a.String(), a, true
	}
	if strings.Contains(host, "%") {
		decoded, err := url.PathUnescape(host)
		if err != nil || !utf8.ValidString(decoded) {
			return "", addr, false
		}
		host = decoded
	}
	if len(host) > maxHost {
		return "", addr, false
	}
	if name, ok = asciiName(host); !ok {
		return "", addr, false
	}
	name = strings.TrimSuffix(name, ".")
	if !validName(name) {
		return "", addr, false
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; !isNumber(last) {
		return name, addr, true
	}
	if addr, ok = legacyIPv4(name); !ok {
		return "", addr, false
	}
	return addr.String(), addr, true
}

// asciiName is the host in lower-case ASCII, of which the characters are still to be
// tested.
func asciiName(host string) (string, bool) {
	unicode := strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf })
	host = lowerASCII(host)
	if !unicode && !strings.Contains(host, "xn--") {
		return host, true
	}
	// Tables of different years map it to ss and to a letter of its own: two hosts.
	if strings.ContainsRune(host, 'ẞ') {
		return "", false
	}
	name, err := unicodeNames.ToASCII(host)
	if err != nil || strings.HasSuffix(name, ".") && strings.TrimRight(host, ".。．｡") == host {
		return "", false // the last label is gone, not empty
	}
	for label := range strings.SplitSeq(name, ".") {
		if !strings.HasPrefix(label, "xn--") {
			continue
		}
		// What is decoded may not say that it is to be decoded again.
		if form, err := unicodeNames.ToUnicode(label); err != nil || strings.HasPrefix(form, "xn--") {
			return "", false
		}
	}
	return name, true
}

// lowerASCII lowers the letters of ASCII and no others: mapping does that for names.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// validName tests lengths and characters of a name without its root dot. Hyphens may
// stand anywhere, and underscores, since there are hosts that have them so.
func validName(name string) bool {
	if len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// isNumber says that a name that ends in such a label is an address or nothing (URL
// Standard, "ends in a number").
func isNumber(label string) bool {
	if digits, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// legacyIPv4 reads an address as inet_aton does (R101): one to four numbers, decimal,
// hexadecimal after 0x, octal after 0, the last of which fills the bytes that are
// left. Nothing wraps around.
func legacyIPv4(name string) (netip.Addr, bool) {
	parts := strings.Split(name, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var address uint64
	for i, part := range parts {
		n, ok := number(part)
		room := uint64(1) << 8
		if i == len(parts)-1 {
			room = 1 << (8 * (5 - len(parts)))
		}
		if !ok || n >= room {
			return netip.Addr{}, false
		}
		address = address*room + n
	}
	return netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)}), true
}

// number reads one part of an address; 0x alone is 0. What does not fit in 32 bits
// is not ok.
func number(part string) (n uint64, ok bool) {
	base := uint64(10)
	switch {
	case strings.HasPrefix(part, "0x"):
		base, part = 16, part[2:]
	case strings.HasPrefix(part, "0"):
		base = 8
	}
	for _, c := range []byte(part) {
		digit := strings.IndexByte("0123456789abcdef", c)
		if digit < 0 || uint64(digit) >= base {
			return 0, false
		}
		if n = n*base + uint64(digit); n > 1<<32-1 {
			return 0, false
		}
	}
	return n, true
}
