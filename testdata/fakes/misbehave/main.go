// Misbehave is a fake MCP server with one fault, named by its first argument;
// see modes. But for the fault it answers the handshake, lists one tool, call,
// answers its calls with "ok" and refuses other requests.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gatebus/gatebus/testdata/fakes/wire"
)

// A mode handles a message and reports whether it is done with it.
type mode func(m wire.Message) bool

var (
	capabilities = `{"tools":{"listChanged":true}}`
	version      = "2025-11-25"
	lists        int
)

const tool = `{"name":"call","inputSchema":{"type":"object"}}`

func main() {
	name := os.Args[1]
	if name == "sleep" { // the grandchild of fork
		forever()
	}
	fault := modes[name]
	if fault == nil {
		fmt.Fprintln(os.Stderr, "misbehave: no mode", name)
		os.Exit(2)
	}
	switch name {
	case "banner":
		fmt.Print("\n  ready!\n[info] listening on stdio\n")
	case "content-length":
		fmt.Print("Content-Length: 20\r\n\r\n{\"jsonrpc\":\"2.0\"}\r\n")
	case "hang":
		signal.Ignore(syscall.SIGTERM)
	case "no-tools":
		capabilities = `{"prompts":{}}`
	case "version", "supports":
		version = os.Args[2]
	}
	for {
		m, ok := wire.Next()
		switch {
		case !ok && name == "hang":
			forever()
		case !ok:
			return
		case fault(m), wire.Initialize(m, version, capabilities):
		case m.Method == "tools/list":
			wire.Reply(m, `{"tools":[`+tool+`]}`)
		case m.Method == "tools/call":
			wire.Reply(m, wire.Text("ok"))
		case m.Method != "" && m.ID != nil:
			refuse(-32601)(m)
		}
	}
}

// grandchild starts a process that holds our standard output and sleeps.
func grandchild() int {
	cmd := exec.Command(os.Args[0], "sleep")
	cmd.Stdout = os.Stdout
	if err := cmd.Start(); err != nil {
		os.Exit(5)
	}
	return cmd.Process.Pid
}

// forever: an empty select would be a deadlock that the runtime ends.
func forever() { time.Sleep(1 << 62) }

// flood writes 256 KiB to the standard error, more than a pipe holds.
func flood() { fmt.Fprint(os.Stderr, strings.Repeat("noise of a server\n", 15000)) }
