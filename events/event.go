// Package events is what can happen in Gatebus: the closed table of events, the
// commit that carries the events of one decision, and their encoding. Packages
// below it hold the rules that decide which events happen (deciders) and the
// pure parts those rules are made of. Nothing here does I/O, reads a clock or
// draws a random number: time, ids and facts arrive as data.
//
// Event structs, their registry and their JSON Schemas are generated from
// schemas/gatebus/v1 (decision 14); an event outside the table does not compile.
package events

import (
	"fmt"
	"iter"
	"strings"
	"time"
)

//go:generate sh -c "cd ../schemas/tools && go run ./generate"

// Event is a fact of the closed table. The interface is sealed: only the
// generated structs of this package implement it, as values, never as pointers.
type Event interface {
	// EventName is the wire name, for example "call_started".
	EventName() string
	// EventVersion is the version of the payload.
	EventVersion() uint32

	// wire and json write the payload.
	wire(*wire)
	json(*jsonText)
}

// Kind is a kind of aggregate.
type Kind string

// The kinds of aggregate. Each has a decider in a package of the same name.
const (
	KindHost       Kind = "host"
	KindGrant      Kind = "grant"
	KindPolicy     Kind = "policy"
	KindCore       Kind = "core"
	KindServer     Kind = "server"
	KindSession    Kind = "session"
	KindConnection Kind = "connection"
	KindTurn       Kind = "turn"
	KindCall       Kind = "call"
	KindRuntime    Kind = "runtime"
)

// AggregateID names one aggregate, the unit of consistency.
type AggregateID struct {
	Kind Kind
	Key  string
}

// String is kind/key.
func (id AggregateID) String() string { return string(id.Kind) + "/" + id.Key }

// ParseAggregateID is the inverse of AggregateID.String.
func ParseAggregateID(s string) (AggregateID, error) {
	kind, key, ok := strings.Cut(s, "/")
	if !ok || kind == "" || key == "" {
		return AggregateID{}, fmt.Errorf("events: %q is no aggregate id", s)
	}
	return AggregateID{Kind(kind), key}, nil
}

// Scope names what a commit is about; fields are empty where they do not apply.
type Scope struct {
	Session, Turn, Connection, Call, Server, Core string
}

// Commit is one decision: the events of one command on one aggregate, appended
// as one message (decision 12), with the envelope of R211.
type Commit struct {
	// Seq is the sequence in the log; 0 until appended.
	Seq uint64
	// Command is the id of the command, Correlation that of its flow.
	Command, Correlation string
	// Actor acted, Principal is whose authority it is about; they differ where an
	// operator acts for somebody.
	Actor, Principal string
	Workspace        string
	Aggregate        AggregateID
	// Time is the command's time.
	Time   time.Time
	Scope  Scope
	Events []Event
}

// Recorded is one event as read back, with the commit it is part of.
type Recorded struct {
	*Commit
	// Index is the place of the event in its commit.
	Index int
	Event Event
}

// Recorded yields the events of the commit in order.
func (c *Commit) Recorded() iter.Seq[Recorded] {
	return func(yield func(Recorded) bool) {
		for i, e := range c.Events {
			if !yield(Recorded{Commit: c, Index: i, Event: e}) {
				return
			}
		}
	}
}

// Names are the wire names of the commit's events, in order.
func (c *Commit) Names() []string {
	names := make([]string, len(c.Events))
	for i, e := range c.Events {
		names[i] = e.EventName()
	}
	return names
}

// JSON is the JSON form of an event, as protojson makes it: the field names of the
// protobuf, defaults included, compact (decision 14). The error is that of text
// that is no UTF-8.
func JSON(e Event) ([]byte, error) { return AppendJSON(nil, e) }

// AppendJSON appends what JSON gives.
func AppendJSON(b []byte, e Event) ([]byte, error) {
	j := jsonText{b: b}
	e.json(&j)
	if j.err != nil {
		return nil, fmt.Errorf("events: JSON of %s: %w", e.EventName(), j.err)
	}
	return j.b, nil
}
