package bus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// held keeps every lock file reachable: JetStream itself lets two servers open
// one store and lose events, and a lock file that the garbage collector closes
// is no lock.
var held struct {
	sync.Mutex
	files map[*os.File]struct{}
}

// lockHome takes the lock of a home. The holder's process id is in the file, so
// that who comes second can name it.
func lockHome(home string) (release func(), err error) {
	const op = "lock home"
	path := filepath.Join(home, "run", "bus.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	if err := disk.TryLock(f, disk.Alone); err != nil {
		defer f.Close()
		if !errors.Is(err, disk.ErrHeld) {
			return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be locked"), err)
		}
		b, _ := os.ReadFile(path)
		pid := strings.TrimSpace(string(b))
		if _, err := strconv.Atoi(pid); err != nil {
			pid = "unknown"
		}
		return nil, fault.New(op, fault.HomeLocked, redact.Name("another gatebus holds this home, process "+pid))
	}
	held.Lock()
	if held.files == nil {
		held.files = make(map[*os.File]struct{})
	}
	held.files[f] = struct{}{}
	held.Unlock()
	release = func() {
		held.Lock()
		delete(held.files, f)
		held.Unlock()
		_ = disk.Unlock(f) // the lock ends with the file at the latest
		f.Close()
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	if err != nil {
		release()
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	return release, nil
}
