package bus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
)

// Who finds his home damaged must hear which file to bring back.
func TestDamagedKeyFileIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	s := openSealed(t, home, "r1")
	s.do(t, "s1", Meta{}, "open")
	s.seal(t)
	shut(t, s.Bus)
	other, err := os.ReadFile(filepath.Join(home, "keys", "role-host.nk"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"operator.nk":    other, // of another kind
		"role-worker.nk": []byte("garbage"), "runtime-signing.nk": nil, "runtime.account": []byte("garbage"),
		"home": []byte("garbage"), "checkpoint": []byte("garbage"),
	} {
		path := filepath.Join(home, "keys", name)
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(context.Background(), Options{Home: home})
		if err == nil {
			_, err = b.sealKey()
			shut(t, b)
		}
		wantKind(t, err, fault.HomeNotWritable)
		if f, ok := errors.AsType[*fault.Fault](err); !ok || !strings.Contains(f.Text.String(), "keys/"+name+" is damaged") {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
