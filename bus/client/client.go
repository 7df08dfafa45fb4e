// Package client asks a running bus: the command line and every other program
// that is a principal use it. The rights of a client are those of its account;
// who it is stands in its credentials, not in what it sends.
//
// A host starts its session by name, prepares a turn, and calls the tools of the
// turn:
//
//	c, err := client.Dial(ctx, client.Options{URL: url, Creds: "cursor.creds"})
//	session, err := c.SessionStart(ctx, "editor")
//	turn, err := c.PrepareTurn(ctx, client.TurnPrepare{Session: session, IncludeImplicit: true})
//	reply, err := c.CallTool(ctx, turn.Turn, turn.Tools[0].Name, []byte(`{"text":"hello"}`), time.Minute)
//
// # Other languages
//
// Nothing here is needed to use a bus: any NATS client that logs in with a creds
// file (JWT and nkey) can do the same with plain requests.
//
//   - A method is a request to gatebus.WORKSPACE.cmd.PRINCIPAL.METHOD, with "."
//     for the "/" of the method: gatebus.default.cmd.cursor.session.start. The
//     principal is the name in the creds. The body is the params, a JSON object;
//     schemas/json/rpc has the schema of each.
//   - Headers of the request: Gb-Command, a ULID that names the command: the same
//     one sent again, after silence, is the same command and is not done twice
//     (one is minted where it is missing). Gb-Correlation, a name of letters,
//     digits, "-" and "_" that the log keeps beside it.
//   - The reply's body is the result, JSON. Where the header
//     Nats-Service-Error-Code is there, it is the error object of JSON-RPC:
//     {"code":-32003,"message":"…","data":{"code":"GB1042","kind":"…","hint":"…"}}.
//     A program goes by the kind (gatebus errors lists them all).
//   - "No responders" is the answer to a method that the role does not have, and
//     where no runtime is alive: bus.info is served to every role and tells which.
//   - tool/call answers when the call has an outcome: wait as long as the call may
//     take and a person may think (wait_ms). It is an answer, and no error, when the
//     call was denied, failed, or waits for an approval.
//   - Notifications come on gatebus.WORKSPACE.ntf.PRINCIPAL.> while one is
//     subscribed: the body is a JSON-RPC notification, the headers Gb-Seq and
//     Gb-Index are its place in the log. They may be repeated, and are missed while
//     nobody listens: notifications/list with after = the last Gb-Seq seen gives
//     what came since, in order and each once. A subscriber that wants all reads
//     with notifications/list and takes the pushes for the moment to read.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Options say which bus, and as whom.
type Options struct {
	// Home of a running bus, found through <home>/run/bus.json; or URL and Creds.
	Home string
	URL  string
	// Creds is the path of a creds file; empty with Home is that of the principal
	// "local".
	Creds string
	// Workspace is the one to work in; empty is that of the credentials.
	Workspace string
	// Name of the connection, for the server's messages.
	Name string
	// InProcess is a bus of this process, in place of Home or URL.
	InProcess nats.InProcessConnProvider
	// CredsText is the text of a creds file, in place of Creds.
	CredsText []byte
	// NoReconnect ends the client with its connection, for a program that asks a
	// few things and ends; else it waits for the bus to come back.
	NoReconnect bool
}

// Client is a connection to a bus. Its methods may be called from any goroutine.
type Client struct {
	nc                   *nats.Conn
	workspace, principal string
	// lost ends when the connection has ended for good.
	lost context.Context

	mu   sync.Mutex
	back chan struct{} // closed when the connection is there again
}

const op = "dial bus"

func unavailable(err error) error {
	return fault.Wrap(op, fault.BusUnavailable, redact.Static("no bus is running"), err)
}

// Dial connects. Errors: bus_unavailable when none runs there,
// authentication_required when it does not take the credentials.
func Dial(ctx context.Context, o Options) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.Home != "" {
		if err := o.find(); err != nil {
			return nil, err
		}
	}
	if o.Creds != "" {
		text, err := os.ReadFile(o.Creds)
		if err != nil {
			return nil, unavailable(err)
		}
		o.CredsText = text
	}
	token, err := jwt.ParseDecoratedJWT(o.CredsText)
	if err != nil {
		return nil, unavailable(err)
	}
	user, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, unavailable(err)
	}
	if o.Workspace == "" {
		o.Workspace = "default"
		for _, tag := range user.Tags {
			if workspace, ok := strings.CutPrefix(tag, "workspace:"); ok {
				o.Workspace = workspace
			}
		}
	}
	timeout := 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	options := []nats.Option{nats.UserCredentialBytes(o.CredsText), nats.Name(o.Name), nats.Timeout(timeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(20*time.Millisecond, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
	lost, end := context.WithCancel(context.Background())
	c := &Client{workspace: o.Workspace, principal: user.Name, lost: lost, back: make(chan struct{})}
	options = append(options, nats.ClosedHandler(func(*nats.Conn) { end() }), nats.ReconnectHandler(func(*nats.Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.back)
		c.back = make(chan struct{})
	}))
	if o.NoReconnect {
		options = append(options, nats.NoReconnect())
	}
	if o.InProcess != nil {
		options = append(options, nats.InProcessServer(o.InProcess))
	}
	if c.nc, err = nats.Connect(o.URL, options...); err != nil {
		end()
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			return nil, fault.Wrap(op, fault.AuthenticationRequired, redact.Static("the bus does not take these credentials"), err)
		}
		return nil, unavailable(err)
	}
	return c, nil
}

// find reads bus.json of the home.
func (o *Options) find() error {
	data, err := os.ReadFile(filepath.Join(o.Home, "run", "bus.json"))
	if err != nil {
		return unavailable(err)
	}
	var about struct{ URL, Socket, Creds string }
	if err := json.Unmarshal(data, &about); err != nil {
		return unavailable(err)
	}
	o.URL = about.URL
	if s := unixSocket(about.Socket); s.there() {
		o.InProcess = s // the server takes it for a connection of its own process
	} else if about.URL == "" {
		return unavailable(errors.New("the bus of this home does not listen"))
	}
	if o.Creds == "" && o.CredsText == nil {
		o.Creds = about.Creds
	}
	return nil
}

// unixSocket is the path of a bus's socket. Its connections are those of the
// process of the bus to nats.go, which needs no URL for them.
type unixSocket string

// InProcessConn connects.
func (s unixSocket) InProcessConn() (net.Conn, error) { return net.Dial("unix", string(s)) }

// there reports whether a bus serves the socket.
func (s unixSocket) there() bool {
	if s == "" {
		return false
	}
	c, err := s.InProcessConn()
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// Principal is who the client is.
func (c *Client) Principal() string { return c.principal }

// Do asks for a method, with "/" in its name, and decodes the result; params and
// result may be nil, a jsontext.Value passes as it is. ctx bounds the waiting; what
// seems lost on the way is sent again as the same command, which is done once.
// Errors are *fault.Fault: what the method answered, role_denied when the role of
// the principal does not include it, bus_unavailable when no runtime is there, or
// the context's error.
func (c *Client) Do(ctx context.Context, method string, params, result any) error {
	return c.ask(ctx, method, params, result, asking{})
}

// command is the request of a new command.
func (c *Client) command(method string, params any) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: "gatebus." + c.workspace + ".cmd." + c.principal + "." + strings.ReplaceAll(method, "/", "."),
		Header:  nats.Header{"Gb-Command": {ulid.Make().String()}},
	}
	if params != nil {
		var err error
		if m.Data, err = jsonv2.Marshal(params, jsontext.PreserveRawStrings(true)); err != nil {
			return nil, fault.Wrap(method, fault.InvalidInput, redact.Static("the parameters are no JSON"), err)
		}
	}
	return m, nil
}

// probe is a method that every role has: its answer tells a method that the role
// does not include from a bus without a runtime.
const probe = "bus/info"

func (c *Client) excluded(method string) error {
	return fault.Wrap(method, fault.RoleDenied, redact.Name("the role of "+c.principal+" does not include "+method), nats.ErrNoResponders)
}

func (c *Client) nobody(method string) error {
	return fault.Wrap(method, fault.BusUnavailable, redact.Name("nobody serves "+method+" to "+c.principal), nats.ErrNoResponders)
}

// decode reads what a method answered.
func decode(method string, reply *nats.Msg, result any) error {
	if reply.Header.Get("Nats-Service-Error-Code") != "" {
		var e rpc.Error
		if err := json.Unmarshal(reply.Data, &e); err != nil {
			return fault.Wrap(method, fault.Internal, redact.Static("the bus answered with an error that cannot be read"), err)
		}
		return e.Fault(method)
	}
	if result == nil {
		return nil
	}
	// JSON of a server may be in it, with what a strict reader refuses.
	if err := jsonv2.Unmarshal(reply.Data, result, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)); err != nil {
		return fault.Wrap(method, fault.Internal, redact.Static("the answer is not the result of the method"), err)
	}
	return nil
}

// Close ends the connection.
func (c *Client) Close() { c.nc.Close() }
