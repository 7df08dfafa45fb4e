package events

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gatebus/gatebus/events/internal/eventspb"
)

// ErrUnknown says that the log holds an event this program does not know. A
// reader stops there: what it cannot read it must not skip (decision 13).
var ErrUnknown = errors.New("the log holds an event that this version does not know: upgrade gatebus")

// binding is one row of the closed table.
type binding struct {
	name    string
	version uint32
	kinds   []Kind
	decode  func([]byte) (Event, error)
}

// bind makes a row from the generated conversion of a message to its event.
func bind[M any, P interface {
	*M
	proto.Message
}, E Event](name string, version uint32, from func(P) E, kinds ...Kind) binding {
	return binding{name, version, kinds, func(data []byte) (Event, error) {
		m := P(new(M))
		if err := proto.Unmarshal(data, m); err != nil {
			return nil, err
		}
		if hasUnknown(m.ProtoReflect()) {
			return nil, ErrUnknown
		}
		return from(m), nil
	}}
}

// hasUnknown reports whether a message, or one inside it, has a field that this
// program does not know.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Message() == nil:
		case f.IsList():
			list := m.Get(f).List()
			for i := range list.Len() {
				if hasUnknown(list.Get(i).Message()) {
					return true
				}
			}
		case m.Has(f) && hasUnknown(m.Get(f).Message()):
			return true
		}
	}
	return false
}

var byName = func() map[string]binding {
	m := make(map[string]binding, len(registry))
	for _, b := range registry {
		m[b.name] = b
	}
	return m
}()

// Names are the wire names of the closed table, sorted.
func Names() []string {
	names := make([]string, 0, len(registry))
	for _, b := range registry {
		names = append(names, b.name)
	}
	slices.Sort(names)
	return names
}

// Encode is the body of the commit's message: a gatebus.v1.Commit. It refuses what
// Decode would not read: a commit without events or aggregate, an event that the
// aggregate's boundary does not have, and text that is no UTF-8.
func (c *Commit) Encode() ([]byte, error) { return c.AppendTo(nil) }

// AppendTo appends what Encode gives.
func (c *Commit) AppendTo(b []byte) ([]byte, error) {
	aggregate := c.Aggregate.String()
	if _, err := ParseAggregateID(aggregate); err != nil {
		return nil, err
	}
	if len(c.Events) == 0 {
		return nil, fmt.Errorf("events: a commit of %s without events", c.Aggregate)
	}
	w := wire{b: b}
	w.text(1, c.Command)
	w.text(2, c.Correlation)
	w.text(3, c.Actor)
	w.text(4, c.Principal)
	w.text(5, c.Workspace)
	w.text(6, aggregate)
	w.varint(7, uint64(c.Time.UnixNano()))
	scope := w.begin(8)
	w.text(1, c.Scope.Session)
	w.text(2, c.Scope.Turn)
	w.text(3, c.Scope.Connection)
	w.text(4, c.Scope.Call)
	w.text(5, c.Scope.Server)
	w.text(6, c.Scope.Core)
	w.end(scope)
	if w.err != nil {
		return nil, fmt.Errorf("events: encode commit: %w", w.err)
	}
	for _, e := range c.Events {
		name := e.EventName()
		if !slices.Contains(byName[name].kinds, c.Aggregate.Kind) {
			return nil, fmt.Errorf("events: %s is no event of a %s", name, c.Aggregate.Kind)
		}
		entry := w.begin(9)
		w.text(1, name)
		w.number(2, e.EventVersion())
		before := len(w.b)
		data := w.begin(3)
		if e.wire(&w); len(w.b) > data {
			w.end(data)
		} else { // all of it is at its default
			w.b = w.b[:before]
		}
		w.end(entry)
		if w.err != nil {
			return nil, fmt.Errorf("events: encode %s: %w", name, w.err)
		}
	}
	return w.b, nil
}

// Decode reads the body of the message with the given sequence. An event name,
// version or field that is not known, or an event on a kind of aggregate that
// does not have it, gives ErrUnknown.
func Decode(seq uint64, data []byte) (*Commit, error) {
	var m eventspb.Commit
	if err := proto.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("events: decode commit %d: %w", seq, err)
	}
	if hasUnknown(m.ProtoReflect()) {
		return nil, fmt.Errorf("events: commit %d: %w", seq, ErrUnknown)
	}
	if len(m.GetEntries()) == 0 {
		return nil, fmt.Errorf("events: commit %d has no events", seq)
	}
	id, err := ParseAggregateID(m.GetAggregate())
	if err != nil {
		return nil, fmt.Errorf("events: commit %d: %w", seq, err)
	}
	s := m.GetScope()
	c := &Commit{
		Seq: seq, Command: m.GetCommand(), Correlation: m.GetCorrelation(), Actor: m.GetActor(),
		Principal: m.GetPrincipal(), Workspace: m.GetWorkspace(), Aggregate: id,
		Time: time.Unix(0, m.GetTime()).UTC(),
		Scope: Scope{
			Session: s.GetSession(), Turn: s.GetTurn(), Connection: s.GetConnection(),
			Call: s.GetCall(), Server: s.GetServer(), Core: s.GetCore(),
		},
	}
	for i, entry := range m.GetEntries() {
		b, ok := byName[entry.GetName()]
		if !ok || b.version != entry.GetVersion() || !slices.Contains(b.kinds, id.Kind) {
			return nil, fmt.Errorf("events: commit %d: event %d is %s version %d of a %s: %w", seq, i, entry.GetName(), entry.GetVersion(), id.Kind, ErrUnknown)
		}
		e, err := b.decode(entry.GetData())
		if err != nil {
			return nil, fmt.Errorf("events: commit %d: decode %s: %w", seq, entry.GetName(), err)
		}
		c.Events = append(c.Events, e)
	}
	return c, nil
}
