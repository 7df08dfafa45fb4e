package live

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/workers/frame"
)

var (
	errShape   = errors.New("live: unexpected JSON")
	errTooMany = errors.New("live: too much is listed")
)

// decoder reads v in place, and leaves it to others how a server writes names and texts.
func decoder(v []byte) *jsontext.Decoder {
	return frame.Decoder(v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// members calls f for each member of the object v, with the unescaped name and
// the offset of the value in v. Everything in v is checked to be JSON.
func members(v []byte, f func(name string, value jsontext.Value, at int) error) error {
	dec := decoder(v)
	defer frame.Release(dec)
	if dec.PeekKind() != '{' {
		return errShape
	}
	return walk(dec, func() error {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		key := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := int(dec.InputOffset())
		return f(key, v[end-len(value):end:end], end-len(value))
	})
}

// elements calls f for each element of the array v.
func elements(v []byte, f func(value jsontext.Value) error) error {
	dec := decoder(v)
	defer frame.Release(dec)
	if dec.PeekKind() != '[' {
		return errShape
	}
	return walk(dec, func() error {
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := int(dec.InputOffset())
		return f(v[end-len(value) : end : end])
	})
}

// walk reads the object or array that comes next and calls item for each of
// its items. Nothing may follow it.
func walk(dec *jsontext.Decoder, item func() error) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for kind := dec.PeekKind(); kind != '}' && kind != ']'; kind = dec.PeekKind() {
		if err := item(); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errShape
	}
	return nil
}

// replace returns a copy of v in which the n bytes at offset at are value.
func replace(v []byte, at, n int, value []byte) []byte {
	out := make([]byte, 0, len(v)-n+len(value)+1) // room for a line feed
	out = append(out, v[:at]...)
	out = append(out, value...)
	return append(out, v[at+n:]...)
}

// first returns a copy of the object v with one more member, before the others.
func first(v []byte, member string) []byte {
	at := bytes.IndexByte(v, '{') + 1
	if rest := bytes.TrimLeft(v[at:], " \t\r\n"); rest[0] != '}' {
		member += ","
	}
	return replace(v, at, 0, []byte(member))
}

// replaceMember replaces the value of a member that v has once.
func replaceMember(v []byte, name string, value []byte) ([]byte, error) {
	at, n := -1, 0
	err := members(v, func(key string, old jsontext.Value, offset int) error {
		if key == name {
			at, n = offset, len(old)
		}
		return nil
	})
	if err != nil || at < 0 {
		return nil, errShape
	}
	return replace(v, at, n, value), nil
}

// text returns the JSON string v unescaped; what is no string is empty.
func text(v jsontext.Value) string {
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(s)
}

// integer reads a JSON number that is whole, also when a server sends back
// 1.0 or 1e0 for 1.
func integer(v jsontext.Value) (int64, bool) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	if v.Kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}
