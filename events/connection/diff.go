package connection

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Difference is one place where two definitions differ. Before or After is empty
// where the place is not in it.
type Difference struct {
	// Path is a JSON pointer (RFC 6901); empty for the whole definition.
	Path   string         `json:"path"`
	Before jsontext.Value `json:"before,omitzero"`
	After  jsontext.Value `json:"after,omitzero"`
}

// Diff is where two definitions differ, by path. Order of members, blanks and the
// spelling of strings are no difference, as they are none to the digest. What is no
// JSON, or says one name twice, differs as a whole.
func Diff(before, after Definition) []Difference {
	return differences("", jsontext.Value(before), jsontext.Value(after))
}

func differences(path string, before, after jsontext.Value) []Difference {
	if bytes.Equal(plain(before), plain(after)) {
		return nil
	}
	var out []Difference
	a, b := parts(before), parts(after)
	if a == nil || b == nil || before.Kind() != after.Kind() {
		return []Difference{{path, plain(before), plain(after)}}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		at := path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		was, had := a[name]
		is, has := b[name]
		switch {
		case had && has:
			out = append(out, differences(at, was, is)...)
		case had:
			out = append(out, Difference{at, plain(was), nil})
		default:
			out = append(out, Difference{at, nil, plain(is)})
		}
	}
	return out
}

// parts are the members of an object or the items of a list, by name or number; nil
// of anything else, and where a name stands twice.
func parts(v jsontext.Value) map[string]jsontext.Value {
	out := make(map[string]jsontext.Value)
	switch v.Kind() {
	case '{':
		if json.Unmarshal(v, &out, jsontext.AllowInvalidUTF8(true)) != nil {
			return nil
		}
		return out
	case '[':
		var items []jsontext.Value
		if json.Unmarshal(v, &items, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) != nil {
			return nil
		}
		for i, item := range items {
			out[strconv.Itoa(i)] = item
		}
		return out
	}
	return nil
}

// plain is a value in one spelling, but numbers stay as they are written.
func plain(v jsontext.Value) jsontext.Value {
	out := v.Clone()
	if out.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false),
		jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) != nil {
		return v
	}
	return out
}
