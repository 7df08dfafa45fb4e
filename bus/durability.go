package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Durability is what acknowledged commits survive.
type Durability string

// The kinds of durability.
const (
	// Process survives the end of the process, kill -9 too; what was acknowledged
	// in the last minutes can be lost when the power goes.
	Process Durability = "process"
	// Power survives the loss of power as well, if the disk does what it says: a
	// commit is on the disk before it is folded, followed or acknowledged, a blob
	// before a commit can name it, a job before its publisher goes on.
	Power Durability = "power"
)

// barrier makes durable what was written before. All who wait while a sync runs
// share the next one: the server syncs each message for itself, or none.
type barrier struct {
	sync func() error

	mu      sync.Mutex
	next    *flush // of those who came after the running one began; nil when nobody did
	running bool
}

// flush is one sync and those who wait for it.
type flush struct {
	done chan struct{}
	err  error
}

// wait returns once a sync that began after the call has ended.
func (b *barrier) wait(ctx context.Context) error {
	b.mu.Lock()
	f := b.next
	if f == nil {
		f = &flush{done: make(chan struct{})}
		b.next = f
	}
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run syncs until nobody waits.
func (b *barrier) run() {
	for {
		b.mu.Lock()
		f := b.next
		b.next = nil
		if f == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		f.err = b.sync()
		close(f.done)
	}
}

// durable returns once everything that the stream had stored when it was called
// is on the disk; at once where that was not asked for. After a sync that failed
// nobody knows what is on the disk, not even by a second one, so nothing is
// decided before the store is opened again.
func (b *Bus) durable(stream string) error {
	if b.opts.External != nil && !b.elsewhere() {
		return nil
	}
	barrier := b.barriers[stream]
	if barrier == nil {
		return nil
	}
	// Not the context of the bus: what is in the log when that ends is waited for.
	ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
	defer cancel()
	err := barrier.wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("the disk does not answer")
		b.silent(subjectOf(b.opts.Workspace, events.AggregateID{Kind: events.KindRuntime, Key: "disk"}), err)
	}
	return err
}

// The address of the process that has the store, and its verbs: what others of
// the home appended is made durable there.
const (
	storeAddress   = "store"
	verbDurability = "durability"
	verbBarrier    = "barrier"
)

// embeddedName is the name of the server of an embedded bus.
const embeddedName = "gatebus"

// durableStreams are those that a barrier can be for.
var durableStreams = []string{eventStream, jobStream, blobStream}

// store is what is known of the store of an embedded bus in another process.
type store struct {
	mu         sync.Mutex
	asked      bool
	reconnects uint64 // when it was asked: another process may have the store since
	durability Durability
}

// Durability is what acknowledged commits survive on this bus; empty where that
// is for the servers of an external one to say.
func (b *Bus) Durability() Durability {
	if b.opts.External == nil {
		return cmp.Or(b.opts.Durability, Process)
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.store.durability
}

// elsewhere reports whether the store is in another process of the home that
// makes everything durable.
func (b *Bus) elsewhere() bool {
	s := &b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	n := b.nc.Stats().Reconnects
	if s.asked && s.reconnects == n {
		return s.durability == Power
	}
	switch b.nc.ConnectedServerName() {
	case "": // on its way; as before, and who knows of none yet is careful
		return !s.asked || s.durability == Power
	case embeddedName:
		s.durability = b.askStore()
	default:
		s.durability = ""
	}
	s.reconnects, s.asked = n, true
	return s.durability == Power
}

// askStore asks the process with the store for its durability. One that has only
// just begun is asked again; who gives no answer is taken for careful.
func (b *Bus) askStore() (d Durability) {
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	for {
		err := b.AskAddress(ctx, b.opts.Workspace, storeAddress, verbDurability, nil, func(data []byte) error {
			d = Durability(data)
			return nil
		})
		if err == nil {
			return d
		}
		if !b.pause(ctx, lastPause) {
			b.log.Warn("the process with the store does not say what is durable there", "error", err.Error())
			return Power
		}
	}
}

// serveStore answers those who append to the store of this process.
func (b *Bus) serveStore() error {
	_, err := b.ServeAddress(b.opts.Workspace, storeAddress, func(_ context.Context, verb string, data []byte, reply func([]byte) error) error {
		switch stream := string(data); {
		case verb == verbDurability:
			return reply([]byte(b.Durability()))
		case verb == verbBarrier && slices.Contains(durableStreams, stream):
			return b.durable(stream)
		}
		return fault.New("answer", fault.UnknownMethod, redact.Name("no verb of a store: "+verb))
	})
	return err
}

// openBarriers makes durable what the store holds, with the names of its files
// and folders, and what is stored from now on.
func (b *Bus) openBarriers() error {
	if b.opts.External != nil {
		b.barriers = make(map[string]*barrier)
		for _, stream := range durableStreams {
			b.barriers[stream] = &barrier{sync: func() error {
				ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
				defer cancel()
				return b.AskAddress(ctx, b.opts.Workspace, storeAddress, verbBarrier, []byte(stream), nil)
			}}
		}
		return nil
	}
	store := filepath.Join(b.opts.Home, "bus")
	if b.opts.Durability != Power {
		if err := syncStreams(store, b.accounts.rt); err != nil {
			return fault.Wrap("sync store", fault.HomeNotWritable, redact.Static("the store cannot be made durable"), err)
		}
		return b.serveStore()
	}
	if err := syncTree(b.opts.Home, store); err != nil {
		return fault.Wrap("sync store", fault.HomeNotWritable, redact.Static("the store cannot be made durable"), err)
	}
	b.barriers = make(map[string]*barrier)
	for _, stream := range durableStreams {
		files := &blocks{dir: filepath.Join(streamDir(store, b.accounts.rt, stream), "msgs")}
		if _, err := files.list(); err != nil {
			return fault.Wrap("sync store", fault.HomeNotWritable, redact.Name("the files of "+stream+" cannot be listed"), err)
		}
		sync := files.sync
		if b.opts.sync != nil {
			sync = func() error { return b.opts.sync(stream, files.sync) }
		}
		b.barriers[stream] = &barrier{sync: func() error {
			err := sync()
			if err != nil {
				b.broken(fmt.Errorf("sync of %s: %w", stream, err))
			}
			return err
		}}
	}
	return b.serveStore() // who asks finds the barriers
}

// syncStreams makes durable which streams there are. The server does not, and a
// log whose description is lost with the power is lost with all that was sealed.
func syncStreams(store, account string) error {
	dir := filepath.Dir(streamDir(store, account, eventStream))
	streams, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, s := range streams {
		at := filepath.Join(dir, s.Name())
		for _, name := range []string{"meta.inf", "meta.sum"} {
			if e := syncFile(filepath.Join(at, name)); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
		err = errors.Join(err, disk.SyncDir(filepath.Join(at, "msgs")), disk.SyncDir(at))
	}
	for home := filepath.Dir(store); ; dir = filepath.Dir(dir) {
		if err = errors.Join(err, disk.SyncDir(dir)); err != nil || dir == home {
			return err
		}
	}
}

// blocks are the files of a stream. The server appends to the newest one, and has
// written a message to it before it acknowledges it.
type blocks struct {
	dir    string
	newest int
}

// sync makes durable what the files hold, and their names.
func (s *blocks) sync() error {
	files, begun, err := s.behind()
	for _, n := range files {
		// A file that is gone holds nothing that is still stored.
		if e := syncFile(s.path(n)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err == nil && begun {
		err = disk.SyncDir(s.dir)
	}
	return err
}

// behind are the files that may hold what is not durable: the newest one at the
// last time, and those that were begun since.
func (s *blocks) behind() (files []int, begun bool, err error) {
	files = []int{s.newest}
	for s.exists(s.newest + 1) {
		s.newest++
		files = append(files, s.newest)
	}
	if !s.exists(s.newest) {
		// All that the newest one held was consumed, and it is gone.
		files, err = s.list()
		return files, true, err
	}
	return files, len(files) > 1, nil
}

// list finds the files there are and which of them is the newest.
func (s *blocks) list() (files []int, err error) {
	files, err = blockFiles(s.dir)
	if n := len(files); n > 0 {
		s.newest = max(s.newest, files[n-1])
	}
	return files, err
}

func (s *blocks) path(n int) string { return filepath.Join(s.dir, blockName(n)) }

func (s *blocks) exists(n int) bool {
	_, err := os.Lstat(s.path(n))
	return err == nil
}
