package caller

import (
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
)

// parsed is the params object of a tools/call with the places that matter.
type parsed struct {
	raw []byte
	// name is the range of the value of "name"; arguments that of "arguments",
	// an empty object where the member is absent.
	name, args [2]int
	// null is the range of arguments that are null.
	null      [2]int
	arguments redact.Raw[[]byte]
	// input says that they are those of a round that gives the server what it asked
	// for: an object with the members of params that it reads.
	input bool
}

var errParams = errors.New("caller: params is no object with one name and arguments that are an object")

// parseParams reads params strictly: two readers must not see two calls in it,
// so names that occur twice and invalid UTF-8 are errors.
func parseParams(params redact.Raw[[]byte]) (parsed, error) {
	p := parsed{raw: params.Reveal()}
	var input []byte // members of the object
	d := frame.Decoder(p.raw)
	defer frame.Release(d)
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return p, errParams
	}
	for d.PeekKind() != '}' {
		t, err := d.ReadToken()
		if err != nil {
			return p, errParams
		}
		member := t.String()
		value, err := d.ReadValue()
		if err != nil {
			return p, errParams
		}
		at := [2]int{int(d.InputOffset()) - len(value), int(d.InputOffset())}
		switch member {
		case "name":
			if value.Kind() != '"' {
				return p, errParams
			}
			p.name = at
		case "arguments":
			switch value.Kind() {
			case '{':
				p.args = at
			case 'n': // as good as none, but a server may trip over it
				p.null = at
			default:
				return p, errParams
			}
		case "inputResponses", "requestState":
			input = append(append(input, `,"`+member+`":`...), value...)
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return p, errParams
	}
	if _, err := d.ReadToken(); err != io.EOF || p.name[1] == 0 {
		return p, errParams
	}
	p.arguments = redact.NewRaw([]byte("{}"))
	if p.args[1] != 0 {
		p.arguments = redact.NewRaw(p.raw[p.args[0]:p.args[1]])
	}
	if input != nil {
		p.input = true
		p.arguments = redact.NewRaw(slices.Concat([]byte(`{"arguments":`), p.arguments.Reveal(), input, []byte{'}'}))
	}
	return p, nil
}

// plainParams reads the params of a request that is no tools/call as strictly. All
// of it is arguments.
func plainParams(params redact.Raw[[]byte]) (parsed, error) {
	p := parsed{raw: params.Reveal(), arguments: params}
	d := frame.Decoder(p.raw)
	defer frame.Release(d)
	if d.PeekKind() != '{' {
		return p, errParams
	}
	if err := d.SkipValue(); err != nil {
		return p, errParams
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return p, errParams
	}
	return p, nil
}

// upstream is the params with the server's own name of the tool, and an empty
// object in place of null; every other byte is as the client sent it (decision 22).
func (p parsed) upstream(tool string) redact.Raw[[]byte] {
	quoted, err := jsontext.AppendQuote(nil, tool)
	if err != nil {
		// The name came out of valid JSON; this is for a name that is no UTF-8.
		quoted = strconv.AppendQuoteToASCII(nil, tool)
	}
	out := slices.Clone(p.raw)
	// From the end, so that the places before stay what they are.
	if p.null[1] > p.name[1] {
		out = slices.Replace(out, p.null[0], p.null[1], '{', '}')
	}
	out = slices.Replace(out, p.name[0], p.name[1], quoted...)
	if p.null[1] != 0 && p.null[1] < p.name[1] {
		out = slices.Replace(out, p.null[0], p.null[1], '{', '}')
	}
	return redact.NewRaw(out)
}
