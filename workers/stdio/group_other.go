//go:build !unix

package stdio

import (
	"os"
	"syscall"
)

// ownGroup: no process groups here, only the server itself is ended.
func ownGroup() *syscall.SysProcAttr { return nil }

// terminateGroup: there is no gentle signal; the kill follows.
func terminateGroup(*os.Process) {}

func killGroup(p *os.Process) { _ = p.Kill() }
