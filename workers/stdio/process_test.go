package stdio

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/fakes"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) { os.Exit(fakes.Run(m)) }

// start starts a server that ends with the test.
func start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
	})
	return p
}

func misbehave(t *testing.T, mode ...string) *Process {
	t.Helper()
	return start(t, Spec{Command: fakes.Build(t, "misbehave"), Args: mode})
}

// ask sends a request and returns the first frame that follows.
func ask(t *testing.T, p *Process, method, params string) frame.Frame {
	t.Helper()
	if _, err := p.Write(t.Context(), fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)); err != nil {
		t.Fatal(err)
	}
	frame, err := p.Read()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

const callOK = `{"content":[{"type":"text","text":"ok"}]}`

// wantKind checks the kind of a fault and that its text holds none of secrets.
func wantKind(t *testing.T, err error, kind fault.Kind, secrets ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("the error is %v, want kind %s", err, kind)
	}
	for _, secret := range secrets {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error %q holds %q", err, secret)
		}
	}
}

// R75, R77: nothing of ours gets in, whatever the environment is.
func TestTheChildHasExactlyTheEnvironmentOfItsSpec(t *testing.T) {
	t.Parallel()
	if len(os.Environ()) == 0 {
		t.Fatal("the test has no environment that could leak")
	}
	for name, env := range map[string][]string{
		"nil":      nil,
		"empty":    {},
		"declared": {"PATH=/usr/bin:/bin", "HOME=/h", "TMPDIR=/t", "TERM=dumb", "API_KEY=a=b \u00e9", "EMPTY="},
	} {
		p := start(t, Spec{Command: fakes.Build(t, "echo"), Env: env, Dir: t.TempDir()})
		frame := ask(t, p, "tools/call", `{"name":"secret","arguments":{}}`)
		var result struct {
			StructuredContent struct{ Env map[string]string }
		}
		if err := json.Unmarshal(frame.Result, &result); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, entry := range env {
			key, value, _ := strings.Cut(entry, "=")
			want[key] = value
		}
		if diff := cmp.Diff(want, result.StructuredContent.Env); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The fake for tests of redaction must show a secret in every form.
func TestTheSecretToolShowsAValueInFourForms(t *testing.T) {
	t.Parallel()
	const secret = `s3"cret`
	p := start(t, Spec{Command: fakes.Build(t, "echo"), Env: []string{"KEY=" + secret, "OTHER=x"}})
	result := string(ask(t, p, "tools/call", `{"name":"secret","arguments":{"names":["KEY"]}}`).Result)
	for _, form := range []string{
		`"text":"s3\"cret"`, base64.StdEncoding.EncodeToString([]byte(secret)), `"text":"{\"value\":\"s3\\\"cret\"}"`, `"structuredContent":{"env":{"KEY":"s3\"cret"}}`,
	} {
		if !strings.Contains(result, form) {
			t.Errorf("%s lacks %s", result, form)
		}
	}
}

// R76, decision 25.
func TestHomeAndTmpAreMadePrivate(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "mcp", "files", "home")
	tmp := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, Spec{Command: fakes.Build(t, "echo"), Home: home, Tmp: tmp})
	for _, dir := range []string{home, filepath.Dir(home), tmp} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want 0700", dir, info.Mode())
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Spec{Command: fakes.Build(t, "echo"), Home: filepath.Join(file, "home")})
	wantKind(t, err, fault.SpawnFailed, file)
}

// Report 21: the PATH of the server counts, not ours.
func TestTheProgramIsFoundInThePathOfTheSpecOnly(t *testing.T) {
	t.Parallel()
	echo := fakes.Build(t, "echo")
	work := t.TempDir()
	bin := filepath.Join(work, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(echo, filepath.Join(bin, "server")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, command string
		env           []string
		found         bool
	}{
		{"in PATH", "server", []string{"PATH=" + work + string(filepath.ListSeparator) + bin}, true},
		{"the last PATH counts", "server", []string{"PATH=/nowhere", "PATH=" + bin}, true},
		{"absolute", filepath.Join(bin, "server"), nil, true},
		{"relative to the working directory", "bin/server", nil, true},
		{"no PATH", "sh", nil, false},
		{"no PATH, but in the working directory", "bin", nil, false},
		{"PATH of the host", "go", []string{"PATH=" + bin}, false},
		{"relative directory in PATH", "server", []string{"PATH=bin:.:"}, false},
		{"not executable", "data", []string{"PATH=" + bin}, false},
		{"a directory", bin, nil, false},
		{"empty", "", []string{"PATH=" + bin}, false},
	} {
		p, err := Start(t.Context(), Spec{Command: test.command, Args: []string{"canary"}, Env: test.env, Dir: work})
		if !test.found {
			wantKind(t, err, fault.SpawnFailed, "canary", work)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		p.Kill()
		// The record is of the file, not of the link to it.
		data, err := os.ReadFile(echo)
		if err != nil {
			t.Fatal(err)
		}
		real, err := filepath.EvalSymlinks(echo)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); p.Program != real || p.ProgramDigest != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the program is %s %s", test.name, p.Program, p.ProgramDigest)
		}
	}
}

// R71, R5: the text names no path and no argument.
func TestAFailedStartSaysNothingOfTheCommandLine(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "canary-script")
	if err := os.WriteFile(script, []byte("no program\x00"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []Spec{
		{Command: fakes.Build(t, "echo"), Dir: "/canary/dir"},
		{Command: fakes.Build(t, "echo"), Env: []string{"KEY=canary\x00"}},
		{Command: fakes.Build(t, "echo"), Args: []string{"canary\x00"}},
		{Command: script, Args: []string{"--token=canary"}},
	} {
		_, err := Start(t.Context(), spec)
		wantKind(t, err, fault.SpawnFailed, "canary")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Spec{Command: fakes.Build(t, "echo")}); err != context.Canceled {
		t.Errorf("a start after its context has the error %v", err)
	}
}

// Reports 7, 9 and 10.
func TestLinesThatAreNoMessagesDoNotEndTheConversation(t *testing.T) {
	t.Parallel()
	for mode, dropped := range map[string]uint64{"banner": 2 + 3, "garbage": 3 * 11} {
		p := misbehave(t, mode)
		for range 3 {
			if got := ask(t, p, "tools/call", `{"name":"call"}`); string(got.Result) != callOK {
				t.Errorf("%s: the result is %s", mode, got.Result)
			}
		}
		if p.Dropped() != dropped {
			t.Errorf("%s: %d lines were dropped, want %d", mode, p.Dropped(), dropped)
		}
	}
}

// Report 13, R80.
func TestALargeFramePassesAndOneAboveTheLimitEndsTheOutput(t *testing.T) {
	t.Parallel()
	p := misbehave(t, "huge-line")
	if got := ask(t, p, "tools/call", `{"arguments":{"bytes":1000000}}`); len(got.Result) < 1000000 {
		t.Errorf("the result has %d bytes", len(got.Result))
	}
	if _, err := p.Write(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := p.Read()
		wantKind(t, err, fault.FrameTooLarge)
	}
}

// Report 14, R128.
func TestAFloodOfErrorsBlocksNobody(t *testing.T) {
	t.Parallel()
	p := misbehave(t, "stderr-flood")
	for range 4 {
		if got := ask(t, p, "tools/call", `{}`); string(got.Result) != callOK {
			t.Errorf("the result is %s", got.Result)
		}
	}
}

// Report 23.
func TestContentLengthFramingOfAServerIsNamed(t *testing.T) {
	t.Parallel()
	_, err := misbehave(t, "content-length").Read()
	wantKind(t, err, fault.InitializeFailed)
}

// unread starts a server that stops reading after one line.
func unread(t *testing.T) *Process {
	t.Helper()
	p := misbehave(t, "no-read")
	if _, err := p.Write(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		t.Fatal(err)
	}
	return p
}

// megabyte has no room behind it, which a write may use: tests share it.
var megabyte = slices.Clip([]byte(`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 1<<20) + `"}`))

// Report 15 and trap 14: the caller leaves, the write does not stay for ever.
func TestUnreadInputHoldsNoCallerAndEndsTheServer(t *testing.T) {
	t.Parallel()
	// In a write that nobody reads, the caller goes when its context does.
	p := unread(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if sent, err := p.Write(ctx, megabyte); !sent || err != context.DeadlineExceeded {
		t.Errorf("a write that blocks returned %v, %v; want true and the deadline", sent, err)
	}
	// Behind one that blocks, nothing was sent.
	if sent, err := p.Write(ctx, []byte(good)); sent || err != context.DeadlineExceeded {
		t.Errorf("a write behind it returned %v, %v; want false and the deadline", sent, err)
	}
	// Killing the process ends the write.
	p.Kill()
	<-p.Done()
	if sent, err := p.Write(t.Context(), []byte(good)); sent || err != ErrClosed {
		t.Errorf("a write after the end returned %v, %v; want false and ErrClosed", sent, err)
	}
}

func TestTheWatchdogKillsAServerThatReadsNoMore(t *testing.T) {
	t.Parallel()
	p := stalling(t, Spec{Command: fakes.Build(t, "misbehave"), Args: []string{"no-read"}}, 50*time.Millisecond)
	if _, err := p.Write(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		t.Fatal(err)
	}
	if sent, err := p.Write(t.Context(), megabyte); !sent || err != ErrClosed {
		t.Errorf("the write returned %v, %v; want true and ErrClosed", sent, err)
	}
	<-p.Done()
	if p.Exit() != "signal: killed" {
		t.Errorf("the exit is %q", p.Exit())
	}
}

// stalling starts a server with another watchdog, which the goroutines read.
func stalling(t *testing.T, spec Spec, stall time.Duration) *Process {
	t.Helper()
	p, err := prepare(spec)
	if err != nil {
		t.Fatal(err)
	}
	p.grace, p.term, p.stall = stall, stall, stall
	p.run()
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
	})
	return p
}

// R80: the end of the input is enough for a server that behaves.
func TestCloseEndsTheInputFirst(t *testing.T) {
	t.Parallel()
	p := start(t, Spec{Command: fakes.Build(t, "echo")})
	if p.Exit() != "" {
		t.Errorf("the exit is %q while it runs", p.Exit())
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if p.Exit() != "exit status 0" {
		t.Errorf("the exit is %q, want exit status 0", p.Exit())
	}
	if _, err := p.Read(); err != io.EOF {
		t.Errorf("the output ends with %v, want EOF", err)
	}
}

// R80: a server that ignores the end of its input and SIGTERM is killed.
func TestCloseEndsWithSIGKILL(t *testing.T) {
	t.Parallel()
	spec := Spec{Command: fakes.Build(t, "misbehave"), Args: []string{"hang"}}
	p := stalling(t, spec, 20*time.Millisecond)
	ask(t, p, "initialize", `{}`) // it ignores SIGTERM by now
	if err := p.Close(t.Context()); err != nil || p.Exit() != "signal: killed" {
		t.Errorf("%v, the exit is %q", err, p.Exit())
	}
	// Without time there is no grace.
	p = start(t, spec)
	ask(t, p, "initialize", `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	if err := p.Close(ctx); err != nil || p.Exit() == "" || time.Since(begin) > closeGrace {
		t.Errorf("%v, the exit is %q after %v", err, p.Exit(), time.Since(begin))
	}
}

func TestWhatAServerWroteBeforeItsEndIsRead(t *testing.T) {
	t.Parallel()
	p := start(t, Spec{Command: fakes.Build(t, "echo")})
	for range 100 {
		if _, err := p.Write(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		if _, err := p.Read(); err != nil {
			break
		}
	}
	if n != 100 {
		t.Errorf("%d answers were read after the end, want 100", n)
	}
}

func TestAFrameWithALineFeedIsNotWritten(t *testing.T) {
	t.Parallel()
	p := start(t, Spec{Command: fakes.Build(t, "echo")})
	if sent, err := p.Write(t.Context(), []byte("{\n}")); sent || err == nil {
		t.Errorf("two lines as one frame: %v, %v", sent, err)
	}
}
