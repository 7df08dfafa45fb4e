// Package authority says who may do what, and which consent a deed needs: the
// syntax of principals and capabilities, the snapshot of a principal's
// capabilities that a decision is taken on, risk, and approval policy.
//
// Everything here is pure and fails closed: what is not understood is denied.
package authority

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Capabilities that are not for one server (conflict C18).
const (
	// Manage is to install, set policy, restart and uninstall.
	Manage = "mcp.manage"
	// Read is to list and to see details.
	Read = "mcp.read"
)

// Connect is the capability to connect to a server (R50). No declaration
// replaces it (R59).
func Connect(server string) string { return "mcp.connect:" + server }

// Call is the capability to call the tools of a server (R58), unless its
// declaration names another one (R59).
func Call(server string) string { return "mcp.call:" + server }

// Sample, Elicit and Roots are the capabilities to let a server ask the principal's
// MCP client for a completion of its model, for input of its user, and for its
// roots (decision 3).
func Sample(server string) string { return "mcp.sample:" + server }
func Elicit(server string) string { return "mcp.elicit:" + server }
func Roots(server string) string  { return "mcp.roots:" + server }

var (
	// ErrPrincipal says that a text is no name of a principal.
	ErrPrincipal = errors.New("authority: a principal is named by 1 to 64 letters, digits, '_', '@' or '-' and starts with a letter or digit")
	// ErrCapability says that a text is no capability.
	ErrCapability = errors.New("authority: a capability is like mcp.read or mcp.call:docs; ':*' may end a granted one, and '*' stands nowhere else")
)

const maxCapability = 128

var (
	// A principal is one token of the subjects it commands on and the name of
	// its account. A dot, '*' or '>' in it would be somebody else's subject.
	principal  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_@-]{0,63}$`)
	capability = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*(:[A-Za-z0-9][A-Za-z0-9_. @/-]*)*$`)
)

// CheckPrincipal returns ErrPrincipal unless name may name a principal.
func CheckPrincipal(name string) error {
	if !principal.MatchString(name) {
		return ErrPrincipal
	}
	return nil
}

// CheckCapability returns ErrCapability unless c is a capability that a
// decision can ask for: words parted by ':', without wildcards.
func CheckCapability(c string) error {
	if len(c) > maxCapability || !capability.MatchString(c) {
		return ErrCapability
	}
	return nil
}

// CheckGrant returns ErrCapability unless c may be granted: a capability, or
// one with ":*" after it (R51).
func CheckGrant(c string) error { return CheckCapability(strings.TrimSuffix(c, ":*")) }

// Granted is one capability of a principal.
type Granted struct {
	Capability string
	// Until is when the grant ends; zero is never.
	Until time.Time
}

func (g Granted) holds(at time.Time) bool { return g.Until.IsZero() || at.Before(g.Until) }

// Snapshot is the authority of a principal as of one place in the log. The
// zero Snapshot allows nothing (R57).
type Snapshot struct {
	Principal    string
	Capabilities []Granted
	// Seq is the log sequence of the last commit that changed the grants.
	Seq uint64
}

// Allows tells whether the principal has the capability at a time (R51): by its
// exact name, or by a grant that ends in ":*" and whose part before the star
// begins it. So "mcp.connect:*" covers "mcp.connect:docs"; "mcp:*", "mcp.*",
// "mcp.conn*" and "*" do not.
func (s Snapshot) Allows(capability string, at time.Time) bool {
	if s.Principal == "" || capability == "" {
		return false
	}
	return slices.ContainsFunc(s.Capabilities, func(g Granted) bool {
		return g.holds(at) && covers(g.Capability, capability)
	})
}

// Covering are the capabilities that, granted, cover one: itself, and each part
// before a ':' with ":*" behind it.
func Covering(capability string) []string {
	out := []string{capability}
	for i, c := range capability {
		if c == ':' {
			out = append(out, capability[:i]+":*")
		}
	}
	return out
}

func covers(grant, capability string) bool {
	if grant == capability {
		return true
	}
	all, wild := strings.CutSuffix(grant, "*")
	return wild && len(all) > 1 && strings.HasSuffix(all, ":") &&
		len(capability) > len(all) && strings.HasPrefix(capability, all)
}

// At is the snapshot without the grants that have ended at a time: what the
// principal may do then, and what its Digest should cover (R140).
func (s Snapshot) At(at time.Time) Snapshot {
	held := make([]Granted, 0, len(s.Capabilities))
	for _, g := range s.Capabilities {
		if g.holds(at) {
			held = append(held, g)
		}
	}
	s.Capabilities = held
	return s
}

// Digest is the SHA-256, in hexadecimal, of the principal and its capabilities
// with their ends (R140, R142). Order, repetition and Seq do not count: the same
// authority, granted anew, has the same digest.
func (s Snapshot) Digest() string {
	grants := make([]string, 0, len(s.Capabilities))
	for _, g := range s.Capabilities {
		until := ""
		if !g.Until.IsZero() {
			until = g.Until.UTC().Format(time.RFC3339Nano)
		}
		grants = append(grants, g.Capability+"\x00"+until)
	}
	slices.Sort(grants)
	// A string and a list of strings always have a JSON form.
	canonical, _ := json.Marshal([]any{s.Principal, slices.Compact(grants)})
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}
