package gateway

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/go-json-experiment/json/jsontext"
)

// FuzzScan compares the scanner with encoding/json: what it accepts, other
// readers accept and read in the same way.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		initialize, list, callOf("1", "demo__echo"), callOf(`"\u00e9"`, "a"), `{"jsonrpc":"2.0","id":7.5,"method":"ping","params":null}`,
		`{"jsonrpc":"2.0","id":1e400,"result":{}}`, `[]`, `{"jsonrpc":"2.0","method":"x","params":{"n\u0061me":1}}`, "{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}",
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta" : { "a":1, "` + keyVersion + `":"x","` + keyClient + `":{} ,"progressToken":7},"z":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m", "params" : {"name":"a","Name":"b"}}`, `{"jsonrpc":"2.0","id":1,"method":"m"} x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, refused := scan(body)
		if refused != nil {
			if refused.Code != codeParse && refused.Code != -32600 || !json.Valid(refused.json()) {
				t.Errorf("%s", refused.json())
			}
			return
		}
		if !utf8.Valid(body) || !json.Valid(body) {
			t.Fatalf("accepted %q", body)
		}
		// Its names ignore case, so a member in disguise would show here.
		var other struct {
			JSONRPC string
			ID      json.RawMessage
			Method  string
			Params  json.RawMessage
		}
		if err := json.Unmarshal(body, &other); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if other.JSONRPC != "2.0" || other.Method != m.method || string(other.ID) != string(m.id) || string(other.Params) != string(m.params) {
			t.Fatalf("%q: read as %+v and %+v", body, m, other)
		}
		if m.params != nil {
			var params struct{ Name, Arguments, Cursor, RequestID, ProtocolVersion, Notifications json.RawMessage }
			if err := json.Unmarshal(m.params, &params); err != nil {
				t.Fatal(err)
			}
			if string(params.Name) != string(m.name) || string(params.Cursor) != string(m.cursor) || string(params.RequestID) != string(m.requestID) || string(params.ProtocolVersion) != string(m.protocolVersion) || string(params.Notifications) != string(m.notifications) {
				t.Fatalf("%q: read as %+v and %+v", body, m, params)
			}
		}
		if m.meta.raw == nil {
			return
		}
		if at := m.meta.at; string(m.params[at:at+len(m.meta.raw)]) != string(m.meta.raw) {
			t.Fatalf("%q: _meta is not at %d", body, at)
		}
		var before, after map[string]json.RawMessage
		if err := json.Unmarshal(m.meta.raw, &before); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]jsontext.Value{keyVersion: m.meta.version, keyClient: m.meta.client, keyCapabilities: m.meta.capabilities} {
			if string(before[key]) != string(want) {
				t.Fatalf("%q: %s read as %q", body, key, want)
			}
			delete(before, key)
		}
		var params struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		if err := json.Unmarshal(m.forwarded(), &params); err != nil {
			t.Fatalf("%q forwarded as %q: %v", body, m.forwarded(), err)
		}
		if after = params.Meta; !maps.EqualFunc(before, after, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Fatalf("%q forwarded as %q", body, m.forwarded())
		}
	})
}

// nowhere is a client that reads everything at once.
type nowhere struct{ h http.Header }

func (w nowhere) Header() http.Header         { return w.h }
func (w nowhere) WriteHeader(int)             {}
func (w nowhere) Write(b []byte) (int, error) { return len(b), nil }

func (nowhere) SetReadDeadline(time.Time) error  { return nil }
func (nowhere) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkToolsCall is what the gateway itself costs, without net/http.
func BenchmarkToolsCall(b *testing.B) {
	f := newFake()
	reply := client.CallReply{Status: "succeeded", Result: json.RawMessage(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 100) + `"}]}`)}
	f.call = func(context.Context, Who, Call) (client.CallReply, error) { return reply, nil }
	g, _ := start(b, options(f, nil))
	session := attach(b, g)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"message":"` + strings.Repeat("x", 100) + `"}}}`
	r := request(context.Background(), "POST", session, body)
	h := g.Handler()
	text := strings.NewReader(body)
	r.Body = reader{text}
	w := nowhere{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		text.Reset(body)
		h.ServeHTTP(w, r)
	}
}

type reader struct{ *strings.Reader }

func (reader) Close() error { return nil }
