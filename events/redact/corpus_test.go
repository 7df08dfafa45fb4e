package redact

import (
	"fmt"
	"testing"

	"github.com/gatebus/gatebus/testdata/redaction"
)

// The corpus is read for the show too.
type row redaction.Row

func (r *row) expand(s string) string { return (*redaction.Row)(r).Expand(s) }

var encodings = redaction.Encodings

func readCorpus(t testing.TB) []redaction.Row {
	t.Helper()
	rows, err := redaction.Read("../../testdata/redaction")
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// redactor knows what the row declares.
func (r *row) redactor(t testing.TB) *Redactor {
	t.Helper()
	var secrets []Secret
	for _, s := range r.Context.Secrets {
		secrets = append(secrets, Secret{s.Name, s.Source, NewRaw(r.expand(s.Value))})
	}
	for i := range r.Context.ExtraRandomSecrets {
		secrets = append(secrets, Secret{fmt.Sprint("X", i), "extra", NewRaw(fmt.Sprintf("%x", fingerprint(fmt.Sprint(i))))})
	}
	d := Declared{Env: map[string]string{}, Headers: map[string]string{}, URL: r.expand(r.Context.URL)}
	for name, v := range r.Context.Env {
		d.Env[name] = r.expand(v)
	}
	for name, v := range r.Context.Headers {
		d.Headers[name] = r.expand(v)
	}
	for _, a := range r.Context.Args {
		d.Args = append(d.Args, r.expand(a))
	}
	out, err := NewRedactor(append(secrets, d.Secrets()...)...)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Context.CallArgs) > 0 {
		args := NewRaw([]byte(r.expand(string(r.Context.CallArgs))))
		found, err := ArgumentSecrets(args)
		if err != nil {
			t.Fatal(err)
		}
		if out, err = out.With(found...); err != nil {
			t.Fatal(err)
		}
	}
	if r.Context.Inject == "panic" {
		out.layers = append(out.layers, nil)
	}
	return out
}

// views redacts the input of the row, as text or as JSON.
func (r *row) views(t testing.TB) texts {
	t.Helper()
	red := r.redactor(t)
	redact := func(s string) Views { return red.Text(NewRaw(s)) }
	var input string
	if r.Input != nil {
		input = r.expand(*r.Input)
	} else {
		redact = func(s string) Views { return red.JSON(NewRaw([]byte(s))) }
		input = (*redaction.Row)(r).ExpandJSON(r.InputJSON)
	}
	out := strings5(redact(input))
	for range r.Context.Repeat - 1 {
		for view := range out {
			out[view] = strings5(redact(out[view]))[view]
		}
	}
	return out
}

func strings5(v Views) texts {
	return texts{v.Model.String(), v.Operator.String(), v.Event.String(), v.Durable.String(), v.Debug.String()}
}

// Every row of the base level is met, and of the hardened ones all but those that
// are named.
func TestCorpusRows(t *testing.T) {
	t.Parallel()
	base, hardened := 0, 0
	failing := map[string]bool{}
	for _, r := range readCorpus(t) {
		if r.Level == "base" {
			base++
		} else {
			hardened++
		}
		for view, text := range (*row)(&r).views(t) {
			for _, wrong := range r.Check(text) {
				failing[r.ID] = true
				if r.Level == "base" || redaction.Beyond[r.ID] == "" {
					t.Errorf("view %d, %s (%s, %s)", view, wrong, r.Class, r.Level)
				}
			}
		}
	}
	for id := range redaction.Beyond {
		if !failing[id] {
			t.Errorf("row %s is met now: take it off the list", id)
		}
	}
	t.Logf("%d rows of the base level, %d of %d hardened ones", base, hardened-len(redaction.Beyond), hardened)
	if base < 180 || hardened < 90 {
		t.Errorf("%d and %d rows ran", base, hardened)
	}
}
