package httpclient_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpclient"
	"github.com/gatebus/gatebus/workers/live"
)

// counting counts the TCP connections that are made.
func counting(n *atomic.Int32) func(*httpclient.Options) {
	return func(o *httpclient.Options) {
		o.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			n.Add(1)
			return direct(ctx, at)
		}
	}
}

// An answer is there when its event is complete, whatever the server does with the
// stream after it, and another call does not wait for that.
func TestAnAnswerComesBeforeTheEndOfItsStream(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	c := open(t, &fake{call: once(func(w http.ResponseWriter, _ *http.Request, m message) {
		stream(w, "data: "+result(m, "ok"))
		<-release
	})})
	for range 3 {
		wantOK(t, c)
	}
}

// A connection is used again once the end of the last answer has come, with TLS too.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https"} {
		f := &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) { stream(w, "data: "+result(m, "ok")) }}
		s := httptest.NewUnstartedServer(f)
		idle := make(chan struct{}, 64)
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				idle <- struct{}{}
			}
		}
		roots := x509.NewCertPool()
		if scheme == "https" {
			s.StartTLS()
			roots.AddCert(s.Certificate())
		} else {
			s.Start()
		}
		var dialled atomic.Int32
		c, err := live.Open(t.Context(), client(t, s.URL, counting(&dialled), func(o *httpclient.Options) { o.TLS = &tls.Config{RootCAs: roots} }),
			live.Options{Name: "gatebus", Parallel: true})
		if err != nil {
			t.Fatal(scheme, err)
		}
		for range 4 {
			<-idle // the probe, two of the handshake, the GET stream that is none
		}
		before := dialled.Load()
		for range 20 {
			wantOK(t, c)
			<-idle
		}
		if n := dialled.Load() - before; n > 1 { // one may not be put back yet
			t.Errorf("%s: %d connections were made for calls in a row", scheme, n)
		}
		// What the server has closed is not written to.
		before = dialled.Load()
		s.CloseClientConnections()
		wantOK(t, c)
		if n := dialled.Load() - before; n != 1 {
			t.Errorf("%s: %d connections were made after the server had closed all", scheme, n)
		}
		_ = c.Close(t.Context())
		s.Close()
	}
}

// raw is a server of which a test writes the bytes: answer gets each call of a tool.
func raw(t *testing.T, answer func(conn net.Conn, m message)) string {
	t.Helper()
	f := &fake{}
	f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for {
			answer(conn, m)
			r, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil {
				return
			}
			m = messageOf(r)
		}
	}
	return serve(t, f)
}

// next is the id that follows one.
func next(id []byte) string {
	n, _ := strconv.Atoi(string(id))
	return strconv.Itoa(n + 1)
}

// What a server says unasked is nobody's answer, and interim answers are none.
func TestStrayBytesAreNoAnswer(t *testing.T) {
	t.Parallel()
	say := func(conn net.Conn, text string) {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
	for name, answer := range map[string]func(net.Conn, message){
		"an answer to come": func(conn net.Conn, m message) {
			text := result(m, "ok")
			forged := strings.Replace(strings.Replace(text, "ok", "forged", 1), string(m.ID), next(m.ID), 1)
			var b strings.Builder
			fmt.Fprintf(&b, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(forged), forged)
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s%s", len(text), text, b.String())
		},
		"interim answers": func(conn net.Conn, m message) {
			_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
			say(conn, result(m, "ok"))
		},
		"a close": func(conn net.Conn, m message) {
			text := result(m, "ok")
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		},
		"no length": func(conn net.Conn, m message) {
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: %s\n\n", result(m, "ok"))
		},
	} {
		c, err := live.Open(t.Context(), client(t, raw(t, answer)), live.Options{Name: "gatebus", Parallel: true})
		if err != nil {
			t.Fatal(name, err)
		}
		for range 4 {
			wantOK(t, c)
		}
		if n := c.Counts(); n != (live.Counts{}) {
			t.Errorf("%s: %+v", name, n)
		}
		_ = c.Close(t.Context())
	}
}

// Headers and interim answers are bounded.
func TestHeadsAreBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a header":       "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 128<<10),
		"many headers":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: x\r\n", 32<<10),
		"interim":        strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000),
		"no HTTP":        "ok\r\n\r\n",
		"another switch": "HTTP/1.1 101 Switching Protocols\r\n\r\n",
	} {
		c, err := live.Open(t.Context(), client(t, raw(t, func(conn net.Conn, _ message) { _, _ = io.WriteString(conn, text) })), live.Options{Name: "gatebus"})
		if err != nil {
			t.Fatal(name, err)
		}
		_, err = call(t, c)
		wantLost(t, err, true, fault.Unavailable, "")
		_ = c.Close(t.Context())
	}
}

// A server may refuse a long request before it has read it.
func TestALongRequestThatIsRefusedEarly(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Read(make([]byte, 10)); err == nil {
					_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
					_, _ = conn.Read(make([]byte, 1<<20)) // not all of it
					<-t.Context().Done()
				}
			}()
		}
	}()
	c := client(t, "http://"+l.Addr().String())
	defer c.Kill()
	text := strings.Repeat("x", 8<<20) // more than the buffers of a socket
	if _, err := c.Write(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"`+text+`"}}`)); err != nil {
		t.Fatal(err)
	}
	if f, err := c.Read(); err != nil || f.Lost == nil || f.Lost.Written || !strings.Contains(f.Lost.Cause.Error(), "413") {
		t.Errorf("%+v, %v", f.Lost, err)
	}
}

// A long request goes out whole.
func TestALongRequest(t *testing.T) {
	t.Parallel()
	f := &fake{call: func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m, fmt.Sprint(len(m.Params))) }}
	c := open(t, f)
	params := `{"name":"t","arguments":"` + strings.Repeat("x", 2<<20) + `"}`
	for range 3 {
		got, err := c.Call(t.Context(), "tools/call", redact.NewRaw([]byte(params)), live.CallOptions{})
		if err != nil || !strings.Contains(string(got.Result), fmt.Sprint(len(params))) {
			t.Errorf("%s, %v", got.Result, err)
		}
	}
}
