package httpclient

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// read are the messages of a stream, the last id of an event and what ended it.
func read(r io.Reader, max int) (data []string, id string, err error) {
	s := newStream(r, max, "")
	defer s.free()
	for {
		one, err := s.next()
		if err != nil {
			return data, s.id, err
		}
		data = append(data, string(one))
	}
}

// written are the messages of a stream by the letter of the standard (HTML, 9.2.6),
// but for what stream says of its own: a lone \r ends no line, the last event needs
// no empty line behind it, and one of white space is none.
func written(text string) (data []string, id string) {
	var lines []string
	message, last := true, ""
	end := func() {
		if one := strings.TrimSpace(strings.Join(lines, "\n")); one != "" && message {
			data = append(data, one)
		}
		lines, message = nil, true
	}
	for line := range strings.Lines(text) {
		whole := strings.HasSuffix(line, "\n")
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" && whole {
			id = last
			end()
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "data":
			lines = append(lines, value)
		case "event":
			message = value == "" || value == "message"
		case "id":
			if len(value) <= 1024 && !strings.ContainsFunc(value, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
				last = value
			}
		}
	}
	if len(lines) > 0 {
		before := len(data)
		if end(); len(data) > before {
			id = last
		}
	}
	return data, id
}

// FuzzStream: the events of a stream are what the standard reads in it, wherever the
// network cuts it, and no message is above the limit.
func FuzzStream(f *testing.F) {
	for _, text := range []string{
		"data: {}\n\n", ": ping\r\n\r\nid: 7\r\ndata:{\r\ndata: }\r\n\r\n", "event: message\ndata: 1\n\nevent: other\ndata: 2\n\ndata: 3", "\ufeffdata: 1\n\n",
		"id: 1\n\nid: \x00\ndata\ndata:\ndata: \n\n", "retry: 5\nretry: x\ndata: a\rdata: b\n\n", strings.Repeat("data: x\n", 400) + "\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 64<<10 {
			return
		}
		want, wantID := written(string(text))
		for _, in := range []io.Reader{bytes.NewReader(text), iotest.OneByteReader(bytes.NewReader(text))} {
			data, id, err := read(in, 1<<20)
			if err != io.EOF || !slices.Equal(data, want) || id != wantID {
				t.Fatalf("%q is %q, last id %q, %v; want %q, %q", text, data, id, err, want, wantID)
			}
		}
		const limit = 1 << 10
		data, _, err := read(bytes.NewReader(text), limit)
		if err != io.EOF && err != errTooLarge || !slices.Equal(data, want[:min(len(want), len(data))]) {
			t.Fatalf("%q, to a limit, is %q, %v", text, data, err)
		}
		for _, one := range data {
			if len(one) > limit {
				t.Fatalf("a message of %d bytes is above the limit", len(one))
			}
		}
	})
}
