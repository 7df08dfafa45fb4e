// Package cores holds the declarations of a home's agent cores in memory and
// records what became of each revision. Beside them it has what was installed, which
// the log has but for the secrets.
//
// Declarations may hold literal secrets, so they are not in the log: that has
// their summaries and fingerprints only, and the declarations are read again at
// every start (decision 6). A core in git is read from a commit, never from the
// work tree, and a core outside git from its directory (decision 5).
//
// Of the processes of a home the runtime records what it reads, and workers
// follow it: a worker has exactly the declarations that the log says are live, or
// takes on nothing, and ends when it cannot get them. So no two processes argue
// about what a server is.
package cores

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// Worktree is the revision of a core that is not in git.
const Worktree = "worktree"

// Spec names one core: its id in the log and its directory.
type Spec struct{ ID, Dir string }

// Specs names the cores in the directories: by the base name of each, made
// distinct where two are called the same.
func Specs(dirs []string) ([]Spec, error) {
	var specs []Spec
	used := map[string]bool{}
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		id := filepath.Base(dir)
		if used[id] {
			sum := sha256.Sum256([]byte(dir))
			id += "-" + hex.EncodeToString(sum[:4])
		}
		used[id] = true
		specs = append(specs, Spec{ID: id, Dir: dir})
	}
	return specs, nil
}

// Server is one declared server, or one that was installed.
type Server struct {
	declaration.Declaration
	Core, Revision string
	// Overrides tighten single tools, by raw name (R69).
	Overrides map[string]authority.Override
	// Installation is what was installed; the zero one of a declared server. What is
	// enabled there is what every level of policy allows (R177).
	Installation server.Installation
	// Implicit says that a turn has the tools of an installed server without selecting
	// it (R178), as it has those of every declared one.
	Implicit bool
}

// Request asks for a session's connection to the server, on the facts that the
// model has now: they must not change before the answer is in the log, so it is
// built under the locks of [Server.Reads]. For an installed server whose connection it is
// does not count: all share it, on the authority and the yes of who installed it (C12).
func (s Server) Request(m *bus.Model, workspace, principal, sessionID string, at time.Time) connection.Request {
	r := s.request(m, workspace, principal, sessionID, at)
	if s.Installed {
		r.Session, r.Approval = "", s.Installation.Approval
		r.Authority = m.Installer(workspace, s.Installation.By, s.ServerID)
	}
	return r
}

func (s Server) request(m *bus.Model, workspace, principal, sessionID string, at time.Time) connection.Request {
	policies := m.Policies.Get(workspace, workspace)
	return connection.Request{
		Session: sessionID, Server: s.ServerID, Fingerprint: s.Fingerprint, CoreRevision: s.Revision,
		Transport: string(s.Transport), Risk: string(s.Risk),
		Authority: m.Authority(workspace, principal),
		Policy: authority.ConnectPolicy(s.ApprovalPolicy, authority.Subject{
			Server: s.ServerID, Capability: s.ConnectCapability(), Risk: s.Risk,
		}, policies.Rules(s.ServerID)...),
		PolicySequence: policies.Seq, At: at,
	}
}

// Private asks for the connection of an attachment to the server beside the one that
// its session shares, on what that one's approval and the principal's authority allow
// (decision 3). It is to be called under the locks of [bus.AuthorityReads].
func (s Server) Private(m *bus.Model, workspace, principal, sessionID string, of Attachment, at time.Time) connection.Request {
	r := s.request(m, workspace, principal, sessionID, at)
	shared := m.Connections.Get(workspace, s.Connection(sessionID))
	r.Attachment, r.Runtime = of.ID, of.Runtime
	r.Offers = connection.Permitted(of.Offers, s.ServerID, r.Authority, at)
	r.Approval = shared.Covering(r.Fingerprint, r.PolicySequence)
	return r
}

// Attachment is an MCP client of the handshake era, in the process Runtime, that
// servers may ask what it offers.
type Attachment struct {
	ID, Runtime string
	Offers      []string
}

// Cores reads the cores of one workspace. It is safe for concurrent use.
type Cores struct {
	model     *bus.Model
	workspace string
	home      string // whose installations count
	specs     []Spec
	log       *slog.Logger
	follows   bool // what the log says is live

	loading sync.Mutex // held over a load, so that two do not cross

	mu      sync.RWMutex
	loads   map[string][]Server // by core
	digests map[string]string   // of the loads
	roots   map[string]string   // where the declarations of a core were, from its directory
}

// New makes Cores, with the installations of a home beside them; nothing is read before
// Load.
func New(model *bus.Model, workspace, home string, specs []Spec, log *slog.Logger) *Cores {
	return &Cores{
		model: model, workspace: workspace, home: home, specs: specs, log: log,
		loads: map[string][]Server{}, digests: map[string]string{}, roots: map[string]string{},
	}
}

// Follow makes Cores that record nothing: they activate what another process of
// the home has recorded.
func Follow(model *bus.Model, workspace, home string, specs []Spec, log *slog.Logger) *Cores {
	c := New(model, workspace, home, specs, log)
	c.follows = true
	return c
}

// Follows reports whether another process records what is loaded.
func (c *Cores) Follows() bool { return c.follows }

// Specs are the cores that are read.
func (c *Cores) Specs() []Spec { return c.specs }

// Servers are the declared servers, disabled ones included, in the order of
// cores and files, and then the installed ones by name.
func (c *Cores) Servers() []Server {
	out := c.declared()
	return append(out, c.installed(out)...)
}

func (c *Cores) declared() []Server {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []Server
	for _, s := range c.specs {
		out = append(out, c.loads[s.ID]...)
	}
	return out
}

// Server finds a server.
func (c *Cores) Server(id string) (Server, bool) {
	for _, s := range c.declared() {
		if s.ServerID == id {
			return s, true
		}
	}
	return c.ours(c.model.Servers.Get(c.workspace, server.Key(server.ScopeWorkspace, c.workspace, id)))
}

// Loaded is what became of one core.
type Loaded struct {
	Core, Revision string
	Servers        int
	// Diagnostics are problems and warnings; Failed says that the revision was
	// not activated and the one before stays.
	Diagnostics []declaration.Diagnostic
	Failed      bool
}

// Load reads every core again and activates what is valid. Its error is that of
// the log; what is wrong with a core is in the result.
func (c *Cores) Load(ctx context.Context, actor string) ([]Loaded, error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	var out []Loaded
	for _, spec := range c.specs {
		l, err := c.load(ctx, spec, actor)
		if err != nil {
			return out, err
		}
		out = append(out, l)
	}
	return out, nil
}

func (c *Cores) load(ctx context.Context, spec Spec, actor string) (Loaded, error) {
	declared, diags, revision := read(ctx, spec.Dir)
	diags = append(diags, c.elsewhere(spec, declared.Declarations)...)
	out := Loaded{Core: spec.ID, Revision: revision, Diagnostics: diags}

	cmd := core.Load{Revision: revision}
	problems := sha256.New()
	for _, d := range diags {
		fmt.Fprintf(problems, "%s\x00%d\x00%s\x00%s\x00", d.Path, d.Line, d.Field, d.Code)
		switch {
		case d.Warning:
			cmd.Warnings = append(cmd.Warnings, events.DeclarationWarning{
				Revision: revision, Path: d.Path, Line: uint32(d.Line), Field: d.Field, Code: string(d.Code), Message: redact.Name(d.Message),
			})
		case d.Path != "":
			cmd.Invalid = append(cmd.Invalid, events.DeclarationInvalid{
				Revision: revision, Path: d.Path, Line: uint32(d.Line), Field: d.Field, Code: string(d.Code), Message: redact.Name(d.Message),
			})
			fallthrough
		default:
			cmd.Code = string(declaration.CoreLoadFailed)
		}
	}
	cmd.Problems = hex.EncodeToString(problems.Sum(nil))

	digest := sha256.New()
	var servers []Server
	for _, d := range declared.Declarations {
		fmt.Fprintf(digest, "%s\n", d.Fingerprint)
		servers = append(servers, Server{
			Declaration: d, Core: spec.ID, Revision: revision, Overrides: declared.Overrides[d.ServerID],
		})
		cmd.Loaded = append(cmd.Loaded, events.DeclarationLoaded{
			Revision: revision, Path: d.Path, Server: d.ServerID, Fingerprint: d.Fingerprint, Enabled: d.Enabled,
			Transport: string(d.Transport), Risk: string(d.Risk), ApprovalPolicy: string(d.ApprovalPolicy),
			Capability: d.Capability, ConnectTimeoutMs: uint32(d.ConnectTimeout.Milliseconds()),
			CallTimeoutMs: uint32(d.CallTimeout.Milliseconds()), Parallel: d.Parallel,
		})
		if !d.Enabled {
			cmd.Ignored = append(cmd.Ignored, events.DeclarationIgnored{
				Revision: revision, Path: d.Path, Server: d.ServerID, Reason: "disabled",
			})
		}
	}
	// What is said about single tools counts as well; maps are written in order.
	if err := json.NewEncoder(digest).Encode(declared.Overrides); err != nil {
		return out, err
	}
	cmd.Digest = hex.EncodeToString(digest.Sum(nil))

	if c.follows {
		out.Failed = c.model.Cores.Get(c.workspace, spec.ID).Digest != cmd.Digest
	} else if _, err := c.model.Cores.Dispatch(ctx, c.workspace, spec.ID, bus.Meta{
		Actor: actor, Principal: actor, Scope: events.Scope{Core: spec.ID},
	}, cmd); err != nil {
		return out, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots[spec.ID] = declared.Root
	if out.Failed = out.Failed || cmd.Code != ""; out.Failed {
		return out, nil
	}
	out.Servers = len(servers)
	c.loads[spec.ID], c.digests[spec.ID] = servers, cmd.Digest
	return out, nil
}

// Current makes sure that the declarations are those that the log says are live,
// and reads them again where they are not. Its error is of kind conflict where
// they cannot be had here.
func (c *Cores) Current(ctx context.Context) error {
	if !c.follows {
		return nil
	}
	if len(c.specs) == 0 {
		// It would say of every tool of the home that there is none.
		for at, s := range c.model.Cores.All() {
			if at.Workspace == c.workspace && s.Revision != "" {
				return fault.New("cores", fault.Conflict, redact.Name("there is no core here, and the home has loaded "+at.Key+": a worker has the cores of its runtime"))
			}
		}
	}
	if c.stale() == "" {
		return nil
	}
	if _, err := c.Load(ctx, ""); err != nil {
		return err
	}
	if core := c.stale(); core != "" {
		return fault.New("cores", fault.Conflict, redact.Name("the core "+core+" is not here as the home has loaded it"))
	}
	return nil
}

// stale is a core that is not the live one.
func (c *Cores) stale() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, s := range c.specs {
		if digest, ok := c.digests[s.ID]; !ok || digest != c.model.Cores.Get(c.workspace, s.ID).Digest {
			return s.ID
		}
	}
	return ""
}

// elsewhere finds servers that another core declares already, or that somebody has
// installed: one id is one server of the workspace (R8).
func (c *Cores) elsewhere(spec Spec, declared []declaration.Declaration) []declaration.Diagnostic {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []declaration.Diagnostic
	for _, d := range declared {
		key := server.Key(server.ScopeWorkspace, c.workspace, d.ServerID)
		if s := c.model.Servers.Get(c.workspace, key); s.Installed {
			out = append(out, declaration.Diagnostic{
				Path: d.Path, Code: declaration.DuplicateServerID,
				Message: "a server of that name is installed: gatebus server rm " + d.ServerID + " removes it",
			})
		}
	}
	for _, other := range c.specs {
		if other.ID == spec.ID {
			continue
		}
		for _, d := range declared {
			if i := slices.IndexFunc(c.loads[other.ID], func(s Server) bool { return s.ServerID == d.ServerID }); i >= 0 {
				out = append(out, declaration.Diagnostic{
					Path: d.Path, Code: declaration.DuplicateServerID,
					Message: "the server is also declared by core " + other.ID + " in " + c.loads[other.ID][i].Path,
				})
			}
		}
	}
	return out
}
