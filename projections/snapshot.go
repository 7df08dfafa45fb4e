package projections

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// saved is what goes before the states in a snapshot of a set.
type saved struct {
	Events uint64
	Names  []string
}

// Save writes all projections as of one commit, and says which. Queries go on
// meanwhile; the fold waits.
func (s *Set) Save(w io.Writer) (seq uint64, err error) {
	s.folding.Lock()
	defer s.folding.Unlock()
	status := s.Status()
	if failure := (*Failure)(nil); errors.As(status.Err, &failure) {
		return 0, failure // it left one projection behind another
	}
	enc := gob.NewEncoder(w)
	head := saved{Events: status.Events}
	for _, p := range s.all {
		head.Names = append(head.Names, p.Name())
	}
	if err := enc.Encode(head); err != nil {
		return 0, err
	}
	for _, p := range s.all {
		if err := enc.Encode(p.State()); err != nil {
			return 0, fmt.Errorf("projections: save %s: %w", p.Name(), err)
		}
	}
	return status.Applied, nil
}

// Restore reads what Save wrote; install puts it in the place of what the set
// holds, before it runs, which then begins behind seq.
func (s *Set) Restore(r io.Reader, seq uint64) (install func(), err error) {
	dec := gob.NewDecoder(r)
	var head saved
	if err := dec.Decode(&head); err != nil {
		return nil, err
	}
	if len(head.Names) != len(s.all) {
		return nil, fmt.Errorf("projections: %d were saved, there are %d", len(head.Names), len(s.all))
	}
	states := make([]reflect.Value, len(s.all))
	for i, p := range s.all {
		if head.Names[i] != p.Name() {
			return nil, fmt.Errorf("projections: %s was saved in the place of %s", head.Names[i], p.Name())
		}
		state := reflect.New(reflect.TypeOf(p.State()).Elem())
		if err := dec.DecodeValue(state); err != nil {
			return nil, fmt.Errorf("projections: restore %s: %w", p.Name(), err)
		}
		states[i] = state.Elem()
	}
	return func() {
		s.shared.Lock()
		defer s.shared.Unlock()
		for i, p := range s.all {
			reflect.ValueOf(p.State()).Elem().Set(states[i])
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status.Applied, s.status.Events = seq, head.Events
	}, nil
}
