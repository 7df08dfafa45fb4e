//go:build unix

package bus

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock of the file, which goes with its last descriptor: a
// process that was killed leaves none behind.
func tryLock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errHeld
	}
	return err
}

// unlock gives the lock back at once. Closing the file alone would leave it with
// a child process that is between its fork and its exec.
func unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// syncDir makes a rename in the directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// ownerOnly reports whether nobody but the owner may read the file.
func ownerOnly(info os.FileInfo) bool { return info.Mode().Perm()&0o077 == 0 }

// syncRead makes durable what others wrote to a file that is open for reading.
func syncRead(f *os.File) error { return f.Sync() }
