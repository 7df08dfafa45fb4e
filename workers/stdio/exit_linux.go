package stdio

import "golang.org/x/sys/unix"

// awaitExit waits until the process has ended and leaves it unburied: its
// number stays its own, so that the rest of its group can be killed safely.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
