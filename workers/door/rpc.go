package door

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/httpin"
)

// codeParse is the number that JSON-RPC has for what is no JSON.
const codeParse = -32700

// message is one JSON-RPC request. Its parts are ranges of the body, as sent.
type message struct {
	id     jsontext.Value // a string, a number or null; nil for a notification
	method string
	params jsontext.Value // an object, or nil
	// fault is what is wrong with it.
	fault error
}

// parse reads a body: one message, or the messages of a batch. The error is about
// the body as a whole. A member that occurs twice, at any depth, is an error: two
// readers could understand two things.
func parse(body []byte) (all []message, batch bool, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	value := func() (jsontext.Value, error) { return value(dec, body) }
	if dec.PeekKind() != '[' {
		v, err := value()
		if err == nil {
			err = end(dec)
		}
		return []message{parseMessage(v)}, false, err
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, true, err
	}
	for dec.PeekKind() != ']' {
		v, err := value()
		if err != nil {
			return nil, true, err
		}
		if len(all) == maxBatch {
			return nil, true, badMessage(redact.Static("a batch has 100 messages at most"))
		}
		all = append(all, parseMessage(v))
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, true, err
	}
	if err := end(dec); err != nil {
		return nil, true, err
	}
	if len(all) == 0 {
		return nil, true, badMessage(redact.Static("a batch has at least one message"))
	}
	return all, true, nil
}

// value reads the next value as a range of the body.
func value(dec *jsontext.Decoder, body []byte) (jsontext.Value, error) {
	v, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(dec.InputOffset())
	return body[end-len(v) : end : end], nil
}

// end is an error unless nothing follows.
func end(dec *jsontext.Decoder) error {
	switch _, err := dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errors.New("door: something follows the message")
}

func badMessage(text redact.EventText) error { return fault.New("rpc", fault.InvalidRequest, text) }

// parseMessage takes apart one valid JSON value.
func parseMessage(v jsontext.Value) (m message) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(v))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return message{id: null, fault: badMessage(redact.Static("a message is an object"))}
	}
	version := false
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			break // it was read as a value before
		}
		member := name.String()
		value, _ := value(dec, v)
		switch member {
		case "jsonrpc":
			version = text(value) == "2.0"
		case "id":
			switch value.Kind() {
			case '"', '0', 'n':
				m.id = value
			default:
				m.id, m.fault = null, badMessage(redact.Static("id: a string or a number"))
			}
		case "method":
			if m.method = text(value); m.method == "" {
				m.fault = badMessage(redact.Static("method: a text"))
			}
		case "params":
			if m.params = value; value.Kind() != '{' && m.fault == nil {
				m.fault = fault.New("rpc", fault.InvalidInput, redact.Static("params: an object, its members by name"))
			}
		default:
			m.fault = badMessage(redact.Name("a message has no member " + member))
		}
	}
	switch {
	case !version:
		m.fault = badMessage(redact.Static("jsonrpc: must be 2.0"))
	case m.method == "" && m.fault == nil:
		m.fault = badMessage(redact.Static("method: is missing"))
	}
	if m.fault != nil && m.id == nil && !fault.Is(m.fault, fault.InvalidInput) {
		m.id = null // what is no request cannot be a notification
	}
	return m
}

var null = jsontext.Value("null")

// text unquotes v, or is "" where v is no string.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	b, _ := jsontext.AppendUnquote(nil, v)
	return string(b)
}

// post answers a message or a batch. The messages of a batch are worked off in
// their order, one after the other.
func (d *Door) post(w http.ResponseWriter, r *http.Request, id client.Identity) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		d.reject(r, "content_type")
		refuse(w, http.StatusUnsupportedMediaType, fault.InvalidRequest, redact.Static("the Content-Type must be application/json"))
		return
	}
	body, err := httpin.Body(w, r, maxBody)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		refuse(w, http.StatusRequestEntityTooLarge, fault.ArgumentsTooLarge, redact.Static("the request is larger than 4 MiB"))
		return
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, fault.InvalidRequest, redact.Static("the body could not be read"))
		return
	}
	all, batch, err := parse(body)
	command := r.Header.Get("Gb-Command")
	if err == nil && batch && command != "" {
		err = badMessage(redact.Static("Gb-Command names one command: it cannot be that of a batch"))
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		refuse(w, http.StatusBadRequest, f.Kind, f.Text)
		return
	}
	if err != nil {
		e := rpc.ErrorOf(fault.Wrap("rpc", fault.InvalidJSON, redact.Static("the body is not one JSON value in valid UTF-8, each member there once"), err))
		e.Code = codeParse
		reply(w, http.StatusBadRequest, [][]byte{failure(null, e)}, false)
		return
	}
	var answers [][]byte
	for _, m := range all {
		q := &bus.Request{
			Workspace: id.Workspace, Principal: id.Principal, Method: m.method, Channel: bus.ChannelHTTP, Data: m.params,
			Command: command, Correlation: r.Header.Get("Gb-Correlation"),
		}
		var result []byte
		if err = m.fault; err == nil {
			result, err = d.answer(r.Context(), q)
		}
		e := rpc.ErrorOf(err)
		if err != nil && e.Data.Kind == fault.Internal && r.Context().Err() == nil {
			d.opts.Log.Error("request", "method", m.method, "error", err.Error())
		}
		switch {
		case m.id == nil:
		case err != nil:
			answers = append(answers, failure(m.id, e))
		default:
			answers = append(answers, response(m.id, `,"result":`, result))
		}
	}
	status := http.StatusOK
	if !batch && fault.Is(all[0].fault, fault.InvalidRequest) {
		status = http.StatusBadRequest
	}
	reply(w, status, answers, batch)
}

// response is one answer, with the id as it was sent.
func response(id jsontext.Value, member string, raw []byte) []byte {
	b := make([]byte, 0, len(id)+len(member)+len(raw)+32)
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), id...)
	return append(append(append(b, member...), raw...), '}')
}

func failure(id jsontext.Value, e rpc.Error) []byte {
	raw, _ := json.Marshal(e) // strings and numbers
	return response(id, `,"error":`, raw)
}

// reply writes the answers; to notifications there is none.
func reply(w http.ResponseWriter, status int, answers [][]byte, batch bool) {
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	body := bytes.Join(answers, []byte{','})
	if batch {
		body = append(append([]byte{'['}, body...), ']')
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_ = httpin.Write(w, body) // nobody is left to tell of a client that is gone
}

// refuse answers a request that got no further than HTTP.
func refuse(w http.ResponseWriter, status int, kind fault.Kind, text redact.EventText) {
	reply(w, status, [][]byte{failure(null, rpc.ErrorOf(fault.New("rpc", kind, text)))}, false)
}
