package redact

import (
	"encoding/base64"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Declared is where a declaration of a server may hold secrets. The values
// are those that the server gets, after interpolation.
type Declared struct {
	Env     map[string]string
	Headers map[string]string
	Args    []string
	URL     string
}

// Secrets finds the secrets of a declaration (R120): values of the
// environment (source mcp.env:NAME) and of headers (mcp.header:NAME) with
// their credential part (….credential), what follows an option with a
// sensitive name (mcp.arg:NAME), and userinfo and sensitive query values of
// the URL (mcp.url:…). Ordinary values such as LOG_LEVEL=debug are none.
func (d Declared) Secrets() []Secret {
	var out []Secret
	add := func(name, source, value string) {
		if value = strings.TrimSpace(value); value != "" {
			out = append(out, Secret{name, source, NewRaw(value)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		if v := d.Env[name]; SensitiveName(name) || !ordinary(v) {
			add(name, "mcp.env:"+name, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		v, source := strings.TrimSpace(d.Headers[name]), "mcp.header:"+name
		if !SensitiveName(name) && (slices.Contains(openHeaders, normalName(name)) || ordinary(v)) {
			continue
		}
		add(name, source, v)
		scheme, credential, ok := lastField(v)
		if !ok {
			continue
		}
		add(name, source+".credential", credential)
		if strings.EqualFold(scheme, "Basic") {
			if pair, err := base64.StdEncoding.DecodeString(credential); err == nil {
				add(name, source+".credential", string(pair))
				_, password, _ := strings.Cut(string(pair), ":")
				add(name, source+".credential", password)
			}
		}
	}
	for i, arg := range d.Args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok && strings.HasPrefix(arg, "-") && i+1 < len(d.Args) {
			value = d.Args[i+1]
		}
		if name = strings.TrimLeft(name, "-"); SensitiveName(name) {
			add(name, "mcp.arg:"+name, value)
		}
	}
	if u, err := url.Parse(d.URL); err == nil {
		if password, ok := u.User.Password(); ok {
			add("userinfo", "mcp.url:userinfo", password)
		} else {
			add("userinfo", "mcp.url:userinfo", u.User.Username())
		}
		query := u.Query()
		for _, name := range slices.Sorted(maps.Keys(query)) {
			if SensitiveName(name) || isIn(queryNames, name) {
				for _, v := range query[name] {
					add(name, "mcp.url:"+name, v)
				}
			}
		}
	}
	return out
}

// openHeaders hold no secrets and values that any text may hold.
var openHeaders = strings.Fields("accept accept_encoding accept_language content_type user_agent")

// ordinary says that a value below a name that tells nothing is a setting and
// no secret: short, or one word in lower case.
func ordinary(value string) bool {
	return utf8.RuneCountInString(value) < minFolded ||
		!strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsLower(r) })
}

// lastField splits "Bearer TOKEN" at its last blank.
func lastField(s string) (before, last string, ok bool) {
	i := strings.LastIndexAny(s, " \t")
	return s[:max(i, 0)], s[i+1:], i > 0
}

// ArgumentSecrets finds the values below sensitive names in the arguments of
// a call, at any depth. No view may show them.
func ArgumentSecrets(args Raw[[]byte]) ([]Secret, error) {
	named, _, err := ArgumentValues(args)
	return named, err
}

// ArgumentValues finds the values of the arguments of a call that tell one
// call from another: strings of six characters and numbers of six digits and
// more. They are for Redactor.WithStored. Named are the ArgumentSecrets, which are
// found on the way.
func ArgumentValues(args Raw[[]byte]) (named, values []Secret, err error) {
	p := parsers.Get().(*parser)
	defer p.release()
	tokens, err := p.tokenize(string(args.Reveal()))
	if err != nil {
		return nil, nil, errors.New("redact: the arguments are not JSON")
	}
	seenNamed, seen := map[string]bool{}, map[string]bool{}
	for _, t := range tokens {
		if t.name {
			continue
		}
		value, _ := p.decoded(t)
		if t.field != none && value != "" && !seenNamed[value] {
			seenNamed[value] = true
			named = append(named, Secret{p.of(t.field), "argument", NewRaw(value)})
		}
		if length(value) >= minText && !seen[value] {
			seen[value] = true
			values = append(values, Secret{"argument:" + p.of(t.key), "argument", NewRaw(value)})
		}
	}
	return named, values, nil
}
