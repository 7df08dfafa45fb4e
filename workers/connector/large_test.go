//go:build !race

// These lists are of megabytes: under the race detector each takes half a minute, and
// what runs at once is the same as in the tests of small lists.

package connector_test

import (
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// What no event holds fails the opening, and nothing else.
func TestNamesThatNoEventHoldsFailTheOpening(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "long-names"))
	r.Connected("ana")
	failed := rig.Await(r, func(events.ServerFailed) bool { return true })
	if failed.Stage != "list" || failed.Kind != string(fault.CatalogTooLarge) {
		t.Errorf("%+v", failed)
	}
	if s := r.Connection("ana", "docs"); s.Phase != connection.Failed {
		t.Errorf("it is %s", s.Phase)
	}
}

// A listing that no event holds leaves what was listed before, and that is in the log;
// so is that it was listed again.
func TestAListingThatNoEventHoldsLeavesTheOneBefore_R168(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", misbehave(t, "swells"), "approval_policy: auto", "risk: low")
	turn := r.Connected("ana")
	first := r.Connection("ana", "docs")
	call := func() {
		t.Helper()
		if reply := r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "call").Name, `{}`); reply.Status != "succeeded" {
			t.Errorf("%+v", reply)
		}
	}
	call()
	failed := rig.Await(r, func(events.DiscoveryFailed) bool { return true })
	if failed.Kind != string(fault.CatalogTooLarge) || failed.Message.String() == "" || failed.Generation != first.Generation {
		t.Errorf("%+v", failed)
	}
	s := r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Degraded != "" })
	if s.Phase != connection.Open || s.Catalog != first.Catalog || len(s.Current) != len(first.Current) {
		t.Errorf("it is %s with %d tools", s.Phase, len(s.Current))
	}
	var list []client.Server
	r.CatchUp()
	r.Ask("mcp/list", nil, &list)
	if c := list[0]; c.State != "degraded" || c.Connections[0].Reason != "list: catalog_too_large" || c.Tools != len(first.Current) {
		t.Errorf("%+v", c)
	}
	call()
	again := rig.Await(r, func(e events.ToolsDiscovered) bool { return e.Recovered })
	if again.CatalogVersion != first.Catalog {
		t.Errorf("%+v", again)
	}
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Degraded == "" })
}
