// Package fakes builds the fake servers of testdata/fakes for tests. It is of
// no use outside of tests.
package fakes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex
	dir   string
	built = map[string]string{}
)

// Run runs the tests of a package that uses [Build] and removes what was built:
//
//	func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }
func Run(m *testing.M) int {
	made, err := os.MkdirTemp("", "gatebus-fakes-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakes:", err)
		return 1
	}
	dir = made
	defer os.RemoveAll(made)
	return m.Run()
}

// Build returns the path of the program testdata/fakes/NAME, built once per
// test run. It fails the test when the program does not build.
func Build(t testing.TB, name string) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if path := built[name]; path != "" {
		return path
	}
	if dir == "" {
		t.Fatal("fakes: TestMain of this package must call fakes.Run")
	}
	path := filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", path, "github.com/gatebus/gatebus/testdata/fakes/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("fakes: %s: %v\n%s", name, err, out)
	}
	built[name] = path
	return path
}
