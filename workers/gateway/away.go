package gateway

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/toolname"
)

// away is a result that says why the server of a tool is not there.
type away struct {
	Code             fault.Kind `json:"code"`
	Server           string     `json:"server"`
	Approval         string     `json:"approval,omitempty"`
	ExecutionStarted bool       `json:"execution_started"`
	// RetryAfterMS is there where the same call may work later.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// missing says why a server that matches has nothing in the turn; nil where none is
// away. Of a server that the principal may not connect there is nothing to be said to
// him, not even that there is one.
func (a *attachment) missing(t *turn, match func(server string) bool) *client.Diagnostic {
	for _, d := range a.away(t) {
		if match(d.Server) {
			return &d
		}
	}
	return nil
}

// away says of each server that has nothing in the turn why, as far as that may be
// said.
func (a *attachment) away(t *turn) []client.Diagnostic {
	a.mu.Lock() // what is said of a turn that is used again is new
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.Diagnostics), func(d client.Diagnostic) bool { return fault.Kind(d.Code) == fault.CapabilityDenied })
}

// maxAway is how many servers that are away an error names.
const maxAway = 3

// whose adds to what is not found the servers that are away: whose a URI is that was
// never listed, nobody can tell at the endpoint of all.
func (a *attachment) whose(t *turn, e *rpcError) {
	gone := a.away(t)
	for i, d := range gone {
		if i == maxAway {
			e.Message += "; and " + strconv.Itoa(len(gone)-maxAway) + " more"
			return
		}
		if e.Message += "; "; i == 0 {
			e.Message += "it may be of one that is away: "
		}
		e.Message += why(&d)
	}
}

// owner matches the server whose a visible name would be: a client may have it from a
// list of before.
func (a *attachment) owner(name string) func(server string) bool {
	return func(server string) bool {
		return server == a.at.server || a.at.server == "" && strings.HasPrefix(name, toolname.Prefix(server)+toolname.Separator)
	}
}

// of matches the server that a request is for: the one that it was for before, or
// that of the prompt that it names.
func (a *attachment) of(m message, before string) func(server string) bool {
	switch {
	case before != "":
		return named(before)
	case m.method == "prompts/get":
		return a.owner(text(m.name))
	}
	return named(a.at.server)
}

// named matches one server.
func named(server string) func(string) bool {
	return func(s string) bool { return s == server }
}

// why is what a person or a model makes of it.
func why(d *client.Diagnostic) string {
	text := "server " + d.Server + ": " + d.Message
	if d.Approval != "" {
		text += " (gatebus approve " + d.Approval + ")"
	}
	return text
}

// explainAway answers a call of a tool of a server that is away.
func explainAway(out *answer, d *client.Diagnostic) {
	kind := fault.Kind(d.Code)
	r := away{Code: kind, Server: d.Server, Approval: d.Approval}
	switch kind {
	case fault.Unavailable, fault.ServerFailed, fault.ApprovalPending:
		r.RetryAfterMS = retryAfter.Milliseconds()
	}
	explain(out, kind, why(d)+"; nothing was started", false, r)
}

// unreachable is the error of a request to a server that is away.
func unreachable(d *client.Diagnostic) *rpcError { return newError(fault.Kind(d.Code), why(d)) }
