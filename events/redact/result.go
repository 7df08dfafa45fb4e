package redact

import (
	"cmp"
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrResult says that what a server sent is no result of a tool
// (result_invalid).
var ErrResult = errors.New("redact: malformed tool result")

// A Converted is the text form of a tool result, before redaction (R116). The
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

// Result converts the result of a tools/call (R116): structured content to
// its JSON, else the content blocks to text, one below the other, else to a
// small status. A malformed result is ErrResult.
func Result(raw Raw[[]byte]) (Converted, error) {
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

// blockText converts a content block. A known type without what it needs is
// malformed, an unknown one is shown as its JSON.
func blockText(block jsontext.Value) (string, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if block.Kind() != '{' || json.Unmarshal(block, &kind, lenient) != nil || kind.Type == "" {
		return "", ErrResult
	}
	var b struct {
		Text     *string `json:"text"`
		MIMEType *string `json:"mimeType"`
		Title    string  `json:"title"`
		URI      *string `json:"uri"`
		Resource struct {
			Text *string `json:"text"`
			URI  *string `json:"uri"`
		} `json:"resource"`
	}
	var text *string
	before, after := "", ""
	err := json.Unmarshal(block, &b, lenient)
	switch kind.Type {
	case "text":
		text = b.Text
	case "image", "audio":
		text, before, after = b.MIMEType, "["+kind.Type+" ", "]"
	case "resource_link":
		text = b.URI
		if b.Title != "" {
			before = "[" + b.Title + "] "
		}
	case "resource":
		text = cmp.Or(b.Resource.Text, b.Resource.URI)
	default:
		return string(block), nil
	}
	if err != nil || text == nil {
		return "", ErrResult
	}
	return before + *text + after, nil
}
