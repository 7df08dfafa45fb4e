package toolname

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Source is one server and its visible tools.
type Source struct {
	// ServerID is the identity of the server; unique among the sources.
	ServerID string
	// Path is where the server is declared.
	Path string
	// Tools are the raw names that Filter let through, each once.
	Tools []string
}

// Provenance is a name that another part of the host has taken, and where that
// name comes from, for example "authored:tools/search.md".
type Provenance struct {
	Name   string
	Origin string
}

// Named is one tool under its visible name.
type Named struct {
	Name     string
	ServerID string
	Raw      string
	// Origin is "mcp:<path>:<server>/<raw tool>".
	Origin string
}

// Collision says that one visible name has two owners (R45). Neither wins and
// neither is renamed: the turn fails.
type Collision struct {
	Name        string
	Provenances [2]string
}

// Kind is the kind of the error: "tool_name_collision".
func (*Collision) Kind() string { return "tool_name_collision" }

// Error names both provenances.
func (c *Collision) Error() string {
	return fmt.Sprintf("toolname: %q is the name of both %q and %q", c.Name, c.Provenances[0], c.Provenances[1])
}

// suffixes are the lengths, in hexadecimal digits, that a name's hash suffix
// takes in turn while the name is not unique (R44).
var suffixes = [...]int{0, 10, 20, 40}

// Assemble names the tools of all sources (R43, R44, R46). A name is
// "<server>__<tool>". It gets a hash suffix if it would be cut, if another tool
// would have it, if another source has the same prefix, or if it looks as if it
// had one; upper and lower case are the same here. Sources without tools count
// too: a server that is not connected now renames nobody when it comes back.
//
// The result is sorted by name and does not depend on the order of sources and
// tools. The error is a *Collision: a name of others is taken (R45), or a tool
// or server is there twice, so that no unique name exists.
func Assemble(sources []Source, others []Provenance) ([]Named, error) {
	named, level, err := candidates(sources)
	if err != nil {
		return nil, err
	}
	if err := separate(named, level); err != nil {
		return nil, err
	}
	slices.SortFunc(named, func(a, b Named) int { return cmp.Compare(a.Name, b.Name) })
	taken := make(map[string]string, len(others))
	for _, o := range others {
		key := strings.ToLower(o.Name)
		if origin, ok := taken[key]; !ok || o.Origin < origin {
			taken[key] = o.Origin
		}
	}
	for _, n := range named {
		if origin, ok := taken[strings.ToLower(n.Name)]; ok {
			return nil, &Collision{Name: n.Name, Provenances: [2]string{origin, n.Origin}}
		}
	}
	return named, nil
}

// candidates lists the tools of all sources and the level in suffixes at which
// each starts.
func candidates(sources []Source) ([]Named, []int, error) {
	sources = slices.SortedFunc(slices.Values(sources), func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.ServerID, b.ServerID), cmp.Compare(a.Path, b.Path))
	})
	shared := make(map[string]int, len(sources))
	for i, s := range sources {
		shared[strings.ToLower(Prefix(s.ServerID))]++
		if i > 0 && sources[i-1].ServerID == s.ServerID {
			return nil, nil, &Collision{Name: s.ServerID, Provenances: [2]string{"mcp:" + sources[i-1].Path, "mcp:" + s.Path}}
		}
	}
	var named []Named
	var level []int
	for _, s := range sources {
		for i, raw := range slices.Sorted(slices.Values(s.Tools)) {
			n := Named{ServerID: s.ServerID, Raw: raw, Origin: "mcp:" + s.Path + ":" + s.ServerID + "/" + raw}
			if i > 0 && named[len(named)-1].Raw == raw {
				return nil, nil, &Collision{Name: base(n), Provenances: [2]string{n.Origin, n.Origin}}
			}
			first := 0
			if shared[strings.ToLower(Prefix(s.ServerID))] > 1 || len(base(n)) > MaxName || suffixed(base(n)) {
				first = 1
			}
			named, level = append(named, n), append(level, first)
		}
	}
	return named, level, nil
}

// suffixed tells whether a name ends like one that has a suffix. Such a name
// gets one as well, so that names with suffixes of different lengths, or with
// and without, never meet, and a server that computes the suffix of another
// tool gains nothing.
func suffixed(name string) bool {
	tail := name[strings.LastIndexByte(name, '-')+1:]
	return slices.Contains(suffixes[1:], len(tail)) && strings.Trim(tail, "0123456789abcdefABCDEF") == ""
}

// separate sets the names. All tools that share a name take a longer suffix at
// the same time: giving one of them the short name would make it a matter of
// order. There are as many rounds as there are lengths, at most.
func separate(named []Named, level []int) error {
	for {
		owners := make(map[string][]int, len(named))
		for i := range named {
			named[i].Name = visible(named[i], suffixes[level[i]])
			key := strings.ToLower(named[i].Name)
			owners[key] = append(owners[key], i)
		}
		if len(owners) == len(named) {
			return nil
		}
		for _, n := range named {
			group := owners[strings.ToLower(n.Name)]
			if len(group) == 1 {
				continue
			}
			for _, i := range group {
				if level[i]++; level[i] == len(suffixes) {
					return &Collision{Name: n.Name, Provenances: [2]string{named[group[0]].Origin, named[group[1]].Origin}}
				}
			}
			delete(owners, strings.ToLower(n.Name))
		}
	}
}

func base(n Named) string {
	return Prefix(n.ServerID) + Separator + Normalise(n.Raw, "tool")
}

// visible is the name with that many digits of hash.
func visible(n Named, digits int) string {
	name := base(n)
	if digits == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(n.ServerID + "\x00" + n.Raw))
	suffix := "-" + hex.EncodeToString(sum[:])[:digits]
	return name[:min(len(name), MaxName-len(suffix))] + suffix
}
