package httpin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHostNamesTheLoopbackOrTheBoundAddress(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:7777": true, "127.0.0.1": true, "127.0.0.9:1": true, "[::1]:7777": true, "[::1]": true,
		"[::ffff:127.0.0.1]:7777": true, "192.0.2.7:7777": true, "192.0.2.8:7777": false, "": false, "localhost.evil.example": false,
		"localhost:7777@evil.example": false, "2130706433": false, "[fe80::1]:1": false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Host = host
		local := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7777}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local)))
		if ok, reason := FromHere(r); ok != want || !ok && reason != "host" {
			t.Errorf("Host %q: %v %s", host, ok, reason)
		}
	}
}

func TestPagesOfOtherOriginsAreKeptOut(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r := httptest.NewRequest(method, "/", nil)
		r.Host = "localhost"
		r.Header.Set("Origin", "https://evil.example")
		if ok, reason := FromHere(r); ok || reason != "origin" {
			t.Errorf("%s: %v %s", method, ok, reason)
		}
	}
}

func TestWhoTheTokenStandsFor(t *testing.T) {
	t.Parallel()
	tokens := func(token string) (string, bool) { return "ana", token == "right" }
	nobody := func(string) (string, bool) { return "", false }
	guest := func(as string) (string, bool) { return "guest" + as, true }
	for _, c := range []struct {
		from      string
		headers   []string
		anonymous func(string) (string, bool)
		want      string
	}{
		{"127.0.0.1:1", []string{"Bearer right"}, nobody, "ana"},
		{"127.0.0.1:1", []string{"bearer  right"}, guest, "ana"},
		{"127.0.0.1:1", []string{"Bearer wrong"}, guest, ""},
		{"127.0.0.1:1", []string{"Basic right"}, guest, ""},
		{"127.0.0.1:1", []string{"Bearer right", "Bearer right"}, guest, ""},
		{"127.0.0.1:1", []string{""}, guest, ""},
		{"127.0.0.1:1", nil, guest, "guest"},
		{"[::1]:1", nil, guest, "guest"},
		{"192.0.2.1:1", nil, guest, ""},
		{"127.0.0.1:1", nil, nobody, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RemoteAddr = c.from
		if c.headers != nil {
			r.Header["Authorization"] = c.headers
		}
		w := httptest.NewRecorder()
		who, ok := Authenticate(w, r, tokens, c.anonymous)
		if who != c.want || ok != (c.want != "") || ok == (w.Header().Get("WWW-Authenticate") != "") {
			t.Errorf("%+v: %q %v %v", c, who, ok, w.Header())
		}
	}
}

// Only a request over the socket of the home may name the host that it acts for.
func TestWhomARequestNames(t *testing.T) {
	t.Parallel()
	tokens := func(token string) (string, bool) { return "ana", token == "right" }
	anonymous := func(as string) (string, bool) { return "as " + as, true }
	for _, c := range []struct {
		socket bool
		from   string
		as     []string
		token  string
		want   string
	}{
		{true, "@", []string{"cursor"}, "", "as cursor"},
		{true, "", nil, "", "as "},
		{true, "@", []string{""}, "", ""},
		{true, "@", []string{"cursor", "cursor"}, "", ""},
		{true, "@", []string{"cursor"}, "Bearer right", "ana"},
		{true, "@", []string{"cursor"}, "Bearer wrong", ""},
		{false, "127.0.0.1:1", []string{"cursor"}, "", ""},
		{false, "127.0.0.1:1", []string{"cursor"}, "Bearer right", "ana"},
		{false, "192.0.2.1:1", []string{"cursor"}, "", ""},
		{false, "@", []string{"cursor"}, "", ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		local := net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7777})
		if c.socket {
			local = &net.UnixAddr{Name: "/home/run/mcp.sock", Net: "unix"}
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
		r.RemoteAddr = c.from
		if c.as != nil {
			r.Header[AsHeader] = c.as
		}
		if c.token != "" {
			r.Header.Set("Authorization", c.token)
		}
		who, ok := Authenticate(httptest.NewRecorder(), r, tokens, anonymous)
		if who != c.want || ok != (c.want != "") {
			t.Errorf("%+v: %q %v", c, who, ok)
		}
	}
}
