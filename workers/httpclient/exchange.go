package httpclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	"github.com/gatebus/gatebus/events/urlpolicy"
)

// route is where one request goes: the host of its URL, and the addresses that were
// decided on for this request. It is dialled at no other one, whatever the host
// resolves to meanwhile (R110).
type route struct {
	urlpolicy.Target
	addresses []netip.Addr
}

// pin is the address of a route that a TCP connection goes to.
type pin struct {
	urlpolicy.Target
	address netip.Addr
}

// name tells TCP connections apart that one request may use and another may not: an
// idle one is used again only for the same scheme, host, port and address (R111).
func (p pin) name() string { return p.Origin() + " " + p.address.String() }

// errDial says that no TCP connection was made.
var errDial = errors.New("httpclient: no connection")

// reach makes a TCP connection to the address that was decided on.
func (c *Client) reach(ctx context.Context, to pin) (net.Conn, error) {
	if err := c.validated(to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := c.Dial(ctx, netip.AddrPortFrom(to.address, to.Port))
	if err != nil {
		return nil, errors.Join(errDial, err)
	}
	return conn, nil
}

// secure makes a connection one of TLS. Its certificate is that of the host.
func (c *Client) secure(ctx context.Context, conn net.Conn, to pin) (net.Conn, error) {
	config := c.TLS.Clone() // nil of nil
	if config == nil {
		config = new(tls.Config)
	}
	config.ServerName = to.Host
	secured := tls.Client(conn, config)
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return secured, secured.HandshakeContext(ctx)
}

// outgoing is a request but for its place.
type outgoing struct {
	verb   string
	url    *url.URL
	header http.Header
	body   []byte // nil: none
}

// request makes the request.
func (q outgoing) request(ctx context.Context) *http.Request {
	r := (&http.Request{
		Method: q.verb, URL: q.url, Host: q.url.Host, Header: q.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if q.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
	}
	return r
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// roundTrip sends a request on its route: to the address that was good the last time,
// and where that takes no connection, to the next one. written says whether any byte
// of it may have gone out when there is an error.
func (c *Client) roundTrip(ctx context.Context, to route, q outgoing) (response *http.Response, written bool, err error) {
	data := buffers.Get().(*bytes.Buffer)
	data.Reset()
	defer func() {
		if data.Cap() <= together { // a longer one may still be written
			buffers.Put(data)
		}
	}()
	r := q.request(ctx)
	if err := r.Write(data); err != nil {
		return nil, false, err
	}
	err = errDial
	for _, address := range c.inOrder(to.addresses) {
		response, written, err = c.roundTripAt(ctx, pin{to.Target, address}, r, data.Bytes())
		if err == nil {
			c.mu.Lock()
			c.good = address
			c.mu.Unlock()
		}
		if !errors.Is(err, errDial) || ctx.Err() != nil {
			break
		}
	}
	return response, written, err
}

// inOrder are addresses, that of the last connection first.
func (c *Client) inOrder(addresses []netip.Addr) []netip.Addr {
	c.mu.Lock()
	good := c.good
	c.mu.Unlock()
	if at := slices.Index(addresses, good); at > 0 {
		return append([]netip.Addr{good}, slices.Delete(slices.Clone(addresses), at, at+1)...)
	}
	return addresses
}
