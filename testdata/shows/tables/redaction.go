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
	"slices"

	"github.com/gatebus/gatebus/testdata/redaction"
)

func init() {
	halves["redaction"] = func(ctx context.Context, t tables) ([]result, error) { return t.redaction(ctx) }
}

// viewNames are those of policy redact.
var viewNames = []string{"model", "operator", "event", "durable", "debug"}

// asked is a line that policy redact reads.
type asked struct {
	Secrets   []map[string]string `json:"secrets,omitempty"`
	Env       map[string]string   `json:"env,omitempty"`
	Headers   map[string]string   `json:"headers,omitempty"`
	Args      []string            `json:"args,omitempty"`
	URL       string              `json:"url,omitempty"`
	CallArgs  json.RawMessage     `json:"call_args,omitempty"`
	Input     *string             `json:"input,omitempty"`
	InputJSON json.RawMessage     `json:"input_json,omitempty"`
}

// redaction asks the program for the five views of each row, a table for each
// level. What is broken on purpose in a row cannot be broken from outside.
func (t tables) redaction(ctx context.Context) ([]result, error) {
	rows, err := redaction.Read(filepath.Join(t.dir, "redaction"))
	if err != nil {
		return nil, err
	}
	levels := map[string]*result{"base": {table: "redaction base"}, "hardened": {table: "redaction hard"}}
	var lines [][]byte
	var put []redaction.Row
	for _, r := range rows {
		level := levels[r.Level]
		if level == nil {
			return nil, fmt.Errorf("row %s has the level %q", r.ID, r.Level)
		}
		level.rows++
		if r.Context.Inject != "" {
			level.others = append(level.others, r.ID+": "+r.Context.Inject+" is a matter of its test")
			continue
		}
		line, err := question(r)
		if err != nil {
			return nil, err
		}
		lines, put = append(lines, line), append(put, r)
	}
	answers, err := t.redact(ctx, lines)
	if err != nil {
		return nil, err
	}
	for i, r := range put {
		wrong := t.judge(r, answers[i])
		if why := redaction.Beyond[r.ID]; why != "" && len(wrong) > 0 && r.Level != "base" {
			levels[r.Level].others = append(levels[r.Level].others, r.ID+": "+why)
			continue
		}
		levels[r.Level].failed = append(levels[r.Level].failed, wrong...)
	}
	return []result{*levels["base"], *levels["hardened"]}, nil
}

// question is the line that asks for a row.
func question(r redaction.Row) ([]byte, error) {
	q := asked{Env: map[string]string{}, Headers: map[string]string{}, URL: r.Expand(r.Context.URL)}
	for _, s := range r.Context.Secrets {
		q.Secrets = append(q.Secrets, map[string]string{"name": s.Name, "source": s.Source, "value": r.Expand(s.Value)})
	}
	for i := range r.Context.ExtraRandomSecrets {
		q.Secrets = append(q.Secrets, map[string]string{"name": fmt.Sprint("X", i), "source": "extra", "value": fmt.Sprintf("%024x", (i+1)*7919)})
	}
	for name, v := range r.Context.Env {
		q.Env[name] = r.Expand(v)
	}
	for name, v := range r.Context.Headers {
		q.Headers[name] = r.Expand(v)
	}
	for _, a := range r.Context.Args {
		q.Args = append(q.Args, r.Expand(a))
	}
	if len(r.Context.CallArgs) > 0 {
		q.CallArgs = json.RawMessage(r.ExpandJSON(r.Context.CallArgs))
	}
	if r.Input != nil {
		input := r.Expand(*r.Input)
		q.Input = &input
	} else {
		q.InputJSON = json.RawMessage(r.ExpandJSON(r.InputJSON))
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(q)
	return b.Bytes(), err
}

// redact asks the program, a line for a line.
func (t tables) redact(ctx context.Context, lines [][]byte) ([]map[string]json.RawMessage, error) {
	cmd := exec.CommandContext(ctx, t.bin, "policy", "redact")
	cmd.Stdin, cmd.Env = bytes.NewReader(slices.Concat(lines...)), []string{"HOME=/nonexistent"}
	said, err := cmd.Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		return nil, err
	}
	var out []map[string]json.RawMessage
	answers := json.NewDecoder(bytes.NewReader(said))
	for {
		var views map[string]json.RawMessage
		if err := answers.Decode(&views); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		out = append(out, views)
	}
	if len(out) != len(lines) {
		return nil, fmt.Errorf("%d answers to %d lines", len(out), len(lines))
	}
	return out, nil
}

// judge says what is wrong with the views of a row.
func (t tables) judge(r redaction.Row, views map[string]json.RawMessage) (wrong []string) {
	if len(views) != len(viewNames) {
		return []string{fmt.Sprintf("%s: %d views", r.ID, len(views))}
	}
	for _, name := range viewNames {
		text := string(views[name])
		if r.Input != nil {
			text = ""
			if err := json.Unmarshal(views[name], &text); err != nil {
				return []string{r.ID + ": the view " + name + " is no text"}
			}
		}
		if t.plant { // nothing is hidden, and all is lost
			text = fmt.Sprint(r.MustNotContain)
			for _, s := range r.MustNotContain {
				text += r.Expand(s)
			}
		}
		for _, w := range r.Check(text) {
			wrong = append(wrong, w+" in the view "+name)
		}
	}
	return wrong
}
