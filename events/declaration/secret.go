package declaration

import (
	"maps"
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

// Resolve is the declaration with the values that its server is started with. Of one
// that a core declares env and headers, and nothing else, are interpolated from the host
// environment (R72). One that a person installed gets what it keeps from secret, which is
// asked by the item of the keystore, and nothing of the host (R79, R86). Call it after
// consent only (R74).
//
// What is missing is sorted: names of variables (R73), or references of secrets (R87). If
// there is one the server must not be started.
func (d Declaration) Resolve(lookup func(name string) (string, bool), secret func(item string) (redact.Raw[string], bool)) (Declaration, []string) {
	var missing []string
	if !d.Installed {
		interpolate := func(values map[string]redact.Raw[string]) map[string]redact.Raw[string] {
			out := make(map[string]redact.Raw[string], len(values))
			for name, v := range values {
				value, unknown := Interpolate(v.Reveal(), lookup)
				out[name] = redact.NewRaw(value)
				missing = append(missing, unknown...)
			}
			return out
		}
		d.Env, d.Headers = interpolate(d.Env), interpolate(d.Headers)
		slices.Sort(missing)
		return d, slices.Compact(missing)
	}
	d.Args, d.Env, d.Headers = redact.NewRaw(slices.Clone(d.Args.Reveal())), maps.Clone(d.Env), maps.Clone(d.Headers)
	for _, k := range d.Kept {
		v, ok := secret(k.Item)
		if !ok {
			ref, _, _ := strings.Cut(k.Item, "@")
			missing = append(missing, ref)
			continue
		}
		switch k.Place {
		case PlaceCommand:
			d.Command = v.Reveal()
		case PlaceArg:
			d.Args.Reveal()[k.Index] = v.Reveal()
		case PlaceEnv:
			d.Env[k.Name] = v
		case PlaceURL:
			d.URL = v
		case PlaceHeader:
			d.Headers[k.Name] = v
		}
	}
	slices.Sort(missing)
	return d, slices.Compact(missing)
}

// Secrets are the values that no view may show (R120), as the declaration has them: what
// the redactor takes for secrets of env, headers and URL, the values of secret options,
// what stands in an argument as it would there, and what comes from the keystore in the
// place of an argument or URL. Their order is fixed.
func (d Declaration) Secrets() []redact.Secret {
	reveal := func(values map[string]redact.Raw[string]) map[string]string {
		out := make(map[string]string, len(values))
		for name, v := range values {
			out[name] = v.Reveal()
		}
		return out
	}
	args := d.Args.Reveal()
	list := redact.Declared{Env: reveal(d.Env), Headers: reveal(d.Headers), URL: d.URL.Reveal()}.Secrets()
	option := "" // whose value a positional argument may be
	for _, a := range arguments(d.Command, args) {
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
	for _, k := range d.Kept {
		value := ""
		switch k.Place {
		case PlaceCommand:
			value = d.Command
		case PlaceArg:
			value = args[k.Index]
		case PlaceURL:
			value = d.URL.Reveal()
		}
		if strings.TrimSpace(value) != "" {
			list = append(list, redact.Secret{Name: string(k.Place), Source: "mcp." + string(k.Place), Value: redact.NewRaw(value)})
		}
	}
	return list
}

// Secretive says which of the command, the arguments and the URL hold a secret as far as
// their form and their options tell, or a value of env or headers: what the log must not
// have as text (R82).
func (d Declaration) Secretive() (command bool, args []bool, url bool, err error) {
	r, err := redact.NewRedactor(d.Secrets()...)
	if err != nil {
		return false, nil, false, err
	}
	changes := func(text string) bool { return r.Text(redact.NewRaw(text)).Event.String() != text }
	list := d.Args.Reveal()
	args = make([]bool, len(list))
	for i, text := range list {
		args[i] = changes(text)
	}
	option := ""
	for _, a := range arguments(d.Command, list) {
		if a.name != "" {
			option = a.name
		}
		args[a.at] = args[a.at] || a.secret || len(within(option, a.value)) > 0
		if a.name == "" {
			option = ""
		}
	}
	return changes(d.Command), args, changes(d.URL.Reveal()), nil
}

// credential is the part of a header value after its scheme.
func credential(value string) string {
	parts := strings.Fields(value)
	if len(parts) == 0 {
		return ""
	}
	return parts[len(parts)-1]
}
