package client

import "reflect"

// Method is what the params and the result of one method are made of.
type Method struct {
	Name string
	// Params is nil for a method that takes none, Result for a notification.
	Params, Result reflect.Type
}

// Methods is the contract: every method that a bus of this release serves.
// schemas/json/rpc has the JSON Schema of each.
var Methods = []Method{
	{"mcp/list", nil, typeOf[[]Server]()},
	{"mcp/server/details", typeOf[ServerName](), typeOf[Server]()},
	{"mcp/install", typeOf[Install](), typeOf[Installed]()},
	{"mcp/policy/set", typeOf[PolicySet](), typeOf[PolicyState]()},
	{"mcp/server/restart", typeOf[ServerOf](), typeOf[ServerOf]()},
	{"mcp/uninstall", typeOf[ServerOf](), typeOf[ServerOf]()},
	{"mcp/server/logs", typeOf[ServerLogs](), typeOf[[]ServerLog]()},
	{"host/token", typeOf[HostToken](), typeOf[HostTokenResult]()},
	{"host/list", nil, typeOf[[]Host]()},
	{"host/revoke", typeOf[HostRevoke](), typeOf[Host]()},
	{"tool/list", typeOf[ToolList](), typeOf[[]ToolInfo]()},
	{"session/start", typeOf[SessionStart](), typeOf[Session]()},
	{"session/end", typeOf[Session](), typeOf[Session]()},
	{"turn/prepare", typeOf[TurnPrepare](), typeOf[Turn]()},
	{"turn/end", typeOf[TurnEnd](), typeOf[TurnEnd]()},
	{"tool/call", typeOf[ToolCall](), typeOf[CallReply]()},
	{"grant/add", typeOf[Grant](), typeOf[Grant]()},
	{"grant/revoke", typeOf[Grant](), typeOf[Grant]()},
	{"grant/list", typeOf[GrantList](), typeOf[[]Grant]()},
	{"approvals/list", typeOf[ApprovalsList](), typeOf[Approvals]()},
	{"approvals/get", typeOf[ApprovalID](), typeOf[Approval]()},
	{"approvals/decide", typeOf[ApprovalsDecide](), typeOf[Approval]()},
	{"policy/show", nil, typeOf[PolicyShow]()},
	{"policy/explain", typeOf[PolicyExplain](), typeOf[PolicyExplanation]()},
	{"secret/set", typeOf[SecretSet](), typeOf[SecretChanged]()},
	{"secret/delete", typeOf[SecretName](), typeOf[SecretChanged]()},
	{"secret/collect", typeOf[SecretCollect](), typeOf[SecretsCollected]()},
	{"secret/list", nil, typeOf[[]Secret]()},
	{"secret/doctor", nil, typeOf[SecretDoctor]()},
	{"core/reload", nil, typeOf[CoreReload]()},
	{"audit/list", typeOf[AuditList](), typeOf[AuditRows]()},
	{"audit/show", typeOf[AuditShow](), typeOf[AuditRows]()},
	{"audit/trace", typeOf[AuditTrace](), typeOf[AuditRows]()},
	{"audit/asof", typeOf[AuditAsOf](), typeOf[AuditState]()},
	{"notifications/list", typeOf[NotificationsList](), typeOf[Notifications]()},
	{"audit/verify", nil, typeOf[Verification]()},
	{"bus/creds", typeOf[BusCreds](), typeOf[BusCredsResult]()},
	{"bus/info", nil, typeOf[BusInfo]()},
	{"bus/rebuild", nil, typeOf[Rebuild]()},
	{"bus/backup", typeOf[BackupTo](), typeOf[Backup]()},
}

// Topics are the methods of the notifications with their params.
// schemas/json/rpc has the JSON Schema of each.
var Topics = []Method{
	{Name: "mcp/changed", Params: typeOf[Changed]()},
	{Name: "mcp/server/status_changed", Params: typeOf[StatusChanged]()},
	{Name: "mcp/server/catalog_changed", Params: typeOf[CatalogChanged]()},
	{Name: "approvals/requested", Params: typeOf[ApprovalRequested]()},
	{Name: "approvals/decided", Params: typeOf[ApprovalDecided]()},
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
