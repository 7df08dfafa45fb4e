package rig

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// wire is the way of a peer to the bus, which can be cut.
type wire struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	done     bool
}

// newWire makes one to a NATS URL; url is that of its near end.
func newWire(t testing.TB, to string) (w *wire, at string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	w = new(wire)
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cut)
	go func() {
		for {
			near, err := w.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", u.Host)
			if err != nil || !w.keep(near, far) {
				near.Close()
				continue
			}
			go io.Copy(near, far)
			go io.Copy(far, near)
		}
	}()
	return w, "nats://" + w.listener.Addr().String()
}

func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		w.conns = append(w.conns, conns...)
	}
	return !w.done
}

// cut ends it for good.
func (w *wire) cut() {
	w.listener.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	for _, c := range w.conns {
		c.Close()
	}
}
