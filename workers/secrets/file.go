package secrets

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// dir checks the directory of the keystore (R126): it is ours, no link, and
// closed to others. With create it is made where it is not there.
func (s *Store) dir(create bool) (there bool, err error) {
	path := filepath.Join(s.home, dirName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if !create {
			return false, nil
		}
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		if err := disk.SyncDir(s.home); err != nil {
			return false, err
		}
		info, err = os.Lstat(path)
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() || !owned(info) {
		return false, unsafePath(path)
	}
	return true, s.tighten(path, info, 0o700, os.Chmod)
}

// openPrivate opens a file that only we may read, and closes it to others where
// it was open to them (R90).
func (s *Store) openPrivate(path string, flag int) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, unsafePath(path)
	}
	f, err := os.OpenFile(path, flag|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || !owned(info)) {
		err = unsafePath(path)
	}
	if err == nil {
		err = s.tighten(path, info, 0o600, func(_ string, mode fs.FileMode) error { return f.Chmod(mode) })
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readPrivate is the content of a file that only we may read, and whether there
// is one.
func (s *Store) readPrivate(path string) (data []byte, found bool, err error) {
	f, err := s.openPrivate(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil {
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	}
	if err == nil && len(data) > maxFile {
		err = errors.New("the file is too large")
	}
	if _, ok := errors.AsType[*fault.Fault](err); err != nil && !ok {
		err = unavailable(redact.Name("the file "+shown(path)+" cannot be read"), err)
	}
	return data, err == nil, err
}

// tighten closes to others what they could read or use, and says that they could.
func (s *Store) tighten(path string, info fs.FileInfo, mode fs.FileMode, chmod func(string, fs.FileMode) error) error {
	if info.Mode().Perm() == mode || !modesCount {
		return nil
	}
	if err := chmod(path, mode); err != nil {
		return fault.Wrap("keystore", fault.PermissionTooOpen, redact.Name("others may read "+shown(path)+", and that cannot be changed"), err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		s.warn(Warning{fault.PermissionTooOpen, redact.Name("others could read " + shown(path) + "; its mode was corrected")})
	}
	return nil
}

// unsafePath is a private path that is a link, no file or directory, or somebody
// else's.
func unsafePath(path string) error {
	return fault.New("keystore", fault.PrivatePathUnsafe, redact.Name(shown(path)+" is a link, no plain file or directory, or belongs to somebody else"))
}

// shown is a path as errors have it: with the directory that it is in.
func shown(path string) string {
	return filepath.ToSlash(filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path)))
}

// removeLeft removes what was left behind by writers that were killed. The lock
// is held, so nobody is writing.
func (s *Store) removeLeft() {
	left, _ := filepath.Glob(s.path(disk.Pattern)) // the pattern is right
	for _, path := range left {
		_ = os.Remove(path) // it holds nothing that the store does not hold encrypted
	}
}
