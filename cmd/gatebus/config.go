package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/live"
)

// Config is the configuration file gatebus.yaml; what is empty keeps its
// default, and a flag wins. The types of the fields check their values as they
// are read, so that every error has its line. schemas/json/config.schema.json is
// made of this type.
type Config struct {
	Listen     Address                     `yaml:"listen" json:"listen,omitempty" jsonschema:"address of the HTTP listener, host:port; port 0 picks one"`
	NATSListen NATSAddress                 `yaml:"nats_listen" json:"nats_listen,omitempty" jsonschema:"address of the NATS listener, host:port, or off"`
	Bus        BusURL                      `yaml:"bus" json:"bus,omitempty" jsonschema:"URL of a bus in place of the embedded one"`
	Workspaces map[WorkspaceName]Workspace `yaml:"workspaces" json:"workspaces,omitempty" jsonschema:"workspaces by name"`
	Durability Durability                  `yaml:"durability" json:"durability,omitempty" jsonschema:"what acknowledged events survive: process (the end of the process, kill -9 too) or power (loss of power too)"`
	Limits     Limits                      `yaml:"limits" json:"limits,omitzero" jsonschema:"upper bounds"`
	// PrivateNetworks are what the operator trusts (R108).
	PrivateNetworks []PrivateNetwork `yaml:"private_networks" json:"private_networks,omitempty" jsonschema:"private addresses that servers may be reached at; none by default"`
	Approvals       Approvals        `yaml:"approvals" json:"approvals,omitzero" jsonschema:"approval policy of this gateway; the strictest of this and the declarations wins"`
	Retention       Retention        `yaml:"retention" json:"retention,omitzero" jsonschema:"what is cut beside the log, which never is"`
}

// Workspace is one workspace.
type Workspace struct {
	Root  string   `yaml:"root" json:"root,omitempty" jsonschema:"root directory, relative to this file"`
	Cores []string `yaml:"cores" json:"cores,omitempty" jsonschema:"agent cores, directories relative to this file"`
}

// Limits are upper bounds (R80, R198, decisions 9 and 25).
type Limits struct {
	MaxFrameBytes           FrameBytes    `yaml:"max_frame_bytes" json:"max_frame_bytes,omitempty" jsonschema:"largest message of a server, in bytes (16777216)"`
	MaxArgumentBytes        ArgumentBytes `yaml:"max_argument_bytes" json:"max_argument_bytes,omitempty" jsonschema:"largest arguments of a call, in bytes (1048576)"`
	MaxServerRequests       MaxRequests   `yaml:"max_server_requests" json:"max_server_requests,omitempty" jsonschema:"requests of a server to its client (sampling, elicitation, roots) that are under way at once on a connection (16)"`
	ServerRequestsPerMinute RequestRate   `yaml:"server_requests_per_minute" json:"server_requests_per_minute,omitempty" jsonschema:"how many of them there are in a minute in the long run (120)"`
	Hold                    Duration      `yaml:"hold" json:"hold,omitempty" jsonschema:"how long a call is held for an approval, like 45s"`
}

// Approvals is the approval policy of the gateway (R52).
type Approvals struct {
	Default   Approval       `yaml:"default" json:"default,omitempty" jsonschema:"what holds where no rule matches: auto, prompt or deny"`
	Rules     []ApprovalRule `yaml:"rules" json:"rules,omitempty" jsonschema:"the strictest rule that matches holds"`
	OnChange  OnChange       `yaml:"on_change" json:"on_change,omitempty" jsonschema:"what happens to a tool that changed after its approval: block or flag"`
	Approvers Approvers      `yaml:"approvers" json:"approvers,omitempty" jsonschema:"who answers: interactive, or none, which denies"`
}

// ApprovalRule is one rule; an empty pattern matches all, * stands for any
// characters.
type ApprovalRule struct {
	Server     string   `yaml:"server" json:"server,omitempty" jsonschema:"pattern of the server"`
	Tool       string   `yaml:"tool" json:"tool,omitempty" jsonschema:"pattern of the raw tool name"`
	Capability string   `yaml:"capability" json:"capability,omitempty" jsonschema:"pattern of the capability"`
	Risk       Risk     `yaml:"risk" json:"risk,omitempty" jsonschema:"low, medium, high or critical"`
	Approval   Approval `yaml:"approval" json:"approval" jsonschema:"auto, prompt or deny"`
}

// UnmarshalYAML reads and checks a rule.
func (r *ApprovalRule) UnmarshalYAML(n *yaml.Node) error {
	type plain ApprovalRule
	if err := n.Load((*plain)(r), yaml.WithKnownFields()); err != nil {
		return err
	}
	if r.Approval == "" {
		return errors.New("the rule lacks approval")
	}
	return nil
}

// Retention is what is cut beside the log (decision 28).
type Retention struct {
	StderrBytes Bytes    `yaml:"stderr_bytes" json:"stderr_bytes,omitempty" jsonschema:"size of the log of what servers write to stderr at which its older half is dropped (16777216)"`
	Audit       Duration `yaml:"audit" json:"audit,omitempty" jsonschema:"how long the audit file keeps rows, reckoned from the newest event, in whole seconds; for ever by default"`
	Blobs       Duration `yaml:"blobs" json:"blobs,omitempty" jsonschema:"how long blobs are kept that nothing refers to"`
}

// Values that are checked as they are read.
type (
	// WorkspaceName is a token of subjects.
	WorkspaceName string
	// Address is host:port.
	Address string
	// NATSAddress is host:port, or off.
	NATSAddress string
	// BusURL is the URL of a NATS server.
	BusURL string
	// Durability is process or power.
	Durability string
	// Approval is auto, prompt or deny.
	Approval string
	// OnChange is block or flag.
	OnChange string
	// Approvers is interactive or none.
	Approvers string
	// Risk is low, medium, high or critical.
	Risk string
	// Bytes is a size above 0.
	Bytes int64
	// FrameBytes bounds a message.
	FrameBytes int64
	// ArgumentBytes bounds arguments.
	ArgumentBytes int64
	// MaxRequests bounds requests at once.
	MaxRequests int64
	// RequestRate bounds requests in a minute.
	RequestRate int64
	// Duration is a length of time like 45s, at least a second.
	Duration time.Duration
)

// The bounds of the numbers. Arguments travel in one message of the bus.
const (
	minFrame, maxFrame         = 64 << 10, 256 << 20
	minArguments, maxArguments = 1 << 10, 4 << 20
	maxRequestRate             = 6000
	minDuration                = time.Second
)

var (
	durabilities = []string{string(bus.Process), string(bus.Power)}
	approvalsOf  = []string{"auto", "prompt", "deny"}
	onChanges    = []string{"block", "flag"}
	approversOf  = []string{"interactive", "none"}
	risks        = []string{"low", "medium", "high", "critical"}
)

// UnmarshalYAML reads and checks a value.
func (w *WorkspaceName) UnmarshalYAML(n *yaml.Node) error {
	if n.Decode((*string)(w)) != nil || !bus.ValidName(string(*w)) {
		return errors.New("a workspace is named by 1 to 64 letters, digits, - and _")
	}
	return nil
}

// UnmarshalYAML reads and checks a value.
func (a *Address) UnmarshalYAML(n *yaml.Node) error {
	if err := n.Decode((*string)(a)); err != nil {
		return err
	}
	return checkAddress(string(*a))
}

func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is no address like 127.0.0.1:7777", s)
	}
	return nil
}

// UnmarshalYAML reads and checks a value.
func (a *NATSAddress) UnmarshalYAML(n *yaml.Node) error {
	if err := n.Decode((*string)(a)); err != nil {
		return err
	}
	if *a == "off" {
		return nil
	}
	return checkAddress(string(*a))
}

// UnmarshalYAML reads and checks a value.
func (b *BusURL) UnmarshalYAML(n *yaml.Node) error {
	if err := n.Decode((*string)(b)); err != nil {
		return err
	}
	u, err := url.Parse(string(*b))
	if err != nil || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Host == "" || u.User != nil {
		return errors.New("must be a URL like nats://host:4222, without a user")
	}
	return nil
}

// UnmarshalYAML reads and checks a value.
func (d *Durability) UnmarshalYAML(n *yaml.Node) error { return word((*string)(d), n, durabilities) }

// UnmarshalYAML reads and checks a value.
func (a *Approval) UnmarshalYAML(n *yaml.Node) error { return word((*string)(a), n, approvalsOf) }

// UnmarshalYAML reads and checks a value.
func (o *OnChange) UnmarshalYAML(n *yaml.Node) error { return word((*string)(o), n, onChanges) }

// UnmarshalYAML reads and checks a value.
func (a *Approvers) UnmarshalYAML(n *yaml.Node) error { return word((*string)(a), n, approversOf) }

// UnmarshalYAML reads and checks a value.
func (r *Risk) UnmarshalYAML(n *yaml.Node) error { return word((*string)(r), n, risks) }

func word(s *string, n *yaml.Node, words []string) error {
	if n.Decode(s) != nil || !slices.Contains(words, *s) {
		return fmt.Errorf("must be one of %s", strings.Join(words, ", "))
	}
	return nil
}

// UnmarshalYAML reads and checks a value.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error { return number((*int64)(b), n, 1, math.MaxInt64) }

// UnmarshalYAML reads and checks a value.
func (f *FrameBytes) UnmarshalYAML(n *yaml.Node) error {
	return number((*int64)(f), n, minFrame, maxFrame)
}

// UnmarshalYAML reads and checks a value.
func (a *ArgumentBytes) UnmarshalYAML(n *yaml.Node) error {
	return number((*int64)(a), n, minArguments, maxArguments)
}

// UnmarshalYAML reads and checks a value.
func (m *MaxRequests) UnmarshalYAML(n *yaml.Node) error {
	return number((*int64)(m), n, 1, live.MaxOpenAsks)
}

// UnmarshalYAML reads and checks a value.
func (r *RequestRate) UnmarshalYAML(n *yaml.Node) error {
	return number((*int64)(r), n, 1, maxRequestRate)
}

func number(i *int64, n *yaml.Node, least, most int64) error {
	if n.Decode(i) != nil || *i < least || *i > most {
		return fmt.Errorf("must be a whole number from %d to %d", least, most)
	}
	return nil
}

// UnmarshalYAML reads and checks a value.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < minDuration {
		return errors.New("must be a length of time like 45s, at least a second")
	}
	*d = Duration(v)
	return nil
}

// PrivateNetwork is a range of addresses, or a host, that the operator trusts,
// on one port or on all.
type PrivateNetwork struct {
	Prefix netip.Prefix // valid for a range
	Host   string       // else a name
	Port   uint16       // 0 is any
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// UnmarshalYAML reads 10.0.0.0/8, 10.0.0.0/8:8443, 10.1.2.3, [fd00::/8]:443,
// host.example or host.example:8443.
func (p *PrivateNetwork) UnmarshalYAML(n *yaml.Node) error {
	text := n.Value
	wrong := fmt.Errorf("%q is no range like 10.0.0.0/8 and no host, with :PORT after it for one port", text)
	if n.ShortTag() != "!!str" {
		return wrong
	}
	place := text
	if _, err := netip.ParseAddr(text); err != nil { // an IPv6 address alone has colons of its own
		if _, err := netip.ParsePrefix(text); err != nil && strings.Contains(text, ":") {
			host, port, err := net.SplitHostPort(text)
			number, portErr := strconv.ParseUint(port, 10, 16)
			if err != nil || portErr != nil || number == 0 {
				return wrong
			}
			place, p.Port = host, uint16(number)
		}
	}
	if prefix, err := netip.ParsePrefix(place); err == nil {
		p.Prefix = prefix.Masked()
		return nil
	}
	if address, err := netip.ParseAddr(place); err == nil && address.Zone() == "" {
		p.Prefix = netip.PrefixFrom(address, address.BitLen())
		return nil
	}
	if !hostName.MatchString(place) {
		return wrong
	}
	p.Host = strings.ToLower(place)
	return nil
}

// maxConfig bounds the file before it is parsed.
const maxConfig = 1 << 20

// loadConfig reads the file of --config, or gatebus.yaml of the home if it is
// there. Errors: config_invalid, with the line of each thing that is wrong.
func (m *Main) loadConfig() (Config, error) {
	path := cmp.Or(m.config, filepath.Join(m.home, "gatebus.yaml"))
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
	case m.config == "" && errors.Is(err, os.ErrNotExist):
		return Config{}, nil
	default:
		return Config{}, &problem{kind: fault.ConfigInvalid, text: err.Error(), hint: "name a file that can be read with -c"}
	}
	return parseConfig(path, data)
}

// parseConfig reads a configuration. Directories in it are made relative to
// that of the file.
func parseConfig(path string, data []byte) (Config, error) {
	c, flaws := readConfig(data)
	if flaws != nil {
		lines := make([]string, len(flaws))
		for i, f := range flaws {
			lines[i] = f.at(path)
		}
		return Config{}, &problem{kind: fault.ConfigInvalid, text: strings.Join(lines, "\n")}
	}
	dir := filepath.Dir(path)
	for name, w := range c.Workspaces {
		w.Root = within(dir, w.Root)
		for i := range w.Cores {
			w.Cores[i] = within(dir, w.Cores[i])
		}
		c.Workspaces[name] = w
	}
	return c, nil
}

// flaw is one thing that is wrong with a configuration. Line and Column count from 1;
// 0 where the file as a whole is meant.
type flaw struct {
	Line, Column int
	Text         string
}

// at is the flaw in one line: file:line: text.
func (f flaw) at(path string) string {
	if f.Line > 0 {
		path += ":" + strconv.Itoa(f.Line)
	}
	return path + ": " + f.Text
}

// readConfig reads a configuration as it stands in its file.
func readConfig(data []byte) (Config, []flaw) {
	if len(data) > maxConfig {
		return Config{}, []flaw{{Text: fmt.Sprintf("is larger than %d bytes", maxConfig)}}
	}
	var documents []Config
	err := yaml.Load(data, &documents, yaml.WithKnownFields(), yaml.WithAllDocuments())
	switch {
	case err != nil:
		return Config{}, configErrors(err)
	case len(documents) == 0:
		return Config{}, nil
	case len(documents) > 1:
		return Config{}, []flaw{{Text: "holds more than one document"}}
	}
	return documents[0], nil
}

func within(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// configErrors is each thing that is wrong.
func configErrors(err error) (flaws []flaw) {
	var found []*yaml.LoadError
	if all, ok := errors.AsType[*yaml.LoadErrors](err); ok {
		found = all.Errors
	} else if one, ok := errors.AsType[*yaml.LoadError](err); ok { // of the syntax
		found = []*yaml.LoadError{one}
	} else {
		return []flaw{{Text: err.Error()}}
	}
	for _, e := range found {
		if nested, ok := errors.AsType[*yaml.LoadErrors](e.Unwrap()); ok {
			flaws = append(flaws, configErrors(nested)...)
			continue
		}
		flaws = append(flaws, flaw{Line: e.Mark.Line, Column: e.Mark.Column, Text: configMessage(e.Message)})
	}
	return flaws
}

var unknownKey = regexp.MustCompile(`^field (.*) not found in type `)

// configMessage says in the words of the file what the library says in those of
// the program.
func configMessage(text string) string {
	text = strings.TrimPrefix(text, "yaml: ")
	if m := unknownKey.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("unknown key %q", m[1])
	}
	if what, ok := strings.CutPrefix(text, "cannot construct "); ok {
		what, _, _ = strings.Cut(what, " into ")
		return "a value of another kind is wanted, not " + what
	}
	return text
}
