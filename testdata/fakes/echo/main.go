// Echo is a fake MCP server that behaves well. Its tools, all calls at once:
//
//	echo    {text}   returns text
//	big     {bytes}  returns a text of that many bytes
//	slow    {ms}     answers after ms milliseconds; not at all when cancelled
//	fail    {}       answers with a JSON-RPC error that has data
//	secret  {names}  returns the values of environment variables (all without
//	                 names) as text, in Base64, escaped in JSON and in
//	                 structuredContent, and writes them to stderr
//
// A call with a progress token gets one progress notification before it works.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

type arguments struct {
	Text  string   `json:"text"`
	Bytes int      `json:"bytes"`
	MS    int      `json:"ms"`
	Names []string `json:"names"`
}

const tools = `{"tools":[
{"name":"echo","description":"Returns text.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}},
{"name":"big","description":"Returns bytes.","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer"}}}},
{"name":"slow","description":"Answers late.","inputSchema":{"type":"object","properties":{"ms":{"type":"integer"}}}},
{"name":"fail","description":"Fails.","inputSchema":{"type":"object"}},
{"name":"secret","description":"Returns the environment.","inputSchema":{"type":"object","properties":{"names":{"type":"array","items":{"type":"string"}}}}}]}`

var (
	mu        sync.Mutex
	cancelled = map[string]chan struct{}{} // by request id
)

func main() {
	for {
		m, ok := wire.Next()
		switch {
		case !ok:
			return
		case wire.Initialize(m, "2025-11-25", `{"tools":{"listChanged":true},"x-vendor":{"n":1.0}}`):
		case m.Method == "tools/list":
			wire.Reply(m, strings.ReplaceAll(tools, "\n", ""))
		case m.Method == "tools/call":
			stop := make(chan struct{})
			mu.Lock()
			cancelled[string(m.ID)] = stop
			mu.Unlock()
			go call(m, stop)
		case m.Method == "notifications/cancelled":
			mu.Lock()
			if stop := cancelled[string(m.Params.RequestID)]; stop != nil {
				close(stop)
				delete(cancelled, string(m.Params.RequestID))
			}
			mu.Unlock()
		case m.ID != nil:
			wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}
}

func call(m wire.Message, stop chan struct{}) {
	var in arguments
	_ = json.Unmarshal(m.Params.Arguments, &in)
	if m.Params.Meta.Token != nil {
		wire.Line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0}}`, m.Params.Meta.Token)
	}
	switch m.Params.Name {
	case "echo":
		wire.Reply(m, wire.Text(in.Text))
	case "big":
		wire.Reply(m, wire.Text(strings.Repeat("x", in.Bytes)))
	case "slow":
		select {
		case <-time.After(time.Duration(in.MS) * time.Millisecond):
			wire.Reply(m, wire.Text("done"))
		case <-stop:
		}
	case "secret":
		secret(m, in.Names)
	default:
		wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"no such luck","data":{"n":9007199254740993,"why":"because"}}}`, m.ID)
	}
}

func secret(m wire.Message, names []string) {
	values, texts := map[string]string{}, []string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		values[name] = value
		inJSON, _ := json.Marshal(map[string]string{"value": value})
		for _, form := range []string{value, base64.StdEncoding.EncodeToString([]byte(value)), string(inJSON)} {
			texts = append(texts, strings.TrimSuffix(strings.TrimPrefix(wire.Text(form), `{"content":[`), `]}`))
		}
		fmt.Fprintln(os.Stderr, name, value)
	}
	structured, _ := json.Marshal(values)
	wire.Reply(m, fmt.Sprintf(`{"content":[%s],"structuredContent":{"env":%s}}`, strings.Join(texts, ","), structured))
}
