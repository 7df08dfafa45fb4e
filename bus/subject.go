package bus

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events"
)

// subjects of the log; every stream of ours is named here and nowhere else.
const (
	eventSubjects = "gatebus.*.evt.>"
	jobSubjects   = "gatebus.*.job.>"
)

// private are the subjects that no stream may capture: what travels there may
// be raw (decision 17, R118, R210).
var private = []string{"gatebus.*.cmd.>", "gatebus.*.conn.>", "_INBOX.>", "_R_.>"}

// maxBoundary is the longest encoded key that is a token of a subject; a longer
// one is replaced by a hash.
const maxBoundary = 100

var boundaryEncoding = base32.HexEncoding.WithPadding(base32.NoPadding)

// ValidName reports whether s may be a workspace, a principal or the name of
// anything else that is a token of a subject as it is: letters, digits, "-" and
// "_", 64 at most. A principal named "*" would be everybody.
func ValidName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// boundaryOf is the last token of an aggregate's subject (R207). What lives
// long has one of its own; what is born all day shares one of 256, because each
// distinct subject costs the server memory for ever.
func boundaryOf(id events.AggregateID) string {
	if sharded(id.Kind) {
		return hex.EncodeToString([]byte{shardOf(id.Key)})
	}
	if s := strings.ToLower(boundaryEncoding.EncodeToString([]byte(id.Key))); len(s) <= maxBoundary {
		return s
	}
	sum := sha256.Sum256([]byte(id.Key))
	return hex.EncodeToString(sum[:])
}

// sharded reports whether aggregates of a kind are born all day.
func sharded(kind events.Kind) bool {
	switch kind {
	case events.KindSession, events.KindTurn, events.KindConnection, events.KindCall:
		return true
	}
	return false
}

// shardOf is which of the 256 boundaries of its kind an aggregate has.
func shardOf(key string) byte { return sha256.Sum256([]byte(key))[0] }

// subjectOf is where the commits of an aggregate are: its consistency boundary.
// It is empty when the workspace or the id is not valid.
func subjectOf(workspace string, id events.AggregateID) string {
	if !ValidName(workspace) || !ValidName(string(id.Kind)) || id.Key == "" || !utf8.ValidString(id.Key) {
		return ""
	}
	return "gatebus." + workspace + ".evt." + string(id.Kind) + "." + boundaryOf(id)
}

// commandSubject is where principals ask for a method; "*" stands for all.
func commandSubject(workspace, principal, method string) string {
	return "gatebus." + workspace + ".cmd." + principal + "." + strings.ReplaceAll(method, "/", ".")
}

// notificationSubject is where a principal hears of a topic; ">" stands for all.
func notificationSubject(workspace, principal, topic string) string {
	return "gatebus." + workspace + ".ntf." + principal + "." + strings.ReplaceAll(topic, "/", ".")
}

func jobSubject(workspace, kind string) string {
	return "gatebus." + workspace + ".job." + kind
}
