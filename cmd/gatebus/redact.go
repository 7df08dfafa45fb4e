package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

func (m *Main) policyRedactCommand() *cobra.Command {
	return &cobra.Command{
		Use: "redact", Short: "Show what the five views make of texts and values", Args: exactly(),
		Long: `Reads one JSON object a line from stdin and writes one a line.

In: secrets [{"name", "source", "value"}], env {}, headers {}, args [], url,
call_args, and either input (a text) or input_json (any value).
Out: model, operator, event, durable, debug: texts for input, JSON values for
input_json. What cannot be redacted is "<redaction-failed>" in all five.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return redactLines(cmd.Context(), m.Stdin, m.Stdout)
		},
	}
}

// redaction is a line that policy redact reads.
type redaction struct {
	Secrets []struct {
		Name   string `json:"name"`
		Source string `json:"source"`
		Value  string `json:"value"`
	} `json:"secrets"`
	Env       map[string]string `json:"env"`
	Headers   map[string]string `json:"headers"`
	Args      []string          `json:"args"`
	URL       string            `json:"url"`
	CallArgs  jsontext.Value    `json:"call_args"`
	Input     *string           `json:"input"`
	InputJSON jsontext.Value    `json:"input_json"`
}

// redactLines makes the views of each line of in. A line that it cannot read ends
// it, with an error that names the line and the field and shows nothing of it.
func redactLines(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for n := 1; ctx.Err() == nil; n++ {
		line, end := lines.ReadBytes('\n')
		if end != nil && end != io.EOF {
			return end
		}
		if len(bytes.TrimSpace(line)) > 0 {
			answer, err := redactLine(line)
			if err != nil {
				return usage("stdin, line %d: %v", n, err)
			}
			if _, err := out.Write(answer); err != nil {
				return err
			}
		}
		if end == io.EOF {
			return nil
		}
	}
	return ctx.Err()
}

// redactLine returns the views that a line asks for, a line again.
func redactLine(line []byte) ([]byte, error) {
	var in redaction
	if err := json.Unmarshal(line, &in, json.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, misread(err)
	}
	if (in.Input == nil) == (in.InputJSON == nil) {
		return nil, errors.New("one of input and input_json is needed")
	}
	r, err := in.redactor()
	if err != nil {
		return nil, err
	}
	var v redact.Views
	if in.Input != nil {
		v = r.Text(redact.NewRaw(*in.Input))
	} else {
		v = r.JSON(redact.NewRaw([]byte(in.InputJSON)))
	}
	var b bytes.Buffer
	for i, view := range []struct{ name, text string }{
		{"model", v.Model.String()}, {"operator", v.Operator.String()}, {"event", v.Event.String()},
		{"durable", v.Durable.String()}, {"debug", v.Debug.String()},
	} {
		b.WriteString([]string{"{", ","}[min(i, 1)] + `"` + view.name + `":`)
		text := []byte(view.text)
		if in.Input != nil {
			if text, err = jsontext.AppendQuote(nil, view.text); err != nil {
				return nil, err
			}
		}
		b.Write(text)
	}
	b.WriteString("}\n")
	return b.Bytes(), nil
}

// redactor knows the secrets of the line, as a connection knows those of its server
// and of a call.
func (in *redaction) redactor() (*redact.Redactor, error) {
	var secrets []redact.Secret
	for _, s := range in.Secrets {
		if s.Name == "" {
			return nil, errors.New("secrets: one has no name")
		}
		secrets = append(secrets, redact.Secret{Name: s.Name, Source: s.Source, Value: redact.NewRaw(s.Value)})
	}
	raw := func(values map[string]string) map[string]redact.Raw[string] {
		out := make(map[string]redact.Raw[string], len(values))
		for name, v := range values {
			out[name] = redact.NewRaw(v)
		}
		return out
	}
	d := declaration.Declaration{Env: raw(in.Env), Headers: raw(in.Headers), Args: redact.NewRaw(in.Args), URL: redact.NewRaw(in.URL)}
	secrets = append(secrets, d.Secrets()...)
	r, err := redact.NewRedactor(secrets...)
	if err != nil || in.CallArgs == nil {
		return r, err
	}
	found, err := redact.ArgumentSecrets(redact.NewRaw([]byte(in.CallArgs)))
	if err != nil {
		return nil, errors.New("call_args: no arguments of a call")
	}
	return r.With(found...)
}

// misread says which field of a line is wrong, and how, but not what it holds.
func misread(err error) error {
	if s, ok := errors.AsType[*json.SemanticError](err); ok {
		field := cmp.Or(strings.ReplaceAll(strings.TrimPrefix(string(s.JSONPointer), "/"), "/", "."), "the line")
		switch {
		case errors.Is(err, json.ErrUnknownName):
			return errors.New(field + ": there is no such field")
		case s.GoType != nil:
			return errors.New(field + ": it is not " + wanted[s.GoType.Kind().String()])
		}
	}
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if field := strings.ReplaceAll(strings.TrimPrefix(string(s.JSONPointer), "/"), "/", "."); field != "" {
			return errors.New(field + ": the JSON is broken there, or the name occurs twice")
		}
	}
	return errors.New("it is not a JSON object")
}

// wanted are the JSON types that fields are of, by the kind of Go.
var wanted = map[string]string{"struct": "an object", "map": "an object", "slice": "an array", "string": "a text", "ptr": "a text"}
