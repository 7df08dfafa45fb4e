package bus

import (
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
)

func TestKnownIsWhatTheTablesHaveAlsoBehindAGap(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	d := b.do(t, "s1", Meta{}, "first")
	if b.Known() != d.Seq || b.Head() != d.Seq {
		t.Fatalf("known %d, head %d, want %d", b.Known(), b.Head(), d.Seq)
	}
	// Somebody's commit is folded, and the one before it is still on its way.
	b.fold(&events.Commit{
		Seq: d.Seq + 2, Command: "x", Workspace: "default", Aggregate: events.AggregateID{Kind: events.KindSession, Key: "s2"},
		Time: time.Now(), Events: []events.Event{touched()},
	})
	if b.sessions.Get("default", "s2").Touched != 1 || b.Known() != d.Seq+2 || b.Head() != d.Seq {
		t.Errorf("state %+v, known %d, head %d", b.sessions.Get("default", "s2"), b.Known(), b.Head())
	}
}
