// Leak is a fake MCP server that gives away all it knows: the values of its
// environment, what stands on its command line and the arguments of the call, in
// every place of an answer and in many forms. Its tools differ in the place:
//
//	give      text, an image, a resource and structuredContent of the result
//	mirror    the arguments alone, as they are, in Base64 and escaped
//	bulk      as give, a megabyte of it
//	iserror   a result that is an error
//	refuse    a JSON-RPC error with data
//	malformed a result that is none
//	late      progress, and an answer only after the call was cancelled
//	die       nothing: the process ends
//
// All of them write it to stderr and into a progress message first.
package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

var (
	// known are the secrets: every variable and argument of the process.
	known = append(values(), os.Args[1:]...)

	mu    sync.Mutex
	later = map[string]wire.Message{} // calls of late, by request id
)

func values() (out []string) {
	for _, entry := range os.Environ() {
		_, value, _ := strings.Cut(entry, "=")
		out = append(out, value)
	}
	return out
}

func main() {
	for {
		m, ok := wire.Next()
		switch {
		case !ok:
			return
		case m.Method == "initialize":
			wire.Reply(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":`+
				text(os.Getenv("NAMED"))+`,"version":`+text(os.Getenv("NAMED"))+`},"instructions":`+text(strings.Join(known, " "))+`}`)
		case m.Method == "tools/list":
			wire.Reply(m, list())
		case m.Method == "tools/call":
			call(m)
		case m.Method == "notifications/cancelled":
			mu.Lock()
			if c, ok := later[string(m.Params.RequestID)]; ok {
				wire.Reply(c, result(c, false))
			}
			mu.Unlock()
		case m.ID != nil:
			wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}
}

// list describes the tools with all that is known.
func list() string {
	var tools []string
	for _, name := range []string{"give", "mirror", "bulk", "iserror", "refuse", "malformed", "late", "die"} {
		tools = append(tools, `{"name":"`+name+`","description":`+text("Uses "+strings.Join(known, ", "))+
			`,"inputSchema":{"type":"object","properties":{"x":{"type":"string","default":`+text(os.Getenv("NAMED"))+`}}},"annotations":{"title":`+text(os.Getenv("NAMED"))+`}}`)
	}
	return `{"tools":[` + strings.Join(tools, ",") + `]}`
}

func call(m wire.Message) {
	args := string(m.Params.Arguments)
	fmt.Fprintln(os.Stderr, strings.Join(known, "\n"), args)
	if m.Params.Meta.Token != nil {
		wire.Line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%s}}`,
			m.Params.Meta.Token, text(strings.Join(known, " ")+args))
	}
	switch m.Params.Name {
	case "give":
		wire.Reply(m, result(m, false))
	case "mirror":
		wire.Reply(m, `{"content":[`+strings.Join(texts(forms(args)), ",")+`],"structuredContent":{"arguments":`+args+`}}`)
	case "bulk":
		all := texts(append(every(), forms(args)...))
		var b strings.Builder
		for b.Len() < 1<<20 {
			b.WriteString(strings.Join(all, ",") + ",")
		}
		wire.Reply(m, `{"content":[`+strings.TrimSuffix(b.String(), ",")+`]}`)
	case "iserror":
		wire.Reply(m, result(m, true))
	case "refuse":
		wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":%s,"data":{"arguments":%s,"known":%s}}}`,
			m.ID, text(strings.Join(known, " ")+" "+args), args, list())
	case "malformed":
		wire.Reply(m, `{"content":`+text(strings.Join(every(), " ")+args)+`,"isError":7}`)
	case "late":
		mu.Lock()
		later[string(m.ID)] = m
		mu.Unlock()
	case "die":
		os.Exit(3)
	}
}

// result has everything everywhere.
func result(m wire.Message, isError bool) string {
	args := string(m.Params.Arguments)
	parts := texts(append(every(), forms(args)...))
	structured := map[string]any{}
	for i, v := range known {
		parts = append(parts,
			`{"type":"image","mimeType":"image/png","data":"`+base64.StdEncoding.EncodeToString([]byte("\x89PNG"+v))+`"}`,
			`{"type":"resource","resource":{"uri":`+text("file:///"+url.PathEscape(v))+`,"mimeType":"text/plain","text":`+text(v)+`}}`)
		structured["k"+strconv.Itoa(i)] = map[string]any{"list": []string{v, text(v)}, v: v}
	}
	s, _ := json.Marshal(structured) // maps and texts
	return `{"content":[` + strings.Join(parts, ",") + `],"structuredContent":{"known":` + string(s) + `,"arguments":` + args +
		`},"_meta":{"known":` + text(strings.Join(known, " ")) + `},"isError":` + strconv.FormatBool(isError) + `}`
}

// every is all that is known in all forms.
func every() (out []string) {
	for _, v := range known {
		out = append(out, forms(v)...)
	}
	return out
}

// forms are the ways to write a value.
func forms(v string) []string {
	return []string{
		v, "before" + v + "after", base64.StdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte("x" + v)),
		url.QueryEscape(v), url.PathEscape(v), hex.EncodeToString([]byte(v)), text(v), text(text(v)), strconv.QuoteToASCII(v),
	}
}

func texts(values []string) (out []string) {
	for _, v := range values {
		out = append(out, `{"type":"text","text":`+text(v)+`}`, `{"type":"text","text":`+ascii(text(v))+`}`)
	}
	return out
}

// ascii writes JSON as Python does, and slashes as PHP does.
func ascii(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '/':
			b.WriteString(`\/`)
		case r < 0x80:
			b.WriteRune(r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String()
}

// text is a JSON string.
func text(s string) string {
	b, _ := json.Marshal(s) // any text
	return string(b)
}
