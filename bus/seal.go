package bus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"encoding/base64"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/runtime"
)

const (
	// sealAfter commits, or sealEvery after the first of them, the log is sealed;
	// sealPause lies between two seals at least.
	sealAfter = 1000
	sealEvery = 10 * time.Second
	sealPause = time.Second
	// maxHistory bounds the file of old checkpoints, which has one predecessor.
	maxHistory = 1 << 20
	// window is how far behind a commit may be the checkpoint that it tells of.
	window = 1 << 16
)

// seal is what the home signs of the log: how many commits, the root of the tree
// over them, in hex, and the hash that their chain ends with.
type seal struct {
	Size  uint64 `json:"size"`
	Root  string `json:"root"`
	Chain string `json:"chain"`
	// Key is the name and hash of the key, Signature that of the note, base64.
	Key       string `json:"key"`
	Signature string `json:"signature"`
}

// text is what the signature is of, in the form of a transparency log's
// checkpoint: who, how many, the root in base64; and the chain.
func (s seal) text(name string) string {
	root, _ := hex.DecodeString(s.Root)
	return fmt.Sprintf("%s\n%d\n%s\nchain %s\n", name, s.Size, base64.StdEncoding.EncodeToString(root), s.Chain)
}

// checkpoint is the file <home>/checkpoints/latest: a seal, what is needed to go
// on from it, and how the blocks of the log lay on the disk. It is a signed note
// of one line.
type checkpoint struct {
	seal
	Time time.Time `json:"time"`
	Edge []string  `json:"edge"`
	// Blocks are those of the embedded store, up to the last sealed commit; the last
	// one may grow.
	Blocks []blockMark `json:"blocks,omitempty"`
	// Closed says that the store was closed behind the last sealed commit: nobody
	// may have written to it since.
	Closed bool `json:"closed,omitempty"`
}

// blockMark is what a block was.
type blockMark struct {
	Index  int    `json:"index"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// sealKey signs and checks for a home.
type sealKey struct {
	home     string // its id in the log
	signer   note.Signer
	verifier note.Verifier
}

func (k sealKey) name() string {
	return fmt.Sprintf("%s+%08x", k.verifier.Name(), k.verifier.KeyHash())
}

// homeID is what a home is called in the log.
func homeID(secret []byte) string {
	sum := sha256.Sum256(secret)
	return "h-" + hex.EncodeToString(sum[:8])
}

// HomeID is the id of the home in the log.
func (b *Bus) HomeID() (string, error) {
	key, err := b.HomeKey("home")
	return homeID(key), err
}

// sealKey makes the key of checkpoints, or reads it.
func (b *Bus) sealKey() (k sealKey, err error) {
	if k.home, err = b.HomeID(); err != nil {
		return k, err
	}
	b.keyMu.Lock()
	defer b.keyMu.Unlock()
	text, err := b.keys.secret("checkpoint", func() ([]byte, error) {
		secret, public, err := note.GenerateKey(rand.Reader, "gatebus/"+k.home)
		return []byte(secret + "\n" + public + "\n"), err
	})
	if err == nil && k.parse(text) != nil {
		err = damagedKey("checkpoint")
	}
	if err != nil {
		return k, asFault("read key", fault.HomeNotWritable, redact.Static("the key of checkpoints cannot be read"), err)
	}
	return k, nil
}

func (k *sealKey) parse(text []byte) (err error) {
	secret, public, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if k.signer, err = note.NewSigner(secret); err == nil {
		k.verifier, err = note.NewVerifier(public)
	}
	return err
}

// sign completes a seal.
func (k sealKey) sign(s *seal) error {
	data, err := note.Sign(&note.Note{Text: s.text(k.verifier.Name())}, k.signer)
	if err != nil {
		return err
	}
	n, err := note.Open(data, note.VerifierList(k.verifier))
	if err != nil {
		return err
	}
	s.Key, s.Signature = k.name(), n.Sigs[0].Base64
	return nil
}

// signed reports whether the key signed the seal.
func (k sealKey) signed(s seal) bool {
	if s.Key != k.name() {
		return false
	}
	text := s.text(k.verifier.Name())
	_, err := note.Open([]byte(text+"\n— "+k.verifier.Name()+" "+s.Signature+"\n"), note.VerifierList(k.verifier))
	return err == nil
}

func checkpointsDir(home string) string { return filepath.Join(home, "checkpoints") }

// checkpointsDir is where those of this bus are; the log of an external one is
// another than that of the home.
func (b *Bus) checkpointsDir() string {
	dir := checkpointsDir(b.opts.Home)
	if b.opts.External != nil {
		dir = filepath.Join(dir, "external")
	}
	return dir
}

// readCheckpoint reads the newest checkpoint of a directory; nil when there is none.
// One that the home did not sign is damage.
func (k sealKey) readCheckpoint(dir string) (*checkpoint, error) {
	const op = "read checkpoint"
	data, err := os.ReadFile(filepath.Join(dir, "latest"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(op, fault.HomeNotWritable, redact.Static("the checkpoint cannot be read"), err)
	}
	c := new(checkpoint)
	n, err := note.Open(data, note.VerifierList(k.verifier))
	if err == nil {
		err = json.Unmarshal([]byte(n.Text), c)
	}
	if err == nil {
		_, err = c.fold()
	}
	if err != nil {
		return nil, fault.Wrap(op, fault.AuditDamaged, redact.Static("the file checkpoints/latest is not what this home signed"), err)
	}
	return c, nil
}

// fold is where to go on from a checkpoint.
func (c *checkpoint) fold() (f fold, err error) {
	f.size = c.Size
	if f.chain, err = parseHash(c.Chain); err != nil {
		return f, err
	}
	for _, text := range c.Edge {
		h, err := parseHash(text)
		if err != nil {
			return f, err
		}
		f.edge = append(f.edge, h)
	}
	if root := f.root(); hex.EncodeToString(root[:]) != c.Root {
		return f, errors.New("the edge has another root")
	}
	return f, nil
}

func parseHash(text string) (h tlog.Hash, err error) {
	b, err := hex.DecodeString(text)
	if err == nil && len(b) != len(h) {
		err = errors.New("no hash: " + text)
	}
	copy(h[:], b)
	return h, err
}

// writeCheckpoint replaces the newest checkpoint.
func (k sealKey) writeCheckpoint(dir string, c *checkpoint) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	data, err := note.Sign(&note.Note{Text: string(text) + "\n"}, k.signer)
	if err != nil {
		return err
	}
	return disk.Replace(filepath.Join(dir, "latest"), data)
}

// sealer follows the log and signs what it was. It reads back what is stored,
// from the blocks of an embedded store and by a consumer otherwise; nobody who
// appends waits for it.
type sealer struct {
	bus       *Bus
	key       sealKey
	runtimes  *Table[runtime.State, runtime.Command]
	workspace string
	runtime   string

	mu     sync.Mutex
	fold   fold
	leaf   leafer
	blocks []blockMark
	open   hash.Hash // of the last block, as far as it is sealed
}

// Seal makes this process sign checkpoints of the log, every thousand commits or
// ten seconds after something new, and at Close: into <home>/checkpoints and, as
// an event of the runtime, into the log. Of several processes of a home the
// oldest signs. Call it once, after Load and the boot of the runtime.
func (b *Bus) Seal(runtimes *Table[runtime.State, runtime.Command], process string) error {
	const op = "seal"
	key, err := b.sealKey()
	if err != nil {
		return err
	}
	s := &sealer{bus: b, key: key, runtimes: runtimes, workspace: b.opts.Workspace, runtime: process}
	if err := os.MkdirAll(b.checkpointsDir(), 0o700); err != nil {
		return fault.Wrap(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	c, err := key.readCheckpoint(b.checkpointsDir())
	if err != nil {
		return err
	}
	if signed := runtimes.Get(s.workspace, key.home).Checkpoint; c == nil && signed > 0 {
		return fault.New(op, fault.AuditDamaged, redact.Static("the log says that it was signed, and the checkpoints of the home are gone"))
	}
	if c != nil {
		if err := s.resume(c); err != nil {
			return asFault(op, fault.AuditDamaged, redact.Static("the log is not what was signed"), err)
		}
	}
	if err := b.enter(op); err != nil {
		return err
	}
	b.mu.Lock()
	b.sealer = s
	b.mu.Unlock()
	from := s.fold.size
	go func() {
		defer b.work.Done()
		s.run(b.ctx, from)
	}()
	return nil
}

// resume goes on from a checkpoint.
func (s *sealer) resume(c *checkpoint) (err error) {
	if s.fold, err = c.fold(); err != nil {
		return err
	}
	s.blocks = c.Blocks
	if len(s.blocks) == 0 {
		return nil
	}
	last := s.blocks[len(s.blocks)-1]
	s.open = sha256.New()
	f, err := os.Open(filepath.Join(s.bus.msgsDir(), blockName(last.Index)))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(s.open, f, last.Size); err != nil {
		return err
	}
	if got := hex.EncodeToString(s.open.Sum(nil)); got != last.SHA256 {
		return fmt.Errorf("%s has digest %s", blockName(last.Index), got)
	}
	return nil
}

// run seals when it is time; after is what was sealed before.
func (s *sealer) run(ctx context.Context, after uint64) {
	b := s.bus
	fresh := 0 // commits since the last seal that are worth one
	var first, last time.Time
	timer := time.NewTimer(sealEvery)
	defer timer.Stop()
	buf := make([]*events.Commit, 0, 256)
	// It wakes for the first commit, which starts the time, and when there are enough.
	var coming atomic.Int64
	fo := b.feed.join(after, func(*events.Commit) bool {
		n := coming.Add(1)
		return n == 1 || n == sealAfter
	})
	defer b.feed.leave(fo)
	for {
		coming.Store(int64(fresh)) // what comes from here on is woken for
		batch, head, err := b.feed.take(fo, after, buf[:0])
		if err != nil {
			return // the log is damaged, and whoever noticed has said so
		}
		if head > after { // too much to look at
			fresh += int(head - after)
			after = head
		}
		for _, c := range batch {
			if !onlySealed(c) {
				fresh++
			}
			after = c.Seq
		}
		now := time.Now()
		if fresh == 0 {
			first = time.Time{}
		} else if first.IsZero() {
			first = now
		}
		due := first.Add(sealEvery)
		if fresh >= sealAfter {
			due = last.Add(sealPause)
		}
		if fresh > 0 && !now.Before(due) {
			switch err := s.seal(ctx); {
			case err == nil:
				fresh = 0
			case ctx.Err() != nil:
				return
			case b.Damage() != nil:
				return
			default:
				b.log.Error("the log could not be sealed", "error", err.Error())
			}
			first, last = now, time.Now()
			continue
		}
		if len(batch) > 0 || head > 0 {
			continue
		}
		var alarm <-chan time.Time
		if fresh > 0 {
			timer.Reset(due.Sub(now))
			alarm = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-fo.wake:
		case <-alarm:
		}
	}
}

// onlySealed reports whether a commit tells of a checkpoint and of nothing else:
// no reason for another one, whosever it is.
func onlySealed(c *events.Commit) bool {
	for _, e := range c.Events {
		if _, ok := e.(events.CheckpointSigned); !ok {
			return false
		}
	}
	return true
}

// mine reports whether this process is the one of the home that signs.
func (s *sealer) mine() bool {
	live := s.runtimes.Get(s.workspace, s.key.home).Live
	own, ok := live[s.runtime]
	for _, other := range live {
		if other.Epoch < own.Epoch && !s.bus.embedded() {
			return false
		}
	}
	return ok
}

// seal signs the log as it is and says so in the log.
func (s *sealer) seal(ctx context.Context) error {
	if !s.mine() {
		return nil
	}
	c, err := s.write(ctx, false)
	if err != nil || c == nil {
		return err
	}
	if s.bus.Known() > c.Size+window/2 {
		return nil // the next one tells soon enough
	}
	_, err = s.runtimes.Dispatch(ctx, s.workspace, s.key.home, Meta{Correlation: s.runtime, Actor: "runtime", Principal: "runtime"},
		runtime.Sign{Checkpoint: events.CheckpointSigned{
			Size: uint32(c.Size), Root: c.Root, Chain: c.Chain, Key: c.Key, Signature: c.Signature,
		}})
	return err
}

// finish seals everything when nobody appends any more: behind it the store is
// closed.
func (s *sealer) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.bus.timeout)
	defer cancel()
	if s.bus.Damage() != nil || !s.bus.embedded() && !s.mine() {
		return nil
	}
	_, err := s.write(ctx, s.bus.embedded())
	return err
}

// write makes the checkpoint of the log as it is now; nil when there is nothing
// new.
func (s *sealer) write(ctx context.Context, closed bool) (*checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.bus.checkpointsDir()
	if !s.bus.embedded() { // another process of the home may have signed more
		if c, err := s.key.readCheckpoint(dir); err != nil {
			return nil, err
		} else if c != nil && c.Size > s.fold.size {
			if err := s.resume(c); err != nil {
				return nil, err
			}
		}
	}
	head, err := s.bus.stored(ctx)
	if err != nil {
		return nil, err
	}
	if head < s.fold.size {
		return nil, s.bus.turnReadOnly(damaged(head+1, fmt.Errorf("%d commits were signed", s.fold.size)))
	}
	if head == s.fold.size && !closed {
		return nil, nil
	}
	news := head > s.fold.size
	if err := s.advance(ctx, head); err != nil {
		if fault.Is(err, fault.AuditDamaged) {
			return nil, s.bus.turnReadOnly(err)
		}
		return nil, err
	}
	root := s.fold.root()
	c := &checkpoint{
		seal: seal{Size: s.fold.size, Root: hex.EncodeToString(root[:]), Chain: hex.EncodeToString(s.fold.chain[:])},
		Time: time.Now().UTC(), Blocks: s.blocks, Closed: closed,
	}
	for _, h := range s.fold.edge {
		c.Edge = append(c.Edge, hex.EncodeToString(h[:]))
	}
	if err := s.key.sign(&c.seal); err != nil {
		return nil, err
	}
	if news {
		if err := remember(dir, c); err != nil {
			return nil, err
		}
	}
	if err := s.key.writeCheckpoint(dir, c); err != nil || !s.bus.embedded() {
		return c, err
	}
	return c, s.bus.noteBegun(c.seal)
}

// remember adds a line to the history of checkpoints: what a witness elsewhere
// can take a copy of.
func remember(dir string, c *checkpoint) error {
	line, err := json.Marshal(struct {
		seal
		Time time.Time `json:"time"`
	}{c.seal, c.Time})
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "history")
	if info, err := os.Stat(path); err == nil && info.Size() > maxHistory {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// advance takes the commits up to head.
func (s *sealer) advance(ctx context.Context, head uint64) error {
	if !s.bus.embedded() {
		var failed error
		s.bus.readRecords(ctx, s.fold.size, head, func(r message, err error) bool {
			if failed = err; err == nil {
				s.fold.add(s.leaf.leaf(r))
			}
			return err == nil
		})
		return failed
	}
	for s.fold.size < head {
		if err := s.readBlock(head); err != nil {
			return err
		}
	}
	return nil
}

// readBlock takes what the last block has more, up to head, and goes on to the
// next one at its end. What is signed is synced before: a machine that loses
// power must not look like one that lost the end of its log to somebody.
func (s *sealer) readBlock(head uint64) error {
	if len(s.blocks) == 0 {
		s.blocks, s.open = []blockMark{{Index: 1, First: s.fold.size + 1}}, sha256.New()
	}
	m := &s.blocks[len(s.blocks)-1]
	missing := func(err error) error { return damaged(s.fold.size+1, fmt.Errorf("block %d: %w", m.Index, err)) }
	f, err := os.Open(filepath.Join(s.bus.msgsDir(), blockName(m.Index)))
	if errors.Is(err, fs.ErrNotExist) {
		return missing(err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < m.Size {
		return missing(fmt.Errorf("%d bytes, had %d", info.Size(), m.Size))
	}
	buf := make([]byte, info.Size()-m.Size)
	if _, err := f.ReadAt(buf, m.Size); err != nil {
		return err
	}
	var wrong error
	end, err := newScanner(m.Index).scan(buf, func(r message, _ int) bool {
		if r.seq != s.fold.size+1 {
			wrong = fmt.Errorf("%d follows %d", r.seq, s.fold.size)
			return false
		}
		s.fold.add(s.leaf.leaf(r))
		return s.fold.size < head
	})
	if err = errors.Join(err, wrong); err != nil {
		return missing(err)
	}
	s.open.Write(buf[:end])
	m.Size, m.Last, m.SHA256 = m.Size+int64(end), s.fold.size, hex.EncodeToString(s.open.Sum(nil))
	if err := syncRead(f); err != nil {
		return err
	}
	if s.fold.size < head {
		s.blocks = append(s.blocks, blockMark{Index: m.Index + 1, First: s.fold.size + 1})
		s.open = sha256.New()
		return disk.SyncDir(s.bus.msgsDir())
	}
	return nil
}
