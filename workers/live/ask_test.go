package live

import (
	"testing"
	"time"
)

func TestAServerMayAskSoMuchInARow(t *testing.T) {
	t.Parallel()
	var a asking
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	may := func() (n int) {
		for a.mayLocked(now) {
			n++
		}
		return n
	}
	if n := may(); n != askBurst {
		t.Errorf("at first it may %d times", n)
	}
	now = now.Add(3 * askEvery)
	if n := may(); n != 3 {
		t.Errorf("a little later it may %d times", n)
	}
	now = now.Add(time.Hour)
	if n := may(); n != askBurst {
		t.Errorf("an hour later it may %d times", n)
	}
}
