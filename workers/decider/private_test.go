package decider_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/decider"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// An attachment that offers something has its own connection to a server that may ask
// for it, on the yes that there is, as long as that is in force and no longer than
// the attachment is there.
func TestAnAttachmentHasAConnectionOfItsOwn_Decision3(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs", "other")
	r.Grant("ana", "mcp.roots:docs")
	alone := func(p *decider.Preparation) {
		p.Attachment = cores.Attachment{ID: "x-1", Offers: []string{"roots", "sampling"}}
	}
	session := r.Session("ana")
	key := connection.PrivateID(session, "docs", "x-1")
	own := func(server string) connection.State {
		return r.Model.Connections.Get(rig.Workspace, connection.PrivateID(session, server, "x-1"))
	}
	r.Prepare("ana", alone)
	if s := own("docs"); s.Phase != connection.None {
		t.Errorf("before a person has said yes it is %+v", s)
	}
	r.Connected("ana")
	turn := r.Prepare("ana", alone)
	if s := own("docs"); s.Phase != connection.Open || len(s.Offers) != 1 || s.Offers[0] != "roots" || s.Runtime != r.Runtime || len(s.Blocked) > 0 {
		t.Errorf("it is %+v", s)
	}
	if s := own("other"); s.Phase != connection.None {
		t.Errorf("a server that may not ask has one: %+v", s)
	}
	if pending := r.Pending(); len(pending) > 0 {
		t.Errorf("somebody is asked again: %+v", pending)
	}
	for server, want := range map[string]string{"docs": key, "other": connection.ID(session, "other")} {
		reply := r.Call("ana", turn.Turn, rig.Tool(t, turn, server, "echo").Name, `{"text":"hello"}`)
		if s := r.Model.Calls.Get(rig.Workspace, reply.Call); s.Connection != want || reply.Result == nil {
			t.Errorf("a call of %s runs on %s: %+v", server, s.Connection, reply)
		}
	}
	if again := r.Prepare("ana", alone); own("docs").Generation == 0 || again.CatalogID != turn.CatalogID {
		t.Error("it is opened again with each turn")
	}
	if r.Prepare("ana").CatalogID == turn.CatalogID {
		t.Error("who offers nothing has the turn of who does")
	}

	r.SetPolicy(events.Policy{OnChange: "flag"})
	r.Prepare("ana", alone)
	if s := own("docs"); s.Phase != connection.Closed {
		t.Errorf("under a policy that nobody has said yes under it is %s", s.Phase)
	}
	r.Connected("ana")
	r.Prepare("ana", alone)
	if s := own("docs"); s.Phase != connection.Open || len(r.Pending()) > 0 {
		t.Errorf("after another yes it is %s", s.Phase)
	}
	r.Decider.Leave(r.Context(), rig.Workspace, "x-1")
	if s := own("docs"); s.Phase != connection.Closed {
		t.Errorf("without its attachment it is %s", s.Phase)
	}
	if s := r.Connection("ana", "docs"); s.Phase != connection.Open {
		t.Errorf("the shared one is %s", s.Phase)
	}
	rig.Await(r, func(e events.ConnectionClosed) bool { return e.Reason == "attachment_ended" })
	r.Rebuilt()
}
