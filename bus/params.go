package bus

import (
	"reflect"
	"slices"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/redact"
)

// incomplete says what a schema would refuse in parameters that could be decoded into
// a value of the type; empty is nothing. That is a member which is not there and has
// no omitempty or omitzero, a null, and a number below zero. at is where v is.
func incomplete(v jsontext.Value, into reflect.Type, at string) string {
	for into.Kind() == reflect.Pointer {
		into = into.Elem()
	}
	if into == reflect.TypeFor[jsontext.Value]() || into.ConvertibleTo(reflect.TypeFor[jsontext.Value]()) && into.Kind() == reflect.Slice {
		return "" // any JSON
	}
	wrong := "wrong value of " + at
	if at == "" {
		wrong = "the parameters are no JSON object"
	}
	switch v.Kind() {
	case 'n':
		return wrong
	case '0':
		if v[0] == '-' {
			return wrong
		}
	case '[':
		var list []jsontext.Value
		if into.Kind() != reflect.Slice || jsonv2.Unmarshal(v, &list) != nil {
			return wrong
		}
		for _, element := range list {
			if text := incomplete(element, into.Elem(), at+"/-"); text != "" {
				return text
			}
		}
	case '{':
		var members map[string]jsontext.Value
		if jsonv2.Unmarshal(v, &members) != nil {
			return wrong
		}
		if into.Kind() == reflect.Map {
			for name, member := range members {
				if text := incomplete(member, into.Elem(), at+"/"+redact.Name(name).String()); text != "" {
					return text
				}
			}
			return ""
		}
		for _, f := range jsonFields(into) {
			member, there := members[f.name]
			switch {
			case !there && !f.optional:
				return "missing parameter " + at + "/" + f.name
			case there:
				if text := incomplete(member, f.of, at+"/"+f.name); text != "" {
					return text
				}
			}
		}
	}
	return ""
}

// jsonField is a member that a struct is decoded from.
type jsonField struct {
	name     string
	of       reflect.Type
	optional bool
}

// jsonFields are the members of a struct; its own ones come before embedded ones of
// the same name.
func jsonFields(of reflect.Type) (all []jsonField) {
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() {
		return nil
	}
	var embedded []jsonField
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			embedded = append(embedded, jsonFields(f.Type)...)
		case name != "" && name != "-":
			all = append(all, jsonField{name, f.Type, strings.Contains(options, "omit")})
		}
	}
	for _, f := range embedded {
		if !slices.ContainsFunc(all, func(own jsonField) bool { return own.name == f.name }) {
			all = append(all, f)
		}
	}
	return all
}
