package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

// modes are the faults. on limits one to a method.
var modes = map[string]mode{
	// Lines that are no messages before and between the messages.
	"banner":  func(wire.Message) bool { wire.Line("log: still here"); return false },
	"garbage": func(wire.Message) bool { wire.Line("%s", garbage); return false },
	// Ends without an answer.
	"exit": on("tools/call", func(wire.Message) { os.Exit(3) }),
	// Never answers a call, and ignores the end of its input and SIGTERM.
	"hang":            on("tools/call", func(wire.Message) {}),
	"hang-initialize": on("initialize", func(wire.Message) {}),
	// What becomes of the probe for the other era: it ends the server, gets no
	// answer, no answer like all that follows it, or one that means nothing.
	"probe-exit":   on("server/discover", func(wire.Message) { os.Exit(3) }),
	"probe-silent": on("server/discover", func(wire.Message) {}),
	"probe-stuck":  on("server/discover", func(wire.Message) { forever() }),
	"probe-result": on("server/discover", func(m wire.Message) { wire.Reply(m, `{"supportedVersions":["2025-11-25"]}`) }),
	// The same after an answer.
	"probe-refused-exit": on("server/discover", func(m wire.Message) { refuse(-32600)(m); os.Exit(3) }),
	// No tool before the notice that follows the first list.
	"late-tools": func(m wire.Message) bool {
		if m.Method != "tools/list" || lists > 0 {
			return false
		}
		lists++
		wire.Reply(m, `{"tools":[]}`)
		time.AfterFunc(300*time.Millisecond, func() { wire.Line(notice) })
		return true
	},
	// Two answers; answers that nobody asked for; progress of nobody's.
	"answer-twice": on("tools/call", func(m wire.Message) { wire.Reply(m, wire.Text("ok")); wire.Reply(m, wire.Text("again")) }),
	"orphan": on("tools/call", func(m wire.Message) {
		wire.Line(`{"jsonrpc":"2.0","id":999,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":4611686018427387904,"result":{}}`)
		wire.Line(`{"jsonrpc":"2.0","id":"x","result":{}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}`)
		wire.Reply(m, wire.Text("ok"))
	}),
	// Headers as in the Language Server Protocol, printed at the start.
	"content-length": func(wire.Message) bool { return true },
	// A result of {bytes}, 17 MiB without.
	"huge-line": on("tools/call", func(m wire.Message) {
		in := struct{ Bytes int }{17 << 20}
		_ = json.Unmarshal(m.Params.Arguments, &in)
		wire.Reply(m, wire.Text(strings.Repeat("y", in.Bytes)))
	}),
	"stderr-flood": func(wire.Message) bool { flood(); return false },
	// Stops reading after the handshake.
	"no-read": on("notifications/initialized", func(wire.Message) { forever() }),
	// Leaves a grandchild behind that holds the standard output; says its number.
	"fork": on("tools/call", func(m wire.Message) { wire.Reply(m, wire.Text(strconv.Itoa(grandchild()))) }),
	// Pages without end: one cursor for ever; a new one each time; one fat page.
	"loop-cursor": on("tools/list", func(m wire.Message) { wire.Reply(m, `{"tools":[`+tool+`],"nextCursor":"again"}`) }),
	"endless": on("tools/list", func(m wire.Message) {
		lists++
		wire.Reply(m, fmt.Sprintf(`{"tools":[{"name":"t%d"}],"nextCursor":"c%d"}`, lists, lists))
	}),
	"crowd": on("tools/list", func(m wire.Message) {
		wire.Reply(m, `{"tools":[{"name":"t"}`+strings.Repeat(`,{"name":"t"}`, 10000)+`]}`)
	}),
	// Two pages that share a name.
	"pages": on("tools/list", func(m wire.Message) {
		if m.Params.Cursor == `p"2` {
			wire.Reply(m, `{"tools":[{"name":"call"},{"name":"b"}],"nextCursor":""}`)
		} else {
			wire.Reply(m, `{"tools":[`+tool+`],"nextCursor":"p\u00222"}`)
		}
	}),
	// A list that an empty cursor ends.
	"empty-cursor": on("tools/list", func(m wire.Message) { wire.Reply(m, `{"tools":[`+tool+`],"nextCursor":""}`) }),
	// A notice with every list, and another definition with every list.
	"list-changed": func(m wire.Message) bool {
		if m.Method == "tools/list" {
			wire.Line(notice)
		}
		return false
	},
	"changing-tools": on("tools/list", func(m wire.Message) {
		lists++
		wire.Reply(m, fmt.Sprintf(`{"tools":[{"name":"call","description":"version %d","inputSchema":{"type":"object"}}]}`, lists))
	}),
	// One tool whose definition changes at every call of another, with a notice.
	"drift": func(m wire.Message) bool {
		switch {
		case m.Method == "tools/list":
			wire.Reply(m, fmt.Sprintf(`{"tools":[{"name":"steady"},{"name":"change"},{"name":"drifting","description":"version %d"}]}`, lists))
			return true
		case m.Method == "tools/call" && m.Params.Name == "change":
			lists++
			wire.Line(notice)
		}
		return false
	},
	// Definitions with text that is not meant for people; at a call of call that one's
	// has some too, with a notice.
	"poison": func(m wire.Message) bool {
		switch {
		case m.Method == "tools/list":
			wire.Reply(m, `{"tools":[`+strings.Join(poisoned(lists), ",")+`]}`)
			return true
		case m.Method == "tools/call" && m.Params.Name == "call":
			lists++
			wire.Line(notice)
		}
		return false
	},
	// A notice before the refusal of the handshake.
	"early-notice": on("initialize", func(m wire.Message) { wire.Line(notice); refuse(-32602)(m) }),
	// Well-formed and unknown to every type of an SDK.
	"odd-shapes": func(m wire.Message) bool {
		switch m.Method {
		case "tools/list":
			wire.Reply(m, `{"tools":[`+strings.Join(oddTools, ",")+`],"vendor":1}`)
		case "tools/call":
			wire.Reply(m, oddResult)
		}
		return m.Method == "tools/list" || m.Method == "tools/call"
	},
	// Lists so many tools with so long names that no event holds them.
	"long-names": on("tools/list", longNames),
	// The same in the second list only; calls have it list again.
	"swells": func(m wire.Message) bool {
		switch {
		case m.Method == "tools/call":
			wire.Line(notice)
		case m.Method == "tools/list":
			if lists++; lists == 2 {
				longNames(m)
				return true
			}
		}
		return false
	},
	"no-tools": on("tools/list", func(wire.Message) { os.Exit(4) }),
	// Advertises tools and does not know the method; answers with an error.
	"not-found": on("tools/list", refuse(-32601)),
	"broken":    on("tools/list", refuse(-32603)),
	"refuse":    on("initialize", refuse(-32602)),
	"version":   func(wire.Message) bool { return false },
	// Refuses every revision but that of its argument, which it names, and that one too
	// with the argument never.
	"supports": on("initialize", func(m wire.Message) {
		if len(os.Args) == 3 && bytes.Contains(m.Raw, []byte(`"protocolVersion":"`+os.Args[2]+`"`)) {
			wire.Initialize(m, version, capabilities)
			return
		}
		wire.Line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"Unsupported protocol version","data":{"supported":["1999-01-01",%q]}}}`, m.ID, os.Args[2])
	}),
	// Answers a call of late only after it was cancelled, and says what the
	// notice was; progress tells that the call has come.
	"late": func(m wire.Message) bool {
		if m.Method == "tools/list" {
			wire.Reply(m, `{"tools":[`+tool+`,{"name":"late"}]}`)
			return true
		}
		if m.Params.Meta.Token != nil {
			wire.Line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s}}`, m.Params.Meta.Token)
		}
		if m.Method == "notifications/cancelled" {
			wire.Line(`{"jsonrpc":"2.0","id":%s,"result":{"late":%s}}`, m.Params.RequestID, m.Raw[:len(m.Raw)-1])
		}
		return m.Method == "tools/call" && m.Params.Name == "late"
	},
	// Fifty progress notifications and the answer in one write.
	"progress": on("tools/call", func(m wire.Message) {
		var b strings.Builder
		for i := range 50 {
			fmt.Fprintf(&b, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d.0, "x":1e400,"progressToken":%s}}`+"\n", i, m.Params.Meta.Token)
		}
		wire.Line(b.String()+`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	}),
	// Asks the client with odd ids; the call's answer holds the answers.
	"ask": ask(),
}

// longNames is a list that no event holds.
func longNames(m wire.Message) {
	var list []string
	for i := range 9000 {
		list = append(list, fmt.Sprintf(`{"name":"%01000d","inputSchema":{}}`, i))
	}
	wire.Reply(m, `{"tools":[`+strings.Join(list, ",")+`]}`)
}
