package httpclient

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// A decision that is wrong, wherever it comes from, is not dialled (rows dial-* of the
// table dns).
func TestAWrongDecisionIsNotDialled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url, address string
		policy       urlpolicy.Policy
	}{
		{"http://one.example/", "10.0.0.8", urlpolicy.Policy{}},
		{"http://one.example/", "127.0.0.1", urlpolicy.Policy{}},
		{"http://one.example/", "169.254.169.254", urlpolicy.Private()},
		{"http://one.example/", "fd00:ec2::254", urlpolicy.Private()},
		{"http://one.example:81/", "10.0.0.8", urlpolicy.Policy{Trusted: []urlpolicy.Trusted{{Host: "one.example", Port: 80}}}},
		{"http://" + public + "/", publicToo, urlpolicy.Policy{}},
	} {
		w := newWorld(t, plainAnswer)
		c := w.client(test.url, func(o *Options) { o.Gate.Policy = test.policy })
		wrong := &events.UrlDecision{Allowed: true, Reason: "allowed", Addresses: []string{test.address}}
		if _, err := c.WriteJudged(t.Context(), []byte(aCall), wrong); err != nil {
			t.Fatal(err)
		}
		f, err := c.Read()
		if err != nil || f.Lost == nil || f.Lost.Written {
			t.Fatalf("%s at %s: %+v, %v", test.url, test.address, f, err)
		}
		wantRefused(t, f.Lost.Cause, fault.URLBlocked, "address_not_validated")
		if len(w.dialled) > 0 {
			t.Errorf("%s: dialled %v", test.url, w.dialled)
		}
	}
}

// Were our table wrong, another one would say so.
func TestAnotherTableDoubtsOurs(t *testing.T) {
	t.Parallel()
	for _, address := range strings.Fields(`127.0.0.1 10.0.0.8 169.254.169.254 100.64.0.1 172.16.0.1 192.168.0.1 0.0.0.0 192.0.2.1 198.18.0.1
		203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255 ::1 :: fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 2001:db8::1 2002:7f00:1:: 2001::1`) {
		a := netip.MustParseAddr(address)
		if doubted(a, urlpolicy.Allowed) == nil {
			t.Errorf("%s is public, and nobody doubts it", a)
		}
		if doubted(a, urlpolicy.PrivateAddress) != nil {
			t.Errorf("%s is doubted where the operator trusts it", a)
		}
	}
	for _, address := range []string{public, publicToo, "2606:4700::1111"} {
		if doubted(netip.MustParseAddr(address), urlpolicy.Allowed) != nil {
			t.Errorf("%s is doubted", address)
		}
	}
}

// The other end of a connection is compared too (row dial-control of the table dns).
func TestTheOtherEndIsCompared(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	conn, err := dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := reached(conn, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.8"), at.Port())); !fault.Is(err, fault.URLBlocked) {
		t.Errorf("a connection to another address: %v", err)
	}
}
