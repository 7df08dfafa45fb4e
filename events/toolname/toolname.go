// Package toolname makes the names under which tools are visible, and selects
// which tools are visible at all. It is pure: the same servers and tools give
// the same names, whatever the order in which discoveries ended (R46).
//
// A name grants nothing (R47): the authority to connect and to call is checked
// on server ids and raw tool names, never on what this package returns.
package toolname

import "strings"

// The sizes of a visible name, in characters (R43).
const (
	// MaxName is the longest visible name.
	MaxName = 64
	// MaxServer is the longest server part of it.
	MaxServer = 30
	// Separator stands between server part and tool part.
	Separator = "__"
)

// Normalise makes one part of a visible name (R42): it trims blanks, turns each
// character outside [A-Za-z0-9_-] into "-", and puts fallback before a part
// that is empty or does not start with a letter.
func Normalise(part, fallback string) string {
	part = strings.Map(func(r rune) rune {
		if letter(r) || '0' <= r && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, strings.TrimSpace(part))
	switch {
	case part == "":
		return fallback
	case !letter(rune(part[0])):
		return fallback + "-" + part
	}
	return part
}

func letter(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }

// Prefix is the server part of the names of a server's tools (R43). Servers
// with different ids may share it; Assemble keeps their tools apart.
func Prefix(serverID string) string {
	p := Normalise(serverID, "mcp")
	return p[:min(len(p), MaxServer)]
}

// Patterns drops the blank and the repeated patterns of a list (R41). The
// result is never nil.
func Patterns(list []string) []string {
	kept := make([]string, 0, len(list))
	seen := make(map[string]bool, len(list))
	for _, p := range list {
		if strings.TrimSpace(p) != "" && !seen[p] {
			seen[p] = true
			kept = append(kept, p)
		}
	}
	return kept
}

// Filter tells whether a tool is visible by its raw name (R41): it matches a
// pattern of include, or include is empty, and it matches none of exclude. A
// blank name is never visible; blank patterns count for nothing.
func Filter(raw string, include, exclude []string) bool {
	if strings.TrimSpace(raw) == "" {
		return false
	}
	include = Patterns(include)
	return (len(include) == 0 || matchAny(include, raw)) && !matchAny(Patterns(exclude), raw)
}

func matchAny(patterns []string, s string) bool {
	for _, p := range patterns {
		if Match(p, s) {
			return true
		}
	}
	return false
}

// Match tells whether the whole of s matches the pattern, in which only "*" is
// special: it stands for any characters, also none. Case counts.
func Match(pattern, s string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == s
	}
	if !strings.HasPrefix(s, head) {
		return false
	}
	s = s[len(head):]
	// Each piece between two stars may take its first place: what follows
	// then has the most room. The last piece has to end the text.
	for {
		piece, more, wild := strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(s, piece)
		}
		at := strings.Index(s, piece)
		if at < 0 {
			return false
		}
		s, rest = s[at+len(piece):], more
	}
}
