// Package eventstest runs the tables that state the rules of a decider: given
// what happened, when a command comes, then these events happen or the command
// is refused. It lies below events/internal because only deciders have use of it.
package eventstest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Noon is the time of every given event.
var Noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// Principal is whose authority every given event is about.
const Principal = "ana"

// Equal compares events and states as the log keeps them: it does not tell an
// empty list from none.
var Equal = cmp.Options{
	cmp.Comparer(func(a, b redact.EventText) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

// Decider is a decider under test.
type Decider[S, C any] struct {
	Decide func(S, C) ([]events.Event, error)
	Evolve func(S, events.Recorded) S
}

// Case is one rule. With neither Then nor Fault nothing happens.
type Case[C any] struct {
	// Rule is the name of the test: a sentence that states the rule, with the
	// numbers of its requirements.
	Rule  string
	Given []events.Event
	When  C
	Then  []events.Event
	Fault fault.Kind
}

// Fold is the state after some events, each in a commit of its own: the n-th has
// sequence n, counted from 1.
func (d Decider[S, C]) Fold(list ...events.Event) S {
	var s S
	return d.Then(s, 0, list...)
}

// Then folds more events, each in a commit of its own, after sequence after.
func (d Decider[S, C]) Then(s S, after uint64, list ...events.Event) S {
	for i, e := range list {
		c := &events.Commit{Seq: after + uint64(i) + 1, Principal: Principal, Workspace: "default", Time: Noon, Events: []events.Event{e}}
		for r := range c.Recorded() {
			s = d.Evolve(s, r)
		}
	}
	return s
}

// Run runs the cases as parallel subtests.
func (d Decider[S, C]) Run(t *testing.T, cases []Case[C]) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Rule, func(t *testing.T) {
			t.Parallel()
			s := d.Fold(c.Given...)
			got, err := d.Decide(s, c.When)
			if kind := fault.KindOf(err); kind != c.Fault {
				t.Fatalf("refused with %q (%v), want %q", kind, err, c.Fault)
			}
			if diff := cmp.Diff(c.Then, got, Equal); diff != "" {
				t.Fatalf("events differ (-want +got):\n%s", diff)
			}
			for _, e := range got {
				if reflect.TypeOf(e).Kind() != reflect.Struct {
					t.Errorf("%s is a %T; events are values", e.EventName(), e)
				}
			}
			if again := d.Fold(c.Given...); !cmp.Equal(s, again, Equal, cmp.Exporter(func(reflect.Type) bool { return true })) {
				t.Error("deciding changed the state")
			}
		})
	}
}

// Named is a phase, by the events that lead to it, or a command of a matrix.
type Named[T any] struct {
	Name string
	Is   T
}

// Matrix compares what every command does in every phase with want: under each
// command a line for each outcome, with the phases that have it.
func (d Decider[S, C]) Matrix(t *testing.T, want string, phases []Named[[]events.Event], commands []Named[C]) {
	t.Helper()
	var got strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&got, "%s\n", c.Name)
		var outcomes []string
		by := map[string][]string{}
		for _, p := range phases {
			o := d.outcome(d.Fold(p.Is...), c.Is)
			if by[o] == nil {
				outcomes = append(outcomes, o)
			}
			by[o] = append(by[o], p.Name)
		}
		for _, o := range outcomes {
			fmt.Fprintf(&got, "  %s: %s\n", o, strings.Join(by[o], " "))
		}
	}
	if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); diff != "" {
		t.Errorf("the matrix differs (-want +got):\n%s\nit is now:\n%s", diff, got.String())
	}
}

// outcome is the names of the events, "-" for nothing, or "!" and the kind of
// the fault.
func (d Decider[S, C]) outcome(s S, cmd C) string {
	list, err := d.Decide(s, cmd)
	switch {
	case err != nil:
		return "!" + string(fault.KindOf(err))
	case len(list) == 0:
		return "-"
	}
	names := (&events.Commit{Events: list}).Names()
	return strings.Join(names, "+")
}
