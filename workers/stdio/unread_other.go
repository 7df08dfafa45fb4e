//go:build !linux

package stdio

// Unread reports whether the server has not read all of its input yet: what a pipe
// holds is not to be had here.
func (p *Process) Unread() bool { return false }
