//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// writeNow writes what goes into a pipe without waiting, perhaps nothing.
func writeNow(f *os.File, b []byte) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Write(func(fd uintptr) bool {
		n, failed = syscall.Write(int(fd), b)
		return true
	}); err != nil {
		return 0, err
	}
	if failed == syscall.EAGAIN || failed == syscall.EINTR {
		failed = nil
	}
	return max(n, 0), failed
}
