package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/workers/fakes"
)

// What a server logs outside of a call reaches the clients that use it and have set a
// level, from that level on; one that is connected later is told of the level.
func TestLogMessagesReachTheClientsThatWantThem(t *testing.T) {
	t.Parallel()
	a := newAskerAs(t, fmt.Sprintf("command: %q\nargs: [a, chatty]\nenv: {TOKEN: \"${TOKEN}\"}\n", fakes.Build(t, "shelf")))
	token := a.token("ana")
	// heard gives the log messages of a client, one by one.
	heard := func(h *rawHost) func() string {
		t.Helper()
		next := h.messages(h.send("GET", ""))
		return func() string {
			t.Helper()
			for {
				switch m := next(); {
				case strings.Contains(m, "canary"):
					t.Fatalf("a secret of the server: %s", m)
				case m == "":
					t.Fatal("the stream has ended")
				case strings.Contains(m, "notifications/message"):
					var said struct {
						Params struct {
							Level string
							Data  struct{ Since string }
						}
					}
					if err := json.Unmarshal([]byte(m), &said); err != nil || !strings.Contains(m, `"data":{"n":1.0,`) {
						t.Errorf("%s: %v", m, err)
					}
					return said.Params.Level + " since " + said.Params.Data.Since
				}
			}
		}
	}
	level := func(h *rawHost, level string) {
		t.Helper()
		if got := h.messages(h.send("POST", `{"jsonrpc":"2.0","id":"s","method":"logging/setLevel","params":{"level":"`+level+`"}}`))(); !strings.Contains(got, `"result":{}`) {
			t.Fatalf("%s", got)
		}
	}

	early := a.attach(token, `{}`)
	early.list()
	level(early, "warning") // the server is not connected yet
	said := heard(early)
	approveNext(t, a.op)
	if got := said(); got != "error since warning" {
		t.Errorf("the first is told %s", got)
	}

	late := a.attach(token, `{}`)
	late.list()
	saidLate := heard(late)
	level(early, "error") // of which the second one, who has set no level, hears nothing
	if got := said(); got != "error since error" {
		t.Errorf("the first is told %s", got)
	}
	level(late, "debug")
	for _, want := range []string{"debug since debug", "error since debug"} {
		if got := saidLate(); got != want {
			t.Errorf("the second is told %s, want %s", got, want)
		}
	}
	if got := said(); got != "error since debug" {
		t.Errorf("the first is told %s", got)
	}
}
