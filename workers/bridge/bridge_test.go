package bridge

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A request of the era without a handshake has the headers that its body implies,
// and passes byte for byte but for line breaks, behind its notifications.
func TestModernRequest(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0", "id":1.50,"method":"tools/call","params":{"name":"öl","n":9007199254740993,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		got = []string{r.Header.Get("Mcp-Protocol-Version"), r.Header.Get("Mcp-Method"), r.Header.Get("Mcp-Name"), r.Header.Get("X"), string(body)}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ":\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\ndata: {\"id\":1.50,\ndata: \"result\":{}}\n\n")
	}))
	defer s.Close()
	var out bytes.Buffer
	err := Run(t.Context(), Options{
		In: strings.NewReader(call), Out: &out, Note: func(text string) { t.Error(text) },
		Find: func(context.Context) (Door, error) {
			return Door{Network: "tcp", Address: s.Listener.Addr().String(), URL: s.URL, Header: http.Header{"X": {"who"}}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"2026-07-28", "tools/call", "=?base64?w7Zs?=", "who", call}, got); diff != "" {
		t.Error(diff)
	}
	if want := "{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n{\"id\":1.50, \"result\":{}}\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}

// The SDK's client of that era says on a pipe what has no place on HTTP.
func TestModernNotificationsAreNotSent(t *testing.T) {
	t.Parallel()
	got := make(chan string, 8)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	defer s.Close()
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	err := Run(t.Context(), Options{
		In: strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"context canceled"}}
{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{}}
` + call), Out: io.Discard, Note: func(text string) { t.Error(text) },
		Find: func(context.Context) (Door, error) {
			return Door{Network: "tcp", Address: s.Listener.Addr().String(), URL: s.URL, Header: http.Header{}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	close(got)
	var all []string
	for body := range got {
		all = append(all, body)
	}
	if diff := cmp.Diff([]string{call}, all); diff != "" {
		t.Error(diff)
	}
}

// An answer that is too long is no broken one, and no loss of the bus.
func TestAnswerThatIsTooLong(t *testing.T) {
	t.Parallel()
	for media, begin := range map[string]string{"application/json": `{"jsonrpc":"2.0","id":1,"result":"`, "text/event-stream": "data: "} {
		found := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			w.Header().Set("Content-Type", media)
			io.WriteString(w, begin)
			part := bytes.Repeat([]byte{'x'}, 1<<20)
			for range maxAnswer>>20 + 1 {
				_, _ = w.Write(part) // the bridge may read no more of it
			}
			io.WriteString(w, "\n\n")
		}))
		var out bytes.Buffer
		err := Run(t.Context(), Options{
			In: strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}`), Out: &out, Note: func(text string) { t.Error(text) },
			Find: func(context.Context) (Door, error) {
				found++
				return Door{Network: "tcp", Address: s.Listener.Addr().String(), URL: s.URL, Header: http.Header{}}, nil
			},
		})
		s.CloseClientConnections()
		s.Close()
		if err != nil || found != 1 || !strings.Contains(out.String(), `"id":1,"error"`) || !strings.Contains(out.String(), `"frame_too_large"`) {
			t.Errorf("%s: found %d times, %v: %.200s", media, found, err, out.String())
		}
	}
}
