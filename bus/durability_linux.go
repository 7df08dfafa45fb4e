package bus

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncFile makes the content of a file durable, and its size.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	for {
		err = unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return errors.Join(err, f.Close())
		}
	}
}

// syncTree makes everything in and below the directories durable: the whole file
// systems that they are on.
func syncTree(dirs ...string) error {
	for _, dir := range dirs {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Syncfs(int(d.Fd())), d.Close()); err != nil {
			return err
		}
	}
	return nil
}
