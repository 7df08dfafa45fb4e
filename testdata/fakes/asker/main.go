// Asker is a fake MCP server that asks its client. Its tools:
//
//	ask {method, params}  asks, and returns the client's whole answer as text
//	caps {}               returns the capabilities that the client has
//	seen {}               returns the notifications that the client has sent
//	flood {n}             asks for roots n times at once, and returns how many of the
//	                      answers were results
//	mind {}               asks for a completion and takes it back at the first word of
//	                      the client after that, which note gives
//	note {}               returns "noted"
//	done {}               says that what it asked for out of band is done
//	secret {}             asks for input with the variable TOKEN in the message
//	extra                 is there where the client has sampling
//
// With the argument early it asks for roots as soon as it is initialized.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

// asked are the requests of ours that are open: what comes with the answer; last
// counts them.
var (
	asked = map[string]func(answer wire.Message){}
	last  int
)

// ask asks the client under an id that types would not keep.
func ask(method, params string, then func(wire.Message)) string {
	last++
	id := fmt.Sprintf("9007199254740993.%d1", last)
	asked[id] = then
	wire.Line(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params)
	return id
}

func main() {
	caps, seen := "", []string{}
	var mind string
	for {
		m, ok := wire.Next()
		if !ok {
			return
		}
		var in struct {
			Method string
			Params json.RawMessage
			N      int
		}
		if len(m.Params.Arguments) > 0 {
			_ = json.Unmarshal(m.Params.Arguments, &in) // what is not there is empty
		}
		switch {
		case m.Method == "":
			if then := asked[string(m.ID)]; then != nil {
				delete(asked, string(m.ID))
				then(m)
			}
		case m.Method == "initialize":
			var p struct {
				Params struct{ Capabilities json.RawMessage }
			}
			_ = json.Unmarshal(m.Raw, &p)
			caps = string(p.Params.Capabilities)
			wire.Initialize(m, "2025-11-25", `{"tools":{}}`)
		case m.Method == "notifications/initialized":
			if len(os.Args) > 1 && os.Args[1] == "early" && strings.Contains(caps, `"roots"`) {
				ask("roots/list", `{}`, func(a wire.Message) { seen = append(seen, strings.TrimSpace(string(a.Raw))) })
			}
		case strings.HasPrefix(m.Method, "notifications/"):
			seen = append(seen, m.Method)
		case m.Method == "tools/list":
			names := []string{"ask", "caps", "seen", "flood", "mind", "note", "done", "secret"}
			if strings.Contains(caps, `"sampling"`) {
				names = append(names, "extra")
			}
			for i, n := range names {
				names[i] = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, n)
			}
			wire.Reply(m, `{"tools":[`+strings.Join(names, ",")+`]}`)
		case m.Method == "tools/call":
			switch m.Params.Name {
			case "ask":
				ask(in.Method, string(in.Params), func(a wire.Message) { wire.Reply(m, wire.Text(strings.TrimSpace(string(a.Raw)))) })
			case "secret":
				ask("elicitation/create", fmt.Sprintf(`{"message":"it is %s","requestedSchema":{"type":"object","properties":{}}}`, os.Getenv("TOKEN")), func(a wire.Message) {
					wire.Reply(m, wire.Text("answered"))
				})
			case "done":
				wire.Line(`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e","n":1.0}}`)
				wire.Reply(m, wire.Text("done"))
			case "caps":
				wire.Reply(m, wire.Text(caps))
			case "seen":
				wire.Reply(m, wire.Text(strings.Join(seen, "\n")))
			case "mind":
				mind = ask("sampling/createMessage", `{"messages":[],"maxTokens":1}`, func(wire.Message) { wire.Reply(m, wire.Text("answered all the same")) })
				held := m
				asked["held"] = func(wire.Message) { wire.Reply(held, wire.Text("taken back")) }
			case "note":
				wire.Line(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, mind)
				wire.Reply(m, wire.Text("noted"))
				if then := asked["held"]; then != nil {
					delete(asked, "held")
					then(m)
				}
			case "flood":
				left, results := in.N, 0
				for range in.N {
					ask("roots/list", `{}`, func(a wire.Message) {
						if strings.Contains(string(a.Raw), `"result"`) {
							results++
						}
						if left--; left == 0 {
							wire.Reply(m, wire.Text(fmt.Sprint(results)))
						}
					})
				}
			default:
				wire.Reply(m, wire.Text("called "+m.Params.Name))
			}
		case m.ID != nil:
			wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}
}
