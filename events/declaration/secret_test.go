package declaration_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

func host(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
}

func TestInterpolation_R72_R73(t *testing.T) {
	t.Parallel()
	lookup := host(map[string]string{"A": "1", "B_2": "${A}", "EMPTY": "", "a": "low"})
	for _, c := range []struct {
		value, want string
		missing     []string
	}{
		{value: "", want: ""},
		{value: "plain $A $(A) $$", want: "plain $A $(A) $$"},
		{value: "${A}", want: "1"},
		{value: "x${A}y${A}z${a}", want: "x1y1zlow"},
		{value: "${B_2}", want: "${A}"}, // one pass
		{value: "${EMPTY}", want: ""},   // set and empty
		{value: "${a-b} ${A:-x} ${1} ${} ${ A} ${A", want: "${a-b} ${A:-x} ${1} ${} ${ A} ${A"},
		{value: "${${A}}", want: "${1}"},
		{value: "$${A}", want: "$1"},
		{value: "${NOPE}${A}${NOPE}${_X}", want: "${NOPE}1${NOPE}${_X}", missing: []string{"NOPE", "_X"}},
	} {
		got, missing := declaration.Interpolate(c.value, lookup)
		if got != c.want || !slices.Equal(missing, c.missing) {
			t.Errorf("Interpolate(%q) = %q, %q; want %q, %q", c.value, got, missing, c.want, c.missing)
		}
	}
}

// Text and references in any order come out as text and values, and only
// referenced names are looked up (R72, R74).
func TestInterpolationReplacesReferencesOnly_R72_R74(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.MapOf(rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,3}`), rapid.StringMatching(`[a-z${}A-Z]{0,6}`)).Draw(t, "host")
		var text, want strings.Builder
		asked := make(map[string]bool)
		var missing []string
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			plain := rapid.StringMatching(`[a-z .:-]{0,4}`).Draw(t, "text")
			name := rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,3}`).Draw(t, "name")
			text.WriteString(plain + "${" + name + "}")
			asked[name] = true
			if v, ok := values[name]; ok {
				want.WriteString(plain + v)
				continue
			}
			want.WriteString(plain + "${" + name + "}")
			if !slices.Contains(missing, name) {
				missing = append(missing, name)
			}
		}
		got, unknown := declaration.Interpolate(text.String(), func(name string) (string, bool) {
			if !asked[name] {
				t.Fatalf("%q was looked up", name)
			}
			return host(values)(name)
		})
		if got != want.String() || !slices.Equal(unknown, missing) {
			t.Fatalf("Interpolate(%q) = %q, %q; want %q, %q", text.String(), got, unknown, want.String(), missing)
		}
	})
}

func TestResolveInterpolatesEnvAndHeadersOnly_R72_R73(t *testing.T) {
	t.Parallel()
	d := one(t, `{command: "${CMD}", args: ["${ARG}"], cwd: "${CWD}", env: {A: "${ONE}", B: "x${TWO}${NOPE}", C: "${ALSO_NOPE}${NOPE}"}}`)
	r, missing := d.Resolve(host(map[string]string{"ONE": "1", "TWO": "2", "CMD": "no", "ARG": "no", "CWD": "no"}), nil)
	if diff := cmp.Diff([]string{"ALSO_NOPE", "NOPE"}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "x2${NOPE}", "C": "${ALSO_NOPE}${NOPE}"}, texts(r.Env)); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
	if d.Command != "${CMD}" || d.Args.Reveal()[0] != "${ARG}" || d.Cwd != "${CWD}" || d.Env["A"].Reveal() != "${ONE}" {
		t.Errorf("the declaration changed: %+v", reveal(d))
	}
	r, missing = file(t, "good_http.yaml").Resolve(host(map[string]string{"DOCS_TOKEN": ""}), nil)
	if diff := cmp.Diff(map[string]string{"Authorization": "Bearer ", "X-Tenant": "7"}, texts(r.Headers)); diff != "" || missing != nil {
		t.Errorf("headers (-want +got):\n%s%q", diff, missing)
	}
}

func TestSecrets_R120(t *testing.T) {
	t.Parallel()
	stdio := one(t, `{command: x, args: [serve, --token, t0ken, --mode=fast, --api-key=k3y, --header, "X-Auth: h3ader", -p], env: {TOKEN: "${T}", EMPTY: "", MODE: fast}}`)
	resolved, _ := stdio.Resolve(host(map[string]string{"T": "fr0m-host"}), nil)
	http := one(t, `{transport: streamable_http, url: "https://h.example/?api_key=k3y&v=2&key=k&code=c", headers: {Authorization: "Bearer t0ken", X-A: plain}}`)
	type secret struct{ name, source, value string }
	for _, c := range []struct {
		name string
		got  []redact.Secret
		want []secret
	}{
		{"stdio", resolved.Secrets(), []secret{
			{"TOKEN", "mcp.env:TOKEN", "fr0m-host"},
			{"token", "mcp.arg:token", "t0ken"},
			{"api-key", "mcp.arg:api-key", "k3y"},
			{"header", "mcp.arg:header", "X-Auth: h3ader"},
			{"header", "mcp.arg:header.credential", "h3ader"},
		}},
		{"not resolved", stdio.Secrets()[:1], []secret{
			{"TOKEN", "mcp.env:TOKEN", "${T}"},
		}},
		{"http", http.Secrets(), []secret{
			{"Authorization", "mcp.header:Authorization", "Bearer t0ken"},
			{"Authorization", "mcp.header:Authorization.credential", "t0ken"},
			{"api_key", "mcp.url:api_key", "k3y"},
			{"code", "mcp.url:code", "c"},
			{"key", "mcp.url:key", "k"},
		}},
	} {
		var got []secret
		for _, s := range c.got {
			got = append(got, secret{s.Name, s.Source, s.Value.Reveal()})
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(secret{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestLiteralSecretWarnsOnlyOfLiterals_R78(t *testing.T) {
	t.Parallel()
	for text, warned := range map[string]bool{
		"command: x\nenv: {API_KEY: abcdef}":           true,
		"command: x\nenv: {API_KEY: 123456}":           true,
		"command: x\nenv: {API_KEY: '${API_KEY}'}":     false,
		"command: x\nenv: {API_KEY: 'pre-${API_KEY}'}": false,
		"command: x\nenv: {API_KEY: '$API_KEY'}":       true,
		"command: x\nenv: {API_KEY: ''}":               false,
		"command: x\nenv: {API_KEY: none}":             false,
		"command: x\nenv: {TOKEN_COUNT: 123456789}":    false,
		"command: x\nenv: {REGION: eu-central-1}":      false,
		"command: x\nargs: [--token, abcdef]":          true,
		"command: x\nargs: [--token-file]":             false,
	} {
		if got := strings.Contains(warnings(t, text), "literal_secret"); got != warned {
			t.Errorf("%q warns = %v, want %v", text, got, warned)
		}
	}
}
