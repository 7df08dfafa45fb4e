package bus

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks a byte far behind the end of the file: a locked region of a file
// cannot be read, and who comes second reads the holder's process id.
func tryLock(f *os.File) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errHeld
	}
	return err
}

// unlock gives the lock back.
func unlock(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
}

// syncDir does nothing: directories cannot be synced here.
func syncDir(string) error { return nil }

// ownerOnly is true: permission bits say nothing here.
func ownerOnly(os.FileInfo) bool { return true }

// syncRead does nothing: only who writes to a file can sync it here.
func syncRead(*os.File) error { return nil }
