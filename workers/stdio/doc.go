// Package stdio starts an MCP server as a child process and frames what goes
// in and out: one JSON-RPC message a line, raw bytes both ways (R80).
//
// The child gets exactly the environment of its [Spec], a process group of its
// own and no open file but the three standard ones. Whatever it does, nothing
// here waits for ever: a banner on the output is skipped, a flood of errors is
// drained, unread input ends it after ten seconds.
//
// What a server writes to its standard error is kept in a file without a name
// until it ends. A window of it is redacted then (R124, R125), and nothing else of it
// ever leaves this package; [Log] is the file on disk for those windows.
package stdio
