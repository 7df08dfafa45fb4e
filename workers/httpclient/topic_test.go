package httpclient_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// A subscription to a resource that keeps ending is taken up again within half a
// minute, and who watches is told each time.
func TestSubscriptionToAResourceComesBack(t *testing.T) {
	t.Parallel()
	const uri = "file:///one"
	for name, test := range map[string]struct {
		lasts       time.Duration
		least, most int // in an hour
	}{
		"ends at once":      {0, 115, 130},
		"ends after a time": {40 * time.Second, 85, 92},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{discover: discovered, listen: func(w http.ResponseWriter, r *http.Request, m message) {
					stream(w, fmt.Sprintf(`data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"resourceSubscriptions":[%q]}}}`, m.ID, uri))
					select {
					case <-time.After(test.lasts):
					case <-r.Context().Done():
					}
				}}
				c, close := inBubble(t, f, live.Options{Name: "gatebus"})
				heard := 0
				reply, err := c.Subscribe(t.Context(), uri, redact.NewRaw([]byte(`{"uri":"`+uri+`"}`)), live.CallOptions{}, "who", func([]byte) { heard++ })
				if err != nil || reply.Error != nil {
					t.Errorf("%s, %v", reply.Error, err)
				}
				time.Sleep(time.Hour)
				close()
				if n := len(f.of("subscriptions/listen")); n < test.least || n > test.most || heard != n-1 {
					t.Errorf("%d times in an hour, want %d to %d; heard %d times", n, test.least, test.most, heard)
				}
			})
		})
	}
}
