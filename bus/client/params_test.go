package client_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
)

// A method takes the parameters that its schema takes, and no others: each member of
// each is left out, and made what it may not be.
func TestMethodsTakeWhatTheirSchemasTake(t *testing.T) {
	t.Parallel()
	docs := readDocs(t)
	tried := 0
	for _, m := range client.Methods {
		if m.Params == nil {
			m.Params = reflect.TypeFor[struct{}]()
		}
		var s jsonschema.Schema
		if err := json.Unmarshal([]byte(schemaOf(t, m, docs)), &s); err != nil {
			t.Fatal(err)
		}
		resolved, err := s.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		full := reflect.New(m.Params)
		fill(t, full.Elem())
		data, err := json.Marshal(full.Interface())
		if err != nil {
			t.Fatal(err)
		}
		var params any
		if err := json.Unmarshal(data, &params); err != nil {
			t.Fatal(err)
		}
		try := func() (took bool) {
			t.Helper()
			tried++
			body, err := json.Marshal(params)
			if err != nil {
				t.Fatal(err)
			}
			schema := resolved.Validate(map[string]any{"params": params})
			q := bus.Request{Method: m.Name, Data: body}
			method := q.Decode(reflect.New(m.Params).Interface())
			if (schema == nil) != (method == nil) {
				t.Errorf("%s %s: the schema says %v, the method %v", m.Name, body, schema, method)
			}
			return method == nil
		}
		if !try() {
			t.Errorf("%s does not take %s", m.Name, data)
		}
		vary(params, func(v any) { params = v }, try)
	}
	if tried < 400 {
		t.Errorf("only %d tried", tried)
	}
}

// vary changes each part of a JSON value, one at a time, and calls try.
func vary(v any, set func(any), try func() bool) {
	for _, other := range []any{nil, "text", 1.5, -1.0, 1 << 33, true, []any{}, []any{nil}, map[string]any{}} {
		set(other)
		try()
	}
	set(v)
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			member := v[name]
			delete(v, name)
			try()
			vary(member, func(other any) { v[name] = other }, try)
		}
		v["no such member"] = 1
		try()
		delete(v, "no such member")
	case []any:
		for i, element := range v {
			vary(element, func(other any) { v[i] = other }, try)
		}
	}
}

// fill makes everything of a value something.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"any":1}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		t.Fatal(fmt.Sprint("no value for ", v.Type()))
	}
}
