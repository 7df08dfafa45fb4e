//go:build unix

package httpclient

import (
	"io"
	"net"
	"syscall"
)

// rawOf is the descriptor of a connection, nil where it has none.
func rawOf(conn net.Conn) syscall.RawConn {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readNow reads what has come, or returns errNotYet.
func readNow(raw syscall.RawConn, p []byte) (n int, err error) {
	closed := raw.Read(func(fd uintptr) bool {
		for {
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case closed != nil:
		return 0, closed
	case err == syscall.EAGAIN:
		return 0, errNotYet
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
