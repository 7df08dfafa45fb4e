package caller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
)

func TestRepliesThatAreRememberedAreBounded(t *testing.T) {
	t.Parallel()
	var all told
	reply := func(n, bytes int) client.CallReply {
		return client.CallReply{Call: fmt.Sprint("k-", n), Result: json.RawMessage(strings.Repeat("x", bytes))}
	}
	for n := range 2 * maxTold {
		all.keep(reply(n, 10))
	}
	for n, want := range map[int]bool{0: false, maxTold - 1: false, maxTold: true, 2*maxTold - 1: true} {
		if _, ok := all.of(fmt.Sprint("k-", n)); ok != want {
			t.Errorf("reply %d of %d is remembered: %v", n, 2*maxTold, ok)
		}
	}
	// The name counts as well.
	for n := range 8 {
		all.keep(reply(-1-n, maxToldBytes/4-len("k--1")))
	}
	all.keep(reply(-9, maxToldBytes/4-len("k--9")+1))
	for call, want := range map[string]bool{"k--8": true, "k--5": true, "k--4": false, "k--9": false, fmt.Sprint("k-", 2*maxTold-1): false} {
		if _, ok := all.of(call); ok != want {
			t.Errorf("%s is remembered: %v", call, ok)
		}
	}
	if all.bytes != maxToldBytes || len(all.byCall) != 4 || len(all.order) != 4 {
		t.Errorf("%d bytes of %d replies", all.bytes, len(all.byCall))
	}
}

// The object of a server's error is as long as it likes, like a result.
func TestErrorsThatAreRememberedCount(t *testing.T) {
	t.Parallel()
	var all told
	long := json.RawMessage(strings.Repeat("x", maxToldBytes/8))
	for n := range 16 {
		all.keep(client.CallReply{Call: fmt.Sprint("k-", n), Error: &client.CallError{JSONRPC: long}})
	}
	all.keep(client.CallReply{Call: "long", Error: &client.CallError{JSONRPC: make(json.RawMessage, maxToldBytes/4)}})
	if len(all.byCall) > 8 || all.bytes > maxToldBytes {
		t.Errorf("%d replies are remembered, of %d bytes", len(all.byCall), all.bytes)
	}
	if _, ok := all.of("long"); ok {
		t.Error("more than a share is remembered")
	}
}

// A result is a part of the line that it came in, which is not remembered with it.
func TestRepliesThatAreRememberedHoldNothingElse(t *testing.T) {
	t.Parallel()
	var all told
	line := []byte(`{"result":{},"error":{},"pad":"x"}`)
	all.keep(client.CallReply{Call: "k", Result: line[10:12], Error: &client.CallError{JSONRPC: line[21:23]}})
	clear(line)
	got, _ := all.of("k")
	if string(got.Result) != "{}" || string(got.Error.JSONRPC) != "{}" {
		t.Errorf("%q and %q are parts of the line still", got.Result, got.Error.JSONRPC)
	}
}
