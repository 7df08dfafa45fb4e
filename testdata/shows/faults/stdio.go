package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// starts are faults of a server that starts, or does not.
var starts = []row{
	{from: "C2 21", fault: "its program is not there", right: "a clear failure, without the command line",
		declare: func(*stage) string { return command("no-such-program", "--token=s3cret-argument") },
		do: func(ctx context.Context, s *stage) (string, error) {
			c, err := s.failed(ctx, "spawn_failed")
			if err == nil && strings.Contains(c.Message, "s3cret") {
				err = errors.New("the command line is in the message")
			}
			return c.Message, err
		}},
	{from: "C2 22", fault: "3 s until it reads, where a call may take 1 s", right: "the deadline of the start is another one",
		declare: with(script(`sleep 3; exec "$0/misbehave" banner`), "connect_timeout_seconds: 30\ntimeout_seconds: 1"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 1) }},
	{from: "C2 23", fault: "frames with Content-Length", right: "wrong framing is said, without a timeout",
		declare: fake("misbehave", "content-length"),
		do: func(ctx context.Context, s *stage) (string, error) {
			c, err := s.failed(ctx, "initialize_failed")
			if err == nil && !strings.Contains(c.Message, "wrong framing") {
				err = fmt.Errorf("the message is %q", c.Message)
			}
			return c.Message, err
		}},
	{from: "C2 15, D3", fault: "stops reading after the handshake", right: "given up at the deadline, and nothing of it is left",
		declare: with(fake("misbehave", "no-read"), "connect_timeout_seconds: 1"),
		do: func(ctx context.Context, s *stage) (string, error) {
			c, err := s.failed(ctx, "connect_timeout")
			if err != nil {
				return "", err
			}
			return c.Message, s.gone(ctx)
		}},
	{from: "E14", fault: "fails, and the host asks again and again", right: "remembered for 30 s: started once",
		declare: script(`exit 1`),
		do: func(ctx context.Context, s *stage) (string, error) {
			if _, err := s.failed(ctx, "initialize_failed"); err != nil {
				return "", err
			}
			for range 20 {
				if _, err := s.user.Tools(ctx); err != nil {
					return "", err
				}
			}
			return once(s.recorded(ctx, "connection_claimed"))
		}},
	{from: "C2 19", fault: "eight lists at once", right: "one process",
		declare: fake("misbehave", "banner"),
		do: func(ctx context.Context, s *stage) (string, error) {
			var all sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				all.Go(func() { errs[i] = s.ready(ctx, s.user, "call") })
			}
			all.Wait()
			if n := len(s.processes()); n != 1 {
				errs = append(errs, fmt.Errorf("%d processes", n))
			}
			return "one process", errors.Join(errs...)
		}},
	{from: "C2 19", fault: "has no tool at first, and says later that it has", right: "listed when it has",
		declare: fake("misbehave", "late-tools"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 1) }},
	{from: "E13", fault: "two principals", right: "two processes",
		declare: fake("misbehave", "banner"),
		do: func(ctx context.Context, s *stage) (string, error) {
			other, err := s.enrol(ctx, "other")
			if err != nil {
				return "", err
			}
			defer other.Close()
			if err := errors.Join(s.ready(ctx, s.user, "call"), s.ready(ctx, other, "call")); err != nil {
				return "", err
			}
			if n := len(s.processes()); n != 2 {
				return "", fmt.Errorf("%d processes", n)
			}
			return "two processes", nil
		}},
	{from: "C2 18", fault: "a container that runs on when its input ends", right: "labelled containers, reaped by lease",
		not: "no containers are started in this release: docker is a program like any other"},
}

func once(events []string, err error) (string, error) {
	if len(events) != 1 {
		err = errors.Join(err, fmt.Errorf("%d starts", len(events)))
	}
	return "one start", err
}

// frames are faults of what a server writes.
var frames = []row{
	{from: "C2 7, D7", fault: "text before and between the messages", right: "skipped and counted",
		declare: fake("misbehave", "banner"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 3) }},
	{from: "C2 9 10, D4", fault: "lines that are no messages, or two readers would read two", right: "each dropped alone",
		declare: fake("misbehave", "garbage"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 3) }},
	{from: "D7", fault: "a byte order mark, and lines that end with CR LF", right: "read all the same",
		declare: script(`printf '\357\273\277'; "$0/misbehave" version 2025-11-25 | sed -u 's/$/\r/'`),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 3) }},
	{from: "D7", fault: "UTF-16 before its messages", right: "dropped",
		declare: script(`printf '\377\376h\000i\000\n\000\n'; exec "$0/misbehave" version 2025-11-25`),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 1) }},
	{from: "C2 13", fault: "a result of 1 MB in a line", right: "passed",
		declare: fake("misbehave", "huge-line"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			text, err := s.text(ctx, "call", `{"bytes":1000000}`)
			if err == nil && len(text) != 1_000_000 {
				err = fmt.Errorf("%d bytes", len(text))
			}
			return "1 MB came", err
		}},
	{from: "D1", fault: "a line of 17 MiB", right: "the call says so, the next one is served",
		declare: with(fake("misbehave", "huge-line"), "timeout_seconds: 20"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			a, err := s.user.Call(ctx, "call", `{}`)
			if err := errors.Join(err, has(a, "frame_too_large")); err != nil {
				return "", err
			}
			return "frame_too_large, then served", s.until(ctx, "a next call is served", func() (bool, error) {
				text, _ := s.text(ctx, "call", `{"bytes":5}`)
				return text == "yyyyy", nil
			})
		}},
	{from: "C7 59", fault: "answers twice", right: "the second is dropped",
		declare: fake("misbehave", "answer-twice"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 3) }},
	{from: "C7 59", fault: "answers that nobody asked for, and progress of nobody's", right: "dropped",
		declare: fake("misbehave", "orphan"),
		do:      func(ctx context.Context, s *stage) (string, error) { return s.works(ctx, 3) }},
	{from: "C7 58, D9", fault: "answers after the deadline of the call", right: "told once, recorded late, the next call is served",
		declare: with(fake("misbehave", "late"), "timeout_seconds: 1"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "late"); err != nil {
				return "", err
			}
			a, err := s.user.Call(ctx, "late", `{}`)
			if err := errors.Join(err, has(a, "timed_out")); err != nil {
				return "", err
			}
			if err := s.until(ctx, "call_late_result", func() (bool, error) {
				found, err := s.recorded(ctx, "call_late_result")
				return len(found) == 1, err
			}); err != nil {
				return "", err
			}
			return s.works(ctx, 1)
		}},
	{from: "C5 35 37", fault: "schemas of all forms, one that refers to itself", right: "all that can be called are listed, bytes untouched",
		declare: fake("misbehave", "odd-shapes"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "good"); err != nil {
				return "", err
			}
			a, err := s.user.Do(ctx, "tools/list", `{}`)
			const schema = `"inputSchema":{"type":"object","$defs":{"n":{"$ref":"#/$defs/n"}},"maximum":9007199254740993}`
			var page struct{ Tools []json.RawMessage }
			err = errors.Join(err, has(a, schema), json.Unmarshal(a.Result, &page))
			return fmt.Sprintf("%d tools", len(page.Tools)), err
		}},
	{from: "C5 38 39", fault: "results without text, of unknown types, with odd numbers", right: "the bytes that the server sent",
		declare: fake("odd"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "give"); err != nil {
				return "", err
			}
			cases := map[string]string{
				"unknown type": `"content":[{"type":"video","data":"%%","n":9007199254740993,"e":1e400,"f":1.0}]`,
				"null":         `"structuredContent":null,"content":[{"type":"text","text":""}]`,
				"image":        `{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png","n":1.0}`,
				"error shape":  `"isError":true,"content":[],"structuredContent":{"code":1.0}`,
				"empty":        `{}`,
			}
			for name, part := range cases {
				a, err := s.user.Call(ctx, "give", `{"case":"`+name+`"}`)
				if err := errors.Join(err, has(a, part)); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%d results, the same bytes", len(cases)), nil
		}},
	{from: "C5 41", fault: "a call without arguments", right: "the server gets none, or {}, and never null",
		declare: fake("odd"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "params"); err != nil {
				return "", err
			}
			a, err := s.user.Do(ctx, "tools/call", `{"name":"params"}`)
			if err != nil || a.Error != nil || strings.Contains(string(a.Result), "null") {
				return "", errors.Join(err, fmt.Errorf("the result is %s %s", a.Result, a.Error))
			}
			if strings.Contains(string(a.Result), `\"arguments\":{}`) {
				return "the server got {}", nil
			}
			return "the server got none", nil
		}},
}

// has makes sure that an answer says something.
func has(a show.Answer, what string) error {
	if all := string(a.Result) + string(a.Error); !strings.Contains(all, what) {
		return fmt.Errorf("no %s in %.500s", what, all)
	}
	return nil
}

// processes are faults of the life of a server.
var processes = []row{
	{from: "C2 16, E8", fault: "leaves a grandchild that holds its output", right: "ended with it",
		declare: fake("misbehave", "fork"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			if _, err := s.text(ctx, "call", `{}`); err != nil {
				return "", err
			}
			return s.ends(ctx, 2)
		}},
	{from: "E8", fault: "leaves a daemon: a session of its own, no parent, no output", right: "ended with it",
		declare: script(`sh -c 'setsid sh -c "exec sleep 600 <&- >&- 2>&-" &'; exec "$0/misbehave" banner`),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			return s.ends(ctx, 2)
		}},
	{from: "C2 15, E8", fault: "ignores the end of its input and SIGTERM", right: "killed all the same",
		declare: fake("misbehave", "hang"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			return s.ends(ctx, 1)
		}},
	{from: "C2 20", fault: "is closed while it has a call", right: "the call ends with the server, and the log says how",
		declare: with(fake("misbehave", "hang"), "timeout_seconds: 40"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "call"); err != nil {
				return "", err
			}
			answered := make(chan error, 1)
			begun := time.Now()
			go func() {
				_, err := s.user.Call(ctx, "call", `{}`)
				answered <- err
			}()
			if err := s.until(ctx, "call_started", func() (bool, error) {
				found, err := s.recorded(ctx, "call_started")
				return len(found) == 1, err
			}); err != nil {
				return "", err
			}
			if err := s.leave(ctx); err != nil {
				return "", err
			}
			if err := <-answered; err != nil {
				return "", err
			}
			took := time.Since(begun)
			found, err := s.recorded(ctx, "call_indeterminate")
			if len(found) != 1 || took > 10*time.Second {
				err = errors.Join(err, fmt.Errorf("after %v the log says %v", took, found))
			}
			return "indeterminate after " + took.Round(100*time.Millisecond).String(), err
		}},
	{from: "E9", fault: "takes all memory, processes and files", right: "limits that the kernel holds it to",
		not: "no limits are set: without root a limit of processes is of the user, and cgroups are not delegated; run gatebus in a unit or container that has them"},
}

// ends takes the server away while it has so many processes, and waits until there
// is none.
func (s *stage) ends(ctx context.Context, least int) (string, error) {
	n := len(s.processes())
	if n < least {
		return "", fmt.Errorf("%d processes, which is less than the fault has", n)
	}
	begun := time.Now()
	if err := s.leave(ctx); err != nil {
		return "", err
	}
	err := s.gone(ctx)
	return fmt.Sprintf("%d processes ended in %v", n, time.Since(begun).Round(100*time.Millisecond)), err
}

// errorsOf are faults of what a server writes to its standard error.
var errorsOf = []row{
	{from: "C2 14, D7", fault: "256 KB on its standard error with each answer", right: "never blocked, and 12,000 characters are kept",
		declare: fake("misbehave", "stderr-flood"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if _, err := s.works(ctx, 3); err != nil {
				return "", err
			}
			if err := s.leave(ctx); err != nil {
				return "", err
			}
			log, err := s.logged(ctx)
			if err == nil && (!log.Truncated || len(strings.TrimSuffix(log.Text, "\n<truncated>\n")) != 12_000) {
				err = fmt.Errorf("kept are %d bytes", len(log.Text))
			}
			return "3 calls, 12,000 characters kept", err
		}},
	{from: "E11", fault: "dies of a missing module and prints its secret", right: "the failure says why, redacted; the log is private",
		declare: with(script(`echo "Error: no module for $API_KEY" >&2; exit 1`), "env: {API_KEY: s3cret-of-the-faults}"),
		do: func(ctx context.Context, s *stage) (string, error) {
			c, err := s.failed(ctx, "initialize_failed")
			if err != nil {
				return "", err
			}
			log, err := s.logged(ctx)
			if err != nil {
				return "", err
			}
			const said = "Error: no module for <redacted:API_KEY>"
			if log.Text != said+"\n" || !strings.HasSuffix(c.Message, said) {
				return "", fmt.Errorf("the log has %q, the failure says %q", log.Text, c.Message)
			}
			data, err := os.ReadFile(filepath.Join(s.Home, "logs", "mcp-stderr.log"))
			if err != nil || strings.Contains(string(data), "s3cret") {
				return "", errors.Join(err, errors.New("the secret is in the file"))
			}
			for path, want := range map[string]os.FileMode{"logs": 0o700, "logs/mcp-stderr.log": 0o600} {
				if info, err := os.Stat(filepath.Join(s.Home, path)); err != nil || info.Mode().Perm() != want {
					return "", errors.Join(err, fmt.Errorf("%s is not %v", path, want))
				}
			}
			return c.Message, nil
		}},
}

// logged waits for the entry of the log of a server that has ended.
func (s *stage) logged(ctx context.Context) (log client.ServerLog, err error) {
	err = s.until(ctx, "its standard error is kept", func() (bool, error) {
		out, errs, code := s.CLI(ctx, "server", "logs", s.name, "-o", "json")
		var logs []client.ServerLog
		if code != 0 {
			return false, errors.New(errs)
		}
		if err := json.Unmarshal([]byte(out), &logs); err != nil {
			return false, err
		}
		i := slices.IndexFunc(logs, func(l client.ServerLog) bool { return !l.Running })
		if i >= 0 {
			log = logs[i]
		}
		return i >= 0, nil
	})
	return log, err
}

// isolation are attacks by what is declared, and on what surrounds a server.
var isolation = []row{
	{from: "E1", fault: "arguments that a shell would obey", right: "no shell sees them",
		declare: fake("misbehave", "banner", "; touch pwned", "$(touch pwned)", "`touch pwned`", "\ntouch pwned\n", "| touch pwned", "&& touch pwned"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if _, err := s.works(ctx, 1); err != nil {
				return "", err
			}
			if entries, err := os.ReadDir(s.Root); err != nil || len(entries) > 0 {
				return "", errors.Join(err, fmt.Errorf("in the workspace there is %v", entries))
			}
			return "nothing ran", nil
		}},
	{from: "E3, E4", fault: "looks for what the environment of gatebus holds", right: "it has the allow list and what is declared",
		declare: with(fake("echo"), "env: {API_KEY: s3cret-of-the-faults, LOG_LEVEL: debug}"),
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := s.ready(ctx, s.user, "secret"); err != nil {
				return "", err
			}
			a, err := s.user.Call(ctx, "secret", `{}`)
			var result struct {
				StructuredContent struct{ Env map[string]string }
			}
			if err == nil {
				err = json.Unmarshal(a.Result, &result)
			}
			var names []string
			for name := range result.StructuredContent.Env {
				names = append(names, name)
			}
			slices.Sort(names)
			if want := []string{"API_KEY", "HOME", "LANG", "LOG_LEVEL", "PATH", "TERM", "TMPDIR"}; err != nil || !slices.Equal(names, want) {
				return "", errors.Join(err, fmt.Errorf("it has %v", names))
			}
			env, place := result.StructuredContent.Env, filepath.Join(s.Home, "mcp", s.name)
			if env["HOME"] != filepath.Join(place, "home") || env["TMPDIR"] != filepath.Join(place, "tmp") || env["TERM"] != "dumb" {
				return "", fmt.Errorf("it has %v", env)
			}
			return strings.Join(names, " "), nil
		}},
	{from: "E3", fault: "a declaration that sets LD_PRELOAD", right: "refused by its name, and what was declared stays",
		declare: fake("misbehave", "banner"),
		do: func(ctx context.Context, s *stage) (string, error) {
			const name = "preloads"
			if err := s.Declare(name, fake("misbehave", "banner")(s)+"env: {LD_PRELOAD: /tmp/s3cret.so}\n"); err != nil {
				return "", err
			}
			defer os.Remove(filepath.Join(s.Core, "agent", "mcp", name+".yaml"))
			var loaded client.CoreReload
			if err := s.boss.Do(ctx, "core/reload", nil, &loaded); err != nil {
				return "", err
			}
			var problems string
			for _, p := range loaded.Cores[0].Problems {
				if strings.Contains(p, name) {
					problems += p + " "
				}
			}
			if !loaded.Cores[0].Failed || !strings.Contains(problems, "LD_PRELOAD") || strings.Contains(problems, "s3cret") {
				return "", fmt.Errorf("%+v", loaded)
			}
			_, err := s.works(ctx, 1)
			return problems, err
		}},
	{from: "E5", fault: "declared, and nobody has said yes", right: "not started, and no folder made for it",
		declare: func(s *stage) string {
			s.held[s.name] = true
			return fake("misbehave", "banner")(s)
		},
		do: func(ctx context.Context, s *stage) (string, error) {
			if _, err := s.waits(ctx); err != nil {
				return "", err
			}
			if _, err := os.Stat(filepath.Join(s.Home, "mcp", s.name)); !errors.Is(err, os.ErrNotExist) || len(s.processes()) > 0 {
				return "", errors.Join(err, errors.New("something was made for it"))
			}
			return "waits for a person", nil
		}},
	{from: "E6", fault: "its cwd becomes a link out of the workspace before the yes", right: "looked at again: not started",
		declare: func(s *stage) string {
			s.held[s.name] = true
			return with(fake("misbehave", "banner"), "cwd: "+s.name)(s)
		},
		do: func(ctx context.Context, s *stage) (string, error) {
			cwd, outside := filepath.Join(s.Root, s.name), filepath.Join(s.Home, "mcp")
			if err := os.Mkdir(cwd, 0o700); err != nil {
				return "", err
			}
			defer os.Remove(cwd)
			waits, err := s.waits(ctx)
			if err != nil {
				return "", err
			}
			if err := errors.Join(os.Remove(cwd), os.Symlink(outside, cwd)); err != nil {
				return "", err
			}
			if _, err := s.boss.Approve(ctx, waits.Approval); err != nil {
				return "", err
			}
			c, err := s.failed(ctx, "cwd_outside_workspace")
			return c.Message, err
		}},
	{from: "E7", fault: "its program is another one when it is started again", right: "not started; a person is asked anew, and told why",
		declare: func(s *stage) string {
			s.held[s.name] = true
			_ = s.install("") // without it there is nothing to start
			return command(s.program(), "exit")
		},
		do: func(ctx context.Context, s *stage) (string, error) {
			if err := errors.Join(s.connect(ctx), s.install("changed")); err != nil {
				return "", err
			}
			if _, err := s.user.Call(ctx, "call", `{}`); err != nil { // which ends it
				return "", err
			}
			waits, err := s.waits(ctx)
			if err != nil {
				return "", err
			}
			failed, err := s.recorded(ctx, "server_failed")
			if err != nil || len(failed) != 1 || !strings.Contains(failed[0], "program_changed") {
				return "", fmt.Errorf("the log has %v, %v", failed, err)
			}
			if opened, err := s.recorded(ctx, "connection_opened"); err != nil || len(opened) != 1 {
				return "", fmt.Errorf("it was started: %v, %v", opened, err)
			}
			out, stderr, code := s.CLI(ctx, "approvals", "show", waits.Approval)
			if code != 0 || !strings.Contains(out, "has changed since it was approved") {
				return "", fmt.Errorf("the approval shows %q %q", out, stderr)
			}
			if _, err := s.boss.Approve(ctx, waits.Approval); err != nil {
				return "", err
			}
			return "started after another yes", s.ready(ctx, s.user, "call")
		}},
}

// program is a copy of a fake that is the row's own.
func (s *stage) program() string { return filepath.Join(s.Core, s.name) }

// install puts the fake there with something behind it, as an update does.
func (s *stage) install(more string) error {
	data, err := os.ReadFile(filepath.Join(s.fakes, "misbehave"))
	if err == nil {
		err = os.WriteFile(s.program()+".new", append(data, more...), 0o700)
	}
	if err == nil {
		err = os.Rename(s.program()+".new", s.program())
	}
	return err
}
