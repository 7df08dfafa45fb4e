package client_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gatebus/gatebus/bus/client"
)

//go:generate go test . -run ^TestSchemas -update

var update = flag.Bool("update", false, "write the schemas of the methods anew")

const schemaDir = "../../schemas/json/rpc"

// TestSchemasAreThoseOfTheGoTypes: the committed schemas are what the types of
// the contract say, so nobody can change a method and forget its schema.
func TestSchemasAreThoseOfTheGoTypes(t *testing.T) {
	docs := readDocs(t)
	want := make(map[string]string)
	for _, m := range slices.Concat(client.Methods, client.Topics) {
		want[strings.ReplaceAll(m.Name, "/", ".")+".schema.json"] = schemaOf(t, m, docs)
	}
	if *update {
		if err := os.RemoveAll(schemaDir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(schemaDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(schemaDir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := make(map[string]string)
	err := fs.WalkDir(os.DirFS(schemaDir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(schemaDir, path))
		got[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run go generate ./bus/client (-want +got):\n%s", diff)
	}
}

// TestSchemasTellRightBodiesFromWrongOnes: what the types encode to is valid, a
// member that the method does not know is not.
func TestSchemasTellRightBodiesFromWrongOnes(t *testing.T) {
	t.Parallel()
	docs := readDocs(t)
	for _, m := range client.Methods {
		var s jsonschema.Schema
		if err := json.Unmarshal([]byte(schemaOf(t, m, docs)), &s); err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		resolved, err := s.Resolve(nil)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		right := make(map[string]any)
		for part, typ := range map[string]reflect.Type{"params": m.Params, "result": m.Result} {
			if typ == nil {
				typ = reflect.TypeFor[struct{}]()
			}
			data, err := jsonv2.Marshal(reflect.Zero(typ).Interface())
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			var v any
			if err := json.Unmarshal(data, &v); err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			right[part] = v
		}
		if err := resolved.Validate(right); err != nil {
			t.Errorf("%s: the schema refuses what the bus sends: %v", m.Name, err)
		}
		if err := resolved.Validate(map[string]any{"params": map[string]any{"no such member": 1}}); err == nil {
			t.Errorf("%s: the schema takes a member that the method does not know", m.Name)
		}
	}
}

// dateTime is RFC 3339, for those who take a format for a remark.
const dateTime = `^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`

// schemaOf is the JSON Schema of a method.
func schemaOf(t *testing.T, m client.Method, docs map[string]string) string {
	t.Helper()
	part := func(typ reflect.Type) *jsonschema.Schema {
		if typ == nil {
			typ = reflect.TypeFor[struct{}]()
		}
		s, err := jsonschema.ForType(typ, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[json.RawMessage](): {Description: "any JSON"},
			reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time", Pattern: dateTime},
			// Nothing counts below zero.
			reflect.TypeFor[int]():    {Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			reflect.TypeFor[int64]():  {Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			reflect.TypeFor[uint64](): {Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			reflect.TypeFor[uint32](): {Type: "integer", Minimum: jsonschema.Ptr(0.0), Maximum: jsonschema.Ptr(float64(math.MaxUint32))},
		}})
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		describe(s, typ, docs)
		return s
	}
	whole := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", Title: m.Name, Type: "object",
		Properties:    map[string]*jsonschema.Schema{"params": part(m.Params)},
		PropertyOrder: []string{"params"},
	}
	if m.Result != nil { // a notification has none
		whole.Properties["result"] = part(m.Result)
		whole.PropertyOrder = append(whole.PropertyOrder, "result")
	}
	data, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.String()
}

// describe adds the doc comments of the Go types. Lists and objects are never
// null: the bus writes an empty list, and leaves out what is absent.
func describe(s *jsonschema.Schema, typ reflect.Type, docs map[string]string) {
	if i := slices.Index(s.Types, "null"); i >= 0 && len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1-i], nil
	}
	switch typ.Kind() {
	case reflect.Pointer:
		describe(s, typ.Elem(), docs)
	case reflect.Slice:
		if s.Items != nil {
			describe(s.Items, typ.Elem(), docs)
		}
	case reflect.Map:
		describe(s.AdditionalProperties, typ.Elem(), docs)
	case reflect.Struct:
		if doc := docs[typ.Name()]; doc != "" {
			s.Description = doc
		}
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := s.Properties[name]
			if p == nil {
				continue // of a type with a form of its own, such as a time
			}
			describe(p, f.Type, docs)
			if doc := docs[typ.Name()+"."+f.Name]; doc != "" {
				p.Description = doc
			}
		}
	}
}

// readDocs are the comments of the package's types and fields, in one line each.
func readDocs(t *testing.T) map[string]string {
	t.Helper()
	docs := make(map[string]string)
	text := func(groups ...*ast.CommentGroup) string {
		for _, g := range groups {
			if s := strings.Join(strings.Fields(g.Text()), " "); s != "" {
				return s
			}
		}
		return ""
	}
	file, err := parser.ParseFile(token.NewFileSet(), "methods.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			ts := spec.(*ast.TypeSpec)
			docs[ts.Name.Name] = text(ts.Doc, g.Doc)
			if st, ok := ts.Type.(*ast.StructType); ok {
				for _, f := range st.Fields.List {
					for _, n := range f.Names {
						docs[ts.Name.Name+"."+n.Name] = text(f.Doc, f.Comment)
					}
				}
			}
		}
	}
	return docs
}
