// Package frame reads JSON-RPC messages as ranges of the bytes that a server
// sent, so that what passes through stays as it is (decision 23).
package frame

import (
	"bytes"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// DefaultMax is the longest message of a server that is accepted where nothing
// else is said: 16 MiB (R80, decision 25).
const DefaultMax = 16 << 20

// Frame is one JSON-RPC message as the server sent it. The values are ranges
// of Raw, byte for byte; absent members are nil.
//
// A request has ID and Method, a notification only Method, a response ID and
// exactly one of Result and Error.
type Frame struct {
	// Raw is the whole message without white space around it.
	Raw jsontext.Value
	// ID is a JSON string or number.
	ID jsontext.Value
	// Method is the method name, unescaped.
	Method string
	// Params, Result and Error are the bodies. Error is a JSON object.
	Params, Result, Error jsontext.Value
	// Lost is set where a transport gets each answer on a way of its own and that
	// of the request ID will not come; nothing else but ID is set then.
	Lost *Lost
}

// Lost says why a request has no answer.
type Lost struct {
	// Written says that the server may have begun the request; otherwise it has
	// certainly not.
	Written bool
	// Cause is a fault.
	Cause error
}

// Parser reads frames. The zero value is ready; it is not safe for concurrent
// use.
type Parser struct {
	buf bytes.Buffer
	dec jsontext.Decoder
}

// Parse checks that line is one JSON-RPC 2.0 message and nothing else. The frame
// refers to line.
//
// Members of the envelope must be written without escapes and only once, so
// that no other parser can read another message out of the same bytes. Inside
// the bodies any JSON goes, lone surrogates in escapes too: JavaScript makes
// them of cut strings.
func (p *Parser) Parse(line []byte) (Frame, bool) {
	if len(line) == 0 || line[0] != '{' || !utf8.Valid(line) {
		return Frame{}, false
	}
	p.buf = *bytes.NewBuffer(line)
	dec := &p.dec
	dec.Reset(&p.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return Frame{}, false
	}
	var version, method jsontext.Value
	frame := Frame{Raw: line}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadValue()
		if err != nil {
			return Frame{}, false
		}
		var member *jsontext.Value
		switch string(name) {
		case `"jsonrpc"`:
			member = &version
		case `"id"`:
			member = &frame.ID
		case `"method"`:
			member = &method
		case `"params"`:
			member = &frame.Params
		case `"result"`:
			member = &frame.Result
		case `"error"`:
			member = &frame.Error
		}
		value, err := dec.ReadValue()
		if err != nil {
			return Frame{}, false
		}
		if member == nil {
			continue
		}
		if *member != nil {
			return Frame{}, false
		}
		// The decoder's own slice lives only until its next read.
		end := dec.InputOffset()
		*member = line[end-int64(len(value)) : end : end]
	}
	if _, err := dec.ReadToken(); err != nil {
		return Frame{}, false
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Frame{}, false
	}
	if string(version) != `"2.0"` {
		return Frame{}, false
	}
	return frame, frame.classify(method)
}

// classify reports whether the members make a request, a notification or a
// response, and drops a null that stands beside the real answer.
func (f *Frame) classify(method jsontext.Value) bool {
	if f.ID != nil && f.ID.Kind() != '"' && f.ID.Kind() != '0' {
		return false
	}
	if method != nil {
		name, err := jsontext.AppendUnquote(nil, method)
		f.Method = string(name)
		return err == nil && f.Result == nil && f.Error == nil
	}
	if f.Error.Kind() == 'n' {
		f.Error = nil
	}
	if f.Error != nil && f.Result.Kind() == 'n' {
		f.Result = nil
	}
	switch {
	case f.ID == nil, (f.Result == nil) == (f.Error == nil):
		return false
	default:
		return f.Error == nil || f.Error.Kind() == '{'
	}
}
