package installer

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sync/semaphore"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// everybody is the weight of who has a lock alone.
const everybody = 1 << 30

// lock is held by who works on the secrets of a home: in part by who puts values and
// commits what refers to them, alone by who deletes what nothing refers to. It holds
// between the processes of a home, and goes with a process that is killed: who has it
// alone knows that nobody is between a put and its commit.
type lock struct {
	path string
	// here orders those of this process, first come first served.
	here *semaphore.Weighted
}

func newLock(path string) lock { return lock{path: path, here: semaphore.NewWeighted(everybody)} }

// take waits for the lock until ctx ends.
func (l lock) take(ctx context.Context, alone bool) (release func(), err error) {
	const op = "lock secrets"
	weight := int64(1)
	if alone {
		weight = everybody
	}
	if err := l.here.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	undo := func() { l.here.Release(weight) }
	err = os.MkdirAll(filepath.Dir(l.path), 0o700)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		undo()
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	how := disk.Shared
	if alone {
		how = disk.Alone
	}
	if err = disk.Lock(ctx, f, how); err != nil {
		f.Close()
		undo()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the secrets of the home cannot be locked"), err)
	}
	return func() {
		_ = disk.Unlock(f) // the lock ends with the file at the latest
		f.Close()
		undo()
	}, nil
}
