package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/schemas"
	"github.com/gatebus/gatebus/workers/live"
)

//go:generate go test . -run ^TestConfigSchema -update

var update = flag.Bool("update", false, "write generated files anew")

const full = `# all keys
listen: 127.0.0.1:7777
nats_listen: "off"
bus: nats://bus.example:4222
workspaces:
  default: {root: work, cores: [agent, /srv/agent]}
durability: process
limits: {max_frame_bytes: 16777216, max_argument_bytes: 1048576, max_server_requests: 4, server_requests_per_minute: 30, hold: 45s}
private_networks: [10.0.0.0/8, 10.1.2.3:8443, "[fd00::/8]:443", "fd00::1", Intranet.example, "intranet.example:80"]
approvals:
  default: prompt
  rules:
    - {server: docs, tool: read_*, capability: "mcp.call:*", risk: low, approval: auto}
  on_change: flag
  approvers: none
retention: {stderr_bytes: 1048576, audit: 2160h, blobs: 720h}
`

func TestConfigReadsEveryKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gatebus.yaml")
	got, err := parseConfig(path, []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen: "127.0.0.1:7777", NATSListen: "off", Bus: "nats://bus.example:4222", Durability: "process",
		Workspaces: map[WorkspaceName]Workspace{"default": {
			Root: filepath.Join(filepath.Dir(path), "work"), Cores: []string{filepath.Join(filepath.Dir(path), "agent"), "/srv/agent"},
		}},
		Limits: Limits{MaxFrameBytes: 16 << 20, MaxArgumentBytes: 1 << 20, MaxServerRequests: 4, ServerRequestsPerMinute: 30, Hold: Duration(45 * time.Second)},
		PrivateNetworks: []PrivateNetwork{
			{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("10.1.2.3/32"), Port: 8443},
			{Prefix: netip.MustParsePrefix("fd00::/8"), Port: 443}, {Prefix: netip.MustParsePrefix("fd00::1/128")},
			{Host: "intranet.example"}, {Host: "intranet.example", Port: 80},
		},
		Approvals: Approvals{
			Default: "prompt", OnChange: "flag", Approvers: "none",
			Rules: []ApprovalRule{{Server: "docs", Tool: "read_*", Capability: "mcp.call:*", Risk: "low", Approval: "auto"}},
		},
		Retention: Retention{StderrBytes: 1 << 20, Audit: Duration(2160 * time.Hour), Blobs: Duration(720 * time.Hour)},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConfigErrorNamesFileAndLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listen: here":                                           `f.yaml:1: "here" is no address`,
		"listen: [1]":                                            `f.yaml:1: a value of another kind is wanted`,
		"\nlisten: 127.0.0.1:70000":                              `f.yaml:2: "127.0.0.1:70000" is no address`,
		"nats_listen: on":                                        `f.yaml:1: "on" is no address`,
		"bus: http://host":                                       `f.yaml:1: must be a URL like nats://`,
		"bus: nats://user:pw@host":                               `f.yaml:1: must be a URL like nats://`,
		"# x\nlissten: a":                                        `f.yaml:2: unknown key "lissten"`,
		"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2":               `f.yaml:2: mapping key "listen" already defined`,
		"workspaces:\n  a.b: {}":                                 `f.yaml:2: a workspace is named by`,
		"workspaces:\n  a:\n    roots: x":                        `f.yaml:3: unknown key "roots"`,
		"durability: disk":                                       `f.yaml:1: must be one of process, power`,
		"limits:\n  max_frame_bytes: 1":                          `f.yaml:2: must be a whole number from 65536`,
		"limits:\n  max_frame_bytes: 1e9":                        `f.yaml:2: must be a whole number from 65536`,
		"limits:\n  max_argument_bytes: 5000000":                 `f.yaml:2: must be a whole number from 1024 to 4194304`,
		"limits:\n  max_server_requests: 33":                     `f.yaml:2: must be a whole number from 1 to 32`,
		"limits:\n  server_requests_per_minute: 0":               `f.yaml:2: must be a whole number from 1 to 6000`,
		"limits:\n  hold: 45":                                    `f.yaml:2: must be a length of time`,
		"limits:\n  hold: -1s":                                   `f.yaml:2: must be a length of time`,
		"private_networks:\n- 10.0.0.0/33":                       `f.yaml:2: "10.0.0.0/33" is no range`,
		"private_networks:\n- host:0":                            `f.yaml:2: "host:0" is no range`,
		"private_networks:\n- fe80::1%eth0":                      `f.yaml:2: "fe80::1%eth0" is no range`,
		"private_networks:\n- '*'":                               `f.yaml:2: "*" is no range`,
		"approvals:\n  default: yes":                             `f.yaml:2: must be one of auto, prompt, deny`,
		"approvals:\n  on_change: allow":                         `f.yaml:2: must be one of block, flag`,
		"approvals:\n  approvers: me":                            `f.yaml:2: must be one of interactive, none`,
		"approvals:\n  rules:\n  - {server: a}":                  `f.yaml:3: the rule lacks approval`,
		"approvals:\n  rules:\n  - {approval: maybe}":            `f.yaml:3: must be one of auto, prompt, deny`,
		"approvals:\n  rules:\n  - {approval: auto, servr: a}":   `f.yaml:3: unknown key "servr"`,
		"approvals:\n  rules:\n  - {risk: huge, approval: auto}": `f.yaml:3: must be one of low, medium`,
		"retention:\n  stderr_bytes: 0":                          `f.yaml:2: must be a whole number from 1`,
		"retention:\n  log: 1h":                                  `f.yaml:2: unknown key "log"`,
		"- a":                                                    `f.yaml:1: a value of another kind is wanted`,
		"listen: 'a":                                             `f.yaml:1: `,
		"listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:1":          `f.yaml: holds more than one document`,
	} {
		_, err := parseConfig("f.yaml", []byte(text))
		if err == nil {
			t.Errorf("%q was taken", text)
		} else if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\ngot  %s\nwant %s…", text, err, want)
		}
	}
}

func TestConfigReportsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := parseConfig("f.yaml", []byte("listen: x\nfoo: 1\napprovals:\n  rules:\n  - {risk: x, approval: y}\n"))
	if err == nil {
		t.Fatal("taken")
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 4 {
		t.Errorf("%d lines, want 4:\n%s", got, err)
	}
}

func TestEmptyConfigIsTheDefault(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "# nothing\n", "{}", "listen:\n"} {
		got, err := parseConfig("f.yaml", []byte(text))
		if err != nil || !reflect.DeepEqual(got, Config{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestConfigSchemaIsThatOfTheType: the committed schema is what the parser takes.
func TestConfigSchemaIsThatOfTheType(t *testing.T) {
	want := configSchema(t)
	const path = "../../schemas/json/config.schema.json"
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run go generate ./cmd/gatebus (-want +got):\n%s", diff)
	}
}

// TestConfigSchemaAgreesWithTheParser: what the one refuses the other does.
func TestConfigSchemaAgreesWithTheParser(t *testing.T) {
	t.Parallel()
	data, err := fs.ReadFile(schemas.FS, "json/config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{ // JSON is YAML
		`{}`, `{"listen":"127.0.0.1:0"}`, `{"listen":1}`, `{"lissten":"x"}`, `{"workspaces":{"a":{"root":"x"}}}`,
		`{"workspaces":{"a.b":{}}}`, `{"workspaces":{"a":{"x":1}}}`, `{"durability":"process"}`, `{"durability":"power"}`,
		`{"limits":{"max_frame_bytes":65536}}`, `{"limits":{"max_frame_bytes":65535}}`, `{"limits":{"max_argument_bytes":4194305}}`,
		`{"limits":{"max_server_requests":32}}`, `{"limits":{"max_server_requests":0}}`, `{"limits":{"server_requests_per_minute":6001}}`,
		`{"limits":{"hold":"45s"}}`, `{"limits":{"hold":45}}`, `{"limits":{"hold":"soon"}}`, `{"private_networks":["10.0.0.0/8"]}`,
		`{"private_networks":[8]}`, `{"approvals":{"default":"auto"}}`, `{"approvals":{"default":"yes"}}`,
		`{"approvals":{"rules":[{"approval":"deny"}]}}`, `{"approvals":{"rules":[{}]}}`, `{"approvals":{"rules":[{"approval":"x"}]}}`,
		`{"approvals":{"rules":[{"approval":"auto","risk":"huge"}]}}`, `{"approvals":{"on_change":"flag"}}`,
		`{"approvals":{"on_change":"x"}}`, `{"approvals":{"approvers":"none"}}`, `{"approvals":{"approvers":"x"}}`,
		`{"retention":{"stderr_bytes":1}}`, `{"retention":{"stderr_bytes":0}}`, `{"retention":{"audit":"1h"}}`, `{"retention":{"blobs":"1h"}}`, `{"retention":{"log":"1h"}}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		_, parsed := parseConfig("f.yaml", []byte(text))
		if valid := schema.Validate(v); (parsed == nil) != (valid == nil) {
			t.Errorf("%s: the parser says %v, the schema says %v", text, parsed, valid)
		}
	}
}

// configSchema is the JSON Schema of Config.
func configSchema(t *testing.T) []byte {
	t.Helper()
	words := func(list []string) *jsonschema.Schema {
		s := &jsonschema.Schema{Type: "string"}
		for _, w := range list {
			s.Enum = append(s.Enum, w)
		}
		return s
	}
	numbers := func(least, most float64) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "integer", Minimum: &least, Maximum: &most}
	}
	text := func(pattern string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: pattern} }
	s, err := jsonschema.For[Config](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Address]():        text(`:[0-9]+$`),
		reflect.TypeFor[NATSAddress]():    text(`^off$|:[0-9]+$`),
		reflect.TypeFor[BusURL]():         text(`^(nats|tls|wss?)://[^@]+$`),
		reflect.TypeFor[Durability]():     words(durabilities),
		reflect.TypeFor[Approval]():       words(approvalsOf),
		reflect.TypeFor[OnChange]():       words(onChanges),
		reflect.TypeFor[Approvers]():      words(approversOf),
		reflect.TypeFor[Risk]():           words(risks),
		reflect.TypeFor[Bytes]():          {Type: "integer", Minimum: jsonschema.Ptr(1.0)},
		reflect.TypeFor[FrameBytes]():     numbers(minFrame, maxFrame),
		reflect.TypeFor[ArgumentBytes]():  numbers(minArguments, maxArguments),
		reflect.TypeFor[MaxRequests]():    numbers(1, live.MaxOpenAsks),
		reflect.TypeFor[RequestRate]():    numbers(1, maxRequestRate),
		reflect.TypeFor[Duration]():       text(`^([0-9]+(\.[0-9]*)?(ns|us|ms|s|m|h))+$`),
		reflect.TypeFor[PrivateNetwork](): {Type: "string"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "gatebus.yaml"
	s.Properties["workspaces"].PropertyNames = text(`^[A-Za-z0-9_-]{1,64}$`)
	notNull(s)
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// notNull leaves out the null that Go lists may be.
func notNull(s *jsonschema.Schema) {
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	for _, p := range s.Properties {
		notNull(p)
	}
	for _, p := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
		if p != nil {
			notNull(p)
		}
	}
}

// R108: what the file trusts is what the connector contacts.
func TestPrivateNetworksAreWhatIsTrusted(t *testing.T) {
	t.Parallel()
	c, err := parseConfig("gatebus.yaml", []byte("private_networks: [\"10.1.0.0/16:8443\", Intranet.example]\n"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Main{Stderr: new(bytes.Buffer), Getenv: func(string) string { return "" }}
	s, err := m.settings(c, upFlags{})
	if err != nil {
		t.Fatal(err)
	}
	want := []urlpolicy.Trusted{{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Port: 8443}, {Host: "intranet.example"}}
	if diff := cmp.Diff(want, s.trusted, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
