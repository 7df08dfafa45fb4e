package stdio

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gatebus/gatebus/events/redact"
)

const (
	// stderrKept bounds what is kept of the standard error until the end of the
	// process (R128).
	stderrKept = 8 << 20
	// stderrWindow is how many characters of its beginning are read then (R125).
	stderrWindow = 12_000
	// stderrTail is how many characters of its end a failure to start tells.
	stderrTail = 500
	// lookAround is how much is read beside a window: a secret that lies across the
	// edge is seen in one piece.
	lookAround = 256 << 10
)

// Stderr is what a server wrote to its standard error, as far as it is kept.
type Stderr struct {
	// Window is its beginning, 12,000 characters at most (R125).
	redact.Window
	// Tail is its end, in one line.
	Tail redact.EventText
	// Bytes is how much there was.
	Bytes int64
}

// file is one without a name.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// capture keeps the standard error of a process in a file without a name. It goes
// there through a pipe that is drained whatever becomes of it: what is beyond the
// bound is counted and dropped, and the server is never held up.
type capture struct {
	from *os.File // the end of the pipe that is ours
	file file
	// Written by the goroutine that drains, which closes drained at its end.
	kept, all atomic.Int64
	drained   chan struct{}

	mu   sync.Mutex // guards the reading of file, said and done
	said Stderr
	done bool
}

// newCapture makes a capture and the end of the pipe that is the child's.
func newCapture() (*capture, *os.File, error) {
	file, err := anonymous()
	if err != nil {
		return nil, nil, err
	}
	from, child, err := os.Pipe()
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return &capture{from: from, file: file, drained: make(chan struct{})}, child, nil
}

// close gives up what was never drained.
func (c *capture) close() {
	_ = c.from.Close()
	_ = c.file.Close()
}

// drain reads until nobody holds the other end, or ours is closed.
func (c *capture) drain() {
	defer close(c.drained)
	buffer := make([]byte, 8<<10)
	for {
		n, err := c.from.Read(buffer)
		c.all.Add(int64(n))
		if keep := min(int64(n), stderrKept-c.kept.Load()); keep > 0 {
			// What the file does not take is missing from the log, and no reason to
			// hold up the server.
			n, _ := c.file.Write(buffer[:keep])
			c.kept.Add(int64(n))
		}
		if err != nil {
			_ = c.from.Close()
			return
		}
	}
}

// Stderr waits for the end of the process and returns what it wrote to its standard
// error, redacted by r. Whoever started the process calls it once at least: the file
// is gone after it, and later calls return the same. The error is that of ctx.
func (p *Process) Stderr(ctx context.Context, r *redact.Redactor) (Stderr, error) {
	c := p.stderr
	for _, end := range []<-chan struct{}{p.done, c.drained} {
		select {
		case <-end:
		case <-ctx.Done():
			return Stderr{}, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.said, c.done = c.read(r), true
		_ = c.file.Close()
	}
	return c.said, nil
}

// StderrSoFar is what the process has written until now.
func (p *Process) StderrSoFar(r *redact.Redactor) Stderr {
	p.stderr.mu.Lock()
	defer p.stderr.mu.Unlock()
	if p.stderr.done {
		return p.stderr.said
	}
	return p.stderr.read(r)
}

// read makes the views. Whatever goes wrong, none of it is shown (R127).
func (c *capture) read(r *redact.Redactor) Stderr {
	// In this order: what is kept is never more than there was.
	kept, all := c.kept.Load(), c.all.Load()
	said := Stderr{Bytes: all}
	if all == 0 {
		return said
	}
	head := c.slice(0, min(kept, 4*stderrWindow+lookAround))
	said.Window = r.Head(redact.NewRaw(head), stderrWindow, all > int64(len(head)))
	if all == kept { // else its end was dropped
		from := max(0, kept-lookAround)
		said.Tail = r.Tail(redact.NewRaw(c.slice(from, kept)), stderrTail, from > 0)
	}
	return said
}

// slice is a part of the file; nothing where it cannot be read.
func (c *capture) slice(from, to int64) string {
	b := make([]byte, to-from)
	n, _ := c.file.ReadAt(b, from)
	return string(b[:n])
}
