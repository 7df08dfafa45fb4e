//go:build unix

package main

import (
	"os"
	"syscall"
)

// ownSession lets a process outlive this one and its terminal.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// tryLock takes the lock of the file, which goes with it, unless another process
// has it.
func tryLock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
