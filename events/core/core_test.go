package core_test

import (
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/core"
	. "github.com/gatebus/gatebus/events/internal/eventstest"
)

var decider = Decider[core.State, core.Command]{Decide: core.Decide, Evolve: core.Evolve}

func TestCoreRules(t *testing.T) {
	t.Parallel()
	loaded := events.DeclarationLoaded{Revision: "r1", Path: "docs.yaml", Server: "docs", Fingerprint: "f1"}
	ignored := events.DeclarationIgnored{Revision: "r1", Path: "old.yaml", Server: "old", Reason: "disabled"}
	warning := events.DeclarationWarning{Revision: "r1", Path: "docs.yaml", Code: "literal_secret"}
	invalid := []events.DeclarationInvalid{
		{Revision: "r2", Path: "a.yaml", Code: "unknown_field"}, {Revision: "r2", Path: "b.yaml", Code: "invalid_yaml"},
	}
	live := events.CoreRevisionLoaded{Revision: "r1", Declarations: 1, Digest: "d1"}
	failed := events.CoreLoadFailed{Revision: "r2", Code: "core_load_failed", Paths: []string{"a.yaml", "b.yaml"}, Digest: "p2"}
	good := core.Load{
		Revision: "r1", Digest: "d1", Loaded: []events.DeclarationLoaded{loaded},
		Ignored: []events.DeclarationIgnored{ignored}, Warnings: []events.DeclarationWarning{warning},
	}
	bad := core.Load{Revision: "r2", Invalid: invalid, Code: "core_load_failed", Problems: "p2"}
	decider.Run(t, []Case[core.Command]{
		{
			Rule: "a good revision becomes live with all of its declarations (R2, R7, R10, R78)",
			When: good, Then: []events.Event{loaded, ignored, warning, live},
		},
		{Rule: "the live revision is not loaded again", Given: []events.Event{live}, When: good},
		{
			Rule: "edits outside of git change the digest only (decision 5)", Given: []events.Event{live},
			When: core.Load{Revision: "r1", Digest: "d2"},
			Then: []events.Event{events.CoreRevisionLoaded{Revision: "r1", Digest: "d2"}},
		},
		{
			Rule: "a core without declarations is live (R7)", When: core.Load{Revision: "r0", Digest: "d0"},
			Then: []events.Event{events.CoreRevisionLoaded{Revision: "r0", Digest: "d0"}},
		},
		{
			Rule: "one bad file keeps the revision from becoming live, and every bad file is named (R12, R13)", Given: []events.Event{live},
			When: bad, Then: []events.Event{invalid[0], invalid[1], failed},
		},
		{
			Rule: "a core that fails as a whole names no file", When: core.Load{Revision: "r2", Code: "declaration_root_not_dir", Problems: "p"},
			Then: []events.Event{events.CoreLoadFailed{Revision: "r2", Code: "declaration_root_not_dir", Digest: "p"}},
		},
		{
			Rule: "a bad file alone is enough to fail (R13)", When: core.Load{Revision: "r2", Digest: "d2", Invalid: invalid[:1]},
			Then: []events.Event{invalid[0], events.CoreLoadFailed{Revision: "r2", Paths: []string{"a.yaml"}}},
		},
		{Rule: "the same failure is recorded once", Given: []events.Event{live, failed}, When: bad},
		{
			Rule: "another failure of the same revision is recorded", Given: []events.Event{failed},
			When: core.Load{Revision: "r2", Code: "core_load_failed", Problems: "p3"},
			Then: []events.Event{events.CoreLoadFailed{Revision: "r2", Code: "core_load_failed", Digest: "p3"}},
		},
		{
			Rule: "the live revision is loaded again after a failure, so that its end is seen", Given: []events.Event{live, failed},
			When: good, Then: []events.Event{loaded, ignored, warning, live},
		},
	})
}

func TestAFailedLoadKeepsThePreviousRevision_R13(t *testing.T) {
	t.Parallel()
	s := decider.Fold(
		events.CoreRevisionLoaded{Revision: "r1", Digest: "d1"},
		events.DeclarationInvalid{Revision: "r2"}, events.CoreLoadFailed{Revision: "r2", Digest: "p2"},
	)
	if want := (core.State{Revision: "r1", Digest: "d1", Failed: "r2 p2", Seq: 3}); s != want {
		t.Errorf("state %+v, want %+v", s, want)
	}
	s = decider.Then(s, 3, events.CoreRevisionLoaded{Revision: "r3", Digest: "d3"})
	if want := (core.State{Revision: "r3", Digest: "d3", Seq: 4}); s != want {
		t.Errorf("state %+v, want %+v", s, want)
	}
}
