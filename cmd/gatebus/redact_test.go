package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// R119: a line for a line, texts for texts and values for values.
func TestPolicyRedactMakesTheFiveViews_R119(t *testing.T) {
	t.Parallel()
	env := map[string]string{"GATEBUS_HOME": t.TempDir() + "/none"}
	in := `{"secrets":[{"name":"KEY","source":"mcp.env:KEY","value":"sekret-value-1"}],"input":"got sekret-value-1 \u00e9\n"}
{"env":{"API_TOKEN":"sekret-value-2"},"headers":{"Authorization":"Bearer sekret-value-3"},"args":["--token","sekret-value-4"],"url":"https://u:sekret-value-5@h.example/","call_args":{"password":"sekret-value-6"},"input":"sekret-value-2 sekret-value-3 sekret-value-4 sekret-value-5 sekret-value-6"}

{"input_json":{"password":"hunter2", "n":1.0e2,"s":"\u00e9"}}
{"secrets":[],"env":null,"input":"export GITHUB_TOKEN=abc123def456"}`
	got := execute(t.Context(), env, in, "policy", "redact")
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), got.stdout)
	}
	var texts struct{ Model, Operator, Event, Durable, Debug string }
	if err := json.Unmarshal([]byte(lines[0]), &texts); err != nil {
		t.Fatal(err)
	}
	if texts.Model != "got <redacted> é\n" || texts.Operator != "got <redacted:KEY> é\n" || texts.Event != texts.Operator || texts.Durable != texts.Operator || !strings.HasPrefix(texts.Debug, "got <redacted:KEY:") {
		t.Errorf("got %+v", texts)
	}
	if strings.Contains(lines[1], "sekret") || strings.Count(lines[1], "<redacted>") != 5 {
		t.Errorf("got %s", lines[1])
	}
	want := `{"model":{"password":"<redacted>", "n":1.0e2,"s":"\u00e9"},"operator":{"password":"<redacted:password>", "n":1.0e2,"s":"\u00e9"},"event":{"password":{"redacted":true,"name":"password","source":"field"}, "n":1.0e2,"s":"\u00e9"},`
	if !strings.HasPrefix(lines[2], want) {
		t.Error(cmp.Diff(want, lines[2]))
	}
	if strings.Contains(lines[3], "abc123def456") || !strings.Contains(lines[3], "GITHUB_TOKEN=<redacted>") {
		t.Errorf("got %s", lines[3])
	}
}

// What is wrong with a line is said by line and field, and shows nothing of it.
func TestPolicyRedactNamesLineAndField(t *testing.T) {
	t.Parallel()
	env := map[string]string{"GATEBUS_HOME": t.TempDir()}
	for in, want := range map[string]string{
		`{"input":1}`:                                  "stdin, line 2: input: it is not a text",
		`{"input":"x","env":["sekret"]}`:               "stdin, line 2: env: it is not an object",
		`{"input":"x","env":{"A":7}}`:                  "stdin, line 2: env.A: it is not a text",
		`{"input":"x","args":{"a":"sekret"}}`:          "stdin, line 2: args: it is not an array",
		`{"input":"x","secrets":[{"value":1}]}`:        "stdin, line 2: secrets.0.value: it is not a text",
		`{"input":"x","secrets":[{"value":"sekret"}]}`: "stdin, line 2: secrets: one has no name",
		`{"input":"x","inputs":"sekret"}`:              "stdin, line 2: inputs: there is no such field",
		`{"env":{}}`:                                   "stdin, line 2: one of input and input_json is needed",
		`{"input":"x","input_json":1}`:                 "stdin, line 2: one of input and input_json is needed",
		`{"input":"sekret`:                             "stdin, line 2: input: the JSON is broken there",
		`["sekret"]`:                                   "stdin, line 2: the line: it is not an object",
		`sekret`:                                       "stdin, line 2: it is not a JSON object",
	} {
		got := execute(t.Context(), env, "{\"input\":\"first\"}\n"+in+"\n", "policy", "redact")
		if got.code != 2 || !strings.Contains(got.stderr, want) || strings.Contains(got.stderr, "sekret") {
			t.Errorf("%s: exit code %d: %s", in, got.code, got.stderr)
		}
		if strings.Count(got.stdout, "\n") != 1 {
			t.Errorf("%s: stdout %s", in, got.stdout)
		}
	}
}
