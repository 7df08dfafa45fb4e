package declaration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

var key = []byte("host-local key")

func TestPreviewOfStdio_R63(t *testing.T) {
	t.Parallel()
	got, err := json.MarshalIndent(declaration.NewPreview(file(t, "good_stdio.yaml"), key, authority.Prompt), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	// The digests are the first 12 digits of HMAC-SHA256 under the key (R64).
	want := `{
 "server_id": "docs",
 "path": "agent/mcp/docs.yaml",
 "enabled": true,
 "transport": "stdio",
 "risk": "high",
 "approval_policy": "auto",
 "effective_connect_approval_policy": "prompt",
 "call_capability": "docs.use",
 "connect_capability": "mcp.connect:docs",
 "command": "npx",
 "args": [
  "-y",
  "\u003cvalue sha256:DIGEST0 length:17\u003e",
  "--port",
  "\u003cvalue sha256:DIGEST1 length:4\u003e",
  "--ratio",
  "\u003cvalue sha256:DIGEST2 length:4\u003e",
  "--verbose",
  "\u003cvalue sha256:DIGEST3 length:4\u003e",
  "--day",
  "\u003cvalue sha256:DIGEST4 length:10\u003e"
 ],
 "cwd": "tools/docs",
 "env_names": [
  "DOCS_RETRIES",
  "DOCS_TOKEN",
  "DOCS_TRACE",
  "DOCS_VERSION"
 ]
}`
	for i, digest := range digests {
		want = strings.ReplaceAll(want, fmt.Sprintf("DIGEST%d", i), digest)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
}

// digests of @acme/docs-server, 8080, 0x10, true and 2026-11-29.
var digests = []string{"de8be83b292d", "e16e3ab9cb8d", "caffe7aaf225", "a3ec82211b2e", "f072864bb31c"}

func TestPreviewOfHTTP_R63(t *testing.T) {
	t.Parallel()
	p := declaration.NewPreview(file(t, "good_http.yaml"), key, authority.Prompt)
	p.URLPolicy = json.RawMessage(`{"allowed":true}`)
	got, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"server_id":"docs","path":"agent/mcp/docs.yaml","enabled":true,"transport":"streamable_http","risk":"medium",` +
		`"approval_policy":"prompt","effective_connect_approval_policy":"prompt","call_capability":"mcp.call:docs",` +
		`"connect_capability":"mcp.connect:docs","url":"https://mcp.example.com","url_policy":{"allowed":true},` +
		`"header_names":["Authorization","X-Tenant"]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	if p := declaration.NewPreview(file(t, "good_minimal.yaml"), key, authority.Prompt); p.Cwd != "." || p.Args == nil || p.EnvNames == nil {
		t.Errorf("a preview without arguments: %+v", p)
	}
}

// stdio declares a server with these arguments.
func stdio(t testing.TB, args ...string) declaration.Declaration {
	t.Helper()
	list, err := json.Marshal(args) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	return one(t, "command: x\nargs: "+string(list))
}

func TestArgumentShapes_R64_R65_R66(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want []string // V5 is the summary of a value of 5 characters
	}{
		{[]string{"canary"}, []string{"V6"}},
		{[]string{"cänäry"}, []string{"V6"}},
		{[]string{""}, []string{"V0"}},
		{[]string{"--verbose", "-y"}, []string{"--verbose", "-y"}},
		{[]string{"--level=canary"}, []string{"--level=V6"}},
		{[]string{"--level="}, []string{"--level=V0"}},
		{[]string{"--level=a\nb"}, []string{"--level=V3"}},
		{[]string{"--level", "canary"}, []string{"--level", "V6"}},
		{[]string{"-pcanary"}, []string{"-pV6"}},
		{[]string{"-p=canary"}, []string{"-p=V6"}},
		{[]string{"-level=canary"}, []string{"-lV11"}},
		{[]string{"-HAuthorization: Bearer canary"}, []string{"V30"}},
		{[]string{"-H", "Authorization: Bearer canary"}, []string{"-H", "V28"}},
		{[]string{"-", "--", "-1", "--=x", "---x"}, []string{"V1", "V2", "V2", "V4", "V4"}},
		{[]string{"TOKEN=canary"}, []string{"V12"}},
		{[]string{"https://u:canary@h/x?y"}, []string{"V22"}},
		{[]string{"--token=canary"}, []string{"--token=<redacted>"}},
		{[]string{"--token", "canary", "canary"}, []string{"--token=<redacted>", "V6"}},
		{[]string{"--API-Key", "canary"}, []string{"--API-Key=<redacted>"}},
		{[]string{"--github_private_key_pem", "canary"}, []string{"--github_private_key_pem=<redacted>"}},
		{[]string{"--accessToken", "canary"}, []string{"--accessToken=<redacted>"}},
		{[]string{"-token", "canary"}, []string{"-t=<redacted>"}},
		{[]string{"-token=canary"}, []string{"-t=<redacted>"}},
		{[]string{"--header", "Authorization: Bearer canary"}, []string{"--header=<redacted>"}},
		{[]string{"--monkey", "canary"}, []string{"--monkey", "V6"}},
		{[]string{"--token"}, []string{"--token=<redacted>"}},
		// An option is never hidden behind another one.
		{[]string{"--token", "--allow-all"}, []string{"--token=<redacted>", "--allow-all"}},
		{[]string{"--no-password", "canary"}, []string{"--no-password", "V6"}},
		{[]string{"--password-stdin", "canary"}, []string{"--password-stdin", "V6"}},
		// No option has such a name; a token has.
		{[]string{"--" + strings.Repeat("canary", 9)}, []string{"V56"}},
	} {
		got := declaration.NewPreview(stdio(t, c.args...), key, authority.Prompt).Args
		for i, shown := range got {
			if at := strings.Index(shown, "<value sha256:"); at >= 0 {
				length := shown[at+len("<value sha256:012345678901 length:") : len(shown)-1]
				got[i] = shown[:at] + "V" + length
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestDigestNeedsTheKey_R64(t *testing.T) {
	t.Parallel()
	d := stdio(t, "a", "a", "b")
	first := declaration.NewPreview(d, key, authority.Prompt).Args
	other := declaration.NewPreview(d, []byte("other key"), authority.Prompt).Args
	if first[0] != first[1] || first[0] == first[2] || first[0] == other[0] {
		t.Errorf("under one key %q, under another %q", first, other)
	}
	if none := declaration.NewPreview(d, nil, authority.Prompt).Args; none[0] != "<value length:1>" {
		t.Errorf("without a key: %q", none)
	}
}

// Of every option that bears secrets, in every form, no view of the preview
// shows the value (R65, R66).
func TestKnownSecretOptionsShowNoValue_R65_R66(t *testing.T) {
	t.Parallel()
	for _, name := range strings.Fields(`--token --pat --pin --otp --user --header --env --set --dsn --url --key --pass --pwd --cookie
		-p -u -H -b -d -F -E -a -P -w -e -passin --oauth2Bearer --//npm.registry.example/:_authToken /p:`) {
		const canary = "canary-0123"
		for _, args := range [][]string{{name, canary}, {name + "=" + canary}, {name + canary}, {"npx", "pkg", "--", name, "X: " + canary}} {
			data, err := json.Marshal(declaration.NewPreview(stdio(t, args...), key, authority.Prompt))
			if err != nil {
				t.Fatal(err)
			}
			if glued := strings.HasPrefix(name, "--") && args[0] == name+canary; strings.Contains(string(data), "canary") && !glued {
				t.Errorf("%q shows %s", args, data)
			}
		}
	}
}

// What is shown is what the URL policy judges, in its spelling.
func TestURLIsShownAsItsOrigin_R67(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://h.example/canary/y?t=canary#canary": "https://h.example",
		"https://h.example:443/":                     "https://h.example",
		"http://h.example:80":                        "http://h.example",
		"http://h.example:443/canary":                "http://h.example:443",
		"https://h.example:/":                        "https://h.example",
		"HTTPS://H.Example":                          "https://h.example",
		"https://h.example./":                        "https://h.example",
		"https://[2001:DB8::1]:8443/canary":          "https://[2001:db8::1]:8443",
		"https://[::1]/":                             "https://[::1]",
		"http://0x7f.1:8080/canary":                  "http://127.0.0.1:8080",
		"http://[::ffff:10.0.0.1]/":                  "http://10.0.0.1",
		"https://cаnary.example/":                    "https://xn--cnary-4ve.example", // Cyrillic
	} {
		core := one(t, fmt.Sprintf("transport: streamable_http\nurl: %q", text))
		if got := declaration.NewPreview(core, key, authority.Prompt).URL; got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	unread := declaration.Declaration{Transport: declaration.StreamableHTTP, URL: redact.NewRaw("https://[fe80::1%25canary]/")}
	if got := declaration.NewPreview(unread, key, authority.Prompt).URL; !strings.HasPrefix(got, "<value sha256:") {
		t.Errorf("a URL that cannot be read is shown as %q", got)
	}
}

func TestPreviewIsBounded_R68(t *testing.T) {
	t.Parallel()
	p := declaration.NewPreview(stdio(t, slices.Repeat([]string{"-y"}, 60)...), key, authority.Prompt)
	if len(p.Args) != 51 || p.Args[50] != "<truncated items:10>" {
		t.Errorf("%d arguments shown, the last one %q", len(p.Args), p.Args[len(p.Args)-1])
	}
	d := one(t, "command: "+strings.Repeat("ä", 510))
	if want := strings.Repeat("ä", 500) + "<truncated characters:10>"; declaration.NewPreview(d, key, authority.Prompt).Command != want {
		t.Error("a long command is not cut after 500 characters")
	}
}

// No positional argument, option value, env or header value is in a preview.
func TestPreviewHoldsNoValue_R63_R64_R65_R66(t *testing.T) {
	t.Parallel()
	value := rapid.StringMatching(`canary[a-z0-9 =:/-]{0,12}`)
	rapid.Check(t, func(rt *rapid.T) {
		args := rapid.SliceOfN(rapid.OneOf(
			value,
			rapid.Map(value, func(v string) string { return "--name=" + v }),
			rapid.Map(value, func(v string) string { return "-n" + v }),
			rapid.Map(value, func(v string) string { return "--password=" + v }),
			rapid.SampledFrom([]string{"--token", "--name", "-y"}),
		), 0, 8).Draw(rt, "args")
		data, err := json.Marshal(declaration.NewPreview(stdio(t, args...), key, authority.Prompt))
		if err != nil {
			rt.Fatal(err)
		}
		if strings.Contains(string(data), "canary") {
			rt.Fatalf("%q shows %s", args, data)
		}
	})
	for _, name := range []string{"warn_literal_secret_env.yaml", "warn_literal_secret_header.yaml", "warn_url_query.yaml"} {
		data, err := json.Marshal(declaration.NewPreview(file(t, name), key, authority.Prompt))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "canary") {
			t.Errorf("%s shows %s", name, data)
		}
	}
}
