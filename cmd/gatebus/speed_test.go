package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// budgets is what a call of 100 bytes may allocate in all of the process: HTTP on
// both sides, two commits with the server of the bus, and every follower of the log.
var budgets = map[string]struct{ objects, bytes int64 }{
	"stdio": {objects: 430, bytes: 58 << 10},
	"http":  {objects: 510, bytes: 62 << 10},
}

// TestACallAllocatesNoMore measures the whole process while a client that allocates
// nothing calls. Ratios of time wobble, this does not: it is what CI holds on to.
func TestACallAllocatesNoMore(t *testing.T) {
	for _, behind := range []string{"stdio", "http"} {
		r := testing.Benchmark(func(b *testing.B) { benchmarkCall(b, behind, 100, 1) })
		objects, bytes := r.AllocsPerOp(), r.AllocedBytesPerOp()
		most := budgets[behind]
		t.Logf("a call with %s behind allocates %d objects and %d bytes (%d calls); it may %d and %d", behind, objects, bytes, r.N, most.objects, most.bytes)
		if underRace {
			continue // which allocates itself
		}
		if r.N < 100 || objects > most.objects || bytes > most.bytes {
			t.Errorf("%s: %d objects and %d bytes a call in %d calls, more than %d and %d", behind, objects, bytes, r.N, most.objects, most.bytes)
		}
	}
}

// BenchmarkCall is a call through the whole process, from HTTP to a server that is
// a process of its own and back; cpu-us/op is what the process used of the
// processors, the client included, and -cpuprofile shows where.
func BenchmarkCall(b *testing.B) {
	for _, behind := range []string{"stdio", "http"} {
		for _, size := range []int{100, 10 << 10} {
			for _, callers := range []int{1, 16} {
				b.Run(fmt.Sprintf("%s/%d/%d", behind, size, callers), func(b *testing.B) { benchmarkCall(b, behind, size, callers) })
			}
		}
	}
}

func benchmarkCall(b *testing.B, behind string, size, callers int) {
	endpoint := serveBehind(b, behind)
	conns := make([]*bareClient, callers)
	for i := range conns {
		conns[i] = endpoint.dial(b)
		conns[i].callOnce(b, size)
	}
	var left atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	before := cpuTime()
	b.ResetTimer()
	left.Store(int64(b.N))
	for _, c := range conns {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := c.call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// bareEndpoint is the endpoint of one server of a runtime.
type bareEndpoint struct{ host, path string }

// serveBehind starts a runtime in this process with an echo server in another one,
// which a principal is connected to.
func serveBehind(b *testing.B, behind string) bareEndpoint {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	s := plainSettings(b)
	s.natsListen, s.anonymous, s.policy.DefaultApproval = "off", "ana", "auto"
	declaration := fmt.Sprintf("command: %q\nargs: [demo-server]\n", self)
	if behind == "http" {
		url := startFakeHTTP(b, self)
		declaration = fmt.Sprintf("transport: streamable_http\nurl: %q\n", url)
		s.trusted = []urlpolicy.Trusted{{Prefix: netip.MustParsePrefix("127.0.0.1/32")}}
	}
	s.cores = declared(b, "echo", declaration+"approval_policy: auto\nsupports_parallel_tool_calls: true\n")
	r := serving(b, s)
	c, err := client.Dial(b.Context(), client.Options{Home: r.home, Name: "test"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if err := c.Do(b.Context(), "host/token", client.HostToken{Name: "ana"}, nil); err != nil {
		b.Fatal(err)
	}
	if err := grantDemo(b.Context(), r); err != nil {
		b.Fatal(err)
	}
	at := bareEndpoint{r.listener.Addr().String(), "/mcp/s/echo"}
	at.dial(b).request(b, "tools/list", "{}") // asks for the connection
	waiting, err := c.Approvals(b.Context())
	if err != nil || len(waiting) != 1 {
		b.Fatal(waiting, err)
	}
	if _, err := c.Approve(b.Context(), waiting[0].ID); err != nil {
		b.Fatal(err)
	}
	return at
}

// bareClient is a client that allocates nothing in call.
type bareClient struct {
	conn    net.Conn
	in      *bufio.Reader
	at      bareEndpoint
	session string
	out     []byte // the request, as sent
	want    []byte // what the answer must have
	got     []byte
}

func (e bareEndpoint) dial(b *testing.B) *bareClient {
	b.Helper()
	conn, err := net.Dial("tcp", e.host)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	c := &bareClient{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), at: e, got: make([]byte, 64<<10)}
	c.request(b, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	return c
}

// prepare makes the bytes of a request.
func (c *bareClient) prepare(method, params string) {
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	head := "POST " + c.at.path + " HTTP/1.1\r\nHost: " + c.at.host + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
	if c.session != "" {
		head += "Mcp-Session-Id: " + c.session + "\r\n"
	}
	c.out = []byte(head + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

func (c *bareClient) request(b *testing.B, method, params string) {
	b.Helper()
	c.prepare(method, params)
	c.want = []byte(`"result":`)
	if err := c.call(); err != nil {
		b.Fatal(err)
	}
}

// callOnce prepares calls of a size and makes the first one.
func (c *bareClient) callOnce(b *testing.B, size int) {
	b.Helper()
	text := strings.Repeat("x", size)
	c.prepare("tools/call", `{"name":"echo","arguments":{"text":"`+text+`"}}`)
	c.want = []byte(`"text":"` + text + `"`)
	if err := c.call(); err != nil {
		b.Fatal(err)
	}
}

var (
	lengthHeader  = []byte("Content-Length: ")
	sessionPrefix = []byte("Mcp-Session-Id: ")
)

// call sends the request and looks at the answer, which is JSON of a known length.
func (c *bareClient) call() error {
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	length := 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
		if number, ok := bytes.CutPrefix(line, lengthHeader); ok {
			for _, d := range bytes.TrimRight(number, "\r\n") {
				length = 10*length + int(d-'0')
			}
		} else if id, ok := bytes.CutPrefix(line, sessionPrefix); ok && c.session == "" {
			c.session = string(bytes.TrimRight(id, "\r\n"))
		}
	}
	body := c.got[:length]
	if _, err := io.ReadFull(c.in, body); err != nil {
		return err
	}
	if !bytes.Contains(body, c.want) {
		return fmt.Errorf("the answer is %s", body)
	}
	return nil
}

// startFakeHTTP starts fakeHTTP in a process of its own and returns its URL.
func startFakeHTTP(b *testing.B, self string) string {
	b.Helper()
	cmd := exec.Command(self, "fake-http")
	cmd.Stderr = os.Stderr
	stop, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stop.Close(); _ = cmd.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// fakeHTTP is an MCP server behind HTTP with the tool echo, until stdin ends. It
// answers with event streams, as the SDK's server does.
func fakeHTTP() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("http://%s/\n", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Arguments struct{ Text string } }
		}
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		result := map[string]string{
			"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`,
			"tools/list": `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`,
			"tools/call": `{"content":[{"type":"text","text":"` + m.Params.Arguments.Text + `"}]}`,
		}[m.Method]
		switch {
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		case result == "":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, result)
		}
	}))
}
