package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// listening is a bus that others find through its home.
func listening(t *testing.T, home string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(context.Background(), bus.Options{Home: home, Listen: "127.0.0.1:0", Workspace: "team"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close(context.Background())
		bustest.Sweep(home)
	})
	if err := errors.Join(b.Load(t.Context()), b.Announce(t.Context(), "r-1", nil)); err != nil {
		t.Fatal(err)
	}
	return b
}

func dial(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.Dial(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type named struct {
	Name string `json:"name"`
}

func TestClientFindsTheBusOfAHome(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := listening(t, home)
	if err := b.Serve("mcp/server/details", func(_ context.Context, r *bus.Request) (any, error) {
		var p named
		err := r.Decode(&p)
		return named{r.Workspace + " " + r.Principal + " " + p.Name}, err
	}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, client.Options{Home: home})
	var got named
	if err := c.Do(context.Background(), "mcp/server/details", named{"docs"}, &got); err != nil || got.Name != "team local docs" || c.Principal() != "local" {
		t.Errorf("%+v as %s: %v", got, c.Principal(), err)
	}
	if err := c.Do(context.Background(), "mcp/server/details", named{"docs"}, nil); err != nil {
		t.Error(err)
	}
}

// The socket serves whoever may open the file, also on a bus that listens nowhere
// else, and at the same place after a restart.
func TestClientComesThroughTheSocket(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	path := filepath.Join(home, "run", "bus.sock")
	for range 2 {
		b, err := bus.Open(t.Context(), bus.Options{Home: home, Listen: "off", Socket: true, Workspace: "team"})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.Load(t.Context()), b.Announce(t.Context(), "r-1", nil)); err != nil {
			t.Fatal(err)
		}
		if err := b.Serve("bus/info", func(_ context.Context, r *bus.Request) (any, error) {
			return named{r.Workspace + " " + r.Principal}, nil
		}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		var got named
		if err := dial(t, client.Options{Home: home}).Do(t.Context(), "bus/info", nil, &got); err != nil || got.Name != "team local" {
			t.Errorf("%+v %v", got, err)
		}
		// It is no way around the credentials.
		if _, err := client.Dial(t.Context(), client.Options{Home: home, CredsText: []byte("none")}); !fault.Is(err, fault.BusUnavailable) {
			t.Errorf("without credentials: %v", err)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil { // as a process that was killed leaves something
			t.Fatal(err)
		}
	}
	bustest.Sweep(home)
}

func TestErrorsComeBackAsFaults(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := listening(t, home)
	if err := b.Serve("grant/revoke", func(context.Context, *bus.Request) (any, error) {
		return nil, fault.New("grant.revoke", fault.NotFound, redact.Static("no such grant"))
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Serve("grant/list", func(context.Context, *bus.Request) (any, error) { return "no object", nil }); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	if err := b.Serve("tool/call", func(context.Context, *bus.Request) (any, error) {
		<-hold
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, client.Options{Home: home})
	err := c.Do(context.Background(), "grant/revoke", nil, nil)
	if !fault.Is(err, fault.NotFound) || err.Error() != "grant/revoke: no such grant" {
		t.Errorf("error %v", err)
	}
	var n named
	if err := c.Do(context.Background(), "grant/list", nil, &n); !fault.Is(err, fault.Internal) {
		t.Errorf("another result: %v", err)
	}
	if err := c.Do(context.Background(), "grant/list", make(chan int), nil); !fault.Is(err, fault.InvalidInput) {
		t.Errorf("no parameters: %v", err)
	}
	// Nobody is there; then somebody, who does not serve it to this role.
	for _, kind := range []fault.Kind{fault.BusUnavailable, fault.RoleDenied} {
		for _, method := range []string{"grant/unknown", "nobody/may"} {
			if err := c.Do(context.Background(), method, nil, nil); !fault.Is(err, kind) || !strings.Contains(err.Error(), method) {
				t.Errorf("%s: %v, want %s", method, err, kind)
			}
		}
		if err := b.Serve("bus/info", func(context.Context, *bus.Request) (any, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := c.Do(ctx, "tool/call", nil, nil); err != context.DeadlineExceeded {
		t.Errorf("no answer: %v", err)
	}
}

// Decision 22: the result of a call that was made is never lost for its spelling.
func TestJSONOfAServerComesThroughAsItIsSpelled(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := listening(t, home)
	const foreign = `{"b":"\ud83d \u00e9\/","a":1.0,"x":1e400,"x":9007199254740993}`
	if err := b.Serve("tool/call", func(context.Context, *bus.Request) (any, error) {
		return client.CallReply{Status: "succeeded", Result: json.RawMessage(foreign)}, nil
	}); err != nil {
		t.Fatal(err)
	}
	var r client.CallReply
	if err := dial(t, client.Options{Home: home}).Do(context.Background(), "tool/call", nil, &r); err != nil || string(r.Result) != foreign {
		t.Errorf("%s: %v", r.Result, err)
	}
}

func TestNoBusIsUnavailable(t *testing.T) {
	t.Parallel()
	refused := func(kind fault.Kind, o client.Options) {
		t.Helper()
		c, err := client.Dial(context.Background(), o)
		if !fault.Is(err, kind) {
			t.Errorf("%+v: %v", o, err)
		}
		if err == nil {
			c.Close()
		}
	}
	wrong := func(o client.Options) {
		t.Helper()
		refused(fault.BusUnavailable, o)
	}
	home := t.TempDir()
	wrong(client.Options{Home: home}) // nothing there
	b := listening(t, home)
	about, err := os.ReadFile(filepath.Join(home, "run", "bus.json"))
	if err != nil {
		t.Fatal(err)
	}
	creds, err := b.LocalCredentials()
	if err != nil {
		t.Fatal(err)
	}
	url := b.URL()
	other := listening(t, t.TempDir())
	refused(fault.AuthenticationRequired, client.Options{URL: other.URL(), CredsText: creds}) // another bus
	wrong(client.Options{URL: url, CredsText: []byte("none")})
	wrong(client.Options{URL: url, Creds: filepath.Join(home, "none")})
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	wrong(client.Options{Home: home}) // it has gone
	for name, data := range map[string][]byte{"bus.json": about, "local.creds": creds} {
		if err := os.WriteFile(filepath.Join(home, "run", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wrong(client.Options{Home: home}) // it was killed
}

// The whole way, in virtual time and without a socket.
func TestClientInABubble(t *testing.T) {
	bustest.Bubble(t, func(t *testing.T) {
		b := bustest.New(t, nil)
		if err := b.Serve("tool/call", func(context.Context, *bus.Request) (any, error) {
			time.Sleep(time.Hour)
			return named{"late"}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := b.Announce(t.Context(), "r-1", nil); err != nil {
			t.Fatal(err)
		}
		creds, err := b.LocalCredentials()
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, client.Options{InProcess: b, CredsText: creds})
		began := time.Now()
		var got named
		if err := c.Do(context.Background(), "tool/call", nil, &got); err != nil || got.Name != "late" || time.Since(began) != time.Hour {
			t.Errorf("%+v after %v: %v", got, time.Since(began), err)
		}
	})
}
