package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

const yes, no = "yes allowed", "no "

// tools are those that each server has; each one but do misbehaves when it is called.
var tools = []string{"do", "moved", "away", "rewritten", "downgraded", "nowhere", "round", "headers", "line", "comments", "bomb", "slow", "silent"}

// answer is what a server says to a request, whatever its name is. An error ends the
// connection.
func answer(w io.Writer, q request) error {
	switch {
	case q.Host == "chain.example" && q.Request.Method == http.MethodGet && q.URL.Path == "/mcp":
		return say(w, 307, "Location: https://two.example/a?canary=1\r\n", "")
	case q.Host == "two.example":
		return say(w, 302, "Location: https://three.example/b\r\nSet-Cookie: x=1\r\n", "")
	case q.Host == "three.example":
		return say(w, 303, "Location: //four.example/c\r\n", "")
	case q.Host == "four.example":
		return say(w, 308, "Location: https://chain.example/back\r\n", "")
	case q.Host == "chain.example" && q.URL.Path == "/back":
		return say(w, 307, "Location: https://inside.example/latest/meta-data\r\n", "")
	case q.Request.Method == http.MethodGet:
		return say(w, 405, "", "")
	case q.Request.Method == http.MethodDelete:
		return say(w, 200, "", "")
	case q.URL.Path == "/moved/":
		return result(w, q, `{"content":[{"type":"text","text":"done"}]}`)
	}
	switch q.message.Method {
	case "initialize":
		return say(w, 200, "Content-Type: application/json\r\nMcp-Session-Id: s-1\r\n", `{"jsonrpc":"2.0","id":`+string(q.ID)+
			`,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"net","version":"1"}}}`)
	case "tools/list":
		var list []string
		for _, name := range tools {
			list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
		}
		return result(w, q, `{"tools":[`+strings.Join(list, ",")+`]}`)
	case "tools/call":
		return act(w, q)
	case "server/discover":
		return say(w, 200, "Content-Type: application/json\r\n", `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"error":{"code":-32601,"message":"method not found"}}`)
	}
	return say(w, 202, "", "")
}

// act answers a call.
func act(w io.Writer, q request) error {
	const stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	forever := func(first, more string, every time.Duration) error {
		_, err := io.WriteString(w, first)
		for err == nil {
			time.Sleep(every)
			_, err = io.WriteString(w, more)
		}
		return err
	}
	switch q.Params.Name {
	case "moved":
		return say(w, 308, "Location: /moved/\r\n", "")
	case "away":
		return say(w, 307, "Location: https://two.example/mcp\r\n", "")
	case "rewritten":
		return say(w, 302, "Location: /moved/\r\n", "")
	case "downgraded":
		return say(w, 307, "Location: http://"+q.Host+"/moved/\r\n", "")
	case "nowhere":
		return say(w, 307, "", "")
	case "round":
		return say(w, 307, "Location: "+q.URL.Path+"#again\r\n", "")
	case "headers":
		return forever("HTTP/1.1 200 OK\r\n", "X-Pad: "+strings.Repeat("y", 4000)+"\r\n", 0)
	case "line":
		return forever(stream+"\r\ndata: ", strings.Repeat("y", 64<<10), 0)
	case "comments":
		return forever(stream+"\r\n", strings.Repeat(": still here\n\n", 1000), 0)
	case "bomb":
		body := bomb()
		_, err := fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return err
	case "slow":
		return forever("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", " ", 50*time.Millisecond)
	case "silent":
		_, err := io.Copy(io.Discard, w.(io.Reader)) // until nobody is there
		return cmp.Or(err, io.EOF)
	}
	return result(w, q, `{"content":[{"type":"text","text":"done"}]}`)
}

// bomb is 256 MiB in a small part of one.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	blank := bytes.Repeat([]byte(" "), 1<<20)
	for range 256 {
		_, _ = z.Write(blank) // into memory
	}
	_ = z.Close()
	return b.Bytes()
})

func say(w io.Writer, status int, headers, body string) error {
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), headers, len(body), body)
	return err
}

func result(w io.Writer, q request, result string) error {
	return say(w, 200, "Content-Type: application/json\r\n", `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"result":`+result+`}`)
}

// scenarios are played in this order.
var scenarios = []scenario{
	{
		name: "plain", title: "a public server: the name stays in Host, SNI and certificate, the proxies of the environment are left alone",
		do: func(ctx context.Context, r *run) error {
			r.name("plain.example", addresses[0])
			if err := r.sees(ctx, "plain__do"); err != nil {
				return err
			}
			if err := r.calls(ctx, "plain__do", "ok"); err != nil {
				return err
			}
			as := slices.ContainsFunc(r.requests(), func(q request) bool {
				return q.Host != "plain.example" || q.sni != "plain.example" || q.at != addresses[0]
			})
			r.check(!as, "each request is at %s as plain.example", addresses[0])
			return nil
		},
		decided: []string{"https://plain.example " + yes},
	},
	{
		name: "rebind", title: "a name that is somewhere else at the time of the call, and back at the next one",
		do: func(ctx context.Context, r *run) error {
			r.name("rebind.example", addresses[1])
			if err := r.sees(ctx, "rebind__do"); err != nil {
				return err
			}
			for range r.rounds {
				for _, inside := range []string{"10.0.0.8", "127.0.0.1", "169.254.169.254"} {
					r.name("rebind.example", inside)
					if err := r.calls(ctx, "rebind__do", "url_blocked"); err != nil {
						return err
					}
				}
				r.name("rebind.example", addresses[2]) // the idle connection is at another one
				if err := r.calls(ctx, "rebind__do", "ok"); err != nil {
					return err
				}
			}
			seen := r.requests()
			last := seen[len(seen)-1]
			r.check(last.at == addresses[2], "the last request is at %s, where the name was then", last.at)
			return nil
		},
		decided: []string{
			"https://rebind.example " + no + "private_address", "https://rebind.example " + no + "private_address",
			"https://rebind.example " + no + "metadata_address", "https://rebind.example " + yes,
		},
	},
	{
		name: "mixed", title: "a name with a public and a private address",
		do: func(ctx context.Context, r *run) error {
			r.name("mixed.example", addresses[0], "10.0.0.8")
			return show.Until(ctx, func() (bool, error) {
				if _, err := r.user.Tools(ctx); err != nil {
					return false, err
				}
				decisions, err := r.decisions(ctx, "mixed")
				return len(decisions) > 0, err
			})
		},
		decided: []string{"https://mixed.example " + no + "private_address"},
	},
	{
		name: "chain", title: "a stream that is sent through five places, the last one inside",
		do: func(ctx context.Context, r *run) error {
			for i, host := range []string{"chain", "two", "three", "four"} {
				r.name(host+".example", addresses[i])
			}
			r.name("inside.example", "10.0.0.8")
			if err := r.sees(ctx, "chain__do"); err != nil {
				return err
			}
			if err := show.Until(ctx, func() (bool, error) {
				decisions, err := r.decisions(ctx, "chain")
				return slices.ContainsFunc(decisions, func(d decision) bool { return !d.Allowed && d.Hop == 5 }), err
			}); err != nil {
				return err
			}
			hops, bare := 0, 0
			for _, q := range r.requests() {
				if q.Host == "chain.example" && q.URL.Path == "/mcp" {
					continue
				}
				hops++
				if !slices.ContainsFunc(secrets, func(name string) bool { return q.Header.Get(name) != "" }) {
					bare++
				}
			}
			r.check(hops == 4 && bare == 4, "%d hops came elsewhere and back, %d without credentials, session and cookies", hops, bare)
			return nil
		},
		decided: []string{
			"https://two.example " + yes, "https://three.example " + yes, "https://four.example " + yes,
			"https://chain.example " + yes, "https://inside.example " + no + "private_address",
		},
		hops: true,
	},
	{
		name: "post", title: "calls that are sent elsewhere: they go on within their origin, and nowhere else",
		do: func(ctx context.Context, r *run) error {
			r.name("post.example", addresses[3])
			if err := r.sees(ctx, "post__do"); err != nil {
				return err
			}
			for tool, want := range map[string]string{
				"moved": "ok", "away": "url_blocked", "rewritten": "url_blocked", "downgraded": "url_blocked", "nowhere": "url_blocked", "round": "url_blocked",
			} {
				if err := r.calls(ctx, "post__"+tool, want); err != nil {
					return err
				}
			}
			if err := r.calls(ctx, "post__away", "url_blocked"); err != nil {
				return err
			}
			elsewhere := slices.ContainsFunc(r.requests(), func(q request) bool { return q.Host != "post.example" || q.sni == "" })
			r.check(!elsewhere, "no body came to another origin, nor in clear")
			return nil
		},
		decided: []string{"https://post.example " + yes, "https://two.example " + no + "redirect_body_cross_origin"},
	},
	{
		name: "endless", title: "answers without an end: headers, a line, comments, a bomb, a slow body, silence", url: "http://endless.example/mcp",
		do: func(ctx context.Context, r *run) error {
			r.name("endless.example", addresses[4])
			if err := r.sees(ctx, "endless__do"); err != nil {
				return err
			}
			for range r.rounds {
				for tool, want := range map[string]string{
					"headers": "indeterminate", "line": "frame_too_large", "comments": "frame_too_large", "bomb": "frame_too_large",
					"slow": "timed_out", "silent": "timed_out",
				} {
					begun := time.Now()
					if err := r.calls(ctx, "endless__"+tool, want); err != nil {
						return err
					}
					took := time.Since(begun)
					r.check(took < 8*time.Second, "it took %.1f s", took.Seconds())
					if err := r.calls(ctx, "endless__do", "ok"); err != nil {
						return err
					}
				}
			}
			return nil
		},
		decided: []string{"http://endless.example " + yes},
	},
	{
		name: "stolen", title: "a server whose certificate is for another name",
		do: func(ctx context.Context, r *run) error {
			r.name("stolen.example", addresses[5])
			if err := show.Until(ctx, func() (bool, error) {
				if _, err := r.user.Tools(ctx); err != nil {
					return false, err
				}
				decisions, err := r.decisions(ctx, "stolen")
				return slices.ContainsFunc(decisions, func(d decision) bool { return d.Phase == "request" }), err
			}); err != nil {
				return err
			}
			r.check(len(r.requests()) == 0, "no request came")
			return nil
		},
		decided: []string{"https://stolen.example " + yes},
	},
}
