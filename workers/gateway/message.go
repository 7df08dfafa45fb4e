package gateway

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/frame"
)

// message is a JSON-RPC message. Its parts are ranges of the body, as sent.
type message struct {
	id     jsontext.Value // a string or a number; nil for what is no request
	method string         // "" for an answer
	params []byte         // an object, or nil

	// result or failure is there in an answer, of any kind.
	result, failure jsontext.Value

	// Members of params, of any kind.
	capabilities, name, cursor, requestID, protocolVersion, notifications, uri, ref, level jsontext.Value

	meta  meta
	input []byte // what a stateless client can be asked for with the result, or nil
}

// meta is params._meta, where that is an object, and members of it, of any kind.
type meta struct {
	raw   jsontext.Value
	at    int            // its place in params
	token jsontext.Value // for progress, a string or a number; else nil

	version, client, capabilities, level jsontext.Value
}

// request reports whether a message wants an answer.
func (m *message) request() bool { return m.method != "" && m.id != nil }

var (
	errAmbiguous = errors.New("gateway: a member is there twice, or is a known one in disguise")
	errShape     = errors.New("gateway: not a JSON-RPC message")
	errBatch     = errors.New("gateway: a batch")
)

// The members that mean something. In the objects that hold them they must be
// spelled as here: another reader may unescape names or ignore their case, so
// "Name" beside "name" could call another tool than the one that was judged.
var (
	envelope   = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	parameters = []string{"name", "arguments", "_meta", "cursor", "requestId", "protocolVersion", "notifications", "uri", "ref", "level", "inputResponses", "requestState", "capabilities"}
	metadata   = []string{"progressToken", keyVersion, keyClient, keyCapabilities, keyLevel}
)

// scan reads a body in one pass. What two readers could understand in two ways
// is refused: a member twice at any depth, invalid UTF-8, anything after the
// object.
func scan(body []byte) (message, *rpcError) {
	var m message
	err := m.scan(body)
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, errBatch):
		return message{}, newError(fault.InvalidRequest, "batches are not supported")
	case errors.Is(err, errAmbiguous), errors.Is(err, jsontext.ErrDuplicateName):
		return message{}, ambiguous()
	case errors.Is(err, errShape):
		return message{}, newError(fault.InvalidRequest, "the body is not a JSON-RPC 2.0 message with a string or number as id and an object as params")
	}
	e := newError(fault.InvalidJSON, "the body is not one JSON value in valid UTF-8")
	e.Code = codeParse
	return message{}, e
}

func ambiguous() *rpcError {
	return newError(fault.InvalidRequest, "each member must be there once, by its plain name")
}

func (m *message) scan(body []byte) error {
	dec := frame.Decoder(body)
	defer frame.Release(dec)
	switch dec.PeekKind() {
	case '{':
	case '[':
		if err := dec.SkipValue(); err != nil {
			return err
		}
		return errBatch
	default:
		if err := dec.SkipValue(); err != nil {
			return err
		}
		return errShape
	}
	var version, outcome bool
	err := members(dec, body, envelope, func(name string) error {
		if name == "params" && dec.PeekKind() == '{' {
			return m.scanParams(dec, body)
		}
		v, err := value(dec, body)
		if err != nil {
			return err
		}
		switch name {
		case "jsonrpc":
			version = string(v) == `"2.0"`
		case "id":
			if k := v.Kind(); k != '"' && k != '0' {
				return errShape
			}
			m.id = v
		case "method":
			if m.method = text(v); m.method == "" {
				return errShape
			}
		case "params":
			return errShape
		case "result":
			m.result, outcome = v, true
		case "error":
			m.failure, outcome = v, true
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.New("gateway: something follows the message")
	}
	if !version || (m.method == "") != outcome {
		return errShape
	}
	return nil
}

func (m *message) scanParams(dec *jsontext.Decoder, body []byte) error {
	start := brace(dec, body)
	err := members(dec, body, parameters, func(name string) error {
		if name == "_meta" && dec.PeekKind() == '{' {
			m.meta.at = brace(dec, body) - start
			return m.meta.scan(dec, body)
		}
		v, err := value(dec, body)
		switch name {
		case "name":
			m.name = v
		case "notifications":
			m.notifications = v
		case "cursor":
			m.cursor = v
		case "uri":
			m.uri = v
		case "ref":
			m.ref = v
		case "level":
			m.level = v
		case "requestId":
			m.requestID = v
		case "protocolVersion":
			m.protocolVersion = v
		case "capabilities":
			m.capabilities = v
		}
		return err
	})
	m.params = body[start:dec.InputOffset():dec.InputOffset()]
	return err
}

// brace is where the object begins that comes next as the value of a member: the
// offset is before the colon.
func brace(dec *jsontext.Decoder, body []byte) int {
	at := int(dec.InputOffset())
	return at + bytes.IndexByte(body[at:], '{')
}

func (m *meta) scan(dec *jsontext.Decoder, body []byte) error {
	start := brace(dec, body)
	err := members(dec, body, metadata, func(name string) error {
		v, err := value(dec, body)
		switch name {
		case "progressToken":
			if k := v.Kind(); k == '"' || k == '0' {
				m.token = v
			}
		case keyVersion:
			m.version = v
		case keyClient:
			m.client = v
		case keyCapabilities:
			m.capabilities = v
		case keyLevel:
			m.level = v
		}
		return err
	})
	m.raw = body[start:dec.InputOffset():dec.InputOffset()]
	return err
}

// members reads the object that comes next. f gets the name of each member, ""
// for one that is not known, and reads its value.
func members(dec *jsontext.Decoder, body []byte, known []string, f func(name string) error) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		raw, err := value(dec, body)
		if err != nil {
			return err
		}
		name, err := plain(raw, known)
		if err != nil {
			return err
		}
		if err := f(name); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// value reads the next value and returns its range of body.
func value(dec *jsontext.Decoder, body []byte) (jsontext.Value, error) {
	v, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(dec.InputOffset())
	return body[end-len(v) : end : end], nil
}

// plain returns the known name that raw, a quoted string, spells.
func plain(raw jsontext.Value, known []string) (string, error) {
	name := raw[1 : len(raw)-1]
	for _, k := range known {
		if string(name) == k {
			return k, nil
		}
	}
	if bytes.IndexByte(name, '\\') >= 0 {
		name = []byte(text(raw))
	}
	for _, k := range known {
		if bytes.EqualFold(name, []byte(k)) {
			return "", errAmbiguous
		}
	}
	return "", nil
}

// text unquotes v, or is "" where v is no string.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(s)
}
