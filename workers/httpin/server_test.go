package httpin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// got is what a handler gets of a request.
type got struct {
	Method, Path, URI, Host, Proto string
	Header                         http.Header
	Length                         int64
	Body                           string
}

func gotOf(r *http.Request) got {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = append(body, " "+err.Error()...)
	}
	return got{r.Method, r.URL.String(), r.RequestURI, r.Host, r.Proto, r.Header, r.ContentLength, string(body)}
}

// echo answers with what it got.
func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := json.Marshal(gotOf(r))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

// serve serves a handler on a loopback port until the test ends.
func serve(t *testing.T, h http.HandlerFunc) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, h), l.Addr().String()
}

func serveOn(t *testing.T, l net.Listener, h http.HandlerFunc) *Server {
	t.Helper()
	s := NewServer(&http.Server{Handler: h, IdleTimeout: time.Minute, ReadHeaderTimeout: 10 * time.Second})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Shutdown(context.Background())
		if err := <-done; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func post1(body string, headers ...string) string {
	return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s", len(body), strings.Join(append(headers, ""), "\r\n"), body)
}

// requests are such as the server reads itself.
var requests = []string{
	post1("{}"),
	post1(""),
	post1("{}", "Content-Type: application/json", "ACCEPT:application/json", "accept:  text/event-stream \t", "Mcp-Session-Id: x", "mcp-pARAM-x-Y: 1", "User-Agent:"),
	post1(`{"a":"`+strings.Repeat("x", 20<<10)+`"}`, "Connection: Keep-Alive", "Authorization: Bearer x", "Origin: null"),
	strings.Replace(post1("{}"), "/mcp", "/mcp/s/a-B_9", 1),
	strings.Replace(post1("{}"), "localhost", "[::1]:7777", 1),
}

// others are such as it must not.
var others = []string{
	"",
	"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
	"POST /mcp HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
	"POST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
	"POST /mcp HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}",
	"POST /mcp HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
	"POST  /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	strings.Replace(post1("{}"), "/mcp", "/mcp?a=b", 1),
	strings.Replace(post1("{}"), "/mcp", "/mcp%2fs", 1),
	strings.Replace(post1("{}"), "/mcp", "//mcp", 1),
	strings.Replace(post1("{}"), "/mcp", "/mcp/../x", 1),
	strings.Replace(post1("{}"), "/mcp", "http://evil.example/mcp", 1),
	post1("{}", "Content-Length: 2"),
	post1("{}", "Content-Length: 3"),
	post1("{}", "Transfer-Encoding: chunked"),
	post1("{}", "Transfer-Encoding : chunked"),
	post1("{}", "Transfer-Encoding:\x0bchunked"),
	post1("{}", "Host: other"),
	post1("{}", "Host : other"),
	post1("{}", " Host: other"),
	post1("{}", "Accept: a\r\n folded"),
	post1("{}", "Accept: a\r\n\tfolded"),
	post1("{}", "Accept: a\nTransfer-Encoding: chunked"),
	post1("{}", "Accept: a\rTransfer-Encoding: chunked"),
	post1("{}", "Accept: \x00"),
	post1("{}", "Accept: \xff"),
	post1("{}", "Accept"),
	post1("{}", ": x"),
	post1("{}", "Connection: close"),
	post1("{}", "Connection: keep-alive, Upgrade", "Upgrade: h2c"),
	post1("{}", "Expect: 100-continue"),
	post1("{}", "X-Other: x"),
	post1("{}", "Mcp_Method: x"),
	post1("{}", "Accept: "+strings.Repeat("x", 10<<10)),
	post1("{}", slices.Repeat([]string{"Accept: x"}, 40)...),
	post1(strings.Repeat(" ", maxShort+1)),
	strings.Replace(post1("{}"), "Length: 2", "Length: +2", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length: 02", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length: -2", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length: 2, 2", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length: 0x2", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length:", 1),
	strings.Replace(post1("{}"), "Length: 2", "Length: 99999999999999999999", 1),
	strings.Replace(post1("{}"), "localhost", "local host", 1),
	strings.Replace(post1("{}"), "localhost", "", 1),
	strings.Replace(post1("{}"), "localhost", "localhost/x", 1),
}

// read is what the server reads itself of bytes: the request, and how many they are.
func read(data []byte) (r *http.Request, size int) {
	at := bytes.Index(data, headEnd)
	if at < 0 || at+len(headEnd) > maxHead {
		return nil, 0
	}
	at += len(headEnd)
	c := &conn{server: NewServer(&http.Server{}), buf: slices.Clone(data), r: at, w: len(data), Conn: ended{}}
	if r = c.request(c.buf[:at]); r == nil {
		return nil, 0
	}
	return r, at + c.left
}

// ended is a connection of which all was read.
type ended struct{ net.Conn }

func (ended) Read([]byte) (int, error) { return 0, io.EOF }

// FuzzRequest: whatever is read here, net/http reads as the same request, with the
// same bytes left for the next one.
func FuzzRequest(f *testing.F) {
	for _, r := range slices.Concat(requests, others) {
		if len(r) < maxHead {
			f.Add([]byte(r))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, size := read(data)
		if r == nil {
			return
		}
		in := bufio.NewReaderSize(bytes.NewReader(data), 64<<10)
		want, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("net/http says %v of %q", err, data)
		}
		a, b := gotOf(r), gotOf(want)
		if x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); x != y || want.Close || len(want.TransferEncoding) > 0 || len(want.Trailer) > 0 {
			t.Fatalf("%q\nis here       %s\nin net/http  %s", data, x, y)
		}
		if rest, _ := io.ReadAll(in); len(rest) != max(len(data)-size, 0) {
			t.Fatalf("%q: %d bytes are left here, %d in net/http", data, max(len(data)-size, 0), len(rest))
		}
	})
}

func TestWhatIsReadHere(t *testing.T) {
	t.Parallel()
	for _, text := range requests {
		if r, _ := read([]byte(text)); r == nil {
			t.Errorf("it is not read: %.200q", text)
		}
	}
	for _, text := range others {
		if r, _ := read([]byte(text)); r != nil {
			t.Errorf("it is read: %.200q", text)
		}
	}
}

// reply is an answer as a client gets it, without what differs each time.
type reply struct {
	status int
	header http.Header
	body   string
}

// replies sends bytes and returns the answers until the server closes.
func replies(t *testing.T, address, text string) (out []reply) {
	t.Helper()
	conn := dial(t, address)
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	go func() {
		_, _ = io.WriteString(conn, text)
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
	}()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return out
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			body = append(body, "cut"...)
		}
		r.Header.Del("Date")
		r.Header.Del("Content-Length") // net/http does without above 2 KiB
		out = append(out, reply{r.StatusCode, r.Header, string(body)})
	}
}

// Nobody can tell by the answers who has read the request.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(plain.Close)
	_, address := serve(t, echo)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, echo)
	all := slices.Concat(requests, others)
	for _, second := range []string{"", requests[2], others[1]} {
		for _, text := range all {
			want := replies(t, plain.Listener.Addr().String(), text+second)
			for _, at := range []string{address, socket} {
				if got := replies(t, at, text+second); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%.300q\nhas the answers %.500s\nof net/http     %.500s", text+second, fmt.Sprint(got), fmt.Sprint(want))
				}
			}
		}
	}
}

// What handlers do with an answer comes out as with net/http.
func TestHandlersSeeNoDifference(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("0123456789abcdef", 20<<10)
	for name, h := range map[string]http.HandlerFunc{
		"nothing":  func(http.ResponseWriter, *http.Request) {},
		"a status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		"no content": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); err != http.ErrBodyNotAllowed {
				panic(err)
			}
		},
		"an error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"a header with a line end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Evil", "a\r\nX-More: b")
			w.Header().Set("Content-Type", "a/b")
			_, _ = w.Write([]byte("x"))
		},
		"a length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.Header().Set("Content-Length", "2")
			_ = Write(w, []byte("o"), []byte("k"))
		},
		"too much": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.Header().Set("Content-Length", "2")
			_, _ = w.Write([]byte("ok"))
			if _, err := w.Write([]byte("x")); err != http.ErrContentLength {
				panic(err)
			}
		},
		"too little": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.Header().Set("Content-Length", "3")
			_, _ = w.Write([]byte("ok"))
		},
		"much": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			_ = Write(w, []byte(big[:5]), []byte(big[5:]))
		},
		"much of unknown length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			for i := 0; i < len(big); i += 1000 {
				_, _ = io.WriteString(w, big[i:min(i+1000, len(big))])
			}
			_, _ = io.WriteString(w, big)
		},
		"a stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_ = Write(w, []byte("data: x\n\n"), nil)
				if err := http.NewResponseController(w).Flush(); err != nil {
					panic(err)
				}
			}
		},
		"headers alone": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
		"the end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusOK)
		},
		"a panic":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a late header": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.Header().Set("X-Late", "x") },
		"a panic in a stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			_, _ = w.Write([]byte("begun"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		plain := httptest.NewServer(h)
		t.Cleanup(plain.Close)
		_, address := serve(t, h)
		text := requests[0] + requests[3] + requests[2]
		got, want := replies(t, address, text), replies(t, plain.Listener.Addr().String(), text)
		for _, r := range got {
			// It is sent by the one in a case that the other does not know yet.
			r.header.Del("Connection")
		}
		for _, r := range want {
			r.header.Del("Connection")
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\nhas the answers %.500s\nof net/http     %.500s", name, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}

// A client that leaves cancels its request, and one that waits does not, though the
// watch began; nor one that sends the next request already.
func TestAClientThatLeavesCancels(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"in one piece": requests[0], "with a long body": requests[3]} {
		began, cancelled := make(chan struct{}), make(chan struct{})
		_, address := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = Body(w, r, 1<<20)
			close(began)
			select {
			case <-r.Context().Done():
				close(cancelled)
			case <-t.Context().Done():
			}
		})
		conn := dial(t, address)
		_, _ = io.WriteString(conn, text)
		<-began
		conn.Close()
		select {
		case <-cancelled:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the request goes on", name)
		}
	}
}

func TestAWatchDisturbsNoRequest(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	s, address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = Body(w, r, 1<<20)
		began <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, r.ContentLength, r.Context().Err())
	})
	conn := dial(t, address)
	in := bufio.NewReader(conn)
	send := func(text string) { _, _ = io.WriteString(conn, text) }
	send(requests[0])
	for i := range 6 {
		<-began
		for watched := false; !watched; { // it begins by itself
			for _, c := range s.all() {
				c.mu.Lock()
				watched = c.watched != nil
				c.mu.Unlock()
			}
			runtime.Gosched()
		}
		if i%2 == 0 {
			send(requests[3]) // while the other one is answered
		}
		release <- struct{}{}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"2 <nil>", fmt.Sprint(len(requests[3])-bytes.Index([]byte(requests[3]), headEnd)-len(headEnd), " <nil>")}[i%2]
		if body, err := io.ReadAll(r.Body); string(body) != want {
			t.Errorf("the answer to %d is %q, %v, want %q", i, body, err, want)
		}
		if i%2 == 1 {
			send(requests[0])
		}
	}
	<-began
	release <- struct{}{}
}

// pipe is a listener with one connection in memory.
type pipe struct {
	conns chan net.Conn
}

func newPipe() (near net.Conn, l *pipe) {
	near, far := net.Pipe()
	l = &pipe{make(chan net.Conn, 1)}
	l.conns <- far
	return near, l
}

func (p *pipe) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p *pipe) Close() error   { close(p.conns); return nil }
func (p *pipe) Addr() net.Addr { return &net.UnixAddr{} }

// Who sends nothing, or too slowly, loses the connection.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send string
		most time.Duration
	}{
		"nothing":          {"", 10 * time.Second},
		"half a head":      {requests[2][:60], 10 * time.Second},
		"half a body":      {requests[3][:15<<10], upload},
		"a body unread":    {strings.Replace(requests[3], "/mcp", "/unread", 1)[:15<<10], remains},
		"no other request": {requests[0], 75 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, l := newPipe()
				serveOn(t, l, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/unread" {
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					_, _ = Body(w, r, 1<<20)
				})
				begin := time.Now()
				go func() {
					for i := range len(c.send) { // as slow as it may be
						time.Sleep(time.Microsecond)
						if _, err := io.WriteString(near, c.send[i:i+1]); err != nil {
							return
						}
					}
				}()
				_, _ = io.Copy(io.Discard, near)
				if d := time.Since(begin); d > c.most+time.Second || d < c.most/2 {
					t.Errorf("it takes %v, want %v", d, c.most)
				}
			})
		})
	}
}

// Shutdown lets a request end and nobody begin another one.
func TestShutdown(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	s, address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 2 {
			close(began)
			<-release
		}
	})
	idle, busy, fresh := dial(t, address), dial(t, address), dial(t, address)
	_, _ = io.WriteString(idle, requests[0])
	in := bufio.NewReader(idle)
	if _, err := http.ReadResponse(in, nil); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(busy, requests[3])
	_, _ = io.WriteString(fresh, requests[0][:20])
	<-began
	done := make(chan error)
	go func() { done <- s.Shutdown(context.WithoutCancel(t.Context())) }()
	for _, conn := range []net.Conn{idle, fresh} {
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("an idle connection has %d bytes, %v", n, err)
		}
	}
	select {
	case err := <-done:
		t.Errorf("the end came before that of the request: %v", err)
	default:
	}
	close(release)
	r, err := http.ReadResponse(bufio.NewReader(busy), nil)
	if err != nil || r.StatusCode != 200 || !r.Close {
		t.Errorf("the request under way has %v, %v", r, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("another connection was taken")
	}
}

func BenchmarkPost(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := Body(w, r, 1<<20)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_ = Write(w, data)
	})
	for _, name := range []string{"nethttp", "own"} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			s := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
			defer s.Close()
			if name == "own" {
				l = NewServer(s).Listen(l)
			}
			go s.Serve(l)
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			text := []byte(post1(string(body), "Content-Type: application/json", "Accept: application/json, text/event-stream", "Mcp-Session-Id: ABCDEFGHIJKLMNOP", "User-Agent: test"))
			in := make([]byte, 4<<10)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := conn.Write(text); err != nil {
					b.Fatal(err)
				}
				for n := 0; !bytes.HasSuffix(in[:n], body); {
					k, err := conn.Read(in[n:])
					if err != nil {
						b.Fatal(err)
					}
					n += k
				}
			}
		})
	}
}
