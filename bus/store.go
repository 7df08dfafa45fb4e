package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/disk"
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
// has cut. On damage nothing is written. A torn end is cut here, and kept.
func (b *Bus) checkStore() error {
	const op = "check store"
	key, err := b.sealKey()
	if err != nil {
		return err
	}
	c, err := key.readCheckpoint(b.checkpointsDir())
	if err != nil {
		return err
	}
	if c == nil { // it was not yet sealed for the first time
		if err := b.checkNew(key); err != nil {
			return err
		}
		c = new(checkpoint)
	}
	b.signed = c.Size
	dir := b.msgsDir()
	var torn *tornEnd
	problems, err := checkBlocks(dir, c)
	if err == nil && len(problems) == 0 {
		torn, problems, err = checkTail(dir, c)
	}
	if err == nil && len(problems) == 0 {
		problems, err = b.checkAgain(key, dir)
	}
	if err == nil {
		err = damage(problems...)
	}
	if err == nil && !c.Closed {
		err = b.cut(dir, torn)
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

// checkBlocks compares the store with what a checkpoint says of its blocks.
func checkBlocks(dir string, c *checkpoint) ([]client.LogProblem, error) {
	if len(c.Blocks) == 0 {
		return nil, nil
	}
	for _, name := range []string{"meta.inf", "meta.sum"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), name)); errors.Is(err, fs.ErrNotExist) {
			return []client.LogProblem{problem(1, c.Size, "the log's file %s is missing", name)}, nil
		}
	}
	var size int64
	for _, m := range c.Blocks {
		size += m.Size
	}
	return compareBlocks(dir, c.Blocks, size <= smallStore)
}

// tornEnd is where the log ends in what the end of a process or of the power left
// behind the newest checkpoint.
type tornEnd struct {
	block, offset int
	last          uint64 // the last sequence before it
	why           string
	later         []int // blocks behind it
}

// checkTail reads what was stored behind a checkpoint. What comes behind a torn
// end was not yet on the disk, or only here and there: files and their pages reach
// it in any order.
func checkTail(dir string, c *checkpoint) (torn *tornEnd, problems []client.LogProblem, err error) {
	files, err := blockFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if n := len(c.Blocks); n > 0 {
		files = slices.DeleteFunc(files, func(index int) bool { return index < c.Blocks[n-1].Index })
	}
	next := c.Size + 1
	size := 0 // of the block before
	for i, index := range files {
		if torn != nil {
			torn.later = append(torn.later, index)
			continue
		}
		buf, err := os.ReadFile(filepath.Join(dir, blockName(index)))
		if err != nil {
			return nil, nil, err
		}
		offset := 0
		if n := len(c.Blocks); n > 0 && i == 0 {
			offset = int(c.Blocks[n-1].Size)
		}
		said := func(seq uint64) string {
			return fmt.Sprintf("block %s has sequence %d behind %d", blockName(index), seq, next-1)
		}
		records := newScanner(index)
		end, err := records.scan(buf[offset:], func(r message, _ int) bool {
			switch {
			case r.seq == next:
				next++
				return true
			case r.seq > next && i > 0 && index == files[i-1]+1 && torn == nil:
				torn = &tornEnd{files[i-1], size, next - 1, said(r.seq), []int{index}}
			default:
				problems = []client.LogProblem{problem(next, max(next, r.seq-1), "%s", said(r.seq))}
			}
			return false
		})
		size = len(buf)
		if len(problems) > 0 {
			return nil, problems, nil
		}
		if bad, ok := errors.AsType[*badRecord](err); ok && torn == nil {
			torn = &tornEnd{block: index, offset: offset + end, last: next - 1, why: fmt.Sprintf("block %s, offset %d: %s", blockName(index), offset+end, bad.why)}
			if records.behind(buf, torn.offset) {
				return nil, []client.LogProblem{problem(next, next, "%s", torn.why)}, nil
			}
		}
	}
	if c.Closed && (torn != nil || next > c.Size+1) {
		return nil, []client.LogProblem{problem(c.Size+1, max(next-1, c.Size+1), "somebody wrote to the store while it was closed")}, nil
	}
	return torn, nil, nil
}

// cut keeps a copy of the block that grows, for a recovery of the server cuts it
// at what it cannot read, and takes a torn end off the store.
func (b *Bus) cut(dir string, torn *tornEnd) error {
	files, err := blockFiles(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	index := files[len(files)-1]
	if torn != nil {
		index = torn.block
	}
	aside, path := checkpointsDir(b.opts.Home), filepath.Join(dir, blockName(index))
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.MkdirAll(aside, 0o700)
	}
	if err == nil {
		err = disk.Replace(filepath.Join(aside, "open.blk"), data)
	}
	if err != nil || torn == nil {
		return err
	}
	b.log.Warn("the log ends torn, as a process or a machine that stopped at once leaves it; what lay behind is kept in the folder checkpoints",
		"last", torn.last, "found", torn.why, "bytes", len(data)-torn.offset, "blocks", len(torn.later))
	for _, later := range torn.later {
		if err := os.Rename(filepath.Join(dir, blockName(later)), filepath.Join(aside, blockName(later))); err != nil {
			return err
		}
	}
	// The index may tell of what is gone; without it the server reads the blocks.
	if err := os.Remove(filepath.Join(dir, "index.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Truncate(path, int64(torn.offset)); err != nil {
		return err
	}
	return errors.Join(syncFile(path), disk.SyncDir(dir))
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
			e = disk.Replace(filepath.Join(b.checkpointsDir(), damagedFile), append(text, '\n'))
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
