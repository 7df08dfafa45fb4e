package declaration

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

const (
	defaultConnectTimeout = 30 * time.Second
	defaultCallTimeout    = 60 * time.Second
	maxTimeout            = time.Hour
)

// fields are all that a declaration may say (R11).
var fields = []string{
	"enabled", "transport", "command", "args", "env", "cwd", "url", "headers", "tools", "risk", "approval_policy",
	"capability", "connect_timeout_seconds", "timeout_seconds", "supports_parallel_tool_calls",
}

// parse reads one file and reports everything that is wrong with it.
func parse(id, path string, data []byte) (Declaration, []Diagnostic) {
	p := parser{path: path}
	doc := p.document(data)
	if doc == nil {
		return Declaration{}, p.diags
	}
	top := p.mapping(doc, "", fields...)
	tools := p.mapping(top["tools"], "tools", "include", "exclude")
	d := Declaration{
		ServerID:       id,
		Path:           path,
		Enabled:        p.boolean(top["enabled"], "enabled", true),
		Transport:      oneOf(&p, top["transport"], "transport", Stdio, Stdio, StreamableHTTP),
		Command:        p.text(top["command"], "command"),
		Args:           redact.NewRaw(p.list(top["args"], "args", InvalidArgs)),
		Env:            p.table(top["env"], "env", InvalidEnv, judgeEnv),
		Cwd:            p.text(top["cwd"], "cwd"),
		URL:            redact.NewRaw(p.text(top["url"], "url")),
		Headers:        p.table(top["headers"], "headers", InvalidHeaders, judgeHeader),
		Include:        toolname.Patterns(p.list(tools["include"], "tools.include", InvalidValue)),
		Exclude:        toolname.Patterns(p.list(tools["exclude"], "tools.exclude", InvalidValue)),
		Risk:           oneOf(&p, top["risk"], "risk", authority.Medium, authority.Low, authority.Medium, authority.High, authority.Critical),
		ApprovalPolicy: oneOf(&p, top["approval_policy"], "approval_policy", authority.Prompt, authority.Auto, authority.Prompt, authority.Deny),
		Capability:     p.text(top["capability"], "capability"),
		ConnectTimeout: p.seconds(top["connect_timeout_seconds"], "connect_timeout_seconds", defaultConnectTimeout),
		CallTimeout:    p.seconds(top["timeout_seconds"], "timeout_seconds", defaultCallTimeout),
		Parallel:       p.boolean(top["supports_parallel_tool_calls"], "supports_parallel_tool_calls", false),
	}
	if d.Capability != "" && authority.CheckCapability(d.Capability) != nil {
		p.fail(top["capability"], "capability", InvalidValue, "is no capability")
	}
	p.checkTransport(d, doc, top)
	p.warnLiteralSecrets(d, top)
	d.Fingerprint = fingerprint(id, path, doc)
	slices.SortStableFunc(p.diags, func(a, b Diagnostic) int { return cmp.Compare(a.Line, b.Line) })
	return d, p.diags
}

// checkTransport holds a declaration to the fields of its transport (R14, R15,
// R16), so that one changed word cannot turn a harmless looking file into
// something else.
func (p *parser) checkTransport(d Declaration, doc *yaml.Node, top map[string]*yaml.Node) {
	given := map[string]bool{
		"command": d.Command != "", "args": len(d.Args.Reveal()) > 0, "env": len(d.Env) > 0, "cwd": d.Cwd != "",
		"url": d.URL.Reveal() != "", "headers": len(d.Headers) > 0,
	}
	foreign := []string{"url", "headers"}
	if d.Transport == StreamableHTTP {
		foreign = []string{"command", "args", "env", "cwd"}
	}
	ambiguous := given["command"] && given["url"]
	if ambiguous {
		p.fail(top["url"], "url", AmbiguousTransport, "command and url exclude each other")
	}
	for _, field := range foreign {
		if given[field] && !(ambiguous && (field == "url" || field == "command")) {
			p.fail(top[field], field, ForeignField, "is not for the transport "+string(d.Transport))
		}
	}
	switch {
	case d.Transport == Stdio && !given["command"] && !p.failed("command"):
		p.fail(cmp.Or(top["command"], doc), "command", MissingCommand, "the transport stdio needs a command")
	case d.Transport == StreamableHTTP && !given["url"] && !p.failed("url"):
		p.fail(cmp.Or(top["url"], doc), "url", MissingURL, "the transport streamable_http needs a url")
	}
	if given["url"] {
		p.checkURL(top["url"], d.URL.Reveal())
	}
}

// verdict is what is wrong with a value, nothing if it has no code.
type verdict struct {
	code    Code
	message string
	// named says that the name of the value may be shown.
	named bool
	// minor is a warning in a file that somebody reviews.
	minor bool
}

func (p *parser) checkURL(n *yaml.Node, text string) {
	switch v := judgeURL(text); {
	case v.minor:
		p.warn(n, "url", v.code, v.message)
	case v.code != "":
		p.fail(n, "url", v.code, v.message)
	}
}

// judgeURL tests what R15 tests, and that the URL policy can read the URL: whether its
// host may be reached is the policy's to say later. Userinfo would become a header that
// travels along redirects (C7).
func judgeURL(text string) verdict {
	lower := strings.ToLower(text)
	if !strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://") {
		return verdict{code: InvalidURLScheme, message: "must start with http:// or https://"}
	}
	switch target, reason := urlpolicy.Parse(text); {
	case reason != urlpolicy.Allowed:
		return verdict{code: InvalidURL, message: "is no URL of which host and port are beyond doubt"}
	case target.Userinfo:
		return verdict{code: CredentialURL, message: "must not hold a user name or password"}
	case strings.ContainsAny(text, "?#"):
		return verdict{code: CredentialURL, message: "has a query or fragment, which is hidden wherever the URL is shown", minor: true}
	}
	return verdict{}
}

var (
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	connHeaders = []string{
		"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	}
)

// judgeEnv judges an environment variable (R77).
func judgeEnv(name, value string) verdict {
	switch {
	case !envName.MatchString(name):
		return verdict{code: InvalidEnv, message: "a name has letters, digits and '_' and does not start with a digit"}
	case Reserved(name):
		return verdict{code: ReservedEnvName, message: "belongs to the host", named: true}
	case strings.HasPrefix(strings.TrimSpace(value), "() {"):
		return verdict{code: InvalidEnv, message: "is a shell function", named: true}
	}
	return verdict{named: true}
}

// judgeHeader judges an HTTP header.
func judgeHeader(name, value string) verdict {
	switch {
	case !headerName.MatchString(name):
		return verdict{code: InvalidHeaders, message: "a name has the characters of an HTTP token"}
	case slices.Contains(connHeaders, strings.ToLower(name)):
		return verdict{code: InvalidHeaders, message: "belongs to the HTTP connection", named: true}
	case strings.ContainsAny(value, "\r\n"):
		return verdict{code: InvalidHeaders, message: "holds a line break", named: true}
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return verdict{code: InvalidHeaders, message: "holds control characters", named: true}
	}
	return verdict{named: true}
}

const argumentSecret = "looks like a secret in the arguments, which every process of the machine can read; use env"

// warnLiteralSecrets warns of values that look like credentials and stand in
// the file instead of coming from the environment (R78).
func (p *parser) warnLiteralSecrets(d Declaration, top map[string]*yaml.Node) {
	const message = "looks like a secret in the file; write ${NAME} and set NAME in the environment of the host"
	for _, section := range []string{"env", "headers"} {
		for key, n := range pairs(top[section]) {
			if redact.SensitiveName(key.Value) && looksSecret(n.Value) {
				p.warn(n, section+"."+key.Value, LiteralSecret, message)
			}
		}
	}
	for _, a := range arguments(d.Command, d.Args.Reveal()) {
		if a.secret && looksSecret(a.value) {
			p.warn(top["args"], fmt.Sprintf("args[%d]", a.at), LiteralSecret, argumentSecret)
		}
	}
}

func looksSecret(value string) bool {
	return len(credential(value)) >= 6 && !reference.MatchString(value)
}

// parser collects what is wrong with one file.
type parser struct {
	path  string
	diags []Diagnostic
}

func (p *parser) fail(n *yaml.Node, field string, code Code, message string) {
	d := Diagnostic{Path: p.path, Field: field, Code: code, Message: message}
	if n != nil {
		d.Line = n.Line
	}
	p.diags = append(p.diags, d)
}

func (p *parser) warn(n *yaml.Node, field string, code Code, message string) {
	p.fail(n, field, code, message)
	p.diags[len(p.diags)-1].Warning = true
}

func (p *parser) failed(field string) bool {
	return slices.ContainsFunc(p.diags, func(d Diagnostic) bool { return d.Field == field && !d.Warning })
}

// document is the mapping that a file holds; an empty file holds an empty one
// (R12). It is nil after a failure.
func (p *parser) document(data []byte) *yaml.Node {
	var docs []yaml.Node
	if err := yaml.Load(data, &docs, yaml.WithAllDocuments()); err != nil {
		line, message := syntax(err)
		p.fail(&yaml.Node{Line: line}, "", InvalidYAML, message)
		return nil
	}
	switch {
	case len(docs) > 1:
		p.fail(&docs[1], "", InvalidYAML, "holds more than one document")
		return nil
	case len(docs) == 0 || len(docs[0].Content) == 0 || isNull(docs[0].Content[0]):
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	}
	doc := docs[0].Content[0]
	switch {
	case !p.wellFormed(doc):
		return nil
	case doc.Kind != yaml.MappingNode:
		p.fail(doc, "", NotAMapping, "must be a mapping of fields")
		return nil
	}
	return doc
}

// syntax is the place and a text for an error of the YAML library. The texts
// of the library's scanner are constant where they quote nothing of the file.
func syntax(err error) (line int, message string) {
	message = "is not valid YAML"
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		line = e.Mark.Line
		if e.Stage == yaml.ScannerStage && !strings.ContainsAny(e.Message, `'"`) {
			message += ": " + e.Message
		}
	}
	return line, message
}

// wellFormed refuses repeated keys, keys that are no scalars, and aliases: one
// short file could repeat a long value without end.
func (p *parser) wellFormed(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		p.fail(n, "", InvalidYAML, "aliases are not supported")
		return false
	}
	ok := true
	for _, child := range n.Content {
		ok = p.wellFormed(child) && ok
	}
	seen := make(map[string]bool)
	for key := range pairs(n) {
		switch {
		case key.Kind != yaml.ScalarNode:
			p.fail(key, "", InvalidYAML, "a key must be a name")
			ok = false
		case seen[key.Value]:
			p.fail(key, fieldName(key.Value), InvalidYAML, "stands here twice")
			ok = false
		}
		seen[key.Value] = true
	}
	return ok
}

// pairs are the keys and values of a mapping; none if n is no mapping.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(*yaml.Node, *yaml.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// fieldName is a key as a diagnostic may show it: what is too long for the
// name of a field may be a value at the wrong place.
func fieldName(key string) string {
	if len(key) > 32 || !envName.MatchString(key) {
		return ""
	}
	return key
}

// mapping is the values of a mapping with these keys only; null is empty.
func (p *parser) mapping(n *yaml.Node, field string, known ...string) map[string]*yaml.Node {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.fail(n, field, InvalidValue, "must be a mapping")
		return nil
	}
	values := make(map[string]*yaml.Node)
	for key, value := range pairs(n) {
		if slices.Contains(known, key.Value) {
			value.Line = key.Line // a diagnostic points to the name of a field
			values[key.Value] = value
			continue
		}
		name := fieldName(key.Value)
		if field != "" && name != "" {
			name = field + "." + name
		}
		p.fail(key, cmp.Or(name, field), UnknownField, "is not a field here")
	}
	return values
}

// text is a string without outer blanks; absent, null and blank are "" (R17).
// It is shown to people, so it has no characters that do not print.
func (p *parser) text(n *yaml.Node, field string) string {
	if isNull(n) {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		p.fail(n, field, InvalidValue, "must be a string; quote it")
		return ""
	}
	s := strings.TrimSpace(n.Value)
	if unprintable(s) {
		p.fail(n, field, InvalidValue, "holds characters that do not print")
		return ""
	}
	return s
}

func (p *parser) boolean(n *yaml.Node, field string, absent bool) bool {
	if n == nil {
		return absent
	}
	var b bool
	if n.ShortTag() != "!!bool" || n.Decode(&b) != nil {
		p.fail(n, field, InvalidValue, "must be true or false")
	}
	return b
}

// oneOf is a word out of a list.
func oneOf[T ~string](p *parser, n *yaml.Node, field string, absent T, words ...T) T {
	if n == nil {
		return absent
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || !slices.Contains(words, T(n.Value)) {
		p.fail(n, field, InvalidValue, fmt.Sprintf("must be one of %v", words))
		return absent
	}
	return T(n.Value)
}

// seconds is a positive number of seconds, fractions allowed (R19).
func (p *parser) seconds(n *yaml.Node, field string, absent time.Duration) time.Duration {
	if n == nil {
		return absent
	}
	var f float64
	number := n.Kind == yaml.ScalarNode && slices.Contains([]string{"!!int", "!!float"}, n.ShortTag()) && n.Decode(&f) == nil
	d := time.Duration(math.Min(f, 2*maxTimeout.Seconds()) * float64(time.Second))
	if !number || math.IsNaN(f) || d <= 0 || d > maxTimeout {
		p.fail(n, field, InvalidTimeout, fmt.Sprintf("must be a number of seconds above 0, at most %v", maxTimeout.Seconds()))
		return absent
	}
	return d
}

// scalar is the source text of a scalar (R18): 0x10 stays 0x10.
func scalar(n *yaml.Node) (string, bool) {
	plain := []string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp", "!!merge"}
	return n.Value, n.Kind == yaml.ScalarNode && slices.Contains(plain, n.ShortTag()) && !strings.Contains(n.Value, "\x00")
}

// list is a list of scalars; null is empty.
func (p *parser) list(n *yaml.Node, field string, code Code) []string {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.fail(n, field, code, "must be a list")
		return nil
	}
	var list []string
	for i, item := range n.Content {
		text, ok := scalar(item)
		if !ok {
			p.fail(item, fmt.Sprintf("%s[%d]", field, i), code, "must be a string, a number or a truth value")
		}
		list = append(list, text)
	}
	return list
}

// table is a mapping of names to scalars; null is empty. Names that differ in
// case only are one name to HTTP and to some systems.
func (p *parser) table(n *yaml.Node, field string, code Code, judge func(name, value string) verdict) map[string]redact.Raw[string] {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.fail(n, field, code, "must be a mapping")
		return nil
	}
	values := make(map[string]redact.Raw[string])
	seen := make(map[string]bool)
	for key, value := range pairs(n) {
		text, ok := scalar(value)
		if !ok {
			p.fail(value, field, code, "a value must be a string, a number or a truth value")
		}
		if folded := strings.ToLower(key.Value); seen[folded] {
			p.fail(key, field, code, "a name stands here twice, in different case")
		} else {
			seen[folded] = true
		}
		if v := judge(key.Value, text); v.code != "" {
			at := field
			if v.named {
				at += "." + key.Value
			}
			p.fail(key, at, v.code, v.message)
		}
		values[key.Value] = redact.NewRaw(text)
	}
	return values
}

// overrides reads tools.metadata of the manifest (R69).
func (p *parser) overrides(n *yaml.Node) map[string]map[string]authority.Override {
	const field = "tools.metadata"
	if !isNull(n) && n.Kind != yaml.MappingNode {
		p.fail(n, field, InvalidValue, "must be a mapping")
	}
	all := make(map[string]map[string]authority.Override)
	for server, tools := range pairs(n) {
		if tools.Kind != yaml.MappingNode {
			p.fail(tools, field, InvalidValue, "must be a mapping of servers and tools")
		}
		all[server.Value] = make(map[string]authority.Override)
		for tool, says := range pairs(tools) {
			v := p.mapping(says, field, "risk", "approval_policy", "enabled")
			all[server.Value][tool.Value] = authority.Override{
				Risk:     oneOf(p, v["risk"], field+".risk", "", authority.Low, authority.Medium, authority.High, authority.Critical),
				Policy:   oneOf(p, v["approval_policy"], field+".approval_policy", "", authority.Auto, authority.Prompt, authority.Deny),
				Disabled: !p.boolean(v["enabled"], field+".enabled", true),
			}
		}
	}
	return all
}

// fingerprint is over JSON with sorted keys (R23). Scalars are their source
// text, since that is what a server is started with: args [1] and args [0x1]
// differ.
func fingerprint(id, path string, manifest *yaml.Node) string {
	// Maps, lists and strings always have a JSON form, with sorted keys.
	canonical, _ := json.Marshal(map[string]any{"server_id": id, "relative_path": path, "manifest": plain(manifest)})
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

func plain(n *yaml.Node) any {
	switch {
	case isNull(n):
		return nil
	case n.Kind == yaml.MappingNode:
		m := make(map[string]any)
		for key, value := range pairs(n) {
			m[key.Value] = plain(value)
		}
		return m
	case n.Kind == yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			list = append(list, plain(item))
		}
		return list
	}
	return n.Value
}
