package bus

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Handler answers a question to an address. It may reply any number of times;
// what it returns ends the answer. The data must not be kept or changed.
type Handler func(ctx context.Context, verb string, data []byte, reply func(data []byte) error) error

// ErrNoAddress says that nobody is at an address: who asked can be sure that the
// question was not taken. It is of kind runtime_not_live.
var ErrNoAddress error = fault.New("ask address", fault.RuntimeNotLive, redact.Static("nobody is at the address"))

// addressSubject is a process or a live connection; "*" stands for all verbs.
// What travels here may be raw, and no stream captures it (decision 17).
func addressSubject(workspace, name, verb string) string {
	return "gatebus." + workspace + ".conn." + name + "." + verb
}

// The header that ends the answers of an address.
const addressEnd = "Gb-End"

// ServeAddress answers what is asked of an address, in a goroutine for each
// question; a panic is answered as kind internal. The name of an address is that
// of one process or of one opening of a connection, and nobody takes it over
// (decision 20); that of a home is its runtime's, of which there is one at a time. stop takes no more questions and lets those under way go on;
// Close waits for them as for requests, and then ends their context.
func (b *Bus) ServeAddress(workspace, name string, handle Handler) (stop func(), err error) {
	const op = "serve address"
	if !ValidName(workspace) || !ValidName(name) {
		return nil, fault.New(op, fault.InvalidInput, redact.Name("no address: "+workspace+" "+name))
	}
	s := &service{drained: make(chan struct{}), slots: make(chan struct{}, maxRequests)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, errClosed(op)
	}
	prefix := addressSubject(workspace, name, "")
	sub, err := b.nc.Subscribe(prefix+"*", func(m *nats.Msg) {
		end := func(err error) {
			answer := nats.Header{addressEnd: {"1"}}
			var data []byte
			if err != nil {
				e := rpc.ErrorOf(err)
				answer.Set("Nats-Service-Error", e.Message)
				data, _ = json.Marshal(e) // strings and numbers
			}
			b.reply(m, &nats.Msg{Subject: m.Reply, Header: answer, Data: data})
		}
		select {
		case s.slots <- struct{}{}:
		default:
			end(fault.New(op, fault.ResourceExhausted, redact.Static("too many questions to this address are under way")))
			return
		}
		b.requests.Go(func() {
			defer func() { <-s.slots }()
			end(b.safely(func() error {
				return handle(b.ctx, strings.TrimPrefix(m.Subject, prefix), m.Data, func(data []byte) error {
					return b.reply(m, &nats.Msg{Subject: m.Reply, Data: data})
				})
			}))
		})
	})
	if err == nil {
		sub.SetClosedHandler(func(string) {
			close(s.drained)
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.services, s)
		})
		s.sub = sub
		b.services[s] = struct{}{}
		err = b.nc.Flush()
	}
	if err != nil {
		return nil, asFault(op, fault.BusUnavailable, redact.Static("the address cannot be served"), err)
	}
	return func() { _ = sub.Drain() }, nil // fails when it has ended already
}

// reply sends one answer, once there is a connection: who asked may wait for it still.
// Errors: frame_too_large for what no message can hold, bus_unavailable.
func (b *Bus) reply(m, answer *nats.Msg) error {
	const op = "answer"
	if m.Reply == "" {
		return nil
	}
	err := b.patiently(b.ctx, func() error { return b.nc.PublishMsg(answer) })
	if err == nil {
		return nil
	}
	b.log.Warn(op, "subject", m.Subject, "error", err.Error())
	if errors.Is(err, nats.ErrMaxPayload) {
		return fault.Wrap(op, fault.FrameTooLarge, redact.Static("the answer is larger than a message may be"), err)
	}
	return fault.Wrap(op, fault.BusUnavailable, redact.Static("the answer could not be sent"), err)
}

// AskAddress asks an address and gives each reply to onReply, which may be nil,
// until the handler there returns: nil, or its error as a fault. onReply ends it
// early by an error, which is returned. Other errors: ErrNoAddress; the
// context's, which is the only end when the process there dies or stops.
func (b *Bus) AskAddress(ctx context.Context, workspace, name, verb string, data []byte, onReply func(data []byte) error) error {
	const op = "ask address"
	if !ValidName(workspace) || !ValidName(name) || !ValidName(verb) {
		return fault.New(op, fault.InvalidInput, redact.Name("no address: "+workspace+" "+name+" "+verb))
	}
	subject := addressSubject(workspace, name, verb)
	err := b.askOnce(ctx, subject, data, onReply)
	if errors.Is(err, ErrNoAddress) && b.server == nil && b.pause(ctx, addressPatience) {
		// In a cluster an address is known at its own server first.
		err = b.askOnce(ctx, subject, data, onReply)
	}
	return err
}

// addressPatience is how long the servers of a cluster need to hear of an address.
const addressPatience = 20 * time.Millisecond

func (b *Bus) askOnce(ctx context.Context, subject string, data []byte, onReply func([]byte) error) error {
	const op = "ask address"
	unavailable := func(err error) error {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return asFault(op, fault.BusUnavailable, redact.Static("the address cannot be asked"), err)
	}
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return unavailable(err)
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return unavailable(err)
	}
	if err := b.nc.PublishRequest(subject, inbox, data); err != nil {
		return unavailable(err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrNoResponders), err == nil && len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return ErrNoAddress
		case err != nil:
			return unavailable(err)
		case m.Header.Get(addressEnd) == "":
			if onReply != nil {
				if err := onReply(m.Data); err != nil {
					return err
				}
			}
		case len(m.Data) == 0:
			return nil
		default:
			var e rpc.Error
			if err := json.Unmarshal(m.Data, &e); err != nil {
				return unavailable(err)
			}
			return e.Fault(op)
		}
	}
}
