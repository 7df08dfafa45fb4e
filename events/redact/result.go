package redact

import (
	"bytes"
	"errors"
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

// Views redacts the converted text.
func (c Converted) Views(r *Redactor) Views {
	if c.Structured {
		return r.JSON(NewRaw([]byte(c.Text.Reveal())))
	}
	return r.Text(c.Text)
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
// text, one below the other, else to a small status.
func toolResult(raw Raw[[]byte]) (Converted, error) {
	var result struct {
		Content           []jsontext.Value `json:"content"`
		StructuredContent jsontext.Value   `json:"structuredContent"`
		IsError           bool             `json:"isError"`
	}
	src := jsontext.Value(raw.Reveal())
	if src.Kind() != '{' || json.Unmarshal(src, &result, lenient) != nil {
		return Converted{}, ErrResult
	}
	out := Converted{Structured: true, IsError: result.IsError}
	switch {
	case len(result.StructuredContent) > 0 && result.StructuredContent.Kind() != 'n':
		out.Text = NewRaw(string(result.StructuredContent))
	case len(result.Content) > 0:
		var lines []string
		for _, block := range result.Content {
			line, err := blockText(block)
			if err != nil {
				return Converted{}, err
			}
			lines = append(lines, line)
		}
		out.Structured, out.Text = false, NewRaw(strings.Join(lines, "\n"))
	case out.IsError:
		out.Text = NewRaw(`{"status":"error"}`)
	default:
		out.Text = NewRaw(`{"status":"ok"}`)
	}
	return out, nil
}

// blockText converts a content block. An unknown type is shown as its JSON. A known
// one without what it needs is malformed; that is not the media type of an image,
// which the call does not fail for (decision 22).
func blockText(block jsontext.Value) (string, error) {
	var b struct {
		Type     jsontext.Value `json:"type"`
		Text     jsontext.Value `json:"text"`
		MIMEType jsontext.Value `json:"mimeType"`
		Title    jsontext.Value `json:"title"`
		URI      jsontext.Value `json:"uri"`
		Resource jsontext.Value `json:"resource"`
	}
	if block.Kind() != '{' || json.Unmarshal(block, &b, lenient) != nil {
		return "", ErrResult
	}
	kind, ok := stringOf(b.Type)
	if !ok || kind == "" {
		return "", ErrResult
	}
	title, _ := stringOf(b.Title)
	switch kind {
	case "text":
		if text, ok := stringOf(b.Text); ok {
			return text, nil
		}
	case "image", "audio":
		media, _ := stringOf(b.MIMEType)
		return strings.TrimRight("["+kind+" "+media, " ") + "]", nil
	case "resource_link":
		uri, ok := stringOf(b.URI)
		switch {
		case ok && title != "":
			return "[" + title + "] " + uri, nil
		case ok:
			return uri, nil
		}
	case "resource":
		var r struct {
			Text jsontext.Value `json:"text"`
			URI  jsontext.Value `json:"uri"`
		}
		if b.Resource.Kind() != '{' || json.Unmarshal(b.Resource, &r, lenient) != nil {
			break
		}
		for _, v := range []jsontext.Value{r.Text, r.URI} {
			if text, ok := stringOf(v); ok {
				return text, nil
			}
		}
	default:
		return string(block), nil
	}
	return "", ErrResult
}

// stringOf is a JSON string; ok is false for what is none.
func stringOf(v jsontext.Value) (text string, ok bool) {
	if v.Kind() != '"' {
		return "", false
	}
	out, _ := jsontext.AppendUnquote(nil, v) // half a character becomes U+FFFD
	return string(out), true
}

// Complete is the type of a result with which its request is over.
const Complete = "complete"

// ResultType is what the result of a request says that it is, from MCP 2026-07-28
// on; one that does not say so is complete, and one that cannot be read is of no
// type.
func ResultType(raw Raw[[]byte]) string {
	src := raw.Reveal()
	if !bytes.Contains(src, []byte(`"resultType"`)) {
		return Complete
	}
	var result struct {
		Type *string `json:"resultType"`
	}
	switch err := json.Unmarshal(src, &result, lenient); {
	case err != nil:
		return ""
	case result.Type == nil:
		return Complete
	}
	return *result.Type
}
