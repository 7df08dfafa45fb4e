package stdio

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// lookPath finds the program of spec in the PATH that the server itself gets,
// not in ours, and never in a relative directory. The result is absolute.
func lookPath(spec Spec) (string, error) {
	if spec.Command == "" {
		return "", exec.ErrNotFound
	}
	if filepath.Base(spec.Command) != spec.Command {
		path := spec.Command
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Dir, path)
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		return exec.LookPath(path)
	}
	for _, dir := range filepath.SplitList(environ(spec.Env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		// With a directory in it, LookPath searches nothing: it checks the
		// mode, and on Windows tries the extensions.
		if path, err := exec.LookPath(filepath.Join(dir, spec.Command)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// environ returns the value of name in env. The last one counts, as for exec.
func environ(env []string, name string) string {
	value := ""
	for _, entry := range env {
		key, v, _ := strings.Cut(entry, "=")
		if key == name || runtime.GOOS == "windows" && strings.EqualFold(key, name) {
			value = v
		}
	}
	return value
}

// identify returns the file behind path and the SHA-256 of its contents.
func identify(path string) (program, digest string, err error) {
	program, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", "", err
	}
	file, err := os.Open(program)
	if err != nil {
		return "", "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", "", err
	}
	return program, hex.EncodeToString(sum.Sum(nil)), nil
}

// private makes dir with mode 0700, or narrows the one that is there. No name,
// no directory.
func private(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}
