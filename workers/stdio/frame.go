package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/go-json-experiment/json/jsontext"
)

// DefaultMaxFrame is the longest frame that is accepted when [Spec] does not
// say: 16 MiB (R80, decision 25).
const DefaultMaxFrame = 16 << 20

// Frame is one JSON-RPC message as the server sent it. The values are ranges
// of Raw, byte for byte; absent members are nil.
//
// A request has ID and Method, a notification only Method, a response ID and
// exactly one of Result and Error.
type Frame struct {
	// Raw is the whole line without its end.
	Raw jsontext.Value
	// ID is a JSON string or number.
	ID jsontext.Value
	// Method is the method name, unescaped.
	Method string
	// Params, Result and Error are the bodies. Error is a JSON object.
	Params, Result, Error jsontext.Value
}

// framer cuts the output of a server into frames: one line is one frame, and
// a line that is none is dropped and counted, because servers print banners
// and log lines to their standard output. Not safe for concurrent use, but
// for dropped.
type framer struct {
	r       *bufio.Reader
	max     int
	seen    bool // a frame was read, so the server does speak in lines
	err     error
	dropped atomic.Uint64

	buf bytes.Buffer
	dec *jsontext.Decoder
}

func newFramer(r io.Reader, max int) *framer {
	f := &framer{r: bufio.NewReaderSize(r, 64<<10), max: max}
	f.dec = jsontext.NewDecoder(&f.buf)
	return f
}

// next returns the next frame. Its error is final: io.EOF, a fault of kind
// frame_too_large, or of initialize_failed when the server frames with
// Content-Length headers.
func (f *framer) next() (Frame, error) {
	for f.err == nil {
		line, err := f.line()
		f.err = err
		line = bytes.Trim(line, " \t\r\n")
		if len(line) == 0 {
			continue
		}
		if frame, ok := f.parse(line); ok {
			f.seen = true
			return frame, nil
		}
		if !f.seen && contentLength(line) {
			f.err = fault.New("stdio.read", fault.InitializeFailed,
				redact.Static("wrong framing: the server sends Content-Length headers, MCP over stdio is one JSON message a line"))
		}
		f.dropped.Add(1)
	}
	return Frame{}, f.err
}

// line returns the next line in memory of its own. What stands before the end
// of the stream without a line feed is a line too.
func (f *framer) line() ([]byte, error) {
	var line []byte
	for {
		part, err := f.r.ReadSlice('\n')
		if len(line)+len(part) > f.max+1 || len(line)+len(part) == f.max+1 && err == bufio.ErrBufferFull {
			return nil, fault.New("stdio.read", fault.FrameTooLarge, redact.Static("the server sent a message above the frame limit"))
		}
		line = append(line, part...)
		switch {
		case err == bufio.ErrBufferFull:
		case err == nil:
			return line, nil
		default:
			// Closed and broken pipes are ends like any other.
			return line, io.EOF
		}
	}
}

// contentLength reports whether line is a header of the framing of the
// Language Server Protocol.
func contentLength(line []byte) bool {
	const header = "content-length:"
	return len(line) >= len(header) && bytes.EqualFold(line[:len(header)], []byte(header))
}

// parse checks that line is one JSON-RPC 2.0 message and nothing else.
//
// Members of the envelope must be written without escapes and only once, so
// that no other parser can read another message out of the same bytes. Inside
// the bodies any JSON goes, lone surrogates in escapes too: JavaScript makes
// them of cut strings.
func (f *framer) parse(line []byte) (Frame, bool) {
	if line[0] != '{' || !utf8.Valid(line) {
		return Frame{}, false
	}
	f.buf = *bytes.NewBuffer(line)
	dec := f.dec
	dec.Reset(&f.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
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
