package live

import (
	"testing"
	"time"
)

// A server that has not read the probe is starting and not silent: which era it is
// spoken to in does not hang on how fast it starts.
func TestAServerThatStartsSlowlyIsNotTakenForASilentOne(t *testing.T) {
	t.Parallel()
	_, sent, err := opening(t, Options{Patience: 500 * time.Millisecond}, "stateless", "asleep")
	if err != nil || len(sent) != 1 || sent[0] != probeSent {
		t.Errorf("%v after %q", err, sent)
	}
}
