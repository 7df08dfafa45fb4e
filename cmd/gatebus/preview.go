package main

import (
	"fmt"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus/client"
)

// showPreview writes what an approval is about. Of a tool that first is what is the
// matter with its definition, and how that differs from the approved one.
func showPreview(t *table, a client.Approval) {
	lenient := jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var tool struct {
		Suspicious []string `json:"suspicious"`
		Diff       []struct {
			Path   string         `json:"path"`
			Before jsontext.Value `json:"before"`
			After  jsontext.Value `json:"after"`
		} `json:"diff"`
		Definition jsontext.Value `json:"definition"`
	}
	if a.Action != "mcp.tool" || jsonv2.Unmarshal(a.Preview, &tool, lenient) != nil || tool.Definition == nil {
		if len(a.Preview) > 0 {
			t.field("preview", " ")
			t.json(jsontext.Value(a.Preview))
		}
		return
	}
	t.field("suspicious", strings.Join(tool.Suspicious, " "))
	if len(tool.Diff) > 0 {
		t.field("diff", " ")
	}
	for _, d := range tool.Diff {
		t.block("  " + d.Path)
		for _, side := range []struct {
			mark  string
			value jsontext.Value
		}{{"-", d.Before}, {"+", d.After}} {
			if side.value != nil {
				t.block(fmt.Sprintf("  %s %s", side.mark, side.value))
			}
		}
	}
	t.field("definition", " ")
	t.json(tool.Definition)
}

// json writes a JSON text in lines, with < and > as they are.
func (t *table) json(v jsontext.Value) {
	out := v.Clone()
	if out.Format(jsontext.WithIndent("  "), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) == nil {
		t.block(string(out))
	}
}
