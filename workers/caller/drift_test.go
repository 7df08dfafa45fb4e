package caller_test

import (
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// A call of a turn whose catalog is not that of the server any more says so, in the log,
// in its audit row and to who made it.
func TestACallOfAnOldTurnTellsOfTheDrift_R203(t *testing.T) {
	t.Parallel()
	s := serve(t, rig.Options{}, program(t, "misbehave", "drift"), auto)
	before := s.Connection("ana", "docs").Catalog
	s.wants(s.call("change", `{}`), "succeeded", "", true)
	now := s.AwaitConnection("ana", "docs", func(c connection.State) bool { return c.Catalog != before }).Catalog
	r := s.call("steady", `{}`)
	s.wants(r, "succeeded", "", true)
	if r.CatalogDrift != call.DriftCatalog {
		t.Errorf("the reply says %q", r.CatalogDrift)
	}
	ends := rig.Events[events.CallSucceeded](s.Rig)
	if e := ends[1]; ends[0].CatalogDrift != "" || e.CatalogDrift != call.DriftCatalog || e.CatalogVersion != now {
		t.Errorf("recorded %+v, the catalog is %s", ends, now)
	}
	var rows client.AuditRows
	s.CatchUp()
	s.Ask("audit/list", client.AuditList{Name: "call_succeeded", Call: r.Call}, &rows)
	if len(rows.Rows) != 1 || !strings.Contains(string(rows.Rows[0].Data), `"catalog_drift":"catalog","catalog_version":"`+now+`"`) {
		t.Errorf("%+v", rows.Rows)
	}
	s.turn = s.Prepare("ana").Turn
	if r := s.call("steady", `{}`); r.CatalogDrift != "" {
		t.Errorf("of a new turn the reply says %q", r.CatalogDrift)
	}
}
