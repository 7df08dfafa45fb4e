// Package server decides the life of an installed server: what was installed, the
// policy of the installation, the versions of its secrets, and its state, which is
// one of ten and moves as section 3 of the requirements has it (R160).
//
// An aggregate is an installation, named by [Key], or the keystore of a home, named
// by [HomeKey], which has events about all of its secrets and none of the rest.
//
// What runs is decided elsewhere: a server is reached over a connection, whose
// events come to nothing here until the lifecycle reports them with [Observe].
package server

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The scopes of an installation (R36).
const (
	ScopeWorkspace = "workspace"
	ScopeUser      = "user"
)

// UserKey is the key of the scope user: this release has one user.
const UserKey = "default"

// Key is the key of the aggregate of an installation. A name has no colon (R27), so
// that no two of them are one.
func Key(scopeKind, scopeKey, name string) string {
	if scopeKind == ScopeWorkspace {
		return name
	}
	return scopeKind + ":" + scopeKey + ":" + name
}

// HomeKey is the key of the aggregate of the keystore of a home.
func HomeKey(home string) string { return homePrefix + home }

const homePrefix = "home:"

// Name is the name of the server that a key is of; a keystore has none.
func Name(key string) (name string, ok bool) {
	return key[strings.LastIndex(key, ":")+1:], !strings.HasPrefix(key, homePrefix)
}

// TextRef is a text, or where the keystore has it.
type TextRef struct{ Text, Ref, Version string }

// Installation is what is installed, without the policy, which State has.
type Installation struct {
	ScopeKind, ScopeKey, Name   string
	Home                        string
	Fingerprint                 string
	Transport                   string
	Command                     TextRef
	Args                        []TextRef
	Cwd                         string
	Env                         []events.SecretRef
	URL                         TextRef
	Headers                     []events.SecretRef
	StartupTimeout, ToolTimeout time.Duration
	Required, Parallel          bool
	// Approval is the yes that stands, By who gave it.
	Approval, By string
}

// Secrets are the versions of the references that it has.
func (i Installation) Secrets() map[string]string {
	out := make(map[string]string)
	for _, t := range i.texts() {
		if t.Ref != "" {
			out[t.Ref] = t.Version
		}
	}
	for _, s := range slices.Concat(i.Env, i.Headers) {
		out[s.Ref] = s.Version
	}
	return out
}

func (i Installation) texts() []TextRef { return append([]TextRef{i.Command, i.URL}, i.Args...) }

// rotated is the installation with another version of a reference.
func (i Installation) rotated(ref, version string) Installation {
	text := func(t TextRef) TextRef {
		if t.Ref == ref {
			t.Version = version
		}
		return t
	}
	i.Command, i.URL, i.Args = text(i.Command), text(i.URL), slices.Clone(i.Args)
	for n, t := range i.Args {
		i.Args[n] = text(t)
	}
	secrets := func(list []events.SecretRef) []events.SecretRef {
		list = slices.Clone(list)
		for n := range list {
			if list[n].Ref == ref {
				list[n].Version = version
			}
		}
		return list
	}
	i.Env, i.Headers = secrets(i.Env), secrets(i.Headers)
	return i
}

// State is what the decider reads of one installation, or of one keystore.
type State struct {
	// Installation is the last one: what was uninstalled has secrets to delete and a
	// process to stop.
	Installation Installation
	Installed    bool
	// Enabled and Implicit are the policy of the installation; that of the gateway must
	// allow it too (R177).
	Enabled, Implicit bool

	// Status is where it is since Since, Reason why.
	Status Status
	Since  time.Time
	Reason string
	// RetryAttempt is how often it has failed in a row, NextRetryAt when it is tried
	// again; zero where it is not by itself.
	RetryAttempt uint32
	NextRetryAt  time.Time
	// Generation is the highest of an opening that was seen.
	Generation uint32
	// Catalog is the version of what it listed last.
	Catalog string
	// Rotated is the sequence at which a secret of the installation got another value
	// last: an opening of before has the old one (R88).
	Rotated uint64

	// Last is the time of its newest commit.
	Last time.Time

	// Provider has the key of the keystore, and ProviderReason says why that one.
	Provider, ProviderReason string
}

// Secrets are the versions of the references that are in use; none of what was
// uninstalled.
func (s State) Secrets() map[string]string {
	if !s.Installed {
		return nil
	}
	return s.Installation.Secrets()
}

// Command is a request about an installed server, or about a keystore.
type Command interface{ command() }

// Install installs a server, or installs it again: what is enabled and implicit
// stays then (R35), and so does the yes while it covers the server. Nothing happens
// where it is installed as it is.
type Install struct {
	Installation events.Installation
	// Secrets were put into the keystore for it (R83).
	Secrets []events.SecretStored
}

// SetPolicy changes what is not nil (R38).
type SetPolicy struct{ Enabled, Implicit *bool }

// Uninstall removes the installation.
type Uninstall struct{}

// StoreSecret says that a secret that is in use has a new value (R88).
type StoreSecret struct{ Secret events.SecretStored }

// DropSecret says that the keystore has a value no more, or that it could not be
// deleted and why.
type DropSecret struct{ Ref, Version, Failed string }

// Collect says what a garbage collection of the home came to.
type Collect struct{ Collected events.SecretsCollected }

// FailCollect says that it did not begin (R93).
type FailCollect struct{ Reason string }

// SelectKeystore says where the home has the key of its keystore.
type SelectKeystore struct {
	Provider string
	Reason   redact.EventText
}

// Observe says what became of the server.
type Observe struct {
	To      Status
	Reason  string
	Message redact.EventText
	// Generation is that of the opening that it is about; 0 where it is about none.
	Generation uint32
	// Catalog is what it listed last; empty where that is as it was.
	Catalog string
	// RetryAt is when a failed one is tried again; zero where it is not.
	RetryAt time.Time
}

// Boot says that a process serves the home from now on: whatever the state was, nothing
// runs (R172).
type Boot struct {
	// Disabled says that the policy of the gateway forbids it.
	Disabled bool
}

func (Install) command()        {}
func (SetPolicy) command()      {}
func (Uninstall) command()      {}
func (StoreSecret) command()    {}
func (DropSecret) command()     {}
func (Collect) command()        {}
func (FailCollect) command()    {}
func (SelectKeystore) command() {}
func (Observe) command()        {}
func (Boot) command()           {}

// Decide answers a command with the events that happen.
func Decide(s State, cmd Command) ([]events.Event, error) {
	switch c := cmd.(type) {
	case Install:
		return install(s, c)
	case SetPolicy:
		return setPolicy(s, c)
	case Uninstall:
		if !s.Installed {
			return nil, unknown("server.uninstall")
		}
		return []events.Event{events.ServerUninstalled{Fingerprint: s.Installation.Fingerprint}}, nil
	case StoreSecret:
		version, used := s.Secrets()[c.Secret.Ref]
		switch {
		case !used:
			return nil, fault.New("secret.set", fault.NotFound, redact.Static("the server does not use the secret"))
		case version == c.Secret.Version:
			return nil, nil
		}
		return []events.Event{c.Secret}, nil
	case DropSecret:
		if c.Failed != "" {
			return []events.Event{events.SecretDeleteFailed{Ref: c.Ref, Version: c.Version, Reason: c.Failed}}, nil
		}
		return []events.Event{events.SecretDeleted{Ref: c.Ref, Version: c.Version}}, nil
	case Collect:
		return []events.Event{c.Collected}, nil
	case FailCollect:
		return []events.Event{events.SecretsGcFailed{Reason: c.Reason}}, nil
	case SelectKeystore:
		if s.Provider == c.Provider && s.ProviderReason == c.Reason.String() {
			return nil, nil
		}
		return []events.Event{events.KeystoreSelected{Provider: c.Provider, Reason: c.Reason}}, nil
	case Observe:
		return observe(s, c)
	case Boot:
		return boot(s, c), nil
	}
	return nil, nil
}

func unknown(op string) error {
	return fault.New(op, fault.NotFound, redact.Static("no server of that name is installed"))
}

func install(s State, c Install) ([]events.Event, error) {
	i := c.Installation
	secrets := installed(i).Secrets()
	var out []events.Event
	for _, e := range c.Secrets {
		if version, ok := secrets[e.Ref]; !ok || version != e.Version {
			return nil, fault.New("server.install", fault.InvalidInput, redact.Static("a secret was stored that the installation does not refer to"))
		}
		out = append(out, e)
	}
	if !s.Installed {
		out = append([]events.Event{events.ServerInstalled{Installation: i}}, out...)
		// What was uninstalled a moment ago may run still, and moves on from there.
		if s.Status.resting() {
			anew := State{Generation: s.Generation}
			out = append(out, anew.moved(begin(i.Enabled), Observe{Reason: ReasonInstalled}))
		}
		return out, nil
	}
	if s.Installation.Home != i.Home {
		return nil, fault.New("server.install", fault.DuplicateServerID, redact.Static("another home has installed a server of that name, and has its secrets"))
	}
	i.Enabled, i.Implicit = s.Enabled, s.Implicit
	if s.Installation.Fingerprint == i.Fingerprint && s.Installation.By == i.By {
		i.Approval = s.Installation.Approval
	}
	if len(out) == 0 && reflect.DeepEqual(installed(i), s.Installation) {
		return nil, nil
	}
	updated := events.ServerUpdated{Installation: i, Before: s.Installation.Fingerprint, PolicyPreserved: true}
	return append([]events.Event{updated}, out...), nil
}

func setPolicy(s State, c SetPolicy) ([]events.Event, error) {
	switch {
	case c.Enabled == nil && c.Implicit == nil:
		return nil, fault.New("server.policy", fault.InvalidRequest, redact.Static("give enabled, implicit or both"))
	case !s.Installed:
		return nil, unknown("server.policy")
	}
	before := events.ServerPolicy{Enabled: s.Enabled, Implicit: s.Implicit}
	after := before
	if c.Enabled != nil {
		after.Enabled = *c.Enabled
	}
	if c.Implicit != nil {
		after.Implicit = *c.Implicit
	}
	if after == before {
		return nil, nil
	}
	return []events.Event{events.ServerPolicyChanged{Before: before, After: after}}, nil
}

// Evolve folds one event.
func Evolve(s State, r events.Recorded) State {
	switch e := r.Event.(type) {
	case events.ServerInstalled:
		s.Installation, s.Installed = installed(e.Installation), true
		s.Enabled, s.Implicit = e.Installation.Enabled, e.Installation.Implicit
	case events.ServerUpdated:
		s.Installation = installed(e.Installation)
	case events.ServerPolicyChanged:
		s.Enabled, s.Implicit = e.After.Enabled, e.After.Implicit
	case events.ServerUninstalled:
		s.Installed = false
	case events.SecretStored:
		if e.Ref != "" {
			s.Installation, s.Rotated = s.Installation.rotated(e.Ref, e.Version), r.Seq
		}
	case events.KeystoreSelected:
		s.Provider, s.ProviderReason = e.Provider, e.Reason.String()
	case events.ServerStatusChanged:
		s.Status, s.Reason, s.RetryAttempt, s.Generation, s.Catalog = Status(e.To), e.ReasonCode, e.RetryAttempt, e.Generation, e.CatalogVersion
		s.NextRetryAt, _ = time.Parse(time.RFC3339Nano, e.NextRetryAt)
		s.Since = r.Time
	}
	s.Last = r.Time
	return s
}

// installed is an installation as the state has it. Snapshots hold no view, so that
// its texts are plain ones.
func installed(i events.Installation) Installation {
	text := func(t events.TextRef) TextRef { return TextRef{t.Text.String(), t.Ref, t.Version} }
	out := Installation{
		ScopeKind: i.ScopeKind, ScopeKey: i.ScopeKey, Name: i.Name, Home: i.Home, Fingerprint: i.Fingerprint,
		Transport: i.Transport, Command: text(i.Command), Cwd: i.Cwd.String(), URL: text(i.Url),
		StartupTimeout: time.Duration(i.StartupTimeoutS) * time.Second, ToolTimeout: time.Duration(i.ToolTimeoutS) * time.Second,
		Required: i.Required, Parallel: i.Parallel, Approval: i.Approval, By: i.By,
	}
	for _, t := range i.Args {
		out.Args = append(out.Args, text(t))
	}
	// Appended to nothing, so that none is nil whoever made it.
	out.Env, out.Headers = append(out.Env, i.Env...), append(out.Headers, i.Headers...)
	return out
}
