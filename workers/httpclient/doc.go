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
// Nothing is sent twice: no redirect is followed, no call is repeated, and a call
// that fails says whether the server may have begun it. Errors hold words of ours
// only, for those of net/http name the whole URL.
package httpclient
