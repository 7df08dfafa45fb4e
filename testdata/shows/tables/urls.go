package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gatebus/gatebus/testdata/urls"
)

func init() {
	halves["urls"] = func(ctx context.Context, t tables) ([]result, error) { return t.urls(ctx) }
}

// urls judges each row with "policy url check" of the program; redirects, which need
// answers of servers, with the rules that the program has.
func (t tables) urls(ctx context.Context) (out []result, err error) {
	dir := filepath.Join(t.dir, "urls")
	results, err := urls.Check(dir, func(q urls.Question) ([]urls.Verdict, error) { return t.check(ctx, q) })
	if err != nil {
		return nil, err
	}
	if !t.plant {
		redirects, err := urls.Redirects(dir)
		if err != nil {
			return nil, err
		}
		results = append(results, redirects)
	}
	for _, r := range results {
		out = append(out, result{r.Table, r.Rows, r.Failed, r.Others})
	}
	return out, nil
}

// check asks the program.
func (t tables) check(ctx context.Context, q urls.Question) (out []urls.Verdict, err error) {
	args := []string{"policy", "url", "check", "--offline", "--file", "-", "-o", "json", "--policy", q.Policy}
	for name, answer := range q.Answers {
		// No argument of a process holds a NUL; another control character is no more of
		// an address.
		args = append(args, "--resolve", name+"="+strings.ReplaceAll(answer, "\x00", "\x01"))
	}
	var in bytes.Buffer
	for _, raw := range q.URLs {
		line, err := json.Marshal(raw)
		if err != nil {
			return nil, err
		}
		in.Write(append(line, '\n'))
	}
	cmd := exec.CommandContext(ctx, t.bin, args...)
	cmd.Stdin, cmd.Env = &in, []string{"HOME=/nonexistent"}
	said, err := cmd.Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		return nil, err
	}
	lines := json.NewDecoder(bytes.NewReader(said))
	for i := 0; ; i++ {
		var v urls.Verdict
		if err := lines.Decode(&v); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if i < len(q.URLs) && v.Input != q.URLs[i] {
			return nil, fmt.Errorf("the answer to %q is to %q", q.URLs[i], v.Input)
		}
		v.Allowed = v.Allowed != t.plant
		out = append(out, v)
	}
}
