package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// oddity is a server with one fault of the handshake or of its answers.
type oddity struct {
	name, what string
	args       string       // of the fake, with a blank between them
	http       http.Handler // in its place
	// calls says that it is connected and its call answers ok; silent that it is
	// connected and has no tools; else connecting fails with this kind.
	want string
}

const (
	calls  = "calls"
	silent = "no tools"
)

// answers answers each request with a body.
func answers(status int, media, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m message
		_ = json.NewDecoder(r.Body).Decode(&m) // what is not there is empty
		if m.Method == "server/discover" && status < 400 && media == "application/json" {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
			return
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "ID", string(m.ID)))
	})
}

var oddities = []oddity{
	{name: "v1", what: "answers with the version 2025-06-18", args: "version 2025-06-18", want: calls},
	{name: "v2", what: "answers with the version 2024-11-05", args: "version 2024-11-05", want: calls},
	{name: "v3", what: "answers with the version 1999-01-01", args: "version 1999-01-01", want: "initialize_failed"},
	{name: "v4", what: "answers with 400 and the versions that it has", want: "initialize_failed",
		http: answers(400, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"Unsupported protocol version","data":{"supported":["1999-01-01"],"requested":"2025-11-25"}}}`)},
	{name: "v5", what: "refuses the version and names 2025-03-26", args: "supports 2025-03-26", want: calls},
	{name: "noping", what: "knows no ping, and prints lines between its answers", args: "banner", want: calls},
	{name: "garbage", what: "prints batches and broken messages between its answers", args: "garbage", want: calls},
	{name: "prompts", what: "has prompts only, and ends when it is asked for tools", args: "no-tools", want: silent},
	{name: "nolist", what: "has tools and does not know tools/list", args: "not-found", want: silent},
	{name: "twice", what: "answers twice", args: "answer-twice", want: calls},
	{name: "orphan", what: "answers what nobody asked", args: "orphan", want: calls},
	{name: "html", what: "is a web page", http: answers(200, "text/html", "<html>hello</html>"), want: "initialize_failed"},
}

func (r *run) declareFakes() error {
	for _, o := range oddities {
		yaml := fmt.Sprintf("transport: stdio\ncommand: %q\nargs: [%s]\n", r.misbehave, strings.ReplaceAll(o.args, " ", ", "))
		if o.http != nil {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			go (&http.Server{Handler: o.http}).Serve(l)
			yaml = fmt.Sprintf("transport: streamable_http\nurl: http://%s/\n", l.Addr())
		}
		if err := r.Declare(o.name, yaml+fmt.Sprintf(common, 20)); err != nil {
			return err
		}
	}
	return nil
}

// fakes connects to each odd server and calls it three times, and is an odd client
// itself.
func (r *run) fakes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var rights []string
	for _, o := range oddities {
		rights = append(rights, "mcp.connect:"+o.name, "mcp.call:"+o.name)
	}
	token, err := show.Enrol(ctx, r.boss, "user-of-fakes", rights...)
	if err != nil {
		return err
	}
	c := &caller{MCP: &show.MCP{URL: r.URL(), Token: token}, door: "/mcp"}
	if err := c.Initialize(ctx); err != nil {
		return err
	}
	if _, err := c.Tools(ctx); err != nil { // asks for all
		return err
	}
	for _, o := range oddities {
		begun := time.Now()
		became, why, err := r.became(ctx, o.name)
		if err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
		got := became
		if became == "connection_opened" {
			if got, err = c.use(ctx, o.name); err != nil {
				return err
			}
			one := &show.MCP{URL: r.URL() + "/s/" + o.name, Token: token}
			if err := one.Initialize(ctx); err != nil {
				return err
			}
			if a, err := one.Do(ctx, "ping", "{}"); err != nil || a.Error != nil {
				r.problem("a server that %s: a ping has %s, %v", o.what, a.Error, err)
			}
		} else if why != "" {
			got = why
		}
		if got != o.want {
			r.problem("a server that %s: %s, want %s", o.what, got, o.want)
		}
		fmt.Printf("%5.1f s  a server that %s: %s\n", time.Since(begun).Seconds(), o.what, got)
	}
	return r.hasty(ctx, token)
}

// became waits for what became of a server: the name of the event, and the kind of
// a failure.
func (r *run) became(ctx context.Context, server string) (name, kind string, err error) {
	for {
		// What was before is long, and none of it is about this server.
		var page client.AuditRows
		if err := r.boss.Do(ctx, "audit/list", client.AuditList{Server: server, Limit: 1000}, &page); err != nil {
			return "", "", err
		}
		for _, row := range page.Rows {
			if row.Name == "connection_opened" || row.Name == "server_failed" {
				var data struct{ Kind string }
				return row.Name, data.Kind, json.Unmarshal(row.Data, &data)
			}
		}
		select {
		case <-ctx.Done():
			return "", "", fmt.Errorf("it is neither connected nor failed")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// use calls the tool of a connected server, if it has one.
func (c *caller) use(ctx context.Context, server string) (got string, err error) {
	there, err := c.lists(ctx, server+"__call")
	if err != nil || !there {
		return silent, err
	}
	for range 3 {
		a, err := c.Call(ctx, server+"__call", `{}`)
		if err != nil || !strings.Contains(string(a.Result), `"ok"`) {
			return fmt.Sprintf("the call has %s%s", a.Result, a.Error), err
		}
	}
	return calls, nil
}

// hasty is a client that pings and sets the level of log messages before it says
// that it is initialized, and one that sends a batch.
func (r *run) hasty(ctx context.Context, token string) error {
	c := &show.MCP{URL: r.URL(), Token: token}
	if err := c.Begin(ctx); err != nil {
		return err
	}
	for method, params := range map[string]string{"ping": `{}`, "logging/setLevel": `{"level":"error"}`, "tools/list": `{}`} {
		if a, err := c.Do(ctx, method, params); err != nil || a.Error != nil {
			r.problem("%s before notifications/initialized: %s, %v", method, a.Error, err)
		}
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL(), strings.NewReader(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`))
	if err != nil {
		return err
	}
	q.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	if body, err := io.ReadAll(w.Body); err != nil || !strings.Contains(string(body), "-32600") {
		r.problem("a batch is answered with %d %s, %v", w.StatusCode, body, err)
	}
	fmt.Println("        a client that pings, sets the level and lists before it is initialized is answered; one that sends a batch gets -32600")
	return nil
}
