// Stateless is a fake MCP server of revision 2026-07-28, without a handshake: a
// request that does not say in its _meta who sends it is refused. Its tools:
//
//	seen    returns the lines that came so far, those of seen left out
//	slow    tells of progress and answers only after it was cancelled
//	change  tells the subscription of changed tools first
//	drop    ends the subscription first
//	ask     wants input of the client, and is done with what it got; its state has the
//	        arguments in Base64
//
// A read of a resource changes a part of it, and tells the subscription to it; a read
// of end ends the subscriptions to all resources. There is none to x:refused.
//
// The first argument names another way to answer the probe: late does so only
// after initialize came and was refused, and asleep reads nothing for a second; or
// another list: of two pages with an empty cursor (empty-cursor), or of such pages
// without end (empty-cursors).
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

const discovered = `{"resultType":"complete","supportedVersions":["2027-01-01","2026-07-28"],"capabilities":{"tools":{"listChanged":true},"x-vendor":{"n":1.0}},` +
	`"instructions":"none","ttlMs":3600000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1.2.3","vendor":true}}}`

const tools = `{"resultType":"complete","ttlMs":300000,"cacheScope":"public","tools":[{"name":"seen","inputSchema":{"type":"object"}},` +
	`{"name":"slow","inputSchema":{"type":"object"}},{"name":"change","inputSchema":{"type":"object"}},{"name":"drop","inputSchema":{"type":"object"}},` +
	`{"name":"ask","inputSchema":{"type":"object"}}]}`

var (
	seen         []string
	subscription json.RawMessage                // id of the request
	resources    = map[string]json.RawMessage{} // the same, by URI
	probe, slow  wire.Message                   // not answered yet
)

func main() {
	late := len(os.Args) > 1 && os.Args[1] == "late"
	if len(os.Args) > 1 && os.Args[1] == "asleep" {
		time.Sleep(time.Second)
	}
	for {
		m, ok := wire.Next()
		if !ok {
			return
		}
		if m.Params.Name != "seen" {
			seen = append(seen, string(bytes.TrimSpace(m.Raw)))
		}
		switch {
		case m.Method == "notifications/cancelled":
			cancelled(m)
		case m.ID == nil:
		case m.Method == "initialize":
			refuse(m, -32601)
			if probe.ID != nil {
				wire.Reply(probe, discovered)
			}
		case !said(m):
			refuse(m, -32602)
		case m.Method == "server/discover" && late:
			probe = m
		default:
			answer(m)
		}
	}
}

func answer(m wire.Message) {
	switch m.Method {
	case "server/discover":
		wire.Reply(m, discovered)
	case "tools/list":
		list(m)
	case "resources/read":
		read(m)
	case "subscriptions/listen":
		if uris := wanted(m); len(uris) > 0 {
			listen(m, uris[0])
			return
		}
		subscription = m.ID
		notify("notifications/subscriptions/acknowledged", `,"notifications":{"toolsListChanged":true}`)
	case "tools/call":
		call(m)
	default:
		refuse(m, -32601)
	}
}

// list has two pages with an empty cursor, or the first of them again and again.
func list(m wire.Message) {
	var in struct {
		Params struct{ Cursor *string } `json:"params"`
	}
	_ = json.Unmarshal(m.Raw, &in) // wire has read it
	const page = `{"resultType":"complete","tools":[{"name":%q,"inputSchema":{"type":"object"}}]%s}`
	switch mode := strings.Join(os.Args[1:], " "); {
	case mode == "empty-cursor" && in.Params.Cursor != nil && *in.Params.Cursor == "":
		wire.Reply(m, fmt.Sprintf(page, "second", ""))
	case mode == "empty-cursor", mode == "empty-cursors":
		wire.Reply(m, fmt.Sprintf(page, "first", `,"nextCursor":""`))
	default:
		wire.Reply(m, tools)
	}
}

func call(m wire.Message) {
	switch m.Params.Name {
	case "seen":
		lines, _ := json.Marshal(seen)
		wire.Reply(m, `{"resultType":"complete","content":[],"structuredContent":{"lines":`+string(lines)+`}}`)
	case "slow":
		slow = m
		wire.Line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.Params.Meta.Token)
	case "change":
		notify("notifications/tools/list_changed", "")
		wire.Reply(m, wire.Text("changed"))
	case "drop":
		wire.Line(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"no more"}}`, subscription)
		wire.Reply(m, wire.Text("dropped"))
	case "ask":
		ask(m)
	default:
		refuse(m, -32602)
	}
}

// wanted are the resources that a subscription is for.
func wanted(m wire.Message) []string {
	var in struct {
		Params struct {
			Notifications struct {
				ResourceSubscriptions []string `json:"resourceSubscriptions"`
			} `json:"notifications"`
		} `json:"params"`
	}
	_ = json.Unmarshal(m.Raw, &in) // wire has read it
	return in.Params.Notifications.ResourceSubscriptions
}

func listen(m wire.Message, uri string) {
	const ack = `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{%s}}}`
	if uri == "x:refused" {
		wire.Line(ack, m.ID, "")
		wire.Reply(m, `{"resultType":"complete"}`)
		return
	}
	resources[uri] = m.ID
	wire.Line(ack, m.ID, fmt.Sprintf(`"resourceSubscriptions":[%q]`, uri))
}

func read(m wire.Message) {
	var in struct {
		Params struct{ URI string } `json:"params"`
	}
	_ = json.Unmarshal(m.Raw, &in) // wire has read it
	if in.Params.URI == "end" {
		for _, id := range resources {
			wire.Line(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, id)
		}
		clear(resources)
	}
	if id := resources[in.Params.URI]; id != nil {
		wire.Line(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q,"_meta":{"io.modelcontextprotocol/subscriptionId":%s,"v":1.0}}}`, in.Params.URI+"/part", id)
	}
	wire.Reply(m, `{"resultType":"complete","contents":[]}`)
}

func ask(m wire.Message) {
	var in struct {
		Params struct {
			InputResponses json.RawMessage `json:"inputResponses"`
			RequestState   string          `json:"requestState"`
		} `json:"params"`
	}
	_ = json.Unmarshal(m.Raw, &in) // wire has read it
	if in.Params.InputResponses != nil {
		wire.Reply(m, wire.Text(in.Params.RequestState+" "+string(in.Params.InputResponses)))
		return
	}
	about, _ := json.Marshal("about " + string(m.Params.Arguments) + "?")
	wire.Reply(m, `{"resultType":"input_required", "inputRequests":{"name":{"method":"elicitation/create","params":{"n":1e400,"message":`+string(about)+`}}},"requestState":"`+
		base64.StdEncoding.EncodeToString(m.Params.Arguments)+`"}`)
}

// cancelled answers what was given up all the same, so that a second notice would
// be seen.
func cancelled(m wire.Message) {
	for uri, id := range resources {
		if string(id) == string(m.Params.RequestID) {
			delete(resources, uri)
		}
	}
	if string(m.Params.RequestID) == string(slow.ID) {
		wire.Reply(slow, wire.Text("late"))
	}
}

func notify(method, more string) {
	wire.Line(`{"jsonrpc":"2.0","method":%q,"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}%s}}`, method, subscription, more)
}

func refuse(m wire.Message, code int) {
	wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"refused"}}`, m.ID, code)
}

// said reports whether a request says what each one must.
func said(m wire.Message) bool {
	var body struct {
		Params struct {
			Meta struct {
				Version      string          `json:"io.modelcontextprotocol/protocolVersion"`
				Capabilities json.RawMessage `json:"io.modelcontextprotocol/clientCapabilities"`
			} `json:"_meta"`
		} `json:"params"`
	}
	_ = json.Unmarshal(m.Raw, &body) // wire has read it
	return body.Params.Meta.Version == "2026-07-28" && bytes.HasPrefix(body.Params.Meta.Capabilities, []byte("{"))
}
