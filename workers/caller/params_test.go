package caller

import (
	"testing"

	"github.com/gatebus/gatebus/events/redact"
)

func TestUpstreamChangesTheNameAndNullOnly(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"name":"s__t","arguments":{"a":1.0}}`:                `{"name":"t\"","arguments":{"a":1.0}}`,
		`{"name":"s__t"}`:                                      `{"name":"t\""}`,
		`{"name":"s__t","arguments":null}`:                     `{"name":"t\"","arguments":{}}`,
		`{"arguments": null, "x":9007199254740993,"name":"s"}`: `{"arguments": {}, "x":9007199254740993,"name":"t\""}`,
	} {
		p, err := parseParams(redact.NewRaw([]byte(in)))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := string(p.upstream(`t"`).Reveal()); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

// Two readers must not see two calls in one (hot-path section 5).
func TestParamsThatCanBeReadTwoWaysAreRefused(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		``, `[]`, `{}`, `{"name":1}`, `{"name":"a","name":"b"}`, `{"name":"a","arguments":[]}`, `{"name":"a","arguments":"x"}`,
		`{"name":"a","arguments":{"x":1,"x":2}}`, `{"name":"a"} {}`, "{\"name\":\"\xff\"}", `{"name":"a",}`,
	} {
		if _, err := parseParams(redact.NewRaw([]byte(in))); err == nil {
			t.Errorf("%s was read", in)
		}
	}
}
