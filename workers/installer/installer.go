// Package installer keeps what a person installs: it answers the methods that install,
// change and remove servers and their secrets, and deletes the secrets that nothing
// refers to.
//
// A value is written under a version of its own, then one commit refers to it, then
// what the commit refers to no more is deleted (R83): whatever the moment of a crash,
// what is installed has its secrets. Both ends of that are kept by a durable job,
// which is stored before the first value is: it deletes, once nobody is between a put
// and its commit, what no installation refers to. So it is the same work that ends a
// rotation, a removal, an installation that failed and one whose process died, and
// that the garbage collection does when a person asks for it (R91).
//
// That nobody is in between is what a lock says, which ends with the process that has
// it. A commit of another process may then still be on its way to the log: what is
// too young for that to be known is left for a while.
//
// Of two who change one server at the same time the later one decides anew on what
// the first one made, by the expected sequence of the aggregate.
package installer

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/events/redact"
)

// Store has the values of secrets, each under an item. It is shared by the processes
// of a home.
type Store interface {
	Get(ctx context.Context, item string) (redact.Raw[string], bool, error)
	Put(ctx context.Context, item string, value redact.Raw[string]) error
	Delete(ctx context.Context, item string) error
	Items(ctx context.Context) ([]string, error)
}

const (
	// landing is how long a commit can be on its way to the log: as long as a cluster
	// may have no leader, and what its process has sent may wait.
	landing = 15 * time.Second
	// stopping bounds the wait for the end of a server that was uninstalled, whose
	// secrets are deleted behind it (R85).
	stopping = 20 * time.Second
)

// Config is what an Installer needs. All fields are required.
type Config struct {
	Bus       *bus.Bus
	Model     *bus.Model
	Store     Store
	Workspace string
	// Home is the id of the home in the log, Dir its directory.
	Home, Dir string
	// Key is that of the digests of what is in the keystore and tells one server from
	// another.
	Key []byte
	// Provider says where the key of the keystore is.
	Provider func(ctx context.Context) string
	// Identity says who makes a request, when he has one of the roles.
	Identity func(r *bus.Request, roles ...string) (client.Identity, error)
	// Declared says where a core declares a server.
	Declared func(name string) (where string, ok bool)
	// Settle returns when no process of the home decides any more on a state of the
	// aggregate that is older than the one here.
	Settle func(ctx context.Context, workspace string, id events.AggregateID) error
	Log    *slog.Logger
}

// Installer installs servers. It is safe for concurrent use.
type Installer struct {
	Config
	lock lock
	jobs string // the kind of those of this home
}

// New makes an Installer.
func New(c Config) *Installer {
	return &Installer{Config: c, lock: newLock(filepath.Join(c.Dir, "run", "secrets.lock")), jobs: "secrets-" + c.Home}
}

// Run deletes what nothing refers to any more until ctx ends.
func (i *Installer) Run(ctx context.Context) error {
	err := i.Bus.ConsumeJobs(ctx, i.jobs, 1, i.tidy)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Methods are those that it answers; all of them are an operator's (decision 2).
func (i *Installer) Methods() []bus.Method {
	var all []bus.Method
	for _, m := range []struct {
		name string
		fn   func(ctx context.Context, id client.Identity, r *bus.Request) (any, error)
	}{
		{"mcp/install", i.install},
		{"mcp/policy/set", i.setPolicy},
		{"mcp/uninstall", i.uninstall},
		{"mcp/server/restart", i.restart},
		{"secret/set", i.setSecret},
		{"secret/delete", i.deleteSecret},
		{"secret/collect", i.collect},
	} {
		all = append(all, bus.Method{Name: m.name, Handle: func(ctx context.Context, r *bus.Request) (any, error) {
			id, err := i.Identity(r, host.RoleOperator)
			if err != nil {
				return nil, err
			}
			return m.fn(ctx, id, r)
		}})
	}
	return all
}

// meta is the envelope of what the home does by itself.
func (i *Installer) meta(name string) bus.Meta {
	return bus.Meta{Actor: bus.Runtime, Principal: bus.Runtime, Scope: events.Scope{Server: name}}
}

// asked is the envelope of what a person asked for.
func asked(id client.Identity, r *bus.Request, name string) bus.Meta {
	return bus.Meta{Command: r.Command, Correlation: r.Correlation, Actor: id.Actor, Principal: id.Principal, Scope: events.Scope{Server: name}}
}

// settled makes a change of a server hold at every process of the home.
func (i *Installer) settled(ctx context.Context, workspace, key string) error {
	return i.Settle(ctx, workspace, events.AggregateID{Kind: events.KindServer, Key: key})
}
