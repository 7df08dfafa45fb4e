//go:build unix

package secrets

import (
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
