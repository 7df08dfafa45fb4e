package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/declaration"
)

var installedOK = always(client.Installed{
	Status: "ok", Items: []client.InstalledItem{{Name: "docs", Status: "installed", Fingerprint: "f-1", Diagnostics: []client.ConfigDiagnostic{}}},
	Diagnostics: []client.ConfigDiagnostic{},
})

// files writes files of secrets and configs.
func files(t *testing.T) (env, headers, config string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("env", "# the tracker\n\nTOKEN=canary=1\nexport MODE=\"a b\"\r\nEMPTY=\n"), write("headers", "Authorization: Bearer canary\nX-Tenant: 7\n"),
		write("mcp.json", "{\"mcpServers\": { // mine\n}}\n")
}

// What is typed becomes the JSON that a page would show, and no secret is an argument.
func TestServerAddAsksForAnInstall_R24(t *testing.T) {
	t.Parallel()
	env, headers, config := files(t)
	r := script(t, answers{"mcp/install": installedOK})
	for _, c := range []struct {
		args        []string
		stdin, want string
	}{
		{args: []string{"docs", "https://h.example/mcp"}, want: `{"config":{"mcpServers":{"docs":{"url":"https://h.example/mcp"}}}}`},
		{
			args: []string{"docs", "--implicit", "--disabled", "--scope", "user", "--", "npx", "-y", "@acme/docs", "--", "--env"},
			want: `{"config":{"mcpServers":{"docs":{"args":["-y","@acme/docs","--","--env"],"command":"npx"}}},"scope_kind":"user","enabled":false,"implicit":true}`,
		},
		{
			args: []string{"docs", "--env", "TOKEN", "--cwd", "sub", "--startup-timeout", "20s", "--tool-timeout", "2m", "--required", "--parallel", "--", "x"}, stdin: "canary\n",
			want: `{"config":{"mcpServers":{"docs":{"command":"x","cwd":"sub","env":{"TOKEN":"canary"},"required":true,"startup_timeout_sec":20,"supports_parallel_tool_calls":true,"tool_timeout_sec":120}}}}`,
		},
		{
			args: []string{"docs", "--env-file", env, "--env", "TOKEN", "--env", "OTHER", "--", "x"}, stdin: "from stdin",
			want: `{"config":{"mcpServers":{"docs":{"command":"x","env":{"EMPTY":"","MODE":"a b","OTHER":"from stdin","TOKEN":"canary=1"}}}}}`,
		},
		{
			args: []string{"docs", "https://h.example", "--header-file", headers},
			want: `{"config":{"mcpServers":{"docs":{"headers":{"Authorization":"Bearer canary","X-Tenant":"7"},"url":"https://h.example"}}}}`,
		},
		{args: []string{"--from", config}, want: `{"config":"{\"mcpServers\": { // mine\n}}\n"}`},
		{args: []string{"--from", "-", "--disabled"}, stdin: `{"mcpServers":{}}`, want: `{"config":"{\"mcpServers\":{}}","enabled":false}`},
	} {
		before := len(r.requests())
		execute(t.Context(), map[string]string{"GATEBUS_HOME": r.home}, c.stdin, append([]string{"server", "add"}, c.args...)...).
			wants(t, 0, "NAME  STATUS     FINGERPRINT\ndocs  installed  f-1\n", "")
		asked := r.requests()[before:]
		if len(asked) != 1 {
			t.Errorf("%q asked %q", c.args, asked)
			continue
		}
		if diff := cmp.Diff("mcp/install "+c.want, asked[0]); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestServerAddRefusesWhatItCannotSay(t *testing.T) {
	t.Parallel()
	env, _, config := files(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("A=1\ncanary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "NAME is missing"},
		{[]string{"--", "npx"}, "NAME is missing"},
		{[]string{"docs"}, "a URL, or -- and a command, is missing"},
		{[]string{"docs", "--"}, "a URL, or -- and a command, is missing"},
		{[]string{"docs", "npx", "-y"}, "unknown shorthand flag"},
		{[]string{"docs", "npx", "canary"}, "a command and its arguments come after --"},
		{[]string{"docs", "https://h.example", "--", "npx"}, "a URL and a command exclude each other"},
		{[]string{"docs", "--env", "TOKEN=canary", "--", "x"}, "--env takes a name and never a value"},
		{[]string{"docs", "--header", "X: canary", "https://h.example"}, "--header takes a name and never a value"},
		{[]string{"docs", "--env", "A", "--env", "B", "--", "x"}, "stdin has the value of one, use --env-file"},
		{[]string{"docs", "--env", "A", "--", "x"}, "nothing was given"},
		{[]string{"docs", "--env-file", bad, "--", "x"}, `--env-file: line 2 has no "="`},
		{[]string{"docs", "--env-file", env + ".not", "--", "x"}, "no such file"},
		{[]string{"docs", "--startup-timeout", "1500ms", "--", "x"}, "--startup-timeout must be a whole number of seconds"},
		{[]string{"docs", "--tool-timeout", "-1s", "--", "x"}, "--tool-timeout must be a whole number of seconds"},
		{[]string{"docs", "--from", config}, "NAME and --from exclude each other"},
		{[]string{"--from", config, "--env", "A"}, "--env and --from exclude each other"},
		{[]string{"--from", config + ".not"}, "no such file"},
	} {
		o := execute(t.Context(), map[string]string{"GATEBUS_HOME": t.TempDir()}, "", append([]string{"server", "add"}, c.args...)...)
		o.wants(t, 2, "", c.want)
		if strings.Contains(o.stderr, "canary") {
			t.Errorf("%q shows a value: %s", c.args, o.stderr)
		}
	}
}

// Some that are not installed are exit code 1, none that is are 2; what is wrong is on
// stderr with its code, and on stdout as JSON.
func TestServerAddSaysWhatIsWrong_R25(t *testing.T) {
	t.Parallel()
	bad := client.InstalledItem{Name: "bad", Status: "validation_error", Diagnostics: []client.ConfigDiagnostic{
		{Code: "invalid_args", Severity: "error", Message: "must be a string", Path: "$.mcpServers.bad.args[1]"},
		{Code: "unknown_field", Severity: "warning", Message: "has no effect", Path: "$.mcpServers.bad.autoApprove"},
	}}
	good := client.InstalledItem{Name: "good", Status: "updated", Fingerprint: "f-1", Diagnostics: []client.ConfigDiagnostic{}}
	none := []client.ConfigDiagnostic{}
	for _, c := range []struct {
		answer client.Installed
		code   int
		names  string
		stderr string
	}{
		{client.Installed{Status: "ok", Items: []client.InstalledItem{good}, Diagnostics: none}, 0, "good\n", ""},
		{
			client.Installed{Status: "partial", Items: []client.InstalledItem{bad, good}, Diagnostics: none}, 1, "good\n",
			"error GB1030: $.mcpServers.bad.args[1]: must be a string\nwarning: $.mcpServers.bad.autoApprove: has no effect\n",
		},
		{
			client.Installed{Status: "validation_error", Items: []client.InstalledItem{bad}, Diagnostics: none}, 2, "",
			"error GB1030: $.mcpServers.bad.args[1]: must be a string\nwarning: $.mcpServers.bad.autoApprove: has no effect\n",
		},
		{
			client.Installed{Status: "validation_error", Items: []client.InstalledItem{}, Diagnostics: []client.ConfigDiagnostic{
				{Code: string(declaration.InvalidJSON), Severity: "error", Message: "is empty", Path: "$"}}}, 2, "",
			"error GB1025: $: is empty\n",
		},
	} {
		r := script(t, answers{"mcp/install": always(c.answer)})
		o := execute(t.Context(), map[string]string{"GATEBUS_HOME": r.home}, "{}", "server", "add", "--from", "-", "-o", "name")
		o.wants(t, c.code, c.names, c.stderr)
		if o.stderr != c.stderr {
			t.Errorf("stderr %q, want %q", o.stderr, c.stderr)
		}
		o = execute(t.Context(), map[string]string{"GATEBUS_HOME": r.home}, "{}", "server", "add", "--from", "-", "-o", "json")
		var got client.Installed
		if err := json.Unmarshal([]byte(o.stdout), &got); err != nil || o.code != c.code {
			t.Fatalf("exit code %d, %v: %s", o.code, err, o.stdout)
		}
		if diff := cmp.Diff(c.answer, got); diff != "" {
			t.Errorf("JSON (-want +got):\n%s", diff)
		}
	}
}

func TestServerVerbsAskTheirMethods_R38_R170(t *testing.T) {
	t.Parallel()
	r := script(t, answers{
		"mcp/policy/set": always(client.PolicyState{Name: "docs", Enabled: true, Implicit: true}), "mcp/server/restart": always(client.ServerOf{Name: "docs"}),
		"mcp/uninstall": always(client.ServerOf{Name: "docs"}),
	})
	for _, c := range []struct{ args, want, stdout string }{
		{"enable docs", `mcp/policy/set {"name":"docs","enabled":true}`, "name:      docs\nenabled:   true\nimplicit:  true\n"},
		{"disable docs --implicit=false --scope user", `mcp/policy/set {"name":"docs","scope_kind":"user","enabled":false,"implicit":false}`, "name:      docs\nenabled:   true\nimplicit:  true\n"},
		{"restart docs", `mcp/server/restart {"name":"docs"}`, "name:  docs\n"},
		{"rm docs", `mcp/uninstall {"name":"docs"}`, "name:  docs\n"},
	} {
		before := len(r.requests())
		r.gatebus(append([]string{"server"}, strings.Fields(c.args)...)...).wants(t, 0, c.stdout, "")
		if diff := cmp.Diff([]string{c.want}, r.requests()[before:]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
}
