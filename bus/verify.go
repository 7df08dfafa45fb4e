package bus

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

func problem(first, last uint64, format string, args ...any) client.LogProblem {
	return client.LogProblem{First: first, Last: last, What: fmt.Sprintf(format, args...)}
}

// maxProblems bounds what is said of a log that is damaged everywhere.
const maxProblems = 100

// damage is the error of problems; nil when there are none.
func damage(problems ...client.LogProblem) error {
	if len(problems) == 0 {
		return nil
	}
	text := "the log is damaged: " + problems[0].String()
	if n := len(problems) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return fault.New("verify log", fault.AuditDamaged, redact.Name(text))
}

// verifier folds a log anew and compares it with everything that was signed of it.
type verifier struct {
	client.Verification
	key    sealKey
	leaf   leafer
	fold   fold        // lags behind what was read
	queue  []tlog.Hash // what was read and is not folded
	wanted map[uint64][]wanted
	good   uint64 // the newest seal that agrees
	next   uint64 // the sequence to come
	gap    string // why it may not come
	broken bool   // the chain cannot be followed any more
}

// wanted is a seal to compare with.
type wanted struct {
	root, chain, where string
}

func (v *verifier) problem(first, last uint64, format string, args ...any) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, problem(first, last, format, args...))
	}
}

// want notes a seal; where is what to call it.
func (v *verifier) want(s seal, where string) {
	if s.Size < v.fold.size {
		v.problem(0, 0, "%s covers %d commits, too long ago to be compared", where, s.Size)
		return
	}
	v.wanted[s.Size] = append(v.wanted[s.Size], wanted{s.Root, s.Chain, where})
	if s.Size == v.fold.size {
		v.compare()
	}
}

// compare compares the fold with the seals of its size.
func (v *verifier) compare() {
	want := v.wanted[v.fold.size]
	if len(want) == 0 {
		return
	}
	delete(v.wanted, v.fold.size)
	root := v.fold.root()
	for _, w := range want {
		if w.root == hex.EncodeToString(root[:]) && w.chain == hex.EncodeToString(v.fold.chain[:]) {
			v.Checkpoints++
			v.good = v.fold.size
		} else if !v.broken { // what follows cannot agree either
			v.broken = true
			v.problem(v.good+1, v.fold.size, "the commits are not those that %s signed", w.where)
		}
	}
}

// step folds the oldest of the queue.
func (v *verifier) step() {
	v.fold.add(v.queue[0])
	v.queue = v.queue[1:]
	v.compare()
}

// add takes the next stored message.
func (v *verifier) add(r message) {
	switch {
	case r.seq > v.next:
		v.problem(v.next, r.seq-1, "%s", cmp.Or(v.gap, "commits are missing"))
		v.broken = true
	case r.seq < v.next:
		v.problem(r.seq, r.seq, "stored again behind sequence %d", v.next-1)
		v.broken = true
		return
	case v.gap != "":
		v.problem(0, 0, "%s", v.gap)
	}
	v.next, v.gap = r.seq+1, ""
	v.Commits++
	if !v.broken {
		v.queue = append(v.queue, v.leaf.leaf(r))
		if len(v.queue) > window {
			v.step()
		}
	}
	c, err := r.commit()
	if errors.Is(err, events.ErrUnknown) {
		v.problem(r.seq, r.seq, "a commit of a newer gatebus: verify it with that one")
		return
	}
	if err != nil {
		v.problem(r.seq, r.seq, "no commit of this log, or not on its subject")
		return
	}
	v.Events += uint64(len(c.Events))
	for _, e := range c.Events {
		if e, ok := e.(events.CheckpointSigned); ok && !v.broken {
			v.sealed(c, seal{uint64(e.Size), e.Root, e.Chain, e.Key, e.Signature})
		}
	}
}

// sealed takes a seal that is told of in the log. One of another home can only be
// compared: its key is not here.
func (v *verifier) sealed(c *events.Commit, s seal) {
	where := fmt.Sprintf("the checkpoint at sequence %d", c.Seq)
	switch {
	case s.Size >= c.Seq:
		v.problem(c.Seq, c.Seq, "a checkpoint of what comes behind it")
	case c.Aggregate.Key == v.key.home && !v.key.signed(s):
		v.problem(c.Seq, c.Seq, "a checkpoint that this home did not sign")
	default:
		v.want(s, where)
	}
}

// outside takes what is signed outside the log.
func (v *verifier) outside(dir string) (*checkpoint, error) {
	last, err := v.key.readCheckpoint(dir)
	if fault.Is(err, fault.AuditDamaged) {
		v.problem(0, 0, "the file checkpoints/latest is not what this home signed")
	} else if err != nil {
		return nil, err
	}
	if last != nil {
		v.Checkpoint = last.Size
		v.want(last.seal, "checkpoints/latest")
	}
	for _, name := range []string{"history.1", "history"} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			var s seal
			where := fmt.Sprintf("line %d of checkpoints/%s", n, name)
			if json.Unmarshal(lines.Bytes(), &s) != nil || !v.key.signed(s) {
				v.problem(0, 0, "%s is not what this home signed", where)
			} else if last == nil || s.Size <= last.Size { // a write of the next one may be under way
				v.want(s, where)
			}
		}
		f.Close()
	}
	return last, nil
}

// end closes the account: the log must reach up to head.
func (v *verifier) end(head uint64) client.Verification {
	for size := range v.wanted {
		head = max(head, size)
	}
	if v.next <= head {
		v.problem(v.next, head, "%s", cmp.Or(v.gap, "the end of the log is missing"))
		v.broken = true
	}
	for len(v.queue) > 0 {
		v.step()
	}
	if v.Verified = len(v.Problems) == 0; v.Verified {
		root := v.fold.root()
		v.Root, v.Chain = hex.EncodeToString(root[:]), hex.EncodeToString(v.fold.chain[:])
	}
	return v.Verification
}

// blocks reads the log from its blocks, up to head; sealed is the newest sequence
// that was. Pace is called between blocks.
func (v *verifier) blocks(ctx context.Context, dir string, sealed, head uint64, pace func() error) error {
	files, err := blockFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no log
	}
	if err != nil {
		return err
	}
	for i, index := range files {
		if err := errors.Join(ctx.Err(), pace()); err != nil {
			return err
		}
		if v.next > head {
			return nil
		}
		buf, err := os.ReadFile(filepath.Join(dir, blockName(index)))
		if err != nil {
			return err
		}
		s := newScanner(index)
		first, lacking := i > 0, false // the end of the block before
		for at := 0; at < len(buf) && v.next <= head; {
			n, err := s.scan(buf[at:], func(r message, _ int) bool {
				if lacking = first && r.seq > v.next && v.next > sealed; lacking {
					return false
				}
				first = false
				v.add(r)
				return v.next <= head
			})
			bad, ok := errors.AsType[*badRecord](err)
			switch at += n; {
			case lacking, ok && v.next > sealed && !s.behind(buf, at):
				// Torn: how far the log must reach is looked at in the end.
				v.gap = fmt.Sprintf("%s, offset %d: the log ends torn", blockName(index), at)
				return nil
			case ok:
				v.gap = fmt.Sprintf("%s, offset %d: %s", blockName(index), at, bad.why)
				if at = s.next(buf, at+1); at == 0 {
					at = len(buf)
				}
			}
		}
	}
	return nil
}

// compareBlocks compares the blocks of a directory with what they were: their
// sizes, the digest of the last one, and with all those of all.
func compareBlocks(dir string, marks []blockMark, all bool) (problems []client.LogProblem, err error) {
	for i, m := range marks {
		last := i == len(marks)-1
		say := func(what string) {
			if len(problems) < maxProblems {
				problems = append(problems, problem(m.First, m.Last, "block %s %s", blockName(m.Index), what))
			}
		}
		f, err := os.Open(filepath.Join(dir, blockName(m.Index)))
		if errors.Is(err, fs.ErrNotExist) {
			say("is missing")
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil {
			switch {
			case info.Size() < m.Size:
				say(fmt.Sprintf("was cut from %d to %d bytes", m.Size, info.Size()))
			case info.Size() > m.Size && !last:
				say(fmt.Sprintf("grew from %d to %d bytes", m.Size, info.Size()))
			case all || last:
				sum := sha256.New()
				if _, err = io.CopyN(sum, f, m.Size); err == nil && hex.EncodeToString(sum.Sum(nil)) != m.SHA256 {
					say("was changed")
				}
			}
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return problems, nil
}

// Verify reads the whole log again, from the disk where it is embedded, and
// compares it with everything that was signed of it, in the log and outside. A
// damage is no error: it is in the result, and turns the bus read-only. Errors:
// the context's, audit_unavailable when the log cannot be read.
func (b *Bus) Verify(ctx context.Context) (client.Verification, error) {
	return b.verify(ctx, func() error { return nil })
}

func (b *Bus) verify(ctx context.Context, pace func() error) (client.Verification, error) {
	const op = "verify log"
	fail := func(err error) (client.Verification, error) {
		return client.Verification{}, asFault(op, fault.AuditUnavailable, redact.Static("the log cannot be read"), err)
	}
	if err := b.enter(op); err != nil {
		return fail(err)
	}
	defer b.work.Done()
	b.verifying.Lock()
	defer b.verifying.Unlock()
	key, err := b.sealKey()
	if err != nil {
		return fail(err)
	}
	v := newVerifier(key)
	last, err := v.outside(b.checkpointsDir())
	if err != nil {
		return fail(err)
	}
	state, err := b.streamState(ctx)
	if err != nil {
		return fail(err)
	}
	if state.Msgs > 0 && (state.FirstSeq != 1 || state.NumDeleted > 0) {
		v.problem(0, 0, "the server has lost %d commits", state.FirstSeq-1+uint64(state.NumDeleted))
	}
	if b.embedded() {
		if err = v.store(ctx, b.msgsDir(), last, state.LastSeq, pace); err == nil {
			err = v.foreign(ctx, b)
		}
	} else {
		b.readRecords(ctx, 0, state.LastSeq, func(r message, e error) bool {
			if fault.Is(e, fault.AuditDamaged) {
				v.gap = "the server does not have it"
			} else if err = e; err == nil {
				v.add(r)
			}
			return e == nil
		})
	}
	if err != nil {
		return fail(err)
	}
	out := v.end(state.LastSeq)
	if len(out.Problems) > 0 {
		b.turnReadOnly(damage(out.Problems...))
	}
	return out, nil
}

// foreign looks for what is on the disk behind all that the server of this bus has
// stored: another one writes there.
func (v *verifier) foreign(ctx context.Context, b *Bus) error {
	files, err := blockFiles(b.msgsDir())
	if err != nil || len(files) == 0 {
		return err
	}
	index := files[len(files)-1]
	buf, err := os.ReadFile(filepath.Join(b.msgsDir(), blockName(index)))
	if err != nil {
		return err
	}
	seq := uint64(0)
	// How it ends is no matter: a record may be half written.
	_, _ = newScanner(index).scan(buf, func(m message, _ int) bool {
		seq = m.seq
		return true
	})
	head, err := b.stored(ctx)
	if err == nil && seq > head {
		v.problem(head+1, seq, "another server writes to the store")
	}
	return err
}

func newVerifier(key sealKey) *verifier {
	return &verifier{
		Verification: client.Verification{Problems: []client.LogProblem{}}, key: key, wanted: make(map[uint64][]wanted), next: 1,
	}
}

// store verifies an embedded store.
func (v *verifier) store(ctx context.Context, dir string, last *checkpoint, head uint64, pace func() error) error {
	sealed := uint64(0)
	if last != nil {
		sealed = last.Size
		problems, err := compareBlocks(dir, last.Blocks, true)
		if err != nil {
			return err
		}
		v.Problems = append(v.Problems, problems...)
	}
	return v.blocks(ctx, dir, sealed, head, pace)
}

// VerifyHome is Verify of a home whose bus does not run. Nothing is written, and
// no server touches the store. What lies torn behind the newest checkpoint is
// what a crash leaves, and no damage. Errors: not_found when the home has no log.
func VerifyHome(ctx context.Context, home string) (client.Verification, error) {
	const op = "verify log"
	key, account, err := readKeys(home)
	if err != nil {
		return client.Verification{}, err
	}
	v := newVerifier(key)
	last, err := v.outside(checkpointsDir(home))
	if err == nil {
		err = v.store(ctx, msgsDir(filepath.Join(home, "bus"), account), last, 1<<63, func() error { return nil })
	}
	if err != nil {
		return client.Verification{}, asFault(op, fault.AuditUnavailable, redact.Static("the log cannot be read"), err)
	}
	return v.end(0), nil
}

// readKeys reads what a home needs to be verified, and makes nothing.
func readKeys(home string) (k sealKey, account string, err error) {
	keys := filepath.Join(home, "keys")
	read := func(name string) (text []byte) {
		if err == nil {
			text, err = os.ReadFile(filepath.Join(keys, name))
		}
		return text
	}
	id, rt, text := read("home"), read("runtime.account"), read("checkpoint")
	if err == nil {
		k.home, err = homeID(id), k.parse(text)
	}
	if err != nil {
		return k, "", fault.Wrap("verify log", fault.NotFound, redact.Static("the home has no log that was sealed"), err)
	}
	return k, strings.TrimSpace(string(rt)), nil
}

// Scrub verifies the log a minute after the start and then every day, at a low
// priority, until ctx ends or the log is damaged.
func (b *Bus) Scrub(ctx context.Context) error {
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		_, err := b.verify(ctx, func() error {
			// A fifth of the time for the scrubber, the rest for everybody else.
			rest := time.NewTimer(4 * time.Since(began))
			defer rest.Stop()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-rest.C:
			}
			began = time.Now()
			return nil
		})
		if ctx.Err() != nil || b.Damage() != nil {
			return nil
		}
		if err != nil {
			b.log.Error("the log could not be verified", "error", err.Error())
		}
		timer.Reset(24 * time.Hour)
	}
}
