package show

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
)

// Pipe is an MCP server, or what behaves as one, at the pipes of a process of its
// own. It sends and keeps raw bytes. One goroutine at a time may use it; a request
// that its context ends breaks it.
type Pipe struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
	last      int64
	stateless bool
}

// OpenPipe starts a command, with all of its environment, and shakes hands, unless
// it is to be probed first and speaks MCP 2026-07-28. The process ends with ctx at
// the latest.
func OpenPipe(ctx context.Context, dir string, env []string, probe bool, command ...string) (*Pipe, error) {
	p := &Pipe{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Dir, p.cmd.Env = dir, env
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<20)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if probe {
		p.stateless = true
		a, err := p.Do(ctx, "server/discover", "{}")
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("%s: %w", command[0], err)
		}
		if a.Result != nil {
			return p, nil
		}
		p.stateless = false
	}
	if _, err := p.Do(ctx, "initialize", hello); err != nil {
		p.Close()
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	_, err = io.WriteString(p.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	return p, err
}

// Do sends a request with params as they are; those of a stateless one get what
// it must say of its client.
func (p *Pipe) Do(ctx context.Context, method, params string) (a Answer, err error) {
	if p.stateless {
		params = introduce(params)
	}
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })() // it may have ended
	p.last++
	if _, err := fmt.Fprintf(p.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", p.last, method, params); err != nil {
		return a, err
	}
	for {
		line, err := p.out.ReadBytes('\n')
		if err != nil {
			return a, err
		}
		if done, err := a.take(bytes.TrimRight(line, "\n"), p.last); done || err != nil {
			return a, err
		}
	}
}

// Close ends the process.
func (p *Pipe) Close() {
	p.in.Close()
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}
