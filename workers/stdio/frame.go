package stdio

import (
	"bufio"
	"bytes"
	"io"
	"sync/atomic"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
)

// byteOrderMark is that of UTF-8.
var byteOrderMark = []byte("\ufeff")

// framer cuts the output of a server into frames: one line is one frame, and
// a line that is none is dropped and counted, because servers print banners
// and log lines to their standard output. Not safe for concurrent use, but
// for dropped.
type framer struct {
	r       *bufio.Reader
	max     int
	begun   bool // a line was read
	seen    bool // a frame was read, so the server does speak in lines
	err     error
	dropped atomic.Uint64
	parser  frame.Parser
}

func newFramer(r io.Reader, max int) *framer {
	return &framer{r: bufio.NewReaderSize(r, 64<<10), max: max}
}

// next returns the next frame. Its error is final: io.EOF, a fault of kind
// frame_too_large, or of initialize_failed when the server frames with
// Content-Length headers.
func (f *framer) next() (frame.Frame, error) {
	for f.err == nil {
		line, err := f.line()
		f.err = err
		if !f.begun {
			f.begun = true
			line = bytes.TrimPrefix(line, byteOrderMark) // some runtimes begin their output with one
		}
		line = bytes.Trim(line, " \t\r\n")
		if len(line) == 0 {
			continue
		}
		if read, ok := f.parser.Parse(line); ok {
			f.seen = true
			return read, nil
		}
		if !f.seen && contentLength(line) {
			f.err = fault.New("stdio.read", fault.InitializeFailed,
				redact.Static("wrong framing: the server sends Content-Length headers, MCP over stdio is one JSON message a line"))
		}
		f.dropped.Add(1)
	}
	return frame.Frame{}, f.err
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
