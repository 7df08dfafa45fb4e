package declaration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gatebus/gatebus/events/authority"
)

const (
	manifestPath = "agent/core.yaml"
	defaultRoot  = "agent/mcp"
	maxFileBytes = 1 << 20
	maxLinks     = 40
)

// Core is what one revision of an agent core declares.
type Core struct {
	// Root is the directory of the declarations, from the root of the core.
	Root string
	// Declarations are in byte order of their file names (R7).
	Declarations []Declaration
	// Overrides are what agent/core.yaml says about single tools, by server id
	// and raw tool name (R69).
	Overrides map[string]map[string]authority.Override
}

// serverID is stricter than a file system (R22): an id becomes part of
// capability names, where ':' and '*' would forge others.
var serverID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_. -]{0,63}$`)

// Load reads all declarations of a core (R7..R23). Files are regular files
// named *.yaml or *.yml in agent/mcp, or in the directory that agent/core.yaml
// names as slots.mcp (R9), of at most 1 MiB.
//
// All files are read and everything that is wrong is reported (R13). If
// anything is, the core declares nothing and the last diagnostic is
// CoreLoadFailed, with all files that have errors; warnings alone change
// nothing. A core without the directory has no servers.
//
// Symbolic links are followed inside the core, and refused with PathEscapesRoot
// where they leave it. That takes an fsys with ReadLink; of one without it,
// declarations that are links are refused. The check holds for files that do
// not change meanwhile: give an os.Root's FS for a directory that others write to.
func Load(fsys fs.FS) (Core, []Diagnostic) {
	l := loader{fsys: fsys}
	core := l.manifest()
	if fs.ValidPath(core.Root) {
		core.Declarations = l.directory(core.Root)
	}
	var refused []string
	for _, d := range l.diags {
		if !d.Warning && !slices.Contains(refused, d.Path) {
			refused = append(refused, d.Path)
		}
	}
	if refused != nil {
		core = Core{Root: core.Root}
		l.add(Diagnostic{Code: CoreLoadFailed, Message: fmt.Sprintf("refused: %q", refused)})
	}
	return core, l.diags
}

type loader struct {
	fsys  fs.FS
	diags []Diagnostic
}

func (l *loader) add(d ...Diagnostic) { l.diags = append(l.diags, d...) }

// manifest is what agent/core.yaml says. It has no other fields than these:
// a field that nobody reads would be believed by whoever wrote it (R21).
//
//	slots: {mcp: PATH}
//	tools: {metadata: {SERVER: {TOOL: {risk: R, approval_policy: P, enabled: false}}}}
func (l *loader) manifest() Core {
	core := Core{Root: defaultRoot}
	data, ok := l.read(manifestPath, fs.ErrNotExist)
	if !ok {
		return core
	}
	p := parser{path: manifestPath}
	top := p.mapping(p.document(data), "", "slots", "tools")
	mcp := p.mapping(top["slots"], "slots", "mcp")["mcp"]
	if root := p.text(mcp, "slots.mcp"); root != "" {
		core.Root = path.Clean(root)
		if !fs.ValidPath(core.Root) {
			p.fail(mcp, "slots.mcp", PathEscapesRoot, "must be a path inside the core")
		}
	}
	core.Overrides = p.overrides(p.mapping(top["tools"], "tools", "metadata")["metadata"])
	l.add(p.diags...)
	return core
}

// directory reads the declarations of a directory.
func (l *loader) directory(root string) []Declaration {
	at, err := resolve(l.fsys, root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var entries []fs.DirEntry
	var info fs.FileInfo
	if err == nil {
		info, err = fs.Stat(l.fsys, at)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !info.IsDir():
		l.add(Diagnostic{Path: root, Code: RootNotDir, Message: "is not a directory"})
		return nil
	case err == nil:
		entries, err = fs.ReadDir(l.fsys, at)
	}
	if err != nil {
		l.unreadable(root, err)
		return nil
	}

	var list []Declaration
	owner := make(map[string]string)
	for _, e := range entries {
		name := path.Join(root, e.Name())
		ext := path.Ext(e.Name())
		if !strings.EqualFold(ext, ".yaml") && !strings.EqualFold(ext, ".yml") {
			continue
		}
		if _, ok := l.fsys.(fs.ReadLinkFS); !ok && e.Type()&fs.ModeSymlink != 0 {
			l.unreadable(name, errEscapes)
			continue
		}
		data, ok := l.read(name, nil)
		if !ok {
			continue
		}
		id := strings.TrimSuffix(e.Name(), ext)
		if other, taken := owner[id]; taken {
			l.add(Diagnostic{Path: name, Code: DuplicateServerID, Message: fmt.Sprintf("%q declares the same server", other)})
		}
		owner[id] = name
		d, diags := Check(name, data)
		list = append(list, d)
		l.add(diags...)
	}
	return list
}

// Check parses one declaration by itself and says everything that is wrong with it;
// what it says of a valid one are warnings. The stem of the name is that of the server.
func Check(name string, data []byte) (Declaration, []Diagnostic) {
	if len(data) > maxFileBytes {
		return Declaration{}, []Diagnostic{{Path: name, Code: InvalidYAML, Message: "is larger than 1 MiB"}}
	}
	id := strings.TrimSuffix(path.Base(name), path.Ext(name))
	d, diags := parse(id, name, data)
	if !serverID.MatchString(id) {
		diags = append([]Diagnostic{{Path: name, Code: InvalidServerID, Message: "a server is named by 1 to 64 letters, digits, '_', '.', '-' or blanks and starts with a letter or digit"}}, diags...)
	}
	return d, diags
}

// read returns the content of a regular file. What is no regular file is not
// there, without a diagnostic; so is a file for which opening gives absent.
func (l *loader) read(name string, absent error) ([]byte, bool) {
	at, err := resolve(l.fsys, name)
	if err == nil {
		var info fs.FileInfo
		if info, err = fs.Stat(l.fsys, at); err == nil && !info.Mode().IsRegular() {
			return nil, false
		}
	}
	var data []byte
	if err == nil {
		data, err = readSome(l.fsys, at)
	}
	switch {
	case err == nil:
		return data, true
	case absent == nil || !errors.Is(err, absent):
		l.unreadable(name, err)
	}
	return nil, false
}

func (l *loader) unreadable(name string, err error) {
	// The error of a file system may name paths outside of the core.
	switch {
	case errors.Is(err, errEscapes):
		l.add(Diagnostic{Path: name, Code: PathEscapesRoot, Message: "a link leads out of the core"})
	case errors.Is(err, errTooLarge):
		l.add(Diagnostic{Path: name, Code: InvalidYAML, Message: "is larger than 1 MiB"})
	default:
		l.add(Diagnostic{Path: name, Code: CoreLoadFailed, Message: "cannot be read"})
	}
}

var (
	errEscapes  = errors.New("declaration: a link leads out of the core")
	errTooLarge = errors.New("declaration: a file is too large")
)

func readSome(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = errTooLarge
	}
	return data, err
}

// resolve is name without symbolic links, or errEscapes if a link on the way
// leads out of fsys.
func resolve(fsys fs.FS, name string) (string, error) {
	links, ok := fsys.(fs.ReadLinkFS)
	if !ok {
		return name, nil
	}
	at, rest, followed := ".", strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." {
				return "", errEscapes
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		info, err := links.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := links.ReadLink(next)
		if err != nil {
			return "", err
		}
		if followed++; followed > maxLinks {
			return "", fs.ErrInvalid
		}
		if filepath.IsAbs(target) || path.IsAbs(filepath.ToSlash(target)) || filepath.VolumeName(target) != "" {
			return "", errEscapes
		}
		rest = append(strings.Split(filepath.ToSlash(target), "/"), rest...)
	}
	return at, nil
}
