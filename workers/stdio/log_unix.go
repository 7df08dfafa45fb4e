//go:build unix

package stdio

import (
	"errors"
	"os"
	"syscall"
)

// noFollow refuses a link in place of the file.
const noFollow = syscall.O_NOFOLLOW

// isLink reports whether a file was not opened because it is a link.
func isLink(err error) bool { return errors.Is(err, syscall.ELOOP) }

// lock waits until no other process has the file. It goes with its descriptor.
func lock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			return err
		}
	}
}
