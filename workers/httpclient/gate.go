package httpclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"code.dny.dev/ssrf"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

const (
	// resolveTime bounds the answer of the resolver, dialTime a TCP connection, and a
	// handshake of TLS.
	resolveTime = 5 * time.Second
	dialTime    = 10 * time.Second
)

// Gate decides where requests may go. It has no state: no decision is remembered for
// the next request.
type Gate struct {
	Policy urlpolicy.Policy
	// Resolve asks for all addresses of a name (urlpolicy.Target.Question); nil is
	// Lookup.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
}

var resolver = &net.Resolver{PreferGo: true, StrictErrors: true}

// Lookup asks for all addresses of a name and gives no part of an answer: without
// those of one family, the addresses of the other are not all there are (R103).
func Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return resolver.LookupNetIP(ctx, "ip", name)
}

// Judge decides whether a server may be contacted at a URL, and at which addresses,
// with a fresh answer of the resolver (R95). Nothing of the URL is in the decision but
// its origin (R113); Server, Phase, Number and Hop are left to the caller. ctx bounds
// it, and so do five seconds.
func (g Gate) Judge(ctx context.Context, url string) events.UrlDecision {
	target, reason := urlpolicy.Parse(url)
	return g.judge(ctx, target, reason)
}

// judge decides on a target.
func (g Gate) judge(ctx context.Context, target urlpolicy.Target, reason urlpolicy.Reason) events.UrlDecision {
	v := events.UrlDecision{Origin: target.Origin(), Policy: g.Policy.ID()}
	var addresses []netip.Addr
	if reason == urlpolicy.Allowed {
		reason = g.Policy.Target(target)
	}
	if reason == urlpolicy.Allowed && !target.Addr.IsValid() {
		addresses, reason = g.resolve(ctx, target.Question())
	}
	if reason == urlpolicy.Allowed || target.Addr.IsValid() { // an address is told of a no too (R101)
		addresses, reason = g.Policy.Addresses(target, addresses)
		for _, a := range addresses {
			v.Addresses = append(v.Addresses, a.String())
		}
	}
	v.Allowed, v.Reason = reason == urlpolicy.Allowed, string(reason)
	return v
}

// resolve asks for the addresses of a name.
func (g Gate) resolve(ctx context.Context, name string) ([]netip.Addr, urlpolicy.Reason) {
	ask := g.Resolve
	if ask == nil {
		ask = Lookup
	}
	bounded, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	addresses, err := ask(bounded, name)
	switch e, ok := errors.AsType[*net.DNSError](err); {
	case err == nil:
		return addresses, urlpolicy.Allowed
	case ok && e.IsTimeout, bounded.Err() == context.DeadlineExceeded:
		return nil, urlpolicy.DNSTimeout
	}
	return nil, urlpolicy.DNSFailure
}

// Judge decides on the next request, which goes to the URL that was declared. Who
// asks for the decision records it, and hands it to WriteJudged.
func (c *Client) Judge(ctx context.Context) *events.UrlDecision {
	return c.numbered(c.Gate.judge(ctx, c.target, c.reason), 0)
}

// numbered makes a decision one on a request of this connection. It goes to the address
// that was good the last time, where that is decided on, else to the first one.
func (c *Client) numbered(v events.UrlDecision, hop uint32) *events.UrlDecision {
	v.Server, v.Phase, v.Number, v.Hop = c.Server, urlpolicy.PhaseRequest, c.number.Add(1), hop
	if v.Allowed && len(v.Addresses) > 0 {
		v.ConnectedAddress = v.Addresses[0]
		c.mu.Lock()
		good := c.good.String()
		c.mu.Unlock()
		if slices.Contains(v.Addresses, good) {
			v.ConnectedAddress = good
		}
	}
	return &v
}

// decide decides on the next request and records that. An error is that of Record, or
// a fault that says why the request may not go out.
func (c *Client) decide(ctx context.Context) (*events.UrlDecision, error) {
	v := c.Judge(ctx)
	if err := ctx.Err(); err != nil { // what was decided may be due to that
		return nil, err
	}
	if err := c.Record(ctx, *v); err != nil {
		return nil, err
	}
	if !v.Allowed {
		return nil, notContacted(v)
	}
	return v, nil
}

func notContacted(v *events.UrlDecision) error {
	return fault.New("httpclient", fault.URLBlocked, redact.Name("the URL may not be contacted: "+v.Reason))
}

// addressesOf are the addresses of a decision, the one first that it sends the request
// to: what is dialled is what is recorded.
func addressesOf(v *events.UrlDecision) []netip.Addr {
	out := make([]netip.Addr, 0, len(v.Addresses))
	for _, text := range v.Addresses {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil: // it is one of its String
		case text == v.ConnectedAddress:
			out = slices.Insert(out, 0, a)
		default:
			out = append(out, a)
		}
	}
	return out
}

// send sends a request that was decided on, and follows the server to where that
// sends it: each hop is decided on and recorded as the first one was, and refused
// where the rules of redirects say so (R97, R98). What is ours for the declared origin
// goes to no other one, nor back to it once the chain has left it.
func (c *Client) send(ctx context.Context, q outgoing, judged *events.UrlDecision) (*http.Response, *failure) {
	hop := urlpolicy.Redirect{Chain: []urlpolicy.Target{c.target}, Method: q.verb, Body: q.body != nil, Limit: c.redirects}
	to := c.target
	for {
		q.url = to.URL()
		response, written, err := c.roundTrip(ctx, to, judged, q)
		if err != nil {
			return nil, unanswered(written, err)
		}
		if hop.Status = response.StatusCode; !urlpolicy.Followed(hop.Status) {
			return response, nil
		}
		locations := response.Header.Values("Location")
		_ = response.Body.Close()
		var reason urlpolicy.Reason
		to, reason = hop.Target(locations)
		if reason == urlpolicy.RedirectMissingLocation {
			return nil, sentAway(hop.Status, "to no place: "+string(reason))
		}
		v := c.Gate.judge(ctx, to, reason)
		if v.Allowed {
			reason = hop.Rule(to)
			v.Allowed, v.Reason = reason == urlpolicy.Allowed, string(reason)
		}
		if ctx.Err() != nil {
			return nil, sentAway(hop.Status, "and there was no time to follow")
		}
		judged = c.numbered(v, uint32(len(hop.Chain)))
		if err := c.Record(ctx, *judged); err != nil {
			return nil, unanswered(false, err)
		}
		if !v.Allowed {
			return nil, sentAway(hop.Status, "where it may not go: "+v.Reason)
		}
		if !hop.KeepsSecrets(to) {
			q.header = anywhere(q.header)
		}
		hop.Chain = append(hop.Chain, to)
	}
}

// anywhere are the headers that a request may carry to any origin.
func anywhere(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Accept", "Accept-Encoding", "Mcp-Protocol-Version", "User-Agent"} {
		if values := h.Values(name); len(values) > 0 {
			out[name] = values
		}
	}
	return out
}

// sentAway is the failure of a request that a server did not begin, but sent
// elsewhere.
func sentAway(status int, where string) *failure {
	f := refused(fault.URLBlocked, redact.Name("the server sends the request "+where+" (HTTP status "+strconv.Itoa(status)+")"))
	f.status = status
	return f
}

// others is a table of special addresses that is not ours.
var others = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV6Prefixes(ssrf.IPv6NAT64Prefix))

// errNotValidated says that an address is not one that was decided on.
var errNotValidated = fault.New("httpclient.dial", fault.URLBlocked,
	redact.Static("the address may not be contacted: address_not_validated"))

// validated is an error for an address that may not be dialled, whatever was decided
// before: a last look, in case a decision is wrong, or our table.
func (c *Client) validated(to pin) error {
	_, reason := c.Gate.Policy.Addresses(to.Target, []netip.Addr{to.address})
	if reason != urlpolicy.Allowed || to.Addr.IsValid() && to.Addr != to.address {
		return errNotValidated
	}
	_, ours := urlpolicy.Policy{}.Addresses(urlpolicy.Target{Addr: to.address}, nil)
	return doubted(to.address, ours)
}

// doubted is an error for an address that is public by our table and not by another
// one. What is not public is where the operator trusts it to be.
func doubted(a netip.Addr, ours urlpolicy.Reason) error {
	if ours == urlpolicy.Allowed && others.SafeAddr(a) != nil {
		return errNotValidated
	}
	return nil
}

// dial dials where nothing else is said.
func dial(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	if err := reached(conn, address); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// reached is an error for a connection whose other end is not the address.
func reached(conn net.Conn, address netip.AddrPort) error {
	if at, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || at.AddrPort().Addr().Unmap() != address.Addr() {
		return errNotValidated
	}
	return nil
}
