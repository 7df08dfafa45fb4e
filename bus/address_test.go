package bus

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/events/fault"
)

// Who answers must tell an answer that can never be sent from one that got lost: the
// first is to be another one, the second the same.
func TestReplyThatNoMessageHoldsIsToldFromOneThatIsLost(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	replied := make(chan error, 1)
	if _, err := b.ServeAddress("default", "c1-1", func(_ context.Context, _ string, _ []byte, reply func([]byte) error) error {
		replied <- reply(make([]byte, maxPayload+1))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.AskAddress(patient(t), "default", "c1-1", "call", nil, nil); err != nil {
		t.Fatal(err)
	}
	wantKind(t, <-replied, fault.FrameTooLarge)
	shut(t, b.Bus)
	wantKind(t, b.reply(&nats.Msg{Reply: "somebody"}, &nats.Msg{Subject: "somebody"}), fault.BusUnavailable)
}
