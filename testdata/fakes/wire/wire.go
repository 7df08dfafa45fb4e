// Package wire is the raw JSON-RPC of the fake servers: what they send is what
// they write, because an SDK would tidy it up.
package wire

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// Message is a request, notification or response from the client.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		RequestID json.RawMessage `json:"requestId"`
		Cursor    string          `json:"cursor"`
		Meta      struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
	// Raw is the line as it came.
	Raw json.RawMessage `json:"-"`
}

var (
	in = bufio.NewReaderSize(os.Stdin, 1<<20)
	mu sync.Mutex
)

// Next reads the next message; false at the end of the input.
func Next() (m Message, ok bool) {
	line, err := in.ReadBytes('\n')
	if err == io.EOF {
		return m, false
	}
	if err := json.Unmarshal(line, &m); err != nil {
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(9)
	}
	m.Raw = line
	return m, true
}

// Line writes one line as it is.
func Line(format string, args ...any) {
	mu.Lock()
	defer mu.Unlock()
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}

// Reply answers m with a result in JSON.
func Reply(m Message, result string) {
	Line(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// Text is a result of tools/call with one text.
func Text(s string) string {
	quoted, _ := json.Marshal(s)
	return fmt.Sprintf(`{"content":[{"type":"text","text":%s}]}`, quoted)
}

// Initialize answers initialize and reports whether m was part of the
// handshake.
func Initialize(m Message, version, capabilities string) bool {
	if m.Method == "initialize" {
		Reply(m, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":"fake","version":"1.2.3","vendor":true}}`, version, capabilities))
	}
	return m.Method == "initialize" || m.Method == "notifications/initialized"
}
