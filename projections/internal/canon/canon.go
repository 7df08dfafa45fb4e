// Package canon digests values by their content, so that two projections can be
// compared: the order in which a map was filled, the capacity of a slice and the
// identity of a pointer do not count, everything else does. It walks the value
// itself, so that a field added to a state can not be forgotten.
package canon

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"
)

// Sum is the SHA-256 of the canonical form of v. It panics on what has none: a
// channel, a function, an interface, a float, or a time in a field that is not
// exported. A nil slice or map is an empty one.
func Sum(v any) [sha256.Size]byte {
	h := sha256.New()
	w := bufio.NewWriterSize(h, 1<<12)
	write(w, reflect.ValueOf(v))
	_ = w.Flush() // a hash takes everything
	return [sha256.Size]byte(h.Sum(nil))
}

// sink takes bytes and never fails.
type sink interface {
	io.Writer
	io.StringWriter
}

var timeType = reflect.TypeFor[time.Time]()

func write(w sink, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		number(w, uint64(v.Len()))
		_, _ = w.WriteString(v.String())
	case reflect.Bool:
		if v.Bool() {
			number(w, 1)
		} else {
			number(w, 0)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		number(w, uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		number(w, v.Uint())
	case reflect.Pointer:
		if v.IsNil() {
			number(w, 0)
			return
		}
		number(w, 1)
		write(w, v.Elem())
	case reflect.Slice, reflect.Array:
		number(w, uint64(v.Len()))
		for i := range v.Len() {
			write(w, v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == timeType {
			t := v.Interface().(time.Time)
			number(w, uint64(t.Unix()))
			number(w, uint64(t.Nanosecond()))
			return
		}
		for i := range v.NumField() {
			write(w, v.Field(i))
		}
	case reflect.Map:
		type entry struct {
			key   []byte
			value reflect.Value
		}
		entries := make([]entry, 0, v.Len())
		for it := v.MapRange(); it.Next(); {
			var key bytes.Buffer
			write(&key, it.Key())
			entries = append(entries, entry{key.Bytes(), it.Value()})
		}
		slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
		number(w, uint64(len(entries)))
		for _, e := range entries {
			_, _ = w.Write(e.key)
			write(w, e.value)
		}
	default:
		panic(fmt.Sprintf("canon: a %s has no canonical form", v.Type()))
	}
}

func number(w sink, n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = w.Write(b[:])
}
