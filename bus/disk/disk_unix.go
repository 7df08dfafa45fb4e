//go:build unix

package disk

import (
	"errors"
	"os"
	"syscall"
)

// TryLock takes the lock of a file, which goes with its last descriptor: a process that
// was killed leaves none behind. Where another process has it the error is [ErrHeld].
func TryLock(f *os.File, how Kind) error {
	mode := syscall.LOCK_EX
	if how == Shared {
		mode = syscall.LOCK_SH
	}
	err := syscall.Flock(int(f.Fd()), mode|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	return err
}

// Unlock gives the lock back at once. Closing the file alone would leave it with a child
// process that is between its fork and its exec.
func Unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// SyncDir makes a rename in the directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
