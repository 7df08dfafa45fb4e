package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// smallStore is how many bytes of blocks are compared whole at a start; of a
// larger store the last block is, and the scrubber compares the others.
const smallStore = 256 << 20

func (b *Bus) msgsDir() string {
	return msgsDir(filepath.Join(b.opts.Home, "bus"), b.accounts.rt)
}

// embedded reports whether the store of the log is in this process.
func (b *Bus) embedded() bool { return b.server != nil }

// checkStore compares the store with the newest checkpoint before a server opens
// it: a server cuts what it cannot read, and goes on with the sequences that it
// has cut. On damage nothing is written. It keeps a copy of the block that grows,
// where a recovery could cut it.
func (b *Bus) checkStore() error {
	const op = "check store"
	key, err := b.sealKey()
	if err != nil {
		return err
	}
	c, err := key.readCheckpoint(b.checkpointsDir())
	if err != nil || c == nil {
		return err
	}
	b.signed = c.Size
	if len(c.Blocks) == 0 {
		return nil
	}
	dir := b.msgsDir()
	problems, err := checkBlocks(dir, c)
	if err == nil && len(problems) == 0 {
		problems, err = b.checkAgain(key, dir)
	}
	if err == nil {
		err = damage(problems...)
	}
	if err == nil && !c.Closed {
		err = keepBlock(dir, b.opts.Home)
	}
	if err == nil && c.Closed {
		c.Closed = false // the server may write from now on
		if err = key.writeCheckpoint(b.checkpointsDir(), c); err == nil {
			b.reclose = func() error {
				c.Closed = true
				return key.writeCheckpoint(b.checkpointsDir(), c)
			}
		}
	}
	if err != nil {
		return asFault(op, fault.HomeNotWritable, redact.Static("the store cannot be checked"), err)
	}
	return nil
}

// checkBlocks looks for damage in the store of a checkpoint.
func checkBlocks(dir string, c *checkpoint) ([]client.LogProblem, error) {
	for _, name := range []string{"meta.inf", "meta.sum"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), name)); errors.Is(err, fs.ErrNotExist) {
			return []client.LogProblem{problem(1, c.Size, "the log's file %s is missing", name)}, nil
		}
	}
	var size int64
	for _, m := range c.Blocks {
		size += m.Size
	}
	problems, err := compareBlocks(dir, c.Blocks, size <= smallStore)
	if err != nil || len(problems) > 0 {
		return problems, err
	}
	return checkTail(dir, c)
}

// checkTail reads what was stored behind the checkpoint. A torn record at its
// very end is what a crash leaves.
func checkTail(dir string, c *checkpoint) (problems []client.LogProblem, err error) {
	last := c.Blocks[len(c.Blocks)-1]
	files, err := blockFiles(dir)
	if err != nil {
		return nil, err
	}
	next := c.Size + 1
	torn := ""
	for _, index := range files {
		if index < last.Index {
			continue
		}
		buf, err := os.ReadFile(filepath.Join(dir, blockName(index)))
		if err != nil {
			return nil, err
		}
		offset := 0
		if index == last.Index {
			offset = int(last.Size)
		}
		if torn != "" && len(buf) > 0 {
			return []client.LogProblem{problem(next, next, "%s", torn)}, nil
		}
		end, err := newScanner(index).scan(buf[offset:], func(r message, _ int) bool {
			if r.seq != next {
				problems = []client.LogProblem{problem(next, max(next, r.seq-1), "block %s has sequence %d behind %d", blockName(index), r.seq, next-1)}
				return false
			}
			next++
			return true
		})
		if len(problems) > 0 {
			return problems, nil
		}
		if bad, ok := errors.AsType[*badRecord](err); ok {
			torn = fmt.Sprintf("block %s, offset %d: %s", blockName(index), offset+end, bad.why)
			if bad.behind {
				return []client.LogProblem{problem(next, next, "%s", torn)}, nil
			}
		}
	}
	if c.Closed && next > c.Size+1 {
		return []client.LogProblem{problem(c.Size+1, next-1, "somebody wrote to the store while it was closed")}, nil
	}
	return nil, nil
}

// keepBlock copies the block that grows: a recovery cuts it at what it cannot
// read.
func keepBlock(dir, home string) error {
	files, err := blockFiles(dir)
	if err != nil || len(files) == 0 {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, blockName(files[len(files)-1])))
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(checkpointsDir(home), "open.blk"), data)
}

// checkLog compares what the server made of the store with the checkpoint.
func (b *Bus) checkLog(first, last uint64, deleted int) error {
	switch {
	case last < b.signed:
		return damage(problem(last+1, b.signed, "the end of the log is missing"))
	case last > 0 && (first != 1 || deleted > 0):
		return damage(problem(0, 0, "the server has lost %d commits", first-1+uint64(deleted)))
	}
	return nil
}

// Damage says why the bus is read-only: what was found damaged in its log. It is
// nil on a log that is well, as far as is known. Whatever would append is refused
// with it; reading goes on. It may be called from any goroutine.
func (b *Bus) Damage() error {
	if err := b.damage.Load(); err != nil {
		return *err
	}
	return nil
}

// turnReadOnly stops all appending; it returns the error. What was found is
// remembered for the next start, outside the store.
func (b *Bus) turnReadOnly(err error) error {
	if !b.damage.CompareAndSwap(nil, &err) {
		return err
	}
	b.log.Error("the log is damaged: the bus is read-only from now on", "error", err.Error())
	if b.embedded() {
		text, e := json.Marshal(foundDamage{max(b.Known(), b.signed), err.Error()})
		if e == nil {
			e = os.MkdirAll(b.checkpointsDir(), 0o700)
		}
		if e == nil {
			e = writeFile(filepath.Join(b.checkpointsDir(), damagedFile), append(text, '\n'))
		}
		if e != nil {
			b.log.Error("the damage is not remembered", "error", e.Error())
		}
	}
	return err
}

// damagedFile is where a running bus leaves what it found.
const damagedFile = "damaged"

type foundDamage struct {
	Head  uint64 `json:"head"` // how many commits there were
	Found string `json:"found"`
}

// checkAgain reads the whole log when a bus before this one found it damaged:
// comparing sizes is not enough then.
func (b *Bus) checkAgain(key sealKey, dir string) ([]client.LogProblem, error) {
	path := filepath.Join(b.checkpointsDir(), damagedFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found foundDamage
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return nil, err
	}
	v := newVerifier(key)
	last, err := v.outside(b.checkpointsDir())
	if err == nil {
		err = v.store(b.ctx, dir, last, 1<<63, func() error { return nil })
	}
	if err != nil {
		return nil, err
	}
	if problems := v.end(found.Head).Problems; len(problems) > 0 {
		return problems, nil
	}
	return nil, os.Remove(path) // it was put right
}
