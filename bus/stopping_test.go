package bus

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
)

// What breaks off because the bus has no more time to close is no error of ours, and
// nothing that its client did.
func TestRequestThatTheStopBreaksOffSaysSo(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Listen: "127.0.0.1:0"})
	begun, cause := make(chan struct{}), make(chan error, 1)
	if err := b.Serve("bus/info", func(ctx context.Context, _ *Request) (any, error) {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, errors.Join(errors.New("broken off"), ctx.Err())
	}); err != nil {
		t.Fatal(err)
	}
	nc := b.local(t)
	asked := make(chan *nats.Msg, 1)
	go func() {
		m, _ := nc.Request("gatebus.default.cmd.local.bus.info", nil, 10*time.Second)
		asked <- m
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = b.Close(ctx) // it had no time
	if err := <-cause; !fault.Is(err, fault.RuntimeClosed) {
		t.Errorf("the context ended with %v", err)
	}
	var e rpc.Error
	if m := <-asked; m != nil { // the connection may be gone before the answer
		if err := json.Unmarshal(m.Data, &e); err != nil || e.Data.Kind != fault.RuntimeClosed {
			t.Errorf("%s, %v", m.Data, err)
		}
	}
}
