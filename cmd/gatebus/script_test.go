package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gatebus/gatebus/workers/fakes"
)

// TestMain lets the test binary be the program: scripts run it as gatebus, and a
// runtime in a test starts it as its demo server, or finds it as one behind HTTP.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "demo-server":
		main()
	case len(os.Args) > 1 && os.Args[1] == "fake-http":
		fakeHTTP()
	}
	testscript.Main(withFakes{m}, map[string]func(){"gatebus": main})
}

// withFakes are the tests with the fake servers that they build.
type withFakes struct{ m *testing.M }

func (w withFakes) Run() int { return fakes.Run(w.m) }

// TestScripts runs the program as a process, for the verbs that need no bus.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("GATEBUS_HOME", e.WorkDir+"/home")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program and wants an exit code: exits CODE PROGRAM ARGS...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exits: %v", err)
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("exits: %v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
