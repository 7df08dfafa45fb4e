package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// pipe is a server over stdio: processes of a program of its own name, which is a
// copy of this one, and the files that they share.
type pipe struct {
	name, program, dir string
	stateless          bool
	up                 func() int // the process that starts them
}

func newPipe(dir, name string, stateless bool) (*pipe, error) {
	p := &pipe{name: name, program: filepath.Join(dir, name), dir: dir, stateless: stateless}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	return p, os.WriteFile(p.program, data, 0o700)
}

func (p *pipe) declaration() string {
	return fmt.Sprintf("transport: stdio\ncommand: %q\nargs: [serve, %q, %q, %q]\n", p.program, p.dir, p.name, strconv.FormatBool(p.stateless))
}

// file is one of the files that the processes share.
func (p *pipe) file(what string) string { return filepath.Join(p.dir, p.name+"."+what) }

func (p *pipe) notes() ([]string, error) {
	data, err := os.ReadFile(p.file("notes"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n"), err
}

// mode is how processes behave that are started from now on: die in the
// handshake, or as they should.
func (p *pipe) mode(mode string) error { return os.WriteFile(p.file("mode"), []byte(mode), 0o600) }

func (p *pipe) grow(n int) error {
	return os.WriteFile(p.file("grown"), []byte(strconv.Itoa(n)), 0o600)
}

// processes are those of the server that run.
func (p *pipe) processes() map[int]bool {
	all := map[int]bool{}
	for pid, parent := range show.Running(p.program) {
		if parent == p.up() {
			all[pid] = true
		}
	}
	return all
}

// signal sends a signal to all processes, and says to how many.
func (p *pipe) signal(s syscall.Signal) (n int) {
	for pid := range p.processes() {
		if syscall.Kill(pid, s) == nil {
			n++
		}
	}
	return n
}

// serve is the server at the pipes of this process. A call with do
//
//	hold   waits to be cancelled
//	exit   ends the process behind the answer
//	die    kills the process in place of the answer
//	tell   says that the tools changed before the answer
//	tell-die  says so in place of the answer, and kills the process
//
// In the mode die it kills itself at the first request of a handshake.
func serve(dir, name string, stateless bool) error {
	p := &pipe{name: name, dir: dir}
	read := func(what string) string {
		data, _ := os.ReadFile(p.file(what)) // not there: nothing of it
		return string(data)
	}
	var mu sync.Mutex // of the output
	line := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	notes, err := os.OpenFile(p.file("notes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	c := &core{
		stateless: stateless,
		// O_APPEND makes short writes of several processes whole lines.
		note:  func(text string) { fmt.Fprintln(notes, text) },
		grown: func() int { n, _ := strconv.Atoi(read("grown")); return n },
	}
	die := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute) // it comes
	}
	mode := read("mode")
	var subscription json.RawMessage
	changed := func() {
		if subscription != nil {
			line(`{"jsonrpc":"2.0","method":%q,"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, notice, subscription)
		} else {
			line(`{"jsonrpc":"2.0","method":%q}`, notice)
		}
	}
	for in := bufio.NewReaderSize(os.Stdin, 1<<20); ; {
		data, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		var m message
		if err = json.Unmarshal(data, &m); err != nil {
			return err
		}
		switch do := m.Params.Arguments.Do; {
		case mode == "die" && (m.Method == "initialize" || m.Method == "server/discover"):
			c.note("died")
			die()
		case m.Method == "notifications/cancelled":
			c.cancel(string(m.Params.RequestID))
		case m.Method == "subscriptions/listen" && stateless:
			subscription = m.ID
			line(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"toolsListChanged":true}}}`, subscription)
		case m.Method == "tools/call" && strings.HasPrefix(do, "tell"):
			c.note(m.Params.Arguments.ID)
			changed()
			if do == "tell-die" {
				die()
			}
			line(`{"jsonrpc":"2.0","id":%s,"result":{%s"content":[{"type":"text","text":"y"}]}}`, m.ID, c.kind())
		case m.Method == "tools/call":
			answer := c.call(m, string(m.ID))
			go func() {
				text := answer()
				if do == "die" {
					die()
				}
				line(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, text)
				if do == "exit" {
					os.Exit(0)
				}
			}()
		default:
			if a := c.answer(m); a != "" {
				line(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, a)
			}
		}
	}
}
