package declaration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

// The first line of each file says what is expected of it: "valid", or severity,
// code, field and line of its one diagnostic. The word "canary" stands in values
// only.
func TestFiles_R7_to_R22(t *testing.T) {
	t.Parallel()
	files := os.DirFS("../../testdata/declarations")
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[declaration.Code]bool)
	for _, e := range entries {
		data, err := fs.ReadFile(files, e.Name())
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(data), "\n")
		var want []string
		if head != "# valid" {
			want = []string{strings.TrimPrefix(head, "# ")}
		}
		core, diags := declaration.Load(fstest.MapFS{"agent/mcp/" + e.Name(): {Data: data}})
		var got []string
		for _, d := range diags {
			seen[d.Code] = true
			if strings.Contains(d.String(), "canary") {
				t.Errorf("%s: a diagnostic holds a value: %s", e.Name(), d)
			}
			if d.Code == declaration.CoreLoadFailed {
				continue
			}
			severity := map[bool]string{true: "warning", false: "error"}[d.Warning]
			field := d.Field
			if field == "" {
				field = "-"
			}
			got = append(got, fmt.Sprintf("%s: %s %s %d", severity, d.Code, field, d.Line))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: diagnostics (-want +got):\n%s", e.Name(), diff)
		}
		if refused := strings.HasPrefix(head, "# error"); refused != (len(core.Declarations) == 0) {
			t.Errorf("%s: refused = %v, and %d declarations", e.Name(), refused, len(core.Declarations))
		}
	}
	for _, code := range []declaration.Code{
		declaration.InvalidYAML, declaration.NotAMapping, declaration.UnknownField, declaration.InvalidValue,
		declaration.MissingCommand, declaration.MissingURL, declaration.InvalidURLScheme, declaration.InvalidURL,
		declaration.CredentialURL, declaration.ForeignField, declaration.AmbiguousTransport, declaration.InvalidArgs,
		declaration.InvalidEnv, declaration.InvalidHeaders, declaration.InvalidTimeout, declaration.ReservedEnvName,
		declaration.LiteralSecret, declaration.CoreLoadFailed,
	} {
		if !seen[code] {
			t.Errorf("no file for %s", code)
		}
	}
}

// one loads a core of one file and wants it valid.
func one(t testing.TB, text string) declaration.Declaration {
	t.Helper()
	core, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: []byte(text)}})
	if len(core.Declarations) != 1 {
		t.Fatalf("the declaration is refused: %v", diags)
	}
	return core.Declarations[0]
}

// file loads a file of testdata.
func file(t testing.TB, name string) declaration.Declaration {
	t.Helper()
	data, err := os.ReadFile("../../testdata/declarations/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return one(t, string(data))
}

// revealed is a declaration with its raw values, to compare.
type revealed struct {
	declaration.Declaration
	Args         []string
	Env, Headers map[string]string
	URL          string
}

func reveal(d declaration.Declaration) revealed {
	r := revealed{Args: d.Args.Reveal(), Env: texts(d.Env), Headers: texts(d.Headers), URL: d.URL.Reveal(), Declaration: d}
	r.Declaration.Args, r.Declaration.Env, r.Declaration.Headers, r.Declaration.URL = redact.Raw[[]string]{}, nil, nil, redact.Raw[string]{}
	r.Fingerprint = ""
	return r
}

func texts(raw map[string]redact.Raw[string]) map[string]string {
	if raw == nil {
		return nil
	}
	m := make(map[string]string)
	for k, v := range raw {
		m[k] = v.Reveal()
	}
	return m
}

var sameRaw = cmp.Options{
	cmp.Comparer(func(a, b redact.Raw[string]) bool { return a.Reveal() == b.Reveal() }),
	cmp.Comparer(func(a, b redact.Raw[[]string]) bool { return slices.Equal(a.Reveal(), b.Reveal()) }),
}

func TestFieldsAndDefaults_R11_R17_R18_R19(t *testing.T) {
	t.Parallel()
	minimal := declaration.Declaration{
		ServerID: "docs", Path: "agent/mcp/docs.yaml", Enabled: true, Transport: declaration.Stdio, Command: "docs-server",
		Include: []string{}, Exclude: []string{}, Risk: authority.Medium, ApprovalPolicy: authority.Prompt,
		ConnectTimeout: 30 * time.Second, CallTimeout: 60 * time.Second,
	}
	disabled, http := minimal, minimal
	disabled.Enabled = false
	http.Transport, http.Command = declaration.StreamableHTTP, ""
	for name, want := range map[string]revealed{
		"good_minimal.yaml":  {Declaration: minimal},
		"good_nulls.yaml":    {Declaration: minimal},
		"good_disabled.yaml": {Declaration: disabled}, // R10
		"good_http.yaml": {
			Declaration: http, URL: "HTTPS://Mcp.Example.com/v1/mcp",
			Headers: map[string]string{"Authorization": "Bearer ${DOCS_TOKEN}", "X-Tenant": "7"},
		},
		"good_stdio.yaml": {
			Declaration: declaration.Declaration{
				ServerID: "docs", Path: "agent/mcp/docs.yaml", Enabled: true, Transport: declaration.Stdio, Command: "npx",
				Cwd: "tools/docs", Include: []string{"search*", "fetch"}, Exclude: []string{"search_private"},
				Risk: authority.High, ApprovalPolicy: authority.Auto, Capability: "docs.use",
				ConnectTimeout: 2500 * time.Millisecond, CallTimeout: time.Hour, Parallel: true,
			},
			Args: []string{"-y", "@acme/docs-server", "--port", "8080", "--ratio", "0x10", "--verbose", "true", "--day", "2026-11-29"},
			Env:  map[string]string{"DOCS_TOKEN": "${DOCS_TOKEN}", "DOCS_RETRIES": "3", "DOCS_TRACE": "false", "DOCS_VERSION": "1.10"},
		},
	} {
		if diff := cmp.Diff(want, reveal(file(t, name)), sameRaw); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if d := one(t, "command: \"null\""); d.Command != "null" {
		t.Errorf("a quoted null is the command %q", d.Command)
	}
}

func TestCapabilities_R59(t *testing.T) {
	t.Parallel()
	plain, explicit := file(t, "good_minimal.yaml"), file(t, "good_stdio.yaml")
	got := []string{plain.ConnectCapability(), plain.CallCapability(), explicit.ConnectCapability(), explicit.CallCapability()}
	if diff := cmp.Diff([]string{"mcp.connect:docs", "mcp.call:docs", "mcp.connect:docs", "docs.use"}, got); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
}

func TestTimeouts_R19(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"1": time.Second, "0.25": 250 * time.Millisecond, "1e2": 100 * time.Second, "0x10": 16 * time.Second, "3600": time.Hour,
		"0": 0, "-1": 0, "0.0": 0, ".nan": 0, ".inf": 0, "-.inf": 0, "3600.1": 0, "1e300": 0, "1e-300": 0, `"30"`: 0, "true": 0, "~": 0, "": 0, "[1]": 0, "30s": 0,
	} {
		for _, field := range []string{"connect_timeout_seconds", "timeout_seconds"} {
			core, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: []byte("command: x\n" + field + ": " + text)}})
			switch {
			case want == 0 && (len(diags) == 0 || diags[0].Code != declaration.InvalidTimeout || diags[0].Field != field):
				t.Errorf("%s: %s gives %v, want %s", field, text, diags, declaration.InvalidTimeout)
			case want != 0 && len(diags) > 0:
				t.Errorf("%s: %s gives %v", field, text, diags)
			case want != 0:
				d := core.Declarations[0]
				if got := map[string]time.Duration{"connect_timeout_seconds": d.ConnectTimeout, "timeout_seconds": d.CallTimeout}[field]; got != want {
					t.Errorf("%s: %s is %v, want %v", field, text, got, want)
				}
			}
		}
	}
}

func TestNoFieldReachesTheURLPolicy_R1_R21(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"allow_private", "proxy", "insecure", "url_policy", "on_connect", "Command", "<<"} {
		_, diags := declaration.Load(fstest.MapFS{
			"agent/mcp/docs.yaml": {Data: []byte("transport: streamable_http\nurl: https://a.example\n" + field + ": {}\n")},
		})
		if len(diags) == 0 || diags[0].Code != declaration.UnknownField || diags[0].Line != 3 {
			t.Errorf("%s gives %v", field, diags)
		}
		_, diags = declaration.Load(fstest.MapFS{"agent/core.yaml": {Data: []byte(field + ": {}\n")}})
		if len(diags) == 0 || diags[0].Code != declaration.UnknownField {
			t.Errorf("%s in core.yaml gives %v", field, diags)
		}
	}
}

// What the URL policy cannot read is refused where it is written, not at the gate.
func TestAURLOfWhichTheHostIsInDoubtIsRefused_R15(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"http://10.1.2.3:0/", "http://h.example:65536/", "http://256.1.1.1/", "http://h.example\\@i.example/", "http://a@b@h.example/",
		"http://[fe80::1%25eth0]/", "http://a..example/", "http://h.example/%zz", "http://", "http://?canary",
	} {
		core, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: fmt.Appendf(nil, "transport: streamable_http\nurl: %q", text)}})
		if len(core.Declarations) != 0 || codes(diags) != "invalid_url core_load_failed" || diags[0].Line != 2 || diags[0].Field != "url" {
			t.Errorf("%q gives %v", text, diags)
		}
	}
}

func TestAllFilesAndDiagnosticsAreReported_R13(t *testing.T) {
	t.Parallel()
	core, diags := declaration.Load(fstest.MapFS{
		"agent/mcp/a.yaml": {Data: []byte("command: a\nrisk: extreme\nextra: 1\n")},
		"agent/mcp/b.yaml": {Data: []byte("command: b\n")},
		"agent/mcp/c.yaml": {Data: []byte("transport: [\n")},
		"agent/mcp/d.yaml": {Data: []byte("command: d\nenv: {TOKEN: canary-0123456789}\n")},
	})
	if len(core.Declarations) != 0 {
		t.Errorf("a core with bad files declares %d servers", len(core.Declarations))
	}
	want := []string{
		`"agent/mcp/a.yaml":2: invalid_value risk: must be one of [low medium high critical]`,
		`"agent/mcp/a.yaml":3: unknown_field extra: is not a field here`,
	}
	var got []string
	for _, d := range diags[:2] {
		got = append(got, d.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
	if codes(diags) != "invalid_value unknown_field invalid_yaml literal_secret core_load_failed" {
		t.Errorf("codes: %s", codes(diags))
	}
	if last := diags[len(diags)-1]; last.Message != `refused: ["agent/mcp/a.yaml" "agent/mcp/c.yaml"]` {
		t.Errorf("last diagnostic: %s", last)
	}
}

func codes(diags []declaration.Diagnostic) string {
	var list []string
	for _, d := range diags {
		list = append(list, string(d.Code))
	}
	return strings.Join(list, " ")
}

func TestDirectory_R7_R8_R9_R22(t *testing.T) {
	t.Parallel()
	server := &fstest.MapFile{Data: []byte("command: x")}
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink} }
	manifest := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		ids   string
		codes string
	}{
		{name: "no directory", files: fstest.MapFS{"README.md": server}},
		{name: "byte order, no recursion, other files ignored", ids: "B a.b a docs server", files: fstest.MapFS{
			"agent/mcp/a.yaml": server, "agent/mcp/B.yml": server, "agent/mcp/a.b.YAML": server, "agent/mcp/docs server.yaml": server,
			"agent/mcp/notes.md": server, "agent/mcp/sub/c.yaml": server, "agent/mcp/dir.yaml/d.yaml": server,
		}},
		{name: "two files, one id", codes: "duplicate_server_id core_load_failed", files: fstest.MapFS{
			"agent/mcp/docs.yaml": server, "agent/mcp/docs.yml": server,
		}},
		{name: "not a directory", codes: "declaration_root_not_dir core_load_failed", files: fstest.MapFS{"agent/mcp": server}},
		{name: "colon", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/a:b.yaml": server}},
		{name: "star", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/*.yaml": server}},
		{name: "greater", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/x>y.yaml": server}},
		{name: "control", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/a\n.yaml": server}},
		{name: "no stem", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/.yaml": server}},
		{name: "long stem", codes: "invalid_server_id core_load_failed", files: fstest.MapFS{"agent/mcp/" + strings.Repeat("a", 65) + ".yaml": server}},
		{name: "size", codes: "invalid_yaml core_load_failed", files: fstest.MapFS{
			"agent/mcp/a.yaml": {Data: []byte("command: x\n#" + strings.Repeat("x", 1<<20))},
		}},
		{name: "other root", ids: "b", files: fstest.MapFS{
			"agent/core.yaml": manifest("slots: {mcp: servers/}"), "agent/mcp/a.yaml": server, "servers/b.yaml": server,
		}},
		{name: "other root, absent", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mcp: servers}"), "agent/mcp/a.yaml": server}},
		{name: "empty manifest", ids: "a", files: fstest.MapFS{"agent/core.yaml": manifest(""), "agent/mcp/a.yaml": server}},
		{name: "root outside", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mcp: ../servers}")}},
		{name: "root outside in the middle", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mcp: a/../../b}")}},
		{name: "absolute root", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mcp: /servers}")}},
		{name: "root of the wrong type", codes: "invalid_value core_load_failed", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mcp: [servers]}")}},
		{name: "unknown slot", codes: "unknown_field core_load_failed", files: fstest.MapFS{"agent/core.yaml": manifest("slots: {mpc: servers}")}},
		{name: "links inside", ids: "a b", files: fstest.MapFS{
			"agent/mcp": link("../real/servers"), "real/servers/a.yaml": server, "real/servers/b.yaml": link("../../other/b.yaml"), "other/b.yaml": server,
		}},
		{name: "link to a directory", files: fstest.MapFS{"agent/mcp/a.yaml": link("../real"), "agent/real/x.yaml": server}},
		{name: "link out by parents", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/mcp/a.yaml": link("../../../etc/a.yaml")}},
		{name: "link out and back in", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/mcp/a.yaml": link("../../../core/x.yaml"), "core/x.yaml": server}},
		{name: "absolute link", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/mcp/a.yaml": link("/etc/a.yaml")}},
		{name: "root is a link out", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/mcp": link("../../mcp")}},
		{name: "manifest is a link out", codes: "path_escapes_root core_load_failed", files: fstest.MapFS{"agent/core.yaml": link("../../core.yaml")}},
		{name: "dangling link", codes: "core_load_failed core_load_failed", files: fstest.MapFS{"agent/mcp/a.yaml": link("b.txt")}},
		{name: "links in a circle", codes: "core_load_failed core_load_failed", files: fstest.MapFS{"agent/mcp/a.yaml": link("b.yaml"), "agent/mcp/b.yaml": link("c.txt"), "agent/mcp/c.txt": link("a.yaml")}},
	} {
		core, diags := declaration.Load(c.files)
		var ids []string
		for _, d := range core.Declarations {
			ids = append(ids, d.ServerID)
		}
		if got := strings.Join(ids, " "); got != c.ids {
			t.Errorf("%s: servers %q, want %q (%v)", c.name, got, c.ids, diags)
		}
		got := codes(diags)
		if c.name == "links in a circle" {
			got = strings.TrimPrefix(got, "core_load_failed ") // one for each of the two
		}
		if got != c.codes {
			t.Errorf("%s: codes %q, want %q", c.name, got, c.codes)
		}
	}
	_, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": server, "agent/mcp/docs.yml": server})
	if d := diags[0]; d.Path != "agent/mcp/docs.yml" || !strings.Contains(d.Message, `"agent/mcp/docs.yaml"`) {
		t.Errorf("the duplicate does not name both paths: %s", d)
	}
}

// A file system that cannot follow links by itself refuses declarations that
// are links.
func TestLinksOfAFileSystemWithoutReadLink_R9(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"agent/mcp/a.yaml": {Data: []byte("command: x")},
		"agent/mcp/b.yaml": {Data: []byte("a.yaml"), Mode: fs.ModeSymlink},
	}
	_, diags := declaration.Load(struct{ fs.FS }{files})
	if codes(diags) != "path_escapes_root core_load_failed" || diags[0].Path != "agent/mcp/b.yaml" {
		t.Errorf("diagnostics: %v", diags)
	}
}

// The same rules on a real directory.
func TestRealDirectory_R7_R9(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		full := path.Join(dir, name)
		if err := os.MkdirAll(path.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("outside.yaml", "command: x")
	write("core/agent/mcp/a.yaml", "command: x")
	write("core/shared/b.yaml", "command: x")
	if err := os.Symlink("../../shared/b.yaml", path.Join(dir, "core/agent/mcp/b.yaml")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(path.Join(dir, "core"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, fsys := range map[string]fs.FS{"DirFS": os.DirFS(path.Join(dir, "core")), "Root": root.FS()} {
		if core, diags := declaration.Load(fsys); len(core.Declarations) != 2 || len(diags) != 0 {
			t.Errorf("%s: %d servers, %v", name, len(core.Declarations), diags)
		}
	}
	if err := os.Symlink("../../../outside.yaml", path.Join(dir, "core/agent/mcp/c.yaml")); err != nil {
		t.Fatal(err)
	}
	for name, fsys := range map[string]fs.FS{"DirFS": os.DirFS(path.Join(dir, "core")), "Root": root.FS()} {
		if _, diags := declaration.Load(fsys); codes(diags) != "path_escapes_root core_load_failed" {
			t.Errorf("%s: %v", name, diags)
		}
	}
}

func TestManifestOverrides_R69(t *testing.T) {
	t.Parallel()
	core, diags := declaration.Load(fstest.MapFS{"agent/core.yaml": {Data: []byte(`
tools:
  metadata:
    docs:
      delete_page: {risk: critical, approval_policy: deny}
      search: {enabled: false}
`)}})
	want := map[string]map[string]authority.Override{"docs": {
		"delete_page": {Risk: authority.Critical, Policy: authority.Deny},
		"search":      {Disabled: true},
	}}
	if diff := cmp.Diff(want, core.Overrides); diff != "" || len(diags) > 0 {
		t.Errorf("overrides (-want +got):\n%s%v", diff, diags)
	}
	for _, text := range []string{
		"tools: {metadata: []}", "tools: {metadata: {docs: 1}}", "tools: {metadata: {docs: {x: {risk: none}}}}",
		"tools: {metadata: {docs: {x: {url_policy: {}}}}}", "tools: {metadata: {docs: {x: {enabled: 0}}}}",
	} {
		if _, diags := declaration.Load(fstest.MapFS{"agent/core.yaml": {Data: []byte(text)}}); len(diags) != 2 || diags[0].Line != 1 {
			t.Errorf("%s gives %v", text, diags)
		}
	}
}

func TestFingerprintCoversWhatTheFileSays_R23(t *testing.T) {
	t.Parallel()
	const text = "command: x\nargs: [1, a]\nenv: {TOKEN: abc, MODE: b}\n"
	base := one(t, text).Fingerprint
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(base) {
		t.Fatalf("fingerprint %q is no SHA-256", base)
	}
	// {"manifest":{"args":["1","a"],...},"relative_path":"agent/mcp/docs.yaml","server_id":"docs"}
	if want := "d62c7f637939f4dad56b148862492e171e1889c8aaf940182b9de3cf6bef4641"; base != want {
		t.Errorf("fingerprint %s, want %s", base, want)
	}
	for _, same := range []string{
		"# comment\nenv:\n  MODE: b\n  TOKEN: 'abc'\nargs:\n- 1\n- a\ncommand: \"x\"\n",
	} {
		if one(t, same).Fingerprint != base {
			t.Errorf("another spelling has another fingerprint: %q", same)
		}
	}
	for _, other := range []string{
		"command: y\nargs: [1, a]\nenv: {TOKEN: abc, MODE: b}\n",
		"command: x\nargs: [0x1, a]\nenv: {TOKEN: abc, MODE: b}\n", // another argument
		"command: x\nargs: [a, 1]\nenv: {TOKEN: abc, MODE: b}\n",
		"command: x\nargs: [1, a]\nenv: {TOKEN: abd, MODE: b}\n", // a rotated literal secret
		text + "enabled: false\n",
		text + "risk: high\n",
	} {
		if one(t, other).Fingerprint == base {
			t.Errorf("%q has the same fingerprint", other)
		}
	}
	for name, files := range map[string]fstest.MapFS{
		"id":   {"agent/mcp/other.yaml": {Data: []byte(text)}},
		"path": {"agent/mcp/docs.yml": {Data: []byte(text)}},
		"root": {"agent/core.yaml": {Data: []byte("slots: {mcp: servers}")}, "servers/docs.yaml": {Data: []byte(text)}},
	} {
		core, diags := declaration.Load(files)
		if len(core.Declarations) != 1 || core.Declarations[0].Fingerprint == base {
			t.Errorf("another %s has the same fingerprint (%v)", name, diags)
		}
	}
}

func TestRawValuesDoNotPrint_R118(t *testing.T) {
	t.Parallel()
	for _, d := range []declaration.Declaration{
		one(t, "command: x\nargs: [canary]\nenv: {A: canary}\n"),
		one(t, "transport: streamable_http\nurl: https://canary.example/\nheaders: {A: canary}\n"),
	} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			if text := fmt.Sprintf(format, d); strings.Contains(text, "canary") {
				t.Errorf("%s prints %s", format, text)
			}
		}
		if data, err := json.Marshal(d); err == nil {
			t.Errorf("a declaration encodes as %s", data)
		}
	}
}

func FuzzDeclaration(f *testing.F) {
	files := os.DirFS("../../testdata/declarations")
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		data, err := fs.ReadFile(files, e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		core, diags := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: data}})
		again, _ := declaration.Load(fstest.MapFS{"agent/mcp/docs.yaml": {Data: data}})
		if diff := cmp.Diff(core, again, sameRaw); diff != "" {
			t.Fatalf("the same file reads differently:\n%s", diff)
		}
		failed := len(diags) > 0 && diags[len(diags)-1].Code == declaration.CoreLoadFailed
		if failed == (len(core.Declarations) == 1) {
			t.Fatalf("failed = %v with %d declarations", failed, len(core.Declarations))
		}
		for _, d := range core.Declarations {
			if (d.Command != "") == (d.URL.Reveal() != "") || (d.Transport == declaration.Stdio) != (d.Command != "") {
				t.Fatalf("no transport, or two: %v", d)
			}
			if d.ConnectTimeout <= 0 || d.CallTimeout <= 0 || !d.Risk.Valid() || !d.ApprovalPolicy.Valid() || len(d.Fingerprint) != 64 {
				t.Fatalf("not checked: %v", d)
			}
			preview, err := json.Marshal(declaration.NewPreview(d, []byte("key"), authority.Prompt))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range d.Secrets() {
				value := s.Value.Reveal()
				if s.Name == "" || strings.TrimSpace(value) == "" {
					t.Fatalf("an empty secret: %v", s)
				}
				if len(value) < 8 || strings.Contains(public(d), value) {
					continue
				}
				quoted, _ := json.Marshal(value) // any text
				for _, diag := range diags {
					if strings.Contains(diag.String(), value) {
						t.Errorf("a diagnostic of %q shows %q: %s", data, value, diag)
					}
				}
				if bytes.Contains(preview, quoted[1:len(quoted)-1]) {
					t.Errorf("the preview of %q shows %q: %s", data, value, preview)
				}
			}
		}
	})
}

// public is what a preview and the diagnostics may show of a declaration: its
// program, its names, the names of its options, and their own words.
func public(d declaration.Declaration) string {
	all := []string{d.ServerID, d.Path, d.Command, d.Cwd, "<redacted><value sha256: length:", d.CallCapability(), d.ConnectCapability()}
	for _, values := range []map[string]redact.Raw[string]{d.Env, d.Headers} {
		for name := range values {
			all = append(all, name)
		}
	}
	for _, arg := range d.Args.Reveal() {
		if name, _, _ := strings.Cut(arg, "="); strings.HasPrefix(name, "-") {
			all = append(all, name)
		}
	}
	if _, host, ok := strings.Cut(d.URL.Reveal(), "://"); ok {
		all = append(all, strings.ToLower(host[:max(0, strings.IndexAny(host+"/", "/?#"))]))
	}
	preview, _ := json.Marshal(declaration.Preview{}) // its member names
	return strings.Join(append(all, string(preview)), "\x00")
}
