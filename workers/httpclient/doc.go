// Package httpclient carries the frames of one MCP connection over streamable
// HTTP: each frame that goes out is one POST, and what comes back, as JSON, as a
// stream of events, or on the GET stream for what the server says by itself, is
// frames again. Bytes and ids stay as they are.
//
// Up to revision 2025-11-25 there is a session, from initialize on. From 2026-07-28
// on there is none, once [Client.Stateless] was called: each request has headers
// that repeat its body, a request is cancelled by closing its stream, and there is
// no GET stream.
//
// Each request, each retry and each hop of a redirect is decided on by itself, with a
// fresh answer of the resolver, and recorded before it goes out; it goes to the
// addresses of that decision and to no other one ([Gate], R95, R96, R110). Redirects
// are followed as far as the rules of package urlpolicy go; what was declared for one
// origin is sent to no other one (R98).
//
// An answer that is due and does not go on is given up after a while (R114); what else
// bounds a request is its context. A stream that was opened to hear what happens at the
// server may be silent: TCP finds out when nobody is there any more.
//
// Nothing is sent twice: no call is repeated, but for one that a server sends on to
// another place of its origin, and a call that fails says whether the server may have
// begun it. All that a server says is bounded. Errors hold words of ours only, for
// those of net/http name the whole URL.
package httpclient
