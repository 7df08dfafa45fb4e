package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/singleflight"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// maxRequests bounds the commands of one method under way. It is a bound of each
// method, because a call can wait for the very approval that another method
// brings.
const maxRequests = 1024

// Request is a command or a query of a principal.
type Request struct {
	Workspace, Principal, Method string
	// Command is the id of the command, from the client or minted; the same id is
	// the same command. Correlation is that of the flow, or the command's.
	Command, Correlation string
	// Channel is the door that the request came through. Nothing that a client sends
	// changes it.
	Channel Channel
	// Data are the parameters, JSON.
	Data []byte
}

// Channel is a way in for requests; approval_decided says which one an answer took.
type Channel string

// The ways in: the command line is a client on NATS.
const (
	ChannelNATS Channel = "nats"
	ChannelHTTP Channel = "http"
)

// Method is a method of the contract with what answers it. The same answers go
// out on NATS, by Serve, and over HTTP.
type Method struct {
	Name string
	// Handle returns the result, to be sent as JSON (a jsontext.Value stays as it
	// is), or an error. It checks the role of the principal, whatever way the
	// request came.
	Handle func(ctx context.Context, r *Request) (any, error)
}

// Result is a result as it is sent. JSON of a server that is in it keeps its
// spelling, half characters and repeated members included, and loses the blanks
// between its tokens.
func Result(v any) ([]byte, error) {
	data, err := jsonv2.Marshal(v, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if err == nil && len(data) > maxPayload {
		err = fmt.Errorf("%d bytes", len(data))
	}
	if err != nil {
		return nil, fault.Wrap("answer", fault.Internal, redact.Static("the result cannot be sent"), err)
	}
	return data, nil
}

// Decode reads the parameters, and takes what the schema takes that is made of the
// type of into: members without omitempty or omitzero must be there. An unknown member
// is kind unknown_argument, any other fault of them invalid_input; the text names the
// member. Nothing at all is the empty object.
func (r *Request) Decode(into any) error {
	data := r.Data
	if len(data) == 0 {
		data = []byte("{}")
	}
	err := jsonv2.Unmarshal(data, into, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		// The schema of the method says so, and a zero is not what was meant.
		if text := incomplete(data, reflect.TypeOf(into), ""); text != "" {
			return fault.New(r.Method, fault.InvalidInput, redact.Name(text))
		}
		return nil
	}
	kind, text := fault.InvalidInput, "the parameters are not what the method takes"
	if e, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		text = "wrong value of " + string(e.JSONPointer)
		if e.JSONPointer == "" {
			text = "the parameters are no JSON object"
		}
		if errors.Is(err, jsonv2.ErrUnknownName) {
			kind, text = fault.UnknownArgument, "unknown parameter "+string(e.JSONPointer)
		}
	} else if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		text = "no JSON at " + string(e.JSONPointer)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			text = "given twice: " + string(e.JSONPointer)
		}
	}
	return fault.Wrap(r.Method, kind, redact.Name(strings.TrimSuffix(text, " at ")), err)
}

// service is one method being served.
type service struct {
	sub     *nats.Subscription
	drained chan struct{} // closed when everything delivered was taken
	slots   chan struct{} // one for each request under way
	// underWay is by principal and command: who waits in vain for an answer asks
	// again, and what takes long is not to be done twice beside itself.
	underWay singleflight.Group
}

// Serve answers a method, with "/" in its name, for every principal of the own
// workspace whose account imports it, in a goroutine for each request. The
// processes of one home share the requests; each has every commit that was stored
// when a request came before it begins. The answer is the result as JSON (a jsontext.Value stays as it is),
// or the error object of JSON-RPC made of the error; a panic is kind internal. A
// command that is sent again while it is under way here has the answer of the first.
// The context of a request ends when the bus has no more time to close, for the cause
// of kind runtime_closed, which answers what broke off by it.
//
// The principal is the one of the subject, and the account that the server says
// the request came from must be his: nothing in the payload says who asks.
func (b *Bus) Serve(method string, fn func(ctx context.Context, r *Request) (any, error)) error {
	const op = "serve"
	s := &service{drained: make(chan struct{}), slots: make(chan struct{}, maxRequests)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return errClosed(op)
	}
	sub, err := b.nc.QueueSubscribe(commandSubject(b.opts.Workspace, "*", method), "gatebus", func(m *nats.Msg) {
		r, err := b.request(method, m)
		if err != nil {
			b.answer(m, nil, err)
			return
		}
		select {
		case s.slots <- struct{}{}:
		default:
			b.answer(m, nil, fault.New(method, fault.ResourceExhausted, redact.Static("too many requests of this method are under way")))
			return
		}
		b.requests.Go(func() {
			defer func() { <-s.slots }()
			var result any
			err := b.safely(func() (err error) {
				// Another process may have enrolled who asks, or revoked him.
				if err = b.Sync(b.ctx); err != nil {
					return err
				}
				if err = b.authentic(r, m); err != nil {
					return err
				}
				result, err, _ = s.underWay.Do(m.Subject+" "+r.Command, func() (any, error) { return fn(b.ctx, r) })
				return err
			})
			if _, ok := errors.AsType[*fault.Fault](err); err != nil && !ok && b.ctx.Err() != nil {
				err = errStopped // it broke off there
			}
			b.answer(m, result, err)
		})
	})
	if err == nil {
		sub.SetClosedHandler(func(string) { close(s.drained) })
		s.sub = sub
		b.services[s] = struct{}{}
		err = b.nc.Flush()
	}
	if err != nil {
		return asFault(op, fault.BusUnavailable, redact.Name("cannot serve "+method), err)
	}
	return nil
}

// authentic says whether a request is of the principal of its subject: the server
// writes the header on every import, over whatever was sent.
func (b *Bus) authentic(r *Request, m *nats.Msg) error {
	var from struct {
		Account string `json:"acc"`
	}
	err := json.Unmarshal([]byte(m.Header.Get("Nats-Request-Info")), &from)
	if s := b.hosts.Get(r.Workspace, r.Principal); err != nil || s.Account == "" || s.Revoked || from.Account != s.Account {
		return fault.Wrap(r.Method, fault.CapabilityDenied, redact.Static("the account is not the principal's"), err)
	}
	return nil
}

// request takes apart a message.
func (b *Bus) request(method string, m *nats.Msg) (*Request, error) {
	token := strings.SplitN(m.Subject, ".", 5) // gatebus, workspace, cmd, principal, method
	r := &Request{
		Workspace: token[1], Principal: token[3], Method: method, Channel: ChannelNATS, Data: m.Data,
		Command: m.Header.Get("Gb-Command"), Correlation: m.Header.Get("Gb-Correlation"),
	}
	return r, r.Name()
}

// Name checks the ids of the command and of its flow, and mints what is missing.
func (r *Request) Name() error {
	if r.Command == "" {
		r.Command = ulid.Make().String()
	} else if _, err := ulid.ParseStrict(r.Command); err != nil {
		return fault.Wrap(r.Method, fault.InvalidRequest, redact.Static("the command id is no ULID"), err)
	}
	if r.Correlation == "" {
		r.Correlation = r.Command
	} else if !ValidName(r.Correlation) {
		return fault.New(r.Method, fault.InvalidRequest, redact.Static("the correlation is no id"))
	}
	return nil
}

// answer sends what came of a request.
func (b *Bus) answer(m *nats.Msg, result any, err error) {
	reply := &nats.Msg{Subject: m.Reply}
	if err == nil {
		reply.Data, err = Result(result)
	}
	if err != nil {
		e := rpc.ErrorOf(err)
		reply.Header = nats.Header{
			"Nats-Service-Error":      {e.Message},
			"Nats-Service-Error-Code": {strconv.Itoa(e.Code)},
		}
		reply.Data, _ = json.Marshal(e) // strings and numbers
		if e.Data.Kind == fault.Internal {
			b.log.Error("request", "subject", m.Subject, "error", err.Error())
		}
	}
	_ = b.reply(m, reply) // who does not hear it asks again
}
