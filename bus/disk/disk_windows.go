package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// far is a byte behind the end of the file: a locked region of a file cannot be read,
// and who comes second may have to read what is in it.
var far = windows.Overlapped{OffsetHigh: 1 << 30}

// TryLock takes the lock of a file, which goes with its last handle. Where another
// process has it the error is [ErrHeld].
func TryLock(f *os.File, how Kind) error {
	mode := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if how == Alone {
		mode |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	at := far
	err := windows.LockFileEx(windows.Handle(f.Fd()), mode, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return err
}

// Unlock gives the lock back.
func Unlock(f *os.File) error {
	at := far
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}

// SyncDir does nothing: directories cannot be synced here.
func SyncDir(string) error { return nil }
