package stdio

import (
	"os"

	"golang.org/x/sys/unix"
)

// anonymous makes a file that is in no directory and on no disk.
func anonymous() (file, error) {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "stderr"), nil
}
