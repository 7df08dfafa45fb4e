package caller

import (
	"bytes"
	"encoding/json"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// forwarded is a call on its way to who owns its connection. The params of
// tools/call follow it as they are.
type forwarded struct {
	// Errand names the question, Call the call that is to be made of it.
	Errand    string `json:"errand"`
	Call      string `json:"call"`
	Principal string `json:"principal"`
	Actor     string `json:"actor"`
	Turn      string `json:"turn"`
	Name      string `json:"name"`
	Method    string `json:"method,omitempty"`
	Subject   string `json:"subject,omitempty"`
	WaitMS    int64  `json:"wait_ms"`
	Notify    bool   `json:"notify"`
	Input     []byte `json:"input,omitempty"`
	// Watch is the subscription that it is about, and Asker the runtime that is told of
	// its updates.
	Watch *update `json:"watch,omitempty"`
	Asker string  `json:"asker,omitempty"`
	// Known is what the log had for who asks: the owner must not know less.
	Known uint64 `json:"known"`
}

// message is what the owner says about a call that was forwarded: one of its
// members.
type message struct {
	// Call is the call that it became, where that is another one.
	Call string `json:"call,omitempty"`
	// Approval is what waits for a person.
	Approval string `json:"approval,omitempty"`
	// Reply is the end. What follows is its Raw.
	Reply *client.CallReply `json:"reply,omitempty"`
	// Raw says what follows: result, jsonrpc (of the error), or the params of a notice
	// by its method.
	Raw string `json:"raw,omitempty"`
}

// pack puts a header before bytes that must arrive as they are.
func pack(header any, raw []byte) ([]byte, error) {
	head, err := json.Marshal(header) // has no line feed
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), raw...), nil
}

// unpack reads what pack made.
func unpack(data []byte, header any) (raw []byte, err error) {
	head, raw, ok := bytes.Cut(data, []byte{'\n'})
	if !ok || json.Unmarshal(head, header) != nil {
		return nil, fault.New("call.forward", fault.InvalidRequest, redact.Static("another runtime sent what this one does not understand"))
	}
	return raw, nil
}

// packReply makes the message of the end. The server's own JSON is not written
// anew.
func packReply(r client.CallReply) ([]byte, error) {
	m := message{Reply: &r}
	var raw []byte
	switch {
	case r.Result != nil:
		m.Raw, raw, r.Result = "result", r.Result, nil
	case r.Error != nil && r.Error.JSONRPC != nil:
		e := *r.Error
		m.Raw, raw, e.JSONRPC = "jsonrpc", e.JSONRPC, nil
		r.Error = &e
	}
	return pack(m, raw)
}

// reply is the end that a message says, with what followed it.
func (m message) reply(raw []byte) *client.CallReply {
	if m.Reply != nil {
		switch raw := bytes.Clone(raw); {
		case m.Raw == "result":
			m.Reply.Result = raw
		case m.Raw == "jsonrpc" && m.Reply.Error != nil:
			m.Reply.Error.JSONRPC = raw
		}
	}
	return m.Reply
}
