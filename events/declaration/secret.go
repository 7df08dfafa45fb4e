package declaration

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gatebus/gatebus/events/redact"
)

// reference is ${NAME}; everything else, such as $NAME or ${a-b}, stays as it
// is (R72).
var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Interpolate replaces each ${NAME} in value by what lookup says, once: what it
// says is not searched again (R72). A variable may be set and empty. The names
// that lookup does not know stay as they are and are returned, each once (R73).
func Interpolate(value string, lookup func(name string) (string, bool)) (result string, missing []string) {
	result = reference.ReplaceAllStringFunc(value, func(ref string) string {
		name := ref[2 : len(ref)-1]
		if v, ok := lookup(name); ok {
			return v
		}
		if !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
		return ref
	})
	return result, missing
}

// Resolved is the environment and the headers of a server with the values that
// it is started with.
type Resolved struct {
	Env, Headers map[string]redact.Raw[string]
}

// Resolve interpolates env and headers, and nothing else, from the host
// environment (R72). Call it after consent only (R74). The names that are
// missing are sorted; if there is one the server must not be started (R73).
func (d Declaration) Resolve(lookup func(name string) (string, bool)) (Resolved, []string) {
	var missing []string
	resolve := func(values map[string]redact.Raw[string]) map[string]redact.Raw[string] {
		out := make(map[string]redact.Raw[string], len(values))
		for name, v := range values {
			value, unknown := Interpolate(v.Reveal(), lookup)
			out[name] = redact.NewRaw(value)
			missing = append(missing, unknown...)
		}
		return out
	}
	r := Resolved{Env: resolve(d.Env), Headers: resolve(d.Headers)}
	slices.Sort(missing)
	return r, slices.Compact(missing)
}

// Literal is the environment and the headers as they are written: what is
// known of a server that was not started (R123).
func (d Declaration) Literal() Resolved { return Resolved{Env: d.Env, Headers: d.Headers} }

// Secrets are the values that no view may show (R120): what the redactor takes
// for secrets of env, headers and URL, the values of secret options, and what
// stands in an argument as it would there. Their order is fixed.
func (d Declaration) Secrets(r Resolved) []redact.Secret {
	reveal := func(values map[string]redact.Raw[string]) map[string]string {
		out := make(map[string]string, len(values))
		for name, v := range values {
			out[name] = v.Reveal()
		}
		return out
	}
	list := redact.Declared{Env: reveal(r.Env), Headers: reveal(r.Headers), URL: d.URL.Reveal()}.Secrets()
	option := "" // whose value a positional argument may be
	for _, a := range arguments(d.Command, d.Args.Reveal()) {
		if a.name != "" {
			option = a.name
		}
		list = append(list, within(option, a.value)...)
		if a.name == "" {
			option = ""
		}
		if a.secret && strings.TrimSpace(a.value) != "" {
			name := strings.TrimLeft(a.name, "-")
			list = append(list, redact.Secret{Name: name, Source: "mcp.arg:" + name, Value: redact.NewRaw(a.value)})
			if c := credential(a.value); c != a.value {
				list = append(list, redact.Secret{Name: name, Source: "mcp.arg:" + name + ".credential", Value: redact.NewRaw(c)})
			}
		}
	}
	return list
}

// credential is the part of a header value after its scheme.
func credential(value string) string {
	parts := strings.Fields(value)
	if len(parts) == 0 {
		return ""
	}
	return parts[len(parts)-1]
}
