package stdio

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// LogFile is where the log is below the home (R124).
	LogFile = "logs/mcp-stderr.log"
	// DefaultLogBytes bounds the log where nothing else is said.
	DefaultLogBytes = 16 << 20
	// mark begins the header of an entry, and no line of a server.
	mark = "=== "
)

// Log is the file of what servers wrote to their standard error: 0600 in a folder
// with 0700 (R126). Processes of one home share it. Its methods are safe for
// concurrent use.
type Log struct {
	// Path is that of the file.
	Path string
	// Max is the size above which the older half is dropped; 0 is [DefaultLogBytes].
	Max int64

	mu sync.Mutex
}

// Entry is the header of an entry: whose standard error it was, and how that ended.
type Entry struct {
	Time       time.Time `json:"time"`
	Server     string    `json:"server"`
	Connection string    `json:"connection"`
	Generation uint32    `json:"generation"`
	Exit       string    `json:"exit"`
	// Bytes is how much there was, before anything was left out.
	Bytes     int64 `json:"bytes"`
	Truncated bool  `json:"truncated"`
}

// Logged is an entry as it is read.
type Logged struct {
	Entry
	Text string
}

// Append adds an entry: its header, the text, and a line that says so where it is
// truncated. Errors: private_path_unsafe for a link in the way or what is no file,
// else those of the file.
func (l *Log) Append(e Entry, text redact.DurableText) error {
	header, err := json.Marshal(e)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(mark)
	b.Write(header)
	b.WriteByte('\n')
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, strings.TrimSpace(mark)) {
			b.WriteByte(' ') // a server does not write headers
		}
		b.WriteString(line)
	}
	if last := b.Bytes(); last[len(last)-1] != '\n' {
		b.WriteByte('\n')
	}
	if e.Truncated {
		b.WriteString("<truncated>\n")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := l.open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lock(f); err != nil { // it goes with the file
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size, err = l.shorten(f, size, int64(b.Len())); err != nil {
		return err
	}
	_, err = f.WriteAt(b.Bytes(), size)
	return err
}

// open opens the file for writing and makes it and its folder private, whatever
// the umask is and whatever they were before.
func (l *Log) open() (*os.File, error) {
	dir := filepath.Dir(l.Path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	refused := fault.New("stdio.log", fault.PrivatePathUnsafe, redact.Static("the folder of the log of standard errors, or the log, is a link or something else"))
	if !info.IsDir() {
		return nil, refused
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.Path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if isLink(err) {
		return nil, refused
	}
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = refused
	}
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// shorten drops the older half of a file that would become too large with more, up
// to the begin of an entry, and returns its size then (decision 28). A crash within
// leaves entries twice, or one that is cut, and loses none of the newer half.
func (l *Log) shorten(f *os.File, size, more int64) (int64, error) {
	limit := l.Max
	if limit <= 0 {
		limit = DefaultLogBytes
	}
	if size+more <= limit {
		return size, nil
	}
	newer := make([]byte, min(size, max(limit/2-more, 0)))
	if _, err := f.ReadAt(newer, size-int64(len(newer))); err != nil && err != io.EOF {
		return size, err
	}
	_, newer = cutBefore(newer)
	if _, err := f.WriteAt(newer, 0); err != nil {
		return size, err
	}
	return int64(len(newer)), f.Truncate(int64(len(newer)))
}

// cutBefore splits the log before its first header.
func cutBefore(b []byte) (before, entries []byte) {
	if bytes.HasPrefix(b, []byte(mark)) {
		return nil, b
	}
	if i := bytes.Index(b, []byte("\n"+mark)); i >= 0 {
		return b[:i+1], b[i+1:]
	}
	return b, nil
}

// maxRead bounds what is read of the log at once.
const maxRead = 64 << 20

// Last returns the newest entries of a server, oldest first, limit at most. Where
// there is no log there are none.
func (l *Log) Last(server string, limit int) ([]Logged, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.Path, os.O_RDONLY|noFollow, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := lock(f); err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	data := make([]byte, min(size, maxRead))
	if _, err := f.ReadAt(data, size-int64(len(data))); err != nil && err != io.EOF {
		return nil, err
	}
	var found []Logged
	for _, rest := cutBefore(data); len(rest) > 0; {
		header, body, _ := bytes.Cut(rest[len(mark):], []byte("\n"))
		var text []byte
		text, rest = cutBefore(body)
		var e Entry
		if json.Unmarshal(header, &e) == nil && e.Server == server {
			found = append(found, Logged{e, string(text)})
			found = found[max(0, len(found)-limit):]
		}
	}
	return found, nil
}
