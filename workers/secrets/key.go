package secrets

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Providers are the places where the key may be.
const (
	ProviderKeyFile    = "key_file"           // Options.KeyFile
	ProviderCredential = "systemd_credential" // below Options.Credentials
	ProviderKeyring    = "keyring"            // Options.Keyring
	ProviderHomeKey    = "home_key"           // keys/keystore.key of the home
)

// CredentialName is what systemd's credential is called: LoadCredential= or
// LoadCredentialEncrypted= of a unit have it.
const CredentialName = "gatebus-keystore-key"

// keyLength is how long a key is as text.
const keyLength = 74

// header says whose key opens the store. It is written once.
type header struct {
	Version  int    `json:"version"`
	Provider string `json:"provider"`
	// Account is that of the keyring's item.
	Account string `json:"account,omitzero"`
	// Recipient is the public key, by which a wrong one is known.
	Recipient string `json:"recipient"`
}

// key is a header with what it names.
type key struct {
	header
	identity redact.Raw[*age.X25519Identity]
}

// choice is where the first secret puts the key, and why.
type choice struct {
	provider string
	reason   redact.EventText
	// instead says that it stands for a keyring that failed.
	instead bool
}

// Selected is what a keystore works with.
type Selected struct {
	Provider string
	Reason   redact.EventText
	Warnings []Warning
	// Made says that there is a store. Until then the provider is the one that the
	// first secret would choose.
	Made bool
	// Err says why secrets can neither be read nor kept; nil when they can.
	Err error
}

// Selected looks at the whole keystore: with a store it opens it, without one it
// probes what could keep the key. It takes as long as Options.Patience at most,
// the first time, and as long as that again while something is wrong.
func (s *Store) Selected(ctx context.Context) Selected {
	var out Selected
	h, made, err := s.header()
	switch {
	case err != nil:
		out.Err = err
	case made:
		out.Made, out.Provider, out.Reason = true, h.Provider, redact.Static("the keystore was made with it")
		_, out.Err = s.read(ctx)
	default:
		c := s.choose(ctx)
		out.Provider, out.Reason = c.provider, c.reason
	}
	if out.Provider == ProviderHomeKey {
		s.warn(Warning{Text: redact.Static("the key is in the home, in keys/keystore.key: who can read the home, or a copy of it, can read the secrets")})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Warnings = append([]Warning{}, s.warnings...)
	return out
}

// choose is where the first secret puts the key.
func (s *Store) choose(ctx context.Context) choice {
	s.mu.Lock()
	chosen := s.chosen
	s.mu.Unlock()
	if chosen != nil {
		return *chosen
	}
	c := s.look(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil { // else the next one asks again
		s.chosen = &c
	}
	return c
}

func (s *Store) look(ctx context.Context) choice {
	if s.options.KeyFile != "" {
		return choice{provider: ProviderKeyFile, reason: redact.Static("a key file is named")}
	}
	if s.options.Credentials != "" {
		if _, err := os.Stat(s.credential()); err == nil {
			return choice{provider: ProviderCredential, reason: redact.Static("systemd gives a key")}
		}
	}
	if s.ring == nil {
		return choice{provider: ProviderHomeKey, reason: redact.Static("the system has no keyring that could be asked")}
	}
	if err := s.ring.probe(ctx); err != nil {
		return choice{provider: ProviderHomeKey, reason: why(err), instead: true}
	}
	return choice{provider: ProviderKeyring, reason: redact.Static("the keyring of the system answers")}
}

// opened is the key of the store, nil where there is no store.
func (s *Store) opened(ctx context.Context) (*key, error) {
	h, made, err := s.header()
	if err != nil || !made {
		return nil, err
	}
	s.mu.Lock()
	k := s.key
	s.mu.Unlock()
	if k != nil && k.header == h {
		return k, nil
	}
	id, found, err := s.find(ctx, h.Provider, h.Account)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, unavailable(lost[h.Provider], nil)
	case id.Recipient().String() != h.Recipient:
		return nil, unavailable(redact.Name("the key of the provider "+h.Provider+" is not the one that the keystore was made with"), nil)
	}
	k = &key{h, redact.NewRaw(id)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = k
	return k, nil
}

// lost says where the key was that is not there any more.
var lost = map[string]redact.EventText{
	ProviderKeyFile:    redact.Static("the key of the keystore is in a key file, and the one that is named is not there"),
	ProviderCredential: redact.Static("the key of the keystore is a systemd credential, and there is none"),
	ProviderKeyring:    redact.Static("the keyring of the system does not have the key of the keystore any more"),
	ProviderHomeKey:    redact.Static("the key of the keystore, keys/keystore.key, is not there"),
}

// header is what says whose key opens the store, and whether there is a store.
func (s *Store) header() (h header, made bool, err error) {
	there, err := s.dir(false)
	if err != nil || !there {
		return h, false, asUnavailable(err)
	}
	// The header is written before the store, so it is looked for after it.
	_, err = os.Lstat(s.path(storeName))
	orphan := err == nil
	data, made, err := s.readPrivate(s.path(headerName))
	switch {
	case err != nil:
		return h, false, err
	case !made && orphan:
		return h, false, unavailable(redact.Static("the file secrets/keystore.json, which says where the key is, is not there; the store is left as it is"), nil)
	case !made:
		return h, false, nil
	}
	if err := jsonv2.Unmarshal(data, &h); err != nil || h.Version < 1 {
		return h, false, unavailable(redact.Static("the file secrets/keystore.json, which says where the key is, is damaged; it is left as it is"), err)
	}
	if _, known := lost[h.Provider]; h.Version > version || !known {
		return h, false, unavailable(redact.Static("the file secrets/keystore.json was written by a newer gatebus; it is left as it is"), nil)
	}
	return h, true, nil
}

func asUnavailable(err error) error {
	if _, ok := errors.AsType[*fault.Fault](err); ok || err == nil {
		return err
	}
	return unavailable(redact.Static("the directory secrets cannot be read"), err)
}

// find is the key that a provider has, and whether it has one.
func (s *Store) find(ctx context.Context, provider, account string) (*age.X25519Identity, bool, error) {
	switch provider {
	case ProviderKeyring:
		if s.ring == nil {
			return nil, false, unavailable(redact.Static("the key of the keystore is in the keyring of the system, and there is no keyring that could be asked"), nil)
		}
		text, found, err := s.ring.get(ctx, account)
		if err != nil {
			return nil, false, unavailable(why(err), err)
		}
		if !found {
			return nil, false, nil
		}
		return identity("in the keyring of the system", text)
	case ProviderKeyFile:
		if s.options.KeyFile == "" {
			return nil, false, nil
		}
		return s.namedKey(s.options.KeyFile)
	case ProviderCredential:
		if s.options.Credentials == "" {
			return nil, false, nil
		}
		return s.namedKey(s.credential())
	}
	data, found, err := s.readPrivate(s.homeKey())
	if err != nil || !found {
		return nil, false, err
	}
	return identity("in keys/keystore.key", string(data))
}

// namedKey is the key in a file that somebody else may have made and may own: it
// may be a link, and others may read it, but nobody else may write it.
func (s *Store) namedKey(path string) (*age.X25519Identity, bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil && (!info.Mode().IsRegular() || !trusted(info)) {
		return nil, false, unsafePath(path)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, false, unavailable(redact.Name("the key file "+shown(path)+" cannot be read"), err)
	}
	// The rights of a credential are systemd's matter, which may use access lists.
	if mode := info.Mode().Perm(); modesCount && path != s.credential() {
		if mode&0o022 != 0 {
			return nil, false, fault.New("keystore", fault.PermissionTooOpen, redact.Name("others may write the key file "+shown(path)))
		}
		if mode&0o044 != 0 {
			s.warn(Warning{fault.PermissionTooOpen, redact.Name("others may read the key file " + shown(path))})
		}
	}
	return identity("in the key file "+shown(path), string(data))
}

// identity is the key in a text: one line, besides those that begin with #, as
// age-keygen writes it. The error never quotes the text, which age's would.
func identity(where, text string) (*age.X25519Identity, bool, error) {
	ids, err := age.ParseIdentities(strings.NewReader(text))
	if err == nil && len(ids) == 1 {
		if id, ok := ids[0].(*age.X25519Identity); ok {
			return id, true, nil
		}
	}
	return nil, false, unavailable(redact.Name("what is "+where+" is not one key of age (X25519)"), nil)
}

func (s *Store) credential() string { return filepath.Join(s.options.Credentials, CredentialName) }
func (s *Store) homeKey() string    { return filepath.Join(s.home, "keys", "keystore.key") }

// create chooses a provider, has a key kept by it, and says so in the header. A
// keyring that failed before is asked once more: what is chosen now is for good.
// The lock is held.
func (s *Store) create(ctx context.Context) (*key, error) {
	c := s.choose(ctx)
	if c.instead {
		s.forget()
		c = s.choose(ctx)
	}
	h := header{Version: version, Provider: c.provider}
	if c.provider == ProviderKeyring {
		h.Account = "keystore " + ulid.Make().String()
	}
	id, err := s.provide(ctx, h)
	if err != nil {
		s.forget() // the next secret looks again
		return nil, err
	}
	h.Recipient = id.Recipient().String()
	data, err := jsonv2.Marshal(h)
	if err != nil {
		return nil, err
	}
	if err := disk.Replace(s.path(headerName), append(data, '\n')); err != nil {
		return nil, err
	}
	k, err := s.opened(ctx)
	if err == nil {
		s.once.Do(func() { close(s.made) })
	}
	return k, err
}

// forget has the next one who chooses look again.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chosen = nil
}

// provide is the key that a provider has, or a new one that it keeps from now on.
func (s *Store) provide(ctx context.Context, h header) (*age.X25519Identity, error) {
	if h.Provider != ProviderKeyring { // which has nothing under a new account
		id, found, err := s.find(ctx, h.Provider, "")
		if err != nil || found {
			return id, err
		}
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	text := id.String()
	path := s.homeKey()
	switch h.Provider {
	case ProviderKeyring:
		if err := s.ring.set(ctx, h.Account, text); err != nil {
			return nil, unavailable(why(err), err)
		}
		return id, nil
	case ProviderCredential:
		return nil, unavailable(lost[h.Provider], nil)
	case ProviderKeyFile:
		path = s.options.KeyFile
	default:
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
	}
	if err := disk.Create(path, []byte(text+"\n")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, unavailable(redact.Name("the key file "+shown(path)+" cannot be written"), err)
	}
	id, _, err = s.find(ctx, h.Provider, "") // another home may use the same file
	return id, err
}
