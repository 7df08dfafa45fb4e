package httpclient

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// world is a network whose addresses are all one raw server on loopback.
type world struct {
	t     *testing.T
	roots *x509.CertPool
	sign  func(name string) (*tls.Certificate, error)
	// dns has the answers of each name, one for each look-up, the last for all after
	// it; nil is that of a name that is not there.
	dns map[string][][]string
	// dead are addresses that take no connection, other is what certificates are for
	// in place of the name that was asked for.
	dead  []string
	other string
	// answer writes the response to a request, all of its bytes.
	answer func(w io.Writer, s asked)

	mu      sync.Mutex
	looked  map[string]int
	at      map[string]netip.AddrPort // where a connection goes, by its address at this end
	dialled []string
	asked   []asked
	records []events.UrlDecision
	gone    chan struct{} // takes each connection that has ended
}

// asked is a request as it came.
type asked struct {
	at, sni string
	*http.Request
	body string
}

func newWorld(t *testing.T, answer func(io.Writer, asked)) *world {
	t.Helper()
	w := &world{t: t, answer: answer, looked: map[string]int{}, at: map[string]netip.AddrPort{}, dns: map[string][][]string{}, gone: make(chan struct{}, 100)}
	w.roots, w.sign = authority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = l.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				w.serve(conn)
				w.gone <- struct{}{}
			})
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[""] = netip.MustParseAddrPort(l.Addr().String())
	return w
}

// authority makes certificates that its roots vouch for.
func authority(t *testing.T) (*x509.CertPool, func(name string) (*tls.Certificate, error)) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return roots, func(name string) (*tls.Certificate, error) {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
	}
}

// serve answers the requests of a connection.
func (w *world) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	w.mu.Lock()
	at := w.at[conn.RemoteAddr().String()]
	w.mu.Unlock()
	var out io.Writer = conn
	sni := ""
	if first[0] == 0x16 { // a handshake of TLS
		secured := tls.Server(&peeked{conn, in}, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			sni = h.ServerName
			if w.other != "" {
				return w.sign(w.other)
			}
			return w.sign(sni)
		}})
		in, out = bufio.NewReader(secured), secured
	}
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s := asked{at.String(), sni, r, string(body)}
		w.mu.Lock()
		w.asked = append(w.asked, s)
		w.mu.Unlock()
		w.answer(out, s)
	}
}

// peeked is a connection of which some was read.
type peeked struct {
	net.Conn
	r io.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

func (w *world) resolve(_ context.Context, name string) (out []netip.Addr, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host, rooted := strings.CutSuffix(name, ".")
	if rooted != strings.Contains(host, ".") { // hosts files are not searched with a root dot
		w.t.Errorf("the resolver is asked for %q", name)
	}
	answers := w.dns[host]
	n := w.looked[host]
	w.looked[host]++
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	for _, text := range answers[min(n, len(answers)-1)] {
		out = append(out, netip.MustParseAddr(text))
	}
	return out, nil
}

func (w *world) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialled = append(w.dialled, at.String())
	if slices.Contains(w.dead, at.Addr().String()) {
		return nil, errors.New("nobody is there")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.at[""].String())
	if err == nil {
		w.at[conn.LocalAddr().String()] = at
	}
	return conn, err
}

func (w *world) record(_ context.Context, v events.UrlDecision) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, v)
	return nil
}

// client makes a client of a URL in this world.
func (w *world) client(url string, change ...func(*Options)) *Client {
	o := Options{
		URL: url, Server: "docs", Gate: Gate{Resolve: w.resolve}, Record: w.record, Dial: w.dial, TLS: &tls.Config{RootCAs: w.roots},
	}
	for _, f := range change {
		f(&o)
	}
	c := New(o)
	w.t.Cleanup(c.Kill)
	return c
}

// decided are the records as target, yes or no and reason.
func (w *world) decided() (out [][3]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.records {
		out = append(out, [3]string{v.Origin, fmt.Sprint(v.Allowed), v.Reason})
	}
	return out
}

// say writes a response.
func say(w io.Writer, status int, headers, body string) {
	fmt.Fprintf(w, "HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s", status, headers, len(body), body)
}

// plainAnswer answers what comes by POST.
func plainAnswer(w io.Writer, _ asked) {
	say(w, 200, "Content-Type: application/json\r\n", `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

const (
	aCall     = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`
	public    = "93.184.216.34"
	publicToo = "93.184.216.35"
)

// asks makes a request and returns its answer, or why there is none.
func asks(t *testing.T, c *Client) (string, error) {
	t.Helper()
	defer time.AfterFunc(20*time.Second, c.Kill).Stop() // what takes so long has no end
	if _, err := c.Write(t.Context(), []byte(aCall)); err != nil {
		return "", err
	}
	f, err := c.Read()
	if err != nil {
		return "", err
	}
	if f.Lost != nil {
		return "", f.Lost.Cause
	}
	return string(f.Result) + string(f.Error), nil
}

func wantRefused(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("the error is %v, want %s with %q", err, kind, text)
	}
}

// The rows of the corpus of redirects, without those that decision 24 excludes: the
// decisions in their order, what came of it, and the headers of each request (R97,
// R98).
func TestRedirects_R97_R98(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../testdata/urls/redirects.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if cells[0][0] == '#' || cells[0] == "userinfo" {
			continue
		}
		rows++
		t.Run(cells[0], func(t *testing.T) {
			t.Parallel()
			redirects(t, cells)
		})
	}
	if rows < 80 {
		t.Errorf("%d rows", rows)
	}
}

func redirects(t *testing.T, cells []string) {
	decode := func(cell int, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(cells[cell]), into); err != nil {
			t.Fatalf("%s: %v", cells[cell], err)
		}
	}
	var request struct {
		Method, URL string
		Headers     map[string]string
		Body        bool
	}
	var dns map[string]json.RawMessage
	var responses []map[string]json.RawMessage
	var records [][3]any
	var absent [][]string
	limit := 0
	decode(4, &request)
	decode(6, &dns)
	decode(7, &responses)
	decode(8, &limit)
	decode(9, &records)
	decode(11, &absent)

	n := 0
	w := newWorld(t, func(out io.Writer, _ asked) {
		if n == len(responses) {
			t.Errorf("a request too many")
			return
		}
		status, headers := 0, ""
		for name, value := range responses[n] {
			var one string
			many := []string{}
			switch {
			case name == "status":
				_ = json.Unmarshal(value, &status)
				continue
			case json.Unmarshal(value, &one) == nil:
				many = []string{one}
			case json.Unmarshal(value, &many) != nil:
				t.Errorf("a header %s", value)
			}
			for _, v := range many {
				headers += strings.TrimSuffix(name, "-raw") + ": " + v + "\r\n"
			}
		}
		n++
		say(out, status, headers, "")
	})
	for name, value := range dns {
		var fixed []string
		var seq struct{ Seq [][]string }
		switch {
		case json.Unmarshal(value, &fixed) == nil:
			w.dns[name] = [][]string{fixed}
		case json.Unmarshal(value, &seq) == nil:
			w.dns[name] = seq.Seq
		}
	}
	header := http.Header{}
	for name, value := range request.Headers {
		header.Set(name, value)
	}
	c := w.client(request.URL, func(o *Options) {
		o.Header = header
		if cells[3] == "private" {
			o.Gate.Policy = urlpolicy.Private()
		}
	})
	c.redirects = limit
	q := outgoing{verb: request.Method, header: header}
	if request.Body {
		q.body = []byte("{}")
	}
	result := ""
	judged, err := c.decide(t.Context())
	if err == nil {
		response, failed := c.send(t.Context(), q, judged)
		if failed == nil {
			result = fmt.Sprintf("ok:%d", response.StatusCode)
			_ = response.Body.Close()
		} else {
			err = failed.Cause
		}
	}
	want, fails := strings.CutPrefix(cells[10], "error:")
	if fails && (!fault.Is(err, fault.URLBlocked) || !strings.HasSuffix(err.Error(), want) && !strings.Contains(err.Error(), want+" ")) || !fails && result != cells[10] {
		t.Errorf("%q, %v, want %s", result, err, cells[10])
	}
	var wanted [][3]string
	for _, r := range records {
		wanted = append(wanted, [3]string{fmt.Sprint(r[0]), fmt.Sprint(r[1]), fmt.Sprint(r[2])})
	}
	if diff := cmp.Diff(wanted, w.decided()); diff != "" {
		t.Error(diff)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.asked) != len(absent) {
		t.Fatalf("%d requests came, want %d", len(w.asked), len(absent))
	}
	for i, names := range absent {
		for _, name := range names {
			if w.asked[i].Header.Get(name) != "" {
				t.Errorf("request %d has the header %s", i, name)
			}
		}
		if i == 0 && len(names) == 0 && len(request.Headers) > 0 && len(w.asked[i].Header) < len(request.Headers) {
			t.Errorf("request %d has the headers %v", i, w.asked[i].Header)
		}
	}
	for _, v := range w.records {
		if text := fmt.Sprint(v); strings.Contains(text, "/mcp") || strings.Contains(text, "pw") || strings.Contains(text, "token") {
			t.Errorf("a record has %s", text)
		}
	}
}

// reached are the addresses that requests came to, in order.
func (w *world) reached() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.asked {
		out = append(out, s.at)
	}
	return out
}

func wantSame(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// Report 50: what the name says a moment later counts for the next request and not
// for this one, and no idle connection goes round that.
func TestWhatWasDecidedOnIsDialled_R95_R110(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainAnswer)
	w.dns["rb.example"] = [][]string{{public}, {"127.0.0.1"}, {public}}
	c := w.client("https://rb.example/mcp")
	if _, err := asks(t, c); err != nil {
		t.Fatal(err)
	}
	_, err := asks(t, c)
	wantRefused(t, err, fault.URLBlocked, "private_address")
	if _, err := asks(t, c); err != nil {
		t.Errorf("the yes after a no: %v", err)
	}
	wantSame(t, "dialled", w.dialled, []string{public + ":443"})
	wantSame(t, "looked up", w.looked["rb.example"], 3)
	wantSame(t, "decided", w.decided(), [][3]string{
		{"https://rb.example", "true", "allowed"}, {"https://rb.example", "false", "private_address"}, {"https://rb.example", "true", "allowed"},
	})
}

func TestAnIdleConnectionIsForTheAddressesThatWereDecidedOn_R111(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainAnswer)
	w.dns["one.example"] = [][]string{{public}, {publicToo}, {public, publicToo}, {public}}
	c := w.client("https://one.example/mcp")
	for range 4 {
		if _, err := asks(t, c); err != nil {
			t.Fatal(err)
		}
	}
	wantSame(t, "reached", w.reached(), []string{public + ":443", publicToo + ":443", publicToo + ":443", public + ":443"})
	wantSame(t, "dialled", w.dialled, []string{public + ":443", publicToo + ":443"})
}

// A name of the hosts file is found, and what refuses an address tells it.
func TestTheDecisionOnAnAddressTellsIt_R101(t *testing.T) {
	t.Parallel()
	g := Gate{Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
		if name != "localhost" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
	}}
	for url, want := range map[string]string{"http://127.1:81/": "private_address", "http://localhost/": "private_hostname"} {
		v := g.Judge(t.Context(), url)
		if v.Reason != want || (want == "private_address") != slices.Equal(v.Addresses, []string{"127.0.0.1"}) {
			t.Errorf("%s: %+v", url, v)
		}
	}
	g.Policy = urlpolicy.Private()
	if v := g.Judge(t.Context(), "http://localhost/"); !v.Allowed || !slices.Equal(v.Addresses, []string{"127.0.0.1"}) {
		t.Errorf("localhost under the private policy: %+v", v)
	}
}

// One bad answer refuses all of them, and nobody is asked where the URL says enough.
func TestAllAnswersCount_R103(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainAnswer)
	w.dns["mixed.example"] = [][]string{{public, "10.0.0.8"}}
	w.dns["cloud.example"] = [][]string{{"169.254.169.254", public}}
	w.dns["localhost"] = [][]string{{public}}
	for url, reason := range map[string]string{
		"https://mixed.example/": "private_address", "https://cloud.example/": "metadata_address", "http://localhost/": "private_hostname",
		"http://0x7f.1/": "private_address", "https://none.example/": "dns_failure", "gopher://mixed.example/": "unsupported_scheme", "https://": "missing_hostname",
	} {
		_, err := asks(t, w.client(url))
		wantRefused(t, err, fault.URLBlocked, reason)
	}
	if len(w.dialled) > 0 || w.looked["localhost"] > 0 {
		t.Errorf("dialled %v, looked up %v", w.dialled, w.looked)
	}
	for _, v := range w.records {
		if v.Origin == "https://mixed.example" {
			wantSame(t, "addresses", v.Addresses, []string{public, "10.0.0.8"})
		}
	}
}

func TestTheNextAddressOfTheSameDecisionIsTried_R110(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainAnswer)
	w.dns["dead.example"] = [][]string{{public, publicToo}}
	w.dead = []string{public}
	c := w.client("http://dead.example:8080/mcp")
	for range 2 {
		if _, err := asks(t, c); err != nil {
			t.Fatal(err)
		}
	}
	wantSame(t, "dialled", w.dialled, []string{public + ":8080", publicToo + ":8080"})
	wantSame(t, "looked up", w.looked["dead.example"], 2)
	w.dead = append(w.dead, publicToo)
	_, err := asks(t, w.client("http://dead.example:8080/mcp"))
	wantRefused(t, err, fault.Unavailable, "cannot be reached")
	var connected [][2]string
	for _, v := range w.records {
		wantSame(t, "addresses", v.Addresses, []string{public, publicToo})
		connected = append(connected, [2]string{fmt.Sprint(v.Number), v.ConnectedAddress})
	}
	wantSame(t, "connected", connected, [][2]string{
		{"1", public}, {"1", publicToo}, {"2", publicToo}, {"1", public}, {"1", publicToo},
	})
}

// Every dial is of the address that was recorded last, and what cannot be recorded is
// not dialled: not the first address, and not the next one.
func TestEachDialIsRecordedBefore_R96_R110(t *testing.T) {
	t.Parallel()
	for allowed := range 4 {
		w := newWorld(t, plainAnswer)
		w.dns["dead.example"] = [][]string{{public, publicToo, "93.184.216.36"}}
		w.dead = []string{public, publicToo, "93.184.216.36"}
		var last string
		c := w.client("http://dead.example/mcp", func(o *Options) {
			o.Record = func(ctx context.Context, v events.UrlDecision) error {
				if len(w.records) == allowed {
					return fault.New("test", fault.AuditUnavailable, redact.Static("the log is full"))
				}
				last = v.ConnectedAddress
				return w.record(ctx, v)
			}
			o.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
				if at.Addr().String() != last {
					t.Errorf("%s is dialled after %s was recorded", at, last)
				}
				return w.dial(ctx, at)
			}
		})
		_, err := asks(t, c)
		if want := fault.AuditUnavailable; allowed < 3 && !fault.Is(err, want) {
			t.Errorf("%d records: %v, want %s", allowed, err, want)
		}
		if allowed == 3 && !fault.Is(err, fault.Unavailable) {
			t.Errorf("all are recorded: %v", err)
		}
		if len(w.dialled) != allowed || len(w.records) != allowed {
			t.Errorf("dialled %v after %d records", w.dialled, len(w.records))
		}
	}
}

// The name stays in Host, SNI and the certificate, though an address is dialled.
func TestNamesStayThoughAddressesAreDialled_R99_R110(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainAnswer)
	w.dns["one.example"] = [][]string{{public}}
	if _, err := asks(t, w.client("https://ONE.example.:8443/mcp")); err != nil {
		t.Fatal(err)
	}
	if s := w.asked[0]; s.sni != "one.example" || s.Host != "one.example:8443" || s.at != public+":8443" || s.URL.Path != "/mcp" {
		t.Errorf("the request was %s to %s, host %s, SNI %s", s.URL, s.at, s.Host, s.sni)
	}
	w.other = "other.example"
	_, err := asks(t, w.client("https://one.example/mcp"))
	wantRefused(t, err, fault.Unavailable, "cannot be reached")
	wantSame(t, "reached", w.reached(), []string{public + ":8443"})
}

// R112: a proxy of the environment is none of ours.
func TestNoProxyIsUsed_R112(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, "http://127.0.0.1:3128")
	}
	w := newWorld(t, plainAnswer)
	w.dns["one.example"] = [][]string{{public}}
	for _, url := range []string{"http://one.example/mcp", "https://one.example/mcp"} {
		if _, err := asks(t, w.client(url)); err != nil {
			t.Error(err)
		}
	}
	wantSame(t, "dialled", w.dialled, []string{public + ":80", public + ":443"})
	for _, s := range w.asked {
		if s.Method != http.MethodPost || s.URL.IsAbs() {
			t.Errorf("a request %s %s", s.Method, s.URL)
		}
	}
}

// A call that is sent elsewhere goes on there once, with its own decision in the
// log before each hop, and where its caller recorded the first one, that is used.
func TestACallIsDecidedOnByWhoRecordsItsStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(out io.Writer, s asked) {
		if s.URL.Path == "/mcp" {
			say(out, 308, "Location: /mcp/\r\n", "moved")
			return
		}
		plainAnswer(out, s)
	})
	w.dns["one.example"] = [][]string{{public}}
	c := w.client("http://one.example/mcp", func(o *Options) { o.Header = http.Header{"X-Key": {"k"}} })
	judged := c.Judge(t.Context())
	if _, err := c.WriteJudged(t.Context(), []byte(aCall), judged); err != nil {
		t.Fatal(err)
	}
	if f, err := c.Read(); err != nil || f.Lost != nil {
		t.Fatalf("%+v, %v", f, err)
	}
	if len(w.records) != 1 || judged.Number != 1 || w.records[0].Number != 2 || w.records[0].Hop != 1 || !w.records[0].Allowed {
		t.Errorf("%+v, then %+v", judged, w.records)
	}
	for _, s := range w.asked {
		if s.body != aCall || s.Header.Get("X-Key") != "k" {
			t.Errorf("a request %q with %v", s.body, s.Header)
		}
	}
	if len(w.asked) != 2 || len(w.dialled) != 1 {
		t.Errorf("%d requests, dialled %v", len(w.asked), w.dialled)
	}
	no := *judged
	no.Allowed, no.Reason = false, "private_address"
	_, err := c.WriteJudged(t.Context(), []byte(aCall), &no)
	wantRefused(t, err, fault.URLBlocked, "private_address")
	wantSame(t, "asked", len(w.asked), 2)
}

// R96: the hop that cannot be recorded is not made.
func TestAHopThatIsNotRecordedIsNotMade_R96(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(out io.Writer, s asked) { say(out, 307, "Location: /next\r\n", "") })
	w.dns["one.example"] = [][]string{{public}}
	c := w.client("http://one.example/mcp", func(o *Options) {
		o.Record = func(ctx context.Context, v events.UrlDecision) error {
			if v.Hop > 0 {
				return fault.New("test", fault.AuditUnavailable, redact.Static("no"))
			}
			return nil
		}
	})
	_, err := asks(t, c)
	wantRefused(t, err, fault.AuditUnavailable, "no")
	wantSame(t, "asked", len(w.asked), 1)
}

// What has no end is cut, and the server sees that.
func TestAnswersWithoutAnEndAreCut(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	forever := func(out io.Writer, first, more string) {
		_, err := io.WriteString(out, first)
		for err == nil {
			_, err = io.WriteString(out, more)
		}
	}
	const stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	blanks := gzipped(bytes.Repeat([]byte("\n"), 64<<20))
	for name, test := range map[string]struct {
		answer func(io.Writer)
		kind   fault.Kind
	}{
		"headers":         {func(out io.Writer) { forever(out, "HTTP/1.1 200 OK\r\n", "X: y\r\n") }, fault.Unavailable},
		"a header":        {func(out io.Writer) { forever(out, "HTTP/1.1 200 OK\r\nX: ", "yyyyyyyy") }, fault.Unavailable},
		"early responses": {func(out io.Writer) { forever(out, "", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n") }, fault.Unavailable},
		"a line":          {func(out io.Writer) { forever(out, stream+"\r\n", "data: ") }, fault.FrameTooLarge},
		"comments":        {func(out io.Writer) { forever(out, stream+"\r\n", ": still here\n\n") }, fault.FrameTooLarge},
		"blank lines in gzip": {func(out io.Writer) {
			fmt.Fprintf(out, stream+"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(blanks), blanks)
		}, fault.FrameTooLarge},
		"a body": {func(out io.Writer) {
			forever(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", "        ")
		}, fault.FrameTooLarge},
		"nothing in gzip": {func(out io.Writer) {
			forever(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n", string(gzipped(nil)))
		}, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(out io.Writer, _ asked) { test.answer(out) })
			w.dns["one.example"] = [][]string{{public}}
			_, err := asks(t, w.client("http://one.example/mcp", func(o *Options) { o.MaxFrame = limit }))
			if !fault.Is(err, test.kind) {
				t.Errorf("the error is %v, want %s", err, test.kind)
			}
			<-w.gone
		})
	}
}

// A server that is slow in any part of its answer has as long as the call has.
func TestASlowAnswerIsCutWithItsCall_R114(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"headers": "HTTP/1.1 200 OK\r\n", "a body": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n",
		"a stream": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := make(chan struct{})
			w := newWorld(t, func(out io.Writer, _ asked) {
				_, err := io.WriteString(out, first)
				close(begun)
				for err == nil {
					_, err = io.WriteString(out, "x")
					time.Sleep(time.Millisecond) // that is what it is
				}
			})
			w.dns["one.example"] = [][]string{{public}}
			c := w.client("http://one.example/mcp")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if _, err := c.Write(ctx, []byte(aCall)); err != nil {
				t.Fatal(err)
			}
			<-begun
			cancel()
			<-w.gone
		})
	}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}
