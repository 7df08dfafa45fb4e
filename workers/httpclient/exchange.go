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
	"sync"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// pin is where a TCP connection goes: the host of a URL, at one of the addresses that
// were decided on for the request. It is dialled at no other one, whatever the host
// resolves to meanwhile (R110).
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

// roundTrip sends a request where it was decided that it goes, and where that address
// takes no connection, to the next one, which is recorded before it is dialled as the
// first one was (R96). written says whether any byte of it may have gone out when there
// is an error.
func (c *Client) roundTrip(ctx context.Context, to urlpolicy.Target, judged *events.UrlDecision, q outgoing) (response *http.Response, written bool, err error) {
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
	for i, address := range addressesOf(judged) {
		if i > 0 {
			next := *judged
			next.ConnectedAddress = address.String()
			if err := c.Record(ctx, next); err != nil {
				return nil, false, err
			}
		}
		response, written, err = c.roundTripAt(ctx, pin{to, address}, r, data.Bytes())
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
