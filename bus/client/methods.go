package client

import (
	"encoding/json"
	"fmt"
	"time"
)

// The parameters and results of the methods, as JSON. The same bodies travel on
// NATS and, later, on /rpc. A method's schema is in schemas/json/rpc.

// Identity says for whom a request is: the principal whose authority counts and
// the actor who makes it; they differ where an operator acts for somebody.
type Identity struct {
	Workspace, Principal, Actor string
}

// SessionStart are the params of session/start: a native host names its session.
type SessionStart struct {
	Label string `json:"label"`
	// Principal is for an operator who acts for somebody.
	Principal string `json:"principal,omitempty"`
}

// Session is the result of session/start.
type Session struct {
	Session string `json:"session"`
}

// TurnPrepare are the params of turn/prepare.
type TurnPrepare struct {
	// Workspace is that of the credential, which is the only one that it is good
	// for; empty is the same.
	Workspace       string          `json:"workspace,omitempty"`
	Session         string          `json:"session"`
	Principal       string          `json:"principal,omitempty"`
	IncludeImplicit bool            `json:"include_implicit,omitzero"`
	ExplicitServers []string        `json:"explicit_servers,omitempty"`
	ExplicitTools   []ToolSelection `json:"explicit_tools,omitempty"`
	HostTools       []HostTool      `json:"host_tools,omitempty"`
	// Provider is what the host runs the turn with; left out, it takes tools.
	Provider *Provider `json:"provider,omitempty"`
	// Limits are those of the host: the smaller of each and of the runtime's holds.
	Limits *TurnLimits `json:"limits,omitempty"`
}

// Provider is the model provider of a turn. One that does not take tools gets a
// turn without any, and each selection is rejected (R187).
type Provider struct {
	SupportsTools bool `json:"supports_tools"`
}

// TurnLimits bound what a turn binds; a turn that would have more fails (R189 to
// R193). Left out is the runtime's own.
type TurnLimits struct {
	// Tools is how many tools: 1 to 4,096; the runtime's is 512.
	Tools uint32 `json:"tools,omitempty"`
	// SchemaBytes is how large their input schemas are together in canonical JSON:
	// 1 to 33,554,432; the runtime's is 3,145,728.
	SchemaBytes uint32 `json:"schema_bytes,omitempty"`
}

// ToolSelection names one tool of one server by its raw name.
type ToolSelection struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
}

// HostTool is a tool of the host itself, so that collisions can be seen (R45).
type HostTool struct {
	Name       string `json:"name"`
	Provenance string `json:"provenance"`
}

// Turn is the result of turn/prepare.
type Turn struct {
	Turn         string       `json:"turn"`
	CatalogID    string       `json:"catalog_id"`
	ManifestHash string       `json:"manifest_hash"`
	Tools        []Tool       `json:"tools"`
	Rejected     []Rejection  `json:"rejected_capabilities"`
	Diagnostics  []Diagnostic `json:"diagnostics"`
	// What else the servers of the turn list, for MCP clients of this process.
	Resources []Item `json:"-"`
	Templates []Item `json:"-"`
	Prompts   []Item `json:"-"`
	// Servers are the connected ones.
	Servers []string `json:"-"`
}

// Item is a resource, a template of resources or a prompt of a server. RawName is
// the server's own name for it, the URI or the template; Name is the visible one.
// Definition is as that of a [Tool].
type Item struct {
	Name, Server, RawName string
	Definition            json.RawMessage
}

// Tool is one visible tool. Definition is the server's definition, byte for
// byte but for the name and what redaction took out.
type Tool struct {
	Name        string          `json:"name"`
	Server      string          `json:"server"`
	RawName     string          `json:"raw_name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Definition  json.RawMessage `json:"definition"`
	// Digest is the SHA-256 of the canonical definition, hex.
	Digest string `json:"digest"`
}

// Rejection says why a selection was not honoured (R185, R186).
type Rejection struct {
	ID      string `json:"id"`
	Label   string `json:"label"`
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Diagnostic says why a server or tool is missing.
type Diagnostic struct {
	Server  string `json:"server"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Approval is the id of the approval that is waited for.
	Approval string `json:"approval,omitempty"`
}

// ToolCall are the params of tool/call. Arguments are raw: they travel over core
// NATS only, which no stream captures (R118, R210).
type ToolCall struct {
	Turn string `json:"turn"`
	Name string `json:"name"`
	// Arguments is an object; left out, it is empty.
	Arguments json.RawMessage `json:"arguments,omitzero"`
	Principal string          `json:"principal,omitempty"`
	// WaitMS is how long to wait for an approval, in milliseconds.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// CallReply is the result of tool/call. Result is the server's result as the
// model may see it.
type CallReply struct {
	Status           string          `json:"status"`
	Call             string          `json:"call"`
	ExecutionStarted bool            `json:"execution_started"`
	Result           json.RawMessage `json:"result,omitempty"`
	// Text is the converted result (R116).
	Text     string       `json:"text,omitempty"`
	Approval *ApprovalRef `json:"approval,omitempty"`
	Error    *CallError   `json:"error,omitempty"`
	// CatalogDrift is what the catalog of the server has become since the turn was
	// prepared: catalog, tool or gone. It is empty where it is the same (R203).
	CatalogDrift string `json:"catalog_drift,omitempty"`
}

// ApprovalRef names the approval that a call waits for.
type ApprovalRef struct {
	ID string `json:"id"`
	// URL is where a person answers; empty as long as there is no console. MCP
	// clients are told the same one.
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

// CallError says why there is no result.
type CallError struct {
	Kind    string `json:"kind"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// JSONRPC is the server's own error object, as the model may see it.
	JSONRPC json.RawMessage `json:"jsonrpc,omitempty"`
}

// ToolList are the params of tool/list.
type ToolList struct {
	Server    string `json:"server,omitempty"`
	Principal string `json:"principal,omitempty"`
}

// ToolInfo is one row of tool/list: a tool of a connected server, as an operator
// sees it.
type ToolInfo struct {
	Name        string `json:"name"`
	Server      string `json:"server"`
	RawName     string `json:"raw_name"`
	Principal   string `json:"principal"`
	Description string `json:"description"`
	Digest      string `json:"digest"`
	Blocked     bool   `json:"blocked"`
	// Flags say what is the matter with the definition: added, changed, or the class of
	// suspicious text in it.
	Flags      []string        `json:"flags,omitempty"`
	Definition json.RawMessage `json:"definition,omitempty"`
}

// Server is one row of mcp/list.
type Server struct {
	Name        string             `json:"name"`
	Core        string             `json:"core"`
	Path        string             `json:"path"`
	Enabled     bool               `json:"enabled"`
	Transport   string             `json:"transport"`
	Risk        string             `json:"risk"`
	Approval    string             `json:"approval_policy"`
	Capability  string             `json:"capability"`
	Fingerprint string             `json:"fingerprint"`
	State       string             `json:"state"`
	Tools       int                `json:"tools"`
	Connections []ServerConnection `json:"connections"`
	// Installed is there of a server that was installed; Core and Path are empty then.
	Installed *Installation `json:"installed,omitempty"`
	// Audit are the newest commits' events about an installed server, oldest first: in
	// the answer of mcp/server/details to an operator or auditor.
	Audit []AuditRow `json:"audit,omitempty"`
}

// Installation is what there is to say of an installed server beside what a declared
// one has. It has no value of a secret.
type Installation struct {
	// ScopeKind is workspace or user.
	ScopeKind string `json:"scope_kind"`
	ScopeKey  string `json:"scope_key"`
	// Home has the secrets of the server and its connection.
	Home string `json:"home"`
	// By installed it; ApprovalID is the yes that stands.
	By         string `json:"by"`
	ApprovalID string `json:"approval_id"`
	// Implicit says that turns have its tools without selecting it.
	Implicit bool `json:"implicit"`
	// Required says that a turn fails without it.
	Required          bool   `json:"required"`
	Parallel          bool   `json:"supports_parallel_tool_calls"`
	StartupTimeoutSec uint32 `json:"startup_timeout_sec"`
	ToolTimeoutSec    uint32 `json:"tool_timeout_sec"`

	// Since is when it came into its state; Reason says why, Message the last error,
	// redacted.
	Since   time.Time `json:"since,omitzero"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	// RetryAttempt is how often it has failed in a row, NextRetryAt when it is tried
	// again by itself.
	RetryAttempt uint32    `json:"retry_attempt,omitempty"`
	NextRetryAt  time.Time `json:"next_retry_at,omitzero"`
	Generation   uint32    `json:"runtime_generation,omitempty"`
	// CatalogVersion is of what it listed last.
	CatalogVersion string `json:"catalog_version,omitempty"`

	// How it is reached, in the answer of mcp/server/details to an operator or auditor.
	// A value that is in the keystore is <redacted>.
	Command string      `json:"command,omitempty"`
	Args    []string    `json:"args,omitempty"`
	Cwd     string      `json:"cwd,omitempty"`
	Env     []SecretRef `json:"env,omitempty"`
	URL     string      `json:"url,omitempty"`
	Headers []SecretRef `json:"headers,omitempty"`
}

// SecretRef says under which reference the keystore has the value of a variable or a
// header.
type SecretRef struct {
	Key string `json:"key"`
	Ref string `json:"ref"`
}

// Install are the params of mcp/install.
type Install struct {
	// Config is mcpServers JSON as hosts have it: the object, or its text, which may have
	// comments.
	Config json.RawMessage `json:"config"`
	// ScopeKind is workspace or user; empty is workspace.
	ScopeKind string `json:"scope_kind,omitempty"`
	// Enabled and Implicit are for servers that are not installed yet and say nothing of
	// it themselves; left out, a server is enabled and not implicit.
	Enabled  *bool `json:"enabled,omitempty"`
	Implicit *bool `json:"implicit,omitempty"`
}

// Installed is the result of mcp/install.
type Installed struct {
	// Status is ok, partial when some servers are installed and some are not, or
	// validation_error when none is.
	Status string          `json:"status"`
	Items  []InstalledItem `json:"items"`
	// Diagnostics are about the text as a whole; when there is one, nothing is installed.
	Diagnostics []ConfigDiagnostic `json:"diagnostics"`
}

// InstalledItem says what became of one server of the config.
type InstalledItem struct {
	// Name is empty if it is not one that can be shown.
	Name string `json:"name"`
	// Status is installed, updated or validation_error.
	Status      string             `json:"status"`
	Fingerprint string             `json:"fingerprint,omitempty"`
	Diagnostics []ConfigDiagnostic `json:"diagnostics"`
}

// ConfigDiagnostic is one thing that is wrong with a config, or that a person should
// know about it. It names places and never values.
type ConfigDiagnostic struct {
	Code string `json:"code"`
	// Severity is error or warning; a server with an error is not installed.
	Severity string `json:"severity"`
	Message  string `json:"message"`
	// Path is a JSONPath into the config (RFC 9535).
	Path string `json:"path"`
}

// PolicySet are the params of mcp/policy/set: what is left out stays as it is.
type PolicySet struct {
	Name      string `json:"name"`
	ScopeKind string `json:"scope_kind,omitempty"`
	Enabled   *bool  `json:"enabled,omitempty"`
	Implicit  *bool  `json:"implicit,omitempty"`
}

// PolicyState is the result of mcp/policy/set: what holds now.
type PolicyState struct {
	Name     string `json:"name"`
	Enabled  bool   `json:"enabled"`
	Implicit bool   `json:"implicit"`
}

// ServerOf are the params and the result of mcp/server/restart and mcp/uninstall.
type ServerOf struct {
	Name      string `json:"name"`
	ScopeKind string `json:"scope_kind,omitempty"`
}

// ServerConnection is one session's connection to a server.
type ServerConnection struct {
	Connection string    `json:"connection"`
	Principal  string    `json:"principal"`
	Session    string    `json:"session"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Message    string    `json:"message,omitempty"`
	Since      time.Time `json:"since"`
	Generation uint32    `json:"generation,omitempty"`
	Tools      int       `json:"tools"`
	Approval   string    `json:"approval,omitempty"`
	// Flags name what the server has beside tools, or says of itself, in which there is
	// text that people do not see or that is not meant for them.
	Flags []ItemFlag `json:"flags,omitempty"`
}

// ItemFlag is one of them. Name is escaped, and empty for the instructions of the
// server.
type ItemFlag struct {
	// List is resources, resourceTemplates, prompts or instructions.
	List    string   `json:"list"`
	Name    string   `json:"name,omitempty"`
	Reasons []string `json:"reasons"`
}

// Grant are the params of grant/add and grant/revoke, and a row of grant/list.
type Grant struct {
	Principal  string    `json:"principal"`
	Capability string    `json:"capability"`
	Until      time.Time `json:"until,omitzero"`
	Note       string    `json:"note,omitempty"`
}

// HostToken are the params of host/token.
type HostToken struct {
	Name      string    `json:"name"`
	Role      string    `json:"role,omitempty"`
	Workspace string    `json:"workspace,omitempty"`
	Expires   time.Time `json:"expires,omitzero"`
}

// HostTokenResult holds the token: the only place where it ever is.
type HostTokenResult struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
	Workspace string `json:"workspace"`
	Token     string `json:"token"`
}

// BusCreds are the params of bus/creds: a credential for NATS is wanted.
type BusCreds struct {
	Name string `json:"name"`
	// Role is host, operator, auditor or worker; empty is host.
	Role string `json:"role,omitempty"`
	// PublicKey is that of a NATS user whose seed the caller keeps; without it a
	// pair is made.
	PublicKey string    `json:"public_key,omitempty"`
	Workspace string    `json:"workspace,omitempty"`
	Expires   time.Time `json:"expires,omitzero"`
}

// BusCredsResult holds the credential. It works when the answer comes.
type BusCredsResult struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
	Workspace string `json:"workspace"`
	// Credential is its id, by which it can be revoked alone.
	Credential string    `json:"credential"`
	Expires    time.Time `json:"expires,omitzero"`
	// Creds is the text of a creds file, the only place where its seed ever is; JWT
	// is there in its place when the public key was given.
	Creds string `json:"creds,omitempty"`
	JWT   string `json:"jwt,omitempty"`
}

// HostRevoke are the params of host/revoke: of one credential, or of the
// principal with all that it has. The answer can be lost where the account that
// serves it, or that of who asks, is changed by it: ask again with the same command
// id, as [Client.Revoke] does.
type HostRevoke struct {
	Name       string `json:"name"`
	Credential string `json:"credential,omitempty"`
}

// Host is one row of host/list, and the result of host/revoke.
type Host struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Revoked bool   `json:"revoked"`
	// Credentials are those in force.
	Credentials []HostCredential `json:"credentials"`
}

// HostCredential is one credential of a principal.
type HostCredential struct {
	ID string `json:"id"`
	// Kind is key (for NATS) or token (for HTTP).
	Kind      string    `json:"kind"`
	PublicKey string    `json:"public_key,omitempty"` // of a key
	Workspace string    `json:"workspace"`
	Expires   time.Time `json:"expires,omitzero"`
}

// ApprovalsList are the params of approvals/list.
type ApprovalsList struct {
	// All includes what was answered or has expired.
	All bool `json:"all,omitempty"`
	// WaitMS makes the call wait for a change after the sequence After.
	After  uint64 `json:"after,omitempty"`
	WaitMS int64  `json:"wait_ms,omitempty"`
}

// ApprovalID are the params of approvals/get.
type ApprovalID struct {
	ID string `json:"id"`
}

// Approval is one approval.
type Approval struct {
	ID     string `json:"id"`
	Seq    uint64 `json:"seq"`
	State  string `json:"state"` // pending, allowed, denied, expired
	Action string `json:"action"`
	Target string `json:"target"`

	Principal string `json:"principal"`
	Server    string `json:"server"`
	Tool      string `json:"tool,omitempty"`
	Session   string `json:"session,omitempty"`
	// Aggregate is what waits, as kind/key.
	Aggregate   string          `json:"aggregate"`
	Risk        string          `json:"risk"`
	Policy      string          `json:"policy"`
	Preview     json.RawMessage `json:"preview"`
	Fingerprint string          `json:"fingerprint"`
	Requested   time.Time       `json:"requested"`
	Expires     time.Time       `json:"expires"`
	Kind        string          `json:"kind,omitempty"` // once or session, when answered
	By          string          `json:"by,omitempty"`
	Note        string          `json:"note,omitempty"`
	// Arguments are the call's arguments as an operator may see them. They are in
	// the memory of the process that holds the call and nowhere else.
	Arguments string `json:"arguments,omitempty"`
}

// ApprovalsDecide are the params of approvals/decide.
type ApprovalsDecide struct {
	ID string `json:"id"`
	// Decision is allow or deny.
	Decision string `json:"decision"`
	// Session lets a yes to a call stand for the session.
	Session bool   `json:"session,omitempty"`
	Note    string `json:"note,omitempty"`
}

// PolicyShow is the result of policy/show.
type PolicyShow struct {
	Workspace string        `json:"workspace"`
	Sequence  uint32        `json:"sequence"`
	Approvers string        `json:"approvers"`
	OnChange  string        `json:"on_change"`
	Levels    []PolicyLevel `json:"levels"`
}

// PolicyLevel is the policy of one level.
type PolicyLevel struct {
	Level   string         `json:"level"`
	Server  string         `json:"server,omitempty"`
	Default string         `json:"default"`
	Rules   []ApprovalRule `json:"rules"`
}

// ApprovalRule is one rule of a policy.
type ApprovalRule struct {
	Server     string `json:"server,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Capability string `json:"capability,omitempty"`
	Risk       string `json:"risk,omitempty"`
	Approval   string `json:"approval"`
}

// PolicyExplain are the params of policy/explain.
type PolicyExplain struct {
	Principal string `json:"principal"`
	// Tool is a visible name, or SERVER/RAWNAME.
	Tool string `json:"tool"`
}

// PolicyExplanation is the result of policy/explain: what decides a call of a tool by
// a principal, as things are now.
type PolicyExplanation struct {
	Principal string `json:"principal"`
	Server    string `json:"server"`
	RawName   string `json:"raw_name"`
	// Name is the visible one; empty where nobody sees the tool.
	Name string `json:"name"`
	// Decision is allowed, needs_approval or denied, Reason the kind of a denial, or the
	// step that waits for a person.
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
	// Risk is that of the declaration, raised by what the tool says of itself.
	Risk string `json:"risk"`
	// AuthoritySequence and PolicySequence are those of the last changes.
	AuthoritySequence uint64       `json:"authority_sequence"`
	PolicySequence    uint32       `json:"policy_sequence"`
	Steps             []PolicyStep `json:"steps"`
}

// PolicyStep is one step of the way to a call. A call is denied by the first step that
// denies, else asks at the first that needs a person.
type PolicyStep struct {
	// Step is declaration, connect_capability, connect_policy, connect_approval,
	// definition, call_capability, call_policy or call_approval.
	Step string `json:"step"`
	// Result is allowed, needs_approval, denied, or unknown before the server is connected.
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	// Needs is the capability that is needed, Policy the one that is in force.
	Needs  string         `json:"needs,omitempty"`
	Policy string         `json:"policy,omitempty"`
	By     []PolicySource `json:"by"`
}

// PolicySource is one thing that a step is decided on.
type PolicySource struct {
	// Kind is grant, floor, declaration, override, hint, rule, default, approval, catalog or flag.
	Kind string `json:"kind"`
	// Text is what it says: a capability, a policy with the rule that has it, an id.
	Text string `json:"text"`
	// Sequence is that of its commit; 0 where it has none.
	Sequence uint64 `json:"sequence,omitempty"`
	// Until is when it ends.
	Until time.Time `json:"until,omitzero"`
}

// AuditList are the params of audit/list; empty filters match all.
type AuditList struct {
	Name      string    `json:"name,omitempty"`
	Server    string    `json:"server,omitempty"`
	Principal string    `json:"principal,omitempty"`
	Call      string    `json:"call,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Until     time.Time `json:"until,omitzero"`
	// After is a sequence of the log: only later commits.
	After uint64 `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
	// WaitMS makes the call wait, so long, until there is a row.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// AuditRows is the result of audit/list, audit/show and audit/trace.
type AuditRows struct {
	Rows []AuditRow `json:"rows"`
	// Next is what After must be to go on; More says that the limit cut the rows.
	Next uint64 `json:"next"`
	More bool   `json:"more"`
}

// AuditRow is one event.
type AuditRow struct {
	Seq         uint64          `json:"seq"`
	I           int             `json:"i"`
	Time        time.Time       `json:"time"`
	Name        string          `json:"name"`
	Aggregate   string          `json:"aggregate"`
	Workspace   string          `json:"workspace"`
	Principal   string          `json:"principal"`
	Actor       string          `json:"actor"`
	Server      string          `json:"server"`
	Session     string          `json:"session"`
	Turn        string          `json:"turn"`
	Call        string          `json:"call"`
	Causation   string          `json:"causation"`
	Correlation string          `json:"correlation"`
	Data        json.RawMessage `json:"data"`
}

// AuditShow are the params of audit/show: one commit.
type AuditShow struct {
	Seq uint64 `json:"seq"`
}

// AuditTrace are the params of audit/trace: everything of one call, turn,
// session, connection, approval or correlation id.
type AuditTrace struct {
	ID string `json:"id"`
}

// AuditAsOf are the params of audit/asof: after which commit, or at which time,
// one of them; neither is the present.
type AuditAsOf struct {
	AtSeq  uint64    `json:"at_seq,omitzero"`
	AtTime time.Time `json:"at_time,omitzero"`
	// All includes approvals that had been answered or had expired, and sessions
	// that had ended.
	All bool `json:"all,omitzero"`
}

// AuditState is the result of audit/asof: what the lists said when the commit at
// Seq was the last one. Times in it are not compared with any clock.
type AuditState struct {
	Seq       uint64        `json:"seq"`
	Time      time.Time     `json:"time"`
	Grants    []Grant       `json:"grants"`
	Approvals []Approval    `json:"approvals"`
	Servers   []Server      `json:"servers"`
	Sessions  []SessionInfo `json:"sessions"`
	Tools     []ToolInfo    `json:"tools"`
	Hosts     []Host        `json:"hosts"`
}

// SessionInfo is one session.
type SessionInfo struct {
	Session   string    `json:"session"`
	Principal string    `json:"principal"`
	Label     string    `json:"label"`
	Active    bool      `json:"active"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended,omitzero"`
	// Catalog is the id of what it sees.
	Catalog string `json:"catalog,omitempty"`
	// Connections are the ids of those that are open.
	Connections []string `json:"connections"`
	Turns       int      `json:"turns"`
	// Calls counts those that ended, by outcome; InFlight the others.
	Calls    map[string]int `json:"calls"`
	InFlight int            `json:"in_flight"`
}

// BusInfo is the result of bus/info.
type BusInfo struct {
	Version string `json:"version"`
	Home    string `json:"home"`
	// HomeID is the id of the home in the log.
	HomeID  string `json:"home_id"`
	Runtime string `json:"runtime"`
	Epoch   uint32 `json:"epoch"`
	// Runtimes are the live processes of the home, this one included, as the log has
	// them.
	Runtimes   []Runtime `json:"runtimes"`
	PID        int       `json:"pid"`
	Started    time.Time `json:"started"`
	NATS       string    `json:"nats"`
	MCP        string    `json:"mcp"`
	Durability string    `json:"durability"`
	// Log is ok; unavailable while it takes no appends; damaged when what was found
	// in it made the bus read-only.
	Log       string `json:"log"`
	Commits   uint64 `json:"commits"`
	Events    uint64 `json:"events"`
	Bytes     uint64 `json:"bytes"`
	Workspace string `json:"workspace"`
	Cores     []Core `json:"cores"`
	Servers   int    `json:"servers"`
	Live      int    `json:"live_connections"`
	Pending   int    `json:"pending_approvals"`
}

// Runtime is one process of bus/info. Embedded says that the store of the bus is
// in it.
type Runtime struct {
	Runtime  string `json:"runtime"`
	Epoch    uint32 `json:"epoch"`
	Embedded bool   `json:"embedded"`
}

// Core is one core of bus/info.
type Core struct {
	ID       string `json:"id"`
	Revision string `json:"revision"`
	Failed   bool   `json:"failed"`
}

// Verification is the result of audit/verify (audit verify): what the tamper
// evidence of the whole log says.
type Verification struct {
	Commits  uint64 `json:"commits"`
	Events   uint64 `json:"events"`
	Verified bool   `json:"verified"`
	// Root of the Merkle tree (RFC 6962) over all commits, and the hash that their
	// chain ends with, hex; empty when the log is damaged.
	Root  string `json:"root"`
	Chain string `json:"chain"`
	// Checkpoint is how many commits the newest checkpoint outside the log covers;
	// Checkpoints how many signed ones, in the log and outside, agree with it.
	Checkpoint  uint64 `json:"checkpoint"`
	Checkpoints int    `json:"checkpoints"`
	// Problems is what is damaged, empty when nothing is.
	Problems []LogProblem `json:"problems"`
}

// LogProblem is a damage of the log, and the sequences that it is about; 0 where
// it is about none.
type LogProblem struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	What  string `json:"what"`
}

func (p LogProblem) String() string {
	switch {
	case p.First == 0:
		return p.What
	case p.Last <= p.First:
		return fmt.Sprintf("%s: sequence %d", p.What, p.First)
	}
	return fmt.Sprintf("%s: sequences %d to %d", p.What, p.First, p.Last)
}

// BackupTo are the params of bus/backup.
type BackupTo struct {
	// Dir is an absolute path where the bus runs: an empty directory, or none yet.
	Dir string `json:"dir"`
}

// Backup is the result of bus/backup: a copy of the bus with the keys of its
// home.
type Backup struct {
	Dir     string    `json:"dir"`
	Created time.Time `json:"created"`
	Commits uint64    `json:"commits"`
	Events  uint64    `json:"events"`
	Root    string    `json:"root"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
}

// Restored is what bus restore did.
type Restored struct {
	Backup
	// Aside is where that is now what the home had before; empty when it had nothing.
	Aside string `json:"aside"`
}

// Rebuild is the result of bus/rebuild (bus rebuild --check).
type Rebuild struct {
	Commits     uint64                       `json:"commits"`
	Events      uint64                       `json:"events"`
	Projections map[string]RebuiltProjection `json:"projections"`
}

// RebuiltProjection compares one projection with the same fold made afresh.
type RebuiltProjection struct {
	Live    string `json:"live"`
	Rebuilt string `json:"rebuilt"`
	Equal   bool   `json:"equal"`
}

// TurnEnd are the params and the result of turn/end.
type TurnEnd struct {
	Turn string `json:"turn"`
}

// ServerName are the params of mcp/server/details.
type ServerName struct {
	Name string `json:"name"`
}

// ServerLogs are the params of mcp/server/logs.
type ServerLogs struct {
	Name string `json:"name"`
	// Limit is how many processes of the server, the newest ones: 0 is 10, and 100
	// the most.
	Limit int `json:"limit,omitempty"`
}

// ServerLog is what one process of a server wrote to its standard error: the
// beginning of it, redacted.
type ServerLog struct {
	// Time is when the process had ended; now for one that runs.
	Time       time.Time `json:"time"`
	Server     string    `json:"server"`
	Connection string    `json:"connection"`
	Generation uint32    `json:"generation"`
	Running    bool      `json:"running"`
	// Exit is how it ended.
	Exit      string `json:"exit"`
	Truncated bool   `json:"truncated"`
	Text      string `json:"text"`
}

// SecretSet are the params of secret/set: a new value for a secret that an installed
// server has.
type SecretSet struct {
	// Name is SERVER/env/KEY, SERVER/header/NAME, or a reference of secret/list.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SecretName are the params of secret/delete, with a name as secret/set has it.
type SecretName struct {
	Name string `json:"name"`
}

// SecretChanged is the result of secret/set and secret/delete; Changed is false when
// it was so already.
type SecretChanged struct {
	Ref     string `json:"ref"`
	Changed bool   `json:"changed"`
}

// SecretCollect are the params of secret/collect. A dry run deletes nothing.
type SecretCollect struct {
	DryRun bool `json:"dry_run,omitzero"`
}

// SecretsCollected is the result of secret/collect: what the keystore has, what of it
// is in use, and what was deleted because nothing refers to it.
type SecretsCollected struct {
	DryRun        bool     `json:"dry_run"`
	ActiveRefs    int      `json:"active_refs"`
	StoredRefs    int      `json:"stored_refs"`
	OrphanRefs    int      `json:"orphan_refs"`
	DeletedRefs   int      `json:"deleted_refs"`
	FailedDeletes []string `json:"failed_deletes"`
}

// Secret is one row of secret/list: what is known of a secret but its value.
type Secret struct {
	Ref     string `json:"ref"`
	Version string `json:"version"`
	Scope   string `json:"scope"`
	Server  string `json:"server"`
	// Place is env, header, arg or url, Key the name there.
	Place string `json:"place"`
	Key   string `json:"key"`
	// State is stored; missing when a server refers to it and the keystore does not
	// have it; orphan when the keystore has it and nothing refers to it; unknown while
	// the keystore cannot be opened.
	State string `json:"state"`
}

// SecretDoctor is the result of secret/doctor: the keystore of the home.
type SecretDoctor struct {
	// Provider is where the key of the keystore is: keyring, key_file,
	// systemd_credential or home_key; Reason says why there. Until there is a first
	// secret (Made), it is where that would put it.
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
	Made     bool   `json:"made"`
	// Available says that secrets can be read and kept; Kind and Problem say why not.
	Available bool            `json:"available"`
	Kind      string          `json:"kind,omitempty"`
	Problem   string          `json:"problem,omitempty"`
	Stored    int             `json:"stored"`
	Missing   int             `json:"missing"`
	Orphans   int             `json:"orphans"`
	Warnings  []SecretWarning `json:"warnings"`
}

// SecretWarning is something about a keystore that does not stop it. Kind is
// permission_too_open, or empty where no kind fits.
type SecretWarning struct {
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
}

// GrantList are the params of grant/list; no principal is all.
type GrantList struct {
	Principal string `json:"principal,omitempty"`
}

// Approvals is the result of approvals/list. After is what the next call waits
// for a change after.
type Approvals struct {
	After     uint64     `json:"after"`
	Approvals []Approval `json:"approvals"`
}

// CoreReload is the result of core/reload.
type CoreReload struct {
	Cores []CoreLoad `json:"cores"`
}

// CoreLoad says what became of one core.
type CoreLoad struct {
	ID       string   `json:"id"`
	Revision string   `json:"revision"`
	Servers  int      `json:"servers"`
	Failed   bool     `json:"failed"`
	Problems []string `json:"problems"`
}

// NotificationsList are the params of notifications/list: a cursor over the log.
type NotificationsList struct {
	// After is a sequence of the log: only what later commits brought. Left out, it
	// is that of the newest commit.
	After *uint64 `json:"after,omitempty"`
	// Topics are methods of notifications, or what they begin with ("mcp/server");
	// none is all.
	Topics []string `json:"topics,omitempty"`
	// Limit is about how many are wanted: those of one commit stay together.
	Limit int `json:"limit,omitempty"`
	// WaitMS makes the call wait, so long, until there is one.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// Notifications is the result of notifications/list.
type Notifications struct {
	Notifications []Notification `json:"notifications"`
	// Next is what After must be to go on; More says that there may be more already.
	Next uint64 `json:"next"`
	More bool   `json:"more"`
}

// Notification is one notification and its place in the log: the sequence of the
// commit that brought it and its number among those of that commit. The same place is the
// same notification, whatever way it came.
type Notification struct {
	Seq    uint64          `json:"seq"`
	I      int             `json:"i"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// Changed are the params of mcp/changed: what is declared or allowed is not what
// it was, so that a turn prepared now may have other tools.
type Changed struct {
	Workspace string `json:"workspace_id"`
	// SnapshotVersion is the sequence of the commit in the log: it grows with each
	// change and is never used again.
	SnapshotVersion uint64 `json:"snapshot_version"`
	// Reason is core, policy, grants or servers.
	Reason string `json:"reason"`
	// Core is the one that was loaded, Server the one that was installed, changed or
	// removed, Principal whose grants changed.
	Core      string `json:"core,omitempty"`
	Server    string `json:"server,omitempty"`
	Principal string `json:"principal,omitempty"`
}

// StatusChanged are the params of mcp/server/status_changed: a connection of a declared
// server came into another state, or an installed server did, which has no principal,
// session and connection.
type StatusChanged struct {
	Workspace       string `json:"workspace_id"`
	SnapshotVersion uint64 `json:"snapshot_version"`
	ServerID        string `json:"server_id"`
	Name            string `json:"name"`
	// Status is a word of mcp/list: starting, approval_pending, ready, denied,
	// auth_required, failed or not_started, and of an installed server degraded,
	// restarting, stopping, stopped or disabled; Reason is a code that says why.
	Status string `json:"status"`
	Live   bool   `json:"live"`
	Reason string `json:"reason_code,omitempty"`
	// RetryAt is when a failed one is tried again at the earliest, RFC 3339.
	RetryAt    string `json:"next_retry_at,omitempty"`
	Principal  string `json:"principal"`
	Session    string `json:"session"`
	Connection string `json:"connection"`
	Generation uint32 `json:"runtime_generation,omitempty"`
}

// CatalogChanged are the params of mcp/server/catalog_changed (R175): a server
// lists what it did not list before.
type CatalogChanged struct {
	Workspace              string `json:"workspace_id"`
	SnapshotVersion        uint64 `json:"snapshot_version"`
	ServerID               string `json:"server_id"`
	Name                   string `json:"name"`
	CatalogVersion         string `json:"catalog_version"`
	ToolsCount             int    `json:"tools_count"`
	ResourcesCount         int    `json:"resources_count"`
	ResourceTemplatesCount int    `json:"resource_templates_count"`
	PromptsCount           int    `json:"prompts_count"`
}

// ApprovalRequested are the params of approvals/requested: a person is asked. The
// preview is for who may answer: approvals/get.
type ApprovalRequested struct {
	Workspace string `json:"workspace_id"`
	Approval  string `json:"approval"`
	// Action is mcp.connect, mcp.call or mcp.tool; Target the server, or server/tool.
	Action    string `json:"action"`
	Target    string `json:"target"`
	Principal string `json:"principal"`
	Server    string `json:"server"`
	Tool      string `json:"tool,omitempty"`
	Session   string `json:"session"`
	// Aggregate is what waits, as kind/key.
	Aggregate string `json:"aggregate"`
	Risk      string `json:"risk"`
	Policy    string `json:"policy"`
	// Expires is RFC 3339; silence until then is a denial.
	Expires string `json:"expires"`
}

// ApprovalDecided are the params of approvals/decided: a person answered, or the
// question is over.
type ApprovalDecided struct {
	Workspace string `json:"workspace_id"`
	Approval  string `json:"approval"`
	// State is allowed, denied or expired; Kind of a yes is once or session.
	State     string `json:"state"`
	Kind      string `json:"kind,omitempty"`
	Principal string `json:"principal"`
	Server    string `json:"server"`
	Session   string `json:"session"`
	Aggregate string `json:"aggregate"`
}
