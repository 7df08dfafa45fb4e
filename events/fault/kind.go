package fault

// Kind is a kind of error: the closed list of section 4.3 of the requirements
// and of the interface. Hosts, tests and the log rely on the strings; table
// says what each means.
type Kind string

// Usage, configuration and declarations.
const (
	Usage                         Kind = "usage"
	ConfigInvalid                 Kind = "config_invalid"
	HomeNotWritable               Kind = "home_not_writable"
	PortInUse                     Kind = "port_in_use"
	InvalidRequest                Kind = "invalid_request"
	UnknownMethod                 Kind = "unknown_method"
	InvalidInput                  Kind = "invalid_input"
	UnknownArgument               Kind = "unknown_argument"
	InvalidYAML                   Kind = "invalid_yaml"
	NotAMapping                   Kind = "not_a_mapping"
	UnknownField                  Kind = "unknown_field"
	InvalidValue                  Kind = "invalid_value"
	MissingCommand                Kind = "missing_command"
	MissingURL                    Kind = "missing_url"
	InvalidURLScheme              Kind = "invalid_url_scheme"
	FieldNotSupportedForTransport Kind = "field_not_supported_for_transport"
	AmbiguousTransport            Kind = "ambiguous_transport"
	MissingTransport              Kind = "missing_transport"
	DuplicateServerID             Kind = "duplicate_server_id"
	DeclarationRootNotDir         Kind = "declaration_root_not_dir"
	PathEscapesRoot               Kind = "path_escapes_root"
	InvalidServerID               Kind = "invalid_server_id"
	CoreLoadFailed                Kind = "core_load_failed"
	ReservedEnvName               Kind = "reserved_env_name"
	InvalidJSON                   Kind = "invalid_json"
	MissingMCPServers             Kind = "missing_mcp_servers"
	InvalidServerConfig           Kind = "invalid_server_config"
	InvalidServerName             Kind = "invalid_server_name"
	InvalidCommand                Kind = "invalid_command"
	InvalidArgs                   Kind = "invalid_args"
	InvalidCWD                    Kind = "invalid_cwd"
	InvalidEnv                    Kind = "invalid_env"
	InvalidHeaders                Kind = "invalid_headers"
	InvalidURL                    Kind = "invalid_url"
	CredentialBearingURL          Kind = "credential_bearing_url"
	InvalidTimeout                Kind = "invalid_timeout"
	InvalidEnabledState           Kind = "invalid_enabled_state"
	InvalidImplicitState          Kind = "invalid_implicit_state"
	InvalidRequired               Kind = "invalid_required"
	InvalidScopeKind              Kind = "invalid_scope_kind"
)

// Authority and approval.
const (
	ConnectAuthorityUnbound Kind = "connect_authority_unbound"
	CapabilityDenied        Kind = "capability_denied"
	ApprovalDenied          Kind = "approval_denied"
	ApprovalPending         Kind = "approval_pending"
	ApprovalExpired         Kind = "approval_expired"
	CWDOutsideWorkspace     Kind = "cwd_outside_workspace"
	URLBlocked              Kind = "url_blocked"
	SecurityBlocked         Kind = "security_blocked"
	DisabledByPolicy        Kind = "disabled_by_policy"
	AuthenticationRequired  Kind = "authentication_required"
	RoleDenied              Kind = "role_denied"
)

// Connecting.
const (
	MissingEnvReference Kind = "missing_env_reference"
	MissingSecret       Kind = "missing_secret"
	SpawnFailed         Kind = "spawn_failed"
	ProgramChanged      Kind = "program_changed"
	ConnectTimeout      Kind = "connect_timeout"
	InitializeFailed    Kind = "initialize_failed"
	ListToolsFailed     Kind = "list_tools_failed"
	AuthRequired        Kind = "auth_required"
	FrameTooLarge       Kind = "frame_too_large"
	RedirectDowngrade   Kind = "redirect_downgrade"
	TooManyRedirects    Kind = "too_many_redirects"
	CatalogTooLarge     Kind = "catalog_too_large"
	Unavailable         Kind = "unavailable"
	ServerFailed        Kind = "server_failed"
)

// Catalog and turn; R186.
const (
	ToolNameCollision       Kind = "tool_name_collision"
	SessionEvicted          Kind = "session_evicted"
	RuntimeClosed           Kind = "runtime_closed"
	ResolutionUncertain     Kind = "resolution_uncertain"
	RequiredUnavailable     Kind = "required_unavailable"
	TooManyTools            Kind = "too_many_tools"
	SchemaBytesExceeded     Kind = "schema_bytes_exceeded"
	LimitsInvalid           Kind = "limits_invalid"
	ProjectionPersistFailed Kind = "projection_persist_failed"
	ProviderUnsupported     Kind = "provider_unsupported"
	CatalogMissing          Kind = "catalog_missing"
	ToolMissing             Kind = "tool_missing"
	Duplicate               Kind = "duplicate"
	ValidationRejected      Kind = "validation_rejected"
	DependencyMissing       Kind = "dependency_missing"
	MaterializationFailed   Kind = "materialization_failed"
)

// Calls.
const (
	NotFound                Kind = "not_found"
	ToolUnbound             Kind = "tool_unbound"
	BindingMismatch         Kind = "binding_mismatch"
	ToolDrift               Kind = "tool_drift"
	ToolChanged             Kind = "tool_changed"
	InstallationUnavailable Kind = "installation_unavailable"
	RuntimeNotLive          Kind = "runtime_not_live"
	TurnNotActive           Kind = "turn_not_active"
	InvalidArguments        Kind = "invalid_arguments"
	ArgumentsTooLarge       Kind = "arguments_too_large"
	ResourceExhausted       Kind = "resource_exhausted"
	TimedOut                Kind = "timed_out"
	Cancelled               Kind = "cancelled"
	ExecutionFailed         Kind = "execution_failed"
	ResultInvalid           Kind = "result_invalid"
	RedactionFailed         Kind = "redaction_failed"
	AuditUnavailable        Kind = "audit_unavailable"
	Indeterminate           Kind = "indeterminate"
)

// Secrets and private files.
const (
	KeystoreWriteFailed Kind = "keystore_write_failed"
	InstallCommitFailed Kind = "install_commit_failed"
	GCRefsUndecodable   Kind = "gc_refs_undecodable"
	PermissionTooOpen   Kind = "permission_too_open"
	PrivatePathUnsafe   Kind = "private_path_unsafe"
	KeystoreUnavailable Kind = "keystore_unavailable"
)

// Review.
const (
	ReviewTokenMissing Kind = "review_token_missing"
	ReviewTokenStale   Kind = "review_token_stale"
	GateFailed         Kind = "gate_failed"
)

// The bus and this program.
const (
	BusUnavailable Kind = "bus_unavailable"
	HomeLocked     Kind = "home_locked"
	Conflict       Kind = "conflict"
	AuditDamaged   Kind = "audit_damaged"
	Internal       Kind = "internal"
	BusWeakened    Kind = "bus_weakened"

	IllegalTransition Kind = "illegal_transition"
)
