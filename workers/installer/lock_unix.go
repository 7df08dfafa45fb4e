//go:build unix

package installer

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock of the file, in part or alone; it goes with its last
// descriptor.
func tryLock(f *os.File, alone bool) error {
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errHeld
	}
	return err
}

// unlock gives the lock back at once: a child process between its fork and its exec
// has the file too.
func unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
