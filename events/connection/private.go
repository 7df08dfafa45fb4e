package connection

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
)

// What a client of the handshake era can offer a server, beside what every client
// has: that the server may ask it something. The names are those of the members of
// its capabilities.
const (
	OfferSampling        = "sampling"
	OfferSamplingContext = "sampling.context"
	OfferSamplingTools   = "sampling.tools"
	OfferElicitation     = "elicitation"
	OfferElicitationForm = "elicitation.form"
	OfferElicitationURL  = "elicitation.url"
	OfferRoots           = "roots"
	OfferRootsChanged    = "roots.listChanged"
)

// offers maps what can be offered to what a principal needs for it.
var offers = map[string]func(server string) string{
	OfferSampling: authority.Sample, OfferElicitation: authority.Elicit, OfferRoots: authority.Roots,
}

// asks are the requests of a server, with the offer that each needs.
var asks = map[string]string{
	"sampling/createMessage": OfferSampling, "elicitation/create": OfferElicitation, "roots/list": OfferRoots,
}

// OfferOf is the offer that a server needs for a request of its own, and the
// capability that the principal needs for it; empty for an unknown method.
func OfferOf(method, server string) (offer, capability string) {
	if offer = asks[method]; offer != "" {
		capability = offers[offer](server)
	}
	return offer, capability
}

// Permitted are those of the offers that the principal may make the server.
func Permitted(offered []string, server string, a authority.Snapshot, at time.Time) []string {
	var out []string
	for _, o := range offered {
		kind, _, _ := strings.Cut(o, ".")
		if need := offers[kind]; need != nil && a.Allows(need(server), at) {
			out = append(out, o)
		}
	}
	slices.Sort(out)
	return out
}

// private is how the ids of private connections begin.
const private = "cp-"

// PrivateID is the id of the connection that an attachment of a session has to a
// server alone; without an attachment it is that of the shared one.
func PrivateID(session, server, attachment string) string {
	if attachment == "" {
		return ID(session, server)
	}
	h := sha256.Sum256([]byte(session + "\x00" + server + "\x00" + attachment))
	return private + hex.EncodeToString(h[:8])
}

// IsPrivate reports whether an id is that of a private connection.
func IsPrivate(id string) bool { return strings.HasPrefix(id, private) }

// ID is the id of the connection.
func (s State) ID() string { return PrivateID(s.Session, s.Server, s.Attachment) }

// Covering is the approval that is in force for what is declared now, once it is
// known which tools that covers; empty where there is none.
func (s State) Covering(fingerprint string, policySequence uint32) string {
	if s.Phase == Denied && s.DeniedStage == StageCapability || !s.Standing.Covers(fingerprint, policySequence) || s.Approved == nil {
		return ""
	}
	return s.Standing.Approval
}

// ended notes when a private connection ended.
func (s State) ended(at time.Time) State {
	if s.Attachment != "" {
		s.EndedAt = at
	}
	return s
}

// Covered are the definitions of tools that a private connection may have without a
// question: those that the approval of the shared one covers, and those of listed that a
// person has approved on another private one of the session under the same yes. Under
// another yes than its own it may have none.
func (s State) Covered(shared State, others []State, listed []events.ToolDigest) map[string]string {
	if !s.beside(shared) {
		return nil
	}
	covered := shared.Approved
	for _, t := range listed {
		if slices.ContainsFunc(others, func(o State) bool {
			return o.Attachment != "" && o.Session == s.Session && o.beside(shared) && o.Granted[t.Tool] == t.Digest
		}) {
			covered = with(covered, t.Tool, t.Digest)
		}
	}
	return covered
}

// Started is the digest of the program of the shared connection, which a private one may
// start; empty where the yes is another one, or nothing was started under it.
func (s State) Started(shared State) string {
	if !s.beside(shared) {
		return ""
	}
	return shared.Standing.Program
}

// beside reports whether two connections are of the same session to the same server,
// on the same yes; one that all sessions share is of every session.
func (s State) beside(o State) bool {
	return (s.Session == o.Session || o.Installed()) && s.Server == o.Server && s.Standing.Approval != "" && s.Standing.same(o.Standing)
}

// Alike are the approvals that wait on a private connection for what a person has
// approved on another one, yes, sorted.
func (s State) Alike(yes State) (approvals []string) {
	if s.Attachment == "" || yes.Attachment == "" || !s.beside(yes) {
		return nil
	}
	for _, id := range sortedKeys(s.Pending) {
		if p := s.Pending[id]; p.Action == ActionTool && yes.Granted[p.Tool] == p.Digest {
			approvals = append(approvals, id)
		}
	}
	return approvals
}

// Over reports when a private connection ended; the model forgets it later, as
// decision 15 has it of calls, unless it is where a person has approved a tool. A shared
// one is there as long as its session may be begun again.
func Over(s State) (time.Time, bool) { return s.EndedAt, !s.EndedAt.IsZero() && len(s.Granted) == 0 }
