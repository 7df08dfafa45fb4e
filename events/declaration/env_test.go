package declaration_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/declaration"
)

// warnings are the codes of a valid declaration.
func warnings(t testing.TB, text string) string {
	t.Helper()
	core, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: []byte(text)}})
	if len(core.Declarations) != 1 {
		t.Fatalf("%q is refused: %v", text, diags)
	}
	return codes(diags)
}

func TestChildGetsTheAllowListAndNothingElse_R75_R76_R77(t *testing.T) {
	t.Parallel()
	all := map[string]string{
		"PATH": "/bin", "LANG": "C.UTF-8", "LC_ALL": "", "TZ": "UTC", "COLORTERM": "() { x; }", "TERM": "xterm", "HOME": "/root", "TMPDIR": "/tmp",
		"USER": "u", "LOGNAME": "u", "SHELL": "/bin/sh", "HTTP_PROXY": "http://p", "https_proxy": "http://p", "AWS_SECRET_ACCESS_KEY": "canary",
		"path": "/other", "LD_PRELOAD": "x.so", "SYSTEMROOT": "C:", "TMP": "/tmp", "XDG_RUNTIME_DIR": "/run",
	}
	for _, c := range []struct {
		name     string
		declared map[string]string
		want     []string
	}{
		{"nothing declared", nil, []string{"HOME=/h", "LANG=C.UTF-8", "PATH=/bin", "TERM=dumb", "TMPDIR=/t", "TZ=UTC"}},
		{"declared wins", map[string]string{"LANG": "de", "TERM": "vt100", "TOKEN": "", "PATH": "/opt"},
			[]string{"HOME=/h", "LANG=de", "PATH=/opt", "TERM=vt100", "TMPDIR=/t", "TOKEN=", "TZ=UTC"}},
		{"reserved names do not", map[string]string{"HOME": "/root", "home": "/root", "LD_PRELOAD": "x", "TMPDIR": "/x", "NODE_OPTIONS": "x"},
			[]string{"HOME=/h", "LANG=C.UTF-8", "PATH=/bin", "TERM=dumb", "TMPDIR=/t", "TZ=UTC"}},
	} {
		if diff := cmp.Diff(c.want, declaration.ChildEnv(host(all), "/h", "/t", c.declared)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if env := declaration.ChildEnv(host(nil), "", "", nil); env == nil {
		t.Error("a nil environment inherits everything")
	}
}

func TestReservedNamesAreRefused_R77(t *testing.T) {
	t.Parallel()
	for _, name := range strings.Fields(`HOME USERPROFILE SHELL BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH LD_ANYTHING DYLD_INSERT_LIBRARIES
		PYTHONHOME PYTHONPATH NODE_OPTIONS RUBYOPT PERL5OPT home Ld_Preload node_options GIT_CONFIG_COUNT JAVA_TOOL_OPTIONS
		CLASSPATH GOFLAGS GEM_HOME`) {
		_, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: []byte("command: x\nenv: {" + name + ": canary}")}})
		if len(diags) == 0 || diags[0].Code != declaration.ReservedEnvName || diags[0].Field != "env."+name {
			t.Errorf("%s gives %v", name, diags)
		}
	}
	for _, name := range strings.Fields("PATH LANG TZ HOMEPAGE ENVIRONMENT MY_HOME LDAP_URL AWS_PROFILE KUBECONFIG DOCS_NODE_OPTIONS") {
		if got := warnings(t, "command: x\nenv: {"+name+": a}"); got != "" {
			t.Errorf("%s gives %s", name, got)
		}
	}
}

// Whatever the host and the declaration say, a child has its own HOME and
// TMPDIR and no reserved variable, each name once (R75, R76, R77).
func TestChildEnvironmentHoldsItsRules_R75_R76_R77(t *testing.T) {
	t.Parallel()
	name := rapid.OneOf(
		rapid.SampledFrom([]string{"HOME", "PATH", "LANG", "TERM", "TMPDIR", "LD_PRELOAD", "USER", "SECRET"}),
		rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,6}`))
	vars := rapid.MapOf(name, rapid.StringMatching(`[a-z/=() ]{0,6}`))
	rapid.Check(t, func(t *rapid.T) {
		all, declared := vars.Draw(t, "host"), vars.Draw(t, "declared")
		env := declaration.ChildEnv(host(all), "/h", "/t", declared)
		got := make(map[string]string)
		for _, v := range env {
			name, value, _ := strings.Cut(v, "=")
			if _, twice := got[name]; twice {
				t.Fatalf("%s twice in %q", name, env)
			}
			got[name] = value
		}
		if !slices.IsSorted(env) || got["HOME"] != "/h" || got["TMPDIR"] != "/t" {
			t.Fatalf("environment %q", env)
		}
		allowed := []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "COLORTERM"}
		for name, value := range got {
			want, isDeclared := declared[name]
			switch {
			case name == "HOME" || name == "TMPDIR":
			case declaration.Reserved(name):
				t.Fatalf("%s is reserved", name)
			case isDeclared:
				if value != want {
					t.Fatalf("%s=%q, declared as %q", name, value, want)
				}
			case name == "TERM":
				if value != "dumb" {
					t.Fatalf("TERM=%q", value)
				}
			case !slices.Contains(allowed, name) || value != all[name] || value == "":
				t.Fatalf("%s=%q comes from nowhere", name, value)
			}
		}
	})
}
