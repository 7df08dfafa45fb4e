package events

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protowire"
)

// errText says what no message and no JSON can hold.
var errText = errors.New("a text is not UTF-8")

// wire writes protobuf messages. Fields at their default are left out, as proto3
// wants it. It is a third of the cost of building a message to have it encoded, and
// each call is encoded twice.
type wire struct {
	b   []byte
	err error // the first one
}

func (w *wire) text(field protowire.Number, s string) {
	if s != "" {
		w.item(field, s)
	}
}

func (w *wire) texts(field protowire.Number, list []string) {
	for _, s := range list {
		w.item(field, s)
	}
}

func (w *wire) item(field protowire.Number, s string) {
	if !utf8.ValidString(s) && w.err == nil {
		w.err = errText
	}
	w.b = protowire.AppendString(protowire.AppendTag(w.b, field, protowire.BytesType), s)
}

func (w *wire) flag(field protowire.Number, v bool) {
	w.varint(field, protowire.EncodeBool(v))
}

func (w *wire) number(field protowire.Number, v uint32) { w.varint(field, uint64(v)) }

func (w *wire) integer(field protowire.Number, v int32) { w.varint(field, uint64(int64(v))) }

func (w *wire) varint(field protowire.Number, v uint64) {
	if v != 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, field, protowire.VarintType), v)
	}
}

// begin begins a message in a field; end is called with what it returns.
func (w *wire) begin(field protowire.Number) (at int) {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	return len(w.b)
}

// end puts the length before what was written since begin.
func (w *wire) end(at int) {
	size := len(w.b) - at
	n := protowire.SizeVarint(uint64(size))
	for range n {
		w.b = append(w.b, 0)
	}
	copy(w.b[at+n:], w.b[at:at+size])
	protowire.AppendVarint(w.b[:at], uint64(size))
}

// jsonText writes compact JSON.
type jsonText struct {
	b   []byte
	err error // the first one
}

func (j *jsonText) raw(s string) { j.b = append(j.b, s...) }

func (j *jsonText) text(s string) {
	b, err := jsontext.AppendQuote(j.b, s)
	if err != nil && j.err == nil {
		j.err = errText
	}
	j.b = b
}

func (j *jsonText) texts(list []string) {
	for i, s := range list {
		j.item(i)
		j.text(s)
	}
	j.endItems(len(list))
}

// item comes before the i-th item of a list, endItems behind the last of n.
func (j *jsonText) item(i int) {
	if i == 0 {
		j.raw("[")
	} else {
		j.raw(",")
	}
}

func (j *jsonText) endItems(n int) {
	if n == 0 {
		j.raw("[")
	}
	j.raw("]")
}

func (j *jsonText) flag(v bool) { j.b = strconv.AppendBool(j.b, v) }

func (j *jsonText) number(v uint32) { j.b = strconv.AppendUint(j.b, uint64(v), 10) }

func (j *jsonText) integer(v int32) { j.b = strconv.AppendInt(j.b, int64(v), 10) }
