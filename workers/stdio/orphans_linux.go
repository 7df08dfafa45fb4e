package stdio

import (
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// family are the children of this process that [Start] has started, and whether
// it takes in what those leave behind. It is of the process as the kernel has it.
var family = struct {
	sync.Mutex
	adopts bool
	homes  map[int]string // HOME by number, until the child is buried
}{homes: map[int]string{}}

// born starts a child and knows it before anybody can take it for an orphan.
func born(cmd *exec.Cmd, home string) error {
	family.Lock()
	defer family.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	family.homes[cmd.Process.Pid] = home
	return nil
}

// buried forgets a child. What its server left behind is ended, when no other child
// is of that server.
func buried(pid int) {
	family.Lock()
	home := family.homes[pid]
	delete(family.homes, pid)
	last := family.adopts && home != ""
	for _, other := range family.homes {
		last = last && other != home
	}
	family.Unlock()
	if last {
		endOrphans(func(of string) bool { return of == home })
	}
}

// Adopt makes this process the parent of what servers leave behind: of grandchildren
// that left the process group and lost their parent, which nobody could find
// otherwise. They are told by the HOME that they have inherited and ended with the
// last process of their server; those that gave it up are ended by end. A program
// calls it once, before it starts anything.
//
// It is for Linux and does nothing elsewhere. The error is that of the kernel.
func Adopt() (end func(), err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return func() {}, os.NewSyscallError("prctl", err)
	}
	family.Lock()
	family.adopts = true
	family.Unlock()
	died, stop := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(died, unix.SIGCHLD)
	var burying sync.WaitGroup
	burying.Go(func() {
		for {
			select {
			case <-died:
				endOrphans(func(string) bool { return false }) // those that have ended by themselves
			case <-stop:
				return
			}
			select { // looking for them costs something
			case <-time.After(time.Second):
			case <-stop:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		burying.Wait()
		signal.Stop(died)
		endOrphans(func(string) bool { return true })
	}), nil
}

// generations bounds how deep orphans of orphans are followed, and burial how long
// one may take to die.
const (
	generations = 16
	burial      = 200 * time.Millisecond
)

// endOrphans kills the adopted children with such a HOME, and theirs, and buries
// all that are dead.
func endOrphans(of func(home string) bool) {
	for range generations {
		var dying []int
		family.Lock()
		for pid, dead := range adopted() {
			switch {
			case dead:
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			case of(homeOf(pid)):
				// Its number is its own until it is buried here.
				if fd, err := unix.PidfdOpen(pid, 0); err == nil {
					dying = append(dying, fd)
				}
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		family.Unlock()
		if len(dying) == 0 {
			return
		}
		for _, fd := range dying {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(burial.Milliseconds()))
			_ = unix.Close(fd)
		}
	}
}

// adopted are the children of this process that it has not started, and whether
// they are dead. Children that others start here are in our process group, which no
// server is in.
func adopted() map[int]bool {
	found := map[int]bool{}
	self, group := os.Getpid(), unix.Getpgrp()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has gone meanwhile
		}
		// pid (name) state parent group …; the name may hold anything.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 3 || string(fields[1]) != strconv.Itoa(self) || string(fields[2]) == strconv.Itoa(group) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if _, ours := family.homes[pid]; err == nil && !ours {
			found[pid] = string(fields[0]) == "Z"
		}
	}
	return found
}

// homeOf is the HOME that a process was started with; empty when it is not to be
// read.
func homeOf(pid int) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if home, ok := bytes.CutPrefix(entry, []byte("HOME=")); ok {
			return string(home)
		}
	}
	return ""
}
