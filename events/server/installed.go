package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/toolname"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// refPrefix begins each reference of an MCP server (R81).
const refPrefix = "gateway_settings:mcp:"

// Item is the name of a value in the keystore: a version of a reference, so that a new
// value never takes the place of one that is in use (R83).
func Item(ref, version string) string { return ref + "@" + version }

// Secret is a version of a reference, and its value where it is to be stored.
type Secret struct {
	Ref, Version string
	Value        redact.Raw[string]
}

// Item is its name in the keystore.
func (s Secret) Item() string { return Item(s.Ref, s.Version) }

// Terms are what an item is installed under.
type Terms struct {
	ScopeKind, ScopeKey string
	// Home is the id of the home that has the secrets.
	Home string
	// Key makes the digests of kept values in the fingerprint: only who has it can tell
	// two values apart by them.
	Key []byte
	// Version is that of every value that is new: a fresh one for each plan.
	Version string
	// Approval is the yes that stands for it, By who gave it.
	Approval, By string
	// Enabled and Implicit are of the request; what the item says goes first. Nothing is
	// enabled and not implicit (R34).
	Enabled, Implicit *bool
	// Before is what is installed now under the name, and Value what the keystore has of
	// it, by item. An equal value keeps its version.
	Before Installation
	Value  func(item string) (redact.Raw[string], bool)
}

// Planned is what an item comes to: Put is to be stored before the commit of
// Installation, and Stale to be deleted behind it (R83).
type Planned struct {
	Installation events.Installation
	Put          []Secret
	Stale        []Secret
}

// Plan makes an installation of a valid item. All values of variables and headers are
// kept in the keystore (R81), and so is an argument, a command or a URL that a view for
// the log would change; of such a URL the origin stays. What is planned holds no value
// of a secret but in Put.
func Plan(item declaration.Item, t Terms) (Planned, error) {
	const op = "server.plan"
	if len(t.Key) == 0 || t.Version == "" {
		return Planned{}, fault.New(op, fault.Internal, redact.Static("there is no key for digests, or no version"))
	}
	d := declaration.Declaration{
		Transport: item.Transport, Command: item.Command, Args: item.Args, Env: item.Env, Cwd: item.Cwd, URL: item.URL, Headers: item.Headers,
	}
	command, args, url, err := d.Secretive()
	if err != nil {
		return Planned{}, fault.Wrap(op, fault.RedactionFailed, redact.Static("the secrets of the server cannot be told apart"), err)
	}
	p := planner{
		Terms: t, in: strings.Join([]string{refPrefix[:len(refPrefix)-1], t.ScopeKind, t.ScopeKey, item.Name, ""}, ":"),
		before: t.Before.Secrets(), used: make(map[string]bool),
	}
	out := events.Installation{
		ScopeKind: t.ScopeKind, ScopeKey: t.ScopeKey, Name: item.Name, Home: t.Home, Transport: string(item.Transport),
		Command: p.text(command, declaration.PlaceCommand, 0, item.Command), Cwd: view(item.Cwd),
		Env: p.table(declaration.PlaceEnv, item.Env), Url: p.text(url, declaration.PlaceURL, 0, item.URL.Reveal()),
		Headers: p.table(declaration.PlaceHeader, item.Headers), StartupTimeoutS: seconds(item.StartupTimeout),
		ToolTimeoutS: seconds(item.ToolTimeout), Required: item.Required, Parallel: item.Parallel,
		Enabled: either(item.Enabled, t.Enabled, true), Implicit: either(item.Implicit, t.Implicit, false), Approval: t.Approval, By: t.By,
	}
	for i, a := range item.Args.Reveal() {
		out.Args = append(out.Args, p.text(args[i], declaration.PlaceArg, i, a))
	}
	out.Fingerprint, err = p.fingerprint(out)
	if err != nil {
		return Planned{}, fault.Wrap(op, fault.Internal, redact.Static("the installation has no JSON form"), err)
	}
	if target, reason := urlpolicy.Parse(item.URL.Reveal()); url && reason == urlpolicy.Allowed {
		out.Url.Text = view(target.Origin())
	}
	var stale []Secret
	for _, ref := range slices.Sorted(maps.Keys(p.before)) {
		if version := p.before[ref]; !p.used[Item(ref, version)] {
			stale = append(stale, Secret{Ref: ref, Version: version})
		}
	}
	return Planned{Installation: out, Put: p.put, Stale: stale}, nil
}

// view is a text that holds no secret, or what is left of one that does.
func view(text string) redact.EventText { return byForm.Text(redact.NewRaw(text)).Event }

// byForm knows secrets by their form alone.
var byForm, _ = redact.NewRedactor() // no error without a secret

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }

// either is the first that is said.
func either(first, second *bool, absent bool) bool {
	switch {
	case first != nil:
		return *first
	case second != nil:
		return *second
	}
	return absent
}

type planner struct {
	Terms
	in      string            // begins the references
	before  map[string]string // versions of the references that are in use
	used    map[string]bool   // items that stay in use
	put     []Secret
	digests [][2]string
}

// keep plans where a value is to be kept.
func (p *planner) keep(place declaration.Place, key, value string) (ref, version string) {
	ref = p.in + string(place) + ":" + key
	if version, ok := p.before[ref]; ok && p.Value != nil {
		if had, ok := p.Value(Item(ref, version)); ok && had.Reveal() == value {
			p.used[Item(ref, version)] = true
			return ref, version
		}
	}
	p.put = append(p.put, Secret{ref, p.Version, redact.NewRaw(value)})
	return ref, p.Version
}

// text is a text as it is, or where it is kept. A kept one is part of what makes the
// server another one, unlike a variable (R40), by its digest.
func (p *planner) text(secretive bool, place declaration.Place, index int, value string) events.TextRef {
	if !secretive {
		return events.TextRef{Text: view(value)}
	}
	ref, version := p.keep(place, strconv.Itoa(index), value)
	mac := hmac.New(sha256.New, p.Key)
	mac.Write([]byte(ref + "\x00" + value))
	p.digests = append(p.digests, [2]string{ref, hex.EncodeToString(mac.Sum(nil))})
	return events.TextRef{Ref: ref, Version: version}
}

// table are references to the values of names, in their order.
func (p *planner) table(place declaration.Place, values map[string]redact.Raw[string]) (out []events.SecretRef) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := name
		if place == declaration.PlaceHeader {
			key = strings.ToLower(name)
		}
		ref, version := p.keep(place, key, values[name].Reveal())
		out = append(out, events.SecretRef{Key: name, Ref: ref, Version: version})
	}
	return out
}

// fingerprint is over all that makes it another server: not over the values of variables
// and headers, and not over the policy (R40).
func (p *planner) fingerprint(i events.Installation) (string, error) {
	texts := func(list ...events.TextRef) (out []string) {
		for _, t := range list {
			out = append(out, t.Text.String(), t.Ref)
		}
		return out
	}
	refs := func(list []events.SecretRef) (out []string) {
		for _, s := range list {
			out = append(out, s.Key, s.Ref)
		}
		return out
	}
	body, err := json.Marshal(map[string]any{
		"source": "installed", "scope_kind": i.ScopeKind, "scope_key": i.ScopeKey, "name": i.Name, "transport": i.Transport,
		"command": texts(i.Command), "args": texts(i.Args...), "cwd": i.Cwd.String(), "env": refs(i.Env), "url": texts(i.Url),
		"headers": refs(i.Headers), "kept": p.digests, "startup_timeout_sec": i.StartupTimeoutS, "tool_timeout_sec": i.ToolTimeoutS,
		"required": i.Required, "parallel": i.Parallel,
	})
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), err
}

// Declaration is the installed server in the form of a declared one, for everything that
// connects and calls: with placeholders for what is kept, which its Resolve replaces.
// Whether the policy of the gateway allows it is not in it (R177).
func (s State) Declaration() declaration.Declaration {
	i := s.Installation
	d := declaration.Declaration{
		ServerID: i.Name, Enabled: s.Installed && s.Enabled, Transport: declaration.Transport(i.Transport), Cwd: i.Cwd,
		Include: toolname.Patterns(nil), Exclude: toolname.Patterns(nil), Risk: authority.Medium, ApprovalPolicy: authority.Prompt,
		ConnectTimeout: i.StartupTimeout, CallTimeout: i.ToolTimeout, Parallel: i.Parallel, Fingerprint: i.Fingerprint, Installed: true,
	}
	kept := func(k declaration.Kept, t TextRef) string {
		if t.Ref == "" {
			return t.Text
		}
		k.Item = Item(t.Ref, t.Version)
		d.Kept = append(d.Kept, k)
		return "${secret:" + k.Item + "}"
	}
	table := func(place declaration.Place, list []events.SecretRef) map[string]redact.Raw[string] {
		values := make(map[string]redact.Raw[string], len(list))
		for _, r := range list {
			values[r.Key] = redact.NewRaw(kept(declaration.Kept{Place: place, Name: r.Key}, TextRef{Ref: r.Ref, Version: r.Version}))
		}
		return values
	}
	d.Command = kept(declaration.Kept{Place: declaration.PlaceCommand}, i.Command)
	var args []string
	for n, a := range i.Args {
		args = append(args, kept(declaration.Kept{Place: declaration.PlaceArg, Index: n}, a))
	}
	d.Args = redact.NewRaw(args)
	url := kept(declaration.Kept{Place: declaration.PlaceURL}, i.URL)
	if i.URL.Ref != "" && i.URL.Text != "" {
		url = i.URL.Text // its origin, which can be judged
	}
	d.URL = redact.NewRaw(url)
	d.Env, d.Headers = table(declaration.PlaceEnv, i.Env), table(declaration.PlaceHeader, i.Headers)
	return d
}
