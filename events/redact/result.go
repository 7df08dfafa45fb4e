package redact

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrResult says that what a server sent is no result of a tool
// (result_invalid).
var ErrResult = errors.New("redact: malformed tool result")

// A Converted is the text form of a result, before redaction (R116). The
// model's view is never made of it: that is the result itself.
type Converted struct {
	Text       Raw[string]
	Structured bool // the text is JSON, the structured content
	IsError    bool // the tool says that it failed (R117)
}

// Views redacts the converted text. A result has no debug view of its own: that is
// the event's.
func (c Converted) Views(r *Redactor) Views {
	if c.Structured {
		return r.jsonViews(c.Text.Reveal(), liveViews)
	}
	return r.textViews(c.Text.Reveal(), liveViews)
}

// Result converts the result of a request by its method, the empty one being
// tools/call (R116). Of a prompt and of a resource it is the text, where something
// binary is only named; of anything else the JSON. A malformed result is ErrResult.
func Result(method string, raw Raw[[]byte]) (Converted, error) {
	switch method {
	case "":
		return toolResult(raw)
	case "prompts/get":
		return promptResult(raw)
	case "resources/read":
		return resourceResult(raw)
	}
	if src := jsontext.Value(raw.Reveal()); src.Kind() != '{' || !src.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return Converted{}, ErrResult
	}
	return Converted{Structured: true, Text: NewRaw(string(raw.Reveal()))}, nil
}

// promptResult is the text of the messages.
func promptResult(raw Raw[[]byte]) (Converted, error) {
	var result struct {
		Messages []struct {
			Role    string         `json:"role"`
			Content jsontext.Value `json:"content"`
		} `json:"messages"`
	}
	if src := jsontext.Value(raw.Reveal()); src.Kind() != '{' || json.Unmarshal(src, &result, lenient) != nil {
		return Converted{}, ErrResult
	}
	lines := make([]string, len(result.Messages))
	for i, m := range result.Messages {
		line, err := blockText(m.Content)
		if err != nil {
			return Converted{}, err
		}
		lines[i] = m.Role + ": " + line
	}
	return Converted{Text: NewRaw(strings.Join(lines, "\n"))}, nil
}

// resourceResult is the text of the contents.
func resourceResult(raw Raw[[]byte]) (Converted, error) {
	var result struct {
		Contents []struct {
			URI      string  `json:"uri"`
			MIMEType string  `json:"mimeType"`
			Text     *string `json:"text"`
		} `json:"contents"`
	}
	if src := jsontext.Value(raw.Reveal()); src.Kind() != '{' || json.Unmarshal(src, &result, lenient) != nil {
		return Converted{}, ErrResult
	}
	lines := make([]string, len(result.Contents))
	for i, c := range result.Contents {
		if c.Text != nil {
			lines[i] = *c.Text
		} else {
			lines[i] = strings.TrimRight("[blob "+c.MIMEType, " ") + "] " + c.URI
		}
	}
	return Converted{Text: NewRaw(strings.Join(lines, "\n"))}, nil
}

// toolResult converts structured content to its JSON, else the content blocks to
// text, one below the other, else to a small status. The result is read once; of
// members that are there twice the last one counts.
func toolResult(raw Raw[[]byte]) (Converted, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.begin(string(raw.Reveal()), maxResultDepth)
	var lines []string
	var structured string
	var isError, malformed bool
	err := p.members(func(name string) error {
		switch name {
		case "content":
			lines, malformed = nil, false
			if p.next() == 'n' {
				break
			}
			return p.elements(func() error {
				line, ok, err := p.block()
				lines, malformed = append(lines, line), malformed || !ok
				return err
			})
		case "structuredContent":
			var err error
			structured, err = p.raw()
			return err
		case "isError":
			v, err := p.raw()
			if isError = v == "true"; !isError && v != "false" && v != "null" {
				err = errJSON
			}
			return err
		}
		_, err := p.raw()
		return err
	})
	out := Converted{Structured: true, IsError: isError}
	switch {
	case err != nil || !p.end():
		return Converted{}, ErrResult
	case structured != "" && structured != "null":
		out.Text = NewRaw(structured)
	case malformed:
		return Converted{}, ErrResult
	case len(lines) > 0:
		out.Structured, out.Text = false, NewRaw(strings.Join(lines, "\n"))
	case out.IsError:
		out.Text = NewRaw(`{"status":"error"}`)
	default:
		out.Text = NewRaw(`{"status":"ok"}`)
	}
	return out, nil
}

// maxResultDepth bounds containers in a result that is converted; what is deeper than
// maxDepth is not redacted.
const maxResultDepth = 10_000

// block converts the content block that comes next. An unknown type is shown as its
// JSON. A known one without what it needs is malformed, and not ok; that is not the
// media type of an image, which the call does not fail for (decision 22).
func (p *parser) block() (line string, ok bool, err error) {
	if p.next() != '{' {
		_, err := p.raw()
		return "", false, err
	}
	from := p.at
	var kind, text, media, title, uri, resource string
	err = p.members(func(name string) (err error) {
		v, err := p.raw()
		switch name {
		case "type":
			kind = v
		case "text":
			text = v
		case "mimeType":
			media = v
		case "title":
			title = v
		case "uri":
			uri = v
		case "resource":
			resource = v
		}
		return err
	})
	if err != nil {
		return "", false, err
	}
	switch kind, _ := stringOf(kind); kind {
	case "":
	case "text":
		line, ok = stringOf(text)
	case "image", "audio":
		media, _ := stringOf(media)
		line, ok = strings.TrimRight("["+kind+" "+media, " ")+"]", true
	case "resource_link":
		if line, ok = stringOf(uri); ok {
			if title, _ := stringOf(title); title != "" {
				line = "[" + title + "] " + line
			}
		}
	case "resource":
		line, ok = embedded(resource)
	default:
		line, ok = p.src[from:p.at], true
	}
	return line, ok, nil
}

// embedded is the text of a resource in a content block, or where it is.
func embedded(resource string) (line string, ok bool) {
	var r struct {
		Text jsontext.Value `json:"text"`
		URI  jsontext.Value `json:"uri"`
	}
	if !strings.HasPrefix(resource, "{") || json.Unmarshal([]byte(resource), &r, lenient) != nil {
		return "", false
	}
	if line, ok = stringOf(string(r.Text)); !ok {
		line, ok = stringOf(string(r.URI))
	}
	return line, ok
}

// blockText converts a content block as block does.
func blockText(block jsontext.Value) (string, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.begin(string(block), maxResultDepth)
	line, ok, err := p.block()
	if err != nil || !ok {
		return "", ErrResult
	}
	return line, nil
}

// stringOf is a JSON string; ok is false for what is none. Half a character becomes
// U+FFFD.
func stringOf(v string) (text string, ok bool) {
	if !strings.HasPrefix(v, `"`) {
		return "", false
	}
	return unquote(v), true
}

// Complete is the type of a result with which its request is over.
const Complete = "complete"

// ResultType is what the result of a request says that it is, from MCP 2026-07-28
// on; one that does not say so is complete. One that cannot be read, or says it twice,
// is of no type: readers differ in which of the two they believe.
func ResultType(raw Raw[[]byte]) string {
	v, n, err := member(raw.Reveal(), "resultType")
	switch {
	case err != nil || n > 1 || n == 1 && v.Kind() != '"' && v.Kind() != 'n':
		return ""
	case n == 0 || v.Kind() == 'n':
		return Complete
	}
	return unquote(string(v))
}

// HasMember says that a result has a member, however its name is written.
func HasMember(raw Raw[[]byte], name string) bool {
	_, n, _ := member(raw.Reveal(), name)
	return n > 0
}

// member returns the last value that an object has for a name, and how many there are.
// An object without the name is not read.
func member(object []byte, name string) (v jsontext.Value, n int, err error) {
	if !mayName(object, name) {
		return nil, 0, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(object), lenient)
	if dec.PeekKind() != '{' {
		return nil, 0, ErrResult
	}
	_, err = dec.ReadToken()
	for err == nil && dec.PeekKind() == '"' {
		var key jsontext.Token
		if key, err = dec.ReadToken(); err != nil {
			break
		}
		if key.String() != name {
			err = dec.SkipValue()
			continue
		}
		n++
		v, err = dec.ReadValue()
		v = v.Clone()
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	if _, end := dec.ReadToken(); err == nil && end != io.EOF {
		err = ErrResult
	}
	return v, n, err
}

// mayName says that src may spell a name of ASCII letters: as it is, or with an escape
// of one of them.
func mayName(src []byte, name string) bool {
	if bytes.Contains(src, []byte(`"`+name+`"`)) {
		return true
	}
	escape := []byte(`\u00`)
	for {
		i := bytes.Index(src, escape)
		if i < 0 {
			return false
		}
		if src = src[i+len(escape):]; len(src) > 0 && '4' <= src[0] && src[0] <= '7' {
			return true
		}
	}
}
