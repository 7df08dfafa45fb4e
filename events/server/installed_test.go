package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// item parses mcpServers JSON of one valid server.
func item(t require, text string) declaration.Item {
	t.Helper()
	items, problems := declaration.ParseServers([]byte(text))
	if len(problems) > 0 || len(items) != 1 || !items[0].Valid() {
		t.Fatalf("%s: %v %v", text, problems, items)
	}
	return items[0]
}

type require interface {
	Helper()
	Fatalf(format string, args ...any)
}

// keystore is what has been put, by item.
type keystore map[string]redact.Raw[string]

func (k keystore) get(item string) (redact.Raw[string], bool) { v, ok := k[item]; return v, ok }

func (k keystore) put(p server.Planned) server.Planned {
	for _, s := range p.Put {
		k[s.Item()] = s.Value
	}
	return p
}

func terms(version string) server.Terms {
	return server.Terms{ScopeKind: server.ScopeWorkspace, ScopeKey: "default", Home: "h-1", Key: []byte("key"), Version: version, Approval: "a-1", By: "local"}
}

func plan(t require, i declaration.Item, terms server.Terms) server.Planned {
	t.Helper()
	p, err := server.Plan(i, terms)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return p
}

// logged is the state after an installation, as another process reads it from the log.
func logged(i events.Installation) server.State {
	return decider.Fold(events.ServerInstalled{Installation: i})
}

// secretShapes are values that no log may hold wherever they stand.
var secretShapes = []string{"ghp_0123456789abcdefABCDEF0123456789%04d", "sk-ant-api03-0123456789abcdefABCDEF_%04d-AAAAAAAAAAAAAAAAAAAAAAAA", "Canary-%04d-0123456789-xyz"}

// Every installation gives what was pasted again, and no event of it has a secret.
func TestAnInstallationIsTheItemAgain_R81_R82(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		var canaries []string
		secret := func(of ...string) string {
			n++
			s := fmt.Sprintf(rapid.SampledFrom(of).Draw(t, "shape"), n)
			canaries = append(canaries, s)
			return s
		}
		plain := rapid.SampledFrom([]string{"", "-y", "serve", "@acme/docs@1.2.3", "--port", "8080", "--mode=fast", "a b\nc", "${secret:x}", "ünïcode"})
		one := map[string]any{}
		if rapid.Bool().Draw(t, "stdio") {
			args := []string{}
			for range rapid.IntRange(0, 6).Draw(t, "args") {
				switch rapid.IntRange(0, 4).Draw(t, "kind") {
				case 0:
					args = append(args, plain.Draw(t, "arg"))
				case 1:
					args = append(args, "--api-key", secret(secretShapes...))
				case 2:
					args = append(args, "--token="+secret(secretShapes...))
				case 3:
					args = append(args, "--header", "Authorization: Bearer "+secret(secretShapes...))
				case 4:
					args = append(args, secret(secretShapes[:2]...))
				}
			}
			env := map[string]string{}
			for range rapid.IntRange(0, 3).Draw(t, "env") {
				env[rapid.SampledFrom([]string{"API_KEY", "MODE", "Path_x", "EMPTY"}).Draw(t, "name")] = secret(append(secretShapes, "plain-value-%d")...)
			}
			one["command"], one["args"], one["env"], one["cwd"] = rapid.SampledFrom([]string{"npx", "/opt/My Tool/x"}).Draw(t, "command"), args, env, rapid.SampledFrom([]string{"", "sub/dir"}).Draw(t, "cwd")
		} else {
			url := "https://mcp.example.com:8443/v1"
			if rapid.Bool().Draw(t, "secret path") {
				url += "/" + secret(secretShapes[:2]...) + "/mcp"
			}
			headers := map[string]string{}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				headers[rapid.SampledFrom([]string{"Authorization", "X-Tenant", "x-Other"}).Draw(t, "name")] = "Bearer " + secret(secretShapes...)
			}
			one["url"], one["headers"] = url, headers
		}
		one["required"], one["timeout"] = rapid.Bool().Draw(t, "required"), rapid.IntRange(1, 3600).Draw(t, "timeout")
		text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"docs": one}})
		if err != nil {
			t.Fatal(err)
		}
		canaries = slices.DeleteFunc(canaries, func(c string) bool { return !strings.Contains(string(text), c) }) // one of an equal name
		i := item(t, string(text))
		keys := keystore{}
		p := keys.put(plan(t, i, terms("v-1")))

		data, err := events.JSON(events.ServerInstalled{Installation: p.Installation})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range canaries {
			if strings.Contains(string(data), c) {
				t.Fatalf("the event of %s has %s:\n%s", text, c, data)
			}
		}
		state := logged(p.Installation)
		if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, itemsOf(state.Secrets())) {
			t.Fatalf("stored are %q, in use %q", got, itemsOf(state.Secrets()))
		}
		d, missing := state.Declaration().Resolve(nil, keys.get)
		if len(missing) > 0 {
			t.Fatalf("missing: %q", missing)
		}
		same := d.ServerID == i.Name && d.Transport == i.Transport && d.Command == i.Command && d.Cwd == i.Cwd && slices.Equal(d.Args.Reveal(), i.Args.Reveal()) &&
			d.URL.Reveal() == i.URL.Reveal() && maps.Equal(revealed(d.Env), revealed(i.Env)) && maps.Equal(revealed(d.Headers), revealed(i.Headers)) &&
			d.ConnectTimeout == i.StartupTimeout && d.CallTimeout == i.ToolTimeout && d.Parallel == i.Parallel && d.Installed && d.Enabled &&
			state.Installation.Required == i.Required && d.Fingerprint == p.Installation.Fingerprint
		if !same {
			t.Fatalf("%s came back as %q %q %q %q %q", text, d.Command, d.Args.Reveal(), revealed(d.Env), d.URL.Reveal(), revealed(d.Headers))
		}
		r, err := redact.NewRedactor(d.Secrets()...)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range canaries {
			if strings.Contains(r.Text(redact.NewRaw("it says "+c)).Model.String(), c) {
				t.Fatalf("the redactor of the server does not know %s", c)
			}
		}
		// Installed again as it is, nothing is put and nothing is stale.
		again := terms("v-2")
		again.Before, again.Value = state.Installation, keys.get
		if p2 := plan(t, i, again); len(p2.Put) > 0 || len(p2.Stale) > 0 || p2.Installation.Fingerprint != p.Installation.Fingerprint {
			t.Fatalf("again: %d to put, %d stale", len(p2.Put), len(p2.Stale))
		}
		// With another key the digests of the fingerprint are others, if there are any.
		other := terms("v-1")
		other.Key = []byte("other")
		kept := slices.ContainsFunc(p.Put, func(s server.Secret) bool {
			return !strings.Contains(s.Ref, ":env:") && !strings.Contains(s.Ref, ":header:")
		})
		if p2 := plan(t, i, other); (p2.Installation.Fingerprint != p.Installation.Fingerprint) != kept {
			t.Fatalf("another key, and the fingerprint is the same, with kept texts: %v", kept)
		}
	})
}

func itemsOf(secrets map[string]string) (list []string) {
	for ref, version := range secrets {
		list = append(list, server.Item(ref, version))
	}
	slices.Sort(list)
	return list
}

func revealed(values map[string]redact.Raw[string]) map[string]string {
	out := map[string]string{}
	for k, v := range values {
		out[k] = v.Reveal()
	}
	return out
}

func TestReferencesAreThoseOfR81(t *testing.T) {
	t.Parallel()
	keys := keystore{}
	stdio := keys.put(plan(t, item(t, `{"mcpServers":{"docs":{"command":"x","args":["a","--token","t0ken-0123456789"],"env":{"Api_Key":"v"}}}}`), terms("v-1")))
	user := terms("v-1")
	user.ScopeKind, user.ScopeKey = server.ScopeUser, server.UserKey
	http := keys.put(plan(t, item(t, `{"mcpServers":{"docs":{"url":"https://h.example/ghp_0123456789abcdefABCDEF0123456789abcd","headers":{"X-Api-Key":"v"}}}}`), user))
	want := []string{
		"gateway_settings:mcp:user:default:docs:header:x-api-key@v-1", "gateway_settings:mcp:user:default:docs:url:0@v-1",
		"gateway_settings:mcp:workspace:default:docs:arg:2@v-1", "gateway_settings:mcp:workspace:default:docs:env:Api_Key@v-1",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(keys))); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if key := http.Installation.Headers[0].Key; key != "X-Api-Key" {
		t.Errorf("the header is sent as %s", key)
	}
	if text := http.Installation.Url.Text.String(); text != "https://h.example" {
		t.Errorf("of the URL there is %q", text)
	}
	if d := logged(http.Installation).Declaration(); d.URL.Reveal() != "https://h.example" {
		t.Errorf("what is judged is %q", d.URL.Reveal())
	}
	d := logged(stdio.Installation).Declaration()
	_, missing := d.Resolve(nil, keystore{}.get)
	if diff := cmp.Diff([]string{"gateway_settings:mcp:workspace:default:docs:arg:2", "gateway_settings:mcp:workspace:default:docs:env:Api_Key"}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

// What the keystore is asked for is what the log says, never what a value says of itself.
func TestAValueThatLooksLikeAReferenceIsNone_R79(t *testing.T) {
	t.Parallel()
	const ref = "${secret:gateway_settings:mcp:workspace:default:other:env:TOKEN@v-1}"
	keys := keystore{"gateway_settings:mcp:workspace:default:other:env:TOKEN@v-1": redact.NewRaw("canary")}
	text, _ := json.Marshal(map[string]any{"mcpServers": map[string]any{"docs": map[string]any{"command": "x", "args": []string{ref}, "env": map[string]string{"A": ref, "B": "${HOME}"}}}})
	p := keys.put(plan(t, item(t, string(text)), terms("v-1")))
	asked := func(name string) (string, bool) { t.Errorf("%s of the host was asked for", name); return "", false }
	d, missing := logged(p.Installation).Declaration().Resolve(asked, keys.get)
	if len(missing) > 0 || d.Args.Reveal()[0] != ref || d.Env["A"].Reveal() != ref || d.Env["B"].Reveal() != "${HOME}" {
		t.Errorf("resolved as %q %q, missing %q", d.Args.Reveal(), revealed(d.Env), missing)
	}
	core := declaration.Declaration{Env: map[string]redact.Raw[string]{"A": redact.NewRaw(ref)}}
	if d, _ := core.Resolve(asked, keys.get); d.Env["A"].Reveal() != ref {
		t.Error("a declaration of a core reads the keystore")
	}
}

func TestWhatAPlanChanges_R40_R83_R84(t *testing.T) {
	t.Parallel()
	const base = `{"mcpServers":{"docs":{"command":"x","args":["--token","t0ken-0123456789"],"env":{"A":"1","B":"2"}}}}`
	keys := keystore{}
	first := keys.put(plan(t, item(t, base), terms("v-1")))
	again := terms("v-2")
	again.Before, again.Value = logged(first.Installation).Installation, keys.get
	in := "gateway_settings:mcp:workspace:default:docs:"
	for name, c := range map[string]struct {
		text       string
		put, stale []string
		same       bool // the fingerprint
	}{
		"nothing":              {text: base, same: true},
		"a rotated value":      {text: strings.Replace(base, `"1"`, `"3"`, 1), put: []string{in + "env:A@v-2"}, stale: []string{in + "env:A@v-1"}, same: true},
		"a dropped variable":   {text: strings.Replace(base, `"A":"1",`, ``, 1), stale: []string{in + "env:A@v-1"}},
		"another variable":     {text: strings.Replace(base, `"A"`, `"C"`, 1), put: []string{in + "env:C@v-2"}, stale: []string{in + "env:A@v-1"}},
		"a kept argument":      {text: strings.Replace(base, `t0ken-0`, `t0ken-1`, 1), put: []string{in + "arg:1@v-2"}, stale: []string{in + "arg:1@v-1"}},
		"a further argument":   {text: strings.Replace(base, `["--token"`, `["a","--token"`, 1), put: []string{in + "arg:2@v-2"}, stale: []string{in + "arg:1@v-1"}},
		"the command":          {text: strings.Replace(base, `"x"`, `"y"`, 1)},
		"the policy":           {text: strings.Replace(base, `"command"`, `"disabled":true,"command"`, 1), same: true},
		"required":             {text: strings.Replace(base, `"command"`, `"required":true,"command"`, 1)},
		"a timeout":            {text: strings.Replace(base, `"command"`, `"timeout":7,"command"`, 1)},
		"the directory":        {text: strings.Replace(base, `"command"`, `"cwd":"y","command"`, 1)},
		"another transport":    {text: `{"mcpServers":{"docs":{"url":"https://h.example"}}}`, stale: []string{in + "arg:1@v-1", in + "env:A@v-1", in + "env:B@v-1"}},
		"a value of the other": {text: strings.NewReplacer(`"1"`, `"2"`, `"2"`, `"1"`).Replace(base), put: []string{in + "env:A@v-2", in + "env:B@v-2"}, stale: []string{in + "env:A@v-1", in + "env:B@v-1"}, same: true},
	} {
		p := plan(t, item(t, c.text), again)
		names := func(list []server.Secret) (out []string) {
			for _, s := range list {
				out = append(out, s.Item())
			}
			slices.Sort(out)
			return out
		}
		if diff := cmp.Diff(c.put, names(p.Put)); diff != "" {
			t.Errorf("%s: put (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.stale, names(p.Stale)); diff != "" {
			t.Errorf("%s: stale (-want +got):\n%s", name, diff)
		}
		if (p.Installation.Fingerprint == first.Installation.Fingerprint) != c.same {
			t.Errorf("%s: the fingerprint is the same: %v", name, !c.same)
		}
	}
	// A value that the keystore has lost is put again.
	delete(keys, in+"env:A@v-1")
	if p := plan(t, item(t, base), again); len(p.Put) != 1 || len(p.Stale) != 1 {
		t.Errorf("a lost value: %d to put, %d stale", len(p.Put), len(p.Stale))
	}
}

func TestPolicyOfAPlan_R34(t *testing.T) {
	t.Parallel()
	yes, no := new(bool), new(bool)
	*yes = true
	for _, c := range []struct {
		field             string
		enabled, implicit *bool
		want              [2]bool
	}{
		{want: [2]bool{true, false}},
		{enabled: no, implicit: yes, want: [2]bool{false, true}},
		{field: `"enabled":true,`, enabled: no, want: [2]bool{true, false}},
		{field: `"disabled":true,"allow_implicit_invocation":false,`, implicit: yes, want: [2]bool{false, false}},
		{field: `"allow_implicit_invocation":true,`, enabled: yes, want: [2]bool{true, true}},
	} {
		terms := terms("v-1")
		terms.Enabled, terms.Implicit = c.enabled, c.implicit
		p := plan(t, item(t, `{"mcpServers":{"docs":{`+c.field+`"command":"x"}}}`), terms)
		if got := [2]bool{p.Installation.Enabled, p.Installation.Implicit}; got != c.want {
			t.Errorf("%s %v: %v, want %v", c.field, c, got, c.want)
		}
		if d := logged(p.Installation).Declaration(); d.Enabled != c.want[0] {
			t.Errorf("%s: enabled is %v", c.field, d.Enabled)
		}
	}
}

func TestPlanNeedsAKeyAndAVersion(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*server.Terms){func(t *server.Terms) { t.Key = nil }, func(t *server.Terms) { t.Version = "" }} {
		terms := terms("v-1")
		change(&terms)
		if _, err := server.Plan(item(t, `{"mcpServers":{"docs":{"command":"x"}}}`), terms); err == nil {
			t.Error("a plan is made without")
		}
	}
}
