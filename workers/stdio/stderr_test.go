package stdio

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/fakes"
)

const apiKey = "s3cret-of-the-server"

func redactor(t *testing.T) *redact.Redactor {
	t.Helper()
	r, err := redact.NewRedactor(redact.Secret{Name: "API_KEY", Source: "mcp.env:API_KEY", Value: redact.NewRaw(apiKey)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// shell starts a script.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	return start(t, Spec{Command: sh, Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin", "API_KEY=" + apiKey}})
}

func TestTheStandardErrorIsKeptUntilTheEndAndRedacted_R124_R125(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script, text, tail string
		bytes              int64
		truncated          bool
	}{
		"nothing":      {script: "exit 0"},
		"a crash":      {script: `echo "no such module" >&2; printf %s "key $API_KEY" >&2; exit 1`, text: "no such module\nkey <redacted:API_KEY>", tail: "no such module key <redacted:API_KEY>", bytes: 39},
		"no text":      {script: `printf '\377\033[2J' >&2`, text: "\ufffd" + `\u001b[2J`, tail: `\ufffd\u001b[2J`, bytes: 5},
		"12000":        {script: `printf '%012000d' 0 >&2`, text: strings.Repeat("0", 12000), tail: strings.Repeat("0", 500), bytes: 12000},
		"one more":     {script: `printf '%012000d1' 0 >&2`, text: strings.Repeat("0", 12000), tail: strings.Repeat("0", 499) + "1", bytes: 12001, truncated: true},
		"on the edge":  {script: `printf '%011990d%s' 0 "$API_KEY" >&2`, text: strings.Repeat("0", 11990) + "<redacted:", tail: strings.Repeat("0", 480) + "<redacted:API_KEY>", bytes: 12010, truncated: true},
		"much of it":   {script: `head -c 9000000 /dev/zero | tr '\0' x >&2; echo "$API_KEY" >&2`, text: strings.Repeat("x", 12000), bytes: 9000021, truncated: true},
		"grandchild's": {script: `(echo late >&2) & wait`, text: "late\n", tail: "late", bytes: 5},
	} {
		p := shell(t, test.script)
		said, err := p.Stderr(t.Context(), redactor(t))
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Stderr(t.Context(), nil)
		if err != nil || again != said {
			t.Errorf("%s: the second time it is %+v, %v", name, again, err)
		}
		if diff := cmp.Diff([]any{test.text, test.tail, test.bytes, test.truncated}, []any{said.Text.String(), said.Tail.String(), said.Bytes, said.Truncated}); diff != "" || said.Failed {
			t.Errorf("%s: failed %v (-want +got)\n%s", name, said.Failed, diff)
		}
	}
}

func TestAStandardErrorThatCannotBeRedactedIsNotShown_R127(t *testing.T) {
	t.Parallel()
	p := shell(t, `echo "$API_KEY" >&2`)
	said, err := p.Stderr(t.Context(), nil) // whatever panics
	if err != nil {
		t.Fatal(err)
	}
	const marker = "<redaction-failed>"
	if !said.Failed || said.Text.String() != marker || said.Tail.String() != marker {
		t.Errorf("it is %+v", said)
	}
}

// The caller goes when its context does, and what holds the standard error beyond
// the end of the server holds nobody.
func TestNobodyWaitsForAStandardErrorForEver(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid here")
	}
	p := shell(t, `echo begun >&2; cat; setsid sleep 20 & exit 0`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Stderr(ctx, redactor(t)); err != context.Canceled {
		t.Errorf("while it runs: %v", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if said, err := p.Stderr(t.Context(), redactor(t)); err != nil || said.Text.String() != "begun\n" {
		t.Errorf("after the end: %+v, %v", said, err)
	}
	if took := time.Since(begun); took > 2*drain {
		t.Errorf("it took %v", took)
	}
}

// R124: raw text is in no file that has a name.
func TestTheStandardErrorIsOnNoDisk(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	p := start(t, Spec{Command: fakes.Build(t, "misbehave"), Args: []string{"stderr-flood"}, Tmp: tmp, Env: []string{"TMPDIR=" + tmp}})
	ask(t, p, "tools/call", `{}`)
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
		t.Errorf("there is %v, %v", entries, err)
	}
	if f, ok := p.stderr.file.(*os.File); ok {
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err == nil && !strings.HasPrefix(name, "/memfd:") {
			t.Errorf("it is in %s", name)
		}
	}
}

func text(t *testing.T, s string) redact.DurableText {
	t.Helper()
	return redactor(t).Text(redact.NewRaw(s)).Durable
}

func TestTheLogHasAHeaderForEachEntry_R124(t *testing.T) {
	t.Parallel()
	log := &Log{Path: filepath.Join(t.TempDir(), "logs", "mcp-stderr.log")}
	if got, err := log.Last("docs", 10); err != nil || len(got) > 0 {
		t.Errorf("of no log: %v, %v", got, err)
	}
	at := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	docs := Entry{Time: at, Server: "docs", Connection: "c-1", Generation: 7, Exit: "exit status 1", Bytes: 30000, Truncated: true}
	other := Entry{Time: at, Server: "do\ncs", Connection: "c-2"}
	for _, add := range []struct {
		Entry
		text string
	}{
		{docs, "one\n=== {\"server\":\"other\"}\n===\ntwo"}, {other, "nothing of docs\n"}, {docs, "<redaction-failed>"}, {docs, ""},
	} {
		if err := log.Append(add.Entry, text(t, add.text)); err != nil {
			t.Fatal(err)
		}
	}
	want := []Logged{
		{docs, "one\n === {\"server\":\"other\"}\n ===\ntwo\n<truncated>\n"}, {docs, "<redaction-failed>\n<truncated>\n"}, {docs, "<truncated>\n"},
	}
	got, err := log.Last("docs", 10)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err = log.Last("docs", 2); err != nil || len(got) != 2 || got[1].Text != want[2].Text {
		t.Errorf("the last two are %+v, %v", got, err)
	}
	if got, err = log.Last("do\ncs", 2); err != nil || len(got) != 1 {
		t.Errorf("of the other server: %+v, %v", got, err)
	}
	if got, err = log.Last("other", 2); err != nil || len(got) > 0 {
		t.Errorf("a server has written a header: %+v, %v", got, err)
	}
}

// R126: whatever the umask is, and whatever they were.
func TestTheLogIsPrivate_R126(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	log := &Log{Path: filepath.Join(home, "logs", "mcp-stderr.log")}
	for range 2 {
		if err := log.Append(Entry{Server: "docs"}, text(t, "x")); err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]os.FileMode{filepath.Dir(log.Path): 0o700, log.Path: 0o600} {
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s is %v, %v", path, info.Mode(), err)
			}
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(home string) error{
		"the folder is a link": func(home string) error { return os.Symlink(outside, filepath.Join(home, "logs")) },
		"the folder is a file": func(home string) error { return os.WriteFile(filepath.Join(home, "logs"), nil, 0o600) },
		"the file is a link": func(home string) error {
			if err := os.Mkdir(filepath.Join(home, "logs"), 0o700); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(outside, "file"), filepath.Join(home, "logs", "mcp-stderr.log"))
		},
	} {
		home := t.TempDir()
		if err := prepare(home); err != nil {
			t.Fatal(err)
		}
		err := (&Log{Path: filepath.Join(home, "logs", "mcp-stderr.log")}).Append(Entry{Server: "docs"}, text(t, "x"))
		if !fault.Is(err, fault.PrivatePathUnsafe) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
}

func TestTheOlderHalfOfTheLogIsDropped_Decision28(t *testing.T) {
	t.Parallel()
	log := &Log{Path: filepath.Join(t.TempDir(), "logs", "mcp-stderr.log"), Max: 10_000}
	var last Logged
	for i := range 100 {
		last = Logged{Entry{Server: "docs", Generation: uint32(i)}, fmt.Sprintf("entry %d\n=== no header\n%s\n", i, strings.Repeat("x", 200))}
		if err := log.Append(last.Entry, text(t, last.Text)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(log.Path)
		if err != nil || info.Size() > log.Max {
			t.Fatalf("after %d entries: %v, %v", i+1, info.Size(), err)
		}
	}
	got, err := log.Last("docs", 1000)
	if err != nil || len(got) < 10 {
		t.Fatalf("%d are left, %v", len(got), err)
	}
	for i, e := range got {
		n := uint32(100 - len(got) + i)
		if e.Generation != n || !strings.HasPrefix(e.Text, fmt.Sprintf("entry %d\n === no header\n", n)) {
			t.Fatalf("entry %d of %d is %+v", i, len(got), e)
		}
	}
	// One that is larger than all there may be is there alone.
	if err := log.Append(Entry{Server: "docs"}, text(t, strings.Repeat("y", 20_000))); err != nil {
		t.Fatal(err)
	}
	if got, err = log.Last("docs", 10); err != nil || len(got) != 1 || len(got[0].Text) != 20_001 {
		t.Errorf("%d are left, %v", len(got), err)
	}
}

// Processes of one home share the log.
func TestAppendsAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "logs", "mcp-stderr.log")
	const writers, each = 4, 25
	failed := make(chan error, writers)
	for w := range writers {
		log := &Log{Path: path} // as another process has it
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				err = log.Append(Entry{Server: fmt.Sprint("s", w), Generation: uint32(i)}, text(t, strings.Repeat("x", 100*i)))
			}
			failed <- err
		}()
	}
	for range writers {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	for w := range writers {
		got, err := (&Log{Path: path}).Last(fmt.Sprint("s", w), 1000)
		if err != nil || len(got) != each {
			t.Fatalf("%d entries of %d, %v", len(got), w, err)
		}
		for i, e := range got {
			if e.Generation != uint32(i) || len(e.Text) != 100*i+min(i, 1) {
				t.Errorf("entry %d of %d is %+v", i, w, e)
			}
		}
	}
}
