package cores

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing/fstest"

	"github.com/gatebus/gatebus/events/declaration"
)

// live is the ref that a promoted revision is read from; HEAD stands in for it
// until there is one (decision 5).
const live = "refs/gatebus/live"

// maxTree bounds the bytes of declarations that are read from one commit.
const maxTree = 64 << 20

// read reads what a core declares, and its revision: a commit where the directory
// is in git, else Worktree.
func read(ctx context.Context, dir string) (declaration.Core, []declaration.Diagnostic, string) {
	failed := func(revision, text string) (declaration.Core, []declaration.Diagnostic, string) {
		return declaration.Core{}, []declaration.Diagnostic{{Code: declaration.CoreLoadFailed, Message: text}}, revision
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return failed(Worktree, "the core is no directory that can be read")
	}
	if inGit(dir) {
		files, revision, err := gitTree(ctx, dir)
		if err != nil {
			return failed(revision, err.Error())
		}
		core, diags := declaration.Load(files)
		return core, diags, revision
	}
	// An os.Root does not leave the directory whatever its links say.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return failed(Worktree, "the core cannot be opened")
	}
	defer root.Close()
	core, diags := declaration.Load(root.FS())
	return core, diags, Worktree
}

// inGit reports whether a directory is below a repository's work tree or is a
// bare repository.
func inGit(dir string) bool {
	if bare(dir) {
		return true
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			return true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return false
		}
		dir = parent
	}
}

func bare(dir string) bool {
	for _, name := range []string{"objects", "HEAD"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// git runs the git binary without hooks, pagers, prompts or anybody's
// configuration but the repository's.
func git(ctx context.Context, dir string, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{
		"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "-C", dir,
	}, args...)...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.DevNull, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1",
	}
	cmd.Stdin = stdin
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("the core is in git, and there is no git program on PATH")
	}
	return out, err
}

// gitTree reads the declarations of a commit into memory.
func gitTree(ctx context.Context, dir string) (fs.FS, string, error) {
	revision := ""
	for _, ref := range []string{live, "HEAD"} {
		out, err := git(ctx, dir, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
		if err == nil {
			revision = strings.TrimSpace(string(out))
			break
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return nil, Worktree, err
		}
	}
	if revision == "" {
		return nil, Worktree, errors.New("the core is in a git repository without a commit; commit its declarations")
	}
	prefix, err := git(ctx, dir, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, revision, errors.New("git cannot say where in the repository the core lies")
	}
	list, err := git(ctx, dir, nil, "ls-tree", "-r", "-z", "-l", "--full-tree", revision, "--", ":/"+strings.TrimSpace(string(prefix)))
	if err != nil {
		return nil, revision, errors.New("git cannot list the commit")
	}
	tree := fstest.MapFS{}
	var wanted []string
	var ids bytes.Buffer
	total := int64(0)
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		var mode, kind, id string
		var size int64
		meta, name, ok := strings.Cut(entry, "\t")
		if !ok {
			continue
		}
		if n, _ := fmt.Sscan(meta, &mode, &kind, &id, &size); n != 4 || kind != "blob" {
			continue // a submodule
		}
		name = strings.TrimPrefix(name, strings.TrimSpace(string(prefix)))
		file := &fstest.MapFile{Mode: 0o444}
		if mode == "120000" {
			file.Mode |= fs.ModeSymlink
		}
		tree[name] = file
		ext := strings.ToLower(path.Ext(name))
		if ext != ".yaml" && ext != ".yml" && mode != "120000" {
			continue
		}
		if total += size; total > maxTree {
			return nil, revision, errors.New("the core holds more YAML than can be read")
		}
		wanted = append(wanted, name)
		fmt.Fprintln(&ids, id)
	}
	blobs, err := git(ctx, dir, &ids, "cat-file", "--batch")
	if err != nil {
		return nil, revision, errors.New("git cannot read the commit")
	}
	r := bufio.NewReader(bytes.NewReader(blobs))
	for _, name := range wanted {
		header, err := r.ReadString('\n')
		var id, kind string
		var size int64
		if n, _ := fmt.Sscan(header, &id, &kind, &size); err != nil || n != 3 {
			return nil, revision, errors.New("git answered something unexpected")
		}
		data := make([]byte, size+1) // with the line feed that follows
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, revision, errors.New("git answered less than it said")
		}
		tree[name].Data = data[:size]
	}
	return tree, revision, nil
}

// refs are the directories in which git writes what moves a revision: its own,
// that of the repository a linked work tree belongs to, and those of the refs.
func refs(ctx context.Context, dir string) []string {
	out, err := git(ctx, dir, nil, "rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir")
	if err != nil {
		return nil
	}
	dirs := strings.Split(strings.TrimSpace(string(out)), "\n")
	common := dirs[len(dirs)-1]
	for _, name := range []string{"", "heads", "gatebus"} {
		dirs = append(dirs, filepath.Join(common, "refs", name))
	}
	return dirs
}
