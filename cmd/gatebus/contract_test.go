package main

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/schemas"
)

// TestRuntimeKeepsTheContract: a runtime serves every method of the contract,
// refuses a member that its schema does not have, and answers as the schema
// says.
func TestRuntimeKeepsTheContract(t *testing.T) {
	t.Parallel()
	r := serving(t, plainSettings(t))
	c, err := client.Dial(t.Context(), client.Options{Home: r.home, Name: "contract"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	// Params that are answered with a result by a runtime that nothing has
	// happened in; the other methods must find something to say no to.
	params := map[string]string{
		"mcp/list": `{}`, "host/list": `{}`, "host/token": `{"name":"cursor"}`, "host/revoke": `{"name":"cursor"}`, "tool/list": `{}`,
		"session/start": `{"label":"x"}`, "grant/add": `{"principal":"ana","capability":"mcp.read"}`,
		"grant/revoke": `{"principal":"ana","capability":"mcp.read"}`, "grant/list": `{}`, "approvals/list": `{}`, "policy/show": `{}`,
		"secret/list": `{}`, "secret/doctor": `{}`, "secret/collect": `{"dry_run":true}`,
		"mcp/install": `{"config":{"mcpServers":{"x":{"command":"true","env":{"A":"b"},"disabled":true},"y":{}}}}`,
		"core/reload": `{}`, "notifications/list": `{"after":0}`, "audit/list": `{}`, "audit/show": `{"seq":1}`, "bus/info": `{}`, "bus/rebuild": `{}`,
	}
	for _, m := range client.Methods {
		if err := c.Do(t.Context(), m.Name, jsontext.Value(`{"no such member":1}`), nil); fault.KindOf(err) != fault.UnknownArgument {
			t.Errorf("%s takes a member that it does not know, or is not served: %v", m.Name, err)
		}
		p, ok := params[m.Name]
		if !ok {
			continue
		}
		var result jsontext.Value
		if err := c.Do(t.Context(), m.Name, jsontext.Value(p), &result); err != nil {
			t.Errorf("%s %s: %v", m.Name, p, err)
			continue
		}
		validate(t, m.Name, `{"params":`+p+`,"result":`+string(result)+`}`)
	}
}

// validate checks a body against the committed schema of a method.
func validate(t *testing.T, method, body string) {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, "json/rpc/"+strings.ReplaceAll(method, "/", ".")+".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(v); err != nil {
		t.Errorf("%s is not as its schema says: %v\n%s", method, err, body)
	}
}

// TestRolesAreTheSameOnNATSAndOnRPC: what a role may ask for does not depend on
// the way (decision 2): over NATS the account says so, on /rpc the handler.
func TestRolesAreTheSameOnNATSAndOnRPC_Decision2(t *testing.T) {
	t.Parallel()
	r := serving(t, plainSettings(t))
	local, err := client.Dial(t.Context(), client.Options{Home: r.home, Name: "roles"})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	const nothing = `{"no such member":1}` // a method that is allowed says so and does nothing
	allowed := map[bool]int{}
	for _, role := range []string{"host", "operator", "auditor"} {
		var creds client.BusCredsResult
		if err := local.Do(t.Context(), "bus/creds", client.BusCreds{Name: "the-" + role, Role: role}, &creds); err != nil {
			t.Fatal(err)
		}
		var token client.HostTokenResult
		if err := local.Do(t.Context(), "host/token", client.HostToken{Name: "the-" + role, Role: role}, &token); err != nil {
			t.Fatal(err)
		}
		c, err := client.Dial(t.Context(), client.Options{URL: r.bus.URL(), CredsText: []byte(creds.Creds)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, m := range client.Methods {
			nats := c.Do(t.Context(), m.Name, jsontext.Value(nothing), nil)
			q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.listener.Addr().String()+"/rpc",
				strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+m.Name+`","params":`+nothing+`}`))
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer "+token.Token)
			q.Header.Set("Content-Type", "application/json")
			w, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			var answer struct{ Error rpc.Error }
			err = json.NewDecoder(w.Body).Decode(&answer)
			w.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			may := fault.Is(nats, fault.UnknownArgument)
			if onRPC := answer.Error.Data.Kind == fault.UnknownArgument; may != onRPC {
				t.Errorf("%s as %s: %v on NATS, %+v on /rpc", m.Name, role, nats, answer.Error)
			}
			if !may && (!fault.Is(nats, fault.RoleDenied) || answer.Error.Data.Kind != fault.RoleDenied) {
				t.Errorf("%s as %s is refused otherwise: %v on NATS, %+v on /rpc", m.Name, role, nats, answer.Error)
			}
			allowed[may]++
		}
	}
	if allowed[true] == 0 || allowed[false] == 0 {
		t.Errorf("nothing is told apart: %v", allowed)
	}
}
