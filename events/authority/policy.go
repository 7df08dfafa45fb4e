package authority

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/toolname"
)

// Risk is how much harm a tool can do.
type Risk string

// The risks, lowest first.
const (
	Low      Risk = "low"
	Medium   Risk = "medium"
	High     Risk = "high"
	Critical Risk = "critical"
)

var risks = []Risk{Low, Medium, High, Critical}

// Valid tells whether r is one of the risks.
func (r Risk) Valid() bool { return slices.Contains(risks, r) }

// Highest is the highest of some risks. An empty one says nothing; one that is
// not known counts as Critical. Of nothing it is Low.
func Highest(list ...Risk) Risk { return strictest(risks, list) }

// Policy is what stands between a wish and its execution.
type Policy string

// The policies, loosest first.
const (
	// Auto goes ahead; the automatic approval is recorded.
	Auto Policy = "auto"
	// Prompt asks a person.
	Prompt Policy = "prompt"
	// Deny asks nobody (R54).
	Deny Policy = "deny"
)

var policies = []Policy{Auto, Prompt, Deny}

// Valid tells whether p is one of the policies.
func (p Policy) Valid() bool { return slices.Contains(policies, p) }

// Strictest is the strictest of some policies. An empty one says nothing; one
// that is not known counts as Deny. Of nothing it is Auto.
func Strictest(list ...Policy) Policy { return strictest(policies, list) }

// strictest is the member of list that stands last in order.
func strictest[T ~string](order, list []T) T {
	place := 0
	for _, v := range list {
		switch i := slices.Index(order, v); {
		case v == "":
		case i < 0:
			return order[len(order)-1]
		default:
			place = max(place, i)
		}
	}
	return order[place]
}

// Subject is what a decision is about, as approval rules see it.
type Subject struct {
	Server string
	// Tool is the raw name of the tool; empty for a connect.
	Tool string
	// Capability is the one that the decision needs.
	Capability string
	Risk       Risk
}

// Rule gives the policy of the subjects that match all of its patterns, in
// which "*" stands for any characters. An empty pattern matches everything, but
// a rule that names a tool says nothing about a connect, and one without a
// policy says nothing at all.
type Rule struct {
	Server     string
	Tool       string
	Capability string
	Risk       string
	Policy     Policy
}

func (r Rule) matches(s Subject) bool {
	return (r.Tool == "" || s.Tool != "" && toolname.Match(r.Tool, s.Tool)) &&
		(r.Server == "" || toolname.Match(r.Server, s.Server)) &&
		(r.Capability == "" || toolname.Match(r.Capability, s.Capability)) &&
		(r.Risk == "" || toolname.Match(r.Risk, string(s.Risk)))
}

// ApprovalRules is the approval configuration of a core or of a host. The zero
// ApprovalRules says nothing.
type ApprovalRules struct {
	// Default is for what no rule matches; empty says nothing.
	Default Policy
	Rules   []Rule
}

// Matching are the rules that say something of the subject. Where there are none
// the default does, if it is not empty.
func (a ApprovalRules) Matching(s Subject) []Rule {
	var matched []Rule
	for _, r := range a.Rules {
		if r.Policy != "" && r.matches(s) {
			matched = append(matched, r)
		}
	}
	return matched
}

// For is the strictest policy of the rules that match the subject, or the
// default where none does; it may be empty.
func (a ApprovalRules) For(s Subject) Policy {
	matched := a.Matching(s)
	if matched == nil {
		return a.Default
	}
	policies := make([]Policy, len(matched))
	for i, r := range matched {
		policies[i] = r.Policy
	}
	return Strictest(policies...)
}

// ConnectPolicy is the policy of connecting (R52): the strictest of what the
// declaration, the core's configuration and the host's say, and never looser
// than Prompt. A declaration that says "auto" still prompts here (R53).
func ConnectPolicy(declared Policy, s Subject, rules ...ApprovalRules) Policy {
	return Strictest(Prompt, CallPolicy(declared, s, rules...))
}

// CallPolicy is the policy of a call: the strictest of what the declaration,
// the core's configuration and the host's say. "auto" stays automatic where
// nobody says more (R53).
func CallPolicy(declared Policy, s Subject, rules ...ApprovalRules) Policy {
	result := Strictest(declared)
	for _, r := range rules {
		result = Strictest(result, r.For(s))
	}
	return result
}

// Override is what a core's metadata says about one tool. It may only tighten
// (R69).
type Override struct {
	Risk     Risk   // empty: as declared
	Policy   Policy // empty: as declared
	Disabled bool
}

// Tighten applies an override. What would be weaker than declared is ignored,
// and weakened tells so: the diagnostic is "policy_weakening_ignored".
func (o Override) Tighten(risk Risk, policy Policy) (effectiveRisk Risk, effectivePolicy Policy, weakened bool) {
	effectiveRisk, effectivePolicy = Highest(risk, o.Risk), Strictest(policy, o.Policy)
	return effectiveRisk, effectivePolicy,
		o.Risk != "" && Highest(o.Risk) != effectiveRisk || o.Policy != "" && Strictest(o.Policy) != effectivePolicy
}

// Class is what a server's annotations say that a tool does (R70).
type Class string

// The classes. Only ReadOnly may be treated as a permission to read.
const (
	ReadOnly    Class = "read_only"
	WriteLike   Class = "write_like"
	NetworkLike Class = "network_like"
	Unknown     Class = "unknown"
)

// floors are the least risks of the classes that raise it.
var floors = map[Class]Risk{WriteLike: High, NetworkLike: Medium}

// RaiseByHints reads the annotations of a tool definition, a JSON object, and
// returns the risk with them taken into account, and the class (R70). A hint
// comes from the server, so it raises and never lowers. Annotations that are
// absent, or no JSON object with unique names, are of class Unknown.
func RaiseByHints(risk Risk, annotations []byte) (Risk, Class) {
	class := classify(annotations)
	return Highest(risk, floors[class]), class
}

func classify(annotations []byte) Class {
	var hints map[string]jsontext.Value
	if json.Unmarshal(annotations, &hints, jsontext.AllowInvalidUTF8(true)) != nil {
		return Unknown
	}
	hint := func(name string) bool { return string(hints[name]) == "true" }
	switch {
	case hint("destructiveHint"):
		return WriteLike
	case hint("openWorldHint"):
		return NetworkLike
	case hint("readOnlyHint"):
		return ReadOnly
	}
	return Unknown
}
