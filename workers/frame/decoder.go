package frame

import (
	"bytes"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// decoders keeps what decoders allocate for nested objects.
var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

// Decoder reads raw in place, until Release.
func Decoder(raw []byte, opts ...jsontext.Options) *jsontext.Decoder {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(raw), opts...)
	return d
}

type empty struct{}

func (empty) Read([]byte) (int, error) { return 0, io.EOF }

// Release lets go of what a decoder read, and takes the decoder back.
func Release(d *jsontext.Decoder) {
	d.Reset(empty{})
	decoders.Put(d)
}
