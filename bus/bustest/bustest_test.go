package bustest_test

import (
	"context"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
)

func TestJobOfTenMinutesTakesNoTime(t *testing.T) {
	began := time.Now()
	bustest.Bubble(t, func(t *testing.T) {
		home := t.TempDir()
		b := bustest.Open(t, home, func(b *bus.Bus) { bus.NewModel(b) })
		if err := b.PublishJob(t.Context(), "default", "connect", "c1"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		inside := time.Now()
		if err := b.ConsumeJobs(ctx, "connect", 1, func(context.Context, string, string) error {
			time.Sleep(10 * time.Minute)
			cancel()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(inside); d < 10*time.Minute {
			t.Errorf("ten minutes took %v", d)
		}
	})
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %v", d)
	}
}
