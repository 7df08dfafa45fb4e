package bus

import (
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/host"
)

// A notification reaches the principal that it is for, and nobody else can listen
// to it.
func TestNotificationsReachTheirPrincipalOnly_Decision26(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	alice, bob := b.as(t, b.enrolled(t, "alice", host.RoleHost)), b.as(t, b.enrolled(t, "bob", host.RoleHost))
	own, err := alice.SubscribeSync("gatebus.default.ntf.alice.>")
	if err != nil {
		t.Fatal(err)
	}
	wide, err := bob.SubscribeSync("gatebus.default.ntf.*.>")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := bob.SubscribeSync("gatebus.default.ntf.alice.mcp.>")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = alice.RTT()
	_, _ = bob.RTT()
	n := client.Notification{Seq: 7, I: 1, Method: "mcp/server/catalog_changed", Params: []byte(`{"name":"docs"}`)}
	if err := b.Notify("default", "alice", n); err != nil {
		t.Fatal(err)
	}
	m, err := own.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "gatebus.default.ntf.alice.mcp.server.catalog_changed" || m.Header.Get("Gb-Seq") != "7" || m.Header.Get("Gb-Index") != "1" ||
		string(m.Data) != `{"jsonrpc":"2.0","method":"mcp/server/catalog_changed","params":{"name":"docs"}}` {
		t.Errorf("%s %v %s", m.Subject, m.Header, m.Data)
	}
	_, _ = bob.RTT() // what was on its way to bob is here
	for _, sub := range []interface{ Pending() (int, int, error) }{wide, foreign} {
		if n, _, _ := sub.Pending(); n != 0 {
			t.Error("bob hears what is for alice")
		}
	}
}
