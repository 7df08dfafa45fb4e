// Peer is a fake MCP server for clients that somebody else wrote. Its tools:
//
//	echo {text}  returns text
//	sum  {a,b}   returns a number that its outputSchema describes
//	wait {id}    answers only when it is cancelled, and writes "started id" and
//	             "cancelled id" as lines to the file named by PEER_FILE
//	grow {}      adds the tool grown and says that the tools changed
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

const (
	tools = `{"name":"echo","description":"Returns text.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}},` +
		`{"name":"sum","description":"Adds.","inputSchema":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}}},` +
		`"outputSchema":{"type":"object","properties":{"sum":{"type":"number"}},"required":["sum"]},"annotations":{"readOnlyHint":true}},` +
		`{"name":"wait","description":"Waits to be cancelled.","inputSchema":{"type":"object","properties":{"id":{"type":"string"}}}},` +
		`{"name":"grow","description":"Adds a tool.","inputSchema":{"type":"object"}}`
	grown = `,{"name":"grown","description":"Is new.","inputSchema":{"type":"object"}}`
)

func main() {
	waiting, more := map[string]string{}, "" // ids by request; the tool that was added
	for {
		m, ok := wire.Next()
		if !ok {
			return
		}
		var in struct {
			Text, ID string
			A, B     float64
		}
		if len(m.Params.Arguments) > 0 {
			_ = json.Unmarshal(m.Params.Arguments, &in) // what is not there is empty
		}
		switch {
		case wire.Initialize(m, "2025-11-25", `{"tools":{"listChanged":true}}`):
		case m.Method == "tools/list":
			wire.Reply(m, `{"tools":[`+tools+more+`]}`)
		case m.Method == "notifications/cancelled":
			if id, ok := waiting[string(m.Params.RequestID)]; ok {
				note("cancelled " + id)
			}
		case m.Method == "tools/call":
			switch m.Params.Name {
			case "echo":
				wire.Reply(m, wire.Text(in.Text))
			case "sum":
				text := strings.TrimSuffix(strings.TrimPrefix(wire.Text(fmt.Sprint(in.A+in.B)), "{"), "}")
				wire.Reply(m, fmt.Sprintf(`{%s,"structuredContent":{"sum":%v}}`, text, in.A+in.B))
			case "wait":
				waiting[string(m.ID)] = in.ID
				note("started " + in.ID)
			case "grow":
				more = grown
				wire.Line(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				wire.Reply(m, wire.Text("grown"))
			default:
				wire.Reply(m, wire.Text("called "+m.Params.Name))
			}
		case m.ID != nil:
			wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}
}

// note appends a line to the file, in one write.
func note(line string) {
	file, err := os.OpenFile(os.Getenv("PEER_FILE"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(file, line)
		file.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
}
