//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// ownGroup puts the server into a session and a process group of its own, so that
// signals reach its children and ours do not reach it, and it has no terminal to ask
// a person on.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
