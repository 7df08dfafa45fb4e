package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/internal/bubble"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
)

// The model of these tests is small: a session is opened, touched any number of
// times and ended; a grant is given and taken; a call starts when its facts say
// that it may.

type sessionState struct {
	Label   string
	Touched int
	Ended   time.Time
}

type sessionDo string // "open LABEL", "touch", "end"

var errNoSession = fault.New("session", fault.NotFound, redact.Static("no such session"))

var sessionRules = Decider[sessionState, sessionDo]{
	Kind: events.KindSession,
	Decide: func(s sessionState, do sessionDo) ([]events.Event, error) {
		switch do {
		case "touch":
			return []events.Event{events.SessionStarted{Label: s.Label, Reason: "touch"}}, nil
		case "end":
			if s.Label == "" {
				return nil, errNoSession
			}
			return []events.Event{events.SessionEnded{Reason: "end"}}, nil
		}
		if s.Label != "" {
			return nil, nil
		}
		return []events.Event{events.SessionStarted{Label: string(do), Reason: "open"}}, nil
	},
	Evolve: func(s sessionState, r events.Recorded) sessionState {
		switch e := r.Event.(type) {
		case events.SessionStarted:
			s.Label = e.Label
			if e.Reason == "touch" {
				s.Touched++
			}
		case events.SessionEnded:
			s.Ended = r.Time
		}
		return s
	},
	Ended: func(s sessionState) (time.Time, bool) { return s.Ended, !s.Ended.IsZero() },
}

type grantDo bool // give or take

var grantRules = Decider[bool, grantDo]{
	Kind: events.KindGrant,
	Decide: func(has bool, give grantDo) ([]events.Event, error) {
		switch {
		case has == bool(give):
			return nil, nil
		case bool(give):
			return []events.Event{events.CapabilityGranted{Capability: "mcp.call:*"}}, nil
		}
		return []events.Event{events.CapabilityRevoked{Capability: "mcp.call:*"}}, nil
	},
	Evolve: func(_ bool, r events.Recorded) bool {
		_, give := r.Event.(events.CapabilityGranted)
		return give
	},
}

// call counts its starts; a command carries whether the principal may.
type callDo struct {
	may        bool
	generation uint32
}

var errMayNot = errors.New("the principal may not")

var callRules = Decider[int, callDo]{
	Kind: events.KindCall,
	Decide: func(starts int, do callDo) ([]events.Event, error) {
		switch {
		case starts > 0:
			return nil, nil
		case !do.may:
			return nil, errMayNot
		}
		return []events.Event{events.CallStarted{Generation: do.generation}}, nil
	},
	Evolve: func(starts int, _ events.Recorded) int { return starts + 1 },
}

var connectionRules = Decider[uint32, string]{
	Kind: events.KindConnection,
	Decide: func(_ uint32, runtime string) ([]events.Event, error) {
		return []events.Event{events.ConnectionClaimed{Runtime: runtime}}, nil
	},
	Evolve: func(_ uint32, r events.Recorded) uint32 { return uint32(r.Seq) },
}

// testBus is a bus with that model.
type testBus struct {
	*Bus
	sessions    *Table[sessionState, sessionDo]
	grants      *Table[bool, grantDo]
	calls       *Table[int, callDo]
	connections *Table[uint32, string]
	runtimes    *Table[runtime.State, runtime.Command]
}

// open opens a bus, loads it and closes it when the test ends.
func open(t testing.TB, opts Options) *testBus {
	t.Helper()
	if opts.Home == "" {
		opts.Home = t.TempDir()
	}
	b, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	t.Cleanup(func() {
		shut(t, b)
		bubble.Sweep(opts.Home)
	})
	tb := register(b)
	if err := b.Load(context.Background()); err != nil {
		t.Fatalf("%v (%v)", err, cause(err))
	}
	return tb
}

func register(b *Bus) *testBus {
	return &testBus{
		b, Register(b, sessionRules), Register(b, grantRules), Register(b, callRules), Register(b, connectionRules),
		Register(b, Decider[runtime.State, runtime.Command]{Kind: events.KindRuntime, Decide: runtime.Decide, Evolve: runtime.Evolve}),
	}
}

func shut(t testing.TB, b *Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

// do dispatches to a session and fails the test when that fails.
func (b *testBus) do(t testing.TB, key string, m Meta, do sessionDo) Decided[sessionState] {
	t.Helper()
	d, err := b.sessions.Dispatch(context.Background(), "default", key, m, do)
	if err != nil {
		t.Fatalf("%s %s: %v (%v)", key, do, err, cause(err))
	}
	return d
}

// commits is the whole log.
func commits(t testing.TB, b *Bus) []*events.Commit {
	t.Helper()
	var all []*events.Commit
	for c, err := range b.Read(context.Background(), 0) {
		if err != nil {
			t.Fatalf("%v (%v)", err, cause(err))
		}
		all = append(all, c)
	}
	return all
}

func cause(err error) error {
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		return f.Cause().Reveal()
	}
	return nil
}

func wantKind(t testing.TB, err error, want fault.Kind) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Fatalf("error %v (%v), want kind %s", err, cause(err), want)
	}
}
