package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Where everything is in the network of this show.
const (
	resolver = "127.0.0.53:53"
	proxy    = "127.0.0.1:3128"
)

var (
	// trapped are the places that nobody may come to.
	trapped = []string{proxy, "127.0.0.1:443", "127.0.0.1:80", "10.0.0.8:443", "10.0.0.8:80", "169.254.169.254:80"}
	// addresses are those of the servers.
	addresses = []string{"93.184.216.34", "93.184.216.35", "93.184.216.36", "93.184.216.37", "93.184.216.38", "93.184.216.39"}
)

// network is all that can be reached.
type network struct {
	listeners []io.Closer
	sign      func(name string) (*tls.Certificate, error)

	mu     sync.Mutex
	names  map[string][]string // addresses by host
	looked map[string]int      // look-ups by host
	traps  map[string]int      // connections by trap
	came   map[string]int      // requests by origin
	recent []request           // since the last forget
}

// request is one that came.
type request struct {
	*http.Request
	at, sni string
	message
}

// message is what a request says.
type message struct {
	ID     json.RawMessage
	Method string
	Params struct{ Name string }
}

// secrets are the headers that only the declared origin may see.
var secrets = []string{"Authorization", "X-Api-Key", "Cookie", "Mcp-Session-Id"}

func (q request) String() string {
	has := "no credentials"
	for _, name := range secrets[:3] {
		if strings.Contains(q.Header.Get(name), token) {
			has = "credentials"
		}
	}
	return fmt.Sprintf("%-6s %-28s at %s, Host %s, SNI %q, %s", q.Request.Method, q.URL.Path+" "+q.message.Method, q.at, q.Host, q.sni, has)
}

// newNetwork makes the network, and writes what certificates are to be trusted.
func newNetwork(roots string) (*network, error) {
	n := &network{names: map[string][]string{}, looked: map[string]int{}, traps: map[string]int{}, came: map[string]int{}}
	var err error
	if n.sign, err = authority(roots); err != nil {
		return nil, err
	}
	dns, err := net.ListenPacket("udp", resolver)
	if err != nil {
		return nil, err
	}
	n.listeners = append(n.listeners, dns)
	go n.resolve(dns)
	for _, at := range trapped {
		n.traps[at] = 0
		if err := n.listen(at, func(conn net.Conn) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.traps[at]++
			_ = conn.Close()
		}); err != nil {
			return nil, err
		}
	}
	for _, address := range addresses {
		for port, secure := range map[string]bool{"80": false, "443": true} {
			if err := n.listen(address+":"+port, func(conn net.Conn) { n.serve(conn, secure) }); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

func (n *network) listen(at string, serve func(net.Conn)) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	n.listeners = append(n.listeners, l)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return nil
}

func (n *network) close() {
	for _, l := range n.listeners {
		_ = l.Close()
	}
}

// name gives a host other addresses.
func (n *network) name(host string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[host] = addresses
}

// forget forgets the requests that came.
func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recent = nil
}

// requests are those that came since forget.
func (n *network) requests() []request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.recent)
}

// totals are the requests by origin, the look-ups by host and the connections by trap.
func (n *network) totals() (came, looked, traps map[string]int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.came), maps.Clone(n.looked), maps.Clone(n.traps)
}

// hostOf is the name in an origin.
func hostOf(origin string) (string, bool) {
	u, err := url.Parse(origin)
	return strings.ToLower(u.Hostname()), err == nil && u.Hostname() != ""
}

// authority makes certificates, and writes the root that vouches for them.
func authority(roots string) (func(name string) (*tls.Certificate, error), error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a show"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return func(name string) (*tls.Certificate, error) {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: root.NotBefore, NotAfter: root.NotAfter}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
	}, os.WriteFile(roots, text, 0o600)
}

// serve answers the requests of a connection.
func (n *network) serve(conn net.Conn, secure bool) {
	defer conn.Close()
	var all io.ReadWriter = conn
	sni, scheme := "", "http"
	if secure {
		scheme = "https"
		all = tls.Server(conn, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			sni = h.ServerName
			if sni == "stolen.example" {
				return n.sign("other.example")
			}
			return n.sign(sni)
		}})
	}
	for in := bufio.NewReader(all); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		at, _, _ := net.SplitHostPort(conn.LocalAddr().String())
		q := request{Request: r, at: at, sni: sni}
		_ = json.Unmarshal(body, &q.message) // a GET says nothing
		n.mu.Lock()
		n.came[scheme+"://"+r.Host]++
		n.recent = append(n.recent, q)
		n.mu.Unlock()
		if answer(all, q) != nil {
			return
		}
	}
}

// resolve answers questions of DNS: names have their addresses of IPv4, for this very
// moment, and nothing else is there.
func (n *network) resolve(dns net.PacketConn) {
	in := make([]byte, 1500)
	for {
		size, from, err := dns.ReadFrom(in)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if out := n.lookUp(in[:size]); err == nil && out != nil {
			_, _ = dns.WriteTo(out, from) // who is not answered asks again
		}
	}
}

// lookUp is the response to one question (RFC 1035 4.1); nil for what is none.
func (n *network) lookUp(q []byte) []byte {
	const header, typeA = 12, 1
	var labels []string
	end := header
	for end < len(q) && q[end] != 0 {
		next := end + 1 + int(q[end])
		if next >= len(q) {
			return nil
		}
		labels = append(labels, string(q[end+1:next]))
		end = next
	}
	if end += 5; end > len(q) {
		return nil
	}
	host := strings.ToLower(strings.Join(labels, "."))
	n.mu.Lock()
	defer n.mu.Unlock()
	addresses, there := n.names[host]
	if binary.BigEndian.Uint16(q[end-4:]) != typeA {
		addresses = nil
	} else {
		n.looked[host]++
	}
	out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, byte(len(addresses)), 0, 0, 0, 0}, q[header:end]...)
	if !there {
		out[3] |= 3 // there is no such name
	}
	for _, a := range addresses {
		out = append(out, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
		out = append(out, net.ParseIP(a).To4()...)
	}
	return out
}
