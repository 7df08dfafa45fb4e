package bus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// A backup is a directory: log has the blocks of the log with their description,
// blobs a file for each blob, jobs.jsonl the jobs that are open, checkpoints and
// keys what they are in a home, and backup.json says what belongs to it. Nothing
// of it is an inner format of the server but the blocks, which are read without
// one.

const backupFormat = 1

// backupManifest is the file backup.json.
type backupManifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	Home    string    `json:"home"`
	// Account is that of the runtime, after which the store is named.
	Account string       `json:"account"`
	Commits uint64       `json:"commits"`
	Root    string       `json:"root"`
	Files   []backupFile `json:"files"`
}

type backupFile struct {
	Path   string `json:"path"` // with slashes
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Backup writes a copy of the running bus into dir, which must be empty or not
// there: its log, jobs, blobs, checkpoints and the keys of the home, without
// which nobody could read the log or trust a credential. It holds nobody up: the
// log in it is the one of a moment, the blobs are at least those that it names,
// the jobs at least those that it leaves open. The copy is verified; it appears
// whole or not at all. Errors: invalid_input, home_not_writable, audit_damaged.
func (b *Bus) Backup(ctx context.Context, dir string) (out client.Backup, err error) {
	const op = "backup"
	fail := func(err error) (client.Backup, error) {
		return client.Backup{}, asFault(op, fault.HomeNotWritable, redact.Name("the backup cannot be written to "+dir), err)
	}
	if !b.embedded() {
		return fail(fault.New(op, fault.InvalidInput, redact.Static("the log is on an external bus: back it up there")))
	}
	if !filepath.IsAbs(dir) {
		return fail(fault.New(op, fault.InvalidInput, redact.Name("dir: not absolute: "+dir)))
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fail(fault.New(op, fault.InvalidInput, redact.Name("dir: not empty: "+dir)))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if err := b.enter(op); err != nil {
		return fail(err)
	}
	defer b.work.Done()
	key, err := b.sealKey()
	if err == nil && b.sealer != nil {
		err = b.sealer.seal(ctx) // the copy is worth as much as what is signed of it
	}
	if err != nil {
		return fail(err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*") // 0700
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp)
	home := b.opts.Home
	// A blob is written before the commit that names it, and what a job is about is
	// in the log before the job is done: so jobs first, blobs last; checkpoints
	// before the log that they are of.
	for _, step := range []func() error{
		func() error { return b.backupJobs(ctx, filepath.Join(tmp, "jobs.jsonl")) },
		func() error { return copyTree(ctx, checkpointsDir(home), checkpointsDir(tmp), "external", "open.blk") },
		func() error { return b.backupLog(ctx, filepath.Join(tmp, "log")) },
		func() error { return b.backupBlobs(ctx, filepath.Join(tmp, "blobs")) },
		func() error { return copyTree(ctx, filepath.Join(home, "keys"), filepath.Join(tmp, "keys")) },
	} {
		if err := step(); err != nil {
			return fail(err)
		}
	}
	v, err := verifyCopy(ctx, key, checkpointsDir(tmp), filepath.Join(tmp, "log"))
	if err != nil {
		return fail(err)
	}
	m := backupManifest{Format: backupFormat, Created: time.Now().UTC(), Home: key.home, Account: b.accounts.rt, Commits: v.Commits, Root: v.Root}
	if m.Files, err = listFiles(ctx, tmp); err != nil {
		return fail(err)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = disk.Replace(filepath.Join(tmp, "backup.json"), append(text, '\n'))
	}
	if err == nil {
		if err = os.Remove(dir); errors.Is(err, fs.ErrNotExist) { // an empty one makes place
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err == nil {
		err = disk.SyncDir(filepath.Dir(dir))
	}
	if err != nil {
		return fail(err)
	}
	return m.result(dir, v), nil
}

// BackupHome is Backup of a home whose bus does not run. It locks the home
// meanwhile. Errors: not_found when there is no log that was sealed.
func BackupHome(ctx context.Context, home, dir string) (out client.Backup, err error) {
	if _, _, err := readKeys(home); err != nil {
		return out, err
	}
	b, err := Open(ctx, Options{Home: home})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	return b.Backup(ctx, dir)
}

// backupLog copies the blocks of the log, up to the last commit of now: what is
// in a block does not change any more.
func (b *Bus) backupLog(ctx context.Context, to string) error {
	head, err := b.stored(ctx)
	if err != nil {
		return err
	}
	from := b.msgsDir()
	for _, name := range []string{"meta.inf", "meta.sum"} {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(from), name))
		if err == nil {
			err = copyFile(filepath.Join(to, name), bytes.NewReader(data))
		}
		if err != nil {
			return err
		}
	}
	files, err := blockFiles(from)
	if err != nil {
		return err
	}
	for _, index := range files {
		data, err := os.ReadFile(filepath.Join(from, blockName(index)))
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		end, whole := 0, false
		_, err = newScanner(index).scan(data, func(m message, at int) bool {
			end, whole = at, m.seq >= head
			return !whole
		})
		if err != nil && !whole {
			end = len(data) // verifying the copy says what is wrong with it
		}
		if err := copyFile(filepath.Join(to, blockName(index)), bytes.NewReader(data[:end])); err != nil {
			return err
		}
		if whole {
			break
		}
	}
	return nil
}

// backupJob is a line of jobs.jsonl.
type backupJob struct {
	Workspace string `json:"workspace"`
	Kind      string `json:"kind"`
	ID        string `json:"id"`
}

func (b *Bus) backupJobs(ctx context.Context, path string) error {
	s, err := b.js.Stream(ctx, jobStream)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	for seq := uint64(1); ; seq++ {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(jobSubjects))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return copyFile(path, &lines)
		}
		if err != nil {
			return err
		}
		seq = m.Sequence
		token := strings.Split(m.Subject, ".") // gatebus, workspace, job, kind
		line, err := json.Marshal(backupJob{token[1], token[3], string(m.Data)})
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
}

func (b *Bus) backupBlobs(ctx context.Context, to string) error {
	all, err := b.blobs.store.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, info := range all {
		data, err := b.Blob(ctx, info.Name)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err == nil {
			err = copyFile(filepath.Join(to, info.Name), bytes.NewReader(data))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m backupManifest) result(dir string, v client.Verification) client.Backup {
	out := client.Backup{Dir: dir, Created: m.Created, Commits: v.Commits, Events: v.Events, Root: v.Root, Files: len(m.Files)}
	for _, f := range m.Files {
		out.Bytes += f.Size
	}
	return out
}

// verifyCopy verifies a log that is not where it is used.
func verifyCopy(ctx context.Context, key sealKey, checkpoints, msgs string) (client.Verification, error) {
	v := newVerifier(key)
	last, err := v.outside(checkpoints)
	if err == nil {
		err = v.store(ctx, msgs, last, 1<<63, func() error { return nil })
	}
	if err != nil {
		return client.Verification{}, err
	}
	out := v.end(0)
	return out, damage(out.Problems...)
}

// copyFile writes a new file, 0600, and makes it durable.
func copyFile(path string, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}

// copyTree copies the files below a directory, without those folders and files
// that are named.
func copyTree(ctx context.Context, from, to string, without ...string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // nothing there, or not any more
			return nil
		}
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case slices.Contains(without, rel) || strings.HasPrefix(d.Name(), ".new-"):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return copyFile(filepath.Join(to, rel), f)
	})
}

// listFiles lists what is below a directory with its digests.
func listFiles(ctx context.Context, dir string) (files []backupFile, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err := cmp.Or(err, ctx.Err()); err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		n, err := io.Copy(sum, f)
		files = append(files, backupFile{filepath.ToSlash(rel), n, hex.EncodeToString(sum.Sum(nil))})
		return err
	})
	return files, err
}

// readBackup reads what a backup is made of and compares its files with it.
func readBackup(ctx context.Context, dir string) (m backupManifest, err error) {
	const op = "read backup"
	text, err := os.ReadFile(filepath.Join(dir, "backup.json"))
	if err != nil {
		return m, fault.Wrap(op, fault.NotFound, redact.Name("no backup is in "+dir), err)
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Format != backupFormat || !ValidName(m.Account) {
		return m, fault.Wrap(op, fault.InvalidInput, redact.Name("the file backup.json is not of this release: "+dir), err)
	}
	files, err := listFiles(ctx, dir)
	if err != nil {
		return m, fault.Wrap(op, fault.NotFound, redact.Name("the backup cannot be read: "+dir), err)
	}
	files = slices.DeleteFunc(files, func(f backupFile) bool { return f.Path == "backup.json" })
	for i, f := range m.Files {
		if i >= len(files) || files[i] != f {
			return m, fault.New(op, fault.AuditDamaged, redact.Name("the backup is damaged: its file "+f.Path+" is not what it was"))
		}
	}
	if len(files) > len(m.Files) {
		return m, fault.New(op, fault.AuditDamaged, redact.Name("the backup is damaged: it has a file more, "+files[len(m.Files)].Path))
	}
	return m, nil
}

// restored are the parts of a home that a backup brings back. The keys come last,
// and are moved aside first: while a home is neither the old nor the new one, it
// has none (unfinishedRestore).
var restored = []string{"bus", "checkpoints", "keys"}

// restoring is the pattern of the directory in a home in which a restore works.
const restoring = ".restore-*"

// unfinishedRestore reports whether a restore of the home died while it changed
// places. Whoever opened it then would begin a log with keys of its own, and
// nothing would say that the old one is gone. Call it with the lock of the home.
func unfinishedRestore(home string) (bool, error) {
	if _, err := os.Lstat(filepath.Join(home, "keys", "runtime.account")); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	left, err := filepath.Glob(filepath.Join(home, restoring))
	return len(left) > 0, err
}

// Restore puts a backup into a home whose bus does not run. The backup is
// compared with its digests and the log verified before anything changes. What
// the home had is moved aside, to where the result says, and only with force when
// it had a log. Errors: not_found, conflict (a log is there), home_locked,
// audit_damaged (the backup is not what it was). A restore that died is done by
// another one; until then a home that it left without keys does not open.
func Restore(ctx context.Context, home, dir string, force bool) (out client.Restored, err error) {
	const op = "restore"
	fail := func(err error) (client.Restored, error) {
		return client.Restored{}, asFault(op, fault.HomeNotWritable, redact.Static("the home cannot be written"), err)
	}
	m, err := readBackup(ctx, dir)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(filepath.Join(home, "run"), 0o700); err != nil {
		return fail(err)
	}
	release, err := lockHome(home)
	if err != nil {
		return fail(err)
	}
	defer release()
	var there []string
	for _, name := range []string{"keys", "bus", "checkpoints", "audit.db", "audit.db-wal", "audit.db-shm", "snapshots"} {
		if _, err := os.Lstat(filepath.Join(home, name)); err == nil {
			there = append(there, name)
		}
	}
	logs, err := filepath.Glob(filepath.Join(home, "bus", "jetstream", "*", "streams", eventStream))
	if err != nil {
		return fail(err)
	}
	if _, err := os.Stat(filepath.Join(checkpointsDir(home), "latest")); (len(logs) > 0 || err == nil) && !force {
		return fail(fault.New(op, fault.Conflict, redact.Static("the home has a log: --force moves it aside")))
	}
	left, err := filepath.Glob(filepath.Join(home, restoring)) // of one that died
	if err != nil {
		return fail(err)
	}
	tmp, err := os.MkdirTemp(home, restoring)
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp)
	log := streamDir(filepath.Join(tmp, "bus"), m.Account, eventStream)
	for from, to := range map[string]string{"log": filepath.Join(log, "msgs"), "keys": filepath.Join(tmp, "keys"), "checkpoints": checkpointsDir(tmp)} {
		if err := copyTree(ctx, filepath.Join(dir, from), to); err != nil {
			return fail(err)
		}
	}
	for _, name := range []string{"meta.inf", "meta.sum"} {
		if err := os.Rename(filepath.Join(log, "msgs", name), filepath.Join(log, name)); err != nil {
			return fail(err)
		}
	}
	v, err := VerifyHome(ctx, tmp)
	if err == nil {
		err = damage(v.Problems...)
	}
	if err != nil {
		return fail(err)
	}
	if err := refill(ctx, tmp, dir); err != nil {
		return fail(err)
	}
	out.Backup = m.result(dir, v)
	if len(there) > 0 {
		out.Aside = filepath.Join(home, "replaced-"+time.Now().UTC().Format("20060102T150405.000"))
		if err := os.Mkdir(out.Aside, 0o700); err != nil {
			return fail(err)
		}
	}
	for _, name := range there {
		if err := os.Rename(filepath.Join(home, name), filepath.Join(out.Aside, name)); err != nil {
			return fail(err)
		}
	}
	for _, name := range restored {
		if err := os.MkdirAll(filepath.Join(tmp, name), 0o700); err != nil { // of a log that was not sealed yet
			return fail(err)
		}
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(home, name)); err != nil {
			return fail(err)
		}
	}
	for _, dir := range left { // they hold keys too
		if err := os.RemoveAll(dir); err != nil {
			return fail(err)
		}
	}
	return out, disk.SyncDir(home)
}

// refill opens the bus of a restored home for a moment and gives it the blobs and
// jobs of the backup.
func refill(ctx context.Context, home, dir string) (err error) {
	b, err := Open(ctx, Options{Home: home})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	blobs, err := os.ReadDir(filepath.Join(dir, "blobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range blobs {
		data, err := os.ReadFile(filepath.Join(dir, "blobs", e.Name()))
		if err == nil {
			_, err = b.PutBlob(ctx, data)
		}
		if err != nil {
			return err
		}
	}
	jobs, err := os.ReadFile(filepath.Join(dir, "jobs.jsonl"))
	if err != nil {
		return err
	}
	for line := range bytes.Lines(jobs) {
		var j backupJob
		if err := json.Unmarshal(line, &j); err != nil {
			return err
		}
		if err := b.PublishJob(ctx, j.Workspace, j.Kind, j.ID); err != nil {
			return err
		}
	}
	return nil
}
