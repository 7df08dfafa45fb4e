package connector_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/connector"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// beside is a connector that is not run.
func beside(r *rig.Rig) *connector.Connector {
	return connector.New(connector.Config{
		Bus: r.Bus, Model: r.Model, Cores: r.Cores, Pool: r.Pool, Home: r.Home, Serves: rig.Workspace, Workspace: r.Root,
		Runtime: r.Runtime, Alive: r.Member.Alive, Valid: r.Member.Valid, Log: slog.New(slog.DiscardHandler),
	})
}

// The log had no leader when the end of a connection was to be recorded: it is open
// there, and at nobody.
func TestConnectionThatNobodyHoldsIsClosedInTheLog(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", rig.Command(fakes.Build(t, "echo")))
	r.Connected("ana")
	for key := range r.Pool.All() {
		defer r.Pool.Remove(key).Close(r.Context()) // which reports its end only now
	}
	r.AwaitConnection("ana", "docs", func(s connection.State) bool { return s.Phase == connection.Closed })
	if turn := r.Prepare("ana"); len(turn.Tools) == 0 {
		t.Errorf("who asks again has %+v", turn)
	}
}

// The answer to a claim was lost: the connection is being opened, by nobody.
func TestOpeningThatNobodyWorksOnIsClosedInTheLog(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", rig.Command(fakes.Build(t, "echo")))
	r.Prepare("ana")
	pending := r.Pending()
	r.Stop()
	id := connection.ID(r.Session("ana"), "docs")
	do := func(cmd connection.Command) {
		t.Helper()
		if _, err := r.Model.Connections.Dispatch(r.Context(), rig.Workspace, id, bus.Meta{Principal: "ana"}, cmd); err != nil {
			t.Fatal(err)
		}
	}
	do(connection.Answer{Authority: r.Model.Authority(rig.Workspace, "ana"), Approval: pending[0].ID, Allow: true, By: "local", At: time.Now()})
	do(connection.Claim{Runtime: r.Runtime})
	c := beside(r)
	idle := c.Mend(r.Context(), nil)
	if s := r.Connection("ana", "docs"); s.Phase != connection.Opening || len(idle) != 1 {
		t.Fatalf("after one look it is %s, and %v is idle: it may be on its way", s.Phase, idle)
	}
	c.Mend(r.Context(), idle)
	if s := r.Connection("ana", "docs"); s.Phase != connection.Closed {
		t.Errorf("it is %s", s.Phase)
	}
}

// The jobs had no leader when a connection was asked for.
func TestConnectionWhoseJobWasLostHasAnotherOne(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", rig.Command(fakes.Build(t, "echo")))
	r.Session("ana")
	r.Stop()
	r.Request("ana", "docs", time.Now())
	c := beside(r)
	c.Mend(r.Context(), c.Mend(r.Context(), nil))
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	got := ""
	if err := r.Bus.ConsumeJobs(ctx, "connect", 1, func(_ context.Context, _, id string) error {
		got = id
		cancel()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if id := connection.ID(r.Session("ana"), "docs"); !strings.HasPrefix(got, id+"@") {
		t.Errorf("the job is %q, want one of %s", got, id)
	}
}

// A bus can be shared by homes with a workspace each: what the runtime of another one
// has claimed is not ours to judge.
func TestConnectionsOfOtherHomesAreLeftAlone_Decision6(t *testing.T) {
	t.Parallel()
	r := declared(t, "docs", rig.Command(fakes.Build(t, "echo")))
	d, _ := r.Cores.Server("docs")
	id, now := connection.ID("s-other", "docs"), time.Now()
	do := func(cmd connection.Command) (s connection.State) {
		t.Helper()
		done, err := r.Model.Connections.Dispatch(r.Context(), "other", id, bus.Meta{Principal: "ana"}, cmd)
		if err != nil {
			t.Fatal(err)
		}
		return done.State
	}
	do(d.Request(r.Model, rig.Workspace, "ana", "s-other", now))
	do(connection.Gate{Approval: "a-other", Interactive: true, At: now})
	do(connection.Answer{Authority: r.Model.Authority(rig.Workspace, "ana"), Approval: "a-other", Allow: true, By: "local", At: now})
	generation := do(connection.Claim{Runtime: "r-other"}).Generation
	r.Connected("ana") // the connector has seen all that came before
	beside(r).Mend(r.Context(), beside(r).Mend(r.Context(), nil))
	if s := r.Model.Connections.Get("other", id); s.Phase != connection.Opening || s.Generation != generation {
		t.Errorf("it is %s in generation %d, want that it is being opened in %d", s.Phase, s.Generation, generation)
	}
}

// Somebody else installed the server again while it waited for a slot: a connection in the
// name of the first one would outlive the authority of the second (C1, C12).
func TestNobodyIsConnectedInTheNameOfWhoInstalledTheServerBefore(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.Stop()
	by := func(who string) {
		r.Install("docs", fakes.Build(t, "echo"), nil, func(i *events.Installation) { i.By = who })
	}
	by("ops")
	id := connection.ID("", "docs")
	d, _ := r.Cores.Server("docs")
	request := d.Request(r.Model, rig.Workspace, "", "", time.Now())
	request.Authority.Capabilities = []authority.Granted{{Capability: connection.Capability("docs")}}
	for _, cmd := range []connection.Command{request, connection.Gate{At: time.Now()}} {
		if _, err := r.Model.Connections.Dispatch(r.Context(), rig.Workspace, id, bus.Meta{Principal: "ops"}, cmd); err != nil {
			t.Fatal(err)
		}
	}
	before := r.Model.Connections.Get(rig.Workspace, id)
	if before.Phase != connection.Approved {
		t.Fatalf("it is %+v", before)
	}
	by(bus.Local)
	key, err := beside(r).Claim(r.Context(), rig.Workspace, id, before)
	if err != nil || key.Connection != "" {
		t.Errorf("it is being opened: %v, %v", key, err)
	}
	// Who supervises it asks for it in the right name.
	if s := r.Model.Connections.Get(rig.Workspace, id); s.Phase != connection.Closed || !s.RetryAfter.IsZero() {
		t.Errorf("%s has it as %s", s.Principal, s.Phase)
	}
}
