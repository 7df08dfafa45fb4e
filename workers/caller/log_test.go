package caller_test

import (
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/caller"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// listener is the MCP clients of a runtime, as far as they hear log messages.
type listener struct {
	caller.Hosts
	heard chan string
}

func (l listener) Log(session, attachment string, params []byte) {
	l.heard <- session + " " + attachment + " " + string(params)
}

// The server says something of no call, wherever its connection is.
func TestLogMessageOfNoCallReachesTheClients(t *testing.T) {
	t.Parallel()
	for name, peer := range map[string]bool{"of this runtime": false, "of another one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listener{heard: make(chan string, 2)}
			o := rig.Options{Env: map[string]string{"TOKEN": "canary-of-the-server"}, Hosts: l}
			lines := []string{program(t, "shelf", "a", "chatty"), auto, `env: {TOKEN: "${TOKEN}"}`}
			var s *served
			if peer {
				s, _ = beside(t, o, lines...)
			} else {
				s = serve(t, o, lines...)
			}
			s.wants(s.Call("ana", s.turn, "docs", "", func(q *caller.Request) {
				q.Method, q.Params = "logging/setLevel", redact.NewRaw([]byte(`{"level":"debug"}`))
			}), "succeeded", "", true)
			for _, level := range []string{"debug", "error"} {
				select {
				case got := <-l.heard:
					want := s.Session("ana") + `  {"level":"` + level + `","data":{"n":1.0,"since":"debug","token":"`
					if !strings.HasPrefix(got, want) || strings.Contains(got, "canary") {
						t.Errorf("heard %s", got)
					}
				case <-s.Context().Done():
					t.Fatal("nothing is heard")
				}
			}
		})
	}
}
