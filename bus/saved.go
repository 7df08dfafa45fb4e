package bus

import (
	"encoding/gob"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"
)

// saveChunk is how many rows are taken at a time, under the lock of the table.
const saveChunk = 256

// savedTable is what a snapshot holds of a table before its rows.
type savedTable struct {
	Ended []Address
	Now   time.Time
	Gone  []Address // oldest first
}

// savedRow is one aggregate in a snapshot. The rows come in pieces; an empty one
// is the last.
type savedRow[S any] struct {
	Address Address
	Row     row[S]
}

// saving is a table at the moment when a snapshot began.
type saving[S any] struct {
	savedTable
	before []savedRow[S] // what has changed since, as it was
}

// beginSave notes where the table is. It does not take long: rows are copied when
// they are written, or before they change.
func (t *Table[S, C]) beginSave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch++
	t.saving = &saving[S]{savedTable: savedTable{
		Ended: slices.Clip(t.ended), Now: t.now, Gone: slices.Clip(t.gone.order),
	}}
}

// endSave lets go of what is not written, when a snapshot fails.
func (t *Table[S, C]) endSave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saving = nil
}

// preserve keeps a row as it is for the snapshot that is being written, before it
// changes or leaves. The lock is held.
func (t *Table[S, C]) preserve(a Address, r *row[S]) {
	if t.saving != nil && r.epoch != t.epoch {
		t.saving.before = append(t.saving.before, t.copyRow(a, r))
	}
}

// copyRow takes a row for a snapshot, once. States are never changed in place.
func (t *Table[S, C]) copyRow(a Address, r *row[S]) savedRow[S] {
	r.epoch = t.epoch
	return savedRow[S]{a, row[S]{State: r.State, Seq: r.Seq, Commands: slices.Clone(r.Commands)}}
}

// save writes the table as it was at beginSave.
func (t *Table[S, C]) save(enc *gob.Encoder) error {
	t.mu.Lock()
	saving := t.saving
	t.mu.Unlock()
	if err := enc.Encode(saving.savedTable); err != nil {
		return err
	}
	// What is born meanwhile may or may not come up; it is of this epoch already.
	next, stop := iter.Pull2(maps.All(t.rows))
	defer stop()
	chunk := make([]savedRow[S], 0, saveChunk)
	for more := true; more; {
		chunk = chunk[:0]
		t.mu.Lock()
		for len(chunk) < saveChunk && more {
			var a Address
			var r *row[S]
			if a, r, more = next(); more && r.epoch != t.epoch {
				chunk = append(chunk, t.copyRow(a, r))
			}
		}
		if !more {
			t.saving = nil
		}
		t.mu.Unlock()
		if len(chunk) > 0 {
			if err := enc.Encode(chunk); err != nil {
				return err
			}
		}
	}
	for chunk := range slices.Chunk(saving.before, saveChunk) {
		if err := enc.Encode(chunk); err != nil {
			return err
		}
	}
	return enc.Encode(chunk[:0])
}

// restore reads a table that save wrote.
func (t *Table[S, C]) restore(dec *gob.Decoder) (install func(), err error) {
	var s savedTable
	if err := dec.Decode(&s); err != nil {
		return nil, err
	}
	rows := make(map[Address]*row[S])
	for {
		var chunk []savedRow[S]
		if err := dec.Decode(&chunk); err != nil {
			return nil, err
		}
		if len(chunk) == 0 {
			break
		}
		for _, r := range chunk {
			rows[r.Address] = &r.Row
		}
	}
	var gone set
	for _, a := range s.Gone {
		gone.add(a)
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.rows, t.ended, t.now, t.gone = rows, s.Ended, s.Now, gone
	}, nil
}

// savable says why a value of the type can not be in a snapshot: gob leaves out
// what is not exported, in silence, and does not know what an interface holds.
func savable(t reflect.Type) error {
	seen := make(map[reflect.Type]bool)
	var check func(t reflect.Type, path string) error
	check = func(t reflect.Type, path string) error {
		if t == reflect.TypeFor[time.Time]() || seen[t] {
			return nil
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Struct:
			for i := range t.NumField() {
				f := t.Field(i)
				if !f.IsExported() {
					return fmt.Errorf("%s.%s is not exported", path, f.Name)
				}
				if err := check(f.Type, path+"."+f.Name); err != nil {
					return err
				}
			}
		case reflect.Map:
			if err := check(t.Key(), path+" key"); err != nil {
				return err
			}
			return check(t.Elem(), path+" element")
		case reflect.Slice, reflect.Array, reflect.Pointer:
			return check(t.Elem(), path+" element")
		case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
			return fmt.Errorf("%s is a %s", path, t)
		}
		return nil
	}
	return check(t, t.String())
}
