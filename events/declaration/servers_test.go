package declaration_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

const serversDir = "../../testdata/servers"

// serverFiles are the files of testdata/servers: what their first lines want of them,
// one line for each problem, and their JSON.
func serverFiles(t testing.TB) (want map[string][]string, data map[string][]byte) {
	t.Helper()
	want, data = make(map[string][]string), make(map[string][]byte)
	entries, err := os.ReadDir(serversDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := fs.ReadFile(os.DirFS(serversDir), e.Name())
		if err != nil {
			t.Fatal(err)
		}
		data[e.Name()] = text
		for line := range strings.Lines(string(text)) {
			line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "// ")
			if !ok {
				break
			}
			if line != "valid" {
				want[e.Name()] = append(want[e.Name()], line)
			}
			data[e.Name()] = data[e.Name()][bytes.IndexByte(data[e.Name()], '\n')+1:]
		}
	}
	return want, data
}

// problemsOf are all problems, those of the text and those of the items.
func problemsOf(items []declaration.Item, problems []declaration.Problem) []declaration.Problem {
	all := slices.Clone(problems)
	for _, i := range items {
		all = append(all, i.Problems...)
	}
	return all
}

// The first lines of each file say what is expected of it: "valid", or severity, code
// and path of each problem. The word "canary" stands in values, and in names that no
// message shows.
func TestServerFiles_R24_to_R36(t *testing.T) {
	t.Parallel()
	want, data := serverFiles(t)
	seen := make(map[declaration.Code]bool)
	for name, text := range data {
		items, problems := declaration.ParseServers(text)
		var got []string
		for _, p := range problemsOf(items, problems) {
			seen[p.Code] = true
			if strings.Contains(p.String(), "canary") {
				t.Errorf("%s: a problem shows a value: %s", name, p)
			}
			got = append(got, fmt.Sprintf("%s: %s %s", p.Severity, p.Code, p.Path))
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", name, diff)
		}
		if len(problems) > 0 && len(items) > 0 {
			t.Errorf("%s: the text is refused and has items", name)
		}
		for _, i := range items {
			wrong := slices.ContainsFunc(want[name], func(p string) bool {
				return strings.HasPrefix(p, "error: ") && strings.Contains(p+".", "$.mcpServers."+i.Name+".")
			})
			if wrong && i.Valid() {
				t.Errorf("%s: %s is valid", name, i.Name)
			}
		}
	}
	for _, code := range []declaration.Code{
		declaration.InvalidJSON, declaration.MissingServers, declaration.InvalidServerConfig, declaration.InvalidServerName,
		declaration.DuplicateServerID, declaration.AmbiguousTransport, declaration.MissingTransport, declaration.InvalidCommand,
		declaration.InvalidArgs, declaration.InvalidCwd, declaration.InvalidEnv, declaration.InvalidHeaders,
		declaration.ReservedEnvName, declaration.InvalidURL, declaration.CredentialURL, declaration.InvalidTimeout,
		declaration.InvalidEnabledState, declaration.InvalidImplicitState, declaration.InvalidRequired, declaration.UnknownField,
		declaration.ForeignField, declaration.LiteralSecret, declaration.NotInterpolated,
	} {
		if !seen[code] {
			t.Errorf("no file for %s", code)
		}
	}
}

// shownItem is an item with its raw values, to compare.
type shownItem struct {
	declaration.Item
	Args         []string
	Env, Headers map[string]string
	URL          string
}

func shown(i declaration.Item) shownItem {
	s := shownItem{Args: i.Args.Reveal(), Env: texts(i.Env), Headers: texts(i.Headers), URL: i.URL.Reveal(), Item: i}
	s.Item.Args, s.Item.Env, s.Item.Headers, s.Item.URL = redact.Raw[[]string]{}, nil, nil, redact.Raw[string]{}
	return s
}

func itemsOf(t *testing.T, file string) (list []shownItem) {
	t.Helper()
	_, data := serverFiles(t)
	items, problems := declaration.ParseServers(data[file])
	if len(problems) > 0 {
		t.Fatalf("%s: %v", file, problems)
	}
	for _, i := range items {
		list = append(list, shown(i))
	}
	return list
}

func TestServerFieldsAndDefaults_R30_to_R34(t *testing.T) {
	t.Parallel()
	yes, no := new(bool), new(bool)
	*yes = true
	stdio := func(name string) declaration.Item {
		return declaration.Item{Name: name, Transport: declaration.Stdio, Command: "x", StartupTimeout: 180 * time.Second, ToolTimeout: 120 * time.Second}
	}
	b, off, on, on2 := stdio("b"), stdio("off"), stdio("on"), stdio("on2")
	b.Command = "b"
	off.Enabled, off.Implicit, on.Enabled, on2.Enabled, on2.Implicit = no, yes, yes, yes, no
	comments := stdio("docs")
	comments.Command = "docs"
	for file, want := range map[string][]shownItem{
		"good_empty.json": nil,
		"good_stdio.json": {{
			Item: declaration.Item{
				Name: "github", Transport: declaration.Stdio, Command: "npx", Cwd: "tools",
				StartupTimeout: 20 * time.Second, ToolTimeout: time.Hour, Required: true, Parallel: true,
			},
			Args: []string{"-y", "@acme/github", "--port", "8080"},
			Env:  map[string]string{"GITHUB_TOKEN": "canary", "MODE": ""},
		}},
		"good_http.json": {{
			Item: declaration.Item{Name: "docs", Transport: declaration.StreamableHTTP, StartupTimeout: 180 * time.Second, ToolTimeout: 5 * time.Second},
			Env:  map[string]string{}, URL: "https://mcp.example.com/v1/mcp", Headers: map[string]string{"Authorization": "Bearer canary"},
		}},
		"good_defaults.json": {
			{Item: declaration.Item{Name: "a_1-x", Transport: declaration.StreamableHTTP, StartupTimeout: 180 * time.Second, ToolTimeout: 120 * time.Second}, URL: "http://a.example"},
			{Item: b},
		},
		"good_comments.json": {{Item: comments, Args: []string{"//canary", "/* canary */", "a,]", "\"// canary"}}},
		"good_policy.json":   {{Item: off}, {Item: on}, {Item: on2}},
	} {
		if diff := cmp.Diff(want, itemsOf(t, file), sameRaw); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// What is JSON but for comments and commas is read, and everything else says where it
// is not.
func TestTextsThatAreNoServers_R24(t *testing.T) {
	t.Parallel()
	const servers = `{"mcpServers":{"a":{"command":"x","args":["y"]}}}`
	for text, want := range map[string]string{
		"":                      "invalid_json: is empty",
		"\n":                    "invalid_json: is empty",
		"{\n  \"mcpServers\" 1": "invalid_json: is not valid JSON at line 2, column 16",
		"\ufeff" + servers:      "",
		servers + "// end":      "",
		servers + "/* end":      "invalid_json: is not valid JSON at line 1, column 50",
		`{"mcpServers":{,}}`:    "invalid_json: is not valid JSON at line 1, column 16",
		`{"mcpServers":{"a":{"command":"x","args":[,]}}}`:          "invalid_json: is not valid JSON at line 1, column 43",
		`{"mcpServers":{"a":{"command":"x","args":["y",,]}}}`:      "invalid_json: is not valid JSON at line 1, column 47",
		`{"mcpServers":{"a":{"command":,}}}`:                       "invalid_json: is not valid JSON at line 1, column 31",
		`{"mcpServers":{"a":{"command":"x","args":["y",/**/] ,}}}`: "",
		`{"mcpServers":{"a":{"command":"\xff"}}}`:                  "invalid_json: is not UTF-8",
		"\xff\xfe{\x00}\x00":                                       "invalid_json: is not UTF-8",
		`{"mcpServers":{"a":{"command":"\ud800"}}}`:                "invalid_json: is not valid JSON at line 1, column 32",
		servers + strings.Repeat(" ", 1<<20):                       "invalid_json: is larger than 1 MiB",
		strings.Repeat("[", 1<<20):                                 "invalid_json: is not valid JSON at line 1, column 10001",
		`{"mcpServers":` + strings.Repeat(`{"a":`, 100_000):        "invalid_json: is not valid JSON at line 1, column 50010",
		`[]`:                           "missing_mcp_servers: the text is no object with the member mcpServers",
		`{}`:                           "missing_mcp_servers: is missing",
		`{"mcp":{"a":{}}}`:             "missing_mcp_servers: is missing: what stands below mcp belongs below mcpServers",
		`{"x":1,"a":{"url":"canary"}}`: `missing_mcp_servers: is missing: put the servers, each with its name, below {"mcpServers": {…}}`,
		`{"command":"canary"}`:         `missing_mcp_servers: is missing: put the servers, each with its name, below {"mcpServers": {…}}`,
		`{"mcpServers":null}`:          "missing_mcp_servers: must be an object of servers by their names",
	} {
		text = strings.ReplaceAll(text, `\xff`, "\xff")
		items, problems := declaration.ParseServers([]byte(text))
		got := ""
		for _, p := range problemsOf(items, problems) {
			got += string(p.Code) + ": " + p.Message
		}
		if got != want || (want == "") != (len(items) == 1) {
			t.Errorf("%.60q gives %d items and %q, want %q", text, len(items), got, want)
		}
	}
}

func TestScopes_R36(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]declaration.Scope{"": "workspace", "workspace": "workspace", "user": "user", "User": "", "gateway": ""} {
		if scope, ok := declaration.ParseScope(kind); ok != (want != "") || ok && scope != want {
			t.Errorf("%q is %q, %v", kind, scope, ok)
		}
	}
}

// The name of a member may be a secret at the wrong place.
func TestNamesThatLookLikeSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	const token = "ghp_0123456789abcdefABCDEF0123456789abcd"
	text := fmt.Sprintf(`{"mcpServers":{%[1]q:{"command":"x"},"a":{"command":"x",%[1]q:1,"env":{%[1]q:1}}}}`, token)
	items, problems := declaration.ParseServers([]byte(text))
	all := problemsOf(items, problems)
	if len(all) != 3 {
		t.Errorf("%d problems: %v", len(all), all)
	}
	for _, i := range items {
		if i.Name == "" && i.Valid() {
			t.Error("a server without a name could be installed")
		}
	}
	for _, p := range all {
		if strings.Contains(p.String(), token) {
			t.Errorf("a problem shows a token: %s", p)
		}
	}
}

var installedName = regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`)

func FuzzParseServers(f *testing.F) {
	_, data := serverFiles(f)
	for _, text := range data {
		f.Add(text)
	}
	f.Add([]byte(`{"mcpServers":{"a":{"command":"x","args":["--token=canary-0123456789"],"env":{"A":"b"}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		items, problems := declaration.ParseServers(data)
		if len(problems) > 0 && len(items) > 0 || len(problems) == 0 && slices.ContainsFunc(items, func(i declaration.Item) bool { return !i.Valid() && len(i.Problems) == 0 }) {
			t.Fatalf("%d items beside %v", len(items), problems)
		}
		if !slices.IsSortedFunc(items, func(a, b declaration.Item) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatal("the items are not sorted")
		}
		for _, i := range items {
			if !i.Valid() {
				continue
			}
			if !installedName.MatchString(i.Name) || (i.Command != "") == (i.URL.Reveal() != "") || (i.Transport == declaration.Stdio) != (i.Command != "") {
				t.Fatalf("no name or transport: %v", i)
			}
			if i.StartupTimeout < time.Second || i.StartupTimeout > time.Hour || i.ToolTimeout < time.Second || i.ToolTimeout > time.Hour {
				t.Fatalf("timeouts: %v", i)
			}
			for name := range i.Env {
				if declaration.Reserved(name) || strings.ContainsAny(name, "=\x00") {
					t.Fatalf("the variable %q", name)
				}
			}
		}
		if len(problems) == 0 && len(data) < 1<<19 {
			around := slices.Concat([]byte("/* , ] */"), bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\n// , ]"))
			again, more := declaration.ParseServers(around)
			if diff := cmp.Diff(items, again, sameRaw); diff != "" || len(more) > 0 {
				t.Fatalf("comments around it change it: %v\n%s", more, diff)
			}
		}
		planted, ok := plant(data)
		if !ok {
			return
		}
		items, problems = declaration.ParseServers(planted)
		for _, p := range problemsOf(items, problems) {
			if strings.Contains(strings.ToLower(p.String()), strings.ToLower(canary)) {
				t.Fatalf("a problem of %q shows a value: %s", planted, p)
			}
		}
	})
}

// plant puts the canary into every string of a JSON text that is a value.
func plant(data []byte) ([]byte, bool) {
	if bytes.Contains(bytes.ToLower(data), []byte(strings.ToLower(canary))) {
		return nil, false // it may be in a name
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return out.Bytes(), dec.StackDepth() == 0 && out.Len() > 0
		}
		kind, n := dec.StackIndex(dec.StackDepth())
		if tok.Kind() == '"' && !(kind == '{' && n%2 == 1) {
			tok = jsontext.String(tok.String() + canary)
		}
		if enc.WriteToken(tok) != nil {
			return nil, false
		}
	}
}
