package bus

import (
	"errors"
	"net"
)

// socket is there on unix only.
type socket struct{ path string }

// ListenSocket has nothing to listen on here: errors.ErrUnsupported.
func (b *Bus) ListenSocket(string) (net.Listener, error) { return nil, errors.ErrUnsupported }

func (b *Bus) listenSocket() error { return nil }

func (s *socket) stop() {}
func (s *socket) wait() {}
