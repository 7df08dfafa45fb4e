package decider

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/projections/catalog"
	"github.com/gatebus/gatebus/workers/cores"
)

// The results of a step, and of the whole.
const (
	resultAllowed = "allowed"
	resultNeeds   = "needs_approval"
	resultDenied  = "denied"
	resultUnknown = "unknown"
)

// policyExplain says what decides a call of a tool by a principal. It asks the rules
// that decide calls, and changes nothing.
func (d *Decider) policyExplain(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p client.PolicyExplain
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if authority.CheckPrincipal(p.Principal) != nil {
		return nil, badRequest(redact.Static("principal: 1 to 64 letters, digits, _, @ or -"))
	}
	if err := d.caught(ctx); err != nil {
		return nil, err
	}
	e := explanation{Decider: d, workspace: id.Workspace, at: time.Now(), out: client.PolicyExplanation{Principal: p.Principal, Steps: []client.PolicyStep{}}}
	if err := e.find(ctx, p.Tool); err != nil {
		return nil, err
	}
	e.walk()
	return e.out, nil
}

// explanation is one question on its way.
type explanation struct {
	*Decider
	workspace string
	at        time.Time
	out       client.PolicyExplanation

	declared cores.Server
	// tool is what the connection has; known is false before there is one.
	tool  catalog.Tool
	known bool
	// annotations are those of its definition.
	annotations []byte
	state       connection.State
}

// find finds the tool by its visible name or SERVER/RAWNAME: among those of the
// principal, else of anybody, else by the names of declared servers.
func (e *explanation) find(ctx context.Context, name string) error {
	for _, f := range []catalog.Filter{{Workspace: e.workspace, Principal: e.out.Principal}, {Workspace: e.workspace}} {
		for _, t := range e.Projections.Catalog.Tools(f) {
			if connection.IsPrivate(t.Connection) {
				continue
			}
			if visible := cmp.Or(t.Name, ownName(t.Server, t.RawName)); visible != name && t.Server+"/"+t.RawName != name {
				continue
			}
			e.out.Server, e.out.RawName, e.out.Name = t.Server, t.RawName, t.Name
			if snapshot, err := e.snapshots.get(ctx, t.Blob); err == nil {
				e.annotations = annotationsOf(snapshot, t.RawName)
			}
			if f.Principal != "" {
				e.tool, e.known = t, true
				e.state = e.Model.Connections.Get(e.workspace, t.Connection)
			}
			break
		}
		if e.out.Server != "" {
			break
		}
	}
	for _, s := range e.Cores.Servers() {
		if e.out.Server != "" {
			break
		}
		for _, prefix := range []string{s.ServerID + "/", toolname.Prefix(s.ServerID) + toolname.Separator} {
			if raw, ok := strings.CutPrefix(name, prefix); ok && raw != "" && e.out.Server == "" {
				e.out.Server, e.out.RawName = s.ServerID, raw
			}
		}
	}
	if e.out.Server == "" {
		return fault.New("policy.explain", fault.NotFound, redact.Static("no server has such a tool"))
	}
	if e.state.Phase == connection.None {
		e.state = e.connection()
	}
	return nil
}

// ownName is the visible name of a tool that shares its server with no other.
func ownName(server, raw string) string {
	named, err := toolname.Assemble([]toolname.Source{{ServerID: server, Tools: []string{raw}}}, nil)
	if err != nil || len(named) == 0 {
		return ""
	}
	return named[0].Name
}

func annotationsOf(s connection.Snapshot, tool string) []byte {
	for _, t := range s.Tools {
		var definition struct {
			Annotations json.RawMessage `json:"annotations"`
		}
		if t.Name == tool && json.Unmarshal(t.Definition, &definition) == nil {
			return definition.Annotations
		}
	}
	return nil
}

// connection is the shared connection of the principal to the server that is nearest
// to a call: the one that is open, else one that was approved, else one that waits. To
// an installed server there is one, which is everybody's.
func (e *explanation) connection() connection.State {
	var best connection.State
	rank := func(s connection.State) int {
		switch {
		case s.Phase == connection.Open:
			return 4
		case s.Standing.Approval != "":
			return 3
		case s.Phase == connection.Waiting:
			return 2
		}
		return 1
	}
	for at, s := range e.Model.Connections.All() {
		if at.Workspace != e.workspace || s.Principal != e.out.Principal && !s.Installed() || s.Server != e.out.Server || s.Attachment != "" {
			continue
		}
		if best.Phase == connection.None || rank(s) > rank(best) || rank(s) == rank(best) && s.Session < best.Session {
			best = s
		}
	}
	return best
}

// walk takes the steps in the order in which a call takes them (R49, R196), and goes
// on after one that denies, so that the whole is seen at once.
func (e *explanation) walk() {
	policies := e.Model.Policies.Get(e.workspace, e.workspace)
	granted := e.Model.Authority(e.workspace, e.out.Principal)
	e.out.AuthoritySequence, e.out.PolicySequence = granted.Seq, policies.Seq
	interactive := policies.Interactive()

	server, ok := e.Cores.Server(e.out.Server)
	step := client.PolicyStep{Step: "declaration", Result: resultAllowed}
	switch o := server.Overrides[e.out.RawName]; {
	case !ok || !server.Enabled:
		step.Result, step.Reason = resultDenied, string(fault.InstallationUnavailable)
	case o.Disabled || !toolname.Filter(e.out.RawName, server.Include, server.Exclude):
		step.Result, step.Reason = resultDenied, string(fault.ToolMissing)
	}
	if ok {
		step.By = append(step.By, client.PolicySource{Kind: "declaration", Text: redact.Name(server.Path).String()})
	}
	e.add(step)
	if !ok {
		e.decide()
		return
	}
	e.declared = server

	e.add(e.capability("connect_capability", server.ConnectCapability(), granted))

	subject := authority.Subject{Server: server.ServerID, Capability: server.ConnectCapability(), Risk: server.Risk}
	connect := authority.ConnectPolicy(server.ApprovalPolicy, subject, policies.Rules(server.ServerID)...)
	step = client.PolicyStep{Step: "connect_policy", Policy: string(connect), Result: resultAllowed, By: []client.PolicySource{
		{Kind: "floor", Text: string(authority.Prompt)}, {Kind: "declaration", Text: string(server.ApprovalPolicy)},
	}}
	if connect == authority.Deny {
		step.Result, step.Reason = resultDenied, string(fault.ApprovalDenied)
	}
	step.By = append(step.By, e.said(subject)...)
	e.add(step)
	e.add(e.connectApproval(policies.Seq, interactive))
	e.add(e.definition())

	e.add(e.capability("call_capability", server.CallCapability(), granted))

	risk, class := authority.RaiseByHints(server.Risk, e.annotations)
	override := server.Overrides[e.out.RawName]
	risk, stated, _ := override.Tighten(risk, server.ApprovalPolicy)
	e.out.Risk = string(risk)
	subject = authority.Subject{Server: server.ServerID, Tool: e.out.RawName, Capability: server.CallCapability(), Risk: risk}
	policy := authority.CallPolicy(stated, subject, policies.Rules(server.ServerID)...)
	step = client.PolicyStep{Step: "call_policy", Policy: string(policy), Result: resultAllowed, By: []client.PolicySource{
		{Kind: "declaration", Text: string(server.ApprovalPolicy)},
	}}
	if override.Policy != "" || override.Risk != "" {
		step.By = append(step.By, client.PolicySource{Kind: "override", Text: strings.TrimSpace(string(override.Policy) + " risk " + string(cmp.Or(override.Risk, risk)))})
	}
	if class != authority.Unknown {
		step.By = append(step.By, client.PolicySource{Kind: "hint", Text: string(class) + ": risk " + string(risk), Sequence: uint64(e.tool.Sequence)})
	}
	step.By = append(step.By, e.said(subject)...)
	if policy == authority.Deny {
		step.Result, step.Reason = resultDenied, string(fault.ApprovalDenied)
	}
	e.add(step)
	e.add(e.callApproval(policy, policies.Seq, interactive))
	e.decide()
}

func (e *explanation) add(s client.PolicyStep) {
	if s.By == nil {
		s.By = []client.PolicySource{}
	}
	e.out.Steps = append(e.out.Steps, s)
}

// decide is what the steps come to.
func (e *explanation) decide() {
	e.out.Decision = resultAllowed
	for _, result := range []string{resultDenied, resultNeeds} {
		if i := slices.IndexFunc(e.out.Steps, func(s client.PolicyStep) bool { return s.Result == result }); i >= 0 {
			e.out.Decision, e.out.Reason = result, cmp.Or(e.out.Steps[i].Reason, e.out.Steps[i].Step)
			return
		}
	}
}

// capability is a step that needs a capability, with the grants that cover it.
func (e *explanation) capability(name, needs string, granted authority.Snapshot) client.PolicyStep {
	step := client.PolicyStep{Step: name, Needs: needs, Result: resultAllowed}
	if !granted.Allows(needs, e.at) {
		step.Result, step.Reason = resultDenied, string(fault.CapabilityDenied)
	}
	for _, g := range e.Projections.Grants.Capabilities(e.workspace, e.out.Principal) {
		if slices.Contains(authority.Covering(needs), g.Capability) {
			step.By = append(step.By, client.PolicySource{Kind: "grant", Text: g.Capability, Sequence: g.Sequence, Until: g.Until})
		}
	}
	return step
}

// said is what the policy says of a subject.
func (e *explanation) said(subject authority.Subject) []client.PolicySource {
	state := e.Model.Policies.Get(e.workspace, e.workspace)
	var out []client.PolicySource
	for _, s := range state.Said(subject) {
		source := client.PolicySource{Kind: "default", Text: fmt.Sprintf("%s (%s)", s.Policy, s.Level.Level), Sequence: uint64(state.Seq)}
		if s.Rule.Policy != "" {
			source.Kind = "rule"
			source.Text = fmt.Sprintf("%s (%s: %s)", s.Policy, s.Level.Level, pattern(s.Rule))
		}
		out = append(out, source)
	}
	return out
}

// pattern is what a rule matches.
func pattern(r authority.Rule) string {
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"server", r.Server}, {"tool", r.Tool}, {"capability", r.Capability}, {"risk", r.Risk},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if parts == nil {
		return "everything"
	}
	return strings.Join(parts, ", ")
}

// approval is what is known of an approval.
func (e *explanation) approval(id string) client.PolicySource {
	a, _ := e.Projections.Approvals.Get(id)
	return client.PolicySource{Kind: "approval", Text: id, Sequence: a.Seq, Until: a.Until}
}

// waiting is the approval of an action that waits, for a tool where it is named.
func (e *explanation) waiting(action, tool string) string {
	for id, p := range e.state.Pending {
		if p.Action == action && p.Tool == tool && e.at.Before(p.Expires) {
			return id
		}
	}
	return ""
}

// asked is a step that a person has to answer.
func (e *explanation) asked(step client.PolicyStep, interactive bool) client.PolicyStep {
	step.Result = resultNeeds
	if len(step.By) > 0 { // it was asked for
		step.Reason = string(fault.ApprovalPending)
	}
	if !interactive {
		step.Result, step.Reason = resultDenied, string(fault.ApprovalDenied)
	}
	return step
}

func (e *explanation) connectApproval(policySequence uint32, interactive bool) client.PolicyStep {
	step := client.PolicyStep{Step: "connect_approval", Result: resultAllowed}
	s := e.state
	if s.Standing.Covers(e.declared.Fingerprint, policySequence) {
		step.By = append(step.By, e.approval(s.Standing.Approval))
		return step
	}
	if id := e.waiting(connection.ActionConnect, ""); id != "" {
		step.By = append(step.By, e.approval(id))
		return e.asked(step, interactive)
	}
	if s.Phase == connection.Denied && s.DeniedStage == connection.StageApproval && s.Fingerprint == e.declared.Fingerprint &&
		s.PolicySequence == policySequence {
		step.Result, step.Reason = resultDenied, string(fault.ApprovalDenied) // until an operator asks anew (decision 8)
		return step
	}
	return e.asked(step, interactive)
}

// definition is the step that a changed, added or suspicious definition stops at.
func (e *explanation) definition() client.PolicyStep {
	step := client.PolicyStep{Step: "definition", Result: resultAllowed}
	switch {
	case !e.known && e.state.Phase == connection.Open:
		step.Result, step.Reason = resultDenied, string(fault.ToolMissing)
		return step
	case !e.known:
		step.Result = resultUnknown
		return step
	}
	step.By = append(step.By, client.PolicySource{Kind: "catalog", Text: e.tool.Digest, Sequence: uint64(e.tool.Sequence)})
	for _, f := range e.tool.Flags {
		step.By = append(step.By, client.PolicySource{Kind: "flag", Text: f, Sequence: uint64(e.tool.Sequence)})
	}
	if !e.tool.Blocked {
		return step
	}
	step.Result, step.Reason = resultDenied, string(fault.ToolChanged)
	if id := e.waiting(connection.ActionTool, e.out.RawName); id != "" {
		step.Result = resultNeeds
		step.By = append(step.By, e.approval(id))
	}
	return step
}

func (e *explanation) callApproval(policy authority.Policy, policySequence uint32, interactive bool) client.PolicyStep {
	step := client.PolicyStep{Step: "call_approval", Result: resultAllowed}
	switch policy {
	case authority.Auto:
		return step
	case authority.Deny:
		step.Result, step.Reason = resultDenied, string(fault.ApprovalDenied)
		return step
	}
	if e.known {
		id, ok := e.Projections.Approvals.SessionApproval(e.workspace, e.out.Principal, e.state.Session, e.declared.Fingerprint,
			e.tool.RawName, e.tool.Digest, policySequence, e.at)
		if ok {
			step.By = append(step.By, e.approval(id))
			return step
		}
	}
	return e.asked(step, interactive)
}
