package bus

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// keyring makes and keeps the keys of a home, one file each, 0600.
type keyring struct{ dir string }

// pair is the key pair of the name, made at the first use.
func (k keyring) pair(name string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	seed, err := k.secret(name+".nk", func() ([]byte, error) {
		kp, err := nkeys.CreatePair(prefix)
		if err != nil {
			return nil, err
		}
		return kp.Seed()
	})
	if err != nil {
		return nil, err
	}
	if is, _, err := nkeys.DecodeSeed(seed); err != nil || is != prefix {
		return nil, damagedKey(name + ".nk")
	}
	return nkeys.FromSeed(seed)
}

// damagedKey says which file of the keys is not what was written.
func damagedKey(name string) error {
	return fault.New("read keys", fault.HomeNotWritable, redact.Name("the file keys/"+name+" is damaged"))
}

// secret is the content of a key file; made, synced and renamed into place when
// it is not there. Losing it can lose what it opens: the store of the log is
// named after the runtime's account.
func (k keyring) secret(name string, make func() ([]byte, error)) ([]byte, error) {
	path := filepath.Join(k.dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		made, e := make()
		if e == nil {
			e = disk.Create(path, made)
		}
		if !errors.Is(e, fs.ErrExist) {
			return made, e
		}
		info, err = os.Stat(path) // another process of the home was faster
	}
	if err != nil {
		return nil, err
	}
	if !ownerOnly(info) {
		return nil, fault.New("read key", fault.PermissionTooOpen, redact.Name("others may read the key file "+name))
	}
	return os.ReadFile(path)
}

// HomeKey is 32 random bytes that the processes of this home share under the
// name, made once (decision 6): argument digest, preview hash.
func (b *Bus) HomeKey(name string) ([]byte, error) {
	const op = "home key"
	if !ValidName(name) {
		return nil, fault.New(op, fault.Internal, redact.Name("no name of a key: "+name))
	}
	b.keyMu.Lock()
	defer b.keyMu.Unlock()
	key, err := b.keys.secret(name, func() ([]byte, error) {
		k := make([]byte, 32)
		_, err := rand.Read(k)
		return k, err
	})
	if err == nil && len(key) != 32 {
		err = damagedKey(name)
	}
	if err != nil {
		return nil, asFault(op, fault.HomeNotWritable, redact.Static("a key of the home cannot be read"), err)
	}
	return key, nil
}

// public is the public half; a pair that has one cannot fail to say it.
func public(kp nkeys.KeyPair) string {
	pub, _ := kp.PublicKey()
	return pub
}
