package stdio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/google/go-cmp/cmp"
)

const good = `{"jsonrpc":"2.0","id":1,"result":{}}`

func frames(r io.Reader, max int) (got []frame.Frame, dropped uint64, err error) {
	f := newFramer(r, max)
	for {
		frame, err := f.next()
		if err != nil {
			return got, f.dropped.Load(), err
		}
		got = append(got, frame)
	}
}

// Reports 7, 9, 10 and 17 of the list: one bad line is one bad line.
func TestALineThatIsNoMessageIsDroppedAndCounted(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"ready!", "{ not json", "5", "null", "[]", `"x"`, "[" + good + "]", `{}`,
		`{"jsonrpc":"2.0"}`, `{"jsonrpc":"1.0","id":1,"result":{}}`, `{"jsonrpc":2.0,"id":1,"result":{}}`, `{"id":1,"result":{}}`,
		"\ufeff" + good, good + "garbage", good + good, good + " ]", good[:len(good)-1],
		`{"jsonrpc":"2.0","id":1,"result":"` + "\xff" + `"}`, `{"jsonrpc":"2.0","id":1,"result":{},}`, `{'jsonrpc':"2.0"}`,
		`{"jsonrpc":"2.0","id":null,"result":{}}`, `{"jsonrpc":"2.0","result":{}}`, `{"jsonrpc":"2.0","id":[1],"result":{}}`, `{"jsonrpc":"2.0","id":true,"result":{}}`,
		`{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":1,"error":null}`, `{"jsonrpc":"2.0","id":1,"error":"no"}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, `{"jsonrpc":"2.0","id":1,"method":5}`, `{"jsonrpc":"2.0","id":1,"method":null}`,
		// Two readers could read two messages here.
		`{"jsonrpc":"2.0","id":1,"id":2,"result":{}}`, `{"jsonrpc":"2.0","id":1,"result":{},"result":[]}`, `{"jsonrpc":"2.0","\u0069d":1,"result":{}}`,
	} {
		got, dropped, err := frames(strings.NewReader(good+"\n"+line+"\n"+good+"\n"), frame.DefaultMax)
		if len(got) != 2 || dropped != 1 || err != io.EOF {
			t.Errorf("%q: %d frames, %d dropped, %v; want 2, 1, EOF", line, len(got), dropped, err)
		}
	}
}

func TestAFrameIsTheBytesOfItsLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		line string
		want frame.Frame
	}{
		{`{"id":7.50 , "x":{"id":1,"id":2}, "result" : {"b":9007199254740993,"a":1.0,"e":1e400,"s":"\u00e9\ud83d"}, "jsonrpc":"2.0"}`,
			frame.Frame{ID: []byte(`7.50`), Result: []byte(`{"b":9007199254740993,"a":1.0,"e":1e400,"s":"\u00e9\ud83d"}`)}},
		{`{"jsonrpc":"2.0","id":"s-\u00e9","error":{"code":-32000,"message":"m","data":{"n":1}}}`,
			frame.Frame{ID: []byte(`"s-\u00e9"`), Error: []byte(`{"code":-32000,"message":"m","data":{"n":1}}`)}},
		{`{"jsonrpc":"2.0","id":1,"result":null}`, frame.Frame{ID: []byte(`1`), Result: []byte(`null`)}},
		{`{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1}}`, frame.Frame{ID: []byte(`1`), Error: []byte(`{"code":1}`)}},
		{`{"jsonrpc":"2.0","id":1,"result":2,"error":null}`, frame.Frame{ID: []byte(`1`), Result: []byte(`2`)}},
		{`{"jsonrpc":"2.0","id":0,"method":"a\u002fb","params":[ 1 ]}`, frame.Frame{ID: []byte(`0`), Method: "a/b", Params: []byte(`[ 1 ]`)}},
		{`{"jsonrpc":"2.0","method":"n"}`, frame.Frame{Method: "n"}},
	} {
		test.want.Raw = []byte(test.line)
		// White space around a message is JSON, a line end of Windows too.
		for _, stream := range []string{test.line, test.line + "\n", " \t" + test.line + " \r\n\r\n\n"} {
			got, dropped, err := frames(iotest.OneByteReader(strings.NewReader(stream)), frame.DefaultMax)
			if diff := cmp.Diff([]frame.Frame{test.want}, got); diff != "" || dropped != 0 || err != io.EOF {
				t.Errorf("%q: %d dropped, %v %s", stream, dropped, err, diff)
			}
		}
	}
}

func TestFramesOfOneStreamShareNoMemory(t *testing.T) {
	t.Parallel()
	got, _, _ := frames(strings.NewReader(good+"\n"+`{"jsonrpc":"2.0","id":22,"result":"other"}`+"\n"), frame.DefaultMax)
	if string(got[0].Raw) != good || string(got[0].Result) != `{}` {
		t.Errorf("the first frame is %s after the second was read", got[0].Raw)
	}
	if _ = append(got[0].Result, 'x'); string(got[0].Raw) != good {
		t.Error("appending to a range writes into the frame")
	}
}

// Report 13 and R80.
func TestAFrameAboveTheLimitEndsTheStreamAndOneAtTheLimitDoesNot(t *testing.T) {
	t.Parallel()
	frame := func(size int) string {
		const rest = len(`{"jsonrpc":"2.0","id":1,"result":""}`)
		return `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", size-rest) + `"}`
	}
	for _, max := range []int{1000, 64 << 10, 64<<10 - 1, 1 << 20} {
		got, _, err := frames(strings.NewReader(frame(max)+"\n"+good+"\n"), max)
		if len(got) != 2 || err != io.EOF {
			t.Errorf("limit %d: %d frames, %v; want 2, EOF", max, len(got), err)
		}
		for _, stream := range []string{frame(max+1) + "\n" + good + "\n", strings.Repeat("x", max+2)} {
			got, _, err := frames(strings.NewReader(stream), max)
			if len(got) != 0 || !fault.Is(err, fault.FrameTooLarge) {
				t.Errorf("limit %d: %d frames, %v; want frame_too_large", max, len(got), err)
			}
		}
	}
}

func TestAnEndlessLineIsHeldOnlyToTheLimit(t *testing.T) {
	t.Parallel()
	read := &countingReader{}
	if _, _, err := frames(read, 1<<20); err == io.EOF {
		t.Error("an endless line is an end")
	}
	if limit := 1<<20 + 128<<10; read.n > limit {
		t.Errorf("%d bytes were read, want at most %d", read.n, limit)
	}
}

type countingReader struct{ n int }

func (r *countingReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '{'
	}
	r.n += len(p)
	return len(p), nil
}

// Report 23.
func TestContentLengthFramingIsNamed(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Content-Length: 20\r\n\r\n" + good, "banner\ncontent-length:20\n"} {
		_, _, err := frames(strings.NewReader(header), frame.DefaultMax)
		if !fault.Is(err, fault.InitializeFailed) || !strings.Contains(err.Error(), "wrong framing") {
			t.Errorf("%q: %v, want initialize_failed, wrong framing", header, err)
		}
	}
	// A server that has spoken in lines may log what it likes.
	if got, _, err := frames(strings.NewReader(good+"\nContent-Length: 5\n"+good), frame.DefaultMax); len(got) != 2 || err != io.EOF {
		t.Errorf("%d frames, %v; want 2, EOF", len(got), err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, s := range []string{
		good, good + "\n" + good, "ready!\n\n" + good + "\r\n", `{"jsonrpc":"2.0","method":"x","params":{"_meta":{}}}`, good + "garbage",
		`{"jsonrpc":"2.0","id":"\u0061","error":{"code":1,"message":"\ud83d"}}`, "\ufeff" + good, "[" + good + "]", `{"jsonrpc":"2.0","\u0069d":1,"id":2,"result":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		const max = 1 << 12
		stream = append(stream, "\n"+good+"\n"...)
		got, dropped, err := frames(bytes.NewReader(stream), max)
		if err == io.EOF {
			if len(got) == 0 || string(got[len(got)-1].Raw) != good {
				t.Fatalf("the good line after %q is lost", stream)
			}
		} else if !fault.Is(err, fault.FrameTooLarge) && !fault.Is(err, fault.InitializeFailed) {
			t.Fatalf("the end is %v", err)
		}
		if lines := uint64(bytes.Count(stream, []byte("\n"))); uint64(len(got))+dropped > lines {
			t.Fatalf("%d frames and %d dropped of %d lines", len(got), dropped, lines)
		}
		// Where the pipe cuts what was written is nobody's business, and frames that are
		// written again are the same frames.
		bytewise, left, end := frames(iotest.OneByteReader(bytes.NewReader(stream)), max)
		if diff := cmp.Diff(got, bytewise); diff != "" || left != dropped || fmt.Sprint(end) != fmt.Sprint(err) {
			t.Fatalf("byte by byte %q is read otherwise: %d dropped, %v %s", stream, left, end, diff)
		}
		var again bytes.Buffer
		for _, frame := range got {
			again.Write(append(bytes.Clone(frame.Raw), '\n'))
		}
		if same, left, _ := frames(&again, max); left != 0 || cmp.Diff(got, same) != "" {
			t.Fatalf("written again, the frames of %q are others: %v", stream, same)
		}
		for _, frame := range got {
			if len(frame.Raw) > max || !utf8.Valid(frame.Raw) || bytes.IndexByte(frame.Raw, '\n') >= 0 {
				t.Fatalf("%q is a frame", frame.Raw)
			}
			// The judge of the shape is another parser. It takes the last of
			// two members and ignores their case, which no frame may exploit.
			var want map[string]json.RawMessage
			if err := json.Unmarshal(frame.Raw, &want); err != nil {
				t.Fatalf("%q is a frame and no JSON: %v", frame.Raw, err)
			}
			if string(want["jsonrpc"]) != `"2.0"` {
				t.Fatalf("%q is a frame of another version", frame.Raw)
			}
			for name, value := range map[string][]byte{"id": frame.ID, "params": frame.Params, "result": frame.Result, "error": frame.Error} {
				if value != nil && !bytes.Equal(want[name], value) {
					t.Fatalf("%q: %s is %q, want %q", frame.Raw, name, value, want[name])
				}
			}
			if answers := (frame.Result != nil) != (frame.Error != nil); answers == (frame.Method != "") && string(want["method"]) != `""` {
				t.Fatalf("%q is neither request nor answer, or both", frame.Raw)
			}
		}
	})
}

// Some runtimes begin what they write with a byte order mark, and end lines as
// Windows does.
func TestAByteOrderMarkAtTheBeginIsNoPartOfTheFirstFrame(t *testing.T) {
	t.Parallel()
	got, dropped, err := frames(strings.NewReader("\ufeff"+good+"\r\n"+good+"\r\n"), frame.DefaultMax)
	if len(got) != 2 || dropped != 0 || err != io.EOF {
		t.Errorf("%d frames, %d dropped, %v", len(got), dropped, err)
	}
	if got, dropped, _ = frames(strings.NewReader("\ufeff\n"+good), frame.DefaultMax); len(got) != 1 || dropped != 0 {
		t.Errorf("alone on its line: %d frames, %d dropped", len(got), dropped)
	}
}
