// Command generate makes, from the protobuf sources in schemas/gatebus/v1 and
// without network or protoc: the protobuf messages (events/internal/eventspb),
// the event structs and their registry (events/events_gen.go) and the JSON
// Schema of every event (schemas/json/events). Run it in schemas/tools:
//
//	go run ./generate
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	eventOption = 50001 // gatebus.v1.event
	viewOption  = 50002 // gatebus.v1.view
)

func main() {
	log.SetFlags(0)
	if err := run("../.."); err != nil {
		log.Fatal("generate: ", err)
	}
}

// run generates into the repository at root.
func run(root string) error {
	req, err := sources(root)
	if err != nil {
		return err
	}
	plugin, err := protogen.Options{}.New(req)
	if err != nil {
		return err
	}
	for _, f := range plugin.Files {
		if f.Generate {
			internal_gengo.GenerateFile(plugin, f)
		}
	}
	resp := plugin.Response()
	if resp.Error != nil {
		return fmt.Errorf("%s", *resp.Error)
	}
	for _, f := range resp.File {
		if err := write(filepath.Join(root, f.GetName()), []byte(f.GetContent())); err != nil {
			return err
		}
	}

	var g generator
	for _, f := range plugin.Files {
		if f.Generate && f.Desc.Path() != "gatebus/v1/commit.proto" {
			g.messages = append(g.messages, f.Messages...)
		}
	}
	src, err := g.source()
	if err != nil {
		return err
	}
	if err := write(filepath.Join(root, "events/events_gen.go"), src); err != nil {
		return err
	}
	return g.schemas(filepath.Join(root, "schemas/json/events"))
}

// sources compiles the protobuf sources of the repository at root into a request
// to generate code for all of them. Options of our own are unknown fields in it.
func sources(root string) (*pluginpb.CodeGeneratorRequest, error) {
	paths, err := filepath.Glob(filepath.Join(root, "schemas/gatebus/v1/*.proto"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no protobuf sources below %s: %v", root, err)
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = "gatebus/v1/" + filepath.Base(p)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{filepath.Join(root, "schemas")}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return nil, err
	}

	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: proto.String("module=github.com/gatebus/gatebus")}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, protodesc.ToFileDescriptorProto(fd))
	}
	for _, f := range compiled {
		add(f)
	}
	// The options are read as unknown fields, so that this program does not
	// depend on what it generates: drop what the compiler resolved.
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return nil, err
	}
	req = &pluginpb.CodeGeneratorRequest{}
	if err := (proto.UnmarshalOptions{}).Unmarshal(raw, req); err != nil {
		return nil, err
	}
	return req, nil
}

// write replaces a file only where its content differs.
func write(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// event is the value of the option (gatebus.v1.event).
type event struct {
	kinds   []string
	version uint32
}

// eventOf reads the event option of a message; ok is false where it has none.
func eventOf(m *protogen.Message) (e event, ok bool) {
	return eventIn(m.Desc.Options().(*descriptorpb.MessageOptions))
}

func eventIn(options *descriptorpb.MessageOptions) (e event, ok bool) {
	walk(options.ProtoReflect().GetUnknown(), func(num protowire.Number, typ protowire.Type, value []byte, _ uint64) {
		if num != eventOption || typ != protowire.BytesType {
			return
		}
		ok = true
		walk(value, func(num protowire.Number, _ protowire.Type, value []byte, n uint64) {
			switch num {
			case 1:
				e.kinds = append(e.kinds, string(value))
			case 2:
				e.version = uint32(n)
			}
		})
	})
	return e, ok
}

// isView reports whether the field has the option (gatebus.v1.view).
func isView(f *protogen.Field) (view bool) {
	options := f.Desc.Options().(*descriptorpb.FieldOptions)
	walk(options.ProtoReflect().GetUnknown(), func(num protowire.Number, _ protowire.Type, _ []byte, n uint64) {
		if num == viewOption {
			view = n == 1
		}
	})
	return view
}

// walk calls fn for every field of a wire-format message.
func walk(b []byte, fn func(protowire.Number, protowire.Type, []byte, uint64)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		var value []byte
		var number uint64
		switch typ {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return
		}
		fn(num, typ, value, number)
		b = b[n:]
	}
}

// generator writes what the standard plugin does not: plain structs whose text
// fields have the view types, and their schemas.
type generator struct {
	messages []*protogen.Message
}

func (g *generator) isEventMessage(m *protogen.Message) bool { _, ok := eventOf(m); return ok }

func (g *generator) source() ([]byte, error) {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("// Code generated by schemas/tools/generate from schemas/gatebus/v1. DO NOT EDIT.\n")
	p("package events\n")
	p("import (\n\t\"slices\"\n")
	p("\t\"github.com/gatebus/gatebus/events/internal/eventspb\"")
	p("\t\"github.com/gatebus/gatebus/events/redact\"")
	p(")\n")

	p("// registry is the closed table of events: wire name, payload version, kinds of")
	p("// aggregate, and how to read one.")
	p("var registry = []binding{")
	for _, m := range g.messages {
		if e, ok := eventOf(m); ok {
			kinds := make([]string, len(e.kinds))
			for i, k := range e.kinds {
				kinds[i] = fmt.Sprintf("%q", k)
			}
			p("\tbind(%q, %d, from%s, %s),", snake(m.GoIdent.GoName), e.version, m.GoIdent.GoName, strings.Join(kinds, ", "))
		}
	}
	p("}\n")

	for _, m := range g.messages {
		if m.GoIdent.GoName == "EventOptions" {
			continue
		}
		if err := g.message(p, m); err != nil {
			return nil, err
		}
	}
	return format.Source(b.Bytes())
}

func (g *generator) message(p func(string, ...any), m *protogen.Message) error {
	name := m.GoIdent.GoName
	p("%s", comment(string(m.Comments.Leading), ""))
	p("type %s struct {", name)
	for _, f := range m.Fields {
		if c := comment(string(f.Comments.Leading), "\t"); c != "" {
			p("%s", c)
		}
		t, err := g.goType(f)
		if err != nil {
			return err
		}
		p("\t%s %s", f.GoName, t)
	}
	p("}\n")
	if e, ok := eventOf(m); ok {
		p("// EventName is the wire name.")
		p("func (%s) EventName() string { return %q }\n", name, snake(name))
		p("// EventVersion is the version of the payload.")
		p("func (%s) EventVersion() uint32 { return %d }\n", name, e.version)
	}
	g.writers(p, m)
	p("func from%s(m *eventspb.%s) %s {", name, name, name)
	p("\tvar e %s", name)
	for _, f := range m.Fields {
		switch {
		case f.Message != nil && f.Desc.IsList():
			p("\te.%[1]s = slices.Grow(e.%[1]s, len(m.Get%[1]s()))\n\tfor _, v := range m.Get%[1]s() {\n\t\te.%[1]s = append(e.%[1]s, from%[2]s(v))\n\t}", f.GoName, f.Message.GoIdent.GoName)
		case f.Message != nil:
			p("\te.%s = from%s(m.Get%s())", f.GoName, f.Message.GoIdent.GoName, f.GoName)
		case isView(f):
			p("\te.%s = redact.FromStored(m.Get%s())", f.GoName, f.GoName)
		default:
			p("\te.%s = m.Get%s()", f.GoName, f.GoName)
		}
	}
	p("\treturn e\n}\n")
	return nil
}

// writers are what encodes a struct: as the protobuf message that from reads, its
// fields in the order of their numbers as a deterministic encoder has them, and as
// the JSON that protojson makes of that.
func (g *generator) writers(p func(string, ...any), m *protogen.Message) {
	byNumber := slices.SortedFunc(slices.Values(m.Fields), func(a, b *protogen.Field) int {
		return cmp.Compare(a.Desc.Number(), b.Desc.Number())
	})
	p("func (e %s) wire(w *wire) {", m.GoIdent.GoName)
	for _, f := range byNumber {
		n, value := f.Desc.Number(), valueOf(f)
		switch {
		case f.Message != nil && f.Desc.IsList():
			p("\tfor _, v := range e.%s {\n\t\tat := w.begin(%d)\n\t\tv.wire(w)\n\t\tw.end(at)\n\t}", f.GoName, n)
		case f.Message != nil:
			p("\tat%[1]d := w.begin(%[1]d)\n\te.%[2]s.wire(w)\n\tw.end(at%[1]d)", n, f.GoName)
		case f.Desc.IsList():
			p("\tw.texts(%d, %s)", n, value)
		default:
			p("\tw.%s(%d, %s)", writerOf(f), n, value)
		}
	}
	p("}\n")
	p("func (e %s) json(j *jsonText) {", m.GoIdent.GoName)
	for i, f := range m.Fields {
		open, value := ",", valueOf(f)
		if i == 0 {
			open = "{"
		}
		p("\tj.raw(%s)", "`"+open+`"`+string(f.Desc.Name())+`":`+"`")
		switch {
		case f.Message != nil && f.Desc.IsList():
			p("\tfor i, v := range e.%s {\n\t\tj.item(i)\n\t\tv.json(j)\n\t}\n\tj.endItems(len(e.%[1]s))", f.GoName)
		case f.Message != nil:
			p("\te.%s.json(j)", f.GoName)
		case f.Desc.IsList():
			p("\tj.texts(%s)", value)
		default:
			p("\tj.%s(%s)", writerOf(f), value)
		}
	}
	if len(m.Fields) == 0 {
		p("\tj.raw(`{`)")
	}
	p("\tj.raw(`}`)\n}\n")
}

// valueOf is the field of e as what it is made of.
func valueOf(f *protogen.Field) string {
	if isView(f) {
		return "e." + f.GoName + ".String()"
	}
	return "e." + f.GoName
}

// writerOf is the method that writes a field of its kind.
func writerOf(f *protogen.Field) string {
	switch f.Desc.Kind() {
	case protoreflect.BoolKind:
		return "flag"
	case protoreflect.Uint32Kind:
		return "number"
	case protoreflect.Int32Kind:
		return "integer"
	}
	return "text"
}

func (g *generator) goType(f *protogen.Field) (string, error) {
	var t string
	switch {
	case f.Message != nil:
		t = f.Message.GoIdent.GoName
	case isView(f):
		if f.Desc.Kind() != protoreflect.StringKind || f.Desc.IsList() {
			return "", fmt.Errorf("%s: a view is a single string", f.Desc.FullName())
		}
		t = "redact.EventText"
	default:
		switch f.Desc.Kind() {
		case protoreflect.StringKind:
			t = "string"
		case protoreflect.BoolKind:
			t = "bool"
		case protoreflect.Uint32Kind:
			t = "uint32"
		case protoreflect.Int32Kind:
			t = "int32"
		default:
			// protojson prints 64-bit integers as strings, so events have none (decision 14).
			return "", fmt.Errorf("%s: kind %s is not used in events", f.Desc.FullName(), f.Desc.Kind())
		}
	}
	if f.Desc.IsList() {
		if f.Message == nil && t != "string" {
			return "", fmt.Errorf("%s: a list of %s is not used in events", f.Desc.FullName(), f.Desc.Kind())
		}
		t = "[]" + t
	}
	return t, nil
}

// schemas writes one JSON Schema an event and removes those of no event.
func (g *generator) schemas(dir string) error {
	keep := map[string]bool{}
	for _, m := range g.messages {
		if !g.isEventMessage(m) {
			continue
		}
		schema := g.object(m)
		schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		schema["title"] = "mcp." + snake(m.GoIdent.GoName)
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(schema); err != nil {
			return err
		}
		file := snake(m.GoIdent.GoName) + ".schema.json"
		keep[file] = true
		if err := write(filepath.Join(dir, file), b.Bytes()); err != nil {
			return err
		}
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range old {
		if !keep[f.Name()] {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *generator) object(m *protogen.Message) map[string]any {
	properties := map[string]any{}
	required := []string{}
	for _, f := range m.Fields {
		var s map[string]any
		switch {
		case f.Message != nil:
			s = g.object(f.Message)
		case f.Desc.Kind() == protoreflect.BoolKind:
			s = map[string]any{"type": "boolean"}
		case f.Desc.Kind() == protoreflect.Uint32Kind:
			s = map[string]any{"type": "integer", "minimum": 0, "maximum": 1<<32 - 1}
		case f.Desc.Kind() == protoreflect.Int32Kind:
			s = map[string]any{"type": "integer", "minimum": -1 << 31, "maximum": 1<<31 - 1}
		default:
			s = map[string]any{"type": "string"}
		}
		if f.Desc.IsList() {
			s = map[string]any{"type": "array", "items": s}
		}
		if c := oneLine(string(f.Comments.Leading)); c != "" {
			s["description"] = c
		}
		properties[string(f.Desc.Name())] = s
		required = append(required, string(f.Desc.Name()))
	}
	sort.Strings(required)
	o := map[string]any{"type": "object", "properties": properties, "additionalProperties": false, "required": required}
	if c := oneLine(string(m.Comments.Leading)); c != "" {
		o["description"] = c
	}
	return o
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func comment(s, indent string) string {
	s = strings.TrimRight(s, "\n")
	if s == "" {
		return ""
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = indent + strings.TrimRight("//"+l, " ")
	}
	return strings.Join(lines, "\n")
}

// snake turns CallStarted into call_started.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
