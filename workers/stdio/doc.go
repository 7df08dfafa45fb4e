// Package stdio starts an MCP server as a child process and frames what goes
// in and out: one JSON-RPC message a line, raw bytes both ways (R80).
//
// The child gets exactly the environment of its [Spec], a process group of its
// own and no open file but the three standard ones. Whatever it does, nothing
// here waits for ever: a banner on the output is skipped, a flood of errors
// goes to the null device, unread input ends it after ten seconds.
package stdio
