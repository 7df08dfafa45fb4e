//go:build unix

package bus

import (
	"io"
	"net"
	"os"
	"sync"
)

// socket is the unix socket of an embedded bus: for whoever may open the file,
// which is the owner of the home, and found at the same place after a restart.
type socket struct {
	listener net.Listener
	path     string
	open     sync.WaitGroup
}

// ListenSocket listens on the unix socket <home>/run/NAME, in place of one that a
// process left behind: the home must be locked, by a bus that is no worker's. Only
// its owner may open it, and the end of the listener removes it. A path can be too
// long for one; where there are none, the error is errors.ErrUnsupported.
func (b *Bus) ListenSocket(name string) (net.Listener, error) {
	path := b.runFile(name)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // nobody else gets into the folder meanwhile
		l.Close()
		return nil, err
	}
	return l, nil
}

// listenSocket serves the socket <home>/run/bus.sock. The server cannot listen on
// one, so that each connection is handed to it as one of this process; it has to
// log in like any other.
func (b *Bus) listenSocket() error {
	l, err := b.ListenSocket("bus.sock")
	if err != nil {
		return err
	}
	s := &socket{listener: l, path: l.Addr().String()}
	b.socket = s
	s.open.Go(func() {
		for {
			outer, err := l.Accept()
			if err != nil {
				return // closed
			}
			inner, err := b.server.InProcessConn()
			if err != nil {
				outer.Close()
				continue
			}
			s.open.Go(func() { splice(outer, inner) })
		}
	})
	return nil
}

// splice passes on what two connections say until one of them ends.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // its end is the end of both
		to.Close()
		from.Close()
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// stop takes no more connections, and removes the file.
func (s *socket) stop() { s.listener.Close() }

// wait returns when every connection has ended.
func (s *socket) wait() { s.open.Wait() }
