package live

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// stateless is the revision without a handshake: each request says itself which
// revision it speaks, who sends it and what that client can.
const stateless = "2026-07-28"

// The keys of _meta in which a client speaks of itself to who is next to it, and
// the one in which a server does.
const (
	keyVersion      = "io.modelcontextprotocol/protocolVersion"
	keyClient       = "io.modelcontextprotocol/clientInfo"
	keyCapabilities = "io.modelcontextprotocol/clientCapabilities"
	keyServer       = "io.modelcontextprotocol/serverInfo"
	keyLevel        = "io.modelcontextprotocol/logLevel"
)

// nothing is what a client is capable of that can be asked for nothing.
const nothing = "{}"

// codeVersion is that of the error UnsupportedProtocolVersion.
const codeVersion = -32022

// probeTime is how long a server may leave the probe unanswered, once it has read
// it, before it is asked for a handshake as well.
const probeTime = 2 * time.Second

// ticks is how often it is looked meanwhile whether the server has read the probe.
const ticks = 20

// maxEras bounds what is remembered of servers; a declaration that changes is
// another server.
const maxEras = 4096

// era says how a server is spoken to.
type era uint8

const (
	eraUnknown era = iota
	eraHandshake
	eraStateless
)

// Eras remembers how servers want to be spoken to, for as long as the process
// lives. The zero value is ready; its methods are safe for concurrent use.
type Eras struct {
	mu    sync.Mutex
	known map[string]era
}

func (e *Eras) of(server string) era {
	if e == nil {
		return eraUnknown
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known[server]
}

// remember takes what has worked, or nothing any more.
func (e *Eras) remember(server string, worked era) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil || len(e.known) >= maxEras {
		e.known = make(map[string]era)
	}
	e.known[server] = worked
}

// discovery is a server/discover that was sent: the probe.
type discovery struct {
	conn    *Conn
	ctx     context.Context // ends with it
	cancel  context.CancelFunc
	id      int64
	reply   chan answer
	again   bool  // it was sent twice
	failed  error // it was not sent, for a reason that holds for a handshake too
	verdict verdict
	info    Info
}

// verdict is what the answer to a probe says of the server.
type verdict uint8

const (
	silent verdict = iota // there is none yet
	other                 // it does not speak the revision, or not only JSON-RPC of it
	modern                // it does
)

// discover sends a probe; forget ends it.
func (c *Conn) discover(ctx context.Context) *discovery {
	d := &discovery{conn: c}
	d.ctx, d.cancel = context.WithCancel(ctx)
	d.send()
	return d
}

func (d *discovery) send() {
	c := d.conn
	d.id, d.reply = c.nextID.Add(1), make(chan answer, 1)
	p := &pending{reply: d.reply}
	frame, err := request(d.id, "server/discover", nil, c.self, p)
	if err == nil {
		c.mu.Lock()
		c.calls[d.id] = p
		c.mu.Unlock()
		_, err = c.transport.Write(d.ctx, frame)
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		d.failed = f
	}
}

// forget gives up the answer. The server is told nothing: one that does not know
// the request would not know the notification that ends it.
func (d *discovery) forget() {
	d.cancel()
	d.conn.mu.Lock()
	delete(d.conn.calls, d.id)
	d.conn.mu.Unlock()
}

// wait waits for the answer for as long as patience goes, which does not begin
// before the server has read the probe: one that is slow to start is not silent. Errors
// are that of ctx, that of the connection when it has ended, or a fault that would meet
// a handshake too.
func (d *discovery) wait(ctx context.Context, patience time.Duration) (verdict, error) {
	starting, _ := d.conn.transport.(Starting)
	tick := time.NewTicker(max(patience/ticks, 1))
	defer tick.Stop()
	for begun := time.Now(); d.failed == nil && d.verdict == silent; {
		select {
		case a := <-d.reply:
			d.verdict = d.judge(a)
		case <-d.conn.done:
			d.failed = d.conn.err
		case <-ctx.Done():
			return silent, ctx.Err()
		case now := <-tick.C:
			if starting != nil && starting.Unread() {
				begun = now
			} else if now.Sub(begun) >= patience {
				return silent, nil
			}
		}
	}
	return d.verdict, d.failed
}

// judge reads an answer. Servers of the handshake era answer with any error, with
// any status of HTTP, or with a result of something else; only an answer that
// names the revision is one of a server that speaks it.
func (d *discovery) judge(a answer) verdict {
	if a.lost != nil {
		switch f, _ := errors.AsType[*fault.Fault](a.lost.Cause); {
		case f == nil:
		case f.Kind == fault.URLBlocked, f.Kind == fault.AuthRequired, f.Kind == fault.AuditUnavailable, f.Kind == fault.Unavailable && !a.lost.Written:
			d.failed = f
		}
		return other
	}
	if a.Error != nil && !d.again && wantsOurs(a.Error) {
		d.again = true
		d.send()
		return silent
	}
	info, ok := parseDiscovery(a.Result)
	if !ok {
		return other
	}
	d.info = info
	return modern
}

// wantsOurs reports whether an error says that a request of our revision is welcome.
func wantsOurs(e jsontext.Value) bool {
	code, _, err := findOnce(e, "code")
	if n, ok := integer(code); err != nil || !ok || n != codeVersion {
		return false
	}
	data, _, err := findOnce(e, "data")
	if err != nil || data.Kind() != '{' {
		return false
	}
	supported, _, err := findOnce(data, "supported")
	return err == nil && lists(supported, stateless)
}

// lists reports whether a list of texts has one.
func lists(list jsontext.Value, one string) (found bool) {
	err := elements(list, func(v jsontext.Value) error {
		found = found || text(v) == one
		return nil
	})
	return err == nil && found
}

// parseDiscovery reads the result of server/discover and reports whether the
// server speaks our revision.
func parseDiscovery(result jsontext.Value) (Info, bool) {
	info := Info{Protocol: stateless}
	speaks := false
	err := members(result, func(name string, value jsontext.Value, _ int) error {
		switch name {
		case "supportedVersions":
			speaks = lists(value, stateless)
		case "capabilities":
			if value.Kind() == '{' {
				info.Capabilities = value
			}
		case "instructions":
			info.Instructions = text(value)
		case "serverInfo": // where the drafts of the revision had it
			if info.Name == "" && value.Kind() == '{' {
				return info.identify(value)
			}
		case "_meta":
			if value.Kind() != '{' {
				return nil
			}
			server, _, err := findOnce(value, keyServer)
			if err != nil || server.Kind() != '{' {
				return err
			}
			return info.identify(server)
		}
		return nil
	})
	return info, err == nil && speaks
}

// identify takes name and version of an Implementation.
func (i *Info) identify(server jsontext.Value) error {
	return members(server, func(name string, value jsontext.Value, _ int) error {
		switch name {
		case "name":
			i.Name = text(value)
		case "version":
			i.Version = text(value)
		}
		return nil
	})
}

// self is what we say of ourselves in each request of the stateless era, the
// members of _meta without braces. The last one is nothing, the capabilities.
func self(name, version string) []byte {
	b := []byte(`"` + keyVersion + `":"` + stateless + `","` + keyClient + `":{"name":`)
	// The two texts are ours, and UTF-8.
	b, _ = jsontext.AppendQuote(b, name)
	b, _ = jsontext.AppendQuote(append(b, `,"version":`...), version)
	return append(b, `},"`+keyCapabilities+`":`+nothing...)
}

// setLevel remembers which log messages are wanted.
func (c *Conn) setLevel(params []byte) (Reply, error) {
	level, _, err := findOnce(params, "level")
	if err != nil || text(level) == "" {
		return Reply{}, fault.New("live.call", fault.InvalidArguments, redact.Static("params.level is missing"))
	}
	set := text(level)
	c.level.Store(&set)
	return Reply{Result: []byte("{}")}, nil
}

// stamp is what a request of the stateless era says of us: own, with the input that
// can be asked for with it, and the level of log messages where one was set.
func (c *Conn) stamp(input []byte, leveled bool) []byte {
	b := c.own
	if input != nil {
		b = slices.Concat(bytes.TrimSuffix(c.own, []byte(nothing)), input)
	}
	if level := c.level.Load(); leveled && level != nil {
		b = append(slices.Clip(b), `,"`+keyLevel+`":`...)
		b, _ = jsontext.AppendQuote(b, *level) // came out of valid JSON
	}
	return b
}

// stamped is the object _meta with own as its first members, and without what
// somebody else says there of himself; a _meta that is none is replaced. All other
// bytes stay.
func stamped(meta jsontext.Value, own []byte) ([]byte, error) {
	out := append(append(make([]byte, 0, len(own)+len(meta)+3), '{'), own...)
	if meta.Kind() != '{' {
		return append(out, '}'), nil
	}
	end := 1
	err := members(meta, func(name string, value jsontext.Value, at int) error {
		begin := end
		end = at + len(value)
		switch name {
		case keyVersion, keyClient, keyCapabilities:
			return nil
		}
		if begin == 1 {
			out = append(out, ',') // the others have theirs
		}
		out = append(out, meta[begin:end]...)
		return nil
	})
	return append(out, meta[end:]...), err
}
