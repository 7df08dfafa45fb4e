package caller

import (
	"bytes"
	"context"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// verbLogged is at the address where the runtime with the MCP clients takes the log
// messages that other processes of its home have for them.
const verbLogged = "logged"

func logsAddress(home string) string { return home + "-logs" }

// logged says whose a log message is: that of a session, and of one attachment of it
// where the connection is private.
type logged struct {
	Session    string `json:"session"`
	Attachment string `json:"attachment,omitempty"`
}

// Logged passes on a log message of a server that belongs to no call: without the
// server's secrets, to the clients that use its connection. Nothing of it is stored,
// and one that cannot be passed on is lost.
func (c *Caller) Logged(key live.Key, conn *live.Conn, n live.Notice) {
	v := conn.Redactor().JSON(redact.NewRaw(n.Params))
	if v.Failed {
		return
	}
	s := c.Model.Connections.Get(c.Workspace, key.Connection)
	to, params := logged{s.Session, s.Attachment}, []byte(v.Model.String())
	if c.Hosts != nil {
		c.Hosts.Log(to.Session, to.Attachment, params)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if data, err := pack(to, params); err == nil {
		_ = c.Bus.AskAddress(ctx, c.Workspace, logsAddress(c.Home), verbLogged, data, nil)
	}
}

// HearLogs takes the log messages that other processes of the home have for the
// clients of this one, until stop.
func (c *Caller) HearLogs() (stop func(), err error) {
	return c.Bus.ServeAddress(c.Workspace, logsAddress(c.Home), func(_ context.Context, _ string, data []byte, _ func([]byte) error) error {
		var to logged
		params, err := unpack(data, &to)
		if err != nil {
			return err
		}
		c.Hosts.Log(to.Session, to.Attachment, bytes.Clone(params))
		return nil
	})
}
