// Package disk has what the processes of a home do with its files: locks that end with
// whoever holds them, and files that are replaced as a whole and durably.
package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// ErrHeld is what TryLock says when another process has the lock.
var ErrHeld = errors.New("the lock is held")

// Kind is how a lock is held.
type Kind bool

// The kinds of locks: any number of processes hold one shared, or one alone.
const (
	Alone  Kind = false
	Shared Kind = true
)

// Lock waits until ctx ends for the lock of a file. It asks again and again: a lock that
// is waited for in the kernel knows no deadline.
func Lock(ctx context.Context, f *os.File, how Kind) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := TryLock(f, how); !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Pattern is how files are called that are not in place yet, for [os.CreateTemp] and
// [filepath.Glob]. Who is killed leaves one behind.
const Pattern = ".new-*"

// Replace replaces a file as a whole, durably: a reader sees the old or the new. The file
// is 0600, whatever the umask.
func Replace(path string, data []byte) error { return place(path, data, os.Rename) }

// Create is Replace for a file that must not be there; then the error is fs.ErrExist.
func Create(path string, data []byte) error { return place(path, data, os.Link) }

func place(path string, data []byte, put func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, Pattern)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = f.Chmod(0o600)
	if err == nil {
		_, err = f.Write(data)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := put(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}
