package declaration

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/hidden"
	"github.com/gatebus/gatebus/events/redact"
)

// The codes of mcpServers JSON that core declarations do not have.
const (
	InvalidJSON          Code = "invalid_json"
	MissingServers       Code = "missing_mcp_servers"
	InvalidServerConfig  Code = "invalid_server_config"
	InvalidServerName    Code = "invalid_server_name"
	MissingTransport     Code = "missing_transport"
	InvalidCommand       Code = "invalid_command"
	InvalidCwd           Code = "invalid_cwd"
	InvalidEnabledState  Code = "invalid_enabled_state"
	InvalidImplicitState Code = "invalid_implicit_state"
	InvalidRequired      Code = "invalid_required"
	InvalidScopeKind     Code = "invalid_scope_kind"
	NotInterpolated      Code = "not_interpolated" // a warning only (R79)
)

// Severity says whether a problem keeps a server from being installed.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Problem is one thing that is wrong, or that a person should know, about mcpServers
// JSON. It names places, never values.
type Problem struct {
	Code     Code
	Severity Severity
	Message  string
	// Path is where, as a JSONPath (RFC 9535): $.mcpServers.github.args[2]. What of it
	// cannot be shown, such as a name that may be a secret, is left out at its end.
	Path string
}

// String is one line: path, code, message.
func (p Problem) String() string { return p.Path + ": " + string(p.Code) + ": " + p.Message }

// Item is one member of mcpServers, read by itself (R24, R25).
type Item struct {
	// Name is that of the server; empty if it is not one that can be shown.
	Name string
	// Problems are all that is wrong with the item, and its warnings (R28). Of an item
	// that is not Valid nothing else is to be used.
	Problems []Problem

	Transport Transport
	// Command, Args, Env and Cwd are for Stdio only. Values are as they were given:
	// nothing is interpolated (R79).
	Command string
	Args    redact.Raw[[]string]
	Env     map[string]redact.Raw[string]
	Cwd     string
	// URL and Headers are for StreamableHTTP only.
	URL     redact.Raw[string]
	Headers map[string]redact.Raw[string]

	// StartupTimeout bounds connect, initialize and list (R30), ToolTimeout each call
	// (R31).
	StartupTimeout, ToolTimeout time.Duration
	// Required fails a turn without this server (R33).
	Required bool
	// Parallel allows several calls at once on one connection (R20).
	Parallel bool
	// Enabled and Implicit are what the item says of policy, nil if nothing (R34).
	Enabled, Implicit *bool
}

// Valid reports whether the item can be installed.
func (i Item) Valid() bool {
	return !slices.ContainsFunc(i.Problems, func(p Problem) bool { return p.Severity == Error })
}

// Scope is for whom an installation is (R36).
type Scope string

// The scopes.
const (
	WorkspaceScope Scope = "workspace"
	UserScope      Scope = "user"
)

// ParseScope reads scope_kind; nothing is the workspace. What is no scope is
// [InvalidScopeKind].
func ParseScope(kind string) (Scope, bool) {
	scope := cmp.Or(Scope(kind), WorkspaceScope)
	return scope, scope == WorkspaceScope || scope == UserScope
}

const (
	defaultStartupTimeout = 180 * time.Second
	defaultToolTimeout    = 120 * time.Second
)

// ParseServers reads mcpServers JSON as hosts have it and web pages show it (R24..R36):
// an object with the member mcpServers, its other members being ignored; of at most 1
// MiB, with comments, commas at an end (JSONC) and a byte order mark where they are.
//
// The items are sorted by name, each with all of its own problems. If there are
// problems of the text as a whole there are no items, and nothing is to be installed.
func ParseServers(data []byte) ([]Item, []Problem) {
	fail := func(code Code, path jsonPath, message string) ([]Item, []Problem) {
		return nil, []Problem{{code, Error, message, string(path)}}
	}
	switch {
	case len(data) > maxFileBytes:
		return fail(InvalidJSON, root, "is larger than 1 MiB")
	case !utf8.Valid(data):
		return fail(InvalidJSON, root, "is not UTF-8")
	}
	top, err := readJSON(data)
	if err != nil {
		return fail(InvalidJSON, root, err.Error())
	}
	if top.kind != '{' {
		return fail(MissingServers, root.member(serversMember), "the text is no object with the member mcpServers")
	}
	var servers *jsonValue
	for _, m := range top.members {
		switch {
		case m.name != serversMember:
		case servers != nil:
			return fail(InvalidJSON, root.member(serversMember), "stands here twice")
		default:
			servers = m.value
		}
	}
	switch {
	case servers == nil:
		return fail(MissingServers, root.member(serversMember), missingHint(top))
	case servers.kind != '{':
		return fail(MissingServers, root.member(serversMember), "must be an object of servers by their names")
	}

	var items []Item
	seen := make(map[string]int)
	for n, m := range servers.members {
		at, named := root.member(serversMember).child(m.name)
		if first, twice := seen[m.name]; twice {
			items[first].Problems = append(items[first].Problems, Problem{DuplicateServerID, Error, "stands here twice", string(at)})
			continue
		}
		seen[m.name] = len(items)
		r := itemReader{at: at}
		if named {
			r.item.Name = m.name
		}
		if !named || !installedName.MatchString(m.name) {
			message := "a server is named by 1 to 64 letters, digits, '_' or '-'"
			if !named {
				message = fmt.Sprintf("the name of member %d cannot be shown; %s", n+1, message)
			}
			r.fail(at, InvalidServerName, message)
		}
		r.read(m.value)
		items = append(items, r.item)
	}
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(a.Name, b.Name) })
	return items, nil
}

const serversMember = "mcpServers"

// installedName is stricter than an id of a core (R27).
var installedName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// missingHint helps who pastes what another host calls otherwise.
func missingHint(top *jsonValue) string {
	for _, m := range top.members {
		if m.value.kind == '{' && slices.Contains([]string{"servers", "mcp_servers", "context_servers", "mcp"}, m.name) {
			return "is missing: what stands below " + m.name + " belongs below mcpServers"
		}
	}
	for _, m := range top.members {
		if m.name == "command" || m.name == "url" || slices.ContainsFunc(m.value.members, func(f jsonMember) bool { return f.name == "command" || f.name == "url" }) {
			return `is missing: put the servers, each with its name, below {"mcpServers": {…}}`
		}
	}
	return "is missing"
}

// itemReader reads one item and collects what is wrong with it.
type itemReader struct {
	at     jsonPath
	item   Item
	fields map[string]*jsonValue
}

func (r *itemReader) fail(at jsonPath, code Code, message string) {
	r.item.Problems = append(r.item.Problems, Problem{code, Error, message, string(at)})
}

func (r *itemReader) warn(at jsonPath, code Code, message string) {
	r.item.Problems = append(r.item.Problems, Problem{code, Warning, message, string(at)})
}

func (r *itemReader) read(v *jsonValue) {
	if v.kind != '{' {
		r.fail(r.at, InvalidServerConfig, "must be an object")
		return
	}
	r.fields = make(map[string]*jsonValue)
	for _, m := range v.members {
		at, _ := r.at.child(m.name)
		_, twice := r.fields[m.name]
		switch {
		case twice:
			r.fail(at, InvalidServerConfig, "a field stands here twice")
		case !slices.Contains(itemFields, m.name):
			message := cmp.Or(foreignFields[m.name], "is not a field here and has no effect")
			if fieldName(m.name) == "" {
				at = r.at
				message = "has a field of a name that is not shown, which is not a field here and has no effect"
			}
			r.warn(at, UnknownField, message)
		}
		r.fields[m.name] = m.value
	}

	_, command := r.fields["command"]
	_, url := r.fields["url"]
	switch {
	case command && url:
		r.fail(r.at, AmbiguousTransport, "command and url exclude each other")
	case command:
		r.item.Transport = Stdio
	case url:
		r.item.Transport = StreamableHTTP
	default:
		r.fail(r.at, MissingTransport, "needs a command or a url")
	}
	r.item.Command = r.command()
	r.item.Args = redact.NewRaw(r.args())
	r.item.Env = r.table("env", InvalidEnv, judgeEnv)
	r.item.Cwd = r.cwd()
	r.item.URL = redact.NewRaw(r.url())
	r.item.Headers = r.table("headers", InvalidHeaders, judgeHeader)
	r.item.StartupTimeout = r.seconds("startup_timeout_sec", defaultStartupTimeout)
	// The first that is there counts, a wrong one is reported all the same (R31).
	r.item.ToolTimeout = r.seconds("tool_timeout_sec", r.seconds("timeout", defaultToolTimeout))
	r.item.Required = r.boolean("required", InvalidRequired)
	r.item.Parallel = r.boolean("supports_parallel_tool_calls", InvalidValue)
	r.policy()
	r.transport()
	r.warnLiteralSecrets()
}

// itemFields are all that an item may say with an effect.
var itemFields = []string{
	"command", "args", "env", "cwd", "url", "headers", "type", "transport", "startup_timeout_sec", "tool_timeout_sec",
	"timeout", "required", "enabled", "disabled", "allow_implicit_invocation", "supports_parallel_tool_calls",
}

// foreignFields are what other hosts read in an item, with what is to be said of them.
var foreignFields = func() map[string]string {
	const (
		approve = "has no effect: what runs without a question is set by the policy of this bus"
		tools   = "has no effect: which tools are to be had is set by grants and the policy of this bus"
		login   = "has no effect"
		values  = "is not read: give the values in env"
		write   = "is not read: write "
	)
	return map[string]string{
		"autoApprove": approve, "alwaysAllow": approve, "trust": approve, "alwaysLoad": approve, "default_tools_approval_mode": approve,
		"disabledTools": tools, "enabled_tools": tools, "disabled_tools": tools, "includeTools": tools, "excludeTools": tools, "tools": tools,
		"env_vars": values, "envFile": values, "env_file": values, "env_keys": values,
		"serverUrl": write + "url", "httpUrl": write + "url", "uri": write + "url", "cmd": write + "command",
		"environment": write + "env", "envs": write + "env", "http_headers": write + "headers",
		"env_http_headers": write + "headers", "bearer_token_env_var": write + "headers", "bearer_token": write + "headers",
		"headersHelper": login, "oauth": login, "auth": login,
		"startup_timeout_ms": write + "startup_timeout_sec, in seconds",
	}
}()

// shown is a text that people are shown: without outer blanks, and of characters that
// print.
func (r *itemReader) shown(field string, code Code) (text string, ok bool) {
	v := r.fields[field]
	at := r.at.member(field)
	if v.kind != '"' {
		r.fail(at, code, "must be a string")
		return "", false
	}
	text = strings.TrimSpace(v.text)
	if unprintable(text) {
		r.fail(at, code, "holds characters that do not print")
		return "", false
	}
	return text, true
}

func (r *itemReader) command() string {
	if r.fields["command"] == nil {
		return ""
	}
	text, ok := r.shown("command", InvalidCommand)
	switch at := r.at.member("command"); {
	case ok && text == "":
		r.fail(at, InvalidCommand, "is blank")
	case strings.ContainsAny(text, " \t") && !strings.ContainsAny(text, `/\`):
		r.warn(at, InvalidCommand, "holds a blank: arguments belong into args, no shell takes it apart")
	}
	return text
}

func (r *itemReader) cwd() string {
	if r.fields["cwd"] == nil {
		return ""
	}
	text, _ := r.shown("cwd", InvalidCwd)
	if shaped(text) {
		r.fail(r.at.member("cwd"), InvalidCwd, "looks like a secret, which a directory cannot be kept as")
	}
	return text
}

func (r *itemReader) url() string {
	v := r.fields["url"]
	if v == nil {
		return ""
	}
	text := strings.TrimSpace(v.text)
	at := r.at.member("url")
	if v.kind != '"' {
		r.fail(at, InvalidURL, "must be a string")
		return ""
	}
	switch v := judgeURL(text); {
	case v.code == "":
	case v.code == InvalidURLScheme:
		r.fail(at, InvalidURL, v.message)
	case v.minor:
		r.fail(at, v.code, "must have no query and no fragment: a key belongs into headers")
	default:
		r.fail(at, v.code, v.message)
	}
	r.warnReference(at, text)
	return text
}

func (r *itemReader) args() (list []string) {
	v := r.fields["args"]
	if v == nil {
		return nil
	}
	at := r.at.member("args")
	if v.kind != '[' {
		r.fail(at, InvalidArgs, "must be an array of strings")
		return nil
	}
	for i, a := range v.items {
		switch {
		case a.kind != '"':
			r.fail(at.index(i), InvalidArgs, "must be a string")
		case strings.Contains(a.text, "\x00"):
			r.fail(at.index(i), InvalidArgs, "holds a NUL")
		}
		r.warnReference(at.index(i), a.text)
		list = append(list, a.text)
	}
	return list
}

// table is an object of strings. Names that differ in case only are one name to HTTP
// and to some systems.
func (r *itemReader) table(field string, code Code, judge func(name, value string) verdict) map[string]redact.Raw[string] {
	v := r.fields[field]
	if v == nil {
		return nil
	}
	at := r.at.member(field)
	if v.kind != '{' {
		r.fail(at, code, "must be an object of strings")
		return nil
	}
	values := make(map[string]redact.Raw[string])
	seen := make(map[string]bool)
	for n, m := range v.members {
		own, named := at.child(m.name)
		verdict := judge(m.name, m.value.text)
		if !verdict.named || !named {
			own = at
			if verdict.code != "" {
				verdict.message = fmt.Sprintf("member %d: %s", n+1, verdict.message)
			}
		}
		folded := strings.ToLower(m.name)
		switch {
		case m.value.kind != '"':
			r.fail(own, code, "must be a string")
		case verdict.code != "":
			r.fail(own, verdict.code, verdict.message)
		case strings.Contains(m.value.text, "\x00"):
			r.fail(own, code, "holds a NUL")
		case seen[folded]:
			r.fail(own, code, "a name stands here twice, if not in the same case")
		}
		seen[folded] = true
		r.warnReference(own, m.value.text)
		values[m.name] = redact.NewRaw(m.value.text)
	}
	return values
}

// wholeSeconds has no sign, no fraction and no exponent (R32).
var wholeSeconds = regexp.MustCompile(`^[0-9]{1,9}$`)

func (r *itemReader) seconds(field string, absent time.Duration) time.Duration {
	v := r.fields[field]
	if v == nil {
		return absent
	}
	n := 0
	if v.kind == '0' && wholeSeconds.MatchString(v.text) {
		n, _ = strconv.Atoi(v.text)
	}
	if d := time.Duration(n) * time.Second; d > 0 && d <= maxTimeout {
		return d
	}
	r.fail(r.at.member(field), InvalidTimeout, fmt.Sprintf("must be a whole number of seconds, 1 to %v", maxTimeout.Seconds()))
	return absent
}

func (r *itemReader) boolean(field string, code Code) bool {
	v := r.fields[field]
	if v == nil {
		return false
	}
	if v.kind != 't' && v.kind != 'f' {
		r.fail(r.at.member(field), code, "must be true or false")
	}
	return v.kind == 't'
}

// policy reads what the item says of policy (R34).
func (r *itemReader) policy() {
	said := func(field string, code Code) *bool {
		if r.fields[field] == nil {
			return nil
		}
		b := r.boolean(field, code)
		return &b
	}
	enabled, disabled := said("enabled", InvalidEnabledState), said("disabled", InvalidEnabledState)
	switch {
	case enabled != nil && disabled != nil:
		r.fail(r.at.member("disabled"), InvalidEnabledState, "enabled and disabled exclude each other")
	case disabled != nil:
		on := !*disabled
		enabled = &on
	}
	r.item.Enabled, r.item.Implicit = enabled, said("allow_implicit_invocation", InvalidImplicitState)
}

// transport holds an item to the fields of its transport (R16), and to what it says
// that its transport is.
func (r *itemReader) transport() {
	if r.item.Transport == "" {
		return
	}
	given := []string{"url", "headers"}
	if r.item.Transport == StreamableHTTP {
		given = []string{"args", "env", "cwd"}
	}
	for _, field := range given {
		if v := r.fields[field]; v != nil && (len(v.members) > 0 || len(v.items) > 0 || strings.TrimSpace(v.text) != "") {
			r.fail(r.at.member(field), ForeignField, "is not for the transport "+string(r.item.Transport))
		}
	}
	for _, field := range []string{"type", "transport"} {
		v := r.fields[field]
		if v == nil {
			continue
		}
		at := r.at.member(field)
		switch said := strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(v.text)); {
		case v.kind != '"':
			r.fail(at, InvalidValue, "must be a string")
		case slices.Contains([]string{"sse", "ws", "websocket"}, said):
			r.fail(at, ForeignField, "this transport is not supported: a url is that of a streamable HTTP endpoint, often one that ends in /mcp")
		case !slices.Contains(transportWords[r.item.Transport], said):
			r.fail(at, ForeignField, "does not agree with the transport "+string(r.item.Transport)+" of the other fields")
		}
	}
}

// transportWords are what hosts call the transports, without case, '-' and '_'.
var transportWords = map[Transport][]string{Stdio: {"stdio"}, StreamableHTTP: {"http", "streamablehttp"}}

// warnReference warns of what other hosts replace.
func (r *itemReader) warnReference(at jsonPath, value string) {
	if _, rest, ok := strings.Cut(value, "${"); ok && strings.Contains(rest, "}") {
		r.warn(at, NotInterpolated, "holds ${…}, which stays as it is: write the value itself, it is kept in the keystore")
	}
}

// warnLiteralSecrets warns of arguments that look like credentials (R78).
func (r *itemReader) warnLiteralSecrets() {
	for _, a := range arguments(r.item.Command, r.item.Args.Reveal()) {
		if a.secret && looksSecret(a.value) {
			r.warn(r.at.member("args").index(a.at), LiteralSecret, argumentSecret)
		}
	}
}

// jsonPath is a JSONPath (RFC 9535).
type jsonPath string

const root jsonPath = "$"

// member is the path of a member of which the program knows the name.
func (p jsonPath) member(name string) jsonPath { return p + "." + jsonPath(name) }

func (p jsonPath) index(i int) jsonPath { return p + jsonPath(fmt.Sprintf("[%d]", i)) }

// child is the path of a member, and p itself for a name that cannot be shown: one that
// is long, hides something, or looks like a secret at the wrong place.
func (p jsonPath) child(name string) (jsonPath, bool) {
	const maxShown = 64
	switch {
	case utf8.RuneCountInString(name) > maxShown || strings.ContainsFunc(name, hidden.Rune) || unprintable(name) || shaped(name):
		return p, false
	case envName.MatchString(name):
		return p.member(name), true
	}
	quoted, err := jsontext.AppendQuote(nil, name)
	if err != nil {
		return p, false
	}
	return p + "[" + jsonPath(quoted) + "]", true
}

// byForm knows secrets by their form alone.
var byForm, _ = redact.NewRedactor() // no error without a secret

// shaped reports whether a text has the form of a secret, or a part that has.
func shaped(text string) bool { return byForm.Text(redact.NewRaw(text)).Event.String() != text }

func unprintable(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return unicode.In(c, unicode.C, unicode.Zl, unicode.Zp) })
}

// jsonValue is a JSON value whose objects keep the order of their members, and those
// that are there twice.
type jsonValue struct {
	kind    jsontext.Kind
	text    string // of a string, and the literal of a number
	members []jsonMember
	items   []*jsonValue
}

type jsonMember struct {
	name  string
	value *jsonValue
}

// readJSON reads one value. The error says where, and quotes nothing.
func readJSON(data []byte) (*jsonValue, error) {
	data = withoutComments(bytes.TrimPrefix(data, []byte("\ufeff")))
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	v, err := readValue(dec)
	if err == nil {
		if _, err = dec.ReadToken(); err == nil {
			return nil, errors.New("holds more than one value")
		}
	}
	switch {
	case errors.Is(err, io.EOF) && v != nil:
		return v, nil
	case errors.Is(err, io.EOF):
		return nil, errors.New("is empty")
	}
	message := "is not valid JSON"
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		before := data[:min(max(int(e.ByteOffset), 0), len(data))]
		message += fmt.Sprintf(" at line %d, column %d", 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'))
	}
	return nil, errors.New(message)
}

// readValue reads the next value. How deep it goes is bounded by the decoder.
func readValue(dec *jsontext.Decoder) (*jsonValue, error) {
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	v := &jsonValue{kind: tok.Kind()}
	switch v.kind {
	case '{':
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			m := jsonMember{name: name.String()}
			if m.value, err = readValue(dec); err != nil {
				return nil, err
			}
			v.members = append(v.members, m)
		}
		_, err = dec.ReadToken()
	case '[':
		for dec.PeekKind() != ']' {
			item, err := readValue(dec)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
		_, err = dec.ReadToken()
	default:
		v.text = tok.String()
	}
	return v, err
}

// withoutComments makes blanks of comments and of commas before a closing bracket, as
// VS Code and others take them, so that every other byte stays where it is. A library
// for it (hujson) goes as deep as its input, which a megabyte of brackets makes the end
// of the process.
func withoutComments(data []byte) []byte {
	out := bytes.Clone(data)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	comma := -1       // one after which nothing came yet
	before := byte(0) // what came last, blanks aside
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			continue
		case bytes.HasPrefix(out[i:], []byte("//")):
			end := bytes.IndexByte(out[i:], '\n')
			if end < 0 {
				end = len(out) - i
			}
			blank(i, i+end)
			continue
		case bytes.HasPrefix(out[i:], []byte("/*")):
			end := bytes.Index(out[i+2:], []byte("*/"))
			if end < 0 {
				return out // the parser says where
			}
			blank(i, i+end+4)
			continue
		case c == '"':
			comma = -1
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
		case c == ',':
			comma = i
			if bytes.IndexByte([]byte{0, '[', '{', ',', ':'}, before) >= 0 {
				comma = -1
			}
		case c == ']' || c == '}':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		default:
			comma = -1
		}
		if i < len(out) {
			before = out[i]
		}
	}
	return out
}
