package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/bridge"
	"github.com/gatebus/gatebus/workers/httpin"
)

// tokenVariable holds the token of a host that starts stdio without --as.
const tokenVariable = "GATEBUS_TOKEN"

func (m *Main) stdioCommand() *cobra.Command {
	var as, profile string
	var autostart bool
	cmd := &cobra.Command{
		Use: "stdio", Short: "Serve MCP over stdin and stdout, for hosts that only start commands", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if profile != "" {
				return usage("--profile: this version has no profiles; without it all servers are served")
			}
			return m.stdio(cmd.Context(), as, autostart)
		},
	}
	f := cmd.Flags()
	f.StringVar(&as, "as", "", "the host to act for; else that of the token in "+tokenVariable)
	f.StringVar(&profile, "profile", "", "a named selection of servers and tools (not in this version)")
	f.BoolVar(&autostart, "autostart", false, "start gatebus up for this home when none runs")
	return cmd
}

// stdio passes MCP between this process's pipes and the bus of the home. Whoever
// can open the socket of the home is its operator, and may act for a host by name;
// elsewhere a token is needed. Neither is an argument or in a file.
func (m *Main) stdio(ctx context.Context, as string, autostart bool) error {
	if m.bus != "" {
		return usage("stdio serves the bus of the home: say --home in place of --bus")
	}
	who := http.Header{}
	token := strings.TrimSpace(m.Getenv(tokenVariable))
	switch {
	case as != "" && authority.CheckPrincipal(as) != nil:
		return usage("--as: %q is no name of a principal", as)
	case as != "":
		who.Set(httpin.AsHeader, as)
	case token != "":
		who.Set("Authorization", "Bearer "+token)
	}
	find := func(ctx context.Context) (bridge.Door, error) { return m.findMCP(ctx, who) }
	if _, err := find(ctx); autostart && absent(err) {
		if err := m.startUp(ctx, find); err != nil {
			return err
		}
	}
	err := bridge.Run(ctx, bridge.Options{In: m.Stdin, Out: m.Stdout, Find: find, Note: func(text string) { m.note("%s", text) }})
	if !fault.Is(err, fault.AuthenticationRequired) {
		return err
	}
	p := &problem{kind: fault.AuthenticationRequired}
	switch {
	case as != "":
		p.text = fmt.Sprintf("--as: no host %s is enrolled here, or it is revoked", as)
		p.hint = "gatebus host token " + as + " enrols it"
	case token != "":
		p.text = tokenVariable + " holds no valid token of a host"
	default:
		p.text = "whom this is for is not known: say --as HOST, or put the token of a host in " + tokenVariable
		p.hint = "gatebus host token HOST enrols one"
	}
	return p
}

// noBus says that no bus of this home runs, and absent reports whether an error
// says so.
func noBus() error {
	return &problem{kind: fault.BusUnavailable, text: "no bus is running", hint: "start it with gatebus up, or add --autostart"}
}

func absent(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && p.kind == fault.BusUnavailable
}

// findMCP finds where the running bus of the home serves MCP: at the socket, or
// where it has none at its address, where nobody is taken at his word.
func (m *Main) findMCP(ctx context.Context, who http.Header) (bridge.Door, error) {
	var about struct {
		MCP    string `json:"mcp"`
		Socket string `json:"mcp_socket"`
	}
	data, err := os.ReadFile(filepath.Join(m.home, "run", "bus.json"))
	if err != nil || json.Unmarshal(data, &about) != nil {
		return bridge.Door{}, noBus()
	}
	d := bridge.Door{Network: "unix", Address: about.Socket, URL: "http://localhost/mcp", Header: who}
	if about.Socket == "" {
		at, err := url.Parse(about.MCP)
		if err != nil || at.Host == "" {
			return bridge.Door{}, noBus()
		}
		d.Network, d.Address, d.URL = "tcp", at.Host, about.MCP
	}
	c, err := new(net.Dialer).DialContext(ctx, d.Network, d.Address)
	if err != nil {
		return bridge.Door{}, noBus()
	}
	c.Close()
	if about.Socket == "" && who.Get(httpin.AsHeader) != "" {
		return bridge.Door{}, usage("--as needs the socket of the home, and the path of this home is too long for one: put the token of the host in %s", tokenVariable)
	}
	return d, nil
}

// startUp starts gatebus up for the home as a process that stays, unless another
// stdio is about to, and returns when it serves.
func (m *Main) startUp(ctx context.Context, find func(context.Context) (bridge.Door, error)) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	run := filepath.Join(m.home, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		return &problem{kind: fault.HomeNotWritable, text: "the home cannot be written: " + err.Error()}
	}
	lock, err := os.OpenFile(filepath.Join(run, "up.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return &problem{kind: fault.HomeNotWritable, text: "the home cannot be written: " + err.Error()}
	}
	defer lock.Close() // and the lock with it
	var ended <-chan string
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for started := false; ; {
		held := !started && tryLock(lock) == nil
		if _, err := find(ctx); !absent(err) {
			return err
		}
		if held {
			if ended, err = m.launchUp(); err != nil {
				return err
			}
			started = true
		}
		select {
		case text := <-ended:
			// One that was started by hand may not serve yet.
			if entry, _ := fault.Lookup(fault.HomeLocked); !strings.Contains(text, entry.Code()) {
				return &problem{kind: fault.BusUnavailable, text: "gatebus up did not start:\n" + cmp.Or(text, "it said nothing"), hint: "see " + filepath.Join(run, "up.log")}
			}
		case <-tick.C:
		case <-ctx.Done():
			return &problem{kind: fault.BusUnavailable, text: fmt.Sprintf("gatebus up does not serve after %v", m.timeout), hint: "see " + filepath.Join(run, "up.log")}
		}
	}
}

// maxUpLog is how long the log of an up without a terminal gets before it begins
// anew.
const maxUpLog = 1 << 20

// upLog is that log.
type upLog struct{ file *os.File }

func (l upLog) Write(p []byte) (int, error) {
	if info, err := l.file.Stat(); err == nil && info.Size() > maxUpLog {
		_ = l.file.Truncate(0) // it is appended to
	}
	return l.file.Write(p)
}

// launchUp starts gatebus up in a session of its own. When it ends, what it said
// comes.
func (m *Main) launchUp() (<-chan string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program cannot find itself: %w", err)
	}
	path := filepath.Join(m.home, "run", "up.log")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, &problem{kind: fault.HomeNotWritable, text: "the home cannot be written: " + err.Error()}
	}
	from := int64(0)
	if info, err := file.Stat(); err == nil {
		from = info.Size()
	}
	up := exec.Command(self, "up", "--home", m.home, "--detached")
	up.Args[0] = "gatebus"
	if m.config != "" {
		up.Args = append(up.Args, "-c", m.config)
	}
	up.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, tokenVariable+"=") || strings.HasPrefix(s, "GATEBUS_OUTPUT=")
	})
	up.Stdout, up.Stderr, up.SysProcAttr = file, file, ownSession()
	if err := up.Start(); err != nil {
		file.Close()
		return nil, fmt.Errorf("gatebus up cannot be started: %w", err)
	}
	ended := make(chan string, 1)
	go func() {
		defer file.Close()
		_ = up.Wait() // it says why
		said, _ := io.ReadAll(io.NewSectionReader(file, from, 4<<10))
		ended <- strings.TrimSpace(string(said))
	}()
	return ended, nil
}
