package bridge

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// message is what the bridge must know of a message.
type message struct {
	read   bool           // it is one that can be read
	id     jsontext.Value // as sent; nil where there is none
	method string         // empty for an answer

	requestID jsontext.Value // params.requestId, as sent
	name      string         // params.name, or else params.uri
	version   string         // that params._meta names: of the era without a handshake
}

// wanted reports whether there is an answer to it: it is a request, or cannot be
// read, which the bus says.
func (m message) wanted() bool { return !m.read || m.id != nil && m.method != "" }

// versionMember is what _meta of each request has in that era.
const versionMember = "io.modelcontextprotocol/protocolVersion"

// scan reads a message. One that it cannot read is for the bus to refuse.
func scan(line []byte) (m message) {
	var top struct {
		ID     jsontext.Value `json:"id"`
		Method jsontext.Value `json:"method"`
		Params jsontext.Value `json:"params"`
	}
	if jsonv2.Unmarshal(line, &top) != nil {
		return message{}
	}
	if top.ID.Kind() == 'n' {
		return message{}
	}
	m.id, m.method = top.ID, text(top.Method)
	m.read = m.id != nil || m.method != ""
	var params struct {
		Name      jsontext.Value `json:"name"`
		URI       jsontext.Value `json:"uri"`
		RequestID jsontext.Value `json:"requestId"`
		Meta      jsontext.Value `json:"_meta"`
	}
	if m.method == "" || top.Params.Kind() != '{' || jsonv2.Unmarshal(top.Params, &params) != nil {
		return m
	}
	m.requestID = params.RequestID
	if m.name = text(params.Name); m.name == "" {
		m.name = text(params.URI)
	}
	var meta map[string]jsontext.Value
	if params.Meta.Kind() == '{' && jsonv2.Unmarshal(params.Meta, &meta) == nil {
		m.version = text(meta[versionMember])
	}
	return m
}

// text unquotes v, or is "" where v is no string.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(s)
}

// withID puts the id of a request into an answer that has null there, as one has
// that was refused before its body was read.
func withID(answer []byte, id jsontext.Value) []byte {
	dec := jsontext.NewDecoder(bytes.NewBuffer(answer))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return answer
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return answer
		}
		isID := name.String() == "id"
		v, err := dec.ReadValue()
		if err != nil {
			return answer
		}
		if isID && v.Kind() == 'n' {
			end := int(dec.InputOffset())
			return append(append(bytes.Clone(answer[:end-len(v)]), id...), answer[end:]...)
		}
	}
	return answer
}

// headerValue writes what a header can hold, as MCP 2026-07-28 has it: base64
// where it is not printable ASCII, or seems to be base64.
func headerValue(s string) string {
	const mark = "=?base64?"
	plain := s == strings.TrimSpace(s) && !strings.HasPrefix(s, mark)
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] <= '~'
	}
	if plain {
		return s
	}
	return mark + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

var errTooLong = errors.New("bridge: the line is too long")

// readLine reads a line without its end. The error is errTooLong for one beyond
// the limit, which is passed over, else the reader's.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := in.ReadSlice('\n')
		if long = long || len(line)+len(part) > limit; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long && (err == nil || errors.Is(err, io.EOF)):
			return nil, errTooLong
		}
		return bytes.TrimRight(line, "\r\n"), err
	}
}
