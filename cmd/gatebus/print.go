package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/gatebus/gatebus/events/hidden"
)

// formats are the values of --output.
var formats = []string{"table", "json", "yaml", "jsonl", "name"}

// cellWidth is how many characters of a value a table shows.
const cellWidth = 60

// column is one column of a list.
type column[T any] struct {
	title string
	cell  func(T) string
}

// printList prints rows as --output says: a table of the columns, their names,
// or their JSON. No rows are an empty list.
func printList[T any](m *Main, rows []T, name func(T) string, columns ...column[T]) error {
	switch m.output {
	case "name":
		for _, r := range rows {
			if err := m.line(name(r)); err != nil {
				return err
			}
		}
		return nil
	case "jsonl":
		for _, r := range rows {
			if err := m.encode("jsonl", r); err != nil {
				return err
			}
		}
		return nil
	case "table":
		return m.table(func(t *table) {
			titles := make([]string, len(columns))
			for i, c := range columns {
				titles[i] = c.title
			}
			t.row(titles...)
			for _, r := range rows {
				cells := make([]string, len(columns))
				for i, c := range columns {
					cells[i] = c.cell(r)
				}
				t.row(cells...)
			}
		})
	}
	return m.encode(m.output, rows)
}

// printObject prints one value as --output says; show writes it for a person.
func (m *Main) printObject(v any, name string, show func(*table)) error {
	switch m.output {
	case "name":
		return m.line(name)
	case "table":
		return m.table(show)
	}
	return m.encode(m.output, v)
}

// table is a text in aligned columns.
type table struct{ w io.Writer }

func (m *Main) table(fill func(*table)) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fill(&table{w})
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) { // the last column is padded too
		if _, err := fmt.Fprintln(m.Stdout, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// row writes one line; cells come from outside and are made harmless.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = cell(c)
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// field writes a named value, unless it is empty. It may be of any length.
func (t *table) field(name, value string) {
	if value != "" {
		fmt.Fprintf(t.w, "%s:\t%s\n", name, printable(value, ""))
	}
}

// block writes a text of several lines.
func (t *table) block(text string) {
	if text != "" {
		fmt.Fprintln(t.w, printable(strings.TrimSuffix(text, "\n"), "\n\t"))
	}
}

// cell is a value as a table shows it.
func cell(s string) string {
	s = printable(cmp.Or(s, "-"), "")
	if utf8.RuneCountInString(s) > cellWidth {
		s = string([]rune(s)[:cellWidth-1]) + "…"
	}
	return s
}

// printable escapes the hidden characters of a text but for those in keep.
func printable(s, keep string) string {
	var b strings.Builder
	for _, r := range s {
		if hidden.Rune(r) && !strings.ContainsRune(keep, r) {
			escape(&b, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// escape writes a character as in a JSON string.
func escape(b *strings.Builder, r rune) {
	if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
		fmt.Fprintf(b, `\u%04x\u%04x`, hi, lo)
		return
	}
	fmt.Fprintf(b, `\u%04x`, r)
}

// line writes one line of data.
func (m *Main) line(s string) error {
	_, err := fmt.Fprintln(m.Stdout, printable(s, ""))
	return err
}

// encode writes a value as JSON or YAML. Raw JSON in it keeps its members, their
// order and its numbers; lists are never null.
func (m *Main) encode(format string, v any) error {
	b, err := jsonv2.Marshal(v, jsonv2.Deterministic(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
		jsontext.PreserveRawStrings(true))
	if err != nil {
		return err
	}
	text := printable(string(b), "") // hidden characters are only within strings
	switch format {
	case "jsonl":
		text += "\n"
	case "yaml":
		if text, err = toYAML(b); err != nil {
			return err
		}
	default:
		var out bytes.Buffer
		if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
			return err
		}
		text = out.String() + "\n"
	}
	_, err = io.WriteString(m.Stdout, text)
	return err
}

// toYAML is the YAML of a JSON text, in its order and with its numbers.
func toYAML(data []byte) (string, error) {
	d := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	n, err := yamlNode(d)
	if err != nil {
		return "", err
	}
	unsafe := strings.ContainsFunc(string(data), func(r rune) bool { return r > unicode.MaxASCII && hidden.Rune(r) })
	b, err := yaml.Dump(n, yaml.WithUnicode(!unsafe))
	return string(b), err
}

func yamlNode(d *jsontext.Decoder) (*yaml.Node, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch t.Kind() {
	case 'n':
		return scalar("!!null", "null")
	case 't', 'f':
		return scalar("!!bool", t.String())
	case '0':
		tag := "!!int"
		if strings.ContainsAny(t.String(), ".eE") {
			tag = "!!float"
		}
		return scalar(tag, t.String())
	case '"':
		return scalar("!!str", t.String())
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if t.Kind() == '{' {
		n.Kind = yaml.MappingNode
	}
	for d.PeekKind() != ']' && d.PeekKind() != '}' {
		child, err := yamlNode(d)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
	}
	_, err = d.ReadToken()
	return n, err
}

// clock is a time as tables show it; the zero time is nothing.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// count is a number as a table shows it.
func count[T ~int | ~uint32 | ~uint64](n T) string { return fmt.Sprint(n) }
