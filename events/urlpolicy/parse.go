package urlpolicy

import (
	"cmp"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxURL is the size in bytes above which a URL is refused unread.
const MaxURL = 64 << 10

// Target is a URL in normal form, without its fragment. It may hold secrets in its
// path and query, and shows neither.
type Target struct {
	// Scheme is http or https; another one only beside UnsupportedScheme.
	Scheme string
	// Host is a name in lower-case ASCII without a root dot, or the canonical text of
	// Addr: an address of IPv4 in place of a mapped one, an address of IPv6 without
	// brackets.
	Host string
	// Addr is the address that the URL says, not valid if it says a name.
	Addr netip.Addr
	Port uint16
	// Userinfo says that the URL had a user name or password. They are not kept.
	Userinfo bool

	path, query string // escaped; query with its question mark
	written     string // as it was written, but for the fragment
}

// Origin is scheme, host and port, the port only if it is not that of the scheme:
// what views may show (R113). It is empty if nothing was parsed, and only the scheme
// for one that is not supported.
func (t Target) Origin() string {
	switch {
	case t.Scheme == "":
		return ""
	case t.Host == "":
		return t.Scheme + ":"
	}
	return t.Scheme + "://" + t.authority()
}

// String is the origin.
func (t Target) String() string { return t.Origin() }

// GoString is the origin.
func (t Target) GoString() string { return t.Origin() }

// URL is what to request. It holds no userinfo.
func (t Target) URL() *url.URL {
	u := &url.URL{Scheme: t.Scheme, Host: t.authority(), RawPath: t.path, RawQuery: strings.TrimPrefix(t.query, "?"), ForceQuery: t.query == "?"}
	u.Path, _ = url.PathUnescape(t.path) // Parse tested it
	return u
}

// Question is the name to ask a resolver for: with its root dot, so that no search
// list applies. A name without dots goes without, since hosts files are not searched
// for one with a root dot.
func (t Target) Question() string {
	if strings.Contains(t.Host, ".") {
		return t.Host + "."
	}
	return t.Host
}

// text is the URL of which Parse makes t again.
func (t Target) text() string { return t.Origin() + t.path + t.query }

func (t Target) authority() string {
	host := t.Host
	if t.Addr.Is6() {
		host = "[" + host + "]"
	}
	if t.Port != defaultPorts[t.Scheme] {
		host += ":" + strconv.Itoa(int(t.Port))
	}
	return host
}

var defaultPorts = map[string]uint16{"http": 80, "https": 443}

// Parse makes the normal form of a URL, or says why there is none: InvalidURL,
// UnsupportedScheme or MissingHostname. The Target beside a no holds nothing but a
// scheme that is not supported.
func Parse(raw string) (Target, Reason) {
	if len(raw) > MaxURL || !utf8.ValidString(raw) {
		return Target{}, InvalidURL
	}
	scheme, rest, ok := cutScheme(raw)
	if !ok {
		return Target{}, InvalidURL
	}
	t := Target{Scheme: scheme}
	if t.Port = defaultPorts[scheme]; t.Port == 0 {
		return Target{Scheme: scheme}, UnsupportedScheme
	}
	t.written, _, _ = strings.Cut(raw, "#")
	rest, ok = strings.CutPrefix(rest, "//")
	if !ok || strings.HasPrefix(rest, "/") || !plain(rest) { // others skip slashes, or add them
		return Target{}, InvalidURL
	}
	authority, path, query := rest, "", ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	path, _, _ = strings.Cut(path, "#")
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path, query = path[:i], path[i:]
	}
	if user, host, found := strings.Cut(authority, "@"); found {
		if strings.Contains(host, "@") || !validEscapes(user) { // which one ends it is disputed
			return Target{}, InvalidURL
		}
		t.Userinfo, authority = true, host
	}
	host, port, ok := cutPort(authority)
	if ok && port != "" {
		t.Port, ok = portNumber(port)
	}
	if !ok || !validEscapes(path) {
		return Target{}, InvalidURL
	}
	if host == "" {
		return Target{}, MissingHostname
	}
	if t.Host, t.Addr, ok = normalHost(host); !ok {
		return Target{}, InvalidURL
	}
	t.path, t.query = escape(cmp.Or(path, "/")), escape(query)
	return t, Allowed
}

// cutScheme cuts what comes before the first colon (RFC 3986 3.1), in lower case.
func cutScheme(raw string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(raw, ":")
	if !ok || scheme == "" || len(scheme) > maxScheme {
		return "", "", false
	}
	scheme = lowerASCII(scheme)
	const letters, others = "abcdefghijklmnopqrstuvwxyz", "0123456789+-."
	if strings.IndexByte(letters, scheme[0]) < 0 || strings.Trim(scheme, letters+others) != "" {
		return "", "", false
	}
	return scheme, rest, true
}

// maxScheme bounds what of a URL that is refused is shown.
const maxScheme = 32

// plain tests for what parsers cut off, turn into a slash or pass on in a line of a
// header: backslash, white space, control characters. U+FFFD is what somebody made
// of bytes that were no UTF-8.
func plain(s string) bool {
	for _, r := range s {
		if r == '\\' || r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r) {
			return false
		}
	}
	return true
}

// cutPort cuts host and port. Brackets are kept: only an address has them.
func cutPort(authority string) (host, port string, ok bool) {
	end := strings.LastIndexByte(authority, ']') + 1
	host, port, found := strings.Cut(authority[end:], ":")
	return authority[:end] + host, port, !found || !strings.Contains(port, ":")
}

func portNumber(text string) (uint16, bool) {
	digits := strings.TrimLeft(text, "0")
	n, err := strconv.ParseUint(digits, 10, 16) // no sign
	return uint16(n), err == nil                // 0 has no digits left
}

// validEscapes tests that two hexadecimal digits follow each percent sign.
func validEscapes(s string) bool {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			return true
		}
		if len(s) < i+3 || strings.Trim(s[i+1:i+3], "0123456789abcdefABCDEF") != "" {
			return false
		}
		s = s[i+3:]
	}
}

// escape escapes what may not stand in a path or query (RFC 3986), and nothing that
// may.
func escape(s string) string {
	const bad = "\"<>^`{|}"
	if !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf || strings.ContainsRune(bad, r) }) {
		return s
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+32)
	for i := range len(s) {
		if c := s[i]; c >= utf8.RuneSelf || strings.IndexByte(bad, c) >= 0 {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}
