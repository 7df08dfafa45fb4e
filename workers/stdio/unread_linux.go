package stdio

import "golang.org/x/sys/unix"

// Unread reports whether the server has not read all of its input yet, as one that
// is still starting. It is false where that is not known.
func (p *Process) Unread() bool {
	n := 0
	if conn, err := p.stdin.SyscallConn(); err == nil {
		// FIONREAD, under the name that it has for terminals.
		_ = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n > 0
}
