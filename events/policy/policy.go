// Package policy decides the approval policy of a workspace: what the gateway's
// configuration and the workspace say, and which of it is the strictest (R52).
package policy

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The levels of a policy; a server must pass both (R177).
const (
	LevelGateway   = "gateway"
	LevelWorkspace = "workspace"
)

// What a later change of a tool definition does (decision 7).
const (
	OnChangeBlock = "block"
	OnChangeFlag  = "flag"
)

// ApproversNone says that nobody can be asked: what needs a person is denied (R55).
const ApproversNone = "none"

// Level names one policy: a level, for one server or (empty) for all.
type Level struct{ Level, Server string }

// State is what the decider reads of one workspace.
type State struct {
	Levels map[Level]events.Policy
	// Seq is the log sequence of the last change.
	Seq uint32
}

// Rules are the approval rules of every level that speaks about the server; all
// of them count, the strictest wins.
func (s State) Rules(server string) []authority.ApprovalRules {
	var out []authority.ApprovalRules
	for level, p := range s.Levels {
		if level.speaksOf(server) {
			out = append(out, rulesOf(p))
		}
	}
	return out
}

// Allows reports whether the levels let a server be used, and let turns have its tools
// without selecting it: all of them must (R177). A level that was never set does.
func (s State) Allows(server string) (enabled, implicit bool) {
	enabled, implicit = true, true
	for level, p := range s.Levels {
		if level.speaksOf(server) {
			enabled, implicit = enabled && p.Enabled, implicit && p.Implicit
		}
	}
	return enabled, enabled && implicit
}

func (l Level) speaksOf(server string) bool { return l.Server == "" || l.Server == server }

func rulesOf(p events.Policy) authority.ApprovalRules {
	r := authority.ApprovalRules{Default: authority.Policy(p.DefaultApproval)}
	for _, rule := range p.Rules {
		r.Rules = append(r.Rules, authority.Rule{
			Server: rule.Server, Tool: rule.Tool, Capability: rule.Capability, Risk: rule.Risk,
			Policy: authority.Policy(rule.Approval),
		})
	}
	return r
}

// Said is one thing that a level says of a subject: a rule, or its default where the
// rule is empty.
type Said struct {
	Level
	Rule   authority.Rule
	Policy authority.Policy
}

// Said is what every level says of a subject, sorted: of these, the strictest wins.
func (s State) Said(subject authority.Subject) []Said {
	var out []Said
	for level, p := range s.Levels {
		if !level.speaksOf(subject.Server) {
			continue
		}
		rules := rulesOf(p)
		matching := rules.Matching(subject)
		for _, r := range matching {
			out = append(out, Said{level, r, r.Policy})
		}
		if matching == nil && rules.Default != "" {
			out = append(out, Said{Level: level, Policy: rules.Default})
		}
	}
	slices.SortStableFunc(out, func(a, b Said) int {
		return cmp.Or(cmp.Compare(a.Level.Level, b.Level.Level), cmp.Compare(a.Server, b.Server))
	})
	return out
}

// Interactive reports whether there is anybody to ask (R55).
func (s State) Interactive() bool {
	for _, p := range s.Levels {
		if p.Approvers == ApproversNone {
			return false
		}
	}
	return true
}

// OnChange is what a changed tool definition does; block unless every level
// that speaks says flag.
func (s State) OnChange() string {
	answer := ""
	for _, p := range s.Levels {
		switch p.OnChange {
		case OnChangeBlock:
			return OnChangeBlock
		case OnChangeFlag:
			answer = OnChangeFlag
		}
	}
	if answer == "" {
		return OnChangeBlock
	}
	return answer
}

// Command is a request to change the policy of a workspace.
type Command interface{ command() }

// Set replaces the policy of one level. Digest is the SHA-256 of After.
type Set struct {
	Level
	After  events.Policy
	Digest string
}

func (Set) command() {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	c, ok := cmd.(Set)
	if !ok {
		return nil, nil
	}
	if c.Level.Level != LevelGateway && c.Level.Level != LevelWorkspace {
		return nil, fault.New("policy.set", fault.InvalidRequest, redact.Static("the level is gateway or workspace"))
	}
	before := s.Levels[c.Level]
	if _, known := s.Levels[c.Level]; known && equal(before, c.After) {
		return nil, nil
	}
	return []events.Event{events.PolicySet{
		Level: c.Level.Level, Server: c.Server, Before: before, After: c.After, Digest: c.Digest,
	}}, nil
}

// equal compares policies as the log keeps them: it does not tell an empty list
// of rules from none.
func equal(a, b events.Policy) bool {
	if !slices.Equal(a.Rules, b.Rules) {
		return false
	}
	a.Rules, b.Rules = nil, nil
	return reflect.DeepEqual(a, b)
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	if e, ok := r.Event.(events.PolicySet); ok {
		levels := map[Level]events.Policy{{e.Level, e.Server}: e.After}
		for l, p := range s.Levels {
			if l != (Level{e.Level, e.Server}) {
				levels[l] = p
			}
		}
		s.Levels, s.Seq = levels, uint32(r.Seq)
	}
	return s
}
