// Odd is a fake MCP server whose messages are well-formed and would not survive
// types: members and content types that nobody knows, numbers that no float64
// holds, odd orders and spellings. Its tools:
//
//	give   {"case":NAME}  answers with that case of answers
//	mirror anything       returns its arguments, as bytes and as text
//	params anything       returns the params of the call as text
//	count  anything       tells of its progress, then returns
//	secret anything       returns the variable ODD_TOKEN in some forms
//
// The other tools of its two pages are there for their definitions.
package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

func main() {
	for {
		m, ok := wire.Next()
		switch {
		case !ok:
			return
		case wire.Initialize(m, "2025-11-25", `{"tools":{"listChanged":true},"x-vendor":{"n":1.0}}`):
		case m.Method == "tools/list" && m.Params.Cursor == "":
			wire.Reply(m, `{"vendor":1.0,"tools":[`+strings.Join(definitions[:9], ", ")+`],"nextCursor":"2"}`)
		case m.Method == "tools/list":
			wire.Reply(m, `{"_meta":{"n":9007199254740993},"tools":[`+strings.Join(definitions[9:], ",")+`]}`)
		case m.Method == "tools/call":
			call(m)
		case m.ID != nil:
			wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}
}

func call(m wire.Message) {
	switch m.Params.Name {
	case "give":
		var in struct{ Case string }
		_ = json.Unmarshal(m.Params.Arguments, &in)
		a, ok := answers[in.Case]
		if !ok {
			a = `"error":{"code":-32602,"message":"no such case"}`
		}
		wire.Line(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, a)
	case "mirror":
		args := string(m.Params.Arguments)
		wire.Reply(m, `{"structuredContent":`+args+`,"content":[{"type":"text","text":`+quote(args)+`}]}`)
	case "params":
		var raw struct{ Params json.RawMessage }
		_ = json.Unmarshal(m.Raw, &raw)
		wire.Reply(m, wire.Text(string(raw.Params)))
	case "count":
		for _, progress := range []string{"0.0", "1.50", "9007199254740993"} {
			wire.Line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"x":1e400,"progress":%s,"progressToken":%s,"message":"a\u2028b","total":1E+16}}`,
				progress, m.Params.Meta.Token)
		}
		wire.Reply(m, wire.Text("counted"))
	case "secret":
		token := os.Getenv("ODD_TOKEN")
		wire.Reply(m, `{"structuredContent":{"n":1.0,"token":`+quote(token)+`},"content":[`+
			`{"type":"text","text":`+quote("before "+token+" after")+`,"n":9007199254740993},`+
			`{"type":"text","text":`+quote(base64.StdEncoding.EncodeToString([]byte(token)))+`}]}`)
	default:
		wire.Reply(m, wire.Text("called "+m.Params.Name))
	}
}

// quote writes a JSON string as encoding/json does.
func quote(s string) string {
	b, _ := json.Marshal(s) // any text
	return string(b)
}
