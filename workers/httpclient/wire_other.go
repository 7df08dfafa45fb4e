//go:build !unix

package httpclient

import (
	"net"
	"syscall"
)

func rawOf(net.Conn) syscall.RawConn { return nil }

func readNow(syscall.RawConn, []byte) (int, error) { return 0, errNotYet }
