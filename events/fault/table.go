package fault

import (
	"iter"
	"slices"
	"strconv"
)

// An Entry is what is fixed for a kind.
type Entry struct {
	Kind    Kind
	Number  int    // GB number, printed as GB1042; never reused
	Exit    int    // exit code of the command line
	Meaning string // one line
	Hint    string // one line: what to do about it
}

// Exit codes of the command line.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitDenied      = 3
	exitLogin       = 4
	exitPending     = 5
	exitNotFound    = 6
	exitConflict    = 7
	exitUnavailable = 8
	exitTool        = 9
	exitAudit       = 10
)

// table is in the order of the numbers. A thousand is an area: 1 usage,
// configuration and declarations, 2 authority and approval, 3 connecting, 4
// catalog and turn, 5 calls, 6 secrets and private files, 7 review, 8 the bus
// and this program. New kinds go to the end of their area.
var table = []Entry{
	{Usage, 1001, exitUsage, "the command line is wrong", "run the command with --help"},
	{ConfigInvalid, 1002, exitUsage, "the configuration has an unknown key or a wrong value", "correct the line that is named"},
	{HomeNotWritable, 1003, exitUsage, "the home directory cannot be written", "choose another one with --home or GATEBUS_HOME"},
	{PortInUse, 1004, exitUnavailable, "the address to listen on is taken", "choose another one with --listen or --nats-listen"},
	{InvalidRequest, 1005, exitUsage, "the request is not a JSON-RPC request", "send a JSON-RPC 2.0 object with method and params"},
	{UnknownMethod, 1006, exitUsage, "the method does not exist", "compare the name with the list of methods"},
	{InvalidInput, 1007, exitUsage, "a parameter is missing or has a wrong value", "compare the parameters with the schema of the method"},
	{UnknownArgument, 1008, exitUsage, "a parameter is unknown", "remove it, or correct its name"},
	{InvalidYAML, 1009, exitUsage, "the file is not YAML", "correct the syntax at the line that is named"},
	{NotAMapping, 1010, exitUsage, "the declaration is not a mapping", "write keys and values at the top of the file"},
	{UnknownField, 1011, exitUsage, "the declaration has an unknown field", "remove it, or correct its name"},
	{InvalidValue, 1012, exitUsage, "a field of the declaration has a wrong value", "correct the field that is named"},
	{MissingCommand, 1013, exitUsage, "a stdio server has no command", "add command"},
	{MissingURL, 1014, exitUsage, "an HTTP server has no URL", "add url"},
	{InvalidURLScheme, 1015, exitUsage, "the URL is neither http nor https", "use https"},
	{FieldNotSupportedForTransport, 1016, exitUsage, "the field does not fit the transport", "remove the field, or change the transport"},
	{AmbiguousTransport, 1017, exitUsage, "both a command and a URL are declared", "keep one of them"},
	{MissingTransport, 1018, exitUsage, "neither a command nor a URL is declared", "add one of them"},
	{DuplicateServerID, 1019, exitUsage, "two declarations have the same server id", "rename one of the servers"},
	{DeclarationRootNotDir, 1020, exitUsage, "agent/mcp is not a directory", "put declarations into a directory of that name"},
	{PathEscapesRoot, 1021, exitUsage, "the path leads out of its root", "use a path below the root, without links out of it"},
	{InvalidServerID, 1022, exitUsage, "the server id has a wrong form", "start with a letter or digit; then letters, digits, _ . - and blanks, 64 at most"},
	{CoreLoadFailed, 1023, exitUsage, "the agent core could not be loaded", "correct the files that are named"},
	{ReservedEnvName, 1024, exitUsage, "the environment variable is reserved", "remove it from the declaration"},
	{InvalidJSON, 1025, exitUsage, "the text is not JSON", "correct the syntax"},
	{MissingMCPServers, 1026, exitUsage, "mcpServers is missing", "put the servers below mcpServers"},
	{InvalidServerConfig, 1027, exitUsage, "the entry of the server is not an object", "write the server as an object"},
	{InvalidServerName, 1028, exitUsage, "the server name has a wrong form", "use letters, digits, - and _"},
	{InvalidCommand, 1029, exitUsage, "the command has a wrong form", "give the program as one text without its arguments"},
	{InvalidArgs, 1030, exitUsage, "the arguments of the command are not texts", "give a list of texts"},
	{InvalidCWD, 1031, exitUsage, "the working directory has a wrong form", "give a path below the workspace"},
	{InvalidEnv, 1032, exitUsage, "the environment has a wrong form", "give names and texts"},
	{InvalidHeaders, 1033, exitUsage, "the headers have a wrong form", "give names and texts without line breaks"},
	{InvalidURL, 1034, exitUsage, "the URL has a wrong form", "give an absolute https URL"},
	{CredentialBearingURL, 1035, exitUsage, "the URL holds a credential", "move it to a header that refers to a secret"},
	{InvalidTimeout, 1036, exitUsage, "the timeout is out of range", "give a positive number of seconds"},
	{InvalidEnabledState, 1037, exitUsage, "enabled is not a boolean", "write true or false"},
	{InvalidImplicitState, 1038, exitUsage, "implicit is not a boolean", "write true or false"},
	{InvalidRequired, 1039, exitUsage, "required is not a boolean", "write true or false"},
	{InvalidScopeKind, 1040, exitUsage, "the scope is unknown", "use workspace or user"},

	{ConnectAuthorityUnbound, 2001, exitDenied, "no authority to connect is bound to the session", "start the session as a principal that has the grant"},
	{CapabilityDenied, 2002, exitDenied, "the principal lacks the capability", "an operator can add it with gatebus grant add"},
	{ApprovalDenied, 2003, exitDenied, "the request was not approved", "ask again, or have an operator approve it"},
	{ApprovalPending, 2004, exitPending, "the request waits for a person", "approve it with gatebus approve, then retry"},
	{ApprovalExpired, 2005, exitDenied, "nobody answered the request in time", "send the request again"},
	{CWDOutsideWorkspace, 2006, exitDenied, "the working directory is outside of the workspace", "use a directory of the workspace"},
	{URLBlocked, 2007, exitDenied, "the policy does not allow the URL", "the reason is with the server in gatebus server get"},
	{SecurityBlocked, 2008, exitDenied, "the policy blocks the tool", "see gatebus policy show"},
	{DisabledByPolicy, 2009, exitDenied, "the server or tool is disabled", "set enabled in its declaration"},
	{AuthenticationRequired, 2010, exitLogin, "the request carries no valid token", "get a token with gatebus host token"},
	{RoleDenied, 2011, exitDenied, "the role of the principal does not include the method", "use credentials of another role; gatebus bus creds makes them"},

	{MissingEnvReference, 3001, exitUsage, "the declaration refers to an environment variable that is not set", "set it, then reload"},
	{MissingSecret, 3002, exitUsage, "the declaration refers to a secret that is not stored", "store it, then reload"},
	{SpawnFailed, 3003, exitUnavailable, "the program of the server did not start", "check the command with gatebus server get"},
	{ConnectTimeout, 3004, exitUnavailable, "the server did not answer in time", "see gatebus server get, and run the command by hand"},
	{InitializeFailed, 3005, exitUnavailable, "the server did not complete the handshake", "see gatebus server get, and run the command by hand"},
	{ListToolsFailed, 3006, exitUnavailable, "the server did not list its tools", "see gatebus server get, and run the command by hand"},
	{AuthRequired, 3007, exitLogin, "the server wants a login", "log in at the server"},
	{FrameTooLarge, 3008, exitUnavailable, "the server sent a message that is too large", "raise the limit, or have the server send less"},
	{RedirectDowngrade, 3009, exitDenied, "the server redirects from https to http", "use the final URL, if it is https"},
	{TooManyRedirects, 3010, exitDenied, "the server redirects too often", "use the final URL"},
	{CatalogTooLarge, 3011, exitUnavailable, "the server lists too many tools", "have the server list fewer"},
	{Unavailable, 3012, exitUnavailable, "the server is not available", "see gatebus server get"},
	{ServerFailed, 3013, exitUnavailable, "the server failed", "see gatebus server get, and run the command by hand"},
	{ProgramChanged, 3014, exitConflict, "the program of the server is not the one that was approved", "look at it, then approve the connection again"},

	{ToolNameCollision, 4001, exitConflict, "two sources have a tool of the same name", "rename the server or exclude the tool"},
	{SessionEvicted, 4002, exitConflict, "the session was evicted", "start a session again"},
	{RuntimeClosed, 4003, exitUnavailable, "the runtime was closed", "start it with gatebus up"},
	{ResolutionUncertain, 4004, exitUnavailable, "the catalog could not be resolved for certain", "prepare the turn again"},
	{RequiredUnavailable, 4005, exitUnavailable, "a required server is not available", "see gatebus server get"},
	{TooManyTools, 4006, exitUsage, "the turn has too many tools", "select fewer tools or servers"},
	{SchemaBytesExceeded, 4007, exitUsage, "the schemas of the tools are too large together", "select fewer tools or servers"},
	{LimitsInvalid, 4008, exitUsage, "the limits of the turn are out of range", "correct the limits"},
	{ProjectionPersistFailed, 4009, exitUnavailable, "a projection could not be stored", "check the disk, then run gatebus bus rebuild"},
	{ProviderUnsupported, 4010, exitUsage, "the provider does not support tools", "use another provider"},
	{CatalogMissing, 4011, exitUnavailable, "the server has no catalog yet", "connect the server first"},
	{ToolMissing, 4012, exitNotFound, "the server has no such tool", "see gatebus tool list"},
	{Duplicate, 4013, exitUsage, "the selection is there twice", "remove one of them"},
	{ValidationRejected, 4014, exitUsage, "the tool did not pass validation", "see gatebus tool show"},
	{DependencyMissing, 4015, exitUnavailable, "something that the tool depends on is missing", "install it, then prepare the turn again"},
	{MaterializationFailed, 4016, exitUnavailable, "the tool could not be made available", "prepare the turn again"},

	{NotFound, 5001, exitNotFound, "there is nothing of that name", "list what there is, and compare the name"},
	{ToolUnbound, 5002, exitConflict, "the tool is not bound to the turn", "prepare the turn again"},
	{BindingMismatch, 5003, exitConflict, "the call does not fit the binding of the tool", "prepare the turn again"},
	{ToolDrift, 5004, exitConflict, "the tool has changed since it was listed", "list the tools again"},
	{ToolChanged, 5005, exitConflict, "the definition of the tool differs from the approved one", "an operator can compare and approve it"},
	{InstallationUnavailable, 5006, exitUnavailable, "the server was removed or disabled", "install or enable it again"},
	{RuntimeNotLive, 5007, exitUnavailable, "no runtime has the connection", "retry"},
	{TurnNotActive, 5008, exitConflict, "the turn is over", "prepare a turn"},
	{InvalidArguments, 5009, exitUsage, "the arguments do not fit the tool", "compare them with gatebus tool show"},
	{ArgumentsTooLarge, 5010, exitUsage, "the arguments are too large", "send less"},
	{ResourceExhausted, 5011, exitUnavailable, "too many calls are waiting", "retry later"},
	{TimedOut, 5012, exitFailed, "the call took too long", "retry, or raise the timeout of the server"},
	{Cancelled, 5013, exitFailed, "the call was cancelled", "retry if it is still wanted"},
	{ExecutionFailed, 5014, exitTool, "the tool failed", "see the text of the result"},
	{ResultInvalid, 5015, exitFailed, "the server sent a result that is not valid", "report it to the author of the server"},
	{RedactionFailed, 5016, exitFailed, "the result could not be redacted and is withheld", "report it, the tool has run"},
	{AuditUnavailable, 5017, exitUnavailable, "the log cannot be written, so nothing runs", "check the disk and gatebus status"},
	{Indeterminate, 5018, exitFailed, "nobody knows whether the call took effect", "check at the other side before a retry"},

	{KeystoreWriteFailed, 6001, exitFailed, "the secret could not be stored", "check the keystore"},
	{InstallCommitFailed, 6002, exitFailed, "the installation could not be recorded", "retry"},
	{GCRefsUndecodable, 6003, exitFailed, "references to secrets cannot be read, so none is deleted", "check the keystore"},
	{PermissionTooOpen, 6004, exitFailed, "a private file can be read by others", "restrict it to its owner"},
	{PrivatePathUnsafe, 6005, exitFailed, "a private path leads through a link", "remove the link"},
	{KeystoreUnavailable, 6006, exitUnavailable, "the keystore cannot be opened", "gatebus secret doctor says why"},

	{ReviewTokenMissing, 7001, exitConflict, "the promotion carries no review token", "review the change first"},
	{ReviewTokenStale, 7002, exitConflict, "the review token belongs to another change", "review the change again"},
	{GateFailed, 7003, exitDenied, "the review does not allow the promotion", "look at the review"},

	{BusUnavailable, 8001, exitUnavailable, "the bus does not answer", "start it with gatebus up, or check --bus"},
	{HomeLocked, 8002, exitUnavailable, "another gatebus runs on this home", "stop it, or use another home"},
	{Conflict, 8003, exitConflict, "somebody else changed the same thing", "read it again and retry"},
	{AuditDamaged, 8004, exitAudit, "the log is damaged", "gatebus audit verify says where; bring back a backup with gatebus bus restore DIR --force"},
	{Internal, 8006, exitFailed, "gatebus has an error of its own", "report it"},
	{BusWeakened, 8007, exitUnavailable, "a stream of the bus is not configured as it must be", "run a bus of its own, or restore the configuration of the stream"},
	{IllegalTransition, 8008, exitFailed, "a server cannot go from the state that it has to the one that was reported", "report it"},
}

// Code is the number as it is printed.
func (e Entry) Code() string { return "GB" + strconv.Itoa(e.Number) }

// RPC is the code of a JSON-RPC error: those that JSON-RPC defines where they
// fit, else one for each area, from -32011 on.
func (e Entry) RPC() int {
	switch e.Kind {
	case InvalidRequest:
		return -32600
	case UnknownMethod:
		return -32601
	case InvalidInput, UnknownArgument, InvalidArguments, ArgumentsTooLarge, LimitsInvalid:
		return -32602
	}
	return -32010 - e.Number/1000
}

// Table yields the entries in the order of their numbers.
func Table() iter.Seq[Entry] { return slices.Values(table) }

// byKind is the table by kind.
var byKind = func() map[Kind]Entry {
	m := make(map[Kind]Entry, len(table))
	for _, e := range table {
		m[e.Kind] = e
	}
	return m
}()

// Lookup returns the entry of a kind. A kind that is not in the table is
// answered with that of internal, and false.
func Lookup(k Kind) (Entry, bool) {
	if e, ok := byKind[k]; ok {
		return e, true
	}
	return byKind[Internal], false
}
