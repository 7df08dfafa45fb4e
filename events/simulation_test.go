package events_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/internal/eventstest"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
	"github.com/gatebus/gatebus/events/server"
	"github.com/gatebus/gatebus/events/session"
	"github.com/gatebus/gatebus/events/turn"
)

// In whatever order commands come: no call starts without the capabilities to
// connect and to call at that moment, an open connection of the generation that
// it names, and an approval where policy prompts; no call starts twice; no
// approval is spent twice; there is one outcome; no server is opened that nobody
// approved. The rules are those of watch.
func TestNoOrderOfCommandsBreaksTheRules_R49_R58_R60(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r, func(n int) int { return rapid.IntRange(0, n-1).Draw(r, "pick") })
		for range rapid.IntRange(0, 120).Draw(r, "steps") {
			w.step()
		}
		w.rebuilt(r)
	})
}

// Long runs reach what short ones do not.
func TestLongRunsBreakNoRule_R49_R58_R60(t *testing.T) {
	t.Parallel()
	started := 0
	for seed := range uint64(24) {
		w := newWorld(t, seeded(seed))
		for range 400 {
			w.step()
		}
		w.rebuilt(t)
		for _, k := range w.watch.calls {
			started += k.started
		}
	}
	// A world in which nothing ever starts would break no rule either.
	if started < 60 {
		t.Errorf("only %d calls started", started)
	}
}

// printed is a state in full.
func printed(state any) string { return fmt.Sprintf("%+v", state) }

// seeded picks by splitmix64, the same on every machine.
func seeded(seed uint64) func(n int) int {
	return func(n int) int {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return int((z ^ z>>31) % uint64(n))
	}
}

// words are what strings in random commands and events are made of: what the
// deciders give a meaning to, and what they do not.
var words = []string{
	"", "x", "docs", "a-1", "allow", "deny", "once", "session", "auto", "prompt", "block", "flag", "none", "gateway", "workspace",
	"host", "operator", "mcp.connect", "mcp.tool", "mcp.connect:docs", "mcp.call:docs", "capability", "approval", "requested",
	"waiting", "approved", "opening", "open", "denied", "failed", "closed", "lost", "allowed", "queued", "started", "done",
	"bound", "ended", "2026-11-29T12:00:00Z", "2027-01-01T00:00:00Z", "not a time", "é世🚌",
}

var (
	textType = reflect.TypeFor[redact.EventText]()
	timeType = reflect.TypeFor[time.Time]()
)

// draw makes any value of a type.
func draw(r *rapid.T, typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	word := func() string { return rapid.SampledFrom(words).Draw(r, "word") }
	switch {
	case typ == textType:
		v.Set(reflect.ValueOf(redact.Name(word())))
	case typ == timeType:
		if !rapid.Bool().Draw(r, "zero") {
			v.Set(reflect.ValueOf(eventstest.Noon.Add(time.Duration(rapid.IntRange(-90000, 90000).Draw(r, "seconds")) * time.Second)))
		}
	case typ.Kind() == reflect.String:
		v.SetString(word())
	case typ.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(r, "bool"))
	case typ.Kind() == reflect.Uint32 || typ.Kind() == reflect.Uint64:
		v.SetUint(uint64(rapid.Uint32Range(0, 3).Draw(r, "number")))
	case typ.Kind() == reflect.Int32 || typ.Kind() == reflect.Int64:
		v.SetInt(int64(rapid.Int32().Draw(r, "number")))
	case typ.Kind() == reflect.Pointer:
		if rapid.Bool().Draw(r, "nil") {
			break
		}
		v.Set(reflect.New(typ.Elem()))
		v.Elem().Set(draw(r, typ.Elem()))
	case typ.Kind() == reflect.Slice:
		for range rapid.IntRange(0, 2).Draw(r, "length") {
			v.Set(reflect.Append(v, draw(r, typ.Elem())))
		}
	case typ.Kind() == reflect.Map:
		if rapid.Bool().Draw(r, "nil") {
			break
		}
		v.Set(reflect.MakeMap(typ))
		for range rapid.IntRange(0, 2).Draw(r, "length") {
			v.SetMapIndex(draw(r, typ.Key()), draw(r, typ.Elem()))
		}
	case typ.Kind() == reflect.Struct:
		for i := range typ.NumField() {
			v.Field(i).Set(draw(r, typ.Field(i).Type))
		}
	default:
		r.Fatalf("no value for a %s", typ)
	}
	return v
}

// someEvents has one event of each type of the table.
var someEvents = []events.Event{
	events.ApprovalRequested{}, events.ApprovalDecided{}, events.ApprovalExpired{}, events.CallRequested{}, events.CallBlocked{},
	events.CallQueued{}, events.CallAuthorized{}, events.CallStarted{}, events.CallSucceeded{}, events.CallFailed{},
	events.CallIndeterminate{}, events.CallLateResult{}, events.ConnectRequested{}, events.ServerDenied{}, events.ConnectionClaimed{},
	events.ConnectionOpened{}, events.ToolsDiscovered{}, events.ServerFailed{}, events.DiscoveryFailed{}, events.ConnectionClosed{}, events.ConnectionLost{},
	events.StderrCaptured{}, events.UrlDecision{}, events.DeclarationLoaded{}, events.DeclarationIgnored{}, events.DeclarationInvalid{},
	events.DeclarationWarning{}, events.CoreRevisionLoaded{}, events.CoreLoadFailed{}, events.CapabilityGranted{},
	events.CapabilityRevoked{}, events.HostEnrolled{}, events.TokenIssued{}, events.HostRevoked{}, events.PolicySet{},
	events.RuntimeBooted{}, events.RuntimeClosed{}, events.CheckpointSigned{}, events.SessionStarted{}, events.SessionEnded{}, events.CatalogPublished{},
	events.TurnRequested{}, events.CapabilityRejected{}, events.TurnBound{}, events.LimitsRejected{}, events.TurnFailed{}, events.TurnEnded{},
	events.ServerInstalled{}, events.ServerUpdated{}, events.ServerPolicyChanged{}, events.ServerUninstalled{}, events.SecretStored{},
	events.SecretDeleted{}, events.SecretDeleteFailed{}, events.SecretsCollected{}, events.SecretsGcFailed{}, events.KeystoreSelected{},
	events.ServerStatusChanged{},
}

// A fold takes any event in any state, also one that no decider would make, and
// a decider any command in what comes of it: the first never fails, the second
// answers with events or with a fault, and both leave the state they were given.
func TestFoldAndDecideNeverPanic_R208(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, e := range someEvents {
		names[e.EventName()] = true
	}
	for _, n := range events.Names() {
		if !names[n] {
			t.Errorf("%s is not among the events that are folded here", n)
		}
	}
	t.Run("host", robust[host.State, host.Command](host.Decide, host.Evolve, host.Enrol{}, host.IssueToken{}, host.Revoke{}))
	t.Run("grant", robust[grant.State, grant.Command](grant.Decide, grant.Evolve, grant.Grant{}, grant.Revoke{}))
	t.Run("policy", robust[policy.State, policy.Command](policy.Decide, policy.Evolve, policy.Set{}))
	t.Run("core", robust[core.State, core.Command](core.Decide, core.Evolve, core.Load{}))
	t.Run("session", robust[session.State, session.Command](session.Decide, session.Evolve, session.Start{}, session.Publish{}, session.End{}))
	t.Run("connection", robust[connection.State, connection.Command](connection.Decide, connection.Evolve,
		connection.Request{}, connection.Gate{}, connection.Answer{}, connection.Expire{}, connection.Withdraw{}, connection.Claim{}, connection.Opened{},
		connection.Discovered{}, connection.Undiscovered{}, connection.Fail{}, connection.Close{}, connection.Captured{}, connection.Reap{}))
	t.Run("turn", robust[turn.State, turn.Command](turn.Decide, turn.Evolve, turn.Bind{}, turn.Fail{}, turn.End{}))
	t.Run("call", robust[call.State, call.Command](call.Decide, call.Evolve,
		call.Request{}, call.Answer{}, call.Expire{}, call.Withdraw{}, call.Start{}, call.Abandon{}, call.Finish{}, call.Late{}, call.Reap{}))
	t.Run("runtime", robust[runtime.State, runtime.Command](runtime.Decide, runtime.Evolve, runtime.Boot{}, runtime.Close{}, runtime.Sign{}))
	t.Run("server", robust[server.State, server.Command](server.Decide, server.Evolve,
		server.Install{}, server.SetPolicy{}, server.Uninstall{}, server.StoreSecret{}, server.DropSecret{}, server.Collect{}, server.FailCollect{},
		server.SelectKeystore{}, server.Observe{}, server.Boot{}))
}

func robust[S, C any](decide func(S, C) ([]events.Event, error), evolve func(S, events.Recorded) S, commands ...C) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(r *rapid.T) {
			var s S
			for seq := range rapid.IntRange(0, 12).Draw(r, "events") {
				e := rapid.SampledFrom(someEvents).Draw(r, "event")
				e = draw(r, reflect.TypeOf(e)).Interface().(events.Event)
				c := &events.Commit{Seq: uint64(seq) + 1, Principal: "ana", Time: eventstest.Noon, Events: []events.Event{e}}
				for rec := range c.Recorded() {
					before, old := printed(s), s
					s = evolve(old, rec)
					if printed(old) != before {
						r.Fatalf("folding %s changed the state before it", e.EventName())
					}
				}
			}
			var nothing C
			for _, cmd := range append(commands, nothing) {
				if any(cmd) != nil {
					cmd = draw(r, reflect.TypeOf(any(cmd))).Interface().(C)
				}
				before := printed(s)
				list, err := decide(s, cmd)
				if printed(s) != before {
					r.Fatalf("%T changed the state it was decided on", cmd)
				}
				if err != nil && len(list) > 0 {
					r.Fatalf("%T gives events and an error: %v, %v", cmd, list, err)
				}
				for _, e := range list {
					if e == nil || reflect.TypeOf(e).Kind() != reflect.Struct {
						r.Fatalf("%T gives a %T; events are values", cmd, e)
					}
				}
			}
		})
	}
}
