package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/gatebus/gatebus/workers/secrets"
)

// readSecret reads a secret: from the file, from stdin where that is "-" or empty,
// or from a person at a terminal, without an echo. The line end of the last line
// is not part of it. A secret is never an argument, which other processes can see.
func (m *Main) readSecret(ctx context.Context, what, file string) (string, error) {
	data, err := m.secretBytes(ctx, what, file)
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case value == "":
		return "", usage("%s: nothing was given", what)
	case len(value) > secrets.MaxValue:
		return "", usage("%s: it is longer than %d bytes", what, secrets.MaxValue)
	case !utf8.ValidString(value) || strings.Contains(value, "\x00"):
		return "", usage("%s: it is not text in UTF-8", what)
	}
	return value, nil
}

func (m *Main) secretBytes(ctx context.Context, what, file string) ([]byte, error) {
	in := m.Stdin
	if f, ok := m.Stdin.(*os.File); file == "" && ok && term.IsTerminal(int(f.Fd())) {
		data, err := m.prompt(ctx, f, what)
		if err != nil && ctx.Err() == nil {
			err = usage("%s: it cannot be read from the terminal", what)
		}
		return data, err
	}
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("--from-file: %v", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, secrets.MaxValue+3)) // a line end may follow
	if err != nil {
		return nil, usage("%s: it cannot be read: %v", what, err)
	}
	return data, nil
}

// prompt asks a person at a terminal. Who interrupts it has his echo back.
func (m *Main) prompt(ctx context.Context, tty *os.File, what string) ([]byte, error) {
	fd := int(tty.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(m.Stderr, "%s: ", printable(what, ""))
	defer fmt.Fprintln(m.Stderr)
	type answer struct {
		data []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		data, err := term.ReadPassword(fd)
		answers <- answer{data, err}
	}()
	select {
	case a := <-answers:
		return a.data, a.err
	case <-ctx.Done():
		_ = term.Restore(fd, before) // the read ends with the process
		return nil, ctx.Err()
	}
}
