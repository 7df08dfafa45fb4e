// Package secrets keeps the secrets of installed servers (R81, R90) in one file
// of the home, secrets/keystore.age, encrypted with age to one X25519 key. The
// file is 0600 in a directory that is 0700; `age -d -i KEY` reads it.
//
// The key is in one of four places, its providers: a file or a systemd credential
// that the operator names, else the keyring of the system when that passes a
// probe, else a file of the home, which is the weaker choice and is said to be.
// What a person has named goes before what the system happens to have. The file
// secrets/keystore.json beside the store says which provider has the key, from
// the first secret on. It is never changed: when that provider is away, secrets
// are unavailable and nothing is overwritten.
//
// Nothing is made before there is a secret to keep. Several processes of a home
// use one file: who changes it holds a lock on secrets/keystore.lock, writes
// another file, syncs it and renames it into place, so that a reader, and whoever
// comes after a crash, sees the old or the new.
package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"filippo.io/age"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// The files below the directory of the home.
const (
	dirName    = "secrets"
	storeName  = "keystore.age"
	headerName = "keystore.json"
	lockName   = "keystore.lock"
)

// version is that of the header and of what is in the store.
const version = 1

// MaxValue and maxItem bound a secret and its name, in bytes. No environment
// variable of Linux can be longer than the first.
const (
	MaxValue = 128 << 10
	maxItem  = 1 << 10
)

// maxFile bounds what is read of a file.
const maxFile = 64 << 20

// Options are where a keystore is and where its key may be.
type Options struct {
	Home string
	// KeyFile is an age identity file that the operator names. It is made when it
	// is not there and there is no secret yet.
	KeyFile string
	// Credentials is the directory of systemd's credentials; the one that is
	// called CredentialName is the key.
	Credentials string
	// Keyring is that of the system; nil where there is none.
	Keyring Keyring
	// Patience bounds what is done with the keyring, and the wait for another
	// process; 2 s by default.
	Patience time.Duration
}

// Store is the keystore of a home. Its methods may be called by several at once,
// and from several processes. It prints as a placeholder.
type Store struct {
	options Options
	home    string // without links
	ring    *ring  // nil without a keyring
	turn    chan struct{}
	once    sync.Once
	made    chan struct{} // closed once

	mu       sync.Mutex
	key      *key    // that of the header that was read last
	chosen   *choice // where the first secret puts the key
	warnings []Warning
}

// Open finds the keystore of a home. It asks no keyring: that is done when a
// secret is wanted, or by Selected. What is wrong with a keystore is the error
// of what is asked of it, so that servers without secrets run.
func Open(_ context.Context, o Options) (*Store, error) {
	home, err := filepath.EvalSymlinks(o.Home)
	if err == nil {
		home, err = filepath.Abs(home)
	}
	if err != nil {
		return nil, fault.Wrap("keystore", fault.HomeNotWritable, redact.Static("the home directory cannot be found"), err)
	}
	if o.Patience <= 0 {
		o.Patience = 2 * time.Second
	}
	s := &Store{options: o, home: home, turn: make(chan struct{}, 1), made: make(chan struct{})}
	if o.Keyring != nil {
		s.ring = &ring{of: o.Keyring, patience: o.Patience, busy: make(chan struct{}, 1)}
	}
	return s, nil
}

// Get is the value of an item, and whether there is one. Errors have the kinds
// keystore_unavailable, permission_too_open and private_path_unsafe.
func (s *Store) Get(ctx context.Context, item string) (redact.Raw[string], bool, error) {
	items, err := s.read(ctx)
	value, ok := items[item]
	return redact.NewRaw(string(value)), ok, err
}

// Items are the names of what is stored, sorted. Errors are as of Get.
func (s *Store) Items(ctx context.Context) ([]string, error) {
	items, err := s.read(ctx)
	return slices.Sorted(maps.Keys(items)), err
}

// Put stores a value, in place of the one of that name. When it returns nil the
// value survives a power loss. Errors have the kinds keystore_write_failed,
// permission_too_open, private_path_unsafe and invalid_input.
func (s *Store) Put(ctx context.Context, item string, value redact.Raw[string]) error {
	const op = "keystore.put"
	v := []byte(value.Reveal())
	switch {
	case item == "" || len(item) > maxItem:
		return fault.New(op, fault.InvalidInput, redact.Static("the name of a secret has 1 to 1024 bytes"))
	case len(v) > MaxValue:
		return fault.New(op, fault.InvalidInput, redact.Static("a secret has 131072 bytes at most"))
	}
	return s.change(ctx, op, true, func(items contents) bool {
		old, ok := items[item]
		items[item] = v
		return !ok || !bytes.Equal(old, v)
	})
}

// Delete removes an item; one that is not there is no error. Errors are as of
// Put.
func (s *Store) Delete(ctx context.Context, item string) error {
	return s.change(ctx, "keystore.delete", false, func(items contents) bool {
		_, ok := items[item]
		delete(items, item)
		return ok
	})
}

// Made is closed when this process has made the store, with the first secret. What
// Selected says may be another thing then.
func (s *Store) Made() <-chan struct{} { return s.made }

// contents are the secrets by their names.
type contents map[string][]byte

// sealed is what is encrypted in the store.
type sealed struct {
	Version int      `json:"version"`
	Items   contents `json:"items"`
}

// read is what is stored. It needs no lock: the store is replaced as a whole.
func (s *Store) read(ctx context.Context) (contents, error) {
	k, err := s.opened(ctx)
	if err != nil || k == nil {
		return nil, err
	}
	return s.unseal(k)
}

// change does one change of the store; edit tells whether it made one. Without
// create, there is nothing to change where there is no store.
func (s *Store) change(ctx context.Context, op string, create bool, edit func(contents) bool) error {
	return writeFault(op, s.locked(ctx, create, func() error {
		k, err := s.opened(ctx)
		if err == nil && k == nil && create {
			k, err = s.create(ctx)
		}
		if err != nil || k == nil {
			return err
		}
		items, err := s.unseal(k)
		if err != nil || !edit(items) {
			return err
		}
		return s.seal(k, items)
	}))
}

// writeFault is an error of a change: what makes a keystore unavailable to a
// reader is a secret that could not be stored to who stores one (R81).
func writeFault(op string, err error) error {
	if err == nil {
		return nil
	}
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok {
		return fault.Wrap(op, fault.KeystoreWriteFailed, redact.Static("the file of the keystore cannot be written"), err)
	}
	kind := f.Kind
	if kind == fault.KeystoreUnavailable {
		kind = fault.KeystoreWriteFailed
	}
	return fault.Wrap(op, kind, f.Text, f)
}

// locked runs a change while no other process does one. Without create it does
// nothing where there is no directory.
func (s *Store) locked(ctx context.Context, create bool, change func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*s.options.Patience)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return errBusy(ctx.Err())
	}
	if there, err := s.dir(create); err != nil || !there {
		return err
	}
	f, err := s.openPrivate(s.path(lockName), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := disk.Lock(ctx, f, disk.Alone); err != nil {
		return errBusy(err)
	}
	defer func() { _ = disk.Unlock(f) }() // it ends with the file at the latest
	return change()
}

func errBusy(err error) error {
	return fault.Wrap("keystore", fault.KeystoreUnavailable, redact.Static("another process keeps the keystore locked"), err)
}

// unseal decrypts the store; one that is not there is empty.
func (s *Store) unseal(k *key) (contents, error) {
	data, found, err := s.readPrivate(s.path(storeName))
	if err != nil || !found {
		return contents{}, err
	}
	r, err := age.Decrypt(bytes.NewReader(data), k.identity.Reveal())
	var plain []byte
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(r, maxFile))
	}
	if err != nil {
		return nil, unavailable(redact.Static("the file secrets/keystore.age is damaged, or was written with another key; it is left as it is"), err)
	}
	var c sealed
	if err := jsonv2.Unmarshal(plain, &c); err != nil || c.Version < 1 {
		// The cause would quote what is in the store.
		return nil, unavailable(redact.Static("the file secrets/keystore.age does not hold what a keystore holds; it is left as it is"), nil)
	}
	if c.Version > version {
		return nil, unavailable(redact.Static("the file secrets/keystore.age was written by a newer gatebus; it is left as it is"), nil)
	}
	if c.Items == nil {
		c.Items = contents{}
	}
	return c.Items, nil
}

// seal encrypts the store and replaces its file. The lock is held.
func (s *Store) seal(k *key, items contents) error {
	plain, err := jsonv2.Marshal(sealed{version, items}, jsonv2.Deterministic(true))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, k.identity.Reveal().Recipient())
	if err != nil {
		return err
	}
	_, err = w.Write(plain)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	if out.Len() > maxFile {
		return errors.New("the keystore would be too large")
	}
	s.removeLeft()
	return disk.Replace(s.path(storeName), out.Bytes())
}

// unavailable says why secrets can be neither read nor kept. A cause that could
// hold a secret is left out.
func unavailable(text redact.EventText, cause error) error {
	return fault.Wrap("keystore", fault.KeystoreUnavailable, text, cause)
}

// Warning is something about a keystore that does not stop it.
type Warning struct {
	Kind fault.Kind // permission_too_open; empty where no kind fits
	Text redact.EventText
}

// warn keeps a warning for Selected, once.
func (s *Store) warn(w Warning) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.warnings, w) {
		s.warnings = append(s.warnings, w)
	}
}

func (s *Store) path(name string) string { return filepath.Join(s.home, dirName, name) }

// placeholder is all that a store ever prints (R89).
const placeholder = "<keystore>"

// Format writes the placeholder whatever the verb.
func (*Store) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, placeholder) }

// LogValue returns the placeholder.
func (*Store) LogValue() slog.Value { return slog.StringValue(placeholder) }

// MarshalText returns the placeholder.
func (*Store) MarshalText() ([]byte, error) { return []byte(placeholder), nil }

// Format writes the placeholder whatever the verb.
func (contents) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, placeholder) }

// LogValue returns the placeholder.
func (contents) LogValue() slog.Value { return slog.StringValue(placeholder) }

// Format writes the placeholder whatever the verb.
func (sealed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, placeholder) }

// LogValue returns the placeholder.
func (sealed) LogValue() slog.Value { return slog.StringValue(placeholder) }
