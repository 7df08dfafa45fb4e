//go:build unix

package secrets

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// noFollow opens no link, and waits for nobody where the path is a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// modesCount says that permission bits mean something.
const modesCount = true

// owned reports whether a file is ours.
func owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// trusted reports whether a file is ours or root's, which needs no file to read
// what we read.
func trusted(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}

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
func unlock(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// syncDir makes a rename in the directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
