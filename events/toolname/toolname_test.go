package toolname_test

import (
	"errors"
	"fmt"
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/toolname"
)

func TestNormaliseKeepsOnlySafeCharacters_R42(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, fallback, want string }{
		{"search docs", "tool", "search-docs"},
		{"  trimmed\t", "tool", "trimmed"},
		{"", "mcp", "mcp"},
		{" \n", "tool", "tool"},
		{"1st", "tool", "tool-1st"},
		{"_x", "mcp", "mcp-_x"},
		{"-x", "tool", "tool--x"},
		{"API.PROD", "tool", "API-PROD"},
		{"аb", "tool", "tool--b"}, // the first letter is Cyrillic
		{"*", "mcp", "mcp--"},
		{"a\xffb", "tool", "a-b"},
		{"a_b-c9", "tool", "a_b-c9"},
	} {
		if got := toolname.Normalise(c.in, c.fallback); got != c.want {
			t.Errorf("Normalise(%q, %q) = %q, want %q", c.in, c.fallback, got, c.want)
		}
	}
}

func TestFilterMatchesRawNames_R41(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw              string
		include, exclude []string
		want             bool
	}{
		{"read", nil, nil, true},
		{"read", []string{"read"}, nil, true},
		{"Read", []string{"read"}, nil, false},
		{"read_file", []string{"read"}, nil, false},
		{"read_file", []string{"read*"}, nil, true},
		{"read_file", []string{"*_file"}, nil, true},
		{"read_file", []string{"r*_*e"}, nil, true},
		{"read_file", []string{"r*x*e"}, nil, false},
		{"aXbXc", []string{"a*X*c"}, nil, true},
		{"ab", []string{"a*b*b"}, nil, false},
		{"aa", []string{"a*a"}, nil, true},
		{"a", []string{"a*a"}, nil, false},
		{"a.b", []string{"a?b"}, nil, false},
		{"a?b", []string{"a?b"}, nil, true},
		{"[ab]", []string{"[ab]"}, nil, true},
		{"a/b\nc", []string{"a*c"}, nil, true},
		{"read", nil, []string{"read"}, false},
		{"read", []string{"read"}, []string{"*"}, false}, // exclude wins
		{"read", []string{"", " "}, []string{""}, true},  // blank patterns count for nothing
		{"", nil, nil, false},
		{" \t", []string{"*"}, nil, false},
	} {
		if got := toolname.Filter(c.raw, c.include, c.exclude); got != c.want {
			t.Errorf("Filter(%q, %q, %q) = %v, want %v", c.raw, c.include, c.exclude, got, c.want)
		}
	}
	if diff := cmp.Diff([]string{"b", "a*"}, toolname.Patterns([]string{"", "b", "a*", "b", "  "})); diff != "" {
		t.Errorf("Patterns (-want +got):\n%s", diff)
	}
}

// The twin of Match is a regular expression.
func TestMatchAgreesWithARegularExpression_R41(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringOfN(rapid.RuneFrom([]rune("ab*.é\n")), 0, 8, -1).Draw(t, "pattern")
		s := rapid.StringOfN(rapid.RuneFrom([]rune("ab.é\n*")), 0, 10, -1).Draw(t, "s")
		parts := strings.Split(pattern, "*")
		for i, p := range parts {
			parts[i] = regexp.QuoteMeta(p)
		}
		want := regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(s)
		if got := toolname.Match(pattern, s); got != want {
			t.Fatalf("Match(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}

func TestNameIsServerAndTool_R43(t *testing.T) {
	t.Parallel()
	got := names(t, toolname.Source{ServerID: "docs server", Path: "agent/mcp/docs server.yaml", Tools: []string{"search docs"}})
	if diff := cmp.Diff([]string{"docs-server__search-docs"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestLongNamesAreCutWithAHash_R43_R44(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 60)
	got := names(t, toolname.Source{ServerID: "a-server-id-that-is-longer-than-30", Tools: []string{long + "x", long + "y", "short"}})
	if len(got) != 3 || len(got[0]) != 64 || len(got[1]) != 64 || got[0][:53] != got[1][:53] {
		t.Fatalf("names = %q", got)
	}
	if want := "a-server-id-that-is-longer-tha__short"; got[2] != want {
		t.Errorf("name = %q, want %q", got[2], want)
	}
	// The same name whether its neighbour is there or not.
	alone := names(t, toolname.Source{ServerID: "a-server-id-that-is-longer-than-30", Tools: []string{long + "y"}})
	if !slices.Contains(got, alone[0]) {
		t.Errorf("alone it is %q, together they are %q", alone[0], got)
	}
}

func TestClashInsideOneSourceGivesHashSuffixes_R44(t *testing.T) {
	t.Parallel()
	got, err := toolname.Assemble([]toolname.Source{{ServerID: "s", Path: "p", Tools: []string{"read-file", "read.file", "read file", "READ_FILE", "read_file", "other"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	visible := make(map[string]string)
	for _, n := range got {
		visible[n.Raw] = n.Name
	}
	// SHA-256 of "s", 0x00, raw tool; its first ten digits.
	want := map[string]string{
		"read-file": "s__read-file-3d6cba0495",
		"read.file": "s__read-file-64a3be1977",
		"read file": "s__read-file-332e344d89",
		"READ_FILE": "s__READ_FILE-c500213e61",
		"read_file": "s__read_file-a7df0cf17d",
		"other":     "s__other",
	}
	if diff := cmp.Diff(want, visible); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestServersWithOnePrefixGetHashSuffixes_R44(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(`^(foo-bar|FOO-bar)__[xy]-[0-9a-f]{10}$`)
	got := names(t,
		toolname.Source{ServerID: "foo bar", Tools: []string{"x"}},
		toolname.Source{ServerID: "FOO.bar", Tools: []string{"y"}},
		toolname.Source{ServerID: "foo_bar", Tools: []string{"x"}})
	if len(got) != 3 || !pattern.MatchString(got[0]) || !pattern.MatchString(got[1]) || got[2] != "foo_bar__x" {
		t.Errorf("names = %q", got)
	}
	// A source that has no tools at the moment keeps its peer's names as they are.
	alone := names(t,
		toolname.Source{ServerID: "foo bar", Tools: []string{"x"}},
		toolname.Source{ServerID: "FOO.bar"})
	if !slices.Contains(got, alone[0]) {
		t.Errorf("without the tools of its peer the name is %q, with them %q", alone[0], got)
	}
}

func TestSeparatorInsideIdsIsNoAmbiguity_R44(t *testing.T) {
	t.Parallel()
	got := names(t,
		toolname.Source{ServerID: "a", Tools: []string{"b__c"}},
		toolname.Source{ServerID: "a__b", Tools: []string{"c"}})
	if got[0] == got[1] || !strings.HasPrefix(got[0], "a__b__c-") || !strings.HasPrefix(got[1], "a__b__c-") {
		t.Errorf("names = %q", got)
	}
}

// A server that names a tool like another one with its suffix takes nobody's
// name (R44).
func TestForgedSuffixTakesNoName_R44(t *testing.T) {
	t.Parallel()
	before := names(t, toolname.Source{ServerID: "s", Tools: []string{"x y", "x.y"}})
	forged := strings.TrimPrefix(before[0], "s__")
	after := names(t, toolname.Source{ServerID: "s", Tools: []string{"x y", "x.y", forged, strings.ToUpper(forged)}})
	if !slices.Contains(after, before[0]) || !slices.Contains(after, before[1]) || len(after) != 4 {
		t.Errorf("before %q, after %q", before, after)
	}
}

func TestCrossSourceCollisionNamesBothProvenances_R45(t *testing.T) {
	t.Parallel()
	sources := []toolname.Source{{ServerID: "docs", Path: "agent/mcp/docs.yaml", Tools: []string{"search", "fetch"}}}
	for _, taken := range []string{"docs__search", "DOCS__Search"} {
		named, err := toolname.Assemble(sources, []toolname.Provenance{
			{Name: "search", Origin: "builtin:search"},
			{Name: taken, Origin: "authored:tools/search.md"},
		})
		var collision *toolname.Collision
		if named != nil || !errors.As(err, &collision) {
			t.Fatalf("Assemble with %q taken = %v, %v; want a collision", taken, named, err)
		}
		want := &toolname.Collision{Name: "docs__search", Provenances: [2]string{"authored:tools/search.md", "mcp:agent/mcp/docs.yaml:docs/search"}}
		if diff := cmp.Diff(want, collision); diff != "" {
			t.Errorf("collision (-want +got):\n%s", diff)
		}
		if collision.Kind() != "tool_name_collision" {
			t.Errorf("kind = %q", collision.Kind())
		}
		for _, p := range want.Provenances {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%q does not name %q", err, p)
			}
		}
	}
}

func TestTheSameToolOrServerTwiceIsACollision_R44(t *testing.T) {
	t.Parallel()
	for name, sources := range map[string][]toolname.Source{
		"tool":   {{ServerID: "s", Path: "p", Tools: []string{"x", "y", "x"}}},
		"server": {{ServerID: "s", Path: "p"}, {ServerID: "s", Path: "q"}},
	} {
		var collision *toolname.Collision
		if _, err := toolname.Assemble(sources, nil); !errors.As(err, &collision) {
			t.Errorf("%s twice: err = %v, want a collision", name, err)
		}
	}
}

var visible = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// sourcesOf draws sources whose names are likely to clash.
func sourcesOf() *rapid.Generator[[]toolname.Source] {
	ids := rapid.SampledFrom([]string{"a", "A", "a b", "a.b", "a__b", "1", "é", strings.Repeat("x", 40), strings.Repeat("x", 40) + "y"})
	raws := rapid.OneOf(
		rapid.SampledFrom([]string{"b", "B", "b__c", "c", " c", "read file", "read.file", "x-0123456789", strings.Repeat("t", 70), strings.Repeat("t", 70) + "u"}),
		rapid.StringN(1, 80, -1))
	return rapid.Custom(func(t *rapid.T) []toolname.Source {
		var list []toolname.Source
		for _, id := range rapid.SliceOfNDistinct(ids, 1, 6, rapid.ID[string]).Draw(t, "servers") {
			list = append(list, toolname.Source{
				ServerID: id,
				Path:     "agent/mcp/" + id + ".yaml",
				Tools:    rapid.SliceOfNDistinct(raws, 0, 8, rapid.ID[string]).Draw(t, "tools"),
			})
		}
		return list
	})
}

func TestNamesAreUniqueBoundedAndOrderFree_R43_R44_R46(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sources := sourcesOf().Draw(t, "sources")
		named, err := toolname.Assemble(sources, nil)
		if err != nil {
			t.Fatal(err)
		}
		check(t, sources, named)

		r := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		shuffled := slices.Clone(sources)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			tools := slices.Clone(shuffled[i].Tools)
			r.Shuffle(len(tools), func(i, j int) { tools[i], tools[j] = tools[j], tools[i] })
			shuffled[i].Tools = tools
		}
		again, err := toolname.Assemble(shuffled, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(named, again); diff != "" {
			t.Fatalf("another order gives other names (-first +second):\n%s", diff)
		}
	})
}

// check holds for every answer of Assemble.
func check(t rapid.TB, sources []toolname.Source, named []toolname.Named) {
	t.Helper()
	want := 0
	for _, s := range sources {
		want += len(s.Tools)
	}
	if len(named) != want {
		t.Fatalf("%d names for %d tools", len(named), want)
	}
	seen := make(map[string]bool)
	for i, n := range named {
		if !visible.MatchString(n.Name) {
			t.Fatalf("%q is not a visible name", n.Name)
		}
		if key := strings.ToLower(n.Name); seen[key] {
			t.Fatalf("%q twice", n.Name)
		} else {
			seen[key] = true
		}
		if i > 0 && named[i-1].Name > n.Name {
			t.Fatalf("%q stands before %q", named[i-1].Name, n.Name)
		}
		if plain := toolname.Prefix(n.ServerID) + toolname.Separator + toolname.Normalise(n.Raw, "tool"); !strings.HasPrefix(n.Name, plain[:min(len(plain), 23)]) {
			t.Fatalf("%q is no name for %q", n.Name, plain)
		}
	}
}

// A server may list thousands of tools, each named like the one before with
// its suffix; naming them stays linear.
func TestChainOfForgedSuffixesEnds_R44(t *testing.T) {
	t.Parallel()
	tools := []string{"x y", "x.y"}
	for range 2000 {
		last := tools[len(tools)-1]
		for _, n := range names(t, toolname.Source{ServerID: "s", Tools: []string{last, last + " "}}) {
			if raw := strings.TrimPrefix(n, "s__"); !slices.Contains(tools, raw) {
				tools = append(tools, raw)
				break
			}
		}
	}
	if got := names(t, toolname.Source{ServerID: "s", Tools: tools}); len(got) != len(tools) {
		t.Errorf("%d names for %d tools", len(got), len(tools))
	}
}

func FuzzAssemble(f *testing.F) {
	f.Add("docs", "search\x1ffetch", "a b", "x", "docs__search")
	f.Add("a", "b__c", "a__b", "c", "")
	f.Add("s", "read-file\x1fread.file", "S", "read file", "s__read-file")
	f.Fuzz(func(t *testing.T, id1, tools1, id2, tools2, taken string) {
		sources := []toolname.Source{
			{ServerID: id1, Path: "one", Tools: strings.Split(tools1, "\x1f")},
			{ServerID: id2, Path: "two", Tools: strings.Split(tools2, "\x1f")},
		}
		named, err := toolname.Assemble(sources, []toolname.Provenance{{Name: taken, Origin: "builtin"}})
		var collision *toolname.Collision
		switch {
		case errors.As(err, &collision):
			if collision.Provenances[0] == "" || collision.Provenances[1] == "" {
				t.Fatalf("a provenance is missing: %v", err)
			}
		case err != nil:
			t.Fatal(err)
		default:
			check(t, sources, named)
		}
	})
}

func BenchmarkAssemble(b *testing.B) {
	var sources []toolname.Source
	for i := range 16 {
		s := toolname.Source{ServerID: fmt.Sprintf("server %d", i)}
		for j := range 32 {
			s.Tools = append(s.Tools, fmt.Sprintf("tool.%d", j))
		}
		sources = append(sources, s)
	}
	for b.Loop() {
		if _, err := toolname.Assemble(sources, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func names(t testing.TB, sources ...toolname.Source) []string {
	t.Helper()
	named, err := toolname.Assemble(sources, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]string, len(named))
	for i, n := range named {
		list[i] = n.Name
	}
	return list
}
