package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// webTools are those of the server behind HTTP:
//
//	give     a result with all of it
//	stream   events with progress and log messages, comments, ids and messages that are
//	         split over lines and packets, before the result
//	status   a status of 500 with a body, and a challenge
//	refuse   an error of JSON-RPC with a status of 400
//	moved    a redirect to the same origin, with all of it in the query
//	away     one to another origin, with a password in the URL
//	garbage  a body that is no message
var webTools = []string{"give", "stream", "status", "refuse", "moved", "away", "garbage"}

// web is a server over streamable HTTP that gives away what it is sent: the values of
// the headers and of the URL, and secrets of its own.
type web struct {
	*http.Server
	address string
	known   []string // what is declared of it
	own     []string // what only it has
}

func newWeb(known, own []string) (*web, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &web{address: l.Addr().String(), known: known, own: own}
	w.Server = &http.Server{Handler: http.HandlerFunc(w.serve)}
	go w.Serve(l)
	return w, nil
}

// text is a JSON string as Go writes it: unlike quoted, with <, > and & as escapes.
func text(s string) string {
	b, _ := json.Marshal(s) // any text
	return string(b)
}

// all is all that it knows, in some forms.
func (w *web) all() string {
	var out []string
	for _, v := range w.known {
		out = append(out, v, base64.StdEncoding.EncodeToString([]byte("x:"+v)), url.QueryEscape(v), hex.EncodeToString([]byte(v)), text(v))
	}
	return strings.Join(append(out, w.own...), "\n")
}

func (w *web) serve(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	_ = json.Unmarshal(body, &m) // a GET says nothing
	say := func(status int, kind, text string) {
		out.Header().Set("Content-Type", kind)
		out.WriteHeader(status)
		_, _ = io.WriteString(out, text) // who is gone needs nothing
	}
	answer := func(member string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, member) }
	reply := func(result string) { say(200, "application/json", answer(`"result":`+result)) }
	all := text(w.all())
	result := `{"content":[{"type":"text","text":` + all + `}],"structuredContent":{"all":` + all + `,` + all + `:[` + all + `]}}`
	switch m.Method {
	case "":
		say(405, "text/plain", w.all())
	case "initialize":
		reply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{},"logging":{}},"serverInfo":{"name":` + all + `,"version":"1"},"instructions":` + all + `}`)
	case "tools/list":
		var tools []string
		for _, name := range webTools {
			tools = append(tools, fmt.Sprintf(`{"name":%q,"description":%s,"inputSchema":{"type":"object","properties":{"x":{"default":%s,"examples":[%s]}}}}`, name, all, all, all))
		}
		reply(`{"tools":[` + strings.Join(tools, ",") + `]}`)
	case "resources/list":
		reply(`{"resources":[{"uri":"web:///one","name":"one","description":` + all + `}]}`)
	case "resources/templates/list":
		reply(`{"resourceTemplates":[]}`)
	case "resources/read":
		reply(`{"contents":[{"uri":"web:///one","text":` + all + `}]}`)
	case "prompts/list":
		reply(`{"prompts":[{"name":"say","description":` + all + `}]}`)
	case "prompts/get":
		reply(`{"messages":[{"role":"user","content":{"type":"text","text":` + all + `}}]}`)
	case "tools/call":
		w.call(out, r, m.Params.Name, say, answer, result, all)
	default:
		if m.ID == nil {
			out.WriteHeader(http.StatusAccepted)
		} else {
			say(200, "application/json", answer(`"error":{"code":-32601,"message":`+all+`}`))
		}
	}
}

func (w *web) call(out http.ResponseWriter, r *http.Request, tool string, say func(int, string, string), answer func(string) string, result, all string) {
	first := w.known[0]
	switch tool {
	case "give":
		say(200, "application/json", answer(`"result":`+result))
	case "stream":
		out.Header().Set("Content-Type", "text/event-stream")
		event := func(message string) string {
			// JSON may have a line between its tokens, and a stream one in a message.
			return "id: " + first + "\n: " + w.known[1] + "\ndata: " + strings.ReplaceAll(message, `,"`, ",\ndata: \"") + "\n\n"
		}
		whole := event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":`+all+`}}`) + event(answer(`"result":`+result))
		for len(whole) > 0 {
			n := min(len(whole), 1009)
			_, _ = io.WriteString(out, whole[:n])
			_ = http.NewResponseController(out).Flush()
			whole = whole[n:]
		}
	case "status":
		out.Header().Set("Www-Authenticate", `Bearer realm="`+first+`", resource_metadata="https://docs.example/?token=`+first+`"`)
		out.Header().Set("X-Echo", r.Header.Get("Authorization"))
		say(500, "text/plain", w.all())
	case "refuse":
		say(400, "application/json", answer(`"error":{"code":-32050,"message":`+all+`,"data":{"all":[`+all+`]}}`))
	case "moved":
		if r.URL.Query().Has("again") {
			say(200, "application/json", answer(`"result":`+result))
			return
		}
		out.Header().Set("Location", "/mcp?again=1&access_token="+url.QueryEscape(w.known[len(w.known)-1])+"#"+url.PathEscape(first))
		say(307, "text/plain", w.all())
	case "away":
		out.Header().Set("Location", "http://bob:"+url.QueryEscape(first)+"@other.example/"+url.PathEscape(first)+"?sig="+url.QueryEscape(w.known[1]))
		say(307, "text/plain", w.all())
	default:
		say(200, "application/json", `{"jsonrpc":"2.0","id":7,"result":`+all+w.all())
	}
}
