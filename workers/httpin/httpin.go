// Package httpin is what the HTTP doors of Gatebus do alike: who is let in, how a
// body is read and how an answer is written in limited time. It is a tool of the
// workers that have a door.
package httpin

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	// upload is how long a body may take.
	upload = time.Minute
	// Patience is how long a client may take to read an answer, beside the time for
	// its size.
	Patience = 10 * time.Second
)

// AsHeader names the host that a request over the socket of the home acts for. Who
// may open the socket may read the credentials of the operator "local" beside it,
// and an operator may act for a host (decision 2).
const AsHeader = "Gatebus-As"

var origins = http.NewCrossOriginProtection()

// FromHere reports whether a request may come from where it says: its Host names
// this machine's loopback or the very address that it came to, and a page of
// another origin did not send it. Reason is host or origin where it may not. What
// keeps the pages of a browser out must be asked before anything of the request
// is used (A5).
func FromHere(r *http.Request) (ok bool, reason string) {
	if !hostAllowed(r) {
		return false, "host"
	}
	// Safe methods are not checked by CrossOriginProtection, and a GET opens a
	// stream here.
	check := *r
	check.Method = http.MethodPost
	if origins.Check(&check) != nil {
		return false, "origin"
	}
	return true, ""
}

// hostAllowed reports whether the Host header names this machine's loopback or
// the very address that the request came to.
func hostAllowed(r *http.Request) bool {
	host := r.Host
	if h, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil {
		return false
	}
	addr = addr.Unmap()
	if addr.IsLoopback() {
		return true
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return local != nil && addr == local.AddrPort().Addr().Unmap()
}

// Authenticate returns who the bearer token of a request stands for, or says in
// the headers of the answer what is missing. A request without a token from this
// machine is anonymous's, where there is one; as is the host that it names, which
// is empty unless it came over the socket of the home. One with a wrong token, or
// that names a host from elsewhere, is nobody's.
func Authenticate[W any](w http.ResponseWriter, r *http.Request, tokens func(token string) (W, bool), anonymous func(as string) (W, bool)) (who W, ok bool) {
	challenge := `Bearer realm="gatebus"`
	if headers := r.Header["Authorization"]; len(headers) > 0 {
		scheme, token, _ := strings.Cut(headers[0], " ")
		if token = strings.TrimSpace(token); len(headers) == 1 && strings.EqualFold(scheme, "Bearer") && token != "" {
			if who, ok := tokens(token); ok {
				return who, true
			}
		}
		challenge += `, error="invalid_token"`
	} else if as, ok := named(r); ok {
		if who, ok := anonymous(as); ok {
			return who, true
		}
	}
	w.Header().Set("WWW-Authenticate", challenge)
	return who, false
}

// named is the host that a request from this machine names; not ok for one from
// elsewhere, and one that names a host and may not.
func named(r *http.Request) (as string, ok bool) {
	names := r.Header[AsHeader]
	if _, socket := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); socket {
		switch {
		case len(names) == 0:
			return "", true
		case len(names) == 1 && names[0] != "":
			return names[0], true
		}
		return "", false
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	return "", err == nil && remote.Addr().Unmap().IsLoopback() && len(names) == 0
}

// Body reads a body of limit bytes at most, in limited time. A longer one is a
// *http.MaxBytesError. The buffer grows as bytes arrive, whatever length is
// announced.
func Body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	if data, ok := arrived(r.Body); ok {
		return data, nil
	}
	var b bytes.Buffer
	b.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(upload)) // where the reader has deadlines
	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	_ = c.SetReadDeadline(time.Time{}) // or a call would be cancelled then
	return b.Bytes(), err
}

// Write writes the parts in limited time. A client that does not read loses its
// connection: net/http cancels the request with the first write that fails.
func Write(w http.ResponseWriter, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	limit := Patience + time.Duration(size>>17)*time.Second // 128 KiB a second
	if own, ok := w.(*response); ok {
		own.patience(limit)
	} else {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
