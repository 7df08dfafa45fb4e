package connector

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/httpclient"
)

// Trusted is a range of addresses, or a host, that the operator trusts (R108).
type Trusted struct {
	Prefix netip.Prefix // valid for a range
	Host   string       // else a name, in lower case
	Port   uint16       // 0 is any
}

const (
	resolveTime  = 5 * time.Second
	maxAddresses = 32
	dialTime     = 10 * time.Second
)

// The words of a decision (reasons.tsv of the URL policy).
const (
	allowed         = "allowed"
	notValidated    = "address_not_validated"
	invalidURL      = "invalid_url"
	privateAddress  = "private_address"
	metadataAddress = "metadata_address"
	nonRoutable     = "non_routable_address"
)

var (
	plainHost = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	// numberHost is what some resolvers take for an address in an old spelling.
	numberHost = regexp.MustCompile(`(^|\.)([0-9]+|0x[0-9a-f]*)$`)
	// metadataHosts are asked of no resolver (R106).
	metadataHosts = []string{"metadata.google.internal", "metadata.goog", "metadata", "instance-data"}
)

// judge decides whether the URL of a server may be contacted, and where: only what
// the operator trusts is, until there is a policy for other places. Each address
// of a name must pass (R103). Nothing of the URL is in the decision but its origin
// (R113).
func (c *Connector) judge(ctx context.Context, d cores.Server) (events.UrlDecision, []netip.Addr) {
	v := events.UrlDecision{Server: d.ServerID, Phase: "connect", Policy: "default"}
	if len(c.Trusted) > 0 {
		v.Policy = "private"
	}
	no := func(reason string) (events.UrlDecision, []netip.Addr) {
		v.Reason = reason
		return v, nil
	}
	u, err := url.Parse(d.URL.Reveal())
	if err != nil || u.Hostname() == "" || u.User != nil {
		return no(invalidURL)
	}
	host, port, ok := place(u)
	literal, err := netip.ParseAddr(host)
	isAddress := err == nil
	if !ok || !isAddress && (!plainHost.MatchString(host) || numberHost.MatchString(host)) {
		return no(invalidURL)
	}
	v.Origin = u.Scheme + "://" + strings.ToLower(u.Host)
	named, ranges := false, []netip.Prefix(nil)
	for _, t := range c.Trusted {
		switch {
		case t.Port != 0 && t.Port != port:
		case t.Prefix.IsValid():
			ranges = append(ranges, t.Prefix)
		default:
			named = named || t.Host == host
		}
	}
	var addresses []netip.Addr
	switch {
	case isAddress:
		addresses = []netip.Addr{literal}
	case slices.Contains(metadataHosts, host):
		return no("metadata_hostname")
	case !named && len(ranges) == 0 && (host == "localhost" || strings.HasSuffix(host, ".localhost")):
		return no("private_hostname")
	case !named && len(ranges) == 0:
		return no(notValidated) // whatever the answer, it could not pass
	default:
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		if addresses, err = c.Resolve(ctx, host); err != nil {
			if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsTimeout || ctx.Err() != nil {
				return no("dns_timeout")
			}
			return no("dns_failure")
		}
	}
	var checked []netip.Addr
	for _, a := range addresses {
		if a = a.Unmap().WithZone(""); !slices.Contains(checked, a) {
			checked = append(checked, a)
			v.Addresses = append(v.Addresses, a.String())
		}
	}
	switch {
	case len(checked) == 0:
		return no("dns_no_addresses")
	case len(checked) > maxAddresses:
		v.Addresses = nil
		return no("dns_too_many_addresses")
	}
	for _, a := range checked {
		trusted := named || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
		switch class := classOf(a); {
		case class == metadataAddress, class == nonRoutable: // whoever trusts it (R109)
			return no(class)
		case trusted:
		case class != "":
			return no(class)
		default:
			return no(notValidated)
		}
	}
	v.Allowed, v.Reason = true, allowed
	return v, checked
}

// place is host and port of a URL, the host in lower case.
func place(u *url.URL) (host string, port uint16, ok bool) {
	text := u.Port()
	switch {
	case text != "":
	case u.Scheme == "https":
		text = "443"
	case u.Scheme == "http":
		text = "80"
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), uint16(n), err == nil && n > 0
}

// classOf is why an address is refused unless it is trusted, empty for a public
// one.
func classOf(a netip.Addr) string {
	for _, class := range addressClasses {
		if class.prefix.Contains(a) {
			return class.reason
		}
	}
	return ""
}

// addressClasses are the blocks that are told apart (R102, R105), the first that
// fits counts.
var addressClasses = func() (out []struct {
	prefix netip.Prefix
	reason string
}) {
	for _, c := range [][2]string{
		{metadataAddress, "169.254.0.0/16 fe80::/10 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32 fd00:ec2::254/128 fd20:ce::254/128"},
		{privateAddress, "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7"},
		{nonRoutable, "0.0.0.0/8 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 " +
			"::/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 fec0::/10 ff00::/8"},
	} {
		for _, prefix := range strings.Fields(c[1]) {
			out = append(out, struct {
				prefix netip.Prefix
				reason string
			}{netip.MustParsePrefix(prefix), c[0]})
		}
	}
	return out
}()

// target is a server behind HTTP of one opening: what may be dialled, and what is
// recorded of each request.
type target struct {
	*Connector
	ws, id   string
	state    connection.State
	declared cores.Server
	url      *url.URL
	port     uint16
	number   atomic.Uint32

	mu sync.Mutex
	at events.UrlDecision // the last yes, with the address that is connected
}

// dial judges the URL of a server once more, for the time since the consent.
// Nothing is contacted before the first request.
func (c *Connector) dial(ctx context.Context, ws, id string, s connection.State, d cores.Server) (*target, error) {
	t := &target{Connector: c, ws: ws, id: id, state: s, declared: d}
	if _, err := t.check(ctx); err != nil {
		return nil, err
	}
	t.url, _ = url.Parse(d.URL.Reveal()) // judge did
	t.url.Fragment, t.url.RawFragment = "", ""
	_, t.port, _ = place(t.url)
	return t, nil
}

// check judges the URL with a fresh answer of the resolver. A no is recorded.
func (t *target) check(ctx context.Context) ([]netip.Addr, error) {
	v, addresses := t.judge(ctx, t.declared)
	v.Phase = "request"
	if v.Allowed {
		t.mu.Lock()
		defer t.mu.Unlock()
		v.ConnectedAddress, t.at = t.at.ConnectedAddress, v
		return addresses, nil
	}
	v.Number = t.number.Add(1)
	if err := t.record(ctx, v); err != nil {
		return nil, err
	}
	return nil, fault.New("connector.url", fault.URLBlocked, redact.Name("the URL may not be contacted: "+v.Reason))
}

// connect makes a TCP connection to an address that was checked for it (R110).
func (t *target) connect(ctx context.Context) (conn net.Conn, err error) {
	addresses, err := t.check(ctx)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTime}
	for _, a := range addresses {
		if conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, t.port).String()); err == nil {
			t.mu.Lock()
			t.at.ConnectedAddress = a.String()
			t.mu.Unlock()
			return conn, nil
		}
	}
	return nil, fault.Wrap("connector.dial", fault.Unavailable, redact.Static("the server cannot be reached"), err)
}

// decision is that on the next request: it goes where the last check allowed.
func (t *target) decision() *events.UrlDecision {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.at
	v.Number = t.number.Add(1)
	return &v
}

// toolCall is the method of which the decision is in the commit that starts the
// call.
const toolCall = "tools/call"

// before records the decision on a request before it is sent (R96).
func (t *target) before(ctx context.Context, method string) error {
	if method == toolCall {
		return nil
	}
	return t.record(ctx, *t.decision())
}

func (t *target) record(ctx context.Context, v events.UrlDecision) error {
	_, err := t.Model.Connections.Dispatch(ctx, t.ws, t.id, t.meta(t.id, t.state), connection.Judged{URL: v})
	if err != nil && ctx.Err() == nil {
		return fault.Wrap("connector.url", fault.AuditUnavailable, redact.Static("the decision on a request could not be recorded, so it was not sent"), err)
	}
	return err
}

// client makes the transport of the connection. The values of headers leave the
// redactor's care here and nowhere else.
func (t *target) client(headers map[string]redact.Raw[string]) *httpclient.Client {
	h := http.Header{"User-Agent": {"gatebus/" + t.Version}}
	for name, v := range headers {
		h.Set(name, v.Reveal())
	}
	return httpclient.New(httpclient.Options{URL: t.url, Header: h, Dial: t.connect, Before: t.before, MaxFrame: t.MaxFrame})
}
