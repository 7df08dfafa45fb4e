package connector_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// A program that is another one when it is started again is not started: the yes was to
// what it was before, and is asked for again (attack E7).
func TestAChangedProgramNeedsAnotherApproval(t *testing.T) {
	t.Parallel()
	program, install := installed(t)
	r := declared(t, "docs", rig.Command(program, "exit"), "approval_policy: auto", "risk: low")
	// end makes the server end itself, and wants it opened again.
	end := func() {
		t.Helper()
		turn := r.Prepare("ana")
		r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "call").Name, `{}`)
		r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Closed })
		r.Prepare("ana")
	}
	r.Connected("ana")
	first := rig.Events[events.ConnectionOpened](r)[0]
	end()
	again := rig.Await(r, func(o events.ConnectionOpened) bool { return o.Generation > first.Generation })
	if n := len(rig.Events[events.ApprovalRequested](r)); n != 1 || again.ProgramDigest != first.ProgramDigest {
		t.Fatalf("the same program was asked about %d times", n)
	}

	install("changed")
	end()
	if failed := rig.Await(r, func(events.ServerFailed) bool { return true }); failed.Stage != "spawn" || failed.Kind != string(fault.ProgramChanged) ||
		failed.Program != first.Program || failed.ProgramDigest == "" || failed.ProgramDigest == first.ProgramDigest {
		t.Errorf("failed %+v", failed)
	}
	asked := r.AwaitPending(1)[0]
	if asked.Action != connection.ActionConnect || !strings.Contains(asked.Preview, "has changed since it was approved") {
		t.Errorf("asked %+v", asked)
	}
	if n := len(rig.Events[events.ConnectionOpened](r)); n != 2 {
		t.Errorf("it was opened %d times", n)
	}
	r.Decide(asked.ID, true)
	r.Prepare("ana")
	changed := rig.Await(r, func(o events.ConnectionOpened) bool { return o.Generation > again.Generation })
	if changed.ProgramDigest == first.ProgramDigest {
		t.Error("it is the same program")
	}
	end()
	rig.Await(r, func(o events.ConnectionOpened) bool { return o.Generation > changed.Generation })
}

// installed is the fake as a file of its own; install puts it there again with some bytes
// behind it, as an update does.
func installed(t *testing.T) (program string, install func(more string)) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "server")
	install = func(more string) {
		t.Helper()
		data, err := os.ReadFile(fakes.Build(t, "misbehave"))
		if err == nil {
			err = os.WriteFile(program+".new", append(data, more...), 0o700)
		}
		if err == nil {
			err = os.Rename(program+".new", program)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install("")
	return program, install
}

// A private connection that was asked for before the program changed, and is opened after
// it, has no yes any more (attack E7).
func TestAChangedProgramIsNotStartedForAnAttachment(t *testing.T) {
	t.Parallel()
	program, install := installed(t)
	r := declared(t, "docs", rig.Command(program, "exit"), "approval_policy: auto", "risk: low")
	r.Grant("ana", "mcp.roots:docs")
	turn := r.Connected("ana")
	d, _ := r.Cores.Server("docs")
	session := r.Session("ana")
	before := d.Private(r.Model, rig.Workspace, "ana", session, cores.Attachment{ID: "x-1", Runtime: r.Runtime, Offers: []string{"roots"}}, time.Now())
	if before.Approval == "" || len(before.Offers) != 1 {
		t.Fatalf("it would not be asked for: %+v", before)
	}

	install("changed")
	r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "call").Name, `{}`)
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Closed })
	r.Prepare("ana")
	rig.Await(r, func(e events.ServerFailed) bool { return e.Kind == string(fault.ProgramChanged) })

	key := connection.PrivateID(session, "docs", "x-1")
	_, err := r.Model.Connections.Dispatch(r.Context(), rig.Workspace, key, bus.Meta{
		Actor: "ana", Principal: "ana", Scope: events.Scope{Session: session, Connection: key, Server: "docs"},
	}, before)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Model.Connections.Wait(r.Context(), rig.Workspace, key, func(s connection.State) bool {
		return s.Phase == connection.Open || s.Phase == connection.Closed || s.Phase == connection.Failed
	})
	if err != nil || s.Phase != connection.Closed || s.Generation != 0 {
		t.Errorf("it is %s of generation %d, %v", s.Phase, s.Generation, err)
	}
}
