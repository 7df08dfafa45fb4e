package main

import (
	"encoding/json"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
)

// Of a tool that waits for an approval a person sees first what is the matter with
// it, and every character that is not seen in its escaped form (B6, decision 7).
func TestApprovalOfAToolShowsItsDifference_Decision7(t *testing.T) {
	t.Parallel()
	a := client.Approval{ID: "a-1", State: "pending", Action: "mcp.tool", Target: "docs/read", Preview: json.RawMessage(
		`{"server":"docs","tool":"read","suspicious":["ansi","tag"],"diff":[{"path":"/description","before":"Reads <a>.","after":"\u001b[2JReads` + "\U000e0041" + `."},{"path":"/x","after":1}],` +
			`"definition":{"name":"read","description":"\u001b[2JReads` + "\U000e0041" + `."}}`)}
	r := script(t, answers{"approvals/list": always(client.Approvals{Approvals: []client.Approval{a}}), "approvals/get": always(a)})
	r.gatebus("approvals", "show", "a-1").wants(t, 0, `id:          a-1
state:       pending
action:      mcp.tool
target:      docs/read
suspicious:  ansi tag
diff:
  /description
  - "Reads <a>."
  + "\u001b[2JReads\udb40\udc41."
  /x
  + 1
definition:
{
  "name": "read",
  "description": "\u001b[2JReads\udb40\udc41."
}
`, "")
}

func TestBlockedToolIsShownByItsTarget(t *testing.T) {
	t.Parallel()
	blocked := client.ToolInfo{Server: "docs", RawName: "read", Principal: "ana", Digest: "1", Blocked: true, Flags: []string{"changed", "ansi"}, Definition: json.RawMessage(`{"name":"read"}`)}
	r := script(t, answers{"tool/list": always([]client.ToolInfo{blocked})})
	r.gatebus("tool", "show", "docs/read").wants(t, 0,
		"server:     docs\ntool:       read\nprincipal:  ana\nblocked:    true\nflags:      changed ansi\ndigest:     1\n{\n  \"name\": \"read\"\n}\n", "")
	r.gatebus("tool", "list").wants(t, 0, "NAME       SERVER  PRINCIPAL  BLOCKED  FLAGS         DESCRIPTION\ndocs/read  docs    ana        true     changed ansi  -\n", "")
}
