package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The rules of the house. Each is read from the source, so that a rule that is
// broken is found even where the code would compile; a name of a test is the
// rule.

const (
	module   = "github.com/gatebus/gatebus"
	repoRoot = "../.."
)

// source is one Go file of the repository.
type source struct {
	path, dir string // relative to the repository, with slashes
	test      bool
	set       *token.FileSet
	tree      *ast.File
}

// at is a place in a file, for messages.
func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.set.Position(n.Pos()).Line)
}

// imports are the paths that the file imports.
func (s source) imports() (paths []string) {
	for _, i := range s.tree.Imports {
		p, _ := strconv.Unquote(i.Path.Value) // the parser has checked it
		paths = append(paths, p)
	}
	return paths
}

// sources are all Go files of the module.
var sources = sync.OnceValues(func() (all []source, err error) {
	set := token.NewFileSet()
	err = filepath.WalkDir(repoRoot, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(repoRoot, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); rel != "." && (err == nil || rel == ".git") {
				return fs.SkipDir // another module
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		tree, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		all = append(all, source{path: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"), set: set, tree: tree})
		return err
	})
	return all, err
})

// everySource calls f for the files in and below the directories.
func everySource(t *testing.T, f func(source), dirs ...string) {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range all {
		if len(dirs) == 0 || slices.ContainsFunc(dirs, func(d string) bool { return below(s.dir, d) }) {
			found++
			f(s)
		}
	}
	if found == 0 {
		t.Fatalf("no Go files below %v: the rule looks at nothing", dirs)
	}
}

// below tells whether a slash path is the directory or in it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// inAny tells whether a path is in or below one of the directories.
func inAny(p string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return below(p, d) })
}

// uses visits each use of package.name of an imported package.
func uses(s source, pkg string, visit func(name string, n ast.Node)) {
	local := ""
	for _, i := range s.tree.Imports {
		if p, _ := strconv.Unquote(i.Path.Value); p == pkg {
			local = path.Base(pkg)
			if i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	if local == "" {
		return
	}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == local {
				visit(sel.Sel.Name, sel)
			}
		}
		return true
	})
}

// selectors visits each x.name, whatever x is.
func selectors(s source, name string, visit func(*ast.SelectorExpr)) {
	ast.Inspect(s.tree, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			visit(sel)
		}
		return true
	})
}

var (
	randomness = []string{"math/rand", "math/rand/v2", "crypto/rand"}
	clockReads = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer", "Sleep"}
	nats       = "github.com/nats-io"
	sdk        = "github.com/modelcontextprotocol/go-sdk"
)

// Rule 1.
func TestEventsImportNoOutsideWorld(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		for _, p := range s.imports() {
			pure := p == "net/netip" || p == "net/url"
			if !s.test && !pure && inAny(p, "net", "os", "syscall", "golang.org/x/sys", nats, sdk) {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	}, "events")
}

// Rules 1 and 3.
func TestEventsAndProjectionsReadNoClockAndDrawNoRandomNumber(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		if s.test {
			return
		}
		for _, p := range s.imports() {
			if slices.Contains(randomness, p) {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
		uses(s, "time", func(name string, n ast.Node) {
			// The audit file pauses between two writes; what it holds knows no clock.
			if slices.Contains(clockReads, name) && !(s.dir == "projections/audit" && name == "NewTimer") {
				t.Errorf("%s uses time.%s", s.at(n), name)
			}
		})
	}, "events", "projections")
}

// attacker is the program that tries what no program of ours may do.
const attacker = "testdata/shows/forge"

// Rule 2.
func TestOnlyBusImportsNATS(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		for _, p := range s.imports() {
			if below(p, nats) && !below(s.dir, "bus") && s.dir != attacker {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	})
}

// Rule 2.
func TestOnlyMCPWorkersImportTheSDK(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"workers/live", "workers/gateway", "workers/connector", "workers/caller", "workers/lifecycle", "workers/oauth",
		"cmd/gatebus/demo", "testdata/fakes", "testdata/shows/speed",
	}
	everySource(t, func(s source) {
		for _, p := range s.imports() {
			if below(p, sdk) && !s.test && !inAny(s.dir, allowed...) { // a test may have it as a peer
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	})
}

// Rule 3. The one effect is the audit file.
func TestProjectionsHaveNoEffect(t *testing.T) {
	t.Parallel()
	file := []string{"os", "net/url", "database/sql", "database/sql/driver", "modernc.org/sqlite", "modernc.org/sqlite/lib"}
	everySource(t, func(s source) {
		for _, p := range s.imports() {
			if s.dir == "projections/audit" && slices.Contains(file, p) {
				continue
			}
			if !s.test && inAny(p, "net", "os", "syscall", "database/sql", "modernc.org", nats, sdk) {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	}, "projections")
}

// tools are the packages below workers that workers share.
var tools = []string{"cores", "frame", "httpclient", "httpin", "live", "oauth", "secrets", "stdio"}

// Rule 4. Tests may wire several workers; what they share is in workers/internal
// and workers/fakes, and of no use to anybody else.
func TestWorkersMeetOnTheBusNotByImport(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		from, _, _ := strings.Cut(strings.TrimPrefix(s.dir, "workers/"), "/")
		if s.test || from == "internal" {
			return
		}
		for _, p := range s.imports() {
			to, ok := strings.CutPrefix(p, module+"/workers/")
			to, _, _ = strings.Cut(to, "/")
			if ok && to != from && !slices.Contains(tools, to) {
				t.Errorf("%s imports the worker %s", s.path, to)
			}
		}
	}, "workers")
}

// Rule 4.
func TestDependenciesPointOneWay(t *testing.T) {
	t.Parallel()
	// What each folder may import of the module; tests may look further.
	allowed := map[string][]string{
		"schemas": {}, "events": {"events"}, "bus": {"events", "bus"}, "projections": {"events", "projections"},
		"workers": {"events", "bus", "projections", "workers"},
		"cmd":     {"schemas", "events", "bus", "projections", "workers", "cmd"},
	}
	for folder, may := range allowed {
		everySource(t, func(s source) {
			for _, p := range s.imports() {
				if to, ok := strings.CutPrefix(p, module+"/"); ok && !s.test && !inAny(to, may...) {
					t.Errorf("%s imports %s", s.path, p)
				}
			}
		}, folder)
	}
}

// Rule 4.
func TestOnlyCmdReadsFlagsAndEnvironment(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		if s.test || s.path == "bus/internal/bubble/bubble.go" { // a helper of tests, which runs the test binary again
			return
		}
		for _, p := range s.imports() {
			if p == "flag" || below(p, "github.com/spf13") {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
		path := map[ast.Node]bool{} // reading PATH is looking for a program, as os/exec does
		ast.Inspect(s.tree, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 1 {
				name, ok := call.Args[0].(*ast.BasicLit)
				path[call.Fun] = ok && name.Value == `"PATH"`
			}
			return true
		})
		uses(s, "os", func(name string, n ast.Node) {
			if slices.Contains([]string{"Getenv", "LookupEnv", "Environ", "Args"}, name) && !path[n] {
				t.Errorf("%s uses os.%s", s.at(n), name)
			}
		})
	}, "schemas", "events", "bus", "projections", "workers")
}

// Rule 5.
func TestOneFunctionAppendsAndOnlyDispatchCallsIt(t *testing.T) {
	t.Parallel()
	called := 0
	everySource(t, func(s source) {
		if s.test || s.dir == attacker {
			return
		}
		selectors(s, "append", func(sel *ast.SelectorExpr) {
			called++
			if s.path != "bus/dispatch.go" {
				t.Errorf("%s appends", s.at(sel))
			}
		})
		ast.Inspect(s.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(n.Value, "Nats-Expected-Last") && s.path != "bus/log.go" {
					t.Errorf("%s makes an append of its own", s.at(n))
				}
				if n.Kind == token.STRING && strings.Contains(n.Value, "PUB ") && s.path != "bus/wire.go" {
					t.Errorf("%s speaks to the server past its client", s.at(n))
				}
			case *ast.SelectorExpr:
				if strings.HasPrefix(n.Sel.Name, "ExpectedLast") && s.path != "bus/log.go" ||
					strings.HasPrefix(n.Sel.Name, "WithExpectLast") && s.path != "bus/lease.go" { // keeps a key of the bucket
					t.Errorf("%s makes an append of its own", s.at(n))
				}
			}
			return true
		})
	})
	if called != 1 {
		t.Errorf("%d places append, want 1", called)
	}
}

// Rule 5. Who reveals a raw value is on this list, and nobody who does not is.
func TestRawIsRevealedOnlyByThoseOnTheList(t *testing.T) {
	t.Parallel()
	list := []string{
		"events/declaration", // parses what an operator wrote
		"events/fault",       // errors.Is looks into a cause
		"events/redact",      // makes the views
		"events/server",      // takes apart what goes into the log and into the keystore
		"workers/caller",     // sends arguments to the server
		"workers/connector",  // starts the server
		"workers/live",       // speaks with the server
		"workers/secrets",    // keeps what is stored
	}
	found := map[string]bool{}
	everySource(t, func(s source) {
		if s.test {
			return
		}
		selectors(s, "Reveal", func(sel *ast.SelectorExpr) {
			found[s.dir] = true
			if !slices.Contains(list, s.dir) {
				t.Errorf("%s reveals a raw value", s.at(sel))
			}
		})
	})
	for _, dir := range list {
		if !found[dir] {
			t.Errorf("%s is on the list and reveals nothing: take it off", dir)
		}
	}
}

// Text becomes an event view by redaction, or when the log is read.
func TestStoredTextIsTakenForAViewOnlyInEvents(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		selectors(s, "FromStored", func(sel *ast.SelectorExpr) {
			if s.dir != "events" {
				t.Errorf("%s calls FromStored", s.at(sel))
			}
		})
	})
}

func TestEveryPackageHasExactlyOnePackageDoc(t *testing.T) {
	t.Parallel()
	docs := map[string][]string{}
	everySource(t, func(s source) {
		if s.test {
			return
		}
		docs[s.dir] = slices.Clip(docs[s.dir])
		if s.tree.Doc.Text() != "" {
			docs[s.dir] = append(docs[s.dir], s.path)
		}
	})
	for _, dir := range slices.Sorted(maps.Keys(docs)) {
		if len(docs[dir]) != 1 {
			t.Errorf("%s has %d package docs: %v", dir, len(docs[dir]), docs[dir])
		}
	}
}

func TestSkippedTestsSayWhy(t *testing.T) {
	t.Parallel()
	everySource(t, func(s source) {
		ast.Inspect(s.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !s.test {
				return true
			}
			switch sel.Sel.Name {
			case "Skip", "Skipf":
				if len(call.Args) > 0 {
					if reason, ok := call.Args[0].(*ast.BasicLit); ok && len(reason.Value) > 10 {
						return true
					}
				}
				fallthrough
			case "SkipNow":
				t.Errorf("%s skips without a reason", s.at(call))
			}
			return true
		})
	})
}

func TestNothingIsLeftToDo(t *testing.T) {
	t.Parallel()
	marks := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}
	everySource(t, func(s source) {
		for _, group := range s.tree.Comments {
			for _, mark := range marks {
				if strings.Contains(group.Text(), mark) {
					t.Errorf("%s says %s", s.at(group), mark)
				}
			}
		}
	})
}

// The top level is fixed (architecture).
func TestTopLevelIsFixed(t *testing.T) {
	t.Parallel()
	must := []string{
		".ci", "LICENSE", "README.md", "bus", "cmd", "events", "go.mod", "go.sum", "projections", "schemas", "testdata", "workers",
	}
	may := []string{".git", ".gitattributes", ".gitignore"}
	entries, err := os.ReadDir(repoRoot)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if !slices.Contains(must, e.Name()) && !slices.Contains(may, e.Name()) {
			t.Errorf("%s does not belong at the top", e.Name())
		}
	}
	for _, name := range must {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestReadmeHas200LinesAtMost(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(repoRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n > 200 {
		t.Errorf("README.md has %d lines", n)
	}
}

func TestEveryDirectRequirementIsImported(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(repoRoot, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	imported := map[string]bool{}
	everySource(t, func(s source) {
		for _, p := range s.imports() {
			imported[p] = true
		}
	})
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) < 2 || !strings.Contains(fields[0], ".") || !strings.HasPrefix(fields[1], "v") || strings.Contains(line, "// indirect") {
			continue
		}
		used := false
		for p := range imported {
			used = used || below(p, fields[0])
		}
		if !used {
			t.Errorf("go.mod requires %s, which nothing imports", fields[0])
		}
	}
}
