// Package live is one live MCP client connection to a server, over whatever
// carries its frames.
//
// What belongs to a caller goes as raw bytes, because the SDK's types drop unknown
// members, round numbers and fail on unknown content (decision 23). The SDK does the
// handshake and answers what a server of that era asks; both share one byte stream:
// request ids from 2^40 up are ours.
//
// A server is of one of two eras, or of both. Up to revision 2025-11-25 there is a
// handshake; from 2026-07-28 on each request says who sends it, and a server tells
// of changes only who listens. Open probes with server/discover first, over stdio as
// the revision asks for, and takes any other answer than one that names it as a word
// of the other era. The handshake first would be gentler to servers that trip over
// an unknown request, but a server of both would never be spoken to in the newer era,
// and one of the newer would see a request that it does not know. So the price is
// kept small instead: a server that answers costs one round trip, one that reads the
// probe and is silent two seconds, after which the handshake goes out beside it, and
// one that dies a second start. [Eras] pays it once per declaration. What is
// remembered is only the order: the other era follows where the first is refused.
//
// What a caller gets from a server here is raw. Making views of it is the
// caller's part.
package live
