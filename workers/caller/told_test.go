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
	for n := range 8 {
		all.keep(reply(-1-n, maxToldBytes/4))
	}
	all.keep(reply(-100, maxToldBytes/4+1))
	for call, want := range map[string]bool{"k--8": true, "k--5": true, "k--4": false, "k--100": false, fmt.Sprint("k-", 2*maxTold-1): false} {
		if _, ok := all.of(call); ok != want {
			t.Errorf("%s is remembered: %v", call, ok)
		}
	}
	if all.bytes != maxToldBytes || len(all.byCall) != 4 || len(all.order) != 4 {
		t.Errorf("%d bytes of %d replies", all.bytes, len(all.byCall))
	}
}
