package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/client"
)

// check runs policy check on a file with a text, without any bus.
func check(t *testing.T, name, text string, args ...string) (checked, outcome) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := execute(t.Context(), map[string]string{"GATEBUS_HOME": t.TempDir()}, "", append([]string{"policy", "check", file, "-o", "json"}, args...)...)
	var c checked
	if err := json.Unmarshal([]byte(o.stdout), &c); err != nil {
		t.Fatalf("%v: %q %q", err, o.stdout, o.stderr)
	}
	return c, o
}

func TestPolicyCheckNamesLineAndField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text, kind string
		line             int
		field, code      string
		warning          bool
	}{
		{"gatebus.yaml", "listen: here", "configuration", 1, "listen", "config_invalid", false},
		{"gatebus.yaml", "# x\nlissten: a", "configuration", 2, "lissten", "config_invalid", false},
		{"gatebus.yaml", "approvals:\n  default: yes", "configuration", 2, "approvals.default", "config_invalid", false},
		{"gatebus.yaml", "approvals:\n  rules:\n  - {server: a, risk: huge, approval: auto}", "configuration", 3, "approvals.rules[0].risk", "config_invalid", false},
		{"gatebus.yaml", "approvals:\n  rules:\n  - server: a\n    approval: auto\n  - server: b\n    approval: maybe", "configuration", 6, "approvals.rules[1].approval", "config_invalid", false},
		{"gatebus.yaml", "limits:\n  hold: 45", "configuration", 2, "limits.hold", "config_invalid", false},
		{"gatebus.yaml", "workspaces: {a: {}, b: {}}", "configuration", 1, "workspaces", "config_invalid", false},
		{"gatebus.yaml", "listen: 'a", "configuration", 1, "", "config_invalid", false},
		{"gatebus.yaml", "approvals:\n  rules:\n  - {server: docs, approval: auto}\n  - {approval: deny}", "configuration", 3, "approvals.rules[0]", "config_invalid", true},
		{"gatebus.yaml", "approvals:\n  rules:\n  - {server: docs, approval: auto}\n  - {server: docs, approval: auto}", "configuration", 4, "approvals.rules[1]", "config_invalid", true},
		{"gatebus.yaml", "approvals:\n  default: prompt\n  approvers: none", "configuration", 3, "approvals.approvers", "config_invalid", true},
		{"docs.yaml", "command: x\nenv:\n  LD_PRELOAD: y", "declaration", 3, "env.LD_PRELOAD", "reserved_env_name", false},
		{"docs.yaml", "transport: streamable_http\nurl: ftp://x", "declaration", 2, "url", "invalid_url_scheme", false},
		{"docs.yaml", "command: x\nargs: [--token, canary-0123]", "declaration", 2, "args[1]", "literal_secret", true},
		{"do:cs.yaml", "command: x", "declaration", 0, "", "invalid_server_id", false},
	} {
		got, o := check(t, c.name, c.text)
		want := checkProblem{File: got.File, Line: c.line, Field: c.field, Code: c.code, Warning: c.warning}
		if got.Kind != c.kind || got.Valid != c.warning || len(got.Problems) != 1 {
			t.Errorf("%q: %+v", c.text, got)
			continue
		}
		want.Message = got.Problems[0].Message
		if diff := cmp.Diff(want, got.Problems[0]); diff != "" || want.Message == "" {
			t.Errorf("%q (-want +got):\n%s", c.text, diff)
		}
		if code := map[bool]int{true: 0, false: 2}[c.warning]; o.code != code || strings.Contains(o.stdout+o.stderr, "canary") {
			t.Errorf("%q: exit %d, %s%s", c.text, o.code, o.stdout, o.stderr)
		}
	}
}

func TestPolicyCheckTellsFilesApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, kind string }{
		{"a.yaml", "approvals: {default: prompt}", "configuration"}, {"a.yaml", "", "configuration"}, {"a.yaml", "{}", "configuration"},
		{"a.yaml", "command: x\nrisk: low", "declaration"}, {"a.yaml", "url: https://h.example\ntransport: streamable_http", "declaration"},
	} {
		if got, o := check(t, c.name, c.text); got.Kind != c.kind || !got.Valid || len(got.Problems) > 0 || o.code != 0 {
			t.Errorf("%q: %+v, exit %d %s", c.text, got, o.code, o.stderr)
		}
	}
	if got, _ := check(t, "a.yaml", "listen: here", "--kind", "declaration"); got.Kind != "declaration" || got.Valid {
		t.Errorf("the kind that was said does not hold: %+v", got)
	}
}

func TestPolicyCheckReadsACoreAndStdin(t *testing.T) {
	t.Parallel()
	core := t.TempDir()
	dir := filepath.Join(core, "agent", "mcp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"good.yaml": "command: x", "bad.yaml": "command: x\nriks: low", "worse.yaml": "[]"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"GATEBUS_HOME": t.TempDir()}
	execute(t.Context(), env, "", "policy", "check", core).wants(t, 2, "file:   "+core+`
kind:   core
valid:  false

LEVEL  FILE                  LINE  FIELD  CODE           MESSAGE
error  agent/mcp/bad.yaml    2     riks   unknown_field  is not a field here
error  agent/mcp/worse.yaml  1     -      not_a_mapping  must be a mapping of fields
`, "no valid core, errors: 2")
	execute(t.Context(), env, "approvals: {default: deny}\n", "policy", "check", "-").wants(t, 0, "file:   -\nkind:   configuration\nvalid:  true\n", "")
	execute(t.Context(), env, "", "policy", "check", filepath.Join(core, "none")).wants(t, 2, "", "no such file")
	execute(t.Context(), env, "", "policy", "check", "x", "--kind", "y").wants(t, 2, "", `--kind "y" is none of`)
	execute(t.Context(), env, "", "policy", "check").wants(t, 2, "", "FILE is missing")
}

func TestPolicyExplainShowsEachStep(t *testing.T) {
	t.Parallel()
	e := client.PolicyExplanation{
		Principal: "ana", Server: "docs", RawName: "read", Name: "docs__read", Decision: "needs_approval", Reason: "call_approval", Risk: "high",
		AuthoritySequence: 7, PolicySequence: 3, Steps: []client.PolicyStep{
			{Step: "call_capability", Result: "allowed", Needs: "mcp.call:docs", By: []client.PolicySource{{Kind: "grant", Text: "mcp.call:*", Sequence: 7, Until: someTime}}},
			{Step: "call_policy", Result: "allowed", Policy: "prompt", By: []client.PolicySource{{Kind: "declaration", Text: "auto"}, {Kind: "default", Text: "prompt (gateway)", Sequence: 3}}},
			{Step: "call_approval", Result: "needs_approval", By: []client.PolicySource{}},
		},
	}
	r := script(t, answers{"policy/explain": always(e)})
	r.gatebus("policy", "explain", "--as", "ana", "--tool", "docs__read").wants(t, 0, `decision:            needs approval
reason:              call_approval
principal:           ana
tool:                docs/read
name:                docs__read
risk:                high
authority sequence:  7
policy sequence:     3

STEP             RESULT          REASON  BY           WHAT                 SEQUENCE  UNTIL
call_capability  allowed         -       -            needs mcp.call:docs  -         -
-                -               -       grant        mcp.call:*           7         2026-11-29T18:00:00Z
call_policy      allowed         -       -            prompt               -         -
-                -               -       declaration  auto                 -         -
-                -               -       default      prompt (gateway)     3         -
call_approval    needs approval  -       -            -                    -         -
`, "")
	r.gatebus("policy", "explain", "--as", "ana", "--tool", "docs__read", "-o", "name").wants(t, 0, "needs_approval\n", "")
	r.gatebus("policy", "explain", "--tool", "docs__read").wants(t, 2, "", "--as is missing")
	r.gatebus("policy", "explain", "--as", "ana").wants(t, 2, "", "--tool is missing")
}
