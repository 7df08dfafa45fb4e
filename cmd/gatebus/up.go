package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/cmd/gatebus/demo"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/grant"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/cores"
)

// upFlags are the flags of up.
type upFlags struct {
	demo, once                                bool
	detached                                  bool
	cores                                     []string
	listen, natsListen, durability, anonymous string
}

func (m *Main) upCommand() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use: "up", Short: "Run the bus with its workers and serve MCP clients", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file, ok := m.Stderr.(*os.File); f.detached && ok {
				m.Stderr = upLog{file}
			}
			return m.up(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.demo, "demo", false, "run with the bundled demo server, in a home that is gone afterwards")
	flags.BoolVar(&f.once, "once", false, "with --demo: run a scripted session, print its story and stop")
	flags.StringArrayVar(&f.cores, "core", nil, "directory of an agent core; may be repeated")
	flags.StringVar(&f.listen, "listen", "", "loopback address of the HTTP listener (127.0.0.1:7777; port 0 picks one)")
	flags.StringVar(&f.natsListen, "nats-listen", "", "loopback address of the NATS listener (127.0.0.1:0), or off")
	flags.StringVar(&f.durability, "durability", "", "what acknowledged events survive: process (kill -9) or power (loss of power too)")
	flags.StringVar(&f.anonymous, "anonymous", "", "the principal of loopback requests without a token")
	flags.BoolVar(&f.detached, "detached", false, "bound the log that stdio --autostart made of stderr")
	_ = flags.MarkHidden("detached") // it is there
	return cmd
}

// up runs a runtime until it is interrupted.
func (m *Main) up(ctx context.Context, f upFlags) (err error) {
	if f.once && !f.demo {
		return usage("--once goes with --demo")
	}
	if f.durability != "" && !slices.Contains(durabilities, f.durability) {
		return usage("--durability: %q is none of %s", f.durability, strings.Join(durabilities, ", "))
	}
	if f.demo {
		undo, err := m.prepareDemo(&f)
		if err != nil {
			return err
		}
		defer undo()
	}
	config, err := m.loadConfig()
	if err != nil {
		return err
	}
	s, err := m.settings(config, f)
	if err != nil {
		return err
	}
	if s.external, err = m.externalBus(config); err != nil {
		return err
	}
	if s.external != nil && s.natsListen != "" {
		return usage("--nats-listen goes without --bus: the server is not in this process")
	}
	if s.external == nil {
		s.natsListen = cmp.Or(s.natsListen, "127.0.0.1:0")
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	return m.second(ctx, m.serve(ctx, s, func(r *instance) error {
		if f.demo {
			if err := grantDemo(ctx, r); err != nil {
				return err
			}
		}
		if f.once {
			defer done()
			return m.story(ctx, r)
		}
		if err := m.ready(r); err != nil || !f.demo {
			return err
		}
		m.note("The demo server waits for your consent. Point an MCP client at %s, then in another terminal (gatebus is this program, go run ./cmd/gatebus if it is not installed):", r.mcpURL())
		m.note("  export GATEBUS_HOME=%s", m.home)
		m.note("  gatebus tool call demo__echo --as demo --args '{\"text\":\"hello\"}'   asks for the connection")
		m.note("  gatebus approvals list ; gatebus approve ID ; gatebus audit list")
		return nil
	}))
}

// second says of a port in use that it is the runtime of this very home that
// uses it, where that is so: another port would not help then.
func (m *Main) second(ctx context.Context, err error) error {
	var info client.BusInfo
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Kind != fault.PortInUse ||
		m.withBus(ctx, func(bus asker) (e error) { info, e = busInfo(ctx, bus); return e }) != nil {
		return err
	}
	return &problem{kind: fault.HomeLocked, text: fmt.Sprintf("another gatebus holds this home, process %d, and serves %s", info.PID, info.MCP)}
}

// settings joins flags, configuration and defaults; flags win.
func (m *Main) settings(c Config, f upFlags) (settings, error) {
	s := settings{
		home: m.home, workspace: "default", anonymous: f.anonymous, limits: c.Limits, keepAudit: time.Duration(c.Retention.Audit), keepStderr: int64(c.Retention.StderrBytes),
		listen:     cmp.Or(f.listen, string(c.Listen), "127.0.0.1:7777"),
		natsListen: cmp.Or(f.natsListen, string(c.NATSListen)),
		durability: bus.Durability(cmp.Or(f.durability, string(c.Durability), string(bus.Process))),
		lookup:     m.lookupFor(f.demo),
		keystore:   m.keystore(f.demo),
		log:        m.logger(),
		policy: events.Policy{
			Enabled: true, Implicit: true, DefaultApproval: string(c.Approvals.Default),
			OnChange:  cmp.Or(string(c.Approvals.OnChange), "block"),
			Approvers: cmp.Or(string(c.Approvals.Approvers), "interactive"),
		},
	}
	for _, r := range c.Approvals.Rules {
		s.policy.Rules = append(s.policy.Rules, events.ApprovalRule{
			Server: r.Server, Tool: r.Tool, Capability: r.Capability, Risk: string(r.Risk), Approval: string(r.Approval),
		})
	}
	for _, n := range c.PrivateNetworks {
		s.trusted = append(s.trusted, urlpolicy.Trusted(n))
	}
	if c.Retention.Blobs > 0 {
		s.log.Warn("retention of blobs is read and has no effect in this version")
	}
	dirs := f.cores
	switch names := slices.Sorted(maps.Keys(c.Workspaces)); len(names) {
	case 0:
	case 1:
		w := c.Workspaces[names[0]]
		s.workspace, s.root = string(names[0]), w.Root
		dirs = append(slices.Clone(w.Cores), dirs...)
	default:
		return s, usage("workspaces: this version serves one, and %d are configured", len(names))
	}
	if s.anonymous != "" && (authority.CheckPrincipal(s.anonymous) != nil || s.anonymous == bus.Local) {
		return s, usage("--anonymous: %q is no name of a principal", s.anonymous)
	}
	if s.root == "" {
		root, err := os.Getwd()
		if err != nil {
			return s, usage("the working directory is not there")
		}
		s.root = root
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return s, usage("--core: %q is no directory", dir)
		}
	}
	var err error
	s.cores, err = cores.Specs(dirs)
	return s, err
}

// lookupFor makes what reads the environment of this process, where the demo
// finds its own secret.
func (m *Main) lookupFor(isDemo bool) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if isDemo && name == demo.TokenVariable {
			return demo.Token, true
		}
		if v := m.Getenv(name); v != "" {
			return v, true
		}
		return os.LookupEnv(name) // a variable that is set and empty is there (R73)
	}
}

// logger writes notes of the runtime to stderr.
func (m *Main) logger() *slog.Logger {
	level := slog.LevelWarn
	switch {
	case m.verbose:
		level = slog.LevelDebug
	case m.quiet:
		level = slog.LevelError
	}
	return slog.New(slog.NewTextHandler(m.Stderr, &slog.HandlerOptions{Level: level}))
}

// limitMemory sets what the environment does not: fewer collections while the heap
// is small, and a bound that the elastic block caches of the bus respect. With a
// larger target calls took more CPU, not less: cold memory costs more than is spared.
func limitMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(512 << 20)
	}
}

// ready says where to find what is served: one line, once it is.
func (m *Main) ready(r *instance) error {
	mcp, nats := r.mcpURL(), r.bus.URL()
	if m.output == "table" {
		_, err := fmt.Fprintf(m.Stdout, "ready: mcp %s  nats %s  home %s\n", mcp, cmp.Or(nats, "off"), m.home)
		return err
	}
	line, err := json.Marshal(struct {
		Ready   bool   `json:"ready"`
		MCP     string `json:"mcp"`
		Console string `json:"console"`
		NATS    string `json:"nats"`
	}{true, mcp, strings.TrimSuffix(mcp, "mcp"), nats})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(m.Stdout, "%s\n", line)
	return err
}

// prepareDemo makes what --demo runs on: a home that is gone afterwards unless
// one was named, the demo core, and a policy that asks before what is risky.
func (m *Main) prepareDemo(f *upFlags) (undo func(), err error) {
	undo = func() {}
	dir, err := os.MkdirTemp("", "gatebus-demo-")
	if err != nil {
		return undo, usage("no temporary directory: %v", err)
	}
	undo = func() { os.RemoveAll(dir) }
	if !m.homeGiven {
		m.home = filepath.Join(dir, "home")
	}
	if err := os.MkdirAll(m.home, 0o700); err != nil {
		undo()
		return func() {}, usage("the home cannot be made: %v", err)
	}
	executable, err := os.Executable()
	if err != nil {
		undo()
		return func() {}, fmt.Errorf("this program cannot find itself: %w", err)
	}
	core := filepath.Join(dir, "demo")
	if err := demo.WriteCore(core, executable); err != nil {
		undo()
		return func() {}, err
	}
	f.cores = append(f.cores, core)
	f.anonymous = cmp.Or(f.anonymous, "demo")
	if f.once {
		f.listen = cmp.Or(f.listen, "127.0.0.1:0")
	}
	if m.config == "" {
		m.config = filepath.Join(dir, "gatebus.yaml")
		if err := os.WriteFile(m.config, []byte("approvals:\n  rules:\n    - {risk: high, approval: prompt}\n    - {risk: critical, approval: prompt}\n"), 0o600); err != nil {
			undo()
			return func() {}, err
		}
	}
	return undo, nil
}

// grantDemo lets the demo principal connect to and call everything.
func grantDemo(ctx context.Context, r *instance) error {
	for _, capability := range []string{"mcp.connect:*", "mcp.call:*"} {
		if _, err := r.model.Grants.Dispatch(ctx, r.workspace, r.anonymous, bus.Meta{
			Correlation: r.id, Actor: "up --demo", Principal: r.anonymous,
		}, grant.Grant{Capability: capability, Note: redact.Static("demo")}); err != nil {
			return err
		}
	}
	return nil
}

// withBus talks to the bus of this home.
func (m *Main) withBus(ctx context.Context, run func(asker) error) error {
	c, err := client.Dial(ctx, client.Options{Home: m.home, Name: "gatebus up"})
	if err != nil {
		return err
	}
	defer c.Close()
	return run(asker{c, m.timeout})
}

// story runs the scripted session of --demo --once and checks the log after it.
func (m *Main) story(ctx context.Context, r *instance) error {
	return m.withBus(ctx, func(bus asker) error {
		return demo.Story(ctx, demo.StoryOptions{
			MCP: r.mcpURL(), Ask: bus.ask, Out: m.Stdout,
		})
	})
}
