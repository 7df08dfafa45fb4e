package gateway

import (
	"context"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
)

const (
	// maxLogs and maxLogBytes are what waits for a client that does not read; what
	// comes then is dropped.
	maxLogs     = 256
	maxLogBytes = 1 << 20
)

// Log gives the params of a log message that belongs to no request to the attachments
// of a session, or to one alone: to those that have set a level which it reaches, on
// their GET stream. A stateless client has no such stream: it hears what is said while
// it asks, and only that.
func (g *Gateway) Log(session, only string, params []byte) {
	level := levelOf(params)
	if session == "" || level < 0 {
		return
	}
	g.each(func(a *attachment) {
		if only == "" || a.peer.ID == only {
			a.logged(session, level, params)
		}
	})
}

// levelOf is how severe a log message is; -1 is of no known level.
func levelOf(params []byte) int {
	var p struct {
		Level jsontext.Value `json:"level"`
	}
	if jsonv2.Unmarshal(params, &p, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) != nil {
		return -1
	}
	return slices.Index(levels, text(p.Level))
}

// logged makes a log message due.
func (a *attachment) logged(session string, level int, params []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.changed
	if a.session != session || a.stream == nil || a.level == "" || level < slices.Index(levels, a.level) ||
		len(l.logs) >= maxLogs || l.logBytes+len(params) > maxLogBytes {
		return
	}
	l.logs = append(l.logs, params)
	l.logBytes += len(params)
	l.signal()
}

// dueLogs are the log messages that a listener is told of now.
func (a *attachment) dueLogs(l *listener) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := l.logs
	l.logs, l.logBytes = nil, 0
	return due
}

func logMessage(params []byte) []byte {
	return append(append([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":`), params...), '}')
}

// relevel tells a server that has been connected which log messages are wanted, as
// setLevel tells those that are.
func (g *Gateway) relevel(c *events.Commit) {
	g.each(func(a *attachment) {
		a.mu.Lock()
		level := a.level
		concerned := level != "" && a.at.who.Workspace == c.Workspace && a.sees(c)
		a.mu.Unlock()
		if !concerned {
			return
		}
		g.work.Add(1) // under mu, by each
		go func() {
			defer g.work.Done()
			ctx, cancel := context.WithTimeout(a.ctx, endTurns)
			defer cancel()
			t, err := a.prepare(ctx)
			if err != nil || !slices.Contains(t.Servers, c.Scope.Server) {
				return // whoever asks for something next is told why
			}
			m := message{method: methodSetLevel, params: []byte(`{"level":"` + level + `"}`)}
			_, _ = g.ask(ctx, a, newCall(m, cancel), t, target{server: c.Scope.Server, params: m.params}, m.method, &answer{})
		}()
	})
}

// setsLevel notes which log messages a client wants.
func (a *attachment) setsLevel(level jsontext.Value) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.level = text(level)
}
