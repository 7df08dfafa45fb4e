package decider_test

import (
	"encoding/json"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

func TestInfoIsThatOfTheRuntimeOfTheHomeWhoeverIsAsked(t *testing.T) {
	t.Parallel()
	one := rig.New(t, rig.Options{Listen: true})
	peer := one.Peer()
	// of is the runtime that somebody speaks of.
	of := func(asked *rig.Rig) string {
		t.Helper()
		answer, err := asked.Answer("local", "bus/info", nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		var info client.BusInfo
		if err := json.Unmarshal(data, &info); err != nil {
			t.Fatal(err)
		}
		return info.Runtime
	}
	for range 3 {
		if a, b := of(one), of(peer); a != one.Runtime || b != one.Runtime {
			t.Errorf("the runtime %s is called %s, and %s by its worker", one.Runtime, a, b)
		}
	}
	one.Stop()
	for ctx := peer.Context(); of(peer) != peer.Runtime; {
		if ctx.Err() != nil {
			t.Fatal("a worker that is alone does not speak of itself")
		}
	}
}
