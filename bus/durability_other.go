//go:build !linux

package bus

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gatebus/gatebus/bus/disk"
)

// syncFile makes a file durable. Go asks for F_FULLFSYNC on Darwin, and for
// FlushFileBuffers on Windows, which wants a file that can be written.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncTree makes everything in and below the directories durable, with the
// directories above them.
func syncTree(dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
			case d.IsDir():
				err = disk.SyncDir(path)
			case d.Type().IsRegular():
				err = syncFile(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was replaced meanwhile
			}
			return err
		})
		if err == nil {
			err = disk.SyncDir(filepath.Dir(dir))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
