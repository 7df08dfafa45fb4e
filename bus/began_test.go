package bus

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
)

// The store and the checkpoints of a home are taken away together.
func TestHomeWhoseLogIsGoneIsNoNewHome_Decision19(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	s.do(t, "s1", Meta{}, "open")
	s.seal(t)
	shut(t, s.Bus)
	began, err := os.ReadFile(filepath.Join(home, "keys", beganFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bus", "checkpoints", "snapshots"} {
		if err := os.RemoveAll(filepath.Join(home, dir)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() {
		t.Helper()
		b, err := Open(context.Background(), Options{Home: home})
		if err == nil {
			shut(t, b)
		}
		wantKind(t, err, fault.AuditDamaged)
		if entries, _ := os.ReadDir(filepath.Join(home, "bus")); len(entries) > 0 {
			t.Error("another store was begun")
		}
	}
	refused()
	if err := os.WriteFile(filepath.Join(home, "keys", beganFile), append([]byte(" "), began[:len(began)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	refused()
	if err := os.Remove(filepath.Join(home, "keys", beganFile)); err != nil {
		t.Fatal(err)
	}
	again := open(t, Options{Home: home})
	again.do(t, "s1", Meta{}, "open")
	if n := len(commits(t, again.Bus)); n != 1 {
		t.Errorf("%d commits", n)
	}
}

// A home of before has no note of it: the next checkpoint makes one.
func TestLogOfBeforeIsNoted(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	s.seal(t)
	path := filepath.Join(home, "keys", beganFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.do(t, "s1", Meta{}, "open")
	s.seal(t)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
