// Package live is one live MCP client connection to a server, over whatever
// carries its frames.
//
// The SDK does the handshake and answers what the server asks; everything that
// belongs to a caller goes past it as raw bytes, because the SDK's types drop
// unknown members, round numbers and fail on unknown content (decision 23).
// Both share one byte stream: request ids from 2^40 up are ours.
//
// What a caller gets from a server here is raw. Making views of it is the
// caller's part.
package live
