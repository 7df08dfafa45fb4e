// Package declaration reads the MCP servers that an agent core declares, and
// says what of a declaration may be shown.
//
// A core declares servers in agent/mcp/*.yaml. The files are data (R1, R2):
// nothing in them runs, resolves or is looked up here, and no field of them
// reaches the URL policy (R21). Values that may hold secrets are redact.Raw
// from the moment they are read; a Preview is made of names, shapes and keyed
// digests, so there is nothing in it to redact.
//
// The package is pure: files arrive as fs.FS, the host environment as a lookup
// function that is called only after consent (R72, R74).
package declaration

import (
	"fmt"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/redact"
)

// Transport is how a server is reached.
type Transport string

// The transports.
const (
	Stdio          Transport = "stdio"
	StreamableHTTP Transport = "streamable_http"
)

// Declaration is one server of a core, checked, with defaults filled in (R11), or one that
// a person installed, in the same form.
type Declaration struct {
	// ServerID is the stem of the file name (R7, R22).
	ServerID string
	// Path is the file, from the root of the core.
	Path      string
	Enabled   bool
	Transport Transport

	// Command, Args, Env and Cwd are for Stdio only (R16). Env values are as
	// written: see Resolve.
	Command string
	Args    redact.Raw[[]string]
	Env     map[string]redact.Raw[string]
	// Cwd is as written, empty if absent; the host resolves it inside the
	// workspace (R71).
	Cwd string

	// URL and Headers are for StreamableHTTP only (R16). Header values are as
	// written: see Resolve.
	URL     redact.Raw[string]
	Headers map[string]redact.Raw[string]

	// Include and Exclude are patterns for raw tool names (R41).
	Include, Exclude []string

	Risk           authority.Risk
	ApprovalPolicy authority.Policy
	// Capability replaces mcp.call:<id> if it is not empty (R59).
	Capability string
	// ConnectTimeout bounds connect, initialize and list together (R131),
	// CallTimeout each call (R199).
	ConnectTimeout, CallTimeout time.Duration
	// Parallel allows several calls at once on one connection (R20).
	Parallel bool

	// Fingerprint is the SHA-256, in hexadecimal, of id, path and all that the
	// file says, literal secrets included (R23). A comment or the order of keys
	// does not change it.
	Fingerprint string

	// Installed says that a person installed the server, and no core declares it: Path is
	// empty, values are not interpolated (R79), and Fingerprint is that of R40.
	Installed bool
	// Kept are the values that the keystore has in the place of what is written here.
	Kept []Kept
}

// Kept is a value of an installed server that is in the keystore (R81).
type Kept struct {
	Place Place
	// Name is that of a variable or header, Index that of an argument.
	Name  string
	Index int
	// Item is the name of the value in the keystore.
	Item string
}

// Place is where a kept value belongs, in the words of its reference.
type Place string

// The places.
const (
	PlaceCommand Place = "command"
	PlaceArg     Place = "arg"
	PlaceEnv     Place = "env"
	PlaceURL     Place = "url"
	PlaceHeader  Place = "header"
)

// ConnectCapability is the capability to connect (R50).
func (d Declaration) ConnectCapability() string { return authority.Connect(d.ServerID) }

// CallCapability is the capability to call a tool of this server: the explicit
// one if there is one (R58, R59).
func (d Declaration) CallCapability() string {
	if d.Capability != "" {
		return d.Capability
	}
	return authority.Call(d.ServerID)
}

// Code is the kind of a diagnostic, from the closed list of the requirements
// (section 4.3).
type Code string

// The codes of core declarations.
const (
	InvalidYAML        Code = "invalid_yaml"
	NotAMapping        Code = "not_a_mapping"
	UnknownField       Code = "unknown_field"
	InvalidValue       Code = "invalid_value"
	MissingCommand     Code = "missing_command"
	MissingURL         Code = "missing_url"
	InvalidURLScheme   Code = "invalid_url_scheme"
	InvalidURL         Code = "invalid_url"
	CredentialURL      Code = "credential_bearing_url"
	ForeignField       Code = "field_not_supported_for_transport"
	AmbiguousTransport Code = "ambiguous_transport"
	InvalidServerID    Code = "invalid_server_id"
	InvalidArgs        Code = "invalid_args"
	InvalidEnv         Code = "invalid_env"
	InvalidHeaders     Code = "invalid_headers"
	InvalidTimeout     Code = "invalid_timeout"
	ReservedEnvName    Code = "reserved_env_name"
	DuplicateServerID  Code = "duplicate_server_id"
	RootNotDir         Code = "declaration_root_not_dir"
	PathEscapesRoot    Code = "path_escapes_root"
	CoreLoadFailed     Code = "core_load_failed"
	LiteralSecret      Code = "literal_secret" // a warning only (R78)
)

// Diagnostic is one thing that is wrong, or that a person should know, about a
// file. It names fields, never values.
type Diagnostic struct {
	// Path is the file, from the root of the core.
	Path string
	// Line counts from 1; 0 if the file as a whole is meant.
	Line int
	// Field is dotted, like "env.TOKEN" or "args[2]"; empty if no field is meant.
	Field   string
	Code    Code
	Message string
	// Warning says that the declaration is valid nevertheless.
	Warning bool
}

// String is one line: path, line, code, field, message.
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.Path != "" {
		fmt.Fprintf(&b, "%q", d.Path)
		if d.Line > 0 {
			fmt.Fprintf(&b, ":%d", d.Line)
		}
		b.WriteString(": ")
	}
	b.WriteString(string(d.Code))
	if d.Field != "" {
		b.WriteString(" " + d.Field)
	}
	return b.String() + ": " + d.Message
}
